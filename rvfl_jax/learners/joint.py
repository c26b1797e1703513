"""The joint network: trained on all rows at once, the upper bound of gradient methods.

It is an offline expert, `fit_offline`: for so many passes over all rows, shuffled anew in each, a
step of plain gradient descent for every minibatch,

    theta <- theta - eta grad_theta sum_i w_i CE(f_theta(x_i), y_i) / max(sum_i w_i, 1).  (1)

No stream is learned so: along one, batch after batch, the same network is fine-tuned, with one
update a batch, so that forgetting shows as the distance between the two. It is therefore no style
of the command line. For ridge readouts the offline expert of `edrvfl` is the joint bound.

Shapes: x_i (s,), y_i (m,), f_theta(x_i) (m,), w_i scalar; theta a pytree of P numbers.

Cost: 6 flops a parameter, row and pass. Memory: all rows.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, checked_hidden, mlp_learner
from rvfl_jax.learners.parts import rows_of


class JointState(NamedTuple):
    """Parameters, the optimiser's state, and the key of the shuffles."""

    params: Any
    optimiser: Any
    key: Array


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    passes: int
    batch_rows: int


def joint(
    *,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    passes: int = 10,
    batch_rows: int = 128,
) -> Learner:
    """Gradient descent on all rows, as the offline expert of fine-tuning.

    Args:
        learning_rate: eta, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        passes: over all rows.
        batch_rows: rows of a minibatch; the last of a pass has what is left.

    Raises:
        ValueError: on anything out of range.
    """
    learning_rate = scalar("learning_rate", learning_rate, minimum=0.0, strict=True)
    sizes = (positive_int("passes", passes), positive_int("batch_rows", batch_rows))
    return _joint(Options(checked_hidden(hidden), *sizes), learning_rate)


@shared_programs
def _joint(options: Options, learning_rate: Any) -> Learner:
    hidden, passes, batch_rows = options
    head, optimiser = MLPHead(hidden), optax.sgd(learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> JointState:
        of_params, of_shuffles = jax.random.split(key)
        return JointState(*head.begin(optimiser, of_params, num_features, num_classes), of_shuffles)

    def learn(state: JointState, rows: Rows) -> JointState:
        network = head.descend(optimiser, state.params, state.optimiser, rows)
        return JointState(*network, state.key)

    def fit_offline(state: JointState, X: Any, Y: Any, weight: Any) -> JointState:
        X, weight = rows_of(X, weight, jnp.result_type(float))
        Y = jnp.asarray(Y, X.dtype)
        size = min(batch_rows, len(X))
        places = jnp.arange(-(-len(X) // size) * size)

        def learn(network: Any, at: Array) -> tuple[Any, None]:
            # Beyond the rows there are are places of weight 0.
            rows = X.at[at].get(mode="clip"), Y.at[at].get(mode="clip")
            own = jnp.where(at < len(X), weight.at[at].get(mode="clip"), 0.0)
            params, moments = network
            return head.descend(optimiser, params, moments, (*rows, own)), None

        def learn_all(network: Any, key: Array) -> tuple[Any, None]:
            order = jax.random.permutation(key, len(X))
            order = jnp.concatenate([order, places[len(X) :].astype(order.dtype)])
            return lax.scan(learn, network, order.reshape(-1, size))[0], None

        key, of_passes = jax.random.split(state.key)
        network = state.params, state.optimiser
        network, _ = lax.scan(learn_all, network, jax.random.split(of_passes, passes))
        return JointState(*network, key)

    description = describe("joint", learning_rate=learning_rate, **options._asdict())
    return mlp_learner(head, init, learn, description=description, fit_offline=fit_offline)
