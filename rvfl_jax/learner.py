"""Build a `Learner` out of a plain step, and the ensembles that turn scores into one guess."""

from collections.abc import Callable
from functools import wraps
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.checks import one_of, shape
from rvfl_jax.linalg import scope_of
from rvfl_jax.types import Array, Learner, State, StepInfo, StreamForm

ENSEMBLES = ("mean", "median")


class Held(NamedTuple):
    """Carry of a learner without a stream form of its own: a state and the batch in hand."""

    state: State
    X: Array
    weight: Array


def combiner(kind: str) -> Callable[[Array], Array]:
    """How (L, n, m) scores become (n, m) probabilities.

    Each sub-learner's scores go through softmax; "mean" averages them, "median" takes the
    median over sub-learners and rescales each row to sum 1.

    Raises:
        ValueError: on any other kind.
    """
    if one_of("ensemble", kind, ENSEMBLES) == "mean":
        return lambda scores: jnp.mean(jax.nn.softmax(scores, axis=-1), axis=0)
    return _median_softmax


def _median_softmax(scores: Array) -> Array:
    middle = jnp.median(jax.nn.softmax(scores, axis=-1), axis=0)
    return middle / jnp.sum(middle, axis=-1, keepdims=True)


def as_program(function: Callable[..., Any]) -> Callable[..., Any]:
    """A learner's function as one compiled program when it is called by itself.

    Under an outer jit, vmap or grad it is traced like any other function. On a float64
    state it computes in float64, also where the global setting is float32.
    """
    compiled = jax.jit(function)

    @wraps(function)
    def call(state: State, *args: Any, **kwargs: Any) -> Any:
        # Lists would be taken for containers of scalars.
        args = tuple(np.asarray(a) if isinstance(a, list | tuple) else a for a in args)
        with scope_of(state.theta):
            return compiled(state, *args, **kwargs)

    return call


def check_batch(
    state: State, X_t: Any, Y_t: Any, X_next: Any, weight_t: Any, weight_next: Any
) -> None:
    """ValueError on any shape that does not fit the state, before anything is traced."""
    s = state.W.shape[1] - state.W.shape[2]
    m = state.theta.shape[-1]
    shape("X_t", X_t, (None, s), "(b, num_features)")
    b = np.shape(X_t)[0]
    shape("Y_t", Y_t, (b, m), "(b, num_classes)")
    if weight_t is not None:
        shape("weight_t", weight_t, (b,), "(b,)")
    if X_next is None:
        if weight_next is not None:
            raise ValueError("weight_next: expected None without X_next, got weights")
        return
    shape("X_next", X_next, (None, s), "(b_next, num_features)")
    if weight_next is not None:
        shape("weight_next", weight_next, (np.shape(X_next)[0],), "(b_next,)")


def check_inputs(state: State, X: Any) -> None:
    """ValueError unless X has the features that the state was made for."""
    shape("X", X, (None, state.W.shape[1] - state.W.shape[2]), "(n, num_features)")


def make_learner(
    init: Callable[..., State],
    step: Callable[..., tuple[State, StepInfo]],
    scores: Callable[[State, Any], Array],
    *,
    combine: Callable[[Array], Array],
    fit_offline: Callable[..., State] | None = None,
) -> Learner:
    """A `Learner` from a plain step, which is scanned with one batch held back.

    Args:
        init: `(key, num_features, num_classes) -> state`.
        step: `(state, X_t, Y_t, X_next, *, weight_t, weight_next) -> (state, info)`.
        scores: `(state, X) -> (L, n, m)`.
        combine: see `combiner`.
        fit_offline: the hindsight expert, if the method has one.
    """

    def advance(
        carry: Held, Y_t: Array, X_next: Array, weight_next: Array
    ) -> tuple[Held, StepInfo]:
        state, info = step(
            carry.state, carry.X, Y_t, X_next, weight_t=carry.weight, weight_next=weight_next
        )
        return Held(state, X_next, weight_next), info

    return Learner(
        init=init,
        step=as_program(step),
        predict=as_program(lambda state, X: combine(scores(state, X))),
        scores=as_program(scores),
        combine=combine,
        stream=StreamForm(
            begin=Held,
            advance=advance,
            finish=lambda carry: carry.state,
            embed=lambda state, X: X,
            read=lambda carry, Z: scores(carry.state, Z),
        ),
        fit_offline=fit_offline,
    )
