"""The information form: A = lambda I + sum_i D_i^T D_i and B = sum_i D_i^T Y_i.

    A <- A + S,  B <- B + D^T Y,  theta = (A + k S')^-1 B,    S = D^T D

with the Gram S' of the announced batch kept for the next step, which absorbs it. A step
costs d^2 b + d^3 / 3 flops (plus triangular solves for m columns), which beats the
covariance form where b is of the order of d or beyond, and every sum is additive.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.solvers.base import (
    FeatureBatch,
    ReadoutSolver,
    Report,
    SolverOptions,
    Step,
    SubLearner,
    gram_weight,
    strength_or_none,
)
from rvfl_jax.learners.edrvfl.strength import (
    AdaptiveK,
    ConstantK,
    Strength,
    estimate_k,
    inverse_trace,
    k_of_pending,
    taught_targets,
)
from rvfl_jax.linalg.products import gram, is_finite, matmul, matmul_tn
from rvfl_jax.linalg.spd import cho_solve, cholesky, solve_lower, spd_inverse


@in_brief
class InformationCarry(NamedTuple):
    """Sums A (d, d) and B (d, m), decision theta (d, m), and the pending batch.

    Of that batch: its Gram S (d, d), its strength k, V = D (theta - theta_0) (b, m), and R
    (d, d), the lower factor of A + k S.
    """

    A: Array
    B: Array
    theta: Array
    R: Array
    S: Array
    V: Array
    k: Array


def begin(readout: SubLearner, batch: FeatureBatch) -> InformationCarry:
    """Make the first batch the pending one; inverts eta_dagger once."""
    A = spd_inverse(readout.eta_dagger)
    B = matmul(A, readout.theta_ridge)
    S = gram(batch.D)
    V = batch.beyond_prior(matmul(batch.D, readout.theta))
    return InformationCarry(A, B, readout.theta, cholesky(A + readout.k * S), S, V, readout.k)


def advance(
    carry: InformationCarry, step: Step, options: SolverOptions
) -> tuple[InformationCarry, Report]:
    """Learn the pending batch and announce the next one."""
    batch, Y, usable, upcoming, strength, _, keys = step
    k_t = k_of_pending(
        strength, carry.k, lambda adaptive: _estimate(carry, carry.S, batch, adaptive, keys[0])
    )
    Y, estimated = taught_targets(strength, Y, carry.V, carry.k, k_t)
    c = gram_weight(options, step)
    moment = matmul_tn(batch.D, Y)
    S = gram(upcoming.D)
    k = _strength_announced(carry, S, upcoming, strength, keys[1])
    absorbable = usable & is_finite(moment) & _fits(carry.S)
    announced = jnp.isfinite(k) & _fits(S)
    k = jnp.where(announced, k, 0.0)
    A = jnp.where(absorbable, carry.A + c * carry.S, carry.A)
    B = carry.B + jnp.where(absorbable, moment, 0.0)
    R = cholesky(_with_forward_term(A, k, S))
    pulled = B if upcoming.prior is None else B + k * matmul_tn(upcoming.D, upcoming.prior)
    decision = cho_solve(R, pulled)
    solved = is_finite(jnp.diag(R)) & is_finite(decision)
    A, B, R, decision = (
        jnp.where(solved, new, old)
        for new, old in ((A, carry.A), (B, carry.B), (R, carry.R), (decision, carry.theta))
    )
    k = jnp.where(solved, k, 0.0)
    V = upcoming.beyond_prior(matmul(upcoming.D, decision))
    report = Report(k_t, k, absorbable & solved, announced & estimated & solved, c, Y)
    return InformationCarry(A, B, decision, R, S, V, k), report


def theta(carry: InformationCarry) -> Array:
    """(d, m)."""
    return carry.theta


def solution(carry: InformationCarry) -> tuple[Array, Array | float]:
    """The readout that the residual is taken of, and the forward strength inside it."""
    return carry.theta, carry.k


def finish(carry: InformationCarry) -> SubLearner:
    """Invert A and A + k S once."""
    P = spd_inverse(carry.A)
    eta = spd_inverse(_with_forward_term(carry.A, carry.k, carry.S))
    return SubLearner(P, eta, matmul(P, carry.B), carry.theta, carry.k)


def _fits(S: Array) -> Array:
    """Whether a Gram matrix is finite: its largest entry is on the diagonal."""
    return is_finite(jnp.diag(S))


def _with_forward_term(A: Array, k: Array, S: Array) -> Array:
    """A + k S, and A where S is not finite; smooth in k, also at 0."""
    return A + k * jnp.where(_fits(S), S, 0.0)


def _strength_announced(
    carry: InformationCarry, S: Array, upcoming: FeatureBatch, strength: Strength, key: Array | None
) -> Array:
    if isinstance(strength, ConstantK):
        return strength_or_none(jnp.asarray(strength.k, carry.k.dtype), upcoming)
    return _estimate(carry, S, upcoming, strength, key)


def _estimate(
    carry: InformationCarry, S: Array, batch: FeatureBatch, strength: AdaptiveK, key: Array | None
) -> Array:
    """K of a batch with Gram S, where eta_t = (R R^T)^-1.

    Where at least d rows count, the (b, b) matrix of eq. (29) is not formed:
    Tr[(D eta D^T + sigma I)^-1] = (b - d) / sigma + Tr[(U + sigma I)^-1],
    U = R^-1 S R^-T. With fewer rows the two terms would cancel, but then those rows are all
    that is needed, and a matrix of the width of padding never is.
    """
    rows, width = batch.D.shape

    def by_rows(D: Array, valid: Array) -> Array:
        V = solve_lower(carry.R, D.T)
        return estimate_k(strength, matmul(V.T, V), valid, key)

    def by_few_rows() -> Array:
        few = jnp.argsort(~batch.valid)[:width]
        return by_rows(batch.D[few], batch.valid[few])

    def by_features() -> Array:
        U = solve_lower(carry.R, solve_lower(carry.R, S).T)
        count = jnp.sum(batch.valid)
        narrow = inverse_trace(U, jnp.ones(width, bool), strength.sigma)
        return strength.kappa * count / ((count - width) / strength.sigma + narrow)

    if strength.estimator != "inverse_trace" or rows <= width:
        return by_rows(batch.D, batch.valid)
    return lax.cond(jnp.sum(batch.valid) >= width, by_features, by_few_rows)


@cache
def solver(options: SolverOptions) -> ReadoutSolver:
    """This form for a learner's options; equal options have one solver."""
    return ReadoutSolver(
        "information",
        begin,
        lambda carry, step: advance(carry, step, options),
        theta,
        solution,
        finish,
        additive=True,
    )
