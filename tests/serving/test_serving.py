"""Exported predictors answer without the package, and with the bits of their models."""

import json
import pickle
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import pandas as pd
import pytest
from jax import export
from ml_dtypes import bfloat16

import rvfl_jax
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, Predictor
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.save import load_model
from rvfl_jax.serving.export import PLATFORMS, export_learner, export_model
from tests.cli.test_model_commands import FIT, NAMES, table
from tests.compilations import counted_compilations
from tests.streams import blobs, environment

ROOT = Path(__file__).parents[2]
SMALL = {"num_layers": 1, "num_nodes": 8, "random_state": 0}

SERVER = """
import sys
sys.modules["rvfl_jax"] = None
try:
    import rvfl_jax
except ImportError:
    pass
else:
    raise SystemExit("rvfl_jax could be imported")

import json, pathlib
import jax, numpy as np
from jax import export

for said in map(np.load, sorted(pathlib.Path(sys.argv[1]).glob("*.said.npz"))):
    name = said.fid.name.removesuffix(".said.npz")
    for rows in [int(member.removeprefix("X ")) for member in said.files if member[0] == "X"]:
        for path in [f"{name}.npz"] + ([f"{name}_64.npz"] if rows == 64 else []):
            file = np.load(path)
            predict = export.deserialize(bytearray(file["predict"]))
            with jax.enable_x64(json.loads(file["metadata"].tobytes())["precision"] == "double"):
                got = np.asarray(predict.call(said[f"X {rows}"]))
            expected = said[f"answer {rows}"]
            same = got.shape == expected.shape and (got.astype(float) == expected).all()
            labels = file["classes"][got.argmax(axis=1)][:3].tolist() if "classes" in file else []
            print(json.dumps([pathlib.Path(path).name, rows, bool(same), labels]))
"""


