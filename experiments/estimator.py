"""The estimator in practice, beside others: `python -m experiments.estimator`.

- `peers`: one pass over classes that come one after another, a batch at a time, with no row kept:
  accuracy at the end, and seconds of all `partial_fit` calls. gfdl and river take part where they
  are installed; refitting scikit-learn's RidgeClassifier on all rows seen keeps them all, and is
  there for its time.
- `calibration`: expected calibration error (ECE, 15 bins) on test rows, of the paper's softmax and
  of `predict_proba`. Nothing is fitted on test rows, and none is held out.
- `long tail`: balanced accuracy (mean over classes) by readout, on rows drawn so that the rarest
  class has a hundredth of the rows of the most frequent, and on all rows.
- `many calls`: 5,000 batches of 1 to 64 rows with 40 classes appearing on the way.
"""

import importlib.util
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from jax import monitoring

from experiments.features import FEATURES, cifar100
from experiments.plant_margin import Config as Plants
from experiments.plant_margin import plant_case
from experiments.results_file import Record, ResultsFile, markdown_table, mean_and_deviation
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import EdRVFLClassifier, Stream, class_incremental_stream
from rvfl_jax.data import Dataset, load_dataset
from rvfl_jax.metrics import expected_calibration_error

HONEST, OPTIMISTIC = FEATURES
COMPILED = "/jax/core/compile/backend_compile_duration"
# Name to parameters; the first is what the others are compared with.
READOUTS: dict[str, dict[str, Any]] = {
    "ridge": {},
    "ridge, class_balance=0.5": {"class_balance": 0.5},
    "ridge, class_balance=1": {"class_balance": 1.0},
    "discriminant": {"readout": "discriminant"},
    "discriminant, class_balance=1": {"readout": "discriminant", "class_balance": 1.0},
    "nearest_mean": {"readout": "nearest_mean"},
}
ORDERS = ("new classes", "random order")


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of orders, splits and networks.
        num_nodes: N of one sub-learner; lambda is 1.
        fashion_rows: training rows of Fashion-MNIST beside the peers.
        imbalance: rows of the most frequent class for one of the rarest.
        calls: batches of `many calls`.
    """

    seeds: int = 3
    num_nodes: int = 512
    fashion_rows: int = 10_000
    imbalance: int = 100
    calls: int = 5_000


def model_of(config: Config, seed: int, **options: Any) -> EdRVFLClassifier:
    """One sub-learner, lambda = 1."""
    return EdRVFLClassifier(num_layers=1, num_nodes=config.num_nodes, random_state=seed, **options)


# --- peers -----------------------------------------------------------------------------------


@cache
def problem(config: Config, name: str, seed: int) -> tuple[Stream, np.ndarray, np.ndarray]:
    """A stream of new classes, and test rows with their columns."""
    if name == "plant margin":
        case = plant_case(Plants(), seed)
        return case.stream, case.Z_test, case.columns
    data = load_dataset(name, seed=seed)
    rows = np.random.default_rng(seed).permutation(len(data.X_train))[: config.fashion_rows]
    stream = class_incremental_stream(
        data.X_train[rows], data.y_train[rows], num_tasks=5, num_batches=50, seed=seed
    )
    column_of = {label: c for c, label in enumerate(stream.classes.tolist())}
    return stream, data.X_test, np.array([column_of[label] for label in data.y_test.tolist()])


def batches_of(stream: Stream) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(X, y) of each batch, without padding."""
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        yield X[weight > 0].astype(float), y[weight > 0]


def ours(config: Config, seed: int, classes: np.ndarray) -> Any:
    """`EdRVFLClassifier`, which is told no classes."""
    del classes
    return model_of(config, seed)


class Told:
    """A peer that has to know its classes beforehand."""

    def __init__(self, model: Any, classes: np.ndarray):
        self.model, self.classes = model, classes

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        self.model.partial_fit(X, y, classes=self.classes)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(X)


def sgd(config: Config, seed: int, classes: np.ndarray) -> Any:
    """scikit-learn's linear SGD with logistic loss."""
    from sklearn.linear_model import SGDClassifier

    return Told(SGDClassifier(loss="log_loss", random_state=seed), classes)


