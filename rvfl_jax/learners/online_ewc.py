"""Online EWC: elastic weight consolidation about the last task's end, older importance fading.

The loss of a batch is, with a running sum F* of Fisher information that is renewed where a task
ends,

    L(theta) + lambda / 2 sum_j F*_j (theta_j - theta*_j)^2,                              (1)
    F* <- gamma F* + F,      theta* <- theta,                                             (2)

theta* so the parameters at the end of the last task, and F the diagonal of the Fisher information
there, as `rvfl_jax.learners.fisher` has it: the mean of squared gradients of single rows.

Shapes: theta, theta*, F* and F are pytrees of one structure, P numbers each; lambda and gamma are
scalars.

Cost: 6 b flops a parameter and update, and 6 r at the end of a task. Memory: three times the
parameters, and r rows.

Source: J. Schwarz et al., "Progress & Compress: A Scalable Framework for Continual Learning", ICML
2018. There gamma < 1 and F is made to have norm 1, which lambda takes the place of here. lambda =
90, gamma = 1 and the rate 0.03 are where a sweep may begin.
"""

from typing import Any, NamedTuple

import jax

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Learner
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
    decay: Any
    learning_rate: Any


def online_ewc(
    *,
    coefficient: Any = 90.0,
    decay: Any = 1.0,
    learning_rate: Any = 0.03,
    hidden: tuple[int, ...] = HIDDEN,
    updates: int = 1,
    window: int = WINDOW,
) -> Learner:
    """Online elastic weight consolidation, for runs with `boundaries="given"`.

    Args:
        coefficient: lambda, at least 0.
        decay: gamma, at least 0; with 1 all tasks count alike.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.
        window: rows of the task in hand that its Fisher information is taken of, the last.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("decay", decay, minimum=0.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _online_ewc(anchored_options(hidden, updates, window), numbers)


@shared_programs
def _online_ewc(options: AnchoredOptions, numbers: Numbers) -> Learner:
    def renew(head: MLPHead, state: AnchoredState) -> Anchor:
        fisher = fisher_diagonal(head, state.params, state.window)
        total = jax.tree.map(
            lambda old, new: numbers.decay * old + new, state.anchor.importance, fisher
        )
        # (2), theta* included.
        return Anchor(total, state.params)

    return anchored_learner("online_ewc", options, numbers, numbers.coefficient / 2, renew)
