"""Streaming linear discriminant analysis: class means and one covariance, in one pass.

Each class c is a Gaussian with a mean of its own and the covariance of all, so that its score is

    x^T Lambda mu_c - mu_c^T Lambda mu_c / 2,    Lambda = ((1 - e) Sigma + e I)^-1,

with Sigma the scatter of rows about their class means, by the number of rows, and e the shrinkage.
The scatter is exact: where a batch of n' rows with mean mu' meets n rows with mean mu, that between
the two, n n' / (n + n') (mu' - mu)(mu' - mu)^T, is added. Any batches so give what all rows at once
would give.

Source: T. Hayes, C. Kanan, "Lifelong Machine Learning with Deep Streaming Linear Discriminant
Analysis", CVPR Workshops 2020, whose running covariance measures each row from the mean of before.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.linalg.products import is_finite
from rvfl_jax.linalg.spd import spd_inverse
from rvfl_jax.metrics import brier_loss


class SLDAState(NamedTuple):
    """Rows (m,) and means (m, s) of each class, and the scatter (s, s) about the means."""

    rows: Array
    mean: Array
    scatter: Array


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
    def init(key: Array, num_features: int, num_classes: int) -> SLDAState:
        del key
        s, m = num_features, num_classes
        return SLDAState(jnp.zeros(m), jnp.zeros((m, s)), jnp.zeros((s, s)))

    def scores(state: SLDAState, X: Any) -> Array:
        Sigma = state.scatter / jnp.maximum(jnp.sum(state.rows), 1e-30)
        Lambda = spd_inverse((1.0 - shrinkage) * Sigma + shrinkage * jnp.eye(len(Sigma)))
        weights = state.mean @ Lambda
        z = X @ weights.T - jnp.sum(weights * state.mean, axis=1) / 2
        return jnp.where(state.rows > 0, z, jnp.finfo(z.dtype).min / 4)

    def step(
        state: SLDAState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[SLDAState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.mean.dtype)
        count = weight @ Y_t
        total = state.rows + count
        share = count / jnp.where(total > 0, total, 1.0)
        mean = (weight * Y_t.T) @ X / jnp.where(count > 0, count, 1.0)[:, None]
        apart = jnp.where(count[:, None] > 0, mean - state.mean, 0.0)
        within = X - Y_t @ mean
        scatter = (weight * within.T) @ within + (state.rows * share * apart.T) @ apart
        new = SLDAState(total, state.mean + share[:, None] * apart, state.scatter + scatter)
        healthy = is_finite(new.scatter) & is_finite(new.mean)
        return unless_unhealthy(healthy, new, state), StepInfo(scores(state, X), healthy)

    return plain_learner(
        init, step, scores, loss=brier_loss, description=describe("slda", shrinkage=shrinkage)
    )
