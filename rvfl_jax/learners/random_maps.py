"""Fixed random features of a single layer, drawn once and never trained.

Of a kernel exp(-gamma ||x - x'||^2) random Fourier features are

    phi(x) = sqrt(2 / N) cos(W^T x + b),    phi(x)^T phi(x') ~ exp(-gamma ||x - x'||^2),  (1)

with columns of W from N(0, 2 gamma I) and b uniform in [0, 2 pi); the error of the kernel falls as
N^-1/2.

Shapes: x (s,), W (s, N), b (N,), phi(x) (N,), gamma scalar.

Source: A. Rahimi, B. Recht, "Random Features for Large-Scale Kernel Machines", NeurIPS 2007,
algorithm 1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.checks import scalar
from rvfl_jax.core.types import Array
from rvfl_jax.linalg.products import matmul

# What the sources have, 5,000 to 25,000, is a Gram matrix of up to 5 GB and up to minutes for each
# of its factorisations on a few cores.
NUM_NODES = 2000


def normal_weights(key: Array, num_features: int, num_nodes: int) -> Array:
    """(s, N) of N(0, 1), drawn in float32, so that both precisions share one network."""
    drawn = jax.random.normal(key, (num_features, num_nodes), jnp.float32)
    return drawn.astype(jnp.result_type(float))


def uniform_weights(key: Array, num_features: int, num_nodes: int) -> Array:
    """(s, N) uniform within 1 / sqrt(s), drawn in float32: what torch.nn.Linear begins from."""
    bound = num_features**-0.5
    drawn = jax.random.uniform(key, (num_features, num_nodes), jnp.float32, -bound, bound)
    return drawn.astype(jnp.result_type(float))


class FourierMap(NamedTuple):
    """Frequencies W (s, N) and phases b (N,) of random Fourier features (1)."""

    W: Array
    b: Array

    def __call__(self, X: Array) -> Array:
        """(n, N) phi of each row of X (n, s)."""
        return jnp.sqrt(2.0 / len(self.b)) * jnp.cos(matmul(X, self.W) + self.b)


def fourier_map(key: Array, num_features: int, num_nodes: int, gamma: Any) -> FourierMap:
    """A draw for the kernel of that gamma; None is 1 / s."""
    of_weights, of_phases = jax.random.split(key)
    gamma = 1.0 / num_features if gamma is None else gamma
    W = jnp.sqrt(2.0 * gamma) * normal_weights(of_weights, num_features, num_nodes)
    b = jax.random.uniform(of_phases, (num_nodes,), jnp.float32, 0.0, 2 * jnp.pi)
    return FourierMap(W.astype(jnp.result_type(float)), b.astype(jnp.result_type(float)))


def checked_gamma(gamma: Any) -> Any:
    """One number above 0, or None; ValueError on all else."""
    return None if gamma is None else scalar("gamma", gamma, minimum=0.0, strict=True)
