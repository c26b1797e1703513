"""A learner along a stream as one `lax.scan`: the pure function, and its compiled forms."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array, Carry, FollowForm, Learner, State
from rvfl_jax.learners.base import LearnerProgram
from rvfl_jax.linalg.products import running_sums
from rvfl_jax.runs.evaluation import (
    Evaluation,
    Examined,
    HeldOut,
    begin_to_follow,
    embed_test,
    evaluate,
)
from rvfl_jax.runs.history import StepRecord, record_of
from rvfl_jax.runs.step import consolidates, guess_and_learn, guess_and_learn_block
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

    Where the learner has a block form, small batches are learned many at a time.

    Args:
        learner: the method.
        carry: from `learner.stream.begin` on the first batch, or from the scan before.
        seen: (m,) classes seen so far.
        batches: at least `num_steps` of them; one more, if there is one, is announced to
            the last step, which otherwise has no forward term. Where they hold the ends of
            tasks, the learner consolidates there.
        num_steps: static.
        columns: (num_steps,) how many leading columns hold every class seen, where the test set
            is evaluated; 0 elsewhere, None for never.
        test: the test set, or None.
        followed: of `begin_to_follow`, or None to compute the scores of the test set anew at
            every evaluation.

    Returns:
        The carry, the classes seen, `followed`, and a `StepRecord` with a leading axis of
        steps.
    """
    size = block_size(learner, carry, batches, num_steps)
    steps = Steps(learner, seen.shape[0], batches, columns, test)
    state, blocks = (carry, seen, followed), num_steps // size
    if size == 1:
        state, record = lax.scan(steps.one, state, jnp.arange(num_steps))
        return *state, record
    starts = size * jnp.arange(blocks)
    state, record = lax.scan(partial(steps.block, size), state, starts)
    record = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), record)
    if blocks * size < num_steps:
        state, rest = lax.scan(steps.one, state, jnp.arange(blocks * size, num_steps))
        record = jax.tree.map(lambda *parts: jnp.concatenate(parts), record, rest)
    return *state, record


def block_size(learner: Learner, carry: Carry, batches: Batches, num_steps: int) -> int:
    """How many batches are learned at once: those of the learner, spread evenly; 1 for no blocks.

    Blocks of one size leave a rest to be learned batch by batch, of which there is the less the
    nearer their size is to a divisor of the number of batches.
    """
    form = learner.stream.block
    if form is None or (batches.ends is not None and consolidates(learner)):
        return 1
    most = min(form.size(carry, num_steps), num_steps)
    least = -(-3 * most // 4)
    return min(range(most, max(least, 1) - 1, -1), key=lambda size: num_steps % size, default=1)


class Steps(NamedTuple):
    """The bodies of the scan over a stream, of one batch and of a block of them; see `scan_stream`.

    Both take a state (carry, seen, followed) and give the next one with a `StepRecord`.
    """

    learner: Learner
    num_classes: int
    batches: Batches
    columns: Array | None
    test: Examined | None

    def one(
        self, state: tuple[Carry, Array, Any], t: Array
    ) -> tuple[tuple[Carry, Array, Any], StepRecord]:
        """Batch t."""
        carry, seen, followed = state
        carry, learned = guess_and_learn(
            self.learner, self.num_classes, carry, self.batches.step(t)
        )
        seen = update_seen(seen, learned.targets, learned.valid)
        move = None
        if self.test is not None and followed is not None:
            move = self._following.move(carry, self.test.Z)
        followed, evaluation = self._evaluated(carry, seen, followed, move, t)
        return (carry, seen, followed), record_of(learned, evaluation)

    def block(
        self, size: int, state: tuple[Carry, Array, Any], start: Array
    ) -> tuple[tuple[Carry, Array, Any], StepRecord]:
        """`size` batches from `start`; the record with a leading axis of them."""
        carry, seen, followed = state
        at = start + jnp.arange(size)
        steps = jax.vmap(self.batches.step)(at)
        carry, learned, (shared, each) = guess_and_learn_block(
            self.learner, self.num_classes, carry, steps
        )
        met = jax.vmap(partial(update_seen, seen))(learned.targets, learned.valid)
        met = running_sums(met.astype(float)) > 0
        form, test = self.learner.stream.block, self.test
        evaluation = None
        if test is not None and (self.columns is not None or followed is not None):
            assert form is not None
            decided_at = partial(form.decided, shared)
            moves = None
            if followed is not None:
                moves = jax.vmap(lambda e: self._following.move(decided_at(e), test.Z))(each)

            def evaluate_after(followed: Any, of: Any) -> tuple[Any, Any]:
                t, seen, one, move = of
                return self._evaluated(decided_at(one), seen, followed, move, t)

            followed, evaluation = lax.scan(evaluate_after, followed, (at, met, each, moves))
        return (carry, met[-1], followed), jax.vmap(record_of)(learned, evaluation)

    @property
    def _following(self) -> FollowForm:
        assert self.learner.stream.follow is not None
        return self.learner.stream.follow

    def _evaluated(
        self, decided: Any, seen: Array, followed: Any, move: Any, t: Array
    ) -> tuple[Any, Evaluation | None]:
        """The scores that follow, and the evaluation of the test set, after batch t."""
        if followed is not None and self.test is not None:
            followed = self._following.advance(followed, decided, move)
        if self.test is None or self.columns is None:
            return followed, None
        columns = self.columns[t]
        return followed, evaluate(self.learner, decided, columns, seen, self.test, followed)


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
