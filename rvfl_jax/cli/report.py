"""A comparison in words: the table and the closing lines of `rvfl-jax run`."""

from collections.abc import Sequence

import numpy as np
from rich.box import SIMPLE
from rich.table import Table

from rvfl_jax.cli.sweep import SweepOutcome
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
# Beyond this part of eq. (29)'s trace, sigma and not the data sets k.
SIGMA_RULES = 0.05


def comparison_table(result: Comparison) -> Table:
    """One row a style: means over seeds, below them the standard deviations."""
    table = Table(title=_title(result), title_justify="left", box=SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("style", min_width=9)
    for heading, *_ in COLUMNS:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, style in {**result.styles, OFFLINE: result.offline}.items():
        table.add_row(name, *[_cell(style, *column[1:]) for column in COLUMNS])
    return table


def _title(result: Comparison) -> str:
    config = result.config
    return (
        f"{result.dataset}: {config.tasks} tasks, {config.batches} batches, {result.rows:,} rows;"
        f" L={config.num_layers}, N={config.num_nodes}, lambda={config.ridge:g},"
        f" {config.cold_start} cold start, {config.precision} precision; {result.seeds} seed(s)"
    )


def _cell(style: StyleResult, metric: str, factor: int, digits: int) -> str:
    values = factor * np.array(style.metrics.get(metric, []))
    if metric == "seconds":
        # A run that was interrupted has no time of its own.
        values = values[np.isfinite(values)]
    if not len(values) or not np.isfinite(values).all():
        return ""
    mean = f"{np.mean(values):.{digits}f}"
    return mean if len(values) == 1 else f"{mean}\n±{np.std(values, ddof=1):.{digits}f}"


def closing_lines(result: Comparison) -> Sequence[str]:
    """What was done, how fast, and what the numbers do not say by themselves."""
    tested = "at every batch" if result.config.evaluate == "batch" else "on schedule"
    lines = [
        "Accuracies are in per cent; ACC, BWT and FWT are class-incremental. Time and"
        f" throughput include testing {tested} and leave compilation out."
    ]
    for name, style in result.styles.items():
        rates = np.array(style.metrics["samples_per_second"])
        rates = rates[np.isfinite(rates)]
        pace = f", {np.median(rates):,.0f} samples per second" if len(rates) else ""
        lines.append(f"{name}: {result.rows:,} samples in one pass{pace}")
        share = np.mean(style.metrics["sigma_share"])
        if share > SIGMA_RULES:
            lines.append(
                f"{name}: sigma alone decided {share:.0%} of the trace of eq. (29), so that k is"
                " near 0 and the style near ridge; shorter batches or a larger sigma help"
            )
    return lines


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


def sweep_lines(outcome: SweepOutcome) -> Sequence[str]:
    """What was tried, and what the choice reaches on the test set."""
    config, test = outcome.config, outcome.test
    accuracy = {name: f"{100 * value:.2f}" for name, value in test.items()}
    return [
        f"{outcome.dataset}: {config.tasks} tasks, {config.batches} batches;"
        f" {outcome.result.healthy.size} runs, of which every configuration had {config.seeds}"
        f" seed(s) on {config.orders} task order(s). Chosen without test data.",
        "The best, tested once with the first seed and order, in per cent: class-incremental"
        f" {accuracy['accuracy_class_incremental']}, task aware {accuracy['accuracy_task_aware']}"
        + (f", ACC {accuracy['ACC']}." if "ACC" in accuracy else "."),
    ]
