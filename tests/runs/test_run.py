"""The driver against a Python loop over `step`, and the history against plain counting."""

from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import metrics
from tests import paper, references, tolerances
from tests.compilations import counted_compilations
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
KINDS = {
    "ridge": 0.0,
    "forward": 1.0,
    "bayes": rvfl_jax.adaptive_k(sigma=0.1),
}


def make(k=1.0, **options):
    return rvfl_jax.edrvfl(**{"num_layers": 2, "num_nodes": 8, "ridge": 0.5, "k": k, **options})


def held_out(seed=5):
    return blobs(60, seed=0)[0] + np.random.default_rng(seed).normal(size=(60, 6)), blobs(60)[1]


def loop(learner, stream):
    """States after each batch, by a Python loop over `step`."""
    m, T = len(stream.classes), len(stream.X)
    state = learner.init(KEY, stream.X.shape[-1], m)
    for t in range(T):
        rest = (
            {"X_next": None}
            if t + 1 == T
            else {
                "X_next": stream.X[t + 1],
                "weight_next": stream.weight[t + 1],
            }
        )
        Y = rvfl_jax.one_hot(stream.y[t], m)
        state, info = learner.step(state, stream.X[t], Y, weight_t=stream.weight[t], **rest)
        yield state, info


@pytest.mark.parametrize("kind", KINDS)
def test_scan_equals_a_python_loop(stream, kind):
    learner = make(KINDS[kind])
    run = rvfl_jax.run_stream(learner, stream, key=KEY)
    with jax.enable_x64(True):
        steps = list(loop(learner, stream))
    final = steps[-1][0]
    for name in ("W", "theta", "eta_dagger", "eta", "theta_ridge"):
        error = references.relative_error(getattr(run.state, name), getattr(final, name))
        assert error <= tolerances.REORDERED, name
    for t, (_, info) in enumerate(steps):
        np.testing.assert_allclose(
            run.history.k_t[t], info.extras["k_t"], rtol=tolerances.CLOSED_FORM
        )
        np.testing.assert_allclose(
            run.history.k_next[t], info.extras["k_next"], rtol=tolerances.CLOSED_FORM
        )
    assert run.state.theta.dtype == jnp.float64
    assert jnp.ones(1).dtype == jnp.float32


def test_history_equals_plain_counting(stream):
    learner = make()
    X, y = held_out()
    run = rvfl_jax.run_stream(learner, stream, key=KEY, test=(X, y))
    history = run.history
    columns = np.array([stream.classes.tolist().index(label) for label in y])
    task = stream.class_task[columns]
    with jax.enable_x64(True):
        states = [state for state, _ in loop(learner, stream)]
        expert = np.asarray(states[-1].theta)
    D = references.features(states[0].W, X)
    expert_scores = D @ expert
    expert_p = references.softmax(expert_scores).mean(axis=0)
    targets = np.eye(4)[columns]
    seen = np.zeros(4, bool)
    for t, state in enumerate(states):
        seen[stream.y[t][stream.weight[t] > 0]] = True
        scores = D @ np.asarray(state.theta)
        p = references.softmax(scores).mean(axis=0)
        among_seen = np.where(seen, p, -1).argmax(1)
        own = np.where(stream.class_task[None] == task[:, None], p, -1).argmax(1)
        hits = {
            "class_incremental": p.argmax(1) == columns,
            "seen": (among_seen == columns) & seen[columns],
            "task_aware": own == columns,
            "task_id": stream.class_task[p.argmax(1)] == task,
        }
        for name, hit in hits.items():
            by_task = [hit[task == q].mean() for q in range(2)]
            np.testing.assert_allclose(
                history.task_accuracy[name][t], by_task, atol=tolerances.COUNTS
            )
            rows = seen[columns].sum() if name == "seen" else len(hit)
            np.testing.assert_allclose(
                history.accuracy[name][t], hit.sum() / rows, atol=tolerances.COUNTS
            )
        alone = (scores.argmax(-1) == columns).mean(axis=1)
        np.testing.assert_allclose(history.learner_accuracy[t], alone, atol=tolerances.COUNTS)
        np.testing.assert_allclose(history.regret[t], paper.regret(scores, targets))
        np.testing.assert_allclose(history.kl[t], paper.kl(scores, targets))
        excess = (((scores.mean(0) - targets) / 60) ** 2).sum() - (
            ((expert_scores.mean(0) - targets) / 60) ** 2
        ).sum()
        np.testing.assert_allclose(history.excess_loss[t], excess, atol=tolerances.CLOSED_FORM)
        kl = (expert_p * np.log(expert_p / p)).sum(1).mean()
        np.testing.assert_allclose(history.kl_from_expert[t], kl, atol=tolerances.CLOSED_FORM)
    assert np.array_equal(history.evaluated, np.arange(9))
    np.testing.assert_allclose(history.cumulative_regret, np.cumsum(history.regret))
    for name in metrics.PROTOCOLS:
        assert np.array_equal(history.R[name], history.task_accuracy[name][stream.task_ends])
    assert history.task_rows.tolist() == [(task == q).sum() for q in range(2)]


