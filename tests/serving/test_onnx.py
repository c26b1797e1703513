"""ONNX graphs give the answers of their models, in a runtime that knows nothing of JAX."""

import json
import sys

import jax
import numpy as np
import pandas as pd
import pytest

import rvfl_jax
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, Predictor
from rvfl_jax.estimators.calibration import FLOOR
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.serving import onnx_graph
from rvfl_jax.serving.export import export_learner, export_model
from tests.cli.test_model_commands import FIT, table
from tests.streams import blobs
from tests.tolerances import GRAPH, GRAPH_SINGLE

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

NAMES = np.array(["ash", "beech", "cedar", "elm"])
SMALL = {"num_layers": 2, "num_nodes": 8, "random_state": 0}
ROWS = (1, 7, 60)


def session(path):
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    return runtime.InferenceSession(path, options)


def fitted(labels=NAMES, **options):
    X, y = blobs(60)
    return EdRVFLClassifier(**SMALL | options).partial_fit(X, labels[y])


CLASSIFIERS = {
    "ridge": {},
    "forward, balanced": {"k": 1.0, "class_balance": 0.7},
    "median of three, tanh": {"ensemble": "median", "num_layers": 3, "activation": "tanh"},
    "median of two, no constant": {"ensemble": "median", "intercept": False},
    "discriminant, leaky": {"readout": "discriminant", "activation": "leaky_relu"},
    "one layer, scaled, sigmoid": {"num_layers": 1, "scale": "first", "activation": "sigmoid"},
    "nearest mean, swish": {"readout": "nearest_mean", "activation": "swish", "num_layers": 1},
    "function, state": {"activation": jax.nn.relu, "k": rvfl_jax.adaptive_k(sigma=0.1)},
    "single": {"precision": "single", "scale": "first"},
}


SLOW = ("forward, balanced", "median of two, no constant", "function, state")


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(options, id=name, marks=[pytest.mark.slow] if name in SLOW else [])
        for name, options in CLASSIFIERS.items()
    ],
)
def test_a_graph_answers_as_its_classifier_does(tmp_path, options):
    X = blobs(60)[0] * 3.0 + 1.0
    model = EdRVFLClassifier(**SMALL | options)
    model.partial_fit(X, NAMES[blobs(60)[1]], classes=["yew", "elm"])
    export_model(model, tmp_path / "a.onnx")
    graph = session(tmp_path / "a.onnx")
    tolerance = GRAPH_SINGLE if model.precision == "single" else GRAPH
    for rows in ROWS:
        labels, told = graph.run(None, {"X": X[:rows].astype(model._dtype)})
        assert told.dtype == model._dtype
        np.testing.assert_allclose(told, model.predict_proba(X[:rows]), rtol=0, atol=tolerance)
        assert labels.tolist() == model.predict(X[:rows]).tolist()
    # A class that was declared and never seen.
    assert (told[:, list(model.classes_).index("yew")] == 0).all()


@pytest.mark.parametrize(
    ("options", "outputs"),
    [({}, 2), ({"ensemble": "median", "num_layers": 3}, 0), ({"precision": "single"}, 1)],
)
def test_a_graph_predicts_as_its_regressor_does(tmp_path, options, outputs):
    X, _ = blobs(60)
    targets = np.stack([X[:, 0], X[:, 1] ** 2], axis=1)
    model = EdRVFLRegressor(**SMALL | options).fit(X, targets[:, :outputs] if outputs else X[:, 0])
    export_model(model, tmp_path / "a.onnx")
    tolerance = GRAPH_SINGLE if model.precision == "single" else GRAPH
    for rows in ROWS:
        (told,) = session(tmp_path / "a.onnx").run(None, {"X": X[:rows].astype(model._dtype)})
        expected = model.predict(X[:rows])
        assert told.shape == expected.shape
        np.testing.assert_allclose(told, expected, rtol=0, atol=10 * tolerance)


