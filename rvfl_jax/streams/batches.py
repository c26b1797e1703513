"""What every scan over a stream does with its batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.objects.words import in_brief
from rvfl_jax.types import Array


@in_brief
class Batches(NamedTuple):
    """Batches on their way through a scan: X (T, b, s), y and weight (T, b)."""

    X: Any
    y: Any
    weight: Any

    def after(self, t: Any) -> tuple[Array, Array]:
        """Inputs and weights of the batch that follows batch t; all padding at the end."""
        last = self.X.shape[0] - 1
        upcoming = jnp.minimum(t + 1, last)
        return self.X[upcoming], jnp.where(t < last, self.weight[upcoming], 0)


def met(seen: Array, targets: Array, valid: Array) -> Array:
    """(m,) classes seen so far, with those of the valid rows of one-hot `targets`."""
    return seen | jnp.any(valid[:, None] & (targets > 0), axis=0)


def where_asked(asked: Any, look: Callable[[], Any]) -> Any:
    """`look()` where a scalar says so; elsewhere zeros of its shape, at no cost."""
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(look))
    return lax.cond(asked, look, lambda: nothing)