def test_prequential_record(stream):
    learner = make()
    history = rvfl_jax.run_stream(learner, stream, key=KEY).history
    with jax.enable_x64(True):
        previous = learner.init(KEY, 6, 4)
        for t, (state, _) in enumerate(loop(learner, stream)):
            rows = stream.weight[t] > 0
            X, y = stream.X[t][rows], stream.y[t][rows]
            hits = np.asarray(learner.predict(previous, X)).argmax(1) == y
            scores = np.asarray(learner.scores(previous, X)).mean(axis=0)
            loss = ((scores - np.eye(4)[y]) ** 2).sum(1).mean()
            assert history.rows[t] == rows.sum()
            np.testing.assert_allclose(
                history.prequential_accuracy[t], hits.mean(), atol=tolerances.COUNTS
            )
            np.testing.assert_allclose(history.prequential_loss[t], loss, rtol=1e-6)
            previous = state


@pytest.mark.parametrize("chunk_size", [2, 4, 9])
def test_rows_announced_at_the_end_are_not_learned_in_chunks_either(stream, chunk_size):
    rows = held_out()[0][:5]
    whole = rvfl_jax.run_stream(make(), stream, key=KEY, lookahead=rows)
    parts = rvfl_jax.run_stream(make(), stream, key=KEY, lookahead=rows, chunk_size=chunk_size)
    np.testing.assert_array_equal(whole.state.theta, parts.state.theta)
    assert parts.state.num_learned == stream.num_batches


@pytest.mark.parametrize("chunk_size", [1, 4, 50])
def test_chunks_change_no_bit(stream, chunk_size):
    whole = rvfl_jax.run_stream(make(), stream, key=KEY, test=held_out())
    seen = []
    chunked = rvfl_jax.run_stream(
        make(),
        stream,
        key=KEY,
        test=held_out(),
        chunk_size=chunk_size,
        progress=lambda done, total: seen.append((done, total)),
    )
    for want, got in zip(jax.tree.leaves(whole), jax.tree.leaves(chunked), strict=True):
        assert np.array_equal(want, got, equal_nan=True)
    assert seen[-1] == (9, 9)


def test_progress_bar_goes_to_standard_error(stream, capsys):
    rvfl_jax.run_stream(make(), stream, key=KEY, progress=True)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "9/9" in captured.err


@pytest.mark.parametrize(
    ("evaluate", "batches"),
    [
        ("batch", list(range(9))),
        ("task", [4, 8]),
        (4, [3, 7, 8]),
        ("never", []),
    ],
)
def test_evaluation_schedule(stream, evaluate, batches):
    full = rvfl_jax.run_stream(make(), stream, key=KEY, test=held_out()).history
    some = rvfl_jax.run_stream(make(), stream, key=KEY, test=held_out(), evaluate=evaluate).history
    assert some.evaluated.tolist() == batches
    if batches:
        np.testing.assert_array_equal(
            some.accuracy["class_incremental"], full.accuracy["class_incremental"][batches]
        )
    assert set(some.R) == (set(metrics.PROTOCOLS) if evaluate in ("batch", "task") else set())


