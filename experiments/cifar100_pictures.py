"""Pictures of the experiments on CIFAR-100, drawn from records alone.

The styles differ by less than a line is wide almost everywhere. So -R is drawn itself, and the
others as their difference from -R with the same seed, with bands of one deviation over seeds.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from experiments.cifar100_runs import (
    APART,
    HONEST,
    KAPPA,
    KAPPAS,
    LAYERS,
    NODES,
    NUM_BATCHES,
    PAPER,
    PATHS,
    SIGMA,
    SIGMAS,
    Config,
    place_of,
)
from experiments.fashion_mnist import VARIANTS
from experiments.pictures import mark_ends
from experiments.results_file import Record, ResultsFile
from rvfl_jax.plots import COLOURS, DASHES

LOOKS = {
    style: {"color": colour, "ls": dash, "marker": marker, "lw": 1.6, "ms": 4.5}
    for style, colour, dash, marker in zip(PAPER, COLOURS, DASHES, "os^", strict=False)
}
# Of losses with the division by all test rows inside the square, eq. (34).
UNIT = "$10^{-5}$"
# How variants of -kF-Bayes are called in tables and pictures.
CALLED = {name: "reuse_k=True" if reuse else name for name, reuse in VARIANTS.items()}


def common_runs(config: Config, file: ResultsFile, tasks: int, style: str) -> list[Record]:
    """One record a seed of the network that all styles share."""
    return [
        file.records[place_of(HONEST, tasks, seed, "common", style)] for seed in range(config.seeds)
    ]


def beside_ridge(of_style: np.ndarray, of_ridge: np.ndarray) -> np.ndarray:
    """(seeds, looks) running sums in percent above those of -R with the same seed."""
    ours, theirs = np.cumsum(of_style, axis=1), np.cumsum(of_ridge, axis=1)
    return 100 * (ours / theirs - 1)


def with_band(panel: Any, x: Any, values: np.ndarray, label: str, **looks: Any) -> None:
    """Mean over seeds, the first axis, within one deviation to each side."""
    mean = values.mean(axis=0)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros_like(mean)
    panel.plot(x, mean, label=label, **looks)
    panel.fill_between(
        x, mean - deviation, mean + deviation, color=looks["color"], alpha=0.15, lw=0
    )


def draw_curves(config: Config, file: ResultsFile, path: Path) -> None:
    """Accuracy, and loss beyond the offline expert's, with one network; a row a split."""
    _draw_grid(
        config,
        file,
        path,
        (
            ("-R: accuracy on classes seen, and acc(t)", "%", _draw_accuracies),
            ("accuracy on classes seen, beside -R", "points", _draw_seen),
            ("-R: loss beyond the expert's", f"squared error, {UNIT}", _draw_own("excess_loss")),
            ("its running sum, beside -R", "% of -R's", _draw_sums("excess_loss")),
        ),
    )


def draw_regret(config: Config, file: ResultsFile, path: Path) -> None:
    """Regret and KL against the labels, with one network; a row a split."""
    _draw_grid(
        config,
        file,
        path,
        (
            ("-R: regret, eq. (34)", f"squared error, {UNIT}", _draw_own("regret")),
            ("cumulative regret, beside -R", "% of -R's", _draw_sums("regret")),
            ("-R: KL, eq. (35)", "nats", _draw_own("kl_curve", 1.0)),
            ("its running sum, beside -R", "% of -R's", _draw_sums("kl_curve")),
        ),
    )


def _draw_grid(
    config: Config, file: ResultsFile, path: Path, columns: Sequence[tuple[str, str, Any]]
) -> None:
    figure = Figure(figsize=(4.1 * len(columns), 2.75 * len(config.tasks)), layout="constrained")
    rows = figure.subplots(len(config.tasks), len(columns), squeeze=False, sharex=True)
    for row, tasks in zip(rows, config.tasks, strict=True):
        found = {style: common_runs(config, file, tasks, style) for style in PAPER}
        batches = np.array(found["-R"][0]["evaluated"]) + 1
        for panel, (title, unit, draw) in zip(row, columns, strict=True):
            draw(panel, batches, found)
            panel.set_ylabel(unit)
            mark_ends(panel, found["-R"][0]["task_ends"] if tasks <= 20 else [])
            if tasks == config.tasks[0]:
                panel.set_title(title)
        row[0].set_ylabel(f"CIFAR-100/{tasks}\n{columns[0][1]}")
    for panel in rows[-1]:
        panel.set_xlabel("batches learned")
    handles, labels = [], []
    for panel in rows[0]:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            if label not in labels:
                handles.append(handle)
                labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(
        f"Features of {HONEST}: one network and lambda for all styles,"
        f" {_seeds(config.seeds)}, bands of one deviation"
    )
    figure.savefig(path, dpi=110)


