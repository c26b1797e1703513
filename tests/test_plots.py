"""Pictures of sweeps show the numbers of the sweep."""

from dataclasses import replace

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.plots import heat_map
from rvfl_jax.report import sweep_table
from rvfl_jax.sweep_job import drawn_axes


@pytest.fixture
def result(stream):
    def make(k=1.0, ridge=0.5, activation="relu"):
        return rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=ridge, k=k, activation=activation)

    grid = {
        "k": [0.0, 1.0, 2.0],
        "ridge": [0.01, 1.0],
        "seed": [0, 1],
        "activation": ["relu", "tanh"],
    }
    return rvfl_jax.sweep(make, stream, grid, key=jax.random.key(0))


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
