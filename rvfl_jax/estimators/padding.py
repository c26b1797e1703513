"""Sizes that compiled programs are made for, so that few programs serve every batch."""

from typing import Any

import numpy as np

# Fewer rows than that cost as much, since a step on them only reads and writes d x d numbers.
FEWEST_ROWS = 8
FEWEST_CLASSES = 16


def rows_for(count: int) -> int:
    """The power of two, at least `FEWEST_ROWS`, that holds so many rows."""
    return max(FEWEST_ROWS, 1 << (count - 1).bit_length())


def classes_for(count: int) -> int:
    """The capacity, doubled as often as need be, that holds so many classes."""
    return max(FEWEST_CLASSES, 1 << (count - 1).bit_length())


def padded(array: Any, rows: int) -> np.ndarray:
    """The array with zeros below, up to so many rows."""
    array = np.asarray(array)
    if len(array) == rows:
        return array
    whole = np.zeros((rows, *array.shape[1:]), array.dtype)
    whole[: len(array)] = array
    return whole
