"""The covariance form: P = eta_dagger itself is carried and updated by low rank.

With G = P D^T and M = D G of the batch in hand, and Phi = P B the ridge readout,

    P     <- P - c G (I + c M)^-1 G^T
    Phi   <- Phi + G (I + c M)^-1 (Y - c D Phi)
    theta  = Phi - k G' (I + k M')^-1 D' Phi         G', M' of the batch announced next

by Woodbury's identity, where c says how often the batch's Gram stays inside (1 but for
Algorithm 2 and the paper's cold start). eta is never formed: the G' and M' that give
theta are those that absorb the batch at the next step, so a step costs two d x d x b
products, 4 d^2 b flops.
"""

from typing import NamedTuple

import jax.numpy as jnp

from rvfl_jax.linalg import (
    cho_solve,
    cholesky,
    identity_plus,
    is_finite,
    matmul,
    solve_lower,
    symmetrise,
)
from rvfl_jax.solvers.contract import Batch, Readout, Report, strength_or_none
from rvfl_jax.strength import (
    ConstantK,
    Strength,
    estimate_k,
    estimates,
    gram_weight,
)
from rvfl_jax.types import Array


class Carry(NamedTuple):
    """P (d, d), Phi and theta (d, m); G (d, b), M (b, b) and k of the batch in hand."""

    P: Array
    Phi: Array
    theta: Array
    G: Array
    M: Array
    k: Array


def begin(readout: Readout, batch: Batch) -> Carry:
    """Take the first batch in hand: 2 d^2 b flops."""
    G = matmul(readout.eta_dagger, batch.D.T)
    M = matmul(batch.D, G)
    return Carry(readout.eta_dagger, readout.theta_ridge, readout.theta, G, M, readout.k)


def advance(
    carry: Carry,
    batch: Batch,
    Y: Array,
    usable: Array,
    upcoming: Batch,
    strength: Strength,
    *,
    forward: bool,
    skip_gram: Array | None,
    keys: tuple[Array | None, Array | None],
) -> tuple[Carry, Report]:
    """Learn the batch in hand and announce the next one.

    Args:
        carry: of the previous step.
        batch: the batch in hand.
        Y: (b, m) weighted targets.
        usable: scalar, False if the batch must leave no trace.
        upcoming: the batch announced next.
        strength: scalar k, or scalar kappa and sigma.
        forward: False if k is known to be 0, which saves the forward term.
        skip_gram: see `rvfl_jax.strength.gram_weight`.
        keys: PRNG keys for the two estimates of k, or None.
    """
    k_t = _strength_in_hand(carry, batch, strength, keys[0])
    c = gram_weight(strength, carry.k, k_t, skip_gram)
    if estimates(strength):
        # Only here does c depend on k_t; else P must not, so that a sweep over k shares it.
        usable = usable & jnp.isfinite(k_t)
        c = jnp.where(usable, c, 0.0)
    R = cholesky(identity_plus(c, carry.M))
    P, Phi, absorbed = _absorb(carry, batch.D, Y, usable, R, c)
    G = matmul(P, upcoming.D.T)
    M = matmul(upcoming.D, G)
    k = _strength_announced(carry, M, G, R, c, batch, upcoming, strength, keys[1])
    if not forward:
        return Carry(P, Phi, Phi, G, M, k), Report(k_t, k, absorbed)
    theta, k, announced = _look_ahead(Phi, G, M, upcoming.D, k)
    return Carry(P, Phi, theta, G, M, k), Report(k_t, k, absorbed & announced)


def finish(carry: Carry) -> Readout:
    """Materialise eta: 2 d^2 b flops."""
    P = symmetrise(carry.P)
    S = solve_lower(cholesky(identity_plus(carry.k, carry.M)), carry.G.T)
    eta = symmetrise(P - carry.k * matmul(S.T, S))
    return Readout(P, eta, carry.Phi, carry.theta, carry.k)


def _absorb(
    carry: Carry, D: Array, Y: Array, usable: Array, R: Array, c: Array | float
) -> tuple[Array, Array, Array]:
    residual = solve_lower(R, Y - c * matmul(D, carry.Phi))
    S = solve_lower(R, carry.G.T)
    healthy = usable & is_finite(jnp.diag(R)) & is_finite(residual)
    S = jnp.where(healthy, S, 0.0)
    residual = jnp.where(healthy, residual, 0.0)
    P = carry.P - c * matmul(S.T, S)
    return P, carry.Phi + matmul(S.T, residual), healthy


def _look_ahead(Phi: Array, G: Array, M: Array, D: Array, k: Array) -> tuple[Array, Array, Array]:
    R = cholesky(identity_plus(k, M))
    correction = matmul(G, k * cho_solve(R, matmul(D, Phi)))
    healthy = is_finite(correction)
    correction = jnp.where(healthy, correction, 0.0)
    return Phi - correction, jnp.where(healthy, k, 0.0), healthy


def _strength_in_hand(carry: Carry, batch: Batch, strength: Strength, key: Array | None) -> Array:
    """k_t, from D_t eta_t D_t^T = (I + k M)^-1 M."""
    if isinstance(strength, ConstantK):
        return jnp.asarray(strength.k, carry.k.dtype)
    if not estimates(strength):
        return carry.k
    R_k = cholesky(identity_plus(carry.k, carry.M))
    return estimate_k(strength, symmetrise(cho_solve(R_k, carry.M)), batch.valid, key)


def _strength_announced(
    carry: Carry,
    M: Array,
    G: Array,
    R: Array,
    c: Array | float,
    batch: Batch,
    upcoming: Batch,
    strength: Strength,
    key: Array | None,
) -> Array:
    """k_{t+1}, from D' eta_t D'^T.

    eta_t differs from the P of now by what the step has just absorbed and by the forward
    term that it held:
    D' eta_t D'^T = M' + (c - k) C (I + c M)^-1 (I + k M)^-1 C^T,  C = D' P_t D_t^T.
    """
    if isinstance(strength, ConstantK):
        return strength_or_none(jnp.asarray(strength.k, carry.k.dtype), upcoming)
    C = matmul(upcoming.D, carry.G)
    R_k = cholesky(identity_plus(carry.k, carry.M))
    change = (c - carry.k) * matmul(C, cho_solve(R, cho_solve(R_k, C.T)))
    return estimate_k(strength, symmetrise(M + change), upcoming.valid, key)
