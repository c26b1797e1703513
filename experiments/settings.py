"""Where results go, and how progress is shown."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from experiments.results_file import Record, ResultsFile

Once = Callable[..., Record]

RESULTS = Path(__file__).parent / "results"


@contextmanager
def steps_shown(label: str, file: ResultsFile) -> Iterator[Once]:
    """`file.once`, with a line on standard error for what is measured now."""
    start = time.perf_counter()

    def once(name: str, make: Callable[..., Record], *args: Any, **options: Any) -> Record:
        if name not in file.records:
            print(f"{label}: {name}", file=sys.stderr, flush=True)
        return file.once(name, make, *args, **options)

    yield once
    print(f"{label}: {time.perf_counter() - start:.0f} s", file=sys.stderr, flush=True)
