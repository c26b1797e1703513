"""The square-root form: an upper factor R with R^T R = A, updated by QR; A is never formed.

    [R; D] -> R',   [z; Y] -> z',   Phi = R^-1 z,
    theta = Phi - k R^-1 Q' V',     Q' = R^-T D'^T,   V' = (I + k Q'^T Q')^-1 D' Phi

of the batch announced next. R has the square root of A's condition number, so float32 reaches
where the other forms need float64. A step costs 2 d^2 b flops of reflections, 2 d^2 m for Phi
and, with a forward term, d^2 b for Q'.

A batch whose Gram never enters, the first of the paper's cold start, leaves R as it is and adds
R^-T D^T Y to z.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp

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
    look_ahead,
    strength_or_none,
)
from rvfl_jax.learners.edrvfl.strength import (
    AdaptiveK,
    ConstantK,
    Strength,
    estimate_k,
    estimate_k_of_pending,
    k_of_pending,
    taught_targets,
)
from rvfl_jax.linalg.inverse_factor import inverse_factor
from rvfl_jax.linalg.products import (
    identity_plus,
    is_finite,
    matmul,
    matmul_nt,
    matmul_tn,
    symmetrise,
)
from rvfl_jax.linalg.qr_update import qr_update, solve_upper_transposed, solve_upper_triangular


@in_brief
class SquareRootCarry(NamedTuple):
    """R (d, d), z and Phi (d, m); of the pending batch Q (d, b), V = D (theta - theta_0), k.

    Q is 0 where k is known to be 0.
    """

    R: Array
    z: Array
    Phi: Array
    Q: Array
    V: Array
    k: Array


def begin(readout: SubLearner, batch: FeatureBatch) -> SquareRootCarry:
    """Make the first batch the pending one."""
    R, Phi = readout.root, readout.theta_ridge
    assert R is not None
    Q = solve_upper_transposed(R, batch.D.T)
    V = batch.beyond_prior(matmul(batch.D, readout.theta))
    return SquareRootCarry(R, matmul(R, Phi), Phi, Q, V, readout.k)


def advance(
    carry: SquareRootCarry, step: Step, options: SolverOptions
) -> tuple[SquareRootCarry, Report]:
    """Learn the pending batch and announce the next one."""
    batch, Y, usable, upcoming, strength, first, keys = step
    M = matmul_tn(carry.Q, carry.Q)
    k_t = k_of_pending(
        strength,
        carry.k,
        lambda adaptive: estimate_k_of_pending(adaptive, M, carry.k, batch.valid, keys[0]),
    )
    taught, estimated = taught_targets(strength, Y, carry.V, carry.k, k_t)
    c = gram_weight(options, step)
    D, Y = jnp.where(usable, batch.D, 0.0), jnp.where(usable, taught, 0.0)
    R, z = qr_update(carry.R, carry.z, c * D, c * Y)
    if options.skips_first_gram:
        Q = solve_upper_transposed(carry.R, D.T)
        z = jnp.where(first, carry.z + matmul(Q, Y), z)
    Phi = solve_upper_triangular(R, z)
    solved = is_finite(jnp.diag(R)) & is_finite(Phi)
    R, z, Phi = (
        jnp.where(solved, new, old) for new, old in ((R, carry.R), (z, carry.z), (Phi, carry.Phi))
    )
    U = upcoming.beyond_prior(matmul(upcoming.D, Phi))
    Q, V, k, announced = jnp.zeros_like(upcoming.D.T), U, jnp.zeros_like(carry.k), solved
    if options.forward:
        k = _strength_announced(carry, upcoming, strength, keys[1])
        Q = solve_upper_transposed(R, upcoming.D.T)
        V, k, announced = look_ahead(matmul_tn(Q, Q), U, k)
    report = Report(k_t, k, usable & solved, announced & estimated, c, taught)
    return SquareRootCarry(R, z, Phi, Q, V, k), report


def theta(carry: SquareRootCarry) -> Array:
    """(d, m) theta = Phi - k R^-1 Q V."""
    return carry.Phi - carry.k * solve_upper_triangular(carry.R, matmul(carry.Q, carry.V))


def finish(carry: SquareRootCarry) -> SubLearner:
    """Invert R, and materialise eta."""
    inverse = solve_upper_triangular(carry.R, jnp.eye(len(carry.R), dtype=carry.R.dtype))
    P = symmetrise(matmul_nt(inverse, inverse))
    X = inverse_factor(identity_plus(carry.k, matmul_tn(carry.Q, carry.Q)))
    S = matmul(X, matmul_nt(carry.Q.T, inverse))
    eta = symmetrise(P - carry.k * matmul_tn(S, S))
    return SubLearner(P, eta, carry.Phi, theta(carry), carry.k, carry.R)


def solution(carry: SquareRootCarry) -> tuple[Array, Array | float]:
    """The readout that the residual is taken of, and the forward strength inside it."""
    return carry.Phi, 0.0


def _strength_announced(
    carry: SquareRootCarry, upcoming: FeatureBatch, strength: Strength, key: Array | None
) -> Array:
    """k_{t+1} from D' eta_t D'^T = E^T E - k C (I + k M)^-1 C^T, with the R of before the step.

    E = R^-T D'^T,  M = Q^T Q,  C = E^T Q.
    """
    if isinstance(strength, ConstantK):
        return strength_or_none(jnp.asarray(strength.k, carry.k.dtype), upcoming)
    assert isinstance(strength, AdaptiveK)
    E = solve_upper_transposed(carry.R, upcoming.D.T)
    X = inverse_factor(identity_plus(carry.k, matmul_tn(carry.Q, carry.Q)))
    S = matmul_nt(X, matmul_tn(E, carry.Q))
    return estimate_k(
        strength, symmetrise(matmul_tn(E, E) - carry.k * matmul_tn(S, S)), upcoming.valid, key
    )


@cache
def solver(options: SolverOptions) -> ReadoutSolver:
    """This form for a learner's options; equal options have one solver."""
    return ReadoutSolver(
        "square_root",
        begin,
        lambda carry, step: advance(carry, step, options),
        theta,
        solution,
        finish,
        needs_root=True,
    )
