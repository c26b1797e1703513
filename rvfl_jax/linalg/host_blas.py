"""Sums of Gram matrices on the host, by its BLAS: what XLA's CPU products take twice as long for.

A symmetric G (L, d, d) is kept as the strips of rows of its lower half,

    strip i:  G[:, a_i : a_{i+1}, : a_{i+1}],

so that half of the flops are made and half of the numbers kept. No function writes to what it is
given: whoever holds strips keeps them as they are, and a sum with more rows takes the memory of one
more half. NumPy lets other threads run meanwhile. Strips are shared among threads where BLAS is
kept to fewer threads than there are cores; these wait for each other without spinning.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, partial
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from scipy.linalg.lapack import dpotrf, dtrtri
from threadpoolctl import threadpool_info

Strips = tuple[np.ndarray, ...]

# Rows of a strip: many enough for the rate of BLAS, few enough to waste little of the diagonal.
STRIP_ROWS = 256
# Columns of a solution that are worth a part of their own.
COLUMNS = 24
# Multiplications from which another thread pays.
WORTH_A_THREAD = 3 * 10**7

_most: ContextVar[int | None] = ContextVar("most", default=None)


def is_host_faster() -> bool:
    """Whether JAX computes on the CPU, so that arrays are at hand and nothing is transferred."""
    return jax.default_backend() == "cpu"


def zero_strips(layers: int, width: int) -> Strips:
    """Of G = 0 (L, d, d)."""
    return tuple(np.zeros((layers, b - a, b)) for a, b in pairwise(_cuts(width)))


def strips_of(G: np.ndarray) -> Strips:
    """Of a symmetric G (L, d, d)."""
    return tuple(np.array(G[:, a:b, :b]) for a, b in pairwise(_cuts(G.shape[-1])))


def whole(strips: Strips) -> np.ndarray:
    """G (L, d, d)."""
    layers, _, width = strips[-1].shape
    G = np.empty((layers, width, width))
    for a, b, strip in _places(strips):
        G[:, a:b, :b] = strip
        G[:, :a, a:b] = strip[:, :, :a].swapaxes(1, 2)
    return G


def packed(strips: Strips) -> np.ndarray:
    """(L, d (d + 1) / 2) the lower triangle of G, row after row, as files and networks take it."""
    layers, _, width = strips[-1].shape
    triangle = np.empty((layers, width * (width + 1) // 2))
    for a, b, strip in _places(strips):
        for row in range(a, b):
            start = row * (row + 1) // 2
            triangle[:, start : start + row + 1] = strip[:, row - a, : row + 1]
    return triangle


def strips_of_packed(triangle: np.ndarray, width: int) -> Strips:
    """The strips of G by the lower triangle of `packed`."""
    strips = zero_strips(len(triangle), width)
    for a, b, strip in _places(strips):
        for row in range(a, b):
            start = row * (row + 1) // 2
            strip[:, row - a, : row + 1] = triangle[:, start : start + row + 1]
        # Blocks on the diagonal are whole.
        square = strip[:, :, a:]
        square += np.tril(square, -1).swapaxes(1, 2)
    return strips


def diagonal(strips: Strips) -> np.ndarray:
    """(L, d) of G."""
    tiles = [np.diagonal(strip[:, :, a:], axis1=1, axis2=2) for a, _, strip in _places(strips)]
    return np.concatenate(tiles, axis=1)


def plus_gram(strips: Strips, D: np.ndarray, past: Any = 1.0, factor: Any = 1.0) -> Strips:
    """`past` G + `factor` D^T D for rows D (L, b, d): d^2 b flops.

    Args:
        strips: of G.
        D: rows, scaled by the root of their weight.
        past: a number, or (L,).
        factor: a number, or (L,); -1 takes rows out.
    """
    past, factor = (np.reshape(number, (-1, 1, 1)) for number in (past, factor))
    cuts = _cuts(D.shape[-1])

    def summed(i: int) -> np.ndarray:
        a, b = cuts[i : i + 2]
        with np.errstate(all="ignore"):
            found = np.matmul(D[..., a:b].swapaxes(1, 2), D[..., :b])
            if (factor != 1.0).any():
                found *= factor
            found += strips[i] if (past == 1.0).all() else past * strips[i]
        return found

    with _shared(D.shape[1] * sum(strip.size for strip in strips)) as each:
        # The largest come first.
        return tuple(each(summed, reversed(range(len(strips)))))[::-1]


def plus(a: Strips, b: Strips) -> Strips:
    """The sum of two."""
    return tuple(mine + theirs for mine, theirs in zip(a, b, strict=True))


def times(strips: Strips, B: np.ndarray) -> np.ndarray:
    """G B for B (L, d, m)."""
    product = np.zeros_like(B)
    with np.errstate(all="ignore"):
        for a, b, strip in _places(strips):
            product[:, a:b] += strip @ B[:, :b]
            product[:, :a] += strip[:, :, :a].swapaxes(1, 2) @ B[:, a:b]
    return product


def ridge_solution(strips: Strips, ridge: Any, B: np.ndarray) -> np.ndarray:
    """(ridge I + G)^-1 B by Cholesky, d^3 / 3 flops; NaN where it is not positive definite.

    Args:
        strips: of G.
        ridge: a number, or (L,).
        B: (L, d, m).
    """
    ridges = np.broadcast_to(ridge, (len(B),))
    # Zeros, as of classes not met yet, solve themselves.
    used = B.any(axis=(0, 1))
    solved = np.zeros_like(B)
    for layer, one in enumerate(ridges):
        factor = _factor([strip[layer] for strip in strips], float(one))
        if factor is None:
            solved[layer] = np.nan
        else:
            solved[layer][:, used] = _solve(factor, B[layer][:, used])
    return solved


# --- Cholesky of strips (w, b) of one matrix ---------------------------------------------------

# Of every strip R_jj^-1, and the columns of R to the left of it.
Factor = list[tuple[np.ndarray, np.ndarray]]


def _factor(strips: list[np.ndarray], ridge: float) -> Factor | None:
    """R with R R^T = ridge I + G, column of blocks by column; None if not positive definite.

    With S = G_{>=j,j} - R_{>=j,<j} R_{j,<j}^T:  R_jj R_jj^T = S_jj + ridge I,  R_ij = S_ij R_jj^-T.
    """
    cuts = _cuts(strips[-1].shape[1])
    left = [np.empty((len(strip), a)) for strip, a in zip(strips, cuts, strict=False)]
    inverses: list[np.ndarray] = []
    with _shared(cuts[-1] ** 3 // 3) as each:
        for j, (a, b) in enumerate(pairwise(cuts)):
            with np.errstate(all="ignore"):
                tile = strips[j][:, a:] - left[j] @ left[j].T
            tile[np.diag_indices(b - a)] += ridge
            inverse = _inverse_factor(tile)
            if inverse is None:
                return None
            inverses.append(inverse)

            def fill(i: int, a: int = a, b: int = b, j: int = j) -> None:
                with np.errstate(all="ignore"):
                    rest = strips[i][:, a:b] - left[i][:, :a] @ left[j].T
                    np.matmul(rest, inverses[j].T, out=left[i][:, a:b])

            # Whatever a thread raised is raised here.
            for _ in each(fill, range(j + 1, len(strips))):
                pass
    return list(zip(inverses, left, strict=True))


def _inverse_factor(tile: np.ndarray) -> np.ndarray | None:
    """R^-1 with R R^T the symmetric tile."""
    R, failed = dpotrf(tile.T, lower=1)
    # LAPACK takes what overflowed for a matrix whose inverse is 0.
    if failed or not np.isfinite(np.diagonal(R)).all():
        return None
    return np.ascontiguousarray(dtrtri(R, lower=1)[0])


def _solve(factor: Factor, B: np.ndarray) -> np.ndarray:
    """(R R^T)^-1 B for B (d, m)."""
    parts = np.array_split(B, max(1, B.shape[1] // COLUMNS), axis=1)
    with _shared(2 * B.shape[0] * B.size if len(parts) > 1 else 0) as each:
        return np.concatenate([*each(partial(_solve_columns, factor), parts)], axis=1)


@np.errstate(all="ignore")
def _solve_columns(factor: Factor, B: np.ndarray) -> np.ndarray:
    X = np.array(B)
    for inverse, left in factor:
        a, b = left.shape[1], left.shape[1] + len(left)
        X[a:b] = inverse @ (X[a:b] - left @ X[:a])
    for inverse, left in factor[::-1]:
        a, b = left.shape[1], left.shape[1] + len(left)
        X[a:b] = inverse.T @ X[a:b]
        X[:a] -= left.T @ X[a:b]
    return X


# --- strips and threads ------------------------------------------------------------------------


def _cuts(width: int) -> list[int]:
    """Where strips begin and end."""
    parts = max(1, round(width / STRIP_ROWS))
    return [width * i // parts for i in range(parts + 1)]


def _places(strips: Strips) -> Iterator[tuple[int, int, np.ndarray]]:
    """First row and end of every strip, and the strip."""
    for strip in strips:
        rows, end = strip.shape[-2:]
        yield end - rows, end, strip


@contextmanager
def _shared(work: int) -> Iterator[Callable[..., Any]]:
    """A `map` that is shared among threads where there is work for several."""
    most = _most.get()
    threads = 1 if work < WORTH_A_THREAD or most == 1 else min(_threads(), most or _threads())
    if threads == 1:
        yield map
        return
    with ThreadPoolExecutor(threads) as pool:
        yield pool.map


@contextmanager
def threads_at_most(count: int | None) -> Iterator[None]:
    """Share nothing among more threads than that, as in a process beside others; None for any."""
    before = _most.set(count)
    try:
        yield
    finally:
        _most.reset(before)


@cache
def _threads() -> int:
    """Threads for products, each of which BLAS may share among its own."""
    blas = [
        library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"
    ]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (cores or 1) // max(blas, default=1))
