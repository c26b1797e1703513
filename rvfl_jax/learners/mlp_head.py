"""The network that gradient methods share: a multilayer perceptron, its loss and its updates.

With f_theta the network and CE the cross-entropy of a softmax of its logits, the loss of rows, and
an update of plain gradient descent on it and on what a method adds, are

    L(theta) = sum_i w_i CE(f_theta(x_i), y_i) / max(sum_i w_i, 1),                       (1)
    theta <- theta - eta grad_theta (L(theta) + penalty(theta)).                          (2)

A method has a state with `params`, says how it begins and how rows change it, and `mlp_learner`
makes the learner.

Shapes: x_i (s,), y_i (m,) one-hot, f_theta(x_i) (m,) logits, w_i and eta scalars; theta a pytree,
of each layer a kernel (inputs, nodes) and a bias (nodes,), P numbers in all.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import (
    Answer,
    Array,
    Consolidate,
    FitOffline,
    Init,
    Learner,
    State,
    StepInfo,
    keep_state,
)
from rvfl_jax.learners.base import plain_learner
from rvfl_jax.learners.parts import MLP, rows_of, unless_unhealthy, weighted_mean
from rvfl_jax.linalg.products import is_finite
from rvfl_jax.metrics import brier_loss

# Two hidden layers of 400 nodes, as studies of continual learning on images of digits have them.
HIDDEN = (400, 400)

# X (b, s), Y (b, m) and weight (b,).
Rows = tuple[Array, Array, Array]
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

    def begin(
        self,
        optimiser: optax.GradientTransformation,
        key: Array,
        num_features: int,
        num_classes: int,
    ) -> tuple[Any, Any]:
        """Parameters and the optimiser's state before anything is learned."""
        params = self.init(key, num_features, num_classes)
        return params, optimiser.init(params)

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
        """L (1): the mean cross-entropy of rows by weight; of weights below 1 in all, their sum."""
        each = optax.softmax_cross_entropy(self.logits(params, X), Y)
        return weighted_mean(each, weight)

    def descend(
        self,
        optimiser: optax.GradientTransformation,
        params: Any,
        moments: Any,
        rows: Rows,
        penalty: Penalty | None = None,
        updates: int = 1,
    ) -> tuple[Any, Any]:
        """Parameters and the optimiser's state after so many updates (2) on the same rows."""

        def total(params: Any) -> Array:
            loss = self.loss(params, *rows)
            return loss if penalty is None else loss + penalty(params)

        for _update in range(updates):
            params, moments = follow(optimiser, params, moments, jax.grad(total)(params))
        return params, moments


def follow(
    optimiser: optax.GradientTransformation, params: Any, moments: Any, gradient: Any
) -> tuple[Any, Any]:
    """Parameters and the optimiser's state after one update with this gradient."""
    change, moments = optimiser.update(gradient, moments, params)
    return optax.apply_updates(params, change), moments


def is_sound(params: Any) -> Array:
    """Scalar truth: parameters are finite, as far as their sums tell."""
    return is_finite(jnp.stack([jnp.sum(leaf) for leaf in jax.tree.leaves(params)]))


def mlp_learner(
    head: MLPHead,
    init: Init,
    learn: Callable[[State, Rows], State],
    *,
    description: str,
    scores: Answer | None = None,
    trained: Callable[[State], Any] = attrgetter("params"),
    consolidate: Consolidate = keep_state,
    fit_offline: FitOffline | None = None,
) -> Learner:
    """The learner of a state with `params` of this perceptron, not compiled, for `shared_programs`.

    A batch of no rows, as runs in chunks fill up with, leaves no trace, not even a draw or a
    penalty's pull; one that leaves anything trained that is not finite is not learned.

    Args:
        head: the perceptron.
        init: `(key, num_features, num_classes) -> state`.
        learn: `(state, rows) -> state`, in the precision of the parameters, padding set to 0.
        description: the method and its configuration, for records.
        scores: `(state, X) -> (n, m)`; the logits if None.
        trained: `state -> pytree` of what has to be finite.
        consolidate: `state -> state`, where a task ends.
        fit_offline: the offline expert, if the method has one.
    """

    def logits(state: State, X: Any) -> Array:
        return head.logits(state.params, X)

    answer = logits if scores is None else scores

    def step(
        state: State, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[State, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, jax.tree.leaves(state.params)[0].dtype)
        new = learn(state, (X, jnp.asarray(Y_t, X.dtype), weight))
        healthy = is_sound(trained(new))
        info = StepInfo(answer(state, X), healthy)
        return unless_unhealthy(healthy & jnp.any(weight > 0), new, state), info

    return plain_learner(
        init,
        step,
        answer,
        fit_offline=fit_offline,
        consolidate=consolidate,
        loss=brier_loss,
        description=description,
        sizes=lambda state: head.sizes(state.params),
    )
