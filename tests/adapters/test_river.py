"""The adapters of river against the estimators themselves, and river's own checks."""

import warnings

import numpy as np
import pandas as pd
import pytest

pytest.importorskip("river")

from river import base, checks, compose, datasets, preprocessing
from sklearn.base import clone

from rvfl_jax import EdRVFLClassifier, EdRVFLMultiLabelClassifier, EdRVFLRegressor
from rvfl_jax.adapters.river import RiverClassifier, RiverMultiLabelClassifier, RiverRegressor
from tests import tolerances
from tests.estimators.test_estimator import SMALL, assert_close, blobs

X, LABELS = blobs(num_rows=90, num_classes=3, num_features=4)
NAMES = ["a", "b", "c", "d"]
FRAME = pd.DataFrame(X, columns=NAMES)
WORDS = pd.Series(np.array(["cat", "dog", "emu"])[LABELS])
ROWS = FRAME.to_dict("records")


def classifier(**options):
    return RiverClassifier(EdRVFLClassifier(**SMALL), **options)


def wide(room=16):
    table = np.zeros((len(X), room))
    table[:, :4] = X
    return table


@pytest.mark.parametrize("sizes", [(90,), (1, 40, 49)], ids=["whole", "parts"])
def test_learn_many_is_a_loop_of_learn_one_to_the_last_bit(sizes):
    one, many = classifier(), classifier()
    for x, y in zip(ROWS, WORDS, strict=True):
        one.learn_one(x, y)
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        many.learn_many(FRAME[end - size : end], WORDS[end - size : end])
    assert many.features == one.features == NAMES
    pd.testing.assert_frame_equal(
        many.predict_proba_many(FRAME), one.predict_proba_many(FRAME), check_exact=True
    )
    assert [one.predict_proba_one(x) for x in ROWS[:9]] == [
        many.predict_proba_one(x) for x in ROWS[:9]
    ]


def test_predictions_are_those_of_the_estimator_itself():
    model = classifier(max_features=4)
    model.learn_many(FRAME, WORDS)
    plain = clone(model.estimator).fit(X, WORDS.to_numpy())
    scores = model._model.decision_function(X)
    assert_close(scores, plain.decision_function(X), tolerances.CLOSED_FORM)
    assert model.predict_many(FRAME).tolist() == plain.predict(X).tolist()
    assert [model.predict_one(x) for x in ROWS] == plain.predict(X).tolist()
    probable = model.predict_proba_many(FRAME)
    assert list(probable.columns) == ["cat", "dog", "emu"]
    assert probable.index.equals(FRAME.index)


def test_a_late_feature_was_zero_before():
    late, filled = classifier(max_features=6), classifier(max_features=6)
    late.learn_many(FRAME[["a", "c"]][:30], WORDS[:30])
    late.learn_many(FRAME[30:60], WORDS[30:60])
    late.learn_many(FRAME[["d"]][60:], WORDS[60:])
    assert late.features == ["a", "c", "b", "d"]
    whole = FRAME[["a", "c", "b", "d"]].copy()
    whole.loc[:29, ["b", "d"]] = 0.0
    whole.loc[60:, ["a", "b", "c"]] = 0.0
    table = np.hstack([whole.to_numpy(), np.zeros((90, 2))])
    plain = clone(filled.estimator).fit(table, WORDS.to_numpy())
    asked = np.hstack([FRAME[["a", "c", "b", "d"]].to_numpy(), np.zeros((90, 2))])
    assert late.predict_many(FRAME).tolist() == plain.predict(asked).tolist()
    assert_close(
        late._model.decision_function(asked),
        plain.decision_function(asked),
        tolerances.CLOSED_FORM,
    )
    # A name never learned is left out.
    assert late.predict_proba_one(ROWS[0] | {"e": 9.0}) == late.predict_proba_one(ROWS[0])


def test_before_anything_was_learned():
    model = classifier()
    assert model.predict_proba_one(ROWS[0]) == {}
    assert model.predict_one(ROWS[0]) is None
    assert model.predict_many(FRAME[:2]).tolist() == [None, None]
    assert model.predict_proba_many(FRAME[:2]).shape == (2, 0)
    model.learn_many(FRAME[:0], WORDS[:0])
    assert model.features == []


@pytest.mark.parametrize(
    ("x", "told"),
    [
        ({"a": "red"}, "expected numbers, got 'red' as 'a'"),
        ({"a": None}, "expected numbers, got None as 'a'"),
        ({"a": float("nan")}, "NaN"),
        (dict.fromkeys("abcdefg", 1.0), "at most 6 names of features over all rows, got 7"),
    ],
)
def test_a_row_that_cannot_be_learned_changes_nothing(x, told):
    model = classifier(max_features=6)
    model.learn_many(FRAME[:20], WORDS[:20])
    before = model.predict_proba_many(FRAME)
    with pytest.raises(ValueError, match=told):
        model.learn_one(x, "cat")
    table = pd.DataFrame([*ROWS[:3], x])
    if len(x) == 1 and x["a"] is not None:
        with pytest.raises(ValueError, match=told):
            model.learn_many(table.fillna({"b": 0, "c": 0, "d": 0}), pd.Series(["cat"] * 4))
    assert model.features == NAMES
    pd.testing.assert_frame_equal(model.predict_proba_many(FRAME), before, check_exact=True)


