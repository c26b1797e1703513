"""Pictures of runs. Each takes a `Run` and returns the Matplotlib axes that it drew in.

Without axes of its own a picture gets a new figure: `accuracy_curve(run).figure.savefig(...)`.
Curves of several runs go into the same axes, in the colours of their cycle, and `label` names each:

    axes = accuracy_curve(ridge, label="-R")
    accuracy_curve(bayes, label="-kF-Bayes", axes=axes)
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from matplotlib.colors import ListedColormap

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.types import Protocol
from rvfl_jax.plots.style import COLOURS, axes_or_new, label_for, over_batches
from rvfl_jax.runs.history import History, Run

# Beyond that numbers in cells and names on ticks are too small to read.
MOST_NUMBERS = 12
MOST_NAMES = 25
MOST_MOMENTS = 6
# By which a later run finds what an earlier one drew in the same axes.
ANNOUNCED, REGRET, TWIN = "strengths announced", "regret", "divergence"


def accuracy_curve(
    run: Run,
    *,
    protocol: Protocol = "class_incremental",
    label: str | None = None,
    axes: Any = None,
) -> Any:
    """acc(t), eq. (33), with the spread of the sub-learners.

    The line is the ensemble. For "class_incremental" a box at every evaluation, or a
    band where there are many, reaches from the worst sub-learner to the best, with a line at
    their median. A run with a label, or beside others, has a band in the colour of its line.

    Args:
        run: of `run_stream` with a test set.
        protocol: "class_incremental", "seen", "task_aware" or "task_id".
        label: of the run in the legend; "ensemble", with a number from the second on, when None.
        axes: to draw in; those of a new figure when None.

    Raises:
        ValueError: if the run was never evaluated on a test set, or on an unknown protocol.
    """
    history = _evaluated(run)
    curve = history.accuracy[one_of("protocol", protocol, history.accuracy)]
    axes = axes_or_new(axes, (7, 4.2))
    batches = history.evaluated + 1
    alone = label is None and not axes.get_legend_handles_labels()[1]
    name = label_for(axes, label, "ensemble")
    (line,) = axes.plot(batches, curve, lw=1.8, label=name, zorder=3)
    if protocol == "class_incremental" and history.learner_accuracy.shape[1] > 1:
        _draw_spread(axes, batches, history.learner_accuracy, line.get_color(), alone)
    over_batches(axes, history.task_ends)
    axes.set(xlabel="batches learned", ylim=(0, 1.02))
    axes.set_ylabel(f"accuracy on the test set, {protocol.replace('_', ' ')}")
    axes.legend(loc="lower right")
    return axes


def transfer_matrix(
    run: Run,
    *,
    protocol: Protocol = "class_incremental",
    label: str | None = None,
    axes: Any = None,
) -> Any:
    """R, the accuracy on each task after each task, as colours.

    Below the diagonal is what was kept, above it what was known before it was taught; ACC, BWT
    and FWT (eq. 30 to 32) are its means.

    Args:
        run: of `run_stream` along a stream with tasks, evaluated at every task end.
        protocol: see `accuracy_curve`.
        label: title of the axes, for several side by side; none when None.
        axes: to draw in; those of a new figure when None.

    Raises:
        ValueError: if the run has no R, or on an unknown protocol.
    """
    history = _evaluated(run)
    if not history.R:
        raise ValueError("run: expected one that was evaluated at every task end, got one without")
    R = history.R[one_of("protocol", protocol, history.R)]
    axes = axes_or_new(axes, (5.6, 4.6))
    image = axes.imshow(R, cmap="viridis", vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, label=f"accuracy, {protocol.replace('_', ' ')}")
    if len(R) <= MOST_NUMBERS:
        for (row, column), value in np.ndenumerate(R):
            if np.isfinite(value):
                ink = "black" if value > 0.6 else "white"
                place = {"ha": "center", "va": "center", "fontsize": 8}
                axes.text(column, row, f"{value:.2f}", color=ink, **place)
    every = -(-len(R) // MOST_NUMBERS)
    places = range(0, len(R), every)
    axes.set_xticks(places, [str(q + 1) for q in places])
    axes.set_yticks(places, [str(q + 1) for q in places])
    axes.set(xlabel="task tested", ylabel="tasks learned")
    _entitle(axes, label)
    return axes


def strength_paths(run: Run, *, label: str | None = None, axes: Any = None) -> Any:
    """K of every sub-learner along the stream, eq. (28) and (29).

    A line is k_{t+1}, put on the batch announced; dots are k_t, estimated for that batch when it
    is learned. The scale is logarithmic where all in these axes are positive.

    Args:
        run: of any method that has strengths.
        label: of the run in the legend, before each layer; none when None.
        axes: to draw in; those of a new figure when None.

    Raises:
        ValueError: if the run knows of none, as one that only added up.
    """
    history: History = run.history
    if not np.isfinite(history.k_next).any():
        raise ValueError("run: expected one with forward strengths, got one without")
    axes = axes_or_new(axes, (7, 4.2))
    batches = np.arange(1, len(history.k_next) + 1)
    # Mostly nothing is announced to the last batch of a stream.
    end = None if history.k_next[-1].any() else -1
    announced = history.k_next[:end]
    for layer, (taken, put) in enumerate(zip(history.k_t.T, announced.T, strict=True), start=1):
        name = label_for(axes, label and f"{label}, layer {layer}", f"layer {layer}")
        (line,) = axes.plot(batches[:end], put, lw=1.2, label=name, gid=ANNOUNCED)
        line_style = {"ls": "", "marker": ".", "ms": 4, "color": line.get_color()}
        axes.plot(batches[1:], taken[1:], **line_style)
    drawn = [line.get_ydata() for line in axes.get_lines() if line.get_gid() == ANNOUNCED]
    every = np.concatenate([*drawn, np.ones(0)])
    spread = every.size and np.nanmin(every) > 0 and np.ptp(every) > 0
    axes.set_yscale("log" if spread else "linear")
    over_batches(axes, history.task_ends)
    axes.set(xlabel="batches learned", ylabel="forward strength")
    axes.legend(title="line: $k_{t+1}$, dots: $k_t$", fontsize="small")
    return axes


def regret_and_divergence(
    run: Run,
    *,
    against: Literal["labels", "expert"] = "labels",
    label: str | None = None,
    axes: Any = None,
) -> Any:
    """How far the answers are from the truth, or from the offline expert's, on twin axes.

    Args:
        run: of `run_stream` with a test set.
        against: "labels" for regret(t), eq. (34), and KL(t), eq. (35); "expert" for the loss
            beyond the offline expert's and the divergence from it.
        label: of the run in the legend; none for one run, else "run" and a number, when None.
        axes: to draw in, which are those of the regret; those of a new figure when None. A second
            run goes into the same twin.

    Raises:
        ValueError: if it is to be against the expert, and the run had none.
    """
    history = _evaluated(run)
    if one_of("against", against, ("labels", "expert")) == "labels":
        curves = (history.regret, "regret"), (history.kl, "KL")
    else:
        curves = (
            (history.excess_loss, "loss beyond the expert's"),
            (history.kl_from_expert, "KL from the expert, nats"),
        )
    if not np.isfinite(curves[0][0]).any():
        raise ValueError("run: expected one with an expert to compare with, got one without")
    axes = axes_or_new(axes, (7, 4.2))
    twin = _twin_of(axes)
    alone = label is None and not twin.get_lines()
    (line,) = axes.plot(history.evaluated + 1, curves[0][0], lw=1.8, gid=REGRET)
    line.set_label(label_for(axes, label, "run"))
    # One run has a colour for each scale, several have one each and a dash for each scale.
    colours = (line.get_color(), COLOURS[1] if alone else line.get_color())
    (dashed,) = twin.plot(history.evaluated + 1, curves[1][0], color=colours[1], ls="--", lw=1.8)
    dashed.set_label("_nolegend_")
    for axis, (_, name), dash, colour in zip(
        (axes, twin), curves, ("solid", "dashed"), colours, strict=True
    ):
        axis.set_ylabel(f"{name} ({dash})", color=colour if alone else "black")
        axis.tick_params(axis="y", colors=colour if alone else "black")
    over_batches(axes, history.task_ends)
    twin.spines[["top", "left"]].set_visible(False)
    axes.set_xlabel("batches learned")
    if not alone:
        solid = [line for line in axes.get_lines() if line.get_gid() == REGRET]
        for one, other in zip(solid, twin.get_lines(), strict=True):
            other.set_color(one.get_color())
        axes.legend()
    return axes


def _twin_of(axes: Any) -> Any:
    """The axes of the divergence beside those of the regret; new ones for the first run."""
    for other in axes.figure.axes:
        if other.get_gid() == TWIN and other.get_shared_x_axes().joined(axes, other):
            return other
    twin = axes.twinx()
    twin.set_gid(TWIN)
    return twin


def confusion_over_time(
    run: Run,
    *,
    moments: Sequence[int] | None = None,
    label: str | None = None,
    axes: Any = None,
) -> Any:
    """Which class was taken for which, at several moments side by side.

    Every panel is a confusion matrix, rows the true class and columns the answer, both in the
    order in which classes came; colours are shares of a row. What was learned last and swallows
    the rest shows as a vertical stripe, forgetting as a fading diagonal.

    Args:
        run: of `run_stream(..., confusion=True)`.
        moments: batches after which, counted from 1; task ends, or else evenly apart, six at
            most, when None.
        label: title of the axes, for several one above the other; none when None.
        axes: to draw in; those of a new figure when None.

    Raises:
        ValueError: if the run did not count, or not at one of these moments.
    """
    history = _evaluated(run)
    if not history.confusion.size:
        raise ValueError("run: expected one of run_stream(..., confusion=True), got another")
    at = _moments(history, moments)
    m = len(history.classes)
    counts = history.confusion[at][:, :m, :m]
    with np.errstate(invalid="ignore"):
        shares = counts / counts.sum(axis=2, keepdims=True)
    gap = max(1, m // 12)
    panels = [np.pad(part, ((0, 0), (0, gap)), constant_values=np.nan) for part in shares]
    axes = axes_or_new(axes, (1.2 + 2.1 * len(at), 3.1))
    colours = ListedColormap(_greys_to_blue())
    image = axes.imshow(np.hstack(panels)[:, :-gap], cmap=colours, vmin=0, vmax=1)
    axes.figure.colorbar(image, ax=axes, label="share of the true class", pad=0.01, shrink=0.7)
    centres = np.arange(len(at)) * (m + gap) + (m - 1) / 2
    axes.set_xticks(centres, [f"after batch {history.evaluated[i] + 1}" for i in at])
    axes.tick_params(axis="x", length=0)
    if m <= MOST_NAMES:
        axes.set_yticks(range(m), [str(label) for label in history.classes], fontsize=8)
    axes.set(xlabel="answered class, in the order of the rows", ylabel="true class")
    axes.spines[:].set_visible(False)
    _entitle(axes, label)
    return axes


def _entitle(axes: Any, label: str | None) -> None:
    if label is not None:
        axes.set_title(str(label))


def _evaluated(run: Run) -> History:
    history: History = run.history
    if not len(history.evaluated):
        raise ValueError("run: expected one evaluated on a test set, got one that never was")
    return history


def _draw_spread(
    axes: Any, batches: np.ndarray, spread: np.ndarray, colour: Any, alone: bool
) -> None:
    if not alone:
        low, high = spread.min(axis=1), spread.max(axis=1)
        axes.fill_between(batches, low, high, color=colour, alpha=0.15, lw=0)
        return
    if len(batches) <= MOST_NAMES:
        width = 0.6 * (np.diff(batches).min() if len(batches) > 1 else 1)
        boxes = axes.boxplot(
            spread.T,
            positions=batches,
            widths=width,
            whis=(0, 100),
            manage_ticks=False,
            patch_artist=True,
            boxprops={"facecolor": "#D6E6F2", "edgecolor": "0.4"},
            medianprops={"color": COLOURS[1]},
            whiskerprops={"color": "0.4"},
            capprops={"color": "0.4"},
        )
        boxes["boxes"][0].set_label("sub-learners")
        return
    low, middle, high = np.quantile(spread, [0, 0.5, 1], axis=1)
    axes.fill_between(batches, low, high, color=colour, alpha=0.15, lw=0, label="sub-learners")
    axes.plot(batches, middle, color=COLOURS[1], lw=1, ls="--", label="their median")


def _moments(history: History, moments: Sequence[int] | None) -> list[int]:
    """Places among the evaluations."""
    if moments is None:
        ends = history.task_ends[np.isin(history.task_ends, history.evaluated)]
        batches = np.sort(ends) if len(ends) > 1 else history.evaluated
        chosen = np.linspace(0, len(batches) - 1, min(len(batches), MOST_MOMENTS)).round()
        batches = batches[chosen.astype(int)]
    else:
        batches = np.asarray(moments, int) - 1
        if not len(batches) or not np.isin(batches, history.evaluated).all():
            raise ValueError(
                f"moments: expected some of the {len(history.evaluated)} batches, from"
                f" {history.evaluated[0] + 1} to {history.evaluated[-1] + 1}, after which the run"
                f" was evaluated, got {moments!r}"
            )
    return [int(np.flatnonzero(history.evaluated == batch)[0]) for batch in batches]


def _greys_to_blue() -> np.ndarray:
    """Light grey for none to dark blue for all: distinct from the white between panels."""
    from matplotlib import colormaps

    return np.asarray(colormaps["Blues"](np.linspace(0.08, 1.0, 256)))
