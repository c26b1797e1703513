"""A learner is init, step and scores on any pytree; whatever drives one, drives all of them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from tests.compilations import counted_compilations
from tests.runs.test_resume import Interrupted, stop_after
from tests.streams import blobs, ragged_stream
from tests.streams.test_feed import options_of, pairs_of
from tests.trees import same

KEY = jax.random.key(0)


def init(key, num_features, num_classes):
    """Means of classes in a dict within a dict, a count, and a key, for good measure."""
    means = {"sum": jnp.zeros((num_classes, num_features)), "rows": jnp.zeros(num_classes)}
    return {"means": means, "ends": jnp.zeros((), jnp.int32), "key": key}


def scores(state, X):
    means = state["means"]
    centres = means["sum"] / jnp.maximum(means["rows"], 1)[:, None]
    near = -jnp.sum((jnp.asarray(X)[:, None] - centres) ** 2, axis=-1)
    return jnp.where(means["rows"] > 0, near, -1e3)


def step(state, X_t, Y_t, X_next=None, *, weight_t=None, weight_next=None):
    guess = scores(state, X_t)
    weight = jnp.ones(len(Y_t)) if weight_t is None else weight_t
    X = jnp.where(weight[:, None] > 0, X_t, 0)
    Y = Y_t * weight[:, None]
    means = {
        "sum": state["means"]["sum"] + Y.T @ X,
        "rows": state["means"]["rows"] + Y.sum(axis=0),
    }
    extras = {"met": jnp.sum(means["rows"] > 0), "condition": jnp.ones(())}
    healthy = jnp.all(jnp.isfinite(means["sum"]))
    return {**state, "means": means}, rvfl_jax.StepInfo(guess, healthy, extras)


def consolidate(state):
    return {**state, "ends": state["ends"] + 1}


def nearest(**parts):
    return rvfl_jax.make_learner(init, step, scores, **parts)


def counting():
    return nearest(consolidate=consolidate)


@pytest.fixture(scope="module")
def test():
    return blobs(60)


def test_a_state_of_any_shape_is_driven_in_every_way(tmp_path, stream, test):
    learner = nearest()
    whole = rvfl_jax.run_stream(learner, stream, key=KEY, test=test, confusion=True)
    history = whole.history
    assert whole.state["means"]["sum"].dtype == np.float64
    assert history.accuracy["class_incremental"][-1] > 0.8
    assert history.learner_accuracy.shape == history.healthy.shape == (9, 1)
    np.testing.assert_allclose(
        history.learner_accuracy[:, 0], history.accuracy["class_incremental"], rtol=1e-6
    )
    assert history.healthy.all()
    assert list(history.extras) == ["met"]
    assert history.extras["met"][-1, 0] == 4
    np.testing.assert_array_equal(history.condition, 1)
    assert np.isnan([history.k_t, history.k_next, history.sigma_share, history.residual]).all()
    chunked = rvfl_jax.run_stream(learner, stream, key=KEY, test=test, confusion=True, chunk_size=4)
    same(whole, chunked)
    read = rvfl_jax.run_stream(learner, pairs_of(stream), **options_of(stream))
    same(read.state, whole.state)
    path = tmp_path / "run.npz"
    kept = {"key": KEY, "test": test, "confusion": True, "checkpoint": path, "chunk_size": 2}
    with pytest.raises(Interrupted):
        rvfl_jax.run_stream(learner, stream, progress=stop_after(4), **kept)
    same(rvfl_jax.run_stream(learner, stream, resume=True, **kept), whole)
    mesh = jax.make_mesh((1,), ("devices",))
    same(rvfl_jax.run_stream(learner, stream, key=KEY, mesh=mesh).state, whole.state)
    with pytest.raises(ValueError, match='layout: expected "rows" for a learner'):
        rvfl_jax.run_stream(learner, stream, key=KEY, mesh=mesh, layout="eta_dagger")
    rvfl_jax.plots.accuracy_curve(whole)


def test_a_loop_over_steps_and_the_answers_are_those_of_the_run(stream, test):
    learner = nearest()
    run = rvfl_jax.run_stream(learner, stream, key=KEY)
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
            state, info = learner.step(state, X, rvfl_jax.one_hot(y, 4), weight_t=weight)
        assert learner.combine(info.guess_scores).shape == info.guess_scores.shape
    np.testing.assert_array_equal(state["means"]["sum"], run.state["means"]["sum"])
    answers = learner.predict(run.state, test[0])
    want = jax.nn.softmax(learner.scores(run.state, test[0]))
    np.testing.assert_allclose(answers, want, rtol=1e-4)
    again = rvfl_jax.run_stream(learner, stream, key=KEY, state=run.state)
    np.testing.assert_array_equal(
        again.state["means"]["rows"], 2 * np.asarray(run.state["means"]["rows"])
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: {**s, "ends": s["ends"] + 0.5}, "'ends'.: expected integers, got real numbers"),
        (lambda s: {**s, "means": None}, r"'sum'.: expected shape \(4, 6\), got none"),
        (lambda s: {**s, "key": jnp.zeros(())}, "'key'.: expected a PRNG key, got real numbers"),
        (lambda s: {**s, "more": jnp.zeros(3)}, r"'more'.: expected none, got shape \(3,\)"),
        (lambda s: {**s, "none": None}, "structure: expected "),
        (lambda s: tuple(s.values()), "expected dict, got tuple"),
    ],
)
def test_a_state_that_does_not_fit_is_told_with_all_that_differs(stream, change, message):
    state = change(init(KEY, 6, 4))
    for source, options in ((stream, {}), (pairs_of(stream), options_of(stream))):
        with pytest.raises(ValueError, match=message):
            rvfl_jax.run_stream(nearest(), source, **{"key": KEY, "state": state, **options})


def test_a_bare_array_is_a_state(stream):
    learner = rvfl_jax.make_learner(
        lambda key, s, m: jnp.zeros((s, m)),
        lambda state, X, Y, X_next=None, **_: (state, rvfl_jax.StepInfo(X @ state, True)),
        lambda state, X: X @ state,
    )
    run = rvfl_jax.run_stream(learner, stream, key=KEY)
    rvfl_jax.run_stream(learner, stream, key=KEY, state=run.state)
    with pytest.raises(ValueError, match=r"state: expected shape \(6, 4\), got \(5, 4\)"):
        rvfl_jax.run_stream(learner, stream, key=KEY, state=run.state[1:])


@pytest.mark.slow
def test_swept_and_differentiated(stream, test):
    def shrunk(share):
        def scores_of(state, X):
            return share * scores(state, X)

        def step_of(state, *batch, **rest):
            before = scores_of(state, batch[0])
            state, info = step(state, *batch, **rest)
            return state, info._replace(guess_scores=before)

        return rvfl_jax.make_learner(init, step_of, scores_of, consolidate=consolidate)

    def loss(share):
        return rvfl_jax.prequential_loss(
            shrunk(share), stream, key=KEY, boundaries="given", checkpoint=4
        )

    grid = {"share": [0.5, 1.0]}
    swept = rvfl_jax.sweep(shrunk, stream, grid, key=KEY, test=test, boundaries="given")
    run = rvfl_jax.run_stream(shrunk(0.5), stream, key=KEY, test=test, evaluate="task")
    accuracy = run.history.accuracy["class_incremental"]
    np.testing.assert_allclose(swept.accuracy["class_incremental"][0], accuracy)
    assert swept.provenance["boundaries"] == "given"
    with jax.enable_x64(True):
        losses = [float(loss(share)) for share in (0.5, 1.0)]
        slope = jax.jit(jax.grad(loss))(0.5)
        moved = (loss(0.5 + 1e-5) - loss(0.5 - 1e-5)) / 2e-5
    np.testing.assert_allclose(swept.prequential_loss, losses)
    np.testing.assert_allclose(slope, moved, rtol=1e-6)


def blurred():
    X, y = blobs(120)
    return rvfl_jax.class_incremental_stream(
        X, y, num_tasks=2, num_batches=8, seed=0, blur=0.3, order="none"
    )


@pytest.mark.parametrize("make_stream", [ragged_stream, blurred])
def test_tasks_are_consolidated_where_they_end_and_only_if_given(tmp_path, make_stream, test):
    stream, learner = make_stream(), counting()
    ends = int((stream.task_ends >= 0).sum())
    assert ends
    run = {"key": KEY, "test": test, "evaluate": "task"}
    silent = rvfl_jax.run_stream(learner, stream, **run)
    told = rvfl_jax.run_stream(learner, stream, boundaries="given", **run)
    assert silent.state["ends"] == 0
    assert told.state["ends"] == ends
    assert "boundaries" not in silent.history.provenance
    assert told.history.provenance["boundaries"] == "given"
    for size in (1, 3):
        parts = rvfl_jax.run_stream(learner, stream, boundaries="given", chunk_size=size, **run)
        same(parts, told)
    path = tmp_path / "run.npz"
    kept = {**run, "checkpoint": path, "chunk_size": 2}
    with pytest.raises(Interrupted):
        rvfl_jax.run_stream(learner, stream, boundaries="given", progress=stop_after(4), **kept)
    with pytest.raises(ValueError, match="differs in 1: boundaries: expected None, got 'given'"):
        rvfl_jax.run_stream(learner, stream, resume=True, **kept)
    same(rvfl_jax.run_stream(learner, stream, boundaries="given", resume=True, **kept), told)


def test_a_task_ends_after_its_last_batch_and_before_the_look(stream, test):
    """What consolidating forgets is missing at the look, and what comes next is learned on it."""

    def forget(state):
        return {**state, "means": jax.tree.map(jnp.zeros_like, state["means"])}

    run = rvfl_jax.run_stream(
        nearest(consolidate=forget), stream, key=KEY, test=test, boundaries="given"
    )
    met = run.history.extras["met"][:, 0]
    at = run.history.accuracy["class_incremental"]
    first, last = stream.task_ends
    np.testing.assert_array_equal(at[[first, last]], at[first])
    assert met[first] == 2
    assert met[first + 1] <= 2
    assert not np.any(run.state["means"]["rows"])


@pytest.mark.slow
def test_a_learner_with_a_stream_form_of_its_own_consolidates_too(stream, learner):
    def halve(state):
        return state._replace(theta=state.theta / 2, theta_ridge=state.theta_ridge / 2)

    changed = replace(learner, consolidate=halve)
    first, _ = stream.task_ends
    rows = stream.X[first + 1][stream.weight[first + 1] > 0]
    parts = [
        stream._replace(
            **{name: getattr(stream, name)[part] for name in ("X", "y", "weight", "task")}
        )
        for part in (slice(first + 1), slice(first + 1, None))
    ]
    state = rvfl_jax.run_stream(learner, parts[0], key=KEY, lookahead=rows).state
    with jax.enable_x64(True):
        state = halve(state)
    state = rvfl_jax.run_stream(learner, parts[1], key=KEY, state=state).state
    got = rvfl_jax.run_stream(changed, stream, key=KEY, boundaries="given").state
    np.testing.assert_allclose(got.theta, np.asarray(state.theta) / 2, rtol=1e-9, atol=1e-12)


def test_boundaries_cost_a_learner_that_needs_none_nothing(stream, learner):
    first = rvfl_jax.run_stream(learner, stream, key=KEY)
    with counted_compilations() as made:
        told = rvfl_jax.run_stream(learner, stream, key=KEY, boundaries="given")
    assert not made
    same(told.state, first.state)


def test_boundaries_are_told_by_streams_alone(stream):
    with pytest.raises(ValueError, match='boundaries: expected "none" for an iterable'):
        rvfl_jax.run_stream(counting(), pairs_of(stream), boundaries="given", **options_of(stream))
    for call in (
        lambda: rvfl_jax.run_stream(counting(), stream, key=KEY, boundaries="some"),
        lambda: rvfl_jax.prequential_loss(counting(), stream, key=KEY, boundaries="some"),
        lambda: rvfl_jax.sweep(counting, stream, {"seed": [0]}, key=KEY, boundaries="some"),
    ):
        with pytest.raises(ValueError, match="boundaries: expected one of none, given"):
            call()


def test_a_state_of_another_kind_after_consolidating_is_an_error(stream):
    learner = nearest(consolidate=lambda state: {**state, "ends": jnp.zeros(2, jnp.int32)})
    with pytest.raises(ValueError, match=r"consolidate: .*ends'.: expected shape \(\), got \(2,\)"):
        rvfl_jax.run_stream(learner, stream, key=KEY, boundaries="given")


def test_one_in_float64_makes_a_call_of_float64(stream):
    learner = nearest()
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
    after, info = learner.step(state, stream.X[0], rvfl_jax.one_hot(stream.y[0], 4))
    assert after["means"]["sum"].dtype == np.float64
    assert info.guess_scores.dtype == learner.scores(state, stream.X[0]).dtype == np.float32
    assert learner.consolidate(state) is state
    assert counting().consolidate(state)["ends"] == 1


@pytest.mark.parametrize(
    ("info", "message"),
    [
        (lambda s: None, r"step: expected it to give \(state, StepInfo\(...\)\), got NoneType"),
        (lambda s: rvfl_jax.StepInfo(s.T, True), r"guess_scores: .*\(L, b, m\), or \(b, m\), got"),
        (
            lambda s: rvfl_jax.StepInfo(s, True, {"a": s}),
            r"extras\['a'\]: expected a scalar or",
        ),
        (lambda s: rvfl_jax.StepInfo(s, s > 0), r"healthy: expected a scalar or shape \(1,\), one"),
    ],
)
def test_what_a_step_may_not_tell_is_named(stream, info, message):
    def step_of(state, *batch, **rest):
        return step(state, *batch, **rest)[0], info(scores(state, batch[0]))

    learner = rvfl_jax.make_learner(init, step_of, scores)
    with pytest.raises(ValueError, match=message):
        rvfl_jax.run_stream(learner, stream, key=KEY)


def test_scores_of_another_shape_are_named(stream, test):
    learner = rvfl_jax.make_learner(init, step, lambda state, X: scores(state, X).T)
    with pytest.raises(ValueError, match=r"^scores: .*\(L, n, m\), or \(n, m\), got \(1, 4, 60\)"):
        rvfl_jax.run_stream(learner, stream, key=KEY, test=test)
