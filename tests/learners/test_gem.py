"""GEM: constraints kept, the projection SciPy's, and fine-tuning where nothing is violated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize

import rvfl_jax
from rvfl_jax import run_stream
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.gem import gem, projected
from tests.learners.test_regularisation import equal, flat
from tests.learners.test_rehearsal import AGAINST, KEY, SMALL, X_0, X_1, Y_0, Y_1, gradient
from tests.streams import blobs, ragged_stream, reweighted

STREAM = ragged_stream()
ALL = SMALL | {"memory": 12, "tasks": 3}
project = jax.jit(projected)


def states_of(learner, *batches):
    """States before and after the last batch, each batch a task of its own."""
    with jax.enable_x64(True):
        new = learner.init(KEY, 6, 4)
        for X, Y in batches:
            state = new
            new, _ = learner.step(state, X, Y)
            new = learner.consolidate(new)
    return state, new


@pytest.mark.parametrize("strength", [0.0, 0.5])
def test_the_projection_is_what_scipy_finds(strength):
    rng = np.random.default_rng(0)
    turned = 0
    for _ in range(20):
        g, G = rng.normal(size=50), rng.normal(size=(4, 50))
        G[3] = 0.0  # a place without rows
        with jax.enable_x64(True):
            got = np.asarray(project(jnp.asarray(g), jnp.asarray(G), strength))
        if np.all(G @ g >= 0):
            np.testing.assert_array_equal(got, g)
            continue
        turned += 1
        v = strength + scipy.optimize.nnls(G[:3].T, -(g + strength * G.sum(axis=0)))[0]
        np.testing.assert_allclose(got, g + v @ G[:3], rtol=0, atol=1e-6)
        assert np.all(G @ got >= -1e-9)
        # Control: g itself violates them.
        assert np.any(G @ g < -1e-6)
    assert turned > 10


def test_a_step_follows_the_projection():
    state, new = states_of(gem(**ALL), (X_0, Y_0), (X_1, Y_1), (X_0, AGAINST))
    g = flat(gradient(state.params, X_0, AGAINST))
    G = np.stack([flat(gradient(state.params, *rows)) for rows in ((X_0, Y_0), (X_1, Y_1))])
    assert np.any(G @ g < -1e-3)
    v = 0.5 + scipy.optimize.nnls(G.T, -(g + 0.5 * G.sum(axis=0)))[0]
    taken = (flat(state.params) - flat(new.params)) / 0.1
    np.testing.assert_allclose(taken, g + v @ G, rtol=0, atol=1e-6)
    assert np.all(G @ taken >= -1e-9)
    assert new.ended == 3


def test_where_nothing_is_violated_it_is_fine_tuning_bit_for_bit():
    same_rows = [(X_0, Y_0)] * 3
    alone = finetune(**SMALL)
    with jax.enable_x64(True):
        state = alone.init(KEY, 6, 4)
        for rows in same_rows:
            state, _ = alone.step(state, *rows)
    assert equal(states_of(gem(**ALL), *same_rows)[1].params, state.params)
    # Without tasks too, and not with them.
    ends = [
        run_stream(gem(**ALL), STREAM, key=KEY, boundaries=told).state.params
        for told in ("none", "given")
    ]
    tuned = run_stream(alone, STREAM, key=KEY).state.params
    assert equal(ends[0], tuned)
    assert not equal(ends[1], tuned)


def test_rows_of_each_task_are_kept_and_the_earliest_let_go():
    learner = gem(**SMALL, memory=5, tasks=2)
    batches = [(blobs(12, seed=seed)[0], Y_0) for seed in range(3)]
    _, state = states_of(learner, *batches)
    for place, seed in ((0, 2), (1, 1)):
        kept = {tuple(row) for row in np.asarray(state.earlier.X[place]).tolist()}
        assert kept == {tuple(row) for row in batches[seed][0][-5:].tolist()}
    with jax.enable_x64(True):
        again = learner.consolidate(state)
    assert equal(again, state)


@pytest.mark.slow
def test_strength_is_swept_and_differentiated_with_tasks_given():
    stream, values = reweighted(STREAM), np.array([0.0, 1.0, 1.5])

    def made(strength):
        return gem(**ALL, strength=strength)

    result = rvfl_jax.sweep(made, stream, {"strength": values}, key=KEY, boundaries="given")
    with jax.enable_x64(True):

        def loss(value):
            return rvfl_jax.prequential_loss(made(value), stream, key=KEY, boundaries="given")

        alone = [float(loss(value)) for value in values]
        slope = float(jax.grad(loss)(1.2))
        numerical = float(loss(1.2 + 1e-5) - loss(1.2 - 1e-5)) / 2e-5
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert len(set(alone)) == 3
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)
    assert slope != 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strength": -1.0}, "strength: "),
        ({"memory": 0}, "memory: "),
        ({"tasks": 0}, "tasks: "),
        ({"updates": 0}, "updates: "),
        ({"learning_rate": 0.0}, "learning_rate: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        gem(**options)
