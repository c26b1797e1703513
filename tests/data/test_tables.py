"""One reader, one rule: the same table in every format gives the same numbers or one refusal."""

import datetime
import gzip
import io
import re
from contextlib import suppress
from decimal import Decimal
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from rvfl_jax.data import load_dataset
from rvfl_jax.data.tables import read_parts, sole_label

KINDS = ["csv", "CSV", "tsv", "csv.gz", "tsv.gz", "pandas.parquet", "polars.parquet", "npz"]


def frame(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(rng.standard_normal((rows, 3)), columns=["a", "b", "Größe, mm"])
    table["count"] = rng.integers(-9, 9, rows)
    table.insert(1, "kind", rng.choice(["ash", "Dürrholz, rot", "two\nlines", "007"], rows))
    return table


def written(table, folder, kind, label="kind"):
    """The table as a file of that kind."""
    path = folder / f"t.{kind}"
    if kind == "npz":
        X = table.drop(columns=label)
        arrays = {"columns": np.array([*X.columns]), "y": as_plain(table[label])}
        np.savez(path, X=as_plain(X), **arrays)
    elif kind == "pandas.parquet":
        table.to_parquet(path)
    elif kind == "polars.parquet":
        converted = pytest.importorskip("polars").from_pandas(table)
        converted.columns = [*table.columns]
        converted.write_parquet(path)
    else:
        separator = "\t" if "tsv" in kind else ","
        table.to_csv(path, sep=separator, index=False)
    return path


def as_plain(values):
    """An array without objects, as an npz holds it; null is NaN among numbers and "" in text."""
    array = values.to_numpy()
    if array.dtype.kind != "O":
        return array
    numbers = [isinstance(x, int | float) and not isinstance(x, bool) for x in array.ravel()]
    if all(numbers):
        return array.astype(float)
    return np.array([["" if pd.isna(x) else str(x) for x in row] for row in np.atleast_2d(array)])[
        0 if array.ndim == 1 else slice(None)
    ]


def read(path, rows=16, label="kind", **options):
    notes = []
    options = {"label": label, "needs_label": True, "note": notes.append} | options
    parts = [*read_parts(str(path), rows=rows, **options)]
    X = np.concatenate([part.X for part in parts])
    labels = [text for part in parts for text in part.labels or ()]
    return parts[0].columns, X, labels, [len(part.X) for part in parts], notes


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_same_bits(tmp_path, kind):
    table = frame()
    columns, X, labels, sizes, notes = read(written(table, tmp_path, kind))
    assert columns == ("a", "b", "Größe, mm", "count")
    np.testing.assert_array_equal(X, table.drop(columns="kind").to_numpy())
    assert labels == table["kind"].tolist()
    assert sizes == [16, 16, 8]
    assert notes == []


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_found_by_name(tmp_path, kind):
    table = frame()
    path = written(table, tmp_path, kind)
    asked = ["count", "b", "Größe, mm", "a"]
    columns, X, *_ = read(path, columns=asked)
    assert columns == tuple(asked)
    np.testing.assert_array_equal(X, table[asked].to_numpy())
    with pytest.raises(ValueError, match=r"the 2 columns learned from, got no c and also b, G"):
        read(path, columns=["a", "c"])


DAY = datetime.date(2020, 1, 1)
NOON = pd.Timestamp("2020-01-01 12:00")
# The column, what is put into its first rows, and the refusal up to what was got.
REFUSED = {
    "null label": ("kind", [None], "1: expected a label"),
    "NaN label": ("kind", [1.0, np.nan, 2.0], "2: expected a label"),
    "null among integer labels": ("kind", pd.array([3, None, 4], "Int64"), "2: expected a label"),
    "NaT label": ("kind", [pd.NaT], "1: expected a label"),
    "empty label": ("kind", ["ash", "", "oak"], "2: expected a label"),
    "blank label": ("kind", ["  "], "1: expected a label"),
    "nan as text": ("kind", ["ash", "nan"], "2: expected a label"),
    "null": ("b", [1.0, None], "2: expected a finite number in column 'b'"),
    "null among integers": ("b", pd.array([1, None], "Int64"), "2: expected a finite number in c"),
    "infinite": ("count", [1.0, 2.0, np.inf], "3: expected a finite number in column 'count'"),
    "text": ("b", ["1", "two"], "2: expected a finite number in column 'b'"),
    "underscore": ("b", ["1", "1_000"], "2: expected a finite number in column 'b'"),
    "other digits": ("b", ["\u0661"], "1: expected a finite number in column 'b'"),
    "empty field": ("b", ["1", ""], "2: expected a finite number in column 'b'"),
    "boolean": ("b", [True, False], "1: expected a finite number in column 'b'"),
    "date": ("b", [DAY], "1: expected a finite number in column 'b'"),
    "time": ("b", [NOON, pd.NaT], "1: expected a finite number in column 'b'"),
    "duration": ("b", [pd.Timedelta("1s")], "1: expected a finite number in column 'b'"),
    "category": ("b", pd.Categorical(["x", "y"]), "1: expected a finite number in column 'b'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_kind_refuses_the_same(tmp_path, name):
    column, values, message = REFUSED[name]
    rows = len(values)
    table = frame(rows)
    table[column] = values
    for kind in KINDS:
        path = written(table, tmp_path, kind)
        with pytest.raises(ValueError, match=re.escape(message[3:])) as refusal:
            read(path)
        said = str(refusal.value)
        place = int(re.search(r"(?:row|line) (\d+):", said)[1])
        bare = kind.lower().removesuffix(".gz")
        first = 2 if bare in ("csv", "tsv") else 1
        # Of a text that is spread over lines the line of the file is told.
        spread = table["kind"].astype(str)[: int(message[0]) - 1].str.count("\n").sum()
        assert place == int(message[0]) - 1 + first + (spread if first == 2 else 0), said
        assert said.startswith(f"{path}, ")
        assert "\n" not in said


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "values", [["1.50", "-2e3", "+7"], [Decimal("1.50"), Decimal(-2000), Decimal(7)]]
)
def test_texts_and_decimals_are_read_as_in_a_csv(tmp_path, kind, values):
    table = frame(3)
    table["b"] = values
    assert read(written(table, tmp_path, kind))[1][:, 1].tolist() == [1.5, -2000.0, 7.0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0, 1, 2], ["0", "1", "2"]),
        ([0.0, 1.0, -2.0], ["0", "1", "-2"]),
        ([0.5, 1.0, 1e16], ["0.5", "1", "10000000000000000"]),
        (["007", "7", "7.0"], ["007", "7", "7"]),
        (["-0.0", "1e3", "1_0"], ["0", "1e3", "1_0"]),
        (np.array([2**63 + 11, 2**63 + 12, 5], np.uint64), [f"{2**63 + i}" for i in (11, 12)]),
        ([2**53 + 1, 2**53, 5], [f"{2**53 + 1}", f"{2**53}", "5"]),
        ([True, False, True], ["True", "False", "True"]),
        (pd.Categorical(["x", "y", "x"]), ["x", "y", "x"]),
        (["None", "NA", "null"], ["None", "NA", "null"]),
    ],
)
def test_labels_are_one_text_in_every_kind(tmp_path, kind, values, expected):
    table = frame(3)
    table["kind"] = values
    assert read(written(table, tmp_path, kind))[2][: len(expected)] == expected


