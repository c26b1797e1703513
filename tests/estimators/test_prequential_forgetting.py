"""Forgetting chosen by guesses: on streams that stay as they are and on one that turns."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone, is_classifier, is_regressor

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, NumericalError, PrequentialForgetting
from rvfl_jax.estimators.prequential_forgetting import Losses
from tests import tolerances

SMALL = {"num_layers": 1, "num_nodes": 12, "ridge": 0.5, "random_state": 0}
FACTORS = (1.0, 0.999, 0.99)


def stream(num_rows, turns_at=None, seed=0):
    """Two classes on either side of a plane, which is turned over after some rows."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((num_rows, 4))
    above = X @ [1.0, -1.0, 0.5, 0.0] + 0.4 * rng.standard_normal(num_rows) > 0
    if turns_at is not None:
        above[turns_at:] ^= True
    return X, np.where(above, "yes", "no")


def followed(model, X, y, size=50):
    """Share of rows guessed right by whatever is in force, batch after batch, and factors."""
    hits, factors = [], []
    for start in range(0, len(X), size):
        here = slice(start, start + size)
        if start:
            hits.append(model.predict(X[here]) == y[here])
        model.partial_fit(X[here], y[here])
        factors.append(getattr(model, "forgetting_", None))
    return np.concatenate(hits), factors


def auto(**options):
    return PrequentialForgetting(EdRVFLClassifier(**SMALL), factors=FACTORS, **options)


@pytest.mark.parametrize("seed", [0, 4])
def test_nothing_is_forgotten_where_nothing_changes(seed):
    """With seed 4 a model that forgets is better by luck, by up to five errors."""
    model = auto()
    X, y = stream(1600, seed=seed)
    _, factors = followed(model, X, y, size=100)
    assert factors[-8:] == [1.0] * 8


@pytest.mark.slow
def test_nothing_is_forgotten_on_any_of_many_streams():
    for seed in range(20):
        model = auto()
        followed(model, *stream(2000, seed=seed), size=100)
        assert model.forgetting_ == 1.0


def test_after_a_turn_it_forgets_and_is_nearly_as_good_as_the_best_single_factor():
    X, y = stream(2000, turns_at=1000)
    model = auto()
    hits, factors = followed(model, X, y)
    assert factors[19] == 1.0
    assert factors[-1] < 1.0
    singles = {
        factor: followed(EdRVFLClassifier(**SMALL, forgetting=factor), X, y)[0].mean()
        for factor in FACTORS
    }
    assert singles[1.0] < max(singles.values()) - 0.1
    assert hits.mean() > max(singles.values()) - 0.02


def test_the_candidates_are_the_estimators_with_their_factor():
    X, y = stream(300)
    model = auto().fit(X, y)
    assert [each.forgetting for each in model.models_] == list(FACTORS)
    for each in model.models_:
        single = clone(each)
        for start in range(0, 300, 100):
            single.partial_fit(X[start : start + 100], y[start : start + 100])
        np.testing.assert_array_equal(single.predict_proba(X), each.predict_proba(X))


def test_losses_are_faded_means_over_all_rows_guessed():
    X, y = stream(400)
    model = auto(fading=0.99)
    every = []
    for start in range(0, 400, 80):
        here = slice(start, start + 80)
        if start:
            each = [other.predict_proba(X[here]) for other in model.models_]
            true = y[here, None] == model.classes_
            every.append(np.column_stack([((P - true) ** 2).sum(axis=1) for P in each]))
        model.partial_fit(X[here], y[here])
    losses = np.vstack(every)
    weight = 0.99 ** np.arange(len(losses))[::-1]
    mean = weight @ losses / weight.sum()
    np.testing.assert_allclose(model.losses_, mean, rtol=tolerances.CLOSED_FORM)
    # The rule, by the faded variance of differences row by row, where no margin hides it.
    model.set_params(margin=0.0)
    best = int(np.argmin(mean))
    gaps = losses - losses[:, [best]]
    variance = weight @ (gaps - weight @ gaps / weight.sum()) ** 2 / weight.sum()
    error = np.sqrt(variance * (weight**2).sum()) / weight.sum()
    chosen = next(i for i in range(3) if mean[i] - mean[best] <= 2 * error[i])
    assert model.forgetting_ == FACTORS[chosen]


