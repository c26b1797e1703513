"""The experiment on CIFAR-100 at tiny sizes: what it measures, tells and draws."""

import csv
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from sklearn.metrics import pairwise_distances

import rvfl_jax
from experiments import cifar100, regions
from experiments import cifar100_pictures as pictures
from experiments import cifar100_runs as runs
from experiments import fashion_mnist as fm
from rvfl_jax.streams.labels import to_columns
from tests.streams import blobs


@pytest.fixture(scope="module")
def case():
    X, y = blobs(120, features=5, classes=4)
    X = X.astype(np.float32)
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=2, num_batches=6, seed=3)
    return fm.Case(stream, X, y, to_columns("y", y, stream.classes), None)


def tiny(num_layers=1, k=0.0):
    return rvfl_jax.edrvfl(num_layers=num_layers, num_nodes=8, ridge=1.0, k=k)


def looked_at_ends(case, learner, key):
    test = (case.Z_test, case.y_test)
    options = {"key": key, "test": test, "evaluate": "task", "expert": None}
    return rvfl_jax.run_stream(learner, case.stream, **options).history.accuracy


@pytest.mark.slow
def test_the_first_layers_of_a_deep_network_are_the_shallow_one(case):
    adaptive, key = rvfl_jax.adaptive_k(), jax.random.key(4)
    found = runs.along_layers(case, tiny(2, adaptive), key, (1, 2))
    reached = looked_at_ends(case, tiny(1, adaptive), key)
    np.testing.assert_allclose(found["last"][0], reached["class_incremental"][-1], atol=1e-6)
    np.testing.assert_allclose(found["A_bar"][0], reached["seen"].mean(), atol=1e-6)
    assert found["A_bar"][0] != found["A_bar"][1]


def test_curves_kept_are_those_of_the_run(case):
    key, learner = jax.random.key(1), tiny(k=rvfl_jax.adaptive_k())
    record = runs.kept_of(case, learner, 1, strengths=True)
    history = rvfl_jax.run_stream(
        learner, case.stream, key=key, test=(case.Z_test, case.y_test), evaluate=3
    ).history
    np.testing.assert_array_equal(record["evaluated"], history.evaluated)
    np.testing.assert_allclose(record["regret"], history.regret, rtol=1e-7)
    np.testing.assert_allclose(record["kl_curve"], history.kl, rtol=1e-7)
    np.testing.assert_allclose(record["k_next"], history.k_next[:, 0], rtol=1e-5)
    assert set(record["curves"]) == {"class_incremental", "seen"}
    expert = rvfl_jax.offline_scores(learner, case.stream, case.Z_test, key=key)
    given = runs.kept_of(case, learner, 1, scores=expert)
    assert given["excess_loss"].tolist() == record["excess_loss"].tolist()
    assert "k_next" not in given


def test_cuts_are_those_of_the_sweep(case, monkeypatch):
    monkeypatch.setattr(runs, "COMMON", {"num_nodes": 8, "num_layers": 1, "activation": "relu"})
    monkeypatch.setattr(runs, "_case", lambda seed: case)
    for name, values in {"KAPPAS": np.array([0.1, 1.0]), "SIGMAS": np.array([1e-5, 0.1])}.items():
        monkeypatch.setattr(runs, name, values)
        monkeypatch.setattr(pictures, name, values)
    variant = next(iter(fm.VARIANTS))
    record = runs._sensitivity(False, 0)
    file = SimpleNamespace(records={f"sensitivity | {variant} | seed 0": record})
    config = runs.Config(seeds=1)
    loss = pictures.grid_of(config, file, variant, "prequential_loss")
    along = {axis: pictures.cut(loss, axis)[0] for axis in ("kappa", "sigma")}
    for axis, place, point in (
        ("kappa", 0, (0.1, runs.SIGMA)),
        ("sigma", 1, (runs.KAPPA, 0.1)),
        ("kappa", 1, (runs.KAPPA, runs.SIGMA)),
        ("sigma", 0, (runs.KAPPA, runs.SIGMA)),
    ):
        learner = tiny(k=rvfl_jax.adaptive_k(*point))
        history = rvfl_jax.run_stream(learner, case.stream, key=jax.random.key(0)).history
        want = np.average(history.prequential_loss, weights=history.rows)
        np.testing.assert_allclose(along[axis][place], want, rtol=1e-6)


@pytest.mark.slow
def test_decision_regions_are_those_of_the_prefix_learned(case):
    learner, key, rows = tiny(k=2.0), jax.random.key(0), len(case.columns)
    record = regions.measure_regions(case, {"-kF": learner}, key, rows)
    assert record["classes"] == [2, 4]
    assert record["places"].shape == (rows, 2)
    reached = [np.mean(guess == record["truth"]) for guess in record["guesses"]["-kF"]]
    want = looked_at_ends(case, learner, key)["class_incremental"]
    np.testing.assert_allclose(reached, want, atol=1e-6)


def test_ground_is_coloured_by_the_nearest_rows():
    rng = np.random.default_rng(0)
    places, guesses = rng.normal(size=(60, 2)), rng.integers(0, 3, 60)
    at, near = regions.plane(places, 12)
    found = regions.votes(places, guesses, at.reshape(-1, 2), 5)
    apart = pairwise_distances(at.reshape(-1, 2), places)
    nearest = np.argsort(apart, axis=1)[:, :5]
    want = [np.bincount(guesses[rows], minlength=3).argmax() for rows in nearest]
    np.testing.assert_array_equal(found, want)
    span = np.ptp(places, axis=0)
    assert (at.min(axis=(0, 1)) < places.min(axis=0)).all()
    np.testing.assert_array_equal(
        near.ravel(), apart.min(axis=1) < regions.FAR * span.max(), "white far from every row"
    )


