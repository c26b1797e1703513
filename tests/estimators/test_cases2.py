"""More faults that users met, each with its whole kind, on the estimators.

The public reports are named beside each test. Interrupts, failed fits and threads are in
`test_whole`, tables in `test_tables` and `test_model_commands`.
"""

import pickle

import numpy as np
import pytest

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, adaptive_k, load_model, merge, save_model
from rvfl_jax.core.checks import NumericalError
from tests.amounts import slow_but
from tests.estimators.test_estimator import SMALL, blobs
from tests.estimators.test_whole import whole

X, Y = blobs(120)
BIG = [2**63 + 11, 2**63 + 12, 5]


@pytest.mark.parametrize(
    "labels",
    [
        BIG,
        np.array(BIG, np.uint64),
        np.array(BIG, object),
        [2**70, 2**70 + 1, -3],
        [np.uint64(2**63 + 11), np.int64(-4), 5],
        [2**53, 2**53 + 1, 2**53 + 2],
    ],
    ids=["Python ints", "uint64", "objects", "2**70", "mixed", "2**53"],
)
def test_06_whole_numbers_never_pass_through_float(labels, tmp_path):
    """pandas 52505."""
    y = [labels[c] for c in Y % 3]
    if isinstance(labels, np.ndarray):
        y = np.array(y, labels.dtype)
    model = EdRVFLClassifier(**SMALL).fit(X, y)
    expected = sorted(int(label) for label in labels)
    assert model.classes_.tolist() == expected
    answers = model.predict(X).tolist()
    assert all(type(answer) is int for answer in answers)
    assert set(answers) <= set(expected)
    assert model.score(X, y) == np.mean([a == int(b) for a, b in zip(answers, y, strict=True)])
    model.partial_fit(X[:10], y[:10])
    save_model(model, tmp_path)
    assert load_model(tmp_path).classes_.tolist() == expected


@pytest.mark.parametrize(
    ("precision", "value"), [("single", 1e39), ("single", 3e38), ("double", 1.7e308)]
)
@pytest.mark.parametrize("readout", ["ridge", "discriminant", "nearest_mean"])
def test_07_overflow_at_predict_names_the_row(precision, value, readout):
    """roleML 9: a class was chosen silently, with probabilities NaN."""
    model = EdRVFLClassifier(**SMALL, precision=precision, readout=readout).fit(X, Y)
    far = X[:20].copy()
    far[13] = value
    asked = [model.predict, model.predict_proba, model.decision_function]
    asked += [model.predict_std] if readout == "ridge" else []
    for ask in asked:
        with pytest.raises(NumericalError, match=r"row 13 is too large for (single|double)"):
            ask(far)
        assert np.isfinite(ask(far[:13])).all()
    with pytest.raises(NumericalError, match="row 13"):
        model.score(far, Y[:20])


def test_07_overflow_of_a_regressor_and_beyond_a_bucket():
    model = EdRVFLRegressor(**SMALL).fit(X, X[:, 0])
    far = np.resize(X, (5000, 5)).copy()
    far[4700] = 1.7e308
    with pytest.raises(NumericalError, match="row 4700"):
        model.predict(far)


