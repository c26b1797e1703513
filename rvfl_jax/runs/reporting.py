"""What a run in chunks tells while it goes on, to a progress bar and to a function of the caller.

Figures are read from the records that the run keeps anyway, after each compiled call and outside
it: nothing is computed for them, and no bit of the run depends on whether anybody listens.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from rvfl_jax.core.progress import Advance
from rvfl_jax.runs.history import CURVES, FIGURES, StepRecord

OnMetrics = Callable[[dict[str, float], int], Any]


class Reporter:
    """Tells of chunks as they are done.

    Args:
        show: gets the batches done and a note.
        on_metrics: gets the figures of a chunk and the batches done, or None.
    """

    def __init__(self, show: Advance, on_metrics: OnMetrics | None = None) -> None:
        self._show, self._on_metrics = show, on_metrics
        self._rows = self._hits = 0.0

    def resumed(self, done: int, record: StepRecord | None) -> None:
        """Of what was learned before this process; no figures are told again."""
        if record is not None:
            self._count(record)
        self._show(done, self._note())

    def learned(self, done: int, record: StepRecord) -> None:
        """Of one chunk; whatever the function raises ends the run, which has kept the chunk."""
        self._count(record)
        self._show(done, self._note())
        if self._on_metrics is not None:
            self._on_metrics(self._figures(record), done)

    def _count(self, record: StepRecord) -> None:
        self._rows += float(np.sum(record.rows))
        self._hits += float(np.sum(record.hits))

    def _note(self) -> str:
        return f"accuracy {self._hits / self._rows:.3f}" if self._rows else ""

    def _figures(self, record: StepRecord) -> dict[str, float]:
        """Plain numbers; what the method or the chunk does not have is left out."""
        rows = float(np.sum(record.rows))
        figures = {"rows": self._rows, "healthy": float(np.all(record.healthy))}
        if rows:
            figures["prequential_accuracy"] = float(np.sum(record.hits)) / rows
            figures["prequential_loss"] = float(np.sum(record.loss)) / rows
        if self._rows:
            figures["prequential_accuracy_so_far"] = self._hits / self._rows
        each = {name: getattr(record, name) for name in FIGURES} | record.extras
        figures |= {name: float(np.mean(values[-1])) for name, values in each.items()}
        looked = record.evaluation
        if looked is not None and len(looked.regret):
            curves = {f"accuracy_{name}": curve for name, curve in looked.accuracy.items()}
            curves |= {name: getattr(looked, name) for name in CURVES}
            figures |= {name: float(curve[-1]) for name, curve in curves.items()}
        return {name: value for name, value in figures.items() if np.isfinite(value)}
