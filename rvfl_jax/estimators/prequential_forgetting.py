"""How fast to forget, chosen while a stream goes on, by guesses made before rows are learned."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.utils import check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from rvfl_jax.core.checks import is_number, positive_int
from rvfl_jax.core.words import in_brief
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.whole import TURN, all_or_nothing, as_it_stands, of_one_moment

FACTORS = (1.0, 0.9999, 0.999, 0.99)
# Standard errors that a candidate has to be ahead.
ERRORS = 2.0


@in_brief
class Losses(NamedTuple):
    """Faded sums over the rows guessed, of the losses l (c,) of c candidates.

    Attributes:
        weight: () of the rows.
        squared_weight: () of squares of these weights.
        loss: (c,) of l.
        product: (c, c) of l l^T.
    """

    weight: float
    squared_weight: float
    loss: np.ndarray
    product: np.ndarray

    @classmethod
    def none(cls, candidates: int) -> "Losses":
        """Before anything was guessed."""
        return cls(0.0, 0.0, np.zeros(candidates), np.zeros((candidates, candidates)))

    def plus(self, losses: np.ndarray, weight: np.ndarray, fading: float) -> "Losses":
        """With rows (b, c), each of which makes all before it worth `fading` times as much."""
        count = len(losses)
        worth = weight * fading ** np.arange(count - 1, -1, -1)
        past = fading**count
        return Losses(
            past * self.weight + worth.sum(),
            past**2 * self.squared_weight + np.sum(worth**2),
            past * self.loss + worth @ losses,
            past * self.product + (worth[:, None] * losses).T @ losses,
        )

    @property
    def mean(self) -> np.ndarray:
        """(c,) faded mean loss; NaN before anything was guessed."""
        return self.loss / self.weight if self.weight > 0 else np.full(len(self.loss), np.nan)

    def chosen(self, margin: float) -> int:
        """The first candidate that the best one does not clearly beat.

        That is one whose mean is larger by at most two standard errors of their difference row by
        row, or by at most `margin` times the best mean.
        """
        if not self.weight > 0:
            return 0
        mean = self.mean
        best = int(np.argmin(mean))
        squares = np.diag(self.product)
        square = squares + squares[best] - 2.0 * self.product[:, best]
        variance = np.maximum(square / self.weight - (mean - mean[best]) ** 2, 0.0)
        error = np.sqrt(variance * self.squared_weight) / self.weight
        return int(np.argmax(mean - mean[best] <= np.maximum(ERRORS * error, margin * mean[best])))


class PrequentialForgetting(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """An estimator that chooses its forgetting factor while it learns.

    Example:
        >>> model = PrequentialForgetting(EdRVFLClassifier(num_nodes=32, random_state=0))
        >>> for start in range(0, 400, 100):
        ...     rows = slice(start, start + 100)
        ...     model = model.partial_fit(X[rows], y[rows])
        >>> model.forgetting_
        1.0

    One model a candidate factor learns the same rows, on the same random network. Every batch is
    first guessed by all of them, which gives each the loss of its guesses: the squared error of
    probabilities (Brier's score) of a classifier, that of predictions of a regressor. Losses fade
    as rows pass. Answers are those of the model that forgets least among all that the best one
    does not clearly beat: by more than two standard errors of the difference, and by more than
    `margin`. So nothing is forgotten where forgetting does not clearly help, and another model,
    which has learned all along, takes over at once where it does.

    Memory and time are those of all candidates together, c times those of one model; more if
    batches are small, since a model that forgets solves at every call, at O(d^3), and guesses by
    the others take a solution too. Some batches pass after a drift until a model that forgets is
    clearly ahead. Where nothing drifts, one that forgets may still be better by luck, for as long
    as it remembers; that is what `margin` is for, and a drift that costs less than that is
    not followed. With batches much longer than 1 / (1 - factor) rows a factor forgets most of
    its own batch.

    On ten streams of 2,000 rows whose two classes change places in the middle, in batches of 50
    and with the factors 1, 0.999 and 0.99, it guessed 83.0 % right, 0.99 by itself 84.3 % and 1
    53.5 %; it forgot 100 or 150 rows after the change. On the same streams without it, it guessed
    89.3 % right, and 1 by itself 89.2 % (`python -m experiments.drift`).

    Args:
        estimator: `EdRVFLClassifier` or `EdRVFLRegressor` whose `forgetting` is to be chosen; it
            is not changed. None takes a classifier.
        factors: candidates, from the largest to the smallest.
        fading: weight of a row's loss after one more row, above 0 and at most 1. 0.999 looks
            at about the last 1,000 rows: shorter follows drift faster and errs more by chance.
        margin: share of the loss that forgetting has to save, at least 0.
        batch_size: rows of each batch of `fit`.

    Attributes:
        forgetting_: the factor in force.
        losses_: (c,) faded mean loss of each candidate; NaN before anything was guessed.
        models_: one for each factor.
        best_model_: that of the factor in force.

    Saving: pickle it, or save `best_model_` by `save_model` and go on with its factor.

    Source: guessing first and then learning is Dawid (1984), fading factors are those of Gama,
    Sebastião and Rodrigues (2013); to take the simplest of the models that no other clearly beats
    is the rule of Breiman et al. (1984), who ask for one standard error.
    """

    def __init__(
        self,
        estimator: Any = None,
        factors: Sequence[float] = FACTORS,
        fading: float = 0.999,
        margin: float = 0.05,
        batch_size: int = 100,
    ):
        self.estimator = estimator
        self.factors = factors
        self.fading = fading
        self.margin = margin
        self.batch_size = batch_size

    @all_or_nothing
    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Forget everything, and learn these rows in their order, batch by batch.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        size = positive_int("batch_size", self.batch_size)
        self._begin()
        for start in range(0, max(_rows_in(X), 1), size):
            here = slice(start, start + size)
            weight = None if sample_weight is None else sample_weight[here]
            self._learn(_part(X, here), _part(y, here), weight, {})

    @all_or_nothing
    def partial_fit(
        self, X: Any, y: Any, classes: Any = None, X_next: Any = None, sample_weight: Any = None
    ) -> None:
        """Guess one more batch by every candidate, and let all of them learn it.

        Args:
            X: (b, s), any number of rows.
            y: (b,) labels or targets.
            classes: labels to expect, for classifiers.
            X_next: (b', s) inputs of the batch that comes next, for k other than 0.
            sample_weight: (b,) at least 0.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        if not self.__sklearn_is_fitted__():
            self._begin()
        options = {"classes": classes, "X_next": X_next}
        given = {name: value for name, value in options.items() if value is not None}
        self._learn(X, y, sample_weight, given)

    @of_one_moment
    def predict(self, X: Any) -> np.ndarray:
        """What the model of the factor in force predicts."""
        return self.best_model_.predict(X)

    @available_if(lambda self: not is_regressor(self._template()))  # type: ignore[untyped-decorator]
    @of_one_moment
    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, classes) probabilities of the model of the factor in force."""
        return self.best_model_.predict_proba(X)

    @of_one_moment
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Accuracy of a classifier, R^2 of a regressor."""
        return float(self.best_model_.score(X, y, sample_weight))

    @property
    def best_model_(self) -> Any:
        """The model of the factor in force."""
        check_is_fitted(self)
        return self.models_[self._losses.chosen(float(self.margin))]

    @property
    def forgetting_(self) -> float:
        """The factor in force."""
        return float(self.best_model_.forgetting)

    @property
    def losses_(self) -> np.ndarray:
        """(c,) faded mean loss of each candidate."""
        check_is_fitted(self)
        return self._losses.mean

    @property
    def classes_(self) -> np.ndarray:
        """Labels seen or declared."""
        return self.best_model_.classes_

    @property
    def n_features_in_(self) -> int:
        """Features of a row."""
        return int(self.best_model_.n_features_in_)

    def __getstate__(self) -> dict[str, Any]:
        state = dict(BaseEstimator.__getstate__(as_it_stands(self)))
        state.pop(TURN, None)
        return state

    def __sklearn_is_fitted__(self) -> bool:
        """Whether anything was learned."""
        return "models_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags, own = super().__sklearn_tags__(), get_tags(self._template())
        tags.estimator_type = own.estimator_type
        tags.classifier_tags, tags.regressor_tags = own.classifier_tags, own.regressor_tags
        tags.target_tags = own.target_tags
        return tags

    def _template(self) -> Any:
        return EdRVFLClassifier() if self.estimator is None else self.estimator

    def _begin(self) -> None:
        factors = list(self.factors)
        falls = all(a > b for a, b in pairwise(factors))
        if not factors or not falls:
            raise ValueError(f"factors: expected numbers that fall, got {factors}")
        if not is_number(self.fading) or not 0 < self.fading <= 1:
            raise ValueError(f"fading: expected above 0 and at most 1, got {self.fading!r}")
        if not is_number(self.margin) or self.margin < 0:
            raise ValueError(f"margin: expected at least 0, got {self.margin!r}")
        template = self._template()
        # What tells them apart is to be forgetting, and not the network.
        seed = check_random_state(template.random_state).randint(np.iinfo(np.int32).max)
        self.models_ = [
            clone(template).set_params(forgetting=factor, random_state=int(seed))
            for factor in factors
        ]
        self._losses = Losses.none(len(factors))

    def _learn(self, X: Any, y: Any, sample_weight: Any, options: dict[str, Any]) -> None:
        losses = None
        if self.models_[0].__sklearn_is_fitted__() and _rows_in(X):
            losses = np.column_stack([_losses_of(model, X, y) for model in self.models_])
        models = [as_it_stands(model) for model in self.models_]
        for model in models:
            model.partial_fit(X, y, sample_weight=sample_weight, **options)
        # What could not be learned is not counted, either.
        self.models_ = models
        if losses is not None:
            weight = np.ones(len(losses)) if sample_weight is None else sample_weight
            weight = np.broadcast_to(np.asarray(weight, float), len(losses))
            self._losses = self._losses.plus(losses, weight, float(self.fading))


def _losses_of(model: Any, X: Any, y: Any) -> np.ndarray:
    """(n,) squared errors of a model that has not learned these rows."""
    if is_regressor(model):
        gap = np.asarray(y, float) - model.predict(X)
        return np.sum(gap.reshape(len(gap), -1) ** 2, axis=1)
    P = model.predict_proba(X)
    column_of = {label: column for column, label in enumerate(model.classes_.tolist())}
    targets = np.asarray(y).tolist() if not isinstance(y, list) else y
    columns = np.array([column_of.get(label, -1) for label in targets])
    of_true = np.where(columns >= 0, P[np.arange(len(P)), columns], 0.0)
    # ||p - e_y||^2
    return np.sum(P**2, axis=1) - 2.0 * of_true + 1.0


def _rows_in(X: Any) -> int:
    return int(X.shape[0]) if hasattr(X, "shape") else len(X)


def _part(rows: Any, here: slice) -> Any:
    return rows.iloc[here] if hasattr(rows, "iloc") else rows[here]