def test_scaling_by_the_first_row_is_refused():
    model = RiverClassifier(EdRVFLClassifier(scale="first"))
    with pytest.raises(ValueError, match="one row tells no scale"):
        model.learn_one(ROWS[0], "cat")


def test_it_is_part_of_a_pipeline():
    model = preprocessing.StandardScaler() | classifier()
    assert isinstance(model, compose.Pipeline)
    hits = 0
    for x, y in zip(ROWS, WORDS, strict=True):
        hits += model.predict_one(x) == y
        model.learn_one(x, y)
    assert hits > 60


def test_a_regressor_learns_many_as_one_by_one():
    y = pd.Series(X @ [1.0, -2.0, 0.5, 3.0])
    one, many = (RiverRegressor(EdRVFLRegressor(**SMALL)) for _ in range(2))
    assert one.predict_one(ROWS[0]) == 0.0
    assert one.predict_many(FRAME[:2]).tolist() == [0.0, 0.0]
    for x, target in zip(ROWS, y, strict=True):
        one.learn_one(x, target)
    many.learn_many(FRAME, y)
    np.testing.assert_array_equal(one.predict_many(FRAME), many.predict_many(FRAME))
    assert [one.predict_one(x) for x in ROWS[:9]] == [many.predict_one(x) for x in ROWS[:9]]
    plain = EdRVFLRegressor(**SMALL).fit(wide(), y)
    assert_close(many.predict_many(FRAME).to_numpy(), plain.predict(wide()), tolerances.CLOSED_FORM)


def test_rows_of_several_labels_are_learned_as_by_the_estimator():
    model = RiverMultiLabelClassifier(EdRVFLMultiLabelClassifier(**SMALL))
    assert model.predict_one(ROWS[0]) == model.predict_proba_one(ROWS[0]) == {}
    there = np.column_stack([X[:, 0] > 0, X[:, 1] > X[:, 2], np.zeros(90)]).astype(int)
    there[45:, 2] = X[45:, 3] > 1
    for i, x in enumerate(ROWS):
        y = dict(zip(["warm", "wet", "windy"], there[i].astype(bool).tolist(), strict=True))
        if i < 45:
            del y["windy"]
        model.learn_one(x, y)
    plain = EdRVFLMultiLabelClassifier(**SMALL).fit(wide(), there, labels=["warm", "wet", "windy"])
    found = np.array([[*model.predict_one(x).values()] for x in ROWS[:9]])
    scores = model._model.predict_proba(wide())
    assert_close(scores, plain.predict_proba(wide()), tolerances.CLOSED_FORM)
    np.testing.assert_array_equal(found, scores[:9] >= model._model.thresholds_)
    of_one = model.predict_proba_one(ROWS[0])
    assert list(of_one) == ["warm", "wet", "windy"]
    assert of_one["wet"][True] == pytest.approx(scores[0, 1])
    assert sum(of_one["wet"].values()) == 1.0


KINDS = (RiverClassifier, RiverMultiLabelClassifier, RiverRegressor)
MODELS = [kind(**next(kind._unit_test_params())) for kind in KINDS]
# Those that take no stream.
QUICK = [
    pytest.param(model, check, id=f"{type(model).__name__} {check.__name__}")
    for model in MODELS
    for check in checks.yield_checks(model)
    if not hasattr(check, "keywords")
]


@pytest.mark.parametrize(("model", "check"), QUICK)
def test_rivers_checks_without_a_stream(model, check):
    check(model.clone())


class Songs:
    """In place of river's `Music`, which is downloaded: as many features, and labels as dicts."""

    def take(self, count):
        rng = np.random.default_rng(0)
        for x in rng.standard_normal((count, 72)):
            yield (
                {f"feature {i}": value for i, value in enumerate(x.tolist())},
                {f"mood {i}": bool(x[i] > 0.5 * i) for i in range(6)},
            )


@pytest.mark.slow
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_all_of_rivers_checks(model, monkeypatch):
    monkeypatch.setattr(datasets, "Music", Songs)
    assert isinstance(
        model, base.MiniBatchClassifier | base.MiniBatchRegressor | base.MultiLabelClassifier
    )
    assert model._unit_test_skips() == set()
    with warnings.catch_warnings():
        # Of river's own reading of its data sets.
        warnings.simplefilter("ignore")
        checks.check_estimator(model)
