"""The classifier against dense solutions and against itself learned in other ways."""

import copy
import pickle

import numpy as np
import pandas as pd
import polars as pl
import pytest
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rvfl_jax
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, adaptive_k, merge
from rvfl_jax.estimators import compiled
from rvfl_jax.estimators.calibration import POWERS, probabilities
from rvfl_jax.metrics import expected_calibration_error
from tests import references, tolerances

SMALL = {"num_layers": 2, "num_nodes": 12, "ridge": 0.5, "random_state": 0}


def blobs(num_rows=120, num_classes=4, num_features=5, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, num_classes, num_rows)
    centres = 2 * rng.standard_normal((num_classes, num_features))
    return centres[y] + spread * rng.standard_normal((num_rows, num_features)), y


def in_batches(model, X, y, sizes, **options):
    start = 0
    for size in sizes:
        model.partial_fit(X[start : start + size], y[start : start + size], **options)
        start += size
    assert start == len(X)
    return model


def weights_of(model):
    return np.asarray(model._fitted.state.W)


def dense_scores(model, X, y, X_test, weight=None, columns=None):
    """(L, n, m) of ridge regression on the same features, solved densely."""
    ones = [np.ones((len(Z), 1)) for Z in (X, X_test)]
    D = references.features(weights_of(model), np.hstack([X, ones[0]]))
    D_test = references.features(weights_of(model), np.hstack([X_test, ones[1]]))
    Y = np.eye(y.max() + 1 if columns is None else columns)[y]
    theta = [references.ridge_solution(D_l, Y, SMALL["ridge"], weight) for D_l in D]
    return np.stack([D_l @ theta_l for D_l, theta_l in zip(D_test, theta, strict=True)])


def assert_close(got, expected, tolerance):
    np.testing.assert_allclose(got, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def test_scores_are_those_of_dense_ridge():
    X, y = blobs()
    X_test, _ = blobs(seed=1)
    model = EdRVFLClassifier(**SMALL | {"num_layers": 1}).fit(X, y)
    expected = dense_scores(model, X, y, X_test)[0]
    assert_close(model.decision_function(X_test), expected, tolerances.CLOSED_FORM)
    np.testing.assert_array_equal(model.predict(X_test), expected.argmax(axis=1))


def test_ensemble_predicts_by_mean_softmax():
    X, y = blobs()
    X_test, _ = blobs(seed=1)
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    scores = np.exp(dense_scores(model, X, y, X_test))
    ensemble = (scores / scores.sum(-1, keepdims=True)).mean(axis=0)
    np.testing.assert_array_equal(model.predict(X_test), ensemble.argmax(axis=1))
    log = model.decision_function(X_test)
    same = np.exp(log - np.log(np.exp(log).sum(-1, keepdims=True)))
    assert_close(same, ensemble, tolerances.CLOSED_FORM)


@pytest.mark.parametrize(
    "sizes",
    [
        pytest.param((120,), id="whole", marks=pytest.mark.slow),
        pytest.param((1,) * 120, id="rows"),
        pytest.param((3, 50, 7, 60), id="ragged"),
    ],
)
@pytest.mark.parametrize("k", [0.0, 1.0, adaptive_k(reuse_k=True)], ids=["0", "1", "adaptive"])
@pytest.mark.parametrize("lookahead", ["hold", pytest.param("none", marks=pytest.mark.slow)])
def test_any_batches_give_one_readout(sizes, k, lookahead):
    X, y = blobs()
    X_test, _ = blobs(seed=1)
    options = SMALL | {"k": k, "lookahead": lookahead}
    whole = EdRVFLClassifier(**options).fit(X, y)
    parts = in_batches(EdRVFLClassifier(**options), X, y, sizes)
    assert_close(parts.decision_function(X_test), whole.decision_function(X_test), 1e-9)
    assert parts.num_rows_seen_ == whole.num_rows_seen_ == 120


def test_sample_weight_is_that_of_weighted_ridge():
    X, y = blobs()
    weight = np.random.default_rng(0).uniform(0, 3, len(y))
    weight[:7] = 0
    options = SMALL | {"num_layers": 1}
    whole = EdRVFLClassifier(**options).fit(X, y, weight)
    parts = EdRVFLClassifier(**options)
    parts.partial_fit(X[:50], y[:50], sample_weight=weight[:50])
    parts.partial_fit(X[50:], y[50:], sample_weight=weight[50:])
    expected = dense_scores(whole, X, y, X, weight)[0]
    for model in (whole, parts):
        assert_close(model.decision_function(X), expected, tolerances.CLOSED_FORM)
        np.testing.assert_allclose(model.class_count_, np.bincount(y, weight))


def test_lookahead_announces_each_batch_to_the_one_before():
    X, y = blobs()
    options = SMALL | {"k": 1.5, "num_layers": 1}
    held = in_batches(EdRVFLClassifier(**options), X[:80], y[:80], (40, 40))
    given = EdRVFLClassifier(**options)
    given.partial_fit(X[:40], y[:40], X_next=X[40:80])
    D = references.features(weights_of(given), np.hstack([X, np.ones((120, 1))]))[0]
    old, new = D[:40], D[40:80]
    A = old.T @ old + 1.5 * new.T @ new + 0.5 * np.eye(D.shape[1])
    expected = D[80:] @ np.linalg.solve(A, old.T @ np.eye(4)[y[:40]])
    assert_close(given.decision_function(X[80:]), expected, tolerances.CLOSED_FORM)
    given.partial_fit(X[40:80], y[40:80])
    assert_close(given.decision_function(X), held.decision_function(X), 1e-9)


def test_held_batch_is_known_to_predictions():
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL | {"k": 1.0}).partial_fit(X, y)
    ridge = EdRVFLClassifier(**SMALL).fit(X, y)
    for _ in range(2):  # asking does not move the model on
        assert_close(model.decision_function(X), ridge.decision_function(X), 1e-9)


