"""Tables read as `Columns` say: `begun_columns` settles how, on the first; `column_parts` reads.

What is settled on the first table are the values of categories, the length of lists and what stands
for missing numbers, for which the table is read once before it is learned; standard input, which
cannot be read twice, is held in memory for that long. Where rows are learned in the order of a time
column, the features of the whole table are in memory at once.
"""

import difflib
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import numpy as np

from rvfl_jax.data.columns import (
    CATEGORY,
    IMPUTE,
    LIST,
    NUMBER,
    TEXT,
    TEXT_WIDTH,
    Columns,
    Fields,
    Source,
)
from rvfl_jax.data.table_formats import (
    STANDARD_INPUT,
    Block,
    Column,
    Foreign,
    Request,
    check_file,
    reader_of,
)
from rvfl_jax.data.tables import Part, check_columns, labels_of, listed, located, tell

MOST_VALUES = 1000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Note = Callable[[str], None]


class Roles(NamedTuple):
    """What somebody says of the columns of a table.

    Attributes:
        features: columns to learn from, beside categories and texts; all but those of another
            role when None.
        ignore: columns not to learn from.
        categorical: columns of categories.
        text: columns of texts.
        id: the column that names rows; it is no feature.
        time: the column whose order rows are learned in; it is no feature.
        impute: what stands for missing numbers: "mean", "median", "zero", or "refuse" for nothing.
        text_width: features of each text.
    """

    features: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    categorical: tuple[str, ...] = ()
    text: tuple[str, ...] = ()
    id: str | None = None
    time: str | None = None
    impute: str = "refuse"
    text_width: int = TEXT_WIDTH

    @property
    def named(self) -> list[str]:
        """All columns with a role."""
        one = [name for name in (self.id, self.time) if name is not None]
        return [*(self.features or ()), *self.ignore, *self.categorical, *self.text, *one]


def has_lists(source: str) -> bool:
    """Whether a table has columns of lists, which only Parquet can hold."""
    if not source.lower().endswith(".parquet"):
        return False
    check_file(source)
    for block in reader_of(source)(Request(source, 1, None, False)):
        if block.places:
            return any(isinstance(x, Foreign) and x.lists is not None for x in block.columns)
    return False


def begun_columns(
    source: str, roles: Roles, *, rows: int, label: str, note: Note = tell
) -> tuple[Columns, Iterator[Part]]:
    """Settle on a table how it and all later ones are read.

    Args:
        source: see `rvfl_jax.data.tables.read_parts`.
        roles: what the columns are.
        rows: of each part but the last.
        label: name of the label column.
        note: called with a sentence on what is left out.

    Returns:
        How tables are read, and the parts of this one.

    Raises:
        ValueError: on columns that are not there or have two roles, and as `read_parts` does.
    """
    reader, request = reader_of(source), Request(source, rows, label, False)
    check_file(source)
    held = [*reader(request)] if source == STANDARD_INPUT else None

    def blocks() -> Iterator[Block]:
        return reader(request) if held is None else iter(held)

    columns = _settled(source, blocks(), roles, label, note)
    wanted = Wanted(label, True, time=True)
    parts = _parts(source, blocks(), columns, wanted, lambda _: None)
    return columns, parts if columns.time is None else _in_order(source, parts, rows)


class Wanted(NamedTuple):
    """What is wanted of a table beside features.

    Attributes:
        label: name of the label column.
        labels: whether labels are wanted.
        time: whether rows are to be learned, in the order of the time column if there is one.
        ids: whether what names rows is wanted, if there is a column of it.
    """

    label: str
    labels: bool
    time: bool = False
    ids: bool = False


def column_parts(
    source: str,
    columns: Columns,
    wanted: Wanted,
    *,
    rows: int,
    promptly: bool = False,
    note: Note = tell,
) -> Iterator[Part]:
    """A table in parts, read as a model does.

    Args:
        source: see `rvfl_jax.data.tables.read_parts`.
        columns: how it is read.
        wanted: what of it.
        rows: of each part but the last.
        promptly: see `read_parts`.
        note: called with a sentence on what is left out and, at the end of a table that is
            learned, on values of categories that no feature stands for.

    Raises:
        ValueError: on columns that are missing, or there without a role, and as `read_parts` does.
    """
    reader = reader_of(source)
    check_file(source)
    blocks = reader(Request(source, rows, wanted.label, promptly))
    parts = _parts(source, blocks, columns, wanted, note)
    ordered = wanted.time and columns.time is not None
    return _in_order(source, parts, rows) if ordered else parts


