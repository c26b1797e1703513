"""OWM: fine-tuning where nothing is projected, projectors by their definition, mean inputs kept."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import softmax

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.owm import owm, renewed
from tests.learners.test_bounds import layers_of
from tests.learners.test_regularisation import equal
from tests.streams import blobs, ragged_stream, reweighted
from tests.trees import same

KEY = jax.random.key(0)
SMALL = {"hidden": (6, 5), "learning_rate": 0.1}
STREAM = ragged_stream()


def run(learner, boundaries="given", stream=STREAM):
    return run_stream(learner, stream, key=KEY, boundaries=boundaries).state


def test_with_projectors_of_1_it_is_fine_tuning_bit_for_bit():
    alone = run(finetune(**SMALL, updates=2)).params
    state = run(owm(**SMALL, updates=2, alpha=1e300))
    assert equal(state.params, alone)
    for P in state.projectors:
        np.testing.assert_allclose(P, np.eye(len(P)), rtol=0, atol=1e-280)
    # Control: the weakest projection that can be told from none.
    assert not equal(run(owm(**SMALL, updates=2, alpha=1e9)).params, alone)


def by_hand(stream, tasks_given, alpha_0, decay, task_batches, updates, rate, params):
    """Layers and projectors along a stream, row by row and layer by layer in NumPy.

    A projector is the inverse of I and of what was added to it, no recursion.
    """
    layers = [np.concatenate([W, b[None]]) for W, b in layers_of(params)]
    added = [np.eye(len(W)) for W in layers]
    done = 0
    for t, (X, y, weight) in enumerate(zip(stream.X, stream.y, stream.weight, strict=True)):
        used = weight > 0
        share = weight[used] / weight.sum()
        for _ in range(updates):
            progress = min(done / (task_batches * updates), 1.0)
            done += 1
            inputs, gradients = [], [0.0] * len(layers)
            for x, label, w in zip(X[used], y[used], share, strict=True):
                reached = [np.append(x, 1.0)]
                for W in layers[:-1]:
                    reached.append(np.append(np.maximum(reached[-1] @ W, 0), 1.0))
                inputs.append(reached)
                back = softmax(reached[-1] @ layers[-1]) - np.eye(layers[-1].shape[1])[label]
                for i in reversed(range(len(layers))):
                    gradients[i] = gradients[i] + w * np.outer(reached[i], back)
                    back = (layers[i] @ back)[:-1] * (reached[i][:-1] > 0)
            for i, W in enumerate(layers):
                mean = sum(w * reached[i] for w, reached in zip(share, inputs, strict=True))
                added[i] = added[i] + np.outer(mean, mean) / (alpha_0 * decay**progress)
                layers[i] = W - rate * np.linalg.inv(added[i]) @ gradients[i]
        if tasks_given and t in stream.task_ends:
            done = 0
    return layers, [np.linalg.inv(A) for A in added]


@pytest.mark.parametrize(
    ("boundaries", "updates"), [("given", 1), pytest.param("none", 2, marks=pytest.mark.slow)]
)
def test_batches_by_hand(boundaries, updates):
    stream = reweighted(STREAM)
    learner = owm(**SMALL, alpha=0.7, decay=0.2, task_batches=3, updates=updates)
    with jax.enable_x64(True):
        first = learner.init(KEY, 6, 4).params

    def wanted(given, task_batches=3):
        return by_hand(stream, given, 0.7, 0.2, task_batches, updates, 0.1, first)

    layers, projectors = wanted(boundaries == "given")
    state = run(learner, boundaries, stream)
    for (W, b), want in zip(layers_of(state.params), layers, strict=True):
        np.testing.assert_allclose(np.concatenate([W, b[None]]), want, rtol=0, atol=1e-9)
    for got, want in zip(state.projectors, projectors, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
    # Control: the progress within a task matters, and that it begins anew.
    for other in (wanted(boundaries != "given"), wanted(boundaries == "given", 5)):
        assert np.abs(other[0][0] - layers[0]).max() > 1e-5


def test_projectors_stay_symmetric_and_positive():
    state = run(owm(**SMALL, alpha=0.01, updates=5))
    for P in state.projectors:
        np.testing.assert_array_equal(P, np.asarray(P).T)
        values = np.linalg.eigvalsh(P)
        assert values.min() > 0
        assert values.max() <= 1 + 1e-12
        # Control: most of some direction is gone.
        assert values.min() < 0.01


def test_a_projector_takes_out_what_it_was_given():
    rng = np.random.default_rng(0)
    inputs, weight = rng.normal(size=(7, 4)), rng.uniform(0.5, 2.0, 7)
    with jax.enable_x64(True):
        P = np.asarray(renewed(jnp.eye(5), jnp.asarray(inputs), jnp.asarray(weight), 0.3))
    x = np.append(weight @ inputs / weight.sum(), 1.0)
    np.testing.assert_allclose(P, np.linalg.inv(np.eye(5) + np.outer(x, x) / 0.3), atol=1e-12)
    # Control: the mean without weights is another.
    other = np.append(inputs.mean(axis=0), 1.0)
    wrong = np.linalg.inv(np.eye(5) + np.outer(other, other) / 0.3)
    assert np.abs(wrong - P).max() > 1e-3


def test_what_is_made_of_old_mean_inputs_stays():
    """After the first task: the first layer's part of the means of its batches."""
    ends = int(STREAM.task_ends[0]) + 1
    first = STREAM._replace(
        X=STREAM.X[:ends], y=STREAM.y[:ends], weight=STREAM.weight[:ends], task=STREAM.task[:ends]
    )
    weight = first.weight / first.weight.sum(axis=1, keepdims=True)
    means = np.einsum("tb,tbs->ts", weight, np.where(weight[..., None] > 0, first.X, 0.0))
    moved = []
    for learner in (owm(**SMALL, alpha=0.1, updates=5), finetune(**SMALL, updates=5)):
        before, after = run(learner, stream=first).params, run(learner).params
        (W_0, b_0), (W_1, b_1) = layers_of(before)[0], layers_of(after)[0]
        moved.append(np.abs(means @ (W_1 - W_0) + b_1 - b_0).max())
        assert np.abs(W_1 - W_0).max() > 0.01
    assert moved[0] < 0.05 * moved[1]