def test_one_trace_a_run_and_none_for_the_second(stream):
    learner = make(1.5)
    advance = chex.assert_max_traces(learner.stream.advance, n=1)
    counted = replace(learner, stream=learner.stream._replace(advance=advance))
    X, y = held_out()

    def run(stream, key):
        rvfl_jax.run_stream(counted, stream, key=key, test=(X, y))

    keys = jax.random.split(KEY, 3)
    run(stream, keys[0])
    with counted_compilations() as made:
        run(stream._replace(X=stream.X + 1), keys[1])
    assert not made


def test_a_run_with_a_given_expert_compiles_twice(stream):
    """One program for init, one for everything else."""
    learner = make(2.5, num_nodes=7)
    X, y = held_out()
    expert = rvfl_jax.offline_scores(learner, stream, X, key=KEY)
    jax.clear_caches()
    with counted_compilations() as made:
        rvfl_jax.run_stream(learner, stream, key=KEY, test=(X, y), expert=expert)
    assert len(made) == 2


def test_offline_scores_are_the_hindsight_solution(stream):
    X, _ = held_out()
    got = rvfl_jax.offline_scores(make(), stream, X, key=KEY)
    run = rvfl_jax.run_stream(make(0.0), stream, key=KEY)
    want = references.features(run.state.W, X) @ np.asarray(run.state.theta)
    assert references.relative_error(got, want) <= tolerances.CLOSED_FORM


def test_fit_offline_gives_a_whole_state(stream):
    learner = make()
    rows = stream.weight > 0
    X, y, w = stream.X[rows], stream.y[rows], stream.weight[rows]
    with jax.enable_x64(True):
        start = learner.init(KEY, 6, 4)
        fitted = learner.fit_offline(start, X, rvfl_jax.one_hot(y, 4), w)
    run = rvfl_jax.run_stream(make(0.0), stream, key=KEY)
    for name in ("theta", "theta_ridge", "eta", "eta_dagger"):
        error = references.relative_error(getattr(fitted, name), getattr(run.state, name))
        assert error <= tolerances.CLOSED_FORM, name


def test_lookahead_is_announced_to_the_last_step(stream):
    X_after = np.random.default_rng(0).normal(size=(7, 6))
    run = rvfl_jax.run_stream(make(2.0), stream, key=KEY, lookahead=X_after)
    ridge = rvfl_jax.run_stream(make(2.0), stream, key=KEY)
    rows = stream.weight > 0
    D = references.features(run.state.W, stream.X[rows])
    D_after = references.features(run.state.W, X_after)
    Y = np.eye(4)[stream.y[rows]]
    for layer in range(2):
        A = 0.5 * np.eye(14) + D[layer].T @ D[layer]
        B = D[layer].T @ Y
        want = np.linalg.solve(A + 2.0 * D_after[layer].T @ D_after[layer], B)
        assert (
            references.relative_error(np.asarray(run.state.theta)[layer], want)
            <= tolerances.CLOSED_FORM
        )
        want = np.linalg.solve(A, B)
        assert (
            references.relative_error(np.asarray(ridge.state.theta)[layer], want)
            <= tolerances.CLOSED_FORM
        )


@pytest.mark.parametrize(
    "k",
    [pytest.param(1.0, marks=pytest.mark.slow), rvfl_jax.adaptive_k(sigma=0.1)],
    ids=["forward", "bayes"],
)
def test_going_on_from_a_state_equals_one_run(stream, k):
    """Two streams in a row, the second announced to the end of the first."""
    first, second = (
        stream._replace(X=stream.X[a:b], y=stream.y[a:b], weight=stream.weight[a:b])
        for a, b in ((0, 4), (4, 9))
    )
    upcoming = second.X[0][second.weight[0] > 0]
    half = rvfl_jax.run_stream(make(k), first, key=KEY, lookahead=upcoming)
    before = np.array(half.state.theta)
    end = rvfl_jax.run_stream(make(k), second, key=KEY, state=half.state)
    whole = rvfl_jax.run_stream(make(k), stream, key=KEY)
    assert references.relative_error(end.state.theta, whole.state.theta) <= tolerances.CLOSED_FORM
    assert np.array_equal(before, half.state.theta)


