"""Rows of tables as their files hold them: CSV, TSV, both also gzip'd, Parquet and npz.

What a number or a label is, and which columns count, is decided for all of them in `tables`.
"""

import codecs
import csv
import gzip
import io
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.files.npz import read_npz

STANDARD_INPUT = "-"
CHUNK = 1 << 16


class Foreign(NamedTuple):
    """A column of a type that is neither numbers nor text.

    Attributes:
        type: its name in the file.
        dates: of a column of dates or times, called for them as ISO 8601 has them, None for none.
        lists: of a column of lists of numbers, called for all numbers in one array, NaN for none,
            and the length of each list, -1 where there is no list.
    """

    type: str
    dates: Callable[[], Sequence[str | None]] | None = None
    lists: Callable[[], tuple[np.ndarray, np.ndarray]] | None = None


# Numbers, NaN where there is none; or texts, None where there is none.
Column = np.ndarray | Sequence[str | None] | Foreign


class Block(NamedTuple):
    """Some rows.

    Attributes:
        names: of all columns, in the order of the file.
        columns: one a name.
        places: where each row stands, in words: "line 7" of a CSV, "row 6" of anything else.
        row_names: those of `names` that the file says to be names of rows.
    """

    names: list[str]
    columns: list[Column]
    places: Sequence[str]
    row_names: frozenset[str] = frozenset()


class Request(NamedTuple):
    """What is asked of a reader.

    Attributes:
        source: a path, or "-".
        rows: of each block but the last.
        label: name of the label column, or None.
        promptly: whether rows of standard input come out before a block of them is full.
    """

    source: str
    rows: int
    label: str | None
    promptly: bool


def reader_of(source: str) -> Callable[[Request], Iterator[Block]]:
    """The reader of a file, by how its name ends, in capitals or not.

    Raises:
        ValueError: on another ending.
    """
    if source == STANDARD_INPUT:
        return csv_blocks
    for ending, reader in _READERS.items():
        if source.lower().endswith(ending):
            return reader
    raise ValueError(f"{source}: expected a file ending in {', '.join(_READERS)}, or - for CSV")


def csv_blocks(request: Request) -> Iterator[Block]:
    """Of a CSV with a header, or a TSV by its name; blank lines are none."""
    source = request.source
    bare = source.lower().removesuffix(".gz")
    with _opened(source, request.promptly) as lines:
        rows = csv.reader(lines, delimiter="\t" if bare.endswith(".tsv") else ",", strict=True)
        header = _next(source, rows)
        if header is None or not any(name.strip() for name in header):
            raise ValueError(f"{source}: expected a header and rows, got an empty file")
        yield Block(header, [[] for _ in header], [])
        fields: list[list[str]] = []
        places: list[str] = []
        while True:
            place = f"line {rows.line_num + 1}"
            row = _next(source, rows)
            if row:
                if len(row) != len(header):
                    raise ValueError(
                        f"{source}, {place}: expected {len(header)} fields, got {len(row)}"
                    )
                fields.append(row)
                places.append(place)
            waits = request.promptly and getattr(lines, "would_wait", False)
            if fields and (row is None or waits or len(fields) == request.rows):
                yield Block(header, [*zip(*fields, strict=True)], places)
                fields, places = [], []
            if row is None:
                return


def _next(source: str, rows: Iterator[list[str]]) -> list[str] | None:
    try:
        return next(rows, None)
    except UnicodeDecodeError as error:
        raise ValueError(f"{source}: expected text in UTF-8: {error}") from None
    except csv.Error as error:
        raise ValueError(f"{source}: expected a CSV: {error}") from None
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{source}: expected a gzip'd file: {error}") from None


@contextmanager
def _opened(source: str, promptly: bool) -> Iterator[Iterator[str]]:
    if source == STANDARD_INPUT:
        if sys.stdin is None:
            raise ValueError(f"{source}: expected a table on standard input, which is closed")
        yield _Arriving(sys.stdin.buffer)
        return
    # Whatever the locale says.
    options: dict[str, Any] = {"mode": "rt", "newline": "", "encoding": "utf-8-sig"}
    opening = gzip.open if source.lower().endswith(".gz") else open
    with opening(source, **options) as file:
        yield file


