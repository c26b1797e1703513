"""The one driver of learners along streams.

`run_stream` checks its inputs on the host, picks the precision, compiles, shows progress and
hands back plain arrays; the scan itself is in `rvfl_jax.runs.scan`.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np
from jax.sharding import Mesh

from rvfl_jax.core.checks import NumericalError, one_of, positive_int, prng_key
from rvfl_jax.core.portable import fetch
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Array, Evaluate, Layout, Learner, Precision, State, Stream
from rvfl_jax.files.provenance import digest_of, fingerprint, provenance
from rvfl_jax.learners.base import LearnerProgram
from rvfl_jax.linalg.dense import precision_scope
from rvfl_jax.metrics import by_learner
from rvfl_jax.runs.deferred import plan_blocks, run_blocks, scan_blocks
from rvfl_jax.runs.evaluation import HeldOut, columns_met, worth_following
from rvfl_jax.runs.failure import REMEDY, raise_if_unhealthy
from rvfl_jax.runs.from_iterable import run_feed
from rvfl_jax.runs.history import Run, StepRecord, build_history
from rvfl_jax.runs.inputs import (
    announce,
    capacity_of,
    check_batches,
    check_expert,
    check_features,
    check_learner,
    check_state,
    columns_known,
    encode_test,
    examined,
    schedule_of,
    start_state,
)
from rvfl_jax.runs.resumable import Keeping, Start, run_chunks, windows
from rvfl_jax.runs.scan import embed_jit, init_state, run_whole, whole_stream
from rvfl_jax.runs.sharding import LAYOUTS, as_auto, on_devices, place_batches
from rvfl_jax.streams.batches import Batches
from rvfl_jax.streams.class_incremental import check_stream


def _scores_of_the_expert(
    learner: Learner, state: State, batches: Batches, X_test: Array, num_classes: int
) -> Array:
    X = batches.X.reshape(-1, batches.X.shape[-1])
    Y = jax.nn.one_hot(batches.y.reshape(-1), num_classes)
    assert learner.fit_offline is not None
    fitted = learner.fit_offline(state, X, Y, batches.weight.reshape(-1))
    return by_learner(learner.scores(fitted, X_test))


_offline_scores = LearnerProgram(_scores_of_the_expert, static_argnames="num_classes")


def offline_scores(
    learner: Learner,
    stream: Stream,
    X_test: Any,
    *,
    key: Array,
    num_classes: int | None = None,
    precision: Precision = "double",
) -> np.ndarray:
    """(L, n, m) test scores of the expert that learns the whole stream at once, eq. (5).

    The expert has the random features that `learner.init(key, ...)` draws, so it is the
    reference of every run with that key and network, whatever its k, that began from no prior.

    Raises:
        ValueError: if the method has no offline counterpart, or on unusable data.
    """
    check_learner(learner)
    prng_key("key", key)
    if learner.fit_offline is None:
        raise ValueError("learner: expected one with fit_offline, got one without")
    check_stream(stream)
    X_test = check_features("X_test", X_test, stream.X.shape[-1])
    m = capacity_of(num_classes, stream.classes)
    with precision_scope(precision):
        state = init_state(learner, key, stream.X.shape[-1], m)
        batches = Batches(stream.X, stream.y, stream.weight)
        return _finite_scores(_offline_scores(learner, state, batches, X_test, m))


def run_stream(
    learner: Learner,
    stream: Stream | Iterable[tuple[Any, Any]],
    *,
    key: Array,
    test: tuple[Any, Any] | None = None,
    evaluate: Evaluate | int = "batch",
    expert: Literal["offline"] | np.ndarray | None = "offline",
    guesses: bool = True,
    confusion: bool = False,
    precision: Precision = "double",
    num_classes: int | None = None,
    classes: Sequence[Hashable] | None = None,
    batch_size: int | None = None,
    state: State | None = None,
    lookahead: Any = None,
    chunk_size: int | None = None,
    progress: bool | Callable[[int, int], None] = False,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    on_failure: Literal["raise", "return"] = "raise",
    mesh: Mesh | None = None,
    layout: Layout = "rows",
) -> Run:
    """Run a learner once along a stream, in one pass and in one compiled program.

    Example:
        >>> stream = class_incremental_stream(X, y, num_tasks=5, num_batches=20, seed=0)
        >>> run = run_stream(learner, stream, key=jax.random.key(0), test=(X_test, y_test))
        >>> run.history.accuracy["class_incremental"]

    A second run on the same shapes compiles nothing, be it of another learner that differs in
    numbers only (lambda, k above 0, kappa, sigma, `weight_scale`).

    Anything else that can be iterated is a stream too: a generator, slices of a memory-mapped
    file, a PyTorch DataLoader, `batched(rows, 64)` of a data set. It gives batches (X, y), in
    memory one chunk at a time, which one thread of its own reads while the chunk before is learned,
    and always one batch further, since that is the look-ahead. Only the numbers of the history
    grow with it. It has no tasks and no offline expert, and an error may come after its first
    batch is taken.

    Args:
        learner: the method.
        stream: from `class_incremental_stream` or built by hand, or an iterable of (X, y) with
            X (rows, s) and y (rows,) labels.
        key: PRNG key of the random features.
        test: (X, y) with labels in the stream's own terms, or None.
        evaluate: when to look at the test set: "batch", "task" (at task ends), "never",
            or an integer E for every E batches and at the end.
        expert: reference of excess loss and divergence: "offline" fits it (if the method has
            one), an (L, n, m) array is taken as the result of `offline_scores`, None leaves
            both NaN.
        guesses: whether each batch is guessed before it is learned. False leaves the
            prequential figures NaN; a learner in information form with a constant k then
            only adds up, and decides where the test set is looked at and at the end.
        confusion: whether every look at the test set counts which class was taken for which.
        precision: "double" or "single", for this run only; the global setting is left
            alone.
        num_classes: m, the designed capacity; the classes of the stream when None.
        classes: of an iterable, all labels in the order of their columns. Without them columns
            go by order of appearance, up to `num_classes`, and there can be no test.
        batch_size: of an iterable, most rows of a batch; those of the first when None.
        state: where to go on from; fresh from `key` when None. It is not consumed.
        lookahead: (b', s) inputs that follow the stream, b' at most b, announced to the
            last step; without them the last step has no forward term.
        chunk_size: batches per compiled call. None runs the stream as one program, or in
            about 20 chunks when progress is shown or kept; of an iterable, chunks take 32 MB.
        progress: True for a progress bar, or a function of (batches done, batches; 0 where
            their number is not known).
        checkpoint: file that holds, after every chunk, all that the rest of the run depends on.
            It is replaced in one move, so that a kill at any moment leaves a whole one.
        resume: go on from that file where there is one. The arguments must be those of the run
            that wrote it, an iterable must begin anew with the same batches, and the result is
            that of the run without an interruption, to the last bit. A run that is finished is
            only read; `state=run.state` goes on where it ended.
        on_failure: "raise" a NumericalError that names the batch, in chunks as soon as it
            happens and before it is kept; or "return" the run with `history.healthy` telling.
        mesh: devices to run on together, of one process or of several; None is one device.
        layout: what the devices of a mesh share. "rows": the rows of each batch, for
            learners in information form. "eta_dagger": the rows of d x d matrices too large
            for one device, for learners in covariance form; d must be a multiple of the
            number of devices. Both give what one device gives, sums in another order.

    Returns:
        Run(state, history); `history.provenance` tells what it depends on.

    Raises:
        ValueError: on unusable input, before anything is compiled; in an iterable, when it is
            reached. On a checkpoint that is damaged or of another run, listing what differs.
        NumericalError: if a factorisation failed or a value overflowed.
        OSError: if the checkpoint cannot be written; the one before is left.
    """
    check_learner(learner)
    prng_key("key", key)
    one_of("on_failure", on_failure, ("raise", "return"))
    one_of("layout", layout, LAYOUTS)
    size = None if chunk_size is None else positive_int("chunk_size", chunk_size)
    when: Any = evaluate
    evaluate = int(when) if isinstance(when, np.integer) else when
    if expert is not None and not isinstance(expert, str):
        expert = np.asarray(expert)
    keeping = Keeping(progress, checkpoint, resume, on_failure == "raise")
    options: dict[str, Any] = {
        "key": key,
        "test": test,
        "evaluate": evaluate,
        "expert": expert,
        "confusion": confusion,
        "precision": precision,
        "num_classes": num_classes,
        "state": state,
        "lookahead": lookahead,
        "chunk_size": size,
        "keeping": keeping,
    }
    if not isinstance(stream, Stream):
        check_batches(stream)
    if isinstance(stream, Stream):
        if classes is not None or batch_size is not None:
            raise ValueError(
                "stream: expected an iterable of (X, y) beside classes or batch_size, got a"
                " Stream, which has its own"
            )
        run = _run_in_memory(learner, stream, guesses=guesses, mesh=mesh, layout=layout, **options)
    elif not guesses or mesh is not None:
        raise ValueError(
            "stream: expected one in memory beside guesses=False or a mesh,"
            f" got {type(stream).__name__}"
        )
    else:
        run = run_feed(learner, stream, classes=classes, batch_size=batch_size, **options)
    if on_failure == "raise":
        raise_if_unhealthy(run.history)
    return run


def _run_in_memory(
    learner: Learner,
    stream: Stream,
    *,
    key: Array,
    test: tuple[Any, Any] | None,
    evaluate: str | int,
    expert: str | np.ndarray | None,
    guesses: bool,
    confusion: bool,
    precision: str,
    num_classes: int | None,
    state: State | None,
    lookahead: Any,
    chunk_size: int | None,
    keeping: Keeping,
    mesh: Mesh | None,
    layout: str,
) -> Run:
    check_stream(stream)
    T, b, s = stream.X.shape
    m = capacity_of(num_classes, stream.classes)
    schedule = schedule_of(evaluate, stream.task_ends, T)
    batches = announce(Batches(stream.X, stream.y, stream.weight), lookahead)
    encoded = None if test is None else encode_test(test, stream.classes, s)
    check_expert(expert, encoded, m)
    if state is not None:
        check_state(learner, state, key, s, m)
    if mesh is not None:
        mesh = _check_mesh(mesh, chunk_size, keeping)
    if keeping.checkpoint is not None and not guesses:
        raise ValueError(
            "checkpoint: expected guesses=True, since a run that only adds up is one program"
        )
    about = provenance(
        learner,
        fingerprint(stream),
        key,
        precision,
        num_classes=m,
        guesses=guesses,
        state=None if state is None else digest_of(state),
        lookahead=None if lookahead is None else digest_of(np.asarray(lookahead)),
        mesh=None if mesh is None else {"devices": mesh.size, "layout": layout},
    )
    journal = keeping.journal(
        about,
        evaluate,
        encoded,
        expert,
        confusion,
        classes=[repr(label) for label in stream.classes.tolist()],
        tasks=digest_of((stream.class_task, stream.task)),
    )
    with precision_scope(precision):
        state = start_state(learner, state, key, s, m, mesh, layout)
        test_set = None
        if encoded is not None and schedule is not None:
            reference = _reference(learner, state, stream, encoded[0], expert, m)
            test_set = examined(*encoded, stream.class_task, m, reference, confusion)
        columns = None
        if schedule is not None:
            met_by = columns_met(columns_known(learner, state), stream.y, stream.weight)
            columns = np.where(schedule, met_by, 0)
        seen = np.zeros(m, bool)
        width = 0 if (of := learner.stream.facts.width) is None else of(state)
        follow = learner.stream.follow is not None and worth_following(columns, b, width, m)
        if mesh is not None:
            batches = place_batches(batches, mesh, layout)
        if not guesses and learner.stream.postponed is not None:
            rows = (stream.weight > 0).sum(axis=1)
            final, record = _on_request(
                learner, state, seen, batches, rows, columns, test_set, mesh, layout
            )
        elif chunk_size is None and not keeping.in_chunks:
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
            size = min(-(-T // 20) if chunk_size is None else chunk_size, T)
            done = 0 if journal is None else journal.done
            with track(T, keeping.progress) as advance:
                final, record = run_chunks(
                    learner,
                    Start(
                        state,
                        seen,
                        (batches.X[0], batches.weight[0]),
                        embed_jit(learner, state, test_set),
                        size,
                        follow,
                    ),
                    windows(batches, columns, start=done, total=T, size=size),
                    journal,
                    stop_on_failure=keeping.stop_on_failure,
                    advance=advance,
                )
        jax.block_until_ready(final)
    record = jax.tree.map(fetch, record)
    return Run(
        final,
        build_history(record, schedule, stream.classes.tolist(), stream.task_ends, test_set, about),
    )


def _on_request(
    learner: Learner,
    state: State,
    seen: Any,
    batches: Batches,
    rows: np.ndarray,
    columns: np.ndarray | None,
    test: HeldOut | None,
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


def _check_mesh(mesh: Mesh, chunk_size: int | None, keeping: Keeping) -> Mesh:
    if chunk_size is not None or keeping.in_chunks:
        raise ValueError(
            "mesh: expected no chunk_size, progress and checkpoint, since a run over several"
            f" devices is one program, got chunk_size={chunk_size!r},"
            f" progress={keeping.progress!r}, checkpoint={keeping.checkpoint!r}"
        )
    return as_auto(mesh)


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
