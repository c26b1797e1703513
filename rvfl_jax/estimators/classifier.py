"""The learners as a scikit-learn classifier, for people with data in batches and new classes."""

from collections.abc import Mapping, Set
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from rvfl_jax.core.checks import one_of, plain_array
from rvfl_jax.core.types import (
    ColdStart,
    Ensemble,
    Lookahead,
    NoveltyScore,
    Precision,
    ReadoutName,
    Scale,
    Solver,
)
from rvfl_jax.estimators import adding, additive, compiled
from rvfl_jax.estimators.adding import raise_unless
from rvfl_jax.estimators.base import MOST_KEPT, EdRVFLBase, in_parts, row_weights
from rvfl_jax.estimators.calibration import (
    inverse_temperature,
    joined_guesses,
    linked,
    no_guesses,
    scaled_guesses,
)
from rvfl_jax.estimators.compiled import LINKS, Design
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.learned import Batch, programmed
from rvfl_jax.estimators.novelty import (
    NOVELTY_SCORES,
    Reference,
    check_false_alarms,
    fewest_classes,
    measured,
    no_tally,
    reference_of,
)
from rvfl_jax.estimators.padding import classes_for
from rvfl_jax.estimators.readouts import READOUTS, Readout, check_readout_options
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.estimators.whole import all_or_nothing, of_one_moment
from rvfl_jax.learners.edrvfl.sums import system_of
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import LabelMap, as_array
from rvfl_jax.streams.labels import clean_labels

LARGEST_ODDS = 1e6


