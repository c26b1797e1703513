"""The recipe for FastAPI, as it is: one process learns and predicts."""

import importlib
import sys
import threading
import warnings

import numpy as np
import pytest

from rvfl_jax import EdRVFLClassifier, load_model
from tests.streams import blobs

pytest.importorskip("fastapi")
pytest.importorskip("httpx")

X, COLUMNS = blobs(60)
LABELS = np.array(["ash", "beech", "cedar", "elm"])[COLUMNS]


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """The module as a process with that MODEL has it; smaller calls compile less."""
    monkeypatch.setenv("MODEL", str(tmp_path / "model"))
    sys.modules.pop("experiments.serve_and_learn", None)
    module = importlib.import_module("experiments.serve_and_learn")
    monkeypatch.setattr(module, "MOST_ROWS", 8)
    return module


@pytest.fixture
def client(recipe):
    with warnings.catch_warnings():
        # Of which client it takes.
        warnings.simplefilter("ignore")
        from fastapi.testclient import TestClient

    return TestClient(recipe.app)


def rows(X, y=None):
    return {"X": X.tolist()} | ({} if y is None else {"y": y.tolist()})


def test_it_learns_predicts_refuses_and_keeps(client, recipe, tmp_path):
    assert client.post("/predict", json=rows(X[:1])).status_code == 422
    old = COLUMNS < 2
    said = client.post("/learn", json=rows(X[old], LABELS[old])).json()
    assert said == {"rows": 30, "classes": ["ash", "beech"]}
    said = client.post("/learn", json=rows(X[~old], LABELS[~old])).json()
    assert said == {"rows": 60, "classes": ["ash", "beech", "cedar", "elm"]}
    # The same rows in the same calls, without a server.
    model = EdRVFLClassifier(random_state=0).partial_fit(X[old], LABELS[old])
    model.partial_fit(X[~old], LABELS[~old])
    expected = rows_told(model)
    assert client.post("/predict", json=rows(X)).json() == expected
    before = recipe.model
    for bad in ({"X": [[1.0, 2.0]], "y": ["ash"]}, rows(X[:2], LABELS[:1])):
        refused = client.post("/learn", json=bad)
        assert refused.status_code == 422
        assert "expect" in refused.json()["detail"]
    assert client.post("/learn", json={"X": X.tolist()}).status_code == 422
    assert client.post("/predict", json={"X": [[1.0, 2.0]]}).status_code == 422
    assert recipe.model is before
    assert rows_told(load_model(tmp_path / "model"))["y"] == expected["y"]


def rows_told(model):
    told = model.predict_proba(X)
    best = model.classes_[told.argmax(axis=1)]
    return {"y": best.tolist(), "probability": told.max(axis=1).tolist()}


def test_every_answer_is_of_one_model_that_stood(recipe):
    """Classes come in front of others, so that columns move under whoever reads two moments."""
    order = np.argsort(-COLUMNS, kind="stable")
    parts = [order[start : start + 10] for start in range(0, 60, 10)]
    model, stood = EdRVFLClassifier(random_state=0), []
    for part in parts:
        model.partial_fit(X[part], LABELS[part])
        stood.append(rows_told(model)["y"])
    recipe.learn(X[parts[0]].tolist(), LABELS[parts[0]].tolist())
    answers, done = [], threading.Event()

    def read():
        while not done.is_set():
            answers.append(recipe.predict(X.tolist())["y"])

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for part in parts[1:]:
        recipe.learn(X[part].tolist(), LABELS[part].tolist())
    done.set()
    for reader in readers:
        reader.join()
    answers.append(recipe.predict(X.tolist())["y"])
    assert all(answer in stood for answer in answers)
    assert answers[-1] == stood[-1]
    assert len({tuple(answer) for answer in answers}) > 1
