"""The monoid of rows against dense NumPy: any order, any grouping, and out again."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.learners.edrvfl import sums as module
from rvfl_jax.learners.edrvfl.network import resolve_activation
from rvfl_jax.learners.edrvfl.sums import Sums, learned_state, sums_of, sums_of_rows, system_of
from tests import references, tolerances
from tests.amounts import slow_but
from tests.references import relative_error

KEY = jax.random.key(0)
RIDGES = np.array([0.3, 2.0])
RELU = resolve_activation("relu")


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def rows(seed, count=20):
    rng = np.random.default_rng(seed)
    X, Y = rng.normal(size=(count, 5)), np.eye(3)[rng.integers(0, 3, count)]
    return X, Y, rng.uniform(0.5, 2.0, count)


def network():
    return rvfl_jax.init_weights(KEY, num_layers=2, num_features=5, num_nodes=7)


def of(*seeds):
    """Sums of the batches of those seeds, added one after another."""
    W, sums = network(), Sums.zero((2, 12, 3), float)
    for seed in seeds:
        sums = sums.merge(Sums.of_inputs(W, *rows(seed), RELU))
    return sums


def dense(*seeds):
    """The same by NumPy, as (gram, moment, counts)."""
    X, Y, weight = (np.concatenate(parts) for parts in zip(*map(rows, seeds), strict=True))
    D = references.features(network(), X)
    weighted = np.swapaxes(D, -1, -2) * weight
    return weighted @ D, weighted @ Y, np.stack([weight @ Y] * 2)


def same(got, want, tolerance=tolerances.REORDERED):
    for name, one, other in zip(Sums._fields, got, want, strict=True):
        assert relative_error(one, other) <= tolerance, name


def test_sums_are_those_of_all_rows_at_once():
    same(of(1, 2, 3), dense(1, 2, 3))


@pytest.mark.parametrize("size", [7, 25, 60])
def test_so_are_blocks_of_them(size, monkeypatch):
    monkeypatch.setattr(module, "BLOCK_ROWS", size)
    X, Y, weight = (np.concatenate(parts) for parts in zip(*map(rows, (1, 2, 3)), strict=True))
    parts = map(jax.numpy.asarray, (X, Y, weight))
    same(sums_of_rows(network(), *parts, RELU), dense(1, 2, 3))


def test_it_is_a_commutative_monoid():
    a, b, c = of(1), of(2), of(3)
    same(a.merge(b).merge(c), a.merge(b.merge(c)))
    same(a.merge(b), b.merge(a), 0.0)
    same(a.merge(Sums.zero((2, 12, 3), float)), a, 0.0)


def test_subtract_undoes_merge():
    same(of(1, 2).subtract(of(2)), of(1))


def test_scale_is_that_of_the_weights():
    X, Y, weight = rows(1)
    same(of(1).scale(0.25), Sums.of_inputs(network(), X, Y, 0.25 * weight, RELU))
    same(of(1).merge(of(2)).scale(0.25), of(1).scale(0.25).merge(of(2).scale(0.25)))


def test_columns_go_to_their_places():
    found = of(1).placed(np.array([4, 0, 4]), 5)
    gram, moment, counts = dense(1)
    into = np.zeros((3, 5))
    into[[0, 1, 2], [4, 0, 4]] = 1
    for got, want in zip(found, (gram, moment @ into, counts @ into), strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_sub_learners_that_failed_add_nothing():
    found = of(1).only(np.array([True, False]))
    for got, want in zip(found, dense(1), strict=True):
        assert relative_error(got[0], want[0]) <= tolerances.REORDERED
        assert not np.asarray(got[1]).any()


@pytest.mark.parametrize("began", [False, True])
def test_lambda_and_prior_enter_once(began):
    theta_0 = np.random.default_rng(9).normal(size=(2, 12, 3)) if began else None
    gram, moment, _ = dense(1, 2)
    A = gram + RIDGES[:, None, None] * np.eye(12)
    B = moment + (RIDGES[:, None, None] * theta_0 if began else 0.0)
    system = of(1, 2).finish(RIDGES, theta_0)
    assert relative_error(system.A, A) <= tolerances.REORDERED
    assert relative_error(system.B, B) <= tolerances.REORDERED
    theta = np.linalg.solve(A, B)
    assert relative_error(system.solution(), theta) <= tolerances.CLOSED_FORM
    if not began:
        X, Y, weight = (np.concatenate(parts) for parts in zip(*map(rows, (1, 2)), strict=True))
        gap = (Y - references.features(network(), X) @ theta) ** 2 * weight[:, None]
        errors = of(1, 2).squared_errors(theta, RIDGES)
        assert relative_error(errors, gap.sum(axis=1)) <= tolerances.CLOSED_FORM


@pytest.mark.parametrize("began", slow_but([True], [False, True]))
@pytest.mark.parametrize("solver", ["covariance", "square_root"])
def test_states_are_taken_apart_and_put_together(began, solver):
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=7, ridge=RIDGES, k=1.0, solver=solver)
    state = learner.init(KEY, 5, 3)
    if began:
        theta_0 = np.random.default_rng(9).normal(size=(2, 12, 3))
        state = rvfl_jax.with_prior(state, theta_0)
    for seed in (1, 2):
        X, Y, weight = rows(seed)
        state, _ = learner.step(state, X, Y, rows(seed + 1)[0], weight_t=weight)
    found = sums_of(state, RIDGES)
    for got, want in zip(found[:2], dense(1, 2), strict=False):
        assert relative_error(got, want) <= tolerances.CLOSED_FORM
    again = learned_state(state, found, RIDGES, state.num_learned)
    for name in ("theta_ridge", "eta_dagger"):
        got, want = getattr(again, name), getattr(state, name)
        assert relative_error(got, want) <= tolerances.CLOSED_FORM
    assert relative_error(again.theta, state.theta_ridge) <= tolerances.CLOSED_FORM
    for got, want in zip(system_of(again), found.finish(RIDGES, state.prior), strict=True):
        assert relative_error(got, want) <= tolerances.CLOSED_FORM
    # A state of earlier releases does not say its lambda, which then stays among the sums.
    unknown = learned_state(state, sums_of(state, None), None, state.num_learned)
    assert relative_error(unknown.eta_dagger, state.eta_dagger) <= tolerances.CLOSED_FORM
