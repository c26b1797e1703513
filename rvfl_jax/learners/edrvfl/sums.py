"""All that ridge regression needs of rows, as one monoid: D^T D, D^T Y, and the rows counted.

    Sums(rows a and b) = Sums(a) + Sums(b),      Sums.zero is that of no rows,

so that rows may come in any order and grouping, from several learners, and be taken out again.
lambda and the readout theta_0 that a learner began from are no part of it. They enter in
`Sums.finish`, which gives the system that the ridge readout solves,

    A theta = B,     A = lambda I + D^T D,     B = lambda theta_0 + D^T Y,

and leave where a state of `edrvfl` is taken apart again (`sums_of`, and `spectrum_of` for all of
lambda at once). So merging adds lambda once and never twice, and forgetting never forgets it.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.types import ActivationName, Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.features import featurise
from rvfl_jax.learners.edrvfl.network import Activation, features
from rvfl_jax.learners.edrvfl.residual import sketch_of
from rvfl_jax.linalg.products import gram, is_finite, matmul, matmul_tn, plus_outer_square
from rvfl_jax.linalg.spd import cho_inverse, cho_solve, cholesky, spd_inverse

BLOCK_ROWS = 4096


@in_brief
class System(NamedTuple):
    """The normal equations A theta = B of every sub-learner: A (L, d, d) and B (L, d, m)."""

    A: Array
    B: Array

    def factor(self) -> Array:
        """(L, d, d) lower R with R R^T = A; NaN where A is not positive definite."""
        return jax.vmap(cholesky)(self.A)

    def solution(self) -> Array:
        """(L, d, m) theta; NaN where A is not positive definite or overflowed."""
        return jax.vmap(cho_solve)(self.factor(), self.B)


@in_brief
class Sums(NamedTuple):
    """Sums over weighted rows, for every sub-learner.

    Attributes:
        gram: (L, d, d) D^T D.
        moment: (L, d, m) D^T Y.
        counts: (L, m) squares of the targets, the diagonal of Y^T Y: of one-hot targets the
            weight of the rows of each class.
    """

    gram: Array
    moment: Array
    counts: Array

    @property
    def squares(self) -> Array:
        """(L, d) of the features, the diagonal of the Gram."""
        return jnp.diagonal(self.gram, axis1=1, axis2=2)

    @classmethod
    def zero(cls, shape: tuple[int, ...], dtype: Any) -> "Sums":
        """Of no rows, for readouts of that shape (L, d, m)."""
        layers, width, outputs = shape
        return cls(
            jnp.zeros((layers, width, width), dtype),
            jnp.zeros((layers, width, outputs), dtype),
            jnp.zeros((layers, outputs), dtype),
        )

    @classmethod
    def of_features(cls, D: Array, Y: Array) -> "Sums":
        """Of rows already scaled by the root of their weight.

        Args:
            D: (L, b, d).
            Y: (b, m), or (L, b, m) where each sub-learner has targets of its own.
        """
        own = 0 if Y.ndim == 3 else None
        squares = jnp.sum(Y**2, axis=-2)
        return cls(
            jax.vmap(gram)(D),
            jax.vmap(matmul_tn, (0, own))(D, Y),
            jnp.broadcast_to(squares, (len(D), Y.shape[-1])),
        )

    @classmethod
    def of_inputs(cls, W: Array, X: Any, Y: Any, weight: Any, activation: Activation) -> "Sums":
        """Of a batch through the random layers W (L, N + s, N).

        A batch whose features are not finite counts as no rows.

        Args:
            W: random weights.
            X: (b, s).
            Y: (b, m).
            weight: (b,) at least 0; rows of weight 0 may hold NaN.
            activation: of the learner.
        """
        batch = featurise(W, X, weight, activation)
        return cls.of_features(batch.D, batch.weighted(Y))

    def merge(self, other: "Sums") -> "Sums":
        """Of the rows of both."""
        return jax.tree.map(jnp.add, self, other)

    def subtract(self, other: "Sums") -> "Sums":
        """Of these rows without those of the other, which are among them."""
        return jax.tree.map(jnp.subtract, self, other)

    def scale(self, factor: Array | float) -> "Sums":
        """Of these rows with their weights times a factor of at least 0, as forgetting has it."""
        return jax.tree.map(lambda leaf: factor * leaf, self)

    def plus(self, D: Array, Y: Array, past: Array | float = 1.0, factor: float = 1.0) -> "Sums":
        """`past` times these sums and `factor` times those of rows, in one pass over the Gram.

        Args:
            D: (L, b, d), scaled by the root of their weight as in `of_features`.
            Y: (b, m).
            past: of these sums.
            factor: 1 to add the rows, -1 to take them out.
        """
        gram = jax.vmap(lambda A, D: plus_outer_square(A, D.T, past, factor))(self.gram, D)
        moment = past * self.moment + factor * jax.vmap(matmul_tn, (0, None))(D, Y)
        return Sums(gram, moment, past * self.counts + factor * jnp.sum(Y**2, axis=0))

    def only(self, which: Array) -> "Sums":
        """These sums for the sub-learners of `which` (L,), and of no rows for the others."""
        return Sums(
            jnp.where(which[:, None, None], self.gram, 0.0),
            jnp.where(which[:, None, None], self.moment, 0.0),
            jnp.where(which[:, None], self.counts, 0.0),
        )

    def placed(self, columns: Array, num_outputs: int) -> "Sums":
        """With column c in place `columns[c]` of so many; columns that share a place add up."""
        wide = Sums.zero((*self.moment.shape[:2], num_outputs), self.moment.dtype)
        return Sums(
            self.gram,
            wide.moment.at[..., columns].add(self.moment),
            wide.counts.at[..., columns].add(self.counts),
        )

    def finish(self, ridge: Array | float, prior: Array | None = None) -> System:
        """The system with lambda `ridge`, a scalar or (L,), and theta_0 `prior` (L, d, m)."""
        ridges = _ridges(ridge, self.gram)
        eye = jnp.eye(self.gram.shape[-1], dtype=self.gram.dtype)
        B = self.moment if prior is None else self.moment + ridges * prior
        return System(self.gram + ridges * eye, B)

    def squared_errors(self, theta: Array, ridge: Array | float) -> Array:
        """(L, m) ||Y - D theta||^2 of the ridge readout theta that began at 0, by column.

        With A theta = B:  ||Y||^2 - theta^T B - lambda ||theta||^2.
        """
        shrunk = _ridges(ridge, self.moment)[..., 0] * jnp.sum(theta**2, axis=1)
        return self.counts - (jnp.sum(theta * self.moment, axis=1) + shrunk)


def sums_of_rows(
    W: Array, X: Array, Y: Array, weight: Array, activation: ActivationName | Activation
) -> Sums:
    """Sums of any number of rows, in blocks, so that memory stays that of one block.

    Args:
        W: (L, N + s, N).
        X: (n, s).
        Y: (n, m).
        weight: (n,) at least 0; rows of weight 0 may hold NaN, others make the sums so.
        activation: of the learner.
    """
    rows, (layers, width) = X.shape[0], (W.shape[0], W.shape[1])
    block = min(rows, BLOCK_ROWS)

    def add(sums: Sums, i: Array) -> tuple[Sums, None]:
        # The last block starts early to keep one shape; rows seen before weigh nothing.
        start = jnp.minimum(i * block, rows - block)
        part = partial(lax.dynamic_slice_in_dim, start_index=start, slice_size=block)
        fresh = start + jnp.arange(block) >= i * block
        w = jnp.where(fresh, part(weight), 0.0)
        D, Y_w = weighted_rows(features(W, part(X), activation), part(Y), w)
        return sums.merge(Sums.of_features(D, Y_w)), None

    empty = Sums.zero((layers, width, Y.shape[1]), W.dtype)
    sums, _ = lax.scan(add, empty, jnp.arange(-(-rows // block)))
    return sums


def weighted_rows(D: Array, Y: Array, weight: Array) -> tuple[Array, Array]:
    """Rows scaled by the square root of their weight; rows of weight 0 may hold NaN.

    Args:
        D: (..., n, d).
        Y: (..., n, m).
        weight: (n,), at least 0.
    """
    return scaled_rows(D, weight), scaled_rows(Y.astype(D.dtype), weight)


def scaled_rows(Z: Array, weight: Array) -> Array:
    """Z (..., n, p), row by row scaled as by `weighted_rows`."""
    root = jnp.sqrt(jnp.where(weight > 0, weight, 0.0)).astype(Z.dtype)[:, None]
    return jnp.where((weight > 0)[:, None], root * Z, 0.0)


def system_of(state: Any) -> System:
    """A and B of a state of `edrvfl`, lambda and theta_0 included; a forward term is dropped."""
    A = jax.vmap(spd_inverse)(state.eta_dagger)
    return System(A, matmul(A, state.theta_ridge))


def sums_of(state: Any, ridge: Array | float | None, counts: Array | None = None) -> Sums:
    """The sums of the rows that a state has learned: `finish` undone.

    Args:
        state: of `edrvfl`.
        ridge: the lambda that it was learned with, a scalar or (L,). None leaves it, and theta_0,
            among the sums, which is right where they are finished with a lambda of 0 again.
        counts: (m,) or (L, m) of the rows, which a state does not keep; 0 for None.
    """
    A, B = system_of(state)
    layers, _, m = B.shape
    given = jnp.zeros(m, B.dtype) if counts is None else jnp.asarray(counts, B.dtype)
    found = Sums(A, B, jnp.broadcast_to(given, (layers, m)))
    if ridge is None:
        return found
    began = Sums.zero(B.shape, B.dtype).finish(ridge, state.prior)
    return found.subtract(Sums(*began, jnp.zeros_like(found.counts)))


def learned_state(state: Any, sums: Sums, ridge: Array | float | None, num_learned: Array) -> Any:
    """The state that has learned exactly the rows of `sums`, with nothing announced.

    Args:
        state: gives all but what is learned, its theta_0 included.
        sums: of the rows.
        ridge: as in `sums_of`.
        num_learned: () batches.
    """
    system = System(sums.gram, sums.moment) if ridge is None else sums.finish(ridge, state.prior)
    R = system.factor()
    theta = jax.vmap(cho_solve)(R, system.B)
    eta = jax.vmap(cho_inverse)(R)
    return state._replace(
        theta=theta,
        theta_ridge=theta,
        eta_dagger=eta,
        eta=eta,
        k=jnp.zeros_like(state.k),
        num_learned=num_learned,
        sketch=jax.vmap(sketch_of)(*system),
        root=None if state.root is None else jnp.swapaxes(R, -1, -2),
    )


def spectrum_of(state: Any, ridge: float | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The sums of a state in the eigenvectors Q of D^T D = Q diag(a) Q^T, on the host.

    Of eta_dagger the eigenvectors are the same, and small a are exact where a Gram would round
    them away.

    Returns:
        a (L, d), and ||E_j||^2 (L, d) of the rows of E = Q^T D^T Y.
    """
    eta = np.asarray(state.eta_dagger, dtype=float)
    values, Q = np.linalg.eigh((eta + np.swapaxes(eta, -1, -2)) / 2)
    ridges = np.broadcast_to(np.asarray(ridge, dtype=float), (len(eta),))
    inverse = 1.0 / values
    E = inverse[..., None] * (np.swapaxes(Q, -1, -2) @ np.asarray(state.theta_ridge, dtype=float))
    return np.maximum(inverse - ridges[:, None], 0.0), np.sum(E**2, axis=-1)


def is_sound(state: Any) -> Array:
    """Scalar truth: the readout and the inverse Gram are finite."""
    return is_finite(state.theta) & is_finite(state.eta_dagger)


def _ridges(ridge: Array | float, like: Array) -> Array:
    """(L, 1, 1) of a scalar or (L,)."""
    return jnp.broadcast_to(jnp.asarray(ridge, like.dtype), (len(like),))[:, None, None]
