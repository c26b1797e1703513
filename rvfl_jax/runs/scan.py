"""A learner along a stream as one `lax.scan`: the pure function, and its compiled forms."""

from functools import partial
from typing import Any

import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array, Carry, Learner, State
from rvfl_jax.learners.base import LearnerProgram
from rvfl_jax.runs.evaluation import Examined, HeldOut, begin_to_follow, embed_test, evaluate
from rvfl_jax.runs.history import StepRecord, record_of
from rvfl_jax.runs.step import guess_and_learn
from rvfl_jax.streams.batches import Batches, update_seen


def scan_stream(
    learner: Learner,
    carry: Carry,
    seen: Array,
    batches: Batches,
    *,
    num_steps: int,
    columns: Array | None = None,
    test: Examined | None = None,
    followed: Any = None,
) -> tuple[Carry, Array, Any, StepRecord]:
    """Learn `num_steps` batches in one `lax.scan`; pure, traceable, differentiable.

    Args:
        learner: the method.
        carry: from `learner.stream.begin` on the first batch, or from the scan before.
        seen: (m,) classes met so far.
        batches: at least `num_steps` of them; one more, if there is one, is announced to
            the last step, which otherwise has no forward term. Where they tell the ends of
            tasks, the learner consolidates there.
        num_steps: static.
        columns: (num_steps,) where to look at the test set, and how many leading columns
            then hold every class met; 0 is not now, None is never.
        test: the test set, or None.
        followed: of `begin_to_follow`, or None to compute the scores of the test set anew at
            every look.

    Returns:
        The carry, the classes seen, `followed`, and a `StepRecord` with a leading axis of
        steps.
    """
    advance = partial(guess_and_learn, learner, seen.shape[0])

    def body(
        state: tuple[Carry, Array, Any], t: Array
    ) -> tuple[tuple[Carry, Array, Any], StepRecord]:
        carry, seen, followed = state
        carry, learned = advance(carry, batches.step(t))
        seen = update_seen(seen, learned.targets, learned.valid)
        looked = None
        if test is not None and followed is not None:
            assert learner.stream.follow is not None
            followed = learner.stream.follow.advance(followed, carry, test.Z)
        if test is not None and columns is not None:
            looked = evaluate(learner, carry, columns[t], seen, test, followed)
        return (carry, seen, followed), record_of(learned, looked)

    start = (carry, seen, followed)
    (carry, seen, followed), record = lax.scan(body, start, jnp.arange(num_steps))
    return carry, seen, followed, record


def _init(learner: Learner, key: Array, num_features: int, num_classes: int) -> State:
    return learner.init(key, num_features, num_classes)


def _begin(learner: Learner, state: State, X: Array, weight: Array) -> Carry:
    return learner.stream.begin(state, X, weight)


def _finish(learner: Learner, carry: Carry) -> State:
    return learner.stream.finish(carry)


init_state = LearnerProgram(_init, static_argnames=("num_features", "num_classes"))
begin_jit, finish_jit = LearnerProgram(_begin), LearnerProgram(_finish)
embed_jit, begin_to_follow_jit = LearnerProgram(embed_test), LearnerProgram(begin_to_follow)
scan_jit = LearnerProgram(
    scan_stream, static_argnames="num_steps", donate_argnames=("carry", "followed")
)


def run_whole(
    learner: Learner,
    state: State,
    seen: Array,
    batches: Batches,
    *,
    num_steps: int,
    columns: Array | None = None,
    test: HeldOut | None = None,
    follow: bool = False,
) -> tuple[State, StepRecord]:
    """The whole stream, test features included: init aside, all that a run computes."""
    examined = embed_test(learner, state, test)
    carry = learner.stream.begin(state, batches.X[0], batches.weight[0])
    followed = begin_to_follow(learner, carry, examined) if follow else None
    carry, _, _, record = scan_stream(
        learner,
        carry,
        seen,
        batches,
        num_steps=num_steps,
        columns=columns,
        test=examined,
        followed=followed,
    )
    return learner.stream.finish(carry), record


whole_stream = LearnerProgram(run_whole, static_argnames=("num_steps", "follow"))
