"""QR updates against dense Cholesky factors, solves against NumPy, and float32's reach."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.test_util import check_grads

from rvfl_jax.linalg import qr_update
from tests import tolerances


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


# Panels that are narrower than the problems below, so that they meet.
update = jax.jit(partial(qr_update.qr_update, panel=4))


def problem(b=5, d=9, m=2, seed=0, dtype=np.float64):
    rng = np.random.default_rng(seed)
    R = np.triu(rng.normal(size=(d, d)), 1) + np.diag(1 + rng.uniform(size=d))
    arrays = R, rng.normal(size=(d, m)), rng.normal(size=(b, d)), rng.normal(size=(b, m))
    return tuple(np.asarray(x, dtype) for x in arrays)


def dense(R, z, D, Y):
    """R' = chol(R^T R + D^T D)^T and z' = R'^-T (R^T z + D^T Y), in float64."""
    R, z, D, Y = (np.asarray(x, np.float64) for x in (R, z, D, Y))
    upper = np.linalg.cholesky(R.T @ R + D.T @ D).T
    return upper, np.linalg.solve(upper.T, R.T @ z + D.T @ Y)


@pytest.mark.parametrize(
    ("b", "d", "m", "panel"),
    [
        (5, 9, 2, None),
        (9, 9, 2, 4),
        (14, 9, 1, 3),
        (5, 9, 2, 1),
        (3, 13, 2, 2),
        (1, 1, 1, None),
        (40, 37, 3, None),
    ],
)
def test_update_equals_the_dense_factor(b, d, m, panel):
    arrays = problem(b, d, m)
    got = jax.jit(partial(qr_update.qr_update, panel=panel))(*arrays)
    for x, want in zip(got, dense(*arrays), strict=True):
        np.testing.assert_allclose(x, want, atol=tolerances.REORDERED * np.abs(want).max())
    assert np.array_equal(got[0], np.triu(got[0]))


def test_update_in_single_precision():
    arrays = problem(dtype=np.float32)
    got = update(*arrays)
    for x, want in zip(got, dense(*arrays), strict=True):
        assert x.dtype == np.float32
        np.testing.assert_allclose(x, want, atol=tolerances.SINGLE * np.abs(want).max())


def test_a_factor_with_negative_diagonal():
    R, z, D, Y = problem()
    sign = np.where(np.arange(9) % 2, 1.0, -1.0)[:, None]
    got = update(sign * R, sign * z, D, Y)
    for x, want in zip(got, dense(R, z, D, Y), strict=True):
        np.testing.assert_allclose(x, want, atol=10 * tolerances.REORDERED)
    unchanged = update(sign * R, sign * z, 0 * D, 0 * Y)
    assert np.array_equal(unchanged[0], R)
    assert np.array_equal(unchanged[1], z)


def test_rows_of_zeros_change_nothing():
    R, z, D, Y = problem()
    more = [np.concatenate([x, np.zeros((3, x.shape[1]))]) for x in (D, Y)]
    got = update(R, z, *more)
    for x, want in zip(got, update(R, z, D, Y), strict=True):
        np.testing.assert_allclose(x, want, atol=tolerances.REORDERED)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_an_empty_batch_leaves_every_bit(dtype):
    R, z, D, Y = problem(dtype=dtype)
    got = update(R, z, 0 * D, 0 * Y)
    assert np.array_equal(got[0], R)
    assert np.array_equal(got[1], z)


def test_columns_of_zeros():
    """Nothing to annihilate in some columns, and no pivot at all in one of them."""
    R, z, D, Y = problem()
    D[:, [2, 5]] = 0
    got = update(R, z, D, Y)
    for x, want in zip(got, dense(R, z, D, Y), strict=True):
        np.testing.assert_allclose(x, want, atol=10 * tolerances.REORDERED)
    new_R, _ = update(0 * R, 0 * z, D, Y)
    np.testing.assert_allclose(new_R.T @ new_R, D.T @ D, atol=100 * tolerances.REORDERED)


