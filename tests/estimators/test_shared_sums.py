"""Public sums against dense algebra and one machine's `fit`: in any grouping, each part once."""

import pickle
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_array

from rvfl_jax import (
    EdRVFLClassifier,
    EdRVFLRegressor,
    NumericalError,
    Sums,
    adaptive_k,
    load_model,
    merge,
    save_model,
)
from rvfl_jax.estimators import hosted
from tests import references, tolerances
from tests.estimators.test_estimator import SMALL, assert_close, blobs

X, COLUMNS = blobs(num_rows=240, num_classes=4, num_features=5)
# In order of classes, so that parts lack some.
X, LABELS = X[np.argsort(COLUMNS)], np.array(["ant", "bee", "cat", "dog"])[np.sort(COLUMNS)]
Y = np.column_stack([X @ [1.0, -2.0, 0.5, 3.0, 0.0], np.sin(X[:, 0])])
WEIGHT = np.random.default_rng(1).integers(0, 4, 240) / 2.0
PARTS = {"a": slice(0, 70), "b": slice(70, 71), "c": slice(71, 180), "d": slice(180, 240)}


def zero(kind=EdRVFLClassifier, **options):
    return Sums.zero(kind(**SMALL | options))


def parts_of(begun, targets=LABELS, weight=None):
    return {
        name: begun.add(
            X[rows], targets[rows], None if weight is None else weight[rows], partition=name
        )
        for name, rows in PARTS.items()
    }


@pytest.fixture(scope="module")
def parts():
    return parts_of(zero())


def dense_features(model):
    W = np.asarray(model._fitted.weights.whole())
    return references.features(W, np.hstack([X, np.ones((len(X), 1))]))


def theta_of(model, labels):
    """(L, d, labels) in that order."""
    return np.asarray(model._solved("ridge").theta)[
        ..., model._fitted.labels.columns("y", np.asarray(labels))
    ]


def test_sums_are_dense_products(parts):
    sums = zero().merge(*parts.values())
    for layer, D in enumerate(dense_features(sums.finish())):
        lower = (D.T @ D)[np.tril_indices(D.shape[1])]
        assert_close(sums.gram[layer], lower, tolerances.REORDERED)
        for label in np.unique(LABELS):
            want = D[label == LABELS].sum(axis=0)
            assert_close(sums.moments[label][layer], want, tolerances.REORDERED)
    rows_of = dict(zip(*np.unique(LABELS, return_counts=True), strict=True))
    assert sums.counts == sums.rows_of == rows_of
    assert sums.labels.tolist() == ["ant", "bee", "cat", "dog"]
    assert parts["a"].labels.tolist() == ["ant", "bee"]
    assert sums.rows == 240


@pytest.mark.parametrize("ridge", [0.5, np.array([0.1, 30.0])], ids=["one", "by layer"])
def test_the_readout_is_that_of_dense_ridge(parts, ridge):
    """Lambda comes last."""
    model = zero().merge(*parts.values()).finish(ridge)
    T = (LABELS[:, None] == np.unique(LABELS)).astype(float)
    found = theta_of(model, np.unique(LABELS))
    for D, own, theta in zip(dense_features(model), np.broadcast_to(ridge, 2), found, strict=True):
        assert_close(theta, references.ridge_solution(D, T, own), tolerances.CLOSED_FORM)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"class_weight": {"ant": 3.0, "cat": 0.5}},
        {"readout": "discriminant"},
        {"k": 1.0, "activation": "tanh", "intercept": False, "weight_scale": 0.5},
    ],
    ids=["plain", "class weights", "discriminant", "other network"],
)
def test_sums_finish_as_one_fit(options):
    one = EdRVFLClassifier(**SMALL | options).fit(X, LABELS, sample_weight=WEIGHT)
    begun = zero(**options)
    model = begun.merge(*parts_of(begun, weight=WEIGHT).values()).finish()
    assert_close(model.decision_function(X), one.decision_function(X), tolerances.CLOSED_FORM)
    assert_close(model.predict_std(X), one.predict_std(X), tolerances.CLOSED_FORM)
    assert model.classes_.tolist() == one.classes_.tolist()
    assert model.class_count_ == pytest.approx(one.class_count_)
    assert model.num_rows_seen_ == one.num_rows_seen_
    assert model.get_params() == one.get_params()


def test_a_sample_calibrates_as_fit_does(parts):
    one = EdRVFLClassifier(**SMALL).fit(X, LABELS)
    sums = zero().merge(*parts.values())
    model = sums.finish(sample=(X, LABELS))
    assert model.inverse_temperature_ == pytest.approx(one.inverse_temperature_)
    assert_close(model.predict_proba(X), one.predict_proba(X), tolerances.CLOSED_FORM)
    assert sums.finish().inverse_temperature_ == 1.0
    some = sums.finish(sample=(X[::3], LABELS[::3]))
    assert some.inverse_temperature_ == pytest.approx(one.inverse_temperature_, rel=0.3)
    with pytest.raises(ValueError, match="sample: expected rows among those added"):
        sums.finish(sample=(X[:2], ["ant", "elk"]))


