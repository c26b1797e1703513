"""What the README shows runs as printed."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.streams import environment

README_FOLDER = Path(__file__).parents[1]
README = (README_FOLDER / "README.md").read_text(encoding="utf-8")


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


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


@pytest.mark.slow
def test_example_runs_as_printed(tmp_path):
    example = EXAMPLES[0]
    assert len(example.strip().splitlines()) <= 17
    accuracy, sample = printed_by(example, tmp_path).strip().splitlines()
    assert float(accuracy) > 0.95
    assert sample.startswith("predicted")


@pytest.mark.slow
def test_estimator_runs_as_printed(tmp_path):
    *guesses, predicted, classes = printed_by(EXAMPLES[1], tmp_path).strip().splitlines()
    assert (tmp_path / "digits.csv").is_file()
    assert len(guesses) == 17
    assert float(guesses[-1].split()[-1]) > 0.8
    assert predicted.startswith("['inverted' 'inverted']")
    assert classes == "[0 1 2 3 4 5 6 7 8 9]"
    commands = re.findall(r"```bash\n(rvfl-jax fit.*?)```", README, flags=re.DOTALL)[0]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    finished = subprocess.run(
        ["bash", "-ec", commands],
        capture_output=True,
        text=True,
        timeout=240,
        env=environment() | {"PATH": path},
        cwd=tmp_path,
    )
    assert finished.returncode == 0, finished.stderr
    prediction, told = finished.stdout.split("\n", 1)
    assert set(json.loads(prediction)) == {"label", "probability"}
    evaluation, end = json.JSONDecoder().raw_decode(told)
    assert evaluation["accuracy"] > 0.95
    inspected, _ = json.JSONDecoder().raw_decode(told[end:].lstrip())
    assert inspected["rows"] == 1797
    assert (tmp_path / "digits-predictor.npz").is_file()


@pytest.mark.slow
def test_long_runs_and_serving_run_as_printed(tmp_path):
    printed_by(EXAMPLES[2], tmp_path)
    assert (tmp_path / "strengths.png").stat().st_size > 10_000
    heavy = ["sklearn", "chex", "flax", "optax", "matplotlib", "rich"]
    without = f"import sys\nfor name in {heavy}: sys.modules[name] = None\n"
    digits = printed_by(without + EXAMPLES[3], tmp_path).strip()
    assert re.fullmatch(r"\[(\d) \1 \1\] 0\.\d+", digits)
    # And from a copy of the one file.
    shutil.copy(README_FOLDER / "rvfl_jax" / "serving" / "predictor.py", tmp_path / "predictor.py")
    alone = EXAMPLES[3].replace("from rvfl_jax import", "from predictor import")
    without += "sys.modules['rvfl_jax'] = None\n"
    assert printed_by(without + alone, tmp_path).strip() == digits
    # What is finished is only read again.
    printed_by(EXAMPLES[2], tmp_path)


@pytest.mark.slow
def test_sweep_runs_as_printed(tmp_path):
    assert printed_by(EXAMPLES[4], tmp_path).startswith("best of (3, 17, 3) {'ridge': ")


@pytest.mark.slow
def test_comparison_runs_as_printed(tmp_path):
    told = printed_by(EXAMPLES[5], tmp_path)
    assert all(name in told for name in ("-R", "SLDA", "ER", "offline"))
    assert (tmp_path / "compared.png").stat().st_size > 10_000


@pytest.mark.slow
def test_encoder_runs_as_printed(tmp_path):
    assert len(EXAMPLES) == 7
    assert float(printed_by(EXAMPLES[6], tmp_path)) > 0.98


def test_linked_files_exist():
    links = re.findall(r"\]\((?!http)([^)#]+)\)", README)
    assert links
    for link in links:
        assert (Path(__file__).parents[1] / link).exists(), link
