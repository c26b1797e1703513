"""The blocked form: the covariance form, many small batches at once.

Where batches are small a step is bound by moving P = eta_dagger, not by arithmetic. Of r batches
D_0 ... D_{r-1} and the one announced after them, with P and Phi = P B of before,

    G = D P,    M = G D^T,    U = D Phi,    I + M = C C^T over the rows that are learned,
    S = C^-1 G,    E = C^-1 (Y - U),    K = D S^T = M C^-T,

hold all that the recursion of `covariance` gives batch by batch. With K_t the rows of batch t and
sums over the batches before it,

    D_t P_{t-1} D_t^T         = M_tt - sum_{i<t} K_ti K_ti^T                    =: W_t
    D_{t+1} P_{t-1} D_t^T     = M_{t+1,t} - sum_{i<t} K_{t+1,i} K_ti^T
    D_t P_{t-1}               = G_t - sum_{i<t} K_ti S_i
    D_t Phi_{t-1}             = U_t + sum_{i<t} K_ti E_i                         the guess of ridge
    Phi_t                     = Phi + sum_{i<=t} S_i^T E_i
    P    <- P - S^T S,        Phi <- Phi + S^T E                                 after all of them,

so that every strength of eq. (29), every guess and every pseudo-target of Algorithm 2 follows
from b x b products. A block of R rows takes two products with P, 4 d^2 R flops as before, R / d of
them for S, and one factor of R rows. X has to be known a block ahead; what is guessed of a batch
depends on the batches before it alone.

A batch whose labels are unusable is announced and guessed, and left out of S and E. So is the Gram
of the first batch in the paper's cold start, whose D^T Y enters as a row group of its own.
A factorisation that fails leaves its batch and those after it in the block unlearned.
"""

from dataclasses import replace
from functools import cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.solvers import covariance
from rvfl_jax.learners.edrvfl.solvers.base import (
    BlockStep,
    BlockwiseForm,
    Glimpse,
    Moments,
    ReadoutSolver,
    Report,
    SolverOptions,
    Trail,
    look_ahead,
    strength_or_none,
)
from rvfl_jax.learners.edrvfl.solvers.covariance import CovarianceCarry
from rvfl_jax.learners.edrvfl.strength import (
    AdaptiveK,
    ConstantK,
    estimate_k,
    estimate_k_of_pending,
    k_of_pending,
    taught_targets,
)
from rvfl_jax.linalg.inverse_factor import factor_solve, inverse_factor, shifted_solve
from rvfl_jax.linalg.products import (
    is_finite,
    lower_matmul_nt,
    lower_times,
    matmul,
    matmul_nt,
    matmul_tn,
    mirrored,
    outer_square,
    strips,
    symmetrise,
)

# Rows of a block: more of them spread the cost of moving P further, and add R / d to its flops.
# Fewer batches than so many are as fast one by one.
ROWS, SHARE_OF_WIDTH, FEWEST = 96, 0.5, 3
# A program of blocks takes a few seconds longer to compile. It saves each step some calls and three
# passes over P, about so many seconds and seconds an entry, and is chosen where that adds up.
SAVED_CALLS, SAVED_ENTRY, WORTH = 3e-5, 2.4e-9, 0.1


@in_brief
class Factors(NamedTuple):
    """What the features of a block give, whatever its labels and strengths.

    Attributes:
        M: ((r + 1) b, (r + 1) b) lower half of D P D^T with P of before the block; above
            it there is anything.
        enters: (r b,) 1 where the Gram of the row's batch enters P, else 0.
        X: (r b, r b) C^-1; rows of the identity where nothing enters, of zeros after a failure.
        S: (r b, d) C^-1 G; 0 where nothing enters.
        K: (r + 1, b, r b) D S^T.
        before: (r + 1, b, r b) K of the batches before each one, elsewhere 0.
        sound: (r,) False where M overflowed, and from the first batch on whose factor failed.
    """

    M: Array
    enters: Array
    X: Array
    S: Array
    K: Array
    before: Array
    sound: Array

    def blocks(self, rows: Array, columns: Array) -> Array:
        """(n, b, b) blocks of M, of these batches."""
        count, b, _ = self.K.shape
        return self.M.reshape(count, b, count, b)[rows, :, columns]

    def own(self) -> Array:
        """(r + 1, b, b) W_t = D_t P_{t-1} D_t^T.

        A batch that lies across two strips of M has nothing above its diagonal in M.
        """
        t = jnp.arange(len(self.K))
        return mirrored(self.blocks(t, t) - jax.vmap(matmul_nt)(self.before, self.before))

    def cross(self) -> Array:
        """(r, b, b) D_{t+1} P_{t-1} D_t^T."""
        t = jnp.arange(len(self.K) - 1)
        return self.blocks(t + 1, t) - jax.vmap(matmul_nt)(self.K[1:], self.before[:-1])

    def diagonal(self) -> Array:
        """(r, b, b) C_tt^-1."""
        r, b = len(self.K) - 1, self.K.shape[1]
        t = jnp.arange(r)
        return self.X.reshape(r, b, r, b)[t, :, t]


