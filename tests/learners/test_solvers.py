"""Every solver on its contract, one sub-learner at a time, against dense NumPy."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rvfl_jax.learners.edrvfl.solvers.base import (
    FeatureBatch,
    SolverOptions,
    Step,
    SubLearner,
)
from rvfl_jax.learners.edrvfl.solvers.choice import BY_NAME, fastest, solvers_of
from rvfl_jax.learners.edrvfl.strength import ConstantK
from tests import tolerances
from tests.references import relative_error

D, B, M, RIDGE, K = 9, 4, 3, 0.5, 1.3
CASES = [*itertools.product(BY_NAME, (False, True), (False, True))]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def batches(count):
    rng = np.random.default_rng(0)
    return [(rng.normal(size=(B, D)), np.eye(M)[rng.integers(0, M, B)]) for _ in range(count)]


def as_batch(X):
    return FeatureBatch(jnp.asarray(X), jnp.ones(len(X), bool))


def begun():
    none, inverse = jnp.zeros((D, M)), jnp.eye(D) / RIDGE
    root = jnp.sqrt(RIDGE) * jnp.eye(D)
    return SubLearner(inverse, inverse, none, none, jnp.zeros(()), root)


@pytest.mark.parametrize(("name", "forward", "skips"), CASES)
def test_each_solves_the_system_that_it_was_taught(name, forward, skips):
    solver = BY_NAME[name](SolverOptions(forward, skips))
    k = K if forward else 0.0
    rows = batches(4)
    carry = solver.begin(begun(), as_batch(rows[0][0]))
    A, moment = RIDGE * np.eye(D), np.zeros((D, M))
    for t, ((X, Y), (X_next, _)) in enumerate(itertools.pairwise(rows)):
        guess = X @ np.asarray(solver.theta(carry))
        np.testing.assert_allclose(carry.V, guess, atol=tolerances.CLOSED_FORM)
        step = Step(
            as_batch(X),
            jnp.asarray(Y),
            jnp.ones((), bool),
            as_batch(X_next),
            ConstantK(jnp.asarray(k)),
            jnp.asarray(t == 0),
            (None, None),
        )
        carry, report = solver.advance(carry, step)
        assert bool(report.absorbed)
        assert bool(report.sound)
        assert float(report.weight) == float(not (skips and t == 0))
        A += float(report.weight) * X.T @ X
        moment += X.T @ Y
        ahead = A + k * X_next.T @ X_next
        theta = np.linalg.solve(ahead, moment)
        assert relative_error(solver.theta(carry), theta) <= tolerances.CLOSED_FORM
        found, inside = solver.solution(carry)
        system = A + inside * X_next.T @ X_next
        assert relative_error(system @ np.asarray(found), moment) <= tolerances.CLOSED_FORM
    end = solver.finish(carry)
    for got, want in (
        (end.eta_dagger, np.linalg.inv(A)),
        (end.eta, np.linalg.inv(ahead)),
        (end.theta_ridge, np.linalg.solve(A, moment)),
        (end.theta, theta),
    ):
        assert relative_error(got, want) <= tolerances.CLOSED_FORM
    assert float(end.k) == k
    assert (end.root is not None) == solver.needs_root


@pytest.mark.parametrize(
    "name", [n for n in BY_NAME if BY_NAME[n](SolverOptions(True, False)).follow]
)
def test_scores_are_followed(name):
    solver = BY_NAME[name](SolverOptions(True, False))
    Z, rows = np.random.default_rng(1).normal(size=(6, D)), batches(3)
    carry = solver.begin(begun(), as_batch(rows[0][0]))
    followed = solver.follow.begin(carry, Z)
    for (X, Y), (X_next, _) in itertools.pairwise(rows):
        step = Step(
            *(as_batch(X), jnp.asarray(Y), jnp.ones((), bool), as_batch(X_next)),
            *(ConstantK(jnp.asarray(K)), jnp.zeros((), bool), (None, None)),
        )
        carry, _ = solver.advance(carry, step)
        followed = solver.follow.advance(followed, solver.follow.move(carry, Z))
        want = Z @ np.asarray(solver.theta(carry))
        assert relative_error(solver.follow.read(followed, carry), want) <= tolerances.CLOSED_FORM


def test_solvers_are_structure_and_equal_by_options():
    options = SolverOptions(True, False)
    for name, make in BY_NAME.items():
        assert make(options) is make(SolverOptions(True, False))
        assert make(options) != make(SolverOptions(False, False))
        assert not jax.tree.leaves(make(options))
        assert solvers_of(name, options) == (make(options),)


@pytest.mark.parametrize(("rows", "name"), [(4, "blocked"), (5, "information")])
def test_auto_takes_the_fastest(rows, name):
    assert fastest(solvers_of("auto", SolverOptions(True, False)), rows, 10).name == name