def test_new_classes_grow_capacity_as_if_it_had_been_known():
    X, y = blobs(num_rows=400, num_classes=40)
    order = np.argsort(y, kind="stable")
    X, y = X[order], y[order]
    grown = in_batches(EdRVFLClassifier(**SMALL), X, y, (25,) * 16)
    known = EdRVFLClassifier(**SMALL)
    known.partial_fit(X[:25], y[:25], classes=np.arange(40))
    in_batches(known, X[25:], y[25:], (25,) * 15)
    assert_close(grown.decision_function(X), known.decision_function(X), tolerances.FORMULA)
    assert_close(grown.predict_proba(X), known.predict_proba(X), tolerances.REORDERED)
    whole = EdRVFLClassifier(**SMALL).fit(X, y)
    assert_close(grown.decision_function(X), whole.decision_function(X), 1e-9)


def test_predictions_only_over_classes_met():
    X, y = blobs(num_classes=3)
    model = EdRVFLClassifier(**SMALL).partial_fit(X, y, classes=[0, 1, 2, 3, 9])
    np.testing.assert_array_equal(model.classes_, [0, 1, 2, 3, 9])
    proba = model.predict_proba(X)
    assert proba.shape == (120, 5)
    np.testing.assert_array_equal(proba[:, 3:], 0)
    np.testing.assert_allclose(proba.sum(axis=1), 1)
    assert set(model.predict(X)) <= {0, 1, 2}


@pytest.mark.parametrize(
    "labels",
    [
        ["cat", "dog", "hippopotamus"],
        [-5, 3, 250],
        [False, True],
        [("a", 1), ("b", 2), ("a", 2)],
        ["one", 2, ("three",)],
        [0.0, 7.0],
    ],
    ids=str,
)
def test_labels_come_back_as_they_went_in(labels):
    X, y = blobs(num_classes=len(labels), spread=0.1)
    given = [labels[c] for c in y]
    model = EdRVFLClassifier(**SMALL)
    for c, label in enumerate(labels):
        rows = y == c
        model.partial_fit(X[rows], [label] * int(rows.sum()))
    assert list(model.predict(X)) == given
    assert set(model.classes_.tolist()) == set(labels)


