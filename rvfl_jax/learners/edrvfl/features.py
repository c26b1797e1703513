"""A batch as the solvers want it: weighted features, with padding and failures emptied."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.network import Activation, features
from rvfl_jax.learners.edrvfl.residual import probe
from rvfl_jax.learners.edrvfl.solvers.base import FeatureBatch
from rvfl_jax.linalg.products import is_finite


@in_brief
class PendingBatch(NamedTuple):
    """A batch whose features are known and whose labels are awaited.

    Attributes:
        D: (L, b, d) features times the square root of the row weights; 0 in padding.
        probe: (L, b, r) see `rvfl_jax.learners.edrvfl.residual`.
        root: (b,) square root of the row weights; 0 in padding.
        finite: (L,) False where features were not finite; such a batch is emptied.
    """

    D: Array
    probe: Array
    root: Array
    finite: Array

    @property
    def valid(self) -> Array:
        """(b,) True for rows that count."""
        return self.root > 0

    def of_one(self, D: Array, prior: Array | None = None) -> FeatureBatch:
        """The batch of one sub-learner with features D (b, d) and the guess of theta_0 on them."""
        return FeatureBatch(D, self.valid, prior)

    def weighted(self, Y: Any) -> Array:
        """(b, m) targets times the root of their row's weight; 0 in padding, whatever is there."""
        Y = self.root[:, None] * jnp.asarray(Y, self.D.dtype)
        return jnp.where(self.valid[:, None], Y, 0.0)


def featurise(W: Array, X: Any, weight: Any, activation: Activation) -> PendingBatch:
    """Features of a batch; padding and batches that are not finite become empty rows."""
    X = jnp.asarray(X).astype(W.dtype)
    weight = jnp.ones(len(X), W.dtype) if weight is None else jnp.asarray(weight, W.dtype)
    valid = (weight > 0)[:, None]
    X = jnp.where(valid, X, 0.0)
    # Twice selected: the square root has no derivative at 0.
    root = jnp.where(weight > 0, jnp.sqrt(jnp.where(weight > 0, weight, 1.0)), 0.0)
    D = jnp.where(valid, root[:, None] * features(W, X, activation), 0.0)
    DU = jax.vmap(probe)(D)
    # A row of D that is not finite makes its probe so, and there are far fewer probes to read.
    finite = jax.vmap(is_finite)(DU) & is_finite(weight)
    D, DU = (jnp.where(finite[:, None, None], x, 0.0) for x in (D, DU))
    return PendingBatch(D, DU, jnp.where(jnp.any(finite), root, 0.0), finite)