def test_spare_columns_for_classes_to_come(stream):
    run = rvfl_jax.run_stream(make(), stream, key=KEY, test=held_out(), num_classes=7)
    exact = rvfl_jax.run_stream(make(), stream, key=KEY)
    assert run.state.theta.shape == (2, 14, 7)
    assert not np.asarray(run.state.theta)[..., 4:].any()
    error = references.relative_error(np.asarray(run.state.theta)[..., :4], exact.state.theta)
    assert error <= tolerances.REORDERED


def test_uint8_images_give_the_same_as_their_float64_copy(stream):
    """Case 11: products never wrap."""
    bytes_ = np.random.default_rng(0).integers(0, 256, size=stream.X.shape, dtype=np.uint8)
    thetas = [
        rvfl_jax.run_stream(make(0.0), stream._replace(X=X), key=KEY).state.theta
        for X in (bytes_, bytes_.astype(np.float64))
    ]
    assert np.isfinite(thetas[0]).all()
    assert references.relative_error(thetas[0], thetas[1]) <= tolerances.REORDERED


def test_batches_of_one_row_have_an_adaptive_strength():
    stream = ragged_stream(12, num_batches=12)
    assert stream.X.shape[1] == 1
    learner = make(rvfl_jax.adaptive_k())
    run = rvfl_jax.run_stream(learner, stream, key=KEY)
    assert np.isfinite(run.state.theta).all()
    assert (run.history.k_next[:-1] > 0).all()
    assert np.argmax(learner.predict(run.state, stream.X[0]), axis=-1).shape == (1,)


def test_failure_is_raised_with_place_and_remedy(stream):
    """Values that overflow when squared: finite input, unusable arithmetic."""
    X = np.array(stream.X)
    X[3, 0] = 1e200
    huge = stream._replace(X=X)
    with pytest.raises(rvfl_jax.NumericalError, match=r"batch 2, sub-learner 0.*Remedy"):
        rvfl_jax.run_stream(make(), huge, key=KEY)
    run = rvfl_jax.run_stream(make(), huge, key=KEY, on_failure="return")
    assert not run.history.healthy[3].any()
    assert np.isfinite(run.state.theta).all()


def good_arguments(stream):
    return dict(learner=make(), stream=stream, key=KEY, test=held_out())


def spoiled(stream, name, place, value):
    array = np.array(getattr(stream, name))
    array[place] = value
    return stream._replace(**{name: array})


S = ragged_stream()
X_TEST, Y_TEST = held_out()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            dict(stream=spoiled(S, "X", (0, 0, 0), np.nan)),
            r"stream.X: expected finite .*nan at \(0, 0, 0\)",
        ),
        (dict(stream=spoiled(S, "X", (1, 0, 0), np.inf)), "stream.X: expected finite"),
        (dict(stream=spoiled(S, "y", (0, 0), 4)), "stream.y: expected columns 0 to 3, got 4"),
        (dict(stream=spoiled(S, "y", (0, 0), -1)), "stream.y: expected columns 0 to 3, got -1"),
        (dict(stream=S._replace(y=S.y + 0.5)), "stream.y: expected integer columns"),
        (dict(stream=S._replace(y=S.y[:, :3])), "stream.y: expected shape"),
        (dict(stream=spoiled(S, "weight", (0, 0), -1)), "stream.weight: expected finite weights"),
        (dict(stream=S._replace(weight=0 * S.weight)), "stream.weight: expected at least one row"),
        (dict(stream=S._replace(X=S.X[0])), "stream.X: expected non-empty"),
        (dict(test=(X_TEST[:, :5], Y_TEST)), "test X: expected 6 features, got 5"),
        (dict(test=(X_TEST[0], Y_TEST)), "test X: expected 2 dimensions"),
        (dict(test=(X_TEST * np.nan, Y_TEST)), "test X: expected finite"),
        (dict(test=(X_TEST, Y_TEST[:5])), "test y: expected 60 labels, got 5"),
        (dict(test=(X_TEST, Y_TEST + 1)), "test y: expected one of the 4 known classes, got .*4"),
        (dict(evaluate="often"), "evaluate: expected one of batch, task, never or an integer"),
        (dict(evaluate=0), "evaluate: expected an integer of at least 1"),
        (dict(precision="half"), "precision: expected one of double, single"),
        (dict(num_classes=3), "num_classes: expected at least 4, got 3"),
        (dict(chunk_size=0), "chunk_size"),
        (dict(expert="online"), "expert: expected offline"),
        (dict(expert=np.zeros((2, 5, 4))), r"expert: expected shape \(L, 60, 4\)"),
        (dict(lookahead=np.zeros((5, 7))), "lookahead: expected at most"),
        (dict(lookahead=np.zeros((50, 6))), "lookahead"),
        (dict(on_failure="ignore"), "on_failure: expected one of raise, return"),
    ],
)
def test_bad_input(change, message):
    arguments = {**good_arguments(S), **change}
    with pytest.raises(ValueError, match=message):
        rvfl_jax.run_stream(arguments.pop("learner"), arguments.pop("stream"), **arguments)


