"""Tables of numbers and labels, read in parts, by one rule whatever the format.

- A feature is a finite number, or a text that is one as in a CSV (strings and decimals of Parquet
  are texts). Booleans, dates, lists, empty fields, null and NaN are none; nor is "1_000".
- A label is text, and a number its digits, so that 0, 0.0 and "0" are one label, and "007" is
  another than 7. Empty fields, null, NaN, NaT and <NA> are none.
- Columns are known by their names, each of which must be there once.
- Names of rows are no feature, and are left out with a note: a first column without a name (or
  which pandas has named "Unnamed: 0"), and the index that pandas saves.

Every fault is a ValueError of one line that names the file and the row or, in a CSV, the line.
"""

import difflib
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from rvfl_jax.data.table_formats import (
    KINDS,
    STANDARD_INPUT,
    Block,
    Column,
    Foreign,
    Request,
    check_file,
    reader_of,
    unnamed,
)

__all__ = ["KINDS", "STANDARD_INPUT", "Part", "is_no_label", "read_parts", "sole_label", "unnamed"]

_SAVED_INDEX = re.compile(r"__index_level_\d+__")
_NAMELESS = ("", "Unnamed: 0")
_NOTHING = ("nan", "NaN", "-nan", "NaT", "<NA>")
_WHOLE = re.compile(r"(-?)(0|[1-9]\d*)\.0*")
_LISTED = 8
NO_FIELD = "nothing (an empty field, null or NaN)"


class FieldError(ValueError):
    """A field of a column of features is none of those that the column is read as."""


class Part(NamedTuple):
    """Some rows of a table.

    Attributes:
        columns: names of the features, in the order of X.
        X: (rows, s) float64.
        labels: the label of each row as text, or None where they are not needed.
        ids: what names each row, as text, where `column_parts` is asked for it.
        times: what orders the rows, where `column_parts` is asked for it.
    """

    columns: tuple[str, ...]
    X: np.ndarray
    labels: list[str] | None
    ids: list[str] | None = None
    times: np.ndarray | None = None


def tell(note: str) -> None:
    """A sentence on standard error."""
    print(note, file=sys.stderr)


def read_parts(
    source: str,
    *,
    rows: int,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    needs_label: bool = False,
    promptly: bool = False,
    note: Callable[[str], None] = tell,
) -> Iterator[Part]:
    """A table in parts of so many rows, read as they are asked for.

    Args:
        source: a path ending in .csv, .tsv, .csv.gz, .tsv.gz, .parquet or .npz, or "-" for a CSV
            from standard input. A CSV has a header; an npz holds X and, where labels are needed,
            y, and may hold `columns`, the names of the features, which are x0, x1 ... without it.
        rows: of each part but the last.
        label: name of the label column; it is no feature, and need not be filled where labels are
            not needed.
        columns: features that the table must have; others are an error. Any when None.
        needs_label: whether labels are wanted, so that the column must be there.
        promptly: whether rows of standard input come out as they come in, before a part is full.
        note: called with a sentence on what is left out.

    Raises:
        ValueError: on a missing, unreadable or empty file, a missing, unexpected or double
            column, a ragged row, or a field that is no number or no label by the rule above.
    """
    reader = reader_of(source)
    check_file(source)
    chosen: _Chosen | None = None
    nothing = True
    for block in reader(Request(source, rows, label, promptly)):
        if chosen is None:
            chosen = _chosen(source, block, label, columns, needs_label, note)
        if len(block.places):
            nothing = False
            yield _part(source, block, chosen, needs_label)
    if nothing:
        raise ValueError(f"{source}: expected at least one row, got none")


class _Chosen(NamedTuple):
    """Places of the label and of the features among the columns, and names of these."""

    label: int | None
    features: list[int]
    names: tuple[str, ...]


def _chosen(
    source: str,
    block: Block,
    label: str | None,
    columns: Sequence[str] | None,
    needs_label: bool,
    note: Callable[[str], None],
) -> _Chosen:
    place, found = located(source, block, label, columns or (), needs_label, note)
    if not found:
        raise ValueError(f"{source}: expected a column of numbers beside the label, got none")
    wanted = found if columns is None else [*columns]
    check_columns(source, found, wanted)
    place_of = {name: c for c, name in enumerate(block.names)}
    return _Chosen(place, [place_of[name] for name in wanted], tuple(wanted))


