"""How strongly the announced batch regularises: a constant k, or eq. (28)-(29).

With Q = D eta_t D^T, where eta_t is the variable learning rate of the previous step,
-kF-Bayes takes

    k = kappa (Tr[(Q + sigma I)^-1] / b)^-1,                                      eq. (29)

once with D = D_{t+1} for the penalty that it adds and, in Algorithm 2 as printed, once more
with D = D_t for the penalty of the batch that it learns.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import is_traced, one_of, per_layer
from rvfl_jax.core.types import Array, Estimator
from rvfl_jax.core.words import in_brief
from rvfl_jax.linalg.inverse_factor import inverse_factor, shifted_solve
from rvfl_jax.linalg.products import is_finite, symmetrise

ESTIMATORS = ("inverse_trace", "trace", "random_diagonal", "random_variance")


# Version of the algorithm behind an adaptive k, in descriptions and saved models: before 2, the
# difference of the two strengths stayed in eta_dagger, and "random_diagonal" was what
# "random_variance" is.
FORM = 2


@jax.tree_util.register_dataclass
@in_brief
@dataclass(frozen=True, repr=False)
class ConstantK:
    """The same k at every step: 0 is -R, 1 is -F, anything else -kF; None is 0 for good."""

    k: Any

    @property
    def vanishes(self) -> bool:
        """Whether there is known to be no forward term before anything is traced."""
        return not is_traced(self.k) and not np.any(np.asarray(self.k))


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kappa", "sigma"],
    meta_fields=["estimator", "reuse_k"],
)
@in_brief
@dataclass(frozen=True, repr=False)
class AdaptiveK:
    """Configuration of -kF-Bayes; made by `adaptive_k`."""

    kappa: Array | float
    sigma: Array | float
    estimator: str
    reuse_k: bool

    @property
    def vanishes(self) -> bool:
        """See `ConstantK`; never."""
        return False


Strength = ConstantK | AdaptiveK


def adaptive_k(
    kappa: Array | float = 1.0,
    sigma: Array | float = 1e-5,
    estimator: Estimator = "inverse_trace",
    reuse_k: bool = False,
) -> AdaptiveK:
    """-kF-Bayes: k per layer and per step from the data, eq. (27)-(29).

    With Q = D eta_t D^T: where a batch has more rows than its features have rank, Q has zero
    eigenvalues, sigma alone decides their share of the trace, and k falls to about
    kappa sigma b / (b - rank), practically plain ridge. `history.sigma_share` is the share
    of the trace that sigma decided.

    Args:
        kappa: scale, at least 0; a scalar or one per layer. May be traced.
        sigma: noise level, at least 0; a scalar or one per layer. May be traced.
        estimator: "inverse_trace" is eq. (29). Two others stand below eq. (28): "trace" is
            kappa Tr[Q] / b, and "random_diagonal" (random_pick there) is kappa divided by the
            diagonal element of (Q + sigma I)^-1 at a random row. "random_variance" is ours,
            kappa times the diagonal element of Q at a random row, which inverts nothing.
        reuse_k: False is Algorithm 2 as printed: the strength k_t of the batch being learned is
            estimated anew, while eta still holds the strength k_added that the step before
            put on it. Every Gram enters eta_dagger once and whole; the difference of the two
            enters theta alone, the ridge solution for targets that hold part of the learner's
            own guess,

                theta_{t+1} = eta_{t+1} sum_{i<=t} D_i^T (Y_i + (k_i - k_added,i) D_i theta_i).

            True sets k_t to k_added; theta then has the closed form

                theta_{t+1} = (lambda I + sum_{i<=t} D_i^T D_i
                               + k_{t+1} D_{t+1}^T D_{t+1})^-1 sum_{i<=t} D_i^T Y_i.

    Returns:
        A strength, to be passed to `edrvfl` as `k`.

    Raises:
        ValueError: on a negative kappa or sigma, or an unknown estimator.
    """
    one_of("estimator", estimator, ESTIMATORS)
    kappa, sigma = (
        per_layer(name, value, np.size(value), minimum=0.0, strict=False)
        for name, value in (("kappa", kappa), ("sigma", sigma))
    )
    return AdaptiveK(kappa, sigma, estimator, bool(reuse_k))


def resolve_strength(k: Strength | Array | float, num_layers: int) -> Strength:
    """`k` of `edrvfl` as a Strength, checked against the number of layers."""
    if isinstance(k, AdaptiveK):
        per_layer("kappa", k.kappa, num_layers, minimum=0.0, strict=False)
        per_layer("sigma", k.sigma, num_layers, minimum=0.0, strict=False)
        return k
    if isinstance(k, str) or callable(k) or k is None:
        raise ValueError(
            f"k: expected a number of at least 0, one a layer, or adaptive_k(...), got {k!r}"
        )
    value = k.k if isinstance(k, ConstantK) else k
    return ConstantK(per_layer("k", value, num_layers, minimum=0.0, strict=False))


def is_random(strength: Strength) -> bool:
    """Whether estimating k takes a PRNG key."""
    return isinstance(strength, AdaptiveK) and strength.estimator.startswith("random")


def estimates(strength: Strength) -> bool:
    """Whether the strength of the batch being learned is estimated anew (Algorithm 2)."""
    return isinstance(strength, AdaptiveK) and not strength.reuse_k


def is_of_old(strength: Strength) -> bool:
    """Whether this strength was the same before `FORM`."""
    if isinstance(strength, ConstantK):
        return True
    return strength.reuse_k and strength.estimator not in ("random_diagonal", "random_variance")


def estimate_k(strength: AdaptiveK, Q: Array, valid: Array, key: Array | None) -> Array:
    """Strength of one batch for one sub-learner, eq. (29) or a cheaper estimator.

    Args:
        strength: scalar kappa and sigma.
        Q: (b, b) = D eta_t D^T, zero in the rows and columns of padding.
        valid: (b,) True for rows that count.
        key: PRNG key; only the random estimators need one.

    Returns:
        Scalar k; 0 for a batch without rows.
    """
    rows = jnp.sum(valid)
    if strength.estimator == "inverse_trace":
        k = strength.kappa * rows / inverse_trace(Q, valid, strength.sigma)
    elif strength.estimator == "trace":
        k = strength.kappa * jnp.trace(Q) / jnp.maximum(rows, 1)
    else:
        assert key is not None
        row = jax.random.categorical(key, jnp.where(valid, 0.0, -jnp.inf))
        if strength.estimator == "random_diagonal":
            k = strength.kappa / inverse_diagonal(Q, valid, strength.sigma)[row]
        else:
            k = strength.kappa * Q[row, row]
    return jnp.where(rows > 0, k, 0.0)


def inverse_diagonal(Q: Array, valid: Array, sigma: Array | float) -> Array:
    """(b,) diagonal of (Q + sigma I)^-1; of rows that do not count, anything finite.

    Padding gets a unit diagonal, so that neither it nor sigma = 0 makes the factor fail.
    """
    X = inverse_factor(symmetrise(Q) + jnp.diag(jnp.where(valid, sigma, 1.0)))
    return jnp.sum(X**2, axis=0)


def inverse_trace(Q: Array, valid: Array, sigma: Array | float) -> Array:
    """Tr[(Q + sigma I)^-1] over the rows that count; 1 when there are none."""
    diagonal = inverse_diagonal(Q, valid, sigma)
    return jnp.where(jnp.any(valid), jnp.sum(jnp.where(valid, diagonal, 0.0)), 1.0)


def sigma_share(strength: Strength, k: Array) -> Array:
    """Part of eq. (29)'s trace that sigma decides, sigma Tr[(Q + sigma I)^-1] / b, from its k."""
    if isinstance(strength, ConstantK) or strength.estimator != "inverse_trace":
        return jnp.zeros_like(k)
    return jnp.where(k > 0, strength.kappa * strength.sigma / k, 0.0)


