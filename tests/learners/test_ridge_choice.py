"""GCV from the state alone against its definition with all rows, and lambda changed afterwards."""

import jax
import numpy as np
import pytest

import rvfl_jax
from tests import tolerances
from tests.references import relative_error

KEY = jax.random.key(0)
CANDIDATES = np.logspace(-3, 3, 13)


def make(ridge, k=1.0):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=ridge, k=k)


@pytest.mark.parametrize("ridge", [0.5, [0.1, 2.0]])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_the_hat_matrix(stream, ridge, weighted):
    if weighted:
        # Integral weights, so that a row of weight 3 is three rows in the reference.
        weight = np.random.default_rng(0).integers(1, 4, stream.weight.shape)
        stream = stream._replace(weight=np.where(stream.weight > 0, weight, 0).astype(float))
    state = rvfl_jax.run_stream(make(ridge), stream, key=KEY).state
    n = float(stream.weight.sum())
    scores = rvfl_jax.generalised_cross_validation(state, CANDIDATES, ridge=ridge, num_rows=n)
    assert scores.shape == (13, 2)
    repeats = stream.weight.reshape(-1).astype(int)
    Y = np.repeat(np.eye(4)[stream.y.reshape(-1)], repeats, axis=0)
    with jax.enable_x64(True):
        X = np.repeat(stream.X.reshape(-1, stream.X.shape[-1]), repeats, axis=0)
        both = np.asarray(rvfl_jax.features(state.W, X))
    for layer, D in enumerate(both):
        for place, candidate in enumerate(CANDIDATES):
            hat = D @ np.linalg.solve(D.T @ D + candidate * np.eye(D.shape[1]), D.T)
            expected = np.sum((Y - hat @ Y) ** 2) / n / (1 - np.trace(hat) / n) ** 2
            assert scores[place, layer] == pytest.approx(expected, rel=tolerances.CLOSED_FORM)


def test_the_choice_is_near_the_best_by_leave_one_out(stream):
    state = rvfl_jax.run_stream(make(0.5), stream, key=KEY).state
    n = int((stream.weight > 0).sum())
    scores = rvfl_jax.generalised_cross_validation(state, CANDIDATES, ridge=0.5, num_rows=n)
    rows = stream.weight > 0
    with jax.enable_x64(True):
        D = np.asarray(rvfl_jax.features(state.W, stream.X[rows]))[0]
    Y = np.eye(4)[stream.y[rows]]
    left_out = []
    for candidate in CANDIDATES:
        hat = D @ np.linalg.solve(D.T @ D + candidate * np.eye(D.shape[1]), D.T)
        residual = (Y - hat @ Y) / (1 - np.diag(hat))[:, None]
        left_out.append(np.mean(np.sum(residual**2, axis=1)))
    chosen = left_out[int(np.argmin(scores[:, 0]))]
    assert chosen <= 1.02 * min(left_out)


def test_another_ridge_afterwards_equals_having_learned_with_it(stream):
    old, new = 0.5, [0.05, 3.0]
    state = rvfl_jax.run_stream(make(old), stream, key=KEY).state
    changed = rvfl_jax.with_ridge(state, new, ridge=old)
    expected = rvfl_jax.run_stream(make(new), stream, key=KEY).state
    for name in ("theta", "eta_dagger", "eta", "theta_ridge"):
        got, want = getattr(changed, name), getattr(expected, name)
        assert relative_error(got, want) <= tolerances.CLOSED_FORM
    assert relative_error(changed.sketch.gram, expected.sketch.gram) <= tolerances.CLOSED_FORM
    assert np.asarray(changed.theta).dtype == np.float64


@pytest.mark.parametrize("reuse_k", [True, False])
def test_which_adaptive_strengths_it_holds_for(stream, reuse_k):
    """-kF-Bayes as printed teaches part of its own guesses, which hang on lambda."""
    k = rvfl_jax.adaptive_k(1.0, 0.1, reuse_k=reuse_k)
    states = {
        ridge: rvfl_jax.run_stream(make(ridge, k), stream, key=KEY).state for ridge in (0.5, 3.0)
    }
    changed = rvfl_jax.with_ridge(states[0.5], 3.0, ridge=0.5)
    error = relative_error(changed.theta_ridge, states[3.0].theta_ridge)
    assert error <= tolerances.CLOSED_FORM if reuse_k else error > 1e-3


def test_no_choice_falls_on_more_freedom_than_rows(stream):
    state = rvfl_jax.run_stream(make(0.5), stream, key=KEY).state
    few = rvfl_jax.generalised_cross_validation(state, [1e-6, 1e6], ridge=0.5, num_rows=5)
    assert np.isinf(few[0]).all()
    assert np.isfinite(few[1]).all()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"candidates": [1.0, 0.0]}, "candidates: expected finite numbers above 0"),
        ({"num_rows": 0}, "num_rows: expected a number above 0, got 0"),
        ({"ridge": -1.0}, "ridge: expected finite and greater than 0"),
    ],
)
def test_bad_input(stream, learner, change, message):
    state = learner.init(KEY, 6, 4)
    arguments = {"candidates": [1.0], "ridge": 0.5, "num_rows": 3} | change
    with pytest.raises(ValueError, match=message):
        rvfl_jax.generalised_cross_validation(state, arguments.pop("candidates"), **arguments)
    with pytest.raises(ValueError, match="new: expected finite and greater than 0"):
        rvfl_jax.with_ridge(state, 0.0, ridge=0.5)
