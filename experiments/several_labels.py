"""Rows with several labels: where thresholds come from: `python -m experiments.several_labels`.

Two sets: 10,000 training rows and the test rows of Fashion-MNIST, each image with its class and the
unions of classes that it belongs to; and `make_multilabel_classification` of scikit-learn, 8,000
rows to learn and 4,000 to test. N = 256, two sub-learners, lambda = 1, features as they are: plain
values that nobody chose.

- `accuracy`: macro F1 and the share of labels that are right on test rows, with thresholds chosen
  by guesses of the rows that were learned ("f1", "accuracy"; in batches of 200, and by leaving one
  out after `fit`), with 1/2 for all, and, as a bound, with the threshold of each label that is best
  on the test rows themselves.
- `cost`: processor seconds, warm, of 10,000 rows of 64 features in batches of 500 and one
  prediction, of one label, of a hundred, and of a hundred `EdRVFLClassifier`s, ten of which run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro
from sklearn.datasets import make_multilabel_classification
from sklearn.metrics import f1_score

from experiments.fashion_mnist import fashion_mnist
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import EdRVFLClassifier, EdRVFLMultiLabelClassifier

UNIONS = {"top": (0, 2, 4, 6), "long sleeves": (2, 4, 6), "footwear": (5, 7, 9), "other": (3, 8)}
FASHION, DRAWN = "Fashion-MNIST, 10 classes and 4 unions", "drawn, 30 labels"
BATCH, COST_BATCH = 200, 500
CHOSEN = ("f1", "accuracy", 0.5)
BEST = "best on the test rows"
TIMED = 10


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of rows and networks.
        rows: of Fashion-MNIST that are learned.
        drawn_rows: of the other set; half as many are for tests.
    """

    seeds: int = 5
    rows: int = 10_000
    drawn_rows: int = 8_000


class Rows(NamedTuple):
    """Rows to learn and to test on, with a column for each label."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def with_unions(classes: np.ndarray) -> np.ndarray:
    """(n, 14) of 0 and 1: the class, and the unions that it is in."""
    own = classes[:, None] == np.arange(10)
    unions = [np.isin(classes, members) for members in UNIONS.values()]
    return np.column_stack([own, *unions]).astype(int)


def rows_of(name: str, config: Config, seed: int) -> Rows:
    """The rows of a seed."""
    if name == FASHION:
        data = fashion_mnist()
        few = np.random.default_rng(seed).permutation(len(data.X_train))[: config.rows]
        labels = with_unions(data.y_train[few]), with_unions(data.y_test)
        return Rows(data.X_train[few], labels[0], data.X_test, labels[1])
    count = config.drawn_rows
    X, y = make_multilabel_classification(
        count + count // 2, n_features=64, n_classes=30, n_labels=3, random_state=seed
    )
    return Rows(X[:count], y[:count], X[count:], y[count:])


def best_thresholds(scores: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(m,) of each label, the threshold with the best F1 on these very rows."""
    found = np.empty(y.shape[1])
    for label, column in enumerate(scores.T):
        order = np.argsort(-column, kind="stable")
        hits = np.cumsum(y[order, label])
        f1 = 2 * hits / (np.arange(1, len(y) + 1) + max(hits[-1], 1))
        # Rows of one score pass together.
        last = np.r_[np.diff(column[order]) != 0, True]
        found[label] = column[order][np.argmax(np.where(last, f1, -1.0))]
    return found


def model_of(seed: int) -> EdRVFLMultiLabelClassifier:
    """Two sub-learners, N = 256, lambda = 1."""
    return EdRVFLMultiLabelClassifier(2, 256, 1.0, random_state=seed)


def learned(model: Any, X: np.ndarray, y: np.ndarray, rows: int) -> Any:
    """The model after all rows, so many a call."""
    for start in range(0, len(X), rows):
        here = slice(start, start + rows)
        model.partial_fit(X[here], y[here])
    return model


def judged(y: np.ndarray, guessed: np.ndarray) -> Record:
    """Macro F1, and the share of labels that are right."""
    return {
        "macro F1": float(f1_score(y, guessed, average="macro", zero_division=0.0)),
        "right": float(np.mean(y == guessed)),
    }


def accuracy(config: Config, name: str, seed: int) -> Record:
    """What every way to choose thresholds comes to."""
    rows = rows_of(name, config, seed)
    by_batches = learned(model_of(seed), rows.X, rows.y, BATCH)
    at_once = model_of(seed).fit(rows.X, rows.y)
    found: Record = {}
    for way, model in (("in batches", by_batches), ("after fit", at_once)):
        for threshold in CHOSEN:
            model.set_params(threshold=threshold)
            found[f"{threshold}, {way}"] = judged(rows.y_test, model.predict(rows.X_test))
    scores = by_batches.decision_function(rows.X_test)
    thresholds = best_thresholds(scores, rows.y_test)
    found[BEST] = judged(rows.y_test, (scores >= thresholds).astype(int))
    return found


def cost(labels: int, one_by_one: bool) -> Record:
    """Processor seconds of learning and one prediction, warm."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((10_000, 64))
    y = (X @ rng.standard_normal((64, labels)) > 4.0).astype(int)

    def several() -> None:
        learned(model_of(0), X, y, COST_BATCH).predict(X[:1])

    def each() -> None:
        for label in range(TIMED):
            model = EdRVFLClassifier(2, 256, 1.0, random_state=0)
            learned(model, X, y[:, label], COST_BATCH).predict(X[:1])

    call: Callable[[], None] = each if one_by_one else several
    seconds = []
    for _ in range(4):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    factor = labels / TIMED if one_by_one else 1.0
    return {"processor seconds": [factor * value for value in seconds[1:]]}


COSTS = {
    "1 label": (1, False),
    "100 labels": (100, False),
    "100 labels, a classifier for each": (100, True),
}


def measure(config: Config, file: ResultsFile) -> None:
    """All records."""
    with steps_shown("several labels", file) as once:
        for seed in range(config.seeds):
            for name in (FASHION, DRAWN):
                once(f"accuracy | {name} | {seed}", accuracy, config, name, seed)
        for name, (labels, one_by_one) in COSTS.items():
            once(f"cost | {name}", cost, labels, one_by_one)


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """Means and deviations over seeds, and the cost below."""
    rows = []
    for name in (FASHION, DRAWN):
        found = [file.records[f"accuracy | {name} | {seed}"] for seed in range(config.seeds)]
        for way in found[0]:
            cells = [
                mean_and_deviation([one[way][what] for one in found], 100, 1)
                for what in ("macro F1", "right")
            ]
            rows.append([name, way, *cells, str(config.seeds)])
    lines = [
        f"{name}: {np.median(file.records[f'cost | {name}']['processor seconds']):.2f} processor"
        " seconds"
        for name in COSTS
    ]
    headings = ["data", "threshold", "macro F1 %", "labels right %", "seeds"]
    write_table(folder, headings, rows, after="\n" + "; ".join(lines) + ".\n")


def main(config: Config, out: Path = RESULTS / "several_labels") -> None:
    """Measure what is not kept yet, and write the table.

    Args:
        config: protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
