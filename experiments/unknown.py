"""Rows of classes that were never learned, told from the others: `python -m experiments.unknown`.

A seed draws which half of the classes is known: 50 of CIFAR-100 (features of a frozen ImageNet
encoder), 50 of 100 plant species (margin features), 13 of 26 letters. The training rows of these
classes are learned by one sub-learner, N = 512, lambda = 1, features standardised by these rows,
100 rows a call, each scored before it is learned. Test rows are those of CIFAR-100's test set, and
a fixed quarter of the others' rows; half of their classes was never learned.

- `choice`: the share of the relative distance in "blended". No test row enters: on training rows
  alone, half of the known classes of three further seeds is learned and told from the other half,
  a quarter of its rows held out. The largest mean AUROC over data sets and seeds decides; ties
  of a tenth of a point go to the larger share.
- `scores`: on test rows, AUROC (how often an unknown row has a larger score than a known one), and
  the share of unknown rows passed where 95 % of the known ones are (FPR at 95 % TPR). Beside the
  scores of `novelty` stand those of plain classifiers: one minus the largest calibrated probability
  of "ridge" and of "discriminant", and minus the largest score of "ridge".
- `threshold`, of the two best kinds of score: 5 % false alarms wanted; how many there are among
  known test rows, and how many of the unknown are found. Rows come in random order, or class
  after class.
- `cost`: processor seconds of all `partial_fit` calls of one seed in random order, warm, of
  CIFAR-100.

Nothing else was chosen on these data: lambda, N and the shrinkage of 0.1 are plain values, and the
power by which old scores fade (`rvfl_jax.estimators.novelty.POWER`) is from digits.
"""

import os
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

from experiments.features import FEATURES, FOLDER, cifar100
from experiments.plant_margin import leaves
from experiments.results_file import (
    Record,
    ResultsFile,
    markdown_table,
    mean_and_deviation,
    write_csv,
)
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import EdRVFLClassifier
from rvfl_jax.estimators.novelty import NOVELTY_SCORES
from rvfl_jax.metrics import area_under_curve

