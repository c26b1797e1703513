"""Online task-free class-incremental learning with randomised networks, in JAX.

For tables and embeddings: `EdRVFLClassifier`, `EdRVFLRegressor`, `merge`, `save_model`,
`load_model`, `export_model`, `Predictor`; on many machines `Sums` and `rvfl_jax.distributed`.

For research: `edrvfl` and the other methods of `rvfl_jax.learners`, `class_incremental_stream`,
`run_stream`, `compare`, `sweep`, `prequential_loss`, `rvfl_jax.plots`, `rvfl_jax.encoders`, and
`rvfl_jax.equations`, the paper's equations and algorithms line by line.

Examples take for granted:

    import jax, jax.numpy as jnp, numpy as np, rvfl_jax
    from rvfl_jax import *
    from rvfl_jax import plots
    from rvfl_jax.learners.er import er
    from rvfl_jax.learners.slda import slda

    data = rvfl_jax.data.load_dataset("digits")
    X, y, X_test, y_test = data.X_train, data.y_train, data.X_test, data.y_test
    stream = class_incremental_stream(X, y, num_tasks=5, num_batches=20, seed=0)
    learner = edrvfl(num_layers=2, num_nodes=64, ridge=0.1, k=1.0)
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rvfl_jax import equations, metrics
    from rvfl_jax.core.checks import NumericalError
    from rvfl_jax.core.types import Learner, StepInfo, Stream
    from rvfl_jax.estimators.classifier import EdRVFLClassifier
    from rvfl_jax.estimators.merge import merge
    from rvfl_jax.estimators.pipeline import IncrementalPipeline
    from rvfl_jax.estimators.regressor import EdRVFLRegressor
    from rvfl_jax.estimators.save import load_model, save_model
    from rvfl_jax.estimators.shared_sums import Sums
    from rvfl_jax.learners.base import make_learner
    from rvfl_jax.learners.baselines import (
        fine_tuned_edrvfl,
        non_incremental_edrvfl,
        offline_edrvfl,
        separate_edrvfl,
    )
    from rvfl_jax.learners.edrvfl.algebra import merge_states, unlearn_rows
    from rvfl_jax.learners.edrvfl.gcv import generalised_cross_validation, with_ridge
    from rvfl_jax.learners.edrvfl.learner import edrvfl
    from rvfl_jax.learners.edrvfl.network import features, init_weights
    from rvfl_jax.learners.edrvfl.prior import with_prior
    from rvfl_jax.learners.edrvfl.state import EdRVFLState
    from rvfl_jax.learners.edrvfl.strength import adaptive_k
    from rvfl_jax.learners.minibatches import in_minibatches
    from rvfl_jax.runs.comparison import Comparison, compare
    from rvfl_jax.runs.expert import offline_scores
    from rvfl_jax.runs.history import History, Run
    from rvfl_jax.runs.prequential import prequential_loss, prequential_losses
    from rvfl_jax.runs.run_stream import run_stream
    from rvfl_jax.runs.scan import scan_stream
    from rvfl_jax.serving.export import export_learner, export_model
    from rvfl_jax.serving.predictor import Predictor
    from rvfl_jax.streams.class_incremental import by_task, class_incremental_stream, pad_batches
    from rvfl_jax.streams.labels import one_hot
    from rvfl_jax.streams.reader import batched
    from rvfl_jax.sweeps.grid import random_points
    from rvfl_jax.sweeps.result import Sweep
    from rvfl_jax.sweeps.sweep import sweep

__version__ = "0.1.0"

# JAX takes two seconds to import, and whoever asks the command line for help need not wait.
_WHERE = {
    "Comparison": "rvfl_jax.runs.comparison",
    "EdRVFLClassifier": "rvfl_jax.estimators.classifier",
    "EdRVFLRegressor": "rvfl_jax.estimators.regressor",
    "EdRVFLState": "rvfl_jax.learners.edrvfl.state",
    "History": "rvfl_jax.runs.history",
    "IncrementalPipeline": "rvfl_jax.estimators.pipeline",
    "Learner": "rvfl_jax.core.types",
    "NumericalError": "rvfl_jax.core.checks",
    "Predictor": "rvfl_jax.serving.predictor",
    "Run": "rvfl_jax.runs.history",
    "StepInfo": "rvfl_jax.core.types",
    "Stream": "rvfl_jax.core.types",
    "Sums": "rvfl_jax.estimators.shared_sums",
    "Sweep": "rvfl_jax.sweeps.result",
    "adaptive_k": "rvfl_jax.learners.edrvfl.strength",
    "batched": "rvfl_jax.streams.reader",
    "by_task": "rvfl_jax.streams.class_incremental",
    "compare": "rvfl_jax.runs.comparison",
    "class_incremental_stream": "rvfl_jax.streams.class_incremental",
    "edrvfl": "rvfl_jax.learners.edrvfl.learner",
    "export_learner": "rvfl_jax.serving.export",
    "export_model": "rvfl_jax.serving.export",
    "features": "rvfl_jax.learners.edrvfl.network",
    "fine_tuned_edrvfl": "rvfl_jax.learners.baselines",
    "generalised_cross_validation": "rvfl_jax.learners.edrvfl.gcv",
    "in_minibatches": "rvfl_jax.learners.minibatches",
    "init_weights": "rvfl_jax.learners.edrvfl.network",
    "load_model": "rvfl_jax.estimators.save",
    "make_learner": "rvfl_jax.learners.base",
    "merge": "rvfl_jax.estimators.merge",
    "merge_states": "rvfl_jax.learners.edrvfl.algebra",
    "non_incremental_edrvfl": "rvfl_jax.learners.baselines",
    "offline_edrvfl": "rvfl_jax.learners.baselines",
    "offline_scores": "rvfl_jax.runs.expert",
    "one_hot": "rvfl_jax.streams.labels",
    "pad_batches": "rvfl_jax.streams.class_incremental",
    "prequential_loss": "rvfl_jax.runs.prequential",
    "prequential_losses": "rvfl_jax.runs.prequential",
    "random_points": "rvfl_jax.sweeps.grid",
    "run_stream": "rvfl_jax.runs.run_stream",
    "save_model": "rvfl_jax.estimators.save",
    "scan_stream": "rvfl_jax.runs.scan",
    "separate_edrvfl": "rvfl_jax.learners.baselines",
    "sweep": "rvfl_jax.sweeps.sweep",
    "unlearn_rows": "rvfl_jax.learners.edrvfl.algebra",
    "with_prior": "rvfl_jax.learners.edrvfl.prior",
    "with_ridge": "rvfl_jax.learners.edrvfl.gcv",
}


# Modules for users that `import *` leaves out: drawing imports Matplotlib.
_MODULES = ("data", "distributed", "encoders", "plots", "serving")


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
    "Comparison",
    "EdRVFLClassifier",
    "EdRVFLRegressor",
    "EdRVFLState",
    "History",
    "IncrementalPipeline",
    "Learner",
    "NumericalError",
    "Predictor",
    "Run",
    "StepInfo",
    "Stream",
    "Sums",
    "Sweep",
    "adaptive_k",
    "batched",
    "by_task",
    "class_incremental_stream",
    "compare",
    "edrvfl",
    "equations",
    "export_learner",
    "export_model",
    "features",
    "fine_tuned_edrvfl",
    "generalised_cross_validation",
    "in_minibatches",
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
