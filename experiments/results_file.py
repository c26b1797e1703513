"""Raw results of an experiment, kept as they come, so that a killed job goes on."""

import csv
import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.machine import processor
from rvfl_jax.cli.compare import plain
from rvfl_jax.files.provenance import versions

Record = dict[str, Any]


class ResultsFile:
    """A JSON file of named records made under one configuration.

    A file of another configuration is set aside, never mixed with this one's records, and taken
    up again when its configuration returns; other seeds only add to what is there. "made" tells of
    each record when, in how many seconds, on what processor and with which versions it was made;
    records of before that was kept have "versions" and "device" of all of them together.
    """

    def __init__(self, path: Path, config: Any):
        self.path = path
        config = json.loads(json.dumps(plain(asdict(config)), default=str))
        self.content: Record = {"config": config, "records": {}}
        if path.is_file():
            before = json.loads(path.read_text(encoding="utf-8"))
            if _without_seeds(before.get("config", {})) == _without_seeds(config):
                self.content = before | {"config": config}
            else:
                path.rename(_aside(path, before.get("config", {})))
        kept = _aside(path, config)
        if not path.is_file() and kept.is_file():
            kept.rename(path)
            self.content = json.loads(path.read_text(encoding="utf-8")) | {"config": config}
        self.content.setdefault("made", {})

    @property
    def records(self) -> Record:
        """Name to record, of this call and of those before."""
        return self.content["records"]

    def once(self, name: str, make: Callable[..., Record], *args: Any, **options: Any) -> Record:
        """The record of that name, made of the rest and written now unless it is there."""
        if name not in self.records:
            start = time.perf_counter()
            self.records[name] = plain(make(*args, **options))
            self.content["made"][name] = {
                "date": date.today().isoformat(),
                "seconds": round(time.perf_counter() - start, 2),
                "versions": versions(),
                "python": platform.python_version(),
                "processor": processor(),
            }
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".part")
            partial.write_text(json.dumps(self.content) + "\n", encoding="utf-8")
            os.replace(partial, self.path)
        return self.records[name]


def _aside(path: Path, config: Record) -> Path:
    """Where records of a configuration wait while another one has the file."""
    text = json.dumps(_without_seeds(config), sort_keys=True)
    return path.with_suffix(f".{hashlib.sha256(text.encode()).hexdigest()[:8]}.json")


def _without_seeds(config: Record) -> Record:
    return {name: value for name, value in config.items() if name != "seeds"}


def mean_and_deviation(values: Any, factor: float = 1.0, digits: int = 4) -> str:
    """ "mean ± standard deviation" over seeds; "" where there is none."""
    numbers = factor * np.array([np.nan if v is None else v for v in values], dtype=float)
    if not len(numbers) or not np.isfinite(numbers).all():
        return ""
    mean = f"{numbers.mean():.{digits}f}"
    return mean if len(numbers) == 1 else f"{mean} ± {numbers.std(ddof=1):.{digits}f}"


def write_table(
    folder: Path,
    headings: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    before: str = "",
    after: str = "",
) -> None:
    """The rows as table.csv, and as table.md between what is said before and after."""
    cells = list(rows)
    write_csv(folder, headings, cells)
    text = before + markdown_table(headings, cells) + after
    (folder / "table.md").write_text(text, encoding="utf-8")


def write_csv(folder: Path, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """The rows as table.csv alone."""
    with (folder / "table.csv").open("w", newline="", encoding="utf-8") as out:
        csv.writer(out, lineterminator="\n").writerows([headings, *rows])


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown, one line a row."""
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines) + "\n"
