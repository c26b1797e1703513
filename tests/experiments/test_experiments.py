"""What the experiments are made of: resumable results, peers, batches of encoded rows."""

import csv
import json
import shutil
from dataclasses import dataclass
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.neighbors import NearestCentroid

import rvfl_jax
from experiments import (
    beyond,
    cifar100,
    claims,
    estimator,
    peers,
    plant_margin,
    unknown,
    vit_table,
)
from experiments import fashion_mnist as fm
from experiments import fashion_mnist_curves as curves
from experiments import fashion_mnist_table as table
from experiments.benchmarks import report as benchmark_report
from experiments.results_file import ResultsFile, mean_and_deviation
from experiments.settings import RESULTS
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
    assert content["made"].keys() == {"a", "b"}
    assert content["made"]["a"]["versions"]["jax"] == jax.__version__
    assert content["made"]["a"]["processor"]


def test_results_of_another_configuration_are_set_aside(tmp_path):
    path = tmp_path / "results.json"
    ResultsFile(path, Setting()).once("a", lambda: {"value": 1})
    more = ResultsFile(path, Setting(seeds=3))
    assert more.records == {"a": {"value": 1}}, "more seeds add to what is there"
    other = ResultsFile(path, Setting(nodes=9))
    assert other.records == {}
    other.once("b", lambda: {"value": 2})
    back = ResultsFile(path, Setting())
    assert back.records == {"a": {"value": 1}}, "taken up again"
    assert ResultsFile(path, Setting(nodes=9)).records == {"b": {"value": 2}}
    assert len(list(tmp_path.glob("results.*.json"))) == 1


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


def test_intervals_are_those_of_a_paired_t_test():
    from scipy.stats import ttest_1samp

    differences = np.random.default_rng(0).normal(0.3, 1.0, 10)
    mean, low, high = claims.interval(differences)
    want = ttest_1samp(differences, 0.0).confidence_interval(0.95)
    np.testing.assert_allclose((mean, low, high), (differences.mean(), *want))


def test_a_verdict_needs_an_interval_without_zero():
    verdicts = [claims._verdict(*gain) for gain in ((1, 0.5, 2), (1, -0.5, 2), (-1, -2, -0.5))]
    assert verdicts == ["holds", "no difference", "reversed"]


def _swept(loss, **axes):
    """Records of a sweep in which accuracy falls as the loss grows."""
    loss = np.asarray(loss, dtype=float)
    extra = {f"{name.replace('_', ' ')} axis": np.asarray(axis) for name, axis in axes.items()}
    return {"loss": loss, "early": loss + 1, "accuracy": 0.9 - loss / 10, **extra}


@pytest.mark.parametrize(
    ("shift", "verdicts"),
    [
        (-0.1, ["holds, loses less", "holds", "holds", "neither"]),
        (0.1, ["does not hold", "reversed", "reversed", "neither"]),
        (0.0, ["holds, as near as that", "no difference", "no difference", "lambda"]),
    ],
)
def test_claims_on_strength_follow_the_loss(shift, verdicts):
    noise = np.random.default_rng(1).normal(0, 1e-3, (3, 2, 4))
    base = np.array([[0.6], [0.5], [0.6]])
    alone = _swept(base + np.zeros((3, 4)), ridge=[0.1, 1.0, 10.0])
    loss = (base + np.array([0.0, shift]))[..., None] + noise
    constant = _swept(loss, ridge=[0.1, 1.0, 10.0], k=[0.0, 1.0])
    rows = list(claims._of_strength(alone, constant, "here"))
    assert [row[3] for row in rows] == verdicts
    assert rows[0][2].startswith("k = 1, lambda 1 against lambda 1: ")


def test_a_gain_of_lambda_is_not_one_of_strength():
    alone = _swept([[0.5] * 4, [0.6] * 4], ridge=[0.1, 1.0])
    loss = np.array([[0.5, 0.5], [0.4, 0.4]])[..., None] + np.zeros(4)
    constant = _swept(loss, ridge=[0.1, 1.0], k=[0.0, 1.0])
    rows = list(claims._of_strength(alone, constant, "here"))
    assert rows[2][3] == "by lambda alone"
    assert "at equal lambda +0.00" in rows[2][2]


