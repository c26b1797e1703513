"""Rows with several labels: readouts against dense ridge, thresholds against brute force."""

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.linear_model import Ridge
from sklearn.metrics import f1_score
from sklearn.model_selection import cross_val_predict
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from rvfl_jax import EdRVFLMultiLabelClassifier, Sums, load_model, merge, save_model
from rvfl_jax.estimators.thresholds import BINS, LabelGuesses, bin_of
from tests import references, tolerances
from tests.estimators.test_estimator import SMALL, assert_close


def rows_with_labels(num_rows=240, seed=0, num_labels=3):
    """Labels that become rarer, linear in X but for noise."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((num_rows, 4))
    ways = np.random.default_rng(9).standard_normal((4, num_labels))
    noise = 0.5 * rng.standard_normal((num_rows, num_labels))
    return X, (X @ ways + noise > 1.0 + 0.7 * np.arange(num_labels)).astype(int)


X, Y = rows_with_labels()
X_TEST, Y_TEST = rows_with_labels(seed=1)


def dense_scores(model, X, Y, X_test, weight=None):
    """(n, m): a ridge regression a label, mean over sub-learners; labels one by one."""
    W = np.asarray(model._fitted.state.W)
    D, D_test = (
        references.features(W, np.hstack([rows, np.ones((len(rows), 1))])) for rows in (X, X_test)
    )
    each = [
        [D_t @ references.ridge_solution(D_l, y, model.ridge, weight) for y in Y.T[..., None]]
        for D_l, D_t in zip(D, D_test, strict=True)
    ]
    return np.mean(each, axis=0)[..., 0].T


def scores_of(model, X):
    return model.decision_function(X) + model.thresholds_


def test_scores_are_those_of_one_dense_ridge_a_label():
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X, Y)
    expected = dense_scores(model, X, Y, X_TEST)
    assert_close(scores_of(model, X_TEST), expected, tolerances.CLOSED_FORM)
    np.testing.assert_array_equal(model.predict(X_TEST), expected >= model.thresholds_)
    probable = model.predict_proba(X_TEST)
    assert_close(probable, np.clip(expected, 0.0, 1.0), tolerances.CLOSED_FORM)


def test_weights_are_repeated_rows():
    times = np.random.default_rng(0).integers(0, 3, len(X))
    weighted = EdRVFLMultiLabelClassifier(**SMALL).fit(X, Y, sample_weight=times)
    expected = dense_scores(weighted, X, Y, X_TEST, times)
    assert_close(scores_of(weighted, X_TEST), expected, tolerances.CLOSED_FORM)


@pytest.mark.parametrize("sizes", [(1,) * 40, (3, 0, 20, 17)], ids=["rows", "ragged"])
def test_any_batches_give_the_readout_of_one_fit(sizes):
    whole, parts = (EdRVFLMultiLabelClassifier(**SMALL) for _ in range(2))
    whole.fit(X[:40], Y[:40])
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        if size:
            parts.partial_fit(X[end - size : end], Y[end - size : end])
    assert_close(scores_of(parts, X_TEST), scores_of(whole, X_TEST), tolerances.CLOSED_FORM)
    assert parts.label_count_.tolist() == Y[:40].sum(axis=0).tolist()
    assert parts.num_rows_seen_ == 40


def test_rows_before_a_new_label_count_as_rows_without_it():
    late, filled = (EdRVFLMultiLabelClassifier(**SMALL) for _ in range(2))
    late.partial_fit(X[:100], Y[:100, :1], labels=["a"])
    late.partial_fit(X[100:200], Y[100:200, [2, 0]], labels=["c", "a"])
    late.partial_fit(X[200:], Y[200:, 1:2], labels=["b"])
    there = np.zeros_like(Y)
    there[:200, 0] = Y[:200, 0]
    there[100:200, 1] = Y[100:200, 2]
    there[200:, 2] = Y[200:, 1]
    filled.fit(X, there)
    assert late.classes_.tolist() == ["a", "c", "b"]
    assert filled.classes_.tolist() == [0, 1, 2]
    assert_close(scores_of(late, X_TEST), scores_of(filled, X_TEST), tolerances.CLOSED_FORM)


def test_more_labels_than_there_was_room_for():
    rng = np.random.default_rng(0)
    many = (rng.uniform(size=(len(X), 40)) < 0.3).astype(int)
    model = EdRVFLMultiLabelClassifier(**SMALL)
    model.partial_fit(X[:50], many[:50, :2]).partial_fit(X[50:], many[50:])
    there = many.copy()
    there[:50, 2:] = 0
    expected = dense_scores(model, X, there, X_TEST)
    assert_close(scores_of(model, X_TEST), expected, tolerances.CLOSED_FORM)


def best_threshold(scores, y, weight, rule):
    """Every edge tried; of those that are best, the middle of the first run."""
    values = []
    for edge in np.arange(1, BINS + 1) / BINS:
        said = scores >= edge
        right, wrong = weight[said & (y == 1)].sum(), weight[said & (y == 0)].sum()
        missed = weight[~said & (y == 1)].sum()
        f1 = 2 * right / (2 * right + wrong + missed)
        values.append(f1 if rule == "f1" else -(wrong + missed) / weight.sum())
    run = [i for i, value in enumerate(values) if value >= max(values) - 1e-12]
    run = [i for i in run if i - run[0] == run.index(i)]
    return ((run[0] + run[-1]) / 2 + 1) / BINS


@pytest.mark.parametrize("rule", ["f1", "accuracy"])
def test_thresholds_of_a_fit_are_the_best_of_rows_left_out(rule):
    model = EdRVFLMultiLabelClassifier(**SMALL, threshold=rule).fit(X, Y)
    left_out = np.vstack(
        [
            dense_scores(model, np.delete(X, i, 0), np.delete(Y, i, 0), X[i : i + 1])
            for i in range(len(X))
        ]
    )
    ones = np.ones(len(X))
    want = [best_threshold(s, y, ones, rule) for s, y in zip(left_out.T, Y.T, strict=True)]
    np.testing.assert_array_equal(model.thresholds_, want)
    # F1 of a rare label is best below 1/2.
    assert rule == "accuracy" or model.thresholds_[2] < 0.45


# Rows of small batches wait, and asking adds them to the sums.
@pytest.mark.parametrize(("rule", "size"), [("f1", 30), ("accuracy", 30), ("f1", 3)])
def test_thresholds_are_the_best_of_guesses_before_rows_were_learned(rule, size):
    model = EdRVFLMultiLabelClassifier(**SMALL, threshold=rule)
    known, guessed, weights = 0, [], []
    for start in range(0, 240, size):
        here = slice(start, start + size)
        if start:
            guessed.append(dense_scores(model, X[:known], Y[:known], X[here]))
            weights.append(known * (Y[:known].sum(axis=0) > 0) * np.ones((size, 1)))
        model.partial_fit(X[here], Y[here])
        # d = 17: a readout that guesses is at most as many rows behind as it knows, and 4 d.
        if start + size - known >= max(1, min(known, 4 * 17)):
            known = start + size
        if start % 7 == 0:
            model.predict(X[:1])
    columns = np.vstack(guessed).T, Y[size:].T, np.vstack(weights).T
    want = [best_threshold(*column, rule) for column in zip(*columns, strict=True)]
    np.testing.assert_array_equal(model.thresholds_, want)


def test_the_threshold_may_be_changed_at_any_time():
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X, Y)
    at_f1 = f1_score(Y_TEST, model.predict(X_TEST), average="macro")
    model.set_params(threshold=0.5)
    assert model.thresholds_.tolist() == [0.5] * 3
    at_half = f1_score(Y_TEST, model.predict(X_TEST), average="macro")
    assert at_f1 > at_half + 0.02
    with pytest.raises(ValueError, match="threshold: expected one of f1, accuracy"):
        model.set_params(threshold=1.5).predict(X_TEST)


def test_labels_that_nothing_tells_of_have_the_threshold_of_one_half():
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X, np.column_stack([Y[:, 0], 0 * Y[:, 0]]))
    assert model.thresholds_[1] == 0.5
    assert not model.predict(X)[:, 1].any()
    fresh = EdRVFLMultiLabelClassifier(**SMALL).partial_fit(X, Y)
    assert fresh.thresholds_.tolist() == [0.5] * 3


def test_predictions_are_those_of_one_ridge_a_label_on_the_same_features():
    model = EdRVFLMultiLabelClassifier(**SMALL | {"num_layers": 1}, threshold=0.5).fit(X, Y)
    W = np.asarray(model._fitted.state.W)
    D, D_test = (
        references.features(W, np.hstack([rows, np.ones((len(rows), 1))]))[0]
        for rows in (X, X_TEST)
    )
    ridge = Ridge(alpha=SMALL["ridge"], fit_intercept=False, solver="cholesky")
    columns = [clone(ridge).fit(D, y).predict(D_test) for y in Y.T]
    assert_close(scores_of(model, X_TEST), np.column_stack(columns), tolerances.CLOSED_FORM)
    reference = OneVsRestClassifier(Ridge(alpha=SMALL["ridge"], fit_intercept=False)).fit(D, Y)
    np.testing.assert_array_equal(model.predict(X_TEST), reference.predict(D_test))


def test_targets_of_every_form_are_the_same():
    names = ["a", "b", "c"]
    dense = EdRVFLMultiLabelClassifier(**SMALL).fit(X, Y, labels=names)
    for y in (sparse.csr_matrix(Y), sparse.csc_array(Y), Y.astype(bool), Y.tolist()):
        other = EdRVFLMultiLabelClassifier(**SMALL).fit(X, y, labels=np.array(names))
        np.testing.assert_array_equal(scores_of(other, X_TEST), scores_of(dense, X_TEST))
    frame = EdRVFLMultiLabelClassifier(**SMALL).fit(X, pd.DataFrame(Y, columns=names))
    assert frame.classes_.tolist() == names
    np.testing.assert_array_equal(frame.predict(X_TEST), dense.predict(X_TEST))


def test_sparse_rows_are_dense_ones():
    dense, thin = (EdRVFLMultiLabelClassifier(**SMALL) for _ in range(2))
    few = np.where(np.abs(X) > 0.5, X, 0.0)
    dense.fit(few[:120], Y[:120]).partial_fit(few[120:], Y[120:])
    thin.fit(sparse.csr_array(few[:120]), sparse.csr_array(Y[:120]))
    thin.partial_fit(sparse.csr_array(few[120:]), Y[120:])
    np.testing.assert_array_equal(
        thin.predict_proba(sparse.csr_array(few)), dense.predict_proba(few)
    )


def test_rows_are_unlearned():
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X, Y, labels=["a", "b", "c"])
    before = model.thresholds_
    model.unlearn(X[150:], Y[150:])
    want = dense_scores(model, X[:150], Y[:150], X_TEST)
    assert_close(scores_of(model, X_TEST), want, tolerances.CLOSED_FORM)
    assert model.label_count_.tolist() == Y[:150].sum(axis=0).tolist()
    np.testing.assert_array_equal(model.thresholds_, before)
    with_c = np.flatnonzero(Y[:150, 2])
    model.unlearn(X[with_c], Y[with_c])
    assert model.label_count_[2] == 0
    assert model.thresholds_[2] == 0.5
    model.partial_fit(X[150:], Y[150:])
    rest = np.setdiff1d(np.arange(240), with_c)
    want = dense_scores(model, X[rest], Y[rest], X_TEST)
    assert_close(scores_of(model, X_TEST), want, tolerances.CLOSED_FORM)


def test_rows_that_were_never_learned_are_refused():
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X[:40], Y[:40], labels=["a", "b", "c"])
    before = scores_of(model, X_TEST)
    for (rows, y), labels, told in (
        ((X[:50], 0 * Y[:50]), None, "at most 40 rows, got 50"),
        ((X[:9], np.ones((9, 1))), ["c"], "rows with 'c', got 9"),
        ((X[:1], Y[:1]), ["a", "b", "d"], "labels: expected labels that were learned, got 'd'"),
        ((100 * X[:2], Y[:2]), None, "expected rows that were learned"),
    ):
        with pytest.raises(ValueError, match=told):
            model.unlearn(rows, y, labels=labels)
        np.testing.assert_array_equal(scores_of(model, X_TEST), before)


def test_models_merge_whatever_labels_they_have():
    a, b, c = (EdRVFLMultiLabelClassifier(**SMALL) for _ in range(3))
    a.fit(X[:100], Y[:100, :2], labels=["a", "b"])
    b.fit(X[100:180], Y[100:180, [2, 0]], labels=["c", "a"])
    c.partial_fit(X[180:], Y[180:], labels=["a", "b", "c"])
    merged = merge(a, b, c)
    there = Y.copy()
    there[:100, 2] = there[100:180, 1] = 0
    assert merged.classes_.tolist() == ["a", "b", "c"]
    assert merged.label_count_.tolist() == there.sum(axis=0).tolist()
    want = dense_scores(merged, X, there, X_TEST)
    assert_close(scores_of(merged, X_TEST), want, tolerances.CLOSED_FORM)
    guesses = [model._fitted.label_guesses.scores for model in (a, b, c, merged)]
    # Those of label "a", whose column in b is the second.
    np.testing.assert_allclose(
        guesses[3][:, 0], sum(g[:, at] for g, at in zip(guesses[:3], (0, 1, 0), strict=True))
    )
    merged.partial_fit(X[:1], Y[:1])


def test_a_saved_model_answers_and_learns_on_as_before(tmp_path):
    model = EdRVFLMultiLabelClassifier(**SMALL, scale="first")
    for start in range(0, 120, 40):
        model.partial_fit(X[start : start + 40], Y[start : start + 40], labels=["a", 7, "c"])
    save_model(model, tmp_path)
    copies = [load_model(tmp_path), pickle.loads(pickle.dumps(model))]
    for copy in copies:
        assert copy.classes_.tolist() == ["a", 7, "c"]
        np.testing.assert_array_equal(copy.predict_proba(X_TEST), model.predict_proba(X_TEST))
        np.testing.assert_array_equal(copy.thresholds_, model.thresholds_)
    for each in (model, *copies):
        each.partial_fit(X[120:], Y[120:])
    for copy in copies:
        np.testing.assert_array_equal(copy.decision_function(X), model.decision_function(X))
        assert copy.label_count_.tolist() == model.label_count_.tolist()


@pytest.mark.parametrize(
    ("y", "labels", "told"),
    [
        (Y[:, 0], None, r"indicator matrix \(rows, labels\), got shape \(240,\)"),
        (2 * Y, None, "expected 0 and 1, got 2.0 at"),
        (np.where(Y, "yes", "no"), None, "expected 0 and 1, got values of type"),
        (np.where(Y, np.nan, 0), None, "expected 0 and 1, got nan"),
        (Y[:9], None, "expected 240 rows, one a row of X, got 9"),
        (Y, ["a", "b"], "expected 3 different names"),
        (Y, ["a", "b", "a"], "expected 3 different names"),
        (np.hstack([Y, Y]), None, "expected names of the 6 columns"),
        (Y, ["a", "b", 5], "a number and its text are two labels"),
        (None, None, "requires y to be passed"),
    ],
)
def test_unusable_targets_change_nothing(y, labels, told):
    model = EdRVFLMultiLabelClassifier(**SMALL).fit(X[:40], Y[:40], labels=["a", "b", "5"])
    before = scores_of(model, X_TEST)
    with pytest.raises(ValueError, match=told):
        model.partial_fit(X, y, labels=labels)
    np.testing.assert_array_equal(scores_of(model, X_TEST), before)
    assert model.num_rows_seen_ == 40


def test_scikit_learn_takes_it_for_a_classifier_of_several_labels():
    model = EdRVFLMultiLabelClassifier(**SMALL)
    assert is_classifier(model)
    assert clone(model).get_params() == model.get_params()
    piped = make_pipeline(StandardScaler(), model)
    guessed = cross_val_predict(piped, X, Y, cv=3)
    assert guessed.shape == Y.shape
    assert piped.fit(X, Y).score(X, Y) == (piped.predict(X) == Y).all(axis=1).mean()


def test_sums_of_many_machines_are_not_for_several_labels():
    with pytest.raises(ValueError, match="expected EdRVFLClassifier or EdRVFLRegressor"):
        Sums.zero(EdRVFLMultiLabelClassifier(**SMALL))


def test_lambda_may_be_chosen():
    model = EdRVFLMultiLabelClassifier(**SMALL | {"ridge": "auto"}).fit(X, Y)
    fixed = EdRVFLMultiLabelClassifier(**SMALL | {"ridge": model.ridge_}).fit(X, Y)
    assert_close(scores_of(model, X_TEST), scores_of(fixed, X_TEST), tolerances.LEAST_LAMBDA)


def test_bins_hold_their_edges():
    edges = np.arange(BINS + 1) / BINS
    assert bin_of(edges).tolist() == list(range(1, BINS + 2))
    assert bin_of(np.array([-1e300, -1e-300, 1e300, 1 - 1e-16])).tolist() == [0, 0, BINS + 1, 256]
    one = LabelGuesses.none((1, 2, 1))._replace(rows=2, rows_of_label=np.ones(1, int))
    one = one.plus(np.array([[0.25], [0.75]]), np.array([[0], [1]]), np.array([1.0, 3.0]))
    assert one.scores.sum() == 8
    assert one.scores[1, 0, bin_of(np.array(0.75))] == 6
    # Every edge above 1/4 and up to 3/4 tells them apart.
    assert one.thresholds("f1").tolist() == [(0.25 + 1 / BINS + 0.75) / 2]
