"""SI, synaptic intelligence: parameters matter by how much of the loss they took away.

The loss of a batch is

    L(theta) + c sum_j Omega_j (theta_j - theta*_j)^2,                                    (1)

theta* the parameters at the end of the last task. Along the updates from theta to theta' each
parameter's share of the fall of L is summed, and where a task ends it becomes importance:

    omega_j <- omega_j - g_j (theta'_j - theta_j),                                        (2)
    Omega_j <- Omega_j + omega_j / ((theta_j - theta*_j)^2 + xi),                         (3)

g the gradient at theta of L by itself; then omega = 0 and theta* = theta. xi is the damping. No
rows are needed: the path is all there is.

Shapes: theta, theta*, g, omega and Omega are pytrees of one structure, P numbers each; c and xi are
scalars.

Cost: 6 b flops a parameter and update. Memory: four times the parameters.

Source: F. Zenke, B. Poole, S. Ganguli, "Continual Learning Through Synaptic Intelligence", ICML
2017. c = 1 and xi = 0.9 are where a sweep may begin. Omega_j may be below 0, as in the source.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.anchored import Anchor
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, mlp_learner


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
        params, moments = head.begin(optimiser, key, num_features, num_classes)
        path = jax.tree.map(jnp.zeros_like, params)
        return SIState(params, moments, Anchor.begin(params), path)

    def learn(state: SIState, rows: Rows) -> SIState:
        def penalty(params: Any) -> Array:
            return numbers.coefficient * state.anchor.distance(params)

        params, moments, path = state.params, state.optimiser, state.path
        for _update in range(updates):
            gradient = jax.grad(head.loss)(params, *rows)
            moved, moments = head.descend(optimiser, params, moments, rows, penalty)
            # (2).
            path = jax.tree.map(
                lambda omega, g, after, before: omega - g * (after - before),
                path,
                gradient,
                moved,
                params,
            )
            params = moved
        return SIState(params, moments, state.anchor, path)

    def consolidate(state: SIState) -> SIState:
        # (3).
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
    return mlp_learner(head, init, learn, description=description, consolidate=consolidate)
