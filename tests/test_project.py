"""What people find around the code: workflows, forms, the API reference."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import rvfl_jax

ROOT = Path(__file__).parents[1]
FORMS = sorted((ROOT / ".github").rglob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PARTS = (
    *("estimators", "cli", "data", "serving", "distributed", "learners", "runs", "streams"),
    *("sweeps", "encoders", "plots"),
)
REFERENCE = ["rvfl_jax", *(f"rvfl_jax.{part}" for part in PARTS)]


def read(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def test_workflows_try_the_versions_of_python_that_are_promised():
    matrix = read(ROOT / ".github/workflows/tests.yml")["jobs"]["quick"]["strategy"]["matrix"]
    promised = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)
    assert matrix["python"] == promised


def test_a_release_is_published_without_a_token():
    text = (ROOT / ".github/workflows/release.yml").read_text(encoding="utf-8")
    assert read(ROOT / ".github/workflows/release.yml")["jobs"]["publish"]["permissions"] == {
        "id-token": "write"
    }
    assert "secrets." not in text


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_forms_and_workflows_can_be_read(path):
    assert isinstance(read(path), dict)
    if path.parent.name == "ISSUE_TEMPLATE" and path.name != "config.yml":
        form = read(path)
        assert {"name", "description", "body"} <= set(form)
        assert all(part["attributes"]["label"] for part in form["body"])


def test_the_owner_is_one_placeholder():
    assert list(PROJECT["urls"]) == ["Repository"]


@pytest.mark.slow
def test_reference_builds_without_a_warning(tmp_path):
    pytest.importorskip("pdoc")
    built = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", "-m", "pdoc", "-d", "google", "-o", tmp_path]
        + REFERENCE,
        env=os.environ | {"PDOC_ALLOW_EXEC": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert built.returncode == 0, built.stderr
    assert "Warn" not in built.stderr
    page = (tmp_path / "rvfl_jax.html").read_text(encoding="utf-8")
    for name in rvfl_jax.__all__:
        assert f'id="{name}"' in page or f"rvfl_jax/{name}.html" in page, name
    assert (tmp_path / "rvfl_jax/learners/slda.html").is_file()
    assert " ".join(REFERENCE) in (ROOT / ".github/CONTRIBUTING.md").read_text(encoding="utf-8")
