"""Standardisation by the mean and deviation of the first rows, kept for all later ones."""

from typing import NamedTuple

import numpy as np

SCALES = ("none", "first")
# A spread below this share of a feature's size is rounding.
STILL = 10 * np.finfo(float).eps


class Scaling(NamedTuple):
    """X becomes (X - mean) / scale.

    Attributes:
        mean: (s,) of the rows that came first.
        scale: (s,) their deviation or, for a feature that was constant, its size.
    """

    mean: np.ndarray
    scale: np.ndarray

    def of(self, X: np.ndarray) -> np.ndarray:
        """(n, s) float64; infinite where a number leaves the range of double precision."""
        with np.errstate(over="ignore"):
            return (X - self.mean) / self.scale

    def but_for(self, left: np.ndarray | None) -> "Scaling":
        """The same with these features, (s,) booleans, as they are."""
        if left is None:
            return self
        return Scaling(np.where(left, 0.0, self.mean), np.where(left, 1.0, self.scale))


def scaling_of(X: np.ndarray, weight: np.ndarray) -> Scaling:
    """The scaling by weighted rows.

    Everything is relative to the size of each feature, so that X times any number gives the
    same scaled features. A feature that was constant may vary later, and is divided by its size,
    or by 1 where it was 0.

    Args:
        X: (n, s) finite numbers, n at least 1.
        weight: (n,) above 0.

    Raises:
        ValueError: on a feature whose scale is below the normal range of doubles, such as 1e-310.
    """
    X = np.asarray(X, float)
    size = np.abs(X).max(axis=0)
    size = np.where(size > 0, size, 1.0)
    relative = X / size
    mean = np.average(relative, axis=0, weights=weight)
    deviation = np.sqrt(np.average((relative - mean) ** 2, axis=0, weights=weight))
    scale = size * np.where(deviation > STILL, deviation, 1.0)
    tiny = scale < np.finfo(float).tiny
    if tiny.any():
        column = int(np.argmax(tiny))
        raise ValueError(
            f"X: expected features whose deviation double precision holds, got {scale[column]} in"
            f" column {column}"
        )
    return Scaling(size * mean, scale)
