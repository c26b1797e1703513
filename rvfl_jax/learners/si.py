"""SI, synaptic intelligence: parameters matter by how much of the loss they took away.

The loss of a batch is

    L(theta) + c sum_j Omega_j (theta_j - theta*_j)^2,

theta* the parameters at the end of the last task. Along the updates each parameter's share of the
fall of L is summed, and where a task ends it becomes importance:

    omega_j <- omega_j - g_j (theta'_j - theta_j)               g the gradient of L by itself,
    Omega_j <- Omega_j + omega_j / ((theta_j - theta*_j)^2 + xi),  then omega = 0, theta* = theta.

xi is the damping. No rows are needed: the path is all there is.

Cost: 6 b flops a parameter and update. Memory: four times the parameters.

Source: F. Zenke, B. Poole, S. Ganguli, "Continual Learning Through Synaptic Intelligence", ICML
2017. c = 1 and xi = 0.9 are where a sweep may begin. Omega_j may be below 0, as in the source.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.anchored import Anchor
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, checked_hidden, is_sound
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.metrics import brier_loss


class SIState(NamedTuple):
    """Parameters, the optimiser's state, what holds them, and the path omega of this task."""

    params: Any
    optimiser: Any
    anchor: Anchor
    path: Any


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    damping: Any
    learning_rate: Any


def si(
    *,
    coefficient: Any = 1.0,
    damping: Any = 0.9,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    updates: int = 1,
) -> Learner:
    """Synaptic intelligence, for runs with `boundaries="given"`.

    Args:
        coefficient: c, at least 0.
        damping: xi, above 0.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("damping", damping, minimum=0.0, strict=True),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _si((checked_hidden(hidden), positive_int("updates", updates)), numbers)


@shared_programs
def _si(options: tuple[tuple[int, ...], int], numbers: Numbers) -> Learner:
    hidden, updates = options
    head, optimiser = MLPHead(hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> SIState:
        params = head.init(key, num_features, num_classes)
        path = jax.tree.map(jnp.zeros_like, params)
        return SIState(params, optimiser.init(params), Anchor.begin(params), path)

    def scores(state: SIState, X: Any) -> Array:
        return head.logits(state.params, X)

    def step(
        state: SIState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[SIState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, jnp.result_type(float))
        rows = X, jnp.asarray(Y_t, X.dtype), weight

        def penalty(params: Any) -> Array:
            return numbers.coefficient * state.anchor.distance(params)

        params, moments, path = state.params, state.optimiser, state.path
        for _update in range(updates):
            gradient = jax.grad(head.loss)(params, *rows)
            moved, moments = head.descend(optimiser, params, moments, rows, penalty)
            path = jax.tree.map(
                lambda omega, g, after, before: omega - g * (after - before),
                path,
                gradient,
                moved,
                params,
            )
            params = moved
        healthy = is_sound(params)
        new = SIState(params, moments, state.anchor, path)
        info = StepInfo(scores(state, X), healthy)
        # A batch of no rows leaves no trace, though the penalty alone would move parameters.
        return unless_unhealthy(healthy & jnp.any(weight > 0), new, state), info

    def consolidate(state: SIState) -> SIState:
        importance = jax.tree.map(
            lambda old, omega, here, there: old + omega / ((here - there) ** 2 + numbers.damping),
            state.anchor.importance,
            state.path,
            state.params,
            state.anchor.params,
        )
        nothing = jax.tree.map(jnp.zeros_like, state.path)
        return state._replace(anchor=Anchor(importance, state.params), path=nothing)

    description = describe("si", **numbers._asdict(), hidden=hidden, updates=updates)
    return plain_learner(
        init,
        step,
        scores,
        consolidate=consolidate,
        loss=brier_loss,
        description=description,
        sizes=lambda state: head.sizes(state.params),
    )
