"""Streams that are hard on numbers: nearly dependent features, and a million rows."""

import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.contenders import numpy_features
from experiments.benchmarks.problem import FORWARD_K, SEED, equal_classes, network_weights
from rvfl_jax import Stream, class_incremental_stream, edrvfl, offline_scores, run_stream
from rvfl_jax.data import load_dataset

Record = dict[str, Any]
Progress = Callable[[str], None]


def measure_ill_conditioned(settings: Mapping[str, Any], repeats: int, say: Progress) -> Record:
    """Bar 4: accuracy of each precision and form beside that of the float64 offline solution."""
    del repeats
    data = load_dataset(settings["dataset"])
    rows = equal_classes(data.y_train, settings["rows_of_class"])
    say("features")
    encode = sparse_features(data.X_train[rows], settings)
    test = encode(data.X_test), data.y_test
    stream = class_incremental_stream(
        encode(data.X_train[rows]),
        data.y_train[rows],
        num_tasks=len(np.unique(data.y_train)),
        num_batches=len(rows) // settings["b"],
        seed=SEED,
        order="none",
    )
    key = jax.random.key(SEED)
    make = partial(
        edrvfl,
        num_layers=1,
        num_nodes=settings["num_nodes"],
        ridge=settings["ridge"],
        k=0.0,
        weight_init=settings["weight_init"],
    )
    scores = offline_scores(make(), stream, test[0], key=key)
    columns = np.searchsorted(stream.classes, test[1])
    offline = float(np.mean(scores[0].argmax(axis=1) == columns))
    contenders: Record = {"offline_double": {"accuracy": offline}}
    forms = (
        ("double", "auto"),
        ("single", "square_root"),
        ("single", "covariance"),
        ("single", "information"),
    )
    for precision, solver in forms:
        say(f"{solver}, {precision}")
        start = time.perf_counter()
        history = run_stream(
            make(solver=solver),
            stream,
            key=key,
            test=test,
            evaluate="task",
            expert=None,
            precision=precision,
            on_failure="return",
        ).history
        accuracy = float(history.accuracy["class_incremental"][-1])
        unhealthy = np.flatnonzero(~history.healthy.all(axis=1))
        contenders[f"{solver}_{precision}"] = {
            "steps": len(stream.X),
            "seconds": [time.perf_counter() - start],
            "precision": precision,
            "accuracy": accuracy,
            "points_off_offline": 100 * abs(accuracy - offline),
            "first_unhealthy_batch": int(unhealthy[0]) if len(unhealthy) else None,
            "condition": float(history.condition[-1, 0]),
            "residual": float(history.residual[-1, 0]),
        }
    return {"contenders": contenders, "skipped": {}}


def sparse_features(X_fit: np.ndarray, settings: Mapping[str, Any]) -> Callable[..., np.ndarray]:
    """The map of a broad learning system, fitted on inputs without labels and then frozen.

    Rows are standardised; N2 windows of N1 features are l1-regularised reconstruction weights
    of random projections, scaled to [0, 1]; N3 more are tanh of a random orthonormal
    projection of the windows. The windows are nearly dependent, the rest is smooth in them.
    """
    rng = np.random.default_rng(SEED)
    inputs = _standardised(X_fit)
    windows, bounds = [], []
    for _ in range(settings["windows"]):
        projection = rng.uniform(-1, 1, (inputs.shape[1], settings["window_width"]))
        weights = _sparse_reconstruction(inputs @ projection, inputs).T
        raw = inputs @ weights
        windows.append(weights)
        bounds.append((raw.min(axis=0), np.ptp(raw, axis=0) + 1e-12))
    width = settings["windows"] * settings["window_width"]
    draw = rng.standard_normal((settings["enhancement_nodes"], width + 1))
    directions = np.linalg.qr(draw)[0].T

    def encode(X: np.ndarray) -> np.ndarray:
        rows = _standardised(X)
        Z = [
            (rows @ weights - low) / span
            for weights, (low, span) in zip(windows, bounds, strict=True)
        ]
        Z = np.concatenate(Z, axis=1)
        smooth = np.tanh(np.concatenate([Z, np.full((len(Z), 1), 0.1)], axis=1) @ directions)
        return np.concatenate([Z, smooth], axis=1).astype(np.float32)

    return encode


