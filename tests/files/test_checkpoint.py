"""Checkpoints are whole or not there; restoring is strict; models go on to the last bit."""

import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import (
    EdRVFLClassifier,
    EdRVFLRegressor,
    adaptive_k,
    load_model,
    save_model,
)
from rvfl_jax.estimators import save
from rvfl_jax.estimators.save import FILE
from rvfl_jax.files.checkpoint import load_checkpoint_file, restore, save_checkpoint
from tests.amounts import slow_but
from tests.estimators.test_estimator import SMALL, blobs
from tests.streams import environment
from tests.trees import same


def tree():
    learner = rvfl_jax.edrvfl(
        num_layers=2, num_nodes=5, ridge=0.5, k=adaptive_k(estimator="random_diagonal")
    )
    return learner.init(jax.random.key(3), 4, 2)


def test_round_trip_is_bitwise(tmp_path):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tree(), {"position": 7})
    checkpoint = load_checkpoint_file(path)
    same(restore(checkpoint, tree()), tree())
    assert checkpoint.metadata["metadata"] == {"position": 7}
    assert checkpoint.metadata["versions"]["jax"] == jax.__version__
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_files_can_be_read_by_whom_the_folder_allows(tmp_path):
    before = os.umask(0o027)
    try:
        save_checkpoint(tmp_path / "a.npz", tree(), {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.npz").stat().st_mode & 0o777 == 0o640


def test_restore_lists_all_differences(tmp_path):
    path = tmp_path / "a.npz"
    save_checkpoint(path, {"a": np.zeros(3), "b": np.zeros(2), "c": np.zeros(1)}, {})
    like = {"a": np.zeros(3, np.float32), "b": np.zeros(5), "d": np.zeros(1)}
    with pytest.raises(ValueError, match="4 differences") as error:
        restore(load_checkpoint_file(path), like)
    for part in ("float32[3], got float64[3]", "float64[5], got float64[2]", "['c']", "['d']"):
        assert part in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated_files_are_clear_errors(tmp_path, share):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tree(), {})
    whole = path.read_bytes()
    path.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(ValueError, match="the checkpoint is damaged") as error:
        load_checkpoint_file(path)
    assert "\n" not in str(error.value)


@pytest.mark.slow
def test_flipped_bits_are_clear_errors_or_harmless(tmp_path):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tree(), {"position": 7})
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    damaged = 0
    for place in rng.integers(0, len(whole), 300):
        spoilt = bytearray(whole)
        spoilt[place] ^= 1 << int(rng.integers(8))
        path.write_bytes(bytes(spoilt))
        try:
            checkpoint = load_checkpoint_file(path)
        except ValueError:
            damaged += 1
            continue
        # Some bits, as the times of members, mean nothing.
        same(restore(checkpoint, tree()), tree())
    assert damaged > 200


def test_missing_files_and_other_formats(tmp_path):
    with pytest.raises(ValueError, match=r"expected a file at .*found none"):
        load_checkpoint_file(tmp_path / "none.npz")
    np.savez(tmp_path / "other.npz", X=np.zeros(3))
    with pytest.raises(ValueError, match="damaged"):
        load_checkpoint_file(tmp_path / "other.npz")


@pytest.mark.skipif(os.geteuid() == 0, reason="nothing is read-only for root")
def test_a_read_only_folder_keeps_what_was_there(tmp_path):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tree(), {"position": 1})
    before = path.read_bytes()
    tmp_path.chmod(0o500)
    try:
        with pytest.raises(OSError, match=r".+"):
            save_checkpoint(path, tree(), {"position": 2})
    finally:
        tmp_path.chmod(0o700)
    assert path.read_bytes() == before


def test_a_failed_write_keeps_what_was_there(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    save_checkpoint(path, tree(), {"position": 1})

    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(path, tree(), {"position": 2})
    assert load_checkpoint_file(path).metadata["metadata"] == {"position": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


MODELS = {
    "ridge": SMALL,
    "forward, held": SMALL | {"k": 1.5},
    "bayes": SMALL | {"k": adaptive_k(kappa=[1.0, 2.0], estimator="random_diagonal")},
    "single": SMALL | {"precision": "single", "ridge": np.array([0.5, 0.7])},
    "discriminant": SMALL | {"readout": "discriminant", "class_weight": {("a", 1): 2.0}},
    "forgetting": SMALL | {"forgetting": 0.99, "intercept": False},
}


@pytest.mark.parametrize("name", slow_but(["forward, held", "discriminant", "forgetting"], MODELS))
def test_models_answer_and_go_on_to_the_last_bit(tmp_path, name):
    X, y = blobs(num_classes=4)
    labels = [("a", 1), "bb", 7, True]
    given = [labels[c] for c in y]
    model = EdRVFLClassifier(**MODELS[name])
    for start in range(0, 80, 20):
        model.partial_fit(X[start : start + 20], given[start : start + 20], classes=["later"])
    save_model(model, tmp_path / "model")
    twin = load_model(tmp_path / "model")
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    assert list(twin.classes_) == list(model.classes_)
    for each in (model, twin):
        each.partial_fit(X[80:], given[80:])
    np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))
    assert twin.num_rows_seen_ == model.num_rows_seen_ == 120