def test_merge_equals_learning_together():
    X, y = blobs(num_rows=300, num_classes=6)
    names = np.array([f"class {c}" for c in range(6)])
    y = np.sort(y)  # so that each has classes that the other never met
    a = EdRVFLClassifier(**SMALL).fit(X[:170], names[y[:170]])
    b = in_batches(EdRVFLClassifier(**SMALL), X[170:], names[y[170:]], (60, 70))
    together = EdRVFLClassifier(**SMALL).fit(X, names[y])
    before = a.decision_function(X), b.decision_function(X)
    merged = merge(a, b)
    assert_close(merged.decision_function(X), together.decision_function(X), 1e-9)
    np.testing.assert_array_equal(merged.classes_, together.classes_)
    np.testing.assert_allclose(merged.class_count_, together.class_count_)
    np.testing.assert_array_equal(before[0], a.decision_function(X))
    np.testing.assert_array_equal(before[1], b.decision_function(X))
    merged.partial_fit(X[:10], names[y[:10]])  # goes on learning


@pytest.mark.parametrize("k", [0.0, 1.0])
def test_unlearn_equals_never_having_seen(k):
    X, y = blobs(num_classes=5)
    y = np.sort(y)
    options = SMALL | {"k": k}
    rows = y != 4
    never = EdRVFLClassifier(**options).fit(X[rows], y[rows])
    model = in_batches(EdRVFLClassifier(**options), X, y, (60, 60))
    model.unlearn(X[~rows], y[~rows])
    assert_close(model.decision_function(X), never.decision_function(X), 1e-9)
    np.testing.assert_array_equal(model.classes_, never.classes_)
    np.testing.assert_allclose(model.predict_proba(X).sum(axis=1), 1)
    model.partial_fit(X[~rows], y[~rows])
    whole = EdRVFLClassifier(**options).fit(X, y)
    assert_close(model.decision_function(X), whole.decision_function(X), 1e-9)


def test_unlearn_refuses_what_was_not_learned():
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    before = model.decision_function(X)
    with pytest.raises(ValueError, match="positive definite"):
        model.unlearn(100 * X, y)
    with pytest.raises(ValueError, match="negative squared errors"):
        model.unlearn(X[:60], (y[:60] + 1) % 4)
    with pytest.raises(ValueError, match="expected at most"):
        model.unlearn(np.vstack([X, X]), np.concatenate([y, y]))
    with pytest.raises(ValueError, match="expected one of the 4 known classes, got 77"):
        model.unlearn(X[:1], [77])
    np.testing.assert_array_equal(model.decision_function(X), before)


@pytest.mark.slow
def test_merge_and_unlearn_after_a_thousand_batches():
    X, y = blobs(num_rows=4000, num_classes=7)
    a = in_batches(EdRVFLClassifier(**SMALL), X[:2000], y[:2000], (2,) * 1000)
    b = in_batches(EdRVFLClassifier(**SMALL), X[2000:], y[2000:], (2,) * 1000)
    whole = EdRVFLClassifier(**SMALL).fit(X, y)
    merged = merge(a, b)
    assert_close(merged.decision_function(X), whole.decision_function(X), 1e-8)
    merged.unlearn(X[2000:], y[2000:])
    half = EdRVFLClassifier(**SMALL).fit(X[:2000], y[:2000])
    assert_close(merged.decision_function(X), half.decision_function(X), 1e-8)


def test_merge_refuses_models_of_different_networks():
    X, y = blobs()
    a = EdRVFLClassifier(**SMALL).fit(X, y)
    with pytest.raises(ValueError, match="random weights of a"):
        merge(a, EdRVFLClassifier(**SMALL | {"random_state": 1}).fit(X, y))
    with pytest.raises(ValueError, match=r"parameters of a; ridge: expected 0\.5, got 2"):
        merge(a, EdRVFLClassifier(**SMALL | {"ridge": 2.0}).fit(X, y))
    with pytest.raises(NotFittedError):
        merge(a, EdRVFLClassifier(**SMALL))
    with pytest.raises(ValueError, match="expected an EdRVFLClassifier"):
        merge(a, EdRVFLRegressor(**SMALL).fit(X, y))