def _parts(
    source: str, blocks: Iterator[Block], columns: Columns, wanted: Wanted, note: Note
) -> Iterator[Part]:
    place: int | None = None
    began, nothing, names = True, True, tuple(columns.names)
    strange: dict[str, set[str]] = {}
    for block in blocks:
        if began:
            place, began = _label_place(source, block, columns, wanted, note), False
        if not len(block.places):
            continue
        nothing = False
        labels = ids = times = None
        if wanted.labels and place is not None:
            labels = labels_of(source, block.columns[place], block.places)
        X = columns.spread(source, block)
        if wanted.ids and columns.id is not None:
            ids = _ids(_fields(source, block, columns.id))
        if wanted.time and columns.time is not None:
            times = _times(_fields(source, block, columns.time))
        if wanted.time:
            _note_strange(source, block, columns, strange)
        yield Part(names, X, labels, ids, times)
    if nothing:
        raise ValueError(f"{source}: expected at least one row, got none")
    for name, values in strange.items():
        note(f"{source}: values of {name!r} without a feature: {listed(sorted(values))}")


def _note_strange(
    source: str, block: Block, columns: Columns, strange: dict[str, set[str]]
) -> None:
    """Collect the values of categories that no feature stands for."""
    for each in columns.sources:
        if each.kind == CATEGORY:
            values = _fields(source, block, each.name, gaps=True).values()
            others = {value for value in values if value is not None}.difference(each.values)
            if others:
                strange.setdefault(each.name, set()).update(others)


def _fields(source: str, block: Block, name: str, *, gaps: bool = False) -> Fields:
    return Fields(source, block.places, name, block.columns[block.names.index(name)], gaps)


def _label_place(
    source: str, block: Block, columns: Columns, wanted: Wanted, note: Note
) -> int | None:
    """The place of the label column, once all columns are as they should be."""
    asked = [name for name in (columns.time, columns.id, *(columns.ignored or ())) if name]
    needed = [each.name for each in columns.sources]
    place, found = located(source, block, wanted.label, [*needed, *asked], wanted.labels, note)
    if wanted.time and columns.time is not None:
        needed.append(columns.time)
    if wanted.ids and columns.id is not None:
        needed.append(columns.id)
    optional = found if columns.ignored is None else asked
    others = [name for name in found if name not in needed and name not in optional]
    check_columns(source, [name for name in found if name in needed] + others, needed)
    return place


def _in_order(source: str, parts: Iterator[Part], rows: int) -> Iterator[Part]:
    """The same rows in the order of their times; those of one time as they stand."""
    every = [*parts]
    times = [part.times for part in every if part.times is not None]
    if len({array.dtype for array in times}) > 1:
        raise ValueError(f"{source}: expected times that are all numbers or all dates, got both")
    order = np.argsort(np.concatenate(times), kind="stable")
    X = np.concatenate([part.X for part in every])
    labels = [label for part in every for label in part.labels or ()]
    for start in range(0, len(order), rows):
        here = order[start : start + rows]
        yield Part(every[0].columns, X[here], [labels[i] for i in here] if labels else None)


def _ids(fields: Fields) -> list[str]:
    column = fields.column
    if isinstance(column, Foreign) and column.dates is not None:
        column = column.dates()
    texts = fields._replace(column=column, gaps=True).texts("a text or a number")
    return [text or "" for text in texts]


def _times(fields: Fields) -> np.ndarray:
    """(n,) numbers as they stand, or microseconds of dates since 1970."""
    column: Column = fields.column
    if isinstance(column, np.ndarray):
        return fields.numbers()
    if isinstance(column, Foreign) and column.dates is not None:
        column = column.dates()
    what = "a number or an ISO 8601 date"
    fields = fields._replace(column=column)
    texts = [str(text) for text in fields.texts(what)]
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        pass
    moments = np.zeros(len(texts), np.int64)
    for row, text in enumerate(texts):
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            raise fields.fault(row, what, repr(text)) from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        moments[row] = (moment - EPOCH) // timedelta(microseconds=1)
    return moments


