"""DER++, dark experience replay: rows kept with the answers of their time, and with their labels.

The loss of a batch is

    L(theta) + alpha mean ||f_theta(x') - z'||^2 / m + beta mean CE(f_theta(x''), y''),   (1)

with two draws, (x', z') and (x'', y''), from one reservoir that holds rows, labels, and the logits
z that the network gave when the row came, before it was learned. The squared norm is divided by the
m classes, as the source's code has it and its figures are made with. Without it, and without the
last term, (1) is their eq. 5, DER.

Shapes: x' and x'' (s,), z' and f_theta(x) (m,), y'' (m,), alpha and beta scalars; theta is a pytree
of P numbers.

Cost: 6 (b + 2 d) flops a parameter and update, with d rows in a draw. Memory: the parameters and r
rows with logits.

Source: P. Buzzega, M. Boschini, A. Porrello, D. Abati, S. Calderara, "Dark Experience for General
Continual Learning: a Strong, Simple Baseline", NeurIPS 2020. alpha = 1, beta = 0.5 and the rate
0.03 are where a sweep may begin.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, mlp_learner
from rvfl_jax.learners.parts import weighted_mean
from rvfl_jax.learners.rehearsal import RehearsalOptions, rehearsal_options
from rvfl_jax.learners.reservoir import Reservoir, draw, empty_reservoir, pass_by


class DERState(NamedTuple):
    """Parameters, the optimiser's state, rows kept with [labels, logits], and a key."""

    params: Any
    optimiser: Any
    kept: Reservoir
    key: Array


class Numbers(NamedTuple):
    """What only scales."""

    answers: Any
    labels: Any
    learning_rate: Any


def derpp(
    *,
    answers: Any = 1.0,
    labels: Any = 0.5,
    learning_rate: Any = 0.03,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 200,
    drawn: int = 10,
    updates: int = 1,
) -> Learner:
    """Dark experience replay with labels.

    Args:
        answers: alpha, what kept logits count, at least 0.
        labels: beta, what kept labels count, at least 0; with 0 it is DER.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        memory: rows kept.
        drawn: rows of each of the two draws of an update, at most `memory`.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("answers", answers, minimum=0.0),
        scalar("labels", labels, minimum=0.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    return _derpp(rehearsal_options(hidden, memory, drawn, updates), numbers)


@shared_programs
def _derpp(options: RehearsalOptions, numbers: Numbers) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> DERState:
        of_params, of_draws = jax.random.split(key)
        network = head.begin(optimiser, of_params, num_features, num_classes)
        kept = empty_reservoir(options.memory, num_features, 2 * num_classes)
        return DERState(*network, kept, of_draws)

    def learn(state: DERState, rows: Rows) -> DERState:
        X, Y, weight = rows
        m = Y.shape[1]
        key, of_reservoir, *of_draws = jax.random.split(state.key, 2 + 2 * options.updates)
        params, moments = state.params, state.optimiser
        for i in range(options.updates):
            of_answers, of_labels = of_draws[2 * i : 2 * i + 2]
            X_answered, both, there = draw(state.kept, of_answers, options.drawn)
            X_labelled, labelled, own = draw(state.kept, of_labels, options.drawn)
            z, Y_labelled = both[:, m:], labelled[:, :m]

            def replayed(
                params: Any,
                answered: tuple[Array, Array, Array] = (X_answered, z, there),
                labelled: tuple[Array, Array, Array] = (X_labelled, Y_labelled, own),
            ) -> Array:
                X, z, here = answered
                each = jnp.mean((head.logits(params, X) - z) ** 2, axis=1)
                distance = weighted_mean(each, here)
                return numbers.answers * distance + numbers.labels * head.loss(params, *labelled)

            params, moments = head.descend(optimiser, params, moments, rows, replayed)
        both = jnp.concatenate([Y, head.logits(state.params, X)], axis=1)
        kept = pass_by(state.kept, of_reservoir, X, both, weight > 0)
        return DERState(params, moments, kept, key)

    description = describe("derpp", **numbers._asdict(), **options._asdict())
    return mlp_learner(head, init, learn, description=description)
