"""`IncrementalPipeline`: scikit-learn's `Pipeline`, learning batch by batch."""

from typing import Any

from sklearn.exceptions import NotFittedError
from sklearn.pipeline import Pipeline
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

PASSED = (None, "passthrough")


def _last_has(name: str) -> Any:
    """Whether the last step can do that, as scikit-learn asks."""
    return available_if(lambda pipeline: hasattr(pipeline.steps[-1][1], name))


class IncrementalPipeline(Pipeline):  # type: ignore[misc]
    """A `Pipeline` with `partial_fit`, whose preprocessing is that of the first rows.

    Example:
        >>> from sklearn.feature_extraction.text import HashingVectorizer
        >>> from rvfl_jax import EdRVFLClassifier, IncrementalPipeline
        >>> words, model = HashingVectorizer(n_features=1024), EdRVFLClassifier(random_state=0)
        >>> intents = IncrementalPipeline([("words", words), ("model", model)])
        >>> for intent, sentences in {
        ...     "delivery": ["where is my parcel", "track the parcel"],
        ...     "password": ["reset my password", "I forgot the password"],
        ... }.items():
        ...     _ = intents.partial_fit(sentences, [intent] * len(sentences))
        >>> intents.predict(["the password is lost", "is my parcel late"]).tolist()
        ['password', 'delivery']

    A `ColumnTransformer` in place of the words takes data frames: its imputers, scalers and
    encoders are those of the first rows, and `OneHotEncoder(handle_unknown="ignore")` gives later
    values no feature.

    The first call of `partial_fit` fits every step on its rows; later calls, like predictions,
    only transform. What was learned is a sum over rows as they were transformed, so that a
    step which went on changing would leave it a sum of rows of different meanings. Steps that need
    to see more than the first batch are fitted by one call of `fit` on enough rows; `partial_fit`
    goes on from there.
    """

    steps: list[tuple[str, Any]]

    @_last_has("partial_fit")  # type: ignore[untyped-decorator]
    def partial_fit(self, X: Any, y: Any = None, **params: Any) -> "IncrementalPipeline":
        """Learn one more batch.

        Args:
            X: rows, as the first step takes them.
            y: what the last step takes.
            params: for the last step's `partial_fit`; `X_next` is transformed as X is.

        Returns:
            The pipeline itself.
        """
        if not self._has_begun():
            for _, step in self.steps[:-1]:
                # Where the model then learns nothing, the next call fits all steps anew.
                X = X if step in PASSED else step.fit_transform(X, y)
        else:
            X = self._inputs(X)
        if params.get("X_next") is not None:
            params["X_next"] = self._inputs(params["X_next"])
        self.steps[-1][1].partial_fit(X, y, **params)
        return self

    @_last_has("unlearn")  # type: ignore[untyped-decorator]
    def unlearn(self, X: Any, y: Any, **params: Any) -> "IncrementalPipeline":
        """Remove rows that were learned, exactly; see `EdRVFLClassifier.unlearn`.

        Args:
            X: rows, as the first step takes them.
            y: their labels.
            params: for the last step's `unlearn`.

        Returns:
            The pipeline itself.
        """
        check_is_fitted(self)
        self.steps[-1][1].unlearn(self._inputs(X), y, **params)
        return self

    def _inputs(self, X: Any) -> Any:
        """Rows as the last step takes them."""
        for _, step in self.steps[:-1]:
            X = X if step in PASSED else step.transform(X)
        return X

    def _has_begun(self) -> bool:
        try:
            check_is_fitted(self.steps[-1][1])
        except NotFittedError:
            return False
        return True
