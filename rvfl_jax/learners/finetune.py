"""Fine-tuning: a network trained by gradients on each batch and nothing else, the lower bound.

At every batch, as many times as asked, one step of plain gradient descent on the cross-entropy of
its rows, over all classes there may be:

    theta <- theta - eta grad_theta sum_i w_i CE(f_theta(x_i), y_i) / max(sum_i w_i, 1).  (1)

What earlier batches taught is overwritten; methods that keep it are to be compared with this.
`rvfl_jax.learners.joint` is the other bound. The layers, 2 x 400 ReLU nodes, and the rate 0.1 are
those that experience replay has here; its authors' code, repository facebookresearch/agem, has the
same rate and 2 x 256 nodes.

Shapes: x_i (s,), y_i (m,), f_theta(x_i) (m,), w_i scalar; theta a pytree of P numbers.

Cost: 6 b flops a parameter and update. Memory: the parameters.
"""

from typing import Any, NamedTuple

import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, mlp_learner


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
        return NetworkState(*head.begin(optimiser, key, num_features, num_classes))

    def learn(state: NetworkState, rows: Rows) -> NetworkState:
        return NetworkState(*head.descend(optimiser, *state, rows, updates=updates))

    description = describe("finetune", learning_rate=learning_rate, hidden=hidden, updates=updates)
    return mlp_learner(head, init, learn, description=description)
