"""Several learners on one stream: what a comparison leaves behind."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rvfl_jax.core.words import Summary, summarised
from rvfl_jax.runs.history import History

OFFLINE = "offline expert"


@summarised
@dataclass(repr=False)
class StyleResult:
    """One style over all seeds: metric name to one number a seed, and curves."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    histories: list[History] = field(default_factory=list)

    def add(self, values: dict[str, float]) -> None:
        """Append one seed's metrics."""
        for name, value in values.items():
            self.metrics.setdefault(name, []).append(float(value))

    def _summary(self) -> Summary:
        return Summary(f"StyleResult: {self.told()}", [("metrics", ", ".join(self.metrics))])

    def told(self) -> str:
        """Accuracy at the end over all seeds, in per cent."""
        values = 100 * np.array(self.metrics.get("accuracy_class_incremental", []))
        if not len(values):
            return "nothing yet"
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        return f"{np.mean(values):.2f}{spread} % class-incremental, {len(values)} seed(s)"


@summarised
@dataclass(repr=False)
class Comparison:
    """Several learners on one stream, over seeds.

    Attributes:
        config: what was asked for.
        dataset: name of the data.
        styles: style name to its results, in the order of the table.
        offline: the offline expert's.
        task_ends: task ends of the first seed.
        rows: training rows a run learned.
        seeds: how many.
    """

    config: Any
    dataset: str
    styles: dict[str, StyleResult]
    offline: StyleResult
    task_ends: np.ndarray
    rows: int
    seeds: int

    def _summary(self) -> Summary:
        title = (
            f"Comparison on {self.dataset}: {self.config.tasks} tasks, {self.config.batches}"
            f" batches, {self.rows:,} rows, {self.seeds} seed(s)"
        )
        results = {**self.styles, OFFLINE: self.offline}
        return Summary(title, [(name, style.told()) for name, style in results.items()])
