"""F-OAL: ACIL on one mini-batch after another, with sigmoid nodes.

Its parts are a frozen encoder whose blocks are averaged, a smooth random projection
D = sigmoid(X W), and recursive least squares on mini-batches, each seen once. On vectors that are
given the first part is not there, and the last is the recursion of `rvfl_jax.learners.acil`, which
takes batches of any size; so it differs from ACIL in the sigmoid and in defaults. As a sigmoid has
a scale, `weight_scale` matters here.

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
