"""Features against eq. (2)-(3), and the named initialisations."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.learners.edrvfl.network import ACTIVATIONS, WEIGHT_INITS
from tests import references, tolerances

KEY = jax.random.key(0)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_features(activation):
    with jax.enable_x64(True):
        W = rvfl_jax.init_weights(KEY, num_layers=3, num_features=5, num_nodes=7)
        X = np.random.default_rng(0).normal(size=(4, 5))
        got = rvfl_jax.features(W, X, activation)
        want = references.features(W, X, activation)
    assert got.shape == (3, 4, 12)
    np.testing.assert_allclose(got, want, atol=tolerances.REORDERED)


@pytest.mark.parametrize("weight_init", WEIGHT_INITS)
def test_weights(weight_init):
    W = np.asarray(
        rvfl_jax.init_weights(
            KEY, num_layers=3, num_features=50, num_nodes=60, weight_init=weight_init
        )
    )
    assert W.shape == (3, 110, 60)
    assert not W[0, :60].any()
    drawn = [W[0, 60:], W[1], W[2]]
    assert all(len(np.unique(w)) > 0.99 * w.size for w in drawn)
    assert all(abs(w.mean()) < 0.1 * w.std() for w in drawn)
    if weight_init == "uniform":
        assert all(0.98 < w.max() <= 1 for w in drawn)
    if weight_init == "lecun_uniform":
        for w, fan_in in zip(drawn, (50, 110, 110), strict=True):
            assert 0.97 < w.max() / np.sqrt(3 / fan_in) <= 1


def test_any_initializer_will_do():
    W = rvfl_jax.init_weights(
        KEY,
        num_layers=1,
        num_features=2,
        num_nodes=3,
        weight_init=lambda key, shape, dtype: jax.numpy.full(shape, 2, dtype),
    )
    assert (np.asarray(W)[0, 3:] == 2).all()


@pytest.mark.parametrize(
    ("W", "X", "message"),
    [
        (np.zeros((2, 8)), np.zeros((4, 5)), "W: expected shape"),
        (np.zeros((1, 8, 3)), np.zeros((4, 4)), r"X: expected shape \(any, 5\)"),
        (np.zeros((1, 8, 3)), np.zeros(5), "X: expected shape"),
    ],
)
def test_bad_shapes(W, X, message):
    with pytest.raises(ValueError, match=message):
        rvfl_jax.features(W, X)
