"""Progress of long work, on standard error so that results can be piped."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


@contextmanager
def track(
    total: int | None, progress: bool | Callable[[int, int], None], label: str = "batches"
) -> Iterator[Callable[[int], None]]:
    """A function to call with the amount done so far.

    Args:
        total: amount of work; None where it is not known.
        progress: False shows nothing, True a bar, a function gets (done, total).
        label: what is counted.
    """
    if callable(progress):
        report = progress
        yield lambda done: report(done, total or 0)
        return
    if not progress:
        yield lambda done: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn(
            "{task.completed:.0f}" if total is None else "{task.completed:.0f}/{task.total:.0f}"
        ),
        TimeElapsedColumn() if total is None else TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=total)
        yield lambda done: bar.update(task, completed=done)
