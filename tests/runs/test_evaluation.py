"""Looks at the test set: leading columns, scores that follow, and what counts as chosen."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import metrics
from rvfl_jax.runs import evaluation
from rvfl_jax.streams.labels import to_columns
from tests import references, tolerances
from tests.amounts import slow_but
from tests.streams import blobs, reweighted

KEY = jax.random.key(0)
CLASSES = 30


def many_classes(num_batches=20):
    X, y = blobs(rows=300, classes=CLASSES)
    return rvfl_jax.class_incremental_stream(X, y, num_tasks=5, num_batches=num_batches, seed=1)


def held_out():
    X, y = blobs(rows=90, classes=CLASSES)
    return X + np.random.default_rng(3).normal(size=X.shape) / 2, y


def learner(k=1.0, **options):
    return rvfl_jax.edrvfl(
        **{"num_layers": 2, "num_nodes": 40, "ridge": 0.5, "k": k, "solver": "covariance"} | options
    )


def history(learner, stream, **options):
    return rvfl_jax.run_stream(learner, stream, key=KEY, test=held_out(), **options).history


def assert_same_looks(got, want):
    for name in metrics.PROTOCOLS:
        np.testing.assert_allclose(got.accuracy[name], want.accuracy[name])
        np.testing.assert_allclose(got.task_accuracy[name], want.task_accuracy[name])
    np.testing.assert_allclose(got.learner_accuracy, want.learner_accuracy)
    for name in ("regret", "kl", "excess_loss", "kl_from_expert"):
        difference = np.abs(getattr(got, name) - getattr(want, name))
        assert difference.max() <= tolerances.REORDERED, name


@pytest.mark.parametrize("solver", ["covariance", "information"])
def test_leading_columns_give_what_all_columns_give(solver, monkeypatch):
    stream, make = many_classes(), lambda: learner(solver=solver)
    monkeypatch.setattr(evaluation, "MAX_WIDTHS", 1)
    monkeypatch.setattr(evaluation, "COLUMNS_APART", CLASSES)
    whole = history(make(), stream)
    monkeypatch.undo()
    assert len(evaluation._widths(CLASSES)) == 4
    assert_same_looks(history(make(), stream), whole)
    assert whole.accuracy["class_incremental"][-1] > 0.3


def test_columns_of_a_state_that_goes_on_are_scored():
    stream = many_classes()
    half = [
        stream._replace(X=stream.X[p], y=stream.y[p], weight=stream.weight[p], task=stream.task[p])
        for p in (slice(None, 10), slice(10, None))
    ]
    # Its last batch holds early classes only, so that the later ones are known by the state.
    half[1] = half[1]._replace(y=half[1].y % 4)
    first = rvfl_jax.run_stream(learner(), half[0], key=KEY)
    X_test, y_test = held_out()
    second = rvfl_jax.run_stream(
        learner(), half[1], key=KEY, state=first.state, test=(X_test, y_test), expert=None
    )
    D = references.features(second.state.W, X_test)
    p = references.softmax(D @ np.asarray(second.state.theta)).mean(axis=0)
    columns = to_columns("y", y_test, stream.classes)
    assert len(set(p.argmax(1)) - {0, 1, 2, 3}) > 0
    np.testing.assert_allclose(
        second.history.accuracy["class_incremental"][-1],
        np.mean(p.argmax(1) == columns),
        atol=tolerances.COUNTS,
    )


STRENGTHS = {
    "ridge": {"k": 0.0},
    "forward": {"k": 1.4},
    "bayes": {"k": rvfl_jax.adaptive_k(sigma=0.1)},
    "paper": {"k": 1.0, "cold_start": "paper"},
}


@pytest.mark.parametrize("strength", slow_but(["bayes", "paper"], STRENGTHS))
def test_followed_scores_equal_new_ones(strength, monkeypatch):
    stream = reweighted(many_classes(num_batches=100))
    followed = history(learner(**STRENGTHS[strength]), stream)
    in_chunks = history(learner(**STRENGTHS[strength]), stream, chunk_size=33)
    monkeypatch.setattr(rvfl_jax.runs.in_memory, "worth_following", lambda *_: False)
    anew = history(learner(**STRENGTHS[strength]), stream)
    assert not np.array_equal(followed.regret, anew.regret), "nothing was followed"
    assert_same_looks(followed, anew)
    assert_same_looks(in_chunks, followed)


def test_scores_are_followed_through_batches_that_leave_no_trace(monkeypatch):
    stream = many_classes(num_batches=100)
    weight, X = stream.weight.copy(), stream.X.copy()
    weight[[0, 1, 40]] = 0
    X[60] = 1e200
    stream = stream._replace(weight=weight, X=X)
    state = rvfl_jax.run_stream(learner(), many_classes(), key=KEY).state
    options = {"state": state, "on_failure": "return", "expert": None}
    followed = history(learner(), stream, **options)
    monkeypatch.setattr(rvfl_jax.runs.in_memory, "worth_following", lambda *_: False)
    anew = history(learner(), stream, **options)
    assert not followed.healthy[60].any()
    for name, want in anew.accuracy.items():
        np.testing.assert_allclose(followed.accuracy[name], want)


@pytest.mark.parametrize(
    ("looks", "rows", "classes", "follows"),
    [
        ([30] * 10, 3, 30, True),
        ([30] * 10, 30, 30, False),
        ([0] * 9 + [30], 3, 30, False),
        ([2] * 10, 3, 30, False),
    ],
)
def test_scores_are_followed_where_that_costs_less(looks, rows, classes, follows):
    assert evaluation.worth_following(np.array(looks), rows, 1500, classes) is follows


def test_columns_seen_counts_no_padding():
    y = np.array([[0, 5], [2, 0], [3, 0], [1, 1]])
    weight = np.array([[1, 0], [1, 1], [1, 0], [1, 1]])
    assert evaluation.columns_seen(0, y, weight).tolist() == [1, 3, 4, 4]
    assert evaluation.columns_seen(3, y, weight).tolist() == [3, 3, 4, 4]


@pytest.mark.parametrize("allowed", ["all", "some", "of_row"])
def test_chosen_is_what_argmax_says(allowed):
    rng = np.random.default_rng(0)
    # Few values, so that ties are everywhere.
    p = rng.integers(0, 3, (200, 7)) / 2.0
    y = rng.integers(0, 7, 200)
    among = {
        "all": np.ones((200, 7), bool),
        "some": np.broadcast_to(np.arange(7) % 2 == 0, (200, 7)),
        "of_row": np.arange(7)[None] // 3 == y[:, None] // 3,
    }[allowed]
    inside = among[np.arange(200), y]
    want = np.where(among, p, -1).argmax(1) == y
    got = metrics.is_chosen(p, y, {"all": None, "some": among[0], "of_row": among}[allowed])
    np.testing.assert_array_equal(np.asarray(got)[inside], want[inside])


def test_a_row_that_is_not_a_number_chooses_nothing():
    p = np.full((2, 3), np.nan)
    p[1] = [0.1, 0.7, 0.2]
    assert metrics.is_chosen(p, np.array([0, 1])).tolist() == [False, True]
    assert metrics.accuracy(p, np.array([0, 1])) == 0.5
