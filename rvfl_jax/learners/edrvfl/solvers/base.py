"""What every solver takes and gives."""

from typing import NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.linalg.dense import is_finite, shifted_solve


@in_brief
class Batch(NamedTuple):
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
class Readout(NamedTuple):
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


@in_brief
class Report(NamedTuple):
    """One step of one sub-learner; all but `taught` are scalars.

    Attributes:
        k_t: strength of the batch that was learned.
        k_next: strength put on the announced batch.
        absorbed: False if the batch in hand left no trace.
        sound: False if a strength could not be had; its term is then left out.
        weight: 1, or 0 where the Gram of the batch in hand never enters.
        taught: (b, m) see `rvfl_jax.learners.edrvfl.strength.taught_targets`.
    """

    k_t: Array
    k_next: Array
    absorbed: Array
    sound: Array
    weight: Array
    taught: Array


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


def gram_weight(skip: Array | None, like: Array) -> Array:
    """1, or 0 for the first batch of the paper's cold start, whose Gram never enters.

    Args:
        skip: scalar truth; None where the cold start is exact.
        like: gives the dtype.
    """
    one = jnp.ones((), like.dtype)
    return one if skip is None else jnp.where(skip, 0.0, one)


def strength_or_none(k: Array, upcoming: Batch) -> Array:
    """k, or 0 where nothing was announced."""
    return jnp.where(jnp.any(upcoming.valid), k, 0.0)
