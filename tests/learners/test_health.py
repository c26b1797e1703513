"""The residual and the condition against dense sums, and the flag in single precision."""

from functools import partial

import jax
import numpy as np
import pytest

import rvfl_jax
from tests import references
from tests.streams import ragged_stream, reweighted, weighted_batches

RIDGE = 0.3
SOLVERS = ("covariance", "information", "square_root")


def learner_of(solver, k=1.0, ridge=RIDGE, nodes=9, layers=2):
    return rvfl_jax.edrvfl(num_layers=layers, num_nodes=nodes, ridge=ridge, k=k, solver=solver)


@pytest.mark.parametrize("solver", SOLVERS)
def test_what_is_carried_is_a_sketch_of_the_sums(solver):
    stream = reweighted(ragged_stream())
    run = rvfl_jax.run_stream(learner_of(solver), stream, key=jax.random.key(0))
    U = rvfl_jax.learners.edrvfl.residual.probes(15)
    features_of = partial(references.features, run.state.W)
    for layer in range(2):
        batches = weighted_batches(stream, features_of, layer)
        A = RIDGE * np.eye(15) + sum(D.T @ D for D, _ in batches)
        B = sum(D.T @ Y for D, Y in batches)
        sketch = type(run.state.sketch)(*(np.asarray(leaf)[layer] for leaf in run.state.sketch))
        np.testing.assert_allclose(sketch.trace, np.trace(A), rtol=1e-12)
        np.testing.assert_allclose(sketch.gram, U.T @ A, rtol=1e-9)
        np.testing.assert_allclose(sketch.moment, U.T @ B, rtol=1e-9, atol=1e-9)
        assert np.linalg.cond(A) <= run.history.condition[-1, layer]
    assert run.history.residual.max() < 1e-10
    assert run.history.residual.shape == run.history.condition.shape == (9, 2)


def test_the_condition_is_close_where_the_smallest_eigenvalue_is_lambda():
    """More nodes than rows: some directions are never seen."""
    stream = ragged_stream(40, num_batches=4)
    learner = learner_of("covariance", ridge=1e-6, nodes=64, layers=1)
    run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0))
    A = np.linalg.inv(np.asarray(run.state.eta_dagger[0]))
    assert 1 <= run.history.condition[-1, 0] / np.linalg.cond(A) < 3


def test_the_residual_estimates_that_of_the_dense_sums():
    """A readout that is wrong by a known amount."""
    from rvfl_jax.learners.edrvfl.residual import residual, sketch_of

    rng = np.random.default_rng(0)
    D, B = rng.normal(size=(60, 40)), rng.normal(size=(40, 30))
    A = D.T @ D + np.eye(40)
    with jax.enable_x64(True):
        for wrong in (0.0, 1e-3, 10.0):
            theta = np.linalg.solve(A, B) + wrong * rng.normal(size=B.shape)
            want = np.linalg.norm(A @ theta - B) / np.linalg.norm(B)
            empty = np.zeros((1, 4)), np.zeros((1, 30))
            got = residual(sketch_of(A, B), theta, 0.0, *empty)
            assert want / 2 <= got + 1e-12 <= 2 * want + 2e-12


def ill_conditioned(rows=2000, features=20, seed=0):
    """Inputs whose scales fall over five decades, sorted by class."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(rows, features)) * np.logspace(2, -3, features)
    teacher = rng.normal(size=(features, 4)) / np.logspace(2, -3, features)[:, None]
    return X, (X @ teacher).argmax(axis=1)


def run_in(precision, solver, on_failure="raise"):
    X, y = ill_conditioned()
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=2, num_batches=100, seed=0)
    learner = learner_of(solver, k=0.0, ridge=1e-5, nodes=64, layers=1)
    return rvfl_jax.run_stream(
        learner,
        stream,
        key=jax.random.key(0),
        test=(X, y),
        evaluate="task",
        precision=precision,
        on_failure=on_failure,
    )


@pytest.fixture(scope="module")
def exact():
    return run_in("double", "information")


@pytest.mark.parametrize("solver", SOLVERS)
def test_double_precision_bears_an_ill_conditioned_stream(solver, exact):
    run = run_in("double", solver)
    got, want = (r.history.accuracy["class_incremental"][-1] for r in (run, exact))
    assert abs(got - want) <= 0.002
    assert run.history.residual.max() < 1e-3


def test_square_root_form_bears_it_in_single_precision(exact):
    run = run_in("single", "square_root")
    got, want = (r.history.accuracy["class_incremental"][-1] for r in (run, exact))
    assert abs(got - want) <= 0.01


def test_what_single_precision_loses_is_flagged_with_its_batch(exact):
    """Right, or told: never silently wrong."""
    run = run_in("single", "covariance", on_failure="return")
    got, want = (r.history.accuracy["class_incremental"][-1] for r in (run, exact))
    assert abs(got - want) <= 0.01 or not run.history.healthy.all()
    if not run.history.healthy.all():
        with pytest.raises(rvfl_jax.NumericalError, match=r"batch \d+.*square_root"):
            run_in("single", "covariance")
