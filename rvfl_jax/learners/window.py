"""The last rows of a task, and means over them of what each row by itself says of parameters."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array

# Rows kept of the task in hand.
WINDOW = 256
# Gradients of so many rows, each the size of the parameters, are in memory at once.
ROWS_AT_ONCE = 8

# What one row says: `(x (s,), y (m,)) -> pytree`.
OfRow = Callable[[Array, Array], Any]


class Window(NamedTuple):
    """The last r rows of a task, in a ring: X (r, s), Y (r, m), and weight (r,), 0 where none is.

    `passed` counts the rows of the task.
    """

    X: Array
    Y: Array
    weight: Array
    passed: Array

    @classmethod
    def begin(cls, size: int, num_features: int, num_classes: int) -> "Window":
        """Room for `size` rows."""
        X, Y = jnp.zeros((size, num_features)), jnp.zeros((size, num_classes))
        return cls(X, Y, jnp.zeros(size), jnp.zeros((), jnp.int32))

    def take(self, X: Array, Y: Any, weight: Array) -> "Window":
        """The window after a batch (b, s), of which rows of weight 0 are none."""
        size, is_row = len(self.weight), weight > 0
        count = self.passed + jnp.cumsum(is_row, dtype=jnp.int32)
        passed = self.passed + jnp.sum(is_row, dtype=jnp.int32)
        # Of rows that would share a place the last is kept; places beyond the end are dropped.
        place = jnp.where(is_row & (count > passed - size), (count - 1) % size, size)
        return Window(
            self.X.at[place].set(X, mode="drop"),
            self.Y.at[place].set(jnp.asarray(Y, self.Y.dtype), mode="drop"),
            self.weight.at[place].set(weight, mode="drop"),
            passed,
        )

    def emptied(self) -> "Window":
        """The window as a task begins."""
        return Window(*map(jnp.zeros_like, self))

    def mean(self, of_row: OfRow) -> Any:
        """The mean by weight of a pytree of each row, 0 where there are no rows.

        Args:
            of_row: `(x, y) -> pytree`, of one row; taken of a few rows at once by `vmap`.
        """
        size = len(self.weight)
        blocks = -(-size // ROWS_AT_ONCE)
        missing = blocks * ROWS_AT_ONCE - size

        def in_blocks(leaf: Array) -> Array:
            padded = jnp.concatenate([leaf, jnp.zeros((missing, *leaf.shape[1:]), leaf.dtype)])
            return padded.reshape(blocks, ROWS_AT_ONCE, *leaf.shape[1:])

        total = jnp.sum(self.weight)
        share = self.weight / jnp.where(total > 0, total, 1.0)
        rows = tuple(map(in_blocks, (self.X, self.Y, share)))

        def add(done: Any, block: tuple[Array, ...]) -> tuple[Any, None]:
            x, y, share = block
            each = jax.vmap(of_row)(x, y)
            return jax.tree.map(lambda a, b: a + jnp.tensordot(share, b, 1), done, each), None

        like = jax.eval_shape(of_row, self.X[0], self.Y[0])
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), like)
        return lax.scan(add, zeros, rows)[0]
