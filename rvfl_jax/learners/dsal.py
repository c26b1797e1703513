"""DS-AL: ACIL, and a second stream that learns what the first leaves over.

    main:          D = relu(X W),  theta_t learns Y_t,                         (1; their eq. 11, 12)
    compensation:  C = tanh(X W),  theta'_t learns P_t (Y_t - D_t theta_t),     (2; their eq. 13-18)
    scores:        D theta_t + c C theta'_t,                                       (3; their eq. 19)

both by the recursion of `rvfl_jax.learners.recursion`, with lambda and lambda' of their own. c is
the compensation ratio, and P_t the cleansing of previous labels (their eq. 15): columns of classes
that are not in the batch are set to 0. In the source, where each batch is a phase of new classes,
these are the columns of all classes before; for batches of any other kind this is the same rule,
told nothing of tasks. With c = 0 it is ACIL. The residuals are those of the readout of their time,
so that, unlike ACIL, the end depends on the batches.

Shapes: X (b, s), W (s, N), D and C (b, N), Y_t (b, m), theta and theta' (N, m), and two inverse
Gram matrices (N, N); c, lambda and lambda' are scalars.

Cost: 8 N^2 b flops a batch, twice that of ACIL. Scores are products: nothing is solved for them.

Source: H. Zhuang, R. He, K. Tong, Z. Zeng, C. Chen, Z. Lin, "DS-AL: A Dual-Stream Analytic Learning
for Exemplar-Free Class-Incremental Learning", AAAI 2024; numbers of its equations are those that
its supplement names. Its code has N = 8,192, lambda = lambda' = 0.1, c = 1, tanh for the
compensation, and weights uniform within 1 / sqrt(s).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.learners.random_maps import NUM_NODES, uniform_weights
from rvfl_jax.learners.recursion import Recursion
from rvfl_jax.linalg.products import is_finite, matmul


class DSALState(NamedTuple):
    """Random weights W (s, N), and both streams."""

    W: Array
    main: Recursion
    compensation: Recursion


class Numbers(NamedTuple):
    """What only scales."""

    ridge: Any
    compensation_ridge: Any
    compensation: Any


def dsal(
    *,
    num_nodes: int = NUM_NODES,
    ridge: Any = 0.1,
    compensation_ridge: Any = 0.1,
    compensation: Any = 1.0,
) -> Learner:
    """Dual-stream analytic learning on one random layer.

    Args:
        num_nodes: N, nodes of the layer, which both streams share before their activations.
        ridge: lambda of the main stream, above 0.
        compensation_ridge: lambda' of the compensation stream, above 0.
        compensation: c, at least 0.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("ridge", ridge, minimum=0.0, strict=True),
        scalar("compensation_ridge", compensation_ridge, minimum=0.0, strict=True),
        scalar("compensation", compensation, minimum=0.0),
    )
    return _dsal((positive_int("num_nodes", num_nodes),), numbers)


@shared_programs
def _dsal(options: tuple[int], numbers: Numbers) -> Learner:
    (num_nodes,) = options

    def init(key: Array, num_features: int, num_classes: int) -> DSALState:
        return DSALState(
            uniform_weights(key, num_features, num_nodes),
            Recursion.begin(num_nodes, num_classes, numbers.ridge),
            Recursion.begin(num_nodes, num_classes, numbers.compensation_ridge),
        )

    def features(state: DSALState, X: Any) -> tuple[Array, Array]:
        Z = matmul(jnp.asarray(X, state.W.dtype), state.W)
        return jax.nn.relu(Z), jnp.tanh(Z)

    def answer(state: DSALState, D: Array, C: Array) -> Array:
        left_over = matmul(C, state.compensation.theta)
        return matmul(D, state.main.theta) + numbers.compensation * left_over

    def scores(state: DSALState, X: Any) -> Array:
        return answer(state, *features(state, X))

    def step(
        state: DSALState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[DSALState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.W.dtype)
        D, C = features(state, X)
        main = state.main.learn(D, Y_t, weight)
        present = weight @ Y_t > 0
        left_over = jnp.where(present, Y_t - matmul(D, main.theta), 0.0)
        new = DSALState(state.W, main, state.compensation.learn(C, left_over, weight))
        healthy = is_finite(X) & new.main.healthy & new.compensation.healthy
        return unless_unhealthy(healthy, new, state), StepInfo(answer(state, D, C), healthy)

    description = describe("dsal", num_nodes=num_nodes, **numbers._asdict())
    return plain_learner(
        init,
        step,
        scores,
        description=description,
        sizes=lambda state: (jnp.shape(state.W)[0], state.main.num_classes),
    )
