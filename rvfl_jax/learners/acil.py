"""ACIL: ridge regression on a random layer, as a recursion that forgets nothing.

    D = g(X W),                                                                           (1)
    eta_t   = eta_{t-1} - eta_{t-1} D_t^T (I + D_t eta_{t-1} D_t^T)^-1 D_t eta_{t-1},  (2; their 10)
    theta_t = theta_{t-1} + eta_t D_t^T (Y_t - D_t theta_{t-1}),                        (3; their 9)

with W drawn once, g = ReLU, eta_0 = I / lambda and theta_0 = 0. theta_t is the ridge solution of
all rows so far, in any batches and order. On the same features it is -R of this package, `edrvfl`
with k = 0; it differs in these: a single layer, and no inputs beside it.

Shapes: X (b, s), W (s, N), D_t (b, N), Y_t (b, m), eta (N, N), theta (N, m), lambda scalar.

Cost: 4 N^2 b flops a batch (three inversions' worth of N^3 where b is not below N). Scores are a
product: nothing is solved for them.

Source: H. Zhuang, Z. Weng, H. Wei, R. Xie, K.-A. Toh, Z. Lin, "ACIL: Analytic Class-Incremental
Learning with Absolute Memorization and Privacy Protection", NeurIPS 2022. Its code, in the
repository ZHUANGHP/Analytic-continual-learning, names their eq. 9 and 10 in the form that is here,
and has N = 8,192, lambda = 0.1 and weights uniform within 1 / sqrt(s).
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import ActivationName, Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.edrvfl.network import resolve_activation
from rvfl_jax.learners.parts import learn_in_blocks, rows_of, unless_unhealthy
from rvfl_jax.learners.random_maps import NUM_NODES, uniform_weights
from rvfl_jax.learners.recursion import Recursion
from rvfl_jax.linalg.products import is_finite, matmul


class ACILState(NamedTuple):
    """Random weights W (s, N), and the readout theta (N, m) with its inverse Gram (N, N)."""

    W: Array
    readout: Recursion


class Options(NamedTuple):
    """What shapes the programs; the name is that of records."""

    name: str
    num_nodes: int
    activation: ActivationName


class Numbers(NamedTuple):
    """What only scales."""

    ridge: Any
    weight_scale: Any


def acil(
    *,
    num_nodes: int = NUM_NODES,
    ridge: Any = 0.1,
    activation: ActivationName = "relu",
    weight_scale: Any = 1.0,
) -> Learner:
    """Recursive ridge regression on one random layer.

    Args:
        num_nodes: N, nodes of the layer.
        ridge: lambda, above 0.
        activation: g, by its name in `edrvfl`.
        weight_scale: above 0, a factor on W; with ReLU only as a change of lambda.

    Raises:
        ValueError: on anything out of range.
    """
    return recursive_ridge("acil", num_nodes, ridge, activation, weight_scale)


def recursive_ridge(
    name: str, num_nodes: int, ridge: Any, activation: ActivationName, weight_scale: Any
) -> Learner:
    """The learner of these options, under the name of one of the methods that it is."""
    resolve_activation(activation)
    options = Options(name, positive_int("num_nodes", num_nodes), activation)
    numbers = Numbers(
        scalar("ridge", ridge, minimum=0.0, strict=True),
        scalar("weight_scale", weight_scale, minimum=0.0, strict=True),
    )
    return _recursive_ridge(options, numbers)


@shared_programs
def _recursive_ridge(options: Options, numbers: Numbers) -> Learner:
    g = resolve_activation(options.activation)

    def init(key: Array, num_features: int, num_classes: int) -> ACILState:
        W = numbers.weight_scale * uniform_weights(key, num_features, options.num_nodes)
        return ACILState(W, Recursion.begin(options.num_nodes, num_classes, numbers.ridge))

    def scores(state: ACILState, X: Any) -> Array:
        return matmul(g(matmul(jnp.asarray(X, state.W.dtype), state.W)), state.readout.theta)

    def step(
        state: ACILState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[ACILState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.W.dtype)
        D = g(matmul(X, state.W))
        new = state.readout.learn(D, Y_t, weight)
        # A saturated node makes a finite feature of any input.
        healthy = is_finite(X) & new.healthy
        info = StepInfo(matmul(D, state.readout.theta), healthy)
        return state._replace(readout=unless_unhealthy(healthy, new, state.readout)), info

    def fit_offline(state: ACILState, X: Any, Y: Any, weight: Any) -> ACILState:
        def learn(readout: Recursion, X: Array, Y: Array, weight: Array) -> Recursion:
            return readout.learn(g(matmul(X, state.W)), Y, weight)

        return state._replace(readout=learn_in_blocks(learn, state.readout, X, Y, weight))

    shaping = {name: value for name, value in options._asdict().items() if name != "name"}
    return plain_learner(
        init,
        step,
        scores,
        fit_offline=fit_offline,
        description=describe(options.name, **shaping, **numbers._asdict()),
        sizes=lambda state: (jnp.shape(state.W)[0], state.readout.num_classes),
    )