def test_tasks_begin_anew_and_an_empty_batch_leaves_no_trace():
    learner = owm(**SMALL, task_batches=4)
    X, y = blobs(12)
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, 6, 4), X, one_hot(y, 4))
        nothing, info = learner.step(
            state, np.full((3, 6), np.nan), np.zeros((3, 4)), weight_t=np.zeros(3)
        )
        ended = learner.consolidate(state)
    assert info.healthy
    same(nothing, state)
    assert (state.learned, ended.learned) == (1, 0)
    same(ended._replace(learned=state.learned), state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["alpha", "decay"])
def test_alpha_is_swept_and_differentiated_with_tasks_given(name):
    stream, values = reweighted(STREAM), np.array([0.1, 0.3, 0.9])

    def made(**numbers):
        return owm(**SMALL, task_batches=4, **numbers)

    result = rvfl_jax.sweep(made, stream, {name: values}, key=KEY, boundaries="given")
    with jax.enable_x64(True):

        def loss(value):
            return rvfl_jax.prequential_loss(
                made(**{name: value}), stream, key=KEY, boundaries="given"
            )

        alone = [float(loss(value)) for value in values]
        slope = float(jax.grad(loss)(0.3))
        numerical = float(loss(0.3 + 1e-5) - loss(0.3 - 1e-5)) / 2e-5
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert len(set(alone)) == 3
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)
    assert slope != 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 0.0}, "alpha: "),
        ({"decay": 0.0}, "decay: "),
        ({"decay": 1.5}, "decay: "),
        ({"learning_rate": 0.0}, "learning_rate: "),
        ({"hidden": (0,)}, "hidden: "),
        ({"task_batches": 0}, "task_batches: "),
        ({"updates": 0}, "updates: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        owm(**options)