def test_nan_in_padding_is_no_error(stream):
    X = np.where((stream.weight > 0)[..., None], stream.X, np.nan)
    dirty = rvfl_jax.run_stream(make(), stream._replace(X=X), key=KEY)
    clean = rvfl_jax.run_stream(make(), stream, key=KEY)
    assert np.array_equal(dirty.state.theta, clean.state.theta)


def test_importing_the_package_changes_no_setting():
    assert jnp.result_type(float) == jnp.float32


def test_a_task_that_leads_no_batch_leaves_the_matrix_empty():
    X, _ = blobs(120)
    y = np.repeat([0, 1], [5, 115])
    stream = rvfl_jax.class_incremental_stream(
        X, y, num_tasks=2, num_batches=2, seed=0, blur=0.1, order="none"
    )
    for evaluate in ("batch", "task"):
        history = rvfl_jax.run_stream(
            make(), stream, key=KEY, test=(X, y), evaluate=evaluate
        ).history
        assert history.R == {}
        assert history.accuracy["class_incremental"][-1] > 0.9


def test_a_single_precision_state_goes_on_in_the_precision_of_the_run(stream):
    state = make().init(KEY, 6, 4)
    assert state.theta.dtype == jnp.float32
    run = rvfl_jax.run_stream(make(), stream, key=KEY, state=state)
    assert run.state.theta.dtype == jnp.float64
    fresh = rvfl_jax.run_stream(make(), stream, key=KEY)
    assert references.relative_error(run.state.theta, fresh.state.theta) <= tolerances.CLOSED_FORM


OTHER_LEARNERS = [
    (make(), (5, 4), ["features: expected 6, got 5"]),
    (make(), (6, 3), ["classes: expected 4, got 3"]),
    (make(num_layers=3), (6, 4), ["num_layers: expected 2, got 3"]),
    (make(num_nodes=7), (6, 4), ["num_nodes: expected 8, got 7"]),
    (make(activation="tanh"), (6, 4), ["activation: expected 'relu', got 'tanh'"]),
    (make(ridge=0.25), (6, 4), ["ridge: expected 0.5, got [0.25, 0.25]"]),
    (make(ridge=[0.5, 0.6]), (6, 4), ["ridge: expected 0.5, got [0.5, 0.6"]),
    (
        make(num_layers=1, num_nodes=9, activation=jax.numpy.sin, ridge=3.0),
        (5, 3),
        ["num_layers", "num_nodes", "features", "classes", "activation", "ridge: expected 0.5"],
    ),
    (
        rvfl_jax.fine_tuned_edrvfl(num_layers=2, num_nodes=8, ridge=0.5),
        (6, 4),
        ["state: expected EdRVFLState, got ReadoutState"],
    ),
]


@pytest.mark.parametrize(("other", "sizes", "faults"), OTHER_LEARNERS)
def test_a_state_of_another_learner_is_an_error_that_lists_what_differs(
    stream, other, sizes, faults
):
    state = other.init(KEY, *sizes)
    batches = zip(stream.X, stream.y, strict=True)
    for source, options in ((stream, {}), (batches, {"classes": range(4)})):
        with pytest.raises(ValueError, match="state: expected") as told:
            rvfl_jax.run_stream(make(), source, key=KEY, state=state, **options)
        assert all(fault in str(told.value) for fault in faults), told.value


