"""Cholesky by blocks of columns, for wide matrices on a CPU: products of XLA and no LAPACK.

With A = R R^T and columns cut into blocks, block j of R is

    S = A_{>=j,j} - R_{>=j,<j} R_{j,<j}^T,   R_jj^-1 = inverse_factor(S_jj),   R_ij = S_ij R_jj^-T,

d^3 / 3 flops that all cores share. LAPACK takes half as long again, and its waiting threads slow
down the products that follow it.
"""

from itertools import pairwise

import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.inverse_factor import inverse_factor
from rvfl_jax.linalg.products import matmul, matmul_nt, matmul_tn

# Columns of a block, the most blocks, and the width from which they pay: a program of many blocks
# takes long to compile.
BLOCK, MOST_BLOCKS, WIDE = 256, 12, 1200

BlockFactor = tuple[tuple[Array, Array], ...]


def block_factor(A: Array) -> BlockFactor:
    """R_jj^-1 and the part of R below it, of each block of columns of a positive definite A (d, d).

    Only the lower half of A is read. NaN where A is not positive definite.
    """
    blocks: list[tuple[Array, Array]] = []
    for start, stop in pairwise(_cuts(len(A))):
        S = A[start:, start:stop]
        if blocks:
            # Of each block to the left the rows from here on.
            left = jnp.concatenate([low[len(low) - len(S) :] for _, low in blocks], axis=1)
            S = S - matmul_nt(left, left[: stop - start])
        inverse = inverse_factor(S[: stop - start])
        inverse = jnp.where(jnp.all(jnp.diag(inverse) > 0), inverse, jnp.nan)
        blocks.append((inverse, matmul_nt(S[stop - start :], inverse)))
    return tuple(blocks)


def block_solve(factor: BlockFactor, B: Array) -> Array:
    """A^-1 B for B (d, m)."""
    above: list[Array] = []
    rest = B
    for inverse, low in factor:
        size = len(inverse)
        above.append(matmul(inverse, rest[:size]))
        rest = rest[size:] - matmul(low, above[-1])
    solved = B[:0]
    for (inverse, low), part in zip(factor[::-1], above[::-1], strict=True):
        solved = jnp.concatenate([matmul_tn(inverse, part - matmul_tn(low, solved)), solved])
    return solved


def _cuts(width: int) -> list[int]:
    """Where blocks begin and end; the last is not small."""
    size = BLOCK * -(-width // (BLOCK * MOST_BLOCKS))
    cuts = [*range(0, width, size), width]
    if len(cuts) > 2 and cuts[-1] - cuts[-2] < size // 2:
        del cuts[-2]
    return cuts
