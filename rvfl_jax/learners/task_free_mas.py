"""Task-free MAS: memory aware synapses that find for themselves when to consolidate.

The loss of a batch is, with a few hard rows kept from before, and h what these count,

    L(theta) + h L_hard(theta) + lambda / 2 sum_j Omega_j (theta_j - theta*_j)^2.         (1)

The loss l of each batch before it is learned enters a window of the last 5. It lies on a plateau,
where the network has learned what there is, if

    mean l < a    and    var l < b    and    a peak was there since the last plateau,     (2)

a peak being a mean above H, the mean and one standard deviation of the window of the last plateau.
At the start a peak counts as seen, but without hard rows there is no plateau. On a plateau
importance is renewed, by the mean over the hard rows as `rvfl_jax.learners.mas` has it, and is a
running average over the n plateaus so far,

    Omega <- Omega' / n + (1 - 1 / n) Omega,      theta* <- theta.                        (3)

Hard rows are those of most loss among a batch and the hard rows before it, after the batch was
learned.

Shapes: l (5,), a, b, h, H and lambda scalars; theta, theta*, Omega and Omega' are pytrees of one
structure, P numbers each; hard rows (r, s) with targets (r, m).

Cost: 6 (b + r) flops a parameter and update, and 6 r at a plateau. Memory: three times the
parameters, and r rows.

Source: R. Aljundi, K. Kelchtermans, T. Tuytelaars, "Task-Free Continual Learning", CVPR 2019, and
its code: lambda = 0.5, a window of 5, thresholds a = 0.2 and b = 0.1, 30 hard rows. The code sums
the gradients of norms, not squared, over the hard rows; means of squared norms are those of MAS.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.anchored import Anchor
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mas import sensitivity
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, mlp_learner
from rvfl_jax.learners.window import Window


class Course(NamedTuple):
    """Where the loss has gone.

    Attributes:
        losses: (window,) of the last batches, in a ring.
        batches: how many there were.
        peak: whether one has been since the last plateau.
        height: () H, above which a mean is a peak.
        plateaus: n.
    """

    losses: Array
    batches: Array
    peak: Array
    height: Array
    plateaus: Array


class TaskFreeMASState(NamedTuple):
    """Parameters, the optimiser's state, what holds them, hard rows, and the course of the loss."""

    params: Any
    optimiser: Any
    anchor: Anchor
    hard: Window
    course: Course


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    rehearsed: Any
    mean_below: Any
    variance_below: Any
    learning_rate: Any


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    hard: int
    window: int
    updates: int


def task_free_mas(
    *,
    coefficient: Any = 0.5,
    rehearsed: Any = 1.0,
    mean_below: Any = 0.2,
    variance_below: Any = 0.1,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    hard: int = 30,
    window: int = 5,
    updates: int = 1,
) -> Learner:
    """Memory aware synapses that are never told of tasks.

    Args:
        coefficient: lambda, at least 0.
        rehearsed: h, what the mean loss of the hard rows counts, at least 0.
        mean_below: the mean loss of a plateau is below it, above 0.
        variance_below: the variance of its losses is below it, above 0.
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        hard: hard rows kept.
        window: batches whose losses are looked at.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("rehearsed", rehearsed, minimum=0.0),
        scalar("mean_below", mean_below, minimum=0.0, strict=True),
        scalar("variance_below", variance_below, minimum=0.0, strict=True),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    sizes = {"hard": hard, "window": window, "updates": updates}
    counts = (positive_int(name, size) for name, size in sizes.items())
    return _task_free_mas(Options(checked_hidden(hidden), *counts), numbers)


def hardest(kept: Window, X: Array, Y: Array, weight: Array, losses: Array) -> Window:
    """The rows of most loss of those kept (r) and a batch (b), with losses (r + b,)."""
    size = len(kept.weight)
    rows = zip(kept[:3], (X, Y, weight), strict=True)
    X, Y, weight = map(jnp.concatenate, rows)
    _, places = lax.top_k(jnp.where(weight > 0, losses, -jnp.inf), size)
    there = weight[places] > 0
    return Window(
        jnp.where(there[:, None], X[places], 0.0),
        jnp.where(there[:, None], Y[places], 0.0),
        weight[places],
        jnp.sum(there, dtype=jnp.int32),
    )


def moved_on(course: Course, loss: Array, numbers: Numbers, known: Array) -> tuple[Course, Array]:
    """The course after another loss, and whether a plateau (2) begins, which it can if `known`."""
    size = len(course.losses)
    losses = course.losses.at[course.batches % size].set(loss)
    batches = course.batches + 1
    there = jnp.arange(size) < batches
    mean, variance = jnp.mean(losses, where=there), jnp.var(losses, where=there)
    peak = course.peak | (mean > course.height)
    flat = (mean < numbers.mean_below) & (variance < numbers.variance_below)
    plateau = flat & peak & known
    return Course(
        losses,
        batches,
        peak & ~plateau,
        jnp.where(plateau, mean + jnp.sqrt(variance), course.height),
        course.plateaus + plateau,
    ), plateau


@shared_programs
def _task_free_mas(options: Options, numbers: Numbers) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> TaskFreeMASState:
        params, moments = head.begin(optimiser, key, num_features, num_classes)
        none = jnp.zeros((), jnp.int32)
        course = Course(jnp.zeros(options.window), none, jnp.asarray(True), jnp.zeros(()), none)
        hard = Window.begin(options.hard, num_features, num_classes)
        return TaskFreeMASState(params, moments, Anchor.begin(params), hard, course)

    def learn(state: TaskFreeMASState, rows: Rows) -> TaskFreeMASState:
        hard_rows = state.hard.X, state.hard.Y, state.hard.weight

        def beside(params: Any) -> Array:
            held = numbers.coefficient / 2 * state.anchor.distance(params)
            return numbers.rehearsed * head.loss(params, *hard_rows) + held

        params, moments = head.descend(
            optimiser, state.params, state.optimiser, rows, beside, options.updates
        )
        before = lax.stop_gradient(head.loss(state.params, *rows))
        # Importance is taken of hard rows: where there are none yet, a plateau is none.
        course, plateau = moved_on(state.course, before, numbers, state.hard.passed > 0)
        share = 1.0 / jnp.maximum(course.plateaus, 1).astype(before.dtype)

        def renewed() -> Anchor:
            # (3).
            importance = jax.tree.map(
                lambda new, old: share * new + (1 - share) * old,
                sensitivity(head, params, state.hard),
                state.anchor.importance,
            )
            return Anchor(importance, params)

        anchor = lax.cond(plateau, renewed, lambda: state.anchor)
        all_X, all_Y = (jnp.concatenate(pair) for pair in zip(hard_rows[:2], rows[:2], strict=True))
        losses = optax.softmax_cross_entropy(head.logits(params, all_X), all_Y)
        hard = hardest(state.hard, *rows, lax.stop_gradient(losses))
        return TaskFreeMASState(params, moments, anchor, hard, course)

    description = describe("task_free_mas", **numbers._asdict(), **options._asdict())
    return mlp_learner(head, init, learn, description=description)
