"""fit, partial-fit, predict, evaluate and inspect: what they print, write and refuse."""

import csv
import io
import json
from types import SimpleNamespace

import jax
import numpy as np
import pandas as pd
import pytest
from jax import export

from rvfl_jax import load_model
from rvfl_jax.cli.main import main
from rvfl_jax.data.tables import read_parts
from rvfl_jax.files.checkpoint import load_checkpoint_file
from tests.data.test_tables import KINDS, written
from tests.estimators.test_estimator import blobs

NAMES = ["ash", "beech", "cedar", "Dürrholz, rot"]
FIT = ["--label", "species", "--num-nodes", "12", "--num-layers", "1"]


def table(num_rows=240, seed=0, classes=4):
    X, y = blobs(num_rows=num_rows, num_classes=4, seed=seed)
    X, y = X[y < classes], y[y < classes]
    frame = pd.DataFrame(1000 + 50 * X, columns=["a", "b", "c", "d", "e"])
    frame.insert(2, "species", [NAMES[c] for c in y])
    return frame


@pytest.fixture
def model(tmp_path, capsys):
    table(classes=3).to_csv(tmp_path / "first.csv", index=False)
    folder = tmp_path / "model"
    assert main(["fit", str(tmp_path / "first.csv"), *FIT, "--out", str(folder)]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "3 classes" in err
    return folder


def called(capsys, *arguments):
    status = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return status, out, err


def test_a_model_learns_more_and_answers(model, tmp_path, capsys):
    whole = table()
    whole.to_csv(tmp_path / "more.csv", index=False)
    assert called(capsys, "partial-fit", model, tmp_path / "more.csv")[0] == 0
    status, out, err = called(capsys, "predict", model, tmp_path / "more.csv")
    assert (status, err) == (0, "")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert len(rows) == len(whole)
    hit = np.mean([row["label"] == truth for row, truth in zip(rows, whole.species, strict=True)])
    assert hit > 0.9
    status, out, _ = called(capsys, "evaluate", model, tmp_path / "more.csv")
    found = json.loads(out)
    assert found["rows"] == len(whole)
    assert found["accuracy"] == pytest.approx(hit)
    assert set(found["accuracy_by_class"]) == set(NAMES)
    found = json.loads(called(capsys, "inspect", model)[1])
    assert found["columns"] == ["a", "b", "c", "d", "e"]
    assert found["rows_of_class"].keys() == set(NAMES)
    assert found["rows"] == len(whole) + len(table(classes=3))


def test_a_model_of_another_map_and_chosen_lambda(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", tmp_path / "t.csv", *FIT, "--out", tmp_path / "m"]
    arguments += ["--ridge", "auto", "--feature-map", "fourier"]
    assert called(capsys, *arguments)[0] == 0
    kept = load_model(tmp_path / "m")
    assert (kept.ridge, kept.feature_map) == ("auto", "fourier")
    found = json.loads(called(capsys, "inspect", tmp_path / "m")[1])
    assert found["lambda"] == kept.ridge_.tolist()
    assert found["condition_at_most"][0] > 1
    status, out, _ = called(capsys, "evaluate", tmp_path / "m", tmp_path / "t.csv")
    assert status == 0
    assert json.loads(out)["accuracy"] > 0.9
    with pytest.raises(SystemExit):
        main([*map(str, arguments[:-4]), "--ridge", "best"])
    assert "--ridge: expected a number or auto, got 'best'" in capsys.readouterr().err


@pytest.mark.slow
def test_inspect_tells_the_path_of_an_adaptive_strength(tmp_path, capsys):
    table().to_csv(tmp_path / "t.csv", index=False)
    arguments = ["fit", tmp_path / "t.csv", *FIT, "--num-layers", 2, "--batch-rows", 60]
    arguments += ["--out", tmp_path / "m", "--k", "bayes", "--sigma", "0.1"]
    assert called(capsys, *arguments)[0] == 0
    assert called(capsys, "partial-fit", tmp_path / "m", tmp_path / "t.csv", "--again")[0] == 0
    found = json.loads(called(capsys, "inspect", tmp_path / "m")[1])
    path = np.array(found["forward_strengths"])
    assert path.shape == (4 + 1, 2)
    # The first batch of all is held until the second announces itself.
    assert (path[1:] > 0).all()
    assert (np.diff(path[1:], axis=0) != 0).all()
    assert "adaptive" in found["parameters"]["k"] or "Adaptive" in found["parameters"]["k"]


def test_rows_are_counted_where_somebody_watches(model, tmp_path, capsys, monkeypatch):
    table(classes=3).to_csv(tmp_path / "t.csv", index=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    status, out, err = called(capsys, "predict", model, tmp_path / "t.csv", "--batch-rows", 100)
    assert status == 0
    assert "rows" not in out
    assert "\r100 rows predicted" in err


@pytest.mark.parametrize("kind", ["csv", "parquet", "npz", "stdin"])
def test_every_kind_of_table_gives_one_answer(model, tmp_path, capsys, kind, monkeypatch):
    frame = table(seed=1, classes=3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected = called(capsys, "predict", model, tmp_path / "t.csv", "--batch-rows", 7)[1]
    source = tmp_path / f"t.{kind}"
    features = frame.drop(columns="species")
    if kind == "parquet":
        features[["e", "d", "c", "b", "a"]].to_parquet(source)  # found by name
    if kind == "npz":
        np.savez(source, X=features.to_numpy(), columns=[*features.columns])
    if kind == "stdin":
        source = "-"
        buffer = io.BytesIO(features.to_csv(index=False).encode())
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=buffer))
    assert called(capsys, "predict", model, source)[1] == expected


def test_npz_from_fit_to_evaluate(tmp_path, capsys):
    X, y = blobs()
    np.savez(tmp_path / "t.npz", X=X, y=y)
    folder = tmp_path / "m"
    assert called(capsys, "fit", tmp_path / "t.npz", *FIT, "--out", folder)[0] == 0
    assert json.loads(called(capsys, "evaluate", folder, tmp_path / "t.npz")[1])["accuracy"] > 0.9


def test_every_kind_of_table_makes_the_same_model(tmp_path, capsys):
    frame = table().rename(columns={"a": "Größe, mm"})
    frame["species"] = frame["species"].map({name: c for c, name in enumerate(NAMES)})
    arrays = []
    for kind in KINDS:
        path = written(frame, tmp_path, kind, label="species")
        command = ["fit", path, *FIT, "--batch-rows", 50, "--out", tmp_path / kind]
        assert called(capsys, *command)[0] == 0
        answers = called(
            capsys, "evaluate", tmp_path / kind, written(frame, tmp_path, "csv", "species")
        )
        checkpoint = load_checkpoint_file(tmp_path / kind / "model.npz")
        arrays.append((answers, checkpoint.arrays, checkpoint.metadata["metadata"]))
    for answers, found, about in arrays[1:]:
        assert answers == arrays[0][0]
        assert about == arrays[0][2]
        assert found.keys() == arrays[0][1].keys()
        for name, array in found.items():
            assert array.dtype == arrays[0][1][name].dtype
            np.testing.assert_array_equal(array, arrays[0][1][name])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("species", None, "expected a label, got nothing"),
        ("b", np.nan, "expected a finite number in column 'b', got nothing"),
        ("b", np.inf, "expected a finite number in column 'b', got 'inf'"),
    ],
)
def test_every_kind_of_table_is_refused_alike(
    model, tmp_path, capsys, kind, column, value, message
):
    frame = table(classes=3)
    frame.loc[7, column] = value
    path = written(frame, tmp_path, kind, label="species")
    before = (model / "model.npz").read_bytes()
    place = "row 8" if "parquet" in kind or kind == "npz" else "line 9"
    status, out, err = called(capsys, "partial-fit", model, path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"rvfl-jax: {path}, {place}: {message}")
    assert (model / "model.npz").read_bytes() == before