def test_borders_are_where_the_class_changes():
    classes = np.array([[0, 0, 1], [0, 0, 1], [2, 2, 2]])
    want = np.array([[0, 1, 0], [1, 1, 1], [0, 0, 0]], bool)
    np.testing.assert_array_equal(regions.borders(classes), want)
    assert not regions.borders(np.zeros((3, 3), int)).any()


def _invented(case, monkeypatch):
    """Records of every name that is measured, with numbers out of the air."""
    rng = np.random.default_rng(0)
    T = 40

    def run(*args, **options):
        looks = np.arange(9, T, 10)
        falling = rng.uniform(1, 2, (4, len(looks))) - np.linspace(0, 0.5, len(looks))
        record = {name: rng.uniform() for name in ("ACC", "A_bar", "BWT", "prequential_loss")}
        curves = {"seen": falling[0] / 2, "class_incremental": 1 - falling[0] / 2}
        return record | {
            "accuracy_class_incremental": 0.5,
            "expert accuracy": 0.5,
            "evaluated": looks,
            "task_ends": [19, 39],
            "curves": curves,
            "regret": falling[0],
            "kl_curve": falling[1],
            "excess_loss": falling[2],
            "kl_from_expert_curve": falling[3],
            **strengths(),
        }

    def strengths(*args):
        k = 10 ** rng.uniform(-2, 2, (2, T))
        return {"k_t": k[0], "k_next": k[1], "task_ends": [19, 39]}

    def both(size):
        return {name: rng.uniform(size=size) for name in ("last", "A_bar", "prequential_loss")}

    def laid_out(name):
        styles = ["-R"] if name == runs.BEHIND_F else list(runs.PAPER)
        truth = rng.integers(0, 4, 40)
        return {
            "places": rng.normal(size=(40, 2)),
            "truth": truth,
            "class_task": [0, 0, 1, 1],
            "classes": [2, 4],
            "guesses": {style: [truth % 2, rng.integers(0, 4, 40)] for style in styles},
        }

    large = ("accuracy at lambda 1", "accuracy at chosen lambda", "chosen lambda")
    for name, made in {
        "cifar100_case": lambda *args, **options: case,
        "_measured": run,
        "kept_of": run,
        "_strengths": strengths,
        "_layers": lambda *args: both(len(runs.LAYERS)),
        "_nodes": lambda *args: {style: both(None) for style in runs.PAPER},
        "_sensitivity": lambda *args: both((len(runs.KAPPAS), len(runs.SIGMAS))),
        "_large": lambda *args: {part: rng.uniform() for part in large},
        "_large_expert": lambda *args: {"accuracy": 0.5},
        "_regions": laid_out,
        "_guarded": lambda: {"passed": True},
        "_guarded_on_top": lambda: {"passed": True},
    }.items():
        monkeypatch.setattr(runs, name, made)
    monkeypatch.setattr(pictures, "NUM_BATCHES", T)
    monkeypatch.setattr(pictures, "APART", 10)
    monkeypatch.setattr(regions, "GRID", 40)


@pytest.mark.slow
def test_everything_measured_is_told_and_drawn(case, monkeypatch, tmp_path, capsys):
    _invented(case, monkeypatch)
    config = runs.Config(seeds=2, tasks=(10,), features=(runs.HONEST,))
    cifar100.main(config, tmp_path)
    told = capsys.readouterr().out
    assert "reuse_k=True" in told
    assert not any(name in told for name, reuse in fm.VARIANTS.items() if reuse)
    file = cifar100.ResultsFile(tmp_path / "results.json", config)
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == 3 * len(runs.PAPER) + len(runs.ABLATIONS) * len(runs.PAPER)
    for row in rows[:9]:
        found = [
            file.records[runs.place_of(runs.HONEST, 10, seed, row["setting"], row["style"])]
            for seed in range(2)
        ]
        for heading, values in (
            ("cumulative regret, 10^-3", [1e3 * sum(record["regret"]) for record in found]),
            ("KL at the end, nats", [record["kl_curve"][-1] for record in found]),
        ):
            mean, deviation = map(float, row[heading].split(" ± "))
            np.testing.assert_allclose(mean, np.mean(values), atol=1e-5)
            np.testing.assert_allclose(deviation, np.std(values, ddof=1), atol=1e-5)
        assert row["looks"] == "4"
    drawn = {path.name: path.stat().st_size for path in tmp_path.glob("*.png")}
    assert drawn.keys() == {
        *("curves.png", "regret.png", "strengths.png", "architecture.png"),
        *("sensitivity.png", "sensitivity_map.png", "regions.png"),
    }
    assert min(drawn.values()) > 20_000


def test_running_sums_are_compared_seed_by_seed():
    ridge = np.array([[1.0, 1.0], [2.0, 2.0]])
    found = pictures.beside_ridge(ridge * np.array([[1.0, 1.5], [0.5, 1.0]]), ridge)
    np.testing.assert_allclose(found, [[0.0, 25.0], [-50.0, -25.0]])


def test_a_best_at_an_edge_is_told():
    values = np.zeros((1, 7, 8)) + np.arange(7)[:, None]
    records = {
        f"sensitivity | {variant} | seed 0": {name: values[0] for name, *_ in pictures.MEASURES}
        for variant in fm.VARIANTS
    }
    file = SimpleNamespace(records=records)
    headings, rows = cifar100._of_sensitivity(runs.Config(seeds=1), file)
    row = dict(zip(headings, rows[0], strict=True))
    assert row["best A-bar"] == "1000, at the edge"
    assert row["best prequential loss"] == "0.001, at the edge"
    flat = dict(zip(headings, rows[1], strict=True))
    assert flat["best A-bar"] == "all"
