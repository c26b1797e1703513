"""A ridge readout that is updated by low rank, where one is needed after every few rows.

With A the sums that were solved last (lambda included), P = A^-1, and rows D since then,

    (A + D^T D)^-1 = P - K^T K,     K = C^-1 D P,     C C^T = I + D P D^T,
    theta <- theta + K^T C^-1 (Y - D theta),

at 4 d^2 b flops where a factorisation takes d^3 / 3. K grows row by row; when it is full P takes
it in. Before that P is not even formed where it began as I / lambda, so that the readouts of the
first rows cost no d x d numbers at all. The sums remain the reference: a readout that has drifted
too far from them is solved anew.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Array
from rvfl_jax.estimators.compiled import Design, PaddedRows, layers_of, targets_of
from rvfl_jax.estimators.learned import Weights, wider
from rvfl_jax.learners.edrvfl.sums import weighted_rows
from rvfl_jax.linalg.products import identity_plus, is_finite, matmul, matmul_nt, outer_square
from rvfl_jax.linalg.spd import cholesky, solve_lower

# Narrower readouts are solved faster than followed.
NARROW = 256
# Rows that K begins with, and grows to, and the most numbers it has.
ROWS, MOST_ROWS, MOST_NUMBERS = 256, 1024, 2**22
# Successive readouts after few rows that it takes to keep P: as many as pay for it.
OFTEN, VERY_OFTEN = 3, 8


class Following(NamedTuple):
    """A readout and what it is updated with.

    Attributes:
        P: (L, d, d); None for I / lambda.
        K: (L, r, d), of which the first `used` rows are there, and 0 the others.
        theta: (L, d, m) of all rows so far.
        used: rows of K.
        rows: number learned when it was last updated.
    """

    P: Any
    K: Any
    theta: Any
    used: int
    rows: int

    def grown(self, capacity: int) -> "Following":
        """With room for so many classes."""
        return self._replace(theta=wider(self.theta, capacity - np.shape(self.theta)[-1]))

    def with_room(self, rows: int) -> "Following":
        """With room for so many rows more in K, padding included."""
        layers, there, width = np.shape(self.K)
        size = there
        while size < self.used + rows:
            size *= 2
        if size == there:
            return self
        wider = np.zeros((layers, size, width))
        wider[:, :there] = self.K
        return self._replace(K=wider)


class Asked(NamedTuple):
    """How often a readout is asked for, and what helps to compute the next one.

    Attributes:
        rows: number learned when it was last asked for.
        times: how often in a row it was asked for after only a few more rows.
        following: see `Following`; None where nothing helps.
    """

    rows: int = 0
    times: int = 0
    following: Following | None = None


NEVER = Asked()


def few_rows(width: int) -> int:
    """The most rows for which an update is cheaper than a solve: 4 d^2 r < d^2 r + d^3 / 3."""
    return width // 9


def begun(shape: tuple[int, int, int]) -> Following:
    """Before any row."""
    layers, width, _ = shape
    rows = min(ROWS, room(shape))
    return Following(None, np.zeros((layers, rows, width)), np.zeros(shape), 0, 0)


def room(shape: tuple[int, int, int]) -> int:
    """The most rows of K for readouts of that shape (L, d, m), a power of two.

    With more than about d / 2 of them a product with K costs what one with P does.
    """
    layers, width, _ = shape
    fits = max(64, min(MOST_NUMBERS // (layers * width), 7 * width // 10))
    return min(MOST_ROWS, 1 << (fits.bit_length() - 1))


@partial(jax.jit, static_argnames=("design",))
def follow(
    design: Design,
    weights: Weights,
    following: tuple[Any, Any, Any],
    used: Any,
    rows: PaddedRows,
    ridge: Any,
) -> tuple[Array, Array, Array]:
    """K and theta with rows taken in, and whether all is finite.

    Args:
        design: which program this is.
        weights: of the random layers.
        following: P, K and theta.
        used: rows of K.
        rows: that are new, with room for all of them in K.
        ridge: lambda, a scalar or (L,).
    """
    P, K, theta = following
    K, theta = jnp.asarray(K), jnp.asarray(theta)
    D, Y = weighted_rows(layers_of(weights, rows.X, design), targets_of(rows, theta), rows.weight)
    ridges = jnp.broadcast_to(jnp.asarray(ridge, theta.dtype), (len(theta),))

    def one(D: Array, P: Any, K: Array, theta: Array, ridge: Array) -> tuple[Array, Array]:
        G = D / ridge if P is None else matmul(D, P)
        G = G - matmul(matmul_nt(D, K), K)
        C = cholesky(identity_plus(1.0, matmul_nt(G, D)))
        more = solve_lower(C, jnp.concatenate([G, Y - matmul(D, theta)], axis=1))
        new, E = more[:, : D.shape[1]], more[:, D.shape[1] :]
        return jax.lax.dynamic_update_slice(K, new, (used, 0 * used)), theta + matmul(new.T, E)

    axes = (0, None if P is None else 0, 0, 0, 0)
    K, theta = jax.vmap(one, in_axes=axes)(D, P, K, theta, ridges)
    return K, theta, is_finite(theta)


@jax.jit
def taken_in(P: Any, K: Array, ridge: Any) -> tuple[Array, Array]:
    """P - K^T K, and an empty K."""
    K = jnp.asarray(K)
    gone = jax.vmap(lambda K: outer_square(K.T))(K)
    if P is None:
        ridges = jnp.broadcast_to(jnp.asarray(ridge, K.dtype), (len(K),))
        P = jnp.eye(K.shape[-1], dtype=K.dtype) / ridges[:, None, None]
    return P - gone, jnp.zeros_like(K)


@jax.jit
def inverse_of(inverse: Array) -> Array:
    """A^-1 = X^T X (L, d, d) by the inverse X of the lower factor of A."""
    return jax.vmap(lambda X: outer_square(X.T))(inverse)
