"""Original labels to column indices and back; every row gets a column or an error."""

from typing import Any

import numpy as np

from rvfl_jax.core.checks import plain_array


def clean_labels(name: str, labels: Any, *, negative: bool = False) -> np.ndarray:
    """Labels as a 1-d array that can be compared and looked up safely.

    Integral floats become integers. Integers and floats below 0, fractions and NaN are
    errors (a library's "missing" or "unlabelled" must not become a class by accident);
    strings and other hashable objects pass as they are.

    Args:
        name: of the argument, for messages.
        labels: (rows,) of any hashable kind.
        negative: whether numbers below 0 are labels, as in scikit-learn.

    Raises:
        ValueError: naming the first label that cannot be one.
    """
    array = plain_array(name, labels) if isinstance(labels, np.ndarray) else _as_array(labels)
    if array.ndim != 1:
        raise ValueError(f"{name}: expected 1 dimension (rows,), got shape {array.shape}")
    if array.dtype.kind == "f":
        bad = ~(np.isfinite(array) & (array == np.round(array)))
        _reject(name, array, bad, "integral numbers")
        array = array.astype(np.int64)
    if array.dtype.kind == "b":
        return array.astype(np.int64)
    if array.dtype.kind == "i" and not negative:
        _reject(name, array, array < 0, "labels of at least 0")
    if array.dtype.kind == "O":
        bad = np.array([not _is_label(label, negative) for label in array], dtype=bool)
        sign = "" if negative else " and not negative"
        _reject(name, array, bad, f"hashable labels, numbers among them integral{sign}")
    if array.dtype.kind not in "iuOUS":
        raise ValueError(f"{name}: expected integers, strings or objects, got {array.dtype}")
    return array


def _as_array(labels: Any) -> np.ndarray:
    """`np.asarray`, but no numbers turned into strings by their neighbours, and tuples whole."""
    labels = list(labels)
    if any(isinstance(label, tuple) for label in labels):
        array = np.empty(len(labels), dtype=object)
        array[:] = labels
        return array
    array = np.asarray(labels)
    if array.dtype.kind in "fO" and all(isinstance(label, int | np.integer) for label in labels):
        # Python's integers beyond 64 bits, or signed beside unsigned ones, would meet in a float.
        array = np.empty(len(labels), dtype=object)
        array[:] = [int(label) for label in labels]
        return array
    if array.dtype.kind in "US" and not all(isinstance(x, str | bytes) for x in labels):
        return np.array(labels, dtype=object)
    return array


def _is_label(label: Any, negative: bool) -> bool:
    try:
        hash(label)
    except TypeError:
        return False
    if isinstance(label, int | np.integer):
        return bool(negative or label >= 0)
    if isinstance(label, float | np.number):
        sign = negative or label >= 0
        return bool(np.isfinite(label) and sign and float(label).is_integer())
    try:
        return label is not None and bool(label == label)
    except TypeError:  # a missing value of pandas is neither equal nor not
        return False


def _reject(name: str, labels: np.ndarray, bad: np.ndarray, expected: str) -> None:
    if bad.any():
        row = int(np.argmax(bad))
        raise ValueError(f"{name}: expected {expected}, got {labels[row]!r} in row {row}")


def classes_in_order(labels: np.ndarray) -> np.ndarray:
    """Distinct labels in order of first appearance."""
    if labels.dtype.kind == "O":
        distinct = list(dict.fromkeys(labels.tolist()))
        classes = np.empty(len(distinct), dtype=object)
        classes[:] = distinct
        return classes
    values, first = np.unique(labels, return_index=True)
    return values[np.argsort(first, kind="stable")]


def to_columns(name: str, labels: Any, classes: np.ndarray) -> np.ndarray:
    """(rows,) int32 column of each label.

    Raises:
        ValueError: on a label that is not in `classes`.
    """
    labels = clean_labels(name, labels)
    column_of = {label: c for c, label in enumerate(classes.tolist())}
    columns = np.array([column_of.get(label, -1) for label in labels.tolist()], dtype=np.int32)
    _reject(name, labels, columns < 0, f"one of the {len(classes)} known classes")
    return columns


def one_hot(labels: Any, num_classes: int, dtype: Any = np.float32) -> np.ndarray:
    """(rows, num_classes) one-hot targets from column indices.

    Args:
        labels: (rows,) integers, or floats that are integral, in 0 .. num_classes - 1.
        num_classes: m.
        dtype: of the result.

    Raises:
        ValueError: on a fractional, NaN, negative or too large index; never a zero row.
    """
    columns = clean_labels("labels", labels)
    if columns.dtype.kind not in "iu":
        raise ValueError(f"labels: expected column indices, got dtype {columns.dtype}")
    _reject("labels", columns, columns >= num_classes, f"an index below {num_classes}")
    targets = np.zeros((len(columns), num_classes), dtype)
    targets[np.arange(len(columns)), columns] = 1
    return targets
