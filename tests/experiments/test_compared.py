"""Equal budgets, choices that see no test row, and tables that follow from what is kept."""

import csv
import math
import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.text import Text

import rvfl_jax
from experiments.compared import (
    curves,
    labels,
    pictures,
    records,
    settings,
    spaces,
    tables,
    tuning,
)
from experiments.compared.__main__ import main
from experiments.compared.contenders import NOT_RUN, contenders
from experiments.compared.settings import SETTINGS, Setting
from experiments.compared.spaces import CONFIGURATIONS
from experiments.fashion_mnist import Case
from experiments.settings import RESULTS
from rvfl_jax.encoders import LeakError, leak_guard
from rvfl_jax.learners.methods import METHODS
from tests.streams import blobs

TOY = Setting(
    "toy",
    "Blobs-6/3",
    num_features=5,
    num_classes=6,
    num_tasks=3,
    tuned_tasks=2,
    num_batches=12,
    inputs="blobs",
    held_out=0.2,
    batch_rows=10,
    memory=12,
    drawn=(4,),
    hidden=((6,),),
    nodes=(16,),
    nodes_of_crnet=(16,),
)
COUNT = 4
# One of each family; the quick run below has them all, its guard included.
FEW = ("ncm",)
KINDS = (*FEW, "ranpac", "acil", "er", "ewc", "owm", "crnet1", "hat", "-kF-Bayes")
EACH_KIND = pytest.mark.parametrize(
    "name",
    [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in KINDS],
)


def toy_case(seed):
    X, y = blobs(240, features=5, classes=6)
    stream = rvfl_jax.class_incremental_stream(
        X.astype(np.float32), y, num_tasks=3, num_batches=12, seed=seed
    )
    X_test, y_test = blobs(60, features=5, classes=6)
    return Case(stream, X_test.astype(np.float32), y_test, np.argsort(stream.classes)[y_test], None)


@pytest.fixture
def changed(monkeypatch):
    """What is done to the case of a seed before anybody sees it."""
    changes = {"case": lambda case: case}
    monkeypatch.setitem(
        settings.MAKERS, "toy", lambda setting, seed: changes["case"](toy_case(seed))
    )
    settings.case_of.cache_clear()
    yield changes
    settings.case_of.cache_clear()


def chosen(name, setting=TOY):
    settings.case_of.cache_clear()
    found = tuning.choose(name, contenders()[name], setting, COUNT)
    return {key: value for key, value in found.items() if key != "sweep seconds"}


# --- spaces -----------------------------------------------------------------------------------


@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_every_method_has_the_same_number_of_configurations(setting):
    known = spaces.spaces(setting)
    for name in contenders():
        space = known[name]
        points = space.points()
        assert len({tuple(point.items()) for point in points}) == len(points)
        if space.numbers:
            assert len(points) == spaces.CONFIGURATIONS == 64
        else:
            assert len(points) < 64
            assert "no hyperparameters" in space.remark
        for option, values in space.options.items():
            counts = [sum(point[option] == value for point in points) for value in values]
            assert max(counts) == min(counts), "options in turn"
        for point in points:
            for number, (low, high) in space.numbers.items():
                assert low <= point[number] <= high
        contenders()[name].make(**space.fixed, **points[0])


def test_numbers_fill_their_ranges_and_the_draw_is_fixed():
    points = spaces.latin_hypercube({"a": (1e-3, 1e3), "b": (2.0, 8.0)}, 64)
    for name, (low, high) in {"a": (1e-3, 1e3), "b": (2.0, 8.0)}.items():
        logs = np.log([point[name] for point in points])
        parts = 64 * (logs - np.log(low)) / (np.log(high) - np.log(low))
        assert sorted(parts.astype(int)) == list(range(64))
    assert points == spaces.latin_hypercube({"a": (1e-3, 1e3), "b": (2.0, 8.0)}, 64)
    assert points != spaces.latin_hypercube({"a": (1e-3, 1e3), "b": (2.0, 8.0)}, 64, seed=1)


def test_edges_are_told_and_ties_go_to_the_middle_or_to_the_least_loss():
    space = spaces.Space({"a": (1e-2, 1e2)})
    points = [{"a": value} for value in (0.0101, 0.5, 2.0, 99.0)]
    assert [space.at_the_edge(point) for point in points] == [["a"], [], [], ["a"]]
    unknown = np.full(4, np.nan)
    assert tuning.best_of(space, points, np.array([0.9, 0.1, 0.2, 0.3]), unknown) == 0
    assert tuning.best_of(space, points, np.array([0.9, 0.9, 0.2, 0.9]), unknown) == 1
    losses = np.array([0.5, 0.4, 0.1, 0.3])
    assert tuning.best_of(space, points, np.array([0.9, 0.9, 0.2, 0.9]), losses) == 3


