"""The tuning experiment's pieces at tiny sizes; what needs SMAC3 is left out without it."""

import csv
import json
import math
import shutil

import jax
import numpy as np
import pytest

import rvfl_jax
from experiments import tuning
from experiments.results_file import ResultsFile
from experiments.settings import RESULTS
from tests.streams import blobs, ragged_stream

KEPT = RESULTS / "tuning"
CONFIG = tuning.Config(seeds=1, trials=12, num_nodes=8)
COST = 3.0
STYLE = "-kF"


@pytest.fixture(scope="module")
def case():
    X, y = blobs(40, seed=0)
    return tuning.Case(ragged_stream(), (X, y), jax.random.key(0))


@pytest.fixture(scope="module")
def programs(case):
    return tuning.compiled(CONFIG, STYLE, case)


def searched(searcher, case, programs):
    return tuning.search(CONFIG, STYLE, case, programs, searcher, seed=0, cost=COST)


def holds(record, case):
    """What is true of every search."""
    learner = tuning.maker(STYLE, CONFIG.num_nodes)(**record["point"])
    history = rvfl_jax.run_stream(learner, case.stream, key=case.key, expert=None).history
    rows = case.stream.weight.sum(axis=1)
    loss = np.asarray(history.prequential_loss) @ rows / rows.sum()
    assert record["loss"] == pytest.approx(loss, rel=1e-9), "as run by itself"
    assert 0 < record["passes"] <= CONFIG.trials
    passes, seconds, losses = np.array(record["steps"]).T
    assert (np.diff(passes) > 0).all()
    assert (np.diff(seconds) > 0).all()
    assert (np.diff(losses) < 0).all()
    assert losses[-1] == record["loss"]
    assert passes[-1] <= record["passes"]
    assert 0 <= record["own seconds"] <= record["seconds"]
    for name, within in tuning.SPACES[STYLE].items():
        value = record["point"][name]
        inside = within.low * (1 - 1e-9) <= value <= within.high * (1 + 1e-9)
        assert inside or (within.zero and value == 0)
    assert 0.5 < record["accuracy"] <= 1


def test_the_sweep_finds_the_least_of_its_grid(case, programs):
    record = searched("sweep", case, programs)
    holds(record, case)
    grid = tuning.grid_of(STYLE, CONFIG.trials)
    points = np.stack(np.meshgrid(*grid.values(), indexing="ij"), axis=-1).reshape(-1, len(grid))
    assert record["passes"] == record["evaluations"] == len(points) == CONFIG.trials
    objective = tuning.Objective(programs, case, CONFIG.trials, COST)
    losses = [objective.value(dict(zip(grid, point, strict=True))) for point in points]
    assert record["loss"] == pytest.approx(min(losses), rel=1e-9)
    assert list(record["point"].values()) == points[np.argmin(losses)].tolist()


def test_the_gradient_search_counts_what_a_gradient_costs(case, programs):
    record = searched("gradient", case, programs)
    holds(record, case)
    assert record["loss"] <= tuning.by_hand(CONFIG, STYLE, case, programs)["loss"]
    assert record["evaluations"] == 4
    assert record["passes"] == 4 * COST
    by_hand = tuning.by_hand(CONFIG, STYLE, case, programs)
    passes, _, loss = record["steps"][0]
    assert (passes, loss) == (COST, pytest.approx(by_hand["loss"], rel=1e-9))


@pytest.mark.slow
def test_smac_spends_every_trial_and_leaves_nothing_behind(case, programs, tmp_path, monkeypatch):
    pytest.importorskip("smac")
    monkeypatch.chdir(tmp_path)
    record = searched("SMAC3", case, programs)
    holds(record, case)
    assert record["loss"] <= tuning.by_hand(CONFIG, STYLE, case, programs)["loss"]
    assert record["evaluations"] == record["passes"] == CONFIG.trials
    assert list(tmp_path.iterdir()) == []


def test_smac_may_switch_forward_regularisation_off():
    pytest.importorskip("ConfigSpace")
    space = tuning.smac_space("-kF", seed=0)
    points = [tuning.point_of("-kF", dict(one)) for one in space.sample_configuration(50)]
    strengths = [point["k"] for point in points]
    assert 0 < strengths.count(0.0) < 50
    assert all(1e-3 <= k <= 10 for k in strengths if k)
    assert {len(point) for point in points} == {2}


def test_slopes_are_those_of_logarithms(case, programs):
    objective, point = tuning.Objective(programs, case, 1_000, COST), tuning.start_of(STYLE)
    loss, slopes = objective.with_gradient(point)
    assert loss == pytest.approx(objective.value(point), rel=1e-12)
    for name in point:
        up, down = (objective.value(point | {name: point[name] * f}) for f in (1.001, 1 / 1.001))
        slope = (up - down) / (2 * math.log(1.001))
        assert slopes[name] == pytest.approx(slope, rel=1e-3, abs=1e-9)


def made_of(loss_of, slopes_of):
    """Programs of plain functions of the point."""
    return tuning.Programs(
        lambda point, *data: loss_of(point),
        lambda point, *data: (loss_of(point), slopes_of(point)),
        {},
    )