@in_brief
class Course(NamedTuple):
    """What the labels of a block give.

    Attributes:
        E: (g, m) coefficients of the rows of `Moments`.
        guess: (b, m) D_r Phi_{r-1}, of ridge on the announced batch.
        V: (r, b, m) D_{t+1} (theta_{t+1} - theta_0).
        k_t: (r,) the strength of each batch when it is learned.
        k_next: (r,) the strength announced with the batch after it.
        taught: (r, b, m) see `taught_targets`.
        absorbed: (r,) False for batches that left no trace.
        sound: (r,) False where a strength could not be had.
    """

    E: Array
    guess: Array
    V: Array
    k_t: Array
    k_next: Array
    taught: Array
    absorbed: Array
    sound: Array


def block_size(rows: int, width: int) -> int:
    """r, how many batches of so many rows are learned at once; 1 where it would not pay."""
    most = int(min(ROWS, SHARE_OF_WIDTH * width)) // rows
    return most if most >= FEWEST else 1


def _size_where_it_pays(rows: int, width: int, layers: int, steps: int) -> int:
    saved = steps * (SAVED_CALLS + SAVED_ENTRY * layers * width**2)
    return block_size(rows, width) if saved >= WORTH else 1


def advance_block(
    carry: CovarianceCarry, block: BlockStep, options: SolverOptions
) -> tuple[CovarianceCarry, Report, Trail, Glimpse]:
    """Learn the pending batch and the r - 1 after it, and announce the one that follows.

    Args:
        carry: with the first batch of the block pending.
        block: r batches and the announced one.
        options: of the solver.

    Returns:
        The carry with the announced batch pending; for every batch of the block, with a leading
        r, what `covariance.advance` reports; and what the readouts after each are made of.
    """
    r, b, m = block.Y.shape
    upcoming = block.D[1:].reshape(r * b, -1)
    G = jnp.concatenate([carry.G, matmul_nt(upcoming, carry.P)])
    U = jnp.concatenate([carry.U, matmul(upcoming, carry.Phi)]).reshape(r + 1, b, m)
    factors = _factorise(block, G, options)
    moments = _moments(block, factors, G, options)
    W = factors.own()
    if isinstance(block.strength, ConstantK):
        course = _constant(block, factors, moments, W, U, options)
    else:
        course = _adaptive(carry, block, factors, moments, W, U)
    G, last = _moved(factors, G)
    C = _coefficients(block, factors, course.E)
    moved = CovarianceCarry(
        carry.P - outer_square(factors.S.T),
        carry.Phi + matmul_tn(moments.S, course.E),
        *(last, W[-1], course.guess, course.V[-1], course.k_next[-1], C[-1]),
    )
    weight = jnp.where(options.skips_first_gram & block.first, 0.0, jnp.ones((), U.dtype))
    report = Report(
        *(course.k_t, course.k_next, course.absorbed, course.sound, weight, course.taught)
    )
    glimpse = Glimpse(jnp.arange(r), G, course.V, course.k_next, C)
    return moved, report, Trail(carry.Phi, course.E, moments, U[:-1]), glimpse


def theta(trail: Trail, glimpse: Glimpse) -> Array:
    """(d, m) the readout after one batch of a block."""
    return trail.at(glimpse.t) - matmul_tn(glimpse.G, glimpse.k * glimpse.V)


