"""The information form with deferred decisions: add up, and factorise when asked.

    A <- A + D^T D,   B <- B + D^T Y;     theta = (A + k D'^T D')^-1 B  when asked,

with D' of the batch announced at that moment. Sums do not mind how rows are grouped, so the
driver may hand over many batches at once: d^2 rows flops (half of the symmetric Gram), and
d^3 / 3 for each decision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array, DeferredForm
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.features import PendingBatch, featurise
from rvfl_jax.learners.edrvfl.network import Activation
from rvfl_jax.learners.edrvfl.residual import relative_size
from rvfl_jax.learners.edrvfl.sums import Sums, System, learned_state, sums_of
from rvfl_jax.linalg.products import gram, is_finite, matmul
from rvfl_jax.linalg.spd import cho_solve, spd_inverse


@in_brief
class Deferred(NamedTuple):
    """W; the sums so far; finite (L,), False once a batch had to be left out; theta_0."""

    W: Array
    sums: Sums
    finite: Array
    prior: Array | None


@in_brief
class Decision(NamedTuple):
    """A deferred readout: theta (L, d, m), healthy (L,), residual (L,), condition (L,)."""

    theta: Array
    healthy: Array
    residual: Array
    condition: Array


def deferred_form(ridge: Array | float, k: Array | float, activation: Activation) -> DeferredForm:
    """The form for a learner with lambda `ridge` and constant strength `k`."""

    def begin(state: Any) -> Deferred:
        # Before anything is learned nothing need be inverted.
        sums = lax.cond(
            state.num_learned == 0,
            lambda: Sums.zero(state.theta.shape, state.W.dtype),
            lambda: sums_of(state, ridge),
        )
        return Deferred(state.W, sums, jnp.ones(len(state.W), bool), state.prior)

    def absorb(carry: Deferred, X: Any, Y: Any, weight: Any) -> Deferred:
        batch = featurise(carry.W, X, weight, activation)
        more = Sums.of_features(batch.D, batch.weighted(Y))
        usable = batch.finite & jax.vmap(is_finite)(more.moment)
        sums = carry.sums.merge(more.only(usable))
        return carry._replace(sums=sums, finite=carry.finite & usable)

    def announce(
        carry: Deferred, X_next: Any, weight_next: Any
    ) -> tuple[PendingBatch, Array, System, System]:
        """The announced batch, its strengths (L,), and the system without and with its term."""
        upcoming = featurise(carry.W, X_next, weight_next, activation)
        strengths = jnp.broadcast_to(jnp.asarray(k, carry.W.dtype), len(carry.W))
        strengths = jnp.where(jnp.any(upcoming.valid), strengths, 0.0)
        plain = carry.sums.finish(ridge, carry.prior)
        forward = strengths[:, None, None] * jax.vmap(gram)(upcoming.D)
        B = plain.B if carry.prior is None else plain.B + matmul(forward, carry.prior)
        return upcoming, strengths, plain, System(plain.A + forward, B)

    def decide(carry: Deferred, X_next: Any, weight_next: Any) -> Decision:
        upcoming, _, plain, system = announce(carry, X_next, weight_next)
        R = system.factor()
        theta = jax.vmap(cho_solve)(R, system.B)
        solved = jax.vmap(lambda R_l: is_finite(jnp.diag(R_l)))(R) & jax.vmap(is_finite)(theta)
        gap = matmul(system.A, theta) - system.B
        residual = jax.vmap(relative_size)(gap, system.B)
        trace = jnp.trace(plain.A, axis1=1, axis2=2)
        condition = trace / jnp.asarray(ridge, trace.dtype)
        return Decision(theta, solved & carry.finite & upcoming.finite, residual, condition)

    def finish(state: Any, carry: Deferred, batches: Array, X_next: Any, weight_next: Any) -> Any:
        upcoming, strengths, _, (A, B) = announce(carry, X_next, weight_next)
        num_learned = state.num_learned + batches.astype(state.num_learned.dtype)
        learned = learned_state(state, carry.sums, ridge, num_learned)
        eta = lax.cond(
            jnp.any(upcoming.valid), lambda: jax.vmap(spd_inverse)(A), lambda: learned.eta
        )
        theta = lax.cond(jnp.any(upcoming.valid), lambda: matmul(eta, B), lambda: learned.theta)
        return learned._replace(eta=eta, theta=theta, k=strengths)

    return DeferredForm(begin, absorb, decide, finish)
