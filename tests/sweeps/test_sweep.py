"""A sweep equals its runs one by one, shares what it can, and chooses without test data."""

import importlib
from functools import partial

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.sweeps import program as sweep_program
from rvfl_jax.sweeps.grid import axes_of
from rvfl_jax.sweeps.options import SweepOptions
from tests import tolerances
from tests.compilations import counted_compilations
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
TEST = blobs(50, seed=0)


def make(k=1.0, ridge=0.5, **options):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=ridge, k=k, **options)


def make_bayes(kappa, sigma):
    return make(rvfl_jax.adaptive_k(kappa, sigma, reuse_k=True))


def assert_equal_to_run(result, place, learner, stream, key=KEY):
    history = rvfl_jax.run_stream(learner, stream, key=key, test=TEST, evaluate="task").history
    rows = history.rows
    loss = np.sum(history.prequential_loss * rows) / rows.sum()
    np.testing.assert_allclose(result.prequential_loss[place], loss, rtol=tolerances.REORDERED)
    np.testing.assert_allclose(
        result.prequential_accuracy[place], np.sum(history.prequential_accuracy * rows) / rows.sum()
    )
    np.testing.assert_allclose(
        result.loss[place], history.prequential_loss, rtol=tolerances.REORDERED
    )
    np.testing.assert_allclose(result.k_next[place], history.k_next, rtol=tolerances.CLOSED_FORM)
    assert np.array_equal(result.evaluated, history.evaluated)
    for protocol, values in history.accuracy.items():
        np.testing.assert_allclose(result.accuracy[protocol][place], values, atol=tolerances.COUNTS)
        np.testing.assert_allclose(
            result.task_accuracy[protocol][place],
            history.task_accuracy[protocol],
            atol=tolerances.COUNTS,
        )


@pytest.mark.slow
def test_every_point_of_a_grid_equals_its_run(stream):
    grid = {"seed": [3, 5], "k": [0.0, 1.0], "ridge": [0.1, 1.0]}
    result = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST)
    assert result.axes == ("seed", "k", "ridge")
    assert result.shape == (2, 2, 2)
    for place in np.ndindex(2, 2, 2):
        seed, k, ridge = (grid[axis][at] for axis, at in zip(result.axes, place, strict=True))
        key = jax.random.fold_in(KEY, seed)
        assert_equal_to_run(result, place, make(k, ridge), stream, key)


def test_kappa_and_sigma(stream):
    grid = {"kappa": [0.5, 2.0], "sigma": [0.1, 1.0]}
    result = rvfl_jax.sweep(make_bayes, stream, grid, key=KEY, test=TEST)
    for place in np.ndindex(2, 2):
        point = {axis: grid[axis][at] for axis, at in zip(result.axes, place, strict=True)}
        assert_equal_to_run(result, place, make_bayes(**point), stream)


@pytest.mark.slow
def test_points_of_a_list_and_one_number_a_layer(stream):
    points = [{"k": 0.2, "ridge": [0.1, 1.0]}, {"k": 3.0, "ridge": [2.0, 0.5]}]
    result = rvfl_jax.sweep(make, stream, points, key=KEY, test=TEST)
    assert result.axes == ("point",)
    for place, point in enumerate(points):
        assert_equal_to_run(result, place, make(**point), stream)
    best = result.best()
    assert best["k"] == points[int(np.argmin(result.prequential_loss))]["k"]


@pytest.mark.slow
def test_streams_and_constants_are_axes_too(stream):
    X, y = blobs(97)
    other = rvfl_jax.class_incremental_stream(X, y, num_tasks=2, num_batches=9, seed=7)
    longest = max(stream.X.shape[1], other.X.shape[1])
    streams = [rvfl_jax.pad_batches(one, longest) for one in (stream, other)]
    grid = {"activation": ["relu", "tanh"], "k": [0.0, 2.0]}
    result = rvfl_jax.sweep(make, streams, grid, key=KEY, test=TEST)
    assert result.axes == ("activation", "k", "stream")
    for place in ((0, 1, 0), (1, 0, 1)):
        activation, k = grid["activation"][place[0]], grid["k"][place[1]]
        assert_equal_to_run(result, place, make(k, activation=activation), streams[place[2]])
    assert set(result.best()) == {"activation", "k"}
    assert len(result.ranking()) == 4


