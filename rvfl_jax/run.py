"""The one driver: a learner along a stream, compiled as one scan.

`scan_stream` is the pure function, for use under jit, vmap and grad. `run_stream` checks
its inputs on the host, picks the precision, compiles, shows progress and hands back plain
arrays.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.batches import Batches, met
from rvfl_jax.checks import NumericalError, positive_int, real_matrix
from rvfl_jax.evaluation import (
    Examined,
    begin_to_follow,
    columns_met,
    embed_test,
    look,
    worth_following,
)
from rvfl_jax.health import WORTHLESS
from rvfl_jax.history import History, StepRecord, build_history
from rvfl_jax.labels import to_columns
from rvfl_jax.linalg import precision_scope
from rvfl_jax.on_request import plan_blocks, scan_blocks
from rvfl_jax.progress import track
from rvfl_jax.stream import check_stream
from rvfl_jax.types import Array, Carry, Learner, Run, State, Stream

SCHEDULES = ("batch", "task", "never")
REMEDY = (
    'use precision="double", or solver="square_root" where only single precision exists,'
    " a larger ridge, or features on a smaller scale"
)


def scan_stream(
    learner: Learner,
    carry: Carry,
    seen: Array,
    batches: Batches,
    *,
    num_steps: int,
    columns: Array | None = None,
    test: Examined | None = None,
    followed: Any = None,
) -> tuple[Carry, Array, Any, StepRecord]:
    """Learn `num_steps` batches in one `lax.scan`; pure, traceable, differentiable.

    Args:
        learner: the method.
        carry: from `learner.stream.begin` on the first batch, or from the scan before.
        seen: (m,) classes met so far.
        batches: at least `num_steps` of them; one more, if there is one, is announced to
            the last step, which otherwise has no forward term.
        num_steps: static.
        columns: (num_steps,) where to look at the test set, and how many leading columns
            then hold every class met; 0 is not now, None is never.
        test: the test set, or None.
        followed: of `begin_to_follow`, or None to compute the scores of the test set anew at
            every look.

    Returns:
        The carry, the classes seen, `followed`, and a `StepRecord` with a leading axis of
        steps.
    """
    num_classes = seen.shape[0]

    def body(
        state: tuple[Carry, Array, Any], t: Array
    ) -> tuple[tuple[Carry, Array, Any], StepRecord]:
        carry, seen, followed = state
        valid = batches.weight[t] > 0
        targets = jax.nn.one_hot(batches.y[t], num_classes)
        carry, info = learner.stream.advance(carry, targets, *batches.after(t))
        seen = met(seen, targets, valid)
        looked = None
        if test is not None and followed is not None:
            assert learner.stream.follow is not None
            followed = learner.stream.follow.advance(followed, carry, test.Z)
        if test is not None and columns is not None:
            looked = look(learner, carry, columns[t], seen, test, followed)
        error = jnp.sum((jnp.mean(info.guess_scores, axis=0) - targets) ** 2, axis=-1)
        record = StepRecord(
            info.k_t,
            info.k_next,
            info.sigma_share,
            info.healthy,
            info.residual,
            info.condition,
            rows=jnp.sum(valid),
            hits=jnp.sum(valid & (jnp.argmax(info.guess, axis=-1) == batches.y[t])),
            loss=jnp.sum(jnp.where(valid, error, 0.0)),
            evaluation=looked,
        )
        return (carry, seen, followed), record

    start = (carry, seen, followed)
    (carry, seen, followed), record = lax.scan(body, start, jnp.arange(num_steps))
    return carry, seen, followed, record


@partial(jax.jit, static_argnames=("learner", "num_features", "num_classes"))
def _init(learner: Learner, key: Array, num_features: int, num_classes: int) -> State:
    return learner.init(key, num_features, num_classes)


@partial(jax.jit, static_argnames="learner")
def _begin(learner: Learner, state: State, X: Array, weight: Array) -> Carry:
    return learner.stream.begin(state, X, weight)


@partial(jax.jit, static_argnames="learner")
def _finish(learner: Learner, carry: Carry) -> State:
    return learner.stream.finish(carry)


_embed_jit = partial(jax.jit, static_argnames="learner")(embed_test)
_begin_to_follow = partial(jax.jit, static_argnames="learner")(begin_to_follow)
_scan = partial(
    jax.jit, static_argnames=("learner", "num_steps"), donate_argnames=("carry", "followed")
)(scan_stream)


@partial(jax.jit, static_argnames=("learner", "num_steps", "follow"))
def whole_stream(
    learner: Learner,
    state: State,
    seen: Array,
    batches: Batches,
    *,
    num_steps: int,
    columns: Array | None = None,
    test: Examined | None = None,
    follow: bool = False,
) -> tuple[State, StepRecord]:
    """The whole stream as one program, test features included."""
    test = embed_test(learner, state, test)
    carry = learner.stream.begin(state, batches.X[0], batches.weight[0])
    followed = begin_to_follow(learner, carry, test) if follow else None
    carry, _, _, record = scan_stream(
        learner,
        carry,
        seen,
        batches,
        num_steps=num_steps,
        columns=columns,
        test=test,
        followed=followed,
    )
    return learner.stream.finish(carry), record


@partial(jax.jit, static_argnames=("learner", "num_classes"))
def _offline_scores(
    learner: Learner, state: State, batches: Batches, X_test: Array, num_classes: int
) -> Array:
    X = batches.X.reshape(-1, batches.X.shape[-1])
    Y = jax.nn.one_hot(batches.y.reshape(-1), num_classes)
    assert learner.fit_offline is not None
    fitted = learner.fit_offline(state, X, Y, batches.weight.reshape(-1))
    return learner.scores(fitted, X_test)


def offline_scores(
    learner: Learner,
    stream: Stream,
    X_test: Any,
    *,
    key: Array,
    num_classes: int | None = None,
    precision: str = "double",
) -> np.ndarray:
    """(L, n, m) test scores of the expert that learns the whole stream at once, eq. (5).

    The expert has the random features that `learner.init(key, ...)` draws, so it is the
    reference of every run with that key and network, whatever its k.

    Raises:
        ValueError: if the method has no offline counterpart, or on unusable data.
    """
    if learner.fit_offline is None:
        raise ValueError("learner: expected one with fit_offline, got one without")
    check_stream(stream)
    X_test = _check_features("X_test", X_test, stream.X.shape[-1])
    m = _capacity(num_classes, stream)
    with precision_scope(precision):
        state = _init(learner, key, stream.X.shape[-1], m)
        batches = Batches(stream.X, stream.y, stream.weight)
        return _finite_scores(_offline_scores(learner, state, batches, X_test, m))


def run_stream(
    learner: Learner,
    stream: Stream,
    *,
    key: Array,
    test: tuple[Any, Any] | None = None,
    evaluate: str | int = "batch",
    expert: str | np.ndarray | None = "offline",
    guesses: bool = True,
    precision: str = "double",
    num_classes: int | None = None,
    state: State | None = None,
    lookahead: Any = None,
    chunk_size: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
    on_failure: str = "raise",
) -> Run:
    """Run a learner once along a stream, in one pass and in one compiled program.

    Example:
        >>> stream = class_incremental_stream(X, y, num_tasks=5, num_batches=20, seed=0)
        >>> run = run_stream(learner, stream, key=jax.random.key(0), test=(X_test, y_test))
        >>> run.history.accuracy["class_incremental"]

    A second run of the same learner on the same shapes compiles nothing.

    Args:
        learner: the method.
        stream: from `class_incremental_stream` or built by hand.
        key: PRNG key of the random features.
        test: (X, y) with labels in the stream's own terms, or None.
        evaluate: when to look at the test set: "batch", "task" (at task ends), "never",
            or an integer E for every E batches and at the end.
        expert: reference of regret and KL: "offline" fits it (if the method has one), an
            (L, n, m) array is taken as the result of `offline_scores`, None leaves both
            NaN.
        guesses: whether each batch is guessed before it is learned. False leaves the
            prequential figures NaN; a learner in information form with a constant k then
            only adds up, and decides where the test set is looked at and at the end.
        precision: "double" or "single", for this run only; the global setting is left
            alone.
        num_classes: m, the designed capacity; the classes of the stream when None.
        state: where to go on from; fresh from `key` when None. It is not consumed.
        lookahead: (b', s) inputs that follow the stream, b' at most b, announced to the
            last step; without them the last step has no forward term.
        chunk_size: batches per compiled call. None runs the stream as one program, or in
            about 20 chunks when progress is shown.
        progress: True for a progress bar, or a function of (batches done, batches).
        on_failure: "raise" a NumericalError that names the batch, or "return" the run with
            `history.healthy` telling.

    Returns:
        Run(state, history).

    Raises:
        ValueError: on unusable input, before anything is compiled.
        NumericalError: if a factorisation failed or a value overflowed.
    """
    check_stream(stream)
    T, _b, s = stream.X.shape
    m = _capacity(num_classes, stream)
    schedule = _schedule(evaluate, stream, T)
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure: expected raise or return, got {on_failure!r}")
    batches = _announce(Batches(stream.X, stream.y, stream.weight), lookahead)
    encoded = None if test is None else _encode_test(test, stream, s)
    size = None if chunk_size is None else positive_int("chunk_size", chunk_size)
    _check_expert(expert, encoded, m)
    if state is not None:
        _check_state(state, s, m)
    with precision_scope(precision):
        state = _init(learner, key, s, m) if state is None else _in_precision(state)
        test_set = None
        if encoded is not None and schedule is not None:
            reference = _reference(learner, state, stream, encoded[0], expert, m)
            test_set = _test_set(*encoded, stream, m, reference)
        columns = None
        if schedule is not None:
            met_by = columns_met(_columns_known(state), stream.y, stream.weight)
            columns = np.where(schedule, met_by, 0)
        seen = np.zeros(m, bool)
        follow = worth_following(columns, stream.X.shape[1], state.theta.shape[1], m)
        if not guesses and learner.stream.postponed is not None:
            final, record = _on_request(learner, state, seen, batches, T, columns, test_set)
        elif chunk_size is None and not progress:
            final, record = whole_stream(
                learner,
                state,
                seen,
                batches,
                num_steps=T,
                columns=columns,
                test=test_set,
                follow=follow,
            )
        else:
            size = -(-T // 20) if size is None else size
            final, record = _in_chunks(
                learner, state, seen, batches, T, min(size, T), columns, test_set, follow, progress
            )
        jax.block_until_ready(final)
    history = build_history(record, schedule, stream, test_set)
    if on_failure == "raise":
        raise_if_unhealthy(history)
    return Run(final, history)


def raise_if_unhealthy(history: History) -> None:
    """NumericalError that names the first unhealthy batch, what went wrong, and a remedy."""
    healthy = history.healthy
    if healthy.all():
        return
    t, layer = (int(i) for i in np.argwhere(~healthy)[0])
    residual, condition = history.residual[t, layer], history.condition[t, layer]
    what = "a factorisation failed or a value was not finite"
    kept = "; what was learned before is untouched"
    if residual > WORTHLESS:
        what = f"the readout is lost to rounding, with a relative residual of {residual:.1g}"
        kept = ""
    raise NumericalError(
        f"batch {t}, sub-learner {layer}: {what}, at a condition of up to {condition:.1g}"
        f" ({int((~healthy).any(axis=1).sum())} of {len(healthy)} batches affected{kept})."
        f" Remedy: {REMEDY}."
    )


def _on_request(
    learner: Learner,
    state: State,
    seen: Any,
    batches: Batches,
    T: int,
    columns: np.ndarray | None,
    test: Examined | None,
) -> tuple[State, StepRecord]:
    """Decide only where the test set is looked at, and at the end."""
    plan = plan_blocks(columns, T, batches.X.shape[1])
    final, blocks = scan_blocks(learner, state, seen, batches, plan, test, num_batches=T)
    at = plan.last[plan.decide]

    def spread(values: Any, empty: float) -> np.ndarray:
        values = np.asarray(values)[plan.decide]
        everywhere = np.full((T, *values.shape[1:]), empty, values.dtype)
        everywhere[at] = values
        return everywhere

    layers = blocks.healthy.shape[1]
    none = np.zeros((T, layers))
    record: dict[str, Any] = {
        "k_t": none * np.nan,
        "k_next": none * np.nan,
        "sigma_share": none,
        "healthy": spread(blocks.healthy, True),
        "residual": spread(blocks.residual, np.nan),
        "condition": spread(blocks.condition, np.nan),
        "rows": (batches.weight[:T] > 0).sum(axis=1),
        "hits": np.full(T, np.nan),
        "loss": np.full(T, np.nan),
        "evaluation": jax.tree.map(lambda leaf: spread(leaf, 0), blocks.evaluation),
    }
    return final, StepRecord(**record)


def _schedule(evaluate: str | int, stream: Stream, T: int) -> np.ndarray | None:
    if evaluate == "never":
        return None
    if evaluate == "batch":
        return np.ones(T, bool)
    at = np.zeros(T, bool)
    if evaluate == "task":
        at[stream.task_ends[stream.task_ends >= 0]] = True
    elif isinstance(evaluate, str):
        raise ValueError(
            f"evaluate: expected one of {', '.join(SCHEDULES)} or an integer, got {evaluate!r}"
        )
    else:
        at[positive_int("evaluate", evaluate) - 1 :: evaluate] = True
    at[-1] = True
    return at


def _announce(batches: Batches, lookahead: Any) -> Batches:
    if lookahead is None:
        return batches
    _, b, s = batches.X.shape
    rows = real_matrix("lookahead", lookahead)
    if rows.shape[1] != s or len(rows) > b:
        raise ValueError(f"lookahead: expected at most {b} rows of {s}, got shape {rows.shape}")
    X = np.zeros((1, b, s), batches.X.dtype)
    X[0, : len(rows)] = rows
    weight = (np.arange(b) < len(rows)).astype(batches.weight.dtype)[None]
    return Batches(
        np.concatenate([batches.X, X]),
        np.concatenate([batches.y, np.zeros((1, b), batches.y.dtype)]),
        np.concatenate([batches.weight, weight]),
    )


def _capacity(num_classes: int | None, stream: Stream) -> int:
    m = len(stream.classes) if num_classes is None else positive_int("num_classes", num_classes)
    if m < len(stream.classes):
        raise ValueError(f"num_classes: expected at least {len(stream.classes)}, got {m}")
    return m


def _check_features(name: str, X: Any, num_features: int) -> np.ndarray:
    X = real_matrix(name, X)
    if X.shape[1] != num_features:
        raise ValueError(f"{name}: expected {num_features} features, got {X.shape[1]}")
    return X


def _check_expert(expert: Any, test: tuple[np.ndarray, np.ndarray] | None, m: int) -> None:
    if isinstance(expert, str):
        if expert != "offline":
            raise ValueError(f"expert: expected offline, an array or None, got {expert!r}")
    elif expert is not None and test is not None:
        n = len(test[1])
        if np.ndim(expert) != 3 or np.shape(expert)[1:] != (n, m):
            raise ValueError(f"expert: expected shape (L, {n}, {m}), got {np.shape(expert)}")


def _check_state(state: Any, num_features: int, num_classes: int) -> None:
    fits = state.W.shape[1] - state.W.shape[2], state.theta.shape[-1]
    if fits != (num_features, num_classes):
        raise ValueError(
            f"state: expected one for {num_features} features and {num_classes} classes,"
            f" got one for {fits[0]} and {fits[1]}"
        )


def _columns_known(state: Any) -> int:
    """How many leading columns hold every class that a state can tell from the others."""
    return (
        int(np.max(np.flatnonzero(np.any(np.asarray(state.theta) != 0, axis=(0, 1))), initial=-1))
        + 1
    )


def _in_precision(state: Any) -> Any:
    """The state with its numbers in the precision of this run."""
    dtype = jnp.result_type(float)

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, state)


def _finite_scores(scores: Array) -> np.ndarray:
    if not np.isfinite(scores).all():
        raise NumericalError(
            f"offline expert: the factorisation failed or a value overflowed. Remedy: {REMEDY}."
        )
    return np.asarray(scores)


def _encode_test(test: tuple[Any, Any], stream: Stream, s: int) -> tuple[np.ndarray, np.ndarray]:
    X = _check_features("test X", test[0], s)
    y = to_columns("test y", test[1], stream.classes)
    if len(y) != len(X):
        raise ValueError(f"test y: expected {len(X)} labels, got {len(y)}")
    return X, y


def _reference(
    learner: Learner,
    state: State,
    stream: Stream,
    X_test: np.ndarray,
    expert: str | np.ndarray | None,
    m: int,
) -> Any:
    if expert is None or (isinstance(expert, str) and learner.fit_offline is None):
        return None
    if isinstance(expert, str):
        batches = Batches(stream.X, stream.y, stream.weight)
        return _finite_scores(_offline_scores(learner, state, batches, X_test, m))
    return expert


def _test_set(X: np.ndarray, y: np.ndarray, stream: Stream, m: int, reference: Any) -> Examined:
    spare = m - len(stream.classes)
    # Columns that no class has claimed belong to no task.
    class_task = np.pad(stream.class_task, (0, spare), constant_values=-1)
    rows = np.bincount(stream.class_task[y], minlength=stream.num_tasks)
    return Examined(X, y, class_task, rows.astype(np.float32), reference)


def _in_chunks(
    learner: Learner,
    state: State,
    seen: Any,
    batches: Batches,
    T: int,
    size: int,
    columns: np.ndarray | None,
    test: Examined | None,
    follow: bool,
    progress: bool | Callable[[int, int], None],
) -> tuple[State, StepRecord]:
    """The stream in several calls of one compiled program.

    The last chunk is filled with empty batches, which leave no trace.
    """
    test = _embed_jit(learner, state, test)
    carry = _begin(learner, state, batches.X[0], batches.weight[0])
    # The carry is donated, and its weights may share memory with the caller's state.
    carry = jax.tree.map(jnp.copy, carry)
    followed = _begin_to_follow(learner, carry, test) if follow else None
    records = []
    with track(T, progress) as advance:
        for start in range(0, T, size):
            piece = jax.tree.map(partial(_window, start=start, length=size + 1), batches)
            looks = None if columns is None else _window(columns, start=start, length=size)
            carry, seen, followed, record = _scan(
                learner,
                carry,
                seen,
                piece,
                num_steps=size,
                columns=looks,
                test=test,
                followed=followed,
            )
            records.append(jax.tree.map(np.asarray, record))
            advance(min(start + size, T))
    record = jax.tree.map(lambda *parts: np.concatenate(parts)[:T], *records)
    return _finish(learner, carry), record


def _window(array: np.ndarray, *, start: int, length: int) -> np.ndarray:
    """`length` entries from `start`, filled with zeros beyond the end."""
    piece = array[start : start + length]
    missing = length - len(piece)
    return np.pad(piece, [(0, missing)] + [(0, 0)] * (piece.ndim - 1)) if missing else piece
