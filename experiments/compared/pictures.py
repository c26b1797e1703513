"""What the tables show: accuracy on the way, memory and time against accuracy, old against new."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from experiments.compared import records, tables
from experiments.compared.contenders import OURS, Contender, contenders
from experiments.compared.labels import by_misses, place_labels, spread
from experiments.compared.settings import Setting
from experiments.results_file import Record
from rvfl_jax.plots import COLOURS

# Families in the order of panels, those of few methods in one.
PANELS: dict[str, tuple[str, ...]] = {
    "statistics": ("statistics",),
    "recursive ridge": ("recursive ridge",),
    OURS: (OURS,),
    "replay": ("replay",),
    "regularisation": ("regularisation",),
    "fine-tuning, projection and others": ("bound",),
}
FAMILY_COLOURS = dict(
    zip(PANELS, (COLOURS[0], COLOURS[5], "black", COLOURS[1], COLOURS[2], COLOURS[3]), strict=True)
)
OTHERS = list(PANELS)[-1]
FAMILY_MARKS = dict(zip(PANELS, "osD^vP", strict=True))
MARKS = "os^DvPX*<>"
# From a name to its line, from the left of the name on.
LEADER: dict[str, Any] = {
    "arrowstyle": "-",
    "color": "0.6",
    "lw": 0.7,
    "shrinkA": 0,
    "relpos": (0.0, 0.5),
}


@dataclass(frozen=True)
class Measured:
    """A method and its records, one a seed."""

    name: str
    contender: Contender
    records: list[Record]

    @property
    def panel(self) -> str:
        """The panel of its family."""
        family = self.contender.family
        return next((title for title, own in PANELS.items() if family in own), OTHERS)

    @property
    def colour(self) -> str:
        """That of the panel."""
        return FAMILY_COLOURS[self.panel]

    @property
    def mark(self) -> str:
        """That of the panel."""
        return FAMILY_MARKS[self.panel]

    def mean(self, name: str) -> float:
        """Over seeds."""
        return float(np.mean([record[name] for record in self.records]))

    def percent(self, name: str) -> float:
        """The same of a share."""
        return 100 * self.mean(name)


def measured(setting: Setting, *, seeds: int, count: int, out: Path) -> list[Measured]:
    """All that is kept of a setting."""
    found = []
    for name, contender in contenders().items():
        choice = tables.kept_choice(name, setting, count, out)
        if choice is None:
            continue
        file = records.runs_file(name, setting, records.as_point(choice["chosen"]), out)
        kept = [file.records.get(f"seed {seed}") for seed in range(seeds)]
        done = [record for record in kept if record and "ACC" in record]
        if done:
            found.append(Measured(name, contender, done))
    return found


def draw(setting: Setting, *, seeds: int, count: int, out: Path) -> None:
    """anytime.png and trade_offs.png beside the table."""
    found = measured(setting, seeds=seeds, count=count, out=out)
    learners = [one for one in found if one.contender.role == "learner"]
    folder = records.folder_of(setting, out)
    if not learners:
        print(f"{setting.name}: nothing to draw yet")
        return
    draw_anytime(setting, found, folder / "anytime.png")
    draw_trade_offs(setting, learners, folder / "trade_offs.png")
    print(f"Wrote anytime.png and trade_offs.png to {folder}.")


def _panels(figure: Figure, names: Sequence[str], sharey: Any = True) -> dict[str, Any]:
    axes = figure.subplots(2, -(-len(names) // 2), sharex=True, sharey=sharey).ravel()
    for axis in axes[len(names) :]:
        axis.set_visible(False)
    return dict(zip(names, axes, strict=False))


def _plain(axis: Any) -> None:
    axis.grid(color="0.93")
    axis.spines[["top", "right"]].set_visible(False)


def draw_anytime(setting: Setting, found: list[Measured], path: Path) -> None:
    """Accuracy on the classes seen after each task; a panel a family, all others grey behind it."""
    learners = [one for one in found if one.contender.role == "learner"]
    shown = [title for title in PANELS if any(one.panel == title for one in learners)]
    across = -(-len(shown) // 2)
    figure = Figure(figsize=(14, 9), layout="constrained")
    panels = _panels(figure, shown, sharey="row")
    for row in (shown[:across], shown[across:]):
        in_row = [one for one in learners if one.panel in row]
        # A row of panels is as deep as its own methods fall.
        low = 10 * np.floor(min((_way(one)[1].min() for one in in_row), default=0.0) / 10)
        for title in row:
            panel = panels[title]
            for one in learners:
                if one.panel != title:
                    panel.plot(*_way(one), color="0.87", lw=0.8, zorder=1)
            panel.set(xlim=(1, setting.num_tasks), ylim=(low, 101))
            own = [one for one in learners if one.panel == title]
            _draw_ways(panel, own, setting.num_tasks)
            _draw_bounds(panel, found)
            panel.set_title(title, loc="left", color=FAMILY_COLOURS[title], fontweight="bold")
            panel.xaxis.set_major_locator(MaxNLocator(integer=True))
            panel.tick_params(labelbottom=True)
            panel.set_xlabel("tasks learned")
            _plain(panel)
    for panel in list(panels.values())[::across]:
        panel.set_ylabel("accuracy on the classes seen, %")
    figure.suptitle(f"{setting.title}: one pass, {seeds_told(found)}; scales differ by row")
    figure.savefig(path, dpi=120)


def seeds_told(found: Sequence[Measured]) -> str:
    """The seeds of most methods, and those of every other by name."""
    most = max(len(one.records) for one in found)
    fewer = [
        f"{one.contender.title} {len(one.records)}" for one in found if len(one.records) < most
    ]
    told = f"mean of {most} seeds" if most > 1 else "1 seed"
    return told + (f" ({', '.join(fewer)})" if fewer else "")


def _way(one: Measured) -> tuple[np.ndarray, np.ndarray]:
    curves = 100 * np.array([record["seen"] for record in one.records])
    return np.arange(1, curves.shape[1] + 1), curves.mean(axis=0)


def _draw_ways(panel: Any, own: list[Measured], num_tasks: int) -> None:
    """Lines with their names at the right, apart from each other."""
    ends = [float(_way(one)[1][-1]) for one in own]
    low, high = panel.get_ylim()
    heights = spread(ends, 0.052 * (high - low), low + 0.01 * (high - low), high - 0.01)
    for at, (one, end, height) in enumerate(zip(own, ends, heights, strict=True)):
        tasks, mean = _way(one)
        shade = 1 - 0.55 * at / max(len(own) - 1, 1)
        look = {"color": one.colour, "alpha": shade, "marker": MARKS[at % len(MARKS)]}
        panel.plot(tasks, mean, lw=1.8, ms=5, markevery=max(len(tasks) // 8, 1), zorder=3, **look)
        panel.annotate(
            f"{one.contender.title} {end:.1f}",
            (num_tasks, end),
            (num_tasks + 0.03 * (num_tasks - 1), height),
            va="center",
            fontsize=9,
            color=one.colour,
            annotation_clip=False,
            arrowprops=LEADER,
        )


def _draw_bounds(panel: Any, found: list[Measured]) -> None:
    """Dotted lines, named at the foot of the panel, where no curve begins."""
    told = []
    for one in found:
        if one.contender.role == "bound":
            value = 100 * one.mean("accuracy_class_incremental")
            panel.axhline(value, color="0.3", lw=0.9, ls=(0, (1, 2)), zorder=0)
            told.append(f"{one.contender.title.lower()} {value:.1f}")
    if told:
        text = "dotted: " + ", ".join(told)
        panel.text(0.02, 0.02, text, transform=panel.transAxes, fontsize=8.5, color="0.3")


def draw_trade_offs(setting: Setting, learners: list[Measured], path: Path) -> None:
    """Memory and time against final accuracy, forgetting against learning, old against new."""
    figure = Figure(figsize=(14, 12.5), layout="constrained")
    (memory, seconds), (forgetting, halves) = figure.subplots(2, 2)
    final = [one.percent("accuracy_class_incremental") for one in learners]
    half = setting.num_tasks // 2
    drawn = {
        memory: ([one.mean("state bytes") / 1e6 for one in learners], final),
        seconds: ([_median(one) for one in learners], final),
        forgetting: (
            [max(one.percent("forgetting"), 0.1) for one in learners],
            [one.percent("learned") for one in learners],
        ),
        halves: (
            [one.percent("first tasks") for one in learners],
            [one.percent("last tasks") for one in learners],
        ),
    }
    memory.set(xscale="log", xlabel="state, MB", ylabel="final accuracy, %")
    memory.set_title("Memory against accuracy", loc="left")
    seconds.set(xscale="log", xlabel="seconds of a run, warm", ylabel="final accuracy, %")
    seconds.set_title("Time against accuracy", loc="left")
    forgetting.set(xscale="log", xlabel="forgetting, points (the left keeps more)")
    forgetting.set_ylabel("accuracy on a task when just learned, %")
    forgetting.set_title("Stability against plasticity", loc="left")
    halves.set_xlabel(f"final accuracy on the first {half} tasks, %")
    halves.set_ylabel(f"final accuracy on the last {half} tasks, %")
    halves.set_title("Old tasks against new ones", loc="left")
    for axis, (xs, ys) in drawn.items():
        _scatter(axis, learners, xs, ys)
        by_misses(axis, "y", ys)
        _plain(axis)
    by_misses(halves, "x", drawn[halves][0])
    # Alike on old tasks and new ones.
    halves.plot([0, 99], [0, 99], color="0.85", lw=1, zorder=0, scalex=False, scaley=False)
    for axis in (memory, seconds, forgetting):
        axis.margins(x=0.08)
        if axis is not memory:
            _few_ticks(axis)
    _legend(figure, learners)
    figure.suptitle(f"{setting.title}: {seeds_told(learners)}; accuracy by the logarithm of misses")
    figure.draw_without_rendering()
    names = [one.contender.title for one in learners]
    for axis, (xs, ys) in drawn.items():
        place_labels(axis, xs, ys, names, [one.colour for one in learners])
    figure.savefig(path, dpi=120)


def _few_ticks(axis: Any) -> None:
    """Plain numbers on a logarithmic axis of few decades."""
    axis.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    axis.xaxis.set_minor_locator(NullLocator())


def _median(one: Measured) -> float:
    return float(np.median([record["seconds"] for record in one.records]))


def _scatter(axis: Any, learners: list[Measured], xs: list[float], ys: list[float]) -> None:
    for one, x, y in zip(learners, xs, ys, strict=True):
        hollow = one.contender.boundaries == "given"
        face = "white" if hollow else one.colour
        look = {"facecolor": face, "edgecolor": one.colour, "marker": one.mark}
        axis.scatter(x, y, s=44, linewidth=1.6, zorder=3, **look)


def _legend(figure: Figure, learners: list[Measured]) -> None:
    from matplotlib.lines import Line2D

    look = {"ls": "", "ms": 8}
    entries = [
        Line2D([], [], color=colour, marker=FAMILY_MARKS[title], label=title, **look)
        for title, colour in FAMILY_COLOURS.items()
        if any(one.panel == title for one in learners)
    ]
    hollow = {"color": "0.4", "mfc": "white", "mew": 1.6, "marker": "o"}
    told = Line2D([], [], label="hollow: told where tasks end", **hollow, **look)
    figure.legend(handles=[*entries, told], loc="outside lower center", ncols=len(entries) + 1)


def measured_in_batches(found: Any) -> list[Measured]:
    """Each method with its values in the batches of which it has most seeds."""
    known = contenders()
    return [
        Measured(name, known[name], list(max(each.values(), key=len)))
        for name, each in found.items()
    ]


def draw_batches(setting: Setting, found: Any, variants: Sequence[Any], path: Path) -> None:
    """Final accuracy against the rows of a batch, a panel a family; blurred boundaries as stars."""
    rows = 60_000 if setting.rows is None else setting.rows
    cut = [variant for variant in variants if not variant.blur]
    blurred = [variant for variant in variants if variant.blur]
    methods = measured_in_batches(found)
    told = seeds_told(methods)
    shown = [title for title in PANELS if any(one.panel == title for one in methods)]
    figure = Figure(figsize=(14, 8), layout="constrained")
    for title, panel in _panels(figure, shown).items():
        own = [one for one in methods if one.panel == title]
        ends = []
        for at, one in enumerate(own):
            there = [variant for variant in cut if variant in found[one.name]]
            xs = [rows / variant.num_batches for variant in there]
            ys = [100 * float(np.mean(found[one.name][variant])) for variant in there]
            shade = 1 - 0.55 * at / max(len(own) - 1, 1)
            look = {"color": one.colour, "alpha": shade}
            panel.plot(xs, ys, marker=MARKS[at % len(MARKS)], lw=1.8, ms=5, **look)
            for variant in blurred:
                if variant in found[one.name]:
                    y = 100 * float(np.mean(found[one.name][variant]))
                    panel.plot(rows / variant.num_batches / 1.6, y, "*", ms=9, **look)
            ends.append((xs[0], ys[0]) if xs else (np.nan, np.nan))
        heights = spread([y for _, y in ends], 5.2, 1.0, 100.0)
        for one, (x, y), height in zip(own, ends, heights, strict=True):
            panel.annotate(
                one.contender.title,
                (x, y),
                (1.15 * rows / cut[0].num_batches, height),
                va="center",
                fontsize=9,
                color=one.colour,
                annotation_clip=False,
                arrowprops=LEADER,
            )
        panel.set_title(title, loc="left", color=FAMILY_COLOURS[title], fontweight="bold")
        panel.set(xscale="log", ylim=(0, 101))
        sizes = [round(rows / variant.num_batches) for variant in cut]
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes], fontsize=9)
        panel.minorticks_off()
        _plain(panel)
    figure.supylabel("final accuracy, %")
    figure.supxlabel("rows of a batch")
    figure.suptitle(f"{setting.title}, in other batches, {told}; stars: blurred boundaries")
    figure.savefig(path, dpi=120)
