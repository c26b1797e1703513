"""A hundred tasks of one class each (the paper's Fig. 1): `python -m experiments.plant_margin`.

Margin features of the leaves of a hundred plant species, 16 leaves each: 12 to learn from, in
one batch, and 4 to test on. All styles of a seed have the lambda that generalised
cross-validation rates best on that seed's training rows. (The prequential loss cannot choose
here: every batch is a class that nobody has seen, so that the best guess is none.) Other methods
that go through the data once and keep none of it are shown beside.
"""

import os
from collections.abc import Callable
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
    Stream,
    adaptive_k,
    class_incremental_stream,
    edrvfl,
    fine_tuned_edrvfl,
    generalised_cross_validation,
    run_stream,
)
from rvfl_jax.labels import to_columns

OFFLINE = "offline expert"
STRENGTHS: dict[str, Any] = {"-R": 0.0, "-F": 1.0, "-kF": PAPER_K, "-kF-Bayes": adaptive_k()}
CANDIDATES = np.logspace(-4, 4, 33)
FINE_TUNED = "fine-tuning"
PEERS: dict[str, Callable[[Stream, int], peers.Scores]] = {
    "nearest class mean": lambda stream, seed: peers.nearest_class_mean(stream),
    "streaming LDA": lambda stream, seed: peers.streaming_lda(stream, shrinkage=1e-2),
    "SGD (scikit-learn)": peers.sgd,
}


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
            for peer, fit in PEERS.items():
                once(f"seed {seed} | {peer}", _over_tasks, case, fit, seed)
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
    return {"ridge": float(CANDIDATES[scores.argmin()]), "candidates": CANDIDATES, "GCV": scores}


def _offline(case: Case, learner: Any, key: Any) -> Record:
    scores = comparison.expert_of(case, learner, key)
    return {"accuracy_class_incremental": comparison.accuracy_of(scores, case, learner)}


def looks(num_batches: int) -> list[int]:
    """Batches after which every method is compared; peers need two classes to begin."""
    return sorted({max(end, 1) for end in (*range(0, num_batches, 10), num_batches - 1)})


def _over_tasks(case: Case, fit: Callable[[Stream, int], peers.Scores], seed: int) -> Record:
    """Accuracy on the classes seen after every tenth task, the peer begun anew each time."""
    curve, ends = [], looks(case.stream.num_batches)
    for end in ends:
        seen = case.columns <= int(case.stream.y[: end + 1].max())
        part = case.stream._replace(
            **{name: getattr(case.stream, name)[: end + 1] for name in ("X", "y", "weight")}
        )
        known = int(part.y.max()) + 1
        part = part._replace(classes=part.classes[:known], class_task=part.class_task[:known])
        scores = fit(part, seed)(case.Z_test[seen].astype(np.float64))
        curve.append(float(np.mean(scores.argmax(axis=1) == case.columns[seen])))
    return {"evaluated": ends, "curves": {"seen": curve}}


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """Accuracy over a hundred classes at the end, and its mean over the way."""
    rows = []
    for method in (*STRENGTHS, FINE_TUNED, OFFLINE, *PEERS):
        found = [file.records[f"seed {seed} | {method}"] for seed in range(config.seeds)]
        if method == OFFLINE:
            last, way = [r["accuracy_class_incremental"] for r in found], []
        else:
            last = [r["curves"]["seen"][-1] for r in found]
            way = [_mean_at_looks(record) for record in found]
        cells = [mean_and_deviation(values, 100, 2) for values in (last, way)]
        rows.append([method, *cells])
    ridges = {file.records[f"seed {seed} | choice"]["ridge"] for seed in range(config.seeds)}
    shown = ", ".join(f"{ridge:.3g}" for ridge in sorted(ridges))
    chosen = f"\nlambda {shown}, by GCV; {config.seeds} seeds; mean over every tenth task.\n"
    headings = ("method", "at the end %", "mean over tasks %")
    write_table(folder, headings, rows, after=chosen)


def _mean_at_looks(record: Record) -> float:
    at = np.isin(record["evaluated"], looks(max(record["evaluated"]) + 1))
    return float(np.mean(np.array(record["curves"]["seen"])[at]))


def draw(config: Config, file: ResultsFile, path: Path) -> None:
    """Accuracy on the classes seen against tasks learned; bands are deviations over seeds."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    figure = Figure(figsize=(9, 4.8), layout="constrained")
    axis = figure.add_subplot()
    shown = (*STRENGTHS, *PEERS, FINE_TUNED)
    colours = (*COLOURS, "0.45", "0.7")
    for method, colour in zip(shown, colours, strict=True):
        found = [file.records[f"seed {seed} | {method}"] for seed in range(config.seeds)]
        tasks = np.array(found[0]["evaluated"]) + 1
        curves = np.array([record["curves"]["seen"] for record in found])
        mean, deviation = curves.mean(axis=0), curves.std(axis=0, ddof=min(1, config.seeds - 1))
        dash = "-" if method in STRENGTHS else "--"
        axis.plot(tasks, mean, color=colour, ls=dash, label=method, lw=1.8)
        axis.fill_between(tasks, mean - deviation, mean + deviation, color=colour, alpha=0.15, lw=0)
    offline = np.mean(
        [
            file.records[f"seed {seed} | {OFFLINE}"]["accuracy_class_incremental"]
            for seed in range(config.seeds)
        ]
    )
    axis.axhline(offline, color="black", lw=1, ls=":")
    axis.annotate(
        f"offline expert {offline:.3f}", (2, offline), (0, -12), textcoords="offset points"
    )
    axis.set(
        xlabel="tasks learned, one species each",
        ylabel="accuracy on the species seen",
        ylim=(0, 1.02),
        xlim=(1, 100),
        title=f"Plant margin-100/100, one pass, {config.seeds} seeds",
    )
    axis.grid(color="0.92")
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(loc="center right", ncols=2)
    figure.savefig(path, dpi=150)


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
