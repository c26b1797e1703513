"""RanPAC: ridge regression on a wide layer of random ReLU nodes, lambda from rows held out.

    H = relu(X W),                                                                        (1)
    G = sum_t H_t^T H_t,    C = sum_t H_t^T Y_t,                                          (2)
    scores = H (G + lambda I)^-1 C,                                                       (3)

with W of N(0, 1), drawn once. In every batch lambda is chosen anew: of its rows, in their order,
the first four fifths, H_1 and Y_1, are fitted with each lambda of 1e-8, 1e-7, ..., 1e8, and that
with the least squared error on the last fifth, H_2 and Y_2, is taken,

    lambda = argmin ||Y_2 - H_2 (H_1^T H_1 + lambda I)^-1 H_1^T Y_1||^2,                  (4)

the sums G and C holding all rows. So has the source it, where a batch is a task; a small batch
chooses by few rows, and a fixed `ridge` may serve better. Sums do not depend on the batches, lambda
does. The offline expert chooses by as many rows of all, drawn at random, as a block has.

Where a lambda is below what the precision resolves, eps tr G, this is taken in its place.

Shapes: X (b, s), Y (b, m), W (s, N), H (b, N), G (N, N), C (N, m), lambda scalar.

Cost: 2 N^2 b flops a batch for the sums; min(b, N)^3 of the choice, one factorisation into
eigenvectors for all lambda; and one factorisation, N^3 / 3, wherever scores are asked: once a batch
for the guess, once more for each look at a test set. Memory: N^2 numbers.

Source: M. McDonnell, D. Gong, A. Parvaneh, E. Abbasnejad, A. van den Hengel, "RanPAC: Random
Projections and Pre-trained Models for Continual Learning", NeurIPS 2023, algorithm 1 without its
first-session adaptation of the encoder. It has N = 10,000; accuracy grows with N.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.edrvfl.sums import weighted_rows
from rvfl_jax.learners.parts import BLOCK_ROWS, learn_in_blocks, rows_of, unless_unhealthy
from rvfl_jax.learners.random_maps import NUM_NODES, normal_weights
from rvfl_jax.linalg.products import gram, is_finite, matmul, matmul_nt, matmul_tn
from rvfl_jax.linalg.spd import cho_solve, cholesky, eigh

RIDGES = 10.0 ** np.arange(-8, 9)
FITTED = 0.8


class RanPACState(NamedTuple):
    """Random weights W (s, N), G (N, N), C (N, m), and lambda ()."""

    W: Array
    gram: Array
    moment: Array
    ridge: Array


def ranpac(*, num_nodes: int = NUM_NODES, ridge: Any = None) -> Learner:
    """Ridge regression on random ReLU nodes.

    Args:
        num_nodes: N.
        ridge: lambda, above 0, or None for one chosen on held-out rows of each batch.

    Raises:
        ValueError: on anything out of range.
    """
    if ridge is not None:
        ridge = scalar("ridge", ridge, minimum=0.0, strict=True)
    return _ranpac((positive_int("num_nodes", num_nodes), ridge is None), ridge)


def chosen_ridge(H: Array, Y: Array, weight: Array, before: Array) -> Array:
    """The lambda (4) of `RIDGES` of least squared error on the last fifth of a batch's rows.

    Args:
        H: (b, N) features.
        Y: (b, m).
        weight: (b,), which errors and fits are weighted by; 0 marks padding.
        before: lambda where there are too few rows to choose by.
    """
    valid = weight > 0
    place, number = jnp.cumsum(valid) - 1, jnp.sum(valid)
    fitted = valid & (place < jnp.floor(FITTED * number).astype(place.dtype))
    held_out = jnp.where(valid & ~fitted, weight, 0.0)
    H_fit, Y_fit = weighted_rows(H, Y, jnp.where(fitted, weight, 0.0))
    # All lambda from one Q diag(a) Q^T, of the smaller of H_fit H_fit^T and H_fit^T H_fit.
    if len(H) <= H.shape[1]:
        a, Q = eigh(matmul_nt(H_fit, H_fit))
        E, P = matmul_tn(Q, Y_fit), matmul(H, matmul_tn(H_fit, Q))
    else:
        a, Q = eigh(gram(H_fit))
        E, P = matmul_tn(Q, matmul_tn(H_fit, Y_fit)), matmul(H, Q)
    ridges = jnp.asarray(RIDGES, H.dtype)
    floor = jnp.finfo(H.dtype).eps * jnp.sum(H_fit**2)

    def error(ridge: Array) -> Array:
        shifted = jnp.maximum(a, 0.0) + jnp.maximum(ridge, floor)
        return jnp.sum(held_out[:, None] * (Y - matmul(P, E / shifted[:, None])) ** 2)

    enough = jnp.any(fitted) & jnp.any(held_out > 0)
    return jnp.where(enough, ridges[jnp.argmin(jax.vmap(error)(ridges))], before)


@shared_programs
def _ranpac(options: tuple[int, bool], ridge: Any) -> Learner:
    num_nodes, chooses = options

    def init(key: Array, num_features: int, num_classes: int) -> RanPACState:
        W = normal_weights(key, num_features, num_nodes)
        began = jnp.asarray(1.0 if chooses else ridge, W.dtype)
        gram_0, moment_0 = jnp.zeros((num_nodes, num_nodes)), jnp.zeros((num_nodes, num_classes))
        return RanPACState(W, gram_0, moment_0, began)

    def features(state: RanPACState, X: Any) -> Array:
        return jax.nn.relu(matmul(jnp.asarray(X, state.W.dtype), state.W))

    def answer(state: RanPACState, H: Array) -> Array:
        eye = jnp.eye(num_nodes, dtype=H.dtype)
        least = jnp.finfo(H.dtype).eps * jnp.trace(state.gram)
        R = cholesky(state.gram + jnp.maximum(state.ridge, least) * eye)
        return matmul(H, cho_solve(R, state.moment))

    def scores(state: RanPACState, X: Any) -> Array:
        return answer(state, features(state, X))

    def added(state: RanPACState, H: Array, Y: Array, weight: Array) -> RanPACState:
        D, Y = weighted_rows(H, Y, weight)
        return state._replace(gram=state.gram + gram(D), moment=state.moment + matmul_tn(D, Y))

    def step(
        state: RanPACState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        **_: Any,
    ) -> tuple[RanPACState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.W.dtype)
        H = features(state, X)
        new = added(state, H, Y_t, weight)
        if chooses:
            # A choice of one of several values has no derivative.
            rows = jax.lax.stop_gradient((H, jnp.asarray(Y_t, H.dtype), weight))
            new = new._replace(ridge=chosen_ridge(*rows, state.ridge))
        healthy = is_finite(X) & is_finite(new.gram) & is_finite(new.moment)
        return unless_unhealthy(healthy, new, state), StepInfo(answer(state, H), healthy)

    def fit_offline(state: RanPACState, X: Any, Y: Any, weight: Any) -> RanPACState:
        def learn(state: RanPACState, X: Array, Y: Array, weight: Array) -> RanPACState:
            return added(state, features(state, X), Y, weight)

        new = learn_in_blocks(learn, state, X, Y, weight)
        if not chooses:
            return new
        X, weight = rows_of(X, weight, state.W.dtype)
        # Rows in the order of a stream have the classes of the last fifth in no other.
        drawn = jax.random.permutation(jax.random.key(0), len(X))[:BLOCK_ROWS]
        Y = jnp.asarray(Y, X.dtype)[drawn]
        ridge = chosen_ridge(features(state, X[drawn]), Y, weight[drawn], state.ridge)
        return new._replace(ridge=ridge)

    description = describe("ranpac", num_nodes=num_nodes, ridge=None if chooses else ridge)
    return plain_learner(
        init,
        step,
        scores,
        fit_offline=fit_offline,
        description=description,
        sizes=lambda state: (jnp.shape(state.W)[0], jnp.shape(state.moment)[1]),
    )
