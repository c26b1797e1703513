"""What a worker does with a partition, whichever neighbour has sent it, and the tree of merges."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from rvfl_jax.core.words import listed
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.partition import digest_of_columns
from rvfl_jax.estimators.shared_sums import Sums
from rvfl_jax.linalg.host_blas import threads_at_most

T = TypeVar("T")

# From columns of a partition by their names to (rows, features).
Embed = Callable[[Mapping[str, np.ndarray]], Any]
# Sums that one task merges.
FAN_IN = 8


class Named(NamedTuple):
    """A partition that was summed: its name, "" for one that adds nothing, and its rows."""

    name: str
    rows: int


@dataclass(frozen=True)
class Summing:
    """The task of a worker: from the columns of a partition to its sums.

    Attributes:
        zero: the sums of no rows.
        label: column of labels or targets.
        features: columns of numbers or of vectors; None for all but the label and the weight.
        weight: column of weights of the rows.
        embed: makes features of the columns.
        known: names of partitions that were counted by an earlier job.
        folder: where the sums of each partition are kept for another job of the same arguments.
    """

    zero: Sums
    label: str
    features: tuple[str, ...] | None = None
    weight: str | None = None
    embed: Embed | None = None
    known: frozenset[str] = frozenset()
    folder: Path | None = None

    def __call__(self, columns: Mapping[str, Any]) -> tuple[Named, Sums]:
        """The name of the partition and its sums.

        Raises:
            ValueError: on columns that are not there, and on unusable rows.
        """
        columns = {str(name): _dense(values) for name, values in columns.items()}
        if not columns or not len(next(iter(columns.values()))):
            return Named("", 0), self.zero
        name = digest_of_columns(columns)
        if name in self.known:
            return Named("", 0), self.zero
        path = None if self.folder is None else self.folder / f"{name}.npz"
        if path is not None and path.is_file():
            sums = Sums.load(path)
        else:
            with threads_at_most(_own_threads()):
                sums = self._summed(columns).as_partition(name, name)
            if path is not None:
                sums.save(path)
        return Named(name, sums.rows), sums

    def _summed(self, columns: Mapping[str, np.ndarray]) -> Sums:
        y = _column(columns, self.label)
        weight = None if self.weight is None else _column(columns, self.weight)
        X = self._features(columns) if self.embed is None else np.asarray(self.embed(columns))
        return self.zero.add(X, y, weight)

    def _features(self, columns: Mapping[str, np.ndarray]) -> Any:
        """A frame of columns of numbers, or (rows, features) where vectors are among them."""
        others = (self.label, self.weight)
        names = self.features or [name for name in columns if name not in others]
        chosen = [_column(columns, name) for name in names]
        if all(values.ndim == 1 for values in chosen):
            import pandas

            return pandas.DataFrame(dict(zip(names, chosen, strict=True)))
        return np.hstack([values.reshape(len(values), -1) for values in chosen])


def summing(
    estimator: EdRVFLBase,
    label: str,
    features: Sequence[str] | None,
    weight: str | None,
    embed: Embed | None,
    start: Sums | None,
    folder: str | Path | None,
) -> Summing:
    """The task, checked on the machine that sends it out.

    Raises:
        ValueError: on an estimator whose rows do not add up, on sums to start from that are not
            its own, and on features beside an embedding.
    """
    zero = Sums.zero(estimator)
    known: frozenset[str] = frozenset()
    if start is not None:
        known = frozenset(zero.merge(start).ledger)
    if embed is not None and features is not None:
        raise ValueError("features: expected None where an embedding makes them")
    if isinstance(features, str):
        features = (features,)
    chosen = None if features is None else tuple(features)
    task = Summing(zero, label, chosen, weight, embed, known)
    return task if folder is None else replace(task, folder=_own_folder(Path(folder), task))


def _own_folder(folder: Path, task: Summing) -> Path:
    """Of all that decides sums but the rows, so that no job takes those of another."""
    embed = None if task.embed is None else getattr(task.embed, "__qualname__", type(task.embed))
    given = [task.zero.described(), task.label, task.features, task.weight, embed]
    own = folder.resolve() / digest_of_columns({"": [repr(given)]})
    own.mkdir(parents=True, exist_ok=True)
    return own


def admitted(partitions: Iterable[tuple[Named, T]]) -> list[T]:
    """What stands for each partition once, in the order of their names.

    So the order of merging, and with it rounding, is the same whoever was done first. Partitions
    that came twice are told of in a warning.
    """
    once: dict[str, T] = {}
    twice: dict[str, int] = {}
    for (name, rows), item in partitions:
        if name in once:
            twice[name] = rows
        elif name:
            once[name] = item
    if twice:
        warnings.warn(
            f"partitions: {len(twice)} came more than once, with {sum(twice.values())} rows, and"
            f" counted once: {listed(twice)}",
            UserWarning,
            stacklevel=3,
        )
    return [once[name] for name in sorted(once)]


def merged_by_tree(items: Sequence[T], merge: Callable[[Sequence[T]], T]) -> T:
    """One item of all, merged by a few at a time.

    Args:
        items: at least one.
        merge: of at most `FAN_IN` items.
    """
    while len(items) > 1:
        items = [merge(items[i : i + FAN_IN]) for i in range(0, len(items), FAN_IN)]
    return items[0]


def merged(sums: Sequence[Sums]) -> Sums:
    """Of the rows of all; at least one."""
    first, *others = sums
    return first.merge(*others)


def concluded(zero: Sums, start: Sums | None, found: Sums | None) -> Sums:
    """What was there before and what was found."""
    return zero.merge(*(sums for sums in (start, found) if sums is not None))


def _column(columns: Mapping[str, np.ndarray], name: str) -> np.ndarray:
    if name not in columns:
        raise ValueError(f"columns: expected {name!r}, got {listed(columns)}")
    return columns[name]


def _dense(values: Any) -> np.ndarray:
    """An array, two-dimensional where every row has a vector."""
    array = np.asarray(values)
    vectors = array.dtype == object and len(array) > 0
    if vectors and all(isinstance(value, np.ndarray | list | tuple) for value in array):
        return np.stack([np.asarray(value) for value in array])
    return array


def _own_threads() -> int | None:
    """What is set aside for this worker; None where nothing tells."""
    told = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, int(told)) if told.isdigit() else None
