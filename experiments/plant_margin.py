"""A hundred tasks of one class each (the paper's Fig. 1): `python -m experiments.plant_margin`.

Margin features of the leaves of a hundred plant species, 16 leaves each: 12 to learn from, in
one batch, and 4 to test on. All styles of a seed have the lambda of nine, 1e-4 to 1e4, that
generalised cross-validation rates best on that seed's training rows. (The prequential loss cannot
choose here: every batch is a class that nobody has seen, so that the best guess is none.) Other
methods that go through the data once and keep none of it are shown beside. They choose among nine
settings too, on each seed: each learns nine of the twelve leaves, and accuracy over the hundred
species on the other three decides (`experiments.peers`). No test leaf enters any choice.
"""

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import comparison, peers
from experiments.fashion_mnist import PAPER_K, Case
from experiments.features import FOLDER
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import (
    Learner,
    adaptive_k,
    class_incremental_stream,
    edrvfl,
    fine_tuned_edrvfl,
    generalised_cross_validation,
    run_stream,
)
from rvfl_jax.streams.labels import to_columns

OFFLINE = "offline expert"
STRENGTHS: dict[str, Any] = {"-R": 0.0, "-F": 1.0, "-kF": PAPER_K, "-kF-Bayes": adaptive_k()}
CANDIDATES = np.logspace(-4, 4, 9)
FINE_TUNED = "fine-tuning"
# The one that the others of ours are compared with.
OURS = "-R"
# Percent; methods that end above are drawn large.
LOWEST_OF_THE_BEST = 70
# Three of twelve leaves a species.
HELD_OUT = 0.25


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of the split, the class order and the network.
        num_layers: L.
        num_nodes: N.
        test_leaves: of the 16 of each species.
    """

    seeds: int = 10
    num_layers: int = 1
    num_nodes: int = 1024
    test_leaves: int = 4

    @property
    def network(self) -> dict[str, Any]:
        """What `edrvfl` takes beside lambda and k."""
        return {"num_layers": self.num_layers, "num_nodes": self.num_nodes, "activation": "relu"}


@cache
def leaves() -> tuple[np.ndarray, np.ndarray]:
    """(1600, 64) margin features scaled by 100, which makes their entries of order 1; species."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise ValueError(f"{FOLDER}: expected the folder of plants100.npz, got nothing")
    with np.load(Path(folder) / "plants100.npz", allow_pickle=False) as file:
        return 100 * file["margin"].astype(np.float32), file["y"].astype(int)


def plant_case(config: Config, seed: int) -> Case:
    """A seed's split and class order, one batch a class."""
    X, y = leaves()
    rng = np.random.default_rng(seed)
    rank = np.empty(len(y), int)
    for label in np.unique(y):
        rows = np.flatnonzero(y == label)
        rank[rows] = rng.permutation(len(rows))
    test = rank < config.test_leaves
    classes = len(np.unique(y))
    stream = class_incremental_stream(
        X[~test], y[~test], num_tasks=classes, num_batches=classes, seed=seed
    )
    return Case(stream, X[test], y[test], to_columns("y_test", y[test], stream.classes), None)


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for seed in range(config.seeds):
        case, key = plant_case(config, seed), jax.random.key(seed)
        with steps_shown(f"seed {seed + 1} of {config.seeds}", file) as once:
            ridge = once(f"seed {seed} | choice", _choose, config, seed)["ridge"]
            learners = _learners(config, ridge)
            for style, learner in learners.items():
                once(f"seed {seed} | {style}", comparison.run_and_keep, case, learner, key)
            once(f"seed {seed} | {OFFLINE}", _offline, case, learners["-R"], key)
            for peer in peers.PEERS:
                chosen = once(f"seed {seed} | choice of {peer}", choice, case, peer, seed)
                once(f"seed {seed} | {peer}", over_tasks, case, peer, seed, chosen["chosen"])
            if seed == 0:
                once("leak guard", comparison.guarded, case, learners["-R"], key)


@cache
def _learners(config: Config, ridge: float) -> dict[str, Learner]:
    """Made once a lambda: every learner object is a program of its own."""
    learners = {style: edrvfl(**config.network, ridge=ridge, k=k) for style, k in STRENGTHS.items()}
    return learners | {FINE_TUNED: fine_tuned_edrvfl(**config.network, ridge=ridge)}


