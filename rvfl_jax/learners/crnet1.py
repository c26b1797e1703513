"""CRNet-I: a random layer, and a readout in closed form held to the last by Fisher information.

With A = ReLU(X W + c) of a batch's rows, W and c drawn once, the column q of the readout becomes

    beta_q = (A' A + S_q)^+ (A' y_q + S_q beta_q),    S_q = sum_t lambda_t diag(F_tq),    (1)

with beta_q on the right as the batches before left it, and sums over those. + is the
pseudo-inverse; the first batch, with S = 0 and beta = 0, is a least-squares fit. Then

    F_q = n g_q^2,    g = A' (softmax(A beta) - Y) / n,                                   (2)

n the rows of the batch, and the square entry by entry: n times the square of the gradient of the
mean cross-entropy, not a mean of the squares of each row's. Every batch counts as a task; a task
that comes in several is several. So no boundaries are asked for, and results depend on the batches.

It ends in the file CRNet_I_MR.py of the authors' public code, repository toil2sweet/CRNet, commit
e2462e1811a7, whose equations these are, with its 900 nodes, weights and biases uniform within
(-1, 1), no direct links, and lambda = 3000, 5000, 5000, 6000 for the first tasks. Its encoder is
`rvfl_jax.encoders.sparse_autoencoder`, which it fits anew to the rows of each task, at test time
too: `encode_stream(protocol="refit_per_task")`. It takes eigenvalues for 0 below 3e-8 times the
largest, the root of the 1e-15 of numpy.linalg.pinv, which it asks of a square; below 1e-15 in the
first task. So here, but never below what rounding leaves, N times the precision's epsilon.

CRNet-II, of the same paper, is in no public code, and not here.

Shapes: X (n, s), Y (n, m) with columns y_q, W (s, N), c (N,), A (n, N), beta and g (N, m) with
columns beta_q and g_q, F_q (N,), S_q (N, N) diagonal and kept as a column (N,), lambda_t scalars.

Cost: 10 m N^3 flops a batch, as each of m classes has a matrix of its own. Memory: weights, readout
and S.

Source: D. Li, Z. Zeng, "CRNet: A Fast Continual Learning Framework With Random Theory", IEEE TPAMI
45(9), 2023.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.checks import is_traced, positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.edrvfl.network import resolve_weight_init
from rvfl_jax.learners.edrvfl.sums import weighted_rows
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.linalg.products import gram, is_finite, matmul, matmul_tn
from rvfl_jax.linalg.pseudo_inverse import pseudo_solve

NUM_NODES = 900
PENALTIES = (3000.0, 5000.0, 5000.0, 6000.0)
# Below it numpy.linalg.pinv takes singular values for 0.
CUTOFF = 1e-15


class CRNetState(NamedTuple):
    """Random W (s, N) and c (N,), the readout beta and its penalties S (N, m), batches learned."""

    W: Array
    c: Array
    beta: Array
    S: Array
    learned: Array


class Numbers(NamedTuple):
    """What only scales."""

    penalty: Any
    weight_scale: Any


def crnet1(
    *, penalty: Any = PENALTIES, num_nodes: int = NUM_NODES, weight_scale: Any = 1.0
) -> Learner:
    """CRNet-I, to which every batch is a task.

    Args:
        penalty: lambda, at least 0, one for all batches or one of each, the last for all others.
        num_nodes: N, nodes of the random layer.
        weight_scale: above 0, what weights and biases are uniform within.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        _checked_penalty(penalty), scalar("weight_scale", weight_scale, minimum=0.0, strict=True)
    )
    return _crnet1((positive_int("num_nodes", num_nodes),), numbers)


def _checked_penalty(penalty: Any) -> Any:
    """One number, or an array (k,) of them."""
    if is_traced(penalty) and np.ndim(penalty) == 1 and len(penalty):
        return penalty
    if not isinstance(penalty, list | tuple | np.ndarray) or not np.ndim(penalty):
        return scalar("penalty", penalty, minimum=0.0)
    if not len(penalty):
        raise ValueError("penalty: expected one number or more, got none")
    return np.array([scalar("penalty", one, minimum=0.0) for one in penalty])


def consolidated(A: Array, Y: Array, beta: Array, S: Array, cutoff: Any) -> Array:
    """The readout (1) (N, m) after rows A (b, N) and Y (b, m), from the last and its penalties.

    Args:
        A: features, scaled by the root of the rows' weights, as Y is.
        Y: targets.
        beta: before.
        S: (N, m) penalties on changes of its entries.
        cutoff: of `pseudo_solve`.
    """
    G, B = gram(A), matmul_tn(A, Y) + S * beta

    def column(of_class: tuple[Array, Array]) -> Array:
        s_q, b_q = of_class
        return pseudo_solve(G + jnp.diag(s_q), b_q[:, None], cutoff)[:, 0]

    return lax.map(column, (S.T, B.T)).T


def fisher(A: Array, Y: Array, weight: Array, beta: Array) -> Array:
    """F (2) (N, m), n times the square of the gradient of the mean cross-entropy of unscaled A."""
    rows = jnp.sum(weight)
    miss = weight[:, None] * (jax.nn.softmax(matmul(A, beta)) - Y)
    return matmul_tn(A, miss) ** 2 / jnp.where(rows > 0, rows, 1.0)


@shared_programs
def _crnet1(options: tuple[int], numbers: Numbers) -> Learner:
    (num_nodes,) = options
    draw = resolve_weight_init("uniform")

    def init(key: Array, num_features: int, num_classes: int) -> CRNetState:
        of_weights, of_biases = jax.random.split(key)
        # In float32, so that both precisions share one network.
        W = draw(of_weights, (num_features, num_nodes), jnp.float32)
        c = draw(of_biases, (num_nodes,), jnp.float32)
        dtype, zeros = jnp.result_type(float), jnp.zeros((num_nodes, num_classes))
        W, c = (numbers.weight_scale * drawn.astype(dtype) for drawn in (W, c))
        return CRNetState(W, c, zeros, zeros, jnp.zeros((), jnp.int32))

    def features(state: CRNetState, X: Any) -> Array:
        return jax.nn.relu(matmul(jnp.asarray(X, state.W.dtype), state.W) + state.c)

    def scores(state: CRNetState, X: Any) -> Array:
        return matmul(features(state, X), state.beta)

    def step(
        state: CRNetState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[CRNetState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.W.dtype)
        A, Y = features(state, X), jnp.asarray(Y_t, X.dtype)
        rounding = num_nodes * jnp.finfo(X.dtype).eps
        cutoff = jnp.maximum(jnp.where(state.learned > 0, CUTOFF**0.5, CUTOFF), rounding)
        beta = consolidated(*weighted_rows(A, Y, weight), state.beta, state.S, cutoff)
        penalties = jnp.atleast_1d(jnp.asarray(numbers.penalty, X.dtype))
        penalty = penalties[jnp.minimum(state.learned, len(penalties) - 1)]
        S = state.S + penalty * fisher(A, Y, weight, beta)
        healthy = is_finite(X) & is_finite(beta) & is_finite(S)
        new = state._replace(beta=beta, S=S, learned=state.learned + 1)
        info = StepInfo(matmul(A, state.beta), healthy)
        # Without rows the penalty alone would move what nothing holds.
        return unless_unhealthy(healthy & jnp.any(weight > 0), new, state), info

    return plain_learner(
        init,
        step,
        scores,
        description=describe("crnet1", num_nodes=num_nodes, **numbers._asdict()),
        sizes=lambda state: (jnp.shape(state.W)[0], jnp.shape(state.beta)[1]),
    )