def gfdl(config: Config, seed: int, classes: np.ndarray) -> Any:
    """The ensemble deep RVFL of the package gfdl, of the same size, lambda and kind of weights.

    Its default weights are U(0, 1): on inputs that are not negative every ReLU is then active, and
    the model linear.
    """
    from gfdl.model import EnsembleGFDLClassifier

    model = EnsembleGFDLClassifier(
        hidden_layer_sizes=(config.num_nodes,),
        activation="relu",
        weight_scheme="lecun_uniform",
        seed=seed,
        reg_alpha=1.0,
    )
    return Told(model, classes)


class River:
    """Softmax regression of river behind its standard scaler, row by row."""

    def __init__(self) -> None:
        from river.linear_model import SoftmaxRegression
        from river.preprocessing import StandardScaler

        self.model = StandardScaler() | SoftmaxRegression()

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        for row, label in zip(X.tolist(), y.tolist(), strict=True):
            self.model.learn_one(dict(enumerate(row)), label)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return np.array([self.model.predict_one(dict(enumerate(row))) for row in X.tolist()])


class Refitted:
    """scikit-learn's RidgeClassifier on the same features of all rows seen, after every batch."""

    def __init__(self, config: Config, seed: int):
        self.config, self.seed = config, seed
        self.W: np.ndarray | None = None
        self.parts: list[tuple[np.ndarray, np.ndarray]] = []

    def features(self, X: np.ndarray) -> np.ndarray:
        X = np.hstack([X, np.ones((len(X), 1))])
        if self.W is None:
            bound = np.sqrt(3 / X.shape[1])
            rng = np.random.default_rng(self.seed)
            self.W = rng.uniform(-bound, bound, (X.shape[1], self.config.num_nodes))
        return np.hstack([np.maximum(X @ self.W, 0), X])

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        from sklearn.linear_model import RidgeClassifier

        self.parts.append((self.features(X), y))
        D, seen = (np.concatenate(values) for values in zip(*self.parts, strict=True))
        if len(np.unique(seen)) > 1:
            self.model = RidgeClassifier(alpha=1.0).fit(D, seen)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(self.features(X))


PEERS: dict[str, Callable[[Config, int, np.ndarray], Any]] = {
    "EdRVFLClassifier": ours,
    "gfdl": gfdl,
    "SGDClassifier": sgd,
    "river softmax": lambda config, seed, classes: River(),
    "RidgeClassifier refitted": lambda config, seed, classes: Refitted(config, seed),
}
SETTINGS = {
    "EdRVFLClassifier": "N = 512, lambda 1, k 0",
    "gfdl": "512 nodes, reg_alpha 1, weight_scheme lecun_uniform",
    "SGDClassifier": "log_loss, defaults",
    "river softmax": "defaults, behind StandardScaler",
    "RidgeClassifier refitted": "512 ReLU nodes and the inputs, alpha 1",
}
PROBLEMS = ("digits", "fashion-mnist", "plant margin")
# One pass tells how slow these are.
SLOW = ("river softmax", "RidgeClassifier refitted")
# River takes long for few rows; a thousand tell its accuracy to a point and a half.
RIVER_TEST_ROWS = 1_000


def beside_peers(config: Config, name: str, peer: str, seed: int) -> Record:
    """Accuracy at the end and the seconds of a first and of a second pass."""
    stream, X_test, columns = problem(config, name, seed)
    classes, seconds = np.arange(len(stream.classes)), []
    for _ in range(1 if peer in SLOW else 2):
        model = PEERS[peer](config, seed, classes)
        start = time.perf_counter()
        for X, y in batches_of(stream):
            model.partial_fit(X, y)
        seconds.append(time.perf_counter() - start)
    some = np.random.default_rng(0).permutation(len(X_test))
    some = some[:RIVER_TEST_ROWS] if peer == "river softmax" else some
    predicted = model.predict(X_test[some].astype(float))
    return {"accuracy": float(np.mean(predicted == columns[some])), "seconds": seconds}


# --- calibration ------------------------------------------------------------------------------


@cache
def _data(name: str) -> Dataset:
    return cifar100(name) if name in FEATURES else load_dataset(name)


