"""The information form with decisions on request: add up, and factorise when asked.

    A <- A + D^T D,   B <- B + D^T Y;     theta = (A + k D'^T D')^-1 B  when asked,

with D' of the batch announced at that moment. Sums do not mind how rows are grouped, so the
driver may hand over many batches at once: d^2 rows flops (half of the symmetric Gram), and
d^3 / 3 for each decision.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array, PostponedForm
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.features import InHand, take
from rvfl_jax.learners.edrvfl.network import Activation
from rvfl_jax.learners.edrvfl.residual import ledger_of, relative_size
from rvfl_jax.linalg.dense import (
    cho_inverse,
    cho_solve,
    cholesky,
    gram,
    is_finite,
    matmul,
    matmul_tn,
    spd_inverse,
)


@in_brief
class Sums(NamedTuple):
    """W; A (L, d, d) and B (L, d, m); finite (L,), False once a batch had to be left out.

    `prior` is the state's.
    """

    W: Array
    A: Array
    B: Array
    finite: Array
    prior: Array | None


@in_brief
class Decision(NamedTuple):
    """A readout on request: theta (L, d, m), healthy (L,), residual (L,), condition (L,)."""

    theta: Array
    healthy: Array
    residual: Array
    condition: Array


def postponed_form(ridge: Array | float, k: Array | float, activation: Activation) -> PostponedForm:
    """The form for a learner with lambda `ridge` and constant strength `k`."""

    def begin(state: Any) -> Sums:
        layers, width, _ = state.theta.shape
        ridges = jnp.broadcast_to(jnp.asarray(ridge, state.W.dtype), (layers,))
        eye = jnp.eye(width, dtype=state.W.dtype)
        # Before anything is learned nothing need be inverted.
        A = lax.cond(
            state.num_learned == 0,
            lambda: ridges[:, None, None] * eye,
            lambda: jax.vmap(spd_inverse)(state.eta_dagger),
        )
        B = matmul(A, state.theta_ridge)
        return Sums(state.W, A, B, jnp.ones(layers, bool), state.prior)

    def absorb(sums: Sums, X: Any, Y: Any, weight: Any) -> Sums:
        batch = take(sums.W, X, weight, activation)
        targets = batch.root[:, None] * jnp.asarray(Y, sums.W.dtype)
        targets = jnp.where(batch.valid[:, None], targets, 0.0)
        moment = jax.vmap(matmul_tn, (0, None))(batch.D, targets)
        usable = batch.finite & jax.vmap(is_finite)(moment)
        grams = jax.vmap(gram)(batch.D)
        return Sums(
            sums.W,
            sums.A + jnp.where(usable[:, None, None], grams, 0.0),
            sums.B + jnp.where(usable[:, None, None], moment, 0.0),
            sums.finite & usable,
            sums.prior,
        )

    def announce(sums: Sums, X_next: Any, weight_next: Any) -> tuple[InHand, Array, Array, Array]:
        """The announced batch, its strengths (L,), and both sums with its forward term."""
        upcoming = take(sums.W, X_next, weight_next, activation)
        strengths = jnp.broadcast_to(jnp.asarray(k, sums.W.dtype), len(sums.W))
        strengths = jnp.where(jnp.any(upcoming.valid), strengths, 0.0)
        forward = strengths[:, None, None] * jax.vmap(gram)(upcoming.D)
        B = sums.B if sums.prior is None else sums.B + matmul(forward, sums.prior)
        return upcoming, strengths, sums.A + forward, B

    def decide(sums: Sums, X_next: Any, weight_next: Any) -> Decision:
        upcoming, _, A, B = announce(sums, X_next, weight_next)
        R = jax.vmap(cholesky)(A)
        theta = jax.vmap(cho_solve)(R, B)
        solved = jax.vmap(lambda R_l: is_finite(jnp.diag(R_l)))(R) & jax.vmap(is_finite)(theta)
        residual = jax.vmap(relative_size)(matmul(A, theta) - B, B)
        condition = jnp.trace(sums.A, axis1=1, axis2=2) / jnp.asarray(ridge, A.dtype)
        return Decision(theta, solved & sums.finite & upcoming.finite, residual, condition)

    def finish(state: Any, sums: Sums, num_learned: Array, X_next: Any, weight_next: Any) -> Any:
        upcoming, strengths, A, B = announce(sums, X_next, weight_next)
        learned = from_sums(state, sums.A, sums.B, num_learned)
        eta = lax.cond(
            jnp.any(upcoming.valid), lambda: jax.vmap(spd_inverse)(A), lambda: learned.eta
        )
        theta = lax.cond(jnp.any(upcoming.valid), lambda: matmul(eta, B), lambda: learned.theta)
        return learned._replace(eta=eta, theta=theta, k=strengths)

    return PostponedForm(begin, absorb, decide, finish)


def from_sums(state: Any, A: Array, B: Array, num_learned: Array) -> Any:
    """The state that has learned exactly what the sums A (L, d, d) and B (L, d, m) hold."""
    R = jax.vmap(cholesky)(A)
    theta = jax.vmap(cho_solve)(R, B)
    eta = jax.vmap(cho_inverse)(R)
    return state._replace(
        theta=theta,
        theta_ridge=theta,
        eta_dagger=eta,
        eta=eta,
        k=jnp.zeros_like(state.k),
        num_learned=num_learned,
        ledger=jax.vmap(ledger_of)(A, B),
        root=None if state.root is None else jnp.swapaxes(R, -1, -2),
    )
