"""Choosing lambda from what was learned, without test data, tasks or the rows themselves.

With the sums A = D^T D = Q diag(a) Q^T and B = D^T Y of n rows, and E = Q^T B, the ridge fit
of any lambda has

    RSS(lambda) = ||Y||^2 - sum_j ||E_j||^2 (a_j + 2 lambda) / (a_j + lambda)^2,
    df(lambda)  = sum_j a_j / (a_j + lambda),
    GCV(lambda) = (RSS / n) / (1 - df / n)^2,

the rotation-invariant stand-in for leave-one-out error (Golub, Heath and Wahba, Technometrics
21, 1979), which itself needs every row's own leverage. One-hot targets have ||Y||^2 = n.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import check_ridge, is_number, per_layer
from rvfl_jax.core.types import Array
from rvfl_jax.learners.edrvfl.sums import learned_state, spectrum_of, sums_of
from rvfl_jax.linalg.precision import scope_of


def generalised_cross_validation(
    state: Any, candidates: Any, *, ridge: Any, num_rows: float
) -> np.ndarray:
    """(C, L) GCV score of each candidate lambda for each sub-learner; the least is best.

    It estimates the error on rows distributed as those learned; while classes are still to come
    it says nothing about them.

    Args:
        state: of `edrvfl` with the exact cold start and a constant k, or with
            `adaptive_k(reuse_k=True)`, after any batch. (-kF-Bayes as printed learns from
            targets that hold part of its own guesses.)
        candidates: (C,) values of lambda > 0.
        ridge: the lambda that the state was learned with, a scalar or (L,).
        num_rows: n, the rows learned, with one-hot targets; a row of integral weight w counts
            as w rows.

    Raises:
        ValueError: on a lambda out of range, no rows, or a state with a prior readout.
    """
    if state.prior is not None:
        raise ValueError("state: expected one that began at 0, got one with a prior readout")
    layers = len(state.theta)
    candidates = np.atleast_1d(np.asarray(candidates, dtype=float))
    if candidates.ndim != 1 or not (np.isfinite(candidates) & (candidates > 0)).all():
        raise ValueError(f"candidates: expected finite numbers above 0, got {candidates!r}")
    if not is_number(num_rows) or num_rows <= 0:
        raise ValueError(f"num_rows: expected a number above 0, got {num_rows!r}")
    per_layer("ridge", ridge, layers, minimum=0.0, strict=True)
    check_ridge(state, ridge)
    a, E = spectrum_of(state, ridge)
    scores = [_score(*spectrum, candidates, float(num_rows)) for spectrum in zip(a, E, strict=True)]
    return np.stack(scores, axis=1)


def _score(a: np.ndarray, E: np.ndarray, candidates: np.ndarray, n: float) -> np.ndarray:
    """(C,) of one sub-learner, from a (d,) and the squares E (d,) of `spectrum_of`."""
    shifted = a + candidates[:, None]
    rss = n - np.sum(E * (a + 2 * candidates[:, None]) / shifted**2, axis=1)
    df = np.sum(a / shifted, axis=1)
    # With as many degrees of freedom as rows there is no error left to tell.
    with np.errstate(divide="ignore"):
        return np.where(df < n, (np.maximum(rss, 0.0) / n) / (1 - df / n) ** 2, np.inf)


def with_ridge(state: Any, new: Any, *, ridge: Any) -> Any:
    """The state that would have been learned with another lambda; exact, at O(d^3).

    Args:
        state: as in `generalised_cross_validation`; a forward term inside is dropped.
        new: lambda > 0, a scalar or (L,).
        ridge: the lambda that the state was learned with. Continue with a learner of the new one.

    Raises:
        ValueError: on a lambda out of range.
    """
    layers = len(state.theta)
    for name, value in (("new", new), ("ridge", ridge)):
        per_layer(name, value, layers, minimum=0.0, strict=True)
    check_ridge(state, ridge)
    with scope_of(state.theta):
        after = jnp.broadcast_to(jnp.asarray(new, state.theta.dtype), (layers,))
        changed = _with_another(state, jnp.asarray(ridge, state.theta.dtype), after)
        # A state of earlier releases does not say its lambda.
        return changed._replace(ridge=None if state.ridge is None else after)


@jax.jit
def _with_another(state: Any, ridge: Array, new: Array) -> Any:
    return learned_state(state, sums_of(state, ridge), new, state.num_learned)
