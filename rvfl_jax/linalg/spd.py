"""Symmetric positive definite matrices: factors, solves and inverses, with their derivatives.

Derivatives use products with R^-1 alone, because a loop made by `one_by_one` has no transpose. The
inverse is computed only where a derivative is asked for.
"""

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.lapack import lapack_cholesky, lapack_eigh, lapack_lower, lapack_upper
from rvfl_jax.linalg.products import is_finite, lower_half, matmul, symmetrise


@jax.custom_jvp
def cholesky(A: Array) -> Array:
    """Lower factor of the symmetric (p, p) matrix A, of which only the lower half is read.

    Where A is not positive definite the factor holds NaN; `is_finite` tells. So it does
    where A overflowed, which LAPACK takes for a matrix whose inverse is 0.
    """
    R = lapack_cholesky(A)
    return jnp.where(is_finite(jnp.diag(R)), R, jnp.nan)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """With R R^T = A:  dR = R Phi(R^-1 dA R^-T), Phi = lower half, diagonal halved."""
    R = cholesky(*primals)
    inverse = lower_inverse(R)
    inner = matmul(matmul(inverse, symmetrise(tangents[0])), inverse.T)
    return R, matmul(R, lower_half(inner))


@jax.custom_jvp
def solve_lower(R: Array, B: Array) -> Array:
    """R^-1 B for a lower (p, p) factor R and B of shape (p, q)."""
    return lapack_lower(R, B)


@solve_lower.defjvp
def _solve_lower_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d(R^-1 B) = R^-1 (dB - dR X)."""
    X = solve_lower(*primals)
    change = tangents[1] - matmul(jnp.tril(tangents[0]), X)
    return X, matmul(lower_inverse(primals[0]), change)


@jax.custom_jvp
def solve_upper(R: Array, B: Array) -> Array:
    """R^-T B for a lower (p, p) factor R and B of shape (p, q)."""
    return lapack_upper(R, B)


@solve_upper.defjvp
def _solve_upper_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d(R^-T B) = R^-T (dB - dR^T X)."""
    X = solve_upper(*primals)
    change = tangents[1] - matmul(jnp.tril(tangents[0]).T, X)
    return X, matmul(lower_inverse(primals[0]).T, change)


def eigh(A: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors in columns, of the symmetric (p, p) matrix A."""
    values, vectors = lapack_eigh(A)
    return values, vectors


def lower_inverse(R: Array) -> Array:
    """R^-1 for a lower (p, p) factor R."""
    return solve_lower(R, jnp.eye(len(R), dtype=R.dtype))


def cho_solve(R: Array, B: Array) -> Array:
    """(R R^T)^-1 B for a lower (p, p) factor R and B of shape (p, q)."""
    return solve_upper(R, solve_lower(R, B))


def spd_inverse(A: Array) -> Array:
    """Inverse of a symmetric positive definite (p, p) matrix, symmetric to the last bit."""
    return cho_inverse(cholesky(A))


def cho_inverse(R: Array) -> Array:
    """(R R^T)^-1 for a lower (p, p) factor R, symmetric to the last bit."""
    return symmetrise(cho_solve(R, jnp.eye(R.shape[0], dtype=R.dtype)))
