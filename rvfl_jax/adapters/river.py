"""The estimators as river has its own: rows are dicts, features and labels come as they come.

river's features may appear at any time, and one that a row lacks is 0. The random network is
therefore drawn for more columns than there are names at first, and a new name takes the next free
column. That is exact: a column that was 0 so far added nothing to any feature but its own, so
that the model is that of a network which had the column from the start.

`learn_many` learns its rows one by one, as `learn_one` does, so that both give the same model to
the last bit; what it saves is the building of rows. For the speed of whole batches call
`partial_fit` of the estimator itself, whose readout is the same to rounding.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from river import base
from sklearn.base import clone

from rvfl_jax.core.checks import positive_int
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.multilabel import EdRVFLMultiLabelClassifier
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.estimators.whole import as_it_stands

FEWEST_COLUMNS = 16


class _OnDicts:
    """What all adapters share: names of columns, and an estimator that is begun by the first row.

    Learning is all or nothing. Nothing that an attribute refers to is changed in place.
    """

    estimator: Any
    max_features: int | None

    def _begin(self) -> None:
        self._names: dict[Any, int] = {}
        self._room: int | None = None
        self._model: Any = None

    @property
    def features(self) -> list[Any]:
        """Names of features in the order of their columns."""
        return list(self._names)

    def _named(self, names: Iterable[Any]) -> tuple[dict[Any, int], int]:
        """The column of each name, new ones included, and how many columns there are.

        Raises:
            ValueError: where there are too few.
        """
        fresh = sorted((name for name in names if name not in self._names), key=str)
        known = self._names | {name: len(self._names) + i for i, name in enumerate(fresh)}
        room = self._room
        if room is None:
            chosen = self.max_features
            room = max(2 * len(known), FEWEST_COLUMNS) if chosen is None else chosen
            room = positive_int("max_features", room)
        if len(known) > room:
            raise ValueError(
                f"x: expected at most {room} names of features over all rows, got {len(known)} with"
                f" {fresh[-1]!r}; give max_features"
            )
        return known, room

    def _learned(self, rows: np.ndarray, targets: list[Any]) -> Any:
        """The model once it has learned rows one by one."""
        if self._model is None:
            model = clone(self.estimator)
            if model.scale == "first":
                raise ValueError(
                    'scale: expected "none", for one row tells no scale, got "first"; put river\'s'
                    " StandardScaler before the model"
                )
        else:
            model = as_it_stands(self._model)
        for row, target in zip(rows, targets, strict=True):
            self._learn_row(model, row[None], target)
        return model

    def _learn_row(self, model: Any, row: np.ndarray, target: Any) -> None:
        model.partial_fit(row, [target])

    def _learn(self, names: Iterable[Any], rows: Any, targets: list[Any]) -> None:
        """Learn rows, which are made by `rows` of the names' columns and the number of columns."""
        known, room = self._named(names)
        model = self._learned(rows(known, room), targets)
        self._names, self._room, self._model = known, room, model

    def _row(self, x: dict[Any, Any]) -> np.ndarray:
        """(1, columns) of a row to predict; names that were never learned are left out."""
        assert self._room is not None
        return _row_of(
            {name: x[name] for name in x if name in self._names}, self._names, self._room
        )

    def _table(self, X: pd.DataFrame) -> np.ndarray:
        """(n, columns) of rows to predict."""
        assert self._room is not None
        known = [name for name in X.columns if name in self._names]
        return _table_of(X[known], self._names, self._room)

    def learn_one(self, x: dict[Any, Any], y: Any) -> None:
        """Learn a row: its label of any hashable kind, its target, or which labels it has.

        Raises:
            ValueError: on a value that is no finite number, too many names, or a row of several
                labels that names none.
        """
        self._learn(x, lambda columns, room: _row_of(x, columns, room), [_plain(y)])


class _InBatches(_OnDicts):
    """An adapter that also takes frames of rows."""

    def learn_many(self, X: pd.DataFrame, y: pd.Series) -> None:
        """Learn rows one by one; the model is that of `learn_one` on each, to the last bit.

        Raises:
            ValueError: as `learn_one`; then none of the rows is learned.
        """
        if not len(X):
            return
        self._learn(X.columns, lambda columns, room: _table_of(X, columns, room), y.tolist())