def test_forgetting_is_discounted_ridge():
    X, y = blobs()
    rate = 0.97
    model = EdRVFLClassifier(**SMALL | {"num_layers": 1, "forgetting": rate})
    in_batches(model, X, y, (50, 1, 69))
    age = np.arange(len(X))[::-1]
    expected = dense_scores(model, X, y, X, rate**age)[0]
    assert_close(model.decision_function(X), expected, tolerances.CLOSED_FORM)
    np.testing.assert_allclose(model.class_count_, np.bincount(y, rate**age))


def test_constant_rows_do_not_wind_up():
    model = EdRVFLClassifier(**SMALL | {"forgetting": 0.5})
    for _ in range(50):
        model.partial_fit(np.ones((40, 3)), np.arange(40) % 2)
    eta = np.asarray(model._fitted.state.eta_dagger)
    assert np.linalg.eigvalsh(eta).max() <= (1 + 1e-9) / SMALL["ridge"]


def test_predictive_deviation_is_that_of_bayesian_ridge():
    X, y = blobs(num_rows=60, num_classes=2)
    model = EdRVFLClassifier(**SMALL | {"num_layers": 1}).fit(X, y)
    D = references.features(weights_of(model), np.hstack([X, np.ones((60, 1))]))[0]
    A = D.T @ D + SMALL["ridge"] * np.eye(D.shape[1])
    for c in range(2):
        Y = (y == c).astype(float)
        theta = np.linalg.solve(A, D.T @ Y)
        used = np.trace(np.linalg.solve(A, D.T @ D))
        noise = np.sum((Y - D @ theta) ** 2) / (60 - used)
        covariance = noise * np.linalg.inv(A)
        expected = np.sqrt(noise + np.einsum("nd,de,ne->n", D, covariance, D))
        assert_close(model.predict_std(X)[:, c], expected, tolerances.CLOSED_FORM)
        rng = np.random.default_rng(c)
        draws = rng.multivariate_normal(theta, covariance, 20_000)
        sampled = (draws @ D.T).std(axis=0)
        silent = model.predict_std(X, noise=False)[:, c]
        np.testing.assert_allclose(sampled, silent, rtol=0.05)


@pytest.mark.parametrize("readout", ["discriminant", "nearest_mean"])
def test_readouts_are_those_of_textbooks(readout):
    X, y = blobs(num_rows=300, num_classes=4, spread=2.0)
    model = EdRVFLClassifier(
        **SMALL | {"num_layers": 1, "ridge": 1e-9}, readout=readout, shrinkage=0.3
    ).fit(X, y)
    D = references.features(weights_of(model), np.hstack([X, np.ones((300, 1))]))[0]
    if readout == "nearest_mean":
        means = np.stack([D[y == c].mean(axis=0) for c in range(4)])
        expected = np.linalg.norm(D[:, None] - means, axis=-1).argmin(axis=1)
    else:
        # scikit-learn mixes the covariances of the classes, weighted by their frequency.
        other = LinearDiscriminantAnalysis(solver="lsqr", covariance_estimator=_Shrunk(0.3))
        expected = other.fit(D, y).predict(D)
    np.testing.assert_array_equal(model.predict(X), expected)


class _Shrunk:
    """A covariance shrunk towards its mean variance; a mixture of such is the mixture shrunk."""

    def __init__(self, shrinkage):
        self.shrinkage = shrinkage

    def fit(self, D):
        S = np.cov(D.T, bias=True)
        even = np.trace(S) / len(S) * np.eye(len(S))
        self.covariance_ = (1 - self.shrinkage) * S + self.shrinkage * even
        return self


