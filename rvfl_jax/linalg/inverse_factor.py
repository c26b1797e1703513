"""The inverse of a Cholesky factor, by blocks on a CPU, and what is solved with it."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.lapack import lapack_cholesky, lapack_eigh
from rvfl_jax.linalg.products import (
    identity_plus,
    lower_half,
    matmul,
    matmul_nt,
    matmul_tn,
    symmetrise,
)
from rvfl_jax.linalg.spd import lower_inverse

# Up to this size `inverse_factor` is made of products and short loops on CPU: a LAPACK call
# of this size wakes BLAS threads that go on spinning for tens of milliseconds afterwards and
# take the cores from XLA's products. At d = 1500, b = 125 that doubled the time of a step.
SMALL = 512
# Rows at which its halving stops and a loop over panels of so many columns begins, for one matrix
# and for each of a batch of them. A loop is compiled once, every halving doubles the program.
LEAF, PANEL = 128, 16
BATCHED_LEAF, BATCHED_PANEL = 64, 8


@jax.custom_jvp
def inverse_factor(A: Array) -> Array:
    """The lower (p, p) factor X with X A X^T = I, that is R^-1 where A = R R^T.

    Of A only the lower half matters. Where A is not positive definite X holds NaN or a
    diagonal entry that is not positive; `is_factor` tells.
    """
    if A.shape[0] > SMALL:
        return _inverse_factor_by_lapack(A)
    return lax.platform_dependent(A, cpu=_one_by_blocks, default=_inverse_factor_by_lapack)


@inverse_factor.defjvp
def _inverse_factor_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """With X A X^T = I:  dX = -Phi(X dA X^T) X, Phi = lower half, diagonal halved."""
    X = inverse_factor(*primals)
    inner = matmul_nt(matmul(X, symmetrise(tangents[0])), X)
    return X, -matmul(lower_half(inner), X)


def _inverse_factor_by_lapack(A: Array) -> Array:
    return lower_inverse(lapack_cholesky(A))


@custom_vmap
def _one_by_blocks(A: Array) -> Array:
    return _inverse_factor_by_blocks(A, LEAF, PANEL)


@_one_by_blocks.def_vmap
def _many_by_blocks(axis_size: int, in_batched: list[bool], A: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    by_blocks = partial(_inverse_factor_by_blocks, leaf=BATCHED_LEAF, panel=BATCHED_PANEL)
    return jax.vmap(by_blocks)(A), True


def _inverse_factor_by_blocks(A: Array, leaf: int, panel: int) -> Array:
    """Of [[A11, .], [A21, A22]]: X11, then X22 of the Schur complement, and X21 between."""
    size = A.shape[0]
    if size <= 2 * panel:
        return _inverse_factor_by_columns(A)
    if size <= leaf:
        return _inverse_factor_by_panels(A, panel)
    half = (size // 2 + 7) // 8 * 8
    X_11 = _inverse_factor_by_blocks(A[:half, :half], leaf, panel)
    R_21 = matmul_nt(A[half:, :half], X_11)
    X_22 = _inverse_factor_by_blocks(A[half:, half:] - matmul_nt(R_21, R_21), leaf, panel)
    X_21 = -matmul(X_22, matmul(R_21, X_11))
    upper = jnp.zeros((half, size - half), A.dtype)
    return jnp.block([[X_11, upper], [X_21, X_22]])


def _inverse_factor_by_panels(A: Array, width: int) -> Array:
    """The elimination of `_inverse_factor_by_columns`, `width` columns at a time."""
    size = A.shape[0]
    missing = -size % width
    if missing:
        # Rows of the identity fill up the last panel.
        below = jnp.arange(size + missing) >= size
        A = jnp.pad(A, [(0, missing), (0, missing)]) + jnp.diag(below.astype(A.dtype))
    panel_of = jnp.arange(size + missing) // width

    def eliminate(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        A, X = state
        columns = lax.dynamic_slice_in_dim(A, j * width, width, axis=1)
        own = _inverse_factor_by_columns(lax.dynamic_slice_in_dim(columns, j * width, width))
        later = (panel_of > j)[:, None]
        R = jnp.where(later, matmul_nt(columns, own), 0.0)
        pivot = matmul(own, lax.dynamic_slice_in_dim(X, j * width, width))
        X = jnp.where(later, X - matmul(R, pivot), X)
        X = lax.dynamic_update_slice_in_dim(X, pivot, j * width, axis=0)
        return A - matmul_nt(R, R), X

    eye = jnp.eye(size + missing, dtype=A.dtype)
    X = lax.fori_loop(0, (size + missing) // width, eliminate, (A, eye))[1]
    return X[:size, :size]


def _inverse_factor_by_columns(A: Array) -> Array:
    """Cholesky elimination, with the identity carried along to become the inverse."""
    size = A.shape[0]
    row = jnp.arange(size)

    def eliminate(j: Array, state: tuple[Array, Array]) -> tuple[Array, Array]:
        A, X = state
        column = A[:, j]
        root = jnp.sqrt(column[j])
        below = jnp.where(row > j, column / root, 0.0)
        pivot = X[j] / root
        beyond = jnp.where((row == j)[:, None], pivot, X - below[:, None] * pivot)
        # A pivot that failed leaves the rows before it as they are.
        X = jnp.where((row < j)[:, None], X, beyond)
        return A - below[:, None] * below, X

    return lax.fori_loop(0, size, eliminate, (A, jnp.eye(size, dtype=A.dtype)))[1]


def is_factor(X: Array) -> Array:
    """Scalar truth: `inverse_factor` met no pivot that was negative, infinite or NaN."""
    diagonal = jnp.diag(X)
    return jnp.all(jnp.isfinite(diagonal) & (diagonal > 0))


def factor_solve(X: Array, B: Array) -> Array:
    """A^-1 B = X^T X B for X of `inverse_factor(A)`."""
    return matmul_tn(X, matmul(X, B))


@jax.custom_jvp
def shifted_solve(M: Array, k: Array, B: Array) -> Array:
    """(I + k M)^-1 B for symmetric M (p, p), scalar k and B (p, q); NaN where that fails.

    A sweep over k factorises M once: under a vmap of k alone the solution comes from the
    eigenvectors of M, at 2 p^2 q flops for each k.
    """
    return _shifted_solve(M, jnp.asarray(k, M.dtype), B)


@shifted_solve.defjvp
def _shifted_solve_jvp(
    primals: tuple[Array, Array, Array], tangents: tuple[Array, Array, Array]
) -> tuple[Array, Array]:
    """With (I + k M) V = B:  dV = (I + k M)^-1 (dB - (dk M + k dM) V)."""
    (M, k, _), (dM, dk, dB) = primals, tangents
    V = shifted_solve(*primals)
    X = inverse_factor(identity_plus(k, M))
    return V, factor_solve(X, dB - matmul(dk * M + k * symmetrise(dM), V))


@custom_vmap
def _shifted_solve(M: Array, k: Array, B: Array) -> Array:
    """Leading axes that all three have are solved side by side."""

    def solve(M: Array, k: Array, B: Array) -> Array:
        X = inverse_factor(identity_plus(k, M))
        return jnp.where(is_factor(X), factor_solve(X, B), jnp.nan)

    for _ in range(M.ndim - 2):
        solve = jax.vmap(solve)
    return solve(M, k, B)


@_shifted_solve.def_vmap
def _shifted_solve_rule(
    axis_size: int, in_batched: list[bool], M: Array, k: Array, B: Array
) -> tuple[Array, bool]:
    M_batched, k_batched, _ = in_batched
    if M_batched or not k_batched:
        # Side by side, and still one call, so that an outer vmap of k alone is seen as such.
        every = [
            x if is_batched else jnp.broadcast_to(x, (axis_size, *x.shape))
            for x, is_batched in zip((M, k, B), in_batched, strict=True)
        ]
        return _shifted_solve(*every), True
    eigh = lapack_eigh
    for _ in range(M.ndim - 2):
        eigh = jax.vmap(eigh)
    values, vectors = eigh(M)
    rotated = matmul(jnp.swapaxes(vectors, -1, -2), B)
    stretch = 1.0 + k[..., None] * values
    sound = jnp.all(jnp.isfinite(stretch) & (stretch > 0), axis=-1)[..., None, None]
    return jnp.where(sound, matmul(vectors, rotated / stretch[..., None]), jnp.nan), True