class _Arriving:
    """Lines as they arrive, like those of a file with `newline=""`."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self._rest = ""
        self._lines: deque[str] = deque()
        self._ended = False

    @property
    def would_wait(self) -> bool:
        """Whether the next line is not there yet, as far as one can tell."""
        return not self._lines

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while not self._lines and not self._ended:
            self._read()
        if not self._lines:
            raise StopIteration
        return self._lines.popleft()

    def _read(self) -> None:
        chunk = self._raw.read1(CHUNK)
        self._ended = not chunk
        text = self._rest + self._decoder.decode(chunk, final=self._ended)
        self._lines.extend(io.StringIO(text, newline=""))
        # After a \r there may come a \n.
        whole = self._ended or not self._lines or self._lines[-1].endswith("\n")
        self._rest = "" if whole else self._lines.pop()


def parquet_blocks(request: Request) -> Iterator[Block]:
    """Of a Parquet file, whoever wrote it."""
    source = request.source
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{source}: Parquet needs pyarrow: pip install 'rvfl-jax[parquet]'"
        ) from None
    start = 0
    try:
        with parquet.ParquetFile(source) as file:
            schema = file.schema_arrow
            about = schema.pandas_metadata or {}
            index = frozenset(x for x in about.get("index_columns", []) if isinstance(x, str))
            yield Block(schema.names, [[] for _ in schema.names], [], index)
            for table in _regrouped(pyarrow, file.iter_batches(request.rows), request.rows):
                columns = [_arrow_column(pyarrow, values) for values in table.columns]
                places = _rows(start, table.num_rows)
                start += table.num_rows
                yield Block(schema.names, columns, places, index)
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{source}: expected a Parquet file: {error}") from None


def _rows(start: int, count: int) -> list[str]:
    """Places of rows after so many, counted from 1 in the whole file."""
    return [f"row {row + 1}" for row in range(start, start + count)]


def _regrouped(pyarrow: Any, batches: Iterator[Any], rows: int) -> Iterator[Any]:
    """Tables of so many rows, whatever groups the file has."""
    waiting: list[Any] = []
    for batch in batches:
        waiting.append(batch)
        while sum(part.num_rows for part in waiting) >= rows:
            table = pyarrow.Table.from_batches(waiting)
            yield table.slice(0, rows)
            waiting = table.slice(rows).to_batches()
    if any(part.num_rows for part in waiting):
        yield pyarrow.Table.from_batches(waiting)


def _arrow_column(pyarrow: Any, values: Any) -> Column:
    types = pyarrow.types
    if types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kind = values.type
    if types.is_integer(kind) and not values.null_count:
        return values.to_numpy()
    if types.is_floating(kind):
        return values.to_numpy()
    text = (types.is_string, types.is_large_string, types.is_string_view, types.is_decimal)
    if any(is_kind(kind) for is_kind in (*text, types.is_boolean, types.is_integer, types.is_null)):
        return [None if value is None else str(value) for value in values.to_pylist()]
    dates = lists = None
    if types.is_date(kind) or types.is_timestamp(kind):
        dates = partial(_iso_texts, pyarrow, values)
    kinds_of_lists = (types.is_list, types.is_large_list, types.is_fixed_size_list)
    if any(is_kind(kind) for is_kind in kinds_of_lists) and (
        types.is_integer(kind.value_type) or types.is_floating(kind.value_type)
    ):
        lists = partial(_arrow_lists, pyarrow, values)
    return Foreign(str(kind), dates, lists)


def _iso_texts(pyarrow: Any, values: Any) -> Sequence[str | None]:
    found: list[str | None] = values.cast(pyarrow.string()).to_pylist()
    return found


def _arrow_lists(pyarrow: Any, values: Any) -> tuple[np.ndarray, np.ndarray]:
    lists = values.cast(pyarrow.large_list(values.type.value_type)).combine_chunks()
    numbers = lists.flatten().cast(pyarrow.float64(), safe=False)
    lengths = lists.value_lengths().fill_null(-1)
    return numbers.to_numpy(zero_copy_only=False), lengths.to_numpy(zero_copy_only=False)


def npz_blocks(request: Request) -> Iterator[Block]:
    """Of an .npz: X, y where there are labels, and `columns` where features have names."""
    source, label = request.source, request.label
    arrays = read_npz(source)
    X, y, given = arrays.get("X"), arrays.get("y"), arrays.get("columns")
    if X is None or X.ndim != 2:
        got = ", ".join(arrays) if X is None else f"shape {X.shape}"
        raise ValueError(f"{source}: expected an array X (rows, features), got {got or 'none'}")
    if y is not None and y.shape != X.shape[:1]:
        raise ValueError(f"{source}: expected {len(X)} labels y, got shape {y.shape}")
    names = unnamed(X.shape[1])
    if given is not None:
        if given.shape != X.shape[1:] or given.dtype.kind != "U":
            raise ValueError(
                f"{source}: expected {X.shape[1]} names in columns, got {given.dtype} of shape"
                f" {given.shape}"
            )
        names = given.tolist()
    labelled = y is not None and label is not None
    if labelled:
        names = [*names, str(label)]
    yield Block(names, [[] for _ in names], [])
    for start in range(0, len(X), request.rows):
        here = slice(start, start + request.rows)
        columns = [_array_column(source, values) for values in X[here].T]
        if labelled and y is not None:
            columns.append(_array_column(source, y[here]))
        yield Block(names, columns, _rows(start, len(X[here])))


def unnamed(count: int) -> list[str]:
    """Names of so many features that have none."""
    return [f"x{c}" for c in range(count)]


def _array_column(source: str, values: np.ndarray) -> Column:
    if values.dtype.kind in "iuf":
        return values
    if values.dtype.kind in "Ub":
        return [str(value) for value in values.tolist()]
    if values.dtype.kind == "S":
        try:
            return [value.decode() for value in values.tolist()]
        except UnicodeDecodeError as error:
            raise ValueError(f"{source}: expected text in UTF-8: {error}") from None
    return Foreign(str(values.dtype))


_READERS = {
    ".csv": csv_blocks,
    ".tsv": csv_blocks,
    ".csv.gz": csv_blocks,
    ".tsv.gz": csv_blocks,
    ".parquet": parquet_blocks,
    ".npz": npz_blocks,
}
KINDS = tuple(_READERS)


def check_file(source: str) -> None:
    """ValueError unless it is standard input or a file."""
    if source != STANDARD_INPUT and not Path(source).is_file():
        found = "a folder" if Path(source).is_dir() else "none"
        raise ValueError(f"{source}: expected a file, found {found}")
