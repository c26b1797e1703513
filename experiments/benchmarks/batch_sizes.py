"""What a row costs in batches of 1 to 800 rows, with a decision at every batch.

The command: `python -m experiments.benchmarks.batch_sizes --out experiments/benchmarks/results`.

- `small_batches`: many batches of ten rows, five sub-learners: the blocked form beside the same
  recursion batch by batch, the literal algorithm, and the two products of a step alone.
- `single_rows`: batches of one row beside batches of a hundred.
- `row_costs`: one row in batches of every size, beside PyTorch's Gram matrix and solve.

Contenders take turns in one process; what they learn is compared before they are timed.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from experiments.benchmarks.contenders import CONTENDERS, Prepared, ours
from experiments.benchmarks.machine import describe_machine
from experiments.benchmarks.problem import Problem, Shape, random_problem
from experiments.benchmarks.timing import interleaved

Record = dict[str, Any]
AGREEMENT = {"double": 1e-9, "single": 2e-3}
SIZES = (1, 10, 25, 50, 100, 200, 400, 800)
WIDTHS = (500, 2000)
# Of a slow contender a part of the stream tells what a step costs.
FEW_STEPS = 12
# A run inverts once at its begin and at its end, which few steps would pay for.
LEAST_STEPS = 40


def main() -> None:
    """Measure, write batch_sizes.json, print ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--repeats", type=int, default=5, help="rounds of each case")
    parser.add_argument("--only", default="", help="cases whose name begins so, into what is there")
    parser.add_argument("--quick", action="store_true", help="small shapes, to try the program")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    path = args.out / "batch_sizes.json"
    kept = json.loads(path.read_text(encoding="utf-8"))["cases"] if args.only else {}
    result: Record = {"repeats": args.repeats, "cases": kept}
    for name, measure in _cases(args.quick).items():
        if not name.startswith(args.only):
            continue
        print(name, flush=True)
        record = measure(args.repeats)
        result["cases"][name] = record
        for contender, told in record["contenders"].items():
            print(f"  {contender}: {1e6 * told['seconds_a_row']:.1f} us a row", flush=True)
        result["machine"] = describe_machine()
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _cases(quick: bool) -> dict[str, Callable[[int], Record]]:
    cases: dict[str, Callable[[int], Record]] = {}
    for precision in ("single", "double"):
        shape = Shape(40, 4, 5, 20, 2) if quick else Shape(500, 10, 10, 1000, 5)
        names = ("ours_blocked", "ours_covariance", "literal_jax", "gemm_jax")
        cases[f"small_batches_{precision}"] = _case(names, shape, precision)
        shape = Shape(40, 1, 5, 60) if quick else Shape(500, 1, 10, 10_000)
        cases[f"single_rows_{precision}"] = _case(
            ("ours_blocked", "ours_covariance"), shape, precision
        )
        shape = Shape(40, 10, 5, 6) if quick else Shape(500, 100, 10, 100)
        cases[f"hundred_rows_{precision}"] = _case(("ours_auto",), shape, precision)
    for d in (40,) if quick else WIDTHS:
        for b in (1, 10, 30) if quick else SIZES:
            rows = 60 if quick else 1600 if d > 1000 else 4000
            shape = Shape(d, b, 10, max(rows // b, 6 if quick else LEAST_STEPS))
            cases[f"row_costs_d{d}_b{b}"] = _case(("ours_auto", "torch_gram"), shape, "double")
    return cases


def _case(names: tuple[str, ...], shape: Shape, precision: str) -> Callable[[int], Record]:
    return lambda repeats: _measure(names, shape, precision, repeats)


def _measure(names: tuple[str, ...], shape: Shape, precision: str, repeats: int) -> Record:
    """Seconds of all contenders, and by how much their readouts differ from the recursion's."""
    problem = random_problem(shape)
    prepared: dict[str, tuple[Prepared, int]] = {}
    for name in names:
        steps = min(shape.T, FEW_STEPS) if name == "torch_gram" else shape.T
        prepared[name] = _contender(name)(problem.first(steps), precision), steps
    calls = {name: each.run for name, (each, _) in prepared.items()}
    seconds, first, results = interleaved(calls, repeats)
    differ = None
    if {"ours_blocked", "ours_covariance"} <= results.keys():
        one, other = (results[f"ours_{solver}"] for solver in ("blocked", "covariance"))
        differ = _difference(one, other)
        if not differ < AGREEMENT[precision]:
            raise RuntimeError(f"blocked: differs from the recursion by {differ:.1e}")
    contenders = {
        name: {
            "steps": steps,
            "seconds": seconds[name],
            "seconds_a_row": median(seconds[name]) / (steps * shape.b),
            "warm_up_seconds": first[name],
            "compile_seconds": each.compile_seconds,
        }
        for name, (each, steps) in prepared.items()
    }
    settings = {"shape": shape._asdict(), "precision": precision}
    return {"settings": settings, "difference": differ, "contenders": contenders}


def _contender(name: str) -> Callable[[Problem, str], Prepared]:
    known = {"ours_blocked": ours("blocked"), "ours_auto": ours("auto")}
    return known.get(name) or CONTENDERS[name]


def _difference(one: Any, other: Any) -> float:
    """The largest relative difference of readouts, strengths and losses of every batch."""
    pairs = [(one[0].theta, other[0].theta)]
    pairs += [(getattr(one[1], name), getattr(other[1], name)) for name in ("k_next", "loss")]
    gaps = [
        np.max(np.abs(np.asarray(a, float) - np.asarray(b, float)))
        / np.max(np.abs(np.asarray(b, float)))
        for a, b in pairs
    ]
    return float(max(gaps))


if __name__ == "__main__":
    main()