def test_a_descent_finds_the_bottom_inside_the_box(case):
    log = math.log

    def loss(point):
        return (log(point["ridge"]) - log(20)) ** 2 + (log(point["k"]) - log(0.3)) ** 2

    def slopes(point):
        return {n: 2 * (log(point[n]) - log(v)) / point[n] for n, v in (("ridge", 20), ("k", 0.3))}

    objective = tuning.Objective(made_of(loss, slopes), case, 60, 2.0)
    tuning.by_gradient(objective, "-kF", case, None, seed=0)
    assert objective.best[0] < 1e-9
    assert objective.best[1] == pytest.approx({"ridge": 20, "k": 0.3}, rel=1e-4)
    assert objective.passes == 60


def test_a_descent_to_the_lower_edge_tries_zero(case):
    objective = tuning.Objective(
        made_of(lambda point: 1 + point["k"], lambda point: {"ridge": 0.0, "k": 1.0}), case, 30, 2.0
    )
    tuning.by_gradient(objective, "-kF", case, None, seed=0)
    loss, point = objective.best
    assert (loss, point["k"]) == (1.0, 0.0)
    assert tuning.edge_of(tuning.SPACES["-kF"]["k"], point["k"]) == "0"


def test_failed_arithmetic_is_a_number_for_searchers_and_never_the_best(case):
    nan = float("nan")
    broken = made_of(lambda point: math.inf, lambda point: {"ridge": nan, "k": nan})
    objective = tuning.Objective(broken, case, 10, 2.0)
    tuning.by_gradient(objective, "-kF", case, None, seed=0)
    assert objective.best == (math.inf, {})
    assert objective.steps == []
    assert tuning.finite(math.inf) == tuning.FAILED > 1


def test_nothing_runs_beyond_the_budget(case):
    asked = []
    programs = made_of(lambda point: asked.append(point) or 1.0, lambda point: {"ridge": 0.0})
    objective = tuning.Objective(programs, case, 4, COST)
    objective.with_gradient({"ridge": 1.0})
    objective.value({"ridge": 1.0})
    for call in (objective.value, objective.with_gradient):
        with pytest.raises(tuning.OutOfPassesError):
            call({"ridge": 1.0})
    assert len(asked) == 2
    assert (objective.passes, objective.evaluations) == (4, 2)


@pytest.mark.parametrize(
    ("style", "shape"), [("-R", (200,)), ("-kF", (10, 20)), ("-kF-Bayes", (8, 5, 5))]
)
def test_grids_have_two_hundred_points_of_the_box(style, shape):
    grid = tuning.grid_of(style, 200)
    assert tuple(map(len, grid.values())) == shape
    for name, within in tuning.SPACES[style].items():
        values = grid[name]
        assert (np.diff(values) > 0).all()
        assert (values[0] == 0) == within.zero
        ends = values[[int(within.zero), -1]]
        np.testing.assert_allclose(ends, (within.low, within.high))


def test_edges_are_told():
    within = tuning.Range(1e-3, 1e1, zero=True)
    told = [tuning.edge_of(within, value) for value in (0.0, 1e-3, 1.05e-3, 0.1, 9.9, 10.0)]
    assert told == ["0", "lowest", "lowest", "", "highest", "highest"]


def test_every_style_is_made_of_its_numbers_and_once():
    for style, space in tuning.SPACES.items():
        make = tuning.maker(style, 8)
        assert make is tuning.maker(style, 8), "a new function would be compiled anew"
        point = tuning.start_of(style)
        assert point.keys() == space.keys()
        assert all(not tuning.edge_of(space[name], value) for name, value in point.items())
        k = point.get("k", 0.0)
        if "kappa" in point:
            k = rvfl_jax.adaptive_k(point["kappa"], point["sigma"])
        want = rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=point["ridge"], k=k)
        assert make(**point).description == want.description


def test_streams_of_all_seeds_have_one_shape():
    config = tuning.Config(seeds=2)
    streams = [tuning.case_of(config, "digits", seed).stream for seed in range(2)]
    assert streams[0].X.shape == streams[1].X.shape
    assert not np.array_equal(streams[0].classes, streams[1].classes)


def test_a_curve_is_the_best_so_far():
    record = {"steps": [[2, 0.5, 3.0], [5, 1.0, 2.0]]}
    got = tuning.curve(record, 2.0, 0, np.array([1, 2, 4, 5, 6]))
    np.testing.assert_allclose(got, [np.inf, 0.5, 0.5, tuning.LEAST_DRAWN, tuning.LEAST_DRAWN])
    got = tuning.curve(record, 2.0, 1, np.array([0.1, 0.7, 1.2]))
    np.testing.assert_allclose(got, [np.inf, 0.5, tuning.LEAST_DRAWN])


def test_the_table_and_picture_kept_are_those_of_the_results_kept(tmp_path):
    shutil.copy(KEPT / "results.json", tmp_path)
    seeds = json.loads((KEPT / "results.json").read_text())["config"]["seeds"]
    config = tuning.Config(seeds=seeds)
    file = ResultsFile(tmp_path / "results.json", config)
    tuning.tabulate(config, file, tmp_path)
    for name in ("table.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (KEPT / name).read_bytes(), name
    with (tmp_path / "table.csv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table))
    assert len(rows) == sum(4 * len(styles) for styles in tuning.STYLES.values())
    tuning.draw(config, file, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").stat().st_size > 10_000
