"""The square-root form of recursive least squares: QR updates of a triangular factor.

The factor has the square root of the condition number of the Gram matrix it stands for, so
that float32 reaches where normal equations need float64. Everything is products, reductions
and loops: these run batched on every device, whereas a batched LAPACK kernel may not (see
`linalg`).
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.products import lower_half, matmul

MAX_STAGES = 6
MAX_BLOCKS = 32


def qr_update(
    R: Array, z: Array, D: Array, Y: Array, *, panel: int | None = None
) -> tuple[Array, Array]:
    """Absorb a batch into the triangular least-squares problem R theta = z.

    With A = R^T R and B = R^T z, the result has

        R'^T R' = A + D^T D,    R'^T z' = B + D^T Y,

    by Householder reflections of [R z; D Y], which never form A. Rows of zeros change nothing.

    Args:
        R: (d, d), upper triangular with zeros below the diagonal.
        z: (d, m).
        D: (b, d) features.
        Y: (b, m) targets.
        panel: columns that are reflected together; chosen by size where it is None.

    Returns:
        R' (d, d), upper triangular, and z' (d, m). The diagonal of R' is positive where A' is
        positive definite, which derivatives need.
    """
    return _qr_update(panel or _panel_width(*D.shape), R, z, D, Y)


def solve_upper_triangular(R: Array, B: Array, *, block: int | None = None) -> Array:
    """R^-1 B for an upper triangular R.

    Args:
        R: (d, d), of which only the upper half is read.
        B: (d, q).
        block: rows that are solved together; chosen by size where it is None.

    Returns:
        (d, q).
    """
    return _solve_upper(block or _block_width(len(R)), R, B)


def solve_upper_transposed(R: Array, B: Array, *, block: int | None = None) -> Array:
    """R^-T B for an upper triangular R.

    Args:
        R: (d, d), of which only the upper half is read.
        B: (d, q).
        block: rows that are solved together; chosen by size where it is None.

    Returns:
        (d, q).
    """
    return _solve_transposed(block or _block_width(len(R)), R, B)


# --- the update -------------------------------------------------------------------------------


def _panel_width(num_rows: int, num_features: int) -> int:
    """Products with few rows of D are cheap beside what a panel costs in (p, p) products."""
    return min(16 if num_rows <= 32 else 32, num_features)


def _stages(size: int, panel: int) -> list[tuple[int, int, int]]:
    """(first column, number of panels, columns of a panel) of each stage.

    The panels of a stage are one loop over arrays of one shape, which drops the columns that
    are done only when the next stage begins: few stages compile fast, many waste little.
    """
    num_panels, rest = divmod(size, panel)
    per_stage = -(-num_panels // MAX_STAGES) or 1
    stages = [
        (first * panel, min(per_stage, num_panels - first), panel)
        for first in range(0, num_panels, per_stage)
    ]
    return stages + [(size - rest, 1, rest)] * (rest > 0)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _qr_update(panel: int, R: Array, z: Array, D: Array, Y: Array) -> tuple[Array, Array]:
    rest = jnp.concatenate([D, Y], axis=1)
    done = 0
    for first, num_panels, width in _stages(len(R), panel):
        rest = rest[:, first - done :]
        done = first
        reflect = partial(_reflect_panel, first, width)
        R, z, rest = lax.fori_loop(0, num_panels, reflect, (R, z, rest))
    return R, z


def _reflect_panel(
    first: int, width: int, i: Array, carry: tuple[Array, Array, Array]
) -> tuple[Array, Array, Array]:
    """Annihilate `width` columns of D and turn the rows of R and z that belong to them.

    With V = [I; W^T] of the panel, P = W D and M = R + P, the reflections leave

        D - W^T T^T M    and    T^T M - R = R + (2 P + (T - 2 I)^T M),

    here for the columns from `first` on, up to the sign of the rows of R. The sum on the right
    is a small correction of R where D is small beside R, which is so after many updates.

    Args:
        first: first column of the stage.
        width: p, columns of the panel.
        i: panel of the stage.
        carry: R (d, d), z (d, m), and [D Y] without its first `first` columns.
    """
    R, z, rest = carry
    left = len(R) - first
    offset = i * width
    row = first + offset
    R_rows = lax.dynamic_slice(R, (row, first), (width, left))
    z_rows = lax.dynamic_slice(z, (row, 0), (width, z.shape[1]))
    corner = lax.dynamic_slice(R_rows, (0, offset), (width, width))
    sign = jnp.where(_diagonal(corner) < 0, -1, 1).astype(R.dtype)[:, None]
    top = sign * jnp.concatenate([R_rows, z_rows], axis=1)
    columns = lax.dynamic_slice(rest, (0, offset), (len(rest), width)).T

    W = _reflectors(columns, sign * corner)
    T = _upper_inverses(_inverse_factor(W))
    P = matmul(W, rest)
    M = top + P
    top = top + (2 * P + matmul(_less_two(T, W).T, M))
    rest = rest - matmul(matmul(T, W).T, M)

    rest = lax.dynamic_update_slice(rest, jnp.zeros_like(columns.T), (0, offset))
    upper = jnp.arange(left) >= (offset + jnp.arange(width))[:, None]
    R = lax.dynamic_update_slice(R, jnp.where(upper, top[:, :left], 0), (row, first))
    z = lax.dynamic_update_slice(z, top[:, left:], (row, 0))
    return R, z, rest


def _reflectors(columns: Array, corner: Array) -> Array:
    """Reflect the columns of [R; D] onto the diagonal of R, one after another.

    Column j becomes (s, 0) with s^2 = r^2 + |x|^2 for its entries r of R and x of D, by
    v = (1, w), w = x / (r + s) and tau = (r + s) / s.

    Args:
        columns: (p, b), columns of D as rows.
        corner: (p, p), the rows of R: upper triangular with a non-negative diagonal.

    Returns:
        W (p, b), one w a row.
    """
    index = jnp.arange(len(columns))

    def reflect(j: Array, columns: Array) -> Array:
        x = lax.dynamic_index_in_dim(columns, j, keepdims=False)
        row = lax.dynamic_index_in_dim(corner, j, keepdims=False)
        products = matmul(columns, x)
        r, xx = row[j], products[j]
        s = jnp.sqrt(r**2 + xx)
        # Nothing to annihilate: v = (1, 0) only changes a sign, and the caller's R has it back.
        w = jnp.where(xx == 0, 0, x / (r + s))
        change = jnp.where(xx == 0, 0, (row + products / (r + s)) * ((r + s) / s))
        change = jnp.where(index > j, change, 0)[:, None]
        return jnp.where((index == j)[:, None], w, columns - change * w)

    return lax.fori_loop(0, len(columns), reflect, columns)


def _inverse_factor(W: Array) -> Array:
    """T^-1 = upper half of V^T V with halved diagonal, where V^T V = I + W W^T; W is (p, b)."""
    products = matmul(W, W.T)
    return jnp.triu(products, 1) + 0.5 * jnp.diag(1 + _diagonal(products))


def _less_two(T: Array, W: Array) -> Array:
    """T - 2 I, without the cancellation on the diagonal: 2 / (1 + |w|^2) - 2 = -|w|^2 T_jj."""
    length = jnp.sum(W**2, axis=1)
    return jnp.where(jnp.eye(len(T), dtype=bool), -length * T, T)


def _diagonal(A: Array) -> Array:
    """(..., p) from (..., p, p), as a reduction: a gather is slow inside a loop."""
    return jnp.sum(jnp.where(jnp.eye(A.shape[-1], dtype=bool), A, 0), axis=-1)


@_qr_update.defjvp
def _qr_update_jvp(
    panel: int, primals: tuple[Array, ...], tangents: tuple[Array, ...]
) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """With X = R'^-1:  dR' = Phi(X^T dA' X) R' and dz' = X^T (dB' - dR'^T z').

    A' = R'^T R', B' = R'^T z', Phi = upper half, diagonal halved. The inverse is computed only
    where a derivative is asked for, and products with it alone have a transpose.
    """
    R, z, D, Y = primals
    dR, dz, dD, dY = tangents
    dR = jnp.triu(dR)
    R_new, z_new = _qr_update(panel, R, z, D, Y)
    X = solve_upper_triangular(R_new, jnp.eye(len(R), dtype=R.dtype))
    half = matmul(R.T, dR) + matmul(D.T, dD)
    inner = matmul(X.T, matmul(half + half.T, X))
    dR_new = matmul(lower_half(inner).T, R_new)
    dB = matmul(dR.T, z) + matmul(R.T, dz) + matmul(dD.T, Y) + matmul(D.T, dY)
    return (R_new, z_new), (dR_new, matmul(X.T, dB - matmul(dR_new.T, z_new)))


# --- triangular solves ------------------------------------------------------------------------


def _block_width(size: int) -> int:
    """At most MAX_BLOCKS blocks: each is a few operations to compile."""
    return max(32, -(-size // MAX_BLOCKS))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve_upper(block: int, R: Array, B: Array) -> Array:
    """X_i = R_ii^-1 (B_i - sum_{j > i} R_ij X_j)."""
    inverses = _diagonal_inverses(R, block)
    X = B[:0]
    for i in reversed(range(len(inverses))):
        rows = slice(i * block, min((i + 1) * block, len(R)))
        known = B[rows] - matmul(R[rows, rows.stop :], X)
        width = len(known)
        X = jnp.concatenate([matmul(inverses[i, :width, :width], known), X])
    return X


@_solve_upper.defjvp
def _solve_upper_jvp(
    block: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """With X = R^-1 B:  dX = R^-1 (dB - dR X)."""
    X = _solve_upper(block, *primals)
    return X, _solve_upper(block, primals[0], tangents[1] - matmul(jnp.triu(tangents[0]), X))


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _solve_transposed(block: int, R: Array, B: Array) -> Array:
    """X_i = R_ii^-T (B_i - sum_{j < i} R_ji^T X_j)."""
    inverses = _diagonal_inverses(R, block)
    X = B[:0]
    for i in range(len(inverses)):
        rows = slice(i * block, min((i + 1) * block, len(R)))
        known = B[rows] - matmul(R[: rows.start, rows].T, X)
        width = len(known)
        X = jnp.concatenate([X, matmul(inverses[i, :width, :width].T, known)])
    return X


@_solve_transposed.defjvp
def _solve_transposed_jvp(
    block: int, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    """With X = R^-T B:  dX = R^-T (dB - dR^T X)."""
    X = _solve_transposed(block, *primals)
    change = tangents[1] - matmul(jnp.triu(tangents[0]).T, X)
    return X, _solve_transposed(block, primals[0], change)


def _diagonal_inverses(R: Array, block: int) -> Array:
    """(n, block, block): the inverse of each diagonal block; the last one padded with I."""
    size = len(R)
    starts = range(0, size, block)
    last = R[starts[-1] :, starts[-1] :]
    padded = jnp.eye(block, dtype=R.dtype).at[: len(last), : len(last)].set(last)
    blocks = [R[i : i + block, i : i + block] for i in starts[:-1]]
    return _upper_inverses(jnp.stack([*blocks, padded]))


def _upper_inverses(U: Array) -> Array:
    """Inverses of upper triangular (..., p, p) matrices, by doubling.

    Where X inverts the diagonal blocks of size s and N holds, of each pair of neighbours, the
    block right of the diagonal, X - X N X inverts the diagonal blocks of size 2 s.
    """
    width = U.shape[-1]
    index = jnp.arange(width)
    X = jnp.eye(width, dtype=U.dtype) / _diagonal(U)[..., None, :]
    size = 1
    while size < width:
        block = index // size
        neighbours = (block[:, None] % 2 == 0) & (block[:, None] + 1 == block)
        X = X - matmul(matmul(X, jnp.where(neighbours, U, 0)), X)
        size *= 2
    return X