def test_a_whole_number_has_one_text():
    same = ["5", "5.0", "5.", "5.000"]
    assert {sole_label(text) for text in same} == {"5"}
    others = ["05", "05.0", "5.5", "5e0", "1e999", "e+", "+5.0x", "5 "]
    assert [sole_label(text) for text in others] == others
    assert sole_label("1e+16") == "1" + 16 * "0"


@pytest.mark.parametrize("name", [None, "id"])
def test_a_saved_index_is_no_feature(tmp_path, name):
    table = frame()
    shuffled = table.sample(frac=1, random_state=0)
    shuffled.index.name = name
    shuffled.to_parquet(tmp_path / "t.parquet")
    columns, X, _, _, notes = read(tmp_path / "t.parquet")
    np.testing.assert_array_equal(X, shuffled.drop(columns="kind").to_numpy())
    assert "id" not in columns
    (note,) = notes
    assert "left out the names of rows in column " in note
    # Who asks for it by name gets it.
    if name:
        assert read(tmp_path / "t.parquet", columns=[*columns, "id"])[0][-1] == "id"
        shuffled.drop(columns="kind").to_parquet(tmp_path / "t.parquet")
        labels = read(tmp_path / "t.parquet", label="id")[2]
        assert labels == [str(i) for i in shuffled.index]