def _choose(config: Config, seed: int) -> Record:
    case, start = plant_case(config, seed), 1.0
    learner = _learners(config, start)["-R"]
    state = run_stream(learner, case.stream, key=jax.random.key(seed), expert=None).state
    scores = generalised_cross_validation(
        state, CANDIDATES, ridge=start, num_rows=case.stream.num_rows
    ).mean(axis=1)
    at = int(scores.argmin())
    return {
        "ridge": float(CANDIDATES[at]),
        "chosen": {"lambda": float(CANDIDATES[at])},
        "edge": at in (0, len(CANDIDATES) - 1),
        "candidates": CANDIDATES,
        "GCV": scores,
    }


def _offline(case: Case, learner: Any, key: Any) -> Record:
    scores = comparison.expert_of(case, learner, key)
    return {"accuracy_class_incremental": comparison.accuracy_of(scores, case, learner)}


def looks(num_batches: int) -> list[int]:
    """Batches after which every method is compared; peers need two classes to begin."""
    return sorted({max(end, 1) for end in (*range(0, num_batches, 10), num_batches - 1)})


def choice(case: Case, name: str, seed: int) -> Record:
    """The settings of a peer that are best on held-out leaves, among as many as lambda has."""
    peer, count = peers.PEERS[name], len(CANDIDATES)
    return peers.choose(peer, case.stream, seed, share=HELD_OUT, count=count)


def over_tasks(case: Case, name: str, seed: int, chosen: peers.Settings) -> Record:
    """Accuracy on the classes seen after every tenth task, the peer begun anew each time."""
    curve, ends = [], looks(case.stream.num_batches)
    for end in ends:
        seen = case.columns <= int(case.stream.y[: end + 1].max())
        part = case.stream._replace(
            **{name: getattr(case.stream, name)[: end + 1] for name in ("X", "y", "weight")}
        )
        known = int(part.y.max()) + 1
        part = part._replace(classes=part.classes[:known], class_task=part.class_task[:known])
        fitted = peers.PEERS[name].fit(part, seed, **chosen)
        scores = fitted(case.Z_test[seen].astype(np.float64))
        curve.append(float(np.mean(scores.argmax(axis=1) == case.columns[seen])))
    return {"evaluated": ends, "curves": {"seen": curve}}


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """Accuracy over a hundred classes at the end, its mean over the way, and all settings."""
    rows, seeds = [], range(config.seeds)
    lambdas = peers.shown_over_seeds([file.records[f"seed {seed} | choice"] for seed in seeds])
    network = f"L = {config.num_layers}, N = {config.num_nodes}, ReLU"
    for method in (*STRENGTHS, FINE_TUNED, OFFLINE, *peers.PEERS):
        found = [file.records[f"seed {seed} | {method}"] for seed in seeds]
        if method == OFFLINE:
            last, way = [r["accuracy_class_incremental"] for r in found], []
        else:
            last = [r["curves"]["seen"][-1] for r in found]
            way = [_mean_at_looks(record) for record in found]
        cells = [mean_and_deviation(values, 100, 2) for values in (last, way)]
        chosen, fixed = lambdas, network
        if method in peers.PEERS:
            choices = [file.records[f"seed {seed} | choice of {method}"] for seed in seeds]
            chosen, fixed = peers.shown_over_seeds(choices), peers.PEERS[method].fixed
        elif method in STRENGTHS:
            strength = STRENGTHS[method]
            fixed += f", k {strength:.4g}" if isinstance(strength, float) else ", adaptive k"
        rows.append([method, *cells, chosen, fixed])
    after = (
        f"\n{config.seeds} seeds; mean over every tenth task. Chosen among {len(CANDIDATES)} on"
        " each seed: lambda, 1e-4 to 1e4, by generalised cross-validation of what -R has learned;"
        " settings of peers by the accuracy on three of twelve training leaves, and then learned on"
        ' all twelve. "edge": the best is at an end of its grid.\n'
    )
    headings = ("method", "at the end %", "mean over tasks %", "chosen, by seed", "fixed")
    write_table(folder, headings, rows, after=after)


def _mean_at_looks(record: Record) -> float:
    at = np.isin(record["evaluated"], looks(max(record["evaluated"]) + 1))
    return float(np.mean(np.array(record["curves"]["seen"])[at]))


