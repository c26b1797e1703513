"""The paper's table behind a ViT: `python -m experiments.vit_table --config.file FEATURES.npz`.

CIFAR-100 in 20 tasks of five classes, N = 256, L = 2, sigmoid, k = 2, kappa = 128, sigma = 1e-3.
The paper uses ViT-B/16 trained on ImageNet-21k; `rvfl-jax embed --model
timm:vit_base_patch16_224.augreg_in21k --images FOLDER --out FEATURES.npz` makes such a file.
Without one the features are those of an EfficientNet-lite0 trained on ImageNet-1k, and the table
says so.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import peers
from experiments.comparison import accuracy_of, expert_of, guarded, run_and_keep
from experiments.fashion_mnist import Case
from experiments.features import FEATURES, cifar100_case
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import adaptive_k, class_incremental_stream, edrvfl
from rvfl_jax.data import load_dataset
from rvfl_jax.metrics import incremental_accuracy
from rvfl_jax.streams.labels import to_columns

STAND_IN = next(iter(FEATURES))
STRENGTHS: dict[str, Any] = {
    "-R": 0.0,
    "-kF": 2.0,
    "-kF-Bayes": adaptive_k(kappa=128.0, sigma=1e-3),
    "-kF-Bayes that takes out what it put in": adaptive_k(128.0, 1e-3, reuse_k=True),
}
PEER = "SimpleCIL (nearest class mean, cosine)"
# A-bar, A_B and ACC as the paper prints them, in per cent.
PAPER = {
    "-R": (93.17, 86.17, 90.13),
    "-kF": (93.72, 86.14, 90.32),
    "-kF-Bayes": (94.48, 86.28, 90.92),
    PEER: (87.57, 81.26, 81.28),
}
GUARDED_ROWS = 1000


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        file: .npz of features with X_train, y_train, X_test, y_test; the stand-in when None.
        seeds: of class order, rows and random features.
        num_tasks: Q.
        num_batches: T.
        ridge: lambda, the same for all styles; not given in the paper.
    """

    file: Path | None = None
    seeds: int = 3
    num_tasks: int = 20
    num_batches: int = 400
    ridge: float = 1.0


def case_of(config: Config, seed: int) -> Case:
    """A seed's stream of the file's features, or of the stand-in's."""
    sizes = {"num_tasks": config.num_tasks, "num_batches": config.num_batches}
    if config.file is None:
        return cifar100_case(STAND_IN, seed, **sizes)
    data = load_dataset(str(config.file))
    stream = class_incremental_stream(data.X_train, data.y_train, seed=seed, **sizes)
    columns = to_columns("y_test", data.y_test, stream.classes)
    return Case(stream, data.X_test, data.y_test, columns, None)


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    learners = {
        style: edrvfl(num_layers=2, num_nodes=256, ridge=config.ridge, k=k, activation="sigmoid")
        for style, k in STRENGTHS.items()
    }
    for seed in range(config.seeds):
        case, key = case_of(config, seed), jax.random.key(seed)
        with steps_shown(f"seed {seed + 1} of {config.seeds}", file) as once:
            for style, learner in learners.items():
                once(f"seed {seed} | {style}", run_and_keep, case, learner, key, evaluate="task")
            once(f"seed {seed} | offline expert", _offline, case, learners["-R"], key)
            once(f"seed {seed} | {PEER}", _simple_cil, case)
            if seed == 0:
                once("leak guard", guarded, case, learners["-R"], key, GUARDED_ROWS)


def _offline(case: Case, learner: Any, key: Any) -> Record:
    return {"A_B": accuracy_of(expert_of(case, learner, key), case, learner)}


def _simple_cil(case: Case) -> Record:
    """Cosine to running class means; a mean does not change once its class has passed."""

    def unit(X: np.ndarray) -> np.ndarray:
        return X / np.maximum(np.linalg.norm(X, axis=1, keepdims=True), 1e-12)

    scores = unit(case.Z_test) @ unit(peers.class_means(case.stream)).T
    task = case.stream.class_task[case.columns]
    Q = case.stream.num_tasks
    R = np.full((Q, Q), np.nan)
    for q in range(Q):
        met = case.stream.class_task <= q
        guess = np.where(met, scores, -np.inf).argmax(axis=1)
        for j in range(q + 1):
            R[q, j] = np.mean(guess[task == j] == case.columns[task == j])
    so_far = incremental_accuracy(R, np.bincount(task, minlength=Q))
    return {"A_bar": float(so_far.mean()), "A_B": float(so_far[-1]), "ACC": float(R[-1].mean())}


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """A-bar, A_B and ACC beside the paper's."""
    features = STAND_IN if config.file is None else config.file.name
    rows = []
    for method in (*STRENGTHS, PEER, "offline expert"):
        found = [file.records[f"seed {seed} | {method}"] for seed in range(config.seeds)]
        cells = []
        published = PAPER.get(method, ("", "", ""))
        for name, value in zip(("A_bar", "A_B", "ACC"), published, strict=True):
            reached = mean_and_deviation([record.get(name) for record in found], 100, 2)
            cells += [reached, str(value)]
        rows.append([method, *cells])
    headings = ("method", "A-bar %", "paper A-bar", "A_B %", "paper A_B", "ACC %", "paper ACC")
    write_table(
        folder,
        headings,
        rows,
        before=f"Features: {features}, {config.seeds} seeds. The paper's are of ViT-B/16,"
        " ImageNet-21k.\n\n",
        after="\nFor tasks of equal size A_B and ACC are one number; the paper prints two"
        " (86.28, 90.92).\n",
    )


def main(config: Config, out: Path = RESULTS / "vit_table") -> None:
    """Measure what is missing, then write results.json, table.csv and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
