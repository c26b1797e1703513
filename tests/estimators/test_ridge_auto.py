"""ridge="auto": generalised cross-validation of the sums against hat matrices of all rows."""

import numpy as np
import pytest

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, load_model, merge, save_model
from rvfl_jax.estimators import hosted
from rvfl_jax.learners.edrvfl.gcv import LEAST, RIDGES, best_ridges
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from tests import references, tolerances
from tests.estimators.test_estimator import assert_close, blobs, in_batches

X, Y = blobs(num_rows=240, num_features=12, spread=2.0)
WEIGHT = np.random.default_rng(3).integers(0, 4, 240) / 2.0
OPTIONS = {"num_layers": 2, "num_nodes": 20, "ridge": "auto", "random_state": 0}


def described(model, Z):
    """(L, n, d) of a model with random layers."""
    W = np.asarray(model._fitted.weights.whole())
    return references.features(W, np.hstack([Z, np.ones((len(Z), 1))]))


def targets(model, y):
    """(n, m), columns in the order of appearance."""
    return np.eye(16)[model._fitted.labels.columns("y", y)]


def score(D, T, ridge, weight):
    """The GCV score by the hat matrix of weighted rows; their weights add up to n."""
    root, n = np.sqrt(weight)[:, None], weight.sum()
    D, T = root * D, root * T
    hat = D @ np.linalg.solve(D.T @ D + ridge * np.eye(D.shape[1]), D.T)
    return np.sum((T - hat @ T) ** 2) / n / (1 - np.trace(hat) / n) ** 2


def best(D, T, weight):
    """The candidate of least score, which is inside."""
    scores = [score(D, T, ridge, weight) for ridge in RIDGES]
    at = int(np.argmin(scores))
    assert 0 < at < len(RIDGES) - 1
    return RIDGES[at]


def theta(model):
    return np.asarray(model._solved("ridge").theta)


