"""What many learners need: batches without their padding, states that bad batches leave alone."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from flax import linen as nn
from jax import lax

from rvfl_jax.core.types import Array

State = TypeVar("State")

# Rows that an offline fit takes at once, so that memory stays that of one block of features.
BLOCK_ROWS = 4096


def rows_of(X: Any, weight: Any, dtype: Any = None) -> tuple[Array, Array]:
    """A batch (b, s) with its padding, which may hold anything, set to 0, and weights (b,).

    Args:
        X: (b, s).
        weight: (b,), 0 in padding; None for 1 everywhere.
        dtype: of both results; each keeps its own when None.
    """
    X = jnp.asarray(X, dtype)
    weight = jnp.ones(len(X), dtype) if weight is None else jnp.asarray(weight, dtype)
    return jnp.where(weight[:, None] > 0, X, jnp.zeros((), X.dtype)), weight


def weighted_mean(each: Array, weight: Array) -> Array:
    """Of numbers (b,) by weights (b,); where these are less than 1 in all, the weighted sum."""
    return jnp.sum(weight * each) / jnp.maximum(jnp.sum(weight), 1.0)


def unless_unhealthy(healthy: Array, new: State, old: State) -> State:
    """The new state, or the old one, whole, where a batch was not healthy."""

    def chosen(a: Array, b: Array) -> Array:
        return jnp.where(healthy, a, b)

    return jax.tree.map(chosen, new, old)


def learn_in_blocks(
    learn: Callable[[State, Array, Array, Array], State], state: State, X: Any, Y: Any, weight: Any
) -> State:
    """All rows, of any number, learned block by block: the `fit_offline` of methods that are exact.

    Args:
        learn: `(state, X, Y, weight) -> state`, padding set to 0.
        state: before.
        X: (n, s); anything where the weight is 0.
        Y: (n, m).
        weight: (n,), or None for 1 everywhere.
    """
    X, Y = jnp.asarray(X), jnp.asarray(Y)
    X, weight = rows_of(X, weight, jnp.result_type(float))
    rows = len(X)
    block = min(rows, BLOCK_ROWS)

    def add(state: State, i: Array) -> tuple[State, None]:
        # The last block starts early to keep one shape; rows seen before weigh nothing.
        start = jnp.minimum(i * block, rows - block)
        part = partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=block)
        fresh = start + jnp.arange(block) >= i * block
        return learn(state, part(X), part(Y), jnp.where(fresh, part(weight), 0.0)), None

    return lax.scan(add, state, jnp.arange(-(-rows // block)))[0]


def of_met_classes(rows: Array, scores: Array) -> Array:
    """Scores (n, m) where a class has rows (m,), and far less, but finite, where it has none."""
    return jnp.where(rows > 0, scores, jnp.finfo(scores.dtype).min / 4)


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
