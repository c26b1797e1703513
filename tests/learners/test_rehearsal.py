"""Methods that keep rows: each against its formula, where memory and draw are all rows."""

from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rvfl_jax import run_stream
from rvfl_jax.learners.agem import agem, turned
from rvfl_jax.learners.derpp import derpp
from rvfl_jax.learners.er import er
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.mlp_head import MLPHead
from rvfl_jax.learners.replay import replay
from tests.learners.test_regularisation import equal, flat
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
SMALL = {"hidden": (6,), "learning_rate": 0.1}
# All rows of one batch are kept, and all of them drawn.
ALL = SMALL | {"memory": 12, "drawn": 12}
HEAD = MLPHead((6,))
X_0, Y_0 = blobs(12)[0], np.eye(4)[blobs(12)[1]]
X_1, Y_1 = blobs(12, seed=1)[0], np.eye(4)[blobs(12, seed=1)[1]]
# The same rows with other labels: what is learned of them undoes what was.
AGAINST = np.roll(Y_0, 1, axis=1)


def gradient(params, *rows):
    with jax.enable_x64(True):
        return jax.grad(HEAD.loss)(params, *map(jnp.asarray, rows), jnp.ones(len(rows[0])))


def after(learner, *batches, params=None):
    """The states along batches, from given parameters."""
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        states = [state if params is None else state._replace(params=params)]
        for X, Y in batches:
            states.append(learner.step(states[-1], X, Y)[0])
    return states


@cache
def begun():
    """Parameters of fine-tuning, before it learns."""
    return after(finetune(**SMALL))[0].params


BATCHES = [(X_0, Y_0), (X_1, Y_1), (X_0, AGAINST)]


def test_experience_replay_is_replay_and_of_an_empty_memory_fine_tuning_bit_for_bit():
    """At the first batch nothing is kept yet, so that there is nothing to draw."""
    kept = SMALL | {"memory": 12, "drawn": 4}
    ends = [after(make(**kept), *BATCHES)[-1] for make in (er, replay)]
    assert equal(ends[0].params, ends[1].params)
    alone = after(finetune(**SMALL), *BATCHES)
    states = after(er(**kept), *BATCHES, params=begun())
    assert equal(states[1].params, alone[1].params)
    # Control: at the second it draws.
    assert not equal(states[2].params, alone[2].params)
    assert er(**kept) != replay(**kept)
    assert er(**kept) == er(**kept)


def test_dark_replay_that_counts_nothing_is_fine_tuning_bit_for_bit():
    alone = after(finetune(**SMALL), *BATCHES)[-1].params
    nothing = {"answers": 0.0, "labels": 0.0}
    assert equal(after(derpp(**ALL, **nothing), *BATCHES, params=begun())[-1].params, alone)
    # Control: either of them is seen.
    for name in nothing:
        one = derpp(**ALL, **nothing | {name: 1e-3})
        assert not equal(after(one, *BATCHES, params=begun())[-1].params, alone)


def test_dark_replay_keeps_the_answers_of_their_time():
    first, second, third = after(derpp(**SMALL, memory=30, drawn=4), *BATCHES[:2])
    with jax.enable_x64(True):
        then = HEAD.logits(first.params, X_0), HEAD.logits(second.params, X_1)
        later = np.asarray(HEAD.logits(second.params, X_0))
    kept = np.asarray(third.kept.Y)
    np.testing.assert_allclose(kept[:24, 4:], np.concatenate(then), rtol=1e-12)
    np.testing.assert_array_equal(kept[:24, :4], np.concatenate([Y_0, Y_1]))
    assert not np.any(kept[24:])
    # Control: these are not the answers after the batch was learned.
    assert np.abs(kept[:12, 4:] - later).max() > 1e-3


def test_a_step_of_dark_replay_descends_the_three_losses():
    _, state, new = after(derpp(**ALL, answers=0.7, labels=0.3), *BATCHES[:2])
    z = np.asarray(state.kept.Y)[:, 4:]

    def distance(params):
        return jnp.mean(jnp.sum((HEAD.logits(params, jnp.asarray(X_0)) - z) ** 2, axis=1)) / 4

    with jax.enable_x64(True):
        pull = jax.grad(distance)(state.params)
    own, kept = gradient(state.params, X_1, Y_1), gradient(state.params, X_0, Y_0)
    want = flat(state.params) - 0.1 * (flat(own) + 0.7 * flat(pull) + 0.3 * flat(kept))
    np.testing.assert_allclose(flat(new.params), want, rtol=1e-9, atol=1e-12)