def test_models_from_before_states_told_their_lambda_go_on(tmp_path):
    X, y = blobs(40)
    model = rvfl_jax.EdRVFLClassifier(1, 12, ridge=0.25, random_state=0).fit(X, y)
    state = model._fitted.state
    np.testing.assert_array_equal(state.ridge, 0.25)
    model._fitted = model._fitted._replace(learned=state._replace(ridge=None))
    rvfl_jax.save_model(model, tmp_path)
    assert "['known'].state.ridge" not in load_checkpoint_file(tmp_path / "model.npz").arrays
    again = rvfl_jax.load_model(tmp_path)
    np.testing.assert_array_equal(again._fitted.state.ridge, 0.25)
    want = rvfl_jax.EdRVFLClassifier(1, 12, ridge=0.25, random_state=0).fit(X, y)
    for one in (again, want):
        one.partial_fit(X[:9], y[:9])
    # A state has to be inverted to become sums.
    scores = again.decision_function(X)
    np.testing.assert_allclose(scores, want.decision_function(X), atol=1e-12)


def test_models_of_an_earlier_form_are_refused(tmp_path, monkeypatch):
    X, y = blobs()
    for name, refused in (("bayes", True), ("forward, held", False)):
        encoded = save._encoded

        def earlier(name, value, encoded=encoded):
            found = encoded(name, value)
            if isinstance(found, dict) and "adaptive_k" in found:
                found["adaptive_k"] = found["adaptive_k"][:4]
            return found

        with monkeypatch.context() as patch:
            patch.setattr(save, "_encoded", earlier)
            save_model(EdRVFLClassifier(**MODELS[name]).fit(X, y), tmp_path / name)
        if refused:
            with pytest.raises(ValueError, match=r"strength of form 2, got one of an earlier"):
                load_model(tmp_path / name)
        else:
            load_model(tmp_path / name)


def test_regressors_and_names_of_features_survive(tmp_path):
    import pandas as pd

    X, y = blobs()
    table = pd.DataFrame(X, columns=list("vwxyz"))
    model = EdRVFLRegressor(**SMALL).fit(table, y)
    save_model(model, tmp_path)
    twin = load_model(tmp_path)
    np.testing.assert_array_equal(twin.predict(table), model.predict(table))
    with pytest.raises(ValueError, match="feature names"):
        twin.predict(table[list("zyxwv")])


def test_models_that_cannot_be_saved(tmp_path):
    X, y = blobs()
    with pytest.raises(ValueError, match="learned nothing"):
        save_model(EdRVFLClassifier(), tmp_path)
    with pytest.raises(ValueError, match="activation: expected numbers"):
        save_model(EdRVFLClassifier(**SMALL | {"activation": jax.nn.gelu}).fit(X, y), tmp_path)
    assert not (tmp_path / FILE).exists()


@pytest.mark.slow
def test_weights_are_stored_and_not_only_their_seed(tmp_path):
    """orbax 620, jax 13346: restored under another way of drawing random numbers."""
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    save_model(model, tmp_path)
    np.save(tmp_path / "X.npy", X)
    program = (
        "import jax, json, numpy as np\n"
        "jax.config.update('jax_threefry_partitionable',"
        " not jax.config.jax_threefry_partitionable)\n"
        "import rvfl_jax\n"
        f"X = np.load({str(tmp_path / 'X.npy')!r})\n"
        f"print(json.dumps(rvfl_jax.load_model({str(tmp_path)!r}).predict(X).tolist()))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment()
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == model.predict(X).tolist()


def test_stopping_after_some_batches_changes_nothing(tmp_path):
    """joeynmt 125: no batch is learned twice, and none is left out."""
    X, y = blobs(num_rows=400)
    batches = [slice(4 * t, 4 * t + 4) for t in range(100)]
    through = EdRVFLClassifier(**SMALL | {"k": 1.0})
    for batch in batches:
        through.partial_fit(X[batch], y[batch])
    model = EdRVFLClassifier(**SMALL | {"k": 1.0})
    for batch in batches[:37]:
        model.partial_fit(X[batch], y[batch])
    save_model(model, tmp_path)
    del model
    again = load_model(tmp_path)
    for batch in batches[again.num_rows_seen_ // 4 :]:
        again.partial_fit(X[batch], y[batch])
    np.testing.assert_array_equal(again.predict_proba(X), through.predict_proba(X))
