"""One battery for every method of the table: whatever drives one, drives it to the same answers."""

import inspect
import pickle
import re
from functools import partial
from importlib import import_module

import chex
import jax
import numpy as np
import pytest
from absl.testing import parameterized

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.cli.compare import Config, make_learners
from rvfl_jax.encoders import LeakError, leak_guard
from rvfl_jax.learners import REGISTERED, registered
from rvfl_jax.learners.methods import METHODS, module_of
from tests import tolerances, trees
from tests.compilations import counted_compilations
from tests.learners.test_means import scores_of
from tests.runs.test_resume import Interrupted, stop_after
from tests.streams import blobs, ragged_stream, reweighted
from tests.streams.test_feed import options_of, pairs_of
from tests.trees import plain, same

KEY = jax.random.key(0)
NODES = 16
# Options that make each small, a number of it, and two values of that.
CASES = {
    "finetune": ({"hidden": (6,)}, "learning_rate", (0.05, 0.2)),
    "joint": ({"hidden": (6,), "passes": 2, "batch_rows": 16}, "learning_rate", (0.05, 0.2)),
    "ncm": ({}, None, ()),
    "simplecil": ({}, "scale", (0.5, 4.0)),
    "slda": ({}, "shrinkage", (1e-3, 0.1)),
    "lda": ({}, "shrinkage", (0.05, 0.3)),
    "ranpac": ({"num_nodes": NODES}, "ridge", (0.1, 10.0)),
    "randumb": ({"num_nodes": NODES}, "gamma", (0.1, 0.3)),
    "klda": ({"num_nodes": NODES}, "gamma", (0.1, 0.3)),
    "acil": ({"num_nodes": NODES}, "ridge", (0.1, 10.0)),
    "gacl": ({"num_nodes": NODES}, "ridge", (0.1, 10.0)),
    "foal": ({"num_nodes": NODES}, "weight_scale", (0.5, 2.0)),
    "dsal": ({"num_nodes": NODES}, "compensation", (0.5, 1.5)),
    "replay": ({"hidden": (6,), "memory": 12, "drawn": 4}, "learning_rate", (0.05, 0.2)),
    "er": ({"hidden": (6,), "memory": 12, "drawn": 4}, "learning_rate", (0.05, 0.2)),
    "derpp": ({"hidden": (6,), "memory": 12, "drawn": 4}, "labels", (0.2, 0.8)),
    "agem": ({"hidden": (6,), "memory": 12, "drawn": 4}, "learning_rate", (0.05, 0.2)),
    "gem": ({"hidden": (6,), "memory": 4, "tasks": 2}, "learning_rate", (0.05, 0.2)),
    "gss": (
        {"hidden": (6,), "memory": 12, "drawn": 4, "compared": 3},
        "learning_rate",
        (0.05, 0.2),
    ),
    "ewc": ({"hidden": (6,), "window": 12}, "learning_rate", (0.05, 0.2)),
    "online_ewc": ({"hidden": (6,), "window": 12}, "learning_rate", (0.05, 0.2)),
    "si": ({"hidden": (6,)}, "learning_rate", (0.05, 0.2)),
    "mas": ({"hidden": (6,), "window": 12}, "learning_rate", (0.05, 0.2)),
    # With thresholds that let plateaus begin.
    "task_free_mas": (
        {"hidden": (6,), "hard": 12, "updates": 2, "mean_below": 9.0, "variance_below": 9.0},
        "learning_rate",
        (0.05, 0.2),
    ),
    "lwf": ({"hidden": (6,)}, "learning_rate", (0.05, 0.2)),
    "owm": ({"hidden": (6,), "task_batches": 4}, "alpha", (0.5, 2.0)),
    "crnet1": ({"num_nodes": NODES, "weight_scale": 0.3}, "penalty", (1.0, 10.0)),
    # Of few nodes the usual coefficient soon masks all.
    "hat": (
        {"hidden": (6,), "tasks": 2, "task_batches": 4, "coefficient": 0.01},
        "learning_rate",
        (0.05, 0.2),
    ),
}
# One of each kind; the others with the slow tests.
QUICK = ("ncm", "lda", "ranpac", "derpp", "ewc")
EVERY = pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CASES],
)
# Row weights are counts; of RanPAC also a place in the batch, of replay also a chance to be kept,
# and of others a place among the last or the hardest rows.
DRAWING = ("replay", "er", "derpp", "agem", "gss")
PLACED = ("gem", "ewc", "online_ewc", "mas", "task_free_mas")
COUNTED = [name for name in CASES if name not in ("ranpac", *DRAWING, *PLACED)]


def maker(name):
    return getattr(import_module(module_of(name)), name)


def make(name, **changed):
    return maker(name)(**CASES[name][0] | changed)


assert_close = partial(trees.assert_close, tolerance=tolerances.CLOSED_FORM)


def test_every_method_of_the_table_is_here():
    assert list(CASES) == list(METHODS)
    assert list(REGISTERED) == [name for name, method in METHODS.items() if method.style]
    learners = make_learners(Config(styles=tuple(REGISTERED)))
    assert all(learners[name] == registered(name)() for name in REGISTERED)


