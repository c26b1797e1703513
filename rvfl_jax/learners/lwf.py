"""LwF, learning without forgetting: on each batch, answer on old classes as before the task.

The loss of a batch is, with the network as it was at the end of the last task beside it,

    sum_i w_i (CE(f_theta(x_i), y_i) + alpha L_old(x_i)) / max(sum_i w_i, 1),             (1)
    L_old(x) = - sum_c y'_c log p'_c,                                               (2; their eq. 2)
    y' = softmax(f_old(x) / T),      p' = softmax(f_theta(x) / T),                  (3; their eq. 3)

sums and softmaxes of (2) and (3) over the classes met before the end of the last task. The source
writes (3) by probabilities to the power 1 / T, made to sum to 1, which is the same.
One readout serves all tasks, where the source has one for each. Until a first task has ended, and
without `boundaries="given"`, it is fine-tuning.

Shapes: x_i (s,), y_i, y', p', f_theta(x) and f_old(x) (m,), w_i, alpha and T scalars; theta and the
parameters of f_old are pytrees of P numbers each.

Cost: 8 b flops a parameter and update. Memory: twice the parameters.

Source: Z. Li, D. Hoiem, "Learning without Forgetting", ECCV 2016, and IEEE TPAMI 40 (12), 2018,
which the numbers are of, with T = 2 and alpha = 1 (there lambda_o). No factor T^2 is there.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, mlp_learner
from rvfl_jax.learners.parts import of_met_classes


class LwFState(NamedTuple):
    """Parameters and the optimiser's state, and rows (m,) of each class: now, at the last end.

    `teacher` are the parameters at the end of the last task.
    """

    params: Any
    optimiser: Any
    rows: Array
    teacher: Any
    old_rows: Array


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    temperature: Any
    learning_rate: Any


def lwf(
    *,
    coefficient: Any = 1.0,
    temperature: Any = 2.0,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    updates: int = 1,
) -> Learner:
    """Learning without forgetting, for runs with `boundaries="given"`.

    Args:
        coefficient: alpha, at least 0.
        temperature: T, above 0.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("temperature", temperature, minimum=0.0, strict=True),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _lwf((checked_hidden(hidden), positive_int("updates", updates)), numbers)


def distillation(old_rows: Array, teacher: Array, logits: Array, temperature: Any) -> Array:
    """(b,) L_old (2) of logits (b, m), over classes with rows; 0 where none has any."""
    there, here = (of_met_classes(old_rows, z / temperature) for z in (teacher, logits))
    each = -jnp.sum(jax.nn.softmax(there) * jax.nn.log_softmax(here), axis=-1, where=old_rows > 0)
    return jnp.where(jnp.any(old_rows > 0), each, 0.0)


@shared_programs
def _lwf(options: tuple[tuple[int, ...], int], numbers: Numbers) -> Learner:
    hidden, updates = options
    head, optimiser = MLPHead(hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> LwFState:
        params, moments = head.begin(optimiser, key, num_features, num_classes)
        none = jnp.zeros(num_classes)
        return LwFState(params, moments, none, params, none)

    def learn(state: LwFState, rows: Rows) -> LwFState:
        X, Y, weight = rows
        share = weight / jnp.maximum(jnp.sum(weight), 1.0)
        answers = head.logits(state.teacher, X)

        def old_loss(params: Any) -> Array:
            each = distillation(
                state.old_rows, answers, head.logits(params, X), numbers.temperature
            )
            return numbers.coefficient * jnp.sum(share * each)

        params, moments = head.descend(
            optimiser, state.params, state.optimiser, rows, old_loss, updates
        )
        return state._replace(params=params, optimiser=moments, rows=state.rows + weight @ Y)

    def consolidate(state: LwFState) -> LwFState:
        return state._replace(teacher=state.params, old_rows=state.rows)

    description = describe("lwf", **numbers._asdict(), hidden=hidden, updates=updates)
    return mlp_learner(head, init, learn, description=description, consolidate=consolidate)
