"""Tables of numbers and labels, read in parts: CSV from a file or standard input, Parquet, npz.

Every fault is a ValueError of one line that names the file and, in a CSV, the line.
"""

import csv
import io
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np

from rvfl_jax.checks import finite

STANDARD_INPUT = "-"
KINDS = (".csv", ".parquet", ".npz")


class Part(NamedTuple):
    """Some rows of a table.

    Attributes:
        columns: names of the features, in the order of X.
        X: (rows, s) float64.
        labels: the label of each row as text, or None where the table has no such column.
    """

    columns: tuple[str, ...]
    X: np.ndarray
    labels: list[str] | None


def read_parts(
    source: str,
    *,
    rows: int,
    label: str | None = None,
    columns: Sequence[str] | None = None,
    needs_label: bool = False,
) -> Iterator[Part]:
    """A table in parts of so many rows, read as they are asked for.

    Args:
        source: a path ending in .csv, .parquet or .npz, or "-" for a CSV from standard input. A
            CSV has a header; an npz holds X and, where labels are needed, y.
        rows: of each part but the last.
        label: name of the label column; it is no feature.
        columns: features that the table must have; others are an error. Any when None.
        needs_label: whether the label column must be there.

    Raises:
        ValueError: on a missing or empty file, a missing or unexpected column, a ragged row, a
            field that is no finite number, an empty label, or text that is not UTF-8.
    """
    kind = ".csv" if source == STANDARD_INPUT else Path(source).suffix
    if kind not in KINDS:
        raise ValueError(f"{source}: expected a file ending in {', '.join(KINDS)}, or - for CSV")
    if source != STANDARD_INPUT and not Path(source).is_file():
        raise ValueError(f"{source}: expected a file, found none")
    reader = {".csv": _csv_parts, ".parquet": _parquet_parts, ".npz": _npz_parts}[kind]
    nothing = True
    for names, numbers, labels in reader(source, rows, label, needs_label):
        if nothing:
            _check_label(source, label, needs_label and labels is None, names)
            places, chosen = _chosen(source, names, columns)
        nothing = False
        yield Part(chosen, numbers[:, places], labels)
    if nothing:
        raise ValueError(f"{source}: expected at least one row, got none")


# Names of the features, their numbers, and the labels if there are any.
_Raw = Iterator[tuple[list[str], np.ndarray, list[str] | None]]


def _chosen(
    source: str, names: list[str], columns: Sequence[str] | None
) -> tuple[list[int], tuple[str, ...]]:
    """Places of the features among `names`, and their names in that order."""
    if not names:
        raise ValueError(f"{source}: expected a column of numbers beside the label, got none")
    if columns is None:
        return list(range(len(names))), tuple(names)
    missing = [name for name in columns if name not in names]
    extra = [name for name in names if name not in columns]
    if missing or extra:
        words = [f"no {', '.join(missing)}"] if missing else []
        words += [f"also {', '.join(extra)}"] if extra else []
        raise ValueError(
            f"{source}: expected the {len(columns)} columns learned from, got {' and '.join(words)}"
        )
    return [names.index(name) for name in columns], tuple(columns)


def _check_label(source: str, label: str | None, missing: bool, names: Sequence[str]) -> None:
    if missing:
        found = ", ".join(names) or "none"
        raise ValueError(f"{source}: expected a column {label!r}, got {found}")


def _csv_parts(source: str, rows: int, label: str | None, needs_label: bool) -> _Raw:
    with _opened(source) as file:
        lines = csv.reader(file, strict=True)
        header = _next(source, lines)
        if header is None or not any(name.strip() for name in header):
            raise ValueError(f"{source}: expected a header and rows, got an empty file")
        if len(set(header)) < len(header):
            twice = next(name for name in header if header.count(name) > 1)
            raise ValueError(f"{source}: expected every column once, got {twice!r} twice")
        place = header.index(label) if label in header else None
        _check_label(source, label, needs_label and place is None, header)
        names = [name for c, name in enumerate(header) if c != place]
        fields: list[list[str]] = []
        first = lines.line_num + 1
        while True:
            row = _next(source, lines)
            if row is not None and not row:
                continue  # an empty line
            if row is not None:
                if len(row) != len(header):
                    raise ValueError(
                        f"{source}, line {lines.line_num}: expected {len(header)} fields,"
                        f" got {len(row)}"
                    )
                fields.append(row)
            if fields and (row is None or len(fields) == rows):
                yield names, *_numbers(source, names, fields, place, first)
                fields, first = [], lines.line_num + 1
            if row is None:
                return


