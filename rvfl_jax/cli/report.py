"""What the command line says of a comparison and of a sweep beside their tables."""

from collections.abc import Sequence

import numpy as np

from rvfl_jax.cli.compare import Config
from rvfl_jax.cli.sweep import SweepOutcome
from rvfl_jax.runs.comparison import Comparison

# Beyond this part of eq. (29)'s trace, sigma and not the data sets k.
SIGMA_RULES = 0.05


def title_of(config: Config, result: Comparison) -> str:
    """What was compared, above the table."""
    return (
        f"{result.about}; L={config.num_layers}, N={config.num_nodes}, lambda={config.ridge:g},"
        f" {config.cold_start} cold start, {config.precision} precision; {result.seeds} seed(s)"
    )


def closing_lines(result: Comparison) -> Sequence[str]:
    """What was done, how fast, and what the numbers do not say by themselves."""
    tested = "at every batch" if result.setting.evaluate == "batch" else "on schedule"
    lines = [
        "Accuracies are in per cent; ACC, BWT and FWT are class-incremental. Time and"
        f" throughput include testing {tested} and leave compilation out."
    ]
    for name, style in result.styles.items():
        rates = np.array(style.metrics["samples_per_second"])
        rates = rates[np.isfinite(rates)]
        pace = f", {np.median(rates):,.0f} samples per second" if len(rates) else ""
        lines.append(f"{name}: {result.rows:,} samples in one pass{pace}")
        share = np.mean(style.metrics.get("sigma_share", 0.0))
        if share > SIGMA_RULES:
            lines.append(
                f"{name}: sigma alone decided {share:.0%} of the trace of eq. (29), so that k is"
                " near 0 and the style near ridge; shorter batches or a larger sigma help"
            )
    return lines


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