@pytest.mark.slow
def test_streams_whose_tasks_end_at_other_batches(stream):
    X, y = blobs(97)
    streams = [
        rvfl_jax.class_incremental_stream(
            X, y, num_tasks=2, num_batches=9, seed=1, order="none", task_sizes=sizes, batch_size=40
        )
        for sizes in ([1, 3], [3, 1])
    ]
    ends = [one.task_ends.tolist() for one in streams]
    assert ends[0] != ends[1]
    result = rvfl_jax.sweep(make, streams, {"k": [0.0]}, key=KEY, test=TEST)
    assert result.evaluated.tolist() == sorted({*ends[0], *ends[1]})
    for place, one in enumerate(streams):
        history = rvfl_jax.run_stream(make(0.0), one, key=KEY, test=TEST, evaluate="batch").history
        np.testing.assert_allclose(
            result.task_accuracy["seen"][0, place],
            history.task_accuracy["seen"][result.evaluated],
            atol=tolerances.COUNTS,
        )


@pytest.mark.slow
def test_chunks_leave_the_results_as_they_are_and_show_progress(stream, monkeypatch):
    grid = {"k": [0.0, 1.0, 2.0], "ridge": np.logspace(-1, 1, 5)}
    whole = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST)
    compiled, shapes = sweep_program._compiled, []

    def counted(job, rest, mapped, **options):
        shapes.append([len(next(iter(part.values()))) for part in mapped])
        return compiled(job, rest, mapped, **options)

    monkeypatch.setattr(sweep_program, "_compiled", counted)
    cut = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST, max_bytes=60_000)
    assert len(shapes) > 2, "a limit on memory alone cuts the grid"
    assert all(shape == shapes[0] for shape in shapes), "into chunks of one shape"
    seen = []
    shown = rvfl_jax.sweep(
        make, stream, grid, key=KEY, progress=lambda done, total: seen.append((done, total))
    )
    assert len(seen) > 2
    assert seen == sorted(set(seen)), "chunks that overlap count once"
    assert seen[-1] == (15, 15)
    np.testing.assert_allclose(shown.loss, whole.loss, rtol=tolerances.REORDERED)
    np.testing.assert_allclose(cut.loss, whole.loss, rtol=tolerances.REORDERED)
    np.testing.assert_allclose(cut.accuracy["seen"], whole.accuracy["seen"], atol=tolerances.COUNTS)


def test_the_same_sweep_again_is_equal_to_the_last_bit_and_compiles_nothing(stream):
    grid = {"k": [0.0, 0.7], "seed": [0, 1]}
    first = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST)
    with counted_compilations() as made:
        second = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST)
    assert not made
    assert np.array_equal(first.loss, second.loss)
    assert first.provenance == second.provenance


def wide(k=1.0, **options):
    return rvfl_jax.edrvfl(num_layers=1, num_nodes=250, ridge=0.5, k=k, **options)


def wide_bayes(reuse_k, kappa, sigma):
    return wide(rvfl_jax.adaptive_k(kappa, sigma, reuse_k=reuse_k), solver="covariance")


def nest(grid, stream, make=wide):
    """How a sweep nests these axes."""
    module = importlib.import_module("rvfl_jax.sweeps.sweep")
    axes = axes_of(grid, None, ())
    places = [np.arange(axis.size) for axis in axes]
    job = module._job([stream], False, None, 4, SweepOptions(key=KEY))
    room, sizes = sweep_program.Room(10**9, None), {"num_steps": stream.num_batches}
    return sweep_program.Program(make, {}, axes, places, job, room, num_classes=4, **sizes)


def test_eta_dagger_is_shared_by_all_k_and_copied_by_seeds(stream):
    assert nest({"k": np.linspace(0, 2, 64)}, stream).growth[0] < 2
    for reuse in (False, True):
        numbers = {"kappa": np.ones(8), "sigma": np.ones(8)}
        adaptive = nest(numbers, stream, partial(wide_bayes, reuse))
        assert max(adaptive.growth.values()) < 2, "as printed and reused"
    both = nest({"k": np.linspace(0, 2, 64), "seed": np.arange(10)}, stream)
    assert both.order == [1, 0], "seeds outside, k inside"
    assert both.growth[1] > 8


