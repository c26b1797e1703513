"""Experience replay: a network trained by gradients on each batch and on rows kept from before.

At every batch, as many times as asked, one step of plain gradient descent on the cross-entropy of
the batch's rows B and of rows R drawn from a reservoir, each row counting alike,

    theta <- theta - eta grad_theta sum_{i in B + R} w_i CE(f_theta(x_i), y_i) / W,       (1)
    W = max(sum_{i in B + R} w_i, 1),                                                     (2)

rows drawn of weight 1.

Shapes: x_i (s,), y_i (m,), f_theta(x_i) (m,), w_i scalar; B has b rows and R at most d; theta is a
pytree of P numbers.

Source: A. Chaudhry et al., "On Tiny Episodic Memories in Continual Learning", 2019.
"""

from typing import Any, NamedTuple

import jax
import optax

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, follow, mlp_learner
from rvfl_jax.learners.rehearsal import RehearsalOptions, loss_of_both, rehearsal_options
from rvfl_jax.learners.reservoir import Reservoir, draw, empty_reservoir, pass_by


class ERState(NamedTuple):
    """Parameters, the optimiser's state, kept rows, and the key of the next draws."""

    params: Any
    optimiser: Any
    kept: Reservoir
    key: Array


def replay(
    *,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 200,
    drawn: int = 10,
    updates: int = 1,
) -> Learner:
    """Experience replay with a multilayer perceptron.

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
    return _replay(rehearsal_options(hidden, memory, drawn, updates), learning_rate)


@shared_programs
def _replay(options: RehearsalOptions, learning_rate: Any) -> Learner:
    return replay_learner("replay", options, learning_rate)


def replay_learner(name: str, options: RehearsalOptions, learning_rate: Any) -> Learner:
    """The learner under a name, not compiled, for `shared_programs`."""
    hidden, memory, drawn, updates = options
    head, optimiser = MLPHead(hidden), optax.sgd(learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> ERState:
        of_params, of_draws = jax.random.split(key)
        network = head.begin(optimiser, of_params, num_features, num_classes)
        return ERState(*network, empty_reservoir(memory, num_features, num_classes), of_draws)

    def learn(state: ERState, rows: Rows) -> ERState:
        X, Y, weight = rows
        key, of_reservoir, *of_draws = jax.random.split(state.key, 2 + updates)
        params, moments = state.params, state.optimiser
        for of_draw in of_draws:
            loss = loss_of_both(head, rows, draw(state.kept, of_draw, drawn))
            params, moments = follow(optimiser, params, moments, jax.grad(loss)(params))
        kept = pass_by(state.kept, of_reservoir, X, Y, weight > 0)
        return ERState(params, moments, kept, key)

    description = describe(name, learning_rate=learning_rate, **options._asdict())
    return mlp_learner(head, init, learn, description=description)
