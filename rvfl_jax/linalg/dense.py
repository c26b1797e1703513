"""Positive definite solves and the precision policy; every factorisation goes through here.

Matrix products run at the highest precision of the device: the default of several
accelerators rounds the inputs of a product to 10 bits, which breaks the recursions below.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.forks import refuse_after_fork
from rvfl_jax.core.types import Array

PRECISIONS = ("double", "single")

# Up to this size `inverse_factor` is made of products and short loops on CPU: a LAPACK call
# of this size wakes BLAS threads that go on spinning for tens of milliseconds afterwards and
# take the cores from XLA's products. At d = 1500, b = 125 that doubled the time of a step.
SMALL = 512
# Rows at which its halving stops: loops over few large columns suit one matrix, many products
# of small blocks suit a batch of matrices.
LEAF, BATCHED_LEAF = 32, 8

_WHOLE: ContextVar[bool] = ContextVar("whole_products", default=False)

matmul = partial(jnp.matmul, precision=lax.Precision.HIGHEST)


def matmul_nt(A: Array, B: Array) -> Array:
    """A B^T for A (p, r) and B (q, r); the order that XLA's CPU products like best."""
    return lax.dot_general(A, B, (((1,), (1,)), ((), ())), precision=lax.Precision.HIGHEST)


def matmul_tn(A: Array, B: Array) -> Array:
    """A^T B for A (r, p) and B (r, q)."""
    return lax.dot_general(A, B, (((0,), (0,)), ((), ())), precision=lax.Precision.HIGHEST)


