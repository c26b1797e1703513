"""The sparse autoencoder F of the broad learning system, which the paper takes from CRNet.

Its constants are those of CRNet's public code: repository toil2sweet/CRNet, file CRNet_I_MR.py of
commit e2462e1811a7, function `preprocess`.

C. L. P. Chen, Z. Liu, "Broad Learning System", IEEE TNNLS 29(1), 2018, section III;
S. Boyd et al., "Distributed Optimization and Statistical Learning via ADMM", 2011, 6.4.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import is_number, positive_int
from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.encoders.encoder import Encoder
from rvfl_jax.linalg.products import gram, matmul, matmul_tn
from rvfl_jax.linalg.spd import cho_solve, cholesky

ADMM_STEPS = 50
# The constant that is appended to every row, as in the code of both papers.
CONSTANT = 0.1


@in_brief
class SparseAutoencoderParams(NamedTuple):
    """What `fit` learns of unlabelled rows.

    Attributes:
        windows: (N2, s + 1, N1) sparse reconstruction weights of each window.
        low: (N2, N1) least value of each window feature over the fitted rows.
        span: (N2, N1) greatest minus least value.
        directions: (N1 N2 + 1, N3) orthonormal rows, or columns where there are fewer of them.
        gain: scalar, the factor inside tanh.
    """

    windows: Array
    low: Array
    span: Array
    directions: Array
    gain: Array


def sparse_autoencoder(
    num_windows: int = 10,
    window_width: int = 10,
    num_enhancement: int = 670,
    *,
    l1: float = 1e-3,
    shrink: float = 300.0,
) -> Encoder:
    """N2 windows of N1 sparse autoencoder features and N3 enhancement nodes.

    A row is standardised and the constant 0.1 appended, giving x. Window i is

        Z_i = (x w_i - low_i) / span_i,   w_i^T = argmin_w ||A_i w - X||^2 / 2 + l1 |w|_1,

    where A_i are random projections X P_i of the fitted rows, P_i ~ 2 N(0, 1) - 1, each column
    scaled to [0, 1] over them. The enhancement nodes are tanh(gain [Z | 0.1] Q). Q is an
    orthonormal basis, by singular vectors, of a random matrix 2 N(0, 1) - 1, and the gain the one
    at which the largest argument over the fitted rows is `shrink`. Nothing is trained with labels.

    Args:
        num_windows: N2.
        window_width: N1.
        num_enhancement: N3; 0 for none.
        l1: weight of the penalty. The minimum is approached by 50 steps of ADMM, as published,
            which fall short of it where the Gram of A_i is far from 1 and l1 is not small.
        shrink: largest argument of tanh; 300 in CRNet's code, so that nearly all nodes are signs,
            0.8 in that of the broad learning system.

    Returns:
        Encoder of width N1 N2 + N3; windows lie in [0, 1] on the fitted rows.

    Raises:
        ValueError: on sizes or numbers out of range.
    """
    windows = positive_int("num_windows", num_windows)
    width = positive_int("window_width", window_width)
    extra = 0 if num_enhancement == 0 else positive_int("num_enhancement", num_enhancement)
    for name, value in (("l1", l1), ("shrink", shrink)):
        if not is_number(value) or value <= 0:
            raise ValueError(f"{name}: expected a positive number, got {value!r}")

    @jax.jit
    def fit(key: Array, X: Any) -> SparseAutoencoderParams:
        rows = _standardised(jnp.asarray(X, jnp.float32))
        draws, turn = jax.random.split(key)
        shape = (windows, rows.shape[1], width)
        projections = 2 * jax.random.normal(draws, shape, rows.dtype) - 1

        def window(projection: Array) -> tuple[Array, Array, Array]:
            projected = matmul(rows, projection)
            low, span = _range(projected)
            weights = _sparse_reconstruction((projected - low) / span, rows, l1).T
            return weights, *_range(matmul(rows, weights))

        weights, low, span = lax.map(window, projections)
        directions = _orthonormal(turn, windows * width + 1, extra)
        params = SparseAutoencoderParams(weights, low, span, directions, jnp.ones(()))
        largest = jnp.max(_arguments(params, rows), initial=jnp.finfo(rows.dtype).tiny)
        return params._replace(gain=shrink / largest)

    def apply(params: SparseAutoencoderParams, X: Any) -> Array:
        rows = _standardised(jnp.asarray(X, params.windows.dtype))
        Z = _windows(params, rows)
        return jnp.concatenate([Z, jnp.tanh(params.gain * _arguments(params, rows))], axis=1)

    described = f"sparse_autoencoder({windows}, {width}, {extra}, l1={l1:g}, shrink={shrink:g})"
    return Encoder(fit, apply, described)


def _standardised(X: Array) -> Array:
    """Rows of mean 0 and deviation 1 with the constant appended; a flat row becomes 0."""
    centred = X - jnp.mean(X, axis=1, keepdims=True)
    deviation = jnp.std(X, axis=1, keepdims=True)
    rows = jnp.where(deviation > 0, centred / jnp.where(deviation > 0, deviation, 1.0), 0.0)
    return jnp.pad(rows, [(0, 0), (0, 1)], constant_values=CONSTANT)


def _range(columns: Array) -> tuple[Array, Array]:
    """Least value and span of each column, 1 where all values are the same."""
    low = jnp.min(columns, axis=0)
    span = jnp.max(columns, axis=0) - low
    return low, jnp.where(span > 0, span, 1.0)


def _sparse_reconstruction(A: Array, X: Array, l1: float) -> Array:
    """argmin_w ||A w - X||^2 / 2 + l1 |w|_1 by ADMM; (n, N1), (n, s + 1) to (N1, s + 1)."""
    factor = cholesky(gram(A) + jnp.eye(A.shape[1], dtype=A.dtype))
    moment = matmul_tn(A, X)

    def improve(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, dual = carry
        w = cho_solve(factor, moment + z - dual)
        shifted = w + dual
        z = jnp.sign(shifted) * jnp.maximum(jnp.abs(shifted) - l1, 0.0)
        return (z, shifted - z), None

    zero = jnp.zeros_like(moment)
    (z, _), _ = lax.scan(improve, (zero, zero), None, length=ADMM_STEPS)
    return z


def _orthonormal(key: Array, rows: int, columns: int) -> Array:
    """(rows, columns): orthonormal rows, or orthonormal columns where there are fewer of them."""
    if columns == 0:
        return jnp.zeros((rows, 0), jnp.float32)
    tall = (max(rows, columns), min(rows, columns))
    draw = 2 * jax.random.normal(key, tall, jnp.float32) - 1
    basis, _, _ = jnp.linalg.svd(draw, full_matrices=False)
    return basis if rows >= columns else basis.T


def _windows(params: SparseAutoencoderParams, rows: Array) -> Array:
    windows, _, width = params.windows.shape
    weights = jnp.moveaxis(params.windows, 0, 1).reshape(rows.shape[1], windows * width)
    return (matmul(rows, weights) - params.low.reshape(-1)) / params.span.reshape(-1)


def _arguments(params: SparseAutoencoderParams, rows: Array) -> Array:
    Z = jnp.pad(_windows(params, rows), [(0, 0), (0, 1)], constant_values=CONSTANT)
    return matmul(Z, params.directions)