def test_failed_configurations_are_flagged_and_never_best(stream):
    grid = {"k": [1e300, 1.0, 0.5], "seed": [0, 1]}
    result = rvfl_jax.sweep(make, stream, grid, key=KEY)
    assert result.healthy.tolist() == [[False, False], [True, True], [True, True]]
    assert np.isinf(result.prequential_loss[0]).all()
    assert (result.prequential_accuracy[0] == 0).all()
    for criterion in ("prequential_loss", "prequential_accuracy"):
        assert result.best(criterion)["k"] in (0.5, 1.0)
        assert len(result.ranking(criterion)) == 2
    none = rvfl_jax.sweep(make, stream, {"k": [1e300]}, key=KEY)
    with pytest.raises(rvfl_jax.NumericalError, match="every configuration failed"):
        none.best()


@pytest.mark.slow
def test_constants_are_told_apart_by_type_and_come_back_as_they_were(stream):
    seen = []

    def maker(flag=True, pair=(1, 2)):
        seen.append((flag, pair))
        return make(k=1.0 if flag is True else 0.0)

    result = rvfl_jax.sweep(
        maker,
        stream,
        {"flag": [True, 1], "pair": [(1, 2), (3, 4)]},
        key=KEY,
        constants=("flag", "pair"),
    )
    assert (True, (3, 4)) in seen
    assert type(result.best()["pair"]) is tuple
    assert result.prequential_loss[0, 0] != result.prequential_loss[1, 0]
    assert_equal_to_run(
        rvfl_jax.sweep(maker, stream, {"flag": [1]}, key=KEY, test=TEST, constants=("flag",)),
        (0,),
        make(k=0.0),
        stream,
    )


RIDGE = 0.5


@pytest.mark.slow
def test_what_a_maker_reads_elsewhere_may_change_between_sweeps(stream, monkeypatch):
    def maker(k):
        return make(k, RIDGE)

    first = rvfl_jax.sweep(maker, stream, {"k": [0.0]}, key=KEY)
    monkeypatch.setitem(globals(), "RIDGE", 50.0)
    second = rvfl_jax.sweep(maker, stream, {"k": [0.0]}, key=KEY)
    run = rvfl_jax.run_stream(make(0.0, 50.0), stream, key=KEY).history
    assert first.prequential_loss[0] != second.prequential_loss[0]
    np.testing.assert_allclose(second.loss[0], run.prequential_loss, rtol=tolerances.REORDERED)


def test_other_numbers_of_the_same_grid_compile_nothing(stream):
    sweep = partial(rvfl_jax.sweep, make, stream, key=KEY)
    sweep({"ridge": [0.1, 1.0], "k": [0.0, 1.0]})
    with counted_compilations() as made:
        closer = sweep({"ridge": [0.3, 0.6], "k": [0.25, 0.75]})
    assert not made
    run = rvfl_jax.run_stream(make(0.75, 0.3), stream, key=KEY).history
    np.testing.assert_allclose(closer.loss[0, 1], run.prequential_loss, rtol=tolerances.REORDERED)


def test_what_points_hand_on_leaves_seeds_out(stream):
    points = [{"k": 0.0, "seed": 3}, {"k": 1.0, "seed": 4}]
    result = rvfl_jax.sweep(make, stream, points, key=KEY)
    assert result.points == ({"k": 0.0}, {"k": 1.0})
    assert set(result.best()) == {"k"}


def test_combinations_of_constants_are_tried_before_anything_runs(stream):
    def maker(solver, cold_start):
        if (solver, cold_start) == ("square_root", "paper"):
            raise ValueError("cold_start: expected exact")
        return make(solver=solver, cold_start=cold_start)

    grid = {"solver": ["covariance", "square_root"], "cold_start": ["exact", "paper"]}
    told = []
    with pytest.raises(ValueError, match="cold_start"):
        rvfl_jax.sweep(maker, stream, grid, key=KEY, progress=lambda *now: told.append(now))
    assert not told


