"""Calls of 1, 7 and 300 rows to exported models once these are warm, and how long any of them took.

The command: `python -m experiments.benchmarks.serving --out experiments/benchmarks/results`.

Every round calls each format with each number of rows once, in another order, so that sizes change
from call to call as they do in a server, which waits for the next one in between. A product of
matrices in NumPy, on one thread and of fixed size, is called among them: what it takes beyond its
median is the machine's doing. Each call has three numbers: seconds of the wall, seconds of the
processor in all threads of the process (which the system counts in steps of some ms), and seconds
in which Python looked for garbage, which what was imported is exempt from, as a server should have
it. Each round notes how many processes and threads of the machine wanted a core when it began; it
is quiet where these were no more than there are cores. Figures are over all rounds and over those.
"""

import argparse
import gc
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import onnxruntime
from threadpoolctl import threadpool_limits

from experiments.benchmarks.machine import describe_machine
from rvfl_jax import EdRVFLClassifier, Predictor, export_model

ROWS = (1, 7, 300)
STALL = 0.02
PAUSE = 0.01
# Features, classes, hidden nodes of each of two sub-learners, and in how many of the rounds.
SIZES = {"small": ((64, 10, 256), 1.0), "large": ((256, 100, 512), 0.1)}
CONTROL = "NumPy product"


def main() -> None:
    """Export, warm up, call, write serving.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--rounds", type=int, default=1000, help="calls of each kind")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    load = os.getloadavg()[0]
    cases = {}
    for name, (size, share) in SIZES.items():
        with tempfile.TemporaryDirectory() as folder:
            cases[name] = _case(Path(folder), size, int(share * args.rounds))
        for kind, told in cases[name]["calls"].items():
            print(name, kind, {n: v for n, v in told.items() if n not in _RAW}, file=sys.stderr)
    machine = describe_machine() | {"onnxruntime": onnxruntime.__version__, "load_at_start": load}
    result = {"rounds": args.rounds, "stall_ms": 1e3 * STALL, "cases": cases, "machine": machine}
    (args.out / "serving.json").write_text(json.dumps(result) + "\n")


def _case(folder: Path, size: tuple[int, int, int], rounds: int) -> dict[str, Any]:
    features, classes, nodes = size
    rng = np.random.default_rng(0)
    y = rng.integers(0, classes, 4000)
    X = rng.normal(size=(classes, features))[y] + rng.normal(size=(len(y), features))
    model = EdRVFLClassifier(num_nodes=nodes, random_state=0).fit(X, y)
    export_model(model, folder / "model.npz")
    export_model(model, folder / "model.onnx")
    formats = _formats(folder)
    parts = {rows: X[:rows] for rows in ROWS}
    told = {name: [answer(part) for part in parts.values()] for name, answer in formats.items()}
    A = rng.normal(size=(256, 256))
    calls: dict[str, Callable[[], Any]] = {CONTROL: lambda: A @ A}
    for name, answer in formats.items():
        for rows, part in parts.items():
            calls[f"{name}, {rows} rows"] = lambda answer=answer, part=part: answer(part)
    compiled: list[str] = []

    def listen(event: str, seconds: float, **_: Any) -> None:
        if event.endswith("backend_compile_duration"):
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    with threadpool_limits(1, "blas"):
        taken, wanted = _taken(calls, rounds)
    jax.monitoring.unregister_event_duration_listener(listen)
    first = told.pop("jax.export")
    return {
        "features_classes_nodes": size,
        "compiled_while_called": len(compiled),
        "apart_from_jax_export": {
            name: max(float(np.abs(a - b).max()) for a, b in zip(first, some, strict=True))
            for name, some in told.items()
        },
        "wanted_a_core": wanted,
        "calls": {name: _summary(np.array(each), wanted) for name, each in taken.items()},
    }


def _formats(folder: Path) -> dict[str, Callable[[np.ndarray], np.ndarray]]:
    """Each format, warm: (n, s) rows to (n, classes) probabilities."""
    predictor = Predictor(folder / "model.npz").warm_up(max(ROWS))
    formats: dict[str, Callable[[np.ndarray], np.ndarray]] = {"jax.export": predictor.predict_proba}
    for name, threads in (("onnx", 0), ("onnx, one thread", 1)):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        session = onnxruntime.InferenceSession(folder / "model.onnx", options)
        formats[name] = lambda X, session=session: session.run(["probabilities"], {"X": X})[0]
    return formats


def _taken(
    calls: dict[str, Callable[[], Any]], rounds: int
) -> tuple[dict[str, list[tuple[float, float, float]]], list[int]]:
    """Seconds of the wall, the processor and garbage of every call; who wanted a core by round."""
    rng, names, wanted = np.random.default_rng(1), list(calls), []
    taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in names}
    for call in calls.values():
        call()
    gc.collect()
    gc.freeze()
    searched = [0.0, 0.0]

    def listen(phase: str, _: Any) -> None:
        if phase == "start":
            searched[0] = time.perf_counter()
        else:
            searched[1] += time.perf_counter() - searched[0]

    gc.callbacks.append(listen)
    for _ in range(rounds):
        wanted.append(_wanting_a_core())
        for at in rng.permutation(len(names)):
            time.sleep(PAUSE)
            searched[1] = 0.0
            used, begun = time.process_time(), time.perf_counter()
            calls[names[at]]()
            wall, cpu = time.perf_counter() - begun, time.process_time() - used
            taken[names[at]].append((wall, cpu, searched[1]))
    gc.callbacks.remove(listen)
    gc.unfreeze()
    return taken, wanted


def _wanting_a_core() -> int:
    """Processes and threads that run or could, this one among them."""
    return int(Path("/proc/loadavg").read_text().split()[3].partition("/")[0])


_RAW = ("wall_us", "cpu_us", "garbage_us")


def _summary(numbers: np.ndarray, wanted: list[int]) -> dict[str, Any]:
    wall, cpu, garbage = numbers.T
    quiet = wall[np.array(wanted) <= (os.cpu_count() or 1)]
    return {
        "all": _figures(wall),
        "quiet": _figures(quiet) if len(quiet) else {"calls": 0},
        "max_cpu_ms": round(1e3 * float(cpu.max()), 3),
        "max_garbage_ms": round(1e3 * float(garbage.max()), 3),
        **{
            name: np.rint(1e6 * each).astype(int).tolist()
            for name, each in zip(_RAW, (wall, cpu, garbage), strict=True)
        },
    }


def _figures(wall: np.ndarray) -> dict[str, Any]:
    median = float(np.median(wall))
    return {
        "calls": len(wall),
        "median_ms": round(1e3 * median, 3),
        "p99_ms": round(1e3 * float(np.quantile(wall, 0.99)), 3),
        "max_ms": round(1e3 * float(wall.max()), 3),
        "above_20_ms": int((wall > STALL).sum()),
        # Large products take their time in every call; a stall is what one takes beyond that.
        "stalls": int((wall - median > STALL).sum()),
    }


if __name__ == "__main__":
    main()