def run(*arguments):
    finished = subprocess.run(
        [sys.executable, "-W", "error", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=500,
        env=environment(),
        cwd=ROOT,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


OTHERS = ["learner_single", "learner_median", "classifier_single", "classifier_forward"]
OTHERS += ["classifier_discriminant", "classifier_long", "regressor", "regressor_median"]


@pytest.mark.parametrize(
    "cases",
    [["learner", "classifier", "given", "scaled"], OTHERS],
    ids=["few", "others"],
)
@pytest.mark.slow
def test_answers_without_the_package_have_the_same_bits(tmp_path, cases):
    run("-m", "tests.serving.exported", tmp_path, *cases)
    served = [json.loads(line) for line in run("-c", SERVER, tmp_path).splitlines()]
    assert [row for row in served if not row[2]] == []
    rows = {name: [] for name in sorted({row[0] for row in served})}
    for name, count, _, labels in served:
        rows[name].append(count)
        assert set(labels) <= {"ash", "beech", "cedar", "elm"}
        assert bool(labels) != name.startswith("regressor")
    for name in cases:
        long = name == "classifier_long"
        assert rows[f"{name}.npz"] == ([64, 4096, 4097, 9000] if long else [1, 7, 64, 300])
        assert rows[f"{name}_64.npz"] == [64]


def loaded(path):
    with np.load(path, allow_pickle=False) as file:
        members = {name: file[name] for name in file.files}
    metadata = json.loads(members["metadata"].tobytes())
    return export.deserialize(bytearray(members["predict"])), members, metadata


def fitted(**options):
    X, y = blobs(60)
    return EdRVFLClassifier(**SMALL | options).fit(X, y)


def test_members_and_metadata(tmp_path):
    double_before = jax.config.jax_enable_x64
    export_model(fitted(), tmp_path / "a.npz", batch_size=np.int64(5), columns=list("abcdef"))
    assert jax.config.jax_enable_x64 == double_before
    predict, members, metadata = loaded(tmp_path / "a.npz")
    assert sorted(members) == ["classes", "metadata", "predict"]
    assert members["classes"].tolist() == [0, 1, 2, 3]
    versions = metadata.pop("versions")
    assert versions["jax"] == jax.__version__
    assert versions["rvfl-jax"] == rvfl_jax.__version__
    assert metadata == {
        "format": 1,
        "kind": "classifier",
        "precision": "double",
        "dtype": "float64",
        "num_features": 6,
        "batch_size": 5,
        "rows_at_once": 4096,
        "columns": list("abcdef"),
        "standardised": False,
        "platforms": list(PLATFORMS),
    }
    assert predict.platforms == PLATFORMS
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_a_regressor_has_no_classes_and_replaces_what_was_there(tmp_path):
    X, y = blobs(60)
    frame = pd.DataFrame(X, columns=list("uvwxyz"))
    model = EdRVFLRegressor(**SMALL, precision="single").fit(frame, y)
    (tmp_path / "a.npz").write_text("before")
    export_model(model, tmp_path / "a.npz")
    predict, members, metadata = loaded(tmp_path / "a.npz")
    assert sorted(members) == ["metadata", "predict"]
    assert (metadata["kind"], metadata["dtype"]) == ("regressor", "float32")
    assert (metadata["batch_size"], metadata["columns"]) == (None, list("uvwxyz"))
    assert predict.call(X.astype(np.float32)).shape == (60,)


def test_what_does_not_fit_is_refused_at_serving(tmp_path):
    export_model(fitted(), tmp_path / "a.npz", batch_size=5)
    predict = loaded(tmp_path / "a.npz")[0]
    with jax.enable_x64(True):
        with pytest.raises(ValueError, match="shape"):
            predict.call(np.zeros((5, 7)))
        with pytest.raises(ValueError, match="shape"):
            predict.call(np.zeros((6, 6)))
        with pytest.raises(ValueError, match="expected float64 and called with float32"):
            predict.call(np.zeros((5, 6), np.float32))
    # Where JAX is in single precision, inputs never arrive in double.
    with pytest.raises(ValueError, match="expected float64 and called with float32"):
        predict.call(np.zeros((5, 6)))


def test_a_file_for_other_machines_says_so(tmp_path):
    export_model(fitted(), tmp_path / "a.npz", platforms=["cuda"])
    predict, _, metadata = loaded(tmp_path / "a.npz")
    assert metadata["platforms"] == ["cuda"]
    with jax.enable_x64(True), pytest.raises(ValueError, match="cuda"):
        predict.call(np.zeros((2, 6)))


def test_a_model_of_the_command_line_takes_raw_features(tmp_path, capsys):
    from rvfl_jax.cli.main import main
    from rvfl_jax.data.tables import read_parts

    table().to_csv(tmp_path / "a.csv", index=False)
    assert main(["fit", str(tmp_path / "a.csv"), *FIT, "--out", str(tmp_path / "model")]) == 0
    capsys.readouterr()
    model = load_model(tmp_path / "model")
    export_model(model, tmp_path / "a.npz")
    with pytest.raises(ValueError, match="scales by itself"):
        export_model(model, tmp_path / "b.npz", mean=np.zeros(5))
    predict, members, metadata = loaded(tmp_path / "a.npz")
    assert metadata["columns"] == ["a", "b", "c", "d", "e"]
    assert metadata["standardised"]
    assert members["classes"].tolist() == sorted(NAMES)
    (part,) = read_parts(str(tmp_path / "a.csv"), rows=1000, label="species", needs_label=True)
    with jax.enable_x64(True):
        got = np.asarray(predict.call(part.X))
    np.testing.assert_array_equal(
        got, model.predict_proba(pd.DataFrame(part.X, columns=list("abcde")))
    )


@pytest.mark.parametrize("given", [{"mean": np.arange(6.0)}, {"scale": np.arange(1.0, 7.0)}])
def test_mean_and_scale_alone(tmp_path, given):
    X, _ = blobs(9)
    model = fitted()
    export_model(model, tmp_path / "a.npz", **given)
    expected = model.predict_proba((X - given.get("mean", 0.0)) / given.get("scale", 1.0))
    # A row that is no number spoils no other.
    X[4, 2], expected[4] = np.nan, np.nan
    with jax.enable_x64(True):
        got = np.asarray(loaded(tmp_path / "a.npz")[0].call(X))
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize("estimator", ["trace", "random_diagonal"])
def test_a_learner_without_labels_counts_its_columns(tmp_path, estimator):
    learner = rvfl_jax.edrvfl(
        num_layers=1, num_nodes=8, ridge=0.5, k=rvfl_jax.adaptive_k(estimator=estimator)
    )
    state = learner.init(jax.random.key(0), 6, 4)
    export_learner(learner, state, tmp_path / "a.npz")
    predict, members, metadata = loaded(tmp_path / "a.npz")
    assert members["classes"].tolist() == [0, 1, 2, 3]
    assert (metadata["kind"], metadata["num_features"]) == ("learner", 6)
    X = blobs(5)[0].astype(np.float32)
    np.testing.assert_array_equal(predict.call(X), learner.predict(state, X))


def test_only_what_predicts_is_in_the_file(tmp_path):
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=200, ridge=0.5, k=1.0)
    state = learner.init(jax.random.key(0), 6, 4)
    export_learner(learner, state, tmp_path / "a.npz")
    needed = state.W.nbytes + state.theta.nbytes
    assert needed < (tmp_path / "a.npz").stat().st_size < needed + 30_000 < state.eta.nbytes * 2


def own_learner(width):
    """With a state that has no random weights."""

    class State(NamedTuple):
        theta: jax.Array

    return rvfl_jax.make_learner(
        lambda key, s, m: State(jax.numpy.ones((s, m))),
        lambda state, *batch, **weights: (state, None),
        lambda state, X: (X @ state.theta)[None],
        combine=lambda scores: scores[0],
    ), State(jax.numpy.ones((width, 2)))


def test_a_learner_of_your_own_tells_its_features(tmp_path):
    learner, state = own_learner(3)
    with pytest.raises(ValueError, match="num_features: expected a number"):
        export_learner(learner, state, tmp_path / "a.npz")
    export_learner(learner, state, tmp_path / "a.npz", num_features=3)
    predict, _, _ = loaded(tmp_path / "a.npz")
    np.testing.assert_array_equal(predict.call(np.ones((4, 3), np.float32)), np.full((4, 2), 3.0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size: expected an integer of at least 1, got 0"),
        ({"batch_size": True}, "batch_size: expected an integer of at least 1, got True"),
        ({"mean": np.zeros(5)}, r"mean: expected shape \(6\) = .*, got \(5,\)"),
        ({"scale": 2.0}, r"scale: expected shape \(6\) = .*, got \(\)"),
        ({"scale": [1, 1, 1, 0, 1, 1]}, "scale: expected above 0, got 0.0"),
        ({"mean": [0, 0, np.nan, 0, 0, 0]}, r"mean: expected finite numbers, got nan at \(2,\)"),
        ({"columns": ["a"]}, r"columns: expected shape \(6\) = .*, got \(1,\)"),
        ({"platforms": ()}, "platforms: expected at least one, got none"),
        ({"platforms": ("cpu", "abacus")}, "platforms: expected one of cpu, .*, got 'abacus'"),
    ],
)
def test_bad_options_leave_nothing(tmp_path, options, message):
    with pytest.raises(ValueError, match=message):
        export_model(fitted(), tmp_path / "a.npz", **options)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (EdRVFLClassifier(), "expected a fitted estimator"),
        (EdRVFLRegressor(), "expected a fitted estimator"),
        ("model/", "expected EdRVFLClassifier or EdRVFLRegressor, got str"),
    ],
)
def test_models_that_cannot_answer_leave_nothing(tmp_path, model, message):
    with pytest.raises(ValueError, match=message):
        export_model(model, tmp_path / "a.npz")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([("a", 1), ("b", 2)], "expected labels all bool, int, float or str, got tuple"),
        ([1, "one"], "expected labels all bool, int, float or str, got int, str"),
        (["a", "b\0"], r"expected labels that NumPy keeps as they are, got 'b\\x00'"),
        ([1, 2**70], "expected labels that NumPy keeps as they are, got"),
        (["a", "b", "c"], r"classes: expected shape \(2\) = .*, got \(3,\)"),
    ],
)
def test_labels_that_are_not_plain_leave_nothing(tmp_path, labels, message):
    learner, state = own_learner(3)
    with pytest.raises(ValueError, match=message):
        export_learner(learner, state, tmp_path / "a.npz", num_features=3, classes=labels)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.array(["ü", "long label"], object), "U"),
        ([np.int64(7), -3], "i"),
        ([0.5, 1.5], "f"),
        (np.array([False, True]), "b"),
    ],
)
def test_plain_labels_are_kept(tmp_path, labels, kind):
    learner, state = own_learner(3)
    export_learner(learner, state, tmp_path / "a.npz", num_features=3, classes=labels)
    kept = loaded(tmp_path / "a.npz")[1]["classes"]
    assert kept.dtype.kind == kind
    assert kept.tolist() == list(labels)


