"""Methods on random features: RanDumb, KLDA and RanPAC against NumPy on the features they drew."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from sklearn.metrics.pairwise import rbf_kernel

from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.klda import klda
from rvfl_jax.learners.random_maps import fourier_map
from rvfl_jax.learners.randumb import randumb
from rvfl_jax.learners.ranpac import RIDGES, chosen_ridge, ranpac
from tests import tolerances
from tests.learners.test_means import scores_of, up_to
from tests.references import relative_error
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
NODES = 40
TEST = blobs(60, seed=3)[0]


# --- random Fourier features ------------------------------------------------------------------


def kernel_error(num_nodes, gamma=0.2):
    """Root mean square over draws of the error in the kernel of 30 rows."""
    X = blobs(30)[0]
    with jax.enable_x64(True):
        Z = jax.vmap(lambda key: fourier_map(key, 6, num_nodes, gamma)(jnp.asarray(X)))(
            jax.random.split(KEY, 20)
        )
    Z = np.asarray(Z)
    got = Z @ np.swapaxes(Z, 1, 2)
    return np.sqrt(np.mean((got - rbf_kernel(X, gamma=gamma)) ** 2))


def test_products_of_fourier_features_are_the_kernel():
    errors = [kernel_error(num_nodes) for num_nodes in (25, 100, 400, 1600)]
    ratios = np.array(errors[:-1]) / errors[1:]
    # Four times the features, half the error.
    np.testing.assert_allclose(ratios, 2, rtol=0.2)
    assert errors[-1] < 0.03
    # Control: the features of another gamma are far from this kernel, however many.
    X = blobs(30)[0]
    assert np.sqrt(np.mean((rbf_kernel(X, gamma=0.1) - rbf_kernel(X, gamma=0.2)) ** 2)) > 0.05


def fourier_features(state, X):
    W, b = map(np.asarray, state.features)
    return np.sqrt(2 / len(b)) * np.cos(X @ W + b)


def discriminant(Z, y, regularised, Z_test):
    means = np.stack([Z[y == c].mean(axis=0) for c in np.unique(y)])
    within = Z - means[np.searchsorted(np.unique(y), y)]
    Lambda = np.linalg.inv(regularised(within.T @ within / len(Z)))
    # The Mahalanobis distance itself, up to a number of each row.
    apart = Z_test[:, None] - means
    distance = np.einsum("nci,ij,ncj->nc", apart, Lambda, apart)
    own = np.einsum("ni,ij,nj->n", Z_test, Lambda, Z_test)
    return (own[:, None] - distance) / 2


def shrunk(Sigma):
    return 0.99 * Sigma + 0.01 * np.trace(Sigma) / NODES * np.eye(NODES)


@pytest.mark.parametrize("num_batches", [4, 9])
@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(
    ("learner", "regularised"),
    [
        (randumb(num_nodes=NODES, gamma=0.2, ridge=1e-3), lambda S: S + 1e-3 * np.eye(NODES)),
        (klda(num_nodes=NODES, gamma=0.2, shrinkage=0.01), shrunk),
    ],
)
def test_it_is_the_mahalanobis_distance_in_its_features(learner, regularised, num_batches, share):
    part, X, y = up_to(ragged_stream(num_batches=num_batches), round(share * num_batches))
    state = run_stream(learner, part, key=KEY).state
    Z, Z_test = fourier_features(state, X), fourier_features(state, TEST)
    want = discriminant(Z, y, regularised, Z_test)
    got = scores_of(learner, state, TEST)[:, np.unique(y)]
    assert relative_error(got, want) < tolerances.CLOSED_FORM
    # Controls: without the covariance, and with the scatter about the mean of all rows.
    assert relative_error(discriminant(Z, y, lambda S: np.eye(NODES), Z_test), want) > 1e-2
    total = np.cov(Z.T, bias=True)
    assert relative_error(discriminant(Z, y, lambda S: regularised(total), Z_test), want) > 1e-2


def test_both_are_one_where_as_much_is_on_the_diagonal():
    stream = ragged_stream()
    one = run_stream(klda(num_nodes=NODES, shrinkage=0.01), stream, key=KEY).state
    other = run_stream(randumb(num_nodes=NODES), stream, key=KEY).state
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)
    Sigma = np.asarray(one.sums.scatter) / np.asarray(one.sums.rows).sum()
    ridge = 0.01 * np.trace(Sigma) / NODES / 0.99
    got = scores_of(randumb(num_nodes=NODES, ridge=ridge), one, TEST)
    want = 0.99 * scores_of(klda(num_nodes=NODES, shrinkage=0.01), one, TEST)
    assert relative_error(got, want) < tolerances.CLOSED_FORM


# --- RanPAC -----------------------------------------------------------------------------------


def relu_features(state, X):
    return np.maximum(X @ np.asarray(state.W), 0)


def ridge_scores(H, Y, ridge, H_test):
    return H_test @ np.linalg.solve(H.T @ H + ridge * np.eye(H.shape[1]), H.T @ Y)


def choice(H, Y):
    """lambda by the least squared error on the last fifth, in a loop of solves."""
    cut = int(0.8 * len(H))
    errors = [
        np.mean((ridge_scores(H[:cut], Y[:cut], ridge, H[cut:]) - Y[cut:]) ** 2) for ridge in RIDGES
    ]
    return RIDGES[np.argmin(errors)]


@pytest.mark.parametrize("num_batches", [2, 9])
@pytest.mark.parametrize("ridge", [None, 3.0])
def test_ranpac_is_the_offline_ridge_at_its_lambda(num_batches, ridge):
    stream = ragged_stream(num_batches=num_batches)
    part, X, y = up_to(stream, num_batches)
    learner = ranpac(num_nodes=NODES, ridge=ridge)
    state = run_stream(learner, part, key=KEY).state
    H, Y = relu_features(state, X), np.eye(4)[y]
    used = part.weight[-1] > 0
    last = relu_features(state, part.X[-1][used].astype(float)), np.eye(4)[part.y[-1][used]]
    assert float(state.ridge) == (3.0 if ridge else choice(*last))
    want = ridge_scores(H, Y, float(state.ridge), relu_features(state, TEST))
    assert relative_error(scores_of(learner, state, TEST), want) < tolerances.CLOSED_FORM
    # Control: the next lambda of the grid is another readout.
    other = ridge_scores(H, Y, 10 * float(state.ridge), relu_features(state, TEST))
    assert relative_error(other, want) > 1e-4


@pytest.mark.parametrize(("rows", "noise"), [(30, 0.1), (30, 3.0), (100, 1.0), (200, 10.0)])
def test_the_choice_of_lambda_is_that_of_a_loop_of_solves(rows, noise):
    """With fewer rows than features and with more, padding and its NaN left out."""
    rng = np.random.default_rng(0)
    H = np.abs(rng.normal(size=(rows, NODES)))
    Y = H @ rng.normal(size=(NODES, 3)) + noise * rng.normal(size=(rows, 3))
    padded = np.concatenate([np.zeros((2, NODES)), H, np.zeros((3, NODES))])
    targets = np.concatenate([np.zeros((2, 3)), Y, np.zeros((3, 3))])
    weight = np.concatenate([np.zeros(2), np.ones(rows), np.zeros(3)])
    with jax.enable_x64(True):
        got = float(chosen_ridge(*map(jnp.asarray, (padded, targets, weight)), jnp.asarray(1.0)))
    assert got == choice(H, Y)


def test_choices_differ_and_too_few_rows_keep_lambda():
    rng = np.random.default_rng(0)
    H = np.abs(rng.normal(size=(100, NODES)))
    Y = H @ rng.normal(size=(NODES, 3))
    assert choice(H, Y) < choice(H, Y + 30 * rng.normal(size=Y.shape))
    with jax.enable_x64(True):
        one = np.zeros(100)
        one[4] = 1.0
        kept = chosen_ridge(*map(jnp.asarray, (H, Y, one)), jnp.asarray(7.0))
    assert float(kept) == 7.0


def test_with_one_batch_ranpac_is_as_published():
    X, y = blobs(97)
    learner = ranpac(num_nodes=NODES)
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, 6, 4), X, one_hot(y, 4))
    H, Y = relu_features(state, X), np.eye(4)[y]
    assert float(state.ridge) == choice(H, Y)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (randumb, {"num_nodes": 0}, "num_nodes: "),
        (randumb, {"gamma": 0.0}, "gamma: "),
        (randumb, {"ridge": 0.0}, "ridge: "),
        (klda, {"num_nodes": 1.5}, "num_nodes: "),
        (klda, {"gamma": -1.0}, "gamma: "),
        (klda, {"shrinkage": 0.0}, "shrinkage: "),
        (klda, {"shrinkage": 1.1}, "shrinkage: "),
        (ranpac, {"num_nodes": True}, "num_nodes: "),
        (ranpac, {"ridge": 0.0}, "ridge: "),
        (ranpac, {"ridge": "auto"}, "ridge: "),
    ],
)
def test_options_out_of_range(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
