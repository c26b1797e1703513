"""What is measured on a fixed test set, inside the compiled stream."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.checks import shape
from rvfl_jax.core.types import Array, Carry, Combine, Learner, State
from rvfl_jax.core.words import in_brief
from rvfl_jax.metrics import (
    accuracy,
    by_learner,
    kl,
    kl_divergence,
    protocol_hits,
    regret,
    squared_loss,
)
from rvfl_jax.streams.batches import where_asked

# Scores are computed in at most this many widths, no finer than so many columns.
MAX_WIDTHS = 16
COLUMNS_APART = 8


@in_brief
class Expert(NamedTuple):
    """What the offline expert says of the test rows: its loss, (n, m) probabilities."""

    loss: Array
    probabilities: Array


@in_brief
class HeldOut(NamedTuple):
    """Test rows as they come.

    Attributes:
        X: (n, s) inputs.
        y: (n,) columns.
        class_task: (m,) task of each column.
        rows_of_task: (Q,) test rows of each task.
        expert_scores: (L, n, m) raw scores of the offline expert, or None.
        counts: (m, m) integer zeros to count in which class is taken for which; or None.
    """

    X: Any
    y: Any
    class_task: Any
    rows_of_task: Any
    expert_scores: Any = None
    counts: Any = None


@in_brief
class Examined(NamedTuple):
    """The same rows for many looks, with all done that each of them would do again.

    Attributes:
        Z: what `StreamForm.embed` made of the inputs.
        y: see `HeldOut`, as for the next two.
        class_task: (m,).
        rows_of_task: (Q,).
        expert: what the offline expert says of them, or None.
        counts: see `HeldOut`.
    """

    Z: Any
    y: Any
    class_task: Any
    rows_of_task: Any
    expert: Expert | None
    counts: Any = None


@in_brief
class Evaluation(NamedTuple):
    """One look at the test set.

    Attributes:
        accuracy: protocol to scalar accuracy over all rows ("seen": rows of classes seen).
        task_accuracy: protocol to (Q,) accuracy on each task's rows.
        learner_accuracy: (L,) class-incremental accuracy of each sub-learner, eq. (33).
        regret: scalar, eq. (34).
        kl: scalar, eq. (35).
        excess_loss: scalar, squared loss beyond the offline expert's; NaN without an expert.
        kl_from_expert: scalar, divergence from the expert's probabilities; NaN without one.
        confusion: (m, m) rows of the class of column i for which column j was answered; None
            where nobody counts.
    """

    accuracy: dict[str, Array]
    task_accuracy: dict[str, Array]
    learner_accuracy: Array
    regret: Array
    kl: Array
    excess_loss: Array
    kl_from_expert: Array
    confusion: Array | None = None


def embed_test(learner: Learner, state: State, test: HeldOut | None) -> Examined | None:
    """Do once what every look at the test set would do again."""
    if test is None:
        return None
    expert = None
    if test.expert_scores is not None:
        scores = by_learner(test.expert_scores)
        targets = jax.nn.one_hot(test.y, scores.shape[-1], dtype=scores.dtype)
        loss = squared_loss(jnp.mean(scores, axis=0), targets)
        expert = Expert(loss, learner.combine(scores))
    Z = learner.stream.embed(state, test.X)
    return Examined(Z, test.y, test.class_task, test.rows_of_task, expert, test.counts)


def columns_seen(known: int, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """(T,) how many leading columns hold every class met up to each batch.

    Args:
        known: the same before the first batch.
        y: (T, b) columns.
        weight: (T, b); rows of weight 0 do not count.
    """
    reach = np.max(np.where(weight > 0, y + 1, 0), axis=1)
    return np.maximum(np.maximum.accumulate(reach), max(known, 1))


def worth_following(columns: np.ndarray | None, rows: int, width: int, num_classes: int) -> bool:
    """Whether scores are better updated at every batch than computed anew at every look.

    Updates cost 2 n b (d + 2 m) flops at each of T batches, new scores 2 n d columns.

    Args:
        columns: (T,) leading columns to score, 0 where nobody looks; None for never.
        rows: b.
        width: d.
        num_classes: m.
    """
    if columns is None:
        return False
    return len(columns) * rows * (width + 2 * num_classes) < width * int(columns.sum())


def begin_to_follow(learner: Learner, carry: Carry, test: Examined | None) -> Any:
    """What `scan_stream` follows the scores by; None where it has to compute them anew."""
    if test is None or learner.stream.follow is None:
        return None
    return learner.stream.follow.begin(carry, test.Z)


def evaluate(
    learner: Learner,
    decided: Any,
    columns: Array,
    seen: Array,
    test: Examined,
    followed: Any = None,
) -> Evaluation:
    """Measure a decision on the test set, or give zeros where `columns` is 0.

    Args:
        learner: the method.
        decided: what its `StreamForm` reads.
        columns: scalar, how many leading columns hold every class met so far.
        seen: (m,) classes that the learner has met.
        test: the test set.
        followed: of its `FollowForm`, if the scores are followed.
    """

    def measure() -> Evaluation:
        if followed is None:
            scores = _leading_scores(learner, decided, columns, seen.shape[0], test)
        else:
            assert learner.stream.follow is not None
            scores = learner.stream.follow.read(followed, decided, test.Z)
        return evaluate_scores(scores, seen, test, learner.combine)

    return where_asked(columns > 0, measure)


def _leading_scores(
    learner: Learner, decided: Any, columns: Array, num_classes: int, test: Examined
) -> Array:
    """(L, n, m) scores; the product leaves out most columns of classes never met.

    On 10,000 rows and 100 classes the whole product costs more than learning a batch.
    """
    leading = learner.stream.read_leading
    if leading is None:
        scores = by_learner(learner.stream.read(decided, test.Z))
        shape("scores", scores, (None, len(test.y), num_classes), "(L, n, m), or (n, m)")
        return scores
    widths = _widths(num_classes)

    def score(width: int) -> Array:
        scores = leading(decided, test.Z, width)
        return jnp.pad(scores, [(0, 0), (0, 0), (0, num_classes - width)])

    at = jnp.searchsorted(jnp.asarray(widths), columns)
    return lax.switch(at, [lambda width=width: score(width) for width in widths])


def _widths(num_classes: int) -> list[int]:
    apart = COLUMNS_APART * -(-num_classes // (COLUMNS_APART * MAX_WIDTHS))
    return [*range(apart, num_classes, apart), num_classes]


def evaluate_scores(scores: Array, seen: Array, test: Examined, combine: Combine) -> Evaluation:
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
    targets = jax.nn.one_hot(test.y, scores.shape[-1], dtype=scores.dtype)
    against_labels = regret(scores, targets), kl(scores, targets)
    against_expert = _against_expert(scores, probabilities, targets, test)
    confusion = None
    if test.counts is not None:
        answers = jnp.argmax(probabilities, axis=-1)
        confusion = jnp.asarray(test.counts).at[test.y, answers].add(1)
    of_learner = accuracy(scores, test.y).astype(scores.dtype)
    return Evaluation(
        overall, task_accuracy, of_learner, *against_labels, *against_expert, confusion
    )


def _against_expert(
    scores: Array, probabilities: Array, targets: Array, test: Examined
) -> tuple[Array, Array]:
    if test.expert is None:
        unknown = jnp.full((), jnp.nan, scores.dtype)
        return unknown, unknown
    return (
        squared_loss(jnp.mean(scores, axis=0), targets) - test.expert.loss,
        kl_divergence(test.expert.probabilities, probabilities),
    )