def _settled(source: str, blocks: Iterator[Block], roles: Roles, label: str, note: Note) -> Columns:
    _check_roles(roles, label)
    settling: list[_Settling] | None = None
    names: list[str] | None = None
    for block in blocks:
        if names is None:
            _, found = located(source, block, label, roles.named, True, note)
            names = _feature_names(source, found, roles)
        if not len(block.places):
            continue
        if settling is None:
            settling = [_Settling(_fields(source, block, name), roles) for name in names]
        for each in settling:
            each.see(_fields(source, block, each.name, gaps=roles.impute != "refuse"))
    if settling is None:
        raise ValueError(f"{source}: expected at least one row, got none")
    return Columns(
        tuple(each.source(source) for each in settling),
        ignored=None if roles.features is not None else roles.ignore,
        id=roles.id,
        time=roles.time,
        impute=roles.impute,
    )


def _check_roles(roles: Roles, label: str) -> None:
    if roles.impute not in IMPUTE:
        raise ValueError(f"impute: expected one of {', '.join(IMPUTE)}, got {roles.impute!r}")
    if roles.text_width < 1:
        raise ValueError(f"text_width: expected at least 1, got {roles.text_width}")
    kinds = {*roles.categorical, *roles.text}
    features = [name for name in roles.features or () if name not in kinds]
    named = [*roles._replace(features=tuple(features)).named, label]
    for name in named:
        if named.count(name) > 1:
            raise ValueError(f"{name}: expected one role of a column, got two")


def _feature_names(source: str, found: Sequence[str], roles: Roles) -> list[str]:
    """Columns that features are made of, in order."""
    for name in roles.named:
        if name not in found:
            close = difflib.get_close_matches(name, found, n=1)
            hint = f"; is it {close[0]!r}?" if close else ""
            raise ValueError(f"{source}: expected a column {name!r}, got {listed(found)}{hint}")
    others = {*roles.ignore, roles.id, roles.time}
    chosen = [name for name in found if name not in others]
    if roles.features is not None:
        kinds = (*roles.categorical, *roles.text)
        chosen = [*dict.fromkeys((*roles.features, *kinds))]
    if not chosen:
        raise ValueError(f"{source}: expected a column to learn from beside the label, got none")
    return chosen


class _Settling:
    """What is settled of one column on the first table."""

    def __init__(self, fields: Fields, roles: Roles) -> None:
        self.name, self._roles = fields.name, roles
        lists = isinstance(fields.column, Foreign) and fields.column.lists is not None
        self._kind = LIST if lists else NUMBER
        for kind, names in ((CATEGORY, roles.categorical), (TEXT, roles.text)):
            self._kind = kind if self.name in names else self._kind
        self._values: set[str] = set()
        self._numbers: list[np.ndarray] = []
        self._width = 0

    def see(self, fields: Fields) -> None:
        """More rows."""
        averages = self._roles.impute in ("mean", "median")
        if self._kind == CATEGORY:
            self._values.update(value for value in fields.values() if value is not None)
            if len(self._values) > MOST_VALUES:
                raise ValueError(
                    f"{fields.table}: expected at most {MOST_VALUES} values in the category"
                    f" {self.name!r}, got more; is it a text?"
                )
        elif self._kind == LIST and (averages or not self._width):
            numbers = fields.lists(self._width or None)
            self._width = numbers.shape[1]
            if averages and self._width:
                self._numbers.append(numbers)
        elif self._kind == NUMBER and averages:
            self._numbers.append(fields.numbers()[:, None])

    def source(self, table: str) -> Source:
        """How the column is read from now on."""
        widths = {CATEGORY: len(self._values), LIST: self._width, TEXT: self._roles.text_width}
        width = widths.get(self._kind, 1)
        if not width:
            raise ValueError(f"{table}: expected a {self._kind} in column {self.name!r}, got none")
        fill: tuple[float, ...] = ()
        if self._kind in (NUMBER, LIST) and self._roles.impute != "refuse":
            fill = self._fill(table, width)
        return Source(self.name, self._kind, width, tuple(sorted(self._values)), fill)

    def _fill(self, table: str, width: int) -> tuple[float, ...]:
        if self._roles.impute == "zero":
            return (0.0,) * width
        numbers = np.concatenate(self._numbers)
        if np.isnan(numbers).all(axis=0).any():
            raise ValueError(
                f"{table}: expected numbers in column {self.name!r} to take the"
                f" {self._roles.impute} of, got none"
            )
        average = np.nanmean if self._roles.impute == "mean" else np.nanmedian
        return tuple(average(numbers, axis=0).tolist())
