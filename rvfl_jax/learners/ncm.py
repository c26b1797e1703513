"""Nearest class mean: a row is of the class whose mean is nearest.

With mu_c the mean of the rows of class c so far, the score is

    -||x - mu_c||^2 / 2 + ||x||^2 / 2 = x^T mu_c - ||mu_c||^2 / 2,                        (1)

which orders classes as the distance does. Class means do not interfere: any batches, in any order,
give the means of all rows.

Shapes: x (s,), the means (m, s), the scores (m,).

Cost: 2 s m flops a row, for learning and for scores; nothing is solved.

Source: T. Mensink, J. Verbeek, F. Perronnin, G. Csurka, "Distance-Based Image Classification:
Generalizing to New Classes at Near-Zero Cost", IEEE TPAMI 35 (11), 2013. There are no options.
"""

from typing import Any

import jax.numpy as jnp

from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.gaussian import ClassMeans
from rvfl_jax.learners.parts import learn_in_blocks, of_met_classes, rows_of, unless_unhealthy
from rvfl_jax.linalg.products import is_finite, matmul_nt
from rvfl_jax.metrics import brier_loss


def ncm() -> Learner:
    """Nearest class mean on the inputs themselves."""
    return _ncm((), ())


def no_means(key: Array, num_features: int, num_classes: int) -> ClassMeans:
    """The state of a method that keeps class means, before anything was learned."""
    del key
    return ClassMeans.none(num_features, num_classes)


def learn_means(state: ClassMeans, X: Array, Y: Any, weight: Array) -> tuple[ClassMeans, Array]:
    """The means with a batch of `rows_of`, and whether they are finite; if not, those of before."""
    new = state.learn(X, Y, weight)
    healthy = is_finite(new.mean) & is_finite(new.rows)
    return unless_unhealthy(healthy, new, state), healthy


@shared_programs
def _ncm(_: tuple[()], __: tuple[()]) -> Learner:
    def scores(state: ClassMeans, X: Any) -> Array:
        z = matmul_nt(jnp.asarray(X, state.mean.dtype), state.mean)
        return of_met_classes(state.rows, z - jnp.sum(state.mean**2, axis=1) / 2)

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
        description=describe("ncm"),
        sizes=lambda state: state.sizes,
    )