def test_averaged_memory_turns_the_gradient_only_where_it_goes_against():
    first, state, new = after(agem(**ALL), (X_0, Y_0), (X_0, AGAINST))
    g, reference = (flat(gradient(state.params, X_0, Y)) for Y in (AGAINST, Y_0))
    # Control: it does go against.
    assert g @ reference < -1e-3
    turned_by_hand = g - (g @ reference) / (reference @ reference) * reference
    taken = (flat(state.params) - flat(new.params)) / 0.1
    np.testing.assert_allclose(taken, turned_by_hand, rtol=0, atol=1e-9)
    assert taken @ reference >= -1e-9
    # The same rows once more go with it: fine-tuning, bit for bit.
    again = after(agem(**ALL), (X_0, Y_0), (X_0, Y_0))[-1].params
    alone = after(finetune(**SMALL), (X_0, Y_0), (X_0, Y_0), params=first.params)[-1].params
    assert equal(again, alone)
    assert not equal(new.params, alone)


def test_a_turned_gradient_never_goes_against_the_reference():
    rng = np.random.default_rng(0)
    with jax.enable_x64(True):
        for g, reference in rng.normal(size=(40, 2, 5)):
            got = np.asarray(turned({"a": jnp.asarray(g)}, {"a": jnp.asarray(reference)})["a"])
            assert got @ reference >= -1e-12
            assert np.array_equal(got, g) == (g @ reference >= 0)
        g = {"a": jnp.asarray(rng.normal(size=5))}
        assert equal(turned(g, jax.tree.map(jnp.zeros_like, g)), g)


@pytest.mark.parametrize("make", [agem, derpp])
def test_each_row_is_in_memory_with_the_same_probability(make):
    size, number, trials = 5, 20, 1500
    learner = make(hidden=(), memory=size, drawn=1)
    X, Y = jnp.arange(1.0, number + 1)[:, None] / number, jnp.ones((number, 2)) / 2

    def kept(key):
        state = learner.init(key, 1, 2)
        for part in (slice(0, 10), slice(10, 20)):
            state, _ = learner.step(state, X[part], Y[part])
        return state.kept.X

    found = jax.jit(jax.vmap(kept))(jax.random.split(KEY, trials))
    places = np.rint(np.asarray(found).ravel() * number).astype(int) - 1
    counts = np.bincount(places, minlength=number)
    assert counts.sum() == size * trials
    assert stats.chisquare(counts).pvalue > 1e-3
    # Control: a memory of the last batch alone is far from even.
    assert stats.chisquare([0] * 10 + [size * trials // 10] * 10).pvalue < 1e-9


@pytest.mark.parametrize("make", [agem, derpp])
def test_memory_is_of_rows_of_the_stream(make):
    stream = ragged_stream()
    state = run_stream(make(**SMALL, memory=12, drawn=4), stream, key=KEY).state
    used = stream.weight > 0
    rows = {tuple(row) for row in stream.X[used].astype(float).tolist()}
    assert int(state.kept.passed) == used.sum()
    assert {tuple(row) for row in np.asarray(state.kept.X).tolist()} <= rows


def test_each_update_is_a_step():
    ends = [after(agem(**SMALL, memory=12, drawn=4, updates=n), (X_0, Y_0))[-1] for n in (1, 3)]
    first = after(agem(**ALL))[0].params
    thrice = after(finetune(**SMALL, updates=3), (X_0, Y_0), params=first)[-1].params
    assert equal(ends[1].params, thrice)
    assert not equal(ends[0].params, thrice)


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (er, {"drawn": 201}, "drawn: expected at most memory=200, got 201"),
        (agem, {"memory": 0}, "memory: "),
        (agem, {"memory": 3, "drawn": 4}, "drawn: expected at most memory=3, got 4"),
        (agem, {"learning_rate": 0.0}, "learning_rate: "),
        (derpp, {"answers": -1.0}, "answers: "),
        (derpp, {"labels": -1.0}, "labels: "),
        (derpp, {"updates": 0}, "updates: "),
    ],
)
def test_options_out_of_range(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
