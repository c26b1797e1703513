"""What readouts see beside the inputs: D_l = [H_l | X], with H_l by one of several maps.

    layers       H_l = g([H_{l-1} | X] W_l)                  random layers, eq. (2)-(3)
    fourier      H_l = [cos(X W_l) | sin(X W_l)]             random Fourier features
    sparse       H_l = X W_l where among the largest K of its row, else 0
    none         no H_l: D = X
    a function   H = f(X)                                    of one's own

Draws are independent but for those of "layers". A constant column of X enters none of them.

fourier: columns of W_l from N(0, (weight_scale / h)^2 I), with bandwidth h the median distance
between first rows, so that H_l H_l^T / (N / 2) estimates the Gaussian kernel
exp(-||x - x'||^2 / (2 h^2)) of weight_scale 1; its error falls as N^-1/2.
Sources: A. Rahimi, B. Recht, "Random Features for Large-Scale Kernel Machines", NeurIPS 2007;
D. Garreau, W. Jitkrittum, M. Kanagawa, "Large sample analysis of the median heuristic", 2017.

sparse: every node sees a share `SEEN` of the inputs, with weights of N(0, 1 / their number), and a
share `KEPT` of the nodes of a row is left. Zeros are multiplied as other weights are. The shares
were the best of fifteen pairs on training rows held out of digits, letter and plants, with 512
nodes: denser than in the source.
Source: S. Dasgupta, C. Stevens, S. Navlakha, "A neural algorithm for a fundamental computing
problem", Science 358, 2017, where a node sees a tenth of its inputs and 5 % of the nodes are left.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.spatial.distance import pdist

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.types import Array, FeatureMap
from rvfl_jax.estimators.learned import Weights
from rvfl_jax.linalg.products import matmul

FEATURE_MAPS: tuple[FeatureMap, ...] = ("layers", "fourier", "sparse", "none")
SEEN, KEPT = 0.3, 0.5
# First rows whose distances are looked at.
MOST_ROWS = 512

OwnMap = Callable[[Array], Array]


class MapSizes(NamedTuple):
    """L, N, inputs without a constant column, and inputs with it."""

    num_layers: int
    num_nodes: int
    num_inputs: int
    num_features: int


def check_feature_map(feature_map: Any, num_nodes: Any) -> None:
    """Raise ValueError on a name that is not known, or an odd number of Fourier features."""
    if callable(feature_map):
        return
    name = one_of("feature_map", feature_map, FEATURE_MAPS)
    if name == "fourier" and isinstance(num_nodes, int) and num_nodes % 2:
        raise ValueError(
            f"num_nodes: expected an even number of cosines and sines, got {num_nodes}"
        )


def is_lone(feature_map: FeatureMap | OwnMap) -> bool:
    """Whether nothing is drawn, so that a second sub-learner would be the first."""
    return callable(feature_map) or feature_map == "none"


@partial(jax.jit, static_argnames=("name", "sizes"))
def draw(name: FeatureMap, seed: Any, scale: Any, sizes: MapSizes) -> tuple[Weights, Array]:
    """Random weights of a map, and (L,) the largest sum of absolute weights of a growing node.

    Args:
        name: "fourier" or "sparse".
        seed: an integer.
        scale: factor on the weights, a scalar or (L,).
        sizes: see `MapSizes`.
    """
    layers, nodes, inputs, features = sizes
    keys = jax.random.split(jax.random.key(seed), layers)
    # Drawn in float32, as those of random layers are.
    if name == "fourier":
        W = jax.vmap(lambda key: jax.random.normal(key, (inputs, nodes // 2), jnp.float32))(keys)
    else:
        W = jax.vmap(lambda key: _sparse_weights(key, inputs, nodes))(keys)
    W = W.astype(float) * jnp.broadcast_to(jnp.asarray(scale, float), (layers,))[:, None, None]
    W = jnp.pad(W, ((0, 0), (0, features - inputs), (0, 0)))
    gain = jnp.max(jnp.sum(jnp.abs(W), axis=1), axis=1)
    return Weights(W[0], W[1:]), gain if name == "sparse" else jnp.zeros(layers)


def _sparse_weights(key: Array, inputs: int, nodes: int) -> Array:
    """(inputs, nodes) with `SEEN` of the inputs of each node."""
    of_places, of_values = jax.random.split(key)
    seen = max(1, round(SEEN * inputs))
    places = jnp.argsort(jax.random.uniform(of_places, (inputs, nodes)), axis=0) < seen
    return jnp.where(places, jax.random.normal(of_values, (inputs, nodes), jnp.float32), 0.0) / (
        seen**0.5
    )


def no_weights(num_features: int) -> tuple[Weights, Array]:
    """Of a map that draws nothing."""
    return Weights(jnp.zeros((num_features, 0)), jnp.zeros((0, num_features, 0))), jnp.zeros(1)


def mapped(feature_map: FeatureMap | OwnMap, weights: Weights, X: Array, num_inputs: int) -> Array:
    """D (L, b, d) of X (b, s), whose first `num_inputs` columns a function is given."""
    if callable(feature_map):
        H = _own(feature_map, X[:, :num_inputs])[None]
    elif feature_map == "none":
        return X[None]
    else:
        Z = matmul(X, jnp.concatenate([weights.first[None], weights.later]))
        H = _waves(Z) if feature_map == "fourier" else _largest(Z)
    return jnp.concatenate([H, jnp.broadcast_to(X, (len(H), *X.shape))], axis=-1)


def _waves(Z: Array) -> Array:
    return jnp.concatenate([jnp.cos(Z), jnp.sin(Z)], axis=-1)


def _largest(Z: Array) -> Array:
    """Z where it is among the largest K of its row."""
    kept = max(1, round(KEPT * Z.shape[-1]))
    return jnp.where(jax.lax.top_k(Z, kept)[0][..., -1:] <= Z, Z, 0.0)


def _own(function: OwnMap, X: Array) -> Array:
    """(b, N) of a function of one's own.

    Raises:
        ValueError: unless that is what it gives.
    """
    try:
        H = jnp.asarray(function(X))
    except jax.errors.JAXTypeError as error:
        raise ValueError(
            "feature_map: expected a function of JAX arrays, got one that reads their numbers; put"
            f" it before the model, in a Pipeline: {error}"
        ) from error
    if H.ndim != 2 or H.shape[0] != X.shape[0]:
        raise ValueError(
            f"feature_map: expected a function from (n, s) to (n, N), got {X.shape} to {H.shape}"
        )
    return H.astype(X.dtype)


def median_distance(X: Any, num_inputs: int | None = None) -> float:
    """The median of the distances above 0 between rows X (n, s), of which `MOST_ROWS` are taken.

    Of X the first `num_inputs` columns count, or all.

    Without two that differ it is sqrt(2) times the norm of a row, what rows of independent
    features about 0 would have, or 1.

    Raises:
        ValueError: without a row, or where distances are not finite.
    """
    if not len(X):
        raise ValueError("X: expected a first row to choose the bandwidth by, got none")
    places = np.linspace(0, len(X) - 1, min(len(X), MOST_ROWS)).astype(int)
    X = X[places].astype(float)[:, :num_inputs]
    apart = pdist(X)
    apart = apart[apart > 0]
    with np.errstate(over="ignore"):
        found = float(np.median(apart) if len(apart) else np.sqrt(2 * np.sum(X[0] ** 2)) or 1.0)
    if not np.isfinite(found):
        raise ValueError("X: expected rows whose distances are finite, for the bandwidth")
    return found