def test_labels_of_two_forms_are_one_class(tmp_path, capsys):
    """pycaret 1042: a file with labels 0, 1, 2, then one with 0.0, 1.0, 2.0."""
    frame = table(classes=3)
    frame["species"] = frame["species"].map({name: c for c, name in enumerate(NAMES)})
    folder = tmp_path / "m"
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert called(capsys, "fit", tmp_path / "a.csv", *FIT, "--out", folder)[0] == 0
    frame["species"] = frame["species"].astype(float)
    frame["a"] += 1
    for kind in KINDS:
        command = ["partial-fit", folder, written(frame, tmp_path, kind, label="species")]
        status, _, err = called(capsys, *command, "--again")
        assert (status, err.count("\n")) == (0, 1)
        assert err.endswith("rows, 3 classes.\n")
    frame["species"] = ["007", "7", "7.0", *frame["species"].astype(str)[3:]]
    frame.to_csv(tmp_path / "b.csv", index=False)
    err = called(capsys, "partial-fit", folder, tmp_path / "b.csv")[2]
    assert err.splitlines()[1] == "New classes: 007, 7."


def test_classes_not_yet_learned_are_told_apart(model, tmp_path, capsys):
    frame = table(classes=3)
    frame.to_csv(tmp_path / "known.csv", index=False)
    expected = json.loads(called(capsys, "evaluate", model, tmp_path / "known.csv")[1])
    strangers = table().iloc[:30].assign(species=["oak"] * 20 + ["Dürrholz, rot"] * 10)
    pd.concat([frame, strangers]).to_csv(tmp_path / "t.csv", index=False)
    status, out, err = called(capsys, "evaluate", model, tmp_path / "t.csv")
    assert (status, err) == (0, "")
    found = json.loads(out)
    assert found.pop("rows_of_unknown_classes") == {"oak": 20, "Dürrholz, rot": 10}
    assert found.pop("rows") == expected.pop("rows") + 30
    assert expected.pop("rows_of_unknown_classes") == {}
    # Of known rows alone nothing can be told apart; see `test_unknown_commands`.
    assert found.pop("novelty")["auroc"] is not None
    assert expected.pop("novelty")["auroc"] is None
    assert found == expected
    strangers.to_csv(tmp_path / "t.csv", index=False)
    found = json.loads(called(capsys, "evaluate", model, tmp_path / "t.csv")[1])
    assert (found["rows"], found["rows_of_known_classes"]) == (30, 0)
    assert found["accuracy"] is found["balanced_accuracy"] is None