@pytest.mark.parametrize("in_axes", [(0, 0, 0, 0), (None, None, 0, 0)])
def test_vmap_equals_a_loop(in_axes):
    problems = [problem(seed=seed) for seed in range(3)]
    if in_axes[0] is None:
        problems = [(*problems[0][:2], *arrays[2:]) for arrays in problems]
    stacked = [
        np.stack(x) if axis == 0 else x[0]
        for x, axis in zip(zip(*problems, strict=True), in_axes, strict=True)
    ]
    got = jax.jit(jax.vmap(update, in_axes))(*stacked)
    for i, arrays in enumerate(problems):
        for x, want in zip(got, update(*arrays), strict=True):
            np.testing.assert_allclose(x[i], want, atol=tolerances.REORDERED)


def test_derivatives_of_the_update():
    R, z, D, Y = problem(3, 5)

    def of_upper(R, z, D, Y):
        return qr_update.qr_update(jnp.triu(R), z, D, Y, panel=2)

    check_grads(jax.jit(of_upper), (R, z, D, Y), order=1, modes=["fwd", "rev"])


SOLVES = [
    (qr_update.solve_upper_triangular, lambda R: R),
    (qr_update.solve_upper_transposed, lambda R: R.T),
]


@pytest.mark.parametrize(("solve", "oriented"), SOLVES)
@pytest.mark.parametrize(("d", "q", "block"), [(9, 2, None), (9, 2, 4), (9, 1, 3), (40, 3, None)])
def test_solves(solve, oriented, d, q, block):
    R, B, _, _ = problem(1, d, q)
    # A random triangle has a condition number that grows exponentially with its size.
    R = R / d + np.eye(d)
    noise = np.tril(np.ones((d, d)), -1)
    got = jax.jit(partial(solve, block=block))(R + noise, B)
    np.testing.assert_allclose(got, np.linalg.solve(oriented(R), B), atol=tolerances.REORDERED)
    single = jax.jit(partial(solve, block=block))(R.astype(np.float32), B.astype(np.float32))
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, got, atol=tolerances.SINGLE)


@pytest.mark.parametrize(("solve", "oriented"), SOLVES)
def test_vmap_and_derivatives_of_solves(solve, oriented):
    del oriented
    R, B, _, _ = problem(d=5)
    R, B = np.stack([R, 2 * R]), np.stack([B, B + 1])
    single = jax.jit(partial(solve, block=2))
    batched = jax.jit(jax.vmap(single))
    for x, *arrays in zip(batched(R, B), R, B, strict=True):
        np.testing.assert_allclose(x, single(*arrays), atol=tolerances.REORDERED)
    check_grads(batched, (R, B), order=1, modes=["fwd", "rev"])


def test_single_precision_survives_what_defeats_normal_equations():
    """Condition above 1e9: beyond 1 / eps of float32 for A, well within it for its factor."""
    d, ridge = 24, 1e-9
    rng = np.random.default_rng(0)
    scales = np.logspace(0, -5, d)
    rotation = np.linalg.qr(rng.normal(size=(d, d)))[0]
    D = (rng.normal(size=(100, 8, d)) * scales) @ rotation / np.sqrt(800)
    D = D.astype(np.float32)
    Y = (D @ rng.normal(size=(d, 2))).astype(np.float32)

    def solve(dtype):
        rows, targets = D.reshape(-1, d).astype(dtype), Y.reshape(-1, 2).astype(dtype)
        A = rows.T @ rows + ridge * np.eye(d, dtype=dtype)
        return A, np.linalg.solve(A, rows.T @ targets)

    def error(theta):
        return np.linalg.norm(theta - exact) / np.linalg.norm(exact)

    A, exact = solve(np.float64)
    assert np.linalg.cond(A) > 5e8
    assert not error(solve(np.float32)[1]) < 0.1

    start = jnp.eye(d, dtype=np.float32) * np.float32(ridge**0.5), np.zeros((d, 2), np.float32)
    absorb = partial(lax.scan, lambda carry, batch: (update(*carry, *batch), None))
    (R, z), _ = jax.jit(absorb)(start, (D, Y))
    theta = qr_update.solve_upper_triangular(R, z)
    assert error(theta) < 1e-2
