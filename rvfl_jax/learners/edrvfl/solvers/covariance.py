"""The covariance form: P = eta_dagger itself is carried and updated by low rank.

With G = P D^T and M = D G of the batch in hand, and Phi = P B the ridge readout,

    P     <- P - c G (I + c M)^-1 G^T
    Phi   <- Phi + G (I + c M)^-1 (Y - c D Phi)
    theta  = Phi - k G' (I + k M')^-1 D' Phi         G', M' of the batch announced next

by Woodbury's identity, where c is 1 but for the first batch of the paper's cold start, whose
Gram never enters. P knows nothing of k, kappa and sigma, so that a sweep over them shares it.
eta is never formed: the G' and M' that give
theta are those that absorb the batch at the next step, so a step costs two d x d x b
products, 4 d^2 b flops. Of theta the scan carries only what the next guess needs,
V' = D' theta = (I + k M')^-1 D' Phi, so that theta = Phi - k G' V' is formed where somebody
asks for it.
"""

from functools import cache
from typing import NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.solvers.base import (
    FeatureBatch,
    Following,
    Glimpse,
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
    ConstantK,
    Strength,
    estimate_k,
    estimate_k_of_pending,
    k_of_pending,
    taught_targets,
)
from rvfl_jax.linalg.inverse_factor import factor_solve, inverse_factor, is_factor, shifted_solve
from rvfl_jax.linalg.products import (
    identity_plus,
    is_finite,
    matmul,
    matmul_nt,
    matmul_tn,
    outer_square,
    symmetrise,
)


@in_brief
class CovarianceCarry(NamedTuple):
    """P (d, d), Phi (d, m), and of the pending batch what both of its uses need.

    G = D P (b, d), transposed against the formulas above; M (b, b); U = D Phi and
    V = D (theta - theta_0) (b, m); its strength k. C (b, m) is what the batch before left in
    Phi, which moved by G^T C with its G.
    """

    P: Array
    Phi: Array
    G: Array
    M: Array
    U: Array
    V: Array
    k: Array
    C: Array


def begin(readout: SubLearner, batch: FeatureBatch) -> CovarianceCarry:
    """Make the first batch the pending one: 2 d^2 b flops."""
    P, Phi = readout.eta_dagger, readout.theta_ridge
    G = matmul_nt(batch.D, P)
    M = matmul_nt(G, batch.D)
    U = matmul(batch.D, Phi)
    # What was announced may be another batch than this one: the guess is theta's own.
    V = batch.beyond_prior(matmul(batch.D, readout.theta))
    return CovarianceCarry(P, Phi, G, M, U, V, readout.k, jnp.zeros_like(U))


def advance(
    carry: CovarianceCarry, step: Step, options: SolverOptions
) -> tuple[CovarianceCarry, Report]:
    """Learn the pending batch and announce the next one."""
    batch, Y, usable, upcoming, strength, _, keys = step
    k_t = k_of_pending(
        strength,
        carry.k,
        lambda adaptive: estimate_k_of_pending(adaptive, carry.M, carry.k, batch.valid, keys[0]),
    )
    Y, estimated = taught_targets(strength, Y, carry.V, carry.k, k_t)
    c = gram_weight(options, step)
    X = inverse_factor(identity_plus(c, carry.M))
    P, C, absorbed = _absorb(carry, Y, usable, X, c)
    Phi = carry.Phi + matmul_tn(carry.G, C)
    G = matmul_nt(upcoming.D, P)
    M = matmul_nt(G, upcoming.D)
    U = matmul(upcoming.D, Phi)
    k = _strength_announced(carry, M, X, c, upcoming, strength, keys[1])
    V, announced = upcoming.beyond_prior(U), jnp.ones((), bool)
    if options.forward:
        V, k, announced = look_ahead(M, V, k)
    report = Report(k_t, k, absorbed, announced & estimated, c, Y)
    return CovarianceCarry(P, Phi, G, M, U, V, k, C), report


def theta(carry: CovarianceCarry) -> Array:
    """(d, m) theta = Phi - k G^T V."""
    return carry.Phi - matmul_tn(carry.G, carry.k * carry.V)


def finish(carry: CovarianceCarry) -> SubLearner:
    """Materialise eta: 2 d^2 b flops."""
    P = symmetrise(carry.P)
    S = matmul(inverse_factor(identity_plus(carry.k, carry.M)), carry.G)
    eta = symmetrise(P - carry.k * matmul_tn(S, S))
    return SubLearner(P, eta, carry.Phi, theta(carry), carry.k)


def solution(carry: CovarianceCarry) -> tuple[Array, Array | float]:
    """The readout that the residual is taken of, and the forward strength inside it."""
    return carry.Phi, 0.0


class Followed(NamedTuple):
    """Scores of n fixed rows Z: S = Z Phi (n, m), and E = Z G^T (n, b) of the pending batch."""

    S: Array
    E: Array


def follow(carry: CovarianceCarry, Z: Array) -> Followed:
    """Begin to follow the scores of fixed rows."""
    return Followed(matmul(Z, carry.Phi), matmul_nt(Z, carry.G))


class Move(NamedTuple):
    """What a step changes: E of the new pending batch, and C of the one that was learned."""

    E: Array
    C: Array


def move(carry: CovarianceCarry | Glimpse, Z: Array) -> Move:
    """2 n b d flops."""
    return Move(matmul_nt(Z, carry.G), carry.C)


def follow_move(followed: Followed, move: Move) -> Followed:
    """After a step: S <- S + E C, and E of the new pending batch; 2 n b m flops."""
    return Followed(followed.S + matmul(followed.E, move.C), move.E)


def followed_scores(followed: Followed, carry: CovarianceCarry | Glimpse) -> Array:
    """(n, m) Z theta = S - k E V."""
    return followed.S - matmul(followed.E, carry.k * carry.V)


def _absorb(
    carry: CovarianceCarry, Y: Array, usable: Array, X: Array, c: Array
) -> tuple[Array, Array, Array]:
    # Targets may depend on kappa and sigma, and P must not: it looks at the factor alone.
    factored = usable & is_factor(X)
    X = jnp.where(factored, X, 0.0)
    residual = matmul(X, jnp.where(factored, Y - c * carry.U, 0.0))
    healthy = factored & is_finite(residual)
    C = matmul_tn(X, jnp.where(healthy, residual, 0.0))
    S = matmul_tn(carry.G, X.T)
    return carry.P - c * outer_square(S), C, healthy


def _strength_announced(
    carry: CovarianceCarry,
    M: Array,
    X: Array,
    c: Array,
    upcoming: FeatureBatch,
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
    C = matmul_nt(upcoming.D, carry.G)
    inner = shifted_solve(carry.M, carry.k, factor_solve(X, C.T))
    return estimate_k(
        strength, symmetrise(M + (c - carry.k) * matmul(C, inner)), upcoming.valid, key
    )


@cache
def solver(options: SolverOptions) -> ReadoutSolver:
    """This form for a learner's options; equal options have one solver."""
    return ReadoutSolver(
        "covariance",
        begin,
        lambda carry, step: advance(carry, step, options),
        theta,
        solution,
        finish,
        follow=Following(follow, move, follow_move, followed_scores),
    )
