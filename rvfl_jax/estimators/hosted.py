"""The programs of `additive` for sums that the host keeps: JAX describes rows, BLAS adds them up.

One function a name of `additive`, with the same arguments and results.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Array
from rvfl_jax.estimators import additive
from rvfl_jax.estimators.calibration import Guesses
from rvfl_jax.estimators.compiled import Design, PaddedRows, layers_of
from rvfl_jax.estimators.learned import Standing, Weights
from rvfl_jax.estimators.readouts import Solved
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.learners.edrvfl.sums import Sums, scaled_rows
from rvfl_jax.linalg.host_blas import is_host_faster, plus_gram, ridge_solution, times


def no_sums(shape: tuple[int, int, int]) -> Any:
    """The sums of no rows, where JAX's default device likes them best."""
    return HostSums.zero(shape) if is_host_faster() else Sums.zero(shape, jnp.float64)


def placed(sums: Any) -> Any:
    """Sums that came from elsewhere, where JAX's default device likes them best."""
    if isinstance(sums, HostSums):
        return sums if is_host_faster() else sums.for_programs()
    return HostSums.of(sums) if is_host_faster() else sums


def absorb(
    design: Design,
    weights: Weights,
    sums: HostSums,
    standing: Standing | None,
    rows: PaddedRows,
    fading: tuple[Any, Any],
    options: dict[str, Any],
    kind: str | None,
) -> tuple[HostSums, Guesses | None, bool]:
    """Guess rows, and add them."""
    worth, past = fading
    D, guesses = _described(design, weights, standing, rows, worth, options, kind)
    sums = _with(sums, D, rows, worth, past=past)
    finite = all(np.isfinite(part).all() for part in (sums.squares, sums.moment, sums.counts))
    return sums, guesses, finite


def take_out(design: Design, weights: Weights, sums: HostSums, rows: PaddedRows) -> HostSums:
    """The sums without rows that are among them."""
    D, _ = _described(design, weights, None, rows, rows.weight, {}, None)
    return _with(sums, D, rows, rows.weight, factor=-1.0)


def together_with(a: HostSums, b: HostSums, columns: np.ndarray) -> HostSums:
    """The sums of both, with column c of b in place `columns[c]` of a."""
    return a.merge(b, columns)


def solve(
    design: Design,
    weights: Weights,
    sums: HostSums,
    ridge: Any,
    counts: np.ndarray,
    shrinkage: float,
    announced: tuple[PaddedRows, Any] | None,
    kind: str,
) -> tuple[Solved, bool]:
    """What the sums say, at one factorisation, and whether it could be had."""
    half, B = sums.half, sums.moment
    if kind != "ridge":
        return _by_means(sums, ridge, counts, shrinkage, kind)
    if announced is not None:
        rows, k = announced
        D, _ = _described(design, weights, None, rows, rows.weight, {}, None)
        half = plus_gram(half, _cut(D, rows.weight), factor=k)
    theta = ridge_solution(half, ridge, B)
    return _solved(theta, np.zeros(theta[:, 0].shape))


def conclude(sums: HostSums, ridge: Any) -> tuple[Array, Array, Array]:
    """Theta (L, d, m), the inverse (L, d, d) of the lower factor of A, and whether both exist."""
    return additive.conclude(sums.for_programs(), ridge)


def squared_errors(sums: HostSums, theta: Array, inverse: Array, ridge: Any) -> tuple[Array, Array]:
    """Sums of squared errors (L, m) of the ridge readout, and degrees of freedom used (L,)."""
    return additive.squared_errors(sums.for_programs(gram=False), theta, inverse, ridge)


def errors_at(sums: HostSums, theta: Any) -> np.ndarray:
    """(L, m) ||Y - D theta||^2 at any theta: no sums of rows make it negative."""
    theta = np.asarray(theta)
    moved = times(sums.half, theta)
    return sums.counts + np.sum(theta * (moved - 2.0 * sums.moment), axis=1)


def relative_residual(sums: HostSums, ridge: Any, theta: Any) -> np.ndarray:
    """(L,) ||A theta - B|| / ||B||."""
    theta, B = np.asarray(theta), sums.moment
    ridges = np.broadcast_to(ridge, (len(B),))[:, None, None]
    gap = times(sums.half, theta) + ridges * theta - B
    size = np.sqrt(np.sum(B**2, axis=(1, 2)))
    return np.sqrt(np.sum(gap**2, axis=(1, 2))) / np.where(size > 0, size, 1.0)


@partial(jax.jit, static_argnames=("design", "kind"))
def _described(
    design: Design,
    weights: Weights,
    standing: Standing | None,
    rows: PaddedRows,
    worth: Any,
    options: dict[str, Any],
    kind: str | None,
) -> tuple[Array, Guesses | None]:
    """(L, b, d) features scaled by the root of their worth, and the sums over guesses."""
    D = layers_of(weights, rows.X, design)
    guesses = None
    if kind is not None:
        guesses = additive.guessed(design, D, standing, rows, options, kind)
    return scaled_rows(D, jnp.asarray(worth)), guesses


def _with(sums: HostSums, D: Any, rows: PaddedRows, worth: np.ndarray, **factors: Any) -> HostSums:
    D = _cut(D, worth)
    there, root = D.shape[1], np.sqrt(worth[: D.shape[1]])
    if np.ndim(rows.target) == 2:
        Y = np.where(root[:, None] > 0, root[:, None] * rows.target[:there], 0.0)
    else:
        Y = np.zeros((there, sums.moment.shape[-1]))
        Y[np.arange(there), rows.target[:there]] = root
    return sums.plus(D, Y, **factors)


def _cut(D: Any, worth: np.ndarray) -> np.ndarray:
    """Features on the host, without rows of padding below."""
    there = np.flatnonzero(worth)
    return np.asarray(D)[:, : there[-1] + 1 if len(there) else 0]


def _by_means(
    sums: HostSums, ridge: Any, counts: np.ndarray, shrinkage: float, kind: str
) -> tuple[Solved, bool]:
    """What `readouts.solved_from` solves of the means of classes."""
    met = counts > 0
    means = np.where(met, sums.moment / np.where(met, counts, 1.0), 0.0)
    if kind == "nearest_mean":
        return _solved(means, -0.5 * np.sum(means**2, axis=1))
    # Sigma = (scale A - scale M diag(n_c) M^T) + level I, with lambda I in A.
    scale = (1.0 - shrinkage) / max(counts.sum(), 1.0)
    rows = (means * np.sqrt(np.where(met, counts, 0.0))).swapaxes(1, 2)
    trace = sums.squares.sum(axis=1) - np.sum(rows**2, axis=(1, 2))
    even = trace / means.shape[1] + ridge
    level = scale * np.asarray(ridge) + shrinkage * even / max(counts.sum(), 1.0)
    theta = ridge_solution(plus_gram(sums.half, rows, scale, -scale), level, means)
    return _solved(theta, -0.5 * np.sum(means * theta, axis=1))


def _solved(theta: np.ndarray, offset: np.ndarray) -> tuple[Solved, bool]:
    return Solved(jnp.asarray(theta), jnp.asarray(offset)), bool(np.isfinite(theta).all())
