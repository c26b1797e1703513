"""The driver of a stream on which decisions are wanted at a few batches only.

Batches between two decisions are handed over in blocks, since one product with many rows
runs nearer to the machine's limit than many products with few.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.types import Array, Decided, Learner, State
from rvfl_jax.learners.base import LearnerProgram
from rvfl_jax.runs.evaluation import Evaluation, HeldOut, embed_test, evaluate
from rvfl_jax.streams.batches import Batches, update_seen, where_asked

BLOCK_ROWS = 1024


class Plan(NamedTuple):
    """Blocks of batches, none of which crosses a decision.

    Attributes:
        batches: (K, g) indices; T where a block is not full.
        last: (K,) last batch of each block.
        decide: (K,) True where a decision is wanted after the block.
        columns: (K,) see `scan_stream`, for an evaluation after the block.
    """

    batches: np.ndarray
    last: np.ndarray
    decide: np.ndarray
    columns: np.ndarray


class BlockRecord(NamedTuple):
    """What is kept of a block: of its decision, zeros where there was none."""

    healthy: Array
    residual: Array
    condition: Array
    evaluation: Evaluation | None


def plan_blocks(columns: np.ndarray | None, num_batches: int, batch_rows: int) -> Plan:
    """Group T batches of `batch_rows` rows; decide where `columns` (T,) asks, and at the end."""
    T = num_batches
    columns = np.zeros(T, int) if columns is None else columns
    wanted = columns > 0
    wanted[-1] = True
    ends = np.flatnonzero(wanted).tolist()
    longest = max(np.diff(ends, prepend=-1).tolist())
    size = max(1, min(-(-BLOCK_ROWS // batch_rows), longest))
    blocks: list[range] = []
    start = 0
    for end in ends:
        blocks += [range(i, min(i + size, end + 1)) for i in range(start, end + 1, size)]
        start = end + 1
    batches = np.full((len(blocks), size), T)
    for row, block in zip(batches, blocks, strict=True):
        row[: len(block)] = block
    last = np.array([block[-1] for block in blocks])
    return Plan(batches, last, wanted[last], columns[last])


def run_blocks(
    learner: Learner,
    state: State,
    seen: Array,
    batches: Batches,
    plan: Plan,
    test: HeldOut | None,
    *,
    num_batches: int,
) -> tuple[State, BlockRecord]:
    """The whole stream.

    Args:
        learner: a method with a deferred form.
        state: where to start from.
        seen: (m,) classes seen so far.
        batches: T batches, and one more if it is to be announced.
        plan: from `plan_blocks`.
        test: the test set, or None.
        num_batches: T.
    """
    form = learner.stream.deferred
    assert form is not None
    examined = embed_test(learner, state, test)

    def body(carry: tuple[Any, Array], block: Plan) -> tuple[tuple[Any, Array], BlockRecord]:
        sums, seen = carry
        rows = jnp.minimum(block.batches, num_batches - 1)
        filled = (block.batches < num_batches)[:, None]
        X = batches.X[rows].reshape(-1, batches.X.shape[-1])
        weight = jnp.where(filled, batches.weight[rows], 0).reshape(-1)
        targets = jax.nn.one_hot(batches.y[rows].reshape(-1), seen.shape[0])
        sums = form.absorb(sums, X, targets, weight)
        seen = update_seen(seen, targets, weight > 0)

        def decide() -> BlockRecord:
            decision: Decided = form.decide(sums, *batches.after(block.last))
            evaluation = None
            if examined is not None:
                evaluation = evaluate(learner, decision, jnp.asarray(block.columns), seen, examined)
            return BlockRecord(decision.healthy, decision.residual, decision.condition, evaluation)

        return (sums, seen), where_asked(block.decide, decide)

    (sums, _), record = lax.scan(body, (form.begin(state), seen), plan)
    learned = jnp.sum(jnp.any(batches.weight[:num_batches] > 0, axis=1))
    # Read from the plan, since of a constant XLA would fold the padding's features, for seconds.
    return form.finish(state, sums, learned, *batches.after(plan.last[-1])), record


scan_blocks = LearnerProgram(run_blocks, static_argnames="num_batches")
