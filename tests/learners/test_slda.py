"""Streaming LDA is linear discriminant analysis, in any batches, and works with all there is."""

import jax
import numpy as np
import pytest
from scipy.special import log_softmax
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import rvfl_jax
from rvfl_jax import one_hot, plots, run_stream
from rvfl_jax.learners.slda import slda
from tests import tolerances
from tests.compilations import counted_compilations
from tests.learners.test_means import scores_of, up_to
from tests.references import relative_error
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)


def rows_of(stream):
    used = stream.weight > 0
    return stream.X[used].astype(float), stream.y[used]


def dense(X, y, weight=None, shrinkage=1e-2):
    """Means, covariance and scores of LDA with equal priors, as the definition has them."""
    weight = np.ones(len(X)) if weight is None else weight
    Y = np.eye(y.max() + 1)[y]
    means = ((weight[:, None] * Y).T @ X) / (weight @ Y)[:, None]
    within = X - means[y]
    covariance = (weight[:, None] * within).T @ within / weight.sum()
    Lambda = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(X.shape[1]))
    return (
        means,
        covariance,
        lambda Z: Z @ Lambda @ means.T - np.sum(means @ Lambda * means, axis=1) / 2,
    )


def test_any_stream_gives_what_all_rows_at_once_give():
    stream = ragged_stream()
    X, y = rows_of(stream)
    run = run_stream(slda(shrinkage=1e-2), stream, key=KEY)
    means, covariance, scores = dense(X, y)
    assert relative_error(run.state.mean, means) < tolerances.REORDERED
    total = np.asarray(run.state.scatter) / np.asarray(run.state.rows).sum()
    assert relative_error(total, covariance) < tolerances.REORDERED
    test = blobs(40)[0]
    with jax.enable_x64(True):
        got = slda(shrinkage=1e-2).scores(run.state, test)
    assert relative_error(got, scores(test)) < tolerances.CLOSED_FORM


def test_weighted_rows_count_as_often():
    X, y = blobs(60)
    weight = np.random.default_rng(0).integers(0, 3, 60).astype(float)
    learner = slda(shrinkage=0.1)
    with jax.enable_x64(True):
        state = learner.init(KEY, X.shape[1], 4)
        for part in (slice(0, 25), slice(25, 60)):
            Z = X[part].copy()
            Z[weight[part] == 0] = np.nan  # padding may hold anything
            state, info = learner.step(state, Z, one_hot(y[part], 4), None, weight_t=weight[part])
            assert info.healthy
        got = learner.scores(state, X)
    expected = dense(X, y, weight, 0.1)[2](X)
    assert relative_error(got, expected) < tolerances.CLOSED_FORM


def test_answers_are_those_of_scikit_learn():
    X, y = blobs(200)
    test = blobs(100)[0]
    Y = one_hot(y, 4)
    learner = slda(shrinkage=0.0)
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, X.shape[1], 4), X, Y, None)
        mine = np.asarray(learner.scores(state, test)).argmax(axis=1)
    theirs = LinearDiscriminantAnalysis(priors=np.full(4, 0.25)).fit(X, y)
    np.testing.assert_array_equal(mine, theirs.predict(test))


class TowardsIdentity:
    """The covariance as streaming LDA shrinks it, for scikit-learn."""

    def __init__(self, shrinkage):
        self.shrinkage = shrinkage

    def fit(self, X):
        covariance = np.cov(X.T, bias=True)
        self.covariance_ = (1 - self.shrinkage) * covariance + self.shrinkage * np.eye(X.shape[1])
        return self


@pytest.mark.parametrize("shrinkage", [1e-4, 0.1])
@pytest.mark.parametrize("t", [6, 9])
def test_scores_are_those_of_scikit_learn_at_every_t(t, shrinkage):
    """With the shares of the classes added, which scikit-learn also weighs covariances by."""
    part, X, y = up_to(ragged_stream(), t)
    state = run_stream(slda(shrinkage=shrinkage), part, key=KEY).state
    theirs = LinearDiscriminantAnalysis(
        solver="lsqr", covariance_estimator=TowardsIdentity(shrinkage)
    ).fit(X, y)
    met, test = np.unique(y), blobs(80, seed=3)[0]
    shares = np.log(np.bincount(y)[met] / len(y))
    got = log_softmax(scores_of(slda(shrinkage=shrinkage), state, test)[:, met] + shares, axis=1)
    assert relative_error(got, theirs.predict_log_proba(test)) < tolerances.CLOSED_FORM


