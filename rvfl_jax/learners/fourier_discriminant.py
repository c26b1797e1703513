"""Gaussian classes in random Fourier features, which kernel discriminants share.

    score_c = phi(x)^T Lambda mu_c - mu_c^T Lambda mu_c / 2,    Lambda = r(Sigma)^-1,     (1)

with phi of `rvfl_jax.learners.random_maps.FourierMap`, mu_c the mean of class c in these features,
Sigma the covariance about the class means, and r how a method regularises it.

Shapes: x (s,), phi(x) (N,), mu_c a row of (m, N), Sigma, r(Sigma) and Lambda (N, N).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import plain_learner
from rvfl_jax.learners.gaussian import Gaussians
from rvfl_jax.learners.parts import learn_in_blocks, rows_of, unless_unhealthy
from rvfl_jax.learners.random_maps import FourierMap, fourier_map
from rvfl_jax.linalg.products import is_finite
from rvfl_jax.metrics import brier_loss


class FourierState(NamedTuple):
    """The features, and the Gaussian classes (m,), (m, N), (N, N) of rows in them."""

    features: FourierMap
    sums: Gaussians


def fourier_discriminant(
    num_nodes: int, gamma: Any, regularised: Callable[[Array], Array], description: str
) -> Learner:
    """A learner that is its covariance's regulariser, `Sigma (N, N) -> (N, N)`.

    Args:
        num_nodes: N.
        gamma: of the kernel; None is 1 / s.
        regularised: gives what is inverted.
        description: for records.
    """

    def init(key: Array, num_features: int, num_classes: int) -> FourierState:
        features = fourier_map(key, num_features, num_nodes, gamma)
        return FourierState(features, Gaussians.none(num_nodes, num_classes))

    def answer(sums: Gaussians, Z: Array) -> Array:
        return sums.scores(Z, regularised(sums.covariance))

    def scores(state: FourierState, X: Any) -> Array:
        return answer(state.sums, state.features(jnp.asarray(X, state.features.W.dtype)))

    def step(
        state: FourierState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        **_: Any,
    ) -> tuple[FourierState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.features.W.dtype)
        Z = state.features(X)
        new = state.sums.learn(Z, Y_t, weight)
        healthy = is_finite(X) & new.healthy
        info = StepInfo(answer(state.sums, Z), healthy)
        return state._replace(sums=unless_unhealthy(healthy, new, state.sums)), info

    def fit_offline(state: FourierState, X: Any, Y: Any, weight: Any) -> FourierState:
        def learn(sums: Gaussians, X: Array, Y: Array, weight: Array) -> Gaussians:
            return sums.learn(state.features(X), Y, weight)

        return state._replace(sums=learn_in_blocks(learn, state.sums, X, Y, weight))

    return plain_learner(
        init,
        step,
        scores,
        fit_offline=fit_offline,
        loss=brier_loss,
        description=description,
        sizes=lambda state: (jnp.shape(state.features.W)[0], state.sums.sizes[1]),
    )
