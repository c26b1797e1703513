"""Calibrated probabilities, from guesses made before the labels were known.

Least squares on one-hot targets estimates class probabilities themselves, so that a softmax of the
scores z is almost flat, however it is sharpened. Here

    p_c  proportional to  exp(a link(z_c)),    link(z) = log(z + 0.02),  z >= 0,
                                                         log 0.02 + z / 0.02,  z < 0,

that is to the scores' own power a, the inverse temperature; discriminants, which are logarithms
already, go through as they are. a is where the mean confidence of guesses equals their accuracy.

The guesses cost no held-out rows: each batch is guessed before it is learned. Where classes come
one after another, such guesses set young classes against grown ones, and are worse than those of
the final readout. So each guess is weighted by the square of the rows that its class then had, and
is scored twice: as the readout stands, and as if every class had been seen equally often. Which of
the two describes the final readout depends on how even the counts have become: those of classes
that came one by one end even, those of a long tail do not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Array

FLOOR = 0.02
# Powers at which confidences are summed up; the answer is interpolated between them.
POWERS = {"log": np.geomspace(0.25, 64.0, 25), "identity": np.geomspace(1e-3, 1e2, 26)}


# Evenness of the counts below and above which one way of scoring holds alone.
UNEVEN, EVEN = 0.7, 0.95
# Guesses that it takes to believe a power half.
FEW = 10.0


class Guesses(NamedTuple):
    """Sums over guesses, by true class and way of scoring: as it stands, and balanced.

    Attributes:
        confidence: (2, m, G) weighted probability of the guessed class at each power.
        hits: (2, m) weight of the guesses that were right.
        weight: (m,) of all guesses.
        rows: (m,) number of guesses.
    """

    confidence: Any
    hits: Any
    weight: Any
    rows: Any


def no_guesses(num_classes: int, link: str) -> Guesses:
    """Before anything was guessed."""
    none = np.zeros(num_classes)
    confidence = np.zeros((2, num_classes, len(POWERS[link])))
    return Guesses(confidence, np.zeros((2, num_classes)), none, none)


def joined_guesses(a: Guesses, b: Guesses) -> Guesses:
    """The sums over both, in double precision."""
    return Guesses(*(np.add(mine, more, dtype=float) for mine, more in zip(a, b, strict=True)))


def grown_guesses(guesses: Guesses, num_classes: int) -> Guesses:
    """With room for so many classes."""
    return placed_guesses(guesses, np.arange(len(guesses.rows)), num_classes)


def placed_guesses(guesses: Guesses, places: np.ndarray, num_classes: int) -> Guesses:
    """The sums of class c in place `places[c]` of so many; those without guesses may share one."""

    def put(leaf: Any, axis: int) -> np.ndarray:
        leaf = np.moveaxis(np.asarray(leaf), axis, 0)
        whole = np.zeros((num_classes, *leaf.shape[1:]), leaf.dtype)
        np.add.at(whole, places, leaf)
        return np.moveaxis(whole, 0, axis)

    return Guesses(*(put(leaf, axis) for leaf, axis in zip(guesses, (1, 1, 0, 0), strict=True)))


def scaled_guesses(guesses: Guesses, factor: np.ndarray) -> Guesses:
    """The same guesses with another weight by class; a weight of 0 forgets them."""
    confidence, hits, weight, rows = (np.asarray(leaf) for leaf in guesses)
    factor = factor.astype(weight.dtype)
    return Guesses(
        confidence * factor[:, None], hits * factor, weight * factor, rows * (factor > 0)
    )


def merged_guesses(a: Guesses, b: Guesses, places: np.ndarray, counts: np.ndarray) -> Guesses:
    """The guesses of two learners, with class c of `b` in place `places[c]` of `a`.

    A guess counts as the square of its class's rows. What either knew when it guessed says
    little beside what both know now, so that all guesses of a class are made to weigh alike.
    """

    def evened(guesses: Guesses) -> Guesses:
        weight, rows = np.asarray(guesses.weight), np.asarray(guesses.rows)
        none = np.zeros_like(weight)
        return scaled_guesses(guesses, np.divide(rows * counts**2, weight, none, where=weight > 0))

    both = evened(a), evened(placed_guesses(b, places, len(counts)))
    return Guesses(*(mine + more for mine, more in zip(*both, strict=True)))


def linked(z: Any, link: str, numpy: Any = jnp) -> Any:
    """link(z), in JAX or NumPy."""
    if link == "identity":
        return z
    low = np.log(FLOOR) + numpy.minimum(z, 0.0) / FLOOR
    return numpy.where(z >= 0, numpy.log(numpy.maximum(z, 0.0) + FLOOR), low)


def tally(
    guesses: Guesses, z: Array, columns: Array, weight: Array, number: Array, link: str
) -> Guesses:
    """Add guesses to the sums.

    Args:
        guesses: so far.
        z: (2, n, m) scores of the ensemble, both ways; very small where a class was not seen.
        columns: (n,) true classes.
        weight: (n,) of each guess; 0 for padding and classes not seen before.
        number: (n,) rows that each stands for.
        link: "log" or "identity".
    """
    logits = linked(z, link)
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.asarray(POWERS[link], z.dtype)

    def at(power: Array) -> Array:
        return 1.0 / jnp.sum(jnp.exp(power * logits), axis=-1)

    top = jnp.moveaxis(jax.lax.map(at, powers), 0, -1)
    counts = weight > 0
    hit = (jnp.argmax(z, axis=-1) == columns) & counts
    confidence, hits, total, rows = (jnp.asarray(leaf, z.dtype) for leaf in guesses)
    return Guesses(
        confidence.at[:, columns].add(jnp.where(counts[:, None], weight[:, None] * top, 0.0)),
        hits.at[:, columns].add(jnp.where(hit, weight, 0.0)),
        total.at[columns].add(weight),
        rows.at[columns].add(jnp.where(counts, number, 0.0)),
    )


def evenness(counts: Any) -> float:
    """exp(entropy) of the counts by the number of classes seen: 1 where all are alike."""
    counts = np.asarray(counts, float)
    share = counts[counts > 0] / counts.sum()
    return float(np.exp(-np.sum(share * np.log(share))) / len(share))


def inverse_temperature(guesses: Guesses, counts: Any, link: str) -> float:
    """The power a at which mean confidence equals accuracy, classes in their proportions.

    One guess at chance level is added, and a is drawn towards 1 while guesses are few, so that a
    few lucky ones do not end in certainty; without guesses a is 1.
    """
    counts = np.asarray(counts, float)
    confidence, hits, weight, rows = (np.asarray(leaf, float) for leaf in guesses)
    guessed = (weight > 0) & (counts > 0)
    if not guessed.any():
        return 1.0
    share = counts[guessed] / counts[guessed].sum()
    number = rows[guessed].sum()
    logs = []
    for way in range(2):
        mean = share @ (confidence[way, guessed] / weight[guessed, None])
        accuracy = share @ (hits[way, guessed] / weight[guessed])
        accuracy = (accuracy * number + 1 / (counts > 0).sum()) / (number + 1)
        # Rounding may break the order of neighbours where the curve is flat.
        logs.append(np.interp(accuracy, np.maximum.accumulate(mean), np.log(POWERS[link])))
    even = np.clip((evenness(counts) - UNEVEN) / (EVEN - UNEVEN), 0.0, 1.0)
    return float(np.exp((logs[0] + even * (logs[1] - logs[0])) * number / (number + FEW)))


def probabilities(z: Any, power: Any, link: str, numpy: Any = np) -> Any:
    """(n, m) calibrated probabilities of scores, in NumPy or JAX; 0 where those are very small."""
    logits = linked(z, link, numpy)
    # The power comes last: XLA would move one that it knows past the maximum, which rounds anew.
    weights = numpy.exp(power * (logits - logits.max(axis=-1, keepdims=True)))
    return weights / weights.sum(axis=-1, keepdims=True)
