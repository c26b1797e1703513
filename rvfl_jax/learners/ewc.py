"""EWC, elastic weight consolidation: each task that has ended holds the parameters it needs.

The loss of a batch is, with a penalty for each task k that has ended,

    L(theta) + sum_k lambda / 2 sum_j F_kj (theta_j - theta*_kj)^2,    (1; their eq. 3, of one task)

theta*_k the parameters at the end of task k, and F_k the diagonal of the Fisher information there,
the mean of squared gradients of log p(y | x) of single rows (`rvfl_jax.learners.fisher`): the last
256 rows of the task, with their own labels. Quadratics add up: but for a constant the sum is one
quadratic, of importance F about an anchor theta*, which a task that ends with theta changes by

    F <- F + F_k,      theta*_j <- theta*_j + (F_kj / F_j) (theta_j - theta*_j),          (2)

theta*_j = theta_j where F_j is still 0; so any number of tasks takes the room of one.

Shapes: theta, theta*, F and F_k are pytrees of one structure, P numbers each; lambda is a scalar.

Cost: 6 b flops a parameter and update, and 6 r at the end of a task. Memory: three times the
parameters, and r rows.

Source: J. Kirkpatrick et al., "Overcoming Catastrophic Forgetting in Neural Networks", PNAS 114
(13), 2017. Which labels the Fisher information is taken of is not said there; lambda differs from
task to task, 1000 is where a sweep may begin.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.anchored import (
    Anchor,
    AnchoredOptions,
    AnchoredState,
    anchored_learner,
    anchored_options,
)
from rvfl_jax.learners.base import shared_programs
from rvfl_jax.learners.fisher import fisher_diagonal
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead
from rvfl_jax.learners.window import WINDOW


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    learning_rate: Any


def ewc(
    *,
    coefficient: Any = 1000.0,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    updates: int = 1,
    window: int = WINDOW,
) -> Learner:
    """Elastic weight consolidation, for runs with `boundaries="given"`.

    Args:
        coefficient: lambda, at least 0.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.
        window: rows of the task in hand that its Fisher information is taken of, the last.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _ewc(anchored_options(hidden, updates, window), numbers)


@shared_programs
def _ewc(options: AnchoredOptions, numbers: Numbers) -> Learner:
    return anchored_learner("ewc", options, numbers, numbers.coefficient / 2, add_task)


def add_task(head: MLPHead, state: AnchoredState) -> Anchor:
    """One quadratic for all tasks (2): importance adds up, the anchor is the mean by importance."""
    fisher = fisher_diagonal(head, state.params, state.window)
    total = jax.tree.map(jnp.add, state.anchor.importance, fisher)

    def between(there: Array, here: Array, new: Array, total: Array) -> Array:
        return there + jnp.where(total > 0, new / jnp.where(total > 0, total, 1.0), 1.0) * (
            here - there
        )

    anchor = jax.tree.map(between, state.anchor.params, state.params, fisher, total)
    return Anchor(total, anchor)
