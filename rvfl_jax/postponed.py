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

from rvfl_jax.health import ledger_of
from rvfl_jax.in_hand import take
from rvfl_jax.linalg import (
    cho_solve,
    cholesky,
    is_finite,
    matmul,
    matmul_tn,
    outer_square,
    spd_inverse,
)
from rvfl_jax.network import Activation
from rvfl_jax.types import Array, PostponedForm


class Sums(NamedTuple):
    """W; A (L, d, d) and B (L, d, m); finite (L,), False once a batch had to be left out."""

    W: Array
    A: Array
    B: Array
    finite: Array


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
        return Sums(state.W, A, matmul(A, state.theta_ridge), jnp.ones(layers, bool))

    def absorb(sums: Sums, X: Any, Y: Any, weight: Any) -> Sums:
        batch = take(sums.W, X, weight, activation)
        targets = batch.root[:, None] * jnp.asarray(Y, sums.W.dtype)
        targets = jnp.where(batch.valid[:, None], targets, 0.0)
        moment = jax.vmap(matmul_tn, (0, None))(batch.D, targets)
        usable = batch.finite & jax.vmap(is_finite)(moment)
        gram = jax.vmap(outer_square)(jnp.swapaxes(batch.D, 1, 2))
        return Sums(
            sums.W,
            sums.A + jnp.where(usable[:, None, None], gram, 0.0),
            sums.B + jnp.where(usable[:, None, None], moment, 0.0),
            sums.finite & usable,
        )

    def decide(sums: Sums, X_next: Any, weight_next: Any) -> Decision:
        upcoming = take(sums.W, X_next, weight_next, activation)
        layers = len(sums.W)
        strengths = jnp.broadcast_to(jnp.asarray(k, sums.W.dtype), (layers,))
        gram = jax.vmap(outer_square)(jnp.swapaxes(upcoming.D, 1, 2))
        A = sums.A + strengths[:, None, None] * gram
        R = jax.vmap(cholesky)(A)
        theta = jax.vmap(cho_solve)(R, sums.B)
        solved = jax.vmap(lambda R_l: is_finite(jnp.diag(R_l)))(R) & jax.vmap(is_finite)(theta)
        gap = jnp.linalg.norm(matmul(A, theta) - sums.B, axis=(1, 2))
        size = jnp.linalg.norm(sums.B, axis=(1, 2))
        residual = jnp.where(size > 0, gap / jnp.where(size > 0, size, 1.0), 0.0)
        condition = jnp.trace(sums.A, axis1=1, axis2=2) / jnp.asarray(ridge, A.dtype)
        return Decision(theta, solved & sums.finite & upcoming.finite, residual, condition)

    def finish(state: Any, sums: Sums, num_learned: Array, X_next: Any, weight_next: Any) -> Any:
        upcoming = take(sums.W, X_next, weight_next, activation)
        announced = jnp.any(upcoming.valid)
        learned = from_sums(state, sums.A, sums.B, num_learned)
        strengths = jnp.where(announced, jnp.broadcast_to(jnp.asarray(k), state.k.shape), 0.0)
        gram = jax.vmap(outer_square)(jnp.swapaxes(upcoming.D, 1, 2))
        eta = lax.cond(
            announced,
            lambda: jax.vmap(spd_inverse)(sums.A + strengths[:, None, None] * gram),
            lambda: learned.eta,
        )
        theta = lax.cond(announced, lambda: matmul(eta, sums.B), lambda: learned.theta)
        return learned._replace(eta=eta, theta=theta, k=strengths.astype(state.k.dtype))

    return PostponedForm(begin, absorb, decide, finish)


def from_sums(state: Any, A: Array, B: Array, num_learned: Array) -> Any:
    """The state that has learned exactly what the sums A (L, d, d) and B (L, d, m) hold."""
    R = jax.vmap(cholesky)(A)
    solved = jax.vmap(lambda R_l: is_finite(jnp.diag(R_l)))(R)[:, None, None]
    theta = jnp.where(solved, jax.vmap(cho_solve)(R, B), jnp.nan)
    eta = jnp.where(solved, jax.vmap(spd_inverse)(A), jnp.nan)
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
