"""A-GEM: each update is turned so that the loss on rows drawn from memory does not rise.

With g the gradient of a batch and g_ref that of rows drawn from memory,

    g~ = g                                      where g'g_ref >= 0,
    g~ = g - (g'g_ref / g_ref'g_ref) g_ref      elsewhere,                         (1; their eq. 11)
    theta <- theta - eta g~.                                                              (2)

The memory is a reservoir over all rows that came before, so that tasks need not be known; in the
source it is a sample of each task that has ended.

Shapes: g, g_ref and g~ are pytrees of the structure of theta, P numbers, here as vectors (P,).

Cost: 6 (b + d) flops a parameter and update, with d rows drawn. Memory: the parameters and r rows.

Source: A. Chaudhry, M. Ranzato, M. Rohrbach, M. Elhoseiny, "Efficient Lifelong Learning with
A-GEM", ICLR 2019. The rate 0.1 and 10 rows drawn are where a sweep may begin.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, follow, mlp_learner
from rvfl_jax.learners.rehearsal import RehearsalOptions, rehearsal_options
from rvfl_jax.learners.reservoir import Reservoir, draw, empty_reservoir, pass_by


class AGEMState(NamedTuple):
    """Parameters, the optimiser's state, kept rows, and the key of the next draws."""

    params: Any
    optimiser: Any
    kept: Reservoir
    key: Array


def agem(
    *,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 200,
    drawn: int = 10,
    updates: int = 1,
) -> Learner:
    """Averaged gradient episodic memory.

    Args:
        learning_rate: eta, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        memory: rows kept.
        drawn: rows drawn from them for each update, at most `memory`.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    learning_rate = scalar("learning_rate", learning_rate, minimum=0.0, strict=True)
    return _agem(rehearsal_options(hidden, memory, drawn, updates), learning_rate)


def turned(gradient: Any, reference: Any) -> Any:
    """g~ (1), pytrees of one structure; g itself where it does not go against the reference."""

    def product(a: Any, b: Any) -> Array:
        return jnp.asarray(sum(jax.tree.leaves(jax.tree.map(jnp.vdot, a, b))))

    along, square = product(gradient, reference), product(reference, reference)
    against = along < 0
    share = jnp.where(against, along / jnp.where(against, square, 1.0), 0.0)
    return jax.tree.map(lambda g, ref: jnp.where(against, g - share * ref, g), gradient, reference)


@shared_programs
def _agem(options: RehearsalOptions, learning_rate: Any) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> AGEMState:
        of_params, of_draws = jax.random.split(key)
        network = head.begin(optimiser, of_params, num_features, num_classes)
        kept = empty_reservoir(options.memory, num_features, num_classes)
        return AGEMState(*network, kept, of_draws)

    def learn(state: AGEMState, rows: Rows) -> AGEMState:
        X, Y, weight = rows
        key, of_reservoir, *of_draws = jax.random.split(state.key, 2 + options.updates)
        params, moments = state.params, state.optimiser
        gradient_of = jax.grad(head.loss)
        for of_draw in of_draws:
            reference = gradient_of(params, *draw(state.kept, of_draw, options.drawn))
            gradient = turned(gradient_of(params, *rows), reference)
            params, moments = follow(optimiser, params, moments, gradient)
        kept = pass_by(state.kept, of_reservoir, X, Y, weight > 0)
        return AGEMState(params, moments, kept, key)

    description = describe("agem", learning_rate=learning_rate, **options._asdict())
    return mlp_learner(head, init, learn, description=description)
