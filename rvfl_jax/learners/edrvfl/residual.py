"""How far the solution can be trusted, from a few numbers carried beside it.

Whatever form a solver has, its readout must satisfy A theta = B with the sums

    A = lambda I + sum_i c_i D_i^T D_i,      B = lambda theta_0 + sum_i D_i^T Y_i,

with c_i = 1 but for the first batch of the paper's cold start, Y_i as it was taught, and
theta_0 = 0 unless the learner began from a readout.

`Sketch` keeps tr(A) and the sketches U^T A and U^T B for a few fixed columns U of random
signs, which cost O(b d) a step. E[U U^T] is proportional to I, so the norm of
U^T (A theta - B) relative to that of U^T B estimates the relative residual of theta against
the accumulated Gram without accumulating the Gram.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.portable import portable
from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.solvers.base import Trail
from rvfl_jax.linalg.products import matmul, matmul_nt, matmul_tn, running_sums

NUM_PROBES = 4
# theta = 0 has residual 1: beyond it what was learned is worse than nothing.
WORTHLESS = 1.0


@portable
@in_brief
class Sketch(NamedTuple):
    """Sums of one sub-learner: trace (), gram U^T A (r, d) and moment U^T B (r, m)."""

    trace: Array
    gram: Array
    moment: Array


def probes(width: int) -> np.ndarray:
    """U (d, r), the same for every learner of that width."""
    return np.random.default_rng(width).choice((-1.0, 1.0), (width, NUM_PROBES))


def empty_sketch(ridge: Array, width: int, num_classes: int) -> Sketch:
    """Before anything is learned A is lambda I and B is 0."""
    ridge = jnp.asarray(ridge)
    U = jnp.asarray(probes(width), ridge.dtype)
    return Sketch(width * ridge, ridge * U.T, jnp.zeros((NUM_PROBES, num_classes), ridge.dtype))


def sketch_of(A: Array, B: Array) -> Sketch:
    """The sketch of sums A (d, d) and B (d, m)."""
    U = jnp.asarray(probes(len(A)), A.dtype)
    return Sketch(jnp.trace(A), matmul_tn(U, A), matmul_tn(U, B))


def probe(D: Array) -> Array:
    """D U (b, r)."""
    return matmul(D, jnp.asarray(probes(D.shape[-1]), D.dtype))


def update(sketch: Sketch, D: Array, DU: Array, Y: Array, weight: Array, absorbed: Array) -> Sketch:
    """Add `weight` times the Gram, and the moment, of a batch that was absorbed."""
    return Sketch(
        sketch.trace + jnp.where(absorbed, weight * jnp.sum(D**2), 0.0),
        sketch.gram + jnp.where(absorbed, weight * matmul_tn(DU, D), 0.0),
        sketch.moment + jnp.where(absorbed, matmul_tn(DU, Y), 0.0),
    )


def residual(
    sketch: Sketch, theta: Array, k: Array | float, DU_next: Array, guess_next: Array
) -> Array:
    """Estimate of ||(A + k D'^T D') theta - B|| / ||B||; 0 before anything is learned.

    Args:
        sketch: sums of what was learned.
        theta: (d, m) a readout that solves the system with forward strength k.
        k: scalar; 0 for the readout without forward term.
        DU_next: (b', r) probe of the announced batch.
        guess_next: (b', m) D' (theta - theta_0).
    """
    gap = matmul(sketch.gram, theta) - sketch.moment
    if not isinstance(k, float) or k > 0:
        gap += k * matmul_tn(DU_next, guess_next)
    return relative_size(gap, sketch.moment)


def relative_size(gap: Array, B: Array) -> Array:
    """||gap|| / ||B||, or 0 where B is 0 because nothing was learned."""
    size = jnp.sqrt(jnp.sum(B**2))
    return jnp.where(size > 0, jnp.sqrt(jnp.sum(gap**2)) / jnp.where(size > 0, size, 1.0), 0.0)


def _only(which: Array, x: Array) -> Array:
    """Values (r, ...) where a batch counts, 0 elsewhere, whatever is there."""
    return jnp.where(which[:, None, None], x, 0.0)


class LearnedBlock(NamedTuple):
    """What r batches of one sub-learner add to its sketch.

    Attributes:
        D: (r, b, d) features.
        DU: (r, b, p) their probes.
        Y: (r, b, m) targets as they were taught.
        weight: (r,) of their Grams.
        absorbed: (r,) False for batches that left no trace.
    """

    D: Array
    DU: Array
    Y: Array
    weight: Array
    absorbed: Array


def residuals_along(
    sketch: Sketch, block: LearnedBlock, trail: Trail
) -> tuple[Sketch, Array, Array]:
    """The sketch after a block, and after each of its batches tr(A) (r,) and the residual (r,).

    What `update` and `residual` give batch by batch for the readouts of the trail. With Phi_t =
    Phi + S^T E_{<=t} and A_t = A + sum_{i<=t} c_i D_i^T D_i,

        U^T A_t Phi_t = U^T A Phi + sum_{i<=t} c_i (D_i U)^T D_i Phi
                        + (U^T A S^T + sum_{i<=t} c_i (D_i U)^T D_i S^T) E_{<=t},

    so that no readout and no Gram of a single batch is formed.
    """
    S, K, order = trail.moments
    r = len(block.D)
    absorbed, enters = block.absorbed, block.absorbed & (block.weight > 0)
    DU = _only(enters, block.weight[:, None, None] * block.DU)
    squares = jnp.where(enters, block.weight * jnp.sum(block.D**2, axis=(1, 2)), 0.0)
    traces = sketch.trace + running_sums(squares)
    flat = DU.reshape(-1, DU.shape[-1]), block.D.reshape(-1, block.D.shape[-1])
    learned = _only(absorbed, jax.vmap(matmul_tn)(block.DU, block.Y))
    moments = sketch.moment + running_sums(learned)
    of_batches = _only(enters, jax.vmap(matmul_tn)(DU, trail.U))
    of_start = matmul(sketch.gram, trail.Phi) + running_sums(of_batches)
    of_rows = matmul_nt(sketch.gram, S) + running_sums(jax.vmap(matmul_tn)(DU, K[:r]))
    past = order <= jnp.arange(r)[:, None]
    of_rows = jax.vmap(matmul, (0, None))(jnp.where(past[:, None], of_rows, 0.0), trail.E)
    gaps = jax.vmap(relative_size)(of_start + of_rows - moments, moments)
    return Sketch(traces[-1], sketch.gram + matmul_tn(*flat), moments[-1]), traces, gaps