def test_states_of_other_solvers_and_strengths_are_no_other_learners(stream):
    state = rvfl_jax.run_stream(make(), stream, key=KEY).state
    assert state.activation == "relu"
    np.testing.assert_array_equal(state.ridge, 0.5)
    rvfl_jax.run_stream(make(0.0, activation=jax.nn.relu), stream, key=KEY, state=state)
    # Written before states told their lambda and activation.
    old = state._replace(ridge=None, activation=None)
    again = rvfl_jax.run_stream(make(), stream, key=KEY, state=old).state
    assert again.activation == "relu"
    for learner, message in (
        (make(solver="square_root"), r"root: expected shape \(2, 14, 14\), got none"),
        (make(rvfl_jax.adaptive_k(estimator="random_variance")), "key: expected shape"),
    ):
        with pytest.raises(ValueError, match=message):
            rvfl_jax.run_stream(learner, stream, key=KEY, state=state)
    with pytest.raises(ValueError, match=r"got Run; `run.state` is one"):
        rvfl_jax.run_stream(make(), stream, key=KEY, state=rvfl_jax.Run(state, None))


def test_a_step_and_an_answer_are_of_the_state_of_their_learner(stream):
    Y = rvfl_jax.one_hot(stream.y[0], 4)
    for change, message in (
        ({"num_layers": 3}, "num_layers: expected 3, got 2"),
        ({"activation": "tanh"}, "activation: expected 'tanh', got 'relu'"),
        ({"num_nodes": 7}, "num_nodes: expected 7, got 8"),
    ):
        state, other = make().init(KEY, 6, 4), make(**change)
        with pytest.raises(ValueError, match=message):
            other.step(state, stream.X[0], Y, stream.X[1])
        with pytest.raises(ValueError, match=message):
            other.scores(state, stream.X[0])
        with pytest.raises(ValueError, match=message):
            other.predict(state, stream.X[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda s: {"key": 0}, r"key: expected one PRNG key such as jax.random.key\(0\), got 0"),
        (lambda s: {"key": jax.random.split(KEY, 3)}, r"key: .*, got an array of shape \(3,\)"),
        (lambda s: {"key": None}, "key: expected one PRNG key .*, got None"),
        (lambda s: {"learner": s}, "learner: expected a Learner, such as edrvfl"),
        (lambda s: {"learner": rvfl_jax.EdRVFLClassifier()}, "got EdRVFLClassifier"),
        (lambda s: {"stream": blobs(9)}, "got one pair of arrays; class_incremental_stream"),
        (lambda s: {"stream": list(blobs(9))}, "got one pair of arrays; class_incremental_stream"),
        (lambda s: {"stream": blobs(9)[0]}, "got ndarray; class_incremental_stream"),
        (lambda s: {"stream": {"X": s.X}}, "got dict; class_incremental_stream"),
        (lambda s: {"stream": "digits"}, "got str; class_incremental_stream"),
        (lambda s: {"stream": 3}, "an iterable of .*, got int"),
        (lambda s: {"test": blobs(9)[0]}, r"test: expected a pair \(X, y\), got ndarray of 9"),
        (lambda s: {"test": (blobs(9)[0],)}, r"test: expected a pair .*, got tuple of 1"),
    ],
)
def test_what_is_easily_mistaken_is_told_with_a_remedy(stream, call, message):
    arguments = {"learner": make(), "stream": stream, "key": KEY} | call(stream)
    with pytest.raises(ValueError, match=message):
        rvfl_jax.run_stream(**arguments)


def test_bfloat16_means_the_same_in_a_stream(stream):
    narrow = jax.numpy.asarray(stream.X, jax.numpy.bfloat16)
    wide = stream._replace(X=np.asarray(narrow, np.float32))
    want = rvfl_jax.run_stream(make(), wide, key=KEY).state.theta
    whole = stream._replace(X=np.asarray(narrow))
    np.testing.assert_array_equal(rvfl_jax.run_stream(make(), whole, key=KEY).state.theta, want)
    bad = stream._replace(X=np.asarray(narrow.at[2, 0, 1].set(np.nan)))
    with pytest.raises(ValueError, match=r"stream.X: expected finite numbers, got nan at \(2, 0"):
        rvfl_jax.run_stream(make(), bad, key=KEY)


