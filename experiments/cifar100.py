"""The paper's experiments on CIFAR-100, on frozen features: `python -m experiments.cifar100`.

A hundred classes in 5, 10, 20 or 100 tasks, 400 batches of 125 rows. Features of an
EfficientNet-lite0 trained on ImageNet, which never saw a CIFAR label (honest), and of a small
network trained with labels on CIFAR-100's training images (optimistic, as the paper's ResNet-56
is). Every style with the paper's network for it, with one network and lambda that all styles
share, and with the sparse autoencoder F between features and learner.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.comparison import accuracy_of, expert_of, guarded, run_and_keep
from experiments.fashion_mnist import VARIANTS, Case, encoded_case
from experiments.features import FEATURES, cifar100_case
from experiments.pictures import mark_ends
from experiments.regions import draw_regions, measure_regions
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, Once, steps_shown
from rvfl_jax import (
    Learner,
    adaptive_k,
    edrvfl,
    generalised_cross_validation,
    run_stream,
    sweep,
    with_ridge,
)
from rvfl_jax.encoders import sparse_autoencoder
from rvfl_jax.plots import COLOURS, DASHES

HONEST = next(iter(FEATURES))
NUM_BATCHES = 400
RIDGE = 2.0**-4
# Of the paper's table: network, forward strength, and the autoencoder on top.
PAPER: dict[str, dict[str, Any]] = {
    "-R": {"num_nodes": 512, "num_layers": 1, "activation": "leaky_relu", "k": 0.0},
    "-kF": {"num_nodes": 8, "num_layers": 5, "activation": "relu", "k": 2.2867217520},
    "-kF-Bayes": {"num_nodes": 512, "num_layers": 1, "activation": "tanh", "k": adaptive_k()},
}
ON_TOP = {"-R": (20, 10, 1000), "-kF": (30, 10, 1000), "-kF-Bayes": (20, 10, 900)}
# One network for all styles, where only the style is to make the difference.
COMMON = {"num_nodes": 512, "num_layers": 1, "activation": "relu"}
KAPPAS, SIGMAS = np.logspace(-2, 2, 3), np.logspace(-5, 0, 6)
ABLATIONS: dict[str, dict[str, int]] = {
    "L + 2": {"extra_layers": 2},
    "N = 1024": {"num_nodes": 1024},
}
# What labels went into is beside the point; one seed shows how far it would seem to come.
OPTIMISTIC_SEEDS = 1
ABLATION_SEEDS = 1
CANDIDATES = np.logspace(-2, 4, 25)
GUARDED_ROWS = 1000
PICTURED_ROWS = 1500
PICTURED = ("features", "behind F")


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of classes, tasks, rows and random features.
        tasks: the numbers of tasks.
        features: names of `experiments.features.FEATURES`.
        large_nodes: N of the network that is to come as far as it can.
    """

    seeds: int = 2
    tasks: tuple[int, ...] = (5, 10, 20, 100)
    features: tuple[str, ...] = tuple(FEATURES)
    large_nodes: int = 4096


@cache
def learner_of(style: str, extra_layers: int = 0, num_nodes: int | None = None) -> Learner:
    """A style at the paper's network, or with more layers or other nodes."""
    options = dict(PAPER[style])
    options["num_layers"] += extra_layers
    if num_nodes is not None:
        options["num_nodes"] = num_nodes
    return edrvfl(ridge=RIDGE, **options)


@cache
def common_learner(style: str, ridge: float = 1.0, num_nodes: int = 512) -> Learner:
    """A style at the network and lambda that all share."""
    return edrvfl(ridge=ridge, k=PAPER[style]["k"], **(COMMON | {"num_nodes": num_nodes}))


@cache
def large_learner(num_nodes: int) -> Learner:
    """-R in information form, which many nodes and few decisions ask for."""
    return edrvfl(ridge=1.0, k=0.0, solver="information", **(COMMON | {"num_nodes": num_nodes}))


