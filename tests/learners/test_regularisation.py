"""Networks that are held back: each against loops over examples, and against fine-tuning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.anchored import Anchor
from rvfl_jax.learners.ewc import ewc
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.fisher import fisher_diagonal
from rvfl_jax.learners.lwf import distillation, lwf
from rvfl_jax.learners.mas import mas, sensitivity
from rvfl_jax.learners.mlp_head import MLPHead
from rvfl_jax.learners.online_ewc import online_ewc
from rvfl_jax.learners.si import si
from rvfl_jax.learners.window import Window
from tests import tolerances
from tests.learners.test_bounds import layers_of
from tests.streams import blobs, ragged_stream, reweighted
from tests.trees import same

KEY = jax.random.key(0)
SMALL = {"hidden": (6,), "learning_rate": 0.1}
HEAD = MLPHead((6,))
EVERY = pytest.mark.parametrize("make", [ewc, online_ewc, si, mas, lwf])
ANCHORED = pytest.mark.parametrize("make", [ewc, online_ewc, mas])
STREAM = ragged_stream()


def run(learner, boundaries="given", stream=STREAM):
    return run_stream(learner, stream, key=KEY, boundaries=boundaries).state


def equal(a, b):
    return all(map(np.array_equal, jax.tree.leaves(a), jax.tree.leaves(b)))


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def assert_trees(got, want, tolerance=tolerances.CLOSED_FORM):
    got, want = flat(got), flat(want)
    np.testing.assert_allclose(got, want, rtol=0, atol=tolerance * np.abs(want).max())


@EVERY
def test_coefficient_0_is_fine_tuning_bit_for_bit(make):
    """Through both tasks, though something has been there to hold to since the first ended."""
    alone = run(finetune(**SMALL))
    assert equal(run(make(**SMALL, coefficient=0.0)).params, alone.params)
    # Control: the least coefficient is seen.
    assert not equal(run(make(**SMALL, coefficient=1e-3)).params, alone.params)


@EVERY
def test_tasks_are_known_only_if_given(make):
    untold = run(make(**SMALL, coefficient=2.0), "none")
    assert equal(untold.params, run(finetune(**SMALL)).params)
    told = run(make(**SMALL, coefficient=2.0))
    if make is lwf:
        assert np.array_equal(told.old_rows, told.rows)
        assert not untold.old_rows.any()
        assert not equal(untold.teacher, told.teacher)
    else:
        assert not flat(untold.anchor.importance).any()
        assert flat(told.anchor.importance).any()
        assert equal(told.anchor.params, told.params) or make is ewc


@pytest.mark.parametrize(
    "make",
    [ewc, lwf, *(pytest.param(each, marks=pytest.mark.slow) for each in (online_ewc, si, mas))],
)
def test_a_larger_coefficient_changes_less(make):
    """Of what the network was at the end of the first task; for LwF, of its old answers."""
    ends = int(STREAM.task_ends[0]) + 1
    options = SMALL | {"updates": 3}
    first = run(make(**options), stream=cut(STREAM, ends))
    later = STREAM.weight[ends:] > 0
    test = STREAM.X[ends:][later]
    distances = []
    for coefficient in (0.0, 2.0):
        state = run(make(**options, coefficient=coefficient))
        with jax.enable_x64(True):
            if make is lwf:
                answers = HEAD.logits(first.params, test), HEAD.logits(state.params, test)
                distances.append(float(distillation(first.old_rows, *answers, 2.0).mean()))
            else:
                distances.append(float(first.anchor.distance(state.params)))
    assert distances[1] < distances[0]


def cut(stream, batches):
    """The first batches of a stream."""
    return stream._replace(
        X=stream.X[:batches],
        y=stream.y[:batches],
        weight=stream.weight[:batches],
        task=stream.task[:batches],
    )


def test_the_window_has_the_last_rows_of_the_task():
    X = np.arange(20.0)[:, None]
    window = Window.begin(5, 1, 1)
    for part in (slice(0, 3), slice(3, 14), slice(14, 16)):
        rows = np.concatenate([X[part], np.full((2, 1), -1.0)])
        weight = np.r_[1 + X[part, 0], 0, 0]
        window = window.take(jnp.asarray(rows), rows, jnp.asarray(weight))
        end = part.stop
        kept = np.asarray(window.X[:, 0])[np.asarray(window.weight) > 0]
        assert sorted(kept) == list(range(max(0, end - 5), end))
        np.testing.assert_array_equal(window.weight[: len(kept)], 1 + kept)
        np.testing.assert_array_equal(window.X, window.Y)
        assert window.passed == end
    assert not any(map(np.any, window.emptied()))


def gradients_by_hand(params, X, back_of):
    """[per row: gradients of each layer], by the chain rule in NumPy."""
    (W, b), (V, c) = layers_of(params)
    each = []
    for x in X:
        hidden = np.maximum(x @ W + b, 0)
        z = hidden @ V + c
        last = back_of(len(each), z)
        first = (V @ last) * (hidden > 0)
        each.append([first, np.outer(x, first), last, np.outer(hidden, last)])
    return each


def window_of_rows(rows=21, seed=0):
    X, y = blobs(rows, seed=seed)
    weight = np.random.default_rng(seed).integers(0, 3, rows).astype(float)
    Y = np.asarray(one_hot(y, 4), float)
    with jax.enable_x64(True):
        window = Window.begin(rows, 6, 4)
        window = window.take(jnp.asarray(X), Y, jnp.asarray(weight))
        params = HEAD.init(KEY, 6, 4)
    used = weight > 0
    return window, params, X[used], Y[used], weight[used]


def mean_by_hand(each, weight, of):
    return [
        sum(w * of(row[k]) for w, row in zip(weight, each, strict=True)) / weight.sum()
        for k in range(4)
    ]


def test_fisher_information_is_the_mean_of_squared_gradients_of_rows():
    window, params, X, Y, weight = window_of_rows()
    each = gradients_by_hand(params, X, lambda i, z: softmax(z) - Y[i])
    with jax.enable_x64(True):
        got = fisher_diagonal(HEAD, params, window)
    assert_trees(got, mean_by_hand(each, weight, np.square))
    # Control: the square of the gradient of the mean is something else.
    wrong = [np.square(part) for part in mean_by_hand(each, weight, np.asarray)]
    assert np.abs(flat(got) - flat(wrong)).max() > 0.1 * flat(got).max()


def test_sensitivity_is_the_mean_absolute_gradient_of_the_squared_norm():
    window, params, X, _, weight = window_of_rows()
    each = gradients_by_hand(params, X, lambda i, z: 2 * z)
    with jax.enable_x64(True):
        got = sensitivity(HEAD, params, window)
    assert_trees(got, mean_by_hand(each, weight, np.abs))
    # Control: the absolute gradient of the mean is something else.
    wrong = [np.abs(part) for part in mean_by_hand(each, weight, np.asarray)]
    assert np.abs(flat(got) - flat(wrong)).max() > 0.1 * flat(got).max()


def two_ends(make, **options):
    """The states before and after each of two consolidations, and what the window gave."""
    learner = make(**SMALL, window=12, **options)
    of_window = sensitivity if make is mas else fisher_diagonal
    found = []
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        for seed in (0, 1):
            X, y = blobs(12, seed=seed)
            state, _ = learner.step(state, X, one_hot(y, 4))
            new = of_window(HEAD, state.params, state.window)
            state = learner.consolidate(state)
            found.append((state, jax.tree.map(np.asarray, new)))
        again = learner.consolidate(state)
        moved, _ = learner.step(state, X, one_hot(y, 4))
    # Where no rows came since, nothing is to be renewed.
    same(again, state)
    assert not flat(state.window).any()
    return found, moved


def test_penalties_of_all_tasks_are_one_quadratic():
    found, moved = two_ends(ewc, coefficient=3.0)
    state = found[1][0]

    def by_task(params):
        return sum(
            np.sum(flat(fisher) * (flat(params) - flat(end.params)) ** 2) for end, fisher in found
        )

    def as_one(params):
        return float(state.anchor.distance(params))

    with jax.enable_x64(True):
        at, other = moved.params, found[0][0].params
        assert as_one(at) - as_one(other) == pytest.approx(by_task(at) - by_task(other), rel=1e-9)
        # Control: about the last end alone it is another.
        last = Anchor(state.anchor.importance, state.params)
        gap = float(last.distance(at)) - float(last.distance(other))
    assert gap != pytest.approx(by_task(at) - by_task(other), rel=1e-2)


@pytest.mark.parametrize(
    ("make", "options", "shares"),
    [
        (online_ewc, {"decay": 0.7}, (0.7, 1.0)),
        (mas, {"kept": 0.3}, (0.3, 0.7)),
        (ewc, {}, (1.0, 1.0)),
    ],
)
def test_importance_of_two_tasks(make, options, shares):
    (first, fisher_1), (second, fisher_2) = two_ends(make, **options)[0]
    assert_trees(first.anchor.importance, fisher_1)
    want = shares[0] * flat(fisher_1) + shares[1] * flat(fisher_2)
    assert_trees(second.anchor.importance, want)
    assert np.abs(flat(fisher_1) - flat(fisher_2)).max() > 1e-3 * want.max()


@pytest.mark.parametrize(("make", "factor"), [(ewc, 0.5), (online_ewc, 0.5), (mas, 1.0)])
def test_a_step_descends_the_loss_with_its_penalty(make, factor):
    found, moved = two_ends(make, coefficient=0.4)
    state = found[1][0]
    X, y = blobs(12, seed=1)
    Y = np.eye(4)[y]
    with jax.enable_x64(True):
        gradient = jax.grad(HEAD.loss)(state.params, jnp.asarray(X), jnp.asarray(Y), jnp.ones(12))
    pull = 2 * flat(state.anchor.importance) * (flat(state.params) - flat(state.anchor.params))
    want = flat(state.params) - 0.1 * (flat(gradient) + factor * 0.4 * pull)
    np.testing.assert_allclose(flat(moved.params), want, rtol=1e-9, atol=1e-12)


def test_the_path_integral_by_hand():
    """Two updates a batch, two tasks; importance is the path's share of the loss, damped."""
    learner = si(**SMALL, coefficient=0.5, damping=0.2, updates=2)
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        params, tree = state.params, jax.tree.structure(state.params)
        shapes = [leaf.shape for leaf in jax.tree.leaves(params)]
        theta = anchor = flat(params)
        importance, path = np.zeros_like(theta), np.zeros_like(theta)

        def gradient(theta, *rows):
            ends = np.cumsum([np.prod(shape, dtype=int) for shape in shapes])[:-1]
            parts = zip(np.split(theta, ends), shapes, strict=True)
            leaves = [jnp.asarray(part.reshape(shape)) for part, shape in parts]
            return flat(jax.grad(HEAD.loss)(jax.tree.unflatten(tree, leaves), *rows))

        for seed in (0, 1):
            for part in (0, 1):
                X, y = blobs(12, seed=10 * seed + part)
                rows = jnp.asarray(X), jnp.asarray(np.eye(4)[y]), jnp.ones(12)
                state, _ = learner.step(state, X, np.eye(4)[y])
                for _ in range(2):
                    g = gradient(theta, *rows)
                    after = theta - 0.1 * (g + 0.5 * 2 * importance * (theta - anchor))
                    path = path - g * (after - theta)
                    theta = after
            np.testing.assert_allclose(flat(state.path), path, rtol=0, atol=1e-12)
            undamped = importance + path / np.maximum((theta - anchor) ** 2, 1e-12)
            importance = importance + path / ((theta - anchor) ** 2 + 0.2)
            anchor, path = theta, np.zeros_like(theta)
            state = learner.consolidate(state)
            assert_trees(state.anchor.importance, importance)
            np.testing.assert_allclose(flat(state.params), theta, rtol=1e-9, atol=1e-12)
            assert equal(state.anchor.params, state.params)
            assert not flat(state.path).any()
            # Control: without damping it is another.
            assert np.abs(undamped - importance).max() > importance.max()


