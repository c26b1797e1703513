"""Faults that users of other libraries met, each with its whole kind, on the estimator.

The public reports are named beside each test. Cases 17 and 18 are in `test_checkpoint`.
"""

import jax
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import rvfl_jax
from rvfl_jax import EdRVFLClassifier
from rvfl_jax.metrics import forgetting
from rvfl_jax.streams.labels import one_hot
from tests import references
from tests.compilations import counted_compilations

SMALL = {"num_layers": 1, "num_nodes": 12, "random_state": 0}


def rows(n, classes=3, features=5, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, n)
    centres = 3 * np.random.default_rng(99).standard_normal((classes, features))
    return centres[y] + rng.standard_normal((n, features)), y


def dense(model, X, y, weight=None, classes=None):
    W = np.asarray(model._fitted.state.W)
    D = references.features(W, np.hstack([X, np.ones((len(X), 1))]))[0]
    Y = np.eye(y.max() + 1 if classes is None else classes)[y]
    return D @ references.ridge_solution(D, Y, float(model.ridge), weight)


def test_01_labels_are_not_re_encoded_by_each_batch():
    """NVIDIA/cuml PR 8316."""
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=1.0, k=0.0)
    state = learner.init(jax.random.key(0), 5, 3)
    X, _ = rows(3)
    state, _ = learner.step(state, X[:2], one_hot([0, 1], 3), None)
    before = np.asarray(state.theta)
    state, _ = learner.step(state, X[2:], one_hot([2], 3), None)
    D = references.features(np.asarray(state.W), X)[0]
    gained = D[2] @ (np.asarray(state.theta) - before)[0]
    np.testing.assert_array_equal(gained.argmax(), 2)
    model = EdRVFLClassifier(**SMALL).partial_fit(X[:2], [0, 1]).partial_fit(X[2:], [2])
    np.testing.assert_allclose(model.decision_function(X), dense(model, X, np.arange(3)))


@pytest.mark.parametrize("bad", [[0.0, 1.9999999], [2.5], [np.nan], [np.inf]])
def test_02_fractions_are_no_labels(bad):
    """jax 25484."""
    X, _ = rows(len(bad))
    with pytest.raises(ValueError, match=r"expected integral|continuous|NaN|infinity"):
        EdRVFLClassifier(**SMALL).fit(X, bad)
    with pytest.raises(ValueError, match="expected integral"):
        one_hot(bad, 3)
    model = EdRVFLClassifier(**SMALL).fit(X, np.zeros(len(bad)))
    np.testing.assert_array_equal(model.classes_, [0])


@pytest.mark.parametrize("labels", [[1, 2, 3, 4, 5], [3, 17, 250], [-7, -1, 0]])
def test_03_labels_need_not_start_at_0(labels):
    """continuum 244, 130."""
    X, y = rows(90, classes=len(labels))
    given = np.array(labels)[y]
    model = EdRVFLClassifier(**SMALL)
    for start in range(0, 90, 30):
        model.partial_fit(X[start : start + 30], given[start : start + 30])
    assert np.mean(model.predict(X) == given) > 0.9
    np.testing.assert_array_equal(model.classes_, labels)


def test_04_strings_come_back_whole():
    """adeft PR 28."""
    X, y = rows(60)
    model = EdRVFLClassifier(**SMALL)
    names = np.array(["cat", "dog", "hippopotamus"])
    for c in range(3):
        model.partial_fit(X[y == c], names[y[y == c]].astype(f"U{len(names[c])}"))
    assert np.mean(model.predict(X) == names[y]) > 0.9
    assert set(model.classes_) == set(names)


@pytest.mark.parametrize("count", [101, 99, 1, 10])
def test_05_the_last_batch_may_be_short(count):
    """scikit-learn 12234."""
    X, y = rows(count)
    y = np.minimum(y, count - 1)
    model = EdRVFLClassifier(**SMALL)
    for start in range(0, count, 10):
        model.partial_fit(X[start : start + 10], y[start : start + 10])
    expected = dense(model, X, y)
    columns = [int(c) for c in model.classes_]
    scores = model._scores(X)[:, [model._fitted.labels.labels.index(c) for c in columns]]
    np.testing.assert_allclose(scores, expected[:, columns], atol=1e-9)


def test_06_batches_of_one_row():
    """scikit-learn 19837, anomalib 2883."""
    X, y = rows(50)
    model = EdRVFLClassifier(**SMALL)
    for row in range(50):
        model.partial_fit(X[row : row + 1], y[row : row + 1])
    assert model.predict(X[:1]).shape == (1,)
    assert np.isfinite(model.predict_proba(X)).all()
    np.testing.assert_allclose(model.decision_function(X), dense(model, X, y), atol=1e-9)


def test_07_one_class_so_far():
    """avalanche 1281, scikit-learn 13001."""
    X, _ = rows(16)
    model = EdRVFLClassifier(**SMALL)
    with pytest.raises(NotFittedError):
        model.predict(X)
    model.partial_fit(X, np.zeros(16, int))
    np.testing.assert_array_equal(model.predict(X), 0)
    np.testing.assert_array_equal(model.predict_proba(X), 1)


