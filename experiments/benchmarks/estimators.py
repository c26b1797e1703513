"""Estimators that learn call by call, beside a PyTorch loop of running sums, in one process.

The command: `python -m experiments.benchmarks.estimators --data FOLDER --out FOLDER`.

- `streams`: rows a second of one pass over classes that come one after another, N = 2000 ReLU nodes
  in double precision, everything compiled before. At "task ends" a readout is wanted after each
  task, at "every call" after each call; wanted means that one row is predicted. The loop has the
  same weights and scaled features: G += D^T D and M += D^T Y, and `torch.linalg.solve` or
  `cholesky_solve` where a readout is wanted.
- `changes`: `merge` and `unlearn` at d = 2066, beside one Gram of the rows concerned.
- `memory`: what a fitted estimator of d = 10,000 holds, in a process of its own.
"""

import argparse
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.benchmarks.machine import describe_machine
from experiments.benchmarks.timing import interleaved, seconds_of
from rvfl_jax import EdRVFLClassifier, class_incremental_stream, merge
from rvfl_jax.data import load_dataset
from rvfl_jax.linalg.products import gram

NODES, RIDGE, SEED = 2000, 1.0, 0
MEGABYTE = 10**6
CADENCES = ("task ends", "every call")


class Rows(NamedTuple):
    """A pass: rows in order, the calls and tasks they come in, and rows to test on."""

    X: np.ndarray
    y: np.ndarray
    per_call: int
    task: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray

    @property
    def num_classes(self) -> int:
        """m."""
        return int(max(self.y.max(), self.y_test.max())) + 1

    def calls(self) -> list[tuple[np.ndarray, np.ndarray, bool]]:
        """X and y of each call, none across tasks, and whether a task ends with it."""
        made = []
        for task in np.unique(self.task):
            rows = np.flatnonzero(self.task == task)
            for start in range(0, len(rows), self.per_call):
                here = rows[start : start + self.per_call]
                made.append((self.X[here], self.y[here], bool(here[-1] == rows[-1])))
        return made


