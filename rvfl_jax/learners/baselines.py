"""The non-continual references of the paper: offline, separate, fine-tuned, non-incremental.

All solve eq. (5), ridge regression on the features of `rvfl_jax.learners.edrvfl.network`:

    theta = (D^T D + lambda I)^-1 D^T Y = D^T (D D^T + lambda I)^-1 Y.
"""

from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import one_of, per_layer, plain_numbers, positive_int, shape
from rvfl_jax.core.portable import portable
from rvfl_jax.core.types import (
    ActivationName,
    Array,
    Ensemble,
    Learner,
    StateFacts,
    StepInfo,
    WeightInit,
)
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.base import (
    ENSEMBLES,
    check_batch,
    check_inputs,
    combiner,
    describe,
    plain_learner,
    shared_programs,
    some_rows,
)
from rvfl_jax.learners.edrvfl.network import (
    Activation,
    Initializer,
    features,
    init_weights,
    num_features_of,
    resolve_activation,
    resolve_weight_init,
)
from rvfl_jax.learners.edrvfl.sums import Sums, sums_of_rows, weighted_rows
from rvfl_jax.linalg.products import is_finite, matmul
from rvfl_jax.linalg.spd import cho_solve, cholesky

FORMS = ("auto", "primal", "dual")


@portable
@in_brief
class ReadoutState(NamedTuple):
    """Random weights W (L, N + s, N) and readouts theta (L, d, m); nothing else."""

    W: Array
    theta: Array


def offline_edrvfl(
    W: Array,
    X: Array,
    Y: Array,
    *,
    ridge: Array | float,
    activation: ActivationName | Activation = "relu",
    weight: Array | None = None,
    form: Literal["auto", "primal", "dual"] = "auto",
) -> Array:
    """The offline expert: all data at once, eq. (5).

    Args:
        W: (L, N + s, N), as `Learner.init` or `init_weights` gives.
        X: (n, s).
        Y: (n, m) one-hot or real targets.
        ridge: lambda > 0, a scalar or one per layer.
        activation: as in `edrvfl`.
        weight: (n,) row weights, 1 when None; rows of weight 0 may hold NaN.
        form: "primal" solves d equations, "dual" solves n; "auto" takes the smaller.

    Returns:
        theta (L, d, m); NaN where the factorisation failed.

    Raises:
        ValueError: on shapes that do not fit, a lambda out of range, an unknown name.
    """
    layers, width, nodes = W.shape
    shape("X", X, (None, width - nodes), "(n, num_features)")
    shape("Y", Y, (X.shape[0], None), "(n, num_classes)")
    ridge = per_layer("ridge", ridge, layers, minimum=0.0, strict=True)
    one_of("form", form, FORMS)
    resolve_activation(activation)
    if weight is None:
        weight = jnp.ones(X.shape[0], W.dtype)
    shape("weight", weight, (X.shape[0],), "(n,)")
    ridges = jnp.broadcast_to(jnp.asarray(ridge, W.dtype), (layers,))
    primal = form == "primal" or (form == "auto" and X.shape[0] >= width)
    if primal:
        return sums_of_rows(W, X, Y, weight, activation).finish(ridges).solution()
    D, Y_w = weighted_rows(features(W, X, activation), Y, weight)
    return jax.vmap(_solve_dual, in_axes=(0, None, 0))(D, Y_w, ridges)


def _solve_dual(D: Array, Y: Array, ridge: Array) -> Array:
    """D^T (D D^T + lambda I)^-1 Y (d, m), or NaN where that is not positive definite."""
    K = matmul(D, D.T) + ridge * jnp.eye(len(D), dtype=D.dtype)
    return matmul(D.T, cho_solve(cholesky(K), Y))


def separate_edrvfl(
    W: Array,
    X: Array,
    Y: Array,
    *,
    ridge: Array | float,
    activation: ActivationName | Activation = "relu",
    weight: Array | None = None,
) -> Array:
    """One expert per task, each trained on its own task alone.

    Args:
        W: (L, N + s, N).
        X: (Q, n, s), the rows of each task, padded to one length.
        Y: (Q, n, m).
        ridge: lambda > 0.
        activation: as in `edrvfl`.
        weight: (Q, n); 0 marks padding.

    Returns:
        theta (Q, L, d, m).
    """
    shape("X", X, (None, None, W.shape[1] - W.shape[2]), "(num_tasks, n, num_features)")
    if weight is None:
        weight = jnp.ones(X.shape[:2], W.dtype)
    fit = partial(offline_edrvfl, W, ridge=ridge, activation=activation)
    return lax.map(lambda task: fit(task[0], task[1], weight=task[2]), (X, Y, weight))


def fine_tuned_edrvfl(
    *,
    num_layers: int,
    num_nodes: int,
    ridge: Array | float,
    activation: ActivationName | Activation = "relu",
    weight_init: WeightInit | Initializer = "lecun_uniform",
    ensemble: Ensemble = "mean",
) -> Learner:
    """Fine-tuning: each batch is fitted from the readout of the batch before.

        theta <- theta + (lambda I + D_t^T D_t)^-1 D_t^T (Y_t - D_t theta)

    which is the ridge solution on batch t alone, drawn towards the previous readout
    instead of 0. On a stream of one batch a task this is the paper's fine-tuning row.
    """
    return _memoryless(num_layers, num_nodes, ridge, activation, weight_init, ensemble, keep=True)


