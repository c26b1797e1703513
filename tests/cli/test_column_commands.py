"""What the columns of a table are, said once to `fit`: texts, categories, lists, ids and times."""

import csv
import io
import json
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest

from rvfl_jax import Predictor, load_model
from rvfl_jax.cli.main import main
from rvfl_jax.data import Columns, read_columns
from rvfl_jax.estimators.save import notes_of
from tests.data.test_tables import written
from tests.estimators.intents import SENTENCES, held_out, learned
from tests.streams import environment
from tests.tolerances import CLOSED_FORM

SMALL = ["--num-nodes", "12", "--num-layers", "1", "--text-width", "64"]
ROLES = [
    *("--label", "intent", "--id", "ticket", "--time", "sent", "--text", "body"),
    *("--categorical", "channel", "--impute", "median"),
]


def tickets(sentences, intents, seed=0):
    """A table of tickets: id, date, text, category, a number with gaps, and lists."""
    rng = np.random.default_rng(seed)
    rows = len(sentences)
    place = {intent: c for c, intent in enumerate(SENTENCES)}
    known = np.array([place[intent] for intent in intents])
    centres = np.random.default_rng(7).standard_normal((len(place), 8))
    days = pd.to_timedelta(rng.permutation(rows), unit="D")
    return pd.DataFrame(
        {
            "ticket": [f"t-{seed}-{i}" for i in range(rows)],
            "sent": pd.Timestamp("2026-01-01") + days,
            "body": sentences,
            "channel": rng.choice(["web", "mail"], rows),
            "amount": np.where(rng.random(rows) < 0.1, np.nan, rng.standard_normal(rows)),
            "embedding": [*(centres[known] + rng.standard_normal((rows, 8)))],
            "intent": intents,
        }
    )


def of(*intents, seed=0):
    sentences = [text for intent in intents for text in learned(intent)]
    return tickets(sentences, [intent for intent in intents for _ in learned(intent)], seed)