def main() -> None:
    """Measure what was asked for, write estimators.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--data", type=Path, required=True, help="folder of the feature files")
    parser.add_argument("--only", default="", help="of streams, changes and memory, with commas")
    parser.add_argument("--sets", default=",".join(SETS), help="data sets, with commas")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--most-rows", type=int, default=10_000, help="of a pass, at task ends")
    parser.add_argument("--most-calls", type=int, default=25, help="of a pass, at every call")
    parser.add_argument("--watch", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch:
        print(json.dumps(_memory_held()))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "estimators.json"
    result = json.loads(path.read_text()) if path.is_file() else {}
    only = args.only.split(",") if args.only else ["streams", "changes", "memory"]
    if "memory" in only:
        line = [sys.executable, "-m", "experiments.benchmarks.estimators", "--watch"]
        line += ["--out", str(args.out), "--data", str(args.data)]
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
        result["memory"] = json.loads(done.stdout)
        _say(json.dumps(result["memory"]))
    if "changes" in only:
        result["changes"] = _changes(args.repeats)
        _say(json.dumps(result["changes"]))
    for name in args.sets.split(",") if "streams" in only else ():
        for cadence in CADENCES:
            found = _stream(SETS[name](args.data), cadence, args)
            result.setdefault("streams", {})[f"{name}, {cadence}"] = found
            _say(f"{name}, {cadence}: {json.dumps([found['ratios'], found['processor_ratios']])}")
            _write(path, result)
    _write(path, result)


def _write(path: Path, result: dict[str, Any]) -> None:
    path.write_text(json.dumps(result | {"machine": describe_machine()}, indent=1) + "\n")


# --- streams ----------------------------------------------------------------------------------


def _in_tasks(X: Any, y: Any, X_test: Any, y_test: Any, tasks: int, per_call: int) -> Rows:
    """Features scaled by the training rows, classes in an order of their own, task by task."""
    mean, scale = X.mean(axis=0), X.std(axis=0)
    X, X_test = ((Z - mean) / np.where(scale > 0, scale, 1.0) for Z in (X, X_test))
    stream = class_incremental_stream(X, y, num_tasks=tasks, num_batches=tasks, seed=SEED)
    used = np.asarray(stream.weight) > 0
    column_of = {label: c for c, label in enumerate(stream.classes.tolist())}
    task = np.repeat(np.arange(tasks), used.sum(axis=1))
    columns = np.array([column_of[label] for label in y_test.tolist()])
    return Rows(
        np.asarray(stream.X, float)[used],
        np.asarray(stream.y)[used],
        per_call,
        task,
        X_test.astype(float),
        columns,
    )


def _split(X: np.ndarray, y: np.ndarray, tasks: int, per_call: int) -> Rows:
    """A quarter of the rows to test on."""
    from sklearn.model_selection import train_test_split

    X, X_test, y, y_test = train_test_split(X, y, test_size=0.25, stratify=y, random_state=SEED)
    return _in_tasks(X, y, X_test, y_test, tasks, per_call)


def _loaded(name: str, tasks: int) -> Rows:
    data = load_dataset(name)
    X, X_test = (np.asarray(Z, float) for Z in (data.X_train, data.X_test))
    return _in_tasks(X, data.y_train, X_test, data.y_test, tasks, 100)


def _plants(folder: Path) -> Rows:
    with np.load(folder / "plants100.npz", allow_pickle=False) as file:
        X = file["margin"].astype(float)
        return _split(X, file["y"], 10, 12)


def _letter(folder: Path) -> Rows:
    with np.load(folder / "uci.npz", allow_pickle=False) as file:
        return _split(file["letter_x"].astype(float), file["letter_y"], 13, 100)


SETS: dict[str, Callable[[Path], Rows]] = {
    "digits": lambda folder: _loaded("digits", 5),
    "Fashion-MNIST": lambda folder: _loaded("fashion-mnist", 5),
    "CIFAR-100 features": lambda folder: _loaded(
        str(folder / "cifar100_efflite0_pca256_f16.npz"), 10
    ),
    "plants": _plants,
    "letter": _letter,
}


def _thinned(rows: Rows, most: int) -> Rows:
    """The same with at most so many rows, of every task a share."""
    step = len(rows.X) / most
    if step <= 1:
        return rows
    chosen = np.unique((np.arange(most) * step).astype(int))
    return rows._replace(X=rows.X[chosen], y=rows.y[chosen], task=rows.task[chosen])


def _stream(rows: Rows, cadence: str, args: Any) -> dict[str, Any]:
    always = cadence == "every call"
    rows = _thinned(rows, rows.per_call * args.most_calls if always else args.most_rows)
    calls = [(X, y, always or ends) for X, y, ends in rows.calls()]
    contenders = {
        "ours": lambda: _ours(calls, rows.X_test[:1]),
        "torch, solve": lambda: _torch(calls, rows, "solve"),
        "torch, Cholesky": lambda: _torch(calls, rows, "cholesky"),
    }
    if len(rows.X) <= 2_000 and not always:
        contenders["RidgeClassifier refitted"] = lambda: _refitted(calls, rows)
    busy: dict[str, list[float]] = {name: [] for name in contenders}
    timed = {name: partial(_counted, call, busy[name]) for name, call in contenders.items()}
    seconds, first, results = interleaved(timed, args.repeats, _say)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    # Of the repeats, whatever else the machine does; a thread that waits by spinning counts.
    worked = {name: float(np.median(values[1:])) for name, values in busy.items()}
    return {
        "rows": len(rows.X),
        "calls": len(calls),
        "readouts": int(sum(wanted for *_, wanted in calls)),
        "width": NODES + rows.X.shape[1] + 1,
        "classes": rows.num_classes,
        "seconds": seconds,
        "first_seconds": first,
        "rows_per_second": {name: len(rows.X) / value for name, value in medians.items()},
        "processor_seconds": {name: values[1:] for name, values in busy.items()},
        "ratios": {name: medians[name] / medians["ours"] for name in medians},
        "processor_ratios": {name: worked[name] / worked["ours"] for name in worked},
        "accuracy": {
            "ours": float(np.mean(results["ours"].predict(rows.X_test) == rows.y_test)),
            "torch": float(np.mean(_torch_guess(results["torch, solve"], rows) == rows.y_test)),
        },
    }


def _counted(call: Callable[[], Any], busy: list[float]) -> Any:
    """The call's result; its processor seconds are appended."""
    start = time.process_time()
    result = jax.block_until_ready(call())
    busy.append(time.process_time() - start)
    return result


def _model(**options: Any) -> EdRVFLClassifier:
    return EdRVFLClassifier(1, NODES, ridge=RIDGE, random_state=SEED, **options)


def _ours(calls: list[Any], row: np.ndarray) -> EdRVFLClassifier:
    model = _model()
    for X, y, wanted in calls:
        model.partial_fit(X, y)
        if wanted:
            model.predict(row)
    return model


def _weights(num_features: int) -> np.ndarray:
    """(s + 1, N), those that the estimator draws."""
    one = _model().partial_fit(np.zeros((1, num_features)), [0])
    return np.asarray(one._fitted.weights.first)


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.hstack([X, np.ones((len(X), 1))])


_DRAWN: dict[int, Any] = {}


def _torch_features(X: np.ndarray) -> Any:
    import torch

    if X.shape[1] not in _DRAWN:
        _DRAWN[X.shape[1]] = torch.from_numpy(_weights(X.shape[1]).copy())
    Z = torch.from_numpy(_with_ones(X))
    return torch.cat([torch.relu(Z @ _DRAWN[X.shape[1]]), Z], dim=1)


