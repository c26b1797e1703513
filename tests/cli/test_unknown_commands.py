"""Rows of no known class: `predict --unknown` and what `evaluate` tells of them."""

import csv
import io
import json

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import roc_auc_score

from rvfl_jax import load_model
from tests.cli.test_model_commands import FIT, called, table

KNOWN, NEW = table(1200, classes=3), table(400).query("species == 'Dürrholz, rot'")
SCORED = [*FIT, "--batch-rows", 100, "--novelty-score", "blended"]


@pytest.fixture
def model(tmp_path, capsys):
    KNOWN.iloc[:600].to_csv(tmp_path / "first.csv", index=False)
    assert called(capsys, "fit", tmp_path / "first.csv", *SCORED, "--out", tmp_path / "m")[0] == 0
    pd.concat([KNOWN.iloc[600:], NEW]).to_csv(tmp_path / "t.csv", index=False)
    return tmp_path / "m"


def of_python(folder, frame):
    return load_model(folder).novelty(frame.drop(columns="species"))


def test_rows_unlike_all_classes_get_a_label_of_their_own(model, tmp_path, capsys):
    words = ["predict", model, tmp_path / "t.csv"]
    plain = list(csv.DictReader(io.StringIO(called(capsys, *words)[1])))
    found = list(csv.DictReader(io.StringIO(called(capsys, *words, "--unknown", "none")[1])))
    strange = np.array([row["label"] == "none" for row in found])
    novelty = of_python(model, pd.concat([KNOWN.iloc[600:], NEW]))
    np.testing.assert_array_equal(strange, novelty > load_model(model).novelty_threshold())
    assert [a == b for a, b in zip(plain, found, strict=True)] == (~strange).tolist()
    assert all(a["probability"] == b["probability"] for a, b in zip(plain, found, strict=True))
    words += ["--unknown", "none", "--false-alarms", "0.3", "--format", "jsonl"]
    lines = [json.loads(line) for line in called(capsys, *words)[1].splitlines()]
    assert sum(line["label"] == "none" for line in lines) > strange.sum()


def test_evaluate_tells_how_well_they_are_found(model, tmp_path, capsys):
    words = ["evaluate", model, tmp_path / "t.csv", "--batch-rows", 90, "--false-alarms", "0.1"]
    found = json.loads(called(capsys, *words)[1])["novelty"]
    known, new = of_python(model, KNOWN.iloc[600:]), of_python(model, NEW)
    threshold = load_model(model).novelty_threshold(0.1)
    truth = np.r_[np.zeros(len(known)), np.ones(len(new))]
    assert found == {
        "score": "blended",
        "auroc": pytest.approx(roc_auc_score(truth, np.r_[known, new])),
        "threshold": pytest.approx(threshold),
        "wanted_false_alarms": 0.1,
        "false_alarms": pytest.approx(np.mean(known > threshold)),
        "unknown_rows_found": pytest.approx(np.mean(new > threshold)),
    }
    assert found["auroc"] > 0.7
    assert abs(found["false_alarms"] - 0.1) < 0.06


def test_what_cannot_be_told_is_refused_or_null(model, tmp_path, capsys):
    words = ["predict", model, tmp_path / "t.csv"]
    status, out, err = called(capsys, *words, "--unknown", "ash")
    assert (status, out) == (2, "")
    assert "--unknown: expected no class, got 'ash'" in err
    for share in ("0", "1", "nan"):
        for command in (["predict", "--unknown", "none"], ["evaluate"]):
            line = [*command, model, tmp_path / "t.csv", "--false-alarms", share]
            status, out, err = called(capsys, *line)
            assert (status, out) == (2, "")
            assert "false_alarms: expected a number between 0 and 1" in err
    plain = tmp_path / "plain"
    assert called(capsys, "fit", tmp_path / "first.csv", *FIT, "--out", plain)[0] == 0
    status, out, err = called(capsys, "predict", plain, tmp_path / "t.csv", "--unknown", "none")
    assert (status, out) == (2, "")
    assert "--novelty-score" in err
    found = json.loads(called(capsys, "evaluate", plain, tmp_path / "t.csv")[1])["novelty"]
    assert found["score"] == "blended"
    assert found["auroc"] > 0.7
    assert found["threshold"] is found["false_alarms"] is found["unknown_rows_found"] is None
