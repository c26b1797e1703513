"""GACL: ACIL for batches that mix classes of before with new ones, which on fixed features is ACIL.

GACL splits the targets of a batch into columns of classes met before, Y_e, and new ones, Y_u, and
has its readout as the sum of what each adds,

    theta_t = [theta_{t-1} - eta_t D_t^T D_t theta_{t-1} | 0] + eta_t D_t^T [Y_e | 0]
              + [0 | eta_t D_t^T Y_u],                                                    (1)

where ACIL as published lets each batch hold new classes alone, so that Y_e = 0. With room for all
columns from the start, as every learner here has, both are

    theta_t = theta_{t-1} + eta_t D_t^T (Y_t - D_t theta_{t-1}),                          (2)

which is what `rvfl_jax.learners.acil` computes: one method, under the name and the default lambda
of this paper.

Shapes: D_t (b, N), Y_t = [Y_e | Y_u] (b, m) with as many columns in each as there are such classes,
eta (N, N), theta (N, m).

Source: H. Zhuang, Y. Chen, D. Fang, R. He, K. Tong, H. Wei, Z. Zeng, C. Chen, "GACL: Exemplar-Free
Generalized Analytic Continual Learning", NeurIPS 2024.
"""

from typing import Any

from rvfl_jax.core.types import ActivationName, Learner
from rvfl_jax.learners.acil import recursive_ridge
from rvfl_jax.learners.random_maps import NUM_NODES


def gacl(
    *,
    num_nodes: int = NUM_NODES,
    ridge: Any = 100.0,
    activation: ActivationName = "relu",
    weight_scale: Any = 1.0,
) -> Learner:
    """`acil` under the name of GACL; the same options.

    Raises:
        ValueError: on anything out of range.
    """
    return recursive_ridge("gacl", num_nodes, ridge, activation, weight_scale)
