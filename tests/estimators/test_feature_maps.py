"""Feature maps against dense NumPy and scikit-learn, in every way that a model is used."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import Ridge

from rvfl_jax import (
    EdRVFLClassifier,
    EdRVFLRegressor,
    Predictor,
    Sums,
    adaptive_k,
    export_model,
    load_model,
    merge,
    save_model,
)
from rvfl_jax.estimators import hosted
from rvfl_jax.estimators.feature_maps import KEPT, SEEN, median_distance
from tests import references, tolerances
from tests.amounts import slow_but
from tests.estimators.test_estimator import assert_close, blobs, in_batches

X, Y = blobs(num_rows=240, num_features=20)
WEIGHT = np.random.default_rng(3).uniform(0.2, 2.0, 240)
OPTIONS = {"num_layers": 2, "num_nodes": 30, "ridge": 0.5, "random_state": 0}


def squares(X):
    """A map of one's own."""
    return jnp.concatenate([X**2, X[:, :1] * X[:, 1:2]], axis=1)


MAPS = ["fourier", "sparse", "none", squares]
NAMED = MAPS[:-1]


def described(model, Z):
    """(L, n, d) in NumPy, from the weights alone."""
    inputs = np.hstack([Z, np.ones((len(Z), 1))]) if model.intercept else Z
    if model.feature_map == "none":
        return inputs[None]
    if model.feature_map is squares:
        return np.hstack([Z**2, Z[:, :1] * Z[:, 1:2], inputs])[None]
    first, later = (np.asarray(part) for part in model._fitted.weights)
    layers = []
    for W in (first, *later):
        assert W.shape[0] == inputs.shape[1]
        P = inputs @ W
        if model.feature_map == "fourier":
            H = np.hstack([np.cos(P), np.sin(P)])
        else:
            kept = round(KEPT * P.shape[1])
            H = np.where(np.sort(P, axis=1)[:, [-kept]] <= P, P, 0.0)
            assert ((H != 0).sum(axis=1) <= kept).all()
        layers.append(np.hstack([H, inputs]))
    return np.stack(layers)


def dense(model, rows, Z, weight=None):
    """(L, n, m) scores of ridge regression on leading rows."""
    both = zip(described(model, X[:rows]), described(model, Z), strict=True)
    weight = None if weight is None else weight[:rows]
    targets = np.eye(4)[model._fitted.labels.columns("y", Y[:rows])]
    return np.stack(
        [D_z @ references.ridge_solution(D, targets, model.ridge, weight) for D, D_z in both]
    )


def scores(model, Z):
    """(L, n, m) of the model's readout on its own features."""
    theta = np.asarray(model._solved("ridge").theta)[..., :4]
    return np.stack([D @ t for D, t in zip(described(model, Z), theta, strict=True)])


@pytest.mark.parametrize("feature_map", MAPS)
@pytest.mark.parametrize("intercept", slow_but([True], [True, False]))
def test_readouts_are_those_of_dense_ridge(feature_map, intercept):
    model = EdRVFLClassifier(**OPTIONS, feature_map=feature_map, intercept=intercept)
    model.fit(X[:200], Y[:200], WEIGHT[:200])
    want = dense(model, 200, X, WEIGHT)
    assert_close(scores(model, X), want, tolerances.CLOSED_FORM)
    together = np.exp(want) / np.exp(want).sum(axis=-1, keepdims=True)
    predicted = model._fitted.labels.columns("y", model.predict(X))
    np.testing.assert_array_equal(predicted, together.mean(axis=0).argmax(axis=1))
    assert len(want) == (2 if feature_map in ("fourier", "sparse") else 1)


@pytest.mark.parametrize("feature_map", MAPS)
def test_batches_give_what_one_fit_gives(feature_map, monkeypatch):
    # Sums of JAX's programs for one of them, of the host for the others.
    monkeypatch.setattr(hosted, "is_host_faster", lambda: feature_map != "sparse")
    model = EdRVFLClassifier(**OPTIONS, feature_map=feature_map)
    in_batches(model, X, Y, (80, 1, 30, 129))
    assert_close(scores(model, X), dense(model, 240, X), tolerances.CLOSED_FORM)
    model.unlearn(X[200:], Y[200:])
    assert_close(scores(model, X), dense(model, 200, X), tolerances.CLOSED_FORM)