def test_quick_settings_only_make_smaller_what_is_the_same():
    for setting in SETTINGS.values():
        small = settings.quick(setting)
        assert (small.num_tasks, small.tuned_tasks) == (setting.num_tasks, setting.tuned_tasks)
        assert max(small.hidden[0]) <= min(setting.hidden[-1])
    assert [one.name for one in settings.named("a,d")] == ["a", "d10", "d20"]
    with pytest.raises(ValueError, match="settings: expected some of"):
        settings.named("a,z")


# --- tuning -----------------------------------------------------------------------------------


def test_trials_hold_out_rows_of_the_first_tasks_alone():
    stream = toy_case(0).stream
    trial = tuning.trial_of(TOY, stream)
    first = (stream.weight > 0) & (stream.task < TOY.tuned_tasks)[:, None]
    learned = trial.stream.X[trial.stream.weight > 0]
    assert len(learned) + len(trial.X) == first.sum()
    both = np.concatenate([learned, trial.X])
    np.testing.assert_array_equal(np.sort(both, axis=0), np.sort(stream.X[first], axis=0))
    assert set(trial.y) == set(stream.classes[stream.class_task < TOY.tuned_tasks])
    tasks = dict(zip(stream.classes, stream.class_task, strict=True))
    assert [tasks[label] for label in trial.stream.classes] == list(trial.stream.class_task)
    of_class = [int((trial.y == label).sum()) for label in set(trial.y)]
    assert of_class == [8] * 4
    assert not np.array_equal(trial.X, tuning.trial_of(TOY, stream, 1).X)
    few = tuning.trial_of(replace(TOY, tuning_rows=40), stream)
    assert few.stream.num_rows + len(few.y) == 40


@EACH_KIND
def test_choices_depend_on_no_test_row_and_on_no_later_task(name, changed):
    before = chosen(name)
    assert 0 < before["score"] <= 1
    changed["case"] = lambda case: Case(
        case.stream._replace(
            X=np.where((case.stream.task < 2)[:, None, None], case.stream.X, np.nan)
        ),
        np.full_like(case.Z_test, np.nan),
        case.y_test,
        case.columns,
        None,
    )
    np.testing.assert_equal(chosen(name), before)
    # Control: rows of the first tasks matter.
    changed["case"] = _noisy
    assert not np.array_equal(chosen(name)["scores"], before["scores"])


def _noisy(case):
    noise = np.random.default_rng(0).normal(scale=9, size=case.stream.X.shape)
    return replace(case, stream=case.stream._replace(X=case.stream.X + noise.astype(np.float32)))


def test_what_fails_scores_nothing(changed):
    space = spaces.Space({"learning_rate": (1e-2, 1e-1)}, {"hidden": ((6,),)})
    contender = contenders()["finetune"]
    trial = tuning.trial_of(TOY, toy_case(0).stream)

    def make(*, hidden, learning_rate):
        return contender.make(hidden=hidden, learning_rate=1e30 * learning_rate)

    found = tuning.tried(contender, make, space, TOY, trial, COUNT)
    assert not found.healthy.any()
    assert tuning.tried(contender, contender.make, space, TOY, trial, COUNT).healthy.all()


@pytest.mark.slow
def test_a_bound_that_fails_scores_nothing(changed):
    space = spaces.Space({"learning_rate": (1e-2, 1e-1)}, {"hidden": ((6,),)})
    contender, trial = contenders()["joint"], tuning.trial_of(TOY, toy_case(0).stream)

    def make(*, hidden, learning_rate):
        rate = 1e30 if learning_rate > 0.03 else learning_rate
        return contender.make(hidden=hidden, learning_rate=rate, passes=2)

    found = tuning.tried(contender, make, space, TOY, trial, COUNT)
    failed = np.array([point["learning_rate"] > 0.03 for point in space.points(COUNT)])
    np.testing.assert_array_equal(found.healthy, ~failed)
    assert (found.accuracy[failed] == 0).all()
    assert (found.accuracy[~failed] > 0).all()
    assert 0 < failed.sum() < COUNT


# --- runs and tables --------------------------------------------------------------------------


def measured(name, out, seeds=2, tuned=None):
    """Records of runs by seed, with choices made anew or those of another folder."""
    settings.case_of.cache_clear()
    if tuned is not None:
        folders = (records.folder_of(TOY, folder) / "tuning" for folder in (tuned, out))
        shutil.copytree(*folders)
    tables.measure(TOY, [name], seeds=seeds, count=COUNT, out=out)
    _, point = tables.chosen_for(name, TOY, count=COUNT, out=out)
    return records.runs_file(name, TOY, point, out).records