@pytest.mark.parametrize("seed", range(3))
def test_any_order_and_grouping_gives_the_same(parts, seed):
    rng = np.random.default_rng(seed)
    heap = [zero(), *parts.values(), zero()]
    while len(heap) > 1:
        chosen = rng.permutation(len(heap))[: rng.integers(2, 4)]
        taken = [heap[i] for i in chosen]
        heap = [each for i, each in enumerate(heap) if i not in chosen]
        heap.append(taken[0].merge(*taken[1:]))
    want = zero().merge(*parts.values())
    assert_close(heap[0].gram, want.gram, tolerances.REORDERED)
    for label, moment in want.moments.items():
        assert_close(heap[0].moments[label], moment, tolerances.REORDERED)
    assert heap[0].ledger == want.ledger


def test_a_partition_counts_once(parts):
    a, b, c = (parts[name] for name in "abc")
    ab = a.merge(b)
    for again in (ab.add(X[PARTS["a"]], LABELS[PARTS["a"]], partition="a"), ab.merge(a, b, ab)):
        assert again is ab
    assert a.merge(ab).gram is ab.gram
    assert a.merge(a).rows == a.rows == 70
    with pytest.raises(ValueError, match=r"expected every partition once, got \['b'\] in two"):
        ab.merge(b.merge(c))
    other = zero().add(X[1:71], LABELS[1:71], partition="a")
    for more in (lambda: ab.add(X[:9], LABELS[:9], partition="a"), lambda: ab.merge(other)):
        with pytest.raises(ValueError, match="the rows that 'a' stands for, got others"):
            more()
    # Rows without a name count whenever they come.
    loose = zero().add(X[:9], LABELS[:9])
    assert loose.merge(loose).rows == 18
    with pytest.raises(ValueError, match="expected every partition once"):
        a.merge(loose).merge(ab)


def test_what_was_taken_out_does_not_come_back(parts):
    """A retry of a partition some of whose rows were unlearned since."""
    a, gone = parts["a"], zero().add(X[:20], LABELS[:20])
    less = a.subtract(gone)
    assert less.merge(a) is less
    assert not less.whole
    with pytest.raises(ValueError, match="expected every partition once"):
        a.merge(parts["b"]).merge(less.merge(parts["c"]))


def test_subtracting_is_never_having_added(parts):
    a, b, c, d = parts.values()
    left = zero().merge(a, b, c, d).subtract(c.merge(d))
    want = a.merge(b)
    assert_close(left.gram, want.gram, tolerances.REORDERED)
    assert left.ledger == want.ledger
    assert left.labels.tolist() == want.labels.tolist() == ["ant", "bee"]
    scores = left.finish().decision_function(X)
    assert_close(scores, want.finish().decision_function(X), tolerances.CLOSED_FORM)
    # What has left may come again.
    assert left.merge(c, d).rows == 240
    nothing = a.subtract(a)
    assert nothing.rows == 0
    assert nothing.merge(b).gram is not None
    with pytest.raises(ValueError, match="finish: expected sums of at least one row"):
        nothing.finish()


def test_what_cannot_be_taken_out_is_refused(parts):
    a, b, c, _ = parts.values()
    with pytest.raises(ValueError, match=r"expected partitions that were added, got \['c'\]"):
        a.merge(b).subtract(c)
    with pytest.raises(ValueError, match="at most 0 rows of 'dog', got 1"):
        a.subtract(zero().add(X[-1:], ["dog"]))
    with pytest.raises(ValueError, match="what is left are no sums"):
        a.subtract(zero().add(50 * X[:3], LABELS[:3]))
    assert a.subtract(zero()) is a


def test_partitions_without_rows_add_nothing(parts):
    empty = zero().add(np.zeros((0, 5)), np.zeros(0, str), partition="empty")
    assert empty.rows == 0
    weightless = zero().add(X[:3], LABELS[:3], np.zeros(3))
    assert weightless.rows == 0
    both = empty.merge(weightless, parts["a"], empty)
    np.testing.assert_array_equal(both.gram, parts["a"].gram)


