"""The diagonal of the Fisher information of a network, from rows with their labels.

    F_j = sum_i w_i (d log p(y_i | x_i) / d theta_j)^2 / sum_i w_i,                       (1)

the mean of the squared gradients of single rows. The square of the gradient of their mean, which
some codes take for it, vanishes at the optimum. Labels are those of the rows.

Shapes: x_i (s,), y_i (m,), w_i scalar; F a pytree of the structure of theta, P numbers.
"""

from typing import Any

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.learners.mlp_head import MLPHead
from rvfl_jax.learners.window import Window


def fisher_diagonal(head: MLPHead, params: Any, window: Window) -> Any:
    """F (1) of the rows of a window, a pytree of the structure of the parameters."""

    def of_row(x: Array, y: Array) -> Any:
        gradient = jax.grad(head.loss)(params, x[None], y[None], jnp.ones(1, x.dtype))
        return jax.tree.map(jnp.square, gradient)

    return window.mean(of_row)
