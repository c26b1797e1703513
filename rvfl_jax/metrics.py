"""Measures of continual learning, as pure functions of arrays.

R[q, j] is the accuracy on the test set of task j after learning task q, both counted from
0. The functions of R are NumPy; those of scores and probabilities run inside the compiled
stream as well. Equation numbers are the paper's.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import rel_entr

from rvfl_jax.core.checks import shape
from rvfl_jax.core.types import Array

PROTOCOLS = ("class_incremental", "seen", "task_aware", "task_id")


def accuracy_matrix(R: Any) -> np.ndarray:
    """R as a float (Q, Q) array; ragged lower-triangular rows are filled with NaN.

    Raises:
        ValueError: on a row q (from 0) that has neither Q nor q + 1 entries.
    """
    if isinstance(R, Mapping):
        such = f"R[{next(iter(R))!r}]" if R else "a run with a test set and task ends, whose R has"
        raise ValueError(
            f"R: expected the matrix of one protocol, such as {such}, got"
            f" {f'those of {len(R)} protocols' if R else 'none'}"
        )
    rows = [np.asarray(row, dtype=float) for row in R]
    if not rows:
        raise ValueError("R: expected at least one task, got none")
    Q = len(rows)
    full = np.full((Q, Q), np.nan)
    for q, row in enumerate(rows):
        if row.shape not in ((Q,), (q + 1,)):
            raise ValueError(f"R: expected {q + 1} or {Q} entries in row {q}, got {row.shape}")
        full[q, : len(row)] = row
    return full


def average_accuracy(R: Any) -> float:
    """ACC = 1/Q sum_j R[Q, j], eq. (30)."""
    return float(np.mean(accuracy_matrix(R)[-1]))


def backward_transfer(R: Any) -> float:
    """BWT = 1/(Q-1) sum_{j<Q} (R[Q, j] - R[j, j]), eq. (31); NaN for one task."""
    R = accuracy_matrix(R)
    return float(np.mean(R[-1, :-1] - np.diag(R)[:-1])) if len(R) > 1 else float("nan")


def forward_transfer(R: Any, R_ind: Any) -> float:
    """FWT = 1/(Q-1) sum_{j>1} (R[j, j] - R_ind[j]), eq. (32); NaN for one task.

    Args:
        R: (Q, Q).
        R_ind: (Q,) accuracy on task j of an expert trained on task j alone.
    """
    R, R_ind = accuracy_matrix(R), np.asarray(R_ind, dtype=float)
    if R_ind.shape != (len(R),):
        raise ValueError(f"R_ind: expected shape ({len(R)},), got {R_ind.shape}")
    return float(np.mean((np.diag(R) - R_ind)[1:])) if len(R) > 1 else float("nan")


def forgetting(R: Any) -> np.ndarray:
    """(Q,) mean over earlier tasks of the best accuracy so far minus the present one.

    F_q = 1/(q-1) sum_{j<q} (max_{i<q} R[i, j] - R[q, j]); the first entry is NaN.
    """
    R = accuracy_matrix(R)
    after = [np.mean(np.nanmax(R[:q, :q], axis=0) - R[q, :q]) for q in range(1, len(R))]
    return np.array([np.nan, *after])


def incremental_accuracy(R: Any, task_rows: Sequence[int] | np.ndarray) -> np.ndarray:
    """(Q,) accuracy on all classes so far after each task; its mean is A-bar, its last entry A_B.

    Args:
        R: (Q, Q).
        task_rows: (Q,) test rows of each task, which weigh its accuracy.
    """
    R, rows = accuracy_matrix(R), np.asarray(task_rows, dtype=float)
    return np.array([np.average(R[q, : q + 1], weights=rows[: q + 1]) for q in range(len(R))])


def cumulative_regret(regret: Any) -> np.ndarray:
    """Running sum of regret(t), eq. (34)."""
    return np.cumsum(np.asarray(regret, dtype=float))


def is_chosen(probabilities: Array, y: Array, allowed: Array | None = None) -> Array:
    """Whether the largest entry among the allowed columns, the first of several, is in column y.

    It agrees with argmax, in one pass of comparisons, which compilers vectorise; in a row with
    NaN no column is chosen.

    Args:
        probabilities: (..., n, m) probabilities or scores.
        y: (n,) columns, each of them allowed.
        allowed: truth values, (m,) or (n, m); all columns when None.

    Returns:
        (..., n).
    """
    column = jnp.arange(probabilities.shape[-1])
    at = jnp.broadcast_to(y[:, None], (*probabilities.shape[:-1], 1))
    own = jnp.take_along_axis(probabilities, at, axis=-1)
    earlier = column < y[:, None]
    ahead = ~((probabilities < own) | ((probabilities == own) & ~earlier))
    if allowed is None:
        return ~jnp.any(ahead, axis=-1)
    return ~jnp.any(ahead & allowed, axis=-1)


def accuracy(probabilities: Array, y: Array) -> Array:
    """acc: share of rows whose largest entry is in their true column, eq. (33).

    Args:
        probabilities: (..., n, m) probabilities or scores.
        y: (n,) true columns.

    Returns:
        (...,).
    """
    return jnp.mean(is_chosen(probabilities, y), axis=-1)


def protocol_hits(
    probabilities: Array, y: Array, *, class_task: Array, seen: Array
) -> dict[str, Array]:
    """Which rows are classified correctly under each protocol.

    "class_incremental" chooses among all columns, "seen" among classes seen so far,
    "task_aware" among the classes of the row's own task (which gives away part of
    what the learner has to find out), and "task_id" asks only whether the class chosen among
    all lies in the row's task.

    Args:
        probabilities: (n, m).
        y: (n,) true columns.
        class_task: (m,) task of each class.
        seen: (m,) truth values.

    Returns:
        (n,) truth values for each of `PROTOCOLS`.
    """
    own_task = class_task[None, :] == class_task[y][:, None]
    among_all = jnp.argmax(probabilities, axis=-1)
    return {
        "class_incremental": is_chosen(probabilities, y),
        "seen": is_chosen(probabilities, y, seen) & seen[y],
        "task_aware": is_chosen(probabilities, y, own_task),
        "task_id": class_task[among_all] == class_task[y],
    }


def squared_loss(scores: Array, targets: Array) -> Array:
    """|| (scores - targets) / n ||_F^2, with the division inside the norm as in eq. (34)."""
    return jnp.sum(((scores - targets) / len(targets)) ** 2)


def regret(scores: Array, targets: Array) -> Array:
    """Squared distance || (sum_l softmax(scores_l) - L Y) / (L n) ||_F^2 of eq. (34).

    The division by n is inside the norm, as printed, so that it falls with the rows of the test
    set. Add it up over t for the cumulative regret.

    Args:
        scores: (L, n, m) raw scores D_l theta_l of every sub-learner.
        targets: (n, m) one-hot.

    Returns:
        Scalar.
    """
    check_targets(scores, targets)
    return squared_loss(mean_softmax(scores), targets)


def check_targets(scores: Any, targets: Any) -> None:
    """ValueError unless scores are (L, n, m) and targets (n, m)."""
    check_scores(scores)
    shape("targets", targets, np.shape(scores)[1:], "(n, m) of the scores")


def kl(scores: Array, targets: Array) -> Array:
    """Divergence 1/n sum Y ln(L Y / sum_l softmax(scores_l)) of eq. (35), in nats.

    Where Y is 0 nothing is added.

    Args:
        scores: (L, n, m) raw scores of every sub-learner.
        targets: (n, m) one-hot, or probabilities.

    Returns:
        Scalar.
    """
    check_targets(scores, targets)
    return kl_divergence(targets, mean_softmax(scores))


def excess_loss(scores: Array, expert_scores: Array, targets: Array) -> Array:
    """Squared loss of raw scores minus that of the offline expert's; no equation of the paper.

    Args:
        scores: (n, m) raw scores, mean over sub-learners.
        expert_scores: (n, m) of the expert that saw the whole stream.
        targets: (n, m) one-hot.

    Returns:
        Scalar; below 0 where the learner does better on these rows.
    """
    for name, given in (("scores", scores), ("expert_scores", expert_scores)):
        shape(name, given, np.shape(targets), "(n, m), mean over sub-learners")
    return squared_loss(scores, targets) - squared_loss(expert_scores, targets)


def kl_divergence(p: Array, q: Array) -> Array:
    """Mean over rows of sum_c p_c ln(p_c / q_c), in nats.

    Args:
        p: (n, m) probabilities, such as those of the offline expert.
        q: (n, m) probabilities of the learner.
    """
    return jnp.mean(jnp.sum(rel_entr(p, q), axis=-1))


def expected_calibration_error(probabilities: Any, columns: Any, *, num_bins: int = 15) -> float:
    """ECE: |confidence - accuracy| in bins of confidence, averaged by the rows in them.

    Args:
        probabilities: (n, m).
        columns: (n,) true columns.
        num_bins: of equal width.

    Source: Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks", 2017.
    """
    probabilities, columns = np.asarray(probabilities, float), np.asarray(columns)
    if probabilities.ndim != 2 or columns.shape != probabilities.shape[:1]:
        raise ValueError(
            f"columns: expected one true column for each row of {probabilities.shape},"
            f" got shape {columns.shape}"
        )
    confidence = probabilities.max(axis=1)
    hit = probabilities.argmax(axis=1) == columns
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    gaps = np.bincount(bins, confidence - hit, num_bins)
    return float(np.abs(gaps).sum() / len(columns))


def area_under_curve(known: Any, unknown: Any) -> float | None:
    """AUROC: how often an unknown row has a larger score than a known one, ties counting half.

    None where there are no rows of a kind.

    Args:
        known: (n,) scores of rows of known classes.
        unknown: (k,) of others.
    """
    known, unknown = np.sort(np.asarray(known, float)), np.asarray(unknown, float)
    if not len(known) or not len(unknown):
        return None
    below, upto = (np.searchsorted(known, unknown, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(known)))


def mean_softmax(scores: Array) -> Array:
    """(n, m) mean over sub-learners of the softmax of (L, n, m) scores, as in eqs. (34)-(35)."""
    check_scores(scores)
    return jnp.mean(jax.nn.softmax(scores, axis=-1), axis=0)


def brier_loss(scores: Array, targets: Array) -> Array:
    """(n,) squared error, between 0 and 2, of the ensemble's probabilities; scores (L, n, m)."""
    return jnp.sum((mean_softmax(scores) - targets) ** 2, axis=-1)


def by_learner(scores: Array) -> Array:
    """(L, n, m) scores of a learner; those of one without sub-learners, (n, m), get L = 1."""
    return scores[None] if jnp.ndim(scores) == 2 else scores


def check_scores(scores: Any) -> None:
    """ValueError on scores without the axis of sub-learners, which would be averaged over rows."""
    if np.ndim(scores) != 3:
        raise ValueError(
            "scores: expected shape (L, n, m), sub-learners first, got"
            f" {np.shape(scores)}; scores[None] are those of one sub-learner"
        )
