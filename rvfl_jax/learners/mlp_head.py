"""The network that gradient methods share: a multilayer perceptron, its loss and its updates."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array
from rvfl_jax.learners.parts import MLP
from rvfl_jax.linalg.products import is_finite

# Two hidden layers of 400 nodes, as studies of continual learning on images of digits have them.
HIDDEN = (400, 400)

# A penalty or loss beside the cross-entropy: `parameters -> ()`.
Penalty = Callable[[Any], Array]


def checked_hidden(hidden: tuple[int, ...]) -> tuple[int, ...]:
    """Nodes of each hidden layer, none for a linear model; ValueError unless all are positive."""
    return tuple(positive_int("hidden", nodes) for nodes in hidden)


class MLPHead(NamedTuple):
    """Functions of the parameters of a perceptron with these hidden layers."""

    hidden: tuple[int, ...]

    def init(self, key: Array, num_features: int, num_classes: int) -> Any:
        """Parameters with a readout of all classes there may be."""
        return MLP(self.hidden, num_classes).init(key, jnp.zeros((1, num_features)))

    def sizes(self, params: Any) -> tuple[int, int]:
        """(s, m)."""
        layers = params["params"]
        last = layers[f"Dense_{len(self.hidden)}"]
        return jnp.shape(layers["Dense_0"]["kernel"])[0], jnp.shape(last["bias"])[0]

    def logits(self, params: Any, X: Any) -> Array:
        """(b, m) of inputs (b, s)."""
        _, num_classes = self.sizes(params)
        return jnp.asarray(MLP(self.hidden, num_classes).apply(params, jnp.asarray(X)))

    def loss(self, params: Any, X: Array, Y: Array, weight: Array) -> Array:
        """The cross-entropy of rows, their mean by weight; of weights below 1 in all, their sum."""
        each = optax.softmax_cross_entropy(self.logits(params, X), Y)
        return jnp.sum(weight * each) / jnp.maximum(jnp.sum(weight), 1.0)

    def descend(
        self,
        optimiser: optax.GradientTransformation,
        params: Any,
        moments: Any,
        rows: tuple[Array, Array, Array],
        penalty: Penalty | None = None,
    ) -> tuple[Any, Any]:
        """Parameters and the optimiser's state after one update on rows X, Y and weight."""

        def total(params: Any) -> Array:
            loss = self.loss(params, *rows)
            return loss if penalty is None else loss + penalty(params)

        return follow(optimiser, params, moments, jax.grad(total)(params))


def follow(
    optimiser: optax.GradientTransformation, params: Any, moments: Any, gradient: Any
) -> tuple[Any, Any]:
    """Parameters and the optimiser's state after one update with this gradient."""
    change, moments = optimiser.update(gradient, moments, params)
    return optax.apply_updates(params, change), moments


def is_sound(params: Any) -> Array:
    """Scalar truth: parameters are finite, as far as their sums tell."""
    return is_finite(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(params)]))
