"""Ridge regression as a recursion over batches: the readout and the inverse of its Gram matrix.

    eta_t   = eta_{t-1} - eta_{t-1} D_t^T (I + D_t eta_{t-1} D_t^T)^-1 D_t eta_{t-1},     (1)
    theta_t = theta_{t-1} + eta_t D_t^T (Y_t - D_t theta_{t-1}),                          (2)

from eta_0 = I / lambda and theta_0 = 0. After any batches it is the ridge solution of all rows.

Shapes: D_t (b, N), Y_t (b, m), eta (N, N), theta (N, m), lambda scalar.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.learners.edrvfl.sums import weighted_rows
from rvfl_jax.linalg.products import (
    gram,
    identity_plus,
    is_finite,
    matmul,
    matmul_nt,
    matmul_tn,
    outer_square,
)
from rvfl_jax.linalg.spd import cholesky, solve_lower, spd_inverse


class Recursion(NamedTuple):
    """theta (N, m) and eta (N, N)."""

    theta: Array
    eta: Array

    @classmethod
    def begin(cls, num_nodes: int, num_classes: int, ridge: Any) -> "Recursion":
        """With no rows, and lambda `ridge`."""
        return cls(jnp.zeros((num_nodes, num_classes)), jnp.eye(num_nodes) / ridge)

    @property
    def num_classes(self) -> int:
        """The number of columns of theta, m."""
        return jnp.shape(self.theta)[1]

    @property
    def healthy(self) -> Array:
        """Scalar truth: all of it is finite."""
        return is_finite(self.theta) & is_finite(self.eta)

    def learn(self, D: Array, Y: Array, weight: Array) -> "Recursion":
        """With rows of features D (b, N), any real targets Y (b, m) and weights (b,).

        4 N^2 b flops where b < N; with more rows the Gram matrix is inverted twice instead.
        """
        D, Y = weighted_rows(D, Y, weight)
        rows, nodes = D.shape
        if rows < nodes:
            D_eta = matmul(D, self.eta)
            # (1): with R R^T = I + D eta D^T and V = R^-1 D eta, eta falls by V^T V.
            R = cholesky(identity_plus(1.0, matmul_nt(D_eta, D)))
            V = solve_lower(R, D_eta)
            eta = self.eta - outer_square(V.T)
            # (2), as eta_t D^T = V^T R^-1.
            gain = matmul_tn(V, solve_lower(R, Y - matmul(D, self.theta)))
            return Recursion(self.theta + gain, eta)
        eta = spd_inverse(spd_inverse(self.eta) + gram(D))
        residual = matmul_tn(D, Y - matmul(D, self.theta))
        return Recursion(self.theta + matmul(eta, residual), eta)