@pytest.mark.slow
def test_labelled_arrays(stream):
    points = rvfl_jax.random_points({"k": (0.1, 10), "ridge": (0.01, 1)}, 3, seed=0)
    assert all(0.1 <= p["k"] <= 10 and 0.01 <= p["ridge"] <= 1 for p in points)
    data = rvfl_jax.sweep(make, stream, points, key=KEY, test=TEST).to_xarray()
    assert dict(data.sizes) == {"point": 3, "batch": 9, "learner": 2, "evaluation": 2, "task": 2}
    np.testing.assert_allclose(data["ridge"], [p["ridge"] for p in points])
    grid = {"ridge": [0.1, 1.0], "k": [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]}
    labelled = rvfl_jax.sweep(make, stream, grid, key=KEY).to_xarray()
    assert float(labelled["prequential_loss"].sel(ridge=0.1).min()) > 0
    assert labelled["k_values"].shape == (3, 2)


@pytest.mark.parametrize("given", [pytest.param("grid", marks=pytest.mark.slow), "points"])
def test_a_table_has_a_row_a_configuration(stream, given):
    grid = {"ridge": [0.1, 1.0], "k": [[0.0, 1.0], [1.0, 0.5]], "seed": [3, 5]}
    if given == "points":
        grid = [{"ridge": 0.1, "k": 0.5}, {"ridge": 1.0, "k": 2.0}]
    result = rvfl_jax.sweep(make, stream, grid, key=KEY, test=TEST)
    frame = result.to_pandas()
    assert len(frame) == result.healthy.size
    names = ["healthy", "prequential_loss", "prequential_accuracy"]
    names += [f"accuracy_{protocol}" for protocol in result.accuracy]
    arguments = ["ridge", "k", "seed"] if given == "grid" else ["point", "ridge", "k"]
    assert frame.columns.tolist() == arguments + names
    for row, place in zip(frame.to_dict("records"), np.ndindex(result.shape), strict=True):
        chosen = dict(zip(result.axes, place, strict=True))
        point = result.point([chosen[axis] for axis in result.choices])
        assert row["ridge"] == point["ridge"]
        assert np.array_equal(row["k"], point["k"])
        assert row.get("seed") == (grid["seed"][chosen["seed"]] if given == "grid" else None)
        for name in names[:3]:
            assert row[name] == getattr(result, name)[place]
        for protocol, curves in result.accuracy.items():
            assert row[f"accuracy_{protocol}"] == curves[place][-1]
    best = frame.loc[frame["prequential_loss"].idxmin()]
    assert given == "grid" or result.best()["ridge"] == best["ridge"]


def make_deep(num_layers, k=1.0, **options):
    return rvfl_jax.edrvfl(num_layers=num_layers, num_nodes=8, ridge=0.5, k=k, **options)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [[1, 2], [2, 1]])
def test_numbers_of_sub_learners_are_kept_as_they_are(stream, layers):
    grid = {"num_layers": layers, "k": [0.0, 1.0]}
    result = rvfl_jax.sweep(make_deep, stream, grid, key=KEY, test=TEST)
    assert result.k_next.shape == result.learner_accuracy.shape == (2, 2)
    for place in np.ndindex(result.shape):
        L = result.point(place)["num_layers"]
        assert (result.k_next[place].shape, result.learner_accuracy[place].shape) == (
            (9, L),
            (2, L),
        )
    assert_equal_to_run(result, (0, 1), make_deep(layers[0]), stream)
    assert result.best()["num_layers"] in layers
    labelled = result.to_xarray()
    assert dict(labelled.sizes)["learner"] == 2
    shorter = labelled["k_next"].sel(num_layers=1)
    assert np.isfinite(shorter.isel(learner=0)).all()
    assert np.isnan(shorter.isel(learner=1)).all()


def test_one_number_of_sub_learners_is_one_array(stream):
    result = rvfl_jax.sweep(make_deep, stream, {"num_layers": [2, 2], "k": [0.5]}, key=KEY)
    assert result.k_next.shape == (2, 1, 9, 2)
    assert result.k_next.dtype == float


