"""Solves against NumPy, derivatives against finite differences, and no deadlock."""

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.linalg.products import is_finite, plus_outer_square, symmetrise
from rvfl_jax.linalg.spd import cho_solve, cholesky, spd_inverse
from tests import tolerances
from tests.streams import environment


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def positive_definite(*batch, size=6, seed=0):
    A = np.random.default_rng(seed).normal(size=(*batch, size, size))
    return A @ np.swapaxes(A, -1, -2) + np.eye(size)


B = np.random.default_rng(1).normal(size=(6, 2))


def test_solves():
    A = positive_definite()
    R = cholesky(A)
    np.testing.assert_allclose(R, np.linalg.cholesky(A), atol=tolerances.REORDERED)
    np.testing.assert_allclose(cho_solve(R, B), np.linalg.solve(A, B), atol=tolerances.REORDERED)
    inverse = spd_inverse(A)
    np.testing.assert_allclose(inverse, np.linalg.inv(A), atol=tolerances.REORDERED)
    assert np.array_equal(inverse, inverse.T)


@pytest.mark.parametrize("in_axes", [(0, 0), (0, None), (None, 0)])
def test_vmap_equals_a_loop(in_axes):
    A = positive_definite(3) if in_axes[0] == 0 else positive_definite()
    right = np.stack([B, 2 * B, 3 * B]) if in_axes[1] == 0 else B

    def solve(A, B):
        return cho_solve(cholesky(A), B)

    got = jax.vmap(solve, in_axes)(A, right)
    for i in range(3):
        want = solve(A[i] if in_axes[0] == 0 else A, right[i] if in_axes[1] == 0 else right)
        np.testing.assert_allclose(got[i], want, atol=tolerances.REORDERED)


def test_nested_vmap():
    A = positive_definite(2, 3)
    got = jax.vmap(jax.vmap(cholesky))(A)
    np.testing.assert_allclose(got, np.linalg.cholesky(A), atol=tolerances.REORDERED)


def test_derivatives():
    def solve(A, B):
        return cho_solve(cholesky(symmetrise(A)), B)

    check_grads(jax.jit(solve), (positive_definite(), B), order=2)
    check_grads(jax.jit(jax.vmap(solve, (0, None))), (positive_definite(3), B), order=1)


def test_a_matrix_that_is_not_positive_definite_is_told():
    assert not bool(is_finite(cholesky(-jnp.eye(3))))
    assert bool(is_finite(cholesky(jnp.eye(3))))


def test_precision_scope():
    with precision_scope("single"):
        assert jnp.ones(1).dtype == jnp.float32
    with precision_scope("double"):
        assert jnp.ones(1).dtype == jnp.float64
    with pytest.raises(ValueError, match="precision"):
        precision_scope("quadruple")


def test_vmapped_solves_become_single_lapack_calls():
    """Batched LAPACK kernels can wait for each other for ever on a small CPU."""
    if jax.default_backend() != "cpu":
        pytest.skip("only the CPU's kernels use the thread pool")
    A = positive_definite(3)
    program = jax.jit(jax.vmap(lambda a: cho_solve(cholesky(a), B))).lower(A)
    calls = [line for line in program.as_text().splitlines() if "lapack" in line or "trsm" in line]
    assert calls
    assert not any("3x6x6" in line for line in calls)


HAMMER = """
import jax, jax.numpy as jnp, numpy as np, rvfl_jax
with jax.enable_x64(True):
    learner = rvfl_jax.edrvfl(
        num_layers=3,
        num_nodes=16,
        ridge=0.1,
        k=rvfl_jax.adaptive_k(sigma=0.01),
        solver="covariance",
    )
    state = learner.init(jax.random.key(0), 64, 10)
    X = np.random.default_rng(0).normal(size=(40, 64))
    Y = np.eye(10)[np.arange(40) % 10]
    for _ in range(600):
        state, info = learner.step(state, X, Y, X)
        float(info.extras["k_next"][0])
"""


@pytest.mark.slow
def test_many_steps_do_not_deadlock():
    subprocess.run([sys.executable, "-c", HAMMER], check=True, timeout=240, env=environment())


@pytest.mark.parametrize("width", [200, 700])
def test_outer_squares_are_added_and_taken_out_in_one_pass(width):
    rng = np.random.default_rng(0)
    S = rng.standard_normal((width, 30))
    A = rng.standard_normal((width, 40))
    A = A @ A.T
    with jax.enable_x64(True):
        added = plus_outer_square(jnp.asarray(A), jnp.asarray(S), 0.5, 1.0)
        again = plus_outer_square(added, jnp.asarray(S), 1.0, -1.0)
    np.testing.assert_allclose(added, 0.5 * A + S @ S.T, rtol=0, atol=1e-11)
    np.testing.assert_allclose(again, 0.5 * A, rtol=0, atol=1e-11)
