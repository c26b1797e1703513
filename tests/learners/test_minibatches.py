"""Batches learned in minibatches: by the definition, a loop of the learner's own steps."""

import gc
import pickle
import weakref

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import in_minibatches, one_hot, run_stream
from rvfl_jax.learners.acil import acil
from rvfl_jax.learners.base import make_learner
from rvfl_jax.learners.baselines import fine_tuned_edrvfl
from rvfl_jax.learners.er import er
from rvfl_jax.learners.ewc import ewc
from rvfl_jax.learners.finetune import finetune
from tests import tolerances
from tests.amounts import slow_but
from tests.compilations import counted_compilations
from tests.runs.test_resume import Interrupted, stop_after
from tests.streams import blobs, ragged_stream
from tests.trees import assert_close, plain, same

KEY = jax.random.key(0)
NETWORK = {"hidden": (6,), "learning_rate": 0.1}
LEARNERS = {
    "finetune": finetune(**NETWORK),
    "er": er(**NETWORK, memory=12, drawn=4),
    "ewc": ewc(**NETWORK, window=12),
    "acil": acil(num_nodes=16),
}
EACH = pytest.mark.parametrize("learner", LEARNERS.values(), ids=LEARNERS)
X, Y = blobs(29)[0], np.eye(4)[blobs(29)[1]]
AFTER = blobs(5, seed=3)[0]


def begun(learner):
    """A state that has learned something."""
    with jax.enable_x64(True):
        X, y = blobs(12, seed=1)
        return learner.step(learner.init(KEY, 6, 4), X, one_hot(y, 4))[0]


def stepped(learner, state, *args, **kwargs):
    with jax.enable_x64(True):
        return learner.step(state, *args, **kwargs)


def loop(learner, state, rows, epochs=1, X=X, Y=Y, weight=None):
    """The states of a loop of steps, whose last piece is filled up."""
    missing = -len(X) % rows
    weight = np.ones(len(X)) if weight is None else weight
    X, Y = (
        np.concatenate([a, np.full((missing, a.shape[1]), fill)]) for a, fill in ((X, 9.0), (Y, 0))
    )
    weight = np.concatenate([weight, np.zeros(missing)])
    for _ in range(epochs):
        for start in range(0, len(X), rows):
            part = slice(start, start + rows)
            state, info = stepped(learner, state, X[part], Y[part], weight_t=weight[part])
            assert info.healthy
    return state


def differ(one, other):
    return any(
        (np.asarray(a) != np.asarray(b)).any()
        for a, b in zip(*(jax.tree.leaves(plain(tree)) for tree in (one, other)), strict=True)
    )


@EACH
@pytest.mark.parametrize("epochs", slow_but([2], [1, 2]))
def test_a_step_is_a_loop_of_steps_bit_for_bit(learner, epochs):
    state = begun(learner)
    after, info = stepped(in_minibatches(learner, rows=8, epochs=epochs), state, X, Y)
    assert info.healthy.shape == ()
    assert info.healthy
    same(after, loop(learner, state, 8, epochs))
    with jax.enable_x64(True):
        same(info.guess_scores, learner.scores(state, X))
    # Control: neither the whole batch at once nor another number of epochs.
    assert differ(after, stepped(learner, state, X, Y)[0])
    assert differ(after, loop(learner, state, 8, 3 - epochs))


@EACH
@pytest.mark.parametrize("rows", [29, 1000])
def test_a_batch_of_few_rows_is_learned_as_ever(learner, rows):
    state = begun(learner)
    after, info = stepped(in_minibatches(learner, rows=rows), state, X, Y, AFTER)
    alone, expected = stepped(learner, state, X, Y, AFTER)
    same(after, alone)
    same(info, expected)


@EACH
def test_padding_may_hold_anything(learner):
    state, wrapped = begun(learner), in_minibatches(learner, rows=8, epochs=2)
    weight = np.where(np.arange(29) % 7 == 3, 0.0, 1.5)
    padded = np.where(weight[:, None] > 0, X, np.nan)
    after, info = stepped(wrapped, state, padded, Y, weight_t=weight)
    same(after, loop(learner, state, 8, 2, weight=weight))
    assert np.isfinite(info.guess_scores).all()
    for rows in (0, 3):
        nothing, info = stepped(
            wrapped, state, np.full((rows, 6), np.nan), Y[:rows], weight_t=np.zeros(rows)
        )
        assert info.healthy
        assert info.guess_scores.shape == (rows, 4)
        same(nothing, state)


@EACH
@pytest.mark.parametrize("row", [0, 11, 28])
def test_an_unhealthy_piece_leaves_the_state_before_the_batch(learner, row):
    state, bad = begun(learner), X.copy()
    bad[row, 2] = np.inf
    after, info = stepped(in_minibatches(learner, rows=8), state, bad, Y)
    assert not info.healthy
    same(after, state)
    # Control: the learner by itself learns the other pieces.
    pieces = [
        stepped(learner, state, bad[i : i + 8], Y[i : i + 8])[1].healthy for i in (0, 8, 16, 24)
    ]
    assert sum(map(bool, pieces)) == 3


