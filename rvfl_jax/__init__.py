"""Online task-free class-incremental learning with randomised networks, in JAX."""

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rvfl_jax import equations, metrics
    from rvfl_jax.checks import NumericalError
    from rvfl_jax.edrvfl import EdRVFLState, edrvfl
    from rvfl_jax.estimator import EdRVFLClassifier
    from rvfl_jax.exact import merge_states, unlearn_rows
    from rvfl_jax.feed import batched
    from rvfl_jax.grid import random_points
    from rvfl_jax.history import History
    from rvfl_jax.labels import one_hot
    from rvfl_jax.learner import make_learner
    from rvfl_jax.merging import merge
    from rvfl_jax.model_file import load_model, save_model
    from rvfl_jax.network import features, init_weights
    from rvfl_jax.offline import (
        fine_tuned_edrvfl,
        non_incremental_edrvfl,
        offline_edrvfl,
        separate_edrvfl,
    )
    from rvfl_jax.predictor import Predictor
    from rvfl_jax.prequential import prequential_loss, prequential_losses
    from rvfl_jax.prior import with_prior
    from rvfl_jax.regressor import EdRVFLRegressor
    from rvfl_jax.ridge_choice import generalised_cross_validation, with_ridge
    from rvfl_jax.run import offline_scores, run_stream
    from rvfl_jax.scan import scan_stream
    from rvfl_jax.serving import export_learner, export_model
    from rvfl_jax.stream import by_task, class_incremental_stream, pad_batches
    from rvfl_jax.strength import adaptive_k
    from rvfl_jax.sweep import sweep
    from rvfl_jax.sweep_result import Sweep
    from rvfl_jax.types import Learner, Run, StepInfo, Stream

__version__ = "0.1.0"

# JAX takes two seconds to import, and whoever asks the command line for help need not wait.
_WHERE = {
    "EdRVFLClassifier": "rvfl_jax.estimator",
    "EdRVFLRegressor": "rvfl_jax.regressor",
    "EdRVFLState": "rvfl_jax.edrvfl",
    "History": "rvfl_jax.history",
    "Learner": "rvfl_jax.types",
    "NumericalError": "rvfl_jax.checks",
    "Predictor": "rvfl_jax.predictor",
    "Run": "rvfl_jax.types",
    "StepInfo": "rvfl_jax.types",
    "Stream": "rvfl_jax.types",
    "Sweep": "rvfl_jax.sweep_result",
    "adaptive_k": "rvfl_jax.strength",
    "batched": "rvfl_jax.feed",
    "by_task": "rvfl_jax.stream",
    "class_incremental_stream": "rvfl_jax.stream",
    "edrvfl": "rvfl_jax.edrvfl",
    "export_learner": "rvfl_jax.serving",
    "export_model": "rvfl_jax.serving",
    "features": "rvfl_jax.network",
    "fine_tuned_edrvfl": "rvfl_jax.offline",
    "generalised_cross_validation": "rvfl_jax.ridge_choice",
    "init_weights": "rvfl_jax.network",
    "load_model": "rvfl_jax.model_file",
    "make_learner": "rvfl_jax.learner",
    "merge": "rvfl_jax.merging",
    "merge_states": "rvfl_jax.exact",
    "non_incremental_edrvfl": "rvfl_jax.offline",
    "offline_edrvfl": "rvfl_jax.offline",
    "offline_scores": "rvfl_jax.run",
    "one_hot": "rvfl_jax.labels",
    "pad_batches": "rvfl_jax.stream",
    "prequential_loss": "rvfl_jax.prequential",
    "prequential_losses": "rvfl_jax.prequential",
    "random_points": "rvfl_jax.grid",
    "run_stream": "rvfl_jax.run",
    "save_model": "rvfl_jax.model_file",
    "scan_stream": "rvfl_jax.scan",
    "separate_edrvfl": "rvfl_jax.offline",
    "sweep": "rvfl_jax.sweep",
    "unlearn_rows": "rvfl_jax.exact",
    "with_prior": "rvfl_jax.prior",
    "with_ridge": "rvfl_jax.ridge_choice",
}


# Modules for users that `import *` leaves out: drawing imports Matplotlib.
_MODULES = ("data", "encoders", "plots", "serving")


class _Package(ModuleType):
    """Two modules have the name of the function in them, and `rvfl_jax.sweep` is the function."""

    def __setattr__(self, name: str, value: Any) -> None:
        # The import system puts every submodule here when it is first imported.
        if name not in _WHERE or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name in _WHERE:
        found = getattr(import_module(_WHERE[name]), name)
        globals()[name] = found
        return found
    if not name.startswith("_") and find_spec(f"{__name__}.{name}") is not None:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, *_MODULES]


__all__ = [
    "EdRVFLClassifier",
    "EdRVFLRegressor",
    "EdRVFLState",
    "History",
    "Learner",
    "NumericalError",
    "Predictor",
    "Run",
    "StepInfo",
    "Stream",
    "Sweep",
    "adaptive_k",
    "batched",
    "by_task",
    "class_incremental_stream",
    "edrvfl",
    "equations",
    "export_learner",
    "export_model",
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
    "with_prior",
    "with_ridge",
]