@pytest.mark.parametrize("fault", ["means from 0", "divided twice", "no bias"])
def test_what_reference_codes_get_wrong_is_noticed(fault):
    """Negative controls: each fault moves the scores by far more than the tolerance."""
    stream = ragged_stream()
    X, y = rows_of(stream)
    run = run_stream(slda(shrinkage=1e-2), stream, key=KEY)
    means, covariance = np.asarray(run.state.mean), np.asarray(run.state.scatter) / len(X)
    if fault == "means from 0":
        means = means * (np.bincount(y) / (np.bincount(y) + 1))[:, None]
    if fault == "divided twice":
        covariance = covariance / len(X)
    Lambda = np.linalg.inv(0.99 * covariance + 0.01 * np.eye(X.shape[1]))
    wrong = X @ Lambda @ means.T
    if fault != "no bias":
        wrong = wrong - np.sum(means @ Lambda * means, axis=1) / 2
    assert relative_error(wrong, dense(X, y)[2](X)) > 1e-3


def test_classes_never_met_are_never_answered():
    X, y = blobs(30)
    learner = slda()
    state, _ = learner.step(learner.init(KEY, X.shape[1], 9), X, one_hot(y, 9), None)
    assert set(np.asarray(learner.predict(state, X)).argmax(axis=1)) <= {0, 1, 2, 3}


def test_a_bad_batch_leaves_the_state_as_it_was():
    X, y = blobs(30)
    learner = slda()
    state, _ = learner.step(learner.init(KEY, X.shape[1], 4), X, one_hot(y, 4), None)
    bad = X.copy()
    bad[3, 1] = np.inf
    after, info = learner.step(state, bad, one_hot(y, 4), None)
    assert not info.healthy
    assert all(jax.tree.leaves(jax.tree.map(np.array_equal, state, after)))
    with pytest.raises(rvfl_jax.NumericalError, match="batch 0"):
        run_stream(learner, ragged_stream()._replace(X=1e200 * ragged_stream().X), key=KEY)


@pytest.mark.slow
def test_swept_differentiated_resumed_and_drawn(tmp_path):
    stream = ragged_stream()
    values = np.array([1e-3, 1e-1])
    result = rvfl_jax.sweep(
        lambda shrinkage: slda(shrinkage=shrinkage), stream, {"shrinkage": values}, key=KEY
    )
    with jax.enable_x64(True):

        def loss(shrinkage):
            return rvfl_jax.prequential_loss(slda(shrinkage=shrinkage), stream, key=KEY)

        slope = jax.grad(loss)(0.1)
        numerical = float(loss(0.1 + 1e-4) - loss(0.1 - 1e-4)) / 2e-4
        alone = [float(loss(value)) for value in values]
    assert float(slope) == pytest.approx(numerical, rel=1e-4)
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-9)

    whole = run_stream(slda(), stream, key=KEY, test=blobs(40), chunk_size=2)

    def stop(done, total):
        if done >= 4:
            raise KeyboardInterrupt

    options = {"key": KEY, "test": blobs(40), "chunk_size": 2, "checkpoint": tmp_path / "c.npz"}
    with pytest.raises(KeyboardInterrupt):
        run_stream(slda(), stream, progress=stop, **options)
    again = run_stream(slda(), stream, resume=True, **options)
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(again.state), strict=True):
        np.testing.assert_array_equal(a, b)
    assert plots.accuracy_curve(again).lines
    assert np.isnan(again.history.k_t).all()


def test_equal_learners_share_programs():
    stream = ragged_stream()
    run_stream(slda(shrinkage=0.2), stream, key=KEY)
    with counted_compilations() as made:
        run_stream(slda(shrinkage=0.3), stream, key=KEY)
    assert not made
    assert slda(shrinkage=0.2) == slda(shrinkage=0.2) != slda(shrinkage=0.3)


@pytest.mark.parametrize("bad", [-0.1, 1.5, "1", True, [0.1, 0.2], np.nan])
def test_shrinkage_out_of_range(bad):
    with pytest.raises(ValueError, match="shrinkage: expected"):
        slda(shrinkage=bad)
