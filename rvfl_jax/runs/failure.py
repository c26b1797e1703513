"""Numerical failure, reported on the host: where it happened and what helps."""

from typing import TYPE_CHECKING

import numpy as np

from rvfl_jax.core.checks import NumericalError
from rvfl_jax.learners.edrvfl.residual import WORTHLESS

if TYPE_CHECKING:
    from rvfl_jax.runs.history import History, StepRecord

REMEDY = (
    'use precision="double", or solver="square_root" where only single precision exists,'
    " a larger ridge, or features on a smaller scale"
)


def raise_if_unhealthy(history: "History | StepRecord") -> None:
    """NumericalError that names the first unhealthy batch, what went wrong, and a remedy."""
    healthy = np.asarray(history.healthy)
    if healthy.all():
        return
    t, layer = (int(i) for i in np.argwhere(~healthy)[0])
    residual, condition = history.residual[t, layer], history.condition[t, layer]
    what = "a factorisation failed or a value was not finite"
    where = f", at a condition of up to {condition:.1g}" if np.isfinite(condition) else ""
    kept = "; what was learned before is untouched"
    if residual > WORTHLESS:
        what = f"the readout is lost to rounding, with a relative residual of {residual:.1g}"
        kept = ""
    raise NumericalError(
        f"batch {t}, sub-learner {layer}: {what}{where}"
        f" ({int((~healthy).any(axis=1).sum())} of {len(healthy)} batches affected{kept})."
        f" Remedy: {REMEDY}."
    )