def _torch(calls: list[Any], rows: Rows, solver: str) -> Any:
    import torch

    width = NODES + rows.X.shape[1] + 1
    G = torch.zeros(width, width, dtype=torch.float64)
    M = torch.zeros(width, rows.num_classes, dtype=torch.float64)
    eye, one_hot = torch.eye(width, dtype=torch.float64), np.eye(rows.num_classes)
    theta = M
    for X, y, wanted in calls:
        D = _torch_features(X)
        G += D.T @ D
        M += D.T @ torch.from_numpy(one_hot[y])
        if wanted:
            A = G + RIDGE * eye
            if solver == "solve":
                theta = torch.linalg.solve(A, M)
            else:
                theta = torch.cholesky_solve(M, torch.linalg.cholesky(A))
            (_torch_features(rows.X_test[:1]) @ theta).argmax()
    return theta


def _torch_guess(theta: Any, rows: Rows) -> np.ndarray:
    guessed: np.ndarray = (_torch_features(rows.X_test) @ theta).argmax(dim=1).numpy()
    return guessed


def _refitted(calls: list[Any], rows: Rows) -> Any:
    from sklearn.linear_model import RidgeClassifier

    parts, labels, model = [], [], None
    for X, y, wanted in calls:
        parts.append(_torch_features(X).numpy())
        labels.append(y)
        if wanted:
            model = RidgeClassifier(alpha=RIDGE).fit(np.concatenate(parts), np.concatenate(labels))
            model.predict(_torch_features(rows.X_test[:1]).numpy())
    return model


# --- changes and memory -----------------------------------------------------------------------


def _changes(repeats: int, rows: int = 1000) -> dict[str, Any]:
    """Seconds of merging and unlearning, and of one Gram of the rows that go."""
    width = NODES + 66
    rng = np.random.default_rng(SEED)
    X, y = rng.standard_normal((5 * rows, 65)), rng.integers(0, 10, 5 * rows)
    a, b = _model().partial_fit(X[rows:], y[rows:]), _model().partial_fit(X[:rows], y[:rows])
    gone = X[:rows], y[:rows]
    both = merge(a, b)
    with jax.enable_x64(True):
        D = jax.numpy.asarray(rng.standard_normal((rows, width)))
        half = jax.jit(gram)

        def merged() -> Any:
            return jax.block_until_ready(merge(a, b)._fitted.learned.sums)

        def unlearned() -> Any:
            model = merge(a, b)
            start = time.perf_counter()
            jax.block_until_ready(model.unlearn(*gone)._fitted.learned.sums)
            alone.append(time.perf_counter() - start)

        alone: list[float] = []
        seconds, _, _ = interleaved(
            {"gram": lambda: half(D), "merge": merged, "merge and unlearn": unlearned},
            repeats,
            _say,
        )
    seconds["unlearn"] = alone[1:]
    del both
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    return {"rows": rows, "width": width, "seconds": seconds, "median_seconds": medians}


def _memory_held() -> dict[str, float]:
    """Megabytes of a fitted one-layer estimator of d = 10,000 at rest."""
    features, width = 255, 10_000
    rng = np.random.default_rng(SEED)
    X, y = rng.standard_normal((1000, features)), rng.integers(0, 10, 1000)

    def learned() -> tuple[EdRVFLClassifier, float, float]:
        """A model, and the seconds to learn and to ask."""
        model, learning = EdRVFLClassifier(1, width - features - 1, random_state=SEED), 0.0
        for part in (slice(0, 400), slice(400, 1000)):
            learning += seconds_of(partial(model.partial_fit, X[part], y[part]))[0]
        return model, learning, seconds_of(lambda: model.predict(X[:1]))[0]

    # What is compiled stays, and is no part of a model.
    learned()
    before = _anonymous()
    model, learning, asked = learned()
    held = _anonymous() - before
    kept = [model._fitted, list(model._cache._held.values()), model._cache.asked]
    arrays = {id(leaf): leaf for leaf in jax.tree.leaves(kept) if hasattr(leaf, "nbytes")}
    square = [leaf for leaf in arrays.values() if np.size(leaf) >= width * width // 2]
    return {
        "megabytes": held,
        "megabytes_of_arrays": sum(leaf.nbytes for leaf in arrays.values()) / MEGABYTE,
        "square_arrays": len(square),
        "seconds_to_learn": learning,
        "seconds_to_ask": asked,
    }


def _anonymous() -> float:
    """Megabytes of this process beside the pages of files, once what is free was given back."""
    import ctypes

    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    raise OSError("expected RssAnon in /proc/self/status, got none; this needs Linux")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