@pytest.mark.parametrize("kind", ["csv", "tsv", "csv.gz", "polars.parquet", "unnamed.csv"])
def test_names_of_rows_are_no_feature(tmp_path, kind):
    table = frame()
    name = "Unnamed: 0" if kind == "unnamed.csv" else ""
    table.insert(0, name, [f"row {i}" for i in range(len(table))])
    columns, X, _, _, notes = read(written(table, tmp_path, kind))
    assert columns == ("a", "b", "Größe, mm", "count")
    np.testing.assert_array_equal(X, frame().drop(columns="kind").to_numpy())
    assert len(notes) == 1


@pytest.mark.parametrize("kind", ["csv", "tsv", "polars.parquet", "npz"])
def test_other_columns_need_names(tmp_path, kind):
    table = frame().rename(columns={"b": ""})
    with pytest.raises(ValueError, match="expected a name for column"):
        read(written(table, tmp_path, kind))


@pytest.mark.parametrize("twice", ["a", "kind"])
def test_names_that_are_there_twice(tmp_path, twice):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    table = frame()
    values = [pyarrow.array(table[name]) for name in (*table.columns, "count")]
    names = [*table.columns, twice]
    parquet.write_table(pyarrow.table(values, names=names), tmp_path / "t.parquet")
    doubled = pd.concat([table, table[["count"]]], axis=1).set_axis(names, axis=1)
    doubled.to_csv(tmp_path / "t.csv", index=False)
    X = table.drop(columns="kind").to_numpy()
    X, columns = np.hstack([X, X[:, :1]]), ["a", "b", "c", "d", twice]
    np.savez(tmp_path / "t.npz", X=X, y=as_plain(table["kind"]), columns=columns)
    for kind in ("parquet", "csv", "npz"):
        with pytest.raises(ValueError, match=f"expected every column once, got '{twice}' twice"):
            read(tmp_path / f"t.{kind}")


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows(tmp_path, kind):
    with pytest.raises(ValueError, match="expected at least one row"):
        read(written(frame().iloc[:0], tmp_path, kind))


def test_groups_of_a_parquet_file_do_not_show(tmp_path):
    table = frame(41)
    table.to_parquet(tmp_path / "t.parquet", row_group_size=7)
    assert read(tmp_path / "t.parquet")[3] == [16, 16, 9]
    table.loc[33, "b"] = np.nan
    table.to_parquet(tmp_path / "t.parquet", row_group_size=7)
    with pytest.raises(ValueError, match=r"row 34: expected a finite number in column 'b'"):
        read(tmp_path / "t.parquet")


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ('kind,a\n"two\nlines",1\nash,x\n', 4),
        ("kind,a\n\n\nash,1\n\nash,x\n", 6),
        ('kind,a\r\n"two\r\nlines",1\r\n\r\nash,x\r\n', 5),
        ("kind,a\rash,1\rash,x\r", 3),
        ('"ki\nnd",kind,a\n1,ash,2\n1,ash,x\n', 4),
        ('kind,a\nash,1\n"two\nlines",x\n', 3),
        ('kind,a\n"two\nlines",1\n,2\n', 4),
        ('kind,a\n"two\nlines",1\nash,2,3\n', 4),
    ],
)
def test_lines_are_those_of_the_file(tmp_path, content, line, monkeypatch):
    (tmp_path / "t.csv").write_bytes(content.encode())
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress(content.encode()))
    buffer = io.BytesIO(content.encode())
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer))
    for source in (tmp_path / "t.csv", tmp_path / "t.csv.gz", "-"):
        for rows in (1, 1000):
            buffer.seek(0)
            with pytest.raises(ValueError, match=rf", line {line}: expected"):
                read(source, rows=rows)


