"""Rows of a sparse matrix, of which only those that are at work are dense.

What is computed from rows is dense: hidden nodes, and the Gram matrix of features whose direct
links are the inputs themselves. A matrix of as many columns as there are words is refused, with two
remedies: to hash words to fewer columns, or to project the matrix. Where sums are kept, no more
rows are dense at once than a program takes; where a state is, those of one batch are.
"""

from typing import Any

import numpy as np
from scipy.sparse import issparse

from rvfl_jax.estimators.scaling import Scaling

# As many direct links, whose Gram matrix has half a gigabyte a sub-learner.
MOST_COLUMNS = 8192
# Fewer rows are made dense at once.
FEWEST = 4096


class SparseRows:
    """(n, s) rows in CSR, scaled and with a constant column once they are dense.

    A slice of rows is a dense array; rows in another order are sparse again.
    """

    def __init__(self, X: Any, scaling: Scaling | None, intercept: bool) -> None:
        self._X, self._scaling, self._intercept = X, scaling, intercept

    @property
    def shape(self) -> tuple[int, int]:
        """(n, s), the constant column included."""
        rows, columns = self._X.shape
        return rows, columns + self._intercept

    def __len__(self) -> int:
        return int(self._X.shape[0])

    def __getitem__(self, key: Any) -> Any:
        if isinstance(key, slice):
            return prepared(self._X[key].toarray(), self._scaling, self._intercept)
        if isinstance(key, tuple):
            return self[:][key]
        return SparseRows(self._X[key], self._scaling, self._intercept)

    def astype(self, dtype: Any) -> np.ndarray:
        """All of them, dense."""
        dense: np.ndarray = self[:].astype(dtype)
        return dense

    def copy(self) -> np.ndarray:
        """All of them, dense."""
        dense: np.ndarray = self[:]
        return dense


def rows_of(X: Any, scaling: Scaling | None, intercept: bool) -> Any:
    """Validated rows, dense or in CSR, as the network takes them."""
    if issparse(X) and X.shape[0] > FEWEST:
        return SparseRows(X, scaling, intercept)
    return prepared(X.toarray() if issparse(X) else X, scaling, intercept)


def prepared(X: np.ndarray, scaling: Scaling | None, intercept: bool) -> np.ndarray:
    """Dense rows, scaled and with the constant column."""
    if scaling is not None:
        X = scaling.of(X)
    if not intercept:
        return X
    dtype = X.dtype if X.dtype.kind == "f" else float
    return np.hstack([X.astype(dtype, copy=False), np.ones((len(X), 1), dtype)])


def check_columns(X: Any) -> None:
    """Refuse a sparse matrix of more columns than `MOST_COLUMNS`.

    Raises:
        ValueError: with the remedy.
    """
    if issparse(X) and X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"X: expected at most {MOST_COLUMNS} sparse columns, each of which has a direct link,"
            f" got {X.shape[1]}; give HashingVectorizer n_features=1024, or put"
            " sklearn.random_projection.SparseRandomProjection(1024, dense_output=True) before the"
            " model in an IncrementalPipeline"
        )
