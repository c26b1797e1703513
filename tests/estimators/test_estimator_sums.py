"""Estimators on sums: at every call the readout of all rows, whatever waits or follows."""

import pickle
import threading

import jax
import numpy as np
import pytest

from rvfl_jax import (
    EdRVFLClassifier,
    EdRVFLRegressor,
    NumericalError,
    adaptive_k,
    load_model,
    merge,
    save_model,
)
from rvfl_jax.estimators import adding, following
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.learned import MOST_STALE, Learned
from tests import references
from tests.estimators.test_estimator import SMALL, assert_close, blobs, in_batches

# Wide enough for readouts that are followed and for rows that wait.
WIDE = {"num_layers": 1, "num_nodes": 300, "ridge": 0.5, "random_state": 0}
X, Y = blobs(num_rows=640, num_classes=4, num_features=8)


def dense(model, rows, weight=None, layer=0):
    """(d, m) of ridge regression on leading rows, solved densely."""
    W = np.asarray(model._fitted.weights.whole())
    D = references.features(W, np.hstack([X[:rows], np.ones((rows, 1))]))[layer]
    targets = np.eye(model._fitted.capacity)[model._fitted.labels.columns("y", Y[:rows])]
    return references.ridge_solution(D, targets, model.ridge, weight)


def theta(model):
    return np.asarray(model._solved("ridge").theta)


