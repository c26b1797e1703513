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

# A quarter of a decade apart.
RIDGES = 10.0 ** np.linspace(-8.0, 8.0, 65)
# Of the largest eigenvalue: a smaller lambda leaves too few digits of the readout.
LEAST = 1e-9


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


def best_ridges(sums: Any, num_rows: float) -> np.ndarray:
    """(L,) lambda of `RIDGES` with the least GCV score, for each sub-learner.

    Of A = D^T D = Q diag(a) Q^T and E = Q^T D^T Y, without differences of large numbers,

        RSS(lambda) = (||Y||^2 - sum_j ||E_j||^2 / a_j) + sum_j (||E_j||^2 / a_j) (lambda / s_j)^2,
        n - df(lambda) = (n - r) + sum_j lambda / s_j,        s_j = a_j + lambda,

    over the r eigenvalues that a Gram in double precision resolves. All columns of Y count alike,
    as they are: one-hot targets make it the error of class indicators, where a class counts by its
    rows, and no later weighting of classes enters. Rows of weight w count as w rows, in n as well.
    Values of lambda below `LEAST` of the largest eigenvalue are left out, since where rows are
    fewer than features the score may fall all the way to 0, and so are those with as many degrees
    of freedom as rows. Without rows it is 1.

    Costs one factorisation into eigenvectors, O(d^3), for each sub-learner.

    Args:
        sums: `Sums`, or `HostSums`, of the rows.
        num_rows: n, the weight of all rows.

    Source: G. Golub, M. Heath, G. Wahba, Technometrics 21, 1979.
    """
    grams, moments = np.asarray(sums.gram), np.asarray(sums.moment)
    squares = np.asarray(sums.counts).sum(axis=1)
    if not num_rows > 0:
        return np.ones(len(grams))
    each = zip(grams, moments, squares, strict=True)
    return np.array([_best(gram, moment, total, num_rows) for gram, moment, total in each])


def _best(gram: np.ndarray, moment: np.ndarray, total: float, n: float) -> float:
    a, Q = np.linalg.eigh(gram)
    largest = max(float(a[-1]), 0.0)
    known = a > 10 * np.finfo(float).eps * len(a) * largest
    a, E = a[known], np.sum((Q.T @ moment)[known] ** 2, axis=1)
    candidates = RIDGES[LEAST * largest <= RIDGES]
    if not len(candidates):
        return LEAST * largest
    share = candidates[:, None] / (a + candidates[:, None])
    rss = max(total - np.sum(E / a), 0.0) + share**2 @ (E / a)
    free = n - len(a) + share.sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        score = np.where(free > 0, n * rss / free**2, np.inf)
    # Without a score, shrink.
    return float(candidates[np.argmin(score) if np.isfinite(score).any() else -1])


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