def test_predict_needs_no_labels(model, tmp_path, capsys):
    frame = table(classes=3)
    frame.to_csv(tmp_path / "t.csv", index=False)
    expected = called(capsys, "predict", model, tmp_path / "t.csv")[1]
    frame.assign(species="").to_csv(tmp_path / "t.csv", index=False)
    assert called(capsys, "predict", model, tmp_path / "t.csv")[1] == expected


@pytest.mark.parametrize("command", ["fit", "partial-fit", "predict", "evaluate"])
def test_damaged_files_are_one_line(model, tmp_path, capsys, command):
    frame = table(classes=3)
    before = (model / "model.npz").read_bytes()
    for kind in ("npz", "pandas.parquet", "csv.gz"):
        path = written(frame, tmp_path, kind, label="species")
        path.write_bytes(path.read_bytes()[:-99])
        arguments = [command, model, path]
        if command == "fit":
            arguments = [command, path, *FIT, "--out", tmp_path / "new"]
        status, out, err = called(capsys, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"{path}: expected a" in err
    assert not (tmp_path / "new").exists()
    assert (model / "model.npz").read_bytes() == before


def test_json_lines_hold_every_probability(model, tmp_path, capsys):
    table(num_rows=9, classes=3).to_csv(tmp_path / "t.csv", index=False)
    options = ("--format", "jsonl", "--probabilities")
    lines = called(capsys, "predict", model, tmp_path / "t.csv", *options)[1].splitlines()
    for line in lines:
        row = json.loads(line)
        assert sum(row["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert row["probabilities"][row["label"]] == row["probability"]
    out = called(capsys, "predict", model, tmp_path / "t.csv", "--probabilities")[1]
    assert len(next(csv.reader(io.StringIO(out)))) == 2 + 3


GOOD = "a,b,species,c,d,e\n1,2,ash,3,4,5\n2,1,beech,3,4,5\n"
BAD = {
    "empty": (b"", "expected a header and rows, got an empty file"),
    "header only": (b"a,b,species,c,d,e\n", "expected at least one row"),
    "ragged": (GOOD.encode() + b"1,2,ash\n", "line 4: expected 6 fields, got 3"),
    "text": (GOOD.replace("3,4,5", "3,x,5").encode(), "line 2: expected a finite number in col"),
    "nan": (GOOD.replace("3,4,5", "3,nan,5").encode(), "got nothing (an empty field, null or NaN)"),
    "encoding": (GOOD.encode("utf-16"), "expected text in UTF-8"),
    "latin": (GOOD.replace("ash", "Häher").encode("latin-1"), "expected text in UTF-8"),
    "no label": (GOOD.replace("species", "sort").encode(), "expected a column 'species'"),
    "empty label": (GOOD.replace("ash", "").encode(), "line 2: expected a label, got nothing"),
    "twice": (GOOD.replace("a,b,", "a,a,").encode(), "got 'a' twice"),
    "quotes": (GOOD.encode() + b'"a"b,2,ash,3,4,5\n', "expected a CSV"),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("command", ["fit", "partial-fit", "evaluate"])
def test_bad_tables_are_one_line_and_nothing_written(model, tmp_path, capsys, name, command):
    content, message = BAD[name]
    (tmp_path / "bad.csv").write_bytes(content)
    before = (model / "model.npz").read_bytes()
    arguments = [command, model, tmp_path / "bad.csv"]
    if command == "fit":
        arguments = [command, tmp_path / "bad.csv", *FIT, "--out", tmp_path / "new"]
    status, out, err = called(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert not (tmp_path / "new").exists()
    assert (model / "model.npz").read_bytes() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: f.drop(columns="c"), "columns learned from, got no c"),
        (lambda f: f.assign(z=1.0), "got also z"),
    ],
)
def test_tables_of_another_kind(model, tmp_path, capsys, change, message):
    change(table(classes=3)).to_csv(tmp_path / "t.csv", index=False)
    status, out, err = called(capsys, "evaluate", model, tmp_path / "t.csv")
    assert (status, out) == (2, "")
    assert message in err


def test_other_errors_are_one_line_too(model, tmp_path, capsys):
    here = tmp_path / "first.csv"
    (tmp_path / "t.txt").write_text("x")
    (tmp_path / "t.parquet").write_text("x")
    np.savez(tmp_path / "y.npz", y=np.zeros(3))
    for arguments, message in (
        (["fit", here, *FIT, "--out", model], "--force replaces it"),
        (["predict", tmp_path / "nowhere", here], "found none"),
        (
            ["predict", model, tmp_path / "t.txt"],
            "ending in .csv, .tsv, .csv.gz,",
        ),
        (["predict", model, tmp_path / "t.parquet"], "expected a Parquet file"),
        (["predict", model, tmp_path / "y.npz"], "expected an array X"),
        (["predict", model, here, "--batch-rows", "0"], "--batch-rows: expected"),
        (["fit", here, *FIT, "--out", tmp_path / "n", "--ridge", "-1"], "ridge: expected"),
        (["fit", here, *FIT, "--out", tmp_path / "n", "--k", "auto"], "--k: expected a number or"),
    ):
        status, out, err = called(capsys, *arguments)
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert message in err
    with pytest.raises(ValueError, match="found none"):
        main(["predict", str(tmp_path / "nowhere"), str(here), "--debug"])


def test_parts_are_those_of_the_whole(tmp_path):
    frame = table()
    frame.to_csv(tmp_path / "t.csv", index=False)
    for rows in (1, 7, 1000):
        read = read_parts(str(tmp_path / "t.csv"), rows=rows, label="species", needs_label=True)
        parts = [*read]
        assert max(len(part.X) for part in parts) == min(rows, len(frame))
        X = np.concatenate([part.X for part in parts])
        np.testing.assert_allclose(X, frame.drop(columns="species").to_numpy())
        labels = [label for part in parts for label in part.labels]
        assert labels == frame.species.tolist()


def test_exported_models_answer_like_predict(model, tmp_path, capsys):
    table(classes=3, seed=2).to_csv(tmp_path / "t.csv", index=False)
    status, out, err = called(capsys, "export", model, "--out", tmp_path / "p.npz")
    assert (status, out) == (0, "")
    assert err == f"Wrote {tmp_path / 'p.npz'}: 5 columns to 3 classes.\n"
    status, out, err = called(capsys, "export", model, "--out", tmp_path / "p.npz")
    assert (status, out) == (2, "")
    assert "--force replaces it" in err
    said = called(capsys, "predict", model, tmp_path / "t.csv", "--format", "jsonl")[1]
    with np.load(tmp_path / "p.npz") as members:
        file = dict(members)
    X = table(classes=3, seed=2).drop(columns="species").to_numpy(float)
    with jax.enable_x64(True):
        answers = np.asarray(export.deserialize(bytearray(file["predict"])).call(X))
    labels = file["classes"][answers.argmax(axis=1)]
    assert labels.tolist() == [json.loads(line)["label"] for line in said.splitlines()]
    status, out, err = called(
        capsys, "export", model, "--out", tmp_path / "q.npz", "--batch-size", "0"
    )
    assert (status, out) == (2, "")
    assert "batch_size: expected an integer of at least 1" in err
    assert not (tmp_path / "q.npz").exists()
