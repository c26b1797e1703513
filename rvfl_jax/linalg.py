"""Positive definite solves and the precision policy; every factorisation goes through here.

Matrix products run at the highest precision of the device: the default of several
accelerators rounds the inputs of a product to 10 bits, which breaks the recursions below.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from rvfl_jax.checks import one_of
from rvfl_jax.types import Array

PRECISIONS = ("double", "single")

matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def precision_scope(precision: str) -> AbstractContextManager[Any]:
    """The context in which a driver computes; the process-wide setting stays as it was.

    Args:
        precision: "double" or "single".

    Raises:
        ValueError: on any other name.
    """
    return jax.enable_x64(one_of("precision", precision, PRECISIONS) == "double")


def scope_of(array: Array) -> AbstractContextManager[Any]:
    """The context in which a float64 array stays float64, whatever the global setting."""
    needed = array.dtype == jnp.float64 and jnp.result_type(float) != jnp.float64
    return jax.enable_x64(True) if needed else nullcontext()


def _one_by_one(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function`, whose vmap on CPU is a loop of single LAPACK calls.

    A batched LAPACK kernel of jaxlib (seen in 0.10.2) waits, on a thread of XLA's pool, for
    work that it has put into the same pool. Two of them at once on a machine of few cores
    wait for ever. A single call does not use the pool; OpenBLAS threads it where it is
    large. Accelerators keep their batched kernels.
    """
    single = custom_vmap(function)

    @single.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[Array, bool]:
        del axis_size
        batched = [x for x, is_batched in zip(args, in_batched, strict=True) if is_batched]

        def call(moving: list[Array]) -> Array:
            rest = iter(moving)
            pairs = zip(args, in_batched, strict=True)
            return single(*[next(rest) if is_batched else x for x, is_batched in pairs])

        if jax.default_backend() == "cpu":
            return lax.map(call, batched), True
        axes = [0 if is_batched else None for is_batched in in_batched]
        return jax.vmap(function, in_axes=axes)(*args), True

    return single


_lapack_cholesky = _one_by_one(partial(lax.linalg.cholesky, symmetrize_input=False))
_lapack_lower = _one_by_one(partial(lax.linalg.triangular_solve, left_side=True, lower=True))
_lapack_upper = _one_by_one(
    partial(lax.linalg.triangular_solve, left_side=True, lower=True, transpose_a=True)
)


# The derivatives below use products with R^-1 alone, because a loop made by `_one_by_one`
# has no transpose. The inverse is computed only where a derivative is asked for.


@jax.custom_jvp
def cholesky(A: Array) -> Array:
    """Lower factor of the symmetric (p, p) matrix A, of which only the lower half is read.

    Where A is not positive definite the factor holds NaN; `is_finite` tells.
    """
    return _lapack_cholesky(A)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """With R R^T = A:  dR = R Phi(R^-1 dA R^-T), Phi = lower half, diagonal halved."""
    R = cholesky(*primals)
    inverse = _lower_inverse(R)
    inner = matmul(matmul(inverse, symmetrise(tangents[0])), inverse.T)
    phi = jnp.tril(inner) - 0.5 * jnp.diag(jnp.diag(inner))
    return R, matmul(R, phi)


@jax.custom_jvp
def solve_lower(R: Array, B: Array) -> Array:
    """R^-1 B for a lower (p, p) factor R and B of shape (p, q)."""
    return _lapack_lower(R, B)


@solve_lower.defjvp
def _solve_lower_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d(R^-1 B) = R^-1 (dB - dR X)."""
    X = solve_lower(*primals)
    change = tangents[1] - matmul(jnp.tril(tangents[0]), X)
    return X, matmul(_lower_inverse(primals[0]), change)


@jax.custom_jvp
def solve_upper(R: Array, B: Array) -> Array:
    """R^-T B for a lower (p, p) factor R and B of shape (p, q)."""
    return _lapack_upper(R, B)


@solve_upper.defjvp
def _solve_upper_jvp(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """d(R^-T B) = R^-T (dB - dR^T X)."""
    X = solve_upper(*primals)
    change = tangents[1] - matmul(jnp.tril(tangents[0]).T, X)
    return X, matmul(_lower_inverse(primals[0]).T, change)


def _lower_inverse(R: Array) -> Array:
    return solve_lower(R, jnp.eye(len(R), dtype=R.dtype))


def cho_solve(R: Array, B: Array) -> Array:
    """(R R^T)^-1 B for a lower (p, p) factor R and B of shape (p, q)."""
    return solve_upper(R, solve_lower(R, B))


def spd_inverse(A: Array) -> Array:
    """Inverse of a symmetric positive definite (p, p) matrix, symmetric to the last bit."""
    R = cholesky(A)
    return symmetrise(cho_solve(R, jnp.eye(A.shape[0], dtype=A.dtype)))


def symmetrise(A: Array) -> Array:
    """(A + A^T) / 2."""
    return 0.5 * (A + A.T)


def identity_plus(scale: Array | float, M: Array) -> Array:
    """I + scale M."""
    return jnp.eye(M.shape[0], dtype=M.dtype) + scale * M


def is_finite(x: Array) -> Array:
    """Scalar truth: no entry of x is NaN or infinite."""
    return jnp.all(jnp.isfinite(x))
