"""Sums of Gram matrices on the host, by its BLAS: what XLA's CPU products take twice as long for.

A symmetric G (L, d, d) is kept as the strips of rows of its lower half,

    strip i:  G[:, a_i : a_{i+1}, : a_{i+1}],

so that half of the flops are made and half of the numbers kept. No function writes to what it is
given: whoever holds strips keeps them as they are, and a sum with more rows takes the memory of one
more half. NumPy lets other threads run meanwhile.

Strips are shared among threads of our own, and BLAS is kept to one thread a product for so long:
its threads go on spinning for milliseconds after every call, in NumPy's library and in SciPy's, and
take the cores from each other and from XLA. A solution is one call of LAPACK with the threads that
it has.
"""

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache
from itertools import pairwise
from typing import Any

import jax
import numpy as np
from scipy.linalg.lapack import dpftrf, dpftrs, dpotrf, dpotrs
from threadpoolctl import ThreadpoolController

Strips = tuple[np.ndarray, ...]

# Rows of a strip: many enough for the rate of BLAS, few enough to waste little of the diagonal.
STRIP_ROWS = 256
# Multiplications from which another thread pays, and up to which BLAS takes none.
WORTH_A_THREAD, ONE_THREAD = 3 * 10**7, 2 * 10**5
# The widest matrix whose half SciPy packs: it counts d (d + 1) in 32 bits.
MOST_PACKED = 46_340

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
    with one_thread_a_product(B.shape[1] * B.size), np.errstate(all="ignore"):
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
    # Zeros, as of classes not met yet, solve themselves.
    used = B.any(axis=(0, 1))
    solved = np.zeros_like(B)
    for layer, one in enumerate(np.broadcast_to(ridge, (len(B),))):
        own = [strip[layer] for strip in strips]
        solution = _solution if B.shape[1] <= MOST_PACKED else _solution_of_many
        solved[layer][:, used] = solution(own, one, B[layer][:, used])
    return solved


def _half_of(strips: list[np.ndarray]) -> tuple[np.ndarray, list[Any]]:
    """Half of one matrix as LAPACK's rectangular full packed format has it, and its diagonal.

    Gustavson, Wasniewski, Dongarra and Langou, "Rectangular full packed format for Cholesky's
    algorithm", ACM TOMS 37(2), 2010: upper, not transposed, column by column. With h = d // 2,

        row j:  A[: h + j + 1, h + j], then A[j, j : h].

    Args:
        strips: (w, b) each, of one matrix.

    Returns:
        (d - h, 2 h + 1) numbers, and where the diagonal is among them.
    """
    width = strips[-1].shape[1]
    h = width // 2
    half = np.empty((width - h, 2 * h + 1))
    for a, b, strip in _places(strips):
        below = max(a, h)
        half[below - h : max(b - h, 0), :b] = strip[below - a :]
    # After the rows, which are whole up to where their strips end.
    for a, b, strip in _places(strips):
        end = min(b, h)
        if a < h:
            columns = half[:end, h + 1 + a : h + 1 + end]
            np.copyto(columns, strip[: end - a, :end].T, where=~np.tri(end, end - a, -a - 1, bool))
    upper, lower = np.arange(h), np.arange(width - h)
    return half, [(upper, h + 1 + upper), (lower, h + lower)]


def _solution(strips: list[np.ndarray], ridge: Any, B: np.ndarray) -> np.ndarray:
    """(ridge I + G)^-1 B of one matrix, in the memory of half of it."""
    half, diagonals = _half_of(strips)
    for place in diagonals:
        half[place] += ridge
    # One call of LAPACK: threads of SciPy's BLAS and of NumPy's, in turns, wait for each other.
    R, failed = dpftrf(len(B), half.ravel(), transr="N", uplo="U", overwrite_a=1)
    # LAPACK takes what overflowed for a matrix whose inverse is 0.
    factor = R.reshape(half.shape)
    if failed or not all(np.isfinite(factor[place]).all() for place in diagonals):
        return np.full_like(B, np.nan)
    solution: np.ndarray = dpftrs(len(B), R, B, transr="N", uplo="U")[0]
    return solution


def _solution_of_many(strips: list[np.ndarray], ridge: Any, B: np.ndarray) -> np.ndarray:
    """The same of any width, in the memory of all of it."""
    A = whole(tuple(strip[None] for strip in strips))[0]
    A[np.diag_indices(len(A))] += ridge
    # By columns, as LAPACK has it, the other half.
    R, failed = dpotrf(A.T, lower=0, overwrite_a=1, clean=0)
    if failed or not np.isfinite(np.diagonal(R)).all():
        return np.full_like(B, np.nan)
    solution: np.ndarray = dpotrs(R, B, lower=0)[0]
    return solution


# --- strips and threads ------------------------------------------------------------------------


def _cuts(width: int) -> list[int]:
    """Where strips begin and end."""
    parts = max(1, round(width / STRIP_ROWS))
    return [width * i // parts for i in range(parts + 1)]


def _places(strips: Sequence[np.ndarray]) -> Iterator[tuple[int, int, np.ndarray]]:
    """First row and end of every strip, and the strip."""
    for strip in strips:
        rows, end = strip.shape[-2:]
        yield end - rows, end, strip


@contextmanager
def _shared(work: int) -> Iterator[Callable[..., Any]]:
    """A `map` that is shared among threads where there is work for several."""
    most = _most.get()
    threads = 1 if work < WORTH_A_THREAD or most == 1 else min(_threads(), most or _threads())
    with one_thread_a_product(work):
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
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def one_thread_a_product(work: int) -> Iterator[None]:
    """Keep BLAS to one thread a call; of several threads that are here the last ends it.

    Args:
        work: multiplications of the calls.
    """
    if work <= ONE_THREAD:
        yield
        return
    _limit.begin()
    try:
        yield
    finally:
        _limit.end()


class _Limit:
    """How many are inside, and what restores the limits from before when nobody is."""

    def __init__(self) -> None:
        self._lock, self._inside, self._before = threading.Lock(), 0, ExitStack()

    def begin(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before.enter_context(_libraries().limit(limits=1, user_api="blas"))
            self._inside += 1

    def end(self) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._before.close()


_limit = _Limit()


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController()
