"""Exact operations on what was learned: merge, unlearn, forget, grow.

All rest on the sums D^T D and D^T Y being a monoid (`rvfl_jax.learners.edrvfl.sums`), and so go
through the information form: the sums are recovered from eta_dagger, changed, and factorised anew,
at O(d^3) a sub-learner. A forward term inside is dropped; the next step puts in its own.

They hold for states whose sums are those of the rows: the exact cold start with a constant k or
`adaptive_k(reuse_k=True)`. -kF-Bayes as printed teaches a learner part of its own guesses, and they
stay inside.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import NumericalError, check_ridge, is_number, per_layer, shape
from rvfl_jax.core.types import ActivationName, Array
from rvfl_jax.learners.base import check_design, check_inputs
from rvfl_jax.learners.edrvfl.network import (
    Activation,
    activation_name,
    num_features_of,
    resolve_activation,
)
from rvfl_jax.learners.edrvfl.sums import Sums, learned_state, sums_of
from rvfl_jax.linalg.precision import scope_of


def merged_state(a: Any, b: Any, ridge: Any, columns: Array) -> Any:
    """The state of the rows of both, with column c of b going to `columns[c]` of a.

    lambda and the prior, which are in both, stay in once.
    """
    theirs = sums_of(b, ridge).placed(columns, a.theta.shape[-1])
    sums = sums_of(a, ridge).merge(theirs)
    return learned_state(a, sums, ridge, a.num_learned + b.num_learned)


def forgotten_state(state: Any, ridge: Any, factor: Array) -> Any:
    """The state of the same rows with their weights times `factor`.

    lambda I itself is never forgotten, nor is the prior, so that eta_dagger stays below I / lambda
    whatever comes.
    """
    sums = sums_of(state, ridge).scale(factor)
    return learned_state(state, sums, ridge, state.num_learned)


def grown_state(state: Any, num_classes: int) -> Any:
    """The same state with a capacity of so many classes, as if it had been known from the start.

    The column of a class that was never seen is zero in every sum, so that nothing is computed.
    """
    extra = num_classes - state.theta.shape[-1]

    def grow(leaf: Any) -> np.ndarray:
        leaf = np.asarray(leaf)
        return np.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, extra)])

    sketch = state.sketch._replace(moment=grow(state.sketch.moment))
    return state._replace(
        theta=grow(state.theta),
        theta_ridge=grow(state.theta_ridge),
        sketch=sketch,
        prior=None if state.prior is None else grow(state.prior),
    )


_merged = jax.jit(merged_state)


def _prior_of(state: Any) -> Any:
    return np.zeros(np.shape(state.theta)) if state.prior is None else state.prior


def merge_states(a: Any, b: Any, *, ridge: Any) -> Any:
    """The state that has learned what `a` and `b` learned apart.

    Args:
        a: state of `edrvfl`.
        b: another one of the same network, learned from other rows.
        ridge: the lambda of both, a scalar or (L,).

    Raises:
        ValueError: unless both have the same W, number of classes, lambda and prior readout.
        NumericalError: if the sums could not be factorised.
    """
    per_layer("ridge", ridge, len(a.theta), minimum=0.0, strict=True)
    if np.shape(a.W) != np.shape(b.W) or not np.array_equal(np.asarray(a.W), np.asarray(b.W)):
        raise ValueError(
            "b: expected the random weights W of a, got others; learners to be merged must be"
            " begun with one key"
        )
    if not np.array_equal(np.asarray(_prior_of(a)), np.asarray(_prior_of(b))):
        raise ValueError("b: expected the prior readout of a, got another")
    for state in (a, b):
        check_ridge(state, ridge)
    m = a.theta.shape[-1]
    shape("b.theta", b.theta, a.theta.shape, "(L, d, m) of a")
    with scope_of(a.theta):
        state = _merged(a, b, ridge, jnp.arange(m))
    return _checked(state, "merge")


def unlearn_rows(
    state: Any,
    X: Any,
    Y: Any,
    *,
    activation: ActivationName | Activation = "relu",
    weight: Any = None,
) -> Any:
    """The state that never saw these rows: A - D^T D and B - D^T Y.

    Args:
        state: of `edrvfl`, which has learned the rows.
        X: (n, s).
        Y: (n, m) the targets that they were learned with.
        activation: of the learner.
        weight: (n,) the weights that they were learned with; ones when None.

    Raises:
        ValueError: on shapes that do not fit.
        NumericalError: if what is left is not a sum over rows, as when they were never learned.
    """
    its = {"activation": getattr(state, "activation", None)}
    check_design({"activation": activation_name(activation)}, its)
    check_inputs(num_features_of(state), X)
    shape("Y", Y, (np.shape(X)[0], state.theta.shape[-1]), "(n, num_classes)")
    weight = np.ones(np.shape(X)[0]) if weight is None else weight
    shape("weight", weight, (np.shape(X)[0],), "(n,)")
    g = resolve_activation(activation)

    @jax.jit
    def without(state: Any, X: Array, Y: Array, weight: Array) -> Any:
        gone = Sums.of_inputs(state.W, X, Y, weight, g)
        left = sums_of(state, state.ridge).subtract(gone)
        return learned_state(state, left, state.ridge, state.num_learned)

    with scope_of(state.theta):
        left = without(state, np.asarray(X), np.asarray(Y), np.asarray(weight))
    return _checked(left, "unlearn")


def check_forgetting(value: Any) -> float:
    """`value` as a factor in (0, 1], or a ValueError."""
    if not is_number(value) or not 0 < value <= 1:
        raise ValueError(f"forgetting: expected a number above 0 and at most 1, got {value!r}")
    return float(value)


def _checked(state: Any, what: str) -> Any:
    if not bool(np.isfinite(np.asarray(state.theta)).all()):
        raise NumericalError(
            f"{what}: what is left is not positive definite. Remedy: unlearn only rows that"
            " were learned, with the targets and weights they had, in double precision."
        )
    return state