def test_a_folder_that_is_missing_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        export_model(fitted(), tmp_path / "none" / "a.npz")


def test_labels_of_leading_columns_leave_the_rest_out(tmp_path):
    X, y = blobs(40)
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=0.5, k=0.0)
    batches = [(X[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8)]
    run = rvfl_jax.run_stream(learner, batches, key=jax.random.key(0), num_classes=10)
    path = tmp_path / "p.npz"
    export_learner(learner, run.state, path, classes=run.history.classes)
    with np.load(path) as members:
        file = dict(members)
    assert file["classes"].tolist() == list(run.history.classes)
    with jax.enable_x64(True):
        told = np.asarray(export.deserialize(bytearray(file["predict"])).call(X))
    assert told.shape == (40, 4)


# What reads these files: it checks, pads and compiles ahead.


@pytest.fixture
def few_rows(monkeypatch):
    """Models whose largest program has 32 rows, so that there are three to compile."""
    monkeypatch.setattr(Fitted, "rows_at_once", 32)


@pytest.mark.parametrize(
    "options",
    [
        {"k": 1.0, "precision": "single"},
        pytest.param({}, marks=pytest.mark.slow),
        pytest.param({"readout": "discriminant"}, marks=pytest.mark.slow),
    ],
    ids=["forward", "ridge", "discriminant"],
)
def test_once_warm_no_number_of_rows_compiles_and_answers_are_the_models(
    tmp_path, few_rows, options
):
    X, y = blobs(103)
    names = np.array(["ash", "beech", "cedar", "elm"])
    model = EdRVFLClassifier(**SMALL | options).fit(X, names[y])
    export_model(model, tmp_path / "a.npz")
    expected = {n: model.predict_proba(X[:n]) for n in (1, 7, 8, 9, 31, 32, 33, 64, 71, 103)}
    labels = model.predict(X)
    predictor = Predictor(tmp_path / "a.npz").warm_up()
    with counted_compilations() as made:
        for n, probabilities in expected.items():
            told = predictor.predict_proba(X[:n])
            np.testing.assert_array_equal(told, probabilities)
            assert told.dtype == model._dtype
        for n in range(1, 104):
            np.testing.assert_array_equal(predictor.predict(X[:n]), labels[:n])
    assert not made
    assert predictor.predict_proba(X[:0]).shape == (0, 4)
    assert predictor.predict(X[:0]).shape == (0,)
    assert len(repr(predictor)) < 300
    again = pickle.loads(pickle.dumps(predictor))
    np.testing.assert_array_equal(again.predict_proba(X[:9]), expected[9])


def test_warm_up_to_some_rows_compiles_for_no_fewer(tmp_path):
    X, _ = blobs(40)
    export_model(fitted(), tmp_path / "a.npz")
    predictor = Predictor(tmp_path / "a.npz")
    with counted_compilations() as made:
        predictor.warm_up(9)
        assert len(made) == 2
        for n in range(1, 17):
            predictor.predict(X[:n])
        assert len(made) == 2
        predictor.predict(X[:17])
    assert len(made) == 3
    for bad in (0, 2.5, True, "8"):
        with pytest.raises(ValueError, match="rows: expected an integer of at least 1"):
            predictor.warm_up(bad)


def test_predictors_of_learners_regressors_and_a_fixed_size(tmp_path, few_rows):
    X, y = blobs(23)
    targets = np.stack([X[:, 0], X[:, 1] ** 2], axis=1)
    for target in (targets, targets[:, 0]):
        model = EdRVFLRegressor(**SMALL).fit(X, target)
        export_model(model, tmp_path / "r.npz")
        predictor = Predictor(tmp_path / "r.npz")
        np.testing.assert_array_equal(predictor.predict(X), model.predict(X))
        with pytest.raises(ValueError, match="predict_proba: expected a classifier"):
            predictor.predict_proba(X)
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=0.5, k=0.0)
    state, _ = learner.step(learner.init(jax.random.key(0), 6, 4), X, np.eye(4)[y])
    export_learner(learner, state, tmp_path / "l.npz")
    predictor = Predictor(tmp_path / "l.npz")
    padded = np.vstack([X, np.zeros((9, 6))]).astype(np.float32)
    np.testing.assert_array_equal(
        predictor.predict_proba(X), learner.predict(state, padded)[: len(X)]
    )
    np.testing.assert_array_equal(
        predictor.predict(X), np.asarray(learner.predict(state, X)).argmax(axis=1)
    )
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    export_model(model, tmp_path / "f.npz", batch_size=16)
    predictor = Predictor(tmp_path / "f.npz").warm_up()
    expected = model.predict_proba(X[:16]), model.predict_proba(X)
    with counted_compilations() as made:
        np.testing.assert_array_equal(predictor.predict_proba(X[:16]), expected[0])
        np.testing.assert_allclose(predictor.predict_proba(X), expected[1], rtol=1e-9)
    assert not made