def seeds_of(config: Config, features: str) -> range:
    """All seeds on honest features."""
    return range(config.seeds if features == HONEST else min(config.seeds, OPTIMISTIC_SEEDS))


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for features in config.features:
        for seed in seeds_of(config, features):
            for tasks in config.tasks:
                label = f"seed {seed + 1} of {config.seeds}, {features}, {tasks} tasks"
                with steps_shown(label, file) as once:
                    _measure_split(features, tasks, seed, once)
    with steps_shown("ablations", file) as once:
        for seed in range(ABLATION_SEEDS):
            _measure_ablations(seed, once)
    with steps_shown("strengths", file) as once:
        for features in config.features:
            for tasks in config.tasks:
                once(f"strengths | {features} | {tasks} tasks", _strengths, features, tasks)
    with steps_shown("sensitivity", file) as once:
        for variant, reuse in VARIANTS.items():
            once(f"sensitivity | {variant}", _sensitivity, reuse)
    with steps_shown("large network", file) as once:
        for seed in range(config.seeds):
            once(f"large | seed {seed}", _large, config, seed)
    with steps_shown("decision regions", file) as once:
        for name in PICTURED:
            once(f"regions | {name}", _regions, name)
    with steps_shown("leak guard", file) as once:
        case = cifar100_case(HONEST, 0, num_tasks=10, num_batches=NUM_BATCHES)
        once("leak guard", guarded, case, common_learner("-R"), jax.random.key(0), GUARDED_ROWS)
        once("leak guard | F on top", _guarded_on_top, case)


def _measure_split(features: str, tasks: int, seed: int, once: Once) -> None:
    case = cifar100_case(features, seed, num_tasks=tasks, num_batches=NUM_BATCHES)
    key = jax.random.key(seed)
    place = f"{features} | {tasks} tasks | seed {seed}"
    for style in PAPER:
        for setting in settings_of(features, tasks):
            once(f"{place} | {setting} | {style}", _measured, case, setting, style, seed, key)


def settings_of(features: str, tasks: int) -> list[str]:
    """What is asked of a split: one network for all is compared on honest features alone."""
    honest = features == HONEST
    return ["paper"] + ["common"] * honest + ["F on top"] * (tasks == 10)


def _measured(case: Case, setting: str, style: str, seed: int, key: Any) -> Record:
    if setting == "F on top":
        return _run_on_top(case, style, seed)
    return _run(case, learner_of(style) if setting == "paper" else common_learner(style), key)


