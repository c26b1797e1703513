"""How unlike all that was learned a row is, from the sums alone, and from where on it is unknown.

For one sub-learner, with features d of a row, means mu_c of the classes and mu of all rows, shares
pi_c = n_c / n, and Sigma the covariance within classes, shrunk as in `readouts`:

    leverage               n d (lambda I + D^T D)^-1 d^T
    mahalanobis            M = min_c (d - mu_c)^T Sigma^-1 (d - mu_c)
    relative_mahalanobis   R = M - (d - mu)^T Sigma_0^-1 (d - mu),
                           Sigma_0 = Sigma + sum_c pi_c (mu_c - mu) (mu_c - mu)^T
    blended                0.05 M + 0.95 R

and of several sub-learners their mean. Large is unlike. Sigma_0 differs from Sigma by the rank of
the means, so that R has no d x d product: with v_c = (d - mu)^T Sigma^-1 (mu_c - mu), G the matrix
of (mu_c - mu)^T Sigma^-1 (mu_k - mu), and C C^T = I + diag(pi)^1/2 G diag(pi)^1/2,

    R = min_c (G_cc - 2 v_c) + ||C^-1 diag(pi)^1/2 v||^2,      M = min_c (G_cc - 2 v_c) + ||z||^2,

z the deviation from mu in units of Sigma. R costs what a prediction does, the others 2 d^2 flops a
row more. R sees only the space of the class means. M sees all others too, where most tells nothing.

**The threshold** is prequential: a row is scored before it is learned, by a reference that has not
seen it, and that knows four in five of the rows before it (half of them where they are fewer than
d / 2) or is at most 4 d rows old. Of every class the last `KEPT` scores stay, each with the sixth
power of the rows of its class that the reference knew, since scores by a young reference are larger
than those to come. Of a class with many rows one in two, four or eight is scored (`STRIDES`).
Classes count by their rows. With n scores in effect, the threshold for a rate alpha of false alarms
is their quantile at (1 - alpha)(1 + 1/n), as in split conformal prediction; it is infinite where n
is too small for that.

Source: Lee, Lee, Lee and Shin, "A Simple Unified Framework for Detecting Out-of-Distribution
Samples", 2018 (M); Ren et al., "A Simple Fix to Mahalanobis Distance for Improving Near-OOD
Detection", 2021 (R); Vovk, Gammerman and Shafer, "Algorithmic Learning in a Random World", 2005.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import is_number
from rvfl_jax.core.types import Array, NoveltyScore
from rvfl_jax.core.words import in_brief
from rvfl_jax.estimators.compiled import Design, layers_of
from rvfl_jax.estimators.learned import MOST_STALE
from rvfl_jax.estimators.readouts import within_classes
from rvfl_jax.linalg.products import identity_plus, is_finite, matmul, matmul_tn
from rvfl_jax.linalg.spd import cho_solve, cholesky, lower_inverse, solve_lower

NOVELTY_SCORES: tuple[NoveltyScore, ...] = get_args(NoveltyScore)
# Share of M. That of "blended" told half of the classes best from the others, on training rows
# of three data sets; see `experiments.unknown`.
OF_M: dict[str, float] = {"blended": 0.05, "relative_mahalanobis": 0.0, "mahalanobis": 1.0}
# Scores kept of every class.
KEPT = 128
# Of the rows of a class that the reference knew: a hundredth of the weight is of their first half,
# so that what a young reference finds unusual does not decide. On digits, at two to four rows a
# feature, 5 % wanted are 2.8 to 3.2 % then, and 1.3 to 2.4 % with 2 in place of 6.
POWER = 6
# From which row of a class on one of how many is scored, so that those kept are of the last half of
# its rows, or of the last 1,024.
STRIDES = {0: 1, 2 * KEPT: 2, 4 * KEPT: 4, 8 * KEPT: 8}
# Rows before the first reference.
FEWEST = 16


class Reference(NamedTuple):
    """What rows are measured by; parts that a kind of score has no use for are None.

    The score of features d is ||root d - centre||^2 + min_c (size - 2 v) + ||background v||^2,
    v = d theta - shift.

    Attributes:
        root: (L, d, d).
        centre: (L, d).
        theta: (L, d, m) Sigma^-1 (mu_c - mu).
        shift: (L, m) mu^T theta.
        size: (L, m) G_cc; infinite for classes never seen.
        background: (L, m, m) C^-1 diag(pi)^1/2, times the root of the share of R.
    """

    root: Any = None
    centre: Any = None
    theta: Any = None
    shift: Any = None
    size: Any = None
    background: Any = None


@partial(jax.jit, static_argnames=("kind",))
def reference_of(
    A: Array, B: Array, counts: Any, shrinkage: Any, kind: str
) -> tuple[Reference, Array]:
    """What rows are measured by, at one factorisation, and whether it could be had.

    Args:
        A: (L, d, d), lambda included.
        B: (L, d, m).
        counts: (m,) weight of the rows of each class.
        shrinkage: of Sigma.
        kind: one of `NOVELTY_SCORES`.
    """
    counts = jnp.asarray(counts, A.dtype)
    made = jax.vmap(partial(_of_one, kind=kind), (0, 0, None, None))(A, B, counts, shrinkage)
    told = made.centre if made.theta is None else made.theta
    return made, is_finite(told)


def _of_one(A: Array, B: Array, counts: Array, shrinkage: Any, kind: str) -> Reference:
    if kind == "leverage":
        inverse = jnp.sqrt(jnp.sum(counts)) * lower_inverse(cholesky(A))
        # What could not be factorised shows on the diagonal.
        return Reference(inverse, 0.0 * jnp.diagonal(inverse))
    met, share = counts > 0, counts / jnp.sum(counts)
    means = jnp.where(met, B / jnp.where(met, counts, 1.0), 0.0)
    mu = matmul(means, share)
    off = jnp.where(met, means - mu[:, None], 0.0)
    R = cholesky(within_classes(A, means, counts, shrinkage))
    theta = cho_solve(R, off)
    G = matmul_tn(off, theta)
    size = jnp.where(met, jnp.diagonal(G), jnp.inf)
    root: Any = None
    centre: Any = None
    background: Any = None
    if OF_M[kind] > 0:
        root = jnp.sqrt(OF_M[kind]) * lower_inverse(R)
        centre = matmul(root, mu)
    if OF_M[kind] < 1:
        p = jnp.sqrt(share)
        C = cholesky(identity_plus(1.0, p[:, None] * G * p))
        background = jnp.sqrt(1.0 - OF_M[kind]) * solve_lower(C, jnp.diag(p))
    return Reference(root, centre, theta, matmul(mu, theta), size, background)


@partial(jax.jit, static_argnames=("design",))
def measured(design: Design, weights: Any, reference: Reference, X: Any) -> Array:
    """(n, 1) mean over sub-learners of the score of each row."""
    D = layers_of(weights, X, design)
    root, centre, theta, shift, size, background = reference
    found = jnp.zeros(D.shape[:2], D.dtype)
    if root is not None:
        found += jnp.sum((matmul(D, jnp.swapaxes(root, 1, 2)) - centre[:, None]) ** 2, axis=-1)
    if theta is not None:
        v = matmul(D, theta) - shift[:, None]
        found += jnp.min(size[:, None] - 2.0 * v, axis=-1)
        if background is not None:
            found += jnp.sum(matmul(v, jnp.swapaxes(background, 1, 2)) ** 2, axis=-1)
    return jnp.mean(found, axis=0)[:, None]


def fewest_classes(kind: str) -> int:
    """Classes that a kind of score needs."""
    return 2 if OF_M.get(kind, 1.0) < 1 else 1


@in_brief
class Tally(NamedTuple):
    """The last scores of known classes' rows, each made before its row was learned.

    Attributes:
        kind: of the scores.
        values: (m, KEPT), in no order; float64 on the host, as all that follows.
        worth: (m, KEPT), 0 where there is no score.
        offered: (m,) rows of each class that the reference knew when they came.
        rows: given so far.
        reference: that the next rows are measured by; None before there is one.
        known: (m',) weight of the rows of each class that it knows, m' <= m.
        known_rows: `rows` when it was made.
    """

    kind: str
    values: np.ndarray
    worth: np.ndarray
    offered: np.ndarray
    rows: int
    reference: Reference | None = None
    known: np.ndarray = np.zeros(0)
    known_rows: int = 0

    def is_due(self, counts: np.ndarray, width: int) -> bool:
        """Whether the reference is missing or too old."""
        if self.reference is None:
            return self.rows >= FEWEST and (counts > 0).sum() >= fewest_classes(self.kind)
        # With about as many rows as features, a few more change distances much.
        share = self.known_rows // (4 if 2 * self.known_rows >= width else 1)
        most = max(FEWEST, min(share, MOST_STALE * width))
        return self.rows - self.known_rows >= most

    def with_rows(
        self, columns: np.ndarray, weight: np.ndarray, score: Callable[[np.ndarray], np.ndarray]
    ) -> "Tally":
        """With the scores of rows that are learned next.

        Args:
            columns: (b,) their classes.
            weight: (b,) above 0.
            score: from numbers of rows to their scores.
        """
        after = self._replace(rows=self.rows + len(columns))
        if self.reference is None:
            return after
        rows = np.flatnonzero(np.isin(columns, np.flatnonzero(self.known)))
        columns = columns[rows]
        nth = self.offered[columns] + _occurrence(columns)
        offered = self.offered + np.bincount(columns, minlength=len(self.offered))
        place, taken = _place(nth)
        # A row whose score others of its class would replace at once need not be scored.
        last = np.zeros(len(offered), int)
        np.maximum.at(last, columns[taken], place[taken])
        taken &= place > last[columns] - KEPT
        rows, columns, place = rows[taken], columns[taken], place[taken] % KEPT
        values, worth = self.values.copy(), self.worth.copy()
        if len(rows):
            values[columns, place] = score(rows)
            worth[columns, place] = weight[rows] * self.known[columns] ** POWER
        return after._replace(values=values, worth=worth, offered=offered)

    def grown(self, capacity: int) -> "Tally":
        """With room for so many classes."""
        return self.placed(np.arange(len(self.offered)), capacity)

    def placed(self, places: np.ndarray, capacity: int) -> "Tally":
        """With class c in place `places[c]` of so many; those without scores may share one."""
        values, worth, offered = _none(capacity)
        there = self.offered > 0
        to = places[there]
        values[to], worth[to], offered[to] = (
            leaf[there] for leaf in (self.values, self.worth, self.offered)
        )
        return self._replace(values=values, worth=worth, offered=offered)

    def without(self, gone: np.ndarray) -> "Tally":
        """Without the scores of classes (m,) that are gone, nor a reference, which knew them."""
        kept = ~gone
        return self._replace(
            values=np.where(kept[:, None], self.values, 0.0),
            worth=np.where(kept[:, None], self.worth, 0.0),
            offered=np.where(kept, self.offered, 0),
            **NO_REFERENCE,
        )

    def threshold(self, counts: np.ndarray, false_alarms: float) -> float:
        """The score above which a row is unknown; infinite where scores are too few to tell.

        Args:
            counts: (m,) weight of the rows of each class.
            false_alarms: wanted share of rows of known classes above it.
        """
        total = self.worth.sum(axis=1)
        told = (total > 0) & (counts > 0)
        if not told.any():
            return np.inf
        share = counts[told] / counts[told].sum()
        weight = (self.worth[told] * (share / total[told])[:, None]).ravel()
        values = self.values[told].ravel()[weight > 0]
        weight = weight[weight > 0]
        level = (1.0 - false_alarms) * (1.0 + np.sum(weight**2))
        order = np.argsort(values)
        # Of equal weights that reach the level exactly the sum may fall short by rounding.
        at = int(np.searchsorted(np.cumsum(weight[order]), level - 1e-9))
        return float(values[order[at]]) if level <= 1.0 else np.inf


NO_REFERENCE: dict[str, Any] = {"reference": None, "known": np.zeros(0), "known_rows": 0}


def no_tally(kind: str, capacity: int, rows: int) -> Tally:
    """Before anything was scored, with so many rows given."""
    values, worth, offered = _none(capacity)
    return Tally(kind, values, worth, offered, rows)


def merged_tally(a: Tally | None, b: Tally | None, places: np.ndarray, m: int) -> Tally | None:
    """The newest scores of two learners, with class c of `b` in place `places[c]` of m.

    Of scores of several kinds those of `a` are kept.
    """
    if a is None or b is None or a.kind != b.kind:
        kept = a.grown(m) if a is not None else None
        if a is None and b is not None:
            kept = b.placed(places, m)
        return None if kept is None else kept._replace(**NO_REFERENCE)
    both = a.grown(m), b.placed(places, m)
    values, worth, offered = _none(m)
    for c in range(m):
        pairs = [_newest(tally, c) for tally in both]
        # Alternately, so that as many as there is room for are of either.
        rank = np.concatenate([np.arange(len(found[0])) for found in pairs])
        chosen = np.argsort(rank, kind="stable")[:KEPT]
        count = len(chosen)
        values[c, :count] = np.concatenate([found[0] for found in pairs])[chosen]
        worth[c, :count] = np.concatenate([found[1] for found in pairs])[chosen]
        offered[c] = count
    return a._replace(
        values=values, worth=worth, offered=offered, rows=a.rows + b.rows, **NO_REFERENCE
    )


def check_false_alarms(false_alarms: Any) -> float:
    """The share as a float.

    Raises:
        ValueError: unless it is between 0 and 1.
    """
    if not is_number(false_alarms) or not 0 < false_alarms < 1:
        raise ValueError(f"false_alarms: expected a number between 0 and 1, got {false_alarms!r}")
    return float(false_alarms)


def _none(capacity: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    return np.zeros((capacity, KEPT)), np.zeros((capacity, KEPT)), np.zeros(capacity, int)


def _place(nth: Any) -> tuple[np.ndarray, np.ndarray]:
    """How many scores a class has before its row of that number, from 0, and if that is scored."""
    starts, strides = np.array([*STRIDES]), np.array([*STRIDES.values()])
    before = np.cumsum([0, *(np.diff(starts) // strides[:-1])])
    part = np.maximum(np.searchsorted(starts, nth, "right") - 1, 0)
    more, rest = np.divmod(nth - starts[part], strides[part])
    return before[part] + more + (rest > 0), rest == 0


def _occurrence(columns: np.ndarray) -> np.ndarray:
    """(b,) how many earlier entries are equal."""
    order = np.argsort(columns, kind="stable")
    ordered = columns[order]
    first = np.searchsorted(ordered, ordered)
    found = np.empty(len(columns), int)
    found[order] = np.arange(len(columns)) - first
    return found


def _newest(tally: Tally, c: int) -> tuple[np.ndarray, np.ndarray]:
    """The scores of class c and what they are worth, the newest first."""
    places = int(_place(tally.offered[c] - 1)[0]) + 1
    at = np.arange(places - 1, max(places - KEPT, 0) - 1, -1) % KEPT
    return tally.values[c, at], tally.worth[c, at]
