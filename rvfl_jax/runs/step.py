"""One batch, guessed before it is learned: the step of every scan over a stream."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import shape
from rvfl_jax.core.types import Array, Carry, Learner, State, StepInfo, keep_state
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.base import state_differences
from rvfl_jax.metrics import by_learner
from rvfl_jax.streams.batches import BatchStep


@in_brief
class Learned(NamedTuple):
    """What is known of one batch once it is learned.

    Attributes:
        info: what the learner tells.
        targets: (b, m) one-hot.
        valid: (b,) False in padding.
        rows: scalar, the valid rows.
        hits: scalar, how many of them were guessed right before they were learned.
        loss: scalar, the learner's loss of these guesses, the sum over rows.
    """

    info: StepInfo
    targets: Array
    valid: Array
    rows: Array
    hits: Array
    loss: Array


def guess_and_learn(
    learner: Learner, num_classes: int, carry: Carry, step: BatchStep
) -> tuple[Carry, Learned]:
    """Guess the batch in hand, learn it, and consolidate if a task is known to end with it.

    Args:
        learner: the method.
        num_classes: m, columns of the targets.
        carry: of its stream form.
        step: labels of the batch in hand, and the batch after it.

    Raises:
        ValueError: on what a step may not tell.
    """
    targets = jax.nn.one_hot(step.y, num_classes)
    carry, info = learner.stream.advance(carry, targets, step.X_next, step.weight_next)
    if step.ends is not None and consolidates(learner):
        carry = lax.cond(step.ends, lambda: _consolidated(learner, carry, step), lambda: carry)
    return carry, _learned(learner, info, targets, step)


def guess_and_learn_block(
    learner: Learner, num_classes: int, carry: Carry, steps: BatchStep
) -> tuple[Carry, Learned, tuple[Any, Any]]:
    """The same for r batches at once, of a method with a block form.

    Args:
        learner: the method, to which the end of a task is nothing.
        num_classes: m, columns of the targets.
        carry: of its stream form.
        steps: of r batches, a leading r.

    Returns:
        The carry after all of them, what is known of each, and what its block form gives.
    """
    form = learner.stream.block
    assert form is not None
    targets = jax.nn.one_hot(steps.y, num_classes)
    carry, info, shared, each = form.advance(carry, targets, steps.X_next, steps.weight_next)
    learned = jax.vmap(partial(_learned, learner))(info, targets, steps)
    return carry, learned, (shared, each)


def _learned(learner: Learner, info: StepInfo, targets: Array, step: BatchStep) -> Learned:
    valid = step.weight > 0
    scores = _guesses(info, targets)
    error = learner.loss(scores, targets)
    hit = jnp.argmax(learner.combine(scores), axis=-1) == step.y
    return Learned(
        info,
        targets,
        valid,
        rows=jnp.sum(valid),
        hits=jnp.sum(valid & hit),
        loss=jnp.sum(jnp.where(valid, error, 0.0)),
    )


def _guesses(info: StepInfo, targets: Array) -> Array:
    """(L, b, m) what a step tells of its batch; ValueError if that is no such thing."""
    if not isinstance(info, StepInfo):
        raise ValueError(
            f"step: expected it to give (state, StepInfo(...)), got {type(info).__name__}"
        )
    scores = by_learner(jnp.asarray(info.guess_scores))
    shape("guess_scores", scores, (None, *targets.shape), "(L, b, m), or (b, m)")
    return scores


def consolidates(learner: Learner) -> bool:
    """Whether the end of a task is anything to this learner."""
    return learner.consolidate is not keep_state


def _consolidated(learner: Learner, carry: Carry, step: BatchStep) -> Carry:
    """The carry at the end of a task, with the batch announced already in hand."""
    before = learner.stream.finish(carry)
    state: State = learner.consolidate(before)
    faults = state_differences(before, state)
    if faults:
        raise ValueError(
            f"consolidate: expected a state like the one given, got another: {'; '.join(faults)}"
        )
    begun = learner.stream.begin(jax.tree.map(_of_kind, state, before), *step[2:4])
    return jax.tree.map(_of_kind, begun, carry)


def _of_kind(leaf: Any, like: Any) -> Any:
    """A leaf in the dtype of another, as both ways of a condition must have one."""
    return leaf if getattr(leaf, "dtype", None) == like.dtype else jnp.asarray(leaf, like.dtype)
