"""CRNet-I: against its public code's equations in dense NumPy, and behind its encoder."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax

import rvfl_jax
from rvfl_jax import encoders, one_hot, run_stream
from rvfl_jax.data import load_dataset
from rvfl_jax.learners.crnet1 import PENALTIES, crnet1, fisher
from tests.streams import blobs, ragged_stream, reweighted
from tests.trees import same

KEY = jax.random.key(0)
SMALL = {"num_nodes": 9, "weight_scale": 0.5}


def tasks_of(stream):
    """Each batch's rows, targets and weights, padding removed."""
    batches = zip(stream.X, stream.y, stream.weight, strict=True)
    return [(X[w > 0], np.eye(4)[y[w > 0]], w[w > 0].astype(float)) for X, y, w in batches]


def pinv_of_square(M):
    """The pseudo-inverse as the public code takes it, with errors of the condition squared."""
    return np.linalg.pinv(M.T @ M) @ M.T


def mean_cross_entropy(beta, A, Y, w):
    return -np.sum(w[:, None] * Y * log_softmax(A @ beta, axis=1)) / w.sum()


def numerical_gradient(beta, A, Y, w, step=1e-4):
    """By differences of fourth order, so that no derivative is shared with what is tested."""
    gradient = np.zeros_like(beta)
    for place in np.ndindex(beta.shape):
        at = np.zeros_like(beta)
        at[place] = step
        near, far = (
            mean_cross_entropy(beta + k * at, A, Y, w) - mean_cross_entropy(beta - k * at, A, Y, w)
            for k in (1, 2)
        )
        gradient[place] = (8 * near - far) / (12 * step)
    return gradient


def analytic_gradient(beta, A, Y, w):
    gradient = np.zeros_like(beta)
    for a, y, weight in zip(A, Y, w, strict=True):
        p = np.exp(a @ beta - np.max(a @ beta))
        gradient += weight / w.sum() * np.outer(a, p / p.sum() - y)
    return gradient


def by_hand(state, tasks, penalties, gradient=analytic_gradient):
    """The readout after each task: task by task, class by class, with all information matrices."""
    W, c = np.asarray(state.W), np.asarray(state.c)
    found, information = [], []
    for X, Y, w in tasks:
        H = np.maximum(X.astype(float) @ W + c, 0)
        A, T = np.sqrt(w)[:, None] * H, np.sqrt(w)[:, None] * Y
        if not found:
            beta = np.linalg.pinv(A.T @ A) @ A.T @ T
        else:
            columns = []
            for q in range(Y.shape[1]):
                S = sum(p * np.diag(F[:, q]) for p, F in zip(penalties, information, strict=False))
                right = A.T @ T[:, q] + S @ found[-1][:, q]
                columns.append(pinv_of_square(A.T @ A + S) @ right)
            beta = np.stack(columns, axis=1)
        found.append(beta)
        information.append(w.sum() * gradient(beta, H, Y, w) ** 2)
    return found


def relative(got, want):
    return np.abs(np.asarray(got) - want).max() / np.abs(want).max()


@pytest.mark.parametrize("weights", ["ones", "any"])
@pytest.mark.parametrize("penalty", [0.5, (0.3, 0.5, 0.7)])
def test_tasks_are_those_of_the_public_code(penalty, weights):
    stream = ragged_stream(rows=120, num_batches=4)
    stream = reweighted(stream) if weights == "any" else stream
    learner = crnet1(**SMALL, penalty=penalty)
    penalties = penalty if isinstance(penalty, tuple) else (penalty,) * 3
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        wanted = by_hand(state, tasks_of(stream), penalties)
        # Controls: no penalty, and those of another order.
        for others in ((0.0,) * 3, (0.9, 0.1, 0.1)):
            wrong = by_hand(state, tasks_of(stream), others)
            assert relative(wrong[-1], wanted[-1]) > 1e-3
        for (X, Y, w), want in zip(tasks_of(stream), wanted, strict=True):
            state, info = learner.step(state, X, Y, weight_t=w)
            assert info.healthy
            assert relative(state.beta, want) < 1e-9
    assert relative(run_stream(learner, stream, key=KEY).state.beta, wanted[-1]) < 1e-9


def test_information_is_of_the_gradient_of_the_mean():
    rng = np.random.default_rng(0)
    A, beta = np.abs(rng.normal(size=(11, 5))), rng.normal(size=(5, 4))
    Y, w = np.eye(4)[np.arange(11) % 4], rng.uniform(0.5, 2.0, 11)
    with jax.enable_x64(True):
        got = np.asarray(fisher(*map(jnp.asarray, (A, Y, w, beta))))
    g = numerical_gradient(beta, A, Y, w)
    np.testing.assert_allclose(got, w.sum() * g**2, rtol=0, atol=1e-9 * got.max())
    np.testing.assert_allclose(g, analytic_gradient(beta, A, Y, w), rtol=0, atol=1e-11)
    # Control: the mean of the squares of each row's is the usual information, and another.
    each = [analytic_gradient(beta, A[i : i + 1], Y[i : i + 1], np.ones(1)) for i in range(11)]
    usual = sum(w[i] * each[i] ** 2 for i in range(11)) / w.sum()
    assert relative(got, w.sum() * usual) > 0.1