def _factorise(block: BlockStep, G: Array, options: SolverOptions) -> Factors:
    r, b, _ = block.Y.shape
    rows = r * b
    M = lower_matmul_nt(G, block.D.reshape((r + 1) * b, -1))
    usable = block.usable & ~block.first if options.skips_first_gram else block.usable
    # Of what overflowed nothing may meet the zeros of X, which would be no zeros then.
    finite = jnp.isfinite(jnp.diag(M)).reshape(r + 1, b).all(axis=1)
    M_seen = jnp.where(jnp.repeat(finite, b)[:, None], M, 0.0)
    enters = jnp.repeat(usable & finite[:-1], b)
    inner = jnp.where(enters[:, None] & enters, M[:rows, :rows], 0.0)
    X = inverse_factor(jnp.eye(rows, dtype=G.dtype) + inner)
    diagonal = jnp.diag(X).reshape(r, b)
    sound = jnp.cumsum(~jnp.all(jnp.isfinite(diagonal) & (diagonal > 0), axis=1)) == 0
    enters &= jnp.repeat(sound, b)
    X = jnp.where(jnp.repeat(sound, b)[:, None], X, 0.0)
    S = lower_times(X, jnp.where(enters[:, None], G[:rows], 0.0))
    K = _projections(jnp.where(enters, M_seen[:, :rows], 0.0), X).reshape(r + 1, b, rows)
    past = jnp.repeat(jnp.arange(r), b) < jnp.arange(r + 1)[:, None]
    return Factors(
        M, enters.astype(G.dtype), X, S, K, jnp.where(past[:, None], K, 0.0), sound & finite[:-1]
    )


def _projections(M: Array, X: Array) -> Array:
    """K = M X^T ((r + 1) b, r b), of which M has the lower half: above it K is -X^T."""
    rows, parts = len(X), []
    for a, b in strips(len(M)):
        inside = min(b, rows)
        below = matmul_nt(M[a:b, :inside], X[:inside, :inside])
        parts.append(jnp.concatenate([below, -X[inside:, a:b].T], axis=1) if b < rows else below)
    return jnp.concatenate(parts)


def _moments(block: BlockStep, factors: Factors, G: Array, options: SolverOptions) -> Moments:
    r, b, _ = block.Y.shape
    order = jnp.repeat(jnp.arange(r), b)
    if not options.skips_first_gram:
        return Moments(factors.S, factors.K, order)
    # One batch of the stream at most, before which P is what it was.
    j = jnp.argmax(block.first & jnp.any(block.valid[:-1], axis=1))
    own_G = lax.dynamic_slice_in_dim(G, j * b, b)
    own_K = lax.dynamic_slice_in_dim(factors.M, j * b, b, axis=1).reshape(r + 1, b, b)
    return Moments(
        jnp.concatenate([factors.S, own_G]),
        jnp.concatenate([factors.K, own_K], axis=2),
        jnp.concatenate([order, jnp.full(b, j)]),
    )


def _constant(
    block: BlockStep,
    factors: Factors,
    moments: Moments,
    W: Array,
    U: Array,
    options: SolverOptions,
) -> Course:
    """The labels of a block where k is known: no batch has to wait for the one before it."""
    r, b, m = block.Y.shape
    E = jnp.zeros((0, m), U.dtype)
    known = U
    if options.skips_first_gram:
        enters = block.first & block.usable & factors.sound
        E = jnp.sum(jnp.where(enters[:, None, None], block.Y, 0.0), axis=0)
        of_first = Moments(moments.S[-b:], moments.K[..., -b:], moments.order[-b:])
        known = of_first.guesses(U, E)
    residual = block.Y - known[:-1]
    absorbed = block.usable & factors.sound & jax.vmap(is_finite)(residual)
    residual = jnp.where(absorbed[:, None, None], residual, 0.0).reshape(r * b, m)
    E = jnp.concatenate([matmul(factors.X, factors.enters[:, None] * residual), E])
    guesses = moments.guesses(U, E)
    ones = jnp.ones(r, U.dtype)
    assert isinstance(block.strength, ConstantK)
    k = jnp.asarray(block.strength.k, U.dtype)
    k_next = jax.vmap(lambda t: strength_or_none(k, block.upcoming(t)))(jnp.arange(r))
    V, sound = guesses[1:] if block.prior is None else guesses[1:] - block.prior[1:], ones > 0
    if options.forward:
        V, k_next, sound = jax.vmap(look_ahead)(W[1:], V, k_next)
    return Course(E, guesses[-1], V, k * ones, k_next, block.Y, absorbed, sound)