@EACH_KIND
def test_no_answer_depends_on_the_other_test_rows(name, changed, tmp_path):
    found = measured(name, tmp_path, seeds=1)["seed 0"]
    assert found["healthy"]
    if contenders()[name].role == "learner":
        assert found["guard"] == "passes"
    order = np.random.default_rng(0).permutation(60)
    changed["case"] = lambda case: replace(
        case, Z_test=case.Z_test[order], y_test=case.y_test[order], columns=case.columns[order]
    )
    # On what choices depend the test above says.
    other = measured(name, tmp_path / "permuted", seeds=1, tuned=tmp_path)["seed 0"]
    same = [key for key in found if key.startswith(("accuracy", "ACC", "BWT", "forgetting"))]
    assert same
    for key in same:
        assert other[key] == pytest.approx(found[key], abs=1e-6)
    # Control: rows without their labels are another test set.
    changed["case"] = lambda case: replace(case, Z_test=case.Z_test[order])
    mixed = measured(name, tmp_path / "mixed", seeds=1, tuned=tmp_path)["seed 0"]
    assert mixed["accuracy_class_incremental"] != pytest.approx(
        found["accuracy_class_incremental"], abs=1e-6
    )


def test_the_guard_sees_a_method_that_looks_at_its_neighbours(changed):
    case, learner = toy_case(0), rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=1.0, k=0.0)
    state = rvfl_jax.run_stream(learner, case.stream, key=jax.random.key(0)).state
    assert tables._guarded(case, learner, state) == "passes"
    leaking = replace(learner, predict=lambda state, X: learner.predict(state, X - X.mean(axis=0)))
    with pytest.raises(LeakError):
        leak_guard(lambda X: leaking.predict(state, X), case.Z_test)
    assert tables._guarded(case, leaking, state) == "fails"