@pytest.mark.parametrize("factor", [1e-13, 1e-150, 1e160, 1e290])
@pytest.mark.parametrize("kind", [EdRVFLClassifier, EdRVFLRegressor])
def test_08_scaled_features_are_those_of_any_unit(factor, kind):
    """scikit-learn 19726: an absolute threshold took small features for constants."""
    still = np.hstack([X, np.full((len(X), 1), 3.0), np.zeros((len(X), 1))])
    plain = kind(**SMALL, scale="first").partial_fit(still[:60], Y[:60])
    same = kind(**SMALL, scale="first").partial_fit(factor * still[:60], Y[:60])
    for model, Z in ((plain, still), (same, factor * still)):
        model.partial_fit(Z[60:], Y[60:])
    np.testing.assert_allclose(same.predict(factor * still), plain.predict(still), rtol=1e-9)
    np.testing.assert_allclose(same.mean_ / factor, plain.mean_, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(plain.scale_[:5], still[:60, :5].std(axis=0), rtol=1e-12)


def test_08_scales_that_no_double_holds_are_refused():
    model = EdRVFLClassifier(**SMALL, scale="first")
    with pytest.raises(ValueError, match="deviation double precision holds"):
        model.fit(X * np.array([1, 1, 1e-310, 1, 1]), Y)
    model.fit(X, Y)
    with pytest.raises(NumericalError, match="row 1"):
        model.predict(np.array([[0.0] * 5, [1.7e308] * 5]))


def test_scaling_is_that_of_the_rows_that_came_first():
    weight = np.random.default_rng(3).integers(0, 3, 60)
    model = EdRVFLClassifier(**SMALL, scale="first").partial_fit(
        X[:60] * 50 + 7, Y[:60], sample_weight=weight
    )
    rows = np.repeat(X[:60], weight, axis=0) * 50 + 7
    np.testing.assert_allclose(model.mean_, rows.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(model.scale_, rows.std(axis=0), rtol=1e-12)
    by_hand = EdRVFLClassifier(**SMALL).partial_fit(
        (X[:60] * 50 + 7 - model.mean_) / model.scale_, Y[:60], sample_weight=weight
    )
    for Z, y in ((X[60:] * 50 + 7, Y[60:]), (X[:20], Y[:20])):
        model.partial_fit(Z, y)
        by_hand.partial_fit((Z - model.mean_) / model.scale_, y)
    model.unlearn(X[:20], Y[:20])
    by_hand.unlearn((X[:20] - model.mean_) / model.scale_, Y[:20])
    np.testing.assert_array_equal(
        model.predict_proba(X), by_hand.predict_proba((X - model.mean_) / model.scale_)
    )
    # A new fit begins anew, and an empty first batch says nothing of the scale.
    assert model.fit(X, Y).mean_ == pytest.approx(X.mean(axis=0))
    late = EdRVFLClassifier(**SMALL, scale="first")
    late.partial_fit(X[:5], Y[:5], classes=[0, 1, 2, 3], sample_weight=np.zeros(5))
    assert late.partial_fit(X, Y).mean_ == pytest.approx(X.mean(axis=0))


def test_models_that_scale_apart_are_not_merged():
    a, b = (EdRVFLClassifier(**SMALL, scale="first").fit(Z, Y) for Z in (X, X + 1))
    with pytest.raises(ValueError, match="expected the mean_ of a"):
        merge(a, b)
    with pytest.raises(ValueError, match="scale: expected 'none', got 'first'"):
        merge(EdRVFLClassifier(**SMALL).fit(X, Y), b)
    half = EdRVFLClassifier(**SMALL, scale="first").fit(X[:60], Y[:60])
    more = pickle.loads(pickle.dumps(half)).unlearn(X[:60], Y[:60]).partial_fit(X[60:], Y[60:])
    together = pickle.loads(pickle.dumps(half)).partial_fit(X[60:], Y[60:])
    scores = merge(half, more).decision_function(X)
    assert scores == pytest.approx(together.decision_function(X), rel=1e-9)


OPTIONS = {
    "class_weight": ["balanced", {0: 2.0, 3: 0.5}],
    "k": [1.0, adaptive_k(reuse_k=True), adaptive_k(0.5, 2.0)],
    "scale": ["first"],
    "precision": ["single"],
    "forgetting": [0.99],
    "readout": ["discriminant", "nearest_mean"],
    "intercept": [False],
    "ridge": [np.array([0.5, 2.0]), "auto"],
    "feature_map": ["fourier", "sparse", "none"],
    "ensemble": ["median"],
    "solver": ["information", "square_root"],
    "cold_start": ["paper"],
    "lookahead": ["none"],
    "random_state": [np.random.RandomState(3)],
    "activation": ["sigmoid"],
    "weight_init": ["orthogonal"],
    "weight_scale": [0.5],
    "class_balance": [0.5],
    "shrinkage": [0.3],
    "novelty_score": ["blended"],
    "num_layers": [1],
    "num_nodes": [9],
}


def test_09_every_option_is_walked():
    assert set(OPTIONS) == set(EdRVFLClassifier().get_params())


# Options that make programs of their own, and are kept like others that do.
SHAPING = ("num_layers", "num_nodes", "intercept", "activation", "weight_init", "ensemble")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        pytest.param(name, value, marks=pytest.mark.slow if name in SHAPING else ())
        for name, values in OPTIONS.items()
        for value in values
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
@pytest.mark.parametrize("way", slow_but(["file"], ["file", "pickle"]))
def test_09_models_go_on_alike_wherever_they_were_kept(name, value, way, tmp_path):
    """scikit-learn 19626: an attribute was lost, and the next `partial_fit` failed."""
    # Batches of one size, which share their programs.
    first, second, third = slice(0, 30), slice(30, 60), slice(60, 90)
    model = EdRVFLClassifier(**SMALL | {name: value}).fit(X[first], Y[first])
    if way == "file":
        save_model(model, tmp_path)
        again = load_model(tmp_path)
    else:
        again = pickle.loads(pickle.dumps(model))
    assert set(vars(again)) == set(vars(model)) - {"_turn"}
    for each in (model, again):
        each.partial_fit(X[second], Y[second], classes=[7])
        each.partial_fit(X[third], Y[third], sample_weight=np.linspace(0, 1, 30))
    assert whole(again) == whole(model)
    rest = X[90:]
    np.testing.assert_array_equal(again.predict_proba(rest), model.predict_proba(rest))
    # And a fit from the beginning draws the same weights.
    for each in (model, again):
        each.fit(X[second], Y[second])
    assert whole(again) == whole(model)


def test_09_regressors_go_on_alike_too(tmp_path):
    model = EdRVFLRegressor(**SMALL, k=1.0, scale="first").fit(X[:60], X[:60, :2])
    save_model(model, tmp_path)
    again = load_model(tmp_path)
    for each in (model, again):
        each.partial_fit(X[60:], X[60:, :2])
    assert whole(again) == whole(model)


@pytest.mark.parametrize("precision", ["single", "double"])
def test_15_counts_are_exact_beyond_two_to_the_24(precision):
    model = EdRVFLClassifier(**SMALL, precision=precision)
    model.partial_fit(X[:2], [0, 1], sample_weight=[2.0**24, 2.0**26])
    for _ in range(3):
        model.partial_fit(X[:3], [0, 0, 1])
    assert model.class_count_.tolist() == [2**24 + 6, 2**26 + 3]
    if precision == "double":
        model.unlearn(X[:3], [0, 0, 1])
        assert model.class_count_.tolist() == [2**24 + 4, 2**26 + 2]
    assert np.asarray(model._fitted.guesses.rows).dtype == np.float64


def test_14_a_number_and_its_text_are_not_two_classes_by_accident():
    model = EdRVFLClassifier(**SMALL).fit(X, Y.astype(str))
    for act in (model.score, model.partial_fit, model.unlearn):
        with pytest.raises(ValueError, match=r"expected labels of the kind known, '\d', got \d"):
            act(X, Y)
    model.partial_fit(X[:5], ["0", "cat", "0", "cat", "1"])
    model.fit(X, Y)
    with pytest.raises(ValueError, match=r"expected labels of the kind known, \d, got '\d'"):
        model.partial_fit(X, Y.astype(str))
    # Whole floats are whole numbers everywhere.
    assert model.partial_fit(X, Y.astype(float)).classes_.tolist() == [0, 1, 2, 3]


def test_20_class_weights_are_of_labels_that_may_come():
    with pytest.raises(ValueError, match="class_weight's labels"):
        EdRVFLClassifier(**SMALL, class_weight={"0": 5.0}).fit(X, Y)
    EdRVFLClassifier(**SMALL, class_weight={17: 5.0}).fit(X, Y)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": True}, "k: "),
        ({"ridge": "1"}, "ridge: "),
        ({"ridge": True}, "ridge: "),
        ({"ridge": [0.5, "1"]}, "ridge: "),
        ({"k": "bayes"}, "k: "),
        ({"weight_scale": "2"}, "weight_scale: "),
        ({"num_nodes": True}, "num_nodes: "),
        ({"num_layers": 2.0}, "num_layers: "),
        ({"forgetting": "1"}, "forgetting: "),
        ({"forgetting": True}, "forgetting: "),
        ({"class_balance": True}, "class_balance: "),
        ({"scale": True}, "scale: "),
        ({"scale": "standard"}, "scale: expected one of"),
    ],
)
def test_20_options_of_another_kind(change, message):
    with pytest.raises(ValueError, match=message):
        EdRVFLClassifier(**SMALL | change).fit(X, Y)


