"""The four non-continual references against dense solutions."""

import jax
import numpy as np
import pytest

import rvfl_jax
from tests import references, tolerances
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


@pytest.fixture
def problem():
    X, y = blobs()
    W = rvfl_jax.init_weights(KEY, num_layers=2, num_features=6, num_nodes=9)
    return W, X, np.eye(4)[y]


@pytest.mark.parametrize("form", ["auto", "primal", "dual"])
@pytest.mark.parametrize("rows", [97, 7])
def test_primal_and_dual_are_one_solution(problem, form, rows):
    W, X, Y = problem
    theta = rvfl_jax.offline_edrvfl(W, X[:rows], Y[:rows], ridge=0.3, form=form)
    for layer, D in enumerate(references.features(W, X[:rows])):
        want = references.ridge_solution(D, Y[:rows], 0.3)
        assert references.relative_error(theta[layer], want) <= tolerances.CLOSED_FORM


@pytest.mark.parametrize("form", ["primal", "dual"])
def test_weights_and_padding(problem, form):
    W, X, Y = problem
    weight = np.random.default_rng(0).uniform(0.5, 2, len(X))
    weight[-5:] = 0
    X_dirty, Y_dirty = X.copy(), Y.copy()
    X_dirty[-5:], Y_dirty[-5:] = np.nan, np.nan
    theta = rvfl_jax.offline_edrvfl(
        W, X_dirty, Y_dirty, ridge=np.array([0.3, 2.0]), weight=weight, form=form
    )
    for layer, D in enumerate(references.features(W, X)):
        want = references.ridge_solution(D, Y, [0.3, 2.0][layer], weight)
        assert references.relative_error(theta[layer], want) <= tolerances.CLOSED_FORM


def test_blocks_of_rows_count_every_row_once(problem, monkeypatch):
    W, X, Y = problem
    want = rvfl_jax.offline_edrvfl(W, X, Y, ridge=0.3)
    monkeypatch.setattr("rvfl_jax.learners.edrvfl.sums.BLOCK_ROWS", 10)
    got = rvfl_jax.offline_edrvfl(W, X, Y, ridge=0.3)
    assert references.relative_error(got, want) <= tolerances.CLOSED_FORM


def test_separate_experts_see_their_own_task_only(problem):
    W, X, Y = problem
    stream = rvfl_jax.by_task(ragged_stream())
    targets = np.stack([rvfl_jax.one_hot(y, 4) for y in stream.y])
    thetas = rvfl_jax.separate_edrvfl(W, stream.X, targets, ridge=0.3, weight=stream.weight)
    for q in range(2):
        rows = stream.weight[q] > 0
        D = references.features(W, stream.X[q][rows])
        for layer in range(2):
            want = references.ridge_solution(D[layer], targets[q][rows], 0.3)
            error = references.relative_error(thetas[q, layer], want)
            assert error <= tolerances.CLOSED_FORM
    even = rvfl_jax.separate_edrvfl(W, X[None], Y[None], ridge=0.3)
    whole = rvfl_jax.offline_edrvfl(W, X, Y, ridge=0.3)
    assert references.relative_error(even[0], whole) <= tolerances.CLOSED_FORM


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("num_batches", [2, 40])
def test_fine_tuned_and_non_incremental(keep, num_batches):
    """Two long batches take the primal form, forty short ones the dual."""
    factory = rvfl_jax.fine_tuned_edrvfl if keep else rvfl_jax.non_incremental_edrvfl
    learner = factory(num_layers=2, num_nodes=9, ridge=0.3)
    stream = ragged_stream(num_batches=num_batches)
    run = rvfl_jax.run_stream(learner, stream, key=KEY, test=blobs(20))
    assert set(run.history.accuracy) == set(rvfl_jax.metrics.PROTOCOLS)
    assert np.isnan(run.history.excess_loss).all()
    assert np.isfinite(run.history.regret).all()
    for layer in range(2):
        theta = np.zeros((15, 4))
        for X, y, w in zip(stream.X, stream.y, stream.weight, strict=True):
            D = references.features(run.state.W, X[w > 0])[layer]
            Y = np.eye(4)[y[w > 0]]
            base = theta if keep else np.zeros_like(theta)
            theta = base + references.ridge_solution(D, Y - D @ base, 0.3)
        error = references.relative_error(run.state.theta[layer], theta)
        assert error <= tolerances.CLOSED_FORM


def test_a_method_without_an_expert_says_so():
    learner = rvfl_jax.fine_tuned_edrvfl(num_layers=1, num_nodes=4, ridge=1.0)
    with pytest.raises(ValueError, match="learner: expected one with fit_offline"):
        rvfl_jax.offline_scores(learner, ragged_stream(), np.zeros((2, 6)), key=KEY)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(X=np.zeros((97, 5))), "X: expected shape"),
        (dict(Y=np.zeros((9, 4))), r"Y: expected shape \(97, any\)"),
        (dict(ridge=0.0), "ridge: expected finite and greater than 0"),
        (dict(form="tertiary"), "form: expected one of auto, primal, dual"),
        (dict(weight=np.ones(3)), "weight: expected shape"),
        (dict(activation="step"), "activation"),
    ],
)
def test_bad_input(problem, change, message):
    W, X, Y = problem
    arguments = {"X": X, "Y": Y, "ridge": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        rvfl_jax.offline_edrvfl(W, arguments.pop("X"), arguments.pop("Y"), **arguments)