@pytest.mark.parametrize("ensemble", ["mean", "median"])
@pytest.mark.parametrize("precision", ["double", pytest.param("single", marks=pytest.mark.slow)])
def test_a_graph_answers_as_its_learner_does(tmp_path, ensemble, precision):
    X, y = blobs(40)
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0, ensemble=ensemble)
    run = rvfl_jax.run_stream(
        learner, [(X, y)], key=jax.random.key(0), num_classes=10, precision=precision
    )
    # Columns without a label have a share of the probability, and are left out.
    export_learner(learner, run.state, tmp_path / "a.onnx", classes=NAMES)
    dtype = np.float64 if precision == "double" else np.float32
    labels, told = session(tmp_path / "a.onnx").run(None, {"X": X.astype(dtype)})
    with precision_scope(precision):
        expected = np.asarray(learner.predict(run.state, X))[:, :4]
    assert told.dtype == dtype
    tolerance = GRAPH if precision == "double" else GRAPH_SINGLE
    np.testing.assert_allclose(told, expected, rtol=0, atol=tolerance)
    assert labels.tolist() == NAMES[expected.argmax(axis=1)].tolist()


def test_both_formats_say_the_same_of_raw_features(tmp_path):
    X, y = blobs(60)
    mean, scale = np.arange(6.0), np.arange(1.0, 7.0)
    model = EdRVFLClassifier(**SMALL).fit((X - mean) / scale, NAMES[y])
    options = {"mean": mean, "scale": scale, "columns": list("abcdef")}
    export_model(model, tmp_path / "a.npz", **options)
    # The format may be named whatever the file is called.
    export_model(model, tmp_path / "a.graph", format="onnx", **options)
    predictor, graph = Predictor(tmp_path / "a.npz"), session(tmp_path / "a.graph")
    told = graph.run(["probabilities"], {"X": X})[0]
    np.testing.assert_allclose(told, predictor.predict_proba(X), rtol=0, atol=GRAPH)
    about = graph.get_modelmeta()
    metadata = json.loads(about.custom_metadata_map["metadata"])
    assert metadata == {n: v for n, v in predictor.metadata.items() if n != "platforms"}
    assert json.loads(about.custom_metadata_map["classes"]) == predictor.classes.tolist()
    assert about.producer_name == "rvfl-jax"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.graph", "a.npz"]
    # A row that is no number spoils no other.
    spoiled = X.copy()
    spoiled[4, 2] = np.nan
    again = graph.run(["probabilities"], {"X": spoiled})[0]
    assert np.isnan(again[4]).all()
    np.testing.assert_array_equal(np.delete(again, 4, axis=0), np.delete(told, 4, axis=0))


@pytest.mark.parametrize(
    "labels",
    [np.array([7, -3, 0, 2]), np.array([0.0, 1.0, 2.0, 3.0]), np.array(["ü", "", "b\n", "c"])],
)
def test_labels_keep_their_kind(tmp_path, labels):
    model = fitted(labels)
    export_model(model, tmp_path / "a.onnx", batch_size=60)
    graph = session(tmp_path / "a.onnx")
    got = graph.run(["label"], {"X": blobs(60)[0]})[0]
    assert got.tolist() == model.predict(blobs(60)[0]).tolist()
    assert graph.get_inputs()[0].shape == [60, 6]


def test_truth_values_are_labels_too(tmp_path):
    X, y = blobs(60)
    model = EdRVFLClassifier(**SMALL).fit(X, y > 1)
    export_model(model, tmp_path / "a.onnx")
    labels, told = session(tmp_path / "a.onnx").run(None, {"X": X})
    assert labels.tolist() == model.predict(X).tolist()
    np.testing.assert_allclose(told, model.predict_proba(X), rtol=0, atol=GRAPH)


def test_the_graph_is_the_network_and_nothing_else(tmp_path):
    """Control: the operators that the formula has, and weights in the precision of the model."""
    export_model(fitted(num_layers=1), tmp_path / "a.onnx")
    model = onnx.load(tmp_path / "a.onnx")
    kinds = [node.op_type for node in model.graph.node]
    head = ["Max", "Add", "Log", "Min", "Div", "Add", "GreaterOrEqual", "Where", "Mul", "Softmax"]
    assert kinds == ["Gemm", "Relu", "Concat", "Gemm", *head, "ArgMax", "Gather", "Identity"]
    numbers = [onnx.numpy_helper.to_array(each) for each in model.graph.initializer]
    assert {each.dtype.name for each in numbers} == {"float64", "object"}
    assert any(each.shape == () and each == FLOOR for each in numbers)


