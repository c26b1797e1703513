"""Novelty against dense formulas, and the threshold against loops, quantiles and streams."""

from itertools import pairwise

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score

from rvfl_jax import EdRVFLClassifier, load_model, merge, save_model
from rvfl_jax.estimators.novelty import (
    FEWEST,
    KEPT,
    NOVELTY_SCORES,
    POWER,
    STRIDES,
    Tally,
    merged_tally,
    no_tally,
)
from rvfl_jax.metrics import area_under_curve
from tests import references, tolerances
from tests.estimators.test_estimator import SMALL, assert_close, blobs, in_batches

X, Y = blobs(num_rows=400)


def dense(model, rows, labels, X_test, kind):
    """(n,) mean over sub-learners, with every covariance written out and inverted."""
    W = np.asarray(model._fitted.state.W)
    D, Z = (references.features(W, np.hstack([A, np.ones((len(A), 1))])) for A in (rows, X_test))
    return np.mean([of_one(D_l, labels, Z_l, kind) for D_l, Z_l in zip(D, Z, strict=True)], axis=0)


def of_one(D, labels, Z, kind, ridge=SMALL["ridge"], shrinkage=0.1):
    n, d = D.shape
    eye = np.eye(d)
    if kind == "leverage":
        return n * squares(Z, D.T @ D + ridge * eye)
    means = np.array([D[labels == c].mean(axis=0) for c in np.unique(labels)])
    counts = np.unique(labels, return_counts=True)[1]
    inner = D - means[np.unique(labels, return_inverse=True)[1]]
    S = inner.T @ inner + ridge * eye
    Sigma = ((1 - shrinkage) * S + shrinkage * np.trace(S) / d * eye) / n
    off = means - D.mean(axis=0)
    Sigma_0 = Sigma + off.T @ (counts[:, None] / n * off)
    nearest = np.min([squares(Z - mean, Sigma) for mean in means], axis=0)
    share = {"mahalanobis": 0.0, "blended": 0.95, "relative_mahalanobis": 1.0}[kind]
    return nearest - share * squares(Z - D.mean(axis=0), Sigma_0)


def squares(Z, A):
    return np.sum(Z * np.linalg.solve(A, Z.T).T, axis=1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        pytest.param({"solver": "square_root"}, marks=pytest.mark.slow),
        pytest.param("sums of JAX", marks=pytest.mark.slow),
    ],
    ids=["sums", "state", "device"],
)
def test_scores_are_those_of_dense_covariances(options, monkeypatch):
    if options == "sums of JAX":
        options = {}
        monkeypatch.setattr("rvfl_jax.estimators.hosted.is_host_faster", lambda: False)
    model = in_batches(EdRVFLClassifier(**SMALL, **options), X[:300], Y[:300], [100, 150, 50])
    for kind in NOVELTY_SCORES:
        expected = dense(model, X[:300], Y[:300], X[300:], kind)
        assert_close(model.novelty(X[300:], kind=kind), expected, tolerances.CLOSED_FORM)
    assert (model.novelty(X[300:]) == model.novelty(X[300:], kind="blended")).all()


def test_classes_declared_and_rows_of_weight_count_as_they_should():
    model = EdRVFLClassifier(**SMALL).partial_fit(X[:99], Y[:99], classes=[*range(9)])
    twice = EdRVFLClassifier(**SMALL).partial_fit(
        X[:99], Y[:99], sample_weight=np.r_[np.full(50, 2.0), np.ones(49)]
    )
    again = EdRVFLClassifier(**SMALL).partial_fit(
        np.vstack([X[:99], X[:50]]), np.r_[Y[:99], Y[:50]]
    )
    for kind in NOVELTY_SCORES:
        expected = dense(model, X[:99], Y[:99], X[99:], kind)
        assert_close(model.novelty(X[99:], kind=kind), expected, tolerances.CLOSED_FORM)
        assert_close(twice.novelty(X, kind=kind), again.novelty(X, kind=kind), 1e-9)