def draw(config: Config, file: ResultsFile, path: Path) -> None:
    """All methods against tasks learned, and what each of ours has beyond -R; bands are deviations.

    -R, -F, -kF and -kF-Bayes lie on each other: one line stands for all four, and the panels on
    the right tell them apart, in points.
    """
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    figure = Figure(figsize=(13.5, 5), layout="constrained")
    panels = figure.subplot_mosaic(
        [["all", "best", style] for style in STRENGTHS if style != OURS],
        width_ratios=(1, 1.25, 1.1),
    )
    whole, best = panels["all"], panels["best"]
    looks = {
        OURS: {"color": "black", "ls": "-", "lw": 3},
        "streaming LDA": {"color": COLOURS[0], "ls": "-.", "marker": "s"},
        "nearest class mean": {"color": COLOURS[4], "ls": "--", "marker": "o"},
        "SGD (scikit-learn)": {"color": COLOURS[1], "ls": "-", "marker": "^"},
        FINE_TUNED: {"color": "0.45", "ls": ":", "lw": 2.4},
    }
    high = []
    for name, look in looks.items():
        tasks, curves = _curves(config, file, name)
        look = {"lw": 1.8, "ms": 5} | look
        _banded(whole, tasks, 100 * curves, look)
        end = 100 * float(curves[:, -1].mean())
        if end < LOWEST_OF_THE_BEST:
            at_half = 100 * float(np.interp(50, tasks, curves.mean(axis=0)))
            text = f"{name} {end:.1f} %"
            whole.annotate(text, (40, at_half + 7), fontsize=9, color=look["color"])
        else:
            _banded(best, tasks, 100 * curves, look)
            high.append((name, end, look["color"]))
    spoken = {OURS: "all four of ours"}
    for (name, end, colour), place in zip(
        high, _apart([end for _, end, _ in high], 2.6), strict=True
    ):
        best.annotate(
            f"{spoken.get(name, name)}\n{end:.1f} %",
            (100, end),
            (104, place),
            va="center",
            fontsize=9,
            color=colour,
            annotation_clip=False,
        )
    best.set(ylim=(LOWEST_OF_THE_BEST, 100.5))
    best.set_title("The upper part of it", loc="left", fontsize="medium")
    whole.set(ylim=(0, 101), ylabel="accuracy on the species seen, %")
    whole.set_title("Every method", loc="left", fontsize="medium")
    _, base = _curves(config, file, OURS)
    others = [style for style in STRENGTHS if style != OURS]
    for style, colour in zip(others, COLOURS[1:], strict=False):
        tasks, curves = _curves(config, file, style)
        _banded(panels[style], tasks, 100 * (curves - base), {"color": colour, "lw": 1.6})
        panels[style].axhline(0, color="black", lw=0.8)
        panels[style].set_ylabel("points")
        panels[style].set_title(f"{style} less -R", loc="left", fontsize="medium", color=colour)
        panels[style].sharey(panels[others[0]])
    for name, axis in panels.items():
        axis.set(xlim=(1, 100))
        axis.grid(color="0.92")
        axis.spines[["top", "right"]].set_visible(False)
        if name in ("all", "best", others[-1]):
            axis.set_xlabel("tasks learned, one species each")
        else:
            axis.tick_params(labelbottom=False)
    figure.suptitle(f"A hundred species one at a time, one pass, {config.seeds} seeds")
    figure.savefig(path, dpi=110)


def _curves(config: Config, file: ResultsFile, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Tasks learned at each look, and accuracy on the species seen, (seeds, looks)."""
    found = [file.records[f"seed {seed} | {name}"] for seed in range(config.seeds)]
    tasks = np.array(found[0]["evaluated"]) + 1
    return tasks, np.array([record["curves"]["seen"] for record in found])


def _banded(axis: Any, tasks: np.ndarray, curves: np.ndarray, look: dict[str, Any]) -> None:
    mean, deviation = curves.mean(axis=0), curves.std(axis=0, ddof=min(1, len(curves) - 1))
    axis.plot(tasks, mean, **look)
    colour = look["color"]
    axis.fill_between(tasks, mean - deviation, mean + deviation, color=colour, alpha=0.12, lw=0)


def _apart(places: list[float], gap: float) -> np.ndarray:
    """The same places in the same order, moved until neighbours are that far apart."""
    order = np.argsort(places)
    moved = np.asarray(places, float)[order]
    for _ in range(100):
        for i in range(len(moved) - 1):
            short = gap - (moved[i + 1] - moved[i])
            if short > 0:
                moved[i] -= short / 2
                moved[i + 1] += short / 2
    found = np.empty(len(moved))
    found[order] = moved + max(0.0, 1.0 - moved[0])
    return found


def main(config: Config, out: Path = RESULTS / "plant_margin") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and curves.png.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw(config, file, out / "curves.png")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
