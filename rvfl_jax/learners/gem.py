"""GEM: each update is turned as little as it takes that the loss of no earlier task rises.

With g the gradient of a batch, and G the gradients of the rows kept of each task that has ended, g
is taken where G g >= 0; elsewhere

    g~ = g + G'v,      v = argmin over v >= gamma of ||g + G'v||^2 / 2,                   (1)

so that G g~ >= 0. gamma is the memory strength: with v >= 0 (gamma = 0) g~ is the nearest there is,
and more of it favours earlier tasks. Then theta <- theta - eta g~. With u = v - gamma that is least
squares without negative unknowns, `rvfl_jax.linalg.nonnegative`,

    u = argmin over u >= 0 of ||G'u + (g + gamma G'1)||^2.                                (2)

Kept are the last rows of each task, in places of equal size. Of more tasks than there are places,
the earliest are let go.

Shapes: g and g~ (P,), G (K, P), u and v (K,), 1 the vector (K,) of ones, gamma a scalar.

Cost: 6 (b + K r) flops a parameter and update, with r rows of each of K tasks. Memory: the
parameters and (K + 1) r rows; a step needs K gradients at once.

Source: D. Lopez-Paz, M. Ranzato, "Gradient Episodic Memory for Continual Learning", NeurIPS 2017,
with 256 rows a task, gamma = 0.5 and the rate 0.1. Its constraints leave out the current task, as
here; its code adds 0.001 to the diagonal of G G', which is not done here.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, follow, mlp_learner
from rvfl_jax.learners.parts import unless_unhealthy
from rvfl_jax.learners.window import Window
from rvfl_jax.linalg.nonnegative import nonnegative_least_squares
from rvfl_jax.linalg.products import matmul


class GEMState(NamedTuple):
    """Parameters, the optimiser's state, the task's last rows, those of K others, tasks ended."""

    params: Any
    optimiser: Any
    window: Window
    earlier: Window
    ended: Array


class Numbers(NamedTuple):
    """What only scales."""

    strength: Any
    learning_rate: Any


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    memory: int
    tasks: int
    updates: int


def gem(
    *,
    strength: Any = 0.5,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 256,
    tasks: int = 20,
    updates: int = 1,
) -> Learner:
    """Gradient episodic memory, for runs with `boundaries="given"`.

    Args:
        strength: gamma, at least 0.
        learning_rate: eta, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        memory: rows kept of each task.
        tasks: K, earlier tasks that there is room for.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("strength", strength, minimum=0.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    sizes = {"memory": memory, "tasks": tasks, "updates": updates}
    counts = (positive_int(name, size) for name, size in sizes.items())
    return _gem(Options(checked_hidden(hidden), *counts), numbers)


def projected(g: Array, G: Array, strength: Any) -> Array:
    """g~ (1) (P,) of g (P,) and G (K, P), of which rows of 0 bind nothing; g where G g >= 0."""
    pushed = g + strength * jnp.sum(G, axis=0)
    # The unknown is u (2): g~ = g + gamma G'1 + G'u.
    turned = pushed + matmul(nonnegative_least_squares(G.T, -pushed), G)
    return jnp.where(jnp.any(matmul(G, g) < 0), turned, g)


@shared_programs
def _gem(options: Options, numbers: Numbers) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(numbers.learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> GEMState:
        network = head.begin(optimiser, key, num_features, num_classes)
        window = Window.begin(options.memory, num_features, num_classes)
        earlier = jax.tree.map(lambda x: jnp.zeros((options.tasks, *x.shape), x.dtype), window)
        return GEMState(*network, window, earlier, jnp.zeros((), jnp.int32))

    def learn(state: GEMState, rows: Rows) -> GEMState:
        params, moments = state.params, state.optimiser
        for _update in range(options.updates):
            g, as_params = ravel_pytree(jax.grad(head.loss)(params, *rows))

            def of_task(kept: tuple[Array, ...], params: Any = params) -> Array:
                return ravel_pytree(jax.grad(head.loss)(params, *kept))[0]

            G = lax.map(of_task, tuple(state.earlier)[:3])
            gradient = as_params(projected(g, G, numbers.strength))
            params, moments = follow(optimiser, params, moments, gradient)
        return state._replace(params=params, optimiser=moments, window=state.window.take(*rows))

    def consolidate(state: GEMState) -> GEMState:
        place = state.ended % options.tasks
        earlier = jax.tree.map(lambda all, one: all.at[place].set(one), state.earlier, state.window)
        new = state._replace(window=state.window.emptied(), earlier=earlier, ended=state.ended + 1)
        return unless_unhealthy(state.window.passed > 0, new, state)

    description = describe("gem", **numbers._asdict(), **options._asdict())
    return mlp_learner(head, init, learn, description=description, consolidate=consolidate)