def _standardised(X: np.ndarray) -> np.ndarray:
    rows = np.asarray(X, dtype=float)
    rows = (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
    return np.concatenate([rows, np.full((len(rows), 1), 0.1)], axis=1)


def _sparse_reconstruction(A: np.ndarray, X: np.ndarray, l1: float = 1e-3) -> np.ndarray:
    """argmin_w ||A w - X||^2 / 2 + l1 |w| by 50 steps of ADMM."""
    inverse = np.linalg.inv(A.T @ A + np.eye(A.shape[1]))
    moment = A.T @ X
    z = dual = np.zeros_like(moment)
    for _ in range(50):
        w = inverse @ (moment + z - dual)
        z = np.sign(w + dual) * np.maximum(np.abs(w + dual) - l1, 0.0)
        dual = dual + w - z
    return z


def measure_long_stream(settings: Mapping[str, Any], repeats: int, say: Progress) -> Record:
    """Bar 5: a memory-mapped stream, the memory it takes, and how far theta drifts."""
    del repeats
    contenders = {}
    s, b, m = settings["num_features"], settings["b"], settings["m"]
    W = network_weights(s, settings["num_nodes"], 1)
    learner = edrvfl(num_layers=1, num_nodes=settings["num_nodes"], ridge=1.0, k=FORWARD_K)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.npy"
        for T in settings["batches"]:
            say(f"{T} batches, writing")
            y = _write_rows(path, T, b, s, m)
            X = np.load(path, mmap_mode="r")
            column = np.arange(m, dtype=np.int32)
            stream = Stream(
                X, y, np.ones(y.shape, np.float32), column, np.zeros(T, np.int32), 0 * column
            )
            say(f"{T} batches, learning")
            start = time.perf_counter()
            with _peak_memory() as peak:
                run = run_stream(
                    learner,
                    stream,
                    key=jax.random.key(SEED),
                    evaluate="never",
                    expert=None,
                    chunk_size=settings["chunk_size"],
                )
            seconds = time.perf_counter() - start
            say(f"{T} batches, offline solution")
            want = _offline_theta(W, X, y, m)
            got = np.asarray(run.state.theta[0])
            contenders[f"T{T}"] = {
                "steps": T,
                "seconds": [seconds],
                "rows": T * b,
                "precision": "double",
                "file_mb": path.stat().st_size / 1e6,
                "peak_memory_mb": peak[0],
                "relative_drift": float(np.abs(got - want).max() / np.abs(want).max()),
                "residual": float(run.history.residual[-1, 0]),
            }
    return {"contenders": contenders, "skipped": {}}


def _write_rows(path: Path, T: int, b: int, s: int, m: int) -> np.ndarray:
    rng = np.random.default_rng(SEED)
    teacher = rng.standard_normal((s, m), np.float32)
    X = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(T, b, s))
    y = np.empty((T, b), np.int32)
    for t in range(T):
        X[t] = rng.standard_normal((b, s), np.float32) / np.float32(np.sqrt(s))
        y[t] = (X[t] @ teacher).argmax(axis=1)
    X.flush()
    return y


def _offline_theta(W: np.ndarray, X: np.ndarray, y: np.ndarray, m: int) -> np.ndarray:
    """(lambda I + D^T D)^-1 D^T Y in float64, by sums over a few thousand rows at a time."""
    d = W.shape[1]
    gram, moment = np.eye(d), np.zeros((d, m))
    for start in range(0, len(X), 50):
        rows = X[start : start + 50].reshape(-1, X.shape[-1]).astype(np.float64)
        D = numpy_features(W.astype(np.float64), rows)[0]
        gram += D.T @ D
        moment += D.T @ np.eye(m)[y[start : start + 50].reshape(-1)]
    return np.linalg.solve(gram, moment)


@contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """How far the process's own memory, without mapped files, rose above what it was; MB.

    The figure is there once the block is left; NaN where the system does not tell.
    """
    peak, done = [float("nan")], threading.Event()
    before = _own_memory()
    samples = [before]

    def watch() -> None:
        while not done.wait(0.01):
            samples.append(_own_memory())

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield peak
    finally:
        done.set()
        thread.join()
        peak[0] = max(samples) - before


def _own_memory() -> float:
    status = Path("/proc/self/status")
    if status.is_file():
        for line in status.read_text().splitlines():
            if line.startswith("RssAnon"):
                return int(line.split()[1]) / 1e3
    return float("nan")