@pytest.mark.parametrize("feature_map", NAMED)
def test_saved_and_exported_models_answer_alike(feature_map, tmp_path):
    model = EdRVFLClassifier(**OPTIONS, feature_map=feature_map).partial_fit(X[:200], Y[:200])
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    assert again.get_params() == model.get_params()
    want = model.predict_proba(X)
    np.testing.assert_array_equal(again.predict_proba(X), want)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(X), want)
    export_model(model, tmp_path / "served.npz")
    np.testing.assert_array_equal(Predictor(tmp_path / "served.npz").predict_proba(X), want)
    again.partial_fit(X[200:], Y[200:])
    assert_close(scores(again, X), dense(again, 240, X), tolerances.CLOSED_FORM)


def test_a_function_is_exported_and_not_saved(tmp_path):
    model = EdRVFLClassifier(**OPTIONS, feature_map=squares).fit(X, Y)
    export_model(model, tmp_path / "served.npz")
    served = Predictor(tmp_path / "served.npz").predict_proba(X)
    np.testing.assert_array_equal(served, model.predict_proba(X))
    with pytest.raises(ValueError, match=r"feature_map: expected .* got <function squares"):
        save_model(model, tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("feature_map", [*NAMED, squares])
def test_equal_maps_are_merged(feature_map):
    model = EdRVFLClassifier(**OPTIONS, feature_map=feature_map)
    a = clone(model).partial_fit(X[:120], Y[:120])
    # The bandwidth is that of the rows that come first.
    b = clone(model).partial_fit(X[:120], Y[:120]).unlearn(X[:120], Y[:120])
    both = merge(a, b.partial_fit(X[120:], Y[120:]))
    assert_close(scores(both, X), dense(both, 240, X), tolerances.CLOSED_FORM)
    other = clone(model).set_params(feature_map="layers").fit(X, Y)
    with pytest.raises(ValueError, match="feature_map: expected"):
        merge(a, other)


def test_models_of_other_bandwidths_are_not_merged():
    a, b = (EdRVFLClassifier(**OPTIONS, feature_map="fourier").fit(Z, Y) for Z in (X, 2 * X))
    with pytest.raises(ValueError, match=r"begin both on the same rows for feature_map"):
        merge(a, b)


def test_fourier_features_estimate_the_gaussian_kernel():
    model = EdRVFLClassifier(1, 4000, feature_map="fourier", random_state=1, weight_scale=2.0)
    model.partial_fit(X[:100], Y[:100])
    H = described(model, X)[0][:, :4000]
    bandwidth = np.median(cdist(X[:100], X[:100])[np.triu_indices(100, 1)]) / 2.0
    assert median_distance(X[:100]) / 2.0 == pytest.approx(bandwidth, rel=1e-12)
    want = np.exp(-(cdist(X, X) ** 2) / (2 * bandwidth**2))
    # Standard deviation of a mean of 2,000 cosines: at most 0.016.
    assert np.abs(H @ H.T / 2000 - want).max() < 0.08


@pytest.mark.parametrize(
    ("rows", "want"),
    [
        ([[3.0, 4.0]], 50**0.5),
        ([[0.0, 0.0]] * 3, 1.0),
        ([[1.0], [1.0], [4.0]], 3.0),
    ],
)
def test_bandwidths_of_few_rows(rows, want):
    assert median_distance(np.array(rows)) == pytest.approx(want)


def test_sparse_nodes_see_a_share_of_the_inputs():
    model = EdRVFLClassifier(**OPTIONS, feature_map="sparse").fit(X, Y)
    for W in (model._fitted.weights.first, *model._fitted.weights.later):
        seen = np.asarray(W) != 0
        assert (seen[:20].sum(axis=0) == round(SEEN * 20)).all()
        assert not seen[20].any()
    first, later = model._fitted.weights
    assert (np.asarray(first) != np.asarray(later[0])).any()


def test_without_a_map_it_is_ridge_regression():
    model = EdRVFLRegressor(ridge=0.7, feature_map="none")
    T = np.stack([X[:, 0] ** 2, Y], axis=1)
    in_batches(model, X, T, (50, 190))
    ones = np.hstack([X, np.ones((240, 1))])
    want = Ridge(alpha=0.7, fit_intercept=False).fit(ones, T).predict(ones)
    assert_close(model.predict(X), want, tolerances.CLOSED_FORM)
    state = model._fitted.state
    assert np.shape(state.W) == (1, 21, 0)
    assert_close(np.asarray(state.theta)[0], model._solved("ridge").theta[0], 1e-12)


@pytest.mark.parametrize("shrinkage", [0.0, 0.3])
def test_without_a_map_it_is_discriminant_analysis(shrinkage):
    model = EdRVFLClassifier(
        *(1, 1, 1e-10),
        feature_map="none",
        intercept=False,
        readout="discriminant",
        shrinkage=shrinkage,
    )
    in_batches(model, X, Y, (1, 100, 139))
    lda = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=shrinkage).fit(X, Y)
    found, want = model.decision_function(X), lda.decision_function(X)
    # Scores are alike up to a number that all classes share.
    found, want = (each - each[:, :1] for each in (found, want))
    assert_close(found, want, tolerances.CLOSED_FORM)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"feature_map": "forier"}, "feature_map: expected one of layers, fourier, sparse, none"),
        ({"feature_map": "fourier", "num_nodes": 7}, "num_nodes: expected an even number"),
        ({"feature_map": "none", "ridge": [1.0, 2.0]}, r"ridge: expected a scalar or shape \(1,\)"),
        ({"feature_map": "sparse", "precision": "single"}, r'feature_map: expected "layers" for'),
        ({"feature_map": "none", "k": adaptive_k()}, r'feature_map: expected "layers" for'),
        ({"feature_map": lambda X: X[0]}, r"feature_map: expected a function from \(n, s\)"),
        ({"feature_map": np.square, "ridge": "auto", "solver": "square_root"}, "ridge: expected"),
        ({"feature_map": lambda X: np.asarray(X)}, "expected a function of JAX arrays"),
    ],
)
def test_slips_are_named_before_anything_is_learned(options, message):
    model = EdRVFLClassifier(**{"num_nodes": 8} | options)
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y)
    assert not model.__sklearn_is_fitted__()


