"""Random layers and the features they give to every sub-learner's readout, eq. (2)-(3).

    H_l = g([H_{l-1} | X] W_l),   H_0 = 0,   D_l = [H_l | X].

The weights are drawn once and never trained.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.nn import initializers

from rvfl_jax.core.checks import one_of, prng_key, shape
from rvfl_jax.core.types import ActivationName, Array, WeightInit
from rvfl_jax.linalg.products import matmul

Activation = Callable[[Array], Array]
Initializer = Callable[..., Array]

ACTIVATIONS: dict[str, Activation] = {
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "swish": jax.nn.swish,
}


def _symmetric_uniform(key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    return jax.random.uniform(key, shape, dtype, minval=-1.0, maxval=1.0)


WEIGHT_INITS: dict[str, Initializer] = {
    "uniform": _symmetric_uniform,
    "lecun_uniform": initializers.lecun_uniform(),
    "lecun_normal": initializers.lecun_normal(),
    "he_uniform": initializers.he_uniform(),
    "he_normal": initializers.he_normal(),
    "glorot_uniform": initializers.glorot_uniform(),
    "orthogonal": initializers.orthogonal(),
}


def resolve_activation(activation: str | Activation) -> Activation:
    """The function behind a name of `ACTIVATIONS`, or the callable itself."""
    if callable(activation):
        return activation
    return ACTIVATIONS[one_of("activation", activation, ACTIVATIONS)]


def activation_name(activation: str | Activation) -> str:
    """The name in `ACTIVATIONS`, or that of a function of one's own."""
    if isinstance(activation, str):
        return activation
    for name, known in ACTIVATIONS.items():
        if known is activation:
            return name
    called = getattr(activation, "__qualname__", type(activation).__qualname__)
    return f"{getattr(activation, '__module__', '')}.{called}"


def resolve_weight_init(weight_init: str | Initializer) -> Initializer:
    """The initializer behind a name of `WEIGHT_INITS`, or the callable itself."""
    if callable(weight_init):
        return weight_init
    return WEIGHT_INITS[one_of("weight_init", weight_init, WEIGHT_INITS)]


def init_weights(
    key: Array,
    *,
    num_layers: int,
    num_features: int,
    num_nodes: int,
    weight_init: WeightInit | Initializer = "lecun_uniform",
    dtype: Any = None,
) -> Array:
    """Draw W, one matrix a layer.

    Weights are drawn in float32 and then cast, so that single and double precision runs
    of one key share one network. The rows of W_1 that meet H_0 = 0 are zero, and the
    fan-in that scales a layer counts only the inputs that reach it: s for the first
    layer, N + s for the others.

    Args:
        key: PRNG key.
        num_layers: L.
        num_features: s.
        num_nodes: N.
        weight_init: a name of `WEIGHT_INITS` or `f(key, shape, dtype)`. "uniform" is
            U(-1, 1), the customary choice for RVFL networks; "lecun_uniform" is
            U(-sqrt(3 / fan_in), sqrt(3 / fan_in)), which keeps the scale of the features
            whatever s, N and the depth.
        dtype: of the result; the default float when None.

    Returns:
        (L, N + s, N).
    """
    prng_key("key", key)
    draw = resolve_weight_init(weight_init)
    first, *later = jax.random.split(key, num_layers)
    W_1 = draw(first, (num_features, num_nodes), jnp.float32)
    layers = [jnp.concatenate([jnp.zeros((num_nodes, num_nodes), W_1.dtype), W_1])]
    layers += [draw(k, (num_nodes + num_features, num_nodes), jnp.float32) for k in later]
    return jnp.stack(layers).astype(dtype or jnp.result_type(float))


def features(W: Array, X: Array, activation: ActivationName | Activation = "relu") -> Array:
    """D_l = [H_l | X] for every sub-learner, eq. (2)-(3).

    Args:
        W: (L, N + s, N).
        X: (b, s); cast to the dtype of W.
        activation: g, a name of `ACTIVATIONS` or a callable.

    Returns:
        (L, b, N + s).
    """
    g = resolve_activation(activation)
    shape("W", W, (None, None, None), "(num_layers, num_nodes + num_features, num_nodes)")
    num_nodes = W.shape[-1]
    shape("X", X, (None, W.shape[1] - num_nodes), "(b, num_features)")
    return layer_features(W[0, num_nodes:], W[1:], X.astype(W.dtype), g)


def layer_features(first: Array, later: Array, X: Array, g: Activation) -> Array:
    """(L, b, N + s) features by the weights that count: of the first layer those of X alone.

    Args:
        first: (s, N).
        later: (L - 1, N + s, N).
        X: (b, s) in their dtype.
        g: the activation.
    """
    num_nodes = first.shape[-1]
    H_1 = g(matmul(X, first))

    def layer(H: Array, W_l: Array) -> tuple[Array, Array]:
        H = g(matmul(H, W_l[:num_nodes]) + matmul(X, W_l[num_nodes:]))
        return H, H

    _, deeper = lax.scan(layer, H_1, later)
    H = jnp.concatenate([H_1[None], deeper])
    return jnp.concatenate([H, jnp.broadcast_to(X, (len(H), *X.shape))], axis=-1)


def num_features_of(state: Any) -> int:
    """s, features of the inputs of a state with random weights W (L, N + s, N)."""
    _, width, nodes = jnp.shape(state.W)
    return width - nodes
