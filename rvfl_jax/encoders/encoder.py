"""What an encoder is, and how it runs over many rows."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from rvfl_jax.core.checks import positive_int, real_matrix
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Array
from rvfl_jax.core.words import in_brief

Params = Any
ROWS_AT_ONCE = 512


@in_brief
class Encoder(NamedTuple):
    """A feature extractor F as pure functions; its configuration lives in their closures.

    Attributes:
        fit: `(key, X) -> params` from unlabelled rows X (n, s). A pretrained encoder ignores
            both and gives what it has loaded.
        apply: `(params, X) -> (n, width)` features, each of them a function of its own row.
        description: the encoder and its configuration in words, for records.
    """

    fit: Callable[[Array, Any], Params]
    apply: Callable[[Params, Any], Array]
    description: str


@partial(jax.jit, static_argnames="apply")
def _apply(apply: Callable[[Params, Any], Array], params: Params, X: Array) -> Array:
    return apply(params, X)


def encode(
    encoder: Encoder,
    params: Params,
    X: Any,
    *,
    rows_at_once: int = ROWS_AT_ONCE,
    progress: bool | Callable[[int, int], None] = False,
) -> np.ndarray:
    """Features of any number of rows, block by block through one compiled program.

    Args:
        encoder: what to apply.
        params: of its `fit`.
        X: (n, s) real, finite.
        rows_at_once: rows of a block; the last one is padded.
        progress: True for a progress bar, or a function of (rows done, rows).

    Returns:
        (n, width) float32.

    Raises:
        ValueError: on unusable input.
    """
    X = real_matrix("X", X)
    block = min(positive_int("rows_at_once", rows_at_once), len(X))
    parts = []
    with track(len(X), progress, "rows") as advance:
        for start in range(0, len(X), block):
            rows = X[start : start + block]
            padded = np.pad(rows, [(0, block - len(rows)), (0, 0)])
            Z = np.asarray(_apply(encoder.apply, params, padded), np.float32)
            parts.append(Z[: len(rows)])
            advance(start + len(rows))
    return np.concatenate(parts)