def test_20_bfloat16_is_a_number_like_others():
    import ml_dtypes

    low = X.astype(ml_dtypes.bfloat16)
    model = EdRVFLClassifier(**SMALL).fit(low, Y)
    same = EdRVFLClassifier(**SMALL).fit(low.astype(float), Y)
    np.testing.assert_array_equal(model.predict_proba(low), same.predict_proba(low.astype(float)))


@pytest.mark.parametrize("kind", [EdRVFLClassifier, EdRVFLRegressor])
def test_20_masks_are_refused(kind):
    masked = np.ma.masked_array(X, X > 2)
    with pytest.raises(ValueError, match="X: expected values everywhere"):
        kind(**SMALL).fit(masked, Y)
    model = kind(**SMALL).fit(X, Y)
    with pytest.raises(ValueError, match="X: expected values everywhere"):
        model.predict(masked)
    with pytest.raises(ValueError, match="y: expected values everywhere"):
        model.partial_fit(X, np.ma.masked_array(Y, Y == 2))


def test_counts_of_earlier_files_are_read(tmp_path):
    """Files in single precision had counts and guesses in it."""
    from rvfl_jax.estimators.save import (
        FILE,
        KnownArrays,
        load_checkpoint_file,
        save_checkpoint,
    )

    model = EdRVFLClassifier(**SMALL, precision="single").fit(X, Y)
    save_model(model, tmp_path)
    described = load_checkpoint_file(tmp_path / FILE).metadata["metadata"]
    described["parameters"].pop("scale")
    described.pop("balanced")
    fitted = model._fitted
    guesses = type(fitted.guesses)(*[np.float32(leaf) for leaf in fitted.guesses])
    known = KnownArrays(fitted.state, np.float32(fitted.counts), guesses)
    tree = {"known": known, "pending": None, "rows_of_class": fitted.rows_of_class}
    save_checkpoint(tmp_path / FILE, tree, described)
    again = load_model(tmp_path)
    assert again._fitted.counts.dtype == np.float64
    np.testing.assert_array_equal(again.predict(X), model.predict(X))
    again.partial_fit(X, Y)


@pytest.mark.parametrize("kind", [EdRVFLClassifier, EdRVFLRegressor])
def test_inputs_announced_in_vain_are_told(kind):
    with pytest.warns(UserWarning, match="X_next: not used, since k = 0") as told:
        kind(**SMALL).partial_fit(X[:60], Y[:60], X_next=X[60:])
    assert told[0].filename == __file__
    kind(**SMALL, k=1.0).partial_fit(X[:60], Y[:60], X_next=X[60:])