@pytest.mark.parametrize("forgetting", [1.0, 0.999])
@pytest.mark.parametrize("kind", ["relative_mahalanobis", "leverage"])
def test_false_alarms_are_those_wanted_where_rows_come_alike(kind, forgetting):
    """Rates of some 600 scores have a deviation of 0.011 and 0.019."""
    rows, labels = blobs(num_rows=7000, num_classes=6)
    model = EdRVFLClassifier(**SMALL, novelty_score=kind, forgetting=forgetting)
    model = in_batches(model, rows[:2000], labels[:2000], [50] * 40)
    later = model.novelty(rows[2000:])
    for wanted, slack in ((0.08, 0.03), (0.3, 0.05)):
        rate = np.mean(later > model.novelty_threshold(wanted))
        assert abs(rate - wanted) < slack
    far = model.predict(20 * rows[:50] + 90, unknown=-1)
    assert (far == -1).all()


def test_a_row_is_scored_by_what_was_known_before_it():
    model = EdRVFLClassifier(**SMALL, novelty_score="mahalanobis")
    model = in_batches(model, X, Y, [40] * 10)
    tally = model._fitted.tally
    # The reference is made anew where there are a quarter more rows, or 4 d = 72.
    assert tally.known_rows == 360
    until = [40, 80, 120, 160, 200, 280, 360, 400]
    found = []
    for start, stop in pairwise(until):
        known = EdRVFLClassifier(**SMALL).partial_fit(X[:start], Y[:start])
        counts = np.bincount(Y[:start], minlength=4)
        scores = known.novelty(X[start:stop], kind="mahalanobis")
        found += zip(Y[start:stop], scores, counts[Y[start:stop]] ** float(POWER), strict=True)
    columns = model._fitted.labels.columns("y", np.arange(4))
    for label, column in enumerate(columns):
        mine = np.array([row[1:] for row in found if row[0] == label])
        count = len(mine)
        assert tally.offered[column] == count <= KEPT
        assert_close(tally.values[column, :count], mine[:, 0], tolerances.CLOSED_FORM)
        np.testing.assert_array_equal(tally.worth[column, :count], mine[:, 1])


def test_scores_are_kept_as_in_a_loop():
    """In batches of any size: the last ones of every class, fewer where there are many."""
    rng = np.random.default_rng(0)
    count, capacity = 9000, 4
    columns = rng.choice(3, count, p=[0.8, 0.15, 0.05])
    scores, weight = rng.standard_normal(count), rng.uniform(1, 2, count)
    known = np.array([2.0, 3.0, 0.0])
    tally = no_tally("leverage", capacity, 0)._replace(reference=(), known=known)
    start = 0
    while start < count:
        here = slice(start, start + int(rng.integers(1, 3000)))
        mine = scores[here]
        tally = tally.with_rows(columns[here], weight[here], lambda rows, s=mine: s[rows])
        start = here.stop
    for c in range(2):
        values, worth, place = np.zeros(KEPT), np.zeros(KEPT), 0
        for nth, row in enumerate(np.flatnonzero(columns == c)):
            start = max(first for first in STRIDES if first <= nth)
            if (nth - start) % STRIDES[start] == 0:
                values[place % KEPT] = scores[row]
                worth[place % KEPT] = weight[row] * known[c] ** POWER
                place += 1
        np.testing.assert_array_equal(tally.values[c], values)
        np.testing.assert_array_equal(tally.worth[c], worth)
    assert tally.offered.tolist() == [*np.bincount(columns)[:2], 0, 0]
    assert not tally.worth[2:].any()
    assert tally.rows == count


def tally_of(values, worth):
    """Of a list of scores a class."""
    tally = no_tally("leverage", len(values), 0)
    for c, (mine, weight) in enumerate(zip(values, worth, strict=True)):
        tally.values[c, : len(mine)], tally.worth[c, : len(mine)] = mine, weight
        tally.offered[c] = len(mine)
    return tally