def non_incremental_edrvfl(
    *,
    num_layers: int,
    num_nodes: int,
    ridge: Array | float,
    activation: ActivationName | Activation = "relu",
    weight_init: WeightInit | Initializer = "lecun_uniform",
    ensemble: Ensemble = "mean",
) -> Learner:
    """Non-incremental edRVFL: each batch is fitted from nothing and replaces the last fit.

        theta <- (lambda I + D_t^T D_t)^-1 D_t^T Y_t

    On a stream of one batch a task this is the paper's non-incremental row.
    """
    return _memoryless(num_layers, num_nodes, ridge, activation, weight_init, ensemble, keep=False)


class Options(NamedTuple):
    """What shapes the programs of a learner without memory; `keep`: of the readout before."""

    num_layers: int
    num_nodes: int
    activation: ActivationName | Activation
    weight_init: WeightInit | Initializer
    ensemble: Ensemble
    keep: bool


def _memoryless(
    num_layers: int,
    num_nodes: int,
    ridge: Array | float,
    activation: ActivationName | Activation,
    weight_init: WeightInit | Initializer,
    ensemble: Ensemble,
    *,
    keep: bool,
) -> Learner:
    layers, nodes = positive_int("num_layers", num_layers), positive_int("num_nodes", num_nodes)
    ridge = per_layer("ridge", ridge, layers, minimum=0.0, strict=True)
    resolve_activation(activation)
    resolve_weight_init(weight_init)
    ensemble = one_of("ensemble", ensemble, ENSEMBLES)
    options = Options(layers, nodes, activation, weight_init, ensemble, keep)
    return _without_memory(options, plain_numbers(ridge))


@shared_programs
def _without_memory(options: Options, ridge: Any) -> Learner:
    layers, nodes, activation, weight_init, ensemble, keep = options
    g = resolve_activation(activation)

    def init(key: Array, num_features: int, num_classes: int) -> ReadoutState:
        s = positive_int("num_features", num_features)
        m = positive_int("num_classes", num_classes)
        W = init_weights(
            key, num_layers=layers, num_features=s, num_nodes=nodes, weight_init=weight_init
        )
        return ReadoutState(W, jnp.zeros((layers, nodes + s, m), W.dtype))

    def scores(state: ReadoutState, X: Any) -> Array:
        check_inputs(num_features_of(state), X)
        return matmul(features(state.W, jnp.asarray(X), g), state.theta)

    def step(
        state: ReadoutState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        weight_next: Any = None,
    ) -> tuple[ReadoutState, StepInfo]:
        sizes = num_features_of(state), jnp.shape(state.theta)[-1]
        check_batch(sizes, X_t, Y_t, X_next, weight_t, weight_next)
        b = jnp.shape(X_t)[0]
        X_t, Y_t, weight_t = some_rows(X_t, Y_t, weight_t)
        dtype = state.theta.dtype
        weight = jnp.ones(len(X_t), dtype) if weight_t is None else jnp.asarray(weight_t, dtype)
        X = jnp.where((weight > 0)[:, None], jnp.asarray(X_t, dtype), 0.0)
        D = features(state.W, X, g)
        guess_scores = matmul(D, state.theta)
        base = state.theta if keep else jnp.zeros_like(state.theta)
        residual = jnp.asarray(Y_t, dtype) - (guess_scores if keep else 0.0)
        residual = jnp.broadcast_to(residual, guess_scores.shape)
        theta = base + _fit_residual(D, residual, weight, ridge)
        rows = jnp.any(weight > 0)
        healthy = jax.vmap(is_finite)(theta)
        theta = jnp.where(healthy[:, None, None] & rows, theta, state.theta)
        return state._replace(theta=theta), StepInfo(guess_scores[:, :b], healthy)

    name = "fine_tuned_edrvfl" if keep else "non_incremental_edrvfl"
    shaping = {option: value for option, value in options._asdict().items() if option != "keep"}
    learner = plain_learner(
        init,
        step,
        scores,
        combine=combiner(ensemble),
        description=describe(name, **shaping, ridge=ridge),
    )
    facts = StateFacts(num_features=num_features_of)
    return replace(learner, stream=learner.stream._replace(facts=facts))


def _fit_residual(D: Array, residual: Array, weight: Array, ridge: Array | float) -> Array:
    """Ridge fit of (L, b, m) residuals on (L, b, d) features, whichever form is smaller."""
    ridges = jnp.broadcast_to(jnp.asarray(ridge, D.dtype), (len(D),))
    D, Y = weighted_rows(D, residual, weight)
    if D.shape[1] >= D.shape[2]:
        return Sums.of_features(D, Y).finish(ridges).solution()
    return jax.vmap(_solve_dual)(D, Y, ridges)
