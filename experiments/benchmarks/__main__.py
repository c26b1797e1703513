"""The command: `python -m experiments.benchmarks --out experiments/benchmarks/results`."""

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import jax

from experiments.benchmarks.cases import Case, all_cases
from experiments.benchmarks.machine import describe_machine
from experiments.benchmarks.report import write_report

QUICK_REPEATS = 1


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure what is missing, then write the table and the figure of all there is."""
    args = _parser().parse_args(arguments)
    out = args.out / "quick" if args.quick else args.out
    out.mkdir(parents=True, exist_ok=True)
    repeats = QUICK_REPEATS if args.quick else args.repeats
    if args.quick:
        # The self-test is mostly compilation, and its numbers mean nothing.
        jax.config.update("jax_disable_most_optimizations", True)
    cases = _chosen(all_cases(args.quick), args.only)
    for number, case in enumerate(cases, 1):
        _measure(case, out, repeats, args.force, f"[{number}/{len(cases)}] {case.name}")
    print(write_report(out))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, into OUT/quick")
    parser.add_argument("--only", default="", help="cases by name or beginning, with commas")
    parser.add_argument("--repeats", type=int, default=5, help="rounds that count")
    parser.add_argument("--force", action="store_true", help="measure again what is there")
    return parser


def _chosen(cases: list[Case], only: str) -> list[Case]:
    beginnings = tuple(name for name in only.split(",") if name)
    if not beginnings:
        return cases
    chosen = [case for case in cases if case.name.startswith(beginnings)]
    if not chosen:
        raise SystemExit(f"--only: expected some of {', '.join(case.name for case in cases)}")
    return chosen


def _measure(case: Case, out: Path, repeats: int, force: bool, title: str) -> None:
    path = out / f"{case.name}.json"
    # Through JSON, which has no tuples, so that the two compare.
    settings = json.loads(json.dumps(case.settings | {"repeats": repeats}))
    if path.is_file() and not force and json.loads(path.read_text())["settings"] == settings:
        _say(f"{title}: there already")
        return
    start = time.perf_counter()
    _say(title)
    measured = case.measure(repeats, lambda message: _say(f"{title}: {message}"))
    record = {"case": case.name, "settings": settings, "machine": describe_machine()} | measured
    # In one piece, so that a run that is cut off leaves no half file.
    unfinished = path.with_suffix(".part")
    unfinished.write_text(json.dumps(record, indent=1) + "\n")
    unfinished.replace(path)
    _say(f"{title}: {time.perf_counter() - start:.1f} s")


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