def test_distillation_is_over_old_classes_at_a_temperature():
    rng = np.random.default_rng(0)
    teacher, logits = rng.normal(size=(2, 5, 4))
    old = np.array([3.0, 0.0, 7.0, 0.0])
    with jax.enable_x64(True):
        got = distillation(*map(jnp.asarray, (old, teacher, logits)), 2.0)
        none = distillation(jnp.zeros(4), jnp.asarray(teacher), jnp.asarray(logits), 2.0)
    at = [0, 2]
    want = -np.sum(
        softmax(teacher[:, at] / 2, axis=1) * log_softmax(logits[:, at] / 2, axis=1), axis=1
    )
    np.testing.assert_allclose(got, want, rtol=1e-12)
    assert not np.any(none)
    # Control: over all classes, or without temperature, it is another.
    for wrong in (
        -np.sum(softmax(teacher / 2, axis=1) * log_softmax(logits / 2, axis=1), axis=1),
        -np.sum(softmax(teacher[:, at], axis=1) * log_softmax(logits[:, at], axis=1), axis=1),
    ):
        assert np.abs(wrong - want).min() > 1e-3


@EVERY
def test_an_empty_batch_leaves_no_trace_once_something_holds(make):
    learner, state = make(**SMALL, coefficient=0.3), run(make(**SMALL, coefficient=0.3))
    with jax.enable_x64(True):
        moved, _ = learner.step(state, STREAM.X[0], one_hot(STREAM.y[0], 4))
        rows = np.full((3, 6), np.nan), np.zeros((3, 4))
        after, info = learner.step(moved, *rows, weight_t=np.zeros(3))
    assert info.healthy
    same(after, moved)