def test_regret_is_compared_in_pairs_with_ridge():
    ridge = np.linspace(4, 1, 20)[:, None] * np.arange(1, 6)
    curves = {style: {"regret": ridge} for style in claims.FIXED}
    curves["-F"] = {"regret": 0.9 * ridge}
    curves["-kF"] = {"regret": 1.1 * ridge}
    rows = list(claims._of_regret(curves, "here"))
    assert [row[3] for row in rows] == ["holds", "reversed", "no difference", "no difference"]
    assert "first quarter +10.000 [+10.000, +10.000] %" in rows[0][2]


def _ends():
    level = np.full((3, 4), 80.0)
    return level, {(style, cold): level for style in claims.FIXED for cold in claims.COLD_STARTS}


def test_robustness_to_batches_is_what_ridge_loses_beyond_the_style():
    level, ends = _ends()
    ends["-R", "paper"] = level - np.array([[30.0], [10.0], [0.0]])
    rows = {row[1]: row for row in claims._of_batches(ends, "here")}
    assert rows["here, -kF, cold start exact"][3] == "no difference"
    assert rows["here, -kF, cold start paper"][3] == "holds"
    assert "-R +30.00 [+30.00, +30.00]" in rows["here, -kF, cold start paper"][2]
    ends["-kF", "paper"] = ends["-R", "paper"]
    rows = {row[1]: row for row in claims._of_batches(ends, "here")}
    assert rows["here, -kF, cold start paper"][3] == "no difference"
    ends["-kF", "paper"] = ends["-R", "paper"] + np.array([[1.0], [0.0], [0.0]])
    ends["-F", "exact"] = level + np.array([[0.0], [0.0], [-1.0]])
    rows = {row[1]: row for row in claims._of_batches(ends, "here")}
    assert rows["here, -kF, cold start paper"][3] == "hardly"
    assert rows["here, -F, cold start exact"][3] == "reversed", "worse with many batches"


def test_what_the_cold_start_as_printed_costs_is_told():
    level, ends = _ends()
    assert claims._of_cold_start(ends, "here")[3] == "no difference"
    ends["-R", "paper"] = level - np.array([[30.0], [0.0], [0.0]])
    row = claims._of_cold_start(ends, "here")
    assert row[3] == "does not hold at T = 5"
    assert "T = 5: -30.00 [-30.00, -30.00]" in row[2]


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.001, "holds (within 1 %)"), (1.1, "does not hold")]
)
def test_adaptive_strength_is_near_the_best_constant_or_not(factor, verdict):
    loss = np.full((2, 2, 4), 0.5)
    constant = _swept(loss, ridge=[0.1, 1.0], k=[0.0, 1.0])
    variants = {"as printed": _swept(factor * loss[:, 0], ridge=[0.1, 1.0])}
    (row,) = claims._of_bayes(constant, variants, "here")
    assert row[3] == verdict


@pytest.mark.parametrize(("apart", "verdict"), [(0.002, "holds (within 1 point)"), (0.02, "not")])
def test_sensitivity_is_that_of_the_accuracy_on_the_way(apart, verdict):
    way = np.full((2, 3, 4), 0.7)
    way[1, 2] -= apart
    swept = {"on the way": way, "loss": 1 - way, "accuracy": way}
    row = claims._of_sensitivity(swept, "here")
    assert verdict in row[3]
    assert f"apart {100 * apart:+.2f}" in row[2]