class EdRVFLClassifier(ClassifierMixin, EdRVFLBase):  # type: ignore[misc]
    """Ensemble deep RVFL classifier that learns batch by batch, new classes included.

    Example:
        >>> model = EdRVFLClassifier(num_nodes=256, random_state=0)
        >>> model = model.partial_fit([[0.0, 1.0], [1.0, 0.0]], ["cat", "dog"])
        >>> model = model.partial_fit([[1.0, 1.0]], ["hippopotamus"])
        >>> model.predict([[1.0, 1.0]]).tolist()
        ['hippopotamus']

    Random hidden layers are drawn once; each has a linear readout that is at every moment the
    ridge solution on all rows so far, exactly, in one pass and without keeping a row. `fit` on
    all rows and any number of `partial_fit` calls on parts of them give the same readout (k = 0,
    or any constant k once nothing is announced). Inputs should be of one scale: put a
    `StandardScaler` before the model, or use `scale="first"`.

    In double precision, with the exact cold start and a constant k, the model keeps sums, D^T D
    and D^T Y. A readout is solved for when it is first needed, and updated by low rank where it is
    needed again after a few more rows. Rows of small calls wait until there are enough for an
    efficient matrix product; every answer takes them into account. -kF-Bayes, the paper's cold
    start, the square-root solver and single precision keep the state of `edrvfl` and update it at
    every call.

    Learning is atomic: whatever a method raises, an interrupt included, leaves the model as it
    was. One thread may learn while others predict; each answer comes from one consistent model.

    Args:
        num_layers: L, sub-learners.
        num_nodes: N, hidden nodes of each.
        ridge: lambda > 0, a scalar or (L,); or "auto", by generalised cross-validation of the
            sums of all rows so far, anew for every readout, whatever the batches were. The score
            is that of squared errors of one-hot targets, in which a class counts by its rows,
            whatever `class_balance`; see `rvfl_jax.learners.edrvfl.gcv.best_ridges`. "auto" needs
            sums, as described above. A readout then costs the eigenvectors of D^T D, O(d^3), some
            six to nine times a solve, and is not updated by low rank: where answers are asked for
            after every few rows a fixed value is much faster.
        k: forward strength: 0 is -R, 1 is -F, any constant -kF, `adaptive_k(...)` -kF-Bayes. It
            penalises scores on the inputs announced as `X_next`, until those are learned.
        activation: of the hidden nodes of "layers"; see `edrvfl`.
        feature_map: what H of the features [H | X] is. "layers" are random layers; "fourier" N / 2
            cosines and sines of random frequencies, whose bandwidth is the median distance
            between the first rows, divided by `weight_scale`; "sparse" N sparse projections of
            which the largest of each row are kept; "none" nothing (N = 0), so that the readouts
            are ridge regression and discriminant analysis of the inputs; a function of JAX arrays
            (n, s) to (n, N) is a map of one's own, which can be exported and not saved. Draws are
            independent for each sub-learner; the last two have one, whatever `num_layers`. All
            but "layers" need sums. See `rvfl_jax.estimators.feature_maps`.
        intercept: whether inputs get a constant column; the paper's network has none.
        scale: "none" takes features as they are; "first" standardises them with the mean and the
            standard deviation of the first rows, those of `fit` or of the first batch, and keeps
            to these.
        readout: which classifier is built from what was learned; may be changed at any time.
            "ridge" is the paper's, "discriminant" Fisher's linear discriminant, "nearest_mean"
            the nearest class mean; see `rvfl_jax.estimators.readouts`.
        class_balance: a >= 0; "ridge" scales scores of class c by n_c^-a, and "discriminant"
            takes n_c^(1 - a) as its prior. Use 0.5 to 1 where rare classes matter as much as
            frequent ones.
        shrinkage: 0 to 1, of the covariance of "discriminant" and of novelty.
        novelty_score: None, or by which of the scores of `novelty` every row is scored before it
            is learned, so that `predict(X, unknown=...)` knows what is usual; learning takes two to
            three times as long. May be changed at any time, and begins anew then. `fit` then
            learns rows batch by batch.
        class_weight: None, a dict of label to weight (1 where missing), or for `fit`
            "balanced", n / (classes n_c), which later calls then keep to.
        forgetting: decay factor per row: the weight of every row is multiplied by it for each row
            learned later; 1 forgets nothing. Below 1 each call of `partial_fit` solves, at
            O(d^3). lambda I never decays, so that the readout stays bounded, and a row whose
            inputs are all 0 makes nothing decay.
        lookahead: "hold" learns each batch only when the next one comes, with the inputs of that
            one as its `X_next`; predictions take the waiting batch into account. "none" uses only
            the `X_next` that is given. With a constant k no batch need wait, since predictions
            have no forward term then.
        cold_start, weight_init, weight_scale, ensemble: see `edrvfl`.
        solver: see `edrvfl`. Has no effect where sums are kept, as described above; with
            "square_root" they never are.
        precision: "double" or "single", whatever JAX's global setting.
        random_state: seed or generator of the hidden weights.

    Attributes:
        classes_: labels seen or declared, in ascending order where they can be sorted, else in
            order of appearance. Labels declared but never seen have probability 0.
        class_count_: total weight of the rows learned of each class.
        inverse_temperature_: the power that `predict_proba` raises scores to.
        mean_, scale_: (s,) what features are standardised with, for `scale="first"`.
        ridge_: (L,) lambda of the readouts, that chosen now for `ridge="auto"`.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
        num_rows_seen_: number of rows given so far.

    Source: the learners are those of Wang et al. (2025); see `rvfl_jax.edrvfl`.
    """

    def __init__(
        self,
        num_layers: int = 2,
        num_nodes: int = 256,
        ridge: Any = 1.0,
        k: Any = 0.0,
        *,
        activation: Any = "relu",
        feature_map: Any = "layers",
        intercept: bool = True,
        scale: Scale = "none",
        readout: ReadoutName = "ridge",
        class_balance: float = 0.0,
        shrinkage: float = 0.1,
        novelty_score: NoveltyScore | None = None,
        class_weight: Any = None,
        forgetting: float = 1.0,
        lookahead: Lookahead = "hold",
        cold_start: ColdStart = "exact",
        solver: Solver = "auto",
        weight_init: Any = "lecun_uniform",
        weight_scale: Any = 1.0,
        ensemble: Ensemble = "mean",
        precision: Precision = "double",
        random_state: Any = None,
    ):
        self.num_layers = num_layers
        self.num_nodes = num_nodes
        self.ridge = ridge
        self.k = k
        self.activation = activation
        self.feature_map = feature_map
        self.intercept = intercept
        self.scale = scale
        self.readout = readout
        self.class_balance = class_balance
        self.shrinkage = shrinkage
        self.novelty_score = novelty_score
        self.class_weight = class_weight
        self.forgetting = forgetting
        self.lookahead = lookahead
        self.cold_start = cold_start
        self.solver = solver
        self.weight_init = weight_init
        self.weight_scale = weight_scale
        self.ensemble = ensemble
        self.precision = precision
        self.random_state = random_state

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Learn these rows, and forget everything learned before.

        The readout is the ridge solution on all rows, whatever their order. Probabilities are
        calibrated on leave-one-out predictions, which have a closed form. Where the result depends
        on batches (`readout` other than "ridge", -kF-Bayes as printed, the paper's cold start,
        forgetting), or where novelty is scored, rows are learned batch by batch, and calibrated
        as by `partial_fit`.

        Args:
            X: (n, s) finite numbers; arrays, pandas or polars frames, or a sparse matrix of up to
                8,192 columns, of which a few thousand rows at a time are made dense.
            y: (n,) labels of any hashable type.
            sample_weight: (n,) at least 0; a row of weight 2 counts as two rows.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        given = self._checked(X, y, sample_weight, LabelMap(), reset=True, whole=True)
        batch = given.batch
        self._start(given)
        self._become(self._fitted._replace(rows_of_class=given.seen))
        at_once = self._design()[0].additive and self.novelty_score is None
        if at_once and self.readout == "ridge":
            self._become(self._fitted._replace(counts=self._weight_of_class(batch)))
            self._leave_one_out(batch, self._fit_at_once(batch))
        else:
            self._fit_in_batches(batch)

    @all_or_nothing
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, X_next: Any = None, sample_weight: Any = None
    ) -> None:
        """Learn one more batch; classes may be new at any time.

        Args:
            X: (b, s), any number of rows.
            y: (b,) labels.
            classes: labels to expect, which are then among `classes_`. There is no need to
                declare any, and others may still come.
            X_next: (b', s) unlabelled inputs of the batch that comes next, for k other than 0;
                for k = 0 they are ignored with a warning.
            sample_weight: (b,) at least 0.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        fresh = not self.__sklearn_is_fitted__()
        labels: LabelMap = LabelMap() if fresh else self._fitted.labels
        declared = None if classes is None else _labels("classes", classes)
        if declared is not None:
            labels = labels.extended(declared)
        given = self._checked(X, y, sample_weight, labels, reset=fresh)
        announced = self._announced(X_next, given.scaling)
        self._make_ready(given, fresh=fresh)
        if len(given.batch.X):
            self._learn(given.batch, announced)
        fitted = self._fitted
        more = frozenset() if declared is None else frozenset(declared.tolist())
        self._fitted = fitted._replace(
            declared=fitted.declared | more, rows_of_class=fitted.rows_of_class + given.seen
        )

    @of_one_moment
    def predict(self, X: Any, *, unknown: Any = None, false_alarms: float = 0.05) -> np.ndarray:
        """(n,) the most probable of the labels seen, of the type they were given in.

        Args:
            X: (n, s).
            unknown: None, or the label of rows whose `novelty` is above `novelty_threshold`.
            false_alarms: wanted share of rows of known classes that get this label.

        Raises:
            ValueError: on unusable input, as in all methods below; if `unknown` is one of the
                classes; or if no rows were scored, see `novelty_score`.
            NumericalError: naming the first row whose answer is not finite.
        """
        classes, columns = self._classes()
        best = np.argmax(self._scores(X)[:, columns], axis=1)
        if unknown is None:
            return classes[best]
        self._fitted.labels.check_kind("unknown", _labels("unknown", [unknown]))
        if unknown in self._fitted.labels.labels:
            raise ValueError(f"unknown: expected a label that is no class, got {unknown!r}")
        strange = self.novelty(X, kind=self.novelty_score) > self.novelty_threshold(false_alarms)
        return as_array([*classes.tolist(), unknown])[np.where(strange, len(classes), best)]

    @of_one_moment
    def novelty(self, X: Any, *, kind: NoveltyScore | None = None) -> np.ndarray:
        """(n,) how unlike everything learned each row is, from the sums alone.

        Args:
            X: (n, s).
            kind: "leverage" (times the rows learned), "mahalanobis" (squared distance from the
                nearest class mean), "relative_mahalanobis" (less that from the mean of all rows),
                or "blended", 0.05 of the former and 0.95 of the latter; see
                `rvfl_jax.estimators.novelty`. None is `novelty_score`, or "blended" without.
        """
        kind = one_of("kind", kind or self.novelty_score or "blended", NOVELTY_SCORES)
        fitted = self._asked()
        design, _ = self._same_design()
        if (fitted.counts > 0).sum() < fewest_classes(kind):
            raise ValueError(
                f'novelty: expected {fewest_classes(kind)} classes to have been seen for "{kind}",'
                ' got one; "mahalanobis" and "leverage" need no more'
            )
        reference = self._reference(kind, fitted)
        program = partial(measured, design, fitted.weights, reference)
        return np.concatenate(self._in_buckets(self._inputs(X), program))[:, 0].astype(float)

    @of_one_moment
    def novelty_threshold(self, false_alarms: float = 0.05) -> float:
        """The `novelty`, of kind `novelty_score`, above which a row is taken for unknown.

        A quantile of the last scores of every class, each made before its row was learned. About
        as many later rows of these classes are above it as wanted, where they come as those
        before did, and are ten times as many as features. With about as many rows as features the
        threshold is far too high, and where classes come one after another it may err either way:
        few rows are then of a class that what scores them knows, and later classes change what is
        usual. `unlearn`
        drops the scores of a class without remaining rows, and keeps all others.

        Args:
            false_alarms: wanted share of rows of known classes above the threshold.

        Returns:
            Infinity where too few rows were scored: there have to be at least 1 / false_alarms.

        Raises:
            ValueError: if no rows were to be scored.
        """
        rate = check_false_alarms(false_alarms)
        check_is_fitted(self)
        tally = self._fitted.tally
        if self.novelty_score is None or tally is None or tally.kind != self.novelty_score:
            raise ValueError(
                f"novelty_score: expected one of {', '.join(NOVELTY_SCORES)} while rows are"
                f" learned, got {None if tally is None else tally.kind}"
            )
        return tally.threshold(self._fitted.counts, rate)

    def _reference(self, kind: str, fitted: Fitted) -> Reference:
        """What rows are measured by now; kept where it is small."""
        self._same_design()
        ridge = self._ridge()

        def compute() -> Reference:
            with precision_scope(self.precision):
                if fitted.on_sums:
                    A, B = programmed(fitted.learned.sums).finish(ridge)
                else:
                    A, B = system_of(fitted.learned)
                made, sound = reference_of(A, B, fitted.counts, float(self.shrinkage), kind)
            raise_unless(bool(sound), "novelty: a factorisation failed")
            return made

        layers, width, _ = fitted.shape
        if layers * width**2 > MOST_KEPT:
            return compute()
        found: Reference = self._cache.get(("novelty", kind, float(self.shrinkage)), compute)
        return found

    def _before_learning(self, batch: Batch) -> None:
        """Score the rows, by a reference that is made anew where it is too old."""
        kind = self.novelty_score
        if kind is None:
            return
        tally = self._fitted.tally
        if tally is None or tally.kind != kind:
            tally = no_tally(kind, self._fitted.capacity, self._fitted.num_rows)
        width = self._fitted.shape[1]
        if tally.is_due(self._fitted.counts, width):
            if self._fitted.on_sums:
                self._take_pending()
            fitted = self._settled()
            reference = jax.tree.map(np.asarray, self._reference(kind, fitted))
            tally = tally._replace(reference=reference, known=fitted.counts, known_rows=tally.rows)
        design, _ = self._same_design()
        program = partial(measured, design, self._fitted.weights, tally.reference)

        def score(rows: np.ndarray) -> np.ndarray:
            return np.concatenate(self._in_buckets(batch.X[rows], program))[:, 0]

        tally = tally.with_rows(batch.target, batch.weight, score)
        self._become(self._fitted._replace(tally=tally))

    @of_one_moment
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes) calibrated probabilities, in the order of `classes_`.

        Scores are estimates of probabilities already; they are raised to a power that makes the
        mean confidence of past predictions equal their accuracy. Those predictions are made on
        each batch before it is learned (or by leave-one-out in `fit`), so that no rows are held
        out. They come from the readout in force while learning; after a change of `readout` the
        power is 1, and after a change of `class_balance` it stays what it was.
        See `rvfl_jax.estimators.calibration`.
        """
        program = self._program()
        parts = self._in_buckets(self._inputs(X), program)
        return np.concatenate(parts)[:, self._classes()[1]].astype(float)

    def predict_log_proba(self, X: Any) -> np.ndarray:
        """(n, classes) logarithms of `predict_proba`."""
        with np.errstate(divide="ignore"):
            return np.log(self.predict_proba(X))

    @of_one_moment
    def decision_function(self, X: Any) -> np.ndarray:
        """(n, classes) scores of the ensemble; for two classes (n,) the log odds of the second.

        For one sub-learner scores are D theta itself; for several see
        `rvfl_jax.estimators.readouts.together`. The log odds are those before calibration.
        """
        classes, columns = self._classes()
        z = self._scores(X)[:, columns]
        if len(classes) != 2:
            return z
        # A class declared and never seen has the lowest score there is.
        odds = linked(np.maximum(z, -LARGEST_ODDS), LINKS[self.readout], np)
        return np.clip(odds[:, 1] - odds[:, 0], -LARGEST_ODDS, LARGEST_ODDS)

    @of_one_moment
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy: the weighted share of rows whose label is predicted."""
        predicted, given = self.predict(X).tolist(), _labels("y", y)
        if len(given) != len(predicted):
            raise ValueError(f"y: expected {len(predicted)} labels, got {len(given)}")
        self._fitted.labels.check_kind("y", given)
        given = given.tolist()
        hit = [guess == label for guess, label in zip(predicted, given, strict=True)]
        return float(np.average(hit, weights=row_weights(sample_weight, len(hit))))

    @of_one_moment
    def predict_std(self, X: Any, *, noise: bool = True) -> np.ndarray:
        """(n, classes) predictive standard deviation of the scores of "ridge".

        Under the Gaussian model behind ridge regression a score has the variance
        s_c^2 (1 + D eta_dagger D^T), with s_c^2 the squared errors of class c's column on all rows
        learned, divided by n - d + lambda tr(eta_dagger), the rows less the degrees of freedom
        used. The result is the mean over sub-learners, which is at least the deviation of their
        mean.

        Args:
            X: (n, s).
            noise: whether to count the 1, the scatter of the targets themselves.

        Returns:
            NaN for classes declared and never seen, and where the rows learned are too few to
            estimate an error.
        """
        fitted, columns = self._asked(), self._classes()[1]
        design, numbers = self._same_design()
        leverages = partial(compiled.leverages, design, fitted.learned)
        if fitted.on_sums:
            ridge = self._ridge()
            theta, inverse = self._concluded(fitted, ridge)
            leverages = partial(additive.leverages, design, fitted.weights, inverse)
            ask = partial(self._variance_of_sums, fitted, (theta, inverse), ridge)
        else:
            ask = partial(self._variance, fitted, numbers["ridge"])
        parts = self._in_buckets(self._inputs(X), lambda part: leverages(part)[..., None])
        leverage = np.concatenate(parts, axis=1)
        variance = self._cache.get("variance", ask)
        std = np.sqrt(variance[:, None] * (leverage + float(noise))).mean(axis=0)
        return std[:, columns]

    def _concluded(self, fitted: Fitted, ridge: Any) -> tuple[Any, Any]:
        """Theta and the inverse of the factor of the sums; the latter is kept where it is small."""

        def compute() -> tuple[Any, Any]:
            with precision_scope(self.precision):
                sums = fitted.learned.sums
                theta, inverse, sound = adding.programs_of(sums).conclude(sums, ridge)
            raise_unless(bool(sound), "predict_std: a factorisation failed")
            return theta, inverse

        layers, width, _ = fitted.shape
        if layers * width**2 > MOST_KEPT:
            return compute()
        found: tuple[Any, Any] = self._cache.get("concluded", compute)
        return found

    def _variance_of_sums(self, fitted: Fitted, solved: tuple[Any, Any], ridge: Any) -> np.ndarray:
        with precision_scope(self.precision):
            sums = fitted.learned.sums
            found = adding.programs_of(sums).squared_errors(sums, *solved, ridge)
        return self._variance_by(fitted.counts, *found)

    def _variance(self, fitted: Fitted, ridge: Any) -> np.ndarray:
        """(L, m) s_c^2."""
        with precision_scope(self.precision):
            found = compiled.squared_errors(fitted.learned, fitted.counts, ridge)
        return self._variance_by(fitted.counts, *found)

    def _variance_by(self, counts: np.ndarray, errors: Any, used: Any) -> np.ndarray:
        errors, used = np.asarray(errors), np.asarray(used)
        left = counts.sum() - used[:, None]
        known = (counts > 0) & (left > 1e-3) & (errors > 0)
        return np.where(known, errors / np.where(known, left, 1.0), np.nan)

    @all_or_nothing
    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Remove rows, exactly: the readout becomes that of a model that never saw them.

        Their sums are subtracted, at half the cost of their Gram matrix. A class without remaining
        rows counts as never seen. The past predictions that calibration rests on stay, and so do
        past novelty scores, but for those of such a class.

        Args:
            X: (n, s) rows that were learned.
            y: (n,) their labels.
            sample_weight: the weights that they were learned with.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on more rows of a class than were learned, or if what would remain cannot
                be sums over rows (not positive definite, or with negative squared errors). With
                many nodes, a few rows that were never learned may pass unnoticed, since sums do
                not identify their rows. For readouts wider than 768 only the diagonal and the
                errors of the last readout are checked; the next readout solved then fails, and
                learning the same rows again puts them back.
        """
        check_is_fitted(self)
        self._check_unlearns()
        before = self._fitted
        given = self._checked(X, y, sample_weight, before.labels, reset=False)
        if len(given.labels.labels) > len(before.labels.labels):
            before.labels.columns("y", _labels("y", y))
        left = before.rows_of_class - given.seen
        if (left < 0).any():
            worst = int(np.argmin(left))
            raise ValueError(
                f"unlearn: expected at most {before.rows_of_class[worst]} rows of class"
                f" {before.labels.labels[worst]!r}, got {given.seen[worst]}"
            )
        weight = self._weight_of_class(given.batch)
        fitted = self._left_without(given.batch, weight)
        counts = fitted.counts - weight
        gone = np.zeros(len(counts), bool)
        gone[: len(left)] = left == 0
        assert fitted.guesses is not None
        self._become(
            asked=Asked(),
            fitted=fitted._replace(
                counts=np.where(gone, 0.0, counts),
                guesses=scaled_guesses(fitted.guesses, np.where(gone, 0.0, 1.0)),
                rows_of_class=left,
                tally=None if fitted.tally is None else fitted.tally.without(gone),
                num_rows=fitted.num_rows - len(given.batch.X),
            ),
        )

    @property
    @of_one_moment
    def classes_(self) -> np.ndarray:
        """(classes,) labels seen or declared."""
        check_is_fitted(self)
        return self._classes()[0]

    @property
    @of_one_moment
    def class_count_(self) -> np.ndarray:
        """(classes,) total weight of the rows learned of each class."""
        check_is_fitted(self)
        fitted = self._fitted if self._fitted.on_sums else self._settled()
        return fitted.counts[self._classes()[1]]

    @property
    @of_one_moment
    def inverse_temperature_(self) -> float:
        """The power that `predict_proba` raises scores to."""
        fitted = self._met()
        link = LINKS[self.readout]
        if fitted.guessed_by != self.readout:
            return 1.0

        def compute() -> float:
            if not fitted.on_sums:
                known = self._settled()
                assert known.guesses is not None
                return inverse_temperature(known.guesses, known.counts, link)
            # One way whatever else was asked, so that several threads get the same bits.
            guesses = adding.guesses_of(self._own_setting(), fitted)
            return inverse_temperature(guesses, fitted.counts, link)

        return self._cache.get("power", compute)

    def _check_options(self) -> None:
        one_of("readout", self.readout, READOUTS)
        check_readout_options(self.class_balance, self.shrinkage)
        if self.novelty_score is not None:
            one_of("novelty_score", self.novelty_score, NOVELTY_SCORES)
        weight = self.class_weight
        if weight is not None and weight != "balanced" and not isinstance(weight, dict):
            raise ValueError(f'class_weight: expected None, "balanced" or a dict, got {weight!r}')

    def _options(self) -> dict[str, Any]:
        return {
            "shrinkage": float(self.shrinkage),
            "class_balance": float(self.class_balance),
        }

    def _readout_kind(self) -> str | None:
        return self._fitted.guessed_by

    def _grown(self, given: "_Given") -> Fitted:
        return self._fitted.with_labels(given.labels)

    def _start(self, given: "_Given") -> None:
        labels = given.labels
        capacity = classes_for(len(labels.labels))
        kind = one_of("readout", self.readout, READOUTS)
        self._begin(
            given.batch.X.shape[1] - bool(self.intercept),
            capacity,
            given.batch.X,
            guesses=no_guesses(capacity, LINKS[kind]),
            guessed_by=kind,
            labels=labels,
            rows_of_class=np.zeros(len(labels.labels), int),
            scaling=given.scaling,
            balanced=given.balanced,
        )

    def _checked(
        self,
        X: Any,
        y: Any,
        sample_weight: Any,
        labels: LabelMap,
        *,
        reset: bool,
        whole: bool = False,
    ) -> "_Given":
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        self._design()
        X = self._validated(X, reset=reset)
        y = _labels("y", y)
        rows = X.shape[0]
        if rows != len(y):
            raise ValueError(f"y: expected {rows} labels, one a row of X, got {len(y)}")
        of_rows = row_weights(sample_weight, rows)
        class_weights, balanced = self._class_weights(y, whole)
        weight = of_rows * class_weights
        used = weight > 0
        X, y, weight = X[used], y[used], weight[used]
        if whole and not len(y):
            raise ValueError("sample_weight: expected a row of weight above zero, got none")
        self._labels_so_far(reset).check_kind("y", y)
        labels = labels.extended(y)
        columns = labels.columns("y", y)
        scaling = self._scaling_by(X, of_rows[used], reset=reset)
        seen = np.bincount(columns, minlength=len(labels.labels))
        batch = Batch(self._prepared(X, scaling), columns, weight)
        return _Given(batch, labels, seen, scaling, balanced)

    def _labels_so_far(self, reset: bool) -> LabelMap:
        return LabelMap() if reset else self._fitted.labels

    def _weight_of_class(self, batch: Batch) -> np.ndarray:
        """(capacity,) weight of the batch's rows of each class."""
        return np.bincount(batch.target, batch.weight, self._fitted.capacity)

    def _class_weights(
        self, y: np.ndarray, whole: bool
    ) -> tuple[np.ndarray, Mapping[Any, float] | None]:
        """(rows,) weight of each row's class, and those of all classes where they are balanced."""
        weights: Any = self.class_weight
        balanced: Mapping[Any, float] | None = None
        if weights is None:
            return np.ones(len(y)), None
        if isinstance(weights, dict):
            LabelMap(tuple(weights)).check_kind("class_weight's labels and y", y)
        if weights == "balanced":
            if whole:
                labels = LabelMap().extended(y)
                counts = np.bincount(labels.columns("y", y))
                shares = len(y) / (len(counts) * counts)
                balanced = dict(zip(labels.labels, shares.tolist(), strict=True))
            elif self.__sklearn_is_fitted__():
                balanced = self._fitted.balanced
            if balanced is None:
                raise ValueError(
                    'class_weight: expected None or a dict, got "balanced", which needs the counts'
                    " of all rows in one `fit`; class_balance=1 does without"
                )
            weights = balanced
        return row_weights([weights.get(label, 1.0) for label in y.tolist()], len(y)), balanced

    def _leave_one_out(self, batch: Batch, solved: Any) -> None:
        design, _ = self._same_design()
        fitted = self._fitted
        guesses, counts, balance = fitted.guesses, fitted.counts, float(self.class_balance)
        assert guesses is not None
        for part in in_parts(batch, fitted.rows_at_once):
            rows, _ = self._rows(part, None, design)
            with precision_scope(self.precision):
                if fitted.on_sums:
                    made = additive.leave_one_out(
                        design, fitted.weights, solved, counts, rows, balance
                    )
                else:
                    made = compiled.leave_one_out(design, solved, counts, rows, balance)
            guesses = joined_guesses(guesses, made)
        self._become(fitted._replace(guesses=guesses))

    def _classes(self) -> tuple[np.ndarray, np.ndarray]:
        check_is_fitted(self)
        return self._fitted.classes()

    def _met(self) -> Fitted:
        check_is_fitted(self)
        if not self._fitted.rows_of_class.any():
            raise ValueError("predict: expected at least one class to have been seen, got none")
        return self._fitted

    def _asked(self) -> Fitted:
        self._met()
        return self._settled()

    def _scores(self, X: Any) -> np.ndarray:
        """(n, capacity) scores of the ensemble by column."""
        program = partial(compiled.answer, *self._asking())
        return np.concatenate(self._in_buckets(self._inputs(X), program))

    def _program(self) -> Partial:
        design, *learned = self._asking()
        program = partial(compiled.probable, design, kind=self.readout)
        return Partial(program, *learned, self.inverse_temperature_)

    def _asking(self) -> tuple[Design, Any, Readout, np.ndarray]:
        """Design, weights, readout and (capacity,) which classes were seen."""
        fitted = self._met()
        self._check_options()
        design, _ = self._same_design()
        if not fitted.on_sums:
            fitted = self._settled()
        options = (float(self.class_balance), float(self.shrinkage), self.readout)

        def compute() -> tuple[Readout, Any]:
            counts = fitted.counts
            if fitted.on_sums:
                solved = self._solved(self.readout)
                with precision_scope(self.precision):
                    readout = additive.finished(solved, counts, options[0], kind=self.readout)
            else:
                with precision_scope(self.precision):
                    readout = compiled.ask(fitted.learned, counts, *options)
            return readout, counts > 0

        readout, seen = self._cache.get(options, compute)
        return design, fitted.weights, readout, seen


class _Given(NamedTuple):
    """A checked batch and what follows from it.

    Attributes:
        batch: rows of positive weight, as the network takes them.
        labels: with those of the batch.
        seen: (classes,) rows of each label.
        scaling: of all rows from now on.
        balanced: see `Fitted`.
    """

    batch: Batch
    labels: LabelMap
    seen: np.ndarray
    scaling: Scaling | None
    balanced: Mapping[Any, float] | None


def _labels(name: str, y: Any) -> np.ndarray:
    """Labels of any hashable type, numbers among them integral."""
    if isinstance(y, np.ndarray):
        y = plain_array(name, y)
    if hasattr(y, "to_numpy"):
        y = y.to_numpy()
    if not isinstance(y, np.ndarray | list | tuple):
        y = list(y) if isinstance(y, Set) else np.asarray(y)
    if isinstance(y, np.ndarray) and y.ndim == 2:
        y = column_or_1d(y, warn=True)
    if isinstance(y, np.ndarray) and y.dtype.kind == "b":
        return y
    if isinstance(y, np.ndarray) and y.dtype.kind == "f":
        check_classification_targets(y)
    return clean_labels(name, y, negative=True)
