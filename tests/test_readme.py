"""What the README and the guides in docstrings show runs as printed."""

import json
import os
import re
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.streams import environment

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(text, language="python"):
    return re.findall(rf"```{language}\n(.*?)```", text, flags=re.DOTALL)


def guide(package):
    return import_module(f"rvfl_jax.{package}").__doc__


TABLES, SERVED, EXAMPLE = blocks(README)


def printed_by(example, folder):
    finished = subprocess.run(
        [sys.executable, "-c", example],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment(),
        cwd=folder,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def printed_by_commands(commands, folder):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        ["bash", "-ec", commands],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment() | {"PATH": path},
        cwd=folder,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


def test_a_newcomer_gets_through_it_in_five_minutes():
    assert len(README.splitlines()) < 220


@pytest.mark.slow
def test_estimator_and_guide_to_commands_run_as_printed(tmp_path):
    *guesses, predicted, classes = printed_by(TABLES, tmp_path).strip().splitlines()
    assert (tmp_path / "digits.csv").is_file()
    assert len(guesses) == 17
    assert float(guesses[-1].split()[-1]) > 0.8
    assert predicted.startswith("['inverted' 'inverted']")
    assert classes == "[0 1 2 3 4 5 6 7 8 9]"
    commands = blocks(guide("cli"), "bash")[0]
    prediction, told = printed_by_commands(commands, tmp_path).split("\n", 1)
    assert set(json.loads(prediction)) == {"label", "probability"}
    evaluation, end = json.JSONDecoder().raw_decode(told)
    assert evaluation["accuracy"] > 0.95
    inspected, _ = json.JSONDecoder().raw_decode(told[end:].lstrip())
    assert inspected["rows"] == 1797
    assert (tmp_path / "digits-predictor.npz").is_file()


@pytest.mark.slow
def test_from_a_parquet_to_a_service_runs_as_printed(tmp_path):
    (commands,) = (block for block in blocks(README, "bash") if "rvfl-jax fit" in block)
    told = printed_by_commands(commands, tmp_path)
    assert "\nm40,login" in told
    assert json.loads(told[told.index("{") :])["accuracy"] > 0.9
    label, probability = printed_by(SERVED, tmp_path).split()
    assert label == "login"
    assert 0.3 < float(probability) <= 1


@pytest.mark.slow
def test_example_runs_as_printed(tmp_path):
    assert len(EXAMPLE.strip().splitlines()) <= 17
    accuracy, sample = printed_by(EXAMPLE, tmp_path).strip().splitlines()
    assert float(accuracy) > 0.95
    assert sample.startswith("predicted")


@pytest.mark.slow
def test_guides_to_long_runs_and_serving_run_as_printed(tmp_path):
    (long_run,) = blocks(guide("runs"))
    (serving,) = blocks(guide("serving"))
    printed_by(long_run, tmp_path)
    assert (tmp_path / "strengths.png").stat().st_size > 10_000
    heavy = ["sklearn", "chex", "flax", "optax", "matplotlib", "rich"]
    without = f"import sys\nfor name in {heavy}: sys.modules[name] = None\n"
    digits = printed_by(without + serving, tmp_path).strip()
    assert re.fullmatch(r"\[(\d) \1 \1\] 0\.\d+", digits)
    # And from a copy of the one file.
    shutil.copy(ROOT / "rvfl_jax" / "serving" / "predictor.py", tmp_path / "predictor.py")
    alone = serving.replace("from rvfl_jax import", "from predictor import")
    without += "sys.modules['rvfl_jax'] = None\n"
    assert printed_by(without + alone, tmp_path).strip() == digits
    # What is finished is only read again.
    printed_by(long_run, tmp_path)


@pytest.mark.slow
def test_guide_to_sweeps_runs_as_printed(tmp_path):
    (example,) = blocks(guide("sweeps"))
    assert printed_by(example, tmp_path).startswith("best of (3, 17, 3) {'ridge': ")


@pytest.mark.slow
def test_guide_to_learners_runs_as_printed(tmp_path):
    (example,) = blocks(guide("learners"))
    told = printed_by(example, tmp_path)
    assert all(name in told for name in ("-R", "SLDA", "ER", "offline"))


@pytest.mark.slow
def test_guide_to_encoders_runs_as_printed(tmp_path):
    (example,) = blocks(guide("encoders"))
    assert float(printed_by(example, tmp_path)) > 0.98


def test_linked_files_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


def test_linked_sections_exist():
    headings = {
        re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^#+ (.*)$", README, flags=re.MULTILINE)
    }
    for link in re.findall(r"\]\(#([^)]+)\)", README):
        assert link in headings, link
