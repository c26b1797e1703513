"""Fine-tuning: a network trained by gradients on each batch and nothing else, the lower bound.

At every batch, as many times as asked, one step of plain gradient descent on the cross-entropy of
its rows, over all classes there may be:

    theta <- theta - eta grad_theta sum_i w_i CE(f_theta(x_i), y_i) / max(sum_i w_i, 1).

What earlier batches taught is overwritten; methods that keep it are to be compared with this.
`rvfl_jax.learners.joint` is the other bound. The layers, 2 x 400 ReLU nodes, and the rate 0.1 are
those that experience replay has here and in its source.

Cost: 6 b flops a parameter and update. Memory: the parameters.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, checked_hidden, is_sound
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.metrics import brier_loss


class NetworkState(NamedTuple):
    """Parameters of a network and the optimiser's state."""

    params: Any
    optimiser: Any


def finetune(
    *, learning_rate: Any = 0.1, hidden: tuple[int, ...] = HIDDEN, updates: int = 1
) -> Learner:
    """Gradient descent on each batch.

    Args:
        learning_rate: eta, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    learning_rate = scalar("learning_rate", learning_rate, minimum=0.0, strict=True)
    return _finetune((checked_hidden(hidden), positive_int("updates", updates)), learning_rate)


@shared_programs
def _finetune(options: tuple[tuple[int, ...], int], learning_rate: Any) -> Learner:
    hidden, updates = options
    head, optimiser = MLPHead(hidden), optax.sgd(learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> NetworkState:
        params = head.init(key, num_features, num_classes)
        return NetworkState(params, optimiser.init(params))

    def scores(state: NetworkState, X: Any) -> Array:
        return head.logits(state.params, X)

    def step(
        state: NetworkState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        **_: Any,
    ) -> tuple[NetworkState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, jnp.result_type(float))
        new = state
        for _update in range(updates):
            rows = X, jnp.asarray(Y_t, X.dtype), weight
            new = NetworkState(*head.descend(optimiser, *new, rows))
        healthy = is_sound(new.params)
        return unless_unhealthy(healthy, new, state), StepInfo(scores(state, X), healthy)

    description = describe("finetune", learning_rate=learning_rate, hidden=hidden, updates=updates)
    return plain_learner(
        init,
        step,
        scores,
        loss=brier_loss,
        description=description,
        sizes=lambda state: head.sizes(state.params),
    )
