"""A perceptron layer by layer, for methods that look at what goes into each, or gate its nodes."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array


def layers_of(params: Any) -> list[dict[str, Array]]:
    """Kernel (inputs, outputs) and bias (outputs,) of each layer, the readout last."""
    layers = params["params"]
    return [layers[f"Dense_{i}"] for i in range(len(layers))]


def with_layers(layers: Sequence[dict[str, Array]]) -> Any:
    """Parameters with these layers."""
    return {"params": {f"Dense_{i}": layer for i, layer in enumerate(layers)}}


def activations(params: Any, X: Any, gates: Sequence[Array] | None = None) -> list[Array]:
    """What goes into each layer, and the logits (b, m) last.

    Args:
        params: of a perceptron of ReLU nodes.
        X: (b, s).
        gates: a factor (nodes,) for the nodes of each hidden layer; None for 1.
    """
    *hidden, readout = layers_of(params)
    reached = [jnp.asarray(X, readout["kernel"].dtype)]
    for i, layer in enumerate(hidden):
        nodes = jax.nn.relu(reached[-1] @ layer["kernel"] + layer["bias"])
        reached.append(nodes if gates is None else nodes * gates[i])
    return [*reached, reached[-1] @ readout["kernel"] + readout["bias"]]
