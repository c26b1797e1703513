"""What the experiments are made of: resumable results, peers, batches of encoded rows."""

import json
from dataclasses import dataclass

import jax
import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

import rvfl_jax
from experiments import fashion_mnist as fm
from experiments import peers
from experiments.results_file import ResultsFile, mean_and_deviation
from experiments.train_resnet import Config, augmented, main
from rvfl_jax.encoders import load_checkpoint
from tests.streams import blobs


@dataclass(frozen=True)
class Setting:
    seeds: int = 2
    nodes: int = 8


def test_results_go_on_where_they_were(tmp_path):
    path, made = tmp_path / "results" / "results.json", []

    def make(value):
        made.append(value)
        return {"value": value, "array": np.arange(2), "nothing": np.nan}

    first = ResultsFile(path, Setting())
    assert first.once("a", lambda: make(1)) == {"value": 1, "array": [0, 1], "nothing": None}
    again = ResultsFile(path, Setting())
    again.once("a", lambda: make(2))
    again.once("b", lambda: make(3))
    assert made == [1, 3]
    content = json.loads(path.read_text())
    assert set(content["records"]) == {"a", "b"}
    assert content["config"] == {"seeds": 2, "nodes": 8}
    assert content["versions"]["jax"] == jax.__version__


def test_results_of_another_configuration_are_set_aside(tmp_path):
    path = tmp_path / "results.json"
    ResultsFile(path, Setting()).once("a", lambda: {"value": 1})
    more = ResultsFile(path, Setting(seeds=3))
    assert more.records == {"a": {"value": 1}}, "more seeds add to what is there"
    other = ResultsFile(path, Setting(nodes=9))
    assert other.records == {}
    kept = json.loads((tmp_path / "results.other.json").read_text())
    assert kept["records"] == {"a": {"value": 1}}


def test_an_interrupted_record_leaves_the_others(tmp_path):
    path = tmp_path / "results.json"
    file = ResultsFile(path, Setting())
    file.once("a", lambda: {"value": 1})

    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        file.once("b", interrupted)
    assert set(ResultsFile(path, Setting()).records) == {"a"}


def test_means_have_sample_deviations():
    assert mean_and_deviation([1.0, 2.0, 3.0], 100, 1) == "200.0 ± 100.0"
    assert mean_and_deviation([0.5]) == "0.5000"
    assert mean_and_deviation([1.0, None]) == ""
    assert mean_and_deviation([]) == ""


@pytest.fixture(scope="module")
def two_batchings():
    X, y = blobs(120, features=5, classes=4)
    X = X.astype(np.float32)
    make = rvfl_jax.class_incremental_stream
    return [make(X, y, num_tasks=2, num_batches=T, seed=3, order="tasks") for T in (2, 7)]


def test_encoded_rows_are_cut_anew_without_being_encoded_again(two_batchings):
    coarse, fine = two_batchings
    cases = [
        fm.Case(stream, np.zeros((0, 5)), *(np.zeros(0),) * 2, None) for stream in (coarse, fine)
    ]
    again = fm.rebatched(cases[0], cases[1])
    np.testing.assert_array_equal(again.stream.X, fine.X)
    shuffled = fine._replace(y=fine.y[::-1])
    with pytest.raises(ValueError, match="same rows in the same order"):
        fm.rebatched(cases[0], fm.Case(shuffled, *(np.zeros(0),) * 3, None))


def test_nearest_class_mean_is_the_nearest_centroid(two_batchings):
    stream = two_batchings[1]
    used = stream.weight > 0
    X, y = stream.X[used], stream.y[used]
    scores = peers.nearest_class_mean(stream)(X)
    np.testing.assert_array_equal(scores.argmax(axis=1), NearestCentroid().fit(X, y).predict(X))


def test_streaming_lda_is_near_lda_on_all_rows(two_batchings):
    stream = two_batchings[1]
    used = stream.weight > 0
    X, y = stream.X[used].astype(float), stream.y[used]
    exact = LinearDiscriminantAnalysis(priors=np.full(4, 0.25)).fit(X, y).predict(X)
    streamed = peers.streaming_lda(stream)(X).argmax(axis=1)
    assert np.mean(exact == streamed) > 0.95


def test_sgd_sees_one_pass(two_batchings):
    stream = two_batchings[1]
    scores = peers.sgd(stream, seed=0)(stream.X[stream.weight > 0])
    assert scores.shape == (120, 4)
    two = stream._replace(classes=stream.classes[:2], y=stream.y % 2)
    scores = peers.sgd(two, seed=0)(stream.X[stream.weight > 0])
    assert scores.shape == (120, 2)


def test_augmentation_keeps_size_and_pixels():
    images = jax.random.uniform(jax.random.key(0), (8, 32, 32, 3))
    changed = augmented(jax.random.key(1), images)
    assert changed.shape == images.shape
    assert set(np.unique(np.asarray(changed))) <= set(np.unique(np.asarray(images)))
    assert np.abs(np.asarray(changed - images)).max() > 0


@pytest.mark.slow
def test_resnet_training_lowers_the_loss(tmp_path, capsys):
    rng = np.random.default_rng(0)
    y = np.arange(32) % 2
    X = rng.integers(0, 60, (32, 32, 32, 3), np.uint8)
    X[y == 1] += 150
    images, out = tmp_path / "images.npz", tmp_path / "resnet.npz"
    np.savez(images, X_train=X, y_train=y)
    main(Config(images, out, depth=8, epochs=4, batch_size=16, learning_rate=0.02))
    lines = [line for line in capsys.readouterr().err.splitlines() if "loss" in line]
    losses = [float(line.split("loss ")[1].split(",")[0]) for line in lines]
    assert losses[-1] < 0.5 * losses[0]
    load_checkpoint(out, depth=8)
