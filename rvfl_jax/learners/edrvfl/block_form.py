"""How edRVFL is driven along a stream of small batches: many at once, each as if by itself.

The features of a block are computed together and its batches are learned by the solver's
`BlockwiseForm`; carry, guesses, strengths, diagnostics and readouts are those of
`rvfl_jax.learners.edrvfl.stream_form`, batch by batch. The vmap over sub-learners is in this file.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array, BlockForm, StepInfo
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.features import PendingBatch, featurise
from rvfl_jax.learners.edrvfl.residual import LearnedBlock, Sketch, residuals_along
from rvfl_jax.learners.edrvfl.solvers.base import (
    BlockStep,
    Glimpse,
    ReadoutSolver,
    Report,
    Trail,
)
from rvfl_jax.learners.edrvfl.stream_form import (
    Begun,
    EdRVFLStream,
    StreamCarry,
    prior_guess,
    step_keys,
    unweighted,
)
from rvfl_jax.linalg.products import is_finite


@in_brief
class Shared(NamedTuple):
    """What all readouts of a block are made of, a leading L each, and what the run began with."""

    trail: Trail
    solver: ReadoutSolver
    begun: Begun


@in_brief
class Decided(NamedTuple):
    """The readouts after one batch of a block; see `StreamCarry` for the names.

    Attributes:
        trail: of the block, a leading L.
        readouts: the glimpse of that batch, a leading L.
        solver: that made them.
        begun: what the run began with.
    """

    trail: Trail
    readouts: Glimpse
    solver: ReadoutSolver
    begun: Begun

    @property
    def theta(self) -> Array:
        """(L, d, m) the readout after the batch."""
        assert self.solver.block is not None
        theta = jax.vmap(self.solver.block.theta)(self.trail, self.readouts)
        return jnp.where(self.begun.still, self.begun.theta, theta)


def block_form(stream: EdRVFLStream) -> BlockForm:
    """The form of one learner."""

    def advance(
        carry: StreamCarry, Y: Any, X_next: Any, weight_next: Any
    ) -> tuple[StreamCarry, StepInfo, Shared, Any]:
        return _advance(stream, carry, Y, X_next, weight_next)

    def decided(shared: Shared, each: tuple[Glimpse, Array]) -> Decided:
        glimpse, still = each
        return Decided(shared.trail, glimpse, shared.solver, shared.begun._replace(still=still))

    return BlockForm(_size, advance, decided)


def _size(carry: StreamCarry, steps: int) -> int:
    layers, rows, width = carry.pending.D.shape
    return 1 if carry.solver.block is None else carry.solver.block.size(rows, width, layers, steps)


def _advance(
    stream: EdRVFLStream, carry: StreamCarry, Y: Any, X_next: Any, weight_next: Any
) -> tuple[StreamCarry, StepInfo, Shared, tuple[Glimpse, Array]]:
    """Learn the pending batch and those after it, and announce the one behind them."""
    upcoming = jax.vmap(featurise, (None, 0, 0, None))(
        carry.W, X_next, weight_next, stream.activation
    )
    batches = jax.tree.map(
        lambda one, more: jnp.concatenate([one[None], more]), carry.pending, upcoming
    )
    learned: PendingBatch = jax.tree.map(lambda leaf: leaf[:-1], batches)
    Y = jax.vmap(PendingBatch.weighted)(learned, Y)
    has_rows = jnp.any(batches.valid, axis=1).astype(carry.num_learned.dtype)
    # (r + 1,) batches learned before each one.
    counts = carry.num_learned + jnp.cumsum(has_rows, dtype=has_rows.dtype) - has_rows
    strengths = stream.per_learner(stream.strength, carry.W.dtype)
    prior = (
        None if carry.prior is None else jax.vmap(prior_guess, (0, None))(batches.D, carry.prior)
    )
    moved, report, trail, glimpse = _advance_all(
        stream, carry, batches, Y, prior, counts[:-1], strengths
    )
    sketch, traces, gaps = _health(carry.sketch, learned, report, trail)
    extras = stream.figures(strengths, report, traces, gaps)
    healthy = report.absorbed & report.sound & upcoming.finite & stream.is_sound(gaps)
    V = jnp.concatenate([carry.readouts.V[None], glimpse.V[:-1]])
    guesses = jax.vmap(unweighted)(learned, V if prior is None else V + prior[:-1])
    stood = carry.begun.still & (jnp.cumsum(has_rows[1:]) == 0)
    carry = carry._replace(
        readouts=moved,
        pending=jax.tree.map(lambda leaf: leaf[-1], batches),
        num_learned=counts[-1],
        sketch=sketch,
        begun=carry.begun._replace(still=stood[-1]),
    )
    shared = Shared(trail, carry.solver, carry.begun)
    return carry, StepInfo(guesses, healthy, extras._asdict()), shared, (glimpse, stood)


def _advance_all(
    stream: EdRVFLStream,
    carry: StreamCarry,
    batches: PendingBatch,
    Y: Array,
    prior: Array | None,
    counts: Array,
    strengths: Any,
) -> tuple[Any, Report, Trail, Glimpse]:
    """The solver's block, for every sub-learner; reports and glimpses lead with r, then L."""
    usable = batches.finite[:-1] & jax.vmap(is_finite)(Y)[:, None]
    keys = jax.vmap(lambda count: step_keys(stream.strength, carry, count))(counts)
    assert carry.solver.block is not None
    advance = carry.solver.block.advance

    def advance_one(
        readout: Any, D: Array, prior: Array | None, usable: Array, strength: Any, keys: Any
    ) -> Any:
        block = BlockStep(D, batches.valid, prior, Y, usable, counts == 0, strength, keys)
        return advance(readout, block)

    return jax.vmap(advance_one, (0, 1, 1, 1, 0, 1), (0, 1, 0, 1))(
        carry.readouts, batches.D, prior, usable, strengths, keys
    )


def _health(
    sketch: Sketch, learned: PendingBatch, report: Report, trail: Trail
) -> tuple[Sketch, Array, Array]:
    """The sketch after the block; after each batch tr(A) and the residual, both (r, L)."""
    # Diagnostics have no derivatives: they would cost memory, and norms have none at 0.
    learned, report, trail = lax.stop_gradient((learned, report, trail))
    block = LearnedBlock(learned.D, learned.probe, report.taught, report.weight, report.absorbed)
    return jax.vmap(residuals_along, (0, 1, 0), (0, 1, 1))(sketch, block, trail)
