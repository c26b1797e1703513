"""Several classifiers built from one learned state; none needs another pass over the data.

Class counts n_c and the sums A and B hold all that they need: B_c / n_c is the mean mu_c of
the features of class c, and S = A - sum_c n_c mu_c mu_c^T their scatter within classes (with
lambda I). For one sub-learner, with features D:

    ridge          D theta_c (n_c / mean n)^-a                      the paper's, for a = 0
    discriminant   D Sigma^-1 mu_c - mu_c^T Sigma^-1 mu_c / 2 + (1 - a) log n_c,
                   Sigma = (1 - s) S / n + s tr(S) / (n d) I        Fisher's, shrunk by s
    nearest_mean   D mu_c - mu_c^T mu_c / 2

a is `class_balance`: 0 keeps the frequencies of the classes, 1 treats all alike.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.checks import is_number
from rvfl_jax.core.types import Array
from rvfl_jax.learners.edrvfl.sums import System, system_of
from rvfl_jax.linalg.products import matmul
from rvfl_jax.linalg.spd import cho_solve, cholesky

READOUTS = ("ridge", "discriminant", "nearest_mean")


class Solved(NamedTuple):
    """What of a readout no `class_balance` changes: theta (L, d, m) and offset (L, m)."""

    theta: Array
    offset: Array

    def readout(self, counts: Array, kind: str, class_balance: Array | float) -> "Readout":
        """The readout with classes balanced, of those counts (m,)."""
        ones = jnp.ones(self.theta.shape[-1], self.theta.dtype)
        if kind == "ridge":
            return Readout(self.theta, self.offset, balance(counts, class_balance))
        if kind == "nearest_mean":
            return Readout(self.theta, self.offset, ones)
        prior = (1.0 - class_balance) * jnp.log(jnp.where(counts > 0, counts, 1.0))
        return Readout(self.theta, prior + self.offset, ones)


class Readout(NamedTuple):
    """Scores (D theta + bias) scale: theta (L, d, m), bias (L, m), scale (m,)."""

    theta: Array
    bias: Array
    scale: Array


def readout_of(
    state: Any, counts: Array, kind: str, class_balance: Array | float, shrinkage: Array | float
) -> Readout:
    """The readout of that kind of a state.

    Args:
        state: of `edrvfl`.
        counts: (m,) weighted rows of each class; 0 where a class was never seen.
        kind: one of `READOUTS`.
        class_balance: a, at least 0.
        shrinkage: s, 0 to 1, of the discriminant.
    """
    if kind == "ridge":
        layers, _, m = state.theta.shape
        solved = Solved(state.theta, jnp.zeros((layers, m), state.theta.dtype))
    else:
        solved = solved_from(*system_of(state), counts, kind, shrinkage)
    return solved.readout(counts, kind, class_balance)


def solved_from(A: Array, B: Array, counts: Array, kind: str, shrinkage: Array | float) -> "Solved":
    """Solve the sums A (L, d, d), lambda included, and B (L, d, m) for a readout of that kind.

    NaN where what has to be factorised is not positive definite.
    """
    if kind == "ridge":
        return Solved(System(A, B).solution(), jnp.zeros_like(B[:, 0]))
    met = counts > 0
    means = jnp.where(met, B / jnp.where(met, counts, 1.0), 0.0)
    if kind == "nearest_mean":
        return Solved(means, -0.5 * jnp.sum(means**2, axis=1))
    theta = jax.vmap(_discriminant, (0, 0, None, None))(A, means, counts, shrinkage)
    return Solved(theta, -0.5 * jnp.sum(means * theta, axis=1))


def balance(counts: Array, power: Array | float) -> Array:
    """(m,) factors (n_c / mean n)^-power over the classes seen; 1 for the others."""
    met = counts > 0
    mean = jnp.sum(counts) / jnp.maximum(jnp.sum(met), 1)
    share = jnp.where(met, counts / jnp.where(mean > 0, mean, 1.0), 1.0)
    return share**-power


def together(scores: Array, seen: Array, combine: Any) -> Array:
    """(n, m) the scores of the ensemble; a very small number in columns of classes never seen.

    The logarithm of the paper's ensemble probability (softmax of each sub-learner's scores, then
    their mean or median), shifted by the sub-learners' mean log of the softmax's denominator: for
    one sub-learner its scores themselves, and for all of them in the order of the probabilities.

    Args:
        scores: (L, n, m).
        seen: (m,) truth values.
        combine: of the learner, for (L, n, m) scores.
    """
    lowest = jnp.finfo(scores.dtype).min / 4
    masked = jnp.where(seen, scores, lowest)
    if len(scores) == 1:
        return masked[0]
    shift = jax.nn.logsumexp(masked, axis=-1, keepdims=True).mean(axis=0)
    tiny = jnp.finfo(scores.dtype).tiny
    ensemble = jnp.log(jnp.maximum(combine(masked), tiny)) + shift
    return jnp.where(seen, ensemble, lowest)


def check_readout_options(class_balance: Any, shrinkage: Any) -> None:
    """Raise ValueError on options out of range."""
    if not is_number(class_balance) or class_balance < 0:
        raise ValueError(f"class_balance: expected at least 0, got {class_balance!r}")
    if not is_number(shrinkage) or not 0 <= shrinkage <= 1:
        raise ValueError(f"shrinkage: expected a number from 0 to 1, got {shrinkage!r}")


def within_classes(A: Array, means: Array, counts: Array, shrinkage: Array | float) -> Array:
    """Sigma (d, d) of A (d, d), lambda included, and means (d, m)."""
    width = len(A)
    scatter = A - matmul(means * counts, means.T)
    total = jnp.maximum(jnp.sum(counts), 1.0)
    even = jnp.trace(scatter) / width
    Sigma = (1.0 - shrinkage) * scatter + shrinkage * even * jnp.eye(width, dtype=A.dtype)
    return Sigma / total


def _discriminant(A: Array, means: Array, counts: Array, shrinkage: Array | float) -> Array:
    """Sigma^-1 mu (d, m)."""
    return cho_solve(cholesky(within_classes(A, means, counts, shrinkage)), means)