@EVERY
def test_runs_batches_that_are_read_and_a_loop_of_steps_end_alike(name):
    learner, stream = make(name), ragged_stream()
    whole = run_stream(learner, stream, key=KEY)
    assert whole.history.healthy.all()
    read = run_stream(learner, pairs_of(stream), **options_of(stream))
    same(read.state, whole.state)
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
            state, info = learner.step(state, X, one_hot(y, 4), weight_t=weight)
            assert info.healthy
    assert_close(state, whole.state)


class TestSteps(chex.TestCase):
    """Methods of several kinds, whose steps a caller may compile once more."""

    @chex.variants(with_jit=True, without_jit=True)
    @parameterized.parameters("ncm", "ranpac", "ewc")
    def test_steps_are_those_of_a_run(self, name):
        learner, stream = make(name), ragged_stream(24, num_batches=2)
        whole = run_stream(learner, stream, key=KEY)
        step = self.variant(learner.step)
        with jax.enable_x64(True):
            state = learner.init(KEY, 6, 4)
            for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
                state, info = step(state, X, one_hot(y, 4), weight_t=weight)
                assert info.healthy
        chex.assert_tree_all_finite(plain(state))
        assert_close(state, whole.state)


@pytest.mark.slow
@EVERY
def test_chunks_resumed_runs_and_single_precision(name, tmp_path):
    learner, stream, test = make(name), ragged_stream(), blobs(60)
    whole = run_stream(learner, stream, key=KEY, test=test)
    # Chunks of one length, which share a program.
    chunks = {"key": KEY, "test": test, "chunk_size": 3}
    same(run_stream(learner, stream, **chunks).state, whole.state)
    kept = chunks | {"checkpoint": tmp_path / "run.npz"}
    with pytest.raises(Interrupted):
        run_stream(learner, stream, progress=stop_after(6), **kept)
    same(run_stream(learner, stream, resume=True, **kept).state, whole.state)
    single = run_stream(learner, stream, key=KEY, test=test, precision="single")
    ends = [run.history.accuracy["class_incremental"][-1] for run in (whole, single)]
    assert abs(ends[0] - ends[1]) < 0.1


@EVERY
def test_padding_may_hold_anything_and_weights_count(name):
    """Weights of whole numbers are repeated rows, where that is what a method counts."""
    learner = make(name)
    X, y = blobs(30)
    weight = np.random.default_rng(0).integers(0, 3, 30).astype(float)
    padded = np.where(weight[:, None] > 0, X, np.nan)
    Y = np.asarray(one_hot(y, 4))
    used = weight > 0
    with jax.enable_x64(True):
        first = learner.init(KEY, 6, 4)
        with_padding, info = learner.step(first, padded, Y, weight_t=weight)
        without, _ = learner.step(first, X[used], Y[used], weight_t=weight[used])
        times = np.repeat(np.arange(30), weight.astype(int))
        repeated, _ = learner.step(first, X[times], Y[times])
        unweighted, _ = learner.step(first, X[used], Y[used])
        nothing, _ = learner.step(first, np.full((3, 6), np.nan), Y[:3], weight_t=np.zeros(3))
        guess = np.asarray(learner.scores(first, X))
    assert info.healthy
    np.testing.assert_allclose(np.asarray(info.guess_scores)[used], guess[used], rtol=1e-9)
    if name not in DRAWING:
        assert_close(with_padding, without)
    if name in COUNTED:
        assert_close(with_padding, repeated)
        # Control: rows that count once are another state.
        with pytest.raises(AssertionError):
            assert_close(with_padding, unweighted)
    assert_close(nothing, first, tolerance=1e-15)


@EVERY
def test_a_batch_without_rows_and_other_shapes(name):
    learner = make(name)
    state = run_stream(learner, ragged_stream(), key=KEY).state
    with jax.enable_x64(True):
        after, info = learner.step(state, np.zeros((0, 6)), np.zeros((0, 4)))
    assert info.healthy
    assert info.guess_scores.shape == (0, 4)
    same(after, state)
    for X, Y, weight, message in (
        ((3, 5), (3, 4), (3,), "X_t: expected shape"),
        ((3, 6), (3, 5), (3,), "Y_t: expected shape"),
        ((3, 6), (3, 4), (2,), "weight_t: expected shape"),
    ):
        with pytest.raises(ValueError, match=message):
            learner.step(state, np.zeros(X), np.zeros(Y), weight_t=np.zeros(weight))
    with pytest.raises(ValueError, match="X: expected shape"):
        learner.predict(state, np.zeros((3, 7)))


@pytest.mark.slow
@EVERY
def test_an_exported_predictor_answers_alike(name, tmp_path):
    learner, test = make(name), blobs(20)[0]
    state = run_stream(learner, ragged_stream(), key=KEY).state
    rvfl_jax.export_learner(learner, state, tmp_path / "predictor.npz")
    predictor = rvfl_jax.Predictor(tmp_path / "predictor.npz")
    np.testing.assert_allclose(
        predictor.predict_proba(test), learner.predict(state, test), atol=1e-6
    )