def changed(X, row, column, value):
    X = X.copy()
    X[row, column] = value
    return X


SOME = blobs(12)[0]


@pytest.mark.parametrize(
    ("X", "message"),
    [
        (changed(SOME, 3, 2, np.nan), "got nan in row 3, column 'c' \\(1 such rows\\)"),
        (changed(SOME, [4, 7], 0, np.inf), "got inf in row 4, column 'a' \\(2 such rows\\)"),
        (changed(SOME, 5, 1, 1e39), "in float32, got 1e\\+39 in row 5, column 'b'"),
        (changed(SOME.astype(bfloat16), 2, 2, np.nan), "got nan in row 2, column 'c'"),
        (np.ma.masked_greater(SOME, 0), r"got a masked one at \(0, "),
        (SOME[:, :5], r"X: expected shape \(n, 6\), got \(12, 5\)"),
        (SOME[0], r"X: expected shape \(n, 6\), got \(6,\)"),
        (SOME.astype(str), "X: expected real numbers, got dtype <U"),
        (SOME * 1j, "X: expected real numbers"),
        (pd.DataFrame(SOME, columns=list("abcdef"))[list("bacdef")], "columns in their order"),
        (
            pd.DataFrame(SOME[:, :5], columns=list("abcdx")),
            r"got 2 missing \('e', 'f'\), 1 not known \('x'\)",
        ),
    ],
)
def test_a_predictor_says_what_it_cannot_take(tmp_path, X, message):
    export_model(fitted(precision="single"), tmp_path / "a.npz", columns=list("abcdef"))
    with pytest.raises(ValueError, match=message):
        Predictor(tmp_path / "a.npz").predict(X)