@pytest.mark.parametrize("targets", [Y, Y[:, 0]], ids=["two outputs", "one output"])
def test_regressors_finish_as_one_fit(targets):
    begun = zero(EdRVFLRegressor)
    one = EdRVFLRegressor(**SMALL).fit(X, targets, sample_weight=WEIGHT)
    model = begun.merge(*parts_of(begun, targets, WEIGHT).values()).finish()
    assert_close(model.predict(X), one.predict(X), tolerances.CLOSED_FORM)
    assert model.predict(X).shape == targets.shape
    more = X[:5], targets[:5]
    assert_close(
        model.unlearn(*more).partial_fit(*more).predict(X), one.predict(X), tolerances.CLOSED_FORM
    )


def test_regressors_of_other_outputs_do_not_merge():
    begun = zero(EdRVFLRegressor)
    with pytest.raises(ValueError, match="outputs: expected 2, got 1"):
        begun.add(X, Y).merge(begun.add(X, Y[:, 0]))


def test_what_is_finished_goes_on(parts, tmp_path):
    """As the model that learned all: more rows and classes, merging, unlearning, files."""
    model = zero().merge(parts["a"], parts["b"], parts["c"]).finish()
    rest = PARTS["d"]
    one = EdRVFLClassifier(**SMALL).fit(X, LABELS)
    want = one.decision_function(X)
    learned = pickle.loads(pickle.dumps(model)).partial_fit(X[rest], LABELS[rest])
    assert_close(learned.decision_function(X), want, tolerances.CLOSED_FORM)
    both = merge(model, parts["d"].finish())
    assert_close(both.decision_function(X), want, tolerances.CLOSED_FORM)
    less = one.unlearn(X[rest], LABELS[rest]).decision_function(X)
    assert_close(model.decision_function(X), less, tolerances.CLOSED_FORM)
    save_model(model, tmp_path)
    np.testing.assert_array_equal(
        load_model(tmp_path).decision_function(X), model.decision_function(X)
    )


def test_files_and_pickles_have_every_bit(parts, tmp_path):
    sums = parts["a"].merge(parts["c"], zero().add(X[:3], LABELS[:3]))
    sums.save(tmp_path / "sums.npz")
    for again in (Sums.load(tmp_path / "sums.npz"), pickle.loads(pickle.dumps(sums))):
        np.testing.assert_array_equal(again.gram, sums.gram)
        assert list(again.moments) == list(sums.moments)
        for label, moment in sums.moments.items():
            np.testing.assert_array_equal(again.moments[label], moment)
        for name in ("counts", "rows_of", "ledger", "whole", "rows", "fingerprint"):
            assert getattr(again, name) == getattr(sums, name)
        assert again.merge(parts["b"]).rows == sums.rows + 1
        assert again.merge(parts["b"]).finish().predict(X).shape == (240,)
    zero().save(tmp_path / "none.npz")
    assert Sums.load(tmp_path / "none.npz").merge(sums).rows == sums.rows


def test_files_that_are_none_are_refused(parts, tmp_path):
    path = tmp_path / "sums.npz"
    with pytest.raises(ValueError, match="found none"):
        Sums.load(path)
    parts["a"].save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match="damaged"):
        Sums.load(path)
    save_model(EdRVFLClassifier(**SMALL).fit(X, LABELS), tmp_path)
    with pytest.raises(ValueError, match="expected sums, got 'EdRVFLClassifier'"):
        Sums.load(tmp_path / "model.npz")
    with pytest.raises(ValueError, match="activation: expected numbers, strings"):
        zero(activation=np.tanh).save(path)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"forgetting": 0.9}, "forgetting: expected 1, as what a row is worth"),
        ({"k": adaptive_k()}, "k: expected a constant, as -kF-Bayes"),
        ({"k": adaptive_k(reuse_k=True)}, "k: expected a constant"),
        ({"cold_start": "paper"}, 'cold_start: expected "exact"'),
        ({"precision": "single"}, 'precision: expected "double"'),
        ({"solver": "square_root"}, 'solver: expected another than "square_root"'),
        ({"class_weight": "balanced"}, 'class_weight: expected None or a dict, as "balanced"'),
        ({"scale": "first"}, 'scale: expected "none", or an estimator that has begun'),
        ({"random_state": None}, "random_state: expected an integer"),
        ({"num_nodes": 0}, "num_nodes: expected"),
    ],
    ids=lambda value: str(value)[:24],
)
def test_what_does_not_add_up_is_refused(options, told):
    with pytest.raises(ValueError, match=told):
        zero(**options)


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (lambda: zero(random_state=1), "random_state: expected 0, got 1"),
        (lambda: zero(num_nodes=13), "num_nodes: expected 12, got 13"),
        (lambda: zero(EdRVFLRegressor), "estimator: expected 'EdRVFLClassifier'"),
        (lambda: zero().add(X[:, :4], LABELS), "num_features: expected 5, got 4"),
        (lambda: EdRVFLClassifier(**SMALL), "expected Sums, got EdRVFLClassifier"),
    ],
    ids=["seed", "nodes", "kind", "features", "no sums"],
)
def test_sums_of_other_estimators_do_not_merge(parts, other, told):
    with pytest.raises(ValueError, match=told):
        parts["a"].merge(other())