def calibration(config: Config, name: str, order: str, seed: int) -> Record:
    """ECE before and after, from a stream and from `fit`."""
    data = _data(name)
    model = model_of(config, seed)
    if order == "fit":
        model.fit(data.X_train, data.y_train)
    else:
        tasks = {"random order": 1, "new classes": 10 if name in FEATURES else 5}[order]
        stream = class_incremental_stream(
            data.X_train, data.y_train, num_tasks=tasks, num_batches=200, seed=seed
        )
        for X, y in batches_of(stream):
            model.partial_fit(X, stream.classes[y])
    columns = np.searchsorted(model.classes_, data.y_test)
    scores = np.exp(model.decision_function(data.X_test))
    flat = scores / scores.sum(axis=1, keepdims=True)
    proba = model.predict_proba(data.X_test)
    return {
        "accuracy": float(np.mean(proba.argmax(axis=1) == columns)),
        "confidence": float(proba.max(axis=1).mean()),
        "before": expected_calibration_error(flat, columns),
        "after": expected_calibration_error(proba, columns),
        "power": model.inverse_temperature_,
    }


# --- long tail --------------------------------------------------------------------------------


@cache
def letter(seed: int) -> Dataset:
    """The UCI letters, standardised with the training rows' moments, a quarter to test on."""
    import os

    from sklearn.model_selection import train_test_split

    from experiments.features import FOLDER

    with np.load(Path(os.environ[FOLDER]) / "uci.npz", allow_pickle=False) as file:
        X, y = file["letter_x"].astype(float), file["letter_y"]
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=seed)
    mean, scale = X.mean(axis=0), X.std(axis=0)
    return Dataset("letter", (X - mean) / scale, y, (X_test - mean) / scale, y_test)


def tail_rows(y: np.ndarray, imbalance: int, seed: int) -> np.ndarray:
    """Rows of classes whose numbers fall exponentially, in an order that the seed draws."""
    rng = np.random.default_rng(seed)
    classes = rng.permutation(np.unique(y))
    most = np.unique(y, return_counts=True)[1].min()
    rows = []
    for rank, label in enumerate(classes):
        count = max(1, round(most * imbalance ** (-rank / (len(classes) - 1))))
        rows.append(rng.permutation(np.flatnonzero(y == label))[:count])
    return rng.permutation(np.concatenate(rows))


def by_readout(config: Config, name: str, tail: bool, seed: int) -> Record:
    """Balanced accuracy of each readout of one learned state."""
    data = letter(seed) if name == "letter" else _data(name)
    rows = np.arange(len(data.y_train))
    if tail:
        rows = tail_rows(data.y_train, config.imbalance, seed)
    model = model_of(config, seed).fit(data.X_train[rows], data.y_train[rows])
    found: Record = {"rows": len(rows)}
    for readout, options in READOUTS.items():
        model.set_params(readout="ridge", class_balance=0.0).set_params(**options)
        hit = model.predict(data.X_test) == data.y_test
        found[readout] = float(np.mean([hit[data.y_test == c].mean() for c in model.classes_]))
    return found


# --- many calls -------------------------------------------------------------------------------


