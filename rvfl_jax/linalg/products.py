"""Products of matrices, and what needs no more than them.

They run at the highest precision of the device: the default of several accelerators rounds the
inputs of a product to 10 bits, which breaks the recursions of the learners.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import pairwise

import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array

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
    cuts = _cuts(S.shape[0])
    return _mirrored([matmul_nt(S[a:b], S[:b]) for a, b in pairwise(cuts)], cuts)


def plus_outer_square(A: Array, S: Array, past: Array | float, factor: float) -> Array:
    """`past` A + `factor` S S^T for symmetric A (d, d) and S (d, r), in one pass over A."""
    cuts = _cuts(S.shape[0])
    rows = [past * A[a:b, :b] + factor * matmul_nt(S[a:b], S[:b]) for a, b in pairwise(cuts)]
    return _mirrored(rows, cuts)


def _cuts(width: int) -> list[int]:
    """Where the rows of blocks begin and end."""
    parts = 1 if _WHOLE.get() else max(1, min(8, width // 256))
    return [width * i // parts for i in range(parts + 1)]


def _mirrored(rows: list[Array], cuts: list[int]) -> Array:
    """The symmetric matrix with these rows of blocks in its lower half."""
    if len(rows) == 1:
        return rows[0]
    mirrored = [
        jnp.concatenate([rows[i], *(row[:, a:b].T for row in rows[i + 1 :])], axis=1)
        for i, (a, b) in enumerate(pairwise(cuts))
    ]
    return jnp.concatenate(mirrored)


def strips(size: int) -> list[tuple[int, int]]:
    """Row ranges in which products with a half of a square are made, so that less is wasted."""
    parts = 1 if _WHOLE.get() else max(1, min(4, size // 32))
    cuts = [size * i // parts for i in range(parts + 1)]
    return [*pairwise(cuts)]


def lower_matmul_nt(A: Array, B: Array) -> Array:
    """The lower half of A B^T for A and B (p, r), and above it either that or 0."""
    rows = [matmul_nt(A[a:b], B[:b]) for a, b in strips(len(A))]
    return jnp.concatenate([jnp.pad(row, [(0, 0), (0, len(A) - row.shape[1])]) for row in rows])


def lower_times(X: Array, B: Array) -> Array:
    """X B for a lower half X (p, p) and B (p, q)."""
    return jnp.concatenate([matmul(X[a:b, :b], B[:b]) for a, b in strips(len(X))])


@contextmanager
def whole_products() -> Iterator[None]:
    """While tracing: no products in blocks, which would tear matrices cut over devices."""
    token = _WHOLE.set(True)
    try:
        yield
    finally:
        _WHOLE.reset(token)


def running_sums(x: Array) -> Array:
    """Sums of x (r, ...) over its leading axis up to each entry, all of which must be finite.

    One product: of few entries on CPU many times faster than `jnp.cumsum`.
    """
    r = x.shape[0]
    return matmul(jnp.tri(r, dtype=x.dtype), x.reshape(r, -1)).reshape(x.shape)


def gram(D: Array) -> Array:
    """D^T D (d, d) of rows D (b, d)."""
    return outer_square(D.T)


def symmetrise(A: Array) -> Array:
    """(A + A^T) / 2."""
    return 0.5 * (A + A.T)


def mirrored(A: Array) -> Array:
    """The symmetric matrices (..., p, p) whose lower halves A has; the rest of A is not read."""
    return jnp.tril(A) + jnp.swapaxes(jnp.tril(A, -1), -1, -2)


def lower_half(A: Array) -> Array:
    """The lower half of A with the diagonal halved."""
    return jnp.tril(A) - 0.5 * jnp.diag(jnp.diag(A))


def identity_plus(scale: Array | float, M: Array) -> Array:
    """I + scale M."""
    return jnp.eye(M.shape[0], dtype=M.dtype) + scale * M


def is_finite(x: Array) -> Array:
    """Scalar truth: no entry of x is NaN or infinite."""
    return jnp.all(jnp.isfinite(x))