def _seeds(number: int) -> str:
    return f"{number} seed{'s' * (number > 1)}"


def _curves(found: list[Record], name: str) -> np.ndarray:
    return np.array([record[name] for record in found])


def _draw_accuracies(panel: Any, batches: np.ndarray, found: dict[str, list[Record]]) -> None:
    for name, label, dash in (
        ("seen", "-R", "-"),
        ("class_incremental", "acc(t) of -R, on all classes", (0, (5, 1.5))),
    ):
        values = 100 * np.array([record["curves"][name] for record in found["-R"]])
        with_band(panel, batches, values, label, color=COLOURS[0], ls=dash, lw=1.6)


def _draw_seen(panel: Any, batches: np.ndarray, found: dict[str, list[Record]]) -> None:
    # More looks than elsewhere would only show how it wavers.
    shown = batches % APART == 0
    ridge, *others = (
        100 * np.array([record["curves"]["seen"] for record in runs])[:, shown]
        for runs in found.values()
    )
    panel.axhline(0, color=COLOURS[0], lw=1.0)
    for style, values in zip(list(found)[1:], others, strict=True):
        with_band(panel, batches[shown], values - ridge, style, **_line(style))


def _draw_own(name: str, factor: float = 1e5) -> Any:
    def draw(panel: Any, batches: np.ndarray, found: dict[str, list[Record]]) -> None:
        values = factor * _curves(found["-R"], name)
        with_band(panel, batches, values, "-R", color=COLOURS[0], ls="-", lw=1.6)

    return draw


def _draw_sums(name: str) -> Any:
    def draw(panel: Any, batches: np.ndarray, found: dict[str, list[Record]]) -> None:
        panel.axhline(0, color=COLOURS[0], lw=1.0)
        for style in list(found)[1:]:
            values = beside_ridge(_curves(found[style], name), _curves(found["-R"], name))
            with_band(panel, batches, values, style, **_line(style))

    return draw


def _line(style: str) -> dict[str, Any]:
    return {name: LOOKS[style][name] for name in ("color", "ls", "lw")}


def paths_of(config: Config, file: ResultsFile, features: str, tasks: int) -> list[Record]:
    """Records with both strengths of -kF-Bayes at the paper's network, one a seed."""
    return [
        file.records[
            place_of(features, tasks, seed, "paper", "-kF-Bayes")
            if seed < config.seeds
            else f"strengths | {features} | {tasks} tasks | seed {seed}"
        ]
        for seed in range(max(PATHS, config.seeds))
    ][:PATHS]


def draw_strengths(config: Config, file: ResultsFile, path: Path) -> None:
    """k_{t+1} and k_t of each batch of -kF-Bayes at the paper's network, and their ratio."""
    figure = Figure(
        figsize=(4.1 * len(config.tasks), 5.0 * len(config.features) + 0.7), layout="constrained"
    )
    rows = figure.subplots(
        *(2 * len(config.features), len(config.tasks)), squeeze=False, sharex=True, sharey="row"
    )
    batches = np.arange(2, NUM_BATCHES + 1)
    for (upper, lower), features in zip(
        rows.reshape(-1, 2, rows.shape[1]), config.features, strict=True
    ):
        for panel, below, tasks in zip(upper, lower, config.tasks, strict=True):
            found = paths_of(config, file, features, tasks)
            added = np.array([record["k_next"] for record in found])[:, :-1]
            anew = np.array([record["k_t"] for record in found])[:, 1:]
            looks = {"color": COLOURS[0], "lw": 3.0, "alpha": 0.5}
            _paths(panel, batches, added, r"$k_{t+1}$, put on the announced batch", **looks)
            looks = {"color": COLOURS[1], "lw": 1.2, "ls": "--"}
            _paths(panel, batches, anew, r"$k_t$, estimated anew when it is learned", **looks)
            looks = {"color": "0.2", "lw": 1.2}
            _paths(below, batches, anew / added, "the second divided by the first", **looks)
            below.axhline(1, color="0.7", lw=0.8)
            for one in (panel, below):
                mark_ends(one, found[0]["task_ends"] if tasks <= 20 else [])
                one.set(xscale="log", yscale="log")
                one.set_xticks([2, 5, 10, 20, 50, 100, 200, 400])
                one.xaxis.set_major_formatter("{x:.0f}")
                one.xaxis.set_minor_locator(NullLocator())
            if features == config.features[0]:
                panel.set_title(f"CIFAR-100/{tasks}")
        upper[0].set_ylabel(f"{features}\nk of a batch")
        lower[0].set_ylabel("ratio")
    for panel in rows[-1]:
        panel.set_xlabel("batch")
    handles, labels = rows[0, 0].get_legend_handles_labels()
    handles += rows[1, 0].lines[len(found) : len(found) + 1]
    labels += ["the second divided by the first"]
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels))
    figure.suptitle(
        f"-kF-Bayes as printed at the paper's network: {PATHS} runs, thin, and their median, thick"
    )
    figure.savefig(path, dpi=110)


