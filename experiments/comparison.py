"""One run of a learner on one stream, and its offline expert, as records."""

from typing import Any

import jax
import numpy as np

from experiments.fashion_mnist import Case
from experiments.results_file import Record
from rvfl_jax import Learner, offline_scores, run_stream
from rvfl_jax.experiment import run_metrics


def run_and_keep(
    case: Case,
    learner: Learner,
    key: Any,
    *,
    evaluate: str | int = "batch",
    expert: np.ndarray | None = None,
) -> Record:
    """One run's metrics and curves as a record."""
    history = run_stream(
        learner,
        case.stream,
        key=key,
        test=(case.Z_test, case.y_test),
        evaluate=evaluate,
        expert=expert,
        on_failure="return",
    ).history
    none = np.full(case.stream.num_tasks, np.nan)
    values = run_metrics(history, none, 1.0, 1)
    kept = {name: value for name, value in values.items() if "second" not in name}
    return kept | {
        "healthy": bool(history.healthy.all()),
        "evaluated": history.evaluated,
        "task_ends": case.stream.task_ends,
        "curves": dict(history.accuracy),
        "learner_accuracy": history.learner_accuracy,
        "regret": history.regret,
        "kl_curve": history.kl,
        "k_t": history.k_t,
        "k_next": history.k_next,
        "prequential": history.prequential_loss,
    }


def expert_of(case: Case, learner: Learner, key: Any) -> np.ndarray:
    """Test scores of the offline expert with the same network."""
    return offline_scores(learner, case.stream, case.Z_test, key=key)


def accuracy_of(scores: np.ndarray, case: Case) -> float:
    """Class-incremental accuracy of (L, n, m) scores."""
    probabilities = jax.nn.softmax(np.asarray(scores), axis=-1).mean(axis=0)
    return float(np.mean(np.asarray(probabilities).argmax(axis=1) == case.columns))
