"""What every scan over a stream does with its batches."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief


@in_brief
class Batches(NamedTuple):
    """Batches on their way through a scan: X (T, b, s), y and weight (T, b).

    `ends` (T,) says whether a task ends with a batch; None where nobody is to know.
    """

    X: Any
    y: Any
    weight: Any
    ends: Any = None

    def step(self, t: Any) -> "BatchStep":
        """What learning batch t takes."""
        ends = None if self.ends is None else jnp.asarray(self.ends)[t]
        return BatchStep(self.y[t], self.weight[t], *self.after(t), ends)

    def after(self, t: Any) -> tuple[Array, Array]:
        """Inputs and weights of the batch that follows batch t; all padding at the end."""
        last = self.X.shape[0] - 1
        upcoming = jnp.minimum(t + 1, last)
        return self.X[upcoming], jnp.where(t < last, self.weight[upcoming], 0)


@in_brief
class BatchStep(NamedTuple):
    """What one step takes: y and weight (b,) of the pending batch, and the batch after it.

    `ends` says whether a task ends here; None where nobody is to know.
    """

    y: Any
    weight: Any
    X_next: Any
    weight_next: Any
    ends: Any = None


def update_seen(seen: Array, targets: Array, valid: Array) -> Array:
    """(m,) classes seen so far, with those of the valid rows of one-hot `targets`."""
    return seen | jnp.any(valid[:, None] & (targets > 0), axis=0)


def where_asked(asked: Any, compute: Callable[[], Any]) -> Any:
    """`compute()` where a scalar says so; elsewhere zeros of its shape, at no cost."""
    nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(compute))
    return lax.cond(asked, compute, lambda: nothing)


class Chunk(NamedTuple):
    """Consecutive batches on their way into one call.

    Attributes:
        batches: (size + 1, b, ...), of which the last is announced only. Empty ones fill up the
            last chunk, unless rows are announced to its last batch: then it is shorter.
        columns: (size,) see `scan_stream`, or None.
        length: how many of the `size` are there.
        digest: of all rows up to here, where they cannot be read again.
    """

    batches: Batches
    columns: np.ndarray | None
    length: int
    digest: str | None = None
