"""The picture of `rvfl-jax run`."""

from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.figure import Figure

from rvfl_jax.plots.style import line_styles, over_batches

if TYPE_CHECKING:
    from rvfl_jax.runs.comparison import Comparison, StyleResult


def comparison_figure(result: "Comparison") -> Figure:
    """acc(t) with the spread of sub-learners, cumulative regret, and k, style by style.

    Regret, eq. (34), is drawn beyond that of the first style, since all are near each other: the
    error that no readout avoids is in all of them. Lines are means over seeds. Bands reach from
    the worst to the best sub-learner, also averaged over seeds. Vertical lines mark the task ends
    of the first seed.
    """
    adaptive = {
        name: style
        for name, style in result.styles.items()
        if np.nansum(style.histories[0].sigma_share) or np.ptp(_mean(style, "k_next")[:-1]) > 0
    }
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    grid = figure.add_gridspec(2, 2, width_ratios=(3, 2))
    curve = figure.add_subplot(grid[:, 0])
    regret = figure.add_subplot(grid[0, 1] if adaptive else grid[:, 1])
    style_of = dict(zip(result.styles, line_styles(), strict=False))
    for name, style in result.styles.items():
        _draw_accuracy(curve, name, style, style_of[name])
    _draw_regret(regret, result.styles, style_of)
    if result.offline.metrics:
        offline = float(np.mean(result.offline.metrics["accuracy_class_incremental"]))
        curve.axhline(offline, color="black", lw=1, ls=(0, (1, 2)))
        curve.annotate(
            f"offline expert {offline:.3f}", (1, offline), (2, 4), textcoords="offset points"
        )
    curve.set(ylim=(0, 1.02), ylabel="accuracy on the whole test set, acc(t)")
    curve.set_xlabel("batches learned")
    curve.legend(loc="lower right", title="line: ensemble, band: sub-learners")
    axes = [curve, regret]
    if adaptive:
        axes.append(figure.add_subplot(grid[1, 1]))
        _draw_strengths(axes[-1], adaptive, style_of)
    for axis in axes:
        over_batches(axis, result.task_ends)
    axes[-1].set_xlabel("batches learned")
    figure.suptitle(
        f"{result.name}: {result.stream.num_tasks} tasks of new classes in"
        f" {result.stream.num_batches} batches, one pass, {result.seeds}"
        f" seed{'s' if result.seeds > 1 else ''}"
    )
    return figure


def _mean(style: "StyleResult", name: str) -> np.ndarray:
    return np.mean([getattr(history, name) for history in style.histories], axis=0)


def _draw_accuracy(axis: Any, name: str, style: "StyleResult", line_style: dict[str, Any]) -> None:
    batches = style.histories[0].evaluated + 1
    curves = [history.accuracy["class_incremental"] for history in style.histories]
    axis.plot(batches, np.mean(curves, axis=0), label=name, **line_style)
    spread = np.stack([history.learner_accuracy for history in style.histories])
    axis.fill_between(
        batches,
        spread.min(axis=-1).mean(axis=0),
        spread.max(axis=-1).mean(axis=0),
        color=line_style["color"],
        alpha=0.15,
        lw=0,
    )


def _draw_regret(
    axis: Any, styles: dict[str, "StyleResult"], style_of: dict[str, dict[str, Any]]
) -> None:
    first = next(iter(styles))
    base = _mean(styles[first], "cumulative_regret")
    for name, style in styles.items():
        curve = _mean(style, "cumulative_regret") - (base if len(styles) > 1 else 0.0)
        axis.plot(style.histories[0].evaluated + 1, curve, label=name, **style_of[name])
    axis.set_ylabel(f"beyond {first}'s" if len(styles) > 1 else "cumulative")
    axis.set_title(f"cumulative regret, eq. (34); {first}: {base[-1]:.3g}", fontsize="medium")


def _draw_strengths(
    axis: Any, adaptive: dict[str, "StyleResult"], style_of: dict[str, dict[str, Any]]
) -> None:
    for name, style in adaptive.items():
        strengths = _mean(style, "k_next")[:-1]
        batches = np.arange(1, len(strengths) + 1)
        for layer, path in enumerate(strengths.T):
            line_style = {**style_of[name], "lw": 1, "alpha": 0.4 + 0.6 / (layer + 1)}
            axis.plot(batches, path, label=f"{name}, layer {layer + 1}", **line_style)
    axis.set(yscale="log", ylabel="forward strength $k_{t+1}$")
    axis.legend(fontsize="small")