def test_missing_columns_of_a_wide_table_are_told_briefly(tmp_path):
    names = [f"f{i}" for i in range(256)]
    wide = pd.DataFrame(np.zeros((2, 256)), columns=names).assign(Label=1)
    wide.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(ValueError, match=r"and 249 more; is it 'Label'\?") as refusal:
        read(tmp_path / "t.csv", label="label")
    assert len(str(refusal.value)) < 300


def spoilt(content, how):
    if how == "truncated":
        return content[: len(content) // 2]
    if how == "emptied":
        return b""
    if how == "random":
        return np.random.default_rng(0).bytes(400)
    flipped = bytearray(content)
    flipped[len(content) // 2] ^= 0x40
    return bytes(flipped)


@pytest.mark.parametrize("how", ["truncated", "emptied", "random"])
@pytest.mark.parametrize("kind", ["csv.gz", "tsv.gz", "pandas.parquet", "npz"])
def test_damaged_files_are_named(tmp_path, kind, how):
    path = written(frame(400), tmp_path, kind)
    path.write_bytes(spoilt(path.read_bytes(), how))
    for reader in (read, lambda path: load_dataset(str(path), label="kind")):
        with pytest.raises(ValueError, match="expected") as refusal:
            reader(path)
        assert path.name in str(refusal.value)


def test_flipped_bits_of_an_npz_are_seen(tmp_path):
    path = written(frame(400), tmp_path, "npz")
    whole = path.read_bytes()
    for place in range(0, len(whole), 97):
        flipped = bytearray(whole)
        flipped[place] ^= 0x10
        path.write_bytes(flipped)
        with suppress(ValueError):
            columns, X, *_ = read(path)
            # These bytes hold nothing.
            np.testing.assert_array_equal(X, frame(400)[[*columns]].to_numpy())


def test_renamed_files_are_named(tmp_path):
    table = frame()
    npz, parquet = (written(table, tmp_path, kind).read_bytes() for kind in (KINDS[-1], KINDS[5]))
    array = io.BytesIO()
    np.save(array, np.zeros((3, 2)))
    objects = io.BytesIO()
    np.savez(objects, X=np.array([[1, None]]), y=np.array(["a"], object))
    contents = [npz, parquet, array.getvalue(), objects.getvalue(), gzip.compress(b"kind,a\nx,1\n")]
    contents.append(table.to_csv(index=False).encode())
    good = {("npz", 0), ("parquet", 1), ("csv.gz", 4), ("csv", 5), ("tsv", 5)}
    for ending in ("npz", "parquet", "csv", "csv.gz", "tsv", "tsv.gz"):
        for i, content in enumerate(contents):
            path = tmp_path / f"renamed.{ending}"
            path.write_bytes(content)
            if (ending, i) in good:
                continue
            for reader in (read, lambda path: load_dataset(str(path), label="kind")):
                with pytest.raises(ValueError, match="expected") as refusal:
                    reader(path)
                assert path.name in str(refusal.value)
                assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"y": np.zeros(3)}, r"expected an array X \(rows, features\), got y"),
        ({"X": np.zeros(3)}, "got shape"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(2)}, "expected 3 labels y"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(3), "columns": ["a"]}, "expected 2 names"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(3), "columns": [1, 2]}, "expected 2 names"),
        ({"X": np.zeros((3, 2), complex), "y": np.zeros(3)}, "in column 'x0', got complex128"),
        ({"X": np.zeros((3, 2), "M8[s]"), "y": np.zeros(3)}, "in column 'x0', got datetime64"),
        ({"X": np.zeros((3, 2)), "y": np.zeros(3, "M8[s]")}, "label that is text or a number"),
        ({"X": np.zeros((3, 2)), "y": np.array(["a"] * 3, object)}, "expected a readable .npz"),
        ({"X": np.zeros((3, 2)), "y": np.array([b"\xff"] * 3)}, "expected text in UTF-8"),
        ({"X": np.zeros((3, 0)), "y": np.zeros(3)}, "expected a column of numbers beside"),
    ],
)
def test_unusable_npz(tmp_path, arrays, message):
    np.savez(tmp_path / "t.npz", **arrays)
    with pytest.raises(ValueError, match=message):
        read(tmp_path / "t.npz")