@EVERY
def test_any_batches_end_in_one_fit_where_a_method_is_exact(name):
    learner, streams = make(name), [ragged_stream(num_batches=n) for n in (2, 9)]
    states = [run_stream(learner, stream, key=KEY).state for stream in streams]
    used = streams[1].weight > 0
    order = np.random.default_rng(0).permutation(used.sum())
    X, y = streams[1].X[used][order], streams[1].y[used][order]
    with jax.enable_x64(True):
        state = learner.init(KEY, 6, 4)
        for part in np.array_split(np.arange(len(X)), 5):
            state, _ = learner.step(state, X[part], one_hot(y[part], 4))
        rows = X.astype(float), one_hot(y, 4), np.ones(len(X))
        if METHODS[name].exact:
            states.append(learner.fit_offline(learner.init(KEY, 6, 4), *rows))
    for other in states:
        if METHODS[name].exact:
            assert_close(other, state)
        elif name != "ranpac":  # whose lambda alone depends on the batches, and may be the same
            with pytest.raises(AssertionError):
                assert_close(other, state)


@EVERY
def test_answers_do_not_depend_on_the_other_rows(name):
    learner = make(name)
    state = run_stream(learner, ragged_stream(), key=KEY).state
    test = blobs(20, seed=3)[0]
    leak_guard(lambda X: learner.predict(state, X), test)
    whole = scores_of(learner, state, test)
    one_by_one = np.concatenate([scores_of(learner, state, row[None]) for row in test])
    np.testing.assert_allclose(one_by_one, whole, rtol=1e-9, atol=1e-12)
    order = np.random.default_rng(0).permutation(len(test))
    np.testing.assert_allclose(
        scores_of(learner, state, test[order]), whole[order], rtol=1e-9, atol=1e-12
    )
    # Control: rows centred together are told from rows by themselves.
    with pytest.raises(LeakError):
        leak_guard(lambda X: learner.predict(state, X - X.mean(axis=0)), test)


@EVERY
def test_a_bad_batch_leaves_the_state_as_it_was(name):
    learner = make(name)
    X, y = blobs(30)
    with jax.enable_x64(True):
        state, _ = learner.step(learner.init(KEY, 6, 4), X, one_hot(y, 4))
        bad = X.copy()
        bad[3, 1] = np.inf
        after, info = learner.step(state, bad, one_hot(y, 4))
    assert not info.healthy
    same(after, state)


@EVERY
def test_equal_learners_share_programs_and_travel(name):
    _, number, values = CASES[name]
    several = [make(name, **({number: value} if number else {})) for value in (*values, 1)[:2]]
    run_stream(several[0], ragged_stream(), key=KEY)
    with counted_compilations() as made:
        run_stream(several[-1], ragged_stream(), key=KEY)
    assert not made
    assert pickle.loads(pickle.dumps(several[0])) == several[0]
    assert name in several[0].description
    if number:
        assert several[0] != several[-1]


@EVERY
def test_the_table_tells_the_size_of_the_state(name):
    stream = ragged_stream()
    learner, s, m, N = make(name), stream.X.shape[-1], 4, NODES
    state = learner.init(KEY, s, m)
    numbers = sum(leaf.size for leaf in jax.tree.leaves(plain(state)))
    P = (s + 1) * 6 + (6 + 1) * m
    # Two factors stand side by side.
    told = re.sub(r"(?<=[\w)]) (?=[\w(])", "*", METHODS[name].memory).replace("^", "**")
    told = eval(told, {"s": s, "m": m, "N": N, "P": P, "h": 6, "r": 12, "K": 2})
    assert 0 <= numbers - told <= N + m + 3


@pytest.mark.slow
@EVERY
def test_swept_and_differentiated(name):
    _, number, values = CASES[name]
    if number is None:
        assert not inspect.signature(maker(name)).parameters
        return
    stream = reweighted(ragged_stream())

    def made(**numbers):
        return make(name, **numbers)

    result = rvfl_jax.sweep(made, stream, {number: np.array(values)}, key=KEY)
    with jax.enable_x64(True):

        def loss(value):
            return rvfl_jax.prequential_loss(made(**{number: value}), stream, key=KEY)

        alone = [float(loss(value)) for value in values]
        at = sum(values) / 2
        slope = float(jax.grad(loss)(at))
        numerical = float(loss(at + 1e-5) - loss(at - 1e-5)) / 2e-5
    np.testing.assert_allclose(result.mean(result.prequential_loss), alone, rtol=1e-7)
    assert alone[0] != alone[1]
    assert slope == pytest.approx(numerical, rel=1e-3, abs=1e-7)


@pytest.mark.slow
def test_all_are_compared_in_one_call():
    learners = {name: make(name) for name in CASES}
    result = rvfl_jax.compare(learners, ragged_stream(), seeds=1, test=blobs(60))
    assert list(result.styles) == list(CASES)
    assert all(np.isfinite(style.metrics["ACC"]).all() for style in result.styles.values())