@pytest.mark.parametrize("rows", [60, 4200])
def test_sparse_matrices_have_the_same_features(rows):
    X, Y = blobs(num_rows=rows, num_features=8)
    X[X < 1] = 0
    a, b = (EdRVFLClassifier(**OPTIONS, feature_map="fourier").fit(Z, Y) for Z in (X, csr_array(X)))
    assert_close(a.decision_function(X), b.decision_function(csr_array(X)), 1e-12)


def test_sums_of_several_machines_have_maps_that_a_seed_draws():
    model = EdRVFLClassifier(**OPTIONS | {"ridge": "auto"}, feature_map="sparse")
    zero = Sums.zero(model)
    parts = [zero.add(X[part], Y[part]) for part in (slice(0, 90), slice(90, 240))]
    found = parts[0].merge(parts[1]).finish()
    whole = clone(model).fit(X, Y)
    assert found.ridge_.tolist() == whole.ridge_.tolist()
    assert_close(found.decision_function(X), whole.decision_function(X), tolerances.CLOSED_FORM)
    with pytest.raises(ValueError, match="feature_map: expected one of layers, sparse for sums"):
        Sums.zero(model.set_params(feature_map="fourier")).add(X, Y)


def test_fourier_needs_a_first_row():
    model = EdRVFLClassifier(**OPTIONS, feature_map="fourier")
    with pytest.raises(ValueError, match="X: expected a first row to choose the bandwidth by"):
        model.partial_fit(X[:2], Y[:2], sample_weight=[0, 0])


def test_forgetting_looks_at_the_inputs_alone():
    """A row of zeros has cosines that are none, and makes nothing fade."""
    model = EdRVFLClassifier(**OPTIONS, feature_map="fourier", forgetting=0.5)
    model.partial_fit(X[:100], Y[:100])
    before = model.class_count_.sum()
    model.partial_fit(np.zeros((1, 20)), Y[:1])
    assert model.class_count_.sum() == pytest.approx(before + 1)


def test_jax_is_left_as_it_was():
    before = dict(jax.config.values)
    EdRVFLClassifier(**OPTIONS, feature_map="sparse").fit(X, Y)
    assert dict(jax.config.values) == before
