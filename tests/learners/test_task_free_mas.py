"""Task-free MAS: plateaus, hard rows and the running average of importance, by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.mas import sensitivity
from rvfl_jax.learners.task_free_mas import task_free_mas
from tests.learners.test_regularisation import HEAD, KEY, SMALL, STREAM, assert_trees, equal, flat
from tests.streams import reweighted
from tests.trees import same

# Any two losses are a plateau once a peak was there.
QUICK = SMALL | {"window": 2, "hard": 5, "mean_below": 9.0, "variance_below": 9.0, "updates": 3}


def batches_of(stream):
    """With their padding, of weight 0, so that all have one shape."""
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        yield X.astype(float), np.eye(4)[y], weight


def mean_loss(params, X, Y, weight):
    with jax.enable_x64(True):
        return float(HEAD.loss(params, *map(jnp.asarray, (X, Y, weight))))


def test_with_nothing_to_hold_it_is_fine_tuning_bit_for_bit():
    alone = run_stream(finetune(**SMALL, updates=3), STREAM, key=KEY).state
    nothing = {"coefficient": 0.0, "rehearsed": 0.0}
    state = run_stream(task_free_mas(**QUICK, **nothing), STREAM, key=KEY).state
    assert equal(state.params, alone.params)
    assert state.course.plateaus > 0
    # Control: either of them is seen.
    for name in nothing:
        other = run_stream(task_free_mas(**QUICK, **nothing | {name: 1e-2}), STREAM, key=KEY)
        assert not equal(other.state.params, alone.params)


def test_importance_is_a_running_average_over_plateaus():
    learner = task_free_mas(**QUICK | {"learning_rate": 0.5}, coefficient=0.01)
    losses, peak, height, plateaus = [], True, 0.0, 0
    importance, found = None, []
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
    anchor = state.params
    for X, Y, weight in batches_of(STREAM):
        before = state
        with jax.enable_x64(True):
            state, info = learner.step(before, X, Y, weight_t=weight)
        assert info.healthy
        losses = [*losses, mean_loss(before.params, X, Y, weight)][-2:]
        mean, spread = np.mean(losses), np.std(losses)
        peak = peak or mean > height
        if peak and mean < 9 and spread**2 < 9 and np.any(before.hard.weight):
            plateaus, peak, height = plateaus + 1, False, mean + spread
            with jax.enable_x64(True):
                new = flat(sensitivity(HEAD, state.params, before.hard))
            found.append(new)
            old = np.zeros_like(new) if importance is None else importance
            importance = new / plateaus + (1 - 1 / plateaus) * old
            anchor = state.params
        assert int(state.course.plateaus) == plateaus
        assert equal(state.anchor.params, anchor)
        if importance is not None:
            assert_trees(state.anchor.importance, importance)
    assert plateaus > 1
    np.testing.assert_allclose(importance, np.mean(found, axis=0), rtol=1e-9, atol=1e-15)
    # Control: neither the last nor the sum is it.
    for wrong in (found[-1], np.sum(found, axis=0)):
        assert np.abs(wrong - importance).max() > 0.01 * importance.max()


@pytest.mark.parametrize("threshold", ["mean_below", "variance_below"])
def test_above_a_threshold_nothing_is_a_plateau(threshold):
    state = run_stream(task_free_mas(**QUICK | {threshold: 1e-9}), STREAM, key=KEY).state
    assert state.course.plateaus == 0
    assert not flat(state.anchor.importance).any()


def test_hard_rows_are_those_of_most_loss():
    learner = task_free_mas(**QUICK)
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
    for X, Y, weight in batches_of(reweighted(STREAM)):
        there, used = np.asarray(state.hard.weight) > 0, weight > 0
        all_X = np.concatenate([np.asarray(state.hard.X)[there], X[used]])
        all_Y = np.concatenate([np.asarray(state.hard.Y)[there], Y[used]])
        with jax.enable_x64(True):
            state, _ = learner.step(state, X, Y, weight_t=weight)
            logits = HEAD.logits(state.params, all_X)
            each = np.asarray(optax.softmax_cross_entropy(logits, jnp.asarray(all_Y)))
        most = np.argsort(-each)[:5]
        np.testing.assert_array_equal(state.hard.X, all_X[most])
        np.testing.assert_array_equal(state.hard.Y, all_Y[most])
        assert state.hard.passed == 5
    # Control: the last five are others.
    assert not np.array_equal(np.sort(state.hard.X, axis=0), np.sort(X[used][-5:], axis=0))


def test_a_step_descends_the_loss_with_what_is_beside():
    options = QUICK | {"updates": 1}
    learner = task_free_mas(**options, coefficient=0.4, rehearsed=0.7)
    states = []
    with jax.enable_x64(True):
        states.append(learner.init(KEY, 6, 4))
        for X, Y, weight in batches_of(STREAM):
            states.append(learner.step(states[-1], X, Y, weight_t=weight)[0])
        before, after = states[-2:]
        gradient = jax.grad(HEAD.loss)
        own = gradient(before.params, *map(jnp.asarray, (X, Y, weight)))
        hard = gradient(before.params, *before.hard[:3])
    pull = flat(before.anchor.importance) * (flat(before.params) - flat(before.anchor.params))
    assert np.abs(pull).max() > 1e-4
    want = flat(before.params) - 0.1 * (flat(own) + 0.7 * flat(hard) + 0.4 * pull)
    np.testing.assert_allclose(flat(after.params), want, rtol=1e-9, atol=1e-12)


def test_it_is_never_told_of_tasks_and_empty_batches_leave_no_trace():
    learner = task_free_mas(**QUICK)
    told, untold = (
        run_stream(learner, STREAM, key=KEY, boundaries=word).state for word in ("given", "none")
    )
    same(told, untold)
    with jax.enable_x64(True):
        rows = np.full((3, 6), np.nan), one_hot(np.zeros(3, int), 4)
        after, info = learner.step(told, *rows, weight_t=np.zeros(3))
    assert info.healthy
    same(after, told)


@pytest.mark.slow
def test_coefficients_are_swept_and_differentiated():
    values, stream = np.array([0.0, 0.3, 1.0]), reweighted(STREAM)

    def made(coefficient):
        return task_free_mas(**QUICK, coefficient=coefficient)

    result = rvfl_jax.sweep(made, stream, {"coefficient": values}, key=KEY)
    with jax.enable_x64(True):

        def loss(value):
            return rvfl_jax.prequential_loss(made(value), stream, key=KEY)

        alone = [float(loss(value)) for value in values]
        slope = float(jax.grad(loss)(0.3))
        numerical = float(loss(0.3 + 1e-6) - loss(0.3 - 1e-6)) / 2e-6
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert len(set(alone)) == 3
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficient": -1.0}, "coefficient: "),
        ({"rehearsed": -1.0}, "rehearsed: "),
        ({"mean_below": 0.0}, "mean_below: "),
        ({"variance_below": 0.0}, "variance_below: "),
        ({"hard": 0}, "hard: "),
        ({"window": 0}, "window: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        task_free_mas(**options)