@pytest.mark.slow
def test_runs_go_on_and_tables_follow_from_records_alone(changed, tmp_path, monkeypatch):
    for name in ("ncm", "er"):
        measured(name, tmp_path)
    monkeypatch.setitem(SETTINGS, "toy", TOY)
    first = tables.tabulate(TOY, seeds=2, count=COUNT, out=tmp_path).read_text()

    def never(*args, **options):
        raise AssertionError("run again")

    monkeypatch.setattr(tables, "run_stream", never)
    monkeypatch.setattr(tuning, "sweep", never)
    for name in ("ncm", "er"):
        measured(name, tmp_path)
    assert tables.tabulate(TOY, seeds=2, count=COUNT, out=tmp_path).read_text() == first
    # Control: another seed is another run.
    with pytest.raises(AssertionError, match="run again"):
        measured("er", tmp_path, seeds=3)
    with (tmp_path / "compared_toy" / "table.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    titles = {METHODS[name].title for name in METHODS} | {title for title, _ in NOT_RUN.values()}
    assert titles <= set(rows)
    for title, row in rows.items():
        assert bool(row["ACC"]) != row["remark"].startswith("not run: "), title
    assert rows["ER"]["rows kept"] == "12"
    assert rows["ER"]["seeds"] == "2"
    assert int(rows["NCM"]["state bytes"].replace(",", "")) == 8 * (6 * 5 + 6)
    values = [measured("er", tmp_path)[f"seed {seed}"] for seed in range(2)]
    assert rows["ER"]["ACC"].startswith(f"{np.mean([v['ACC'] for v in values]):.4f} ± ")
    assert all(math.isfinite(value["FWT"]) for value in values)


@pytest.mark.slow
def test_the_quick_run_has_a_figure_for_every_method(tmp_path):
    main("tables", "a", quick=True, out=tmp_path)
    with (tmp_path / "compared_quick" / "compared_a" / "table.csv").open() as file:
        rows = list(csv.DictReader(file))
    missing = [row["method"] for row in rows if not row["ACC"]]
    assert missing == [title for title, _ in NOT_RUN.values()]
    assert {row["leak guard"] for row in rows if row["ACC"]} <= {"passes", ""}


def test_names_cover_neither_points_nor_names_nor_lines():
    figure = Figure(figsize=(6, 6))
    axis = figure.subplots()
    draws = np.random.default_rng(0)
    crowd, rest = draws.normal(0, 0.05, (12, 2)), draws.uniform(-1, 1, (12, 2))
    # Two of one colour in one place, and two of two colours.
    points = np.concatenate([crowd, crowd[:1], rest, rest[:1]])
    colours = ["tab:blue"] * (len(points) - 1) + ["tab:red"]
    names = [f"method {at}" for at in range(len(points))]
    axis.scatter(*points.T)
    figure.draw_without_rendering()
    labels.place_labels(axis, *points.T, names, colours)
    told = [text.get_text() for text in axis.texts]
    assert sorted(name for text in told for name in text.split(", ")) == sorted(names)
    assert "method 0, method 12" in told
    assert "method 13" in told
    assert "method 25" in told
    figure.draw_without_rendering()
    boxes = [Text.get_window_extent(text) for text in axis.texts]
    # The height of a line of text is more than that of its letters.
    boxes = np.array([[b.x0 + 1, b.y0 + 2, b.x1 - 1, b.y1 - 2] for b in boxes])
    marks = axis.transData.transform(points)
    for at, box in enumerate(boxes):
        others = np.delete(boxes, at, axis=0)
        over = (box[:2] < others[:, 2:]) & (others[:, :2] < box[2:])
        assert not over.all(axis=1).any()
        assert not ((marks > box[:2]) & (marks < box[2:])).all(axis=1).any()
        assert (box[:2] > 0).all()
        assert (box[2:] < 600).all()


def test_names_at_the_margin_keep_their_order_and_a_gap():
    ends = [50.0, 50.1, 49.9, 3.0, 99.0]
    places = labels.spread(ends, 5.0, 1.0, 100.0)
    assert (np.argsort(places) == np.argsort(ends)).all()
    assert np.diff(np.sort(places)).min() >= 5.0 - 1e-9
    assert places.min() >= 1.0
    assert places.max() <= 100.0


def test_an_axis_by_misses_gives_nearly_right_methods_room():
    axis = Figure(figsize=(4, 4)).subplots()
    labels.by_misses(axis, "y", [20.0, 80.0, 98.0])
    low, middle, high = axis.transData.transform([(0, 20), (0, 80), (0, 98)])[:, 1]
    assert np.isclose((high - middle) / (middle - low), np.log(20 / 2) / np.log(80 / 20))
    assert axis.get_yticks().tolist() == [0, 20, 40, 60, 70, 80, 85, 90, 93, 95, 97, 98]


def test_seeds_are_told_where_a_method_has_fewer():
    known = contenders()
    of = {"ncm": 5, "er": 5, "gem": 1}
    found = [pictures.Measured(name, known[name], [{}] * seeds) for name, seeds in of.items()]
    assert pictures.seeds_told(found) == "mean of 5 seeds (GEM 1)"
    assert pictures.seeds_told(found[:2]) == "mean of 5 seeds"
    assert pictures.seeds_told(found[2:]) == "1 seed"


KEPT = [name for name in SETTINGS if (RESULTS / f"compared_{name}").exists()]


@pytest.mark.parametrize("name", KEPT)
def test_the_tables_kept_are_those_of_the_records_kept(name, tmp_path):
    kept = RESULTS / f"compared_{name}"
    # Choices may be those of another setting.
    for folder in {kept.name, f"compared_{SETTINGS[name].tuned_as or name}"}:
        shutil.copytree(RESULTS / folder, tmp_path / folder)
    made = tables.tabulate(SETTINGS[name], seeds=5, count=CONFIGURATIONS, out=tmp_path)
    for path in (made, made.with_suffix(".csv")):
        assert path.read_bytes() == (kept / path.name).read_bytes(), path.name


def test_the_curves_kept_are_those_of_the_records_kept(tmp_path):
    kept = RESULTS / "compared_a"
    shutil.copytree(kept, tmp_path / kept.name)
    folder = tmp_path / kept.name / "curves"
    curves.tabulate(SETTINGS["a"], seeds=5, count=CONFIGURATIONS, out=tmp_path)
    assert (folder / "table.md").read_bytes() == (kept / "curves/table.md").read_bytes()
    with (folder / "table.csv").open() as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    # Its arithmetic failed there, and a method of whole tasks is not run.
    assert float(rows["MAS"]["T=400"]) == 0.0
    assert rows["CRNet-I"]["T=400"] == ""


def test_seeds_of_curves_are_told():
    one, two = curves.Variant(5), curves.Variant(10)
    few = {"er": {one: np.zeros(1), two: np.zeros(1)}}
    many = {"gem": {one: np.zeros(1), two: np.zeros(5)}}
    assert pictures.seeds_told(pictures.measured_in_batches(few)) == "1 seed"
    found = pictures.measured_in_batches(few | many)
    assert pictures.seeds_told(found) == "mean of 5 seeds (ER 1)"
