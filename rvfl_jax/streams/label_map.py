"""Labels that arrive over time: each gets the next column when it is first seen."""

from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.streams.labels import classes_in_order


class LabelMap(NamedTuple):
    """Labels in the order of their columns; any hashable kind, whole strings.

    Attributes:
        labels: column c stands for `labels[c]`.
    """

    labels: tuple[Any, ...] = ()

    def extended(self, labels: np.ndarray) -> "LabelMap":
        """With a column for every label that has none yet, in order of appearance."""
        known = set(self.labels)
        seen = classes_in_order(labels).tolist()
        fresh = [_plain(label) for label in seen if label not in known]
        return LabelMap(self.labels + tuple(fresh)) if fresh else self

    def columns(self, name: str, labels: np.ndarray) -> np.ndarray:
        """(rows,) int32 column of each label.

        Raises:
            ValueError: naming the first label without a column.
        """
        column_of = {label: c for c, label in enumerate(self.labels)}
        columns = np.array([column_of.get(label, -1) for label in labels.tolist()], np.int32)
        if (columns < 0).any():
            row = int(np.argmax(columns < 0))
            raise ValueError(
                f"{name}: expected one of the {len(self.labels)} known classes,"
                f" got {labels.tolist()[row]!r} in row {row}"
            )
        return columns

    def check_kind(self, name: str, labels: np.ndarray) -> None:
        """ValueError on labels that are known as text but are none themselves, or the reverse.

        Such as 5 where "5" was learned: a file read twice, once as text and once as numbers.
        """
        known = set(self.labels)
        texts = {label for label in known if isinstance(label, str)}
        numbers = {str(label): label for label in known if _is_whole(label)}
        for label in dict.fromkeys(labels.tolist()):
            if label in known:
                continue
            other = numbers.get(label) if isinstance(label, str) else None
            if _is_whole(label) and str(label) in texts:
                other = str(label)
            if other is not None:
                raise ValueError(
                    f"{name}: expected labels of the kind known, {other!r}, got {label!r};"
                    " a number and its text are two labels"
                )

    def sorted(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The chosen labels in ascending order, or in that of their columns, and the columns.

        Args:
            chosen: (len(labels),) truth values.

        Returns:
            (classes, columns): `classes[i]` is the label of column `columns[i]`.
        """
        columns = [int(c) for c in np.flatnonzero(chosen)]
        # Labels of several kinds may have no common order.
        with suppress(TypeError):
            columns.sort(key=lambda c: self.labels[c])
        return as_array([self.labels[c] for c in columns]), np.array(columns, int)


def as_array(labels: list[Any]) -> np.ndarray:
    """An array of these labels, of a plain dtype where all are of one plain kind."""
    for kind in (bool, int, str):
        # Whole numbers of several sizes would meet in a float.
        if labels and all(type(label) is kind for label in labels):
            plain = np.array(labels)
            if plain.dtype.kind in "biuU":
                return plain
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def _is_whole(label: Any) -> bool:
    return isinstance(label, int | np.integer) and not isinstance(label, bool)


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
