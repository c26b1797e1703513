"""What methods that keep rows and draw from them share: their options, and the loss of both."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array
from rvfl_jax.learners.mlp_head import MLPHead, Penalty, Rows, checked_hidden


class RehearsalOptions(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    memory: int
    drawn: int
    updates: int


def rehearsal_options(
    hidden: tuple[int, ...], memory: int, drawn: int, updates: int
) -> RehearsalOptions:
    """The options, checked; ValueError on anything out of range."""
    hidden = checked_hidden(hidden)
    sizes = {"memory": memory, "drawn": drawn, "updates": updates}
    options = RehearsalOptions(hidden, *(positive_int(name, n) for name, n in sizes.items()))
    if drawn > memory:
        raise ValueError(f"drawn: expected at most memory={memory}, got {drawn}")
    return options


def loss_of_both(head: MLPHead, rows: Rows, drawn: Rows) -> Penalty:
    """The cross-entropy of a batch and of rows drawn, their mean by weight, each counting alike.

    Where nothing is drawn it is that of the batch to the last bit, which sums over the rows of both
    are not.
    """
    weights = [jnp.sum(weight) for *_, weight in (rows, drawn)]
    total = jnp.maximum(sum(weights), 1.0)
    own, other = (jnp.maximum(weight, 1.0) / total for weight in weights)
    other = jnp.where(weights[1] > 0, other, 0.0)

    def loss(params: Any) -> Array:
        return own * head.loss(params, *rows) + other * head.loss(params, *drawn)

    return loss
