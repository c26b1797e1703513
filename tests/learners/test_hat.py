"""HAT: fine-tuning under masks of ones, each equation by hand, and ended tasks that stay."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.hat import (
    attention,
    compensated,
    hat,
    log_probabilities,
    newly_used,
    protected,
)
from tests.learners.test_bounds import layers_of
from tests.learners.test_regularisation import equal
from tests.streams import blobs, ragged_stream, reweighted
from tests.trees import same

KEY = jax.random.key(0)
SMALL = {"hidden": (6, 5), "learning_rate": 0.1}
OPTIONS = SMALL | {"tasks": 3, "task_batches": 2, "coefficient": 0.01}
STREAM = ragged_stream()
# Rows of classes 0 and 1, and of 2 and 3.
X, y = blobs(24)
FIRST, SECOND = (X[y < 2], np.eye(4)[y[y < 2]]), (X[y >= 2], np.eye(4)[y[y >= 2]])
ALL = (X, np.eye(4)[y])
# At the largest scale masks of these embeddings are 1 and 0, exactly.
SHUT = [(-1.0, 1.0, 1.0, -1.0, 1.0, -1.0), (1.0, -1.0, 1.0, 1.0, -1.0)]


def begun(learner, embeddings=None):
    """A fresh state, with embeddings of +6 or -6 for each node, alike in each task."""
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        if embeddings is None:
            return state
        signs = (jnp.asarray(e, float) for e in embeddings)
        chosen = tuple(
            6.0 * jnp.broadcast_to(sign, e.shape)
            for sign, e in zip(signs, state.embeddings, strict=True)
        )
    return state._replace(embeddings=chosen)


def after(learner, state, *batches, ends=False):
    with jax.enable_x64(True):
        for rows in batches:
            state, info = learner.step(state, *rows)
            assert info.healthy
            state = learner.consolidate(state) if ends else state
    return state


def test_masks_of_ones_are_fine_tuning_bit_for_bit():
    """All classes come in each batch, so that those of the task are all there are."""
    learner, alone = hat(**OPTIONS | {"task_batches": 1}), finetune(**SMALL)
    ones = begun(learner, [np.ones(6), np.ones(5)])
    rolled = X, np.roll(ALL[1], 1, axis=1)
    with jax.enable_x64(True):
        tuned = alone.init(KEY, 6, 4)
    assert equal(tuned.params, ones.params)
    state, tuned = after(learner, ones, ALL, rolled), after(alone, tuned, ALL, rolled)
    assert equal(state.params, tuned.params)
    assert equal(state.embeddings, ones.embeddings)
    # Controls: a node that is masked, and tasks that end.
    shut = after(learner, begun(learner, SHUT), ALL, rolled)
    assert not equal(shut.params, tuned.params)
    ended = after(learner, ones, ALL, rolled, ends=True)
    assert not equal(ended.params, tuned.params)
    assert equal(ended.params, after(learner, ones, ALL).params)


def test_a_finished_task_answers_as_before():
    learner, alone = hat(**OPTIONS | {"task_batches": 1}), finetune(**SMALL)
    first = after(learner, begun(learner, SHUT), FIRST, ends=True)
    # In the second task other nodes are open, some of them the first's.
    other = [np.roll(e, 1) for e in SHUT]
    with jax.enable_x64(True):
        embeddings = tuple(
            e.at[1].set(6.0 * jnp.asarray(o)) for e, o in zip(first.embeddings, other, strict=True)
        )
    second = after(learner, first._replace(embeddings=embeddings), *[SECOND] * 5)
    with jax.enable_x64(True):
        tuned = [alone.init(KEY, 6, 4)]
    for batches in ([FIRST], [SECOND] * 5):
        tuned.append(after(alone, tuned[-1], *batches))

    def answers(state):
        with jax.enable_x64(True):
            masks = attention(state.embeddings, 0, 400.0)
            return np.asarray(log_probabilities(state.params, X, masks, state.rows[0]))[:, :2]

    np.testing.assert_array_equal(answers(second), answers(first))
    # Controls: it did learn, and fine-tuning does not answer as before.
    assert not equal(second.params, first.params)
    with jax.enable_x64(True):
        logits = [np.asarray(alone.scores(state, X))[:, :2] for state in tuned[1:]]
    assert np.abs(np.diff(logits, axis=0)).max() > 0.01


@pytest.mark.slow
def test_ended_tasks_move_less_than_in_fine_tuning():
    """With masks as they come, along a stream of two tasks."""
    ends = int(STREAM.task_ends[0]) + 1
    cut = STREAM._replace(
        X=STREAM.X[:ends], y=STREAM.y[:ends], weight=STREAM.weight[:ends], task=STREAM.task[:ends]
    )
    options = {"hidden": (40,), "learning_rate": 0.1, "updates": 5}
    learner, alone = hat(**options, tasks=2, task_batches=5), finetune(**options)
    moved = []
    for one in (learner, alone):
        before, after = (
            run_stream(one, stream, key=KEY, boundaries="given").state for stream in (cut, STREAM)
        )
        with jax.enable_x64(True):
            if one is learner:
                masks = attention(before.embeddings, 0, 400.0)
                answers = [
                    np.asarray(log_probabilities(state.params, X, masks, before.rows[0]))[:, :2]
                    for state in (before, after)
                ]
            else:
                answers = [
                    np.asarray(jax.nn.log_softmax(one.scores(state, X)[:, :2]))
                    for state in (before, after)
                ]
        moved.append(np.abs(answers[1] - answers[0]).max())
    assert moved[0] < 0.2 * moved[1]


def forward(layers, X, masks):
    """What goes into each layer, what its nodes get, and the logits."""
    reached, nodes = [X], []
    for (W, b), mask in zip(layers[:-1], masks, strict=True):
        nodes.append(np.maximum(reached[-1] @ W + b, 0))
        reached.append(nodes[-1] * mask)
    return reached, nodes, reached[-1] @ layers[-1][0] + layers[-1][1]


def step_by_hand(state, rows, task, scale, used, met_before, coefficient, rate, largest):
    """One update in NumPy: (layers, embeddings)."""
    X, Y = rows
    layers = layers_of(state.params)
    embeddings = [np.array(e) for e in state.embeddings]
    masks = [expit(scale * e[task]) for e in embeddings]
    met = np.asarray(state.rows)[task] + Y.sum(axis=0) > 0
    reached, nodes, z = forward(layers, X, masks)
    back = np.zeros_like(z)
    back[:, met] = softmax(z[:, met], axis=1) - Y[:, met]
    back /= len(X)
    room = sum((1 - u).sum() for u in used)
    ends = [np.ones(X.shape[1]), *used, met_before.astype(float)]
    changed = []
    for i in reversed(range(len(layers))):
        W, b = layers[i]
        keep = 1 - np.minimum(ends[i][:, None], ends[i + 1])
        W_new = W - rate * keep * (reached[i].T @ back)
        changed.append([W_new, b - rate * (1 - ends[i + 1]) * back.sum(axis=0)])
        back = back @ W.T
        if i:
            e, mask = embeddings[i - 1][task], masks[i - 1]
            of_mask = (back * nodes[i - 1]).sum(axis=0) + coefficient * (1 - used[i - 1]) / room
            of_e = of_mask * scale * mask * (1 - mask)
            steep = np.cosh(np.clip(scale * e, -50, 50)) + 1
            of_e *= largest / scale * steep / (np.cosh(e) + 1)
            embeddings[i - 1][task] = np.clip(e - rate * of_e, -6, 6)
            back = back * mask * (nodes[i - 1] > 0)
    return changed[::-1], embeddings


@pytest.mark.parametrize("ended", [0, 1])
def test_updates_by_hand(ended):
    """The third of four updates of a task, of the first task or the second."""
    largest = 20.0
    learner = hat(**OPTIONS | {"task_batches": 4, "largest_scale": largest, "coefficient": 0.3})
    state = begun(learner)
    if ended:
        state = after(learner, state, FIRST, ends=True)
    state = after(learner, state, SECOND, SECOND)
    # One class more than so far, and one that the first task had.
    rows = X[y != 1], ALL[1][y != 1]
    new = after(learner, state, rows)
    scale = 1 / largest + (largest - 1 / largest) * 2 / 3
    used = [np.asarray(of_layer) for of_layer in state.used]
    met_before = np.array([True, True, False, False]) & bool(ended)
    arguments = (state, rows, ended, scale)
    layers, embeddings = step_by_hand(*arguments, used, met_before, 0.3, 0.1, largest)
    for got, want in zip(layers_of(new.params), layers, strict=True):
        np.testing.assert_allclose(got[0], want[0], rtol=0, atol=1e-11)
        np.testing.assert_allclose(got[1], want[1], rtol=0, atol=1e-11)
    for got, want in zip(new.embeddings, embeddings, strict=True):
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-9)
    # Control: the scale of another update.
    other = step_by_hand(state, rows, ended, scale / 2, used, met_before, 0.3, 0.1, largest)
    assert np.abs(other[0][0][0] - layers[0][0]).max() > 1e-4
    if ended:
        nothing = [np.zeros_like(u) for u in used]
        free = step_by_hand(*arguments, nothing, met_before & False, 0.3, 0.1, largest)
        for i in range(3):
            assert np.abs(free[0][i][0] - layers[i][0]).max() > 1e-4


def test_the_scale_of_the_mask_s_gradient_is_that_of_a_sigmoid_at_1():
    """By central differences: sigmoid(s e) falls off fast, and its scaled gradient does not."""
    e, scale, largest = np.array([-2.0, -0.1, 0.0, 0.3, 1.0]), 30.0, 400.0
    step = 1e-6
    gradient = (expit(scale * (e + step)) - expit(scale * (e - step))) / (2 * step)
    wanted = largest * (expit(e + step) - expit(e - step)) / (2 * step)
    with jax.enable_x64(True):
        exact = scale * expit(scale * e) * expit(-scale * e)
        got = np.asarray(compensated(*map(jnp.asarray, (exact, e)), scale, largest))
    # Up to where s e is limited, 50.
    inside = np.abs(scale * e) < 50
    np.testing.assert_allclose(got[inside], wanted[inside], rtol=1e-6)
    assert got[0] < 1e-3 * wanted[0]
    np.testing.assert_allclose(gradient[inside], exact[inside], rtol=1e-3, atol=1e-9)


def test_masks_of_ended_tasks_add_up_to_their_largest():
    learner = hat(**OPTIONS)
    state, most = begun(learner), [np.zeros(6), np.zeros(5)]
    for task, rows in enumerate((FIRST, SECOND)):
        state = after(learner, state, rows, ends=True)
        masks = [expit(400.0 * np.asarray(e[task])) for e in state.embeddings]
        most = list(map(np.maximum, most, masks))
        for got, want in zip(state.used, most, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-15)
    assert state.ended == 2
    # Where no rows came since, no task ends.
    with jax.enable_x64(True):
        same(learner.consolidate(state), state)


def test_masks_that_are_new_count_by_what_is_free():
    masks, used = [np.array([0.9, 0.2]), np.array([0.5])], [np.array([1.0, 0.4]), np.array([0.0])]
    with jax.enable_x64(True):
        trees = [tuple(map(jnp.asarray, one)) for one in (masks, used)]
        got = float(newly_used(*trees))
        nothing_free = float(newly_used(trees[0], tuple(map(jnp.ones_like, trees[1]))))
    assert got == pytest.approx((0.2 * 0.6 + 0.5) / 1.6, rel=1e-12)
    assert nothing_free == 0


def test_gradients_are_held_by_the_lesser_of_two_masks():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        state = begun(hat(**OPTIONS))
        used = [rng.uniform(size=6), rng.uniform(size=5)]
        ones = jax.tree.map(jnp.ones_like, state.params)
        met = jnp.array([True, False, True, False])
        got = layers_of(protected(ones, tuple(map(jnp.asarray, used)), met))
    ends = [np.ones(6), *used, np.array([1.0, 0.0, 1.0, 0.0])]
    for (W, b), before, after_ in zip(got, ends[:-1], ends[1:], strict=True):
        for j, i in np.ndindex(W.shape):
            assert W[j, i] == pytest.approx(1 - min(before[j], after_[i]), abs=1e-12)
        np.testing.assert_allclose(b, 1 - after_, atol=1e-12)


def test_answers_are_those_of_the_most_certain_task():
    learner = hat(**OPTIONS | {"task_batches": 1})
    state = after(learner, begun(learner, SHUT), *[FIRST] * 20)
    with jax.enable_x64(True):
        state = after(learner, learner.consolidate(state), *[SECOND] * 20)
    layers, rows = layers_of(state.params), np.asarray(state.rows)
    of_tasks = []
    for task, classes in enumerate(([0, 1], [2, 3])):
        masks = [expit(400.0 * np.asarray(e[task])) for e in state.embeddings]
        of_tasks.append(log_softmax(forward(layers, X, masks)[2][:, classes], axis=1))
        np.testing.assert_array_equal(rows[task] > 0, np.isin(np.arange(4), classes))
    with jax.enable_x64(True):
        scores = np.asarray(learner.scores(state, X))
    np.testing.assert_allclose(scores, np.concatenate(of_tasks, axis=1), rtol=1e-9, atol=1e-12)
    certain = np.argmax([z.max(axis=1) for z in of_tasks], axis=0)
    within = np.array([of_tasks[k][i].argmax() for i, k in enumerate(certain)])
    np.testing.assert_array_equal(scores.argmax(axis=1), 2 * certain + within)
    assert len(set(certain)) == 2


def test_classes_that_were_never_met_are_far_below():
    learner = hat(**OPTIONS)
    fresh = begun(learner)
    with jax.enable_x64(True):
        none = learner.predict(fresh, X)
        some = learner.predict(after(learner, fresh, FIRST), X)
    np.testing.assert_allclose(none, 0.25)
    np.testing.assert_allclose(some[:, 2:], 0)


def test_tasks_beyond_the_last_mask_share_it():
    learner = hat(**OPTIONS | {"tasks": 2})
    state = after(learner, begun(learner), FIRST, SECOND, ALL, ends=True)
    assert state.ended == 3
    np.testing.assert_array_equal(np.asarray(state.rows[1]), SECOND[1].sum(0) + ALL[1].sum(0))


def test_an_empty_batch_leaves_no_trace():
    learner = hat(**OPTIONS)
    state = after(learner, begun(learner), FIRST)
    with jax.enable_x64(True):
        rows = np.full((3, 6), np.nan), np.zeros((3, 4))
        nothing, info = learner.step(state, *rows, weight_t=np.zeros(3))
    assert info.healthy
    same(nothing, state)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["coefficient", "largest_scale"])
def test_numbers_are_swept_and_differentiated_with_tasks_given(name):
    stream = reweighted(STREAM)
    values = {"coefficient": [0.0, 0.1, 0.2], "largest_scale": [10.0, 20.0, 30.0]}[name]
    options = OPTIONS | {"task_batches": 5, "largest_scale": 20.0}
    step = 1e-5 * values[1]

    def made(**numbers):
        return hat(**options | numbers)

    result = rvfl_jax.sweep(made, stream, {name: np.array(values)}, key=KEY, boundaries="given")
    with jax.enable_x64(True):

        def loss(value):
            learner = made(**{name: value})
            return rvfl_jax.prequential_loss(learner, stream, key=KEY, boundaries="given")

        alone = [float(loss(value)) for value in values]
        slope = float(jax.grad(loss)(values[1]))
        numerical = float(loss(values[1] + step) - loss(values[1] - step)) / (2 * step)
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert len(set(alone)) == 3
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)
    assert slope != 0


def test_boundaries_are_known_only_if_given():
    learner = hat(**OPTIONS)
    told, untold = (
        run_stream(learner, STREAM, key=KEY, boundaries=boundaries).state
        for boundaries in ("given", "none")
    )
    assert (told.ended, untold.ended) == (2, 0)
    assert not np.any(untold.used[0])
    assert np.all(np.asarray(untold.rows[0]) > 0)
    assert np.array_equal((np.asarray(told.rows) > 0).sum(axis=1), [2, 2, 0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"coefficient": -1.0}, "coefficient: "),
        ({"largest_scale": 0.5}, "largest_scale: "),
        ({"learning_rate": 0.0}, "learning_rate: "),
        ({"hidden": ()}, "hidden: expected one layer at least"),
        ({"hidden": (0,)}, "hidden: "),
        ({"tasks": 0}, "tasks: "),
        ({"task_batches": 0}, "task_batches: "),
        ({"updates": 0}, "updates: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        hat(**options)


def test_weights_of_rows_count():
    learner = hat(**OPTIONS)
    times = np.array([1, 2, 3] * 4)
    with jax.enable_x64(True):
        state = begun(learner)
        weighted, _ = learner.step(state, X[:12], one_hot(y[:12], 4), weight_t=times.astype(float))
        repeated = np.repeat(np.arange(12), times)
        again, _ = learner.step(state, X[repeated], one_hot(y[repeated], 4))
    for a, b in zip(jax.tree.leaves(weighted), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)
