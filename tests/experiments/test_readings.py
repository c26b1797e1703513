"""The readings of the paper's nine rows: sums against printed formulas against the library."""

import shutil

import jax
import numpy as np
import pytest

import rvfl_jax
from experiments import as_printed, readings
from experiments import fashion_mnist as fm
from experiments.results_file import ResultsFile
from rvfl_jax import equations
from tests.amounts import slow_but
from tests.streams import blobs
from tests.tolerances import CLOSED_FORM


@pytest.fixture(scope="module")
def batches():
    """Hardly more rows than features, so that the inverses as printed are benign."""
    X, y = blobs(80, features=6, classes=4)
    Y = np.eye(4)[y]
    return [(X[at : at + 8], Y[at : at + 8]) for at in range(0, 80, 8)]


def learned_in_library(batches, style, after):
    """The library's last theta, the features taken for inputs."""
    X = np.stack([D for D, _ in batches])
    y = np.stack([Y.argmax(axis=1) for _, Y in batches]).astype(np.int32)
    stream = rvfl_jax.class_incremental_stream(
        X.reshape(-1, X.shape[-1]), y.reshape(-1), num_tasks=1, num_batches=len(X), seed=0
    )
    stream = stream._replace(X=X, y=y, classes=np.arange(4), class_task=np.zeros(4, int))
    learner = rvfl_jax.edrvfl(
        num_layers=1,
        num_nodes=1,
        ridge=fm.RIDGES[style],
        k=fm.STRENGTHS[style],
        cold_start="paper",
        # A node that is always 0 leaves the inputs alone.
        activation=lambda a: 0 * a,
    )
    lookahead = {"nothing": None, "last batch": X[-1], "first batch": X[0]}[after]
    run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0), lookahead=lookahead)
    return np.asarray(run.state.theta)[0, 1:]


@pytest.mark.parametrize("after", slow_but(["last batch"], readings.AFTER))
@pytest.mark.parametrize("style", fm.RIDGES)
def test_sums_printed_formulas_and_library_are_one(style, after, batches):
    got = readings.exact(readings.sums_of(batches), style)
    last = {"nothing": None, "last batch": batches[-1][0], "first batch": batches[0][0]}[after]
    if style == "-kF-Bayes":
        with jax.enable_x64(True):
            moments = equations.algorithm_2(batches, fm.RIDGES[style], D_last=last)
            want = [np.asarray(moment.theta) for moment in moments]
    else:
        want = list(as_printed.algorithm_1(batches, last, fm.STRENGTHS[style], fm.RIDGES[style]))
    for theta, wanted in zip([*got.thetas, got.last[after]], want, strict=True):
        np.testing.assert_allclose(theta, wanted, atol=1e-5 * np.abs(wanted).max())
    library = learned_in_library(batches, style, after)
    np.testing.assert_allclose(
        got.last[after], library, atol=10 * CLOSED_FORM * np.abs(library).max()
    )


def test_what_follows_matters_where_something_is_put_on_it(batches):
    sums = readings.sums_of(batches)
    ridge, forward = (readings.exact(sums, style).last for style in ("-R", "-kF"))
    np.testing.assert_array_equal(ridge["nothing"], ridge["first batch"])
    assert np.abs(forward["nothing"] - forward["first batch"]).max() > 1e-3
    assert np.abs(forward["last batch"] - forward["first batch"]).max() > 1e-3


def test_strengths_from_sums_are_those_of_the_rows(batches):
    rng = np.random.default_rng(0)
    half = rng.normal(size=(6, 6))
    precision = half @ half.T + np.eye(6)
    D, Y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    for rows in (80, 8):
        D, Y = D[:rows], Y[:rows]
        (sums,) = readings.sums_of([(D, Y)])
        M = D @ np.linalg.inv(precision) @ D.T
        inverse = np.linalg.inv(M + readings.SIGMA * np.eye(rows))
        want = rows / np.trace(inverse)
        assert readings.strength(sums, precision, readings.INVERSE_TRACE) == pytest.approx(
            want, 1e-6
        )
        want = rows / np.trace(np.linalg.pinv(M, rcond=1e-12))
        assert readings.strength(sums, precision, readings.MOORE_PENROSE) == pytest.approx(
            want, 1e-6
        )
        want = np.trace(M) / rows
        assert readings.strength(sums, precision, readings.TRACE) == pytest.approx(want, 1e-6)


def test_batches_are_joined_in_order(batches):
    sums = readings.joined(readings.sums_of(batches), 5)
    assert len(sums) == 5
    D = np.concatenate([batches[2][0], batches[3][0]])
    np.testing.assert_allclose(sums[1].gram, D.T @ D)
    assert sums[1].rows == 16


def test_one_class_after_the_other_or_both(monkeypatch):
    X, y = blobs(240, features=6, classes=10)
    tasks = [(X[np.isin(y, (c, c + 1))], y[np.isin(y, (c, c + 1))]) * 2 for c in range(0, 10, 2)]
    monkeypatch.setattr(readings, "encoded_tasks", lambda: tasks)
    both, single = (readings.stream_of(0, "relu", cut) for cut in readings.CUTS)
    classes = [{int(c) for c in Y.argmax(axis=1)} for _, Y in single.batches]
    assert sum(len(group) == 1 for group in classes) >= 15, "one class, but where sizes are odd"
    assert any(len({int(c) for c in Y.argmax(axis=1)}) == 2 for _, Y in both.batches)
    assert sum(len(D) for D, _ in single.batches) == len(y)
    order = [set(columns.tolist()) for _, columns in single.tests]
    assert set.union(*order) == set(range(10))


def test_the_table_kept_is_that_of_the_results_kept(tmp_path):
    kept = readings.RESULTS / "readings"
    shutil.copy(kept / "results.json", tmp_path)
    config = readings.Config()
    file = ResultsFile(tmp_path / "results.json", config)
    readings.tabulate(config, file, tmp_path)
    for name in ("table.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (kept / name).read_bytes(), name
