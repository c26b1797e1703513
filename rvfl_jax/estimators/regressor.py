"""The same learners as a scikit-learn regressor; their theory is one of squared loss anyway."""

from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.tree_util import Partial
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_array, check_is_fitted

from rvfl_jax.core.checks import one_of, plain_array
from rvfl_jax.core.types import ColdStart, Ensemble, Lookahead, Precision, Scale, Solver
from rvfl_jax.estimators import compiled
from rvfl_jax.estimators.base import EdRVFLBase, row_weights
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.learned import Batch
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.estimators.whole import all_or_nothing, of_one_moment
from rvfl_jax.learners.base import ENSEMBLES


class EdRVFLRegressor(RegressorMixin, EdRVFLBase):  # type: ignore[misc]
    """Ensemble deep RVFL regressor that learns batch by batch.

    Example:
        >>> model = EdRVFLRegressor(random_state=0).partial_fit([[0.0], [1.0]], [0.0, 2.0])
        >>> model.partial_fit([[2.0]], [4.0]).predict([[3.0]]).shape
        (1,)

    Each sub-learner's readout is the ridge solution on all rows so far; predictions are the mean
    or the median over sub-learners. Targets are learned as they are: if their size is far from 1,
    rescale them or choose `ridge` accordingly.

    Args:
        num_layers, num_nodes, ridge, k, activation, feature_map, scale, forgetting, lookahead,
            cold_start, solver, weight_init, weight_scale, precision, random_state: see
            `EdRVFLClassifier`. With "auto" all outputs together have one lambda a sub-learner.
        intercept: whether inputs get a constant column.
        ensemble: "mean" or "median" of the sub-learners' predictions.

    Attributes:
        mean_, scale_: (s,) what features are standardised with, for `scale="first"`.
        ridge_: (L,) lambda of the readouts, that chosen now for `ridge="auto"`.
        n_features_in_, feature_names_in_: as everywhere in scikit-learn.
        num_rows_seen_: number of rows given so far.
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

        Args:
            X: (n, s) finite numbers, dense or sparse; see `EdRVFLClassifier.fit`.
            y: (n,) or (n, outputs) finite numbers.
            sample_weight: (n,) at least 0.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        given = self._checked(X, y, sample_weight, reset=True)
        batch = given.batch
        if not len(batch.X):
            raise ValueError("sample_weight: expected a row of weight above zero, got none")
        self._start(given)
        if self._design()[0].additive:
            self._fit_at_once(batch)
        else:
            self._fit_in_batches(batch)

    @all_or_nothing
    def partial_fit(self, X: Any, y: Any, X_next: Any = None, sample_weight: Any = None) -> None:
        """Learn one more batch.

        Args:
            X: (b, s), any number of rows.
            y: (b,) or (b, outputs).
            X_next: (b', s) inputs of the batch that comes next, for k other than 0.
            sample_weight: (b,) at least 0.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on unusable input.
            NumericalError: if a factorisation failed.
        """
        fresh = not self.__sklearn_is_fitted__()
        given = self._checked(X, y, sample_weight, reset=fresh)
        announced = self._announced(X_next, given.scaling)
        self._make_ready(given, fresh=fresh)
        if len(given.batch.X):
            self._learn(given.batch, announced)

    @all_or_nothing
    def unlearn(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        """Remove rows, exactly: the readout becomes that of a model that never saw them.

        Their sums are subtracted, at half the cost of their Gram matrix.

        Args:
            X: (n, s) rows that were learned.
            y: (n,) or (n, outputs) their targets.
            sample_weight: the weights that they were learned with.

        Returns:
            The estimator itself.

        Raises:
            ValueError: on more rows than were learned, or if what would remain cannot be sums over
                rows; see `EdRVFLClassifier.unlearn`, also for what may pass unnoticed.
        """
        check_is_fitted(self)
        self._check_unlearns()
        given = self._checked(X, y, sample_weight, reset=False)
        self._check_outputs(given)
        left = self._fitted.num_rows - len(given.batch.X)
        if left < 0:
            raise ValueError(
                f"unlearn: expected at most {self._fitted.num_rows} rows, got {len(given.batch.X)}"
            )
        fitted = self._left_without(given.batch, None)
        self._become(asked=Asked(), fitted=fitted._replace(num_rows=left))

    @of_one_moment
    def predict(self, X: Any) -> np.ndarray:
        """(n,) or (n, outputs) predictions."""
        program = self._program()
        predicted = np.concatenate(self._in_buckets(self._inputs(X), program))
        return predicted[:, 0] if self._fitted.one_output else predicted

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _program(self) -> Partial:
        check_is_fitted(self)
        program = partial(compiled.predicted, self._same_design()[0])
        if self._fitted.on_sums:
            return Partial(program, self._fitted.weights, self._solved("ridge").theta)
        state = self._settled().learned
        return Partial(program, state.W, state.theta)

    def _check_options(self) -> None:
        one_of("ensemble", self.ensemble, ENSEMBLES)

    def _check_outputs(self, given: "_Given") -> None:
        outputs = given.batch.target.shape[1]
        if outputs != self._fitted.capacity:
            raise ValueError(
                f"y: expected {self._fitted.capacity} outputs a row, as before, got {outputs}"
            )

    def _grown(self, given: "_Given") -> Fitted:
        self._check_outputs(given)
        return self._fitted

    def _start(self, given: "_Given") -> None:
        batch = given.batch
        self._begin(
            batch.X.shape[1] - bool(self.intercept),
            batch.target.shape[1],
            batch.X,
            guesses=None,
            scaling=given.scaling,
            one_output=given.dimensions < 2,
        )

    def _checked(self, X: Any, y: Any, sample_weight: Any, *, reset: bool) -> "_Given":
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        self._design()
        X = self._validated(X, reset=reset)
        if isinstance(y, np.ndarray | jax.Array):
            y = plain_array("y", y)
        y = check_array(y, ensure_2d=False, dtype=float, input_name="y")
        if X.shape[0] != len(y):
            raise ValueError(f"y: expected {X.shape[0]} targets, one a row of X, got {len(y)}")
        weight = row_weights(sample_weight, len(y))
        used = weight > 0
        X, targets, weight = X[used], y.reshape(len(y), -1)[used], weight[used]
        scaling = self._scaling_by(X, weight, reset=reset)
        return _Given(Batch(self._prepared(X, scaling), targets, weight), y.ndim, scaling)


class _Given(NamedTuple):
    """A checked batch, how many axes its targets came with, and the scaling from now on."""

    batch: Batch
    dimensions: int
    scaling: Scaling | None
