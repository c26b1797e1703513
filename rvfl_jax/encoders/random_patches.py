"""Whitened random patches as filters, a strong encoder without labels or training.

A. Coates, H. Lee, A. Y. Ng, "An Analysis of Single-Layer Networks in Unsupervised Feature
Learning", AISTATS 2011; A. Coates, A. Y. Ng, "The Importance of Encoding Versus Training with
Sparse Coding and Vector Quantization", ICML 2011.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.checks import is_number, positive_int
from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief
from rvfl_jax.encoders.encoder import Encoder
from rvfl_jax.linalg.products import matmul, matmul_tn
from rvfl_jax.linalg.spd import eigh


@in_brief
class RandomPatchParams(NamedTuple):
    """What `fit` takes from unlabelled images.

    Attributes:
        filters: (p p c, F) whitening followed by the chosen patches.
        offset: (F,) what the mean patch gives.
        scale: (g g 2 F,) one over the deviation of each pooled feature on the fitted rows.
        shift: (g g 2 F,) its mean.
    """

    filters: Array
    offset: Array
    scale: Array
    shift: Array


def random_patches(
    image_shape: Sequence[int],
    num_filters: int = 200,
    *,
    patch_size: int = 6,
    pooling: int = 4,
    threshold: float = 0.25,
    contrast: float = 0.1,
    whitening: float = 0.1,
    num_patches: int = 50_000,
) -> Encoder:
    """Filters that are whitened patches of the fitted images, rectified both ways and pooled.

    Each p x p patch, brought to mean 0 and divided by sqrt(variance + contrast^2), is
    multiplied by F = V (S + whitening)^-1/2 V^T P, with V S V^T the covariance of the patches
    and P unit-norm whitened patches drawn at random. Responses r become max(r - a, 0) and
    max(-r - a, 0), are averaged over the cells of a g x g grid, and standardised by the
    fitted rows.

    Args:
        image_shape: (height, width) or (height, width, channels) of a flattened row.
        num_filters: F.
        patch_size: p.
        pooling: g.
        threshold: a.
        contrast: added to a patch's variance, as a deviation in units of the inputs.
        whitening: added to the eigenvalues.
        num_patches: drawn for the covariance.

    Returns:
        Encoder of width 2 F g g.

    Raises:
        ValueError: on sizes that do not fit the image, or numbers out of range.
    """
    height, wide, channels = _image_shape(image_shape)
    p, g = positive_int("patch_size", patch_size), positive_int("pooling", pooling)
    count, drawn = (
        positive_int("num_filters", num_filters),
        positive_int("num_patches", num_patches),
    )
    if min(height, wide) - p + 1 < g:
        raise ValueError(
            f"patch_size, pooling: expected at least {g} places for a patch along each side of"
            f" {height} x {wide}, got {min(height, wide) - p + 1}"
        )
    if count > drawn:
        raise ValueError(f"num_filters: expected at most num_patches = {drawn}, got {count}")
    _check_scales(threshold=threshold, contrast=contrast, whitening=whitening)

    def images(X: Any) -> Array:
        X = jnp.asarray(X, jnp.float32)
        if X.ndim != 2 or X.shape[1] != height * wide * channels:
            raise ValueError(
                f"X: expected shape (n, {height * wide * channels}) = rows of {height} x {wide}"
                f" x {channels}, got {X.shape}"
            )
        return X.reshape(-1, height, wide, channels)

    def fit(key: Array, X: Any) -> RandomPatchParams:
        X = jnp.asarray(X, jnp.float32)
        draw, choose, some = jax.random.split(key, 3)
        patches = _normalised(_drawn_patches(draw, images(X), drawn, p), contrast)
        chosen = jax.random.choice(choose, drawn, (count,), replace=False)
        mean, filters = _whitened_filters(patches, chosen, whitening)
        width = 2 * count * g * g
        raw = RandomPatchParams(filters, matmul(mean, filters), jnp.ones(width), jnp.zeros(width))
        # A thousand rows tell mean and deviation well enough, at no cost beside the stream's.
        rows = jax.random.choice(some, len(X), (min(len(X), 1000),), replace=False)
        pooled = lax.map(lambda row: respond(raw, row[None])[0], X[rows], batch_size=100)
        deviation = jnp.std(pooled, axis=0)
        scale = jnp.where(deviation > 0, 1.0 / jnp.where(deviation > 0, deviation, 1.0), 0.0)
        return raw._replace(shift=jnp.mean(pooled, axis=0), scale=scale)

    def respond(params: RandomPatchParams, X: Array) -> Array:
        patches = _normalised(_all_patches(images(X), p), contrast)
        responses = matmul(patches, params.filters) - params.offset
        both = [jax.nn.relu(sign * responses - threshold) for sign in (1.0, -1.0)]
        return jnp.concatenate([_pooled(part, g) for part in both], axis=-1).reshape(len(X), -1)

    def apply(params: RandomPatchParams, X: Any) -> Array:
        return (respond(params, X) - params.shift) * params.scale

    described = (
        f"random_patches({count}, patch_size={p}, pooling={g}, threshold={threshold:g},"
        f" contrast={contrast:g}, whitening={whitening:g})"
    )
    return Encoder(jax.jit(fit), apply, described)


def _image_shape(given: Sequence[int]) -> tuple[int, int, int]:
    sides = tuple(positive_int("image_shape", side) for side in given)
    if len(sides) not in (2, 3):
        raise ValueError(f"image_shape: expected 2 or 3 sides, got {tuple(given)!r}")
    return (*sides, 1)[:3]  # type: ignore[return-value]


def _check_scales(**scales: Any) -> None:
    for name, value in scales.items():
        if not is_number(value) or value < 0:
            raise ValueError(f"{name}: expected a number of at least 0, got {value!r}")


def _whitened_filters(patches: Array, chosen: Array, whitening: float) -> tuple[Array, Array]:
    """(p p c,) the mean patch, and (p p c, F) whitening followed by the chosen patches."""
    mean = jnp.mean(patches, axis=0)
    values, vectors = eigh(matmul_tn(patches - mean, patches - mean) / len(patches))
    root = jnp.sqrt(jnp.maximum(values, 0.0) + whitening)
    whiten = matmul(vectors / root, vectors.T)
    white = matmul(patches[chosen] - mean, whiten)
    norm = jnp.linalg.norm(white, axis=1, keepdims=True)
    return mean, matmul(whiten, (white / jnp.maximum(norm, 1e-6)).T)


def _drawn_patches(key: Array, images: Array, count: int, p: int) -> Array:
    """(count, p p c) patches from random places of random images."""
    n, height, wide, channels = images.shape
    keys = jax.random.split(key, 3)
    bounds = (n, height - p + 1, wide - p + 1)
    places = [
        jax.random.randint(k, (count,), 0, high) for k, high in zip(keys, bounds, strict=True)
    ]

    def take(image: Array, row: Array, column: Array) -> Array:
        return lax.dynamic_slice(images, (image, row, column, 0), (1, p, p, channels)).reshape(-1)

    return jax.vmap(take)(*places)


def _all_patches(images: Array, p: int) -> Array:
    """(n, rows, columns, p p c) every patch of every image."""
    _, height, wide, _ = images.shape
    rows, columns = height - p + 1, wide - p + 1
    parts = [images[:, i : i + rows, j : j + columns] for i in range(p) for j in range(p)]
    return jnp.concatenate(parts, axis=-1)


def _normalised(patches: Array, contrast: float) -> Array:
    centred = patches - jnp.mean(patches, axis=-1, keepdims=True)
    variance = jnp.mean(centred**2, axis=-1, keepdims=True)
    return centred / jnp.sqrt(variance + contrast**2 + 1e-12)


def _pooled(responses: Array, g: int) -> Array:
    """(n, g, g, F) means over the cells of a grid, as equal as they can be."""
    rows = np.linspace(0, responses.shape[1], g + 1).round().astype(int)
    columns = np.linspace(0, responses.shape[2], g + 1).round().astype(int)
    cells = [
        [
            jnp.mean(responses[:, rows[i] : rows[i + 1], columns[j] : columns[j + 1]], axis=(1, 2))
            for j in range(g)
        ]
        for i in range(g)
    ]
    return jnp.stack([jnp.stack(row, axis=1) for row in cells], axis=1)
