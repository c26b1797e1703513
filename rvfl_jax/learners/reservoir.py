"""Rows kept from a stream so that each has had the same chance: reservoir sampling.

The first r rows are kept. Of each later one, the n + 1st, that takes a place i of r,

    P(row n + 1 takes place i) = 1 / (n + 1),      i = 1 .. r,                            (1)

so that after n rows each of them is kept with probability r / n.

Shapes: rows x (s,) with targets y (m,); kept ones (r, s) and (r, m).

Source: J. Vitter, "Random Sampling with a Reservoir", ACM TOMS 11 (1), 1985, algorithm R.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array


class Reservoir(NamedTuple):
    """Kept rows X (r, s) and their targets Y (r, m), and how many rows have passed by."""

    X: Array
    Y: Array
    passed: Array

    @property
    def filled(self) -> Array:
        """(r,) True where a row is kept."""
        return jnp.arange(len(self.X)) < self.passed


def empty_reservoir(size: int, num_features: int, num_classes: int) -> Reservoir:
    """Room for `size` rows."""
    return Reservoir(
        jnp.zeros((size, num_features)),
        jnp.zeros((size, num_classes)),
        jnp.zeros((), jnp.int32),
    )


def pass_by(kept: Reservoir, key: Array, X: Array, Y: Array, valid: Array) -> Reservoir:
    """The reservoir after more rows (b, s), of which those that are not `valid` (b,) do not count.

    Once r are kept, row n + 1 takes the place of one with probability r / (n + 1), each place alike
    (1).
    """
    size = len(kept.X)

    def one(kept: Reservoir, row: tuple[Array, Array, Array, Array]) -> tuple[Reservoir, None]:
        key, x, y, is_row = row
        drawn = jax.random.randint(key, (), 0, kept.passed + 1)
        place = jnp.where(kept.passed < size, kept.passed, drawn)
        # Places beyond the end are dropped.
        place = jnp.where(is_row, place, size)
        return Reservoir(
            kept.X.at[place].set(x, mode="drop"),
            kept.Y.at[place].set(y, mode="drop"),
            kept.passed + is_row,
        ), None

    kept, _ = jax.lax.scan(one, kept, (jax.random.split(key, len(X)), X, Y, valid))
    return kept


def draw(kept: Reservoir, key: Array, number: int) -> tuple[Array, Array, Array]:
    """`number` different kept rows X, Y, and weight 1 for each, 0 where there are fewer."""
    # The largest of independent Gumbel variables: a draw without replacement.
    luck = jnp.where(kept.filled, jax.random.gumbel(key, (len(kept.X),)), -jnp.inf)
    _, places = jax.lax.top_k(luck, number)
    return kept.X[places], kept.Y[places], kept.filled[places].astype(kept.X.dtype)
