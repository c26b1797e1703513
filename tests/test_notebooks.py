"""Every notebook runs from top to bottom, and its two forms are one text."""

import os
import re
from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient import NotebookClient

# Notebooks compute for longer than they compile.
FLAGS = os.environ["XLA_FLAGS"].replace("optimization_level=0", "optimization_level=1")
# A tag of cells that print seconds.
TIMING = "timing"
NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?")
FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.slow
@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path):
    notebook = nbformat.read(path, as_version=4)
    kept = [_told(cell) for cell in notebook.cells]
    client = NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}})
    client.execute(env=os.environ | {"XLA_FLAGS": FLAGS})
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    for place, (before, cell) in enumerate(zip(kept, notebook.cells, strict=True)):
        if TIMING not in cell.metadata.get("tags", []):
            assert agree(before, _told(cell)), f"cell {place}:\n{before}\n-- now --\n{_told(cell)}"


@pytest.mark.parametrize(
    ("kept", "now", "same"),
    [
        ("loss 0.330 at k = 1", "loss 0.331 at  k = 1\n", True),
        ("loss 0.330", "loss 0.350", False),
        ("loss 0.330", "gain 0.330", False),
        ("k 1 2", "k 1", False),
        ("difference 2e-13", "difference 9e-14", True),
        ("difference 2e-13", "difference 2e-3", False),
    ],
)
def test_kept_outputs_agree_or_not(kept, now, same):
    assert agree(kept, now) is same


def _told(cell):
    """What a cell prints, its text alone."""
    return "".join(
        output.get("text", "") if output.output_type == "stream" else ""
        for output in cell.get("outputs", [])
    )


def agree(kept, now):
    """The same words, and numbers but for rounding, which differs with machine and version."""
    if NUMBER.sub("#", " ".join(kept.split())) != NUMBER.sub("#", " ".join(now.split())):
        return False
    pairs = zip(NUMBER.findall(kept), NUMBER.findall(now), strict=True)
    return all(_near(float(a), float(b), _last_digit(a)) for a, b in pairs)


def _near(a, b, unit):
    return max(abs(a), abs(b)) < 1e-6 or abs(a - b) <= 0.02 * abs(a) + 2 * unit


def _last_digit(number):
    digits, _, power = number.lower().partition("e")
    return 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_and_script_are_one_text(path):
    script = jupytext.read(path.with_suffix(".py"))
    notebook = nbformat.read(path, as_version=4)
    assert [cell.source for cell in notebook.cells] == [cell.source for cell in script.cells]
