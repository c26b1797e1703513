"""Pictures show the numbers of the run or the sweep."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from matplotlib.figure import Figure

import rvfl_jax
from rvfl_jax import plots
from rvfl_jax.cli.sweep import drawn_axes
from rvfl_jax.plots import heat_map, sweep_table
from tests.streams import blobs, ragged_stream


@pytest.fixture(scope="module")
def result():
    def make(k=1.0, ridge=0.5, activation="relu"):
        return rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=ridge, k=k, activation=activation)

    grid = {
        "k": [0.0, 1.0, 2.0],
        "ridge": [0.01, 1.0],
        "seed": [0, 1],
        "activation": ["relu", "tanh"],
    }
    return rvfl_jax.sweep(make, ragged_stream(), grid, key=jax.random.key(0))


def test_pictures_show_means_over_seeds_and_the_best_of_what_is_not_drawn(result):
    mean = result.prequential_loss.mean(axis=2)
    figure = heat_map(result, "k", "ridge")
    drawn = figure.axes[0].collections[0].get_array()
    np.testing.assert_allclose(np.asarray(drawn), mean.min(axis=-1).T)
    star = figure.axes[0].lines[0]
    row, column = np.unravel_index(np.argmin(mean.min(axis=-1).T), (2, 3))
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (column + 0.5, row + 0.5)
    line = heat_map(result, "ridge").axes[0]
    np.testing.assert_allclose(line.lines[0].get_ydata(), mean.min(axis=(0, 2)))
    assert line.get_xscale() == "log"
    named = heat_map(result, "activation", value="prequential_accuracy").axes[0]
    accuracy = result.prequential_accuracy.mean(axis=2)
    np.testing.assert_allclose(named.lines[0].get_ydata(), accuracy.max(axis=(0, 1)))
    assert [label.get_text() for label in named.get_xticklabels()] == ["relu", "tanh"]
    with pytest.raises(ValueError, match="y: expected another axis than x"):
        heat_map(result, "k", "k")
    with pytest.raises(ValueError, match="axis: expected one of k, ridge, activation"):
        heat_map(result, "seed")
    assert drawn_axes(result) == ("k", "ridge")


@pytest.mark.parametrize("value", ["prequential_loss", "prequential_accuracy"])
def test_the_star_is_never_on_what_failed_under_any_seed(result, value):
    healthy = result.healthy.copy()
    best = result.best(value)
    place = tuple(
        list(result.coords[axis]).index(best[axis]) if axis in best else 1 for axis in result.axes
    )
    healthy[place] = False
    changed = replace(
        result,
        healthy=healthy,
        prequential_loss=np.where(healthy, result.prequential_loss, np.inf),
        prequential_accuracy=np.where(healthy, result.prequential_accuracy, 0.0),
    )
    other = changed.best(value)
    assert other != best
    star = heat_map(changed, "k", "ridge", value=value).axes[0].lines[0]
    at = int(star.get_xdata()[0]), int(star.get_ydata()[0])
    assert (result.coords["k"][at[0]], result.coords["ridge"][at[1]]) == (
        other["k"],
        other["ridge"],
    )
    none = replace(changed, healthy=np.zeros_like(healthy))
    with pytest.raises(ValueError, match="stayed healthy, got none"):
        heat_map(none, "k", value=value)


def test_lines_go_from_left_to_right(stream):
    def make(k):
        return rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=0.5, k=k)

    result = rvfl_jax.sweep(make, stream, {"k": [2.0, 0.0, 1.0]}, key=jax.random.key(0))
    line = heat_map(result, "k").axes[0].lines[0]
    assert line.get_xdata().tolist() == [0.0, 1.0, 2.0]
    np.testing.assert_allclose(line.get_ydata(), result.prequential_loss[[1, 2, 0]])


def test_table_has_the_best_first(result):
    table = sweep_table(result, rows=4)
    assert table.row_count == 4
    assert next(iter(table.columns[0].cells)) == f"{result.best()['k']:.4g}"
    assert [column.header for column in table.columns][:2] == ["k", "ridge"]


# Pictures of one run: what is drawn is what the history holds.


@pytest.fixture(scope="module")
def run():
    stream = ragged_stream(rows=120, num_batches=8)
    learner = rvfl_jax.edrvfl(num_layers=3, num_nodes=8, ridge=0.5, k=rvfl_jax.adaptive_k(sigma=1))
    test = blobs(40, seed=0)
    return rvfl_jax.run_stream(learner, stream, key=jax.random.key(0), test=test, confusion=True)


def labelled(axes, label):
    return next(line for line in axes.get_lines() if line.get_label() == label)


def test_accuracy_curve_has_the_ensemble_and_a_box_a_look(run):
    axes = plots.accuracy_curve(run)
    line = labelled(axes, "ensemble")
    np.testing.assert_array_equal(line.get_xdata(), np.arange(1, 9))
    np.testing.assert_array_equal(line.get_ydata(), run.history.accuracy["class_incremental"])
    assert len(axes.patches) == 8
    seen = plots.accuracy_curve(run, protocol="seen")
    np.testing.assert_array_equal(
        labelled(seen, "ensemble").get_ydata(), run.history.accuracy["seen"]
    )
    assert not seen.patches


def test_many_looks_get_a_band(run):
    many = np.tile(run.history.learner_accuracy, (8, 1))
    history = run.history._replace(
        evaluated=np.arange(64),
        accuracy={"class_incremental": many.mean(axis=1)},
        learner_accuracy=many,
    )
    axes = plots.accuracy_curve(run._replace(history=history))
    np.testing.assert_array_equal(
        labelled(axes, "their median").get_ydata(), np.median(many, axis=1)
    )
    low, high = axes.collections[0].get_datalim(axes.transData).intervaly
    assert (low, high) == (many.min(), many.max())


def test_transfer_matrix_shows_R(run):
    axes = plots.transfer_matrix(run, protocol="task_aware")
    R = run.history.R["task_aware"]
    np.testing.assert_array_equal(axes.images[0].get_array(), R)
    assert [text.get_text() for text in axes.texts] == [f"{value:.2f}" for value in R.ravel()]


def test_strength_paths_show_every_layer(run):
    axes = plots.strength_paths(run)
    for layer in range(3):
        line = labelled(axes, f"layer {layer + 1}")
        np.testing.assert_array_equal(line.get_ydata(), run.history.k_next[:-1, layer])
    assert axes.get_yscale() == "log"


def test_regret_and_divergence_have_an_axis_each(run):
    for against, names in (
        ("labels", ("regret", "kl")),
        ("expert", ("excess_loss", "kl_from_expert")),
    ):
        axes = plots.regret_and_divergence(run, against=against)
        left, right = axes.figure.axes
        assert left is axes
        for axis, name in zip((left, right), names, strict=True):
            np.testing.assert_array_equal(
                axis.get_lines()[0].get_ydata(), getattr(run.history, name)
            )


def test_confusion_over_time_shows_shares_of_each_class(run):
    axes = plots.confusion_over_time(run, moments=[4, 8])
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    assert shown.shape == (4, 9)
    counts = run.history.confusion[[3, 7]]
    np.testing.assert_allclose(shown[:, :4], counts[0] / 10)
    np.testing.assert_allclose(shown[:, 5:], counts[1] / 10)
    assert np.isnan(shown[:, 4]).all()
    names = [tick.get_text() for tick in axes.get_yticklabels()]
    assert names == [str(label) for label in run.history.classes]
    assert len(plots.confusion_over_time(run).get_xticklabels()) == 2


def test_confusion_counts_every_test_row_once(run):
    counts = run.history.confusion
    assert counts.shape == (8, 4, 4)
    assert (counts.sum(axis=(1, 2)) == 40).all()
    right = counts.diagonal(axis1=1, axis2=2).sum(axis=1) / 40
    np.testing.assert_allclose(right, run.history.accuracy["class_incremental"])


def test_pictures_draw_in_the_axes_they_are_given(run):
    for picture in (
        plots.accuracy_curve,
        plots.transfer_matrix,
        plots.strength_paths,
        plots.regret_and_divergence,
        plots.confusion_over_time,
    ):
        axes = Figure().add_subplot()
        assert picture(run, axes=axes) is axes
        assert axes.get_xlabel() or axes.get_ylabel()


def with_curve(run, shift):
    """The same run with other numbers in every curve."""
    history = run.history
    curves = {name: curve * shift for name, curve in history.accuracy.items()}
    changes = {"accuracy": curves, "regret": history.regret * shift, "kl": history.kl * shift}
    return run._replace(history=history._replace(k_next=history.k_next * shift, **changes))


LAYERS = [f"{name}, layer {i}" for name in ("-R", "-F", "-kF") for i in (1, 2, 3)]


@pytest.mark.parametrize(
    ("picture", "lines", "names"),
    [
        (plots.accuracy_curve, 1, ["-R", "-F", "-kF"]),
        (plots.regret_and_divergence, 1, ["-R", "-F", "-kF"]),
        (plots.strength_paths, 3, LAYERS),
    ],
)
def test_several_runs_in_one_picture_are_told_apart(run, picture, lines, names):
    axes = Figure().add_subplot()
    for shift, label in ((1.0, "-R"), (0.8, "-F"), (0.6, "-kF")):
        picture(with_curve(run, shift), label=label, axes=axes)
    handles, labels = axes.get_legend_handles_labels()
    assert labels == names
    assert [text.get_text() for text in axes.get_legend().get_texts()] == names
    assert len({handle.get_color() for handle in handles}) == 3 * lines
    assert len(axes.figure.axes) == 1 + (picture is plots.regret_and_divergence)
    # Those of the cycle that the axes have, whatever it is.
    other = Figure().add_subplot()
    other.set_prop_cycle(color=["magenta", "teal"])
    for label in ("a", "b"):
        picture(run, label=label, axes=other)
    drawn = [handle.get_color() for handle in other.get_legend_handles_labels()[0]]
    assert drawn[:2] == ["magenta", "teal"]


def test_runs_without_labels_are_numbered_and_share_a_scale(run):
    axes = Figure().add_subplot()
    for shift in (1.0, 0.8):
        plots.accuracy_curve(with_curve(run, shift), axes=axes)
    assert {"ensemble", "ensemble 2"} <= set(axes.get_legend_handles_labels()[1])
    axes = Figure().add_subplot()
    for shift in (1.0, 0.8):
        plots.regret_and_divergence(with_curve(run, shift), axes=axes)
    assert axes.get_legend_handles_labels()[1] == ["run", "run 2"]
    solid = [line.get_color() for line in axes.get_legend_handles_labels()[0]]
    assert [line.get_color() for line in axes.figure.axes[1].get_lines()] == solid
    axes = Figure().add_subplot()
    for shift, scale in ((1.0, "log"), (0.0, "linear"), (2.0, "linear")):
        plots.strength_paths(with_curve(run, shift), axes=axes)
        assert axes.get_yscale() == scale, "logarithmic only where all are positive"


def test_labels_of_maps_are_titles(run, result):
    for picture in (plots.transfer_matrix, plots.confusion_over_time):
        assert picture(run, label="-R").get_title() == "-R"
        assert picture(run).get_title() == ""
    axes = Figure().add_subplot()
    for label in ("first", "second"):
        heat_map(result, "ridge", label=label, axes=axes)
    assert axes.get_legend_handles_labels()[1] == ["first", "second"]
    colours = {handle.get_color() for handle in axes.get_legend_handles_labels()[0]}
    assert len(colours) == 2
    assert heat_map(result, "k", "ridge", label="mine").axes[0].get_title() == "mine"


@pytest.mark.parametrize(
    ("picture", "change", "options", "message"),
    [
        ("accuracy_curve", {"evaluated": np.zeros(0, int)}, {}, "evaluated on a test set"),
        ("accuracy_curve", {}, {"protocol": "class"}, "protocol: expected one of class_incr"),
        ("transfer_matrix", {"R": {}}, {}, "evaluated at every task end"),
        ("strength_paths", {"k_next": np.full((8, 3), np.nan)}, {}, "with forward strengths"),
        (
            "regret_and_divergence",
            {"excess_loss": np.full(8, np.nan)},
            {"against": "expert"},
            "an expert to compare with",
        ),
        ("confusion_over_time", {"confusion": np.zeros((0, 0, 0))}, {}, "confusion=True"),
        (
            "confusion_over_time",
            {},
            {"moments": [9]},
            "some of the 8 batches, from 1 to 8",
        ),
        ("confusion_over_time", {}, {"moments": []}, "moments: expected some of"),
    ],
)
def test_runs_without_what_a_picture_needs(run, picture, change, options, message):
    changed = run._replace(history=run.history._replace(**change))
    with pytest.raises(ValueError, match=message):
        getattr(plots, picture)(changed, **options)
