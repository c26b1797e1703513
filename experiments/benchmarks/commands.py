"""Whole commands on tables, from the start of the process to its end, with and without programs.

The command: `python -m experiments.benchmarks.commands --out experiments/benchmarks/results`.

"cold" finds no program that an earlier process has compiled, "warm" finds all of them. The commands
are run in turns, each in a process of its own. Seconds are those of the wall and those of the
processor, which other work on the machine leaves nearly alone.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from experiments.benchmarks.machine import describe_machine

CLASSES = 10
FEW, SOME, MANY = 1000, 5000, 100_000
NARROW, WIDE = 20, 256


class Case(NamedTuple):
    """A command, the seconds that it may take when warm, and rows by columns of its table."""

    command: list[str]
    bar: float | None
    shape: tuple[int, int] | None = None


def main() -> None:
    """Make tables and models, measure, write commands.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--repeats", type=int, default=5, help="processes of each command")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = _prepared(folder)
        found = _measured(cases, folder, args.repeats)
    result = {"repeats": args.repeats, "cases": found, "machine": describe_machine()}
    (args.out / "commands.json").write_text(json.dumps(result, indent=1) + "\n")
    for name, case in found.items():
        print(name, {kind: case[kind]["median"] for kind in ("cold", "warm") if kind in case})


def _prepared(folder: Path) -> dict[str, Case]:
    """The cases, once the tables and models that they need are there."""
    for columns in (NARROW, WIDE):
        for rows, seed in ((FEW, 1), (SOME, 2)):
            _write(folder / f"{rows}x{columns}.csv", rows, columns, seed)
        learned = folder / f"{SOME}x{columns}.csv"
        line = _python("-m", "rvfl_jax", "fit", learned, "--out", folder / f"m{columns}")
        _seconds(line, folder / "set-up")
    _write(folder / f"{MANY}x{NARROW}.csv", MANY, NARROW, 3)
    _write(folder / f"{SOME}x{WIDE}-more.csv", SOME, WIDE, 4)
    cases = {
        "import jax": Case(_python("-c", "import jax"), None),
        "import rvfl_jax": Case(_python("-c", "import rvfl_jax"), None),
        "--help": Case(_python("-m", "rvfl_jax", "--help"), None),
    }
    for columns in (NARROW, WIDE):
        line = ("predict", folder / f"m{columns}", folder / f"{FEW}x{columns}.csv")
        shape = (FEW, columns)
        cases[f"predict {columns}"] = Case(_python("-m", "rvfl_jax", *line), 1.5, shape)
    line = ("partial-fit", folder / f"m{WIDE}", folder / f"{SOME}x{WIDE}-more.csv", "--again")
    cases["partial-fit"] = Case(_python("-m", "rvfl_jax", *line), 3.0, (SOME, WIDE))
    line = ("fit", folder / f"{MANY}x{NARROW}.csv", "--out", folder / "new", "--force")
    cases["fit"] = Case(_python("-m", "rvfl_jax", *line), 10.0, (MANY, NARROW))
    return cases


def _measured(cases: dict[str, Case], folder: Path, repeats: int) -> dict[str, Any]:
    """Raw seconds and their medians, by case, and cold or warm."""
    taken: dict[str, dict[str, list[tuple[float, float]]]] = {
        name: {"cold": [], "warm": []} if case.shape else {"warm": []}
        for name, case in cases.items()
    }
    for turn in range(repeats):
        _say(f"repeat {turn + 1} of {repeats}")
        # What an earlier turn compiled is gone.
        programs = folder / f"programs{turn}"
        for name, case in cases.items():
            for kind, seconds in taken[name].items():
                seconds.append(_seconds(case.command, programs))
                _say(f"  {name}, {kind}: {seconds[-1][0]:.2f} s, {seconds[-1][1]:.2f} s of CPU")
        shutil.rmtree(programs, ignore_errors=True)
    return {
        name: {
            "command": [Path(word).name for word in case.command[1:]],
            "rows_columns": case.shape,
            "bar_seconds_warm": case.bar,
            **{kind: dict(_told(seconds)) for kind, seconds in taken[name].items()},
        }
        for name, case in cases.items()
    }


def _told(seconds: list[tuple[float, float]]) -> Iterator[tuple[str, Any]]:
    wall, cpu = zip(*seconds, strict=True)
    yield "median", {"wall": round(median(wall), 3), "cpu": round(median(cpu), 3)}
    yield "wall", wall
    yield "cpu", cpu


def _seconds(command: list[str], caches: Path) -> tuple[float, float]:
    """Of the wall and of the processor, for a process with that folder of caches."""
    own = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    nowhere = os.open(os.devnull, os.O_WRONLY)
    begun = time.perf_counter()
    child = os.posix_spawn(
        command[0],
        command,
        own | {"XDG_CACHE_HOME": str(caches)},
        file_actions=[(os.POSIX_SPAWN_DUP2, nowhere, 1), (os.POSIX_SPAWN_DUP2, nowhere, 2)],
    )
    _, status, used = os.wait4(child, 0)
    seconds = time.perf_counter() - begun
    os.close(nowhere)
    if status:
        raise SystemExit(f"expected {command} to end well, got status {status}")
    return seconds, used.ru_utime + used.ru_stime


def _python(*words: Any) -> list[str]:
    return [sys.executable, *map(str, words)]


def _write(path: Path, rows: int, columns: int, seed: int) -> None:
    """A CSV of blobs with six digits a number."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, rows)
    X = np.random.default_rng(0).normal(size=(CLASSES, columns))[y] + rng.normal(
        size=(rows, columns)
    )
    with path.open("w") as file:
        file.write(",".join([*(f"x{c}" for c in range(columns)), "label"]) + "\n")
        for row, label in zip(X, y, strict=True):
            file.write(",".join([*(f"{value:.6g}" for value in row), f"c{label}"]) + "\n")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
