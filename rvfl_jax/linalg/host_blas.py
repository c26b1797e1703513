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
from scipy.linalg.lapack import dpotrf, dpotrs
from threadpoolctl import ThreadpoolController

Strips = tuple[np.ndarray, ...]

# Rows of a strip: many enough for the rate of BLAS, few enough to waste little of the diagonal.
STRIP_ROWS = 256
# Multiplications from which another thread pays, and up to which BLAS takes none.
WORTH_A_THREAD, ONE_THREAD = 3 * 10**7, 2 * 10**5

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
        square = _lower([strip[layer] for strip in strips])
        square[np.diag_indices(len(square))] += one
        solved[layer][:, used] = _solution(square, B[layer][:, used])
    return solved


def _lower(strips: list[np.ndarray]) -> np.ndarray:
    """(d, d) whose lower half is that of the strips (w, b) of one matrix; the rest is not set."""
    width = strips[-1].shape[1]
    square = np.empty((width, width))
    for a, b, strip in _places(strips):
        square[a:b, :b] = strip
    return square


def _solution(square: np.ndarray, B: np.ndarray) -> np.ndarray:
    """A^-1 B by the lower half of A, which is overwritten."""
    # One call of LAPACK: threads of SciPy's BLAS and of NumPy's, in turns, wait for each other.
    R, failed = dpotrf(square.T, lower=0, overwrite_a=1, clean=0)
    # LAPACK takes what overflowed for a matrix whose inverse is 0.
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