def listener():
    """A learner put together here, which adds up what it is told of the batch to come."""

    def init(key, num_features, num_classes):
        del key
        return jnp.zeros((num_features, num_classes)), jnp.zeros(())

    def step(state, X_t, Y_t, X_next=None, *, weight_t=None, weight_next=None):
        seen = state[1] * 3.0 + jnp.sum(weight_next[:, None] * X_next)
        total = state[0] + X_t.T @ (weight_t[:, None] * Y_t)
        return (total, seen), rvfl_jax.StepInfo(X_t @ state[0], jnp.isfinite(seen), {"seen": seen})

    return make_learner(init, step, lambda state, X: X @ state[0])


def test_each_piece_announces_the_next_and_the_last_the_next_batch():
    learner, weight_next = listener(), np.array([1.0, 2.0, 0.0, 1.0, 1.0])
    wrapped = in_minibatches(learner, rows=4, epochs=2)
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        after, info = wrapped.step(state, X[:10], Y[:10], AFTER, weight_next=weight_next)
        last, _ = wrapped.step(state, X[:10], Y[:10])
    sums = [X[start : min(start + 4, 10)].sum() for start in (4, 8, 0, 4, 8)]
    sums.append(AFTER[0].sum() + 2 * AFTER[1].sum() + AFTER[3].sum())
    heard = [float(np.polyval(sums[:5] + [end], 3.0)) for end in (sums[5], 0.0)]
    np.testing.assert_allclose([after[1], last[1]], heard, rtol=1e-12)
    np.testing.assert_allclose(info.extras["seen"], heard[0], rtol=1e-12)
    assert wrapped != in_minibatches(learner, rows=4, epochs=2), "known as this object alone"
    assert "a learner" in wrapped.description


def test_all_but_the_step_is_the_learners_own():
    learner = LEARNERS["ewc"]
    wrapped = in_minibatches(learner, rows=8)
    same(wrapped.init(KEY, 6, 4), learner.init(KEY, 6, 4))
    state = begun(learner)
    same(wrapped.predict(state, X), learner.predict(state, X))
    same(wrapped.scores(state, X), learner.scores(state, X))
    same(wrapped.consolidate(state), learner.consolidate(state))
    scores, targets = jnp.asarray(X[None, :, :4]), jnp.asarray(Y)
    same(wrapped.loss(scores, targets), learner.loss(scores, targets))
    exact = LEARNERS["acil"]
    rows = X, Y, np.ones(29)
    fitted = (
        made.fit_offline(begun(exact), *rows) for made in (in_minibatches(exact, rows=8), exact)
    )
    same(*fitted)
    assert in_minibatches(exact, rows=8).consolidate is exact.consolidate


def test_sub_learners_are_wrapped_together():
    learner = fine_tuned_edrvfl(num_layers=2, num_nodes=4, ridge=1.0)
    state, wrapped = begun(learner), in_minibatches(learner, rows=8)
    after, info = stepped(wrapped, state, X, Y)
    assert info.guess_scores.shape == (2, 29, 4)
    for start in (0, 8, 16, 24):
        state, _ = stepped(learner, state, X[start : start + 8], Y[start : start + 8])
    assert_close(after, state, tolerances.CLOSED_FORM)
    same(wrapped.predict(state, X), learner.predict(state, X))


@EACH
def test_a_run_ends_as_a_run_of_smaller_batches(learner):
    """One batch a task: its pieces are the batches, but that a task ends after the epochs."""
    stream = ragged_stream(num_batches=2)
    whole = run_stream(
        in_minibatches(learner, rows=8, epochs=2), stream, key=KEY, boundaries="given"
    )
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
            Y = np.asarray(one_hot(y, 4))
            state = learner.consolidate(loop(learner, state, 8, 2, X, Y, weight))
    assert_close(whole.state, state, tolerances.CLOSED_FORM)


def test_more_epochs_learn_more():
    learner, test = LEARNERS["finetune"], blobs(60)
    stream = rvfl_jax.class_incremental_stream(*blobs(), num_tasks=1, num_batches=1, seed=1)
    accuracy = [
        run_stream(each, stream, key=KEY, test=test).history.accuracy["class_incremental"][-1]
        for each in (
            learner,
            in_minibatches(learner, rows=8),
            in_minibatches(learner, rows=8, epochs=20),
        )
    ]
    assert accuracy[0] < accuracy[1] < accuracy[2]


