"""Online task-free class-incremental learning with randomised networks, in JAX."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from rvfl_jax import metrics
from rvfl_jax.checks import NumericalError
from rvfl_jax.edrvfl import EdRVFLState, edrvfl
from rvfl_jax.exact import merge_states, unlearn_rows
from rvfl_jax.feed import batched
from rvfl_jax.grid import random_points
from rvfl_jax.history import History
from rvfl_jax.labels import one_hot
from rvfl_jax.learner import make_learner
from rvfl_jax.network import features, init_weights
from rvfl_jax.offline import (
    fine_tuned_edrvfl,
    non_incremental_edrvfl,
    offline_edrvfl,
    separate_edrvfl,
)
from rvfl_jax.prequential import prequential_loss, prequential_losses
from rvfl_jax.ridge_choice import generalised_cross_validation, with_ridge
from rvfl_jax.run import offline_scores, run_stream
from rvfl_jax.scan import scan_stream
from rvfl_jax.stream import by_task, class_incremental_stream, pad_batches
from rvfl_jax.strength import adaptive_k
from rvfl_jax.sweep import sweep
from rvfl_jax.sweep_result import Sweep
from rvfl_jax.types import Learner, Run, StepInfo, Stream

if TYPE_CHECKING:
    from rvfl_jax.estimator import EdRVFLClassifier
    from rvfl_jax.merging import merge
    from rvfl_jax.model_file import load_model, save_model
    from rvfl_jax.regressor import EdRVFLRegressor

__version__ = "0.1.0"

# scikit-learn takes a second to import, and only these need it.
_DEFERRED = {
    "EdRVFLClassifier": "rvfl_jax.estimator",
    "EdRVFLRegressor": "rvfl_jax.regressor",
    "load_model": "rvfl_jax.model_file",
    "merge": "rvfl_jax.merging",
    "save_model": "rvfl_jax.model_file",
}


def __getattr__(name: str) -> Any:
    if name in _DEFERRED:
        return getattr(import_module(_DEFERRED[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


__all__ = [
    "EdRVFLClassifier",
    "EdRVFLRegressor",
    "EdRVFLState",
    "History",
    "Learner",
    "NumericalError",
    "Run",
    "StepInfo",
    "Stream",
    "Sweep",
    "adaptive_k",
    "batched",
    "by_task",
    "class_incremental_stream",
    "edrvfl",
    "features",
    "fine_tuned_edrvfl",
    "generalised_cross_validation",
    "init_weights",
    "load_model",
    "make_learner",
    "merge",
    "merge_states",
    "metrics",
    "non_incremental_edrvfl",
    "offline_edrvfl",
    "offline_scores",
    "one_hot",
    "pad_batches",
    "prequential_loss",
    "prequential_losses",
    "random_points",
    "run_stream",
    "save_model",
    "scan_stream",
    "separate_edrvfl",
    "sweep",
    "unlearn_rows",
    "with_ridge",
]