def test_08_forgetting_counts_from_the_right_task():
    """continuum 281."""
    R = [[0.9], [0.6, 0.8], [0.5, 0.7, 0.9]]
    np.testing.assert_allclose(forgetting(R)[1:], [0.30, 0.25])


@pytest.mark.slow
def test_09_metrics_are_by_task_not_by_batch():
    """avalanche 1343."""
    X, y = rows(950 * 2, classes=5)
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=5, num_batches=950, seed=0)
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=0.0)
    key = jax.random.key(0)
    run = rvfl_jax.run_stream(learner, stream, key=key, test=(X, y), evaluate="task")
    assert run.history.R["class_incremental"].shape == (5, 5)


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["double", "single"])
def test_10_asymmetric_covariance(precision):
    """dynamax 317; case 16 is the same on a GPU."""
    X, y = rows(20_000, classes=5, features=20)
    options = {"num_layers": 1, "num_nodes": 64, "activation": "tanh", "ridge": 1e-3}
    model = EdRVFLClassifier(**options, precision=precision, random_state=0)
    try:
        for start in range(0, len(X), 32):
            model.partial_fit(X[start : start + 32], y[start : start + 32])
    except rvfl_jax.NumericalError:
        assert precision == "single"
        return
    W = np.asarray(model._fitted.state.W, float)
    D = references.features(W, np.hstack([X, np.ones((len(X), 1))]), "tanh")[0]
    batch = (D @ references.ridge_solution(D, np.eye(5)[y], 1e-3)).argmax(axis=1)
    assert np.mean(model.predict(X) == y) == pytest.approx(np.mean(batch == y), abs=2e-3)


@pytest.mark.slow
def test_11_unscaled_bytes_do_not_wrap():
    """LenslessPiCam PR 173."""
    rng = np.random.default_rng(0)
    X = rng.integers(0, 256, (5000, 98), dtype=np.uint8)
    y = rng.integers(0, 4, 5000)
    models = []
    for dtype in (np.uint8, np.float64):
        model = EdRVFLClassifier(**SMALL)
        for start in range(0, 5000, 64):
            model.partial_fit(X[start : start + 64].astype(dtype), y[start : start + 64])
        models.append(model.decision_function(X.astype(dtype)))
    np.testing.assert_array_equal(*models)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("frozen", [True, False])
def test_12_nan_is_not_class_0(bad, frozen):
    """jax 6762, 775."""
    X, y = rows(64)
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    before = model.predict_proba(X)
    spoilt = X.copy()
    spoilt[7, 2] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        model.predict(spoilt) if frozen else model.partial_fit(spoilt, y)
    np.testing.assert_array_equal(model.predict_proba(X), before)


@pytest.mark.parametrize("intercept", [True, False])
def test_13_zero_input_under_forgetting(intercept):
    """padasip 5."""
    X, y = rows(90)
    model = EdRVFLClassifier(**SMALL, forgetting=0.99, intercept=intercept).partial_fit(X, y)
    eta = np.asarray(model._fitted.state.eta_dagger)
    before = model.predict(X), eta, model.decision_function(X)
    for _ in range(9):
        model.partial_fit(np.zeros((5000, 5)), np.zeros(5000, int))
    eta = np.asarray(model._fitted.state.eta_dagger)
    assert np.isfinite(eta).all()
    assert np.linalg.eigvalsh(eta).max() <= (1 + 1e-9) / float(model.ridge)
    if not intercept:  # else a row of zeros is a constant, and that is learned
        np.testing.assert_allclose(eta, before[1], atol=1e-9)
        np.testing.assert_array_equal(model.predict(X), before[0])
        np.testing.assert_allclose(model.decision_function(X), before[2], atol=1e-9)


@pytest.mark.parametrize("nodes", [64, 200])
def test_14_fewer_rows_than_nodes(nodes):
    """scikit-learn PR 33215."""
    X, y = rows(25)
    model = EdRVFLClassifier(num_layers=1, num_nodes=nodes, random_state=0)
    model.partial_fit(X[:5], y[:5]).partial_fit(X[5:], y[5:])
    np.testing.assert_allclose(
        model._scores(X)[:, model._fitted.labels.columns("y", np.arange(3))],
        dense(model, X, y),
        atol=1e-9,
    )


@pytest.mark.slow
def test_15_few_programs_for_many_batch_sizes():
    """jax 803, 2072."""
    X, y = rows(600)
    jax.clear_caches()
    model = EdRVFLClassifier(num_layers=1, num_nodes=17, random_state=0)
    start = 0
    with counted_compilations() as made:
        for size in range(1, 33):
            model.partial_fit(X[start : start + size], y[start : start + size])
            start += size
    assert 0 < len(made) <= 6


def test_15_few_programs_where_batches_are_announced():
    X, y = rows(600)
    jax.clear_caches()
    model = EdRVFLClassifier(num_layers=1, num_nodes=18, k=1.0, random_state=0)
    start = 0
    with counted_compilations() as made:
        for size in [*range(1, 33)][::-1]:
            model.partial_fit(X[start : start + size], y[start : start + size])
            start += size
    assert 0 < len(made) <= 6
