"""One readout by two workers of Ray against `fit` on one machine, with a worker killed on the way.

The command: `python -m experiments.benchmarks.many_machines --out experiments/benchmarks/results`
(`pip install ray[data]`).

Blobs in equal blocks. Four jobs with two workers each: plain; with a worker that is killed
(SIGKILL) in the middle of a partition; with a partition sent twice; and stopped half way, then
gone on with, which merges in another order.
Each is compared with `fit` on all rows at once, and with the plain job to the last bit.
"""

import argparse
import json
import os
import signal
import tempfile
import time
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.machine import describe_machine
from rvfl_jax import EdRVFLClassifier, Sums
from rvfl_jax.distributed import sum_ray

ROWS, FEATURES, CLASSES, BLOCKS, WORKERS = 200_000, 256, 20, 50, 2
MODEL = {"num_layers": 2, "num_nodes": 256, "ridge": 1.0, "random_state": 0}
# With tokens Ray leaves one in the home of the user.
os.environ.setdefault("RAY_AUTH_MODE", "disabled")


def main() -> None:
    """Measure, write many_machines.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--rows", type=int, default=ROWS, help="rows of the table")
    parser.add_argument("--nodes", type=int, default=MODEL["num_nodes"], help="hidden nodes")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    result = measured(args.rows, MODEL | {"num_nodes": args.nodes})
    (args.out / "many_machines.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({name: result[name] for name in ("one_machine", "jobs")}, indent=1))


def measured(rows: int, options: Mapping[str, Any]) -> dict[str, Any]:
    """All jobs against one machine's `fit`; starts a Ray of its own, and ends it."""
    X, y = _blobs(rows)
    model = EdRVFLClassifier(**options)
    start = time.perf_counter()
    one = EdRVFLClassifier(**options).fit(X, y)
    alone = time.perf_counter() - start
    # What the jobs do, too: `fit` of a classifier takes a second pass for its probabilities.
    start = time.perf_counter()
    Sums.zero(model).add(X, y).finish()
    summed = time.perf_counter() - start
    theta = _theta(one)
    with tempfile.TemporaryDirectory() as folder:
        jobs = _jobs(model, X, y, Path(folder))
    plain = jobs["plain"].pop("sums")
    told = {"plain": jobs.pop("plain") | _against(plain, theta)}
    for name, job in jobs.items():
        sums = job.pop("sums")
        told[name] = job | _against(sums, theta) | {"bits_of_plain": _same(sums, plain)}
    return {
        "rows": rows,
        "features": FEATURES,
        "classes": CLASSES,
        "blocks": BLOCKS,
        "workers": WORKERS,
        "model": dict(options),
        "one_machine": {"seconds": alone, "seconds_without_calibration": summed},
        "jobs": told,
        "machine": describe_machine(),
    }


def _jobs(model: Any, X: np.ndarray, y: np.ndarray, folder: Path) -> dict[str, Any]:
    import ray

    start = time.perf_counter()
    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False)
    begun = time.perf_counter() - start
    try:
        ray.data.DataContext.get_current().enable_progress_bars = False
        blocks = [_table(X[rows], y[rows]) for rows in np.array_split(np.arange(len(X)), BLOCKS)]
        marker = folder / "killed"
        jobs = {"plain": _job(model, blocks) | {"seconds_to_start_ray": begun}}
        jobs["worker killed"] = _job(model, blocks, embed=_Deadly(marker))
        jobs["worker killed"]["killed_process"] = int(marker.read_text())
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            jobs["partition twice"] = _job(model, [*blocks, blocks[BLOCKS // 2]])
        jobs["partition twice"]["warning"] = [
            str(each.message) for each in caught if "counted once" in str(each.message)
        ]
        half = _job(model, blocks[: BLOCKS // 2])["sums"]
        half.save(folder / "half.npz")
        jobs["gone on"] = _job(model, blocks, start=Sums.load(folder / "half.npz"))
    finally:
        ray.shutdown()
    return jobs


def _job(model: Any, blocks: list[Any], **options: Any) -> dict[str, Any]:
    import ray

    dataset = ray.data.from_arrow(blocks)
    start = time.perf_counter()
    sums = sum_ray(dataset, model, "label", **options)
    summed = time.perf_counter()
    sums.finish()
    done = time.perf_counter()
    return {"sums": sums, "seconds": done - start, "seconds_to_finish": done - summed}


class _Deadly:
    """Features as they are, from a worker that is killed at its first partition."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __call__(self, columns: Mapping[str, np.ndarray]) -> np.ndarray:
        try:
            with self.marker.open("x") as file:
                file.write(str(os.getpid()))
        except FileExistsError:
            return np.column_stack([columns[f"x{i}"] for i in range(FEATURES)])
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("expected to be dead")


def _against(sums: Sums, theta: Mapping[Any, np.ndarray]) -> dict[str, Any]:
    """How far the readout is from one machine's, relative to its largest number."""
    found = _theta(sums.finish())
    far = max(np.abs(found[label] - theta[label]).max() for label in theta)
    largest = max(np.abs(column).max() for column in theta.values())
    return {
        "rows_counted": sums.rows,
        "partitions": len(sums.ledger),
        "largest_relative_difference": float(far / largest),
    }


def _theta(model: Any) -> dict[Any, np.ndarray]:
    """The readout by label."""
    theta = np.asarray(model._solved("ridge").theta)
    return {label: theta[..., c] for c, label in enumerate(model._fitted.labels.labels)}


def _same(a: Sums, b: Sums) -> bool:
    return np.array_equal(a.gram, b.gram) and all(
        np.array_equal(a.moments[label], b.moments[label]) for label in b.moments
    )


def _blobs(rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Float32, as embeddings come; the first blocks lack half of the labels."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, rows)
    y[: rows // 5] %= CLASSES // 2
    centres = rng.normal(size=(CLASSES, FEATURES), scale=0.3).astype(np.float32)
    return centres[y] + rng.normal(size=(rows, FEATURES)).astype(np.float32), y


def _table(X: np.ndarray, y: np.ndarray) -> Any:
    import pyarrow

    return pyarrow.table({f"x{i}": X[:, i] for i in range(FEATURES)} | {"label": y})


if __name__ == "__main__":
    main()