class RiverClassifier(_InBatches, base.MiniBatchClassifier):  # type: ignore[misc]
    """`EdRVFLClassifier` as a classifier of river.

        from river import datasets, evaluate, metrics, preprocessing

        model = preprocessing.StandardScaler() | RiverClassifier()
        evaluate.progressive_val_score(datasets.Phishing(), model, metrics.Accuracy())

    Before anything was learned there are no probabilities, and `predict_one` gives None.
    Asking after every row costs a solution for the readout, or an update of low rank; where
    answers are needed now and then only, rows cost a product each time that enough have come.
    On the 1,250 rows above the default model took 12 ms of a busy processor a row when asked
    before each, and 0.4 ms when it only learned; river's logistic regression took 0.02 ms, at
    89.3 % against 90.4 %.

    Args:
        estimator: an `EdRVFLClassifier` that says how to learn, and is not changed; None takes one
            with `random_state=0`.
        max_features: names that there may be, a column each; None takes twice those of the first
            row or batch, at least 16. The width of the model grows with it. A row to learn with a
            name too many is refused, and in rows to predict, names that were never learned are
            left out.

    Attributes:
        features: names in the order of their columns.
    """

    def __init__(
        self, estimator: EdRVFLClassifier | None = None, max_features: int | None = None
    ) -> None:
        self.estimator = EdRVFLClassifier(random_state=0) if estimator is None else estimator
        self.max_features = max_features
        self._begin()

    @property
    def _multiclass(self) -> bool:
        return True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"estimator": EdRVFLClassifier(num_layers=1, num_nodes=8, random_state=0)}

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The calibrated probability of each label seen; {} before there are any."""
        if self._model is None:
            return {}
        found = self._model.predict_proba(self._row(x))[0]
        return dict(zip(self._model.classes_.tolist(), found.tolist(), strict=True))

    def predict_proba_many(self, X: pd.DataFrame) -> pd.DataFrame:
        """The calibrated probability of each label seen, a column each."""
        if self._model is None or not len(X):
            return pd.DataFrame(index=X.index)
        found = self._model.predict_proba(self._table(X))
        columns = pd.Index(self._model.classes_.tolist(), dtype=object)
        return pd.DataFrame(found, index=X.index, columns=columns)

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The most probable label of each row; None before there are any."""
        found = self.predict_proba_many(X)
        if not found.shape[1]:
            return pd.Series([None] * len(X), index=X.index, dtype=object)
        return found.idxmax(axis="columns")


class RiverRegressor(_InBatches, base.MiniBatchRegressor):  # type: ignore[misc]
    """`EdRVFLRegressor` as a regressor of river.

    Before anything was learned it predicts 0.

    Args:
        estimator: an `EdRVFLRegressor` that says how to learn, and is not changed; None takes one
            with `random_state=0`.
        max_features: see `RiverClassifier`.

    Attributes:
        features: names in the order of their columns.
    """

    def __init__(
        self, estimator: EdRVFLRegressor | None = None, max_features: int | None = None
    ) -> None:
        self.estimator = EdRVFLRegressor(random_state=0) if estimator is None else estimator
        self.max_features = max_features
        self._begin()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"estimator": EdRVFLRegressor(num_layers=1, num_nodes=8, random_state=0)}

    def predict_one(self, x: dict[Any, Any]) -> float:
        """The prediction; 0 before anything was learned."""
        return 0.0 if self._model is None else float(self._model.predict(self._row(x))[0])

    def predict_many(self, X: pd.DataFrame) -> pd.Series:
        """The prediction of each row."""
        if self._model is None or not len(X):
            return pd.Series(np.zeros(len(X)), index=X.index)
        return pd.Series(self._model.predict(self._table(X)), index=X.index)


class RiverMultiLabelClassifier(_OnDicts, base.MultiLabelClassifier):  # type: ignore[misc]
    """`EdRVFLMultiLabelClassifier` as a classifier of rows with several labels in river.

    A label may be new at any time; rows before it, and rows that do not name it, count as rows
    without it. Before anything was learned there are no labels to predict.

    Args:
        estimator: an `EdRVFLMultiLabelClassifier` that says how to learn, and is not changed; None
            takes one with `random_state=0`.
        max_features: see `RiverClassifier`.

    Attributes:
        features: names in the order of their columns.
    """

    def __init__(
        self,
        estimator: EdRVFLMultiLabelClassifier | None = None,
        max_features: int | None = None,
    ) -> None:
        given = EdRVFLMultiLabelClassifier(random_state=0) if estimator is None else estimator
        self.estimator = given
        self.max_features = max_features
        self._begin()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"estimator": EdRVFLMultiLabelClassifier(num_layers=1, num_nodes=8, random_state=0)}

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, bool]:
        """Whether the row has each label, by its own threshold."""
        if self._model is None:
            return {}
        found = self._model.predict(self._row(x))[0].astype(bool)
        return dict(zip(self._model.classes_.tolist(), found.tolist(), strict=True))

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, dict[bool, float]]:
        """Of each label, the probability that the row lacks it and that it has it."""
        if self._model is None:
            return {}
        found = self._model.predict_proba(self._row(x))[0].tolist()
        labels = self._model.classes_.tolist()
        return {label: {False: 1.0 - p, True: p} for label, p in zip(labels, found, strict=True)}

    def _learn_row(self, model: Any, row: np.ndarray, target: Any) -> None:
        model.partial_fit(row, [[bool(value) for value in target.values()]], labels=list(target))


def _row_of(x: dict[Any, Any], columns: dict[Any, int], room: int) -> np.ndarray:
    """(1, room) with every value in its column."""
    row = np.zeros((1, room))
    for name, value in x.items():
        row[0, columns[name]] = _number(name, value)
    return row


def _table_of(X: pd.DataFrame, columns: dict[Any, int], room: int) -> np.ndarray:
    """(n, room) with every column in its place."""
    table = np.zeros((len(X), room))
    for name in X.columns:
        values = X[name].to_numpy()
        if values.dtype.kind not in "biuf":
            values = np.array([_number(name, value) for value in values.tolist()])
        table[:, columns[name]] = values
    return table


def _number(name: Any, value: Any) -> float:
    if isinstance(value, str):
        _refuse(name, value)
    try:
        return float(value)
    except (TypeError, ValueError):
        return _refuse(name, value)


def _refuse(name: Any, value: Any) -> float:
    raise ValueError(
        f"x: expected numbers, got {value!r} as {name!r}; put an encoder such as river's"
        " OneHotEncoder before the model"
    ) from None


def _plain(label: Any) -> Any:
    return label.item() if isinstance(label, np.generic) else label