def test_lambda_does_not_matter_for_merging(parts):
    other = zero(ridge=7.0, k=1.0, readout="nearest_mean").add(X, LABELS)
    assert parts["a"].merge(other).finish().ridge == SMALL["ridge"]


def test_machines_that_draw_other_weights_are_found_out(parts):
    odd = replace(parts["b"], fingerprint="0" * 32)
    with pytest.raises(ValueError, match=r"expected those of fingerprint .* one release of jax"):
        parts["a"].merge(odd)
    with pytest.raises(ValueError, match="one release of jax"):
        odd.finish()
    with pytest.raises(ValueError, match="one release of jax"):
        odd.add(X, LABELS)


def test_bad_rows_are_refused(parts):
    a = parts["a"]
    for rows, labels, told in (
        (np.full((1, 5), np.nan), ["ant"], "NaN"),
        (X[:2], ["ant"], "y: expected 2 labels"),
        (X[:1, :3], ["ant"], "num_features: expected 5, got 3"),
    ):
        with pytest.raises(ValueError, match=told):
            a.add(rows, labels)
    with pytest.raises(NumericalError, match="overflowed"):
        a.add(np.full((1, 5), 1e200), ["ant"])
    numbers = zero().add(X, COLUMNS)
    with pytest.raises(ValueError, match="a number and its text are two labels"):
        numbers.add(X[:1], ["3"])


def test_names_of_features_are_kept():
    frames = pd.DataFrame(X, columns=list("pqrst"))
    sums = zero().add(frames[:100], LABELS[:100]).add(frames[100:], LABELS[100:])
    model = sums.finish()
    assert model.feature_names_in_.tolist() == list("pqrst")
    assert_close(
        model.decision_function(frames),
        EdRVFLClassifier(**SMALL).fit(frames, LABELS).decision_function(frames),
        tolerances.CLOSED_FORM,
    )
    with pytest.raises(ValueError, match="feature_names: expected"):
        sums.add(frames[["q", "p", "r", "s", "t"]], LABELS)


def test_sparse_rows_add_what_dense_ones_do():
    dense = np.where(np.abs(X) > 1, X, 0.0)
    rows = csr_array(dense)
    want = zero().add(dense, LABELS)
    sums = zero().add(rows[:100], LABELS[:100], partition="a")
    sums = sums.merge(zero().add(rows[100:], LABELS[100:], partition="b"))
    assert_close(sums.gram, want.gram, tolerances.REORDERED)
    assert sums.add(rows[:100].copy(), LABELS[:100], partition="a") is sums
    assert sums.add(rows[:0], LABELS[:0]) is sums
    rows.data[-1] += 1e-9
    with pytest.raises(ValueError, match="the rows that 'b' stands for, got others"):
        sums.add(rows[100:], LABELS[100:], partition="b")


def test_scaling_is_that_of_a_model_that_has_begun(tmp_path):
    begun = EdRVFLClassifier(**SMALL, scale="first").fit(3 * X[:40] + 1, LABELS[:40])
    sums = Sums.zero(begun).add(3 * X[:100] + 1, LABELS[:100])
    sums.save(tmp_path / "sums.npz")
    model = Sums.load(tmp_path / "sums.npz").add(3 * X[100:] + 1, LABELS[100:]).finish()
    want = begun.partial_fit(3 * X[40:] + 1, LABELS[40:])
    found = model.decision_function(3 * X + 1)
    assert_close(found, want.decision_function(3 * X + 1), tolerances.CLOSED_FORM)
    other = EdRVFLClassifier(**SMALL, scale="first").fit(X, LABELS)
    with pytest.raises(ValueError, match="mean: expected"):
        sums.merge(Sums.zero(other))


def test_programs_of_jax_give_the_same(parts, monkeypatch):
    monkeypatch.setattr(hosted, "is_host_faster", lambda: False)
    sums = zero().merge(*parts_of(zero()).values())
    want = zero().merge(*parts.values())
    assert_close(sums.gram, want.gram, tolerances.REORDERED)
    scores = sums.finish().decision_function(X)
    monkeypatch.undo()
    assert_close(scores, want.finish().decision_function(X), tolerances.CLOSED_FORM)


def test_sums_tell_of_themselves(parts):
    assert "not known yet" in repr(zero())
    told = repr(parts["a"].add(X[:3], LABELS[:3]))
    assert "rows        73" in told
    assert "1, and other rows" in told
    assert (
        parts["a"].fingerprint == zero().merge(Sums.zero(EdRVFLClassifier(**SMALL), 5)).fingerprint
    )