def test_the_threshold_is_the_quantile_of_conformal_prediction():
    scores = np.random.default_rng(0).permutation(99).astype(float)
    tally = tally_of([scores[:60], scores[60:]], [1.0, 1.0])
    counts = np.array([60, 39])
    for rate in (0.01, 0.05, 0.5):
        # The k-th of 99 in ascending order with k = (1 - rate) 100, which rounding may miss by one.
        assert tally.threshold(counts, rate) == pytest.approx((1 - rate) * 100 - 1)
    assert tally.threshold(counts, 0.009) == np.inf
    # A class counts by its rows, however many of its scores are there, and a score by its worth.
    few = tally_of([[1.0] * 100, [2.0] * 10], [1.0, 1.0])
    assert few.threshold(np.array([90, 10]), 0.2) == 1.0
    assert few.threshold(np.array([50, 50]), 0.2) == 2.0
    young = tally_of([[9.0] * 30 + [1.0] * 60], [[1.0] * 30 + [25.0] * 60])
    assert young.threshold(np.array([90]), 0.05) == 1.0
    assert few.threshold(np.array([0, 0]), 0.2) == np.inf


@pytest.mark.parametrize(
    ("names", "unknown"), [([0, 1, 2, 3], -1), (["a", "b", "c", "d"], "a long one")]
)
def test_unknown_rows_get_their_label(names, unknown):
    labels = np.array(names)[Y]
    model = EdRVFLClassifier(**SMALL, novelty_score="blended").fit(X, labels)
    strange = np.vstack([X[:20], 100 * X[:20]])
    plain, found = model.predict(strange), model.predict(strange, unknown=unknown)
    assert found.dtype.kind == plain.dtype.kind
    above = model.novelty(strange) > model.novelty_threshold()
    assert above[20:].all()
    np.testing.assert_array_equal(found[~above], plain[~above])
    assert set(found[above].tolist()) == {unknown}
    more = model.predict(strange, unknown=unknown, false_alarms=0.5)
    assert (more == unknown).sum() > (found == unknown).sum()


def test_what_cannot_be_asked_is_refused():
    model = EdRVFLClassifier(**SMALL).fit(X, Y)
    with pytest.raises(ValueError, match="novelty_score: expected one of blended"):
        model.predict(X, unknown=-1)
    with pytest.raises(ValueError, match="kind: expected"):
        model.novelty(X, kind="distance")
    model = EdRVFLClassifier(**SMALL, novelty_score="blended").fit(X, Y)
    for bad, message in (
        ({"unknown": 2}, "unknown: expected a label that is no class, got 2"),
        ({"unknown": "2"}, "a number and its text"),
        ({"unknown": -1, "false_alarms": 0.0}, "false_alarms: expected a number between 0 and 1"),
        ({"unknown": -1, "false_alarms": "1"}, "false_alarms: expected a number between 0 and 1"),
    ):
        with pytest.raises(ValueError, match=message):
            model.predict(X, **bad)
    with pytest.raises(ValueError, match="novelty_score: expected"):
        EdRVFLClassifier(**SMALL, novelty_score="far").fit(X, Y)
    one = EdRVFLClassifier(**SMALL).partial_fit(X[:9], np.zeros(9, int))
    with pytest.raises(ValueError, match="expected 2 classes"):
        one.novelty(X)
    assert np.isfinite(one.novelty(X, kind="mahalanobis")).all()
    # Too few rows were scored to tell.
    few = EdRVFLClassifier(**SMALL, novelty_score="blended").fit(X[:10], Y[:10])
    assert few.novelty_threshold() == np.inf
    assert -1 not in few.predict(100 * X, unknown=-1)


def test_scoring_changes_no_readout_and_may_begin_at_any_time():
    plain = in_batches(EdRVFLClassifier(**SMALL), X, Y, [50] * 8)
    model = EdRVFLClassifier(**SMALL)
    in_batches(model, X[:200], Y[:200], [50] * 4)
    assert model._fitted.tally is None
    model.set_params(novelty_score="relative_mahalanobis")
    in_batches(model, X[200:], Y[200:], [50] * 4)
    assert model._fitted.tally.offered.sum() == 200
    np.testing.assert_allclose(
        model.decision_function(X), plain.decision_function(X), rtol=1e-9, atol=1e-9
    )
    model.set_params(novelty_score="leverage").partial_fit(X[:50], Y[:50])
    assert model._fitted.tally.kind == "leverage"
    assert model._fitted.tally.offered.sum() == 50