def _paths(panel: Any, batches: np.ndarray, values: np.ndarray, label: str, **looks: Any) -> None:
    panel.plot(batches, values.T, color=looks["color"], lw=0.4, alpha=0.5)
    panel.plot(batches, np.median(values, axis=0), label=label, **looks)


def architecture(
    config: Config, file: ResultsFile, axis: str, style: str, name: str
) -> tuple[Sequence[int], np.ndarray]:
    """Values of L or N, and the (seeds, values) accuracies of a style there in percent."""
    records, seeds = file.records, range(config.seeds)
    if axis == "L":
        found = [records[f"layers | seed {seed} | {style}"][name] for seed in seeds]
        return LAYERS, 100 * np.array(found)
    found = [[records[f"nodes {n} | seed {seed}"][style][name] for n in NODES] for seed in seeds]
    return NODES, 100 * np.array(found)


def draw_architecture(config: Config, file: ResultsFile, path: Path) -> None:
    """Accuracies against L and against N: of -R, and of the others beside it."""
    figure = Figure(figsize=(11, 9), layout="constrained")
    rows = figure.subplots(3, 2, sharex="col", sharey="row")
    for column, axis in zip(rows.T, ("L", "N"), strict=True):
        for name, label, dash, marker in (
            ("A_bar", "-R, A-bar", (0, (5, 1.5)), "D"),
            ("last", "-R, at the end", "-", "o"),
        ):
            at, ridge = architecture(config, file, axis, "-R", name)
            looks = {"color": COLOURS[0], "ls": dash, "marker": marker, "lw": 1.6, "ms": 4.5}
            with_band(column[0], at, ridge, label, **looks)
        for panel, name in zip(column[1:], ("last", "A_bar"), strict=True):
            panel.axhline(0, color=COLOURS[0], lw=1.0)
            _, ridge = architecture(config, file, axis, "-R", name)
            for style in list(PAPER)[1:]:
                _, values = architecture(config, file, axis, style, name)
                with_band(panel, at, values - ridge, style, **LOOKS[style])
        for panel in column:
            _mark_values(panel, at, logarithmic=axis == "N")
        column[-1].set_xlabel({"L": "sub-learners L (N = 512)", "N": "nodes N (L = 1)"}[axis])
    rows[0, 0].set_ylabel("accuracy, %")
    rows[1, 0].set_ylabel("accuracy at the end\nbeside -R, points")
    rows[2, 0].set_ylabel("A-bar\nbeside -R, points")
    rows[0, 0].legend(loc="center right")
    rows[1, 0].legend(loc="best")
    figure.suptitle(
        f"CIFAR-100/10, features of {HONEST}: lambda = 1, ReLU,"
        f" {_seeds(config.seeds)}, bands of one deviation"
    )
    figure.savefig(path, dpi=110)


def _mark_values(panel: Any, at: Sequence[int], logarithmic: bool) -> None:
    if logarithmic:
        panel.set_xscale("log", base=2)
    panel.set_xticks(at, [str(value) for value in at])
    panel.xaxis.set_minor_locator(NullLocator())
    panel.xaxis.set_minor_formatter(NullFormatter())
    panel.grid(axis="y", color="0.94")
    panel.spines[["top", "right"]].set_visible(False)


# What is shown of the grid: name in records, words, factor.
MEASURES = (
    ("A_bar", "A-bar, %", 100.0),
    ("last", "accuracy at the end, %", 100.0),
    ("prequential_loss", "prequential loss", 1.0),
)


def grid_of(config: Config, file: ResultsFile, variant: str, name: str) -> np.ndarray:
    """(seeds, kappa, sigma) values of a variant of -kF-Bayes."""
    return np.array(
        [file.records[f"sensitivity | {variant} | seed {s}"][name] for s in range(config.seeds)]
    )


