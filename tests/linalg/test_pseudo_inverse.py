"""The pseudo-inverse of symmetric matrices against NumPy's, and its derivative."""

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.linalg.pseudo_inverse import pseudo_solve


def rank_deficient(seed=0, rank=4, size=7):
    rng = np.random.default_rng(seed)
    factor = rng.normal(size=(size, rank))
    return factor @ factor.T, rng.normal(size=(size, 3)), rng


def test_the_pseudo_inverse_is_that_of_numpy():
    M, B, _ = rank_deficient()
    with jax.enable_x64(True):
        got = pseudo_solve(jnp.asarray(M), jnp.asarray(B), 1e-12)
    np.testing.assert_allclose(got, np.linalg.pinv(M, rcond=1e-12) @ B, rtol=0, atol=1e-11)


def test_the_derivative_of_the_pseudo_inverse_at_its_rank():
    """Along a path of matrices of one rank, against central differences of NumPy's."""
    M, B, rng = rank_deficient()
    turn = rng.normal(size=M.shape)
    turn -= turn.T

    def path(t):
        moved = np.eye(len(M)) + t * turn
        return moved @ M @ moved.T

    step = 1e-5
    wanted = np.linalg.pinv(path(step), rcond=1e-10) - np.linalg.pinv(path(-step), rcond=1e-10)
    wanted = wanted @ B / (2 * step)
    with jax.enable_x64(True):
        dM = turn @ M + M @ turn.T
        zero = jnp.zeros(B.shape)
        _, got = jax.jvp(
            lambda M, B: pseudo_solve(M, B, 1e-10),
            (jnp.asarray(M), jnp.asarray(B)),
            (jnp.asarray(dM), zero),
        )
        # Control: the derivative of an inverse, which knows nothing of what was left out.
        solved = pseudo_solve(jnp.asarray(M), jnp.asarray(B), 1e-10)
        inverse = np.asarray(-pseudo_solve(jnp.asarray(M), dM @ solved, 1e-10))
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-6 * np.abs(wanted).max())
    assert np.abs(inverse - wanted).max() > 0.01 * np.abs(wanted).max()
