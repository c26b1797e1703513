"""A stream read from a file against the same in memory: how much memory, how many rows a second.

The command: `python -m experiments.benchmarks.out_of_core --out experiments/benchmarks/results`.

A file of 2 GB of float32 features is learned through a memory map by a process of its own, which
watches what it holds beside the pages of files (RssAnon of Linux). Then both ways run in turns in
another process, after a warm-up of each.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np

import rvfl_jax
from experiments.benchmarks.machine import describe_machine
from experiments.benchmarks.timing import interleaved
from rvfl_jax import Run, Stream

FEATURES, CLASSES, BATCH = 512, 10, 2048
GIGABYTE = 10**9
LEARNER = rvfl_jax.edrvfl(num_layers=1, num_nodes=128, ridge=1.0, k=0.0)


def main() -> None:
    """Make the file, measure, write out_of_core.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--gigabytes", type=float, default=2.0, help="size of the file")
    parser.add_argument("--repeats", type=int, default=2, help="rounds that count")
    parser.add_argument("--watch", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.watch is not None:
        print(json.dumps(_watched(args.watch)))
        return
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "features.npy"
        rows = _write(path, args.gigabytes)
        line = [sys.executable, "-m", "experiments.benchmarks.out_of_core"]
        line += ["--out", str(args.out), "--watch", str(path)]
        _say("learning from the file, memory watched")
        done = subprocess.run(line, stdout=subprocess.PIPE, text=True, check=True)
        memory = json.loads(done.stdout)
        _say(json.dumps(memory))
        seconds, equal = _raced(path, args.repeats)
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    result = {
        "file_bytes": rows * FEATURES * 4,
        "rows": rows,
        "batch_rows": BATCH,
        "memory": memory,
        "seconds": seconds,
        "rows_per_second": {name: rows / value for name, value in medians.items()},
        "throughput_ratio": medians["in memory"] / medians["from the file"],
        "same_bits": equal,
        "machine": describe_machine(),
    }
    (args.out / "out_of_core.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({**result, "machine": None}, indent=1))


def _write(path: Path, gigabytes: float) -> int:
    """Blobs, written piece by piece; rows are cut to whole batches."""
    rows = int(gigabytes * GIGABYTE / (4 * FEATURES)) // BATCH * BATCH
    shape = (rows, FEATURES)
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    rng = np.random.default_rng(0)
    centres = rng.normal(size=(CLASSES, FEATURES)).astype(np.float32) / 8
    for start in range(0, rows, 16 * BATCH):
        y = _labels(rows)[start : start + 16 * BATCH]
        noise = rng.standard_normal((len(y), FEATURES), dtype=np.float32)
        file[start : start + len(y)] = centres[y] + noise / 8
    file.flush()
    return rows


def _labels(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, CLASSES, rows)


def _from_file(path: Path) -> Run:
    X = np.load(path, mmap_mode="r")
    y = _labels(len(X))

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for start in range(0, len(X), BATCH):
            yield X[start : start + BATCH], y[start : start + BATCH]

    options = {"key": jax.random.key(0), "classes": range(CLASSES), "evaluate": "never"}
    return rvfl_jax.run_stream(LEARNER, batches(), **options)


def _in_memory(stream: Stream) -> Run:
    return rvfl_jax.run_stream(LEARNER, stream, key=jax.random.key(0), evaluate="never")


def _watched(path: Path) -> dict[str, float]:
    """Megabytes held beside pages of files: before, and at most while learning."""
    before, peak, over = _anonymous(), 0.0, threading.Event()

    def watch() -> None:
        nonlocal peak
        while not over.wait(0.01):
            peak = max(peak, _anonymous())

    thread = threading.Thread(target=watch)
    thread.start()
    begun = time.perf_counter()
    run = _from_file(path)
    seconds = time.perf_counter() - begun
    over.set()
    thread.join()
    return {
        "megabytes_before": before,
        "megabytes_at_most": peak,
        "seconds": seconds,
        "batches": len(run.history.rows),
    }


def _anonymous() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) / 1000
    raise OSError("expected RssAnon in /proc/self/status, got none; this needs Linux")


def _raced(path: Path, repeats: int) -> tuple[dict[str, list[float]], bool]:
    X = np.array(np.load(path, mmap_mode="r")).reshape(-1, BATCH, FEATURES)
    T = len(X)
    y = _labels(T * BATCH).astype(np.int32).reshape(T, BATCH)
    tasks = np.zeros(T, np.int32), np.zeros(CLASSES, np.int32)
    stream = Stream(X, y, np.ones(y.shape, np.float32), np.arange(CLASSES), *tasks)
    calls = {"in memory": lambda: _in_memory(stream), "from the file": lambda: _from_file(path)}
    seconds, _, results = interleaved(calls, repeats, _say)
    states = [jax.tree.leaves(results[name].state) for name in calls]
    equal = all(np.array_equal(*pair) for pair in zip(*states, strict=True))
    return seconds, equal


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