def test_unlearning_a_class_drops_its_scores():
    model = EdRVFLClassifier(**SMALL, novelty_score="blended")
    in_batches(model, X, Y, [50] * 8)
    column = int(model._fitted.labels.columns("y", np.array([2]))[0])
    before = model._fitted.tally
    model.unlearn(X[Y == 2], Y[Y == 2])
    after = model._fitted.tally
    assert before.offered[column] > 0
    assert after.offered[column] == 0
    assert not after.worth[column].any()
    rest = np.arange(len(after.offered)) != column
    np.testing.assert_array_equal(after.values[rest], before.values[rest])
    # What scored had seen the rows that are gone, and is not used again.
    assert after.reference is None
    fresh = EdRVFLClassifier(**SMALL).partial_fit(X[Y != 2], Y[Y != 2])
    assert_close(model.novelty(X), fresh.novelty(X), 1e-8)
    model.partial_fit(X[Y == 2][:9], Y[Y == 2][:9])
    assert model._fitted.tally.offered[column] == 0


def test_merged_models_have_the_scores_of_both(tmp_path):
    a = in_batches(EdRVFLClassifier(**SMALL, novelty_score="blended"), X[:200], Y[:200], [50] * 4)
    b = EdRVFLClassifier(**SMALL, novelty_score="blended")
    in_batches(b, X[200:], np.where(Y[200:] == 0, 7, Y[200:]), [50] * 4)
    both = merge(a, b)
    tally = both._fitted.tally
    theirs = b._fitted.labels.columns("y", np.array([1, 7]))
    mine = both._fitted.labels.columns("y", np.array([1, 7]))
    old = a._fitted.tally.offered[a._fitted.labels.columns("y", np.array([1]))]
    assert tally.offered[mine].tolist() == (b._fitted.tally.offered[theirs] + [old[0], 0]).tolist()
    assert 0 < both.novelty_threshold() < np.inf
    save_model(both, tmp_path)
    assert load_model(tmp_path).novelty_threshold() == both.novelty_threshold()


def test_merging_keeps_the_newest_of_either():
    def learned(seed, count):
        tally = no_tally("leverage", 2, 0)._replace(reference=(), known=np.ones(2))
        scores = np.arange(count) + 1000.0 * seed
        return tally.with_rows(np.zeros(count, int), np.ones(count), lambda rows: scores[rows])

    count = KEPT + 5
    a, b = learned(0, count), learned(1, 3)
    places = np.array([1, 0])
    apart = merged_tally(a, b, places, 2)
    assert sorted(apart.values[1, :3]) == [1000.0, 1001.0, 1002.0]
    together = merged_tally(a, b, np.array([0, 1]), 2)
    assert isinstance(together, Tally)
    assert set(together.values[0]) > {1000.0, 1001.0, 1002.0}
    # The five oldest were replaced before, three more make room now.
    assert set(together.values[0]) - {1000.0, 1001.0, 1002.0} == {
        *np.arange(8.0, count),
    }
    assert merged_tally(None, b, places, 2).offered.tolist() == [0, 3]
    assert merged_tally(a, None, places, 2).offered.tolist() == [count, 0]
    assert merged_tally(None, None, places, 2) is None


def test_models_without_scores_pay_nothing(monkeypatch):
    monkeypatch.setattr("rvfl_jax.estimators.classifier.measured", None)
    monkeypatch.setattr("rvfl_jax.estimators.classifier.reference_of", None)
    model = in_batches(EdRVFLClassifier(**SMALL), X, Y, [100] * 4)
    assert model._fitted.tally is None
    assert len(X) > FEWEST


def test_the_area_under_the_curve_is_that_of_scikit_learn():
    rng = np.random.default_rng(0)
    scores, unknown = rng.integers(0, 9, 80), rng.random(80) < 0.3
    found = area_under_curve(scores[~unknown], scores[unknown])
    assert found == pytest.approx(roc_auc_score(unknown, scores), abs=tolerances.FORMULA)
    assert area_under_curve([], [1.0]) is None
    assert area_under_curve([1.0], []) is None
