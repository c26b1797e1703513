"""Networks held to what they were by a quadratic penalty, the frame of EWC, MAS and their kin.

At every batch, as many times as asked, one step of plain gradient descent on

    L(theta) + a sum_j Omega_j (theta_j - theta*_j)^2,                                    (1)

L that of `rvfl_jax.learners.mlp_head`, the mean cross-entropy of the batch. Where a task is known
to end, `consolidate` renews the importance Omega and the anchor theta* from the last rows of the
task. A method says how; without `boundaries="given"` it is fine-tuning.

Shapes: theta, theta* and Omega are pytrees of one structure, P numbers each; a is a scalar.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe
from rvfl_jax.learners.mlp_head import MLPHead, Rows, checked_hidden, mlp_learner
from rvfl_jax.learners.parts import unless_unhealthy
from rvfl_jax.learners.window import Window


class Anchor(NamedTuple):
    """Importance Omega and anchor theta*, of the structure of the parameters."""

    importance: Any
    params: Any

    @classmethod
    def begin(cls, params: Any) -> "Anchor":
        """Nothing is important yet."""
        return cls(jax.tree.map(jnp.zeros_like, params), params)

    def distance(self, params: Any) -> Array:
        """() sum_j Omega_j (theta_j - theta*_j)^2, of (1) without its factor."""
        each = jax.tree.map(
            lambda omega, here, there: jnp.sum(omega * (here - there) ** 2),
            self.importance,
            params,
            self.params,
        )
        return jnp.asarray(sum(jax.tree.leaves(each)))


class AnchoredState(NamedTuple):
    """Parameters, the optimiser's state, what holds them, the task's last rows, tasks ended."""

    params: Any
    optimiser: Any
    anchor: Anchor
    window: Window
    ended: Array


class AnchoredOptions(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    updates: int
    window: int


def anchored_options(hidden: tuple[int, ...], updates: int, window: int) -> AnchoredOptions:
    """The options, checked; ValueError on anything out of range."""
    sizes = positive_int("updates", updates), positive_int("window", window)
    return AnchoredOptions(checked_hidden(hidden), *sizes)


# How a method renews: `(state with a window of rows) -> Anchor`.
Renew = Callable[[MLPHead, AnchoredState], Anchor]


def anchored_learner(
    name: str, options: AnchoredOptions, numbers: Any, scale: Any, renew: Renew
) -> Learner:
    """The learner of a method, not compiled, for `shared_programs`.

    Args:
        name: of the method.
        options: what shapes the programs.
        numbers: a named tuple, with `learning_rate`.
        scale: a, what the penalty is multiplied by.
        renew: how importance and anchor are renewed where a task ends.
    """
    head, optimiser = MLPHead(options.hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> AnchoredState:
        params, moments = head.begin(optimiser, key, num_features, num_classes)
        window = Window.begin(options.window, num_features, num_classes)
        ended = jnp.zeros((), jnp.int32)
        return AnchoredState(params, moments, Anchor.begin(params), window, ended)

    def learn(state: AnchoredState, rows: Rows) -> AnchoredState:
        def penalty(params: Any) -> Array:
            return scale * state.anchor.distance(params)

        params, moments = head.descend(
            optimiser, state.params, state.optimiser, rows, penalty, options.updates
        )
        return state._replace(params=params, optimiser=moments, window=state.window.take(*rows))

    def consolidate(state: AnchoredState) -> AnchoredState:
        anchor = renew(head, state)
        new = state._replace(anchor=anchor, window=state.window.emptied(), ended=state.ended + 1)
        return unless_unhealthy(state.window.passed > 0, new, state)

    description = describe(name, **numbers._asdict(), **options._asdict())
    return mlp_learner(head, init, learn, description=description, consolidate=consolidate)