def outer_square(S: Array) -> Array:
    """S S^T for S (d, r), from the blocks of its lower half: symmetric, and fewer flops."""
    d = S.shape[0]
    parts = 1 if _WHOLE.get() else max(1, min(8, d // 256))
    cuts = [d * i // parts for i in range(parts + 1)]
    rows = [matmul_nt(S[a:b], S[:b]) for a, b in pairwise(cuts)]
    if parts == 1:
        return rows[0]
    mirrored = [
        jnp.concatenate([rows[i], *(row[:, a:b].T for row in rows[i + 1 :])], axis=1)
        for i, (a, b) in enumerate(pairwise(cuts))
    ]
    return jnp.concatenate(mirrored)


@contextmanager
def whole_products() -> Iterator[None]:
    """While tracing: no products in blocks, which would tear matrices cut over devices."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def gram(D: Array) -> Array:
    """D^T D (d, d) of rows D (b, d)."""
    return outer_square(D.T)


def precision_scope(precision: str) -> AbstractContextManager[Any]:
    """The context in which a driver computes; the process-wide setting stays as it was.

    Args:
        precision: "double" or "single".

    Raises:
        ValueError: on any other name.
        RuntimeError: in a process forked while JAX was in use.
    """
    refuse_after_fork()
    return jax.enable_x64(one_of("precision", precision, PRECISIONS) == "double")


def scope_of(tree: Any) -> AbstractContextManager[Any]:
    """The context in which float64 arrays stay float64, whatever the global setting.

    RuntimeError in a process forked while JAX was in use.
    """
    refuse_after_fork()
    if jnp.result_type(float) == jnp.float64:
        return nullcontext()
    double = any(getattr(leaf, "dtype", None) == jnp.float64 for leaf in jax.tree.leaves(tree))
    return jax.enable_x64(True) if double else nullcontext()


def _one_by_one(function: Callable[..., Any], outputs: Any = True) -> Callable[..., Any]:
    """`function`, whose vmap on CPU is a loop of single LAPACK calls.

    A batched LAPACK kernel of jaxlib (seen in 0.10.2) waits, on a thread of XLA's pool, for
    work that it has put into the same pool. Two of them at once on a machine of few cores
    wait for ever. A single call does not use the pool; OpenBLAS threads it where it is
    large. Accelerators keep their batched kernels.

    Args:
        function: of matrices.
        outputs: True for each of its results, in their structure.
    """
    single = custom_vmap(function)

    @single.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[Any, Any]:
        del axis_size
        if not any(in_batched):
            # As second derivatives ask for it; `single` would ask itself without end.
            return function(*args), jax.tree.map(lambda _: False, outputs)
        batched = [x for x, is_batched in zip(args, in_batched, strict=True) if is_batched]

        def call(moving: list[Array]) -> Array:
            rest = iter(moving)
            pairs = zip(args, in_batched, strict=True)
            return single(*[next(rest) if is_batched else x for x, is_batched in pairs])

        if jax.default_backend() == "cpu":
            return lax.map(call, batched), outputs
        axes = [0 if is_batched else None for is_batched in in_batched]
        return jax.vmap(function, in_axes=axes)(*args), outputs

    return single


_lapack_cholesky = _one_by_one(partial(lax.linalg.cholesky, symmetrize_input=False))
_lapack_lower = _one_by_one(partial(lax.linalg.triangular_solve, left_side=True, lower=True))
_lapack_upper = _one_by_one(
    partial(lax.linalg.triangular_solve, left_side=True, lower=True, transpose_a=True)
)


_lapack_eigh = _one_by_one(
    lambda A: tuple(reversed(lax.linalg.eigh(A, symmetrize_input=False))), (True, True)
)


# The derivatives below use products with R^-1 alone, because a loop made by `_one_by_one`
# has no transpose. The inverse is computed only where a derivative is asked for.


@jax.custom_jvp
def cholesky(A: Array) -> Array:
    """Lower factor of the symmetric (p, p) matrix A, of which only the lower half is read.

    Where A is not positive definite the factor holds NaN; `is_finite` tells. So it does
    where A overflowed, which LAPACK takes for a matrix whose inverse is 0.
    """
    R = _lapack_cholesky(A)
    return jnp.where(is_finite(jnp.diag(R)), R, jnp.nan)


@cholesky.defjvp
def _cholesky_jvp(primals: tuple[Array], tangents: tuple[Array]) -> tuple[Array, Array]:
    """With R R^T = A:  dR = R Phi(R^-1 dA R^-T), Phi = lower half, diagonal halved."""
    R = cholesky(*primals)
    inverse = _lower_inverse(R)
    inner = matmul(matmul(inverse, symmetrise(tangents[0])), inverse.T)
    return R, matmul(R, lower_half(inner))


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
    return _lower_inverse(_lapack_cholesky(A))


@custom_vmap
def _one_by_blocks(A: Array) -> Array:
    return _inverse_factor_by_blocks(A, LEAF if A.shape[0] <= 256 else 2 * LEAF)


@_one_by_blocks.def_vmap
def _many_by_blocks(axis_size: int, in_batched: list[bool], A: Array) -> tuple[Array, bool]:
    del axis_size, in_batched
    leaf = BATCHED_LEAF if A.shape[-1] > 2 * BATCHED_LEAF else 2 * BATCHED_LEAF
    return jax.vmap(partial(_inverse_factor_by_blocks, leaf=leaf))(A), True


def _inverse_factor_by_blocks(A: Array, leaf: int) -> Array:
    """Of [[A11, .], [A21, A22]]: X11, then X22 of the Schur complement, and X21 between."""
    size = A.shape[0]
    if size <= leaf:
        return _inverse_factor_by_columns(A)
    half = (size // 2 + 7) // 8 * 8
    X_11 = _inverse_factor_by_blocks(A[:half, :half], leaf)
    R_21 = matmul_nt(A[half:, :half], X_11)
    X_22 = _inverse_factor_by_blocks(A[half:, half:] - matmul_nt(R_21, R_21), leaf)
    X_21 = -matmul(X_22, matmul(R_21, X_11))
    upper = jnp.zeros((half, size - half), A.dtype)
    return jnp.block([[X_11, upper], [X_21, X_22]])


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
        X = jnp.where((row == j)[:, None], pivot, X - below[:, None] * pivot)
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
    eigh = _lapack_eigh
    for _ in range(M.ndim - 2):
        eigh = jax.vmap(eigh)
    values, vectors = eigh(M)
    rotated = matmul(jnp.swapaxes(vectors, -1, -2), B)
    stretch = 1.0 + k[..., None] * values
    sound = jnp.all(jnp.isfinite(stretch) & (stretch > 0), axis=-1)[..., None, None]
    return jnp.where(sound, matmul(vectors, rotated / stretch[..., None]), jnp.nan), True


def eigh(A: Array) -> tuple[Array, Array]:
    """Eigenvalues, ascending, and eigenvectors in columns, of the symmetric (p, p) matrix A."""
    values, vectors = _lapack_eigh(A)
    return values, vectors


def _lower_inverse(R: Array) -> Array:
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


def symmetrise(A: Array) -> Array:
    """(A + A^T) / 2."""
    return 0.5 * (A + A.T)


def lower_half(A: Array) -> Array:
    """The lower half of A with the diagonal halved."""
    return jnp.tril(A) - 0.5 * jnp.diag(jnp.diag(A))


def identity_plus(scale: Array | float, M: Array) -> Array:
    """I + scale M."""
    return jnp.eye(M.shape[0], dtype=M.dtype) + scale * M


def is_finite(x: Array) -> Array:
    """Scalar truth: no entry of x is NaN or infinite."""
    return jnp.all(jnp.isfinite(x))
