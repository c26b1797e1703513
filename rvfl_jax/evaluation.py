"""What is measured on a fixed test set, inside the compiled stream."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.metrics import accuracy, kl_divergence, protocol_hits, regret
from rvfl_jax.types import Array, Learner, State


class Expert(NamedTuple):
    """What the offline expert says of the test rows: (n, m) scores and probabilities."""

    scores: Array
    probabilities: Array


class Examined(NamedTuple):
    """Test rows; the driver replaces the inputs and the raw expert by what can be reused.

    Attributes:
        Z: the inputs, then what `StreamForm.embed` made of them.
        y: (n,) columns.
        class_task: (m,) task of each column.
        rows_of_task: (Q,) test rows of each task.
        expert: (L, n, m) raw scores of the offline expert, then an `Expert`; or None.
    """

    Z: Any
    y: Any
    class_task: Any
    rows_of_task: Any
    expert: Any


class Evaluation(NamedTuple):
    """One look at the test set.

    Attributes:
        accuracy: protocol to scalar accuracy over all rows ("seen": rows of classes seen).
        task_accuracy: protocol to (Q,) accuracy on each task's rows.
        learner_accuracy: (L,) class-incremental accuracy of each sub-learner, eq. (33).
        regret: scalar, eq. (34); NaN without an expert.
        kl: scalar, eq. (35); NaN without an expert.
    """

    accuracy: dict[str, Array]
    task_accuracy: dict[str, Array]
    learner_accuracy: Array
    regret: Array
    kl: Array


def embed_test(learner: Learner, state: State, test: Examined | None) -> Examined | None:
    """Do once what every look at the test set would do again."""
    if test is None:
        return None
    expert = test.expert
    if expert is not None:
        expert = Expert(jnp.mean(expert, axis=0), learner.combine(expert))
    return test._replace(Z=learner.stream.embed(state, test.Z), expert=expert)


def evaluate_scores(
    scores: Array, seen: Array, test: Examined, combine: Callable[[Array], Array]
) -> Evaluation:
    """Measure (L, n, m) raw scores of the test rows.

    Args:
        scores: of every sub-learner.
        seen: (m,) classes that the learner has met.
        test: the test set.
        combine: (L, n, m) scores to (n, m) probabilities.
    """
    probabilities = combine(scores)
    hits = protocol_hits(probabilities, test.y, class_task=test.class_task, seen=seen)
    row_task = test.class_task[test.y]
    num_tasks = len(test.rows_of_task)
    by_task = {
        name: jax.ops.segment_sum(hit.astype(scores.dtype), row_task, num_tasks)
        for name, hit in hits.items()
    }
    rows = jnp.full((), len(test.y), scores.dtype)
    seen_rows = jnp.maximum(jnp.sum(seen[test.y]), 1)
    overall = {
        name: jnp.sum(count) / (seen_rows if name == "seen" else rows)
        for name, count in by_task.items()
    }
    # A task without test rows has no accuracy: 0 / 0 is the NaN that says so.
    task_accuracy = {name: count / test.rows_of_task for name, count in by_task.items()}
    against_expert = _against_expert(scores, probabilities, test)
    return Evaluation(
        overall, task_accuracy, accuracy(scores, test.y).astype(scores.dtype), *against_expert
    )


def _against_expert(scores: Array, probabilities: Array, test: Examined) -> tuple[Array, Array]:
    if test.expert is None:
        unknown = jnp.full((), jnp.nan, scores.dtype)
        return unknown, unknown
    targets = jax.nn.one_hot(test.y, scores.shape[-1], dtype=scores.dtype)
    return (
        regret(jnp.mean(scores, axis=0), test.expert.scores, targets),
        kl_divergence(test.expert.probabilities, probabilities),
    )
