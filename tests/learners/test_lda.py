"""LDA is scikit-learn's at every t and in any batches, and its shrinkage that of scikit-learn."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.covariance import oas
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from rvfl_jax import run_stream
from rvfl_jax.learners.gaussian import oas_shrinkage
from rvfl_jax.learners.lda import lda
from tests import tolerances
from tests.learners.test_means import scores_of, up_to
from tests.references import relative_error
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
TEST = blobs(80, seed=3)[0]


def pooled(X, y):
    """Covariance about the class means, and OAS of it as scikit-learn estimates it."""
    within = (
        X - np.stack([X[y == c].mean(axis=0) if (y == c).any() else 0 * X[0] for c in range(4)])[y]
    )
    return within.T @ within / len(X), oas(within, assume_centered=True)[1]


def log_probabilities(learner, state, y):
    return log_softmax(scores_of(learner, state, TEST)[:, np.unique(y)], axis=1)


@pytest.mark.parametrize("num_batches", [4, 9])
@pytest.mark.parametrize("share", [0.5, 0.75, 1.0])
@pytest.mark.parametrize("shrinkage", [0.2, "oas"])
def test_it_is_that_of_scikit_learn(num_batches, share, shrinkage):
    part, X, y = up_to(ragged_stream(num_batches=num_batches), round(share * num_batches))
    a = pooled(X, y)[1] if shrinkage == "oas" else shrinkage
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=a).fit(X, y)
    learner = lda(shrinkage=shrinkage)
    state = run_stream(learner, part, key=KEY).state
    got = log_probabilities(learner, state, y)
    assert relative_error(got, theirs.predict_log_proba(TEST)) < tolerances.CLOSED_FORM


@pytest.mark.parametrize("shrinkage", [0.2, "oas"])
def test_equal_priors_leave_out_their_logarithm_alone(shrinkage):
    part, _, y = up_to(ragged_stream(), 6)
    state = run_stream(lda(shrinkage=shrinkage), part, key=KEY).state
    with_rows, equal = (
        scores_of(lda(shrinkage=shrinkage, priors=priors), state, TEST)
        for priors in ("rows", "equal")
    )
    met = np.unique(y)
    want = np.broadcast_to(np.log(np.bincount(y)[met] / len(y)), (len(TEST), len(met)))
    np.testing.assert_allclose((with_rows - equal)[:, met], want, rtol=1e-9)


@pytest.mark.parametrize("rows", [3, 20, 97])
def test_the_shrinkage_is_that_of_scikit_learn(rows):
    X, y = blobs(rows)
    covariance, want = pooled(X, y)
    with jax.enable_x64(True):
        got = float(oas_shrinkage(jax.numpy.asarray(covariance), rows))
        sphere = float(oas_shrinkage(jax.numpy.eye(5), rows))
    assert got == pytest.approx(want, rel=1e-12)
    assert sphere == 1.0


@pytest.mark.parametrize("fault", ["total scatter", "divided twice", "no priors", "no bias"])
def test_what_is_easily_got_wrong_is_noticed(fault):
    """Negative controls: each moves the answers by far more than the tolerance."""
    _, X, y = up_to(ragged_stream(), 6)
    covariance, _ = pooled(X, y)
    met = np.unique(y)
    means = np.stack([X[y == c].mean(axis=0) for c in met])
    if fault == "total scatter":
        covariance = np.cov(X.T, bias=True)
    shrunk = 0.8 * covariance + 0.2 * np.trace(covariance) / len(covariance) * np.eye(6)
    if fault == "divided twice":
        shrunk = shrunk / len(X)
    weights = np.linalg.solve(shrunk, means.T)
    wrong = TEST @ weights
    if fault != "no bias":
        wrong = wrong - np.sum(means.T * weights, axis=0) / 2
    if fault != "no priors":
        wrong = wrong + np.log(np.bincount(y)[met] / len(y))
    theirs = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=0.2).fit(X, y)
    assert relative_error(log_softmax(wrong, axis=1), theirs.predict_log_proba(TEST)) > 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shrinkage": 1.5}, "shrinkage: expected at most 1"),
        ({"shrinkage": -0.1}, "shrinkage: expected"),
        ({"shrinkage": "ledoit"}, "shrinkage: expected one of oas"),
        ({"priors": "some"}, "priors: expected one of rows, equal"),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        lda(**options)