def called(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


@pytest.fixture
def model(tmp_path, capsys):
    of("refund", "delivery").to_parquet(tmp_path / "first.parquet")
    folder = tmp_path / "model"
    status, _, err = called(
        capsys, "fit", tmp_path / "first.parquet", *ROLES, *SMALL, "--out", folder
    )
    assert status == 0, err
    return folder


def test_a_model_knows_its_columns(model, tmp_path, capsys):
    asked = of("delivery", seed=3).drop(columns=["intent", "sent"])
    asked.loc[0, "channel"] = "fax"
    asked.to_parquet(tmp_path / "asked.parquet")
    status, out, err = called(capsys, "predict", model, tmp_path / "asked.parquet")
    assert (status, err) == (0, "")
    rows = [*csv.DictReader(io.StringIO(out))]
    assert [*rows[0]] == ["ticket", "label", "probability"]
    assert [row["ticket"] for row in rows] == asked["ticket"].tolist()
    lines = called(capsys, "predict", model, tmp_path / "asked.parquet", "--format", "jsonl")[1]
    lines = [json.loads(line) for line in lines.splitlines()]
    assert [(line["ticket"], line["label"]) for line in lines] == [
        (row["ticket"], row["label"]) for row in rows
    ]
    columns = read_columns(model)
    X = columns.features(asked)
    assert load_model(model).predict(X).tolist() == [row["label"] for row in rows]
    found = json.loads(called(capsys, "inspect", model)[1])["columns"]
    assert found == {
        "features": {
            "body": "text of 64",
            "channel": ["mail", "web"],
            "amount": "number",
            "embedding": "list of 8",
        },
        "id": "ticket",
        "time": "sent",
        "impute": "median",
    }


def test_indicators_are_not_standardised(model):
    columns, estimator = read_columns(model), load_model(model)
    first = of("refund", "delivery").sort_values("sent")
    X = columns.features(first)
    counted = columns.are_counts
    assert counted.sum() == 64 + 2
    assert not estimator.mean_[counted].any()
    assert (estimator.scale_[counted] == 1).all()
    np.testing.assert_allclose(estimator.mean_[~counted], X[:, ~counted].mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(estimator.scale_[~counted], X[:, ~counted].std(axis=0), rtol=1e-12)


def test_rows_are_unlearned_as_if_never_seen(model, tmp_path, capsys):
    of("hours").replace({"channel": {"web": "fax"}}).to_parquet(tmp_path / "more.parquet")
    columns, before = read_columns(model), load_model(model)
    X = columns.features(of("refund", "hours", seed=5))
    status, _, err = called(capsys, "partial-fit", model, tmp_path / "more.parquet")
    assert status == 0
    assert err.startswith(
        f"{tmp_path / 'more.parquet'}: values of 'channel' without a feature: fax"
    )
    assert load_model(model).classes_.tolist() == ["delivery", "hours", "refund"]
    assert read_columns(model) == columns
    assert called(capsys, "unlearn", model, tmp_path / "more.parquet")[0] == 0
    after = load_model(model)
    assert after.classes_.tolist() == before.classes_.tolist()
    np.testing.assert_allclose(
        after.decision_function(X), before.decision_function(X), atol=CLOSED_FORM
    )


def test_an_exported_model_is_served_with_its_columns(model, tmp_path, capsys):
    asked = of("refund", seed=4)
    asked.to_parquet(tmp_path / "asked.parquet")
    assert called(capsys, "export", model, "--out", tmp_path / "p.npz")[0] == 0
    columns = read_columns(tmp_path / "p.npz")
    assert columns == read_columns(model)
    said = [
        *csv.DictReader(
            io.StringIO(called(capsys, "predict", model, tmp_path / "asked.parquet")[1])
        )
    ]
    requests = asked[["body", "channel", "amount", "embedding"]].to_dict("records")
    answers = Predictor(tmp_path / "p.npz").predict(columns.features(requests))
    assert answers.tolist() == [row["label"] for row in said]


def test_every_format_makes_the_same_model(tmp_path, capsys):
    table = of("refund", "delivery", "hours").drop(columns="embedding")
    kept = []
    for kind in ("csv", "tsv.gz", "pandas.parquet", "polars.parquet", "npz"):
        path = written(table, tmp_path, kind, label="intent")
        command = ["fit", path, *ROLES, *SMALL, "--batch-rows", 10, "--out", tmp_path / f"m.{kind}"]
        assert called(capsys, *command)[0] == 0
        X = read_columns(tmp_path / f"m.{kind}").features(table)
        notes = notes_of(tmp_path / f"m.{kind}")
        kept.append((notes, load_model(tmp_path / f"m.{kind}").predict_proba(X)))
    for notes, proba in kept[1:]:
        assert notes == kept[0][0]
        np.testing.assert_array_equal(proba, kept[0][1])


def test_tables_are_learned_in_the_order_of_their_times(tmp_path, capsys):
    table = of("refund", "delivery", "hours").drop(columns="embedding")
    answers = []
    for name, rows in (("given", table), ("sorted", table.sort_values("sent"))):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        options = ROLES if name == "given" else [*ROLES[:4], *ROLES[6:], "--ignore", "sent"]
        command = ["fit", tmp_path / f"{name}.csv", *options, *SMALL, "--batch-rows", 7]
        assert called(capsys, *command, "--out", tmp_path / name)[0] == 0
        estimator = load_model(tmp_path / name)
        answers.append(estimator.predict_proba(read_columns(tmp_path / name).features(table)))
    np.testing.assert_array_equal(answers[0], answers[1])


@pytest.mark.parametrize(
    ("command", "change", "message"),
    [
        ("predict", lambda f: f.drop(columns="ticket"), "columns learned from, got no ticket"),
        ("predict", lambda f: f.drop(columns="body"), "columns learned from, got no body"),
        ("evaluate", lambda f: f.assign(z=1), "columns learned from, got also z"),
        ("partial-fit", lambda f: f.drop(columns="sent"), "columns learned from, got no sent"),
        ("partial-fit", lambda f: f.assign(sent="soon"), "row 1: expected a number or an ISO 8601"),
        ("unlearn", lambda f: f.assign(embedding=1.0), "row 1: expected a list of 8 numbers"),
    ],
)
def test_other_tables_are_one_line_and_nothing_written(
    model, tmp_path, capsys, command, change, message
):
    before = (model / "model.npz").read_bytes()
    change(of("refund", "delivery")).to_parquet(tmp_path / "t.parquet")
    status, out, err = called(capsys, command, model, tmp_path / "t.parquet")
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert message in err
    assert (model / "model.npz").read_bytes() == before


def test_an_id_may_be_named_when_it_is_needed(tmp_path, capsys):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.standard_normal((20, 2)), columns=["a", "b"])
    table = table.assign(label=np.where(table["a"] > 0, "x", "y"))
    table.to_csv(tmp_path / "t.csv", index=False)
    assert called(capsys, "fit", tmp_path / "t.csv", *SMALL, "--out", tmp_path / "m")[0] == 0
    assert notes_of(tmp_path / "m")["table"] == {"label": "label", "columns": ["a", "b"]}
    plain = called(capsys, "predict", tmp_path / "m", tmp_path / "t.csv")[1]
    table.assign(key=range(100, 120)).to_csv(tmp_path / "k.csv", index=False)
    out = called(capsys, "predict", tmp_path / "m", tmp_path / "k.csv", "--id", "key")[1]
    keys = [line.partition(",")[0] for line in out.splitlines()]
    assert keys == ["key", *map(str, range(100, 120))]
    assert [line.partition(",")[2] for line in out.splitlines()] == plain.splitlines()
    for name, message in (
        ("a", "not learned, got 'a'"),
        ("label", "another name than predictions"),
    ):
        arguments = ["predict", tmp_path / "m", tmp_path / "k.csv", "--id", name]
        status, out, err = called(capsys, *arguments)
        assert (status, out) == (2, "")
        assert message in err
    assert isinstance(read_columns(tmp_path / "m"), Columns)


def test_fit_says_what_else_a_column_may_be(tmp_path, capsys):
    of("refund").drop(columns="embedding").to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", tmp_path / "t.csv", "--label", "intent", "--out", tmp_path / "m"]
    for options in ([], ["--time", "sent", "--id", "ticket"]):
        status, out, err = called(capsys, *command, *options)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert "expected a finite number in column" in err
        assert "--text, --categorical, --ignore, --id, --time and --impute say" in err
    assert not (tmp_path / "m").exists()


def test_names_with_commas(tmp_path, capsys):
    table = pd.DataFrame({"a": [1.0, 2, 3], "b, c": ["x", "y", "x"], "label": ["u", "v", "u"]})
    table.to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", tmp_path / "t.csv", *SMALL, "--out", tmp_path / "m"]
    assert called(capsys, *command, "--categorical", '"b, c"')[0] == 0
    assert read_columns(tmp_path / "m").names == ["a", "b, c=x", "b, c=y"]


@pytest.mark.slow
def test_the_whole_story_by_command_line_alone(tmp_path):
    """From a Parquet of an id, a date, a text and lists to a served model, as processes."""

    def run(*arguments):
        words = [str(argument) for argument in arguments]
        done = subprocess.run(
            [sys.executable, "-m", "rvfl_jax", *words],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done

    first, new, gone = ("refund", "delivery", "password", "hours"), "invoice", "hours"
    of(*first).to_parquet(tmp_path / "january.parquet")
    of(new).to_parquet(tmp_path / "february.parquet")
    rows = of(*first)
    rows[rows["intent"] == gone].to_parquet(tmp_path / "gone.parquet")
    run("fit", "january.parquet", *ROLES, "--out", "model")
    assert "New classes: invoice." in run("partial-fit", "model", "february.parquet").stderr
    run("unlearn", "model", "gone.parquet")
    run("export", "model", "--out", "served.npz")
    left = [intent for intent in first if intent != gone] + [new]
    sentences, truth = held_out(left)
    asked = tickets(sentences, truth, seed=9).drop(columns=["intent", "sent"])
    asked.to_parquet(tmp_path / "asked.parquet")
    rows = [*csv.DictReader(io.StringIO(run("predict", "model", "asked.parquet").stdout))]
    assert [row["ticket"] for row in rows] == asked["ticket"].tolist()
    assert {row["label"] for row in rows} == set(left)
    labels = [row["label"] for row in rows]
    assert np.mean([label == true for label, true in zip(labels, truth, strict=True)]) >= 0.85
    columns, predictor = read_columns(tmp_path / "served.npz"), Predictor(tmp_path / "served.npz")
    assert predictor.classes.tolist() == sorted(left)
    assert predictor.predict(columns.features(asked)).tolist() == labels
