"""How edRVFL is driven along a stream: features of the announced batch are computed once.

`begin` turns a state and the first batch into what the scan carries, `advance` learns the pending
batch and announces the next, `finish` turns the carry back into a state. One sub-learner's
equations are in `rvfl_jax.learners.edrvfl.solvers`; the vmap over sub-learners is in this file.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import (
    Array,
    DeferredForm,
    FollowForm,
    Name,
    StateFacts,
    StepInfo,
    StreamForm,
)
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.features import PendingBatch, featurise
from rvfl_jax.learners.edrvfl.network import Activation, features, num_features_of
from rvfl_jax.learners.edrvfl.residual import WORTHLESS, Sketch, residual, update
from rvfl_jax.learners.edrvfl.solvers.base import ReadoutSolver, Report, Step, SubLearner
from rvfl_jax.learners.edrvfl.solvers.choice import fastest
from rvfl_jax.learners.edrvfl.state import EdRVFLState, columns_known, differences_of
from rvfl_jax.learners.edrvfl.strength import Strength, is_random, sigma_share
from rvfl_jax.linalg.products import is_finite, matmul


class Figures(NamedTuple):
    """What a step tells in `StepInfo.extras`.

    Attributes:
        k_t: (L,) forward strength of the batch that was learned.
        k_next: (L,) forward strength put on the announced batch; 0 when there is none.
        sigma_share: (L,) part of the trace in eq. (29) that sigma alone decides;
            near 1 when k has collapsed to plain ridge, 0 for a constant k.
        residual: (L,) relative residual ||A theta - B|| / ||B|| of the readout against
            the accumulated Gram A = lambda I + sum D^T D and moment B = lambda theta_0 +
            sum D^T Y, estimated from random sketches.
        condition: (L,) tr(A) / lambda, an upper bound of the condition of A that is close
            where the smallest eigenvalue is lambda.
    """

    k_t: Array
    k_next: Array
    sigma_share: Array
    residual: Array
    condition: Array


@in_brief
class Begun(NamedTuple):
    """The decision of the state that a run began with, kept while the stream stands still.

    Attributes:
        still: () True until there is a batch.
        theta: (L, d, m).
        k: (L,).
    """

    still: Array
    theta: Array
    k: Array


@in_brief
class StreamCarry(NamedTuple):
    """What the scan carries, with a pending batch.

    Attributes:
        W: (L, N + s, N).
        readouts: carries of the solver with a leading L.
        solver: the solver of these carries, which is no array but part of the structure.
        pending: the batch that was announced.
        num_learned: () batches.
        key: as in the state, as are `sketch` and `prior`.
        sketch: see `EdRVFLState`.
        begun: what the run began with.
        prior: see `EdRVFLState`.
    """

    W: Array
    readouts: Any
    solver: ReadoutSolver
    pending: PendingBatch
    num_learned: Array
    key: Array | None
    sketch: Sketch
    begun: Begun
    prior: Array | None = None

    @property
    def theta(self) -> Array:
        """(L, d, m) the readout of now."""
        theta = jax.vmap(self.solver.theta)(self.readouts)
        return jnp.where(self.begun.still, self.begun.theta, theta)


@dataclass(frozen=True, eq=False)
class EdRVFLStream:
    """The functions that drive one learner.

    Attributes:
        num_layers: L.
        ridge: lambda, a scalar or (L,).
        strength: of the forward term.
        activation: g.
        activation_name: the name that states carry.
        solvers: those that the learner may use; the fastest for a batch drives it.
        deferred: the form that adds up and decides later, where there is one.
    """

    num_layers: int
    ridge: Any
    strength: Strength
    activation: Activation
    activation_name: Name
    solvers: tuple[ReadoutSolver, ...]
    deferred: DeferredForm | None

    def form(self) -> StreamForm:
        """How it is driven along a stream."""
        return StreamForm(
            begin=self.begin,
            advance=self.advance,
            finish=self.finish,
            embed=lambda state, X: features(state.W, jnp.asarray(X), self.activation),
            read=lambda carry, Z: matmul(Z, carry.theta),
            deferred=self.deferred,
            read_leading=lambda carry, Z, columns: matmul(Z, carry.theta[..., :columns]),
            follow=FollowForm(_follow, _move, _follow_move, _followed_scores),
            facts=StateFacts(
                num_features=num_features_of,
                width=lambda state: int(jnp.shape(state.theta)[1]),
                columns_known=columns_known,
                differences=lambda expected, state: differences_of(expected, state, self.ridge),
            ),
        )

    def per_learner(self, numbers: Any, dtype: Any) -> Any:
        """A tree of scalars or (L,) as one of (L,)."""
        return jax.tree.map(
            lambda v: jnp.broadcast_to(jnp.asarray(v, dtype), (self.num_layers,)), numbers
        )

    def begin(self, state: EdRVFLState, X: Any, weight: Any) -> StreamCarry:
        """The carry that holds the first batch, whose targets are awaited."""
        pending = featurise(state.W, X, weight, self.activation)
        solve = fastest(self.solvers, *pending.D.shape[1:])
        each = SubLearner(
            state.eta_dagger, state.eta, state.theta_ridge, state.theta, state.k, state.root
        )
        readouts = jax.vmap(lambda r, D, prior: solve.begin(r, pending.of_one(D, prior)))(
            each, pending.D, prior_guess(pending.D, state.prior)
        )
        begun = Begun(~jnp.any(pending.valid), state.theta, state.k)
        return StreamCarry(
            *(state.W, readouts, solve, pending, state.num_learned, state.key, state.sketch),
            begun,
            state.prior,
        )

    def advance(
        self, carry: StreamCarry, Y_t: Any, X_next: Any, weight_next: Any
    ) -> tuple[StreamCarry, StepInfo]:
        """Learn the pending batch with its targets, and announce the next."""
        batch = carry.pending
        upcoming = featurise(carry.W, X_next, weight_next, self.activation)
        Y = batch.weighted(Y_t)
        prior, prior_next = (prior_guess(D, carry.prior) for D in (batch.D, upcoming.D))
        guess = carry.readouts.V if prior is None else carry.readouts.V + prior
        strengths = self.per_learner(self.strength, carry.W.dtype)
        moved, report = self._advance_all(carry, Y, upcoming, prior_next, strengths)
        sketch, gap = _health(carry, moved, report, upcoming.probe)
        extras = self.figures(strengths, report, sketch.trace, gap)
        healthy = report.absorbed & report.sound & upcoming.finite & self.is_sound(gap)
        info = StepInfo(unweighted(batch, guess), healthy, extras._asdict())
        learned = carry.num_learned + jnp.any(batch.valid)
        begun = carry.begun._replace(still=carry.begun.still & ~jnp.any(upcoming.valid))
        carry = carry._replace(
            readouts=moved, pending=upcoming, num_learned=learned, sketch=sketch, begun=begun
        )
        return carry, info

    def figures(self, strengths: Strength, report: Report, trace: Array, gap: Array) -> Figures:
        """What a step tells; of a block with a leading r, as its arguments then have."""
        return Figures(
            k_t=report.k_t,
            k_next=report.k_next,
            sigma_share=lax.stop_gradient(sigma_share(strengths, report.k_next)),
            residual=gap,
            condition=trace / lax.stop_gradient(jnp.asarray(self.ridge, trace.dtype)),
        )

    @staticmethod
    def is_sound(gap: Array) -> Array:
        """Whether residuals are those of something learned."""
        return gap <= WORTHLESS

    def _advance_all(
        self,
        carry: StreamCarry,
        Y: Array,
        upcoming: PendingBatch,
        prior_next: Array | None,
        strengths: Strength,
    ) -> tuple[Any, Report]:
        """The solver's step, for every sub-learner."""
        batch = carry.pending
        usable = batch.finite & is_finite(Y)
        keys = step_keys(self.strength, carry, carry.num_learned)

        def advance_one(
            readout: Any,
            D: Array,
            usable: Array,
            D_next: Array,
            prior_next: Array | None,
            strength: Strength,
            keys: Any,
        ) -> Any:
            step = Step(
                batch=batch.of_one(D),
                Y=Y,
                usable=usable,
                upcoming=upcoming.of_one(D_next, prior_next),
                strength=strength,
                first=carry.num_learned == 0,
                keys=keys,
            )
            return carry.solver.advance(readout, step)

        return jax.vmap(advance_one)(
            carry.readouts, batch.D, usable, upcoming.D, prior_next, strengths, keys
        )

    def finish(self, carry: StreamCarry) -> EdRVFLState:
        """The state after the batches learned."""
        readout = jax.vmap(carry.solver.finish)(carry.readouts)
        still, begun = carry.begun.still, carry.begun
        return EdRVFLState(
            W=carry.W,
            theta=jnp.where(still, begun.theta, readout.theta),
            eta_dagger=readout.eta_dagger,
            eta=readout.eta,
            theta_ridge=readout.theta_ridge,
            k=jnp.where(still, begun.k, readout.k),
            num_learned=carry.num_learned,
            key=carry.key,
            sketch=carry.sketch,
            root=readout.root,
            prior=carry.prior,
            ridge=lax.stop_gradient(self.per_learner(self.ridge, carry.W.dtype)),
            activation=self.activation_name,
        )


