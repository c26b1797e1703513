"""Least squares with no negative unknowns, for few of them."""

import jax.numpy as jnp
import optax
from jax import lax

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.products import matmul

# Projected gradient steps, which find out what is 0, and exact solutions of what is not.
ITERATIONS, ROUNDS = 300, 8


def nonnegative_least_squares(A: Array, b: Array) -> Array:
    """The x (K,) >= 0 that minimises ||A x - b||, with A (n, K) and b (n,).

    Accelerated projected gradients come near; then the normal equations of the unknowns that are
    above 0 are solved, and which these are is looked at again, a few times. The better of the two
    by the conditions of optimality is taken. Where columns of A are 0 or follow from others, x is
    one of many. It can be differentiated, as far as what is 0 stays so.
    """
    square = jnp.sum(A * A, axis=0)
    length = jnp.sqrt(jnp.where(square > 0, square, 1.0))
    A = A / length
    Q, q = matmul(A.T, A), matmul(A.T, b)
    eye = jnp.eye(len(q), dtype=q.dtype)
    # At least the largest eigenvalue; the bound of optax has no derivative where A is 0.
    bound = lax.stop_gradient(jnp.max(jnp.sum(jnp.abs(Q), axis=1)))
    near = optax.nnls(A, b, ITERATIONS, L=bound)

    def solve(x: Array, _: None) -> tuple[Array, None]:
        above = x > matmul(Q, x) - q
        # So small a ridge keeps columns that follow from others from being divided by 0.
        own = jnp.where(above[:, None] & above, Q, eye) + jnp.finfo(q.dtype).eps * eye
        return jnp.linalg.solve(own, jnp.where(above, q, 0.0)), None

    exact = jnp.maximum(lax.scan(solve, near, length=ROUNDS)[0], 0.0)

    def fault(x: Array) -> Array:
        return jnp.max(jnp.abs(jnp.minimum(x, matmul(Q, x) - q)))

    return jnp.where(fault(exact) <= fault(near), exact, near) / length
