"""The learners for rows that have any number of labels, none and several included."""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial
from scipy import sparse
from sklearn.base import ClassifierMixin
from sklearn.utils.validation import check_is_fitted

from rvfl_jax.core.checks import plain_array
from rvfl_jax.core.types import Scale
from rvfl_jax.estimators import adding, additive, compiled
from rvfl_jax.estimators.adding import raise_unless
from rvfl_jax.estimators.base import EdRVFLBase, in_parts, row_weights
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.learned import Batch
from rvfl_jax.estimators.padding import classes_for
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.estimators.thresholds import LabelGuesses, check_threshold
from rvfl_jax.estimators.whole import all_or_nothing, of_one_moment
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import LabelMap, as_array


class EdRVFLMultiLabelClassifier(ClassifierMixin, EdRVFLBase):  # type: ignore[misc]
    """Ensemble deep RVFL classifier of rows with several labels, learned batch by batch.

    Example:
        >>> model = EdRVFLMultiLabelClassifier(random_state=0)
        >>> X, y = [[0.0, 1.0], [1.0, 0.0], [1.0, 1.0]], [[1, 0], [0, 1], [1, 1]]
        >>> model = model.partial_fit(X, y, labels=["warm", "wet"])
        >>> model = model.partial_fit([[0.0, 3.0]], [[1, 1]], labels=["warm", "windy"])
        >>> model.classes_.tolist()
        ['warm', 'wet', 'windy']
        >>> model.predict(X).shape
        (3, 3)

    One ridge regression on targets of 0 and 1, with a column for each label: the labels share
    D^T D and its factor, and only D^T Y has a column more for each. So m labels cost little more
    than one, where one classifier a label costs m times as much. A score is an estimate of the
    label's probability; a row has the label where that is at least the label's threshold.

    A label may be new at any time. Rows that came before count as rows without it, as do rows of
    later calls that do not name it. That is exact, since their column of D^T Y is zero: the
    readout is that of one `fit` on all rows with zeros filled in. Who did not look for a label in
    old rows should know that they speak against it.

    Thresholds are chosen by guesses of rows before these are learned: each batch of `partial_fit`
    is guessed by the last readout solved, which knows at least half of the rows; `fit` takes
    leave-one-out predictions, which have a closed form. No rows are held out and none are kept;
    see `rvfl_jax.estimators.thresholds`. The first batch is not guessed, so that thresholds are
    1/2 until there is a second. They depend on how rows come in batches; scores do not.

    In double precision, without a forward term and without forgetting. Learning is atomic, and
    one thread may learn while others predict, as with `EdRVFLClassifier`.

    Args:
        num_layers, num_nodes, ridge, activation, feature_map, intercept, scale, weight_init,
            weight_scale, random_state: see `EdRVFLClassifier`. With `ridge="auto"` all labels
            together have one lambda a sub-learner.
        threshold: "f1" takes for each label the threshold with the best F1 of guesses,
            "accuracy" the one with the fewest errors, and a number is that of all labels. May be
            changed at any time.

    Attributes:
        classes_: labels in the order of their columns: as given, new ones at the end.
        thresholds_: (m,) threshold of each label.
        label_count_: (m,) rows learned with each label.
        mean_, scale_, ridge_, n_features_in_, feature_names_in_, num_rows_seen_: see
            `EdRVFLClassifier`.
    """

    # Sums tell everything, whatever else an estimator may choose.
    k = 0.0
    forgetting = 1.0
    lookahead = "none"
    cold_start = "exact"
    solver = "auto"
    ensemble = "mean"
    precision = "double"

    def __init__(
        self,
        num_layers: int = 2,
        num_nodes: int = 256,
        ridge: Any = 1.0,
        *,
        threshold: Any = "f1",
        activation: Any = "relu",
        feature_map: Any = "layers",
        intercept: bool = True,
        scale: Scale = "none",
        weight_init: Any = "lecun_uniform",
        weight_scale: Any = 1.0,
        random_state: Any = None,
    ):
        self.num_layers = num_layers
        self.num_nodes = num_nodes
        self.ridge = ridge
        self.threshold = threshold
        self.activation = activation
        self.feature_map = feature_map
        self.intercept = intercept
        self.scale = scale
        self.weight_init = weight_init
        self.weight_scale = weight_scale
        self.random_state = random_state

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None, labels: Any = None) -> None:
        """Learn these rows, and forget everything learned before.

        Args:
            X: (n, s) finite numbers, dense or sparse; see `EdRVFLClassifier.fit`.
            y: (n, m) of 0 and 1, dense or a sparse matrix, which is made dense; or a frame, whose
                columns name the labels.
            sample_weight: (n,) at least 0; a row of weight 2 counts as two rows.
            labels: names of the m columns. None takes 0 to m - 1 if y names none.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        given = self._checked(X, y, sample_weight, labels, reset=True)
        if not len(given.batch.X):
            raise ValueError("sample_weight: expected a row of weight above zero, got none")
        self._start(given)
        self._fit_at_once(given.batch)
        self._fitted = self._fitted._replace(rows_of_class=given.seen)
        self._look_again()
        self._leave_one_out(given.batch)

    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None, labels: Any = None) -> None:
        """Learn one more batch; labels may be new at any time.

        Args:
            X: (b, s), any number of rows.
            y: (b, m') as for `fit`, of any of the labels and any new ones.
            sample_weight: (b,) at least 0.
            labels: names of the m' columns. None takes those of y if it is a frame, the labels
                known if there are m' of them, or else 0 to m' - 1 if labels are numbered.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        fresh = not self.__sklearn_is_fitted__()
        given = self._checked(X, y, sample_weight, labels, reset=fresh)
        self._make_ready(given, fresh=fresh)
        if not len(given.batch.X):
            return
        self._guess(given.batch)
        self._learn(given.batch, None)
        seen = self._fitted.rows_of_class + given.seen
        self._fitted = self._fitted._replace(rows_of_class=seen)
        if self._fitted.learned.is_stale(self._guesses().rows):
            self._look_again()

    @all_or_nothing
    def unlearn(self, X: Any, y: Any, sample_weight: Any = None, labels: Any = None) -> None:
        """Remove rows, exactly: the readout becomes that of a model that never saw them.

        The past guesses that thresholds rest on stay, but for those of labels without rows left.

        Args:
            X: (n, s) rows that were learned.
            y: (n, m') their labels, as for `partial_fit`.
            sample_weight: the weights that they were learned with.
            labels: names of the columns of y, all of them known.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on more rows than were learned, in all or with a label, or if what would
                remain cannot be sums over rows; see `EdRVFLClassifier.unlearn`, also for what may
                pass unnoticed.
        """
        check_is_fitted(self)
        self._check_unlearns()
        given = self._checked(X, y, sample_weight, labels, reset=False)
        known, rows = self._fitted.labels.labels, len(given.batch.X)
        if len(given.labels.labels) > len(known):
            fresh = given.labels.labels[len(known)]
            raise ValueError(f"labels: expected labels that were learned, got {fresh!r}")
        if rows > self._fitted.num_rows:
            raise ValueError(f"unlearn: expected at most {self._fitted.num_rows} rows, got {rows}")
        left = self._fitted.rows_of_class - given.seen
        if (left < 0).any():
            worst = int(np.argmin(left))
            raise ValueError(
                f"unlearn: expected at most {self._fitted.rows_of_class[worst]} rows with"
                f" {known[worst]!r}, got {given.seen[worst]}"
            )
        fitted = self._left_without(given.batch, None)
        guesses = self._guesses().made_by_none()
        there = np.pad(left > 0, (0, fitted.capacity - len(left)))
        guesses = guesses._replace(scores=guesses.scores * there[:, None])
        self._become(
            asked=Asked(),
            fitted=fitted._replace(
                rows_of_class=left, label_guesses=guesses, num_rows=fitted.num_rows - rows
            ),
        )

    @of_one_moment
    def predict(self, X: Any) -> np.ndarray:
        """(n, m) of 0 and 1: whether each label's score is at least its threshold.

        Raises:
            ValueError: on unusable input, as in all methods below.
            NumericalError: naming the first row whose answer is not finite.
        """
        return (self._scores(X) >= self.thresholds_).astype(int)

    @of_one_moment
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, m) scores within 0 to 1, each an estimate of the probability of the label.

        They are those of least squares and are not calibrated; what thresholds do to them is up
        to `predict`.
        """
        return np.clip(self._scores(X), 0.0, 1.0)

    @of_one_moment
    def decision_function(self, X: Any) -> np.ndarray:
        """(n, m) scores less the thresholds: a row is said to have a label from 0 on."""
        return self._scores(X) - self.thresholds_

    @property
    @of_one_moment
    def classes_(self) -> np.ndarray:
        """(m,) labels in the order of their columns."""
        check_is_fitted(self)
        return as_array(list(self._fitted.labels.labels))

    @property
    @of_one_moment
    def label_count_(self) -> np.ndarray:
        """(m,) rows learned with each label."""
        check_is_fitted(self)
        return self._fitted.rows_of_class.copy()

    @property
    @of_one_moment
    def thresholds_(self) -> np.ndarray:
        """(m,) from where on a score says that a row has the label."""
        check_is_fitted(self)
        check_threshold(self.threshold)
        count = len(self._fitted.labels.labels)
        if not isinstance(self.threshold, str):
            return np.full(count, float(self.threshold))
        rule = str(self.threshold)
        found = self._cache.get(("thresholds", rule), lambda: self._guesses().thresholds(rule))
        return found[:count].copy()

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        tags.target_tags.multi_output = True
        tags.target_tags.single_output = False
        return tags

    def _check_options(self) -> None:
        check_threshold(self.threshold)

    def _grown(self, given: "_Given") -> Fitted:
        return self._fitted.with_labels(given.labels)

    def _start(self, given: "_Given") -> None:
        capacity = given.batch.target.shape[1]
        self._begin(
            given.batch.X.shape[1] - bool(self.intercept),
            capacity,
            given.batch.X,
            guesses=None,
            labels=given.labels,
            rows_of_class=np.zeros(len(given.labels.labels), int),
            scaling=given.scaling,
        )
        none = LabelGuesses.none(self._fitted.shape)
        self._fitted = self._fitted._replace(label_guesses=none)

    def _checked(self, X: Any, y: Any, sample_weight: Any, labels: Any, *, reset: bool) -> "_Given":
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        self._design()
        X = self._validated(X, reset=reset)
        known = () if reset else self._fitted.labels.labels
        Y = _indicators(y)
        names = _names(y, labels, Y.shape[1], known)
        if X.shape[0] != len(Y):
            raise ValueError(f"y: expected {X.shape[0]} rows, one a row of X, got {len(Y)}")
        weight = row_weights(sample_weight, len(Y))
        used = weight > 0
        X, Y, weight = X[used], Y[used], weight[used]
        column_of = {label: column for column, label in enumerate(known)}
        for name in names:
            column_of.setdefault(name, len(column_of))
        columns = LabelMap(tuple(column_of))
        target = np.zeros((len(Y), classes_for(len(columns.labels))))
        target[:, [column_of[name] for name in names]] = Y
        scaling = self._scaling_by(X, weight, reset=reset)
        batch = Batch(self._prepared(X, scaling), target, weight)
        seen = target[:, : len(columns.labels)].sum(axis=0).astype(int)
        return _Given(batch, columns, seen, scaling)

    def _guesses(self) -> LabelGuesses:
        guesses = self._fitted.label_guesses
        assert guesses is not None
        return guesses

    def _guess(self, batch: Batch) -> None:
        """Guess a batch before it is learned."""
        guesses = self._guesses()
        if not guesses.rows:
            return
        scores = np.concatenate(self._in_buckets(batch.X, self._program_of(guesses.theta)))
        found = guesses.plus(scores, batch.target, batch.weight)
        self._fitted = self._fitted._replace(label_guesses=found)

    def _look_again(self) -> None:
        """Let the readout of now make the next guesses."""
        solved = self._solved("ridge")
        # What solving has settled knows nothing of the guesses that follow.
        self._taken_up()
        rows = np.zeros(self._fitted.capacity, int)
        rows[: len(self._fitted.rows_of_class)] = self._fitted.rows_of_class
        guesses = self._guesses()._replace(
            theta=np.asarray(solved.theta), rows_of_label=rows, rows=self._fitted.learned.rows
        )
        self._become(self._fitted._replace(label_guesses=guesses))
        self._cache.get(("ridge", 0.0), lambda: solved)

    def _leave_one_out(self, batch: Batch) -> None:
        """Guess every row of a fit by the readout of all the others."""
        design, _ = self._same_design()
        fitted, guesses = self._fitted, self._guesses()
        with precision_scope("double"):
            sums = fitted.learned.sums
            solved = adding.programs_of(sums).conclude(sums, self._ridge())
            raise_unless(bool(solved[2]), "fit: a factorisation failed or a value overflowed")
            for part in in_parts(batch, fitted.rows_at_once):
                rows, _ = self._rows(part, None, design)
                made = additive.left_out(design, fitted.weights, solved[:2], rows)
                scores = np.asarray(made)[: len(part.X)]
                guesses = guesses.plus(scores, part.target, part.weight)
        self._fitted = fitted._replace(label_guesses=guesses)

    def _scores(self, X: Any) -> np.ndarray:
        """(n, m) estimates of probabilities."""
        parts = self._in_buckets(self._inputs(X), self._program())
        return np.concatenate(parts)[:, : len(self._fitted.labels.labels)]

    def _program(self) -> Partial:
        check_is_fitted(self)
        return self._program_of(self._solved("ridge").theta)

    def _program_of(self, theta: Any) -> Partial:
        program = partial(compiled.predicted, self._same_design()[0])
        return Partial(program, self._fitted.weights, theta)


class _Given(NamedTuple):
    """A checked batch, all labels from now on, its rows of each, and the scaling from now on."""

    batch: Batch
    labels: LabelMap
    seen: np.ndarray
    scaling: Scaling | None


def _indicators(y: Any) -> np.ndarray:
    """(n, m) of 0 and 1 from a dense or sparse matrix, or a frame."""
    if sparse.issparse(y):
        y = y.toarray()
    elif isinstance(y, np.ndarray | jax.Array):
        y = plain_array("y", y)
    Y = np.asarray(y.to_numpy() if hasattr(y, "to_numpy") else y)
    if Y.ndim != 2 or not Y.shape[1]:
        raise ValueError(f"y: expected an indicator matrix (rows, labels), got shape {Y.shape}")
    try:
        Y = Y.astype(float)
    except (TypeError, ValueError):
        raise ValueError(f"y: expected 0 and 1, got values of type {Y.dtype}") from None
    bad = (Y != 0) & (Y != 1)
    if bad.any():
        row, column = (int(place[0]) for place in np.nonzero(bad))
        raise ValueError(f"y: expected 0 and 1, got {Y[row, column]} at {(row, column)}")
    return Y


def _names(y: Any, labels: Any, count: int, known: Sequence[Any]) -> list[Any]:
    """Labels of the columns of y, as given or by what is known."""
    if labels is None and hasattr(y, "columns"):
        labels = y.columns
    if labels is None:
        if len(known) == count:
            return list(known)
        numbers = list(range(max(count, len(known))))
        if list(known) != numbers[: len(known)]:
            raise ValueError(
                f"labels: expected names of the {count} columns of y, for {len(known)} labels are"
                " known by their names"
            )
        return numbers[:count]
    names = np.asarray(labels).tolist() if isinstance(labels, np.ndarray) else list(labels)
    names = [name.item() if isinstance(name, np.generic) else name for name in names]
    if len(names) != count or len(set(names)) != count:
        raise ValueError(f"labels: expected {count} different names, one a column, got {names}")
    LabelMap(tuple(known)).check_kind("labels", as_array(names))
    return names