def test_an_npz_without_names(tmp_path):
    np.savez(tmp_path / "t.npz", X=np.eye(2, dtype=np.float16), y=[b"a", "ü".encode()])
    columns, X, labels, *_ = read(tmp_path / "t.npz")
    assert columns == ("x0", "x1")
    np.testing.assert_array_equal(X, np.eye(2))
    assert labels == ["a", "ü"]


@pytest.mark.parametrize(
    "values", [[[1, 2]], [{"a": 1}], [b"1"], [datetime.time(1)]], ids=["list", "dict", "bytes", "t"]
)
def test_other_types_of_parquet(tmp_path, values):
    for column in ("kind", "b"):
        table = frame(1)
        table[column] = values
        with pytest.raises(ValueError, match=r"row 1: expected a (label that is|finite number)"):
            read(written(table, tmp_path, "pandas.parquet"))


class Pipe(io.RawIOBase):
    """Gives its chunks one by one; remembers what has been asked for."""

    def __init__(self, chunks):
        self.left, self.given = [*chunks], 0

    def read1(self, size):
        self.given += 1
        return self.left.pop(0) if self.left else b""


def test_rows_of_standard_input_come_out_as_they_come_in(monkeypatch):
    text = 'kind,a\n"ä\nb",1\nash,2\r\nash,3\n'.encode()
    for cut in range(1, len(text)):
        pipe = Pipe([text[:cut], text[cut:]])
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
        parts = read_parts("-", rows=100, label="kind", needs_label=True, promptly=True)
        found = [(part.labels, part.X[:, 0].tolist()) for part in parts]
        assert [*chain(*(labels for labels, _ in found))] == ["ä\nb", "ash", "ash"]
        assert [*chain(*(numbers for _, numbers in found))] == [1, 2, 3]
    pipe = Pipe([b"kind,a\nx,1\nx,2\n", b"x,3\nx,", b"4\n"])
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=pipe))
    seen = [
        (pipe.given, part.X[:, 0].tolist())
        for part in read_parts("-", rows=100, label="kind", promptly=True)
    ]
    assert seen == [(1, [1, 2]), (2, [3]), (3, [4])]


def test_standard_input_that_is_closed(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ValueError, match="standard input, which is closed"):
        read("-")


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_data_sets_are_read_by_the_same_rule(tmp_path, kind):
    table = frame()
    data = load_dataset(str(written(table, tmp_path, kind)), label="kind")
    assert sorted(data.y_train.tolist() + data.y_test.tolist()) == sorted(table["kind"])
    assert data.name == (
        "t.pandas" if kind == KINDS[5] else "t.polars" if "polars" in kind else "t"
    )
    table["kind"] = np.arange(40) % 2 * 10.0
    data = load_dataset(str(written(table, tmp_path, kind)), label="kind")
    assert data.y_train.dtype == np.int64
    assert set(data.y_train.tolist()) == {0, 10}


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"X": np.eye(4, dtype=bool), "y": [0, 0, 1, 1]}, "X: expected real numbers, got bool"),
        ({"X": np.eye(4), "y": ["a", "a", "", ""]}, "y: expected a label in row 3, got ''"),
        ({"X": np.eye(4), "y": ["a", "nan", "b", "b"]}, "y: expected a label in row 2, got 'nan'"),
        ({"X": np.eye(4), "y": [0, np.nan, 1, 1]}, "y: expected integral numbers, got"),
        ({"X": np.eye(4), "y": np.zeros(4, "M8[s]")}, "y: expected integers, strings or objects"),
    ],
)
def test_data_sets_of_npz_have_no_missing_labels(tmp_path, arrays, message):
    np.savez(tmp_path / "mine.npz", **arrays)
    with pytest.raises(ValueError, match=f"mine.npz: {message}"):
        load_dataset(str(tmp_path / "mine.npz"))
