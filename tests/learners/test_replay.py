"""Experience replay: gradients on the batch and on a fair sample of all rows that came before."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.parts import MLP
from rvfl_jax.learners.replay import replay
from rvfl_jax.learners.reservoir import draw, empty_reservoir, pass_by
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
SMALL = {"hidden": (6,), "memory": 12, "drawn": 4, "learning_rate": 0.1}


def test_each_row_is_kept_with_the_same_probability():
    size, number, trials = 5, 20, 3000
    X = jnp.arange(number, dtype=float)[:, None]

    def kept(key):
        reservoir = empty_reservoir(size, 1, 1)
        # In two batches, with padding between.
        for part, own in zip((slice(0, 9), slice(9, 20)), jax.random.split(key), strict=True):
            Z = jnp.concatenate([X[part], jnp.full((3, 1), jnp.nan)])
            valid = jnp.arange(len(Z)) < len(X[part])
            reservoir = pass_by(reservoir, own, Z, Z, valid)
        return reservoir

    found = jax.jit(jax.vmap(kept))(jax.random.split(KEY, trials))
    assert np.all(found.passed == number)
    counts = np.bincount(np.asarray(found.X).ravel().astype(int), minlength=number)
    assert counts.sum() == size * trials
    assert stats.chisquare(counts).pvalue > 1e-3
    # Control: a reservoir that always takes the new row is far from even.
    assert stats.chisquare([0] * (number - size) + [trials] * size).pvalue < 1e-9


def test_draws_are_different_kept_rows():
    reservoir = empty_reservoir(6, 1, 1)
    X = jnp.arange(1.0, 4.0)[:, None]
    reservoir = pass_by(reservoir, KEY, X, X, jnp.ones(3, bool))
    drawn, _, weight = draw(reservoir, KEY, 5)
    assert sorted(np.asarray(drawn[:, 0])[np.asarray(weight) > 0].tolist()) == [1.0, 2.0, 3.0]
    assert weight.sum() == 3
    seen = [
        tuple(sorted(np.asarray(draw(reservoir, key, 2)[0][:, 0]).tolist()))
        for key in jax.random.split(KEY, 60)
    ]
    assert set(seen) == {(1.0, 2.0), (1.0, 3.0), (2.0, 3.0)}


def by_hand(stream, m, *, draws):
    """Fine-tuning by plain gradient descent, with rows given beside each batch."""
    learner = replay(**SMALL)
    state = learner.init(KEY, stream.X.shape[-1], m)
    params = state.params
    for t in range(stream.num_batches):
        used = stream.weight[t] > 0
        X, Y = stream.X[t][used].astype(float), one_hot(stream.y[t][used], m).astype(float)
        extra_X, extra_Y = draws(t)
        X, Y = np.concatenate([X, extra_X]), np.concatenate([Y, extra_Y])

        def loss(params, X=X, Y=Y):
            z = MLP((6,), m).apply(params, X)
            return jnp.mean(optax.softmax_cross_entropy(z, jnp.asarray(Y)))

        grads = jax.grad(loss)(params)
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)
    return params


@pytest.mark.slow
def test_without_anything_kept_it_is_fine_tuning(monkeypatch):
    stream, m = ragged_stream(), 4
    with jax.enable_x64(True):
        none = (np.zeros((0, stream.X.shape[-1])), np.zeros((0, m)))
        expected = by_hand(stream, m, draws=lambda t: none)
    monkeypatch.setattr(
        "rvfl_jax.learners.replay.draw",
        lambda kept, key, number: (kept.X[:number], kept.Y[:number], jnp.zeros(number)),
    )
    # Options of its own, so that no program with draws is taken.
    run = run_stream(replay(**SMALL | {"memory": 13}), stream, key=KEY)
    for a, b in zip(jax.tree.leaves(run.state.params), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


def test_kept_rows_are_rows_of_the_stream_and_move_the_gradient():
    stream = ragged_stream()
    run = run_stream(replay(**SMALL), stream, key=KEY)
    used = stream.weight > 0
    rows = {tuple(row) for row in stream.X[used].astype(float).tolist()}
    assert int(run.state.kept.passed) == used.sum()
    assert {tuple(row) for row in np.asarray(run.state.kept.X).tolist()} <= rows
    alone = run_stream(replay(**SMALL | {"drawn": 1}), stream, key=KEY)
    leaves = zip(
        jax.tree.leaves(run.state.params), jax.tree.leaves(alone.state.params), strict=True
    )
    assert any(not np.array_equal(a, b) for a, b in leaves)


def test_replay_forgets_less_than_fine_tuning():
    data = rvfl_jax.data.load_dataset("digits")
    stream = rvfl_jax.class_incremental_stream(
        data.X_train, data.y_train, num_tasks=5, num_batches=100, seed=0
    )
    test = (data.X_test, data.y_test)
    ends = {}
    for drawn in (1, 50):
        learner = replay(hidden=(64,), memory=200, drawn=drawn, updates=2, learning_rate=0.1)
        run = run_stream(learner, stream, key=KEY, test=test, evaluate="task", precision="single")
        ends[drawn] = run.history.accuracy["class_incremental"][-1]
    assert ends[50] > 0.6
    assert ends[50] > ends[1] + 0.2


@pytest.mark.slow
def test_swept_differentiated_and_resumed(tmp_path):
    stream = ragged_stream()
    rates = np.array([0.05, 0.2])

    def make(learning_rate):
        return replay(**SMALL | {"learning_rate": learning_rate})

    result = rvfl_jax.sweep(make, stream, {"learning_rate": rates}, key=KEY)
    with jax.enable_x64(True):

        def loss(rate):
            return rvfl_jax.prequential_loss(make(rate), stream, key=KEY)

        alone = [float(loss(rate)) for rate in rates]
        slope = jax.grad(loss)(0.1)
        numerical = float(loss(0.1 + 1e-5) - loss(0.1 - 1e-5)) / 2e-5
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-9)
    assert float(slope) == pytest.approx(numerical, rel=1e-3)
    options = {"key": KEY, "test": blobs(40), "chunk_size": 3, "checkpoint": tmp_path / "c.npz"}

    def stop(done, total):
        if done >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_stream(replay(**SMALL), stream, progress=stop, **options)
    again = run_stream(replay(**SMALL), stream, resume=True, **options)
    whole = run_stream(replay(**SMALL), stream, key=KEY, test=blobs(40), chunk_size=3)
    for a, b in zip(jax.tree.leaves(whole.state), jax.tree.leaves(again.state), strict=True):
        assert bool(jnp.all(a == b))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": 0.0}, "learning_rate: "),
        ({"hidden": (0,)}, "hidden: "),
        ({"memory": 0}, "memory: "),
        ({"drawn": 13}, "drawn: expected at most memory=12, got 13"),
        ({"updates": 1.5}, "updates: "),
    ],
)
def test_options_out_of_range(change, message):
    with pytest.raises(ValueError, match=message):
        replay(**SMALL | change)