@pytest.mark.parametrize(
    "module",
    [beyond, cifar100, claims, estimator, curves, table, plant_margin, unknown, vit_table],
    ids=lambda module: module.__name__.split(".")[1],
)
def test_the_tables_kept_are_those_of_the_results_kept(module, tmp_path):
    kept = RESULTS / module.__name__.split(".")[1]
    shutil.copy(kept / "results.json", tmp_path)
    seeds = json.loads((kept / "results.json").read_text())["config"]["seeds"]
    config = module.Config(seeds=seeds)
    file = ResultsFile(tmp_path / "results.json", config)
    if module is beyond:
        module.tabulate(file, tmp_path)
    elif module is table:
        module.write_tables(list(module.rows_of(config, file)), tmp_path)
    elif module is estimator:
        module.write_tables(config, file, tmp_path / "table.md")
    else:
        module.tabulate(config, file, tmp_path)
    for path in (kept / "table.md", *kept.glob("table.csv")):
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name


def test_the_benchmark_table_kept_is_that_of_the_records_kept(tmp_path):
    kept = Path(benchmark_report.__file__).parent / "results"
    for path in kept.glob("*.json"):
        shutil.copy(path, tmp_path)
    assert benchmark_report.write_report(tmp_path) == (kept / "table.md").read_text()
    assert (tmp_path / "cost.png").is_file()


def test_the_best_readout_comes_first(tmp_path):
    file = ResultsFile(tmp_path / "results.json", Setting())
    for name, accuracy in {"poor": 0.2, "good": 0.9}.items():
        for seed in range(2):
            place = f"data | encoder | seed {seed}"
            record = {"class_incremental": accuracy + 0.01 * seed, "task_aware": 1.0}
            file.once(f"{place} | {name}", lambda record=record: record)
            file.once(f"{place} | complete", dict)
    assert [names[2] for names, _ in beyond.best_first(file)] == ["good", "poor"]
    beyond.tabulate(file, tmp_path)
    text = (tmp_path / "table.md").read_text(encoding="utf-8")
    assert "| data | encoder | good | 90.50 ± 0.71 | 100.00 ± 0.00 |  | 2 |" in text
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as table:
        assert [row["readout"] for row in csv.DictReader(table)] == ["good", "poor"]


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


def test_peers_and_ours_are_looked_at_after_the_same_tasks():
    assert plant_margin.looks(25) == [1, 10, 20, 24]
    curve = {"evaluated": list(range(25)), "curves": {"seen": np.arange(25.0)}}
    assert plant_margin._mean_at_looks(curve) == np.mean([1, 10, 20, 24])


def test_long_tails_fall_to_what_was_asked():
    y = np.repeat(np.arange(10), 200)
    rows = estimator.tail_rows(y, 50, seed=0)
    counts = np.sort(np.bincount(y[rows]))[::-1]
    np.testing.assert_allclose(counts, 200 * 50.0 ** (-np.arange(10) / 9), atol=0.6)
    assert len(set(rows.tolist())) == len(rows)


@pytest.mark.slow
def test_the_estimator_is_measured_as_the_report_says(tmp_path):
    config = estimator.Config(seeds=1, num_nodes=16, calls=40)
    found = {
        f"peers | digits | {peer} | seed 0": estimator.beside_peers(
            config, "digits", peer, 0, estimator.METHODS[peer].grid[4]
        )
        for peer in ("EdRVFLClassifier", "SGDClassifier", "RidgeClassifier refitted")
    }
    mine, _, refitted = (record["accuracy"] for record in found.values())
    assert abs(mine - refitted) < 0.06
    record = estimator.calibration(config, "digits", "new classes", 0)
    assert record["after"] < 0.15 < record["before"]
    calls = estimator.many_calls(config, 8)
    assert calls["largest difference to one fit"] < 1e-10
    assert 0 < calls["compilations"] <= 24
    file = ResultsFile(tmp_path / "results.json", config)
    for name, made in found.items():
        file.once(name, lambda made=made: made)
        choice = {"chosen": made["settings"], "edge": False}
        file.once(name.replace("peers", "choice"), lambda choice=choice: choice)
    for nodes in (64, 256):
        file.once(f"many calls | N = {nodes}", lambda: calls)
    estimator.write_tables(config, file, tmp_path / "table.md")
    assert "| digits | EdRVFLClassifier |" in (tmp_path / "table.md").read_text()