def cut(values: np.ndarray, axis: str) -> np.ndarray:
    """(seeds, values) of the grid along "kappa" or "sigma", the other one held."""
    if axis == "kappa":
        return values[:, :, int(np.argmin(np.abs(np.log(SIGMAS / SIGMA))))]
    return values[:, int(np.argmin(np.abs(np.log(KAPPAS / KAPPA))))]


def draw_sensitivity(config: Config, file: ResultsFile, path: Path) -> None:
    """kappa alone and sigma alone: A-bar, accuracy at the end and prequential loss."""
    figure = Figure(figsize=(11, 9.5), layout="constrained")
    rows = figure.subplots(len(MEASURES), 2, sharex="col")
    for row, (name, words, factor) in zip(rows, MEASURES, strict=True):
        for panel, axis, at in zip(row, ("kappa", "sigma"), (KAPPAS, SIGMAS), strict=True):
            for variant, style in zip(VARIANTS, ("-kF-Bayes", "-kF"), strict=True):
                values = grid_of(config, file, variant, name)
                if factor > 1:
                    values = factor * (values - nearly_ridge(values))
                with_band(panel, at, cut(values, axis), CALLED[variant], **LOOKS[style])
            panel.set_xscale("log")
            panel.grid(axis="y", color="0.94")
            panel.spines[["top", "right"]].set_visible(False)
            if factor > 1:
                panel.axhline(0, color="0.5", lw=0.8)
        row[0].set_ylabel(f"{axis_words(words)}, points" if factor > 1 else words)
        if factor > 1:
            # Tenths of a point and tens of them in one panel.
            row[0].set_yscale("symlog", linthresh=0.5)
            row[0].set_yticks([-30, -10, -3, -1, 0, 0.5], ["-30", "-10", "-3", "-1", "0", "0.5"])
            row[0].yaxis.set_minor_locator(NullLocator())
    rows[-1, 0].set_xlabel(f"kappa, at sigma = {SIGMA:g}")
    rows[-1, 1].set_xlabel(f"sigma, at kappa = {KAPPA:g}")
    handles, labels = rows[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    figure.suptitle(
        f"CIFAR-100/10: -kF-Bayes at the common network, {_seeds(config.seeds)},"
        f" bands of one deviation;\naccuracies beside those at kappa = {KAPPAS[0]:g} and"
        f" sigma = {SIGMA:g}, where -kF-Bayes is practically -R"
    )
    figure.savefig(path, dpi=110)


def nearly_ridge(values: np.ndarray) -> np.ndarray:
    """(seeds, 1, 1) of the grid where the forward term is least."""
    return cut(values, "kappa")[:, :1, None]


def draw_map(config: Config, file: ResultsFile, path: Path) -> None:
    """kappa and sigma together, means over seeds; one colour scale a quantity."""
    figure = Figure(figsize=(14, 9.4), layout="constrained")
    rows = figure.subplots(2, len(VARIANTS), squeeze=False)
    shown = ((*MEASURES[0], 0.1, "points below the best"), (*MEASURES[2], 1e-3, "above the least"))
    for row, (name, words, factor, least, behind) in zip(rows, shown, strict=True):
        found = [factor * grid_of(config, file, variant, name).mean(axis=0) for variant in VARIANTS]
        # Of what is best nearly everywhere, only a logarithm shows by how much.
        off = [np.max(found) - one if factor > 1 else one - np.min(found) for one in found]
        norm = LogNorm(least, max(np.max(off), 10 * least), clip=True)
        for panel, variant, values, of_best in zip(row, VARIANTS, found, off, strict=True):
            mesh = panel.pcolormesh(of_best, cmap="cividis_r", norm=norm)
            for (i, j), value in np.ndenumerate(values):
                colour = "white" if norm(of_best[i, j]) > 0.5 else "black"
                text = f"{value:.1f}" if factor > 1 else f"{value:.3f}"
                panel.text(j + 0.5, i + 0.5, text, ha="center", va="center", color=colour, size=9)
            panel.set_title(f"{words}: {CALLED[variant]}")
            panel.set_xticks(np.arange(len(SIGMAS)) + 0.5, [f"{s:.0e}" for s in SIGMAS])
            panel.set_yticks(np.arange(len(KAPPAS)) + 0.5, [f"{k:g}" for k in KAPPAS])
            panel.set(xlabel="sigma", ylabel="kappa")
        figure.colorbar(mesh, ax=list(row), label=f"{axis_words(words)}, {behind}")
    figure.suptitle(
        f"CIFAR-100/10: -kF-Bayes at the common network, mean of {_seeds(config.seeds)}"
    )
    figure.savefig(path, dpi=110)


def axis_words(words: str) -> str:
    """The name of a quantity without its unit."""
    return words.removesuffix(", %")
