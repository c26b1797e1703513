"""The paper's curves on Fashion-MNIST-10/5: `python -m experiments.fashion_mnist_curves`.

Raw pixels without an encoder, N = 512, L = 5, five tasks of two classes in random order, 1,000
rows a class; 20 batches (two a class), 30 batches, and 20 batches whose task boundaries are
blurred, so that no batch betrays where a task ends. All styles share one lambda, and with it one
offline expert: -R's best by the prequential loss on the first seed's stream.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import fashion_mnist as fm
from experiments.comparison import accuracy_of, expert_of, guarded, run_and_keep
from experiments.pictures import mark_ends
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import Learner, adaptive_k, edrvfl, sweep
from rvfl_jax.plots import COLOURS, DASHES

STREAMS = {"20 batches": (20, 0.0), "30 batches": (30, 0.0), "20 batches, blurred": (20, 0.5)}
STRENGTHS: dict[str, Any] = {
    "-R": 0.0,
    "-kF": fm.PAPER_K,
    "-kF-Bayes": adaptive_k(),
    "-kF-Bayes, sigma 0.1": adaptive_k(sigma=0.1),
}
RIDGES = np.logspace(-2, 3, 6)
GUARDED_ROWS = 1000
CHOICE_ROWS = 10_000


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of task order, row order and random features.
        num_layers: L.
        num_nodes: N.
        rows: training rows, the same number of each class; all when None.
    """

    seeds: int = 3
    num_layers: int = 5
    num_nodes: int = 512
    rows: int | None = 10_000


def case_of(config: Config, seed: int, name: str, rows: int | None = None) -> fm.Case:
    """A seed's stream of raw pixels."""
    num_batches, blur = STREAMS[name]
    return fm.raw_case(seed, num_batches, rows or config.rows, blur=blur)


def learner_of(config: Config, style: str, ridge: Any) -> Learner:
    """A style at a lambda."""
    return edrvfl(
        num_layers=config.num_layers,
        num_nodes=config.num_nodes,
        ridge=ridge,
        k=STRENGTHS[style],
    )


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    with steps_shown("choosing lambda", file) as once:
        ridge = once("choice", choose, config)["ridge"]
    learners = {style: learner_of(config, style, ridge) for style in STRENGTHS}
    for seed in range(config.seeds):
        key = jax.random.key(seed)
        for name in STREAMS:
            case = case_of(config, seed, name)
            with steps_shown(f"seed {seed + 1} of {config.seeds}, {name}", file) as once:
                for style, learner in learners.items():
                    once(f"{name} | seed {seed} | {style}", _run, case, learner, key)
                if seed == 0:
                    once(f"{name} | leak guard", guarded, case, learners["-R"], key, GUARDED_ROWS)


def choose(config: Config) -> Record:
    """-R's lambda of least prequential loss on the first seed's rows; no test data enters."""
    case = case_of(config, 0, "20 batches", min(CHOICE_ROWS, config.rows or CHOICE_ROWS))
    result = sweep(
        lambda ridge: learner_of(config, "-R", ridge),
        case.stream,
        {"ridge": RIDGES},
        key=jax.random.key(0),
        progress=True,
    )
    return {"ridge": result.best()["ridge"], "tried": result.ranking()}


def _run(case: fm.Case, learner: Learner, key: Any) -> Record:
    scores = expert_of(case, learner, key)
    record = run_and_keep(case, learner, key, expert=scores)
    return record | {"expert accuracy": accuracy_of(scores, case, learner)}


def found(config: Config, file: ResultsFile, name: str, style: str) -> list[Record]:
    """The records of all seeds."""
    return [file.records[f"{name} | seed {seed} | {style}"] for seed in range(config.seeds)]


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """One row a stream and style."""
    headings = (
        *("stream", "style", "accuracy at the end %", "mean acc(t) %"),
        *("cumulative regret", "KL at the end", "prequential loss"),
    )
    rows = []
    for name in STREAMS:
        for style in STRENGTHS:
            records = found(config, file, name, style)
            curves = [record["curves"]["class_incremental"] for record in records]
            cells = [
                mean_and_deviation([curve[-1] for curve in curves], 100, 2),
                mean_and_deviation([np.mean(curve) for curve in curves], 100, 2),
                mean_and_deviation([sum(record["regret"]) for record in records], 1e4, 3),
                mean_and_deviation([record["kl_curve"][-1] for record in records], 1, 5),
                mean_and_deviation([record["prequential_loss"] for record in records], 1, 4),
            ]
            rows.append([name, style, *cells])
    after = (
        f"\nCumulative regret in units of 1e-4; lambda {file.records['choice']['ridge']:.3g};"
        f" {config.seeds} seeds.\n"
    )
    write_table(folder, headings, rows, after=after)


def looks() -> dict[str, dict[str, Any]]:
    """How each style is drawn, in every picture alike."""
    return {
        style: {"color": colour, "ls": dash, "lw": 1.8}
        for style, colour, dash in zip(STRENGTHS, COLOURS, DASHES, strict=False)
    }


