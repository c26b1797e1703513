"""Pictures of sweeps."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.types import Criterion
from rvfl_jax.plots.style import axes_or_new, label_for
from rvfl_jax.sweeps.result import CRITERIA, value_in_words

if TYPE_CHECKING:
    from rvfl_jax.sweeps.result import Sweep


def heat_map(
    result: "Sweep",
    x: str,
    y: str | None = None,
    *,
    value: Criterion = "prequential_loss",
    label: str | None = None,
    axes: Any = None,
) -> Figure:
    """A sweep over two axes as colours, or over one as a line; the best place is marked.

    Seeds and streams are averaged over (a line has a band of one standard deviation), and of
    any other axis not drawn the best value is taken at every place.

    Args:
        result: of `sweep`.
        x: axis drawn along the bottom, unless it is a line's only one.
        y: axis drawn upwards, or None for a line.
        value: "prequential_loss" or "prequential_accuracy".
        label: of a line in a legend, for several in the same axes; title of a map.
        axes: Matplotlib axes to draw in; a new figure when None.

    Returns:
        The figure.

    Raises:
        ValueError: on axes or a value that the sweep has not, or if every configuration failed.
    """
    for name in (x,) if y is None else (x, y):
        one_of("axis", name, result.choices)
    if x == y:
        raise ValueError(f"y: expected another axis than x, got {y!r} twice")
    more = CRITERIA[one_of("value", value, CRITERIA)]
    axis = axes_or_new(axes, (7, 4.6))
    figure = axis.figure
    called = value.replace("_", " ")
    shown, spread = _reduced(result, value, (x,) if y is None else (y, x), more)
    if np.isnan(shown).all():
        raise ValueError("result: expected a configuration that stayed healthy, got none")
    if y is None:
        _draw_line(axis, result, x, shown, spread, more, label)
        axis.set_ylabel(called)
    else:
        mesh = axis.pcolormesh(shown, cmap="viridis" if more else "viridis_r")
        figure.colorbar(mesh, ax=axis, label=called)
        row, column = np.unravel_index(_best(shown, more), shown.shape)
        axis.plot(column + 0.5, row + 0.5, marker="*", ms=16, mfc="white", mec="black")
        _ticks(axis.xaxis, result.coords[x])
        _ticks(axis.yaxis, result.coords[y])
        axis.set_ylabel(y)
    axis.set_xlabel(x)
    if axes is None:
        axis.set_title(f"{called}; the star marks the best")
    if label is not None and y is not None:
        axis.set_title(label)
    return figure


def _reduced(
    result: "Sweep", value: str, kept: tuple[str, ...], more: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds and streams, best over other axes; and the deviation over the former."""
    # As in `Sweep.ranking`: a configuration that failed under any circumstance is out.
    healthy = np.asarray(result.mean(result.healthy) == 1)
    values = getattr(result, value)
    circumstances = tuple(i for i, a in enumerate(result.axes) if a not in result.choices)
    worst = -np.inf if more else np.inf
    mean = np.where(healthy, result.mean(values), worst)
    with np.errstate(invalid="ignore"):
        deviation = values.std(axis=circumstances)
    names = list(result.choices)
    for name in [name for name in names if name not in kept]:
        at = names.index(name)
        best = np.argmax(mean, axis=at) if more else np.argmin(mean, axis=at)
        mean, deviation = (
            np.take_along_axis(array, np.expand_dims(best, at), at).squeeze(at)
            for array in (mean, deviation)
        )
        names.remove(name)
    order = [names.index(name) for name in kept]
    mean = np.where(np.isfinite(mean), mean, np.nan)
    return mean.transpose(order), deviation.transpose(order)


def _best(values: np.ndarray, more: bool) -> int:
    return int(np.nanargmax(values) if more else np.nanargmin(values))


def _draw_line(
    axis: Any,
    result: "Sweep",
    name: str,
    shown: np.ndarray,
    spread: np.ndarray,
    more: bool,
    label: str | None,
) -> None:
    beside_others = bool(axis.get_lines())
    places = np.asarray(result.coords[name])
    numeric = places.ndim == 1 and places.dtype.kind == "f"
    x = places if numeric else np.arange(len(places))
    order = np.argsort(x, kind="stable")
    x, shown, spread = x[order], shown[order], spread[order]
    (line,) = axis.plot(x, shown, marker=".", label=label_for(axis, label, "sweep"))
    colour = line.get_color()
    axis.fill_between(x, shown - spread, shown + spread, color=colour, alpha=0.15, lw=0)
    at = _best(shown, more)
    axis.plot(x[at], shown[at], marker="*", ms=16, mfc="white", mec=colour, color=colour)
    if label is not None or beside_others:
        axis.legend()
    if numeric and places.min() > 0 and places.max() > 30 * places.min():
        axis.set_xscale("log")
    elif not numeric:
        _ticks(axis.xaxis, places, centre=0.0)
    axis.grid(color="0.92")
    axis.spines[["top", "right"]].set_visible(False)


def _ticks(axis: Any, places: Any, centre: float = 0.5) -> None:
    """At most about nine of the values written beside their rows or columns."""
    every = -(-len(places) // 9)
    chosen = range(0, len(places), every)
    words = [value_in_words(places[at], digits=3) for at in chosen]
    axis.set_ticks([at + centre for at in chosen], words)
