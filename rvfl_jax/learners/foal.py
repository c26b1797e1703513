"""F-OAL: ACIL on one mini-batch after another, with sigmoid nodes.

Its parts are a frozen encoder whose blocks are averaged, a smooth random projection, and recursive
least squares on mini-batches, each seen once,

    D = sigmoid(X W),                                                                     (1)
    eta_t   = eta_{t-1} - eta_{t-1} D_t^T (I + D_t eta_{t-1} D_t^T)^-1 D_t eta_{t-1},     (2)
    theta_t = theta_{t-1} + eta_t D_t^T (Y_t - D_t theta_{t-1}).                          (3)

On vectors that are given the first part is not there, and the last is the recursion of
`rvfl_jax.learners.acil`, which takes batches of any size; so it differs from ACIL in the sigmoid
and in defaults. As a sigmoid has a scale, `weight_scale` matters here.

Shapes: X (b, s), W (s, N), D_t (b, N), Y_t (b, m), eta (N, N), theta (N, m).

Source: H. Zhuang, Y. Liu, R. He, K. Tong, Z. Zeng, C. Chen, Y. Wang, L.-P. Chau, "F-OAL:
Forward-only Online Analytic Learning with Fast Training and Low Memory Footprint in Class
Incremental Learning", NeurIPS 2024, which has N = 1,000 and lambda = 1.
"""

from typing import Any

from rvfl_jax.core.types import ActivationName, Learner
from rvfl_jax.learners.acil import recursive_ridge


def foal(
    *,
    num_nodes: int = 1000,
    ridge: Any = 1.0,
    activation: ActivationName = "sigmoid",
    weight_scale: Any = 1.0,
) -> Learner:
    """Recursive ridge regression on one random layer of sigmoid nodes; the options of `acil`.

    Raises:
        ValueError: on anything out of range.
    """
    return recursive_ridge("foal", num_nodes, ridge, activation, weight_scale)
