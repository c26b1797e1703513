"""`rvfl-jax --list-methods`, and who of the methods is told of tasks by `rvfl-jax run`."""

import io
import json
import re

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.cli import main as cli
from rvfl_jax.cli.compare import STYLES, Config, boundaries_of, make_learners
from rvfl_jax.cli.methods import HEADINGS, MEMORY, OURS, print_methods
from rvfl_jax.learners import REGISTERED
from rvfl_jax.learners.methods import METHODS
from rvfl_jax.runs.step import consolidates
from tests.learners.test_methods import leaves_of, make


class Terminal(io.StringIO):
    def isatty(self):
        return True


def printed(capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["--list-methods"])
    assert stop.value.code == 0
    return capsys.readouterr().out


def test_every_style_is_a_line_of_cells(capsys):
    table, legend = printed(capsys).split("\n\n")
    first, *lines = (re.split("  +", line) for line in table.splitlines())
    assert tuple(first) == HEADINGS
    assert [line[0] for line in lines] == [*OURS, *METHODS]
    assert {*STYLES, *REGISTERED} < {line[0] for line in lines}
    cells = {line[0]: dict(zip(HEADINGS, line, strict=True)) for line in lines}
    for name, method in METHODS.items():
        assert cells[name]["title"] == method.title
        assert cells[name]["boundaries"] == method.boundaries
        assert cells[name]["keeps rows"] == ("yes" if method.keeps_rows else "no")
        assert int(cells[name]["passes"]) == method.passes
        assert cells[name]["source"] == (method.source or "-")
    assert all(heading in legend for heading in ("name:", "boundaries:", "passes:", "memory:"))
    for name, method in METHODS.items():
        assert method.style or f"{name} is an offline expert" in legend


def test_a_terminal_shows_it_as_wide_as_it_is(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    out = Terminal()
    print_methods(out)
    lines = re.sub("\x1b\\[[0-9;]*m", "", out.getvalue()).split("name:")[0].splitlines()
    assert max(map(len, lines)) <= 80
    begun = {line.split()[0] for line in lines if line[1:2].strip()}
    assert {*METHODS, "ridge", "--k"} < begun


def test_the_size_of_our_states_is_told():
    L, N, s, m = 3, 16, 6, 4
    state = rvfl_jax.edrvfl(num_layers=L, num_nodes=N, ridge=1.0, k=1.0).init(
        jax.random.key(0), s, m
    )
    told = MEMORY.replace(" (", "*(").replace("^", "**")
    told = told.replace("2 d", "2*d").replace("2 m", "2*m")
    told = eval(told, {"L": L, "d": N + s, "N": N, "m": m})
    vectors = L * (5 * (N + s) + 5 * m + 3) + 1
    assert 0 <= sum(np.size(leaf) for leaf in leaves_of(state)) - told <= vectors


@pytest.mark.parametrize("name", METHODS)
def test_the_table_tells_who_has_to_be_told_of_tasks(name):
    assert consolidates(make(name)) == (METHODS[name].boundaries == "given")


def test_run_tells_those_of_tasks_whom_the_table_says():
    """Of methods that are in no table, those to whom it is anything."""
    learners = make_learners(Config(styles=("ridge", "bayes", "slda", "ewc", "task_free_mas")))
    learners |= {"mine": learners["ewc"], "yours": learners["slda"]}
    told = {name for name, each in boundaries_of(learners).items() if each == "given"}
    assert told == {"ewc", "mine"}


@pytest.mark.slow
def test_a_run_marks_who_was_told_and_is_that_of_given_boundaries(tmp_path, capsys):
    options = ["--styles", "ridge,si", "--seeds", "1", "--num-nodes", "16", "--batches", "10"]
    assert cli.main(["run", *options, "--quiet", "--out", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    (at,) = (i for i, line in enumerate(lines) if line.strip().startswith("tasks told"))
    assert lines[at - 1].split()[0] == "si"
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["boundaries"] == {"-R": "none", "si": "given"}
