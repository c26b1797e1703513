"""Progress of long work, on standard error so that results can be piped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Advance(Protocol):
    """Is called with the amount done so far, and a few words to stand beside it."""

    def __call__(self, done: int, note: str = "") -> None:
        """Show it."""


@contextmanager
def track(
    total: int | None, progress: bool | Callable[[int, int], None], label: str = "batches"
) -> Iterator[Advance]:
    """A function to call with the amount done so far.

    Args:
        total: amount of work; None where it is not known.
        progress: False shows nothing, True a bar with the time that is left, a function gets
            (done, total).
        label: what is counted.
    """

    def report(done: int, note: str = "") -> None:
        if callable(progress):
            progress(done, total or 0)

    if callable(progress) or not progress:
        yield report
        return
    known = total is not None
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.0f}/{task.total:.0f}" if known else "{task.completed:.0f}"),
        TextColumn("{task.fields[note]}"),
        TextColumn("ETA" if known else "elapsed"),
        TimeRemainingColumn() if known else TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total, note="")
        yield lambda done, note="": bar.update(task, completed=done, note=note)