class _Pending(NamedTuple):
    """What the scan over a block carries: E so far, and of the pending batch what it needs."""

    E: Array
    guess: Array
    V: Array
    k: Array


def _adaptive(
    carry: CovarianceCarry,
    block: BlockStep,
    factors: Factors,
    moments: Moments,
    W: Array,
    U: Array,
) -> Course:
    """The labels of a block where each strength depends on the one before it: a scan of b x b."""
    strength = block.strength
    assert isinstance(strength, AdaptiveK)
    r, b, m = block.Y.shape
    cross, X = factors.cross(), factors.diagonal()
    first_row = r * b

    def learn(pending: _Pending, t: Array) -> tuple[_Pending, tuple[Array, ...]]:
        E, guess, V, k_added = pending
        key_t, key_next = (None if keys is None else keys[t] for keys in block.keys)
        k_t = k_of_pending(
            strength,
            k_added,
            lambda own: estimate_k_of_pending(own, W[t], k_added, block.valid[t], key_t),
        )
        Y, estimated = taught_targets(strength, block.Y[t], V, k_added, k_t)
        c = factors.enters[t * b]
        residual = matmul(X[t], c * (Y - guess))
        absorbed = block.usable[t] & factors.sound[t] & is_finite(residual) & is_finite(Y)
        E = lax.dynamic_update_slice_in_dim(E, jnp.where(absorbed, residual, 0.0), t * b, 0)
        if len(E) > first_row:
            E = E.at[first_row:].add(jnp.where(absorbed & block.first[t], Y, 0.0))
        guess = U[t + 1] + matmul(moments.K[t + 1], E)
        C = cross[t]
        X_t = jnp.where(factors.sound[t], X[t], jnp.eye(b, dtype=U.dtype))
        inner = shifted_solve(W[t], k_added, factor_solve(X_t, C.T))
        Q = symmetrise(W[t + 1] + (c - k_added) * matmul(C, inner))
        k = estimate_k(strength, Q, block.valid[t + 1], key_next)
        beyond = block.upcoming(t).beyond_prior(guess)
        V, k, announced = look_ahead(W[t + 1], beyond, k)
        told = V, k_t, k, Y, absorbed, announced & estimated
        return _Pending(E, guess, V, k), told

    start = _Pending(jnp.zeros((len(moments.order), m), U.dtype), carry.U, carry.V, carry.k)
    end, told = lax.scan(learn, start, jnp.arange(r))
    return Course(end.E, end.guess, *told)


def _moved(factors: Factors, G: Array) -> tuple[Array, Array]:
    """(r, b, d) D_{t+1} P_t and the last of them, where G ((r + 1) b, d) is of before the block."""
    r, b = len(factors.K) - 1, factors.K.shape[1]
    # The last by itself, since the others are often not asked for, and then not computed.
    last = G[-b:] - matmul(factors.before[-1], factors.S)
    others = G[b:-b] - matmul(factors.before[1:-1].reshape((r - 1) * b, r * b), factors.S)
    return jnp.concatenate([others, last]).reshape(r, b, -1), last


def _coefficients(block: BlockStep, factors: Factors, E: Array) -> Array:
    """(r, b, m) C_tt^-T E_t, with which Phi moves by G_t^T C at batch t."""
    r, b, m = block.Y.shape
    C = jax.vmap(matmul_tn)(factors.diagonal(), E[: r * b].reshape(r, b, m))
    if len(E) == r * b:
        return C
    return jnp.where(block.first[:, None, None], E[r * b :], C)


@cache
def solver(options: SolverOptions) -> ReadoutSolver:
    """The covariance form, which learns blocks of small batches at once."""
    return replace(
        covariance.solver(options),
        name="blocked",
        block=BlockwiseForm(
            size=lambda rows, width, layers, steps: block_size(rows, width),
            advance=lambda carry, block: advance_block(carry, block, options),
            theta=theta,
        ),
    )


@cache
def where_it_pays(options: SolverOptions) -> ReadoutSolver:
    """The same, which learns short streams of narrow readouts batch by batch."""
    always = solver(options)
    assert always.block is not None
    return replace(always, block=always.block._replace(size=_size_where_it_pays))
