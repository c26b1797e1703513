"""One run of a learner on one stream, and its offline expert, as records."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.fashion_mnist import Case
from experiments.results_file import Record
from rvfl_jax import Learner, offline_scores, run_stream
from rvfl_jax.encoders import leak_guard
from rvfl_jax.metrics import accuracy
from rvfl_jax.runs.comparison import run_metrics


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
    return run_metrics(history, none) | {
        "healthy": bool(history.healthy.all()),
        "evaluated": history.evaluated,
        "task_ends": case.stream.task_ends,
        "curves": dict(history.accuracy),
        "learner_accuracy": history.learner_accuracy,
        "regret": history.regret,
        "kl_curve": history.kl,
        "excess_loss": history.excess_loss,
        "kl_from_expert_curve": history.kl_from_expert,
        "k_t": history.k_t,
        "k_next": history.k_next,
        "prequential": history.prequential_loss,
    }


def expert_of(case: Case, learner: Learner, key: Any) -> np.ndarray:
    """Test scores of the offline expert with the same network."""
    return offline_scores(learner, case.stream, case.Z_test, key=key)


def accuracy_of(scores: np.ndarray, case: Case, learner: Learner) -> float:
    """Class-incremental accuracy of (L, n, m) scores."""
    return float(accuracy(learner.combine(np.float32(scores)), case.columns))


def guarded(
    case: Case,
    learner: Learner,
    key: Any,
    rows: int | None = None,
    *,
    raw_test: np.ndarray | None = None,
) -> Record:
    """The leak guard on test rows, the first so many or all, once the stream is learned.

    Args:
        case: what is learned.
        learner: the method.
        key: of its network.
        rows: how many test rows are moved about; all when None.
        raw_test: test rows before the case's encoder, which then is part of what is guarded.
    """
    state = run_stream(learner, case.stream, key=key, expert=None).state
    encode: Callable[[np.ndarray], np.ndarray] = np.asarray
    if raw_test is not None:
        assert case.encoded is not None
        encode = case.encoded.encode_test
    test = case.Z_test if raw_test is None else raw_test
    leak_guard(lambda X: learner.predict(state, encode(X)), test[:rows])
    return {"passed": True}