@pytest.mark.slow
def test_a_sweep_over_rates_is_separate_runs():
    stream, rates = ragged_stream(num_batches=3), np.array([0.05, 0.2])

    def made(**numbers):
        return in_minibatches(finetune(hidden=(6,), **numbers), rows=8, epochs=2)

    result = rvfl_jax.sweep(made, stream, {"learning_rate": rates}, key=KEY)
    with jax.enable_x64(True):
        alone = [
            float(rvfl_jax.prequential_loss(made(learning_rate=rate), stream, key=KEY))
            for rate in rates
        ]
        slope = jax.grad(
            lambda rate: rvfl_jax.prequential_loss(made(learning_rate=rate), stream, key=KEY)
        )(0.1)
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert alone[0] != alone[1]
    assert np.isfinite(slope)
    assert float(slope) != 0


def test_runs_go_on_where_they_were_stopped(tmp_path):
    learner = in_minibatches(LEARNERS["er"], rows=4, epochs=2)
    stream = ragged_stream(num_batches=6)
    whole = run_stream(learner, stream, key=KEY)
    kept = {"key": KEY, "checkpoint": tmp_path / "run.npz", "chunk_size": 2}
    with pytest.raises(Interrupted):
        run_stream(learner, stream, progress=stop_after(4), **kept)
    same(run_stream(learner, stream, resume=True, **kept).state, whole.state)


def made(rate=0.1, **changed):
    inner = finetune(hidden=(5,), learning_rate=rate)
    return in_minibatches(inner, **{"rows": 8, "epochs": 2} | changed)


def test_equal_ones_are_equal_and_travel():
    assert made() == made()
    assert hash(made()) == hash(made())
    assert len({made(), made(), made(0.2), made(rows=9), made(epochs=3)}) == 4
    assert in_minibatches(made(), rows=16) == in_minibatches(made(), rows=16) != made()
    assert pickle.loads(pickle.dumps(made())) == made()
    assert (
        made().description
        == f"in_minibatches({finetune(hidden=(5,)).description}, rows=8, epochs=2)"
    )


@pytest.mark.slow
def test_equal_ones_are_one_program():
    stream = ragged_stream()
    run_stream(made(), stream, key=KEY)
    made().step(made().init(KEY, 6, 4), X, Y)
    with counted_compilations() as programs:
        run_stream(made(0.3), stream, key=KEY)
        made(0.3).step(made().init(KEY, 6, 4), X, Y)
    assert not programs
    with counted_compilations() as programs:
        run_stream(made(rows=5), stream, key=KEY)
    assert programs, "the count counts"
    stack = jax.tree.map(lambda *rates: jnp.stack(rates), made(0.1), made(0.3))
    losses = jax.vmap(lambda one: rvfl_jax.prequential_loss(one, stream, key=KEY))(stack)
    alone = [rvfl_jax.prequential_loss(made(rate), stream, key=KEY) for rate in (0.1, 0.3)]
    np.testing.assert_allclose(losses, alone, rtol=1e-5)


def test_one_put_together_here_is_freed_with_its_programs():
    wrapped = in_minibatches(listener(), rows=4)
    wrapped.step(wrapped.init(KEY, 6, 4), X[:10], Y[:10], AFTER)
    there = weakref.ref(wrapped)
    del wrapped
    gc.collect()
    assert there() is None


@pytest.mark.parametrize("option", ["rows", "epochs"])
@pytest.mark.parametrize("value", [0, -1, 1.5, True])
def test_numbers_out_of_range_are_refused(option, value):
    with pytest.raises(ValueError, match=f"{option}: expected an integer of at least 1, got"):
        in_minibatches(LEARNERS["finetune"], **{"rows": 8, option: value})


def test_learners_with_forms_of_their_own_and_wrong_shapes_are_refused():
    edrvfl = rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=1.0)
    with pytest.raises(ValueError, match=r"learner: expected .*, got edrvfl\(.*smaller batches"):
        in_minibatches(edrvfl, rows=8)
    with pytest.raises(ValueError, match=r"learner: expected .*, got dict"):
        in_minibatches({}, rows=8)
    wrapped, state = in_minibatches(LEARNERS["er"], rows=8), begun(LEARNERS["er"])
    for shapes, message in (
        (((29, 5), (29, 4), (29,)), r"X_t: expected shape \(any, 6\) .* got \(29, 5\)"),
        (((29, 6), (29, 5), (29,)), r"Y_t: expected shape \(29, 4\) .* got \(29, 5\)"),
        (((29, 6), (28, 4), (29,)), r"Y_t: expected shape \(29, 4\) .* got \(28, 4\)"),
        (((29, 6), (29, 4), (8,)), r"weight_t: expected shape \(29\)"),
    ):
        X, Y, weight = map(np.zeros, shapes)
        with pytest.raises(ValueError, match=message):
            wrapped.step(state, X, Y, weight_t=weight)
