"""All experiments from nothing, two at a time: `python -m experiments.everything --out FOLDER`.

Each is its own command in a process of its own on a core of its own, the longest first, with its
results in FOLDER/NAME and what it says in FOLDER/NAME.log. FOLDER/clock.json tells the seconds of
each; what it tells of is not run again, so that a run that was cut off goes on with the rest.
`--seeds N` takes fewer seeds than are kept, for a look, and tells how long all of them take at
most: what is done once for all seeds, compiling among it, is counted for every seed there.

`experiments.compared`, whose tables have budgets of their own, and `experiments.train_resnet`,
which needs images, are left out.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from datetime import date
from importlib import import_module
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import tyro

from experiments.benchmarks.machine import processor
from experiments.results_file import Record

# The longest first, by the report's minutes, so that no core ends with one.
EXPERIMENTS = (
    *("cifar100", "beyond", "fashion_mnist_table", "fashion_mnist_curves", "estimator"),
    *("claims", "readings", "tuning", "feature_maps", "plant_margin", "vit_table"),
    *("unknown", "several_labels", "drift"),
)


class Clock:
    """FOLDER/clock.json: of each experiment that ended the seconds, seeds, date and processor."""

    def __init__(self, folder: Path):
        self.path = folder / "clock.json"
        self.times: Record = {}
        if self.path.is_file():
            self.times = json.loads(self.path.read_text(encoding="utf-8"))

    def write(self, name: str, seconds: float, seeds: int, kept_seeds: int) -> None:
        """An experiment ended."""
        self.times[name] = {
            "seconds": round(seconds, 1),
            "seeds": seeds,
            "kept seeds": kept_seeds,
            "date": date.today().isoformat(),
            "processor": processor(),
        }
        self.path.write_text(json.dumps(self.times, indent=1) + "\n", encoding="utf-8")

    def hours(self, lanes: int) -> float:
        """Of all that ended, with all seeds, in so many lanes, the longest first."""
        found = [one["seconds"] * one["kept seeds"] / one["seeds"] for one in self.times.values()]
        return makespan(found, lanes) / 3600


def makespan(durations: Sequence[float], lanes: int) -> float:
    """Until the last one ends, each begun, the longest first, in the lane that is free first."""
    ends = [0.0] * lanes
    for one in sorted(durations, reverse=True):
        ends[ends.index(min(ends))] += one
    return max(ends)


def kept_seeds(name: str) -> int:
    """As many as the experiment takes when nobody says otherwise."""
    return int(import_module(f"experiments.{name}").Config().seeds)


@contextmanager
def a_core(free: SimpleQueue[int]) -> Iterator[int]:
    """One of the free cores, for as long as it is needed."""
    core = free.get()
    try:
        yield core
    finally:
        free.put(core)


def timed(name: str, seeds: int, out: Path, core: int) -> float:
    """Seconds that it took on that core; RuntimeError with its last lines if it failed."""
    command = [sys.executable, "-m", f"experiments.{name}", "--config.seeds", str(seeds)]
    log = out / f"{name}.log"
    start = time.perf_counter()
    with log.open("w", encoding="utf-8") as said:
        process = subprocess.Popen(
            [*command, "--out", str(out / name)], stdout=said, stderr=subprocess.STDOUT
        )
        try:
            if hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(process.pid, {core})
            status = process.wait()
        except BaseException:
            process.kill()
            raise
    if status:
        last = "\n".join(log.read_text(encoding="utf-8").splitlines()[-5:])
        raise RuntimeError(f"{name} ended with status {status}; {log} ends:\n{last}")
    return time.perf_counter() - start


def cores(lanes: int) -> list[int]:
    """One a lane, in turn where there are fewer."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    return [usable[lane % len(usable)] for lane in range(lanes)]


def run_all(names: Sequence[str], seeds: int | None, out: Path, lanes: int) -> Clock:
    """Run what the clock does not tell of; what fails is told when the rest has ended."""
    out.mkdir(parents=True, exist_ok=True)
    clock, free = Clock(out), SimpleQueue[int]()
    for core in cores(lanes):
        free.put(core)

    def one(name: str) -> tuple[str, float, int, int]:
        most = kept_seeds(name)
        some = min(seeds or most, most)
        with a_core(free) as core:
            print(f"{name}: begins, {some} of {most} seeds", file=sys.stderr, flush=True)
            return name, timed(name, some, out, core), some, most

    failed: list[Any] = []
    with ThreadPoolExecutor(lanes) as pool:
        for job in as_completed([pool.submit(one, n) for n in names if n not in clock.times]):
            if error := job.exception():
                failed.append(error)
                print(error, file=sys.stderr, flush=True)
                continue
            clock.write(*job.result())
            name, seconds = job.result()[:2]
            print(f"{name}: {seconds / 60:.1f} minutes", file=sys.stderr, flush=True)
    if failed:
        raise RuntimeError(f"{len(failed)} of {len(names)} experiments failed: {failed[0]}")
    return clock


def main(
    out: Path,
    experiments: str = ",".join(EXPERIMENTS),
    seeds: int | None = None,
    lanes: int = 2,
) -> None:
    """Run all experiments and tell how long each took.

    Args:
        out: folder of the results and of clock.json.
        experiments: names with commas between.
        seeds: at most, of each; as many as are kept when None.
        lanes: processes at a time, a core each.
    """
    clock = run_all(experiments.split(","), seeds, out, lanes)
    for name, one in clock.times.items():
        seeds_told = f"{one['seeds']} of {one['kept seeds']} seeds"
        print(f"{name}: {one['seconds'] / 60:.1f} minutes, {seeds_told}")
    print(f"All seeds of all of them on {lanes} cores: at most {clock.hours(lanes):.2f} hours.")


if __name__ == "__main__":
    tyro.cli(main)
