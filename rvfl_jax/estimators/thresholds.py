"""Thresholds of labels, from guesses made before the labels were known.

The score of a label is an estimate of its probability, and a row is said to have the label where it
is at least the label's threshold. Which threshold is best depends on how rare the label is and how
well it is told: F1 of a rare label is often best far below 1/2. So guesses are kept as a histogram
of their scores, one for rows with the label and one for rows without it, in fixed size. Thresholds
are sought among the `BINS` edges from 1 / `BINS` to 1.

The readout of few rows has smaller scores than that of many. A guess therefore weighs as many as
there were rows known to the readout that made it, and guesses of a label that the readout had met
no row of weigh nothing.
"""

from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.checks import is_number
from rvfl_jax.core.words import in_brief

BINS = 256
RULES = ("f1", "accuracy")
# Where no guess tells better.
EVEN = 0.5
# Sums of equal weights in another order.
ROUNDING = 1e-12


@in_brief
class LabelGuesses(NamedTuple):
    """Past guesses of labels, and the readout that makes the next ones.

    Attributes:
        theta: (L, d, m) of that readout.
        rows_of_label: (m,) rows of each label that it knows.
        rows: number of rows that it knows; 0 for one that guesses nothing.
        scores: (2, m, BINS + 2) weight of guesses by score, of rows without the label and with
            it; the first bin is of scores below 0, the last of those of at least 1.
    """

    theta: Any
    rows_of_label: np.ndarray
    rows: int
    scores: np.ndarray

    @classmethod
    def none(cls, shape: tuple[int, int, int]) -> "LabelGuesses":
        """Before anything was guessed, for readouts of that shape (L, d, m)."""
        return cls(np.zeros(shape), np.zeros(shape[2], int), 0, np.zeros((2, shape[2], BINS + 2)))

    def plus(self, scores: np.ndarray, Y: np.ndarray, weight: np.ndarray) -> "LabelGuesses":
        """With the guesses of rows: scores (n, m), what is true Y (n, m), and weight (n,)."""
        outputs, bins = self.scores.shape[1:]
        worth = weight[:, None] * self.rows * (self.rows_of_label > 0)
        true = Y > 0
        at = (true * outputs + np.arange(outputs)) * bins + bin_of(scores)
        worth = np.broadcast_to(worth, at.shape)
        found = np.bincount(at.ravel(), worth.ravel(), self.scores.size)
        return self._replace(scores=self.scores + found.reshape(self.scores.shape))

    def grown(self, capacity: int) -> "LabelGuesses":
        """With room for so many labels, the new ones without guesses."""
        return self.placed(np.arange(len(self.rows_of_label)), capacity)

    def placed(self, places: np.ndarray, capacity: int) -> "LabelGuesses":
        """With label c in place `places[c]` of so many; those without guesses may share one."""

        def put(leaf: Any, axis: int) -> np.ndarray:
            leaf = np.moveaxis(np.asarray(leaf), axis, 0)
            whole = np.zeros((capacity, *leaf.shape[1:]), leaf.dtype)
            np.add.at(whole, places, leaf)
            return np.moveaxis(whole, 0, axis)

        theta, rows = put(self.theta, 2), put(self.rows_of_label, 0)
        return LabelGuesses(theta, rows, self.rows, put(self.scores, 1))

    def made_by_none(self) -> "LabelGuesses":
        """The same guesses, and no readout to make more."""
        return self._replace(rows_of_label=np.zeros_like(self.rows_of_label), rows=0)

    def thresholds(self, rule: str) -> np.ndarray:
        """(m,) the best by "f1" or "accuracy"; 1/2 for labels without guesses of both kinds."""
        # Weight of scores of at least each edge.
        above = np.cumsum(self.scores[:, :, ::-1], axis=2)[:, :, ::-1]
        of_rows_without, of_rows_with = above[:, :, 0]
        wrong, right = above[:, :, 2:]
        if rule == "f1":
            # 2 TP / (2 TP + FP + FN)
            total = right + wrong + of_rows_with[:, None]
            value = 2.0 * right / np.where(total > 0, total, 1.0)
        else:
            every = (of_rows_with + of_rows_without)[:, None]
            value = (right - wrong) / np.where(every > 0, every, 1.0)
        told = (of_rows_with > 0) & (of_rows_without > 0)
        return np.where(told, _middle_of_best(value), EVEN)


def merged_label_guesses(a: LabelGuesses, b: LabelGuesses, places: np.ndarray) -> LabelGuesses:
    """The guesses of two learners, with label c of `b` in place `places[c]` of `a`."""
    theirs = b.placed(places, len(a.rows_of_label))
    return a.made_by_none()._replace(scores=a.scores + theirs.scores)


def bin_of(scores: np.ndarray) -> np.ndarray:
    """The bin of each score: 0 below 0, and the last for 1 and more."""
    return np.floor(np.clip(scores, -1.0 / BINS, 1.0) * BINS).astype(int) + 1


def check_threshold(threshold: Any) -> None:
    """Raise ValueError unless it is a rule, or a number between 0 and 1."""
    if isinstance(threshold, str) and threshold in RULES:
        return
    if not is_number(threshold) or not 0 < threshold < 1:
        raise ValueError(
            f"threshold: expected one of {', '.join(RULES)}, or a number between 0 and 1, got"
            f" {threshold!r}"
        )


def _middle_of_best(value: np.ndarray) -> np.ndarray:
    """(m,) the middle of the first run of edges that are best, of values (m, BINS)."""
    best = value >= value.max(axis=1, keepdims=True) - ROUNDING
    first = np.argmax(best, axis=1)
    after = np.arange(value.shape[1]) > first[:, None]
    ends = np.argmax(after & ~best, axis=1)
    last = np.where(ends > 0, ends - 1, value.shape[1] - 1)
    return (0.5 * (first + last) + 1.0) / BINS