def k_of_pending(
    strength: Strength, k_added: Array, estimate: Callable[[AdaptiveK], Array]
) -> Array:
    """k_t of the batch being learned.

    Args:
        strength: of the forward term.
        k_added: scalar, what the step before put on this batch.
        estimate: eq. (29) of this batch anew, called for Algorithm 2 as printed alone.
    """
    if isinstance(strength, ConstantK):
        return jnp.asarray(strength.k, k_added.dtype)
    return k_added if strength.reuse_k else estimate(strength)


def estimate_k_of_pending(
    strength: AdaptiveK, M: Array, k_added: Array, valid: Array, key: Array | None
) -> Array:
    """k_t anew, from D_t eta_t D_t^T = (I + k_added M)^-1 M.

    Args:
        strength: scalar kappa and sigma.
        M: (b, b) = D_t eta_dagger D_t^T of before the step.
        k_added: scalar, what the step before put on this batch.
        valid: (b,) True for rows that count.
        key: see `estimate_k`.
    """
    return estimate_k(strength, symmetrise(shifted_solve(M, k_added, M)), valid, key)


def taught_targets(
    strength: Strength, Y: Array, V: Array, k_added: Array, k_t: Array
) -> tuple[Array, Array]:
    """What eq. (27) teaches of a batch: Y + (k_t - k_added) V, as printed; Y with a reused k.

    Eq. (27) takes out k_t D_t^T D_t theta_t where eta_t holds k_added D_t^T D_t. Multiplied by
    eta_{t+1}^-1 = eta_t^-1 + (1 - k_added) D_t^T D_t + k_{t+1} D_{t+1}^T D_{t+1} it says

        eta_{t+1}^-1 theta_{t+1} = eta_t^-1 theta_t + D_t^T (Y_t + (k_t - k_added) D_t theta_t).

    Args:
        strength: of the forward term.
        Y: (b, m) weighted targets.
        V: (b, m) weighted guess D_t theta_t.
        k_added: scalar, what the step before put on this batch; 0 if nobody announced it, and
            then nothing is taken out.
        k_t: scalar, what Algorithm 2 estimates for it now.

    Returns:
        The targets, and False where k_t or what it teaches is not finite: then they are Y.
    """
    if not estimates(strength):
        return Y, jnp.ones((), bool)
    guess = jnp.where(k_added > 0, k_t - k_added, 0.0) * V
    sound = jnp.isfinite(k_t) & is_finite(guess)
    return Y + jnp.where(sound, guess, 0.0), sound