@pytest.mark.parametrize("layers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_readouts_at_every_call_are_those_of_all_rows(layers):
    """By low rank from the first row on, and beyond the room that there is for it."""
    model = EdRVFLClassifier(**WIDE | {"num_layers": layers})
    kept = []
    for start in range(0, 640, 16):
        model.partial_fit(X[start : start + 16], Y[start : start + 16])
        found = theta(model)
        kept.append(model._cache.asked_by_now.following)
        for layer in range(layers):
            assert_close(found[layer], dense(model, start + 16, layer=layer), 1e-9)
    assert all(each is not None for each in kept)
    assert kept[0].P is None
    assert kept[-1].P is not None


def test_readouts_asked_now_and_then_are_solved():
    model = EdRVFLClassifier(**WIDE)
    for start in range(0, 640, 80):
        model.partial_fit(X[start : start + 80], Y[start : start + 80])
        assert_close(theta(model)[0], dense(model, start + 80), 1e-9)
    assert model._cache.asked_by_now.following is None


def test_a_readout_that_drifts_is_begun_anew(monkeypatch):
    monkeypatch.setattr(adding, "DRIFTED", -1.0)
    monkeypatch.setattr(adding, "VERY_OFTEN", 12)
    model, kept = EdRVFLClassifier(**WIDE), []
    for start in range(0, 640, 16):
        model.partial_fit(X[start : start + 16], Y[start : start + 16])
        assert_close(theta(model)[0], dense(model, start + 16), 1e-9)
        kept.append(model._cache.asked_by_now.following is not None)
    assert not all(kept)
    # Asked so often, an inverse is made of the sums.
    assert kept[-1]


def test_rows_one_by_one_are_those_of_one_call():
    one, many = EdRVFLClassifier(**WIDE), EdRVFLClassifier(**WIDE)
    one.partial_fit(X[:500], Y[:500])
    for row in range(500):
        many.partial_fit(X[row : row + 1], Y[row : row + 1])
    assert many._fitted.learned.num_waiting > 0
    assert many.num_rows_seen_ == many.class_count_.sum() == 500
    for model in (one, many):
        assert_close(theta(model)[0], dense(model, 500), 1e-9)
    assert_close(many.decision_function(X), one.decision_function(X), 1e-9)
    assert_close(many.predict_std(X), one.predict_std(X), 1e-8)


@pytest.mark.parametrize("k", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
def test_sums_are_those_of_the_recursion(k):
    """The square-root solver keeps the state of the recursion."""
    sums, state = (
        EdRVFLClassifier(**SMALL | {"k": k, "solver": solver}) for solver in ("auto", "square_root")
    )
    for start in range(0, 120, 7):
        for model in (sums, state):
            model.partial_fit(X[start : start + 7], Y[start : start + 7])
        assert_close(sums.decision_function(X), state.decision_function(X), 1e-9)
    assert sums._fitted.on_sums
    assert not state._fitted.on_sums
    found, want = sums._fitted.state, state._settled().state
    assert_close(found.eta_dagger, want.eta_dagger, 1e-9)
    assert_close(found.theta, want.theta, 1e-9)
    np.testing.assert_array_equal(found.W, want.W)


@pytest.mark.parametrize(
    "options",
    [
        {"k": adaptive_k()},
        {"k": adaptive_k(reuse_k=True)},
        {"cold_start": "paper"},
        {"precision": "single"},
        {"solver": "square_root"},
    ],
    ids=str,
)
def test_what_sums_do_not_tell_keeps_its_state(options):
    model = EdRVFLClassifier(**SMALL | options).partial_fit(X, Y)
    assert not isinstance(model._fitted.learned, Learned)


def test_merge_and_unlearn_add_and_subtract():
    a, b, both = (EdRVFLClassifier(**WIDE) for _ in range(3))
    a.partial_fit(X[:320], Y[:320])
    in_batches(b, X[320:], Y[320:], (50,) * 6 + (20,))
    in_batches(both, X, Y, (64,) * 10)
    merged = merge(a, b)
    found, want = merged._settled().learned.sums, both._settled().learned.sums
    assert_close(found.gram, want.gram, 1e-13)
    assert_close(found.moment, want.moment, 1e-13)
    assert_close(merged.decision_function(X), both.decision_function(X), 1e-9)
    merged.unlearn(X[320:], Y[320:])
    assert_close(merged._settled().learned.sums.gram, a._settled().learned.sums.gram, 1e-12)
    assert_close(theta(merged)[0], dense(merged, 320), 1e-9)
    # What guesses has seen rows that may come again, and is solved anew before they do.
    assert merged._fitted.learned.standing.rows == -1
    merged.partial_fit(X[:5], Y[:5])
    assert merged._fitted.learned.standing.rows == 320


def test_wide_models_refuse_rows_that_were_never_learned(monkeypatch):
    """Without a factorisation."""
    monkeypatch.setattr(adding, "CHECKED_WIDTH", 100)
    monkeypatch.setattr(adding.hosted, "conclude", None)
    model = EdRVFLClassifier(**WIDE).partial_fit(X, Y)
    before = model.decision_function(X)
    with pytest.raises(ValueError, match="positive definite"):
        model.unlearn(100 * X, Y)
    with pytest.raises(ValueError, match="negative squared errors"):
        model.unlearn(X, Y[::-1])
    np.testing.assert_array_equal(model.decision_function(X), before)
    model.unlearn(X[600:], Y[600:])
    assert_close(theta(model)[0], dense(model, 600), 1e-9)


def test_forgetting_scales_the_sums():
    model = EdRVFLClassifier(**WIDE | {"forgetting": 0.99})
    in_batches(model, X[:300], Y[:300], (100, 1, 99, 100))
    weight = 0.99 ** np.arange(300)[::-1]
    assert_close(theta(model)[0], dense(model, 300, weight), 1e-9)


def test_announced_inputs_enter_when_a_readout_is_asked_for():
    model = EdRVFLClassifier(**WIDE | {"k": 1.5})
    model.partial_fit(X[:100], Y[:100], X_next=X[100:140])
    D = references.features(model._fitted.weights.whole(), np.hstack([X[:140], np.ones((140, 1))]))[
        0
    ]
    targets = np.eye(model._fitted.capacity)[model._fitted.labels.columns("y", Y[:100])]
    A = D[:100].T @ D[:100] + 1.5 * D[100:].T @ D[100:] + 0.5 * np.eye(D.shape[1])
    assert_close(theta(model)[0], np.linalg.solve(A, D[:100].T @ targets), 1e-9)
    model.partial_fit(X[100:140], Y[100:140])
    assert_close(theta(model)[0], dense(model, 140), 1e-9)


@pytest.mark.parametrize("size", [1, 16, 100])
def test_what_guesses_is_never_older_than_half_of_the_rows(size):
    model, solves = EdRVFLClassifier(**WIDE), set()
    for start in range(0, 600, size):
        model.partial_fit(X[start : start + size], Y[start : start + size])
        learned = model._fitted.learned
        assert learned.standing.rows * 2 > learned.rows
        assert learned.rows - learned.standing.rows < MOST_STALE * learned.shape[1]
        assert learned.standing.counts.sum() == learned.standing.rows
        solves.add(learned.standing.rows)
    assert len(solves) <= 11


def test_the_first_of_dear_solutions_waits_for_as_much_work_of_adding_rows(monkeypatch):
    monkeypatch.setattr("rvfl_jax.estimators.learned.MANY_FEATURES", 8)
    model, known = EdRVFLClassifier(**WIDE), []
    for start in range(0, 600, 50):
        model.partial_fit(X[start : start + 50], Y[start : start + 50])
        known.append(model._fitted.learned.standing.rows)
    width = model._fitted.shape[1]
    first = next(rows for rows in known if rows)
    assert width // 3 <= first < width // 3 + 50
    assert sorted(set(known))[1:] == [first << i for i in range(len(set(known)) - 1)]


def test_a_guess_is_by_a_readout_that_has_not_seen_the_row():
    model = EdRVFLClassifier(**WIDE)
    in_batches(model, X[:300], Y[:300], (50,) * 6)
    guesses = adding.guesses_of(model._own_setting(), model._fitted)
    # The first call is guessed by nothing.
    assert np.asarray(guesses.rows).sum() == 250
    # Whoever asks changes nothing of it.
    twin = EdRVFLClassifier(**WIDE)
    for start in range(0, 300, 50):
        twin.partial_fit(X[start : start + 50], Y[start : start + 50]).predict_proba(X)
    assert twin.inverse_temperature_ == pytest.approx(model.inverse_temperature_, rel=1e-9)


def square_arrays(model):
    kept = [model._fitted, list(model._cache._held.values()), model._cache.asked]
    leaves = {id(leaf): leaf for leaf in jax.tree.leaves(kept) if hasattr(leaf, "dtype")}
    width = model._fitted.shape[1]
    return sum(np.size(leaf) >= width**2 for leaf in leaves.values())


def test_wide_models_keep_one_square_array(monkeypatch):
    """The Gram, in one strip at this width."""
    monkeypatch.setattr("rvfl_jax.estimators.base.MOST_KEPT", 1000)
    monkeypatch.setattr("rvfl_jax.estimators.classifier.MOST_KEPT", 1000)
    for start in (False, True):
        model = EdRVFLClassifier(**WIDE)
        model.fit(X[:200], Y[:200]) if start else model.partial_fit(X[:200], Y[:200])
        assert square_arrays(model) == 1
        for row in (200, 280, 360):
            model.partial_fit(X[row : row + 80], Y[row : row + 80])
            model.predict(X)
            model.predict_std(X)
            assert square_arrays(model) == 1
        assert square_arrays(pickle.loads(pickle.dumps(model))) == 1


@pytest.mark.parametrize("way", ["file", "pickle"])
def test_rows_that_wait_are_kept_with_the_model(way, tmp_path):
    model = EdRVFLClassifier(**WIDE)
    for row in range(40):
        model.partial_fit(X[row : row + 1], Y[row : row + 1])
    assert model._fitted.learned.num_waiting == 40
    if way == "file":
        save_model(model, tmp_path)
        again = load_model(tmp_path)
    else:
        again = pickle.loads(pickle.dumps(model))
    # What one follows the other has to solve.
    assert_close(again.predict_proba(X), model.predict_proba(X), 1e-9)
    for each in (model, again):
        in_batches(each, X[40:], Y[40:], (100,) * 6)
    assert_close(again.decision_function(X), model.decision_function(X), 1e-12)
    assert_close(again.predict_proba(X), model.predict_proba(X), 1e-9)


def test_rows_that_wait_are_not_the_callers_array():
    buffer = X[:40].copy()
    model = EdRVFLClassifier(**WIDE, intercept=False).partial_fit(buffer, Y[:40])
    twin = EdRVFLClassifier(**WIDE, intercept=False).partial_fit(X[:40], Y[:40])
    buffer[:] = 0.0
    np.testing.assert_array_equal(model.predict_proba(X), twin.predict_proba(X))


def test_overflow_is_told_at_once_and_leaves_what_waits():
    model = EdRVFLClassifier(**WIDE).partial_fit(X[:40], Y[:40])
    before = model.predict_proba(X)
    with pytest.raises(NumericalError, match="overflowed"):
        model.partial_fit(1e200 * X[:3], Y[:3])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    assert model.num_rows_seen_ == 40


def test_readers_of_rows_that_wait_see_one_model():
    """Several threads solve the same moment at once, and beside a writer."""
    model, answers, faults = EdRVFLClassifier(**WIDE), [], []
    model.partial_fit(X[:20], Y[:20])

    def read():
        try:
            while not over.is_set():
                copy = pickle.loads(pickle.dumps(model))
                rows = copy.num_rows_seen_
                answers.append((rows, np.asarray(copy.decision_function(X[:3]))))
        except BaseException as fault:
            faults.append(fault)

    over = threading.Event()
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    for start in range(20, 400, 10):
        model.partial_fit(X[start : start + 10], Y[start : start + 10]).predict(X[:3])
    over.set()
    for thread in threads:
        thread.join()
    assert not faults
    D = references.features(model._fitted.weights.whole(), np.hstack([X[:3], np.ones((3, 1))]))[0]
    for rows, scores in answers[:: max(1, len(answers) // 5)]:
        want = (D @ dense(model, rows))[:, model._classes()[1]]
        assert_close(scores, want[:, : scores.shape[1]], 1e-9)


def test_asking_from_several_threads_gives_the_same_bits():
    model = EdRVFLClassifier(**WIDE)
    found = []

    def ask():
        found.append(model.predict_proba(X[:9]).tobytes())

    for start in range(0, 480, 16):
        model.partial_fit(X[start : start + 16], Y[start : start + 16])
        found.clear()
        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(set(found)) == 1


def test_regressors_add_up_too():
    targets = np.stack([X[:, 0] * 2, np.sin(X[:, 1])], axis=1)
    model = EdRVFLRegressor(**WIDE)
    for start in range(0, 320, 10):
        model.partial_fit(X[start : start + 10], targets[start : start + 10])
        if start % 40 == 0:
            model.predict(X)
    D = references.features(model._fitted.weights.whole(), np.hstack([X, np.ones((640, 1))]))[0]
    want = D @ references.ridge_solution(D[:320], targets[:320], 0.5)
    assert_close(model.predict(X), want, 1e-9)


@pytest.mark.slow
def test_wide_readouts_are_solved_by_strips():
    model = EdRVFLClassifier(1, 600, ridge=0.5, random_state=0)
    model.fit(X, Y)
    found = adding.solved(model._own_setting(), model._fitted, "ridge")
    assert_close(found.theta[0], dense(model, 640), 1e-9)


def test_following_has_room_for_about_half_the_width():
    assert following.room((1, 2066, 16)) == 1024
    assert following.room((1, 10_000, 16)) == 256
    assert following.few_rows(2066) == 229
    assert Asked().following is None