@pytest.mark.slow
@pytest.mark.parametrize("axis", ["num_nodes", "solver", "point"])
def test_other_options_that_shape_programs(stream, axis):
    values = {"num_nodes": [8, 5], "solver": ["square_root", "information"]}
    grid = {axis: values.get(axis)}
    if axis == "point":
        grid = [{"num_layers": 2, "k": 0.5}, {"num_layers": 1, "k": 1.0}]

    def maker(**point):
        return rvfl_jax.edrvfl(**{"num_layers": 2, "num_nodes": 8, "ridge": 0.5, "k": 1.0} | point)

    result = rvfl_jax.sweep(maker, stream, grid, key=KEY, test=TEST)
    for place in range(2):
        assert_equal_to_run(result, (place,), maker(**result.point((place,))), stream)


def test_what_cannot_be_told_of_a_grid_is_known_before_anything_runs(stream, monkeypatch):
    module = importlib.import_module("rvfl_jax.sweeps.sweep")
    ran = []
    monkeypatch.setattr(module.Program, "run", lambda self, wanted: ran.append(wanted) or [])

    def failing(*args, **circumstances):
        raise TypeError("not JSON serializable")

    monkeypatch.setattr(module, "provenance", failing)
    with pytest.raises(TypeError):
        rvfl_jax.sweep(make, stream, {"k": [1.0]}, key=KEY)
    assert not ran


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": {}}, "grid: expected at least one axis"),
        ({"grid": {"k": []}}, "grid: expected values for k, got none"),
        ({"grid": []}, "grid: expected a mapping or a non-empty list"),
        ({"grid": [{"k": 1.0}, {"ridge": 1.0}]}, "in point 1"),
        ({"grid": {"k": [0.0, -1.0]}}, "k: expected finite and at least 0"),
        ({"grid": {"ridge": [1.0, 0.0]}}, "ridge: expected finite and greater than 0"),
        ({"grid": {"seed": [0.5]}}, "grid: expected integers from 0"),
        ({"grid": {"seed": ["a", "b"]}}, "grid: expected integers from 0"),
        ({"grid": {"seed": [False, True]}}, "grid: expected integers from 0"),
        ({"grid": {"seed": [2**32]}}, "grid: expected integers from 0"),
        ({"grid": {"k": {0.0, 1.0}}}, "grid: expected a list or an array of values for k"),
        ({"constants": ("seed",)}, "constants: expected a list of names without seed"),
        ({"constants": "k"}, "constants: expected a list of names"),
        ({"grid": {"stream": [0]}}, "grid: expected no axis named stream"),
        ({"grid": {"k": [[0.0, 1.0], [1.0]]}}, "grid: expected values of one shape for k"),
        ({"grid": {"activation": [["relu"]]}}, "grid: expected numbers or hashable values"),
        ({"stream": []}, "stream: expected at least one, got none"),
        ({"max_bytes": 0}, "max_bytes: expected an integer of at least 1"),
        ({"make_learner": make()}, "make_learner: expected a function .*, got Learner"),
        ({"stream": blobs(9)}, "stream: expected a Stream, .*, got ndarray"),
        ({"stream": 3}, "stream: expected a Stream or several, got int"),
        ({"make_learner": lambda k: None}, "make_learner: expected it to give a Learner"),
        ({"precision": "half"}, "precision: expected one of double, single"),
    ],
)
def test_bad_input(stream, change, message):
    arguments = {"make_learner": make, "stream": stream, "grid": {"k": [0.0, 1.0]}} | change
    with pytest.raises(ValueError, match=message):
        rvfl_jax.sweep(**arguments, key=KEY)


def test_streams_of_other_shapes(stream):
    with pytest.raises(ValueError, match="stream: expected equal shapes"):
        rvfl_jax.sweep(make, [stream, ragged_stream(60)], {"k": [0.0]}, key=KEY)
    with pytest.raises(ValueError, match="grid: expected streams below 2"):
        rvfl_jax.sweep(make, [stream, stream], {"k": [0.0], "stream": [2]}, key=KEY)


def test_criteria_see_no_test_data(stream):
    result = rvfl_jax.sweep(make, stream, {"k": [0.0, 1.0]}, key=KEY)
    with pytest.raises(ValueError, match="criterion: expected one of prequential_loss"):
        result.best("accuracy")
    by_accuracy = result.ranking("prequential_accuracy")
    assert by_accuracy[0][1] >= by_accuracy[1][1]
    by_loss = result.ranking()
    assert by_loss[0][1] <= by_loss[1][1]
