"""The two bounds of gradient methods: fine-tuning on each batch, and training on all rows."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.data import load_dataset
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.joint import joint
from rvfl_jax.learners.replay import replay
from tests.references import softmax
from tests.streams import blobs, ragged_stream, reweighted

KEY = jax.random.key(0)
SMALL = {"hidden": (6,), "learning_rate": 0.1}


def layers_of(params):
    return [
        [np.asarray(layer["kernel"]), np.asarray(layer["bias"])]
        for _, layer in sorted(params["params"].items())
    ]


def descended(layers, X, Y, weight, rate):
    """One step of gradient descent on the weighted cross-entropy, by the chain rule in NumPy."""
    activations = [X]
    for W, b in layers[:-1]:
        activations.append(np.maximum(activations[-1] @ W + b, 0))
    z = activations[-1] @ layers[-1][0] + layers[-1][1]
    back = weight[:, None] * (softmax(z) - Y) / max(weight.sum(), 1.0)
    changed = []
    for (W, b), below in zip(reversed(layers), reversed(activations), strict=True):
        changed.append([W - rate * below.T @ back, b - rate * back.sum(axis=0)])
        back = (back @ W.T) * (below > 0)
    return changed[::-1]


def assert_layers(params, layers):
    for got, want in zip(layers_of(params), layers, strict=True):
        for a, b in zip(got, want, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("updates", [1, 2])
def test_fine_tuning_is_gradient_descent_on_each_batch(updates):
    stream = reweighted(ragged_stream())
    learner = finetune(**SMALL, updates=updates)
    with jax.enable_x64(True):
        layers = layers_of(learner.init(KEY, 6, 4).params)
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        used = weight > 0
        for _ in range(updates):
            rows = X[used].astype(float), np.eye(4)[y[used]], weight[used]
            layers = descended(layers, *rows, 0.1)
    state = run_stream(learner, stream, key=KEY).state
    assert_layers(state.params, layers)
    # Control: another rate ends elsewhere.
    other = run_stream(finetune(**SMALL | {"learning_rate": 0.11}), stream, key=KEY).state
    assert not np.allclose(layers_of(other.params)[0][0], layers[0][0], rtol=1e-3)


def test_replay_of_nothing_is_fine_tuning():
    """At the first batch nothing is kept yet, so that there is nothing to draw."""
    stream = ragged_stream()
    again, alone = replay(**SMALL, memory=4, drawn=2), finetune(**SMALL)
    with jax.enable_x64(True):
        state = alone.init(KEY, 6, 4)
        kept = again.init(KEY, 6, 4)._replace(params=state.params)
        rows = stream.X[0], one_hot(stream.y[0], 4)
        state, _ = alone.step(state, *rows, weight_t=stream.weight[0])
        kept, _ = again.step(kept, *rows, weight_t=stream.weight[0])
        second = again.step(kept, *rows, weight_t=stream.weight[0])[0].params
        alone_second = alone.step(state, *rows, weight_t=stream.weight[0])[0].params
    for a, b in zip(jax.tree.leaves(state.params), jax.tree.leaves(kept.params), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-15)
    # Control: at the second it draws.
    assert not np.allclose(jax.tree.leaves(second)[0], jax.tree.leaves(alone_second)[0])


@pytest.mark.parametrize(("rows", "batch_rows"), [(20, 8), (20, 30), (16, 8)])
def test_joint_training_is_shuffled_passes_over_all_rows(rows, batch_rows):
    X, y = blobs(rows)
    weight = np.random.default_rng(0).integers(0, 3, rows).astype(float)
    learner = joint(**SMALL, passes=3, batch_rows=batch_rows)
    with jax.enable_x64(True):
        began = learner.init(KEY, 6, 4)
        hidden = np.where(weight[:, None] > 0, X, np.nan)
        state = learner.fit_offline(began, hidden, one_hot(y, 4), weight)
        of_passes = jax.random.split(jax.random.split(began.key)[1], 3)
        orders = [np.asarray(jax.random.permutation(key, rows)) for key in of_passes]
    layers = layers_of(began.params)
    for order in orders:
        for first in range(0, rows, batch_rows):
            at = order[first : first + batch_rows]
            layers = descended(layers, X[at], np.eye(4)[y[at]], weight[at], 0.1)
    assert_layers(state.params, layers)
    assert not np.array_equal(*orders[:2])


def test_the_bounds_lie_apart():
    data = load_dataset("digits")
    stream = rvfl_jax.class_incremental_stream(
        data.X_train, data.y_train, num_tasks=5, num_batches=100, seed=0
    )
    test = (data.X_test, data.y_test)
    learner = joint(hidden=(64,), passes=20, batch_rows=32)
    run = run_stream(learner, stream, key=KEY, test=test, evaluate="task", precision="single")
    end = run.history.accuracy["class_incremental"][-1]
    with jax.enable_x64(False):
        fresh = learner.init(KEY, 64, 10)
        used = stream.weight > 0
        fitted = learner.fit_offline(
            fresh, stream.X[used], one_hot(stream.y[used], 10), jnp.ones(used.sum())
        )
        answers = stream.classes[np.asarray(learner.scores(fitted, data.X_test)).argmax(axis=1)]
    assert end < 0.3
    assert np.mean(answers == data.y_test) > 0.9
    along = run_stream(finetune(hidden=(64,)), stream, key=KEY, test=test, precision="single")
    assert along.history.accuracy["class_incremental"][-1] < 0.3


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (finetune, {"learning_rate": 0.0}, "learning_rate: "),
        (finetune, {"hidden": (0,)}, "hidden: "),
        (finetune, {"updates": 0}, "updates: "),
        (joint, {"learning_rate": -1.0}, "learning_rate: "),
        (joint, {"passes": 0}, "passes: "),
        (joint, {"batch_rows": 1.5}, "batch_rows: "),
    ],
)
def test_options_out_of_range(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