def _next(source: str, lines: Iterator[list[str]]) -> list[str] | None:
    try:
        return next(lines, None)
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}: expected text in UTF-8: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{source}: expected a CSV: {error}") from None


def _numbers(
    source: str, names: list[str], fields: list[list[str]], place: int | None, first: int
) -> tuple[np.ndarray, list[str] | None]:
    labels = None
    if place is not None:
        labels = [row.pop(place) for row in fields]
        for i, text in enumerate(labels):
            if not text.strip():
                raise ValueError(f"{source}, line {first + i}: expected a label, got nothing")
    try:
        X = np.array(fields, dtype=float)
    except ValueError:
        raise ValueError(_first_bad(source, names, fields, first)) from None
    if not np.isfinite(X).all():
        raise ValueError(_first_bad(source, names, fields, first))
    return X.reshape(len(fields), -1), labels


def _first_bad(source: str, names: list[str], fields: list[list[str]], first: int) -> str:
    for i, row in enumerate(fields):
        for name, text in zip(names, row, strict=True):
            try:
                good = bool(np.isfinite(float(text)))
            except ValueError:
                good = False
            if not good:
                return (
                    f"{source}, line {first + i}: expected a finite number in column {name!r},"
                    f" got {text!r}"
                )
    raise AssertionError("expected a field that is no number")  # pragma: no cover


@contextmanager
def _opened(source: str) -> Iterator[IO[str]]:
    if source == STANDARD_INPUT:
        # Whatever the locale says; what is left open belongs to others.
        file = io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8-sig", newline="")
        try:
            yield file
        finally:
            file.detach()
        return
    with open(source, newline="", encoding="utf-8-sig") as file:
        yield file


def _parquet_parts(source: str, rows: int, label: str | None, needs_label: bool) -> _Raw:
    del needs_label
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(
            f"{source}: Parquet needs pyarrow: pip install 'rvfl-jax[parquet]'"
        ) from None
    try:
        with parquet.ParquetFile(source) as file:
            for batch in file.iter_batches(batch_size=rows):
                columns = dict(zip(batch.schema.names, batch.columns, strict=True))
                labels = columns.pop(label, None) if label is not None else None
                X = np.empty((batch.num_rows, len(columns)))
                for c, (name, values) in enumerate(columns.items()):
                    try:
                        X[:, c] = values.to_numpy(zero_copy_only=False)
                    except (TypeError, ValueError):
                        raise ValueError(
                            f"{source}: expected numbers in column {name!r}, got {values.type}"
                        ) from None
                finite(source, X)
                texts = None if labels is None else [str(text) for text in labels.to_pylist()]
                yield [*columns], X, texts
    except (ArrowException, OSError) as error:
        raise ValueError(f"{source}: expected a Parquet file: {error}") from None


def _npz_parts(source: str, rows: int, label: str | None, needs_label: bool) -> _Raw:
    del needs_label
    try:
        with np.load(source, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError) as error:
        raise ValueError(f"{source}: expected a readable .npz file: {error}") from None
    X, y = arrays.get("X"), arrays.get("y")
    if X is None or X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ValueError(f"{source}: expected an array X of numbers (rows, features)")
    if y is not None and y.shape != X.shape[:1]:
        raise ValueError(f"{source}: expected {len(X)} labels y, got shape {y.shape}")
    X = X.astype(float)
    finite(source, X)
    names = [f"x{c}" for c in range(X.shape[1])]
    for start in range(0, len(X), rows):
        here = slice(start, start + rows)
        labels = None if y is None or label is None else [str(text) for text in y[here].tolist()]
        yield names, X[here], labels