def _health(
    carry: StreamCarry, readouts: Any, report: Report, probe_next: Array
) -> tuple[Sketch, Array]:
    """The sketch with the batch just learned, and (L,) the residual of the readouts after it."""
    # Diagnostics have no derivatives: they would cost memory, and norms have none at 0.
    watched = lax.stop_gradient((readouts, carry.pending, report, probe_next))
    sketch = _updated(carry.sketch, *watched[1:3])
    gap = jax.vmap(partial(_residual, carry.solver))(watched[0], sketch, watched[3])
    return sketch, gap


def prior_guess(D: Array, prior: Array | None) -> Array | None:
    """(L, b, m) D theta_0, or None where theta_0 is 0."""
    return None if prior is None else matmul(D, prior)


def _follow(carry: StreamCarry, Z: Array) -> Any:
    following = carry.solver.follow
    return None if following is None else jax.vmap(following.begin)(carry.readouts, Z)


def _move(carry: Any, Z: Array) -> Any:
    assert carry.solver.follow is not None
    return jax.vmap(carry.solver.follow.move)(carry.readouts, Z)


def _follow_move(followed: Any, carry: Any, move: Any) -> Any:
    assert carry.solver.follow is not None
    return jax.vmap(carry.solver.follow.advance)(followed, move)