@pytest.mark.slow
@EVERY
def test_coefficients_are_swept_and_differentiated_with_tasks_given(make):
    values = np.array([0.0, 0.3, 1.0])
    stream = reweighted(STREAM)

    def made(coefficient):
        return make(**SMALL, coefficient=coefficient)

    result = rvfl_jax.sweep(made, stream, {"coefficient": values}, key=KEY, boundaries="given")
    with jax.enable_x64(True):

        def loss(value):
            return rvfl_jax.prequential_loss(made(value), stream, key=KEY, boundaries="given")

        alone = [float(loss(value)) for value in values]
        slope = float(jax.grad(loss)(0.3))
        numerical = float(loss(0.3 + 1e-5) - loss(0.3 - 1e-5)) / 2e-5
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert len(set(alone)) == 3
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (ewc, {"coefficient": -1.0}, "coefficient: "),
        (ewc, {"window": 0}, "window: "),
        (online_ewc, {"decay": -0.1}, "decay: "),
        (si, {"damping": 0.0}, "damping: "),
        (si, {"updates": 0}, "updates: "),
        (mas, {"kept": 1.5}, "kept: "),
        (lwf, {"temperature": 0.0}, "temperature: "),
        (lwf, {"hidden": (0,)}, "hidden: "),
        (lwf, {"learning_rate": 0.0}, "learning_rate: "),
    ],
)
def test_options_out_of_range(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