def test_masked_values_of_a_stream_are_told_with_their_place(stream):
    masked = np.ma.array(stream.X)
    masked[3, 0, 1] = np.ma.masked
    with pytest.raises(ValueError, match=r"stream.X: .* masked one at \(3, 0, 1\)"):
        rvfl_jax.run_stream(make(), stream._replace(X=masked), key=KEY)
    batches = zip(masked, stream.y, strict=True)
    with pytest.raises(ValueError, match=r"batch 3: .* masked one at \(0, 1\)"):
        rvfl_jax.run_stream(make(), batches, key=KEY, classes=range(4))
    labels = np.ma.array(stream.y[0], mask=stream.y[0] == stream.y[0][0])
    with pytest.raises(ValueError, match=r"batch 0: .* masked one at \(0,\)"):
        rvfl_jax.run_stream(make(), [(stream.X[0], labels)], key=KEY, classes=range(4))


def test_one_pair_in_a_list_is_a_stream_of_one_batch():
    X, y = blobs(9)
    run = rvfl_jax.run_stream(make(), [(X, y)], key=KEY, num_classes=4)
    assert run.history.rows.tolist() == [9]


def test_every_function_with_a_key_says_what_a_key_is(stream):
    def maker(k):
        return make(k)

    for call in (
        lambda: make().init(0, 6, 4),
        lambda: rvfl_jax.init_weights(0, num_layers=1, num_features=3, num_nodes=2),
        lambda: rvfl_jax.offline_scores(make(), stream, blobs(9)[0], key=0),
        lambda: rvfl_jax.prequential_loss(make(), stream, key=0),
        lambda: rvfl_jax.sweep(maker, stream, {"k": [0.0]}, key=0),
    ):
        with pytest.raises(ValueError, match=r"key: expected one PRNG key such as .*, got 0"):
            call()
    raw = jax.random.PRNGKey(0)
    np.testing.assert_array_equal(make().init(raw, 6, 4).W, make().init(KEY, 6, 4).W)


def test_accuracies_that_a_run_has_not_say_why(stream):
    history = rvfl_jax.run_stream(make(), stream, key=KEY).history
    for curves in (history.R, history.accuracy, history.task_accuracy):
        assert dict(curves) == {}
        with pytest.raises(KeyError, match=r"class_incremental: the run has none.*test=\(X, y\)"):
            curves["class_incremental"]
    some = type(history.R)({"seen": np.eye(2)})
    with pytest.raises(KeyError, match="clas: expected one of seen"):
        some["clas"]
    leaves, structure = jax.tree.flatten(some)
    assert jax.tree.unflatten(structure, leaves) == some
    assert some.get("clas") is None


def test_what_is_announced_tells_a_learner_with_k_0_nothing(stream):
    learner, Y = make(0.0), rvfl_jax.one_hot(stream.y[0], 4)
    state = learner.init(KEY, 6, 4)
    told, info = learner.step(state, stream.X[0], Y, stream.X[1])
    untold, _ = learner.step(state, stream.X[0], Y)
    np.testing.assert_array_equal(told.theta, untold.theta)
    assert not info.extras["k_next"].any()


def test_offline_scores_reject_what_they_cannot_use(stream):
    X = np.zeros((2, 6))
    with pytest.raises(ValueError, match="num_classes: expected at least 4, got 2"):
        rvfl_jax.offline_scores(make(), stream, X, key=KEY, num_classes=2)
    with pytest.raises(ValueError, match="X_test: expected 6 features, got 5"):
        rvfl_jax.offline_scores(make(), stream, X[:, :5], key=KEY)
    huge = stream._replace(X=1e200 * stream.X)
    with pytest.raises(rvfl_jax.NumericalError, match="offline expert"):
        rvfl_jax.offline_scores(make(), huge, X, key=KEY)
