"""Probabilities that mean something, from guesses made before the labels were known.

Least squares on one-hot targets estimates class probabilities themselves, so that a softmax of the
scores z is almost flat however it is sharpened. Here

    p_c  proportional to  exp(a link(z_c)),    link(z) = log(z + 0.02),  z >= 0,
                                                         log 0.02 + z / 0.02,  z < 0,

that is to the scores' own power a, the inverse temperature; discriminants, which are logarithms
already, go through as they are. a is where the mean confidence of guesses equals their accuracy.

The guesses cost no held-out rows: each batch is guessed before it is learned. Where classes come
one after another such guesses meet young classes against grown ones, and are worse than the
learned readout will be. Two corrections make them alike: each guess is scored as if every class
had been met equally often, and counts as the square of the rows that its own class then had.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.types import Array

FLOOR = 0.02
# Powers at which confidences are summed up; the answer is interpolated between them.
POWERS = {"log": np.geomspace(0.25, 64.0, 25), "identity": np.geomspace(1e-3, 1e2, 26)}


class Guesses(NamedTuple):
    """Sums over guesses, by true class.

    Attributes:
        confidence: (m, G) weighted probability of the guessed class at each power.
        hits: (m,) weight of the guesses that were right.
        weight: (m,) of all guesses.
        rows: (m,) number of guesses.
    """

    confidence: Any
    hits: Any
    weight: Any
    rows: Any


def no_guesses(num_classes: int, link: str, dtype: Any = np.float64) -> Guesses:
    """Before anything was guessed."""
    none = np.zeros(num_classes, dtype)
    return Guesses(np.zeros((num_classes, len(POWERS[link])), dtype), none, none, none)


def grown_guesses(guesses: Guesses, num_classes: int) -> Guesses:
    """With room for so many classes."""
    extra = num_classes - len(guesses.hits)
    return Guesses(
        *(
            np.pad(np.asarray(leaf), [(0, extra)] + [(0, 0)] * (np.ndim(leaf) - 1))
            for leaf in guesses
        )
    )


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
        z: (n, m) scores of the ensemble; very small where a class was not met.
        columns: (n,) true classes.
        weight: (n,) of each guess; 0 for padding and classes not met before.
        number: (n,) rows that each stands for.
        link: "log" or "identity".
    """
    logits = linked(z, link)
    logits = logits - jnp.max(logits, axis=-1, keepdims=True)
    powers = jnp.asarray(POWERS[link], z.dtype)

    def at(power: Array) -> Array:
        return 1.0 / jnp.sum(jnp.exp(power * logits), axis=-1)

    top = jax.lax.map(at, powers).T
    counts = weight > 0
    hit = (jnp.argmax(z, axis=-1) == columns) * weight

    def add(into: Any, values: Array) -> Array:
        return jnp.asarray(into, z.dtype).at[columns].add(values)

    return Guesses(
        add(guesses.confidence, jnp.where(counts[:, None], weight[:, None] * top, 0.0)),
        add(guesses.hits, jnp.where(counts, hit, 0.0)),
        add(guesses.weight, weight),
        add(guesses.rows, jnp.where(counts, number, 0.0)),
    )


def inverse_temperature(guesses: Guesses, counts: Any, link: str) -> float:
    """The power a at which mean confidence equals accuracy, classes in their proportions.

    One guess at chance level is added, so that a few lucky ones do not end in certainty; with
    no guesses at all a is 1.
    """
    confidence, hits, weight, rows = (np.asarray(leaf, float) for leaf in guesses)
    guessed = weight > 0
    if not guessed.any():
        return 1.0
    share = np.asarray(counts, float)[guessed]
    share = share / share.sum() if share.sum() > 0 else np.full(len(share), 1 / len(share))
    mean = share @ (confidence[guessed] / weight[guessed, None])
    accuracy = share @ (hits[guessed] / weight[guessed])
    number = rows.sum()
    accuracy = (accuracy * number + 1 / guessed.sum()) / (number + 1)
    # Rounding may break the order of neighbours where the curve is flat.
    return float(np.exp(np.interp(accuracy, np.maximum.accumulate(mean), np.log(POWERS[link]))))


def probabilities(z: np.ndarray, power: float, link: str) -> np.ndarray:
    """(n, m) calibrated probabilities of scores over the classes met."""
    logits = power * linked(z, link, np)
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)