@pytest.mark.parametrize("weight", [np.ones(240), WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("way", ["fit", "batches", "programs"])
def test_lambda_is_that_of_the_hat_matrix(weight, way, monkeypatch):
    monkeypatch.setattr(hosted, "is_host_faster", lambda: way != "programs")
    model = EdRVFLClassifier(**OPTIONS)
    if way == "fit":
        model.fit(X, Y, weight)
    else:
        for part in (slice(0, 1), slice(1, 90), slice(90, 240)):
            model.partial_fit(X[part], Y[part], sample_weight=weight[part])
    T = targets(model, Y)
    for layer, D in enumerate(described(model, X)):
        want = best(D, T, weight)
        assert model.ridge_[layer] == want
        expected = references.ridge_solution(D, T, want, weight)
        assert_close(theta(model)[layer], expected, tolerances.CLOSED_FORM)


@pytest.mark.parametrize("intercept", [True, False])
def test_a_regressor_has_one_lambda_for_all_outputs(intercept):
    T = np.stack([X[:, 0] ** 2 + Y, X[:, 1]], axis=1)
    model = EdRVFLRegressor(
        *(1, 20, "auto"), feature_map="none", intercept=intercept, scale="first"
    )
    # Without a constant column rows count as one each.
    weight = WEIGHT if intercept else np.ones(240)
    T = T + 3 * np.random.default_rng(0).standard_normal(T.shape)
    model.fit(X, T, weight)
    D = model._inputs(X)
    assert model.ridge_ == best(D, T, weight)


def test_it_is_chosen_again_whenever_asked():
    model, seen = EdRVFLClassifier(**OPTIONS), []
    for start in range(0, 240, 40):
        model.partial_fit(X[start : start + 40], Y[start : start + 40])
        seen.append(model.ridge_.tolist())
        whole = EdRVFLClassifier(**OPTIONS).fit(X[: start + 40], Y[: start + 40])
        assert whole.ridge_.tolist() == seen[-1]
        assert_close(model.decision_function(X), whole.decision_function(X), 1e-9)
    assert len({tuple(each) for each in seen}) > 1
    model.unlearn(X[200:], Y[200:])
    assert model.ridge_.tolist() == seen[-2]


def test_wide_readouts_are_solved_anew():
    """Narrower ones are never updated by low rank, wider ones not under another lambda."""
    model = EdRVFLClassifier(1, 280, "auto", random_state=0)
    for start in range(0, 240, 24):
        model.partial_fit(X[start : start + 24], Y[start : start + 24])
        D, T = described(model, X[: start + 24])[0], targets(model, Y[: start + 24])
        # Of singular values, since lambda is small while rows are few.
        U, s, V = np.linalg.svd(D, full_matrices=False)
        want = V.T @ ((s / (s**2 + model.ridge_[0]))[:, None] * (U.T @ T))
        assert_close(theta(model)[0], want, tolerances.LEAST_LAMBDA)
        assert model._cache.asked_by_now.following is None


@pytest.mark.parametrize("readout", ["ridge", "discriminant", "nearest_mean"])
def test_every_readout_has_that_lambda(readout):
    auto = EdRVFLClassifier(**OPTIONS, readout=readout).fit(X, Y)
    fixed = EdRVFLClassifier(**OPTIONS | {"ridge": auto.ridge_}, readout=readout).fit(X, Y)
    assert_close(auto.decision_function(X), fixed.decision_function(X), 1e-12)
    if readout == "ridge":
        # Else rows were guessed on the way, by readouts of another lambda.
        assert_close(auto.predict_proba(X), fixed.predict_proba(X), 1e-12)
    assert_close(auto.predict_std(X), fixed.predict_std(X), 1e-9)
    state = auto._fitted.state
    np.testing.assert_allclose(np.asarray(state.ridge), auto.ridge_)
    np.testing.assert_allclose(auto._settled().trace, fixed._settled().trace)


def test_it_is_saved_and_merged(tmp_path):
    a = EdRVFLClassifier(**OPTIONS).partial_fit(X[:100], Y[:100])
    b = EdRVFLClassifier(**OPTIONS).partial_fit(X[100:], Y[100:])
    whole = EdRVFLClassifier(**OPTIONS).fit(X, Y)
    save_model(a, tmp_path)
    both = merge(load_model(tmp_path), b)
    assert both.ridge_.tolist() == whole.ridge_.tolist()
    assert_close(both.decision_function(X), whole.decision_function(X), 1e-9)
    with pytest.raises(ValueError, match=r"ridge: expected 'auto', got 1\.0"):
        merge(a, EdRVFLClassifier(**OPTIONS | {"ridge": 1.0}).fit(X, Y))


def test_it_goes_with_the_size_of_the_inputs():
    """Features of ReLU nodes without a constant grow as inputs do, and lambda as their squares."""
    large, small = (EdRVFLClassifier(**OPTIONS, intercept=False).fit(Z, Y) for Z in (X, X / 100))
    np.testing.assert_allclose(small.ridge_, large.ridge_ / 1e4, rtol=1e-12)
    scores = small.decision_function(X / 100)
    assert_close(scores, large.decision_function(X), tolerances.CLOSED_FORM)


def test_few_rows_do_not_make_it_fail():
    """With fewer rows than features every lambda near 0 fits them all."""
    model = EdRVFLClassifier(1, 40, "auto", random_state=0)
    for start in range(0, 20, 1):
        model.partial_fit(X[start : start + 1], Y[start : start + 1])
        assert np.isfinite(model.predict_proba(X)).all()
    model.unlearn(X[:20], Y[:20])
    assert model.ridge_ == 1.0
    assert in_batches(model, X, Y, (240,)).score(X, Y) > 0.8


def test_lambda_is_one_that_the_precision_resolves():
    D = 1e9 * np.ones((5, 3))
    sums = HostSums.zero((1, 3, 1)).plus(D[None], np.ones((5, 1)))
    assert best_ridges(sums, 5.0)[0] >= LEAST * 1.5e19
    assert best_ridges(HostSums.zero((2, 3, 1)), 0.0).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": "best"}, "ridge: expected one of auto, got 'best'"),
        ({"precision": "single"}, "ridge: expected numbers for -kF-Bayes"),
        ({"cold_start": "paper"}, "ridge: expected numbers for -kF-Bayes"),
    ],
)
def test_slips_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        EdRVFLClassifier(**OPTIONS | options).fit(X, Y)
