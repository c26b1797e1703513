"""How strongly the announced batch regularises: a constant k, or eq. (28)-(29).

With Q = D eta_t D^T, where eta_t is the variable learning rate of the previous step,
-kF-Bayes takes

    k = kappa (Tr[(Q + sigma I)^-1] / b)^-1,                                      eq. (29)

once with D = D_{t+1} for the penalty that it adds and, in the literal Algorithm 2, once
with D = D_t for the penalty that it takes out again.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.checks import is_traced, one_of, per_layer
from rvfl_jax.linalg import inverse_factor, symmetrise
from rvfl_jax.types import Array

ESTIMATORS = ("inverse_trace", "trace", "random_diagonal")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ConstantK:
    """The same k at every step: 0 is -R, 1 is -F, anything else -kF."""

    k: Array | float


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["kappa", "sigma"],
    meta_fields=["estimator", "reuse_k"],
)
@dataclass(frozen=True)
class AdaptiveK:
    """Configuration of -kF-Bayes; made by `adaptive_k`."""

    kappa: Array | float
    sigma: Array | float
    estimator: str
    reuse_k: bool


Strength = ConstantK | AdaptiveK


def adaptive_k(
    kappa: Array | float = 1.0,
    sigma: Array | float = 1e-5,
    estimator: str = "inverse_trace",
    reuse_k: bool = False,
) -> AdaptiveK:
    """-kF-Bayes: k per layer and per step from the data, eq. (27)-(29).

    Where a batch has more rows than its features have rank, Q has zero eigenvalues, sigma
    alone decides their share of the trace, and k falls to about
    kappa sigma b / (b - rank): practically plain ridge. `StepInfo.sigma_share` tells how
    much of the trace sigma decided.

    Args:
        kappa: scale, at least 0; a scalar or one per layer. May be traced.
        sigma: noise level, at least 0; a scalar or one per layer. May be traced.
        estimator: "inverse_trace" is eq. (29); "trace" is kappa Tr[Q] / b;
            "random_diagonal" is kappa times the diagonal element of Q at a random row.
        reuse_k: False is the literal Algorithm 2, which estimates the strength of the
            batch being learned anew and so does not take out exactly what it had added.
            True takes out what was added; theta then satisfies the closed form

                theta_{t+1} = (lambda I + sum_{i<=t} D_i^T D_i
                               + k_{t+1} D_{t+1}^T D_{t+1})^-1 sum_{i<=t} D_i^T Y_i.

    Returns:
        What `edrvfl` takes as its `k`.

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
    value = k.k if isinstance(k, ConstantK) else k
    return ConstantK(per_layer("k", value, num_layers, minimum=0.0, strict=False))


def is_ridge(strength: Strength) -> bool:
    """Whether the forward term is known to vanish before anything is traced."""
    if isinstance(strength, AdaptiveK) or is_traced(strength.k):
        return False
    return not np.any(np.asarray(strength.k))


def is_random(strength: Strength) -> bool:
    """Whether estimating k takes a PRNG key."""
    return isinstance(strength, AdaptiveK) and strength.estimator == "random_diagonal"


def estimates(strength: Strength) -> bool:
    """Whether the strength of the batch being learned is estimated anew (Algorithm 2)."""
    return isinstance(strength, AdaptiveK) and not strength.reuse_k


def estimate_k(strength: AdaptiveK, Q: Array, valid: Array, key: Array | None) -> Array:
    """Strength of one batch for one sub-learner, eq. (29) or a cheaper estimator.

    Args:
        strength: scalar kappa and sigma.
        Q: (b, b) = D eta_t D^T, zero in the rows and columns of padding.
        valid: (b,) True for rows that count.
        key: PRNG key; only "random_diagonal" needs one.

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
        k = strength.kappa * Q[row, row]
    return jnp.where(rows > 0, k, 0.0)


def inverse_trace(Q: Array, valid: Array, sigma: Array | float) -> Array:
    """Tr[(Q + sigma I)^-1] over the rows that count; 1 when there are none.

    Padding gets a unit diagonal, so that neither it nor sigma = 0 makes the factor fail.
    """
    X = inverse_factor(symmetrise(Q) + jnp.diag(jnp.where(valid, sigma, 1.0)))
    columns = jnp.sum(X**2, axis=0)
    return jnp.where(jnp.any(valid), jnp.sum(jnp.where(valid, columns, 0.0)), 1.0)


def sigma_share(strength: Strength, k: Array) -> Array:
    """Part of eq. (29)'s trace that sigma decides, sigma Tr[(Q + sigma I)^-1] / b, from its k."""
    if isinstance(strength, ConstantK) or strength.estimator != "inverse_trace":
        return jnp.zeros_like(k)
    return jnp.where(k > 0, strength.kappa * strength.sigma / k, 0.0)


def gram_weight(
    strength: Strength, k_added: Array, k_t: Array, skip: Array | None
) -> Array | float:
    """How often the Gram of the batch being learned stays inside eta_dagger.

    Once, if what was added is taken out again. Algorithm 2 takes out k_t instead of the
    k that it had added, and leaves 1 + k_added - k_t; of a batch that nobody announced
    nothing is taken out.

    Args:
        strength: of the forward term.
        k_added: scalar, what the previous step put on this batch; 0 if not announced.
        k_t: scalar, what Algorithm 2 estimates for it now.
        skip: True on the first batch of the paper's cold start, whose Gram never enters;
            None where the cold start is exact.
    """
    weight: Array | float = 1.0
    if estimates(strength):
        weight = 1.0 + jnp.where(k_added > 0, k_added - k_t, 0.0)
    return weight if skip is None else jnp.where(skip, 0.0, weight)