DATA = ("CIFAR-100", "plant margin", "letter")
# Kinds of score whose thresholds are tried.
SCORED = ("blended", "relative_mahalanobis")
ORDERS = ("random order", "class after class")
SHARES = (0.0, 0.5, 0.8, 0.9, 0.95, 1.0)
PLAIN = ("max probability, ridge", "max probability, discriminant", "max score, ridge")
# Seeds of `choice`, and of the rows that are for tests.
FURTHER, SPLIT = 10, 2026
ROWS_A_CALL = 100
WANTED = 0.05


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of the known classes, the order of rows and the network.
        num_nodes: N.
    """

    seeds: int = 3
    num_nodes: int = 512


class Split(NamedTuple):
    """Training and test rows, standardised by the training rows of the known classes."""

    X: np.ndarray
    y: np.ndarray
    known: np.ndarray
    others: np.ndarray


@cache
def rows_of(name: str) -> tuple[np.ndarray, ...]:
    """Training rows and labels, test rows and labels, of all classes."""
    if name == "CIFAR-100":
        data = cifar100(next(iter(FEATURES)))
        rows = data.X_train, data.y_train, data.X_test, data.y_test
        return tuple(np.asarray(part, float if part.ndim == 2 else int) for part in rows)
    if name == "plant margin":
        X, y = leaves()
    else:
        with np.load(Path(os.environ[FOLDER]) / "uci.npz", allow_pickle=False) as file:
            X, y = file["letter_x"], file["letter_y"]
    order = np.random.default_rng(SPLIT).permutation(len(y))
    test, train = order[: len(y) // 4], order[len(y) // 4 :]
    return X[train].astype(float), y[train], X[test].astype(float), y[test]


def halves(classes: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Half of the classes, and the others."""
    drawn = rng.permutation(classes)
    return drawn[: len(drawn) // 2], drawn[len(drawn) // 2 :]


def split_of(name: str, seed: int) -> Split:
    """Known classes, and test rows of these and of the others."""
    X, y, X_test, y_test = rows_of(name)
    known, others = halves(np.unique(y), np.random.default_rng(seed))
    mine = np.isin(y, known)
    scaled = scaling_by(X[mine])
    there = (X_test[np.isin(y_test, half)] for half in (known, others))
    return Split(scaled(X[mine]), y[mine], *(scaled(part) for part in there))


def split_to_choose(name: str, seed: int) -> Split:
    """The same of training rows alone, with half of the known classes for those never learned."""
    X, y, _, _ = rows_of(name)
    rng = np.random.default_rng(seed)
    known, others = halves(halves(np.unique(y), rng)[0], rng)
    held = rng.random(len(y)) < 0.25
    mine = np.isin(y, known)
    scaled = scaling_by(X[mine & ~held])
    parts = X[mine & ~held], X[mine & held], X[np.isin(y, others)]
    learned, of_known, of_others = (scaled(part) for part in parts)
    return Split(learned, y[mine & ~held], of_known, of_others)


def scaling_by(X: np.ndarray) -> Any:
    mean, scale = X.mean(axis=0), X.std(axis=0)
    return lambda Z: (Z - mean) / np.where(scale > 0, scale, 1.0)


def model_of(config: Config, seed: int, score: str | None = None) -> EdRVFLClassifier:
    """One sub-learner, lambda = 1."""
    return EdRVFLClassifier(1, config.num_nodes, 1.0, random_state=seed, novelty_score=score)


def learned(model: EdRVFLClassifier, split: Split, order: str, seed: int) -> EdRVFLClassifier:
    """The model after all rows, a hundred a call."""
    rows = np.random.default_rng(seed).permutation(len(split.y))
    if order == ORDERS[1]:
        place = np.random.default_rng(seed).permutation(split.y.max() + 1)
        rows = rows[np.argsort(place[split.y[rows]], kind="stable")]
    for start in range(0, len(rows), ROWS_A_CALL):
        here = rows[start : start + ROWS_A_CALL]
        model.partial_fit(split.X[here], split.y[here])
    return model


def passed(known: np.ndarray, others: np.ndarray) -> float:
    """Share of unknown rows that pass where 95 % of the known ones do."""
    return float(np.mean(others <= np.quantile(known, 0.95, method="inverted_cdf")))


def plain_score(model: EdRVFLClassifier, name: str, X: np.ndarray) -> np.ndarray:
    """What a classifier that knows nothing of novelty has to say."""
    what, readout = name.split(", ")
    model.set_params(readout=readout)
    told = model.predict_proba(X) if what == "max probability" else model.decision_function(X)
    return -told.max(axis=1)


def choice(config: Config, name: str, seed: int) -> Record:
    """AUROC of shares of the relative distance, and of the plain scores, on training rows."""
    split = split_to_choose(name, seed)
    model = learned(model_of(config, seed), split, ORDERS[0], seed)
    both = [
        [model.novelty(X, kind=kind) for kind in ("mahalanobis", "relative_mahalanobis")]
        for X in (split.known, split.others)
    ]
    found: Record = {
        f"{share:g}": area_under_curve(*((1 - share) * M + share * R for M, R in both))
        for share in SHARES
    }
    for plain in PLAIN:
        found[plain] = area_under_curve(
            *(plain_score(model, plain, X) for X in (split.known, split.others))
        )
    return found


def threshold(config: Config, name: str, order: str, score: str, seed: int) -> Record:
    """What the threshold of a score does on test rows."""
    split = split_of(name, seed)
    model = learned(model_of(config, seed, score), split, order, seed)
    known, others = (model.novelty(X) for X in (split.known, split.others))
    at = model.novelty_threshold(WANTED)
    return {
        "threshold": at if np.isfinite(at) else None,
        "rows offered": int(model._fitted.tally.offered.sum()),
        "scores kept": int(np.count_nonzero(model._fitted.tally.worth)),
        "false alarms": float(np.mean(known > at)),
        "found": float(np.mean(others > at)),
    }


def scores(config: Config, name: str, seed: int) -> Record:
    """How well every score tells test rows of known classes from the others."""
    split = split_of(name, seed)
    model = learned(model_of(config, seed), split, ORDERS[0], seed)
    found: Record = {"learned": len(split.y), "test": [len(split.known), len(split.others)]}
    for score in (*NOVELTY_SCORES, *PLAIN):
        known, others = (
            plain_score(model, score, X) if score in PLAIN else model.novelty(X, kind=score)
            for X in (split.known, split.others)
        )
        found[score] = {
            "auroc": area_under_curve(known, others),
            "passed": passed(known, others),
        }
    return found


def cost(config: Config, score: str | None) -> Record:
    """Processor seconds to learn CIFAR-100's known rows, the second time."""
    split, seconds = split_of(DATA[0], 0), 0.0
    for _ in range(2):
        start = time.process_time()
        learned(model_of(config, 0, score), split, ORDERS[0], 0)
        seconds = time.process_time() - start
    return {"seconds": seconds, "calls": -(-len(split.y) // ROWS_A_CALL)}


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    with steps_shown("choice", file) as once:
        for name in DATA:
            for seed in range(FURTHER, FURTHER + config.seeds):
                once(f"choice | {name} | seed {seed}", choice, config, name, seed)
    for seed in range(config.seeds):
        with steps_shown(f"test rows, seed {seed}", file) as once:
            for name in reversed(DATA):
                once(f"scores | {name} | seed {seed}", scores, config, name, seed)
                for order in ORDERS:
                    for score in SCORED:
                        label = f"threshold | {score} | {name} | {order} | seed {seed}"
                        once(label, threshold, config, name, order, score, seed)
    with steps_shown("cost", file) as once:
        for kind in (None, *SCORED):
            once(f"cost | {kind or 'none'}", cost, config, kind)


def _found(config: Config, file: ResultsFile, label: str) -> list[Record]:
    names = (f"{label} | seed {seed}" for seed in range(config.seeds))
    return [file.records[name] for name in names if name in file.records]


def tabulate(config: Config, file: ResultsFile, out: Path) -> None:
    """Write table.md, and the scores as table.csv."""
    headings = ["score", *(f"{name}, {what}" for name in DATA for what in ("AUROC", "passed"))]
    rows = []
    for score in (*NOVELTY_SCORES, *PLAIN):
        cells = []
        for name in DATA:
            found = [r[score] for r in _found(config, file, f"scores | {name}")]
            cells += [mean_and_deviation([r[key] for r in found], 100, 1) for key in _TOLD]
        rows.append([score, *cells])
    write_csv(out, headings, rows)
    parts = [markdown_table(headings, rows), _thresholds(config, file), _choice(config, file)]
    seconds = [file.records[f"cost | {kind}"]["seconds"] for kind in ("none", *SCORED)]
    costs = [
        [kind, f"{s:.1f}", f"{s / seconds[0]:.2f}"]
        for kind, s in zip(("none", *SCORED), seconds, strict=True)
    ]
    parts.append(markdown_table(["novelty_score", "processor seconds", "times none"], costs))
    (out / "table.md").write_text("\n".join(parts), encoding="utf-8")


_TOLD = ("auroc", "passed")


def _thresholds(config: Config, file: ResultsFile) -> str:
    what = ("false alarms %", "found %")
    headings = ["rows come", "score", *(f"{name}, {each}" for name in DATA for each in what)]
    rows = []
    for order in ORDERS:
        for score in SCORED:
            cells = []
            for name in DATA:
                found = _found(config, file, f"threshold | {score} | {name} | {order}")
                for key in ("false alarms", "found"):
                    cells.append(mean_and_deviation([r[key] for r in found], 100, 1))
            rows.append([order, score, *cells])
    return markdown_table(headings, rows)


def _choice(config: Config, file: ResultsFile) -> str:
    rows, names = [], [f"{share:g}" for share in SHARES]
    for name in (*names, *PLAIN):
        cells = []
        for data in DATA:
            seeds = range(FURTHER, FURTHER + config.seeds)
            cells.append([file.records[f"choice | {data} | seed {s}"][name] for s in seeds])
        label = f"share {name}" if name in names else name
        told = [mean_and_deviation(cell, 100, 1) for cell in cells]
        rows.append([label, *told, f"{100 * np.mean(cells):.2f}"])
    return markdown_table(["AUROC on training rows", *DATA, "mean"], rows)


def main(config: Config, out: Path = RESULTS / "unknown") -> None:
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