def draw_accuracy(config: Config, file: ResultsFile, path: Path) -> None:
    """acc(t) of -R with boxes of its sub-learners; below, what the other styles have beyond it."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 7.2), layout="constrained")
    panels = figure.subplots(2, len(STREAMS), sharey="row", sharex="col", height_ratios=(1.2, 1))
    for (panel, below), name in zip(panels.T, STREAMS, strict=True):
        ridge = found(config, file, name, "-R")
        batches = np.array(ridge[0]["evaluated"]) + 1
        curves = np.array([record["curves"]["class_incremental"] for record in ridge])
        panel.plot(batches, curves.mean(axis=0), label="-R, ensemble", **looks()["-R"])
        learners = np.concatenate([np.array(r["learner_accuracy"]) for r in ridge], axis=1)
        panel.boxplot(
            learners.T,
            positions=batches,
            widths=0.5,
            manage_ticks=False,
            showfliers=False,
            patch_artist=True,
            boxprops={"facecolor": "0.9", "edgecolor": "0.5"},
            whiskerprops={"color": "0.5"},
            capprops={"color": "0.5"},
            medianprops={"color": "0.3"},
            zorder=1,
        )
        expert = np.mean([record["expert accuracy"] for record in ridge])
        panel.axhline(expert, color="black", lw=1, ls=":")
        panel.annotate(
            f"offline expert {expert:.3f}", (1, expert), (0, 3), textcoords="offset points"
        )
        panel.set(title=name, ylim=(0, 1))
        below.axhline(0, color=looks()["-R"]["color"], lw=1.2)
        for style, look in looks().items():
            if style != "-R":
                records = found(config, file, name, style)
                other = np.array([record["curves"]["class_incremental"] for record in records])
                beyond = 100 * (other - curves)
                below.plot(batches, beyond.mean(axis=0), label=style, marker=".", **look)
                spread = beyond.std(axis=0, ddof=min(1, config.seeds - 1))
                low, high = beyond.mean(axis=0) - spread, beyond.mean(axis=0) + spread
                below.fill_between(batches, low, high, color=look["color"], alpha=0.12, lw=0)
        below.set_xlabel("batches learned")
        for axes in (panel, below):
            mark_ends(axes, ridge[0]["task_ends"])
    panels[0, 0].set_ylabel("acc(t), ten classes")
    panels[1, 0].set_ylabel("points beyond -R's")
    panels[0, 0].legend(loc="lower right", title="boxes: its sub-learners")
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(
        f"Fashion-MNIST-10/5, raw pixels, L = {config.num_layers}, N = {config.num_nodes},"
        f" {config.seeds} seed{'s' * (config.seeds > 1)}"
    )
    figure.savefig(path, dpi=130)


def draw_regret(config: Config, file: ResultsFile, path: Path) -> None:
    """Regret and KL against the labels, eqs. (34)-(35), one row a stream.

    All styles' cumulative regrets lie on each other; drawn is what each has beyond -R's.
    """
    from matplotlib.figure import Figure

    names = tuple(STREAMS)
    figure = Figure(figsize=(13, 9), layout="constrained")
    panels = figure.subplots(len(names), 3)
    for row, name in zip(panels, names, strict=True):
        ridge = np.mean([record["regret"] for record in found(config, file, name, "-R")], axis=0)
        for style, look in looks().items():
            records = found(config, file, name, style)
            batches = np.array(records[0]["evaluated"]) + 1
            regret = np.mean([record["regret"] for record in records], axis=0)
            kl = np.mean([record["kl_curve"] for record in records], axis=0)
            for panel, curve in zip(row, (regret, np.cumsum(regret - ridge), kl), strict=True):
                panel.plot(batches, curve, label=style, **look)
        for panel, title in zip(
            row, ("regret(t)", "cumulative regret beyond -R's", "KL(t), nats"), strict=True
        ):
            panel.set_title(f"{title}, {name}", fontsize="medium")
            panel.set_xlabel("batches learned")
            mark_ends(panel, found(config, file, name, "-R")[0]["task_ends"])
    panels[0, 0].legend()
    figure.suptitle(f"Fashion-MNIST-10/5, raw pixels, one lambda for all, {config.seeds} seeds")
    figure.savefig(path, dpi=150)


def draw_strengths(config: Config, file: ResultsFile, path: Path) -> None:
    """Paths of k_{t+1} and k_t: put on the announced batch, and estimated for it a step later."""
    from matplotlib.figure import Figure

    styles = [style for style, k in STRENGTHS.items() if not isinstance(k, float)]
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for panel, style in zip(figure.subplots(1, len(styles)), styles, strict=True):
        record = found(config, file, "20 batches", style)[0]
        added, taken = np.array(record["k_next"])[:-1], np.array(record["k_t"])[1:]
        batches = np.arange(2, len(added) + 2)
        for paths, colour, dash, label in (
            (added, COLOURS[0], "-", "$k_{t+1}$, put on it when it is announced"),
            (taken, COLOURS[1], "--", "$k_t$, estimated when it is learned"),
        ):
            panel.plot(batches, paths.mean(axis=1), color=colour, ls=dash, label=label)
            panel.fill_between(
                batches, *np.quantile(paths, (0, 1), axis=1), color=colour, alpha=0.2
            )
        mark_ends(panel, record["task_ends"])
        panel.set(yscale="log", title=style, xlabel="batch", ylabel="forward strength k")
        panel.legend(fontsize="small")
    figure.suptitle("Both strengths of each batch; mean and range of the layers, one seed")
    figure.savefig(path, dpi=150)


def main(config: Config, out: Path = RESULTS / "fashion_mnist_curves") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and three pictures.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw_accuracy(config, file, out / "accuracy.png")
    draw_regret(config, file, out / "regret.png")
    draw_strengths(config, file, out / "strengths.png")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
