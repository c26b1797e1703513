"""Networks held to what they were by a quadratic penalty, the frame of EWC, MAS and their kin.

At every batch, as many times as asked, one step of plain gradient descent on

    sum_i w_i CE(f_theta(x_i), y_i) / max(sum_i w_i, 1) + a sum_j Omega_j (theta_j - theta*_j)^2.

Where a task is known to end, `consolidate` renews the importance Omega and the anchor theta* from
the last rows of the task. A method says how; without `boundaries="given"` it is fine-tuning.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner
from rvfl_jax.learners.mlp_head import MLPHead, checked_hidden, is_sound
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.learners.window import Window
from rvfl_jax.metrics import brier_loss


class Anchor(NamedTuple):
    """Importance Omega and anchor theta*, of the structure of the parameters."""

    importance: Any
    params: Any

    @classmethod
    def begin(cls, params: Any) -> "Anchor":
        """Nothing is important yet."""
        return cls(jax.tree.map(jnp.zeros_like, params), params)

    def distance(self, params: Any) -> Array:
        """() sum_j Omega_j (theta_j - theta*_j)^2."""
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
        params = head.init(key, num_features, num_classes)
        window = Window.begin(options.window, num_features, num_classes)
        ended = jnp.zeros((), jnp.int32)
        return AnchoredState(params, optimiser.init(params), Anchor.begin(params), window, ended)

    def scores(state: AnchoredState, X: Any) -> Array:
        return head.logits(state.params, X)

    def step(
        state: AnchoredState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        **_: Any,
    ) -> tuple[AnchoredState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.window.X.dtype)
        rows = X, jnp.asarray(Y_t, X.dtype), weight

        def penalty(params: Any) -> Array:
            return scale * state.anchor.distance(params)

        params, moments = state.params, state.optimiser
        for _update in range(options.updates):
            params, moments = head.descend(optimiser, params, moments, rows, penalty)
        new = state._replace(params=params, optimiser=moments, window=state.window.take(*rows))
        healthy = is_sound(params)
        info = StepInfo(scores(state, X), healthy)
        # A batch of no rows leaves no trace, though the penalty alone would move parameters.
        return unless_unhealthy(healthy & jnp.any(weight > 0), new, state), info

    def consolidate(state: AnchoredState) -> AnchoredState:
        anchor = renew(head, state)
        new = state._replace(anchor=anchor, window=state.window.emptied(), ended=state.ended + 1)
        return unless_unhealthy(state.window.passed > 0, new, state)

    return plain_learner(
        init,
        step,
        scores,
        consolidate=consolidate,
        loss=brier_loss,
        description=describe(name, **numbers._asdict(), **options._asdict()),
        sizes=lambda state: head.sizes(state.params),
    )
