"""SimpleCIL: a row is of the class whose mean has the smallest angle to it.

With mu_c the mean of the rows of class c so far, the score is

    a x^T mu_c / (||x|| ||mu_c||),                                                        (1)

with a scale a that orders nothing and sharpens the softmax of the guesses. The vectors are meant to
come from a frozen, pretrained encoder. Any batches, in any order, give the means of all rows.

Shapes: x (s,), the means (m, s), the scores (m,), a scalar.

Cost: 2 s m flops a row, for learning and for scores; nothing is solved.

Source: D.-W. Zhou, Z.-W. Cai, H.-J. Ye, D.-C. Zhan, Z. Liu, "Revisiting Class-Incremental Learning
with Pre-Trained Models: Generalizability and Adaptivity are All You Need", 2023 (IJCV 2024); there
a = 1.
"""

from typing import Any

import jax.numpy as jnp

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.gaussian import ClassMeans
from rvfl_jax.learners.ncm import learn_means, no_means
from rvfl_jax.learners.parts import learn_in_blocks, of_met_classes, rows_of
from rvfl_jax.linalg.products import matmul_nt
from rvfl_jax.metrics import brier_loss


def simplecil(*, scale: Any = 1.0) -> Learner:
    """Cosine to the class means.

    Args:
        scale: a, above 0; it changes probabilities, never an answer.

    Raises:
        ValueError: on a scale out of range.
    """
    return _simplecil((), scalar("scale", scale, minimum=0.0, strict=True))


def _direction(X: Array) -> Array:
    """Rows of length 1; 0 where a row is 0, also for derivatives."""
    square = jnp.sum(X**2, axis=1, keepdims=True)
    return jnp.where(square > 0, X / jnp.sqrt(jnp.where(square > 0, square, 1.0)), 0.0)


@shared_programs
def _simplecil(_: tuple[()], scale: Any) -> Learner:
    def scores(state: ClassMeans, X: Any) -> Array:
        X = _direction(jnp.asarray(X, state.mean.dtype))
        return of_met_classes(state.rows, scale * matmul_nt(X, _direction(state.mean)))

    def step(
        state: ClassMeans, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[ClassMeans, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.mean.dtype)
        new, healthy = learn_means(state, X, Y_t, weight)
        return new, StepInfo(scores(state, X), healthy)

    def fit_offline(state: ClassMeans, X: Any, Y: Any, weight: Any) -> ClassMeans:
        return learn_in_blocks(ClassMeans.learn, state, X, Y, weight)

    return plain_learner(
        no_means,
        step,
        scores,
        fit_offline=fit_offline,
        loss=brier_loss,
        description=describe("simplecil", scale=scale),
        sizes=lambda state: state.sizes,
    )
