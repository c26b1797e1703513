"""The one driver of learners along streams.

`run_stream` checks its inputs on the host, picks the precision, compiles, shows progress and
hands back plain arrays; the scan itself is in `rvfl_jax.scan`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rvfl_jax.batches import Batches
from rvfl_jax.checks import NumericalError, one_of, positive_int
from rvfl_jax.devices import (
    LAYOUTS,
    as_auto,
    check_width,
    fetch,
    init_over_mesh,
    on_devices,
    place_batches,
    place_state,
)
from rvfl_jax.evaluation import Examined, columns_met, worth_following
from rvfl_jax.health import WORTHLESS
from rvfl_jax.history import History, StepRecord, build_history
from rvfl_jax.linalg import precision_scope
from rvfl_jax.on_request import plan_blocks, run_blocks, scan_blocks
from rvfl_jax.progress import track
from rvfl_jax.provenance import digest_of, provenance
from rvfl_jax.run_inputs import (
    announce,
    capacity_of,
    check_expert,
    check_features,
    check_state,
    columns_known,
    encode_test,
    examined,
    schedule_of,
)
from rvfl_jax.scan import (
    begin_jit,
    begin_to_follow_jit,
    embed_jit,
    finish_jit,
    init_state,
    run_whole,
    scan_jit,
    whole_stream,
)
from rvfl_jax.stream import check_stream
from rvfl_jax.types import Array, Learner, Run, State, Stream

REMEDY = (
    'use precision="double", or solver="square_root" where only single precision exists,'
    " a larger ridge, or features on a smaller scale"
)


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
    X_test = check_features("X_test", X_test, stream.X.shape[-1])
    m = capacity_of(num_classes, stream)
    with precision_scope(precision):
        state = init_state(learner, key, stream.X.shape[-1], m)
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
    mesh: Mesh | None = None,
    layout: str = "rows",
) -> Run:
    """Run a learner once along a stream, in one pass and in one compiled program.

    Example:
        >>> stream = class_incremental_stream(X, y, num_tasks=5, num_batches=20, seed=0)
        >>> run = run_stream(learner, stream, key=jax.random.key(0), test=(X_test, y_test))
        >>> run.history.accuracy["class_incremental"]

    A second run of the same learner on the same shapes compiles nothing; another learner, be
    it of equal options, is another program.

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
        mesh: devices to run on together, of one process or of several; None is one device.
        layout: what the devices of a mesh share. "rows": the rows of each batch, for
            learners in information form. "eta_dagger": the rows of d x d matrices too large
            for one device, for learners in covariance form; d must be a multiple of the
            number of devices. Both give what one device gives, sums in another order.

    Returns:
        Run(state, history); `history.provenance` tells what it depends on.

    Raises:
        ValueError: on unusable input, before anything is compiled.
        NumericalError: if a factorisation failed or a value overflowed.
    """
    check_stream(stream)
    T, _b, s = stream.X.shape
    m = capacity_of(num_classes, stream)
    schedule = schedule_of(evaluate, stream, T)
    if on_failure not in ("raise", "return"):
        raise ValueError(f"on_failure: expected raise or return, got {on_failure!r}")
    batches = announce(Batches(stream.X, stream.y, stream.weight), lookahead)
    encoded = None if test is None else encode_test(test, stream, s)
    size = None if chunk_size is None else positive_int("chunk_size", chunk_size)
    check_expert(expert, encoded, m)
    if state is not None:
        check_state(state, s, m)
    one_of("layout", layout, LAYOUTS)
    if mesh is not None:
        mesh = _check_mesh(mesh, chunk_size, progress)
    before = state
    with precision_scope(precision):
        state = _start(learner, state, key, s, m, mesh, layout)
        test_set = None
        if encoded is not None and schedule is not None:
            reference = _reference(learner, state, stream, encoded[0], expert, m)
            test_set = examined(*encoded, stream, m, reference)
        columns = None
        if schedule is not None:
            met_by = columns_met(columns_known(state), stream.y, stream.weight)
            columns = np.where(schedule, met_by, 0)
        seen = np.zeros(m, bool)
        follow = worth_following(columns, stream.X.shape[1], state.theta.shape[1], m)
        if mesh is not None:
            batches = place_batches(batches, mesh, layout)
        if not guesses and learner.stream.postponed is not None:
            rows = (stream.weight > 0).sum(axis=1)
            final, record = _on_request(
                learner, state, seen, batches, rows, columns, test_set, mesh, layout
            )
        elif chunk_size is None and not progress:
            final, record = on_devices(
                mesh,
                layout,
                (whole_stream, run_whole),
                learner,
                {"num_steps": T, "follow": follow},
                state,
                seen,
                batches,
                columns=columns,
                test=test_set,
            )
        else:
            size = -(-T // 20) if size is None else size
            final, record = _in_chunks(
                learner, state, seen, batches, T, min(size, T), columns, test_set, follow, progress
            )
        jax.block_until_ready(final)
    history = build_history(
        jax.tree.map(fetch, record),
        schedule,
        stream,
        test_set,
        provenance(
            learner,
            stream,
            key,
            precision,
            num_classes=m,
            guesses=guesses,
            state=None if before is None else digest_of(before),
            lookahead=None if lookahead is None else digest_of(np.asarray(lookahead)),
            mesh=None if mesh is None else {"devices": mesh.size, "layout": layout},
        ),
    )
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
    rows: np.ndarray,
    columns: np.ndarray | None,
    test: Examined | None,
    mesh: Mesh | None,
    layout: str,
) -> tuple[State, StepRecord]:
    """Decide only where the test set is looked at, and at the end."""
    T = len(rows)
    plan = plan_blocks(columns, T, batches.X.shape[1])
    final, blocks = on_devices(
        mesh,
        layout,
        (scan_blocks, run_blocks),
        learner,
        {"num_batches": T},
        state,
        seen,
        batches,
        plan,
        test,
    )
    at = plan.last[plan.decide]

    def spread(values: Any, empty: float) -> np.ndarray:
        values = fetch(values)[plan.decide]
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
        "rows": rows,
        "hits": np.full(T, np.nan),
        "loss": np.full(T, np.nan),
        "evaluation": jax.tree.map(lambda leaf: spread(leaf, 0), blocks.evaluation),
    }
    return final, StepRecord(**record)


def _check_mesh(mesh: Mesh, chunk_size: int | None, progress: Any) -> Mesh:
    if chunk_size is not None or progress:
        raise ValueError(
            "mesh: expected no chunk_size and no progress, since a run over several devices is"
            f" one program, got chunk_size={chunk_size!r}, progress={progress!r}"
        )
    return as_auto(mesh)


def _start(
    learner: Learner,
    state: State | None,
    key: Array,
    num_features: int,
    num_classes: int,
    mesh: Mesh | None,
    layout: str,
) -> State:
    """The state to begin with, in the precision of this run and on its devices."""
    if state is not None:
        state = _in_precision(state)
        if mesh is None:
            return state
        check_width(mesh, layout, state.theta.shape[1])
        return place_state(state, mesh, layout)
    if mesh is None:
        return init_state(learner, key, num_features, num_classes)
    init = partial(learner.init, num_features=num_features, num_classes=num_classes)
    check_width(mesh, layout, jax.eval_shape(init, key).theta.shape[1])
    return init_over_mesh(mesh, layout, learner, key, num_features, num_classes)


def _in_precision(state: Any) -> Any:
    """The state with its numbers in the precision of this run."""
    dtype = jnp.result_type(float)

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, state)


def _finite_scores(scores: Array) -> np.ndarray:
    fetched = fetch(scores)
    if not np.isfinite(fetched).all():
        raise NumericalError(
            f"offline expert: the factorisation failed or a value overflowed. Remedy: {REMEDY}."
        )
    return fetched


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
    test = embed_jit(learner, state, test)
    carry = begin_jit(learner, state, batches.X[0], batches.weight[0])
    # The carry is donated, and its weights may share memory with the caller's state.
    carry = jax.tree.map(jnp.copy, carry)
    followed = begin_to_follow_jit(learner, carry, test) if follow else None
    records = []
    with track(T, progress) as advance:
        for start in range(0, T, size):
            piece = jax.tree.map(partial(_window, start=start, length=size + 1), batches)
            looks = None if columns is None else _window(columns, start=start, length=size)
            carry, seen, followed, record = scan_jit(
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
    return finish_jit(learner, carry), record


def _window(array: np.ndarray, *, start: int, length: int) -> np.ndarray:
    """`length` entries from `start`, filled with zeros beyond the end."""
    piece = array[start : start + length]
    missing = length - len(piece)
    return np.pad(piece, [(0, missing)] + [(0, 0)] * (piece.ndim - 1)) if missing else piece