def test_readout_may_change_without_another_pass():
    X, y = blobs(spread=2.0)
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    ridge = model.decision_function(X)
    for readout in ("discriminant", "nearest_mean"):
        own = EdRVFLClassifier(**SMALL, readout=readout).fit(X, y)
        model.set_params(readout=readout)
        assert_close(model.decision_function(X), own.decision_function(X), 1e-8)
        assert model.inverse_temperature_ == 1.0
        assert own.inverse_temperature_ != 1.0
    np.testing.assert_array_equal(model.set_params(readout="ridge").decision_function(X), ridge)


def test_class_balance_scales_columns():
    X, y = blobs(spread=2.0)
    y[y == 3] = np.where(np.arange((y == 3).sum()) < 5, 3, 0)
    plain = EdRVFLClassifier(**SMALL | {"num_layers": 1}).fit(X, y)
    balanced = clone(plain).set_params(class_balance=0.5).fit(X, y)
    counts = np.bincount(y)
    expected = plain.decision_function(X) * (counts / counts.mean()) ** -0.5
    assert_close(balanced.decision_function(X), expected, tolerances.REORDERED)


def test_calibration_in_stream_and_in_fit():
    X, y = blobs(num_rows=3000, num_classes=6, spread=3.0)
    X, y, X_test, y_test = X[:1500], y[:1500], X[1500:], y[1500:]
    whole = EdRVFLClassifier(**SMALL).fit(X, y)
    order = np.argsort(y, kind="stable")
    stream = in_batches(EdRVFLClassifier(**SMALL), X, y, (50,) * 30)
    for model in (whole, stream):
        error = expected_calibration_error(model.predict_proba(X_test), y_test)
        flat = np.exp(model.decision_function(X_test))
        before = expected_calibration_error(flat / flat.sum(1, keepdims=True), y_test)
        assert error < 0.05 < 0.2 < before
    sorted_fit = EdRVFLClassifier(**SMALL).fit(X[order], y[order])
    assert_close(sorted_fit.predict_proba(X_test), whole.predict_proba(X_test), 1e-8)


@pytest.mark.parametrize("layers", [1, 2])
def test_leave_one_out_guesses_are_those_of_refitting(layers):
    X, y = blobs(num_rows=24, num_classes=3, spread=2.0)
    options = SMALL | {"num_layers": layers}
    weight = np.random.default_rng(0).integers(1, 3, 24).astype(float)
    model = EdRVFLClassifier(**options).fit(X, y, weight)
    powers, counts = POWERS["log"], np.bincount(y, weight)
    confidence, hits, total = np.zeros((3, len(powers))), np.zeros(3), np.zeros(3)
    for row in range(24):
        others = weight.copy()
        others[row] -= 1  # one of the copies that a weight stands for
        z = EdRVFLClassifier(**options).fit(X, y, others).decision_function(X[row : row + 1])
        share = weight[row] * (counts[y[row]] - 1) ** 2
        for g, power in enumerate(powers):
            confidence[y[row], g] += share * probabilities(z, power, "log").max()
        hits[y[row]] += share * (z.argmax() == y[row])
        total[y[row]] += share
    guesses = model._fitted.guesses
    order = model._fitted.labels.columns("y", np.arange(3))
    for way in range(2):
        assert_close(np.asarray(guesses.confidence)[way][order], confidence, 1e-9)
        assert_close(np.asarray(guesses.hits)[way][order], hits, 1e-9)
    assert_close(np.asarray(guesses.weight)[order], total, 1e-9)


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_frames_and_pipelines(frame):
    X, y = blobs()
    names = [f"feature {i}" for i in range(5)]
    table = frame(dict(zip(names, X.T, strict=True)))
    model = make_pipeline(StandardScaler(), EdRVFLClassifier(**SMALL)).fit(table, y)
    assert model.score(table, y) > 0.8
    bare = EdRVFLClassifier(**SMALL).partial_fit(table, y)
    assert list(bare.feature_names_in_) == names
    with pytest.raises(ValueError, match="feature names"):
        bare.partial_fit(frame(dict(zip(names[::-1], X.T, strict=True))), y)


