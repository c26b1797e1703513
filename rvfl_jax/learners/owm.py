"""OWM, orthogonal weights modification: no layer changes what it makes of the mean inputs before.

Each layer has a projector P, at first I, and learns by

    k = P x / (alpha + x' P x),                                                           (1)
    P <- P - k x' P,                                                                      (2)
    W <- W - eta P grad_W L,                                                              (3)

x the mean of a batch's inputs of that layer, with the constant 1 appended, so that W has the bias
as its last row, and L the cross-entropy. So

    P = (I + sum_i x_i x_i' / alpha_i)^-1:                                                (4)

directions of x_i are left the less, the smaller alpha_i is. Within a task alpha falls from batch to
batch,

    alpha = alpha_0 decay^q,    q = batches of the task so far / batches that it has,     (5)

q at most 1, and begins anew where a task ends, which is told by `boundaries="given"`; without it
alpha stays at its least. P is renewed at every batch, before the gradient of that batch is
projected, as in its authors' public code.

Shapes: of a layer of d inputs and h nodes x and k (d + 1,), P (d + 1, d + 1), W (d + 1, h); alpha,
q and eta are scalars.

Cost: 6 b flops a parameter and update, and 2 d^2 h for each layer of d inputs and h nodes. Memory:
the parameters and d^2 for each layer.

Source: G. Zeng, Y. Chen, B. Cui, S. Yu, "Continual learning of context-dependent processing in
neural networks", Nature Machine Intelligence 1, 2019; code in the repository beijixiong3510/OWM.
Its runs on disjoint MNIST have eta = 0.2 with momentum 0.9, gradients clipped at norm 10, and
an alpha for each layer: 0.9 0.001^q in the first, 0.1^q in later hidden ones, 0.6 in the readout.
Here all layers have the first, and the optimiser is plain gradient descent.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.layers import activations, layers_of, with_layers
from rvfl_jax.learners.mlp_head import (
    HIDDEN,
    MLPHead,
    Rows,
    checked_hidden,
    follow,
    mlp_learner,
)
from rvfl_jax.linalg.products import matmul

Projectors = tuple[Array, ...]


class OWMState(NamedTuple):
    """Parameters, the optimiser's state, P (d + 1, d + 1) of each layer, batches of the task."""

    params: Any
    optimiser: Any
    projectors: Projectors
    learned: Array


class Numbers(NamedTuple):
    """What only scales."""

    alpha: Any
    decay: Any
    learning_rate: Any


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    task_batches: int
    updates: int


def owm(
    *,
    alpha: Any = 0.9,
    decay: Any = 1e-3,
    learning_rate: Any = 0.2,
    hidden: tuple[int, ...] = HIDDEN,
    task_batches: int = 10,
    updates: int = 1,
) -> Learner:
    """Orthogonal weights modification, for runs with `boundaries="given"`.

    Args:
        alpha: alpha_0, above 0; the larger, the nearer to fine-tuning.
        decay: above 0 and at most 1; alpha over a whole task falls by it.
        learning_rate: eta, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        task_batches: batches that a task has; of further ones alpha stays at its least.
        updates: gradient steps a batch, at each of which P is renewed.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("alpha", alpha, minimum=0.0, strict=True),
        scalar("decay", decay, minimum=0.0, maximum=1.0, strict=True),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    counts = positive_int("task_batches", task_batches), positive_int("updates", updates)
    return _owm(Options(checked_hidden(hidden), *counts), numbers)


def renewed(P: Array, inputs: Array, weight: Array, alpha: Any) -> Array:
    """P (2) (d + 1, d + 1) after a layer's inputs (b, d) of rows of these weights (b,)."""
    total = jnp.sum(weight)
    mean = matmul(weight / jnp.where(total > 0, total, 1.0), inputs)
    x = jnp.append(mean, jnp.ones((), mean.dtype))
    P_x = matmul(P, x)
    # P x x' P and not k x' P: symmetric to the last bit.
    return P - jnp.outer(P_x, P_x) / (alpha + matmul(x, P_x))


def projected(projectors: Projectors, gradient: Any) -> Any:
    """P times the gradient of each layer (3), a kernel with its bias as the last row."""

    def of_layer(P: Array, layer: dict[str, Array]) -> dict[str, Array]:
        turned = matmul(P, jnp.concatenate([layer["kernel"], layer["bias"][None]]))
        return {"kernel": turned[:-1], "bias": turned[-1]}

    return with_layers(list(map(of_layer, projectors, layers_of(gradient))))


@shared_programs
def _owm(options: Options, numbers: Numbers) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(numbers.learning_rate)
    in_task = options.task_batches * options.updates

    def init(key: Array, num_features: int, num_classes: int) -> OWMState:
        params, moments = head.begin(optimiser, key, num_features, num_classes)
        projectors = tuple(jnp.eye(len(layer["kernel"]) + 1) for layer in layers_of(params))
        return OWMState(params, moments, projectors, jnp.zeros((), jnp.int32))

    def learn(state: OWMState, rows: Rows) -> OWMState:
        X, _, weight = rows
        params, moments, projectors, learned = state
        for update in range(options.updates):
            done = learned.astype(X.dtype) * options.updates + update
            # (5).
            alpha = numbers.alpha * numbers.decay ** jnp.minimum(done / in_task, 1.0)
            inputs = activations(params, X)[:-1]
            projectors = tuple(
                renewed(P, of_layer, weight, alpha)
                for P, of_layer in zip(projectors, inputs, strict=True)
            )
            gradient = projected(projectors, jax.grad(head.loss)(params, *rows))
            params, moments = follow(optimiser, params, moments, gradient)
        return OWMState(params, moments, projectors, learned + 1)

    return mlp_learner(
        head,
        init,
        learn,
        trained=lambda state: (state.params, state.projectors),
        consolidate=lambda state: state._replace(learned=jnp.zeros_like(state.learned)),
        description=describe("owm", **numbers._asdict(), **options._asdict()),
    )
