"""Pictures of runs. Matplotlib figures; nothing here is shown or saved by itself."""

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from rvfl_jax.checks import one_of
from rvfl_jax.sweep_result import CRITERIA, value_in_words

if TYPE_CHECKING:
    from rvfl_jax.experiment import Comparison, StyleResult
    from rvfl_jax.sweep_result import Sweep

# Okabe and Ito's palette, distinguishable with every common kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")


def comparison_figure(result: "Comparison") -> Figure:
    """acc(t) with the spread of sub-learners, cumulative regret, and k, style by style.

    Lines are means over seeds. Bands reach from the worst to the best sub-learner, also
    averaged over seeds. Vertical lines mark the task ends of the first seed.
    """
    adaptive = {
        name: style
        for name, style in result.styles.items()
        if np.any(style.histories[0].sigma_share) or np.ptp(_mean(style, "k_next")[:-1]) > 0
    }
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    curve = figure.add_subplot(grid[:, 0])
    regret = figure.add_subplot(grid[0, 1] if adaptive else grid[:, 1])
    looks = dict(zip(result.styles, _looks(), strict=False))
    for name, style in result.styles.items():
        _draw_accuracy(curve, name, style, looks[name])
        evaluated = style.histories[0].evaluated + 1
        regret.plot(evaluated, _mean(style, "cumulative_regret"), label=name, **looks[name])
    offline = float(np.mean(result.offline.metrics["accuracy_class_incremental"]))
    curve.axhline(offline, color="black", lw=1, ls=(0, (1, 2)))
    curve.annotate(
        f"offline expert {offline:.3f}", (1, offline), (2, 4), textcoords="offset points"
    )
    curve.set(ylim=(0, 1.02), ylabel="accuracy on the whole test set, acc(t)")
    curve.set_xlabel("batches learned")
    curve.legend(loc="lower right", title="line: ensemble, band: sub-learners")
    regret.set(ylabel="cumulative regret", title="against the offline expert")
    axes = [curve, regret]
    if adaptive:
        axes.append(figure.add_subplot(grid[1, 1]))
        _draw_strengths(axes[-1], adaptive, looks)
    for axis in axes:
        _mark_task_ends(axis, result.task_ends)
    axes[-1].set_xlabel("batches learned")
    figure.suptitle(
        f"{result.dataset}: {result.config.tasks} tasks of new classes in"
        f" {result.config.batches} batches, one pass, {result.seeds}"
        f" seed{'s' if result.seeds > 1 else ''}"
    )
    return figure


def _looks() -> Any:
    for colour, dash in zip(cycle(COLOURS), cycle(DASHES), strict=False):
        yield {"color": colour, "ls": dash, "lw": 1.8}


def _mean(style: "StyleResult", name: str) -> np.ndarray:
    return np.mean([getattr(history, name) for history in style.histories], axis=0)


def _draw_accuracy(axis: Any, name: str, style: "StyleResult", look: dict[str, Any]) -> None:
    batches = style.histories[0].evaluated + 1
    curves = [history.accuracy["class_incremental"] for history in style.histories]
    axis.plot(batches, np.mean(curves, axis=0), label=name, **look)
    spread = np.stack([history.learner_accuracy for history in style.histories])
    axis.fill_between(
        batches,
        spread.min(axis=-1).mean(axis=0),
        spread.max(axis=-1).mean(axis=0),
        color=look["color"],
        alpha=0.15,
        lw=0,
    )


def _draw_strengths(
    axis: Any, adaptive: dict[str, "StyleResult"], looks: dict[str, dict[str, Any]]
) -> None:
    for name, style in adaptive.items():
        strengths = _mean(style, "k_next")[:-1]
        batches = np.arange(1, len(strengths) + 1)
        for layer, path in enumerate(strengths.T):
            look = {**looks[name], "lw": 1, "alpha": 0.4 + 0.6 / (layer + 1)}
            axis.plot(batches, path, label=f"{name}, layer {layer + 1}", **look)
    axis.set(yscale="log", ylabel="forward strength $k_{t+1}$")
    axis.legend(fontsize="small")


def _mark_task_ends(axis: Any, task_ends: np.ndarray) -> None:
    for end in task_ends:
        axis.axvline(end + 1, color="0.8", lw=0.8, zorder=0)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(axis="y", color="0.92")


def heat_map(
    result: "Sweep",
    x: str,
    y: str | None = None,
    *,
    value: str = "prequential_loss",
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
    figure = Figure(figsize=(7, 4.6), layout="constrained") if axes is None else axes.figure
    axis = figure.add_subplot() if axes is None else axes
    label = value.replace("_", " ")
    shown, spread = _reduced(result, value, (x,) if y is None else (y, x), more)
    if np.isnan(shown).all():
        raise ValueError("result: expected a configuration that stayed healthy, got none")
    if y is None:
        _draw_line(axis, result, x, shown, spread, more)
        axis.set_ylabel(label)
    else:
        mesh = axis.pcolormesh(shown, cmap="viridis" if more else "viridis_r")
        figure.colorbar(mesh, ax=axis, label=label)
        row, column = np.unravel_index(_best(shown, more), shown.shape)
        axis.plot(column + 0.5, row + 0.5, marker="*", ms=16, mfc="white", mec="black")
        _ticks(axis.xaxis, result.coords[x])
        _ticks(axis.yaxis, result.coords[y])
        axis.set_ylabel(y)
    axis.set_xlabel(x)
    if axes is None:
        axis.set_title(f"{label}; the star marks the best")
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
    axis: Any, result: "Sweep", name: str, shown: np.ndarray, spread: np.ndarray, more: bool
) -> None:
    places = np.asarray(result.coords[name])
    numeric = places.ndim == 1 and places.dtype.kind == "f"
    x = places if numeric else np.arange(len(places))
    order = np.argsort(x, kind="stable")
    x, shown, spread = x[order], shown[order], spread[order]
    axis.plot(x, shown, color=COLOURS[0], marker=".")
    axis.fill_between(x, shown - spread, shown + spread, color=COLOURS[0], alpha=0.15, lw=0)
    at = _best(shown, more)
    axis.plot(x[at], shown[at], marker="*", ms=16, mfc="white", mec="black")
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
