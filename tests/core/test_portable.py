"""What processes hand each other keeps its dtypes, and learners are the same there."""

import copy
import multiprocessing
import pickle
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from tests.compilations import counted_compilations
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)


def again(value):
    return pickle.loads(pickle.dumps(value))


def make(k=1.0, **options):
    return rvfl_jax.edrvfl(**{"num_layers": 2, "num_nodes": 8, "ridge": 0.5, "k": k} | options)


def assert_same_tree(one, other):
    assert jax.tree.structure(one) == jax.tree.structure(other)
    for mine, theirs in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert type(mine) is type(theirs)
        assert mine.dtype == theirs.dtype
        if jnp.issubdtype(mine.dtype, jax.dtypes.prng_key):
            mine, theirs = jax.random.key_data(mine), jax.random.key_data(theirs)
        np.testing.assert_array_equal(np.asarray(mine), np.asarray(theirs))


@pytest.mark.parametrize("kept", [again, copy.deepcopy, copy.copy])
def test_a_run_in_double_precision_stays_so(stream, kept):
    learner = make(rvfl_jax.adaptive_k(estimator="random_diagonal", sigma=0.1))
    run = rvfl_jax.run_stream(learner, stream, key=KEY, test=blobs(40))
    assert run.state.theta.dtype == np.float64
    assert jnp.ones(1).dtype == np.float32
    back = kept(run)
    assert type(back) is rvfl_jax.Run
    assert_same_tree(run, back)
    assert_same_tree(run.state, kept(run.state))
    assert back.history.provenance == run.history.provenance
    assert repr(back) == repr(run)
    # And is gone on with as if nothing had been.
    went_on = [rvfl_jax.run_stream(learner, stream, key=KEY, state=r.state) for r in (run, back)]
    np.testing.assert_array_equal(went_on[0].state.theta, went_on[1].state.theta)


def test_steps_and_states_of_every_kind(stream):
    Y = np.eye(4)[stream.y[0]]
    with jax.enable_x64(True):
        for learner in (
            make(solver="square_root"),
            rvfl_jax.fine_tuned_edrvfl(num_layers=2, num_nodes=8, ridge=0.5),
        ):
            state = learner.init(KEY, 6, 4)
            stepped = learner.step(state, stream.X[0], Y, stream.X[1])
    for value in (state, *stepped):
        assert_same_tree(value, again(value))
    assert again(stepped[1]).guess_scores.dtype == np.float64
    for name, value in stream._asdict().items():
        np.testing.assert_array_equal(getattr(again(stream), name), value)
    assert_same_tree(make().init(KEY, 6, 4), again(make().init(KEY, 6, 4)))


class Scaled:
    """An activation with a state, so that learners do not share programs."""

    def __call__(self, z):
        return jnp.tanh(2 * z)


LEARNERS = {
    "numbers": lambda: make([0.5, 2.0], ridge=[0.1, 1.0], weight_scale=0.7),
    "ridge": lambda: make(0.0),
    "adaptive": lambda: make(rvfl_jax.adaptive_k([1.0, 2.0], reuse_k=True)),
    "function of jax": lambda: make(activation=jnp.tanh),
    "jitted of jax": lambda: make(activation=jax.nn.swish),
    "custom_jvp of jax": lambda: make(activation=jax.nn.relu),
    "fine tuned": lambda: rvfl_jax.fine_tuned_edrvfl(num_layers=2, num_nodes=8, ridge=0.5),
    "replacing": lambda: rvfl_jax.non_incremental_edrvfl(num_layers=1, num_nodes=8, ridge=2.0),
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_a_learner_is_equal_in_every_process(kind):
    learner = LEARNERS[kind]()
    back = again(learner)
    assert back == learner
    assert hash(back) == hash(learner)
    assert back.description == learner.description
    assert jax.tree.structure(back) == jax.tree.structure(learner)
    assert copy.deepcopy(learner) == learner
    assert repr(back) == repr(learner)


def test_and_shares_its_programs(stream):
    learner = make()
    first = rvfl_jax.run_stream(learner, stream, key=KEY)
    with counted_compilations() as made:
        second = rvfl_jax.run_stream(again(learner), stream, key=KEY)
    assert not made
    np.testing.assert_array_equal(first.state.theta, second.state.theta)


def test_an_activation_of_your_own_goes_along(stream):
    learner = again(make(activation=Scaled()))
    assert learner.recipe is None
    state = learner.init(KEY, 6, 4)
    np.testing.assert_array_equal(
        learner.predict(state, stream.X[0]), make(activation=Scaled()).predict(state, stream.X[0])
    )


def mean_of(scores):
    return scores.mean(axis=0)


def test_learners_by_hand_go_where_their_functions_are_found():
    learner = make()
    parts = (init_by_hand, step_by_hand, scores_by_hand)
    back = again(rvfl_jax.make_learner(*parts, combine=mean_of, description="mine"))
    assert back.description == "mine"
    state = back.init(KEY, 3, 2)
    np.testing.assert_array_equal(back.predict(state, np.ones((4, 3))), np.full((4, 2), 3.0))
    with pytest.raises(pickle.PicklingError, match=r"learner: .*got .*<lambda> for 0.activation"):
        pickle.dumps(make(activation=lambda z: z))
    with pytest.raises(pickle.PicklingError, match=r"learner: .*put together by hand"):
        pickle.dumps(replace(learner, consolidate=mean_of))


def test_what_never_changes_is_its_own_copy():
    by_hand = replace(make(), consolidate=mean_of)
    for learner in (make(), by_hand, make(activation=lambda z: z)):
        assert copy.copy(learner) is copy.deepcopy(learner) is learner
        assert copy.deepcopy({"a": learner})["a"] is learner
    state = make().init(KEY, 6, 4)
    assert copy.copy(state).theta is state.theta


def init_by_hand(key, num_features, num_classes):
    return rvfl_jax.learners.baselines.ReadoutState(None, jnp.ones((1, num_features, num_classes)))


def step_by_hand(state, X_t, Y_t, X_next=None, *, weight_t=None, weight_next=None):
    return state, None


def scores_by_hand(state, X):
    return X @ state.theta


def test_sweeps_with_functions_among_their_values(stream):
    def maker(k, activation):
        return make(k, activation=activation)

    grid = {"k": [1.0], "activation": [jnp.tanh, "relu"]}
    result = rvfl_jax.sweep(maker, stream, grid, key=KEY)
    back = again(result)
    assert back.coords["activation"].tolist() == [jnp.tanh, "relu"]
    assert back.best() == result.best()
    np.testing.assert_array_equal(back.loss, result.loss)
    assert repr(back) == repr(result)


def run_elsewhere(learner, stream, key):
    return learner, rvfl_jax.run_stream(learner, stream, key=key)


@pytest.mark.slow
def test_a_spawned_process_takes_a_learner_and_gives_a_run():
    learner, stream = make(), ragged_stream()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        back, run = pool.apply(run_elsewhere, (learner, stream, KEY))
    assert back == learner
    want = rvfl_jax.run_stream(learner, stream, key=KEY)
    assert_same_tree(run.state, want.state)
