"""Programs of estimators on sums: add rows, guess them, solve. All in double precision.

Like those of `compiled`, they donate nothing: what a model knows must live on until everything that
replaces it is there.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Array
from rvfl_jax.estimators.calibration import Guesses, no_guesses, tally
from rvfl_jax.estimators.compiled import (
    LINKS,
    Design,
    PaddedRows,
    guesses_made,
    layers_of,
    targets_of,
)
from rvfl_jax.estimators.feature_maps import MapSizes, draw, is_lone, no_weights
from rvfl_jax.estimators.learned import Standing, Weights, weights_of
from rvfl_jax.estimators.padding import FEWEST_ROWS
from rvfl_jax.estimators.readouts import Readout, Solved, balance, solved_from, together
from rvfl_jax.learners.edrvfl.sums import Sums, weighted_rows
from rvfl_jax.linalg.products import gram, is_finite, matmul
from rvfl_jax.linalg.spd import cho_solve, lower_inverse


@partial(jax.jit, static_argnames=("design", "num_features"))
def begin(
    design: Design, numbers: dict[str, Any], seed: Any, *, num_features: int
) -> tuple[Weights, Array]:
    """Random weights, and (L,) the largest sum of absolute weights of a node that may grow.

    Of "fourier" `weight_scale` among the numbers is that of frequencies, the bandwidth included.
    """
    if is_lone(design.feature_map):
        return no_weights(num_features)
    options = dict(design.options)
    if design.feature_map != "layers":
        nodes = options["num_layers"], options["num_nodes"]
        sizes = MapSizes(*nodes, design.num_inputs, num_features)
        return draw(design.feature_map, seed, numbers["weight_scale"], sizes)
    W = design.learner(numbers).init(jax.random.key(seed), num_features, 1).W
    return weights_of(W), jnp.max(jnp.sum(jnp.abs(W), axis=1), axis=1)


def shape_of(design: Design, weights: Any, num_features: int) -> tuple[int, int]:
    """(L, d) of the features of such inputs, a constant column included; computes nothing.

    Raises:
        ValueError: if a map of one's own gives no features.
    """
    inputs = jax.ShapeDtypeStruct((FEWEST_ROWS, num_features), np.dtype(float))
    layers, _, width = jax.eval_shape(partial(layers_of, design=design), weights, inputs).shape
    return layers, width


@partial(jax.jit, static_argnames=("design", "kind"))
def absorb(
    design: Design,
    weights: Weights,
    sums: Sums,
    standing: Standing | None,
    rows: PaddedRows,
    fading: tuple[Any, Any],
    options: dict[str, Any],
    kind: str | None,
) -> tuple[Sums, Guesses | None, Array]:
    """Guess rows, and add them.

    Args:
        design: which program this is.
        weights: of the random layers.
        sums: so far.
        standing: what guesses.
        rows: whose weights are those of guesses, 0 for rows that are not to be guessed again.
        fading: (b,) weight of each row among the sums, and () of all that came before.
        options: `class_balance` and `shrinkage` of a classifier.
        kind: of the readout that guesses; None for a regressor.

    Returns:
        The sums, the sums over guesses, and whether all numbers are finite.
    """
    D = layers_of(weights, rows.X, design)
    guesses = None if kind is None else guessed(design, D, standing, rows, options, kind)
    worth, past = fading
    sums = sums.plus(*weighted_rows(D, targets_of(rows, sums.moment), worth), past)
    finite = is_finite(sums.squares) & is_finite(sums.moment) & is_finite(sums.counts)
    return sums, guesses, finite


@partial(jax.jit, static_argnames=("design", "kind"))
def guess(
    design: Design,
    weights: Weights,
    standing: Standing,
    rows: PaddedRows,
    options: dict[str, Any],
    kind: str,
) -> Guesses:
    """The sums over guesses of rows that are added later."""
    return guessed(design, layers_of(weights, rows.X, design), standing, rows, options, kind)


def guessed(
    design: Design,
    D: Array,
    standing: Any,
    rows: PaddedRows,
    options: dict[str, Any],
    kind: str,
) -> Guesses:
    """The sums over guesses of rows with features D (L, b, d); for programs to call."""
    solved, counts = Solved(standing.theta, standing.offset), standing.counts
    plain = matmul(D, solved.theta)

    def scored(power: Any) -> Array:
        readout = solved.readout(counts, kind, power)
        return (plain + readout.bias[:, None]) * readout.scale

    scores = jnp.stack([scored(options["class_balance"]), scored(1.0)])
    return guesses_made(design, counts, scores, rows, LINKS[kind])


@partial(jax.jit, static_argnames=("design",))
def take_out(design: Design, weights: Weights, sums: Sums, rows: PaddedRows) -> Sums:
    """The sums without rows that are among them."""
    D = layers_of(weights, rows.X, design)
    Y = targets_of(rows, sums.moment)
    return sums.plus(*weighted_rows(D, Y, rows.weight), factor=-1.0)


@jax.jit
def together_with(a: Sums, b: Sums, columns: Array) -> Sums:
    """The sums of both, with column c of b in place `columns[c]` of a."""
    return a.merge(b.placed(columns, a.moment.shape[-1]))


@partial(jax.jit, static_argnames=("design", "kind"))
def solve(
    design: Design,
    weights: Weights,
    sums: Sums,
    ridge: Any,
    counts: Any,
    shrinkage: Any,
    announced: tuple[PaddedRows, Any] | None,
    kind: str,
) -> tuple[Solved, Array]:
    """What the sums say, at one factorisation, and whether it could be had.

    Args:
        design: which program this is.
        weights: of the random layers.
        sums: of all rows.
        ridge: lambda, a scalar or (L,).
        counts: (m,) weight of the rows of each class.
        shrinkage: of the discriminant.
        announced: rows that come next, and the strength k of their forward term.
        kind: of the readout; one other than "ridge" has no forward term.
    """
    A, B = sums.finish(ridge)
    if announced is not None and kind == "ridge":
        rows, k = announced
        D, _ = weighted_rows(layers_of(weights, rows.X, design), rows.weight[:, None], rows.weight)
        strengths = jnp.broadcast_to(jnp.asarray(k, A.dtype), (len(A),))
        A = A + strengths[:, None, None] * jax.vmap(gram)(D)
    solved = solved_from(A, B, counts, kind, shrinkage)
    return solved, is_finite(solved.theta)


@jax.jit
def conclude(sums: Sums, ridge: Any) -> tuple[Array, Array, Array]:
    """Theta (L, d, m), the inverse (L, d, d) of the lower factor of A, and whether both exist."""
    system = sums.finish(ridge)
    R = system.factor()
    theta = jax.vmap(cho_solve)(R, system.B)
    inverse = jax.vmap(lower_inverse)(R)
    return theta, inverse, is_finite(theta) & is_finite(jnp.diagonal(inverse, axis1=1, axis2=2))


def _leverage(D: Array, inverse: Array) -> Array:
    """(L, n) D A^-1 D^T of each row, by the inverse of the factor of A."""
    return jnp.sum(matmul(D, jnp.swapaxes(inverse, -1, -2)) ** 2, axis=-1)


@partial(jax.jit, static_argnames=("design",))
def leave_one_out(
    design: Design,
    weights: Weights,
    solved: tuple[Array, Array],
    counts: Any,
    rows: PaddedRows,
    class_balance: Any,
) -> Guesses:
    """As `compiled.leave_one_out`, of theta and the inverse of the factor."""
    theta, inverse = solved
    D = layers_of(weights, rows.X, design)
    weight = jnp.asarray(rows.weight, D.dtype)
    h = _leverage(D, inverse)[..., None]
    v = jnp.minimum(weight, 1.0)[:, None]
    scores = (matmul(D, theta) - v * h * targets_of(rows, theta)) / (1.0 - v * h)
    seen = counts > 0
    z = together(scores * balance(counts, class_balance), seen, design.combine)
    others = counts[rows.target] - v[:, 0]
    others = jnp.where((others > 1e-9) & (jnp.sum(seen) > 1), others, 0.0)
    none = no_guesses(len(counts), "log")
    return tally(none, jnp.stack([z, z]), rows.target, weight * others**2, weight, "log")


@partial(jax.jit, static_argnames=("design",))
def leverages(design: Design, weights: Weights, inverse: Array, X: Array) -> Array:
    """(L, n) D A^-1 D^T of each row, by the inverse of the factor of A."""
    return _leverage(layers_of(weights, X, design), inverse)


@jax.jit
def squared_errors(sums: Sums, theta: Array, inverse: Array, ridge: Any) -> tuple[Array, Array]:
    """Sums of squared errors (L, m) of the ridge readout, and degrees of freedom used (L,)."""
    ridges = jnp.broadcast_to(jnp.asarray(ridge, theta.dtype), (len(theta),))
    used = theta.shape[1] - ridges * jnp.sum(inverse**2, axis=(1, 2))
    return sums.squared_errors(theta, ridge), used


@jax.jit
def errors_at(sums: Sums, theta: Array) -> Array:
    """(L, m) ||Y - D theta||^2 at any theta: no sums of rows make it negative."""
    moved = matmul(sums.gram, theta)
    return sums.counts + jnp.sum(theta * (moved - 2.0 * sums.moment), axis=1)


@partial(jax.jit, static_argnames=("kind",))
def finished(solved: Solved, counts: Any, class_balance: Any, kind: str) -> Readout:
    """The readout with classes balanced."""
    return solved.readout(jnp.asarray(counts), kind, class_balance)


@jax.jit
def relative_residual(sums: Sums, ridge: Any, theta: Array) -> Array:
    """(L,) ||A theta - B|| / ||B||."""
    A, B = sums.finish(ridge)
    gap = matmul(A, theta) - B
    size = jnp.sqrt(jnp.sum(B**2, axis=(1, 2)))
    return jnp.sqrt(jnp.sum(gap**2, axis=(1, 2))) / jnp.where(size > 0, size, 1.0)


def no_standing(shape: tuple[int, int, int]) -> Standing:
    """One that knows nothing."""
    layers, _, outputs = shape
    return Standing(np.zeros(shape), np.zeros((layers, outputs)), np.zeros(outputs), 0)
