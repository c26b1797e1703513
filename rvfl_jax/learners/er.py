"""ER, experience replay, by the name that tables have; `rvfl_jax.learners.replay` tells of it.

With rows B of a batch and rows R drawn from a reservoir,

    theta <- theta - eta grad_theta sum_{i in B + R} w_i CE(f_theta(x_i), y_i) / W,       (1)
    W = max(sum_{i in B + R} w_i, 1).                                                     (2)

Shapes: x_i (s,), y_i (m,), f_theta(x_i) (m,), w_i scalar; B has b rows and R at most d; theta is a
pytree of P numbers.

Cost: 6 (b + d) flops a parameter and update, with d rows drawn. Memory: the parameters and r rows.

Source: A. Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019, with the rate
0.1 and 10 rows drawn.
"""

from typing import Any

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Learner
from rvfl_jax.learners.base import shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN
from rvfl_jax.learners.rehearsal import RehearsalOptions, rehearsal_options
from rvfl_jax.learners.replay import replay_learner


def er(
    *,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 200,
    drawn: int = 10,
    updates: int = 1,
) -> Learner:
    """Experience replay.

    Args:
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        memory: rows kept.
        drawn: rows drawn from them for each update, at most `memory`.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    learning_rate = scalar("learning_rate", learning_rate, minimum=0.0, strict=True)
    return _er(rehearsal_options(hidden, memory, drawn, updates), learning_rate)


@shared_programs
def _er(options: RehearsalOptions, learning_rate: Any) -> Learner:
    return replay_learner("er", options, learning_rate)
