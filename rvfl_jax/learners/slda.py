"""Streaming linear discriminant analysis: class means and one covariance, in one pass.

Each class c is a Gaussian with a mean of its own and the covariance of all, so that its score is

    score_c = x^T Lambda mu_c - mu_c^T Lambda mu_c / 2,                                   (1)
    Lambda = ((1 - e) Sigma + e I)^-1,                                                    (2)

with Sigma the scatter of rows about their class means, by the number of rows, and e the shrinkage.
Classes count alike, however many rows they have.

The scatter is exact (see `rvfl_jax.learners.gaussian`): any batches give what all rows at once
would give. The paper's running covariance measures each row from the mean of before.

Shapes: x (s,), mu_c a row of (m, s), Sigma and Lambda (s, s), e scalar.

Cost: 2 s^2 b flops a batch for the sums, and one factorisation, s^3 / 3, wherever scores are asked:
once a batch for the guess, once more for each look at a test set.

Source: T. Hayes, C. Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant
Analysis", CVPR Workshops 2020; e = 1e-4 is theirs.
"""

from typing import Any

import jax.numpy as jnp

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.gaussian import Gaussians
from rvfl_jax.learners.parts import learn_in_blocks, rows_of, unless_unhealthy
from rvfl_jax.metrics import brier_loss

SLDAState = Gaussians


def slda(*, shrinkage: Any = 1e-4) -> Learner:
    """Streaming LDA on the inputs themselves.

    Args:
        shrinkage: e, from 0 to 1; without any the covariance of few rows has no inverse.

    Raises:
        ValueError: on a shrinkage out of range.
    """
    return _slda((), scalar("shrinkage", shrinkage, minimum=0.0, maximum=1.0))


@shared_programs
def _slda(_: tuple[()], shrinkage: Any) -> Learner:
    def init(key: Array, num_features: int, num_classes: int) -> Gaussians:
        del key
        return Gaussians.none(num_features, num_classes)

    def scores(state: Gaussians, X: Any) -> Array:
        eye = jnp.eye(len(state.scatter), dtype=state.scatter.dtype)
        return state.scores(X, (1.0 - shrinkage) * state.covariance + shrinkage * eye)

    def step(
        state: Gaussians, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[Gaussians, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.mean.dtype)
        new = state.learn(X, Y_t, weight)
        return unless_unhealthy(new.healthy, new, state), StepInfo(scores(state, X), new.healthy)

    def fit_offline(state: Gaussians, X: Any, Y: Any, weight: Any) -> Gaussians:
        return learn_in_blocks(Gaussians.learn, state, X, Y, weight)

    return plain_learner(
        init,
        step,
        scores,
        fit_offline=fit_offline,
        loss=brier_loss,
        description=describe("slda", shrinkage=shrinkage),
        sizes=lambda state: state.sizes,
    )
