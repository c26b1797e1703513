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
from rvfl_jax.plots.tables import comparison_table, sweep_table

__all__ = [
    "COLOURS",
    "DASHES",
    "accuracy_curve",
    "comparison_figure",
    "comparison_table",
    "confusion_over_time",
    "heat_map",
    "regret_and_divergence",
    "strength_paths",
    "sweep_table",
    "transfer_matrix",
]