def test_grid_search_shares_programs():
    X, y = blobs()
    search = GridSearchCV(
        EdRVFLClassifier(**SMALL), {"ridge": [0.1, 1.0], "k": [0.5, 1.0], "class_balance": [0, 1]}
    ).fit(X, y)
    assert search.best_score_ > 0.8
    before = compiled.add_rows._cache_size()
    GridSearchCV(EdRVFLClassifier(**SMALL), {"ridge": [3.0, 4.0], "k": [0.7]}).fit(X, y)
    assert compiled.add_rows._cache_size() == before


def test_saved_and_copied_models_go_on_alike():
    X, y = blobs()
    for k in (0.0, 1.0, adaptive_k(estimator="random_diagonal", reuse_k=True)):
        model = EdRVFLClassifier(**SMALL | {"k": k}).partial_fit(X[:60], y[:60])
        twins = [pickle.loads(pickle.dumps(model)), copy.deepcopy(model)]
        model.partial_fit(X[60:], y[60:])
        for twin in twins:
            twin.partial_fit(X[60:], y[60:])
            np.testing.assert_array_equal(twin.predict_proba(X), model.predict_proba(X))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 0}, "num_nodes: expected an integer of at least 1"),
        ({"ridge": -1.0}, "ridge: expected finite and greater than 0"),
        ({"k": -0.5}, "k: expected finite and at least 0"),
        ({"forgetting": 0.0}, "forgetting: expected a number above 0"),
        ({"lookahead": "peek"}, "lookahead: expected one of hold, none"),
        ({"readout": "svm"}, "readout: expected one of ridge"),
        ({"class_balance": -1}, "class_balance: expected at least 0"),
        ({"shrinkage": 2.0}, "shrinkage: expected a number from 0 to 1"),
        ({"class_weight": "fair"}, "class_weight: expected None"),
        ({"precision": "half"}, "precision: expected one of double, single"),
        ({"solver": "magic"}, "solver: expected one of auto"),
    ],
)
def test_parameters_out_of_range(change, message):
    X, y = blobs()
    with pytest.raises(ValueError, match=message):
        EdRVFLClassifier(**SMALL | change).fit(X, y)


def test_bad_batches_leave_the_model_as_it_was():
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL).partial_fit(X, y)
    before = model.predict_proba(X)
    bad = X.copy()
    bad[3, 2] = np.nan
    attempts = [
        lambda: model.partial_fit(bad, y),
        lambda: model.partial_fit(X, y[:-1]),
        lambda: model.partial_fit(X[:, :-1], y),
        lambda: model.partial_fit(X, y + 0.5),
        lambda: model.partial_fit(X, y, X_next=X[:, 1:]),
        lambda: model.partial_fit(X, y, sample_weight=-np.ones(len(y))),
        lambda: model.partial_fit(X, [None] * len(y)),
        lambda: model.partial_fit(X, [pd.NA] * len(y)),
        lambda: model.fit(np.hstack([X, X]), y + 0.5),
        lambda: model.fit(pd.DataFrame(X, columns=list("abcde")), y[:-1]),
        lambda: model.fit(X, y, sample_weight=np.zeros(len(y))),
    ]
    for attempt in attempts:
        with pytest.raises(ValueError, match=r"expected|NaN|features|Negative|Unknown label"):
            attempt()
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.num_rows_seen_ == len(y)


