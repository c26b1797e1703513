"""Several estimators made one, and regressors that merge and unlearn."""

import numpy as np
import pytest

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, adaptive_k, merge
from tests import references, tolerances
from tests.estimators.test_estimator import SMALL, assert_close, blobs

X, LABELS = blobs(num_rows=240, num_classes=3, num_features=4)
Y = np.column_stack([X @ [1.0, -2.0, 0.5, 3.0], np.sin(X[:, 0])])
PARTS = [slice(0, 50), slice(50, 51), slice(51, 140), slice(140, 240)]


def classifiers(**options):
    models = [EdRVFLClassifier(**SMALL | options) for _ in PARTS]
    return [model.partial_fit(X[p], LABELS[p]) for model, p in zip(models, PARTS, strict=True)]


def regressors(**options):
    models = [EdRVFLRegressor(**SMALL | options) for _ in PARTS]
    return [model.partial_fit(X[p], Y[p]) for model, p in zip(models, PARTS, strict=True)]


def dense(model, rows):
    """(L, d, outputs) of ridge regression on rows, solved densely."""
    W = np.asarray(model._fitted.state.W)
    D = references.features(W, np.hstack([X[rows], np.ones((len(X[rows]), 1))]))
    return np.stack([references.ridge_solution(D_l, Y[rows], model.ridge) for D_l in D])


def theta(model):
    return np.asarray(model._fitted.state.theta)


def test_several_classifiers_become_one():
    models = classifiers()
    before = [model.decision_function(X) for model in models]
    both = EdRVFLClassifier(**SMALL).fit(X, LABELS)
    merged = merge(*models)
    assert_close(merged.decision_function(X), both.decision_function(X), tolerances.CLOSED_FORM)
    assert merged.class_count_.tolist() == both.class_count_.tolist()
    assert merged.num_rows_seen_ == len(X)
    for model, scores in zip(models, before, strict=True):
        np.testing.assert_array_equal(model.decision_function(X), scores)


@pytest.mark.parametrize("options", [{}, {"solver": "square_root"}], ids=["sums", "states"])
def test_several_regressors_become_one(options):
    merged = merge(*regressors(**options))
    assert_close(theta(merged), dense(merged, slice(0, 240)), tolerances.CLOSED_FORM)
    assert merged.num_rows_seen_ == len(X)
    assert merged.predict(X).shape == Y.shape


@pytest.mark.parametrize("options", [{}, {"solver": "square_root"}], ids=["sums", "states"])
def test_a_regressor_unlearns(options):
    model = EdRVFLRegressor(**SMALL | options).fit(X, Y)
    model.unlearn(X[60:], Y[60:])
    assert_close(theta(model), dense(model, slice(0, 60)), tolerances.CLOSED_FORM)
    assert model.num_rows_seen_ == 60
    model.partial_fit(X[60:], Y[60:])
    assert_close(theta(model), dense(model, slice(0, 240)), tolerances.CLOSED_FORM)


def test_a_regressor_unlearns_with_weights():
    model, weight = EdRVFLRegressor(**SMALL), np.random.default_rng(0).uniform(0.5, 2.0, 240)
    model.fit(X, Y[:, 0], sample_weight=weight)
    want = EdRVFLRegressor(**SMALL).fit(X[60:], Y[60:, 0], sample_weight=weight[60:]).predict(X)
    found = model.unlearn(X[:60], Y[:60, 0], sample_weight=weight[:60]).predict(X)
    assert_close(found, want, tolerances.CLOSED_FORM)


def test_rows_that_a_regressor_never_learned_are_refused():
    model = EdRVFLRegressor(**SMALL).fit(X[:40], Y[:40])
    before = model.predict(X)
    for rows, targets, told in (
        (X[:2], Y[:2, 0], "expected 2 outputs a row"),
        (X[:50], Y[:50], "expected at most 40 rows, got 50"),
        (X[:2], 1e4 + Y[:2], "negative squared errors"),
        (1e3 * X[100:110], Y[100:110], "not positive definite|negative squared errors"),
    ):
        with pytest.raises(ValueError, match=told):
            model.unlearn(rows, targets)
        np.testing.assert_array_equal(model.predict(X), before)


@pytest.mark.parametrize(
    "options",
    [{"forgetting": 0.9}, {"cold_start": "paper"}, {"k": adaptive_k()}],
    ids=["forgetting", "cold start", "bayes"],
)
def test_what_is_not_that_of_its_rows_is_refused(options):
    a, b, *_ = regressors(**options)
    with pytest.raises(ValueError, match="a: expected forgetting=1"):
        merge(a, b)
    with pytest.raises(ValueError, match="unlearn: expected forgetting=1"):
        a.unlearn(X[:5], Y[:5])


def test_what_does_not_fit_is_named():
    a, b, c, _ = regressors()
    other = EdRVFLRegressor(**SMALL).fit(X, Y[:, 0])
    with pytest.raises(ValueError, match="c: expected 2 outputs a row, got 1"):
        merge(a, b, other)
    with pytest.raises(ValueError, match="d: expected an EdRVFLRegressor, got EdRVFLClassifier"):
        merge(a, b, c, classifiers()[0])
    with pytest.raises(ValueError, match="c: expected the random weights of a"):
        merge(a, b, EdRVFLRegressor(**SMALL | {"random_state": 5}).fit(X, Y))
