"""Columns of a table as features: against pandas and scikit-learn, alike in every format."""

import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.preprocessing import OneHotEncoder

from rvfl_jax.data import Columns
from rvfl_jax.data.column_parts import Roles, Wanted, begun_columns, column_parts, has_lists
from tests.data.test_tables import KINDS, written

WORDS = ["the parcel is late", "money back", "a blue, long coat", "late again"]
ROLES = Roles(categorical=("colour",), text=("note",), id="ref", time="when", text_width=32)


def frame(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    hours = pd.to_timedelta(rng.permutation(rows), unit="h")
    return pd.DataFrame(
        {
            "ref": [f"r{i}" for i in range(rows)],
            "amount": rng.standard_normal(rows),
            "colour": rng.choice(["red", "blue", "007"], rows),
            "when": pd.Timestamp("2026-03-01") + hours,
            "note": rng.choice(WORDS, rows),
            "kind": rng.choice(["ash", "oak"], rows),
            "count": rng.integers(-9, 9, rows),
        }
    )


def began(path, roles, rows=16, label="kind"):
    return begun_columns(str(path), roles, rows=rows, label=label, note=lambda _: None)


def joined(parts):
    parts = [*parts]
    labels = [label for part in parts for label in part.labels or ()]
    return np.concatenate([part.X for part in parts]), labels, parts


def hashed(texts, width):
    hashing = HashingVectorizer(n_features=width, ngram_range=(1, 2))
    return hashing.transform(texts).toarray() * width**0.5


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_gives_the_features_of_pandas_and_scikit_learn(tmp_path, kind):
    table = frame()
    columns, parts = began(written(table, tmp_path, kind), ROLES)
    X, labels, parts = joined(parts)
    table = table.sort_values("when")
    colours = OneHotEncoder(sparse_output=False).fit_transform(table[["colour"]])
    expected = [table[["amount"]], colours, hashed(table["note"], 32), table[["count"]]]
    np.testing.assert_array_equal(X, np.hstack(expected))
    assert labels == table["kind"].tolist()
    assert [len(part.X) for part in parts] == [16, 16, 8]
    assert columns.names[:4] == ["amount", "colour=007", "colour=blue", "colour=red"]
    assert columns.are_counts.tolist() == [False] + [True] * 35 + [False]


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_settled_is_kept_for_later_tables(tmp_path, kind):
    columns, _ = began(written(frame(), tmp_path, "csv"), ROLES)
    columns = Columns.from_description(json.loads(json.dumps(columns.described())))
    later = frame(9, seed=1).assign(colour=["green"] * 8 + ["blue"], unread=1.0)
    path = written(later.drop(columns=["when", "unread"]), tmp_path, kind)
    wanted = Wanted("kind", labels=False, ids=True)
    X, _, parts = joined(column_parts(str(path), columns, wanted, rows=4))
    assert [name for part in parts for name in part.ids] == later["ref"].tolist()
    np.testing.assert_array_equal(X[:, 1:4], [[0, 0, 0]] * 8 + [[0, 1, 0]])
    with pytest.raises(ValueError, match="columns learned from, got no when"):
        next(column_parts(str(path), columns, Wanted("kind", True, time=True), rows=4))
    path = written(later.drop(columns="note"), tmp_path, kind)
    with pytest.raises(ValueError, match="got no note and also unread"):
        next(column_parts(str(path), columns, wanted, rows=4))


def test_other_columns_may_be_there_where_features_were_named(tmp_path):
    roles = Roles(features=("count", "amount"), categorical=("colour",))
    columns, parts = began(written(frame(), tmp_path, "csv"), roles)
    assert columns.names == ["count", "amount", "colour=007", "colour=blue", "colour=red"]
    np.testing.assert_array_equal(joined(parts)[0][:, :2], frame()[["count", "amount"]])
    path = written(frame().assign(more="x").drop(columns="ref"), tmp_path, "csv")
    assert len(joined(column_parts(str(path), columns, Wanted("kind", True), rows=9))[0]) == 40
    roles = Roles(ignore=("ref", "when", "note", "colour"))
    columns, parts = began(written(frame(), tmp_path, "csv"), roles)
    assert columns.names == ["amount", "count"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("impute", ["mean", "median", "zero"])
def test_missing_numbers_are_filled_as_scikit_learn_does(tmp_path, kind, impute):
    roles = ROLES._replace(impute=impute, time=None, ignore=("when",))
    table = frame()
    table.loc[[3, 20], "amount"] = np.nan
    table.loc[5, ["colour", "note"]] = None
    columns, parts = began(written(table, tmp_path, kind), roles)
    X, *_ = joined(parts)
    how = {"strategy": "constant", "fill_value": 0.0} if impute == "zero" else {"strategy": impute}
    imputer = SimpleImputer(**how).fit(table[["amount", "count"]])
    ends = [0, X.shape[1] - 1]
    np.testing.assert_allclose(
        X[:, ends], imputer.transform(table[["amount", "count"]]), rtol=1e-13
    )
    assert not X[5, 1:-1].any()
    later = frame(4, seed=1).assign(count=[np.nan, 1.0, 2.0, 3.0])
    path = written(later, tmp_path, kind)
    X, *_ = joined(column_parts(str(path), columns, Wanted("kind", True), rows=9))
    np.testing.assert_allclose(
        X[:, ends], imputer.transform(later[["amount", "count"]]), rtol=1e-13
    )


REFUSED = {
    "number": ("amount", None, "expected a finite number in column 'amount', got nothing"),
    "infinite": ("amount", np.inf, "expected a finite number in column 'amount', got 'inf'"),
    "category": ("colour", None, "expected a value in column 'colour', got nothing"),
    "text": ("note", "", "expected a text in column 'note', got nothing"),
    "time": ("when", None, "expected a number or an ISO 8601 date in column 'when', got nothing"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_every_kind_refuses_the_same(tmp_path, name):
    column, value, message = REFUSED[name]
    table = frame(9)
    table.loc[7, column] = value
    for kind in KINDS:
        path = written(table, tmp_path, kind)
        place = "row 8" if "parquet" in kind or kind == "npz" else "line 9"
        with pytest.raises(ValueError, match=f"^{re.escape(f'{path}, {place}: {message}')}"):
            joined(began(path, ROLES)[1])
    if value is np.inf:
        with pytest.raises(ValueError, match="got 'inf'"):
            began(path, ROLES._replace(impute="mean"))


def test_roles_that_do_not_fit(tmp_path):
    path = written(frame(), tmp_path, "csv")
    for roles, message in (
        (Roles(ignore=("nots",)), "expected a column 'nots', got ref, amount.*is it 'note'"),
        (Roles(text=("note",), ignore=("note",)), "note: expected one role of a column, got two"),
        (Roles(id="kind"), "kind: expected one role"),
        (Roles(features=("amount", "amount")), "amount: expected one role"),
        (Roles(impute="mode"), "impute: expected one of refuse, mean, median, zero, got 'mode'"),
        (Roles(features=("note",)), "expected a finite number in column 'note'"),
        (Roles(ignore=(*frame().columns.drop("kind"),)), "expected a column to learn from"),
    ):
        with pytest.raises(ValueError, match=message):
            joined(began(path, roles)[1])
    many = frame(1200).assign(note=[f"n{i}" for i in range(1200)])
    with pytest.raises(ValueError, match="at most 1000 values in the category 'note'"):
        began(written(many, tmp_path, "csv"), Roles(features=(), categorical=("note",)))


TIMES = {
    "dates": [pd.Timestamp(f"2026-01-{day:02}").date() for day in (9, 3, 7, 3)],
    "zoned": pd.to_datetime(["2026-01-09", "2026-01-03", "2026-01-07", "2026-01-03"], utc=True),
    "offsets": ["2026-01-09T00+02:00", "2026-01-03", "2026-01-07 12:00:00.1", "2026-01-03"],
    "numbers": [9, -3.5, 7, -3.5],
    "strings": ["10", "9", "9.5", "9"],
}


@pytest.mark.parametrize("name", TIMES)
def test_rows_are_learned_in_the_order_of_their_times(tmp_path, name):
    table = frame(4)[["amount", "kind"]].assign(when=TIMES[name])
    for kind in KINDS:
        _, parts = began(written(table, tmp_path, kind), Roles(time="when"), rows=3)
        X, labels, parts = joined(parts)
        order = [1, 3, 2, 0]
        np.testing.assert_array_equal(X[:, 0], table["amount"].to_numpy()[order])
        assert labels == table["kind"].to_numpy()[order].tolist()
        assert [len(part.X) for part in parts] == [3, 1]


def test_times_that_have_no_order(tmp_path):
    table = frame(4)[["amount", "kind"]].assign(when=["3", "4", "2026-01-01", "2026-01-02"])
    path = written(table, tmp_path, "csv")
    with pytest.raises(ValueError, match="all numbers or all dates, got both"):
        joined(began(path, Roles(time="when"), rows=2)[1])
    with pytest.raises(ValueError, match=r"line 2: expected a number or an ISO 8601 date .*'3'"):
        joined(began(path, Roles(time="when"), rows=9)[1])


def embeddings(rows=12, width=5):
    rng = np.random.default_rng(2)
    table = frame(rows)[["amount", "kind"]]
    return table.assign(emb=[*rng.standard_normal((rows, width)).astype(np.float32)])


@pytest.mark.parametrize("kind", ["pandas.parquet", "polars.parquet", "fixed.parquet"])
def test_lists_are_spread(tmp_path, kind):
    pyarrow = pytest.importorskip("pyarrow")
    table = embeddings()
    path = tmp_path / f"t.{kind}"
    if kind == "fixed.parquet":
        arrow = pyarrow.Table.from_pandas(table)
        at = arrow.schema.get_field_index("emb")
        column = arrow["emb"].cast(pyarrow.list_(pyarrow.float32(), 5))
        pyarrow.parquet.write_table(arrow.set_column(at, "emb", column), path)
    else:
        written(table, tmp_path, kind)
    assert has_lists(str(path))
    columns, parts = began(path, Roles(), rows=5)
    X, *_ = joined(parts)
    np.testing.assert_array_equal(X, np.hstack([table[["amount"]], np.stack(table["emb"])]))
    assert columns.names == ["amount", *(f"emb[{i}]" for i in range(5))]
    assert not has_lists(str(written(frame(), tmp_path, kind.replace("fixed", "pandas"))))


def test_lists_that_do_not_fit(tmp_path):
    table = embeddings()
    columns, _ = began(written(table, tmp_path, "pandas.parquet"), Roles())
    filled, _ = began(written(table, tmp_path, "pandas.parquet"), Roles(impute="mean"))
    mean = np.stack(table["emb"]).astype(float).mean(axis=0)
    for value, got, fills in (
        ([1.0] * 4, "a list of 5 numbers in column 'emb', got one of 4", False),
        (
            [1.0, 2.0, np.inf, 4.0, 5.0],
            "a list of 5 finite numbers in column 'emb', got inf",
            False,
        ),
        ([1.0, None, 3.0, 4.0, 5.0], "a list of 5 finite numbers in column 'emb', got noth", True),
        (None, "a list of 5 finite numbers in column 'emb', got nothing", True),
    ):
        other = table.copy()
        other.at[6, "emb"] = value
        path = str(written(other, tmp_path, "pandas.parquet"))
        wanted = Wanted("kind", True)
        with pytest.raises(ValueError, match=f"row 7: expected {got}"):
            joined(column_parts(path, columns, wanted, rows=9))
        if fills:
            X, *_ = joined(column_parts(path, filled, wanted, rows=9))
            given = [None] * 5 if value is None else value
            given = [m if x is None else x for m, x in zip(mean, given, strict=True)]
            np.testing.assert_allclose(X[6, 1:], given, rtol=1e-13)
    path = str(written(table.assign(emb=1.0), tmp_path, "csv"))
    with pytest.raises(ValueError, match="line 2: expected a list of 5 numbers in column 'emb'"):
        joined(column_parts(path, columns, Wanted("kind", True), rows=9))


def test_rows_of_a_request_are_the_rows_of_a_file(tmp_path):
    table = frame().assign(emb=[*np.random.default_rng(3).standard_normal((40, 3))])
    table.loc[2, "amount"] = np.nan
    table.loc[3, ["note", "colour"]] = None
    path = written(table, tmp_path, "pandas.parquet")
    columns, parts = began(path, ROLES._replace(impute="median", time=None, ignore=("when",)))
    X, *_ = joined(parts)
    records = table.drop(columns="when").to_dict("records")
    by_column = {name: [row[name] for row in records] for name in records[0]}
    polars = pytest.importorskip("polars")
    for rows in (table, records, by_column, polars.read_parquet(path)):
        np.testing.assert_array_equal(columns.features(rows), X)
    np.testing.assert_array_equal(columns.features(table.iloc[2:3]), X[2:3])
    whole = table.assign(count=table["count"].astype("Int64"))
    np.testing.assert_array_equal(columns.features(whole), X)
    whole.loc[5, "count"] = None
    np.testing.assert_array_equal(columns.features(whole)[:5], X[:5])
    assert columns.features(whole)[5, -4] == table["count"].median()
    assert columns.features([]).shape == (0, X.shape[1])
    with pytest.raises(ValueError, match="rows: expected the 5 columns learned from, got no note"):
        columns.features(table.drop(columns="note"))
    strict = columns._replace(impute="refuse")
    with pytest.raises(ValueError, match="rows, row 3: expected a finite number in col"):
        strict.features(records)
    words = [*records[:1], records[1] | {"emb": ["0.1", "a", "2"]}]
    with pytest.raises(ValueError, match="rows, row 2: expected a list of numbers in col"):
        columns.features(words)


def test_standard_input_is_held_for_a_second_look(tmp_path, monkeypatch):
    text = written(frame(), tmp_path, "csv").read_bytes()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(text)))
    X, labels, _ = joined(began("-", ROLES)[1])
    expected = joined(began(written(frame(), tmp_path, "csv"), ROLES)[1])
    np.testing.assert_array_equal(X, expected[0])
    assert labels == expected[1]
