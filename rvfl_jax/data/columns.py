"""What each column of a table is to a model, and how it becomes features: `Columns`.

- A number is one feature.
- A list of numbers, always of one length, is one feature an element: an embedding.
- A category is one feature a value that was there when learning began, 1 where it is the row's.
  Random weights are drawn once for so many features, so that a later value has no feature of its
  own: all of them are 0 there.
- A text is so many features: scikit-learn's `HashingVectorizer` adds each word and each pair of
  neighbouring words to one of them, with a sign. That is a sparse random projection of the counts
  of all words (Weinberger et al. 2009), which knows no vocabulary and so learns none. A word is two
  or more letters or digits, in small letters. The features are scaled so that their mean square is
  1 in every text.

Where `impute` is "refuse", a field that is missing is an error. Else a missing number is the mean,
the median or 0, by the table that learning began with; a missing category or text is all zeros.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.data.table_formats import Block, Column, Foreign
from rvfl_jax.data.tables import (
    NO_FIELD,
    FieldError,
    check_columns,
    is_no_label,
    not_finite,
    numbers_of,
)
from rvfl_jax.data.tables import sole_label as sole_text
from rvfl_jax.files.npz import read_npz

NUMBER, LIST, CATEGORY, TEXT = "number", "list", "category", "text"
IMPUTE = ("refuse", "mean", "median", "zero")
TEXT_WIDTH = 512
PAIRS_OF_WORDS = (1, 2)


class Source(NamedTuple):
    """A column that features are made of.

    Attributes:
        name: of the column.
        kind: "number", "list", "category" or "text".
        width: number of its features.
        values: (width,) of a category.
        fill: (width,) numbers that stand for missing ones; empty where these are refused.
    """

    name: str
    kind: str = NUMBER
    width: int = 1
    values: tuple[str, ...] = ()
    fill: tuple[float, ...] = ()

    @property
    def names(self) -> list[str]:
        """(width,) names of the features."""
        if self.kind == NUMBER:
            return [self.name]
        if self.kind == CATEGORY:
            return [f"{self.name}={value}" for value in self.values]
        return [f"{self.name}[{i}]" for i in range(self.width)]

    @property
    def told(self) -> Any:
        """What it is, for people."""
        if self.kind == CATEGORY:
            return [*self.values]
        return self.kind if self.kind == NUMBER else f"{self.kind} of {self.width}"


class Columns(NamedTuple):
    """How a model reads tables.

    Attributes:
        sources: columns that features are made of, in the order of the features.
        ignored: further columns that may be there; None for any.
        id: name of the column that names rows, or None.
        time: name of the column whose order rows are learned in, or None.
        impute: "refuse", "mean", "median" or "zero".
    """

    sources: tuple[Source, ...]
    ignored: tuple[str, ...] | None = ()
    id: str | None = None
    time: str | None = None
    impute: str = "refuse"

    @property
    def names(self) -> list[str]:
        """Names of the features."""
        return [name for source in self.sources for name in source.names]

    @property
    def are_counts(self) -> np.ndarray:
        """(s,) whether a feature is of a category or a text, which nothing standardises."""
        kinds = [np.repeat(x.kind in (CATEGORY, TEXT), x.width) for x in self.sources]
        return np.concatenate(kinds)

    def features(self, rows: Any) -> np.ndarray:
        """(n, s) features of rows that no file holds, such as those of a request to a server.

        Args:
            rows: a data frame of pandas or polars, a mapping of column names to values, or a
                sequence of one mapping a row. What is not read may be there.

        Raises:
            ValueError: on a missing column, or a field that is refused, naming both.
        """
        names = [source.name for source in self.sources]
        table = _given(rows, names)
        check_columns("rows", [*table], names)
        lengths = {len(values) for values in table.values()}
        if len(lengths) > 1:
            raise ValueError(f"rows: expected columns of one length, got {sorted(lengths)}")
        places = [f"row {i + 1}" for i in range(lengths.pop())]
        if not places:
            return np.zeros((0, len(self.names)))
        columns = [_column(name, values) for name, values in table.items()]
        return self.spread("rows", Block([*table], columns, places))

    def spread(self, table: str, block: Block) -> np.ndarray:
        """(n, s) features of the rows of a block.

        Raises:
            ValueError: naming the table, the row and the column of a field that is refused.
        """
        X = np.empty((len(block.places), sum(source.width for source in self.sources)))
        start = 0
        for source in self.sources:
            column = block.columns[block.names.index(source.name)]
            there = Fields(table, block.places, source.name, column, self.impute != "refuse")
            X[:, start : start + source.width] = _SPREAD[source.kind](source, there)
            start += source.width
        return X

    def described(self) -> dict[str, Any]:
        """As JSON; `from_description` reads it."""
        return self._asdict() | {"sources": [source._asdict() for source in self.sources]}

    @classmethod
    def from_description(cls, told: Mapping[str, Any]) -> "Columns":
        """What `described` told."""
        sources = [
            Source(**x | {"values": tuple(x["values"]), "fill": tuple(x["fill"])})
            for x in told["sources"]
        ]
        ignored = told["ignored"]
        ignored = None if ignored is None else tuple(ignored)
        return cls(**{**told, "sources": tuple(sources), "ignored": ignored})


def read_columns(path: str | Path) -> Columns:
    """How a model that `rvfl-jax fit` made reads tables.

    Args:
        path: folder of the model, or the file that `rvfl-jax export` wrote.

    Raises:
        ValueError: on a file that is neither, or damaged.
    """
    path = Path(path)
    if path.is_dir():
        # Deferred, as is JAX with it.
        from rvfl_jax.files.checkpoint import load_checkpoint_file

        about = load_checkpoint_file(path / "model.npz").metadata["metadata"]["notes"]
        table = about.get("table", {})
    else:
        metadata = read_npz(str(path)).get("metadata", np.array([], np.uint8))
        try:
            about = json.loads(metadata.tobytes())
        except ValueError:
            raise ValueError(f"{path}: expected an exported model, got another file") from None
        table = about | (about.get("notes") or {})
    if table.get("how") is not None:
        columns = Columns.from_description(table["how"])
        if any(source.kind == TEXT for source in columns.sources):
            # Now, so that the first request does not wait for it.
            _hashing(1)
        return columns
    if not table.get("columns"):
        raise ValueError(f"{path}: expected a model with names of columns, got one without")
    return Columns(tuple(Source(name) for name in table["columns"]))


class Fields(NamedTuple):
    """A column of some rows.

    Attributes:
        table: name of the table.
        places: (n,) where rows stand, in words.
        name: of the column.
        column: what is in it.
        gaps: whether fields may be missing.
    """

    table: str
    places: Sequence[str]
    name: str
    column: Column
    gaps: bool

    def numbers(self) -> np.ndarray:
        """(n,) numbers, NaN where one is missing and may be."""
        column = self.column
        if self.gaps and not isinstance(column, np.ndarray | Foreign):
            column = ["nan" if not_finite(value) == NO_FIELD else value for value in column]
        try:
            found = numbers_of(column)
            good = np.isfinite(found) | (self.gaps & np.isnan(found))
        except (ValueError, TypeError):
            found, good = np.zeros(0), np.zeros(1, bool)
        if not good.all():
            self._refuse_number()
        return found

    def _refuse_number(self) -> None:
        for i in range(len(self.places)):
            foreign = isinstance(self.column, Foreign)
            got = not_finite(self.column if foreign else self.column[i])
            if got is not None and not (self.gaps and got == NO_FIELD):
                raise self.fault(i, "a finite number", got)

    def texts(self, what: str = "a text") -> list[str | None]:
        """(n,) texts, None where one is missing and may be; `what` is expected."""
        column = self.column
        if isinstance(column, Foreign):
            if self.places:
                raise self.fault(0, what, column.type)
            return []
        numbers = isinstance(column, np.ndarray)
        found = [_text(value, numbers) for value in column]
        if None in found and not self.gaps:
            raise self.fault(found.index(None), what, NO_FIELD)
        return found

    def values(self) -> list[str | None]:
        """(n,) values of a category, None where one is missing and may be."""
        texts = self.texts("a value")
        found = [None if text is None or is_no_label(text) else sole_text(text) for text in texts]
        if None in found and not self.gaps:
            raise self.fault(found.index(None), "a value", NO_FIELD)
        return found

    def lists(self, width: int | None) -> np.ndarray:
        """(n, width) numbers, NaN where one or a whole list is missing and may be.

        Args:
            width: length of every list; that of the first one when None.
        """
        of = "" if width is None else f" of {width}"
        column = self.column
        if not isinstance(column, Foreign) or column.lists is None:
            got = column.type if isinstance(column, Foreign) else "none"
            raise self.fault(0, f"a list{of} numbers", got)
        flat, lengths = column.lists()
        there = lengths >= 0
        if width is None:
            width = int(lengths[there][0]) if there.any() else 0
        wrong = there & (lengths != width)
        if wrong.any():
            row = int(np.argmax(wrong))
            raise self.fault(row, f"a list of {width} numbers", f"one of {lengths[row]}")
        X = np.full((len(lengths), width), np.nan)
        X[there] = flat.reshape(-1, width)
        bad = ~(np.isfinite(X) | (self.gaps & np.isnan(X)))
        if bad.any():
            row, at = (int(i) for i in np.argwhere(bad)[0])
            got = NO_FIELD if np.isnan(X[row, at]) else repr(float(X[row, at]))
            raise self.fault(row, f"a list of {width} finite numbers", got)
        return X

    def fault(self, row: int, expected: str, got: str) -> FieldError:
        """What is wrong in a row."""
        where = f"{self.table}, {self.places[row]}"
        return FieldError(f"{where}: expected {expected} in column {self.name!r}, got {got}")


def _text(value: Any, number: bool) -> str | None:
    if value is None or (number and math.isnan(value)):
        return None
    text = str(value)
    return text if text.strip() else None


def _filled(source: Source, X: np.ndarray) -> np.ndarray:
    return np.where(np.isnan(X), source.fill, X) if source.fill else X


def _spread_number(source: Source, fields: Fields) -> np.ndarray:
    return _filled(source, fields.numbers()[:, None])


def _spread_list(source: Source, fields: Fields) -> np.ndarray:
    return _filled(source, fields.lists(source.width))


def _spread_category(source: Source, fields: Fields) -> np.ndarray:
    place = {value: i for i, value in enumerate(source.values)}
    X = np.zeros((len(fields.places), source.width))
    for row, value in enumerate(fields.values()):
        if value in place:
            X[row, place[value]] = 1.0
    return X


def _spread_text(source: Source, fields: Fields) -> np.ndarray:
    texts = [text or "" for text in fields.texts()]
    X: np.ndarray = _hashing(source.width).transform(texts).toarray() * math.sqrt(source.width)
    return X


def _hashing(width: int) -> Any:
    # Deferred: scikit-learn takes a second to import.
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(n_features=width, ngram_range=PAIRS_OF_WORDS, norm="l2")


_SPREAD = {
    NUMBER: _spread_number,
    LIST: _spread_list,
    CATEGORY: _spread_category,
    TEXT: _spread_text,
}


def _given(rows: Any, names: Sequence[str]) -> dict[str, list[Any]]:
    """Values of these columns, as far as they are there."""
    if hasattr(rows, "columns"):
        return {name: rows[name].to_list() for name in names if name in [*rows.columns]}
    if isinstance(rows, Mapping):
        return {name: [*rows[name]] for name in names if name in rows}
    if isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows):
        there = [name for name in names if any(name in row for row in rows)] if rows else names
        return {name: [row.get(name) for row in rows] for name in there}
    raise ValueError(
        f"rows: expected a data frame, columns or a sequence of mappings, got {type(rows).__name__}"
    )


def _column(name: str, values: Sequence[Any]) -> Column:
    """Python's values as a reader of files would have them."""
    kinds = {type(value) for value in values if value is not None}
    if any(issubclass(kind, list | tuple | np.ndarray) or _is_series(kind) for kind in kinds):
        arrays = [_numbers(name, row, value) for row, value in enumerate(values)]
        lengths = np.array([-1 if array is None else array.size for array in arrays])
        flat = [array.ravel() for array in arrays if array is not None]
        return Foreign("list", lists=lambda: (np.concatenate(flat or [np.zeros(0)]), lengths))
    if any(issubclass(kind, date) for kind in kinds):
        return Foreign("date", dates=lambda: [None if x is None else str(x) for x in values])
    plain = all(
        issubclass(kind, int | float | np.number) and not issubclass(kind, bool) for kind in kinds
    )
    if kinds and plain and None not in values:
        return np.array(values, float)
    return [None if _is_nothing(value) else str(value) for value in values]


def _numbers(name: str, row: int, value: Any) -> np.ndarray | None:
    """A list of numbers of a row that no file holds."""
    if value is None:
        return None
    try:
        return np.asarray(value, float)
    except (TypeError, ValueError):
        where = f"rows, row {row + 1}: expected a list of numbers in column {name!r}"
        raise ValueError(f"{where}, got {value!r:.60}") from None


def _is_nothing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or NaT and NA of pandas."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return True
    return not isinstance(value, str) and str(value) in ("NaT", "<NA>")


def _is_series(kind: type) -> bool:
    return hasattr(kind, "to_numpy") and hasattr(kind, "__len__")
