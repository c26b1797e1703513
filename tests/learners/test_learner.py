"""A learner is a pytree of its numbers, and learners made alike share their programs."""

import gc
import weakref
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from tests import tolerances
from tests.compilations import counted_compilations
from tests.references import relative_error
from tests.streams import blobs

KEY = jax.random.key(0)


def make(**changes):
    options = {"num_layers": 2, "num_nodes": 8, "ridge": 0.5, "k": 1.0}
    return rvfl_jax.edrvfl(**options | changes)


OTHER_NUMBERS = [
    ({"k": 1.0}, {"k": 0.25, "ridge": 3.0, "weight_scale": 0.7}),
    ({"k": rvfl_jax.adaptive_k(sigma=0.1)}, {"k": rvfl_jax.adaptive_k(2.0, sigma=1.0)}),
    ({"k": 0.0}, {"k": 0, "ridge": 3}),
]


@pytest.mark.parametrize(("one", "other"), OTHER_NUMBERS, ids=["forward", "bayes", "ridge"])
def test_other_numbers_are_no_other_program(stream, one, other):
    test = blobs(40)

    def use(learner):
        run = rvfl_jax.run_stream(learner, stream, key=KEY, test=test)
        Y = rvfl_jax.one_hot(stream.y[0], 4)
        learner.step(run.state, stream.X[0], Y, stream.X[1])
        return learner.predict(run.state, test[0]), learner.scores(run.state, test[0])

    first = use(make(**one))
    with counted_compilations() as made:
        again, second = use(make(**one)), use(make(**other))
    assert not made
    np.testing.assert_array_equal(first[0], again[0])
    assert not np.allclose(first[1], second[1], rtol=1e-3), "and yet the numbers count"


def test_learners_of_equal_value_are_equal():
    adaptive = rvfl_jax.adaptive_k([1.0, 2.0])
    for change in ({}, {"k": adaptive}, {"activation": jnp.tanh}, {"ridge": [0.1, 0.2]}):
        assert make(**change) == make(**change)
        assert hash(make(**change)) == hash(make(**change))
    assert make(k=1) == make(k=1.0) == make(k=np.float32(1))
    others = [
        {"k": 2.0},
        {"k": 0.0},
        {"k": [1.0, 1.0]},
        {"k": adaptive},
        {"k": rvfl_jax.adaptive_k([1.0, 2.0], reuse_k=True)},
        {"activation": "tanh"},
        {"solver": "covariance"},
        {"num_nodes": 9},
        {"ensemble": "median"},
    ]
    assert len({make(**change) for change in [{}, *others]}) == 1 + len(others)
    assert make() != "learner"


def test_numbers_are_leaves_and_all_else_is_structure():
    learner = make(ridge=[0.5, 2.0], k=rvfl_jax.adaptive_k(1.5, 0.1))
    leaves, structure = jax.tree.flatten(learner)
    assert [np.shape(leaf) for leaf in leaves] == [(2,), (), (), ()]
    assert jax.tree.unflatten(structure, leaves) == learner
    assert jax.tree.unflatten(structure, leaves).description == learner.description
    doubled = jax.tree.map(lambda number: 2 * number, make())
    assert doubled == make(ridge=1.0, k=2.0, weight_scale=2.0)
    shapes = jax.eval_shape(lambda learner: learner, learner)
    assert jax.tree.structure(shapes) == structure


def test_a_stack_of_learners_is_mapped_as_a_loop_would(stream):
    learners = [make(ridge=ridge, k=k) for ridge, k in ((0.1, 0.5), (1.0, 1.0), (3.0, 2.0))]
    stack = jax.tree.map(lambda *numbers: jnp.stack(numbers), *learners)

    def loss(learner):
        return rvfl_jax.prequential_loss(learner, stream, key=KEY)

    with jax.enable_x64(True):
        together = jax.jit(jax.vmap(loss))(stack)
        alone = [jax.jit(loss)(learner) for learner in learners]
        slope = jax.jit(jax.grad(loss))(learners[1])
    assert relative_error(together, alone) <= tolerances.CLOSED_FORM
    numbers = jax.tree.leaves(slope)
    assert len(numbers) == 3
    assert np.isfinite(np.array(numbers)).all()
    assert np.array(numbers).all()


def test_learners_put_together_by_hand_are_themselves_alone(stream):
    learner = make()
    changed = replace(learner, consolidate=lambda state: state._replace(k=state.k + 1))
    assert changed.recipe is None
    assert changed == changed
    assert changed not in (learner, replace(learner, consolidate=changed.consolidate))
    assert jax.tree.leaves(changed) == []
    state = rvfl_jax.run_stream(changed, stream, key=KEY).state
    want = rvfl_jax.run_stream(learner, stream, key=KEY).state
    np.testing.assert_array_equal(state.theta, want.theta)
    with jax.enable_x64(True):
        k = jax.jit(lambda one, state: one.consolidate(state).k)(changed, state)
    np.testing.assert_array_equal(k, 1)