def _run(case: Case, learner: Learner, key: Any) -> Record:
    """Curves at 20 batches at least, task ends among them, beside the offline expert."""
    scores = expert_of(case, learner, key)
    every = min(NUM_BATCHES // case.stream.num_tasks, 20)
    record = run_and_keep(case, learner, key, evaluate=every, expert=scores)
    for name in ("k_t", "k_next", "prequential", "learner_accuracy"):
        del record[name]
    return record | {"expert accuracy": accuracy_of(scores, case, learner)}


def _guarded_on_top(case: Case) -> Record:
    encoded = _on_top(case, "-R")
    return guarded(encoded, learner_of("-R"), jax.random.key(0), GUARDED_ROWS, raw_test=case.Z_test)


def _strengths(features: str, tasks: int) -> Record:
    """Both strengths of -kF-Bayes as printed, at every batch of the first seed."""
    case = cifar100_case(features, 0, num_tasks=tasks, num_batches=NUM_BATCHES)
    history = run_stream(
        learner_of("-kF-Bayes"), case.stream, key=jax.random.key(0), expert=None
    ).history
    return {
        "k_t": history.k_t[:, 0],
        "k_next": history.k_next[:, 0],
        "task_ends": case.stream.task_ends,
    }


def _run_on_top(case: Case, style: str, seed: int) -> Record:
    """F, fitted on the first batch of features and frozen, between features and learner."""
    return _run(_on_top(case, style), learner_of(style), jax.random.key(seed))


def _on_top(case: Case, style: str) -> Case:
    return encoded_case(case, sparse_autoencoder(*ON_TOP[style]), "frozen", "first_batch", 0)


def _measure_ablations(seed: int, once: Once) -> None:
    case = cifar100_case(HONEST, seed, num_tasks=10, num_batches=NUM_BATCHES)
    for style in PAPER:
        for name, options in ABLATIONS.items():
            learner, place = learner_of(style, **options), f"ablation | seed {seed} | {style}"
            once(f"{place} | {name}", _run, case, learner, jax.random.key(seed))


def _sensitivity(reuse_k: bool) -> Record:
    """Losses and accuracies over kappa and sigma, everything else as it is."""
    case = cifar100_case(HONEST, 0, num_tasks=10, num_batches=NUM_BATCHES)
    result = sweep(
        lambda kappa, sigma: edrvfl(
            ridge=1.0, k=adaptive_k(kappa, sigma, reuse_k=reuse_k), **COMMON
        ),
        case.stream,
        {"kappa": KAPPAS, "sigma": SIGMAS},
        key=jax.random.key(0),
        test=(case.Z_test, case.y_test),
        evaluate="task",
        progress=True,
    )
    return {
        "kappa": KAPPAS,
        "sigma": SIGMAS,
        "prequential_loss": result.prequential_loss,
        "last": result.accuracy["class_incremental"][..., -1],
        "A_bar": result.accuracy["seen"].mean(axis=-1),
        "k": result.k_next.mean(axis=(-2, -1)),
    }


def _large(config: Config, seed: int) -> Record:
    """-R as wide as it pays; lambda by generalised cross-validation on what was learned."""
    case, key = (
        cifar100_case(HONEST, seed, num_tasks=10, num_batches=NUM_BATCHES),
        jax.random.key(seed),
    )
    run = run_stream(
        large_learner(config.large_nodes),
        case.stream,
        key=key,
        test=(case.Z_test, case.y_test),
        evaluate="task",
        expert=None,
        guesses=False,
    )
    gcv = generalised_cross_validation(
        run.state, CANDIDATES, ridge=1.0, num_rows=case.stream.num_rows
    )
    chosen = float(CANDIDATES[gcv[:, 0].argmin()])
    learner = large_learner(config.large_nodes)
    scores = learner.scores(with_ridge(run.state, chosen, ridge=1.0), case.Z_test)
    return {
        "accuracy at lambda 1": float(run.history.accuracy["class_incremental"][-1]),
        "its expert": accuracy_of(expert_of(case, learner, key), case, learner),
        "accuracy at chosen lambda": accuracy_of(np.asarray(scores), case, learner),
        "chosen lambda": chosen,
    }


def _regions(name: str) -> Record:
    """-R with the network and lambda that all share, with F between features and it or not."""
    case = cifar100_case(HONEST, 0, num_tasks=5, num_batches=NUM_BATCHES)
    if name == "behind F":
        case = _on_top(case, "-R")
    return measure_regions(case, common_learner("-R"), jax.random.key(0), PICTURED_ROWS)


def rows_of(config: Config, file: ResultsFile) -> Iterator[list[str]]:
    """One row a split, setting and style, then the ablations."""

    def found(place: str, seeds: range) -> list[Record]:
        return [file.records[place.format(seed)] for seed in seeds]

    for features in config.features:
        for tasks in config.tasks:
            for setting in settings_of(features, tasks):
                for style in PAPER:
                    place = f"{features} | {tasks} tasks | seed {{}} | {setting} | {style}"
                    yield _row(
                        [features, str(tasks), setting, style],
                        found(place, seeds_of(config, features)),
                    )
    for name in ABLATIONS:
        for style in PAPER:
            start = [HONEST, "10", f"paper, {name}", style]
            place = f"ablation | seed {{}} | {style} | {name}"
            yield _row(start, found(place, range(ABLATION_SEEDS)))


def _row(start: list[str], found: list[Record]) -> list[str]:
    shown = ("ACC", "A_bar", "expert accuracy", "BWT")
    cells = [mean_and_deviation([record.get(name) for record in found], 100, 2) for name in shown]
    gap = max(100 * abs(r["accuracy_class_incremental"] - r["expert accuracy"]) for r in found)
    loss = mean_and_deviation([record["prequential_loss"] for record in found])
    return [*start, *cells, f"{gap:.3f}", loss, str(len(found))]


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """The rows, and how far the large network comes."""
    headings = (
        *("features", "tasks", "setting", "style", "ACC %", "A-bar %", "offline expert %"),
        *("BWT %", "largest gap to the expert %", "prequential loss", "seeds"),
    )
    lines = [f"\n-R with N = {config.large_nodes} on {HONEST}, 10 tasks:\n\n"]
    large = [file.records[f"large | seed {seed}"] for seed in range(config.seeds)]
    for name in ("accuracy at lambda 1", "its expert", "accuracy at chosen lambda"):
        lines.append(f"- {name}: {mean_and_deviation([r[name] for r in large], 100, 2)} %\n")
    chosen = sorted({f"{record['chosen lambda']:.3g}" for record in large})
    lines.append(f"- lambda chosen by generalised cross-validation: {', '.join(chosen)}\n")
    write_table(folder, headings, rows_of(config, file), after="".join(lines))


def draw_curves(config: Config, file: ResultsFile, path: Path) -> None:
    """Accuracy so far, acc(t), loss and KL against the expert, one network; a row a split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(16, 3 * len(config.tasks)), layout="constrained")
    panels = figure.subplots(len(config.tasks), 4, squeeze=False)
    titles = (
        *("accuracy on classes seen", "acc(t), a hundred classes"),
        *("cumulative loss beyond the expert's", "KL from the expert, nats"),
    )
    for row, tasks in zip(panels, config.tasks, strict=True):
        for style, colour, dash in zip(PAPER, COLOURS, DASHES, strict=False):
            found = [
                file.records[f"{HONEST} | {tasks} tasks | seed {seed} | common | {style}"]
                for seed in range(config.seeds)
            ]
            batches = np.array(found[0]["evaluated"]) + 1
            curves = (
                np.mean([record["curves"]["seen"] for record in found], axis=0),
                np.mean([record["curves"]["class_incremental"] for record in found], axis=0),
                # Looked at every so many batches; each look stands for those before it.
                np.cumsum(np.mean([record["excess_loss"] for record in found], axis=0))
                * (batches[1] - batches[0]),
                np.mean([record["kl_from_expert_curve"] for record in found], axis=0),
            )
            for panel, curve in zip(row, curves, strict=True):
                panel.plot(batches, curve, color=colour, ls=dash, lw=1.6, label=style)
        for panel, title in zip(row, titles, strict=True):
            panel.set(title=f"CIFAR-100/{tasks}: {title}", xlabel="batches learned")
            mark_ends(panel, found[0]["task_ends"] if tasks <= 20 else [])
    panels[0, 1].legend()
    figure.suptitle(f"{HONEST}, one network and lambda for all, {config.seeds} seeds")
    figure.savefig(path, dpi=110)


def draw_strengths(config: Config, file: ResultsFile, path: Path) -> None:
    """Paths of k_t and k_{t+1} of -kF-Bayes with the paper's network, one panel a split."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(config.tasks), 3.4), layout="constrained")
    panels = figure.subplots(1, len(config.tasks), sharey=True, squeeze=False)[0]
    for panel, tasks in zip(panels, config.tasks, strict=True):
        for name, colour in zip(config.features, COLOURS, strict=False):
            record = file.records[f"strengths | {name} | {tasks} tasks"]
            batches = np.arange(2, NUM_BATCHES + 1)
            put, taken = np.array(record["k_next"])[:-1], np.array(record["k_t"])[1:]
            panel.plot(batches, put, color=colour, lw=0.9, label=f"{name}, announced")
            panel.plot(batches, taken, color=colour, ls=":", lw=1.2, label="the same, learned")
        panel.set(yscale="log", title=f"CIFAR-100/{tasks}", xlabel="batch")
        mark_ends(panel, record["task_ends"] if tasks <= 20 else [])
    panels[0].set_ylabel("forward strength k")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    figure.suptitle("-kF-Bayes with the paper's network, one seed: k of each batch")
    figure.savefig(path, dpi=130)


def draw_sensitivity(file: ResultsFile, path: Path) -> None:
    """What kappa and sigma decide, as printed above and taking out what was put in below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 5.6), layout="constrained")
    shown = {
        "prequential_loss": "prequential loss",
        "A_bar": "A-bar",
        "last": "accuracy at the end",
        "k": "log10 of the mean k",
    }
    rows = figure.subplots(len(VARIANTS), len(shown), squeeze=False)
    records = [file.records[f"sensitivity | {variant}"] for variant in VARIANTS]
    for column, (name, title) in zip(rows.T, shown.items(), strict=True):
        values = np.array([record[name] for record in records])
        values = np.log10(values) if name == "k" else values
        for panel, of_variant, variant in zip(column, values, VARIANTS, strict=True):
            mesh = panel.pcolormesh(
                of_variant, cmap="cividis", vmin=values.min(), vmax=values.max()
            )
            span = f"{of_variant.min():.3g} to {of_variant.max():.3g}"
            panel.set_title(f"{title}\n{variant}:\n{span}", fontsize="small")
            labels = [f"{power:.0f}" for power in np.log10(SIGMAS)]
            panel.set_xticks(np.arange(len(SIGMAS)) + 0.5, labels, fontsize="x-small")
            panel.set_yticks(np.arange(len(KAPPAS)) + 0.5, [f"{kappa:g}" for kappa in KAPPAS])
            panel.set(xlabel="log10 of sigma", ylabel="kappa")
        figure.colorbar(mesh, ax=list(column))
    figure.suptitle("CIFAR-100/10, one seed: -kF-Bayes over kappa and sigma")
    figure.savefig(path, dpi=130)


def main(config: Config, out: Path = RESULTS / "cifar100") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and four pictures.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw_curves(config, file, out / "curves.png")
    draw_strengths(config, file, out / "strengths.png")
    draw_sensitivity(file, out / "sensitivity.png")
    draw_regions(
        {name: file.records[f"regions | {name}"] for name in PICTURED},
        f"t-SNE of {PICTURED_ROWS} test rows of CIFAR-100; colour: task of the class that -R"
        " predicts,\nfull where the class is right, pale where it is wrong",
        out / "regions.png",
    )
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
