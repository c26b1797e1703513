"""Where results go, and how progress is shown."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.results_file import Record, ResultsFile

RESULTS = Path(__file__).parent / "results"


@contextmanager
def steps_shown(
    label: str, file: ResultsFile
) -> Iterator[Callable[[str, Callable[[], Record]], Record]]:
    """`file.once`, with a line on standard error for what is measured now."""
    start = time.perf_counter()

    def once(name: str, make: Callable[[], Record]) -> Record:
        if name not in file.records:
            print(f"{label}: {name}", file=sys.stderr, flush=True)
        return file.once(name, make)

    yield once
    print(f"{label}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