def test_an_activation_without_a_hash_is_no_error(stream):
    class Scaled:
        __hash__ = None

        def __call__(self, z):
            return jnp.tanh(2 * z)

    learner = make(activation=Scaled())
    assert learner.recipe is None
    assert learner != make(activation=Scaled())
    run = rvfl_jax.run_stream(learner, stream, key=KEY)
    same = rvfl_jax.run_stream(make(activation=lambda z: jnp.tanh(2 * z)), stream, key=KEY)
    np.testing.assert_array_equal(run.state.theta, same.state.theta)


class Gain:
    """An activation that may change."""

    def __init__(self, scale):
        self.scale = scale

    def __call__(self, z):
        return jnp.tanh(self.scale * z)


def test_what_may_change_is_compiled_anew(stream):
    gain = Gain(1.0)
    first = rvfl_jax.run_stream(make(activation=gain), stream, key=KEY).state
    gain.scale = 3.0
    second = rvfl_jax.run_stream(make(activation=gain), stream, key=KEY).state
    fresh = rvfl_jax.run_stream(make(activation=Gain(3.0)), stream, key=KEY).state
    assert not np.array_equal(first.theta, second.theta)
    np.testing.assert_array_equal(second.theta, fresh.theta)
    for option in (gain, lambda z: z):
        assert make(activation=option) != make(activation=option)
        assert make(activation=option).recipe is None


def test_k_known_to_be_0_is_no_number_to_change():
    learner = make(k=0.0)
    assert len(jax.tree.leaves(learner)) == 2
    assert jax.tree.map(lambda number: 2 * number, learner) == make(
        k=0.0, ridge=1.0, weight_scale=2.0
    )


def test_traced_numbers_make_equal_learners_only_of_themselves():
    seen = []

    @jax.jit
    def look(k):
        one, other = make(k=k), make(k=k + 1)
        seen.extend([one == one, one == other, one == make(), hash(one) == hash(other)])
        return k

    look(1.0)
    assert seen == [True, False, False, True]


def batches(rows=36):
    X, y = blobs(rows, features=5)
    return ((X[i : i + 12], y[i : i + 12]) for i in range(0, rows, 12))


@pytest.mark.parametrize("kind", [rvfl_jax.edrvfl, rvfl_jax.fine_tuned_edrvfl])
def test_thirty_streams_each_with_a_new_learner_make_no_new_programs(kind):
    def run(ridge):
        strength = {"k": 0.5 + ridge} if kind is rvfl_jax.edrvfl else {}
        learner = kind(num_layers=1, num_nodes=12, ridge=ridge, **strength)
        return rvfl_jax.run_stream(learner, batches(), key=KEY, num_classes=4)

    first = run(1.0)
    with counted_compilations() as made:
        last = [run(1.0 + i) for i in range(30)][-1]
    assert not made
    assert not np.allclose(first.state.theta, last.state.theta, rtol=1e-3)


def test_two_hundred_estimators_of_one_design_make_no_new_programs():
    X, y = blobs(24, features=5)

    def learned(i):
        model = rvfl_jax.EdRVFLClassifier(1, 12, ridge=1.0 + i, random_state=i)
        return model.partial_fit(X, y).predict_proba(X)

    learned(0)
    with counted_compilations() as made:
        for i in range(200):
            learned(i)
    assert not made


def own_activation():
    return make(num_layers=1, num_nodes=12, activation=lambda z: jnp.tanh(z))


def use_in_every_way(learner):
    X, y = blobs(24, features=5)
    state = rvfl_jax.run_stream(learner, batches(), key=KEY, num_classes=4).state
    learner.predict(state, X)
    learner.step(state, X, np.eye(4)[y])
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=2, num_batches=2, seed=0)
    rvfl_jax.run_stream(learner, stream, key=KEY, test=(X, y))
    rvfl_jax.run_stream(learner, stream, key=KEY, guesses=False)


@pytest.mark.slow
def test_programs_of_a_learner_with_a_function_of_its_own_are_freed_with_it():
    learner = own_activation()
    gone = weakref.ref(learner)
    use_in_every_way(learner)
    programs = [weakref.ref(program) for program in learner.own_programs.values()]
    assert len(programs) >= 7
    with counted_compilations() as made:
        use_in_every_way(learner)
    assert not made, "and are made once"
    del learner
    gc.collect()
    assert gone() is None
    assert not any(program() for program in programs)
