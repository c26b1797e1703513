"""Whatever comes, in whatever order: the right answer, or a clear error and an untouched model."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rvfl_jax import EdRVFLClassifier
from tests import references

LABELS = {
    "small": [0, 1, 2, 3],
    "wide": [-4, 3, 17, 250],
    "strings": ["a", "bb", "hippopotamus", ""],
    "mixed": ["a", 1, ("t", 2), True],
    "floats": [0.0, 5.0, 2.0, -3.0],
}
BAD_LABELS = [0.5, float("nan"), None]
DTYPES = [np.float64, np.float32, np.int32, np.uint8, bool]
# Few widths, so that the programs are few; rows vary within two buckets.
WIDTHS, NODES, RIDGE = [1, 3, 4], 5, 0.7


@st.composite
def batches(draw):
    """A width, k, and batches with their rows, labels, weights and, at times, a fault."""
    width, k = draw(st.sampled_from(WIDTHS)), draw(st.sampled_from([0.0, 1.0]))
    labels = LABELS[draw(st.sampled_from(sorted(LABELS)))]
    stream = []
    for _ in range(draw(st.integers(1, 3))):
        rows = draw(st.integers(1, 12))
        seed = draw(st.integers(0, 2**20))
        rng = np.random.default_rng(seed)
        X = 2 * rng.standard_normal((rows, width))
        dtype = draw(st.sampled_from(DTYPES))
        X = X.astype(dtype) if np.dtype(dtype).kind != "u" else np.abs(X).astype(dtype)
        y = [labels[c] for c in rng.integers(0, draw(st.integers(1, len(labels))), rows)]
        weight = draw(st.sampled_from(["none", "some", "zeros"]))
        w = None if weight == "none" else rng.integers(0, 3, rows).astype(float)
        w = np.zeros(rows) if weight == "zeros" else w
        fault = draw(st.sampled_from(["none"] * 6 + ["nan", "label", "length", "width", "weight"]))
        stream.append((fault, *_spoilt(draw, fault, X, y, w)))
    return width, k, draw(st.booleans()), stream


def _spoilt(draw, fault, X, y, w):
    rows = len(X)
    if fault == "nan":
        X = X.astype(float)
        place = draw(st.integers(0, rows - 1)), draw(st.integers(0, X.shape[1] - 1))
        X[place] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    if fault == "label":
        y = list(y)
        y[draw(st.integers(0, rows - 1))] = draw(st.sampled_from(BAD_LABELS))
    if fault == "length":
        y = list(y)[:-1] if draw(st.booleans()) else [*y, y[0]]
    if fault == "width":
        X = X[:, :-1] if draw(st.booleans()) and X.shape[1] > 1 else np.hstack([X, X[:, :1]])
    if fault == "weight":
        w = np.ones(rows)
        w[draw(st.integers(0, rows - 1))] = draw(st.sampled_from([-1.0, np.nan]))
    return X, y, w


def _dense(model, learned, X):
    """{label: scores on X} of ridge regression on all that was learned."""
    W = np.asarray(model._fitted.state.W)

    def D(Z):
        return references.features(W, np.hstack([Z, np.ones((len(Z), 1))]))[0]

    Z = np.vstack([X_b for X_b, _, _ in learned])
    labels = [label for _, y_b, _ in learned for label in y_b]
    w = np.concatenate([w_b for _, _, w_b in learned])
    met = list(dict.fromkeys(labels))
    Y = np.array([[label == other for other in met] for label in labels], float)
    scores = D(X) @ references.ridge_solution(D(Z), Y, RIDGE, w)
    used = {label for label, weight in zip(labels, w, strict=True) if weight > 0}
    return {label: scores[:, c] for c, label in enumerate(met) if label in used}


def examples(count):
    """So many cases, the same at every run."""
    return settings(
        max_examples=count,
        deadline=None,
        derandomize=True,
        suppress_health_check=[HealthCheck.too_slow],
    )


@examples(40)
@given(batches())
def test_right_answer_or_clear_error(case):
    check(case)


@pytest.mark.slow
@examples(2000)
@given(batches())
def test_right_answer_or_clear_error_two_thousand_times(case):
    check(case)


def check(case):
    width, k, at_once, stream = case
    options = {"num_layers": 1, "num_nodes": NODES, "ridge": RIDGE, "k": k, "random_state": 0}
    model = EdRVFLClassifier(**options)
    ask = np.random.default_rng(0).standard_normal((8, width))
    learned = []
    for fault, X, y, w in stream:
        before = model.predict_proba(ask) if learned else None
        if fault != "none" and not (fault == "width" and not hasattr(model, "_fitted")):
            with pytest.raises(ValueError, match=r"\w{4}"):
                model.partial_fit(X, y, sample_weight=w)
            if learned:
                np.testing.assert_array_equal(model.predict_proba(ask), before)
            continue
        if fault != "none":  # any width is right for the first batch, but not for later ones
            continue
        model.partial_fit(X, y, sample_weight=w)
        weight = np.ones(len(X)) if w is None else w
        if weight.any():
            learned.append((np.asarray(X, float), list(y), weight))
    if not learned:
        if hasattr(model, "_fitted"):
            with pytest.raises(ValueError, match="expected at least one class"):
                model.predict(ask)
        return
    expected = _dense(model, learned, ask)
    scores = model._scores(ask)
    for label, column in expected.items():
        got = scores[:, model._fitted.labels.labels.index(label)]
        np.testing.assert_allclose(got, column, atol=1e-9)
    assert set(model.predict(ask).tolist()) <= set(expected)
    np.testing.assert_allclose(model.predict_proba(ask).sum(axis=1), 1)
    if at_once:
        whole = EdRVFLClassifier(**options)
        Z, w = (np.concatenate([part[i] for part in learned]) for i in (0, 2))
        whole.fit(Z, [label for _, y, _ in learned for label in y], w)
        for label in expected:
            np.testing.assert_allclose(
                whole._scores(ask)[:, whole._fitted.labels.labels.index(label)],
                scores[:, model._fitted.labels.labels.index(label)],
                atol=1e-9,
            )
