"""`Fitted`: all that an estimator has learned, as one record that is replaced and never changed.

An estimator holds its parameters, what scikit-learn sets (`n_features_in_`, `feature_names_in_`),
and one `Fitted`. Merging, saving, exporting and the commands look at nothing else.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.words import in_brief
from rvfl_jax.estimators.calibration import Guesses, grown_guesses
from rvfl_jax.estimators.learned import Batch, Learned, joined, programmed, state_of, sums_with
from rvfl_jax.estimators.novelty import Tally
from rvfl_jax.estimators.padding import classes_for
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.estimators.thresholds import LabelGuesses
from rvfl_jax.learners.edrvfl.algebra import grown_state
from rvfl_jax.learners.edrvfl.gcv import best_ridges
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import LabelMap

# Longer batches are learned in parts where that makes no difference, so that memory stays small.
MOST_ROWS = 4096
# Numbers among the features of a program, 128 MB in double precision.
MOST_FEATURES = 2**24


@in_brief
class Fitted(NamedTuple):
    """What an estimator has learned.

    Attributes:
        learned: `Learned`, or the state of the learner where sums do not determine it: with
            -kF-Bayes, the paper's cold start, the square-root solver or single precision.
        counts: (m,) weight of the rows of each class, which fades where the state forgets;
            float64 on the host, as are the guesses.
        guesses: past predictions, summed up for calibration; None for a regressor.
        began_with: the options that must not change while learning goes on.
        pending: the batch that waits to be learned until the inputs of the next one are known.
        num_rows: number of rows given so far.
        scaling: what features are standardised with; None before the first rows, and always for
            `scale="none"`.
        labels: of the columns, for a classifier.
        declared: labels that are expected, whether or not rows of them have come.
        rows_of_class: (classes,) rows given of each label.
        guessed_by: kind of the readout that the guesses are by; None for a regressor.
        balanced: weight of each label, for `class_weight="balanced"`.
        one_output: whether targets of a regressor came as (n,).
        label_guesses: past guesses of labels, where a row may have several.
        notes: those in the file that it was loaded from.
        tally: past novelty scores; None where none are kept.
    """

    learned: Any
    counts: np.ndarray
    guesses: Guesses | None
    began_with: dict[str, Any]
    pending: Batch | None = None
    num_rows: int = 0
    scaling: Scaling | None = None
    labels: LabelMap = LabelMap()
    declared: frozenset[Any] = frozenset()
    rows_of_class: np.ndarray = np.zeros(0, int)
    guessed_by: str | None = None
    balanced: Mapping[Any, float] | None = None
    one_output: bool = False
    label_guesses: LabelGuesses | None = None
    notes: Mapping[str, Any] | None = None
    tally: Tally | None = None

    @property
    def on_sums(self) -> bool:
        """Whether sums are all that is kept."""
        return isinstance(self.learned, Learned)

    @property
    def state(self) -> Any:
        """The state of the learner; one on sums is made for whoever asks, at O(d^3)."""
        if not self.on_sums:
            return self.learned
        if self.began_with["feature_map"] not in ("layers", "none"):
            raise ValueError(
                'state: expected feature_map="layers" or "none", which `edrvfl` has, got'
                f" {self.began_with['feature_map']!r}"
            )
        sums = programmed(self.learned.sums)
        if self.learned.waiting:
            waiting = joined(self.learned.waiting)
            sums = sums_with(sums, waiting, self.learned, self.began_with)
        return state_of(self.learned, sums, self.began_with | {"ridge": self._ridges_of(sums)})

    @property
    def weights(self) -> Any:
        """Random weights, as the programs of predictions take them."""
        return self.learned.weights if self.on_sums else self.learned.W

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, d, m) of the readouts."""
        found: tuple[int, int, int]
        found = self.learned.shape if self.on_sums else np.shape(self.learned.theta)
        return found

    @property
    def strengths(self) -> np.ndarray:
        """(L,) of the forward term of a state; 0 on sums, where readouts alone have one."""
        if self.on_sums:
            return np.zeros(self.shape[0])
        return np.asarray(self.learned.k, float)

    @property
    def trace(self) -> np.ndarray:
        """(L,) tr(A), lambda included."""
        if not self.on_sums:
            return np.asarray(self.learned.sketch.trace)
        with precision_scope("double"):
            squares = np.asarray(self.learned.sums.squares)
        found: np.ndarray = squares.sum(axis=1) + self.shape[1] * self.ridges
        return found

    @property
    def ridges(self) -> np.ndarray:
        """(L,) lambda, on sums; for "auto" that of the rows that do not wait, at O(d^3)."""
        return self._ridges_of(self.learned.sums)

    def _ridges_of(self, sums: Any) -> np.ndarray:
        given = self.began_with["ridge"]
        if not isinstance(given, str):
            return np.broadcast_to(np.asarray(given, float), self.shape[:1])
        with precision_scope("double"):
            if self.guesses is not None:
                rows = np.asarray(sums.counts)[0].sum()
            elif self.began_with["intercept"]:
                # The constant column tells their weight.
                rows = np.asarray(sums.squares)[0, -1]
            else:
                rows = self.learned.rows
            return best_ridges(sums, float(rows))

    @property
    def capacity(self) -> int:
        """m, columns of the readout, with or without a label."""
        return len(self.counts)

    @property
    def rows_at_once(self) -> int:
        """Rows of the largest program, so that their features fit into memory."""
        layers = self.shape[0]
        nodes = np.shape(self.weights)[-1] if not self.on_sums else self._num_hidden
        fits = max(1, int(MOST_FEATURES // (layers * (nodes + 1))))
        return max(256, min(MOST_ROWS, 1 << (fits.bit_length() - 1)))

    @property
    def _num_hidden(self) -> int:
        """Columns of the features that are not those of the inputs."""
        return self.shape[1] - len(self.weights.first)

    def classes(self) -> tuple[np.ndarray, np.ndarray]:
        """Labels seen or declared, in ascending order where they have one, and their columns."""
        chosen = [
            count > 0 or label in self.declared
            for label, count in zip(self.labels.labels, self.rows_of_class, strict=True)
        ]
        return self.labels.sorted(np.array(chosen, bool))

    def with_labels(self, labels: LabelMap) -> "Fitted":
        """With a column and a count for every label."""
        rows = np.zeros(len(labels.labels), int)
        rows[: len(self.rows_of_class)] = self.rows_of_class
        grown = self._replace(labels=labels, rows_of_class=rows)
        capacity = classes_for(len(labels.labels))
        if capacity <= self.capacity:
            return grown
        guesses, of_labels = self.guesses, self.label_guesses
        return grown._replace(
            learned=_grown(self.learned, capacity),
            counts=np.pad(self.counts, (0, capacity - self.capacity)),
            guesses=None if guesses is None else grown_guesses(guesses, capacity),
            label_guesses=None if of_labels is None else of_labels.grown(capacity),
            tally=None if self.tally is None else self.tally.grown(capacity),
        )


def _grown(learned: Any, capacity: int) -> Any:
    return (
        learned.grown(capacity) if isinstance(learned, Learned) else grown_state(learned, capacity)
    )


def fitted_of(model: Any) -> Fitted:
    """What an estimator has learned.

    Raises:
        ValueError: if that is nothing.
    """
    fitted: Fitted | None = getattr(model, "_fitted", None)
    if fitted is None:
        raise ValueError("model: expected a fitted estimator, got one that has learned nothing")
    return fitted
