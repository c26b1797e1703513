"""Gaussian classes with one covariance: what linear discriminants keep of rows, and their scores.

Of each class c the weight n_c of its rows and their mean mu_c, and of all rows the scatter S about
the means of their classes, Sigma = S / n. The score of a row x is

    score_c = x^T Lambda mu_c - mu_c^T Lambda mu_c / 2    (+ ln (n_c / n), with priors)   (1)

with Lambda the inverse of Sigma as a method regularises it. What is kept is exact: where n' rows of
a class with mean mu' and scatter S' about it meet n with mean mu,

    mu <- mu + n' / (n + n') (mu' - mu),                                                  (2)
    S <- S + S' + n n' / (n + n') (mu' - mu)(mu' - mu)^T,                                 (3)

so that any batches in any order give what all rows at once would give. Two ways to regularise:

    shrunk: (1 - a) Sigma + a (tr Sigma / s) I,                                           (4)
    its share by OAS: a = min(1, (f + v^2) / ((n + 1) (f - v^2 / s))),                    (5)

f = sum_ij Sigma_ij^2 / s^2 and v = tr Sigma / s, with s features.

Shapes: x (s,), n_c and score_c (m,) over classes, mu_c a row of (m, s), S, Sigma and Lambda (s, s),
a, f and v scalars.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.learners.parts import of_met_classes
from rvfl_jax.linalg.products import is_finite, matmul, matmul_tn
from rvfl_jax.linalg.spd import cho_solve, cholesky


class ClassMeans(NamedTuple):
    """Rows (m,) and mean (m, s) of each class."""

    rows: Array
    mean: Array

    @classmethod
    def none(cls, num_features: int, num_classes: int) -> "ClassMeans":
        """Of no rows."""
        return cls(jnp.zeros(num_classes), jnp.zeros((num_classes, num_features)))

    @property
    def sizes(self) -> tuple[int, int]:
        """(s, m)."""
        m, s = jnp.shape(self.mean)
        return s, m

    def learn(self, X: Array, Y: Array, weight: Array) -> "ClassMeans":
        """With rows X (b, s) of one-hot targets Y (b, m) and weights (b,)."""
        return self._learn(X, Y, weight)[0]

    def _learn(self, X: Array, Y: Array, weight: Array) -> tuple["ClassMeans", Array, Array, Array]:
        """The same with what is met: the batch's means, how far these are, and their share."""
        count = weight @ Y
        total = self.rows + count
        share = count / jnp.where(total > 0, total, 1.0)
        mean = matmul_tn(weight[:, None] * Y, X) / jnp.where(count > 0, count, 1.0)[:, None]
        apart = jnp.where(count[:, None] > 0, mean - self.mean, 0.0)
        return ClassMeans(total, self.mean + share[:, None] * apart), mean, apart, share


class Gaussians(NamedTuple):
    """Rows (m,) and mean (m, s) of each class, and the scatter (s, s) about the means."""

    rows: Array
    mean: Array
    scatter: Array

    @classmethod
    def none(cls, num_features: int, num_classes: int) -> "Gaussians":
        """Of no rows."""
        return cls(
            *ClassMeans.none(num_features, num_classes), jnp.zeros((num_features, num_features))
        )

    @property
    def sizes(self) -> tuple[int, int]:
        """(s, m)."""
        return ClassMeans(self.rows, self.mean).sizes

    @property
    def covariance(self) -> Array:
        """Sigma (s, s); 0 where there are no rows."""
        return self.scatter / jnp.maximum(jnp.sum(self.rows), 1e-30)

    @property
    def healthy(self) -> Array:
        """Scalar truth: all of it is finite."""
        return is_finite(self.scatter) & is_finite(self.mean)

    def learn(self, X: Array, Y: Array, weight: Array) -> "Gaussians":
        """With rows X (b, s) of one-hot targets Y (b, m) and weights (b,)."""
        means, mean, apart, share = ClassMeans(self.rows, self.mean)._learn(X, Y, weight)
        within = X - matmul(Y, mean)
        between = matmul_tn((self.rows * share)[:, None] * apart, apart)
        scatter = matmul_tn(weight[:, None] * within, within) + between
        return Gaussians(*means, self.scatter + scatter)

    def scores(self, X: Array, covariance: Array, *, priors: bool = False) -> Array:
        """The scores (1) (n, m) of X (n, s) under a regularised covariance (s, s), by one Cholesky.

        Args:
            X: (n, s).
            covariance: positive definite.
            priors: with the shares of the classes among the rows, else all alike.
        """
        weights = cho_solve(cholesky(covariance), self.mean.T)
        X = jnp.asarray(X, self.mean.dtype)
        z = matmul(X, weights) - jnp.sum(weights.T * self.mean, axis=1) / 2
        if priors:
            total = jnp.sum(self.rows)
            met = (self.rows > 0) & (total > 0)
            z = z + jnp.log(jnp.where(met, self.rows, 1.0) / jnp.where(total > 0, total, 1.0))
        return of_met_classes(self.rows, z)


def mean_variance(covariance: Array) -> Array:
    """The mean of the variances, tr Sigma / s, or 1 where nothing varies."""
    trace = jnp.trace(covariance)
    return jnp.where(trace > 0, trace / len(covariance), 1.0)


def shrunk(covariance: Array, share: Any) -> Array:
    """(1 - share) Sigma + share (tr Sigma / s) I (4)."""
    eye = jnp.eye(len(covariance), dtype=covariance.dtype)
    return (1.0 - share) * covariance + share * mean_variance(covariance) * eye


def oas_shrinkage(covariance: Array, rows: Array) -> Array:
    """The share (5) by which the oracle approximating shrinkage draws Sigma of n rows to a sphere.

    Source: Y. Chen, A. Wiesel, Y. Eldar, A. Hero, "Shrinkage Algorithms for MMSE Covariance
    Estimation", IEEE Transactions on Signal Processing 58 (10), 2010, in the form that
    scikit-learn has it.
    """
    s = len(covariance)
    f, mu = jnp.mean(covariance**2), jnp.trace(covariance) / s
    below = (rows + 1.0) * (f - mu**2 / s)
    sphere = below <= 0
    return jnp.where(sphere, 1.0, jnp.minimum((f + mu**2) / jnp.where(sphere, 1.0, below), 1.0))