def _followed_scores(followed: Any, carry: StreamCarry, Z: Array) -> Array:
    following = carry.solver.follow
    assert following is not None
    return lax.cond(
        carry.begun.still,
        lambda: matmul(Z, carry.begun.theta),
        lambda: jax.vmap(following.read)(followed, carry.readouts),
    )


def unweighted(batch: PendingBatch, scores: Array) -> Array:
    """(L, b, m) scores of the rows as they came; 0 in padding."""
    scale = jnp.where(batch.valid, 1.0 / jnp.where(batch.valid, batch.root, 1.0), 0.0)
    return scale[:, None] * scores


def _updated(sketch: Sketch, batch: PendingBatch, report: Report) -> Sketch:
    return jax.vmap(update)(
        sketch, batch.D, batch.probe, report.taught, report.weight, report.absorbed
    )


def _residual(solver: ReadoutSolver, readout: Any, sketch: Sketch, probe_next: Array) -> Array:
    theta, k = solver.solution(readout)
    return residual(sketch, theta, k, probe_next, readout.V)


def step_keys(
    strength: Strength, carry: StreamCarry, num_learned: Array
) -> tuple[Array | None, Array | None]:
    """(L,) keys for k_t and k_{t+1}, or None where the estimator is not random."""
    if not is_random(strength):
        return None, None
    assert carry.key is not None
    keys = jax.random.split(jax.random.fold_in(carry.key, num_learned), (2, len(carry.W)))
    return keys[0], keys[1]
