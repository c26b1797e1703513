"""The contract of a solver: one way to carry one sub-learner's readout along a stream.

A solver is a `ReadoutSolver`, five functions of one sub-learner and what they can do beyond that.
They know no ensemble axis: `rvfl_jax.edrvfl` vmaps them. What a learner is made with is bound by
`solver(options)` of each module, once; a `Step` holds what differs from step to step. A learner's
carry has its solver as part of its structure, so that nobody has to ask a carry what it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.strength import Strength
from rvfl_jax.linalg.inverse_factor import shifted_solve
from rvfl_jax.linalg.products import is_finite, matmul, matmul_tn


@in_brief
class FeatureBatch(NamedTuple):
    """Weighted features of one batch for one sub-learner.

    Attributes:
        D: (b, d) rows scaled by the square root of their weight; zero in padding.
        valid: (b,) True for rows that count.
        prior: (b, m) D theta_0, which the forward term pulls towards; None for theta_0 = 0.
    """

    D: Array
    valid: Array
    prior: Array | None = None

    def beyond_prior(self, guess: Array) -> Array:
        """D (theta - theta_0) where the guess is D theta."""
        return guess if self.prior is None else guess - self.prior


@in_brief
class SubLearner(NamedTuple):
    """One sub-learner between two steps, in the terms of the public state.

    Attributes:
        eta_dagger: (d, d) inverse of A = lambda I + sum_i D_i^T D_i.
        eta: (d, d) inverse of A + k D_next^T D_next.
        theta_ridge: (d, m) eta_dagger times B = lambda theta_0 + sum_i D_i^T Y_i, Y_i as it was
            taught.
        theta: (d, m) eta (B + k D_next^T D_next theta_0).
        k: scalar strength inside eta.
        root: (d, d) upper R with R^T R = A, for the square-root form; None for the others.
    """

    eta_dagger: Array
    eta: Array
    theta_ridge: Array
    theta: Array
    k: Array
    root: Array | None = None


class SolverOptions(NamedTuple):
    """What is known of a learner when it is made.

    Attributes:
        forward: False if k is known to be 0, which saves the forward term where it costs.
        skips_first_gram: whether the Gram of the first batch never enters, as the paper's cold
            start has it.
    """

    forward: bool
    skips_first_gram: bool


class Step(NamedTuple):
    """One step of one sub-learner.

    Attributes:
        batch: the pending batch, which is learned.
        Y: (b, m) its weighted targets.
        usable: scalar, False if the batch must leave no trace.
        upcoming: the batch announced next.
        strength: scalar k, or scalar kappa and sigma.
        first: scalar, whether nothing has been learned before.
        keys: PRNG keys for the two estimates of k, or None.
    """

    batch: FeatureBatch
    Y: Array
    usable: Array
    upcoming: FeatureBatch
    strength: Strength
    first: Array
    keys: tuple[Array | None, Array | None]


class Following(NamedTuple):
    """How the scores of fixed rows Z (n, d) follow one sub-learner.

    A carry is that of the solver, or the `Glimpse` of one batch in a block.

    Attributes:
        begin: `(carry, Z) -> followed`.
        move: `(carry, Z) -> move`, what a step changes.
        advance: `(followed, move) -> followed`, after every step.
        read: `(followed, carry) -> (n, m)` Z theta.
    """

    begin: Callable[[Any, Array], Any]
    move: Callable[[Any, Array], Any]
    advance: Callable[[Any, Any], Any]
    read: Callable[[Any, Any], Array]


@in_brief
class BlockStep(NamedTuple):
    """A block of r batches of one sub-learner, and the batch announced after them.

    Attributes:
        D: (r + 1, b, d) weighted features, the pending batch first.
        valid: (r + 1, b) True for rows that count.
        prior: (r + 1, b, m) D theta_0; None for theta_0 = 0.
        Y: (r, b, m) weighted targets.
        usable: (r,) False for a batch that must leave no trace.
        first: (r,) whether nothing has been learned before.
        strength: scalar k, or scalar kappa and sigma.
        keys: (r,) PRNG keys for the two estimates of k, or None.
    """

    D: Array
    valid: Array
    prior: Array | None
    Y: Array
    usable: Array
    first: Array
    strength: Strength
    keys: tuple[Array | None, Array | None]

    def upcoming(self, t: Array) -> FeatureBatch:
        """The batch that is announced when batch t is learned, without its features."""
        prior = None if self.prior is None else self.prior[t + 1]
        return FeatureBatch(jnp.zeros(()), self.valid[t + 1], prior)


@in_brief
class Moments(NamedTuple):
    """Rows of which the readouts of ridge are made, Phi_t = Phi + sum_{i<=t} S_i^T E_i.

    Attributes:
        S: (g, d) those of `Factors`, and G of the first batch where its Gram never enters.
        K: (r + 1, b, g) D S^T.
        order: (g,) the batch of each row.
    """

    S: Array
    K: Array
    order: Array

    def guesses(self, U: Array, E: Array) -> Array:
        """(r + 1, b, m) D_t Phi_{t-1} where U is D_t Phi, and E (g, m)."""
        past = self.order < jnp.arange(len(U))[:, None]
        return U + jax.vmap(matmul, (0, None))(jnp.where(past[:, None], self.K, 0.0), E)


@in_brief
class Trail(NamedTuple):
    """The readouts of one sub-learner along a block, as rows and coefficients.

    Attributes:
        Phi: (d, m) before the block.
        E: (g, m) see `Course`.
        moments: their rows.
        U: (r, b, m) D Phi of the batches that were learned.
    """

    Phi: Array
    E: Array
    moments: Moments
    U: Array

    def at(self, t: Array) -> Array:
        """(d, m) Phi_t."""
        E = jnp.where((self.moments.order <= t)[:, None], self.E, 0.0)
        return self.Phi + matmul_tn(self.moments.S, E)


@in_brief
class Glimpse(NamedTuple):
    """What the readout theta_{t+1} = Phi_t - k G^T V after batch t is made of.

    Attributes:
        t: () the batch.
        G: (b, d) D_{t+1} P_t.
        V: (b, m) D_{t+1} (theta_{t+1} - theta_0).
        k: () strength of the forward term.
        C: (b, m) what batch t left in Phi, which moved by G_t^T C.
    """

    t: Array
    G: Array
    V: Array
    k: Array
    C: Array


@in_brief
class Report(NamedTuple):
    """One step of one sub-learner; all but `taught` are scalars.

    Attributes:
        k_t: strength of the batch that was learned.
        k_next: strength put on the announced batch.
        absorbed: False if the pending batch left no trace.
        sound: False if a strength could not be had; its term is then left out.
        weight: 1, or 0 where the Gram of the pending batch never enters.
        taught: (b, m) see `rvfl_jax.learners.edrvfl.strength.taught_targets`.
    """

    k_t: Array
    k_next: Array
    absorbed: Array
    sound: Array
    weight: Array
    taught: Array


class BlockwiseForm(NamedTuple):
    """How a solver learns a block of batches at once.

    Attributes:
        size: `(rows, width, layers, steps) -> r`, how many batches of so many rows make a block,
            in a stream of so many steps; 1 for none.
        advance: `(carry, BlockStep) -> (carry, Report, Trail, Glimpse)`, reports and glimpses with
            a leading r; otherwise what r calls of `ReadoutSolver.advance` give.
        theta: `(Trail, Glimpse of one batch) -> (d, m)` the readout after it.
    """

    size: Callable[[int, int, int, int], int]
    advance: Callable[[Any, BlockStep], tuple[Any, Report, Trail, Glimpse]]
    theta: Callable[[Trail, Glimpse], Array]


@jax.tree_util.register_static
@dataclass(frozen=True, repr=False)
class ReadoutSolver:
    """One way to carry a readout along a stream; a pytree without leaves.

    A carry may be any pytree with `V` (b, m), the guess D (theta - theta_0) on the pending batch.

    Attributes:
        name: as `edrvfl` has it.
        begin: `(SubLearner, FeatureBatch) -> carry`, with that batch pending.
        advance: `(carry, Step) -> (carry, Report)`; learns the pending batch and announces the
            next one, which is then pending.
        theta: `carry -> (d, m)` the readout of now.
        solution: `carry -> ((d, m), k)`, a readout that solves A theta = B with the forward
            strength k inside: whichever costs nothing, for the residual to be taken of.
        finish: `carry -> SubLearner`.
        needs_root: whether `begin` asks for `SubLearner.root`.
        additive: whether it carries A and B themselves, so that decisions may be deferred.
        follow: None where scores are computed anew whenever they are wanted.
        block: None where batches are learned one by one.
    """

    name: str
    begin: Callable[[SubLearner, FeatureBatch], Any]
    advance: Callable[[Any, Step], tuple[Any, Report]]
    theta: Callable[[Any], Array]
    solution: Callable[[Any], tuple[Array, Array | float]]
    finish: Callable[[Any], SubLearner]
    needs_root: bool = False
    additive: bool = False
    follow: Following | None = None
    block: BlockwiseForm | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name})"


def look_ahead(M: Array, U: Array, k: Array) -> tuple[Array, Array, Array]:
    """The next guess V = D' theta = (I + k M')^-1 D' Phi, counted from that of theta_0.

    Args:
        M: (b, b) D' P D'^T of the batch announced next.
        U: (b, m) D' (Phi - theta_0).
        k: scalar strength.

    Returns:
        V and k, and whether they are sound; U and 0, no forward term, where they are not.
    """
    V = shifted_solve(M, k, U)
    healthy = is_finite(V)
    return jnp.where(healthy, V, U), jnp.where(healthy, k, 0.0), healthy


def gram_weight(options: SolverOptions, step: Step) -> Array:
    """1, or 0 for the first batch of the paper's cold start, whose Gram never enters."""
    one = jnp.ones((), step.Y.dtype)
    return jnp.where(step.first, 0.0, one) if options.skips_first_gram else one


def strength_or_none(k: Array, upcoming: FeatureBatch) -> Array:
    """k, or 0 where nothing was announced."""
    return jnp.where(jnp.any(upcoming.valid), k, 0.0)
