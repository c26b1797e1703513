"""Results as tables for the terminal: `rich` prints them, and notebooks show them."""

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from rvfl_jax.core.types import Criterion
from rvfl_jax.runs.comparison import OFFLINE, Comparison, StyleResult
from rvfl_jax.sweeps.result import Sweep, value_in_words

# Heading, metric, factor, digits: accuracies in per cent, so that the table fits 80 columns.
COLUMNS = (
    ("ACC", "ACC", 100, 2),
    ("BWT", "BWT", 100, 2),
    ("FWT", "FWT", 100, 2),
    ("class\nincr.", "accuracy_class_incremental", 100, 2),
    ("seen", "accuracy_seen", 100, 2),
    ("task\naware", "accuracy_task_aware", 100, 2),
    ("task\nid", "accuracy_task_id", 100, 2),
    ("cumul.\nregret", "cumulative_regret", 1, 4),
    ("time\n(s)", "seconds", 1, 2),
)


def comparison_table(result: Comparison, title: str | None = None) -> Table:
    """One row a learner: means over seeds, below them the standard deviations.

    Learners that were told where tasks end are marked so below their names.

    Args:
        result: of `compare`.
        title: of the table; data, precision and number of seeds when None.
    """
    if title is None:
        setting = result.setting
        title = f"{result.about}; {setting.precision} precision; {result.seeds} seed(s)"
    table = Table(title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("style", min_width=9)
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    offline = {OFFLINE: result.offline} if result.offline.metrics else {}
    for name, style in {**result.styles, **offline}.items():
        told = "\ntasks told" * (result.setting.told(name) == "given")
        table.add_row(name + told, *[_cell(style, *column[1:]) for column in COLUMNS])
    return table


def _cell(style: StyleResult, metric: str, factor: int, digits: int) -> str:
    values = factor * np.array(style.metrics.get(metric, []))
    if metric == "seconds":
        # A run that was interrupted has no time of its own.
        values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(values).all():
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}\n±{np.std(values, ddof=1):.{digits}f}"


def sweep_table(result: Sweep, criterion: Criterion = "prequential_loss", rows: int = 10) -> Table:
    """The best configurations of a sweep by a criterion that needs no test data.

    Args:
        result: of `sweep`.
        criterion: "prequential_loss" or "prequential_accuracy".
        rows: at most so many.
    """
    ranking = result.ranking(criterion)
    total = int(np.prod(result.mean(result.prequential_loss).shape))
    title = f"the best {min(rows, len(ranking))} of {total} configurations"
    failed = total - len(ranking)
    if failed:
        title += f"; {failed} failed numerically"
    table = Table(
        title=title, title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0), min_width=len(title)
    )
    names = list(ranking[0][0])
    for name in (*names, criterion.replace("_", "\n")):
        table.add_column(name, justify="right")
    for point, value in ranking[:rows]:
        table.add_row(*(value_in_words(point[name]) for name in names), f"{value:.6g}")
    return table