def test_frames_integers_and_narrow_floats_are_rows(tmp_path):
    model = fitted()
    export_model(model, tmp_path / "a.npz", columns=list("abcdef"))
    predictor = Predictor(tmp_path / "a.npz")
    frame = pd.DataFrame(SOME, columns=list("abcdef"))
    np.testing.assert_array_equal(predictor.predict_proba(frame), model.predict_proba(SOME))
    np.testing.assert_array_equal(predictor.predict(SOME.tolist()), model.predict(SOME))
    for dtype in (int, bool, bfloat16):
        X = SOME.astype(dtype)
        np.testing.assert_array_equal(predictor.predict(X), model.predict(X.astype(float)))


def test_an_answer_that_overflows_is_an_error(tmp_path):
    export_model(fitted(), tmp_path / "a.npz")
    with pytest.raises(ArithmeticError, match=r"in row 6 that overflows \(1 such rows\)"):
        Predictor(tmp_path / "a.npz").predict(changed(SOME, 6, slice(None), 1.7e308))


@pytest.mark.parametrize("damage", ["not there", "text", "another npz", "cut", "flipped"])
def test_a_file_that_is_no_predictor(tmp_path, damage):
    path = tmp_path / "a.npz"
    if damage == "not there":
        with pytest.raises(FileNotFoundError):
            Predictor(path)
        return
    export_model(fitted(), path)
    whole = path.read_bytes()
    flipped = whole[:2000] + bytes([whole[2000] ^ 255]) + whole[2001:]
    path.write_bytes({"cut": whole[:3000], "flipped": flipped}.get(damage, b"no predictor"))
    if damage == "another npz":
        np.savez(path, X=SOME)
    with pytest.raises(ValueError, match=r"a\.npz: expected an exported predictor"):
        Predictor(path)


ALONE = """
import sys
for name in {blocked}:
    sys.modules[name] = None
import numpy as np
sys.path.insert(0, {folder!r})
from {module} import Predictor
print(Predictor({path!r}).predict(np.load({rows!r})).tolist())
"""


@pytest.mark.parametrize("module", ["rvfl_jax", pytest.param("copied", marks=pytest.mark.slow)])
def test_a_predictor_needs_jax_and_numpy_alone(tmp_path, module):
    model = fitted()
    export_model(model, tmp_path / "a.npz")
    np.save(tmp_path / "rows.npy", SOME)
    shutil.copy(rvfl_jax.serving.predictor.__file__, tmp_path / "copied.py")
    blocked = ["sklearn", "scipy.stats", "chex", "flax", "optax", "matplotlib", "rich", "pandas"]
    code = ALONE.format(
        blocked=blocked + ["rvfl_jax"] * (module == "copied"),
        folder=str(tmp_path),
        module=module,
        path=str(tmp_path / "a.npz"),
        rows=str(tmp_path / "rows.npy"),
    )
    assert json.loads(run("-c", code)) == model.predict(SOME).tolist()


@pytest.mark.skipif(sys.platform == "win32", reason="cannot fork")
def test_a_predictor_in_a_forked_process_says_so(tmp_path, monkeypatch):
    export_model(fitted(), tmp_path / "a.npz")
    predictor = Predictor(tmp_path / "a.npz")
    predictor.predict(SOME)
    monkeypatch.setattr("os.getpid", lambda: -1)
    with pytest.raises(RuntimeError, match=r"forked after JAX was in use.*spawn"):
        predictor.predict(SOME)
