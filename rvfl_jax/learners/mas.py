"""MAS, memory aware synapses: parameters matter as far as they move the outputs of the network.

The loss of a batch is

    L(theta) + lambda sum_j Omega_j (theta_j - theta*_j)^2,                               (1)

theta* the parameters at the end of the last task. There, over the last 256 rows of the task, with
no need of labels, by the squared norm of the outputs, which the source takes for many at once,

    Omega'_j = sum_i w_i |d ||f_theta(x_i)||^2 / d theta_j| / sum_i w_i,                  (2)
    Omega <- alpha Omega + (1 - alpha) Omega',      at the end of the first task Omega'.  (3)

The outputs are the logits.

Shapes: x_i (s,), f_theta(x_i) (m,), w_i scalar; theta, theta*, Omega and Omega' are pytrees of one
structure, P numbers each; lambda and alpha are scalars.

Cost: 6 b flops a parameter and update, and 6 r at the end of a task. Memory: three times the
parameters, and r rows.

Source: R. Aljundi, F. Babiloni, M. Elhoseiny, M. Rohrbach, T. Tuytelaars, "Memory Aware Synapses:
Learning What (not) to Forget", ECCV 2018. The source adds the importance of tasks up; the mean is
what later codes have, with lambda = 1 and alpha = 0.5.
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
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead
from rvfl_jax.learners.window import WINDOW, Window


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    kept: Any
    learning_rate: Any


def mas(
    *,
    coefficient: Any = 1.0,
    kept: Any = 0.5,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    updates: int = 1,
    window: int = WINDOW,
) -> Learner:
    """Memory aware synapses, for runs with `boundaries="given"`.

    Args:
        coefficient: lambda, at least 0.
        kept: alpha, the share of older importance, between 0 and 1.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.
        window: rows of the task in hand that importance is taken of, the last.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("kept", kept, minimum=0.0, maximum=1.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _mas(anchored_options(hidden, updates, window), numbers)


def sensitivity(head: MLPHead, params: Any, window: Window) -> Any:
    """Omega' (2), the mean absolute gradient of the squared norm of single rows' logits."""

    def squared_norm(params: Any, x: Array) -> Array:
        return jnp.sum(head.logits(params, x[None]) ** 2)

    def of_row(x: Array, y: Array) -> Any:
        del y
        return jax.tree.map(jnp.abs, jax.grad(squared_norm)(params, x))

    return window.mean(of_row)


@shared_programs
def _mas(options: AnchoredOptions, numbers: Numbers) -> Learner:
    def renew(head: MLPHead, state: AnchoredState) -> Anchor:
        # (3).
        kept = jnp.where(state.ended > 0, numbers.kept, 0.0)
        new = sensitivity(head, state.params, state.window)
        importance = jax.tree.map(
            lambda old, new: kept * old + (1 - kept) * new, state.anchor.importance, new
        )
        return Anchor(importance, state.params)

    return anchored_learner("mas", options, numbers, numbers.coefficient, renew)
