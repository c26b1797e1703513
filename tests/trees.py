"""States and other trees compared; the keys in them, which are no numbers, by their data."""

import chex
import jax
import jax.numpy as jnp
import numpy as np


def plain(tree):
    """With the data of every random key in its place."""

    def data(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return np.asarray(jax.random.key_data(leaf) if is_key else leaf)

    return jax.tree.map(data, tree)


def same(a, b):
    """Of one structure, and equal to the last bit."""
    a, b = plain(a), plain(b)
    chex.assert_trees_all_equal_dtypes(a, b)
    chex.assert_trees_all_equal(a, b)


def assert_close(a, b, tolerance):
    """Of one structure, and each leaf within the tolerance of 1 plus its largest entry."""
    a, b = plain(a), plain(b)
    size = jax.tree.map(lambda leaf: 1.0 + np.abs(leaf).max(), b)
    chex.assert_trees_all_close(
        *(jax.tree.map(np.divide, tree, size) for tree in (a, b)), rtol=0, atol=tolerance
    )