REFUSED = {
    "activation": (
        {"activation": lambda x: jax.numpy.maximum(x, 0)},
        {},
        "activation: expected one of relu, .* got 'tests.serving.test_onnx.<lambda>'",
    ),
    "platforms": ({}, {"platforms": ["cpu"]}, "platforms: expected none to be chosen"),
    "format": ({}, {"format": "onxn"}, "format: expected one of jax, onnx, got 'onxn'"),
    "batch size": ({}, {"batch_size": 0}, "batch_size: expected an integer of at least 1"),
    "scale": ({}, {"scale": np.zeros(6)}, "scale: expected above 0"),
}


@pytest.mark.parametrize(("options", "asked", "message"), REFUSED.values(), ids=REFUSED)
def test_what_no_graph_can_hold_leaves_nothing(tmp_path, options, asked, message):
    with pytest.raises(ValueError, match=message):
        export_model(fitted(**options), tmp_path / "a.onnx", **asked)
    assert list(tmp_path.iterdir()) == []


def test_other_learners_and_labels_that_do_not_fit_leave_nothing(tmp_path):
    learner = rvfl_jax.make_learner(
        lambda key, s, m: jax.numpy.ones((s, m)),
        lambda state, *batch, **weights: (state, None),
        lambda state, X: (X @ state)[None],
        description="a product",
    )
    path = tmp_path / "a.onnx"
    with pytest.raises(ValueError, match=r"expected one of edrvfl for .* onnx, got 'a product'"):
        export_learner(learner, jax.numpy.ones((3, 2)), path, num_features=3)
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=0.0)
    state = learner.init(jax.random.key(0), 6, 2)
    with pytest.raises(ValueError, match=r"classes: expected shape \(2\) = .*, got \(3,\)"):
        export_learner(learner, state, path, classes=["a", "b", "c"])
    assert list(tmp_path.iterdir()) == []


def test_a_part_that_the_writer_does_not_know_is_found_out(tmp_path, monkeypatch):
    """The graph is held against the model before it is written, whatever it was made of."""
    monkeypatch.setitem(onnx_graph._ACTIVATIONS, "relu", onnx_graph._tanh)
    with pytest.raises(ValueError, match="with a part that is not known to the writer"):
        export_model(fitted(), tmp_path / "a.onnx")
    monkeypatch.undo()
    monkeypatch.setattr(onnx_graph, "MOST_BYTES", 1000)
    with pytest.raises(ValueError, match="expected at most 1,000 bytes of weights"):
        export_model(fitted(), tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_features_that_are_no_layers_are_refused(tmp_path):
    model = fitted(feature_map="fourier")
    with pytest.raises(ValueError, match=r"feature_map: expected 'layers' .* got 'fourier'"):
        export_model(model, tmp_path / "a.onnx")
    assert list(tmp_path.iterdir()) == []


def test_without_the_package_the_error_names_what_installs_it(tmp_path, monkeypatch):
    model = fitted()
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match=r'pip install "rvfl-jax\[onnx\]" installs it'):
        export_model(model, tmp_path / "a.onnx")
    export_model(model, tmp_path / "a.npz")


@pytest.mark.parametrize(
    "named",
    [["--format", "onnx"], pytest.param([], marks=pytest.mark.slow)],
    ids=["named", "by ending"],
)
def test_the_command_writes_a_graph(tmp_path, capsys, named):
    from rvfl_jax.cli.main import main

    frame = table()
    frame.to_csv(tmp_path / "a.csv", index=False)
    assert main(["fit", str(tmp_path / "a.csv"), *FIT, "--out", str(tmp_path / "model")]) == 0
    out = tmp_path / ("a.graph" if named else "a.onnx")
    assert main(["export", str(tmp_path / "model"), *named, "--out", str(out)]) == 0
    assert "5 columns to" in capsys.readouterr().err
    model = rvfl_jax.load_model(tmp_path / "model")
    X = frame.drop(columns="species")
    told = session(out).run(["probabilities"], {"X": X.to_numpy(float)})[0]
    expected = model.predict_proba(pd.DataFrame(X.to_numpy(float), columns=X.columns))
    np.testing.assert_allclose(told, expected, rtol=0, atol=GRAPH)
