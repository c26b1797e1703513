"""What many learners need: batches without their padding, states that bad batches leave alone."""

from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn

from rvfl_jax.core.types import Array

State = TypeVar("State")


def rows_of(X: Any, weight: Any, dtype: Any) -> tuple[Array, Array]:
    """A batch (b, s) with its padding, which may hold anything, set to 0, and weights (b,).

    Args:
        X: (b, s).
        weight: (b,), 0 in padding; None for 1 everywhere.
        dtype: of both results.
    """
    weight = jnp.ones(len(X), dtype) if weight is None else jnp.asarray(weight, dtype)
    return jnp.where(weight[:, None] > 0, jnp.asarray(X, dtype), 0.0), weight


def unless_unhealthy(healthy: Array, new: State, old: State) -> State:
    """The new state, or the old one, whole, where a batch was not healthy."""

    def chosen(a: Array, b: Array) -> Array:
        return jnp.where(healthy, a, b)

    return jax.tree.map(chosen, new, old)


class MLP(nn.Module):
    """Hidden layers of ReLU nodes and a linear readout, (b, s) to (b, m) logits.

    Attributes:
        hidden: nodes of each hidden layer; none for a linear model.
        num_classes: m.
    """

    hidden: tuple[int, ...]
    num_classes: int

    @nn.compact
    def __call__(self, X: Array) -> Array:
        """(b, m) logits, in the precision of X."""
        dense = partial(nn.Dense, dtype=X.dtype, param_dtype=X.dtype)
        for nodes in self.hidden:
            X = nn.relu(dense(nodes)(X))
        logits: Array = dense(self.num_classes)(X)
        return logits