def located(
    source: str,
    block: Block,
    label: str | None,
    asked: Sequence[str],
    needs_label: bool,
    note: Callable[[str], None],
) -> tuple[int | None, list[str]]:
    """The place of the label, and the names of all other columns but those that name rows.

    Args:
        source: as `read_parts` has it.
        block: any of the table.
        label: name of the label column.
        asked: columns that are wanted even where their name is one of names of rows.
        needs_label: whether the label column must be there.
        note: called with a sentence on what is left out.

    Raises:
        ValueError: on a column that is there twice or has no name, and on a missing label column.
    """
    names = block.names
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise ValueError(f"{source}: expected every column once, got {twice!r} twice")
    if needs_label and label not in names:
        close = difflib.get_close_matches(str(label), names, n=1)
        hint = f"; is it {close[0]!r}?" if close else ""
        raise ValueError(f"{source}: expected a column {label!r}, got {listed(names)}{hint}")
    place = names.index(label) if label in names else None
    named = set(asked)
    found = []
    for c, name in enumerate(names):
        if c == place:
            continue
        if name not in named and _names_rows(c, name, block.row_names):
            note(f"{source}: left out the names of rows in column {name or c + 1!r}")
            continue
        if not name.strip():
            raise ValueError(f"{source}: expected a name for column {c + 1}, got none")
        found.append(name)
    return place, found


def _names_rows(c: int, name: str, row_names: frozenset[str]) -> bool:
    unnamed = c == 0 and name.strip() in _NAMELESS
    return unnamed or name in row_names or bool(_SAVED_INDEX.fullmatch(name))


def check_columns(source: str, found: Sequence[str], wanted: Sequence[str]) -> None:
    """ValueError on columns that are missing, or there and not wanted."""
    there, asked = set(found), set(wanted)
    missing = [name for name in wanted if name not in there]
    extra = [name for name in found if name not in asked]
    if missing or extra:
        words = [f"no {listed(missing)}"] if missing else []
        words += [f"also {listed(extra)}"] if extra else []
        raise ValueError(
            f"{source}: expected the {len(wanted)} columns learned from, got {' and '.join(words)}"
        )


def listed(names: Sequence[str]) -> str:
    """The first few of these names in words."""
    more = len(names) - _LISTED
    listed = ", ".join(names[:_LISTED]) or "none"
    return f"{listed} and {more} more" if more > 0 else listed


def _part(source: str, block: Block, chosen: _Chosen, needs_label: bool) -> Part:
    labels = None
    if needs_label and chosen.label is not None:
        labels = labels_of(source, block.columns[chosen.label], block.places)
    columns = [block.columns[c] for c in chosen.features]
    X = np.empty((len(block.places), len(columns)))
    try:
        for c, column in enumerate(columns):
            X[:, c] = numbers_of(column)
        good = bool(np.isfinite(X).all())
    except (ValueError, TypeError):
        good = False
    if not good:
        raise FieldError(_first_bad(source, block.places, chosen.names, columns))
    return Part(chosen.names, X, labels)


def numbers_of(column: Column) -> np.ndarray:
    """The column as numbers, or a TypeError or ValueError."""
    if isinstance(column, np.ndarray):
        return column.astype(float)
    if isinstance(column, Foreign):
        raise TypeError
    everything = "".join(column)  # type: ignore[arg-type]
    if "_" in everything or not everything.isascii():
        raise ValueError
    return np.fromiter(map(float, column), float, len(column))  # type: ignore[arg-type]


def _first_bad(
    source: str, places: Sequence[str], names: Sequence[str], columns: Sequence[Column]
) -> str:
    for i, place in enumerate(places):
        for name, column in zip(names, columns, strict=True):
            got = not_finite(column if isinstance(column, Foreign) else column[i])
            if got is not None:
                where = f"{source}, {place}"
                return f"{where}: expected a finite number in column {name!r}, got {got}"
    raise AssertionError("expected a field that is no number")  # pragma: no cover


def not_finite(value: object) -> str | None:
    """What a field is, in words, or None where it is a finite number."""
    if isinstance(value, Foreign):
        return value.type
    text = "" if value is None else str(value)
    if not text.strip() or text.strip().lower() in ("nan", "-nan"):
        return NO_FIELD
    try:
        good = text.isascii() and "_" not in text and math.isfinite(float(text))
    except ValueError:
        good = False
    return None if good else repr(text)


def labels_of(source: str, column: Column, places: Sequence[str]) -> list[str]:
    """The labels of a column; ValueError, naming the place, on a field that is none."""
    if isinstance(column, Foreign):
        raise ValueError(
            f"{source}, {places[0]}: expected a label that is text or a number, got {column.type}"
        )
    values = column.tolist() if isinstance(column, np.ndarray) else column
    labels = ["" if value is None else sole_label(str(value)) for value in values]
    for place, text in zip(places, labels, strict=True):
        if is_no_label(text):
            raise ValueError(f"{source}, {place}: expected a label, got {NO_FIELD}")
    return labels


def is_no_label(text: str) -> bool:
    """Whether a text stands for the lack of a label."""
    return not text.strip() or text.strip() in _NOTHING


def sole_label(text: str) -> str:
    """One text for a whole number however it was written: "1.0" and "1e+16" lose their form."""
    whole = _WHOLE.fullmatch(text)
    if whole:
        sign, digits = whole.groups()
        return digits if digits == "0" else sign + digits
    if "e+" in text:
        try:
            number = float(text)
        except ValueError:
            return text
        # As Python and pandas write a float that is whole and large.
        if repr(number) == text:
            return str(int(number))
    return text