def many_calls(config: Config, nodes: int) -> Record:
    """Compilations, difference to one `fit`, and seconds beside refitting at the same points."""
    from sklearn.linear_model import RidgeClassifier

    rng = np.random.default_rng(0)
    means = rng.normal(size=(40, 64))
    batches = []
    for call in range(config.calls):
        known = min(40, 1 + call * 48 // config.calls)
        y = rng.integers(0, known, rng.integers(1, 65))
        batches.append((means[y] + 1.5 * rng.normal(size=(len(y), 64)), y))
    compilations: list[float] = []

    def listen(event: str, duration: float, **_: Any) -> None:
        if event == COMPILED:
            compilations.append(duration)

    monitoring.register_event_duration_secs_listener(listen)
    model = EdRVFLClassifier(num_layers=1, num_nodes=nodes, random_state=0)
    start = time.perf_counter()
    for X, y in batches:
        model.partial_fit(X, y)
    seconds = time.perf_counter() - start
    compiled = len(compilations)
    monitoring.unregister_event_duration_listener(listen)
    X, y = (np.concatenate(parts) for parts in zip(*batches, strict=True))
    whole = EdRVFLClassifier(num_layers=1, num_nodes=nodes, random_state=0).fit(X, y)
    last = X[-2000:]
    gap = np.abs(model.decision_function(last) - whole.decision_function(last)).max()
    refitted = Refitted(Config(num_nodes=nodes), 0)
    D, ends = refitted.features(X), np.cumsum([len(part) for part, _ in batches])
    points = np.linspace(config.calls // 20, config.calls - 1, 8).astype(int)
    refits = []
    for point in points:
        start = time.perf_counter()
        RidgeClassifier(alpha=1.0).fit(D[: ends[point]], y[: ends[point]])
        refits.append(time.perf_counter() - start)
    return {
        "compilations": compiled,
        "largest difference to one fit": float(gap),
        "seconds a call": seconds / config.calls,
        "points": points,
        "seconds a refit": refits,
        "ratio": float(np.mean(refits) * config.calls / seconds),
    }


# --- all of it --------------------------------------------------------------------------------


def installed(peer: str) -> bool:
    """Whether the package of a peer is there."""
    package = peer.split()[0]
    return package not in ("gfdl", "river") or importlib.util.find_spec(package) is not None


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    with steps_shown("many calls", file) as once:
        for nodes in (64, 256):
            once(f"many calls | N = {nodes}", many_calls, config, nodes)
    for seed in range(config.seeds):
        with steps_shown(f"seed {seed + 1} of {config.seeds}", file) as once:
            for name in (HONEST, OPTIMISTIC, "fashion-mnist"):
                for order in (*ORDERS, "fit"):
                    label = f"calibration | {name} | {order} | seed {seed}"
                    once(label, calibration, config, name, order, seed)
            for name in (HONEST, OPTIMISTIC, "letter"):
                for tail in (True, False):
                    label = f"{'long tail' if tail else 'balanced'} | {name} | seed {seed}"
                    once(label, by_readout, config, name, tail, seed)
            for name in PROBLEMS:
                for peer in filter(installed, PEERS):
                    label = f"peers | {name} | {peer} | seed {seed}"
                    once(label, beside_peers, config, name, peer, seed)


def _found(file: ResultsFile, begins: str) -> list[Record]:
    return [record for name, record in file.records.items() if name.startswith(begins + " | seed")]


def write_tables(config: Config, file: ResultsFile, path: Path) -> None:
    """Four tables, one below the other."""
    parts = []
    rows = []
    for name in PROBLEMS:
        for peer in PEERS:
            found = _found(file, f"peers | {name} | {peer}")
            if found:
                accuracy = mean_and_deviation([r["accuracy"] for r in found], 100, 2)
                first = np.median([r["seconds"][0] for r in found])
                warm = np.median([r["seconds"][-1] for r in found])
                seconds = [f"{first:.2f}", f"{warm:.2f}"]
                rows.append([name, peer, SETTINGS[peer], accuracy, *seconds])
    headings = ["data", "method", "settings", "accuracy %", "seconds, first", "seconds, warm"]
    parts.append(markdown_table(headings, rows))
    rows = []
    for name in (HONEST, OPTIMISTIC, "fashion-mnist"):
        for order in (*ORDERS, "fit"):
            found = _found(file, f"calibration | {name} | {order}")
            cells = [mean_and_deviation([r[key] for r in found]) for key in ("before", "after")]
            accuracy = mean_and_deviation([r["accuracy"] for r in found], 100, 2)
            power = mean_and_deviation([r["power"] for r in found], 1, 2)
            rows.append([name, order, accuracy, *cells, power])
    headings = ["data", "learned", "accuracy %", "ECE, softmax", "ECE, predict_proba", "power"]
    parts.append(markdown_table(headings, rows))
    rows = []
    for name in (HONEST, OPTIMISTIC, "letter"):
        for readout in READOUTS:
            cells = [
                mean_and_deviation([r[readout] for r in _found(file, f"{kind} | {name}")], 100, 2)
                for kind in ("long tail", "balanced")
            ]
            rows.append([name, readout, *cells])
    headings = ["data", "readout", f"{config.imbalance}:1 balanced accuracy %", "all rows %"]
    parts.append(markdown_table(headings, rows))
    rows = []
    for nodes in (64, 256):
        record = file.records[f"many calls | N = {nodes}"]
        rows.append(
            [
                str(nodes),
                str(record["compilations"]),
                f"{record['largest difference to one fit']:.0e}",
                f"{1e3 * record['seconds a call']:.1f}",
                f"{1e3 * np.mean(record['seconds a refit']):.0f}",
                f"{record['ratio']:.0f}",
            ]
        )
    headings = ["N", "compilations", "difference to fit", "ms a call", "ms a refit", "ratio"]
    parts.append(markdown_table(headings, rows))
    path.write_text("\n".join(parts), encoding="utf-8")


def main(config: Config, out: Path = RESULTS / "estimator") -> None:
    """Measure what is missing, then write results.json and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    write_tables(config, file, out / "table.md")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