# Sums serve all solvers but the square root, whose state costs programs of its own.
@pytest.mark.parametrize(
    ("k", "solver", "known"),
    [
        pytest.param(
            *(k, solver, known),
            marks=[] if known == 1 and (k, solver) != (0.0, "square_root") else pytest.mark.slow,
        )
        for k in (0.0, 1.0)
        for solver in ("covariance", "square_root")
        for known in (0, 1, 2)
    ],
)
def test_overflow_leaves_the_model_able_to_learn(k, solver, known):
    X, y = blobs(num_rows=160)
    options = SMALL | {"k": k, "solver": solver}
    model, twin = EdRVFLClassifier(**options), EdRVFLClassifier(**options)
    batches = [slice(40 * t, 40 * t + 40) for t in range(4)]
    for batch in batches[:known]:
        model.partial_fit(X[batch], y[batch])
    with pytest.raises(rvfl_jax.NumericalError):
        model.partial_fit(1e200 * X[:20], y[:20] + 70)
    for batch in batches[known:]:
        model.partial_fit(X[batch], y[batch])
    for batch in batches:
        twin.partial_fit(X[batch], y[batch])
    assert_close(model.decision_function(X), twin.decision_function(X), 1e-12)
    assert_close(model.predict_proba(X), twin.predict_proba(X), 1e-9)
    np.testing.assert_array_equal(model.class_count_, np.bincount(y))
    assert model.num_rows_seen_ == 160


@pytest.mark.slow
def test_long_batches_are_learned_whole_or_not_at_all():
    X, y = blobs(num_rows=5000)
    model = EdRVFLClassifier(**SMALL).partial_fit(X[:50], y[:50])
    before = model.predict_proba(X)
    spoilt = X.copy()
    spoilt[-1] *= 1e200
    with pytest.raises(rvfl_jax.NumericalError):
        model.partial_fit(spoilt, np.full(5000, 77))
    np.testing.assert_array_equal(model.predict_proba(X), before)
    model.partial_fit(X[:3], [99] * 3)
    np.testing.assert_array_equal(model.class_count_, [*np.bincount(y[:50]), 3])
    for k in (0.0, 1.0):
        long = EdRVFLClassifier(**SMALL | {"k": k}).partial_fit(X, y)
        whole = EdRVFLClassifier(**SMALL).fit(X, y)
        assert_close(long.decision_function(X), whole.decision_function(X), 1e-9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_nodes": 13}, "num_nodes: expected 12, got 13"),
        ({"intercept": False}, "intercept: expected True, got False"),
        ({"precision": "single"}, "precision: expected 'double', got 'single'"),
        ({"ridge": 2.0}, "ridge: expected 0.5, got 2.0"),
        ({"k": adaptive_k()}, "kind of k: expected 'none', got"),
        ({"forgetting": 0.5}, "forgets: expected False, got True"),
    ],
)
def test_parameters_that_shape_the_state_stay(change, message):
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    model.set_params(**change)
    for call in (lambda: model.partial_fit(X, y), lambda: model.predict(X)):
        with pytest.raises(ValueError, match=message):
            call()


def test_copies_are_their_own():
    X, y = blobs()
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    before = model.decision_function(X)
    twin = copy.copy(model)
    twin.partial_fit(3 - X, y, classes=[9])
    twin.decision_function(X)
    np.testing.assert_array_equal(model.decision_function(X), before)
    np.testing.assert_array_equal(model.classes_, np.arange(4))


@pytest.mark.parametrize("weight", [{0: -1.0}, {0: np.nan}])
def test_class_weights_are_numbers(weight):
    X, y = blobs()
    with pytest.raises(ValueError, match=r"sample_weight|class_weight"):
        EdRVFLClassifier(**SMALL, class_weight=weight).fit(X, y)


def test_balanced_weights_stay_with_the_model():
    X, y = blobs()
    y = np.array(["a", 1, ("b",), 2.0], dtype=object)[np.minimum(y, 3)]
    model = EdRVFLClassifier(**SMALL, class_weight="balanced").fit(X, y)
    counts = model.class_count_
    np.testing.assert_allclose(counts, 30.0)
    model.unlearn(X[:50], y[:50])
    model.partial_fit(X[:50], y[:50])
    np.testing.assert_allclose(model.class_count_, counts)
    assert model.score(X, y) > 0.8
    with pytest.raises(ValueError, match="in one `fit`"):
        EdRVFLClassifier(**SMALL, class_weight="balanced").partial_fit(X, y)


