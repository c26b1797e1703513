"""Sparse rows: what the same dense rows give, without all of them dense at once."""

import tracemalloc

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import NotFittedError

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, adaptive_k
from rvfl_jax.estimators import sparse
from tests.tolerances import REORDERED

OPTIONS = {"num_nodes": 16, "num_layers": 2, "random_state": 0}


def rows(count=300, width=40, seed=0):
    X = sp.random_array((count, width), density=0.1, rng=seed, format="csr")
    return X, (X[:, [0]].toarray()[:, 0] > 0) + 2 * (np.arange(count) % 2)


@pytest.fixture
def lazy(monkeypatch):
    """Few rows are kept sparse, too."""
    monkeypatch.setattr(sparse, "FEWEST", 8)


@pytest.mark.parametrize("kind", [sp.csr_matrix, sp.coo_array])
def test_fit_gives_the_bits_of_dense_rows(lazy, kind):
    X, y = rows()
    model = EdRVFLClassifier(**OPTIONS).fit(kind(X), y)
    dense = EdRVFLClassifier(**OPTIONS).fit(X.toarray(), y)
    np.testing.assert_array_equal(model.predict_proba(kind(X)), dense.predict_proba(X.toarray()))
    np.testing.assert_array_equal(model.predict_std(kind(X)), dense.predict_std(X.toarray()))
    assert model.score(X, y) == dense.score(X.toarray(), y)


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"intercept": False, "readout": "discriminant"},
        pytest.param({"k": adaptive_k()}, marks=pytest.mark.slow),
        pytest.param({"forgetting": 0.99}, marks=pytest.mark.slow),
        pytest.param({"precision": "single"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_batches_and_unlearning(lazy, more):
    X, y = rows()
    models = [EdRVFLClassifier(**OPTIONS | more) for _ in range(2)]
    for model, given in zip(models, (X, X.toarray()), strict=True):
        model.partial_fit(given[:5], y[:5])
        model.partial_fit(given[5:200], y[5:200], sample_weight=np.arange(195) % 3)
        model.partial_fit(given[200:], y[200:])
        if model.forgetting == 1.0 and not more.get("k"):
            model.unlearn(given[200:], y[200:])
    sure, expected = models[0].predict_proba(X), models[1].predict_proba(X.toarray())
    np.testing.assert_allclose(sure, expected, rtol=0, atol=REORDERED)


def test_a_regressor_and_what_it_goes_on_with(lazy):
    X, y = rows()
    model = EdRVFLRegressor(**OPTIONS).fit(X, y)
    dense = EdRVFLRegressor(**OPTIONS).fit(X.toarray(), y)
    np.testing.assert_array_equal(model.predict(X), dense.predict(X.toarray()))
    # What began with dense rows goes on with sparse ones, scaled as they are.
    for scaled in (EdRVFLRegressor, EdRVFLClassifier):
        model = scaled(**OPTIONS, scale="first").fit(X.toarray(), y)
        np.testing.assert_array_equal(model.predict(X), model.predict(X.toarray()))


@pytest.mark.slow
def test_memory_is_that_of_a_block():
    X, y = rows(60_000, 500)
    model = EdRVFLClassifier(num_nodes=8, num_layers=1, random_state=0)
    model.partial_fit(X[:5000], y[:5000])
    tracemalloc.start()
    model.partial_fit(X, y)
    model.predict(X)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < X.shape[0] * X.shape[1] * 8 / 2


def test_what_is_refused():
    X, y = rows()
    wide = sp.csr_array((300, 2**18))
    for learn in (EdRVFLClassifier().fit, EdRVFLRegressor().partial_fit):
        with pytest.raises(ValueError, match=r"at most 8192 sparse columns.*IncrementalPipeline"):
            learn(wide, y)
    with pytest.raises(ValueError, match='scale: expected "none" for sparse X'):
        EdRVFLClassifier(scale="first").fit(X, y)
    bad = X.copy()
    bad.data[3] = np.nan
    model = EdRVFLClassifier(**OPTIONS)
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit(bad, y)
    with pytest.raises(NotFittedError):
        model.predict(X)