def test_the_first_batch_is_least_squares_of_least_norm():
    """Fewer rows than nodes, so that many readouts fit them."""
    X, y = blobs(5)
    learner = crnet1(**SMALL)
    with jax.enable_x64(True):
        first = learner.init(KEY, 6, 4)
        state, _ = learner.step(first, X, one_hot(y, 4))
    A = np.maximum(X @ np.asarray(first.W) + np.asarray(first.c), 0)
    want = np.linalg.lstsq(A, np.eye(4)[y], rcond=None)[0]
    np.testing.assert_allclose(state.beta, want, rtol=0, atol=1e-9)
    np.testing.assert_allclose(A @ want, np.eye(4)[y], atol=1e-9)


def test_a_large_penalty_keeps_the_readout_where_it_matters():
    stream = ragged_stream(rows=120, num_batches=2)
    moved = []
    for penalty in (0.0, 1.0, 1e4):
        learner = crnet1(**SMALL, penalty=penalty)
        with jax.enable_x64(True):
            (X, Y, w), later = tasks_of(stream)
            state, _ = learner.step(learner.init(KEY, 6, 4), X, Y, weight_t=w)
            new, _ = learner.step(state, later[0], later[1], weight_t=later[2])
            importance = fisher(
                jnp.maximum(X @ state.W + state.c, 0), jnp.asarray(Y), jnp.asarray(w), state.beta
            )
            moved.append(float(jnp.sum(importance * (new.beta - state.beta) ** 2)))
    assert moved[2] < 0.01 * moved[1] < moved[0]


def test_every_batch_is_a_task():
    learner, stream = crnet1(**SMALL, penalty=1.0), ragged_stream()
    told, untold = (
        run_stream(learner, stream, key=KEY, boundaries=boundaries).state
        for boundaries in ("given", "none")
    )
    same(told, untold)
    assert told.learned == len(stream.X)


def test_an_empty_batch_leaves_no_trace():
    learner = crnet1(**SMALL)
    X, y = blobs(12)
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, 6, 4), X, one_hot(y, 4))
        rows = np.full((3, 6), np.nan), np.zeros((3, 4))
        after, info = learner.step(state, *rows, weight_t=np.zeros(3))
    assert info.healthy
    same(after, state)


def test_defaults_are_those_of_the_public_code():
    assert crnet1() == crnet1(penalty=list(PENALTIES), num_nodes=900, weight_scale=1.0)
    assert crnet1() != crnet1(penalty=3000.0)
    with jax.enable_x64(True):
        state = crnet1().init(KEY, 6, 4)
    for drawn in map(np.asarray, (state.W, state.c)):
        assert np.abs(drawn).max() <= 1
        assert np.std(drawn) == pytest.approx(3**-0.5, rel=0.05)


def predictor(protocol):
    """CRNet-I behind its encoder, from raw rows to answers."""
    data = load_dataset("digits")
    stream = rvfl_jax.class_incremental_stream(
        data.X_train, data.y_train, num_tasks=5, num_batches=5, seed=0
    )
    encoder = encoders.sparse_autoencoder(3, 4, 20)
    encoded = encoders.encode_stream(encoder, stream, key=KEY, protocol=protocol)
    learner = crnet1(num_nodes=32)
    state = run_stream(learner, encoded.stream, key=KEY).state
    return lambda X: learner.predict(state, encoded.encode_test(X)), data.X_test


@pytest.mark.slow
def test_behind_a_frozen_encoder_it_passes_the_leak_guard():
    encoders.leak_guard(*predictor("frozen"))


@pytest.mark.slow
def test_as_published_it_fails_the_leak_guard():
    with pytest.warns(encoders.LeakWarning):
        predict, test = predictor("refit_per_task")
    with pytest.raises(encoders.LeakError, match="fitted on, or scaled by, the test rows"):
        encoders.leak_guard(predict, test)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"penalty": -1.0}, "penalty: "),
        ({"penalty": (1.0, -1.0)}, "penalty: "),
        ({"penalty": ()}, "penalty: expected one number or more"),
        ({"penalty": "much"}, "penalty: "),
        ({"penalty": np.ones((2, 2))}, "penalty: "),
        ({"num_nodes": 0}, "num_nodes: "),
        ({"weight_scale": 0.0}, "weight_scale: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        crnet1(**options)
