"""Least squares without negative unknowns is SciPy's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

from rvfl_jax.linalg.nonnegative import nonnegative_least_squares

solve = jax.jit(nonnegative_least_squares)


def problems(number=40, seed=0):
    """Columns of unequal length, some nearly alike: condition up to about 1e4."""
    rng = np.random.default_rng(seed)
    for _ in range(number):
        A = rng.normal(size=(30, 6)) + 2 * rng.normal(size=(30, 1))
        A[:, 5] = A[:, 4] + 0.02 * A[:, 5]
        yield A * rng.uniform(0.1, 10.0, 6), rng.normal(size=30)


def test_it_is_what_scipy_finds():
    some_are_0 = 0
    for A, b in problems():
        want, _ = scipy.optimize.nnls(A, b)
        with jax.enable_x64(True):
            got = np.asarray(solve(jnp.asarray(A), jnp.asarray(b)))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-6 * (1 + want.max()))
        some_are_0 += 0 < np.sum(want == 0) < 6
        # Control: neither the free solution nor its positive part is it.
        free = np.linalg.lstsq(A, b)[0]
        if np.any(free < -1e-3):
            assert np.abs(np.maximum(free, 0) - want).max() > 1e-6 * (1 + want.max())
    assert some_are_0 > 10


def test_columns_of_0_and_columns_alike_are_no_trouble():
    A, b = next(problems())
    A[:, 1], A[:, 3] = 0.0, A[:, 2]
    want = scipy.optimize.nnls(A[:, [0, 2, 4, 5]], b)[1]

    def least(b):
        x = nonnegative_least_squares(jnp.asarray(A), b)
        return jnp.sum((A @ x - b) ** 2)

    with jax.enable_x64(True):
        value, slope = jax.value_and_grad(least)(jnp.asarray(b))
    assert float(value) == pytest.approx(want**2, rel=1e-9)
    assert np.isfinite(slope).all()


def test_nothing_is_left_where_all_columns_go_against():
    A = np.abs(next(problems())[0])
    with jax.enable_x64(True):
        assert not np.any(solve(jnp.asarray(A), jnp.full(30, -1.0)))
