"""Pictures of runs, comparisons and sweeps; nothing here is shown or saved by itself."""

from rvfl_jax.plots.comparison import comparison_figure
from rvfl_jax.plots.runs import (
    accuracy_curve,
    confusion_over_time,
    regret_and_divergence,
    strength_paths,
    transfer_matrix,
)
from rvfl_jax.plots.style import COLOURS, DASHES
from rvfl_jax.plots.sweeps import heat_map

__all__ = [
    "COLOURS",
    "DASHES",
    "accuracy_curve",
    "comparison_figure",
    "confusion_over_time",
    "heat_map",
    "regret_and_divergence",
    "strength_paths",
    "transfer_matrix",
]
