"""Do kept records still come about? `python -m experiments.verify`.

Some records of each experiment are taken out of a copy of its results, made anew by the code of
today, and held against the kept ones number by number. What a clock says is left out; all else
should agree to rounding. Records tell the versions and the processor that they were made with.
"""

import dataclasses
import json
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import tyro

from experiments.results_file import Record, ResultsFile
from experiments.settings import RESULTS

EXPERIMENTS = (
    *("fashion_mnist_table", "readings", "fashion_mnist_curves", "cifar100", "plant_margin"),
    *("claims", "tuning", "estimator", "feature_maps", "unknown", "several_labels"),
    "drift",
)
# Names of what a clock says, wherever in a record they stand.
# "steps" of searches hold seconds beside passes and losses.
OF_TIME = ("second", "time", "throughput", "rows/s", "steps")


def main(
    experiments: str = ",".join(EXPERIMENTS),
    records: int = 2,
    longest: float = 60.0,
    seed: int = 0,
    only: str = "",
    out: Path = RESULTS / "verified.json",
) -> None:
    """Make some kept records anew, and print and keep how far they are from the kept ones.

    Args:
        experiments: names with commas between.
        records: of each experiment.
        longest: seconds that a record may have taken, as it tells itself.
        seed: of which records are drawn.
        only: part of the names of records to draw from.
        out: where the differences are kept, by experiment and record.
    """
    found = json.loads(out.read_text(encoding="utf-8")) if out.is_file() else {}
    for name in experiments.split(","):
        module = import_module(f"experiments.{name}")
        kept = json.loads((RESULTS / name / "results.json").read_text(encoding="utf-8"))
        drawn = draw(kept, records, longest, seed, only)
        print(f"{name}: {', '.join(drawn) or 'no record that short'}", file=sys.stderr, flush=True)
        for place, anew in made_anew(module, kept, drawn).items():
            apart = differences(kept["records"][place], anew)
            found.setdefault(name, {})[place] = apart
            told = ", ".join(f"{field} {by:.1e}" for field, by in apart.items())
            print(f"{name} | {place}: {told or 'the same to the last bit'}", flush=True)
            out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def draw(kept: Record, count: int, longest: float, seed: int, only: str) -> list[str]:
    """Names of records that tell how long they took, not longer than that, and not empty."""
    made = kept.get("made", {})
    short = sorted(
        name
        for name, record in kept["records"].items()
        if record and only in name and made.get(name, {}).get("seconds", np.inf) <= longest
    )
    order = np.random.default_rng(seed).permutation(len(short))[:count]
    return [short[at] for at in sorted(order)]


def made_anew(module: Any, kept: Record, drawn: list[str]) -> Record:
    """These records as the experiment makes them today, all others being there."""
    if not drawn:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "results.json"
        rest = {name: record for name, record in kept["records"].items() if name not in drawn}
        path.write_text(json.dumps(kept | {"records": rest}), encoding="utf-8")
        config = config_of(module, kept["config"])
        file = ResultsFile(path, config)
        if file.records.keys() != rest.keys():
            raise ValueError(f"expected the kept configuration {kept['config']}, got {config}")
        module.measure(config, file)
        return {name: file.records[name] for name in drawn}


def config_of(module: Any, kept: Record) -> Any:
    """Today's protocol with the numbers of seeds that were kept."""
    seeds = {name: value for name, value in kept.items() if "seeds" in name}
    names = {field.name for field in dataclasses.fields(module.Config)}
    return module.Config(**{name: value for name, value in seeds.items() if name in names})


def differences(kept: Any, anew: Any) -> dict[str, float]:
    """Field to its largest difference, relative to the larger of 1 and the kept number.

    The worst comes first; fields that agree to the last bit are left out.
    """
    found: dict[str, float] = {}
    for place, old, new in pairs(kept, anew):
        apart = 0.0 if old == new else np.inf
        if isinstance(old, float | int) and isinstance(new, float | int):
            apart = abs(old - new) / max(1.0, abs(old))
        if apart:
            field = next(part for part in place.split("/")[::-1] if not part.isdigit())
            found[field] = max(found.get(field, 0.0), float(apart))
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def pairs(kept: Any, anew: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Place, kept and new value of every leaf that does not tell of time."""
    if any(word in place.rsplit("/", 1)[-1].lower() for word in OF_TIME):
        return
    if isinstance(kept, dict) and isinstance(anew, dict):
        for name in kept.keys() | anew.keys():
            yield from pairs(kept.get(name), anew.get(name), f"{place}/{name}")
    elif isinstance(kept, list) and isinstance(anew, list) and len(kept) == len(anew):
        for index, (old, new) in enumerate(zip(kept, anew, strict=True)):
            yield from pairs(old, new, f"{place}/{index}")
    else:
        yield place, kept, anew


if __name__ == "__main__":
    tyro.cli(main)