@pytest.mark.parametrize("order", ["random", "one by one"])
@pytest.mark.parametrize("tail", [False, True])
def test_streams_calibrate_on_even_and_long_tailed_classes(order, tail):
    X, y = blobs(num_rows=4000, num_classes=8, spread=2.0, seed=3)
    rng = np.random.default_rng(0)
    rows = np.arange(2000)
    if tail:
        rows = np.concatenate(
            [np.flatnonzero(y[:2000] == c)[: int(200 * 0.55**c)] for c in range(8)]
        )
    rows = rng.permutation(rows)
    if order == "one by one":
        rows = rows[np.argsort(y[rows], kind="stable")]
    model = EdRVFLClassifier(**SMALL)
    for start in range(0, len(rows), 50):
        part = rows[start : start + 50]
        model.partial_fit(X[part], y[part])
    # Test rows in the proportions of the training rows.
    test = np.concatenate(
        [
            2000 + np.flatnonzero(y[2000:] == c)[: max(1, int((y[rows] == c).sum()))]
            for c in range(8)
        ]
    )
    column = np.searchsorted(model.classes_, y[test])
    error = expected_calibration_error(model.predict_proba(X[test]), column)
    assert error < (0.15 if tail and order == "one by one" else 0.08)


def test_guesses_without_a_choice_say_nothing():
    X, y = blobs(num_classes=2, spread=4.0)
    model = EdRVFLClassifier(**SMALL)
    model.partial_fit(X[y == 0][:20], [0] * 20)
    model.partial_fit(X[y == 0][20:40], [0] * 20)
    model.partial_fit(X[y == 1][:40], [1] * 40)
    assert model.inverse_temperature_ == 1.0


def test_deviations_of_classes_never_met_are_unknown():
    X, y = blobs(num_classes=2)
    model = EdRVFLClassifier(**SMALL).partial_fit(X, y, classes=[0, 1, 2])
    assert np.isfinite(model.predict_std(X)[:, :2]).all()
    assert np.isnan(model.predict_std(X)[:, 2]).all()


def test_deviations_cover_what_they_say():
    X, y = blobs(num_rows=2000, num_classes=3, spread=2.0)
    model = EdRVFLClassifier(num_layers=1, num_nodes=64, ridge=1e-2, random_state=0)
    model.fit(X[:150], y[:150])
    gap = np.abs(model.decision_function(X[150:]) - np.eye(3)[y[150:]])
    assert np.mean(gap < 1.645 * model.predict_std(X[150:])) > 0.85


def test_odds_stay_finite_where_one_of_two_classes_was_never_met():
    X, y = blobs(num_classes=2)
    model = EdRVFLClassifier(**SMALL).partial_fit(X[y == 0], y[y == 0], classes=[0, 1])
    assert np.isfinite(model.decision_function(X)).all()
    np.testing.assert_array_equal(model.predict(X), 0)


def test_regressor_is_dense_ridge():
    rng = np.random.default_rng(0)
    X, Y = rng.standard_normal((90, 3)), rng.standard_normal((90, 2))
    whole = EdRVFLRegressor(**SMALL).fit(X, Y)
    parts = EdRVFLRegressor(**SMALL | {"k": 1.0})
    for start in range(0, 90, 30):
        parts.partial_fit(X[start : start + 30], Y[start : start + 30])
    D = references.features(weights_of(whole), np.hstack([X, np.ones((90, 1))]))
    expected = np.mean([D_l @ references.ridge_solution(D_l, Y, 0.5) for D_l in D], axis=0)
    for model in (whole, parts):
        assert_close(model.predict(X), expected, tolerances.CLOSED_FORM)
    one = EdRVFLRegressor(**SMALL, ensemble="median").fit(X, Y[:, 0])
    assert one.predict(X).shape == (90,)
    with pytest.raises(ValueError, match="expected 2 outputs a row"):
        whole.partial_fit(X, Y[:, :1])
