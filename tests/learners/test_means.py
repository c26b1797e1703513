"""Class means: NCM is scikit-learn's NearestCentroid, SimpleCIL the cosine to the same means."""

import jax
import numpy as np
import pytest
from sklearn.neighbors import NearestCentroid

from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.ncm import ncm
from rvfl_jax.learners.simplecil import simplecil
from tests import tolerances
from tests.references import relative_error
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)


def up_to(stream, t):
    """The stream's first t batches, and their rows."""
    part = stream._replace(
        **{name: getattr(stream, name)[:t] for name in ("X", "y", "weight", "task")}
    )
    used = part.weight > 0
    return part, part.X[used].astype(float), part.y[used]


def scores_of(learner, state, X):
    with jax.enable_x64(True):
        return np.asarray(learner.scores(state, X))


@pytest.mark.parametrize("num_batches", [4, 9])
@pytest.mark.parametrize("share", [0.3, 0.6, 1.0])
def test_ncm_is_nearest_centroid_at_every_t_in_any_batches(num_batches, share):
    part, X, y = up_to(ragged_stream(num_batches=num_batches), round(share * num_batches))
    theirs = NearestCentroid().fit(X, y)
    state = run_stream(ncm(), part, key=KEY).state
    met = np.unique(y)
    assert relative_error(np.asarray(state.mean)[met], theirs.centroids_) < tolerances.CLOSED_FORM
    test = blobs(200, seed=3)[0]
    got = scores_of(ncm(), state, test)
    np.testing.assert_array_equal(got.argmax(axis=1), theirs.predict(test))
    # Scores are half the squared distances, up to a number of each row.
    distance = np.sum((test[:, None] - theirs.centroids_) ** 2, axis=2)
    want = (np.sum(test**2, axis=1, keepdims=True) - distance) / 2
    assert relative_error(got[:, met], want) < tolerances.CLOSED_FORM


def test_means_that_begin_at_0_are_noticed():
    """Negative control: a zero counted as a row moves the means far beyond the tolerance."""
    _, X, y = up_to(ragged_stream(), 9)
    counts = np.bincount(y)
    means = np.eye(4)[y].T @ X / (counts + 1)[:, None]
    assert relative_error(means, NearestCentroid().fit(X, y).centroids_) > 1e-3


def test_simplecil_is_the_cosine_to_the_means():
    part, X, y = up_to(ragged_stream(), 9)
    state = run_stream(simplecil(scale=3.0), part, key=KEY).state
    means = np.stack([X[y == c].mean(axis=0) for c in range(4)])
    test = blobs(60, seed=3)[0]

    def cosine(X, means):
        lengths = np.outer(np.linalg.norm(X, axis=1), np.linalg.norm(means, axis=1))
        return X @ means.T / lengths

    got = scores_of(simplecil(scale=3.0), state, test)
    assert relative_error(got, 3 * cosine(test, means)) < tolerances.CLOSED_FORM
    np.testing.assert_array_equal(
        got.argmax(axis=1), scores_of(simplecil(), state, test).argmax(axis=1)
    )
    # Controls: not the product with the means, nor the cosine of rows scaled before their mean.
    assert relative_error(3 * test @ means.T, got) > 1e-2
    scaled = X / np.linalg.norm(X, axis=1, keepdims=True)
    others = np.stack([scaled[y == c].mean(axis=0) for c in range(4)])
    assert relative_error(3 * cosine(test, others), got) > 1e-3


def test_a_row_and_a_mean_of_zeros_have_no_angle():
    learner = simplecil()
    X = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, 2.0]])
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, 2, 2), X, one_hot(np.array([0, 0, 1]), 2))
        got = np.asarray(learner.scores(state, np.array([[0.0, 0.0], [0.0, 3.0]])))
    np.testing.assert_allclose(got, [[0, 0], [0, 1]], atol=1e-15)


@pytest.mark.parametrize("bad", [0.0, -1.0, "1", True, np.nan])
def test_scale_out_of_range(bad):
    with pytest.raises(ValueError, match="scale: expected"):
        simplecil(scale=bad)