def test_the_first_that_the_best_does_not_clearly_beat_is_chosen():
    rng = np.random.default_rng(0)
    common = rng.uniform(size=500)
    alike = np.column_stack([common + 1e-3 * rng.standard_normal(500), common])
    ones = np.ones(500)
    assert Losses.none(2).plus(alike, ones, 1.0).chosen(0.0) == 0
    worse = np.column_stack([common + 1e-3, common + 1e-4 * rng.standard_normal(500)])
    assert Losses.none(2).plus(worse, ones, 1.0).chosen(0.0) == 1
    assert Losses.none(2).plus(worse, ones, 1.0).chosen(0.01) == 0
    parts = Losses.none(2).plus(worse[:123], ones[:123], 0.9).plus(worse[123:], ones[123:], 0.9)
    whole = Losses.none(2).plus(worse, ones, 0.9)
    for part, at_once in zip(parts, whole, strict=True):
        np.testing.assert_allclose(part, at_once, rtol=tolerances.REORDERED)
    assert Losses.none(2).chosen(0.0) == 0
    assert np.isnan(Losses.none(2).mean).all()


def test_labels_may_be_new_and_weights_count():
    X, y = stream(200)
    model = auto().partial_fit(X[:100], y[:100], classes=["maybe"])
    model.partial_fit(
        X[100:], np.where(y[100:] == "yes", "new", "no"), sample_weight=np.full(100, 2)
    )
    assert model.classes_.tolist() == ["maybe", "new", "no", "yes"]
    assert model.predict_proba(X).shape == (200, 4)
    assert model._losses.weight == pytest.approx(2 * np.sum(0.999 ** np.arange(100)))


def test_a_regressor_follows_a_turn_too():
    X, _ = stream(800)
    y = X @ [1.0, -2.0, 0.5, 0.0]
    y[400:] *= -1
    model = PrequentialForgetting(EdRVFLRegressor(**SMALL), factors=FACTORS)
    for start in range(0, 800, 50):
        here = slice(start, start + 50)
        model.partial_fit(X[here], y[here])
        if start == 350:
            assert model.forgetting_ == 1.0
    assert model.forgetting_ < 1.0
    assert model.score(X[600:], y[600:]) > 0.8
    assert not hasattr(model, "predict_proba")
    assert is_regressor(model)
    assert is_classifier(auto())


def test_what_cannot_be_learned_changes_nothing():
    X, y = stream(150)
    model = auto().partial_fit(X[:100], y[:100]).partial_fit(X[100:], y[100:])
    before, losses = model.predict_proba(X), model.losses_
    with pytest.raises(ValueError, match="NaN"):
        model.partial_fit([[np.nan] * 4], ["yes"])
    with pytest.raises(NumericalError):
        model.partial_fit([[1e300] * 4], ["yes"])
    np.testing.assert_array_equal(model.predict_proba(X), before)
    np.testing.assert_array_equal(model.losses_, losses)
    copy = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(copy.predict_proba(X), before)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"factors": ()}, "factors: expected numbers that fall"),
        ({"factors": (0.9, 1.0)}, "factors: expected numbers that fall"),
        ({"factors": (2.0, 1.0)}, "forgetting"),
        ({"fading": 0.0}, "fading: expected above 0"),
        ({"fading": "fast"}, "fading: expected above 0"),
        ({"margin": -1}, "margin: expected at least 0"),
        ({"batch_size": 0}, "batch_size: expected an integer"),
    ],
)
def test_options_out_of_range_are_refused(options, told):
    X, y = stream(20)
    with pytest.raises(ValueError, match=told):
        auto().set_params(**options).fit(X, y)
