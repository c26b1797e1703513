"""`run_stream` along a stream in memory: as one program, in chunks, or with few decisions."""

from typing import Any, NamedTuple

import jax
import numpy as np

from rvfl_jax.core.portable import fetch
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Learner, State, Stream
from rvfl_jax.files.provenance import Provenance, digest_of, fingerprint
from rvfl_jax.runs.deferred import BlockRecord, plan_blocks, run_blocks, scan_blocks
from rvfl_jax.runs.evaluation import HeldOut, columns_seen, worth_following
from rvfl_jax.runs.expert import reference_scores
from rvfl_jax.runs.history import Run, StepRecord, build_history
from rvfl_jax.runs.inputs import (
    announce,
    batches_of,
    capacity_of,
    check_expert,
    check_state,
    columns_known,
    encode_test,
    examined,
    schedule_of,
    start_state,
)
from rvfl_jax.runs.options import RunOptions
from rvfl_jax.runs.reporting import Reporter
from rvfl_jax.runs.resumable import Journal, Start, run_chunks, windows
from rvfl_jax.runs.scan import embed_jit, run_whole, whole_stream
from rvfl_jax.runs.sharding import on_devices, place_batches
from rvfl_jax.runs.step import consolidates
from rvfl_jax.streams.batches import Batches
from rvfl_jax.streams.class_incremental import check_stream


class Course(NamedTuple):
    """A run whose arguments fit together, before anything is computed.

    Attributes:
        batches: T of them, and one more if it is to be announced.
        rows: (T,) of each batch.
        num_classes: m.
        schedule: (T,) after which batches the test set is evaluated; None for never.
        test: rows and columns of the test set, or None.
        about: what the run depends on.
        journal: where it is kept, or None.
    """

    batches: Batches
    rows: np.ndarray
    num_classes: int
    schedule: np.ndarray | None
    test: tuple[np.ndarray, np.ndarray] | None
    about: Provenance
    journal: Journal | None


def run_in_memory(learner: Learner, stream: Stream, options: RunOptions) -> Run:
    """Run a learner along a stream; see `run_stream`."""
    course = _course(learner, stream, options)
    with options.arithmetic():
        state = start_state(learner, options, stream.X.shape[-1], course.num_classes)
        test = _test_set(learner, state, stream, course, options)
        columns = None
        if course.schedule is not None:
            seen_by = columns_seen(columns_known(learner, state), stream.y, stream.weight)
            columns = np.where(course.schedule, seen_by, 0)
        final, record = _learn(learner, state, course, columns, test, options)
        jax.block_until_ready(final)
    record = jax.tree.map(fetch, record)
    labels, ends = stream.classes.tolist(), stream.task_ends
    return Run(final, build_history(record, course.schedule, labels, ends, test, course.about))


def _course(learner: Learner, stream: Stream, options: RunOptions) -> Course:
    """ValueError on what does not fit together."""
    if options.classes is not None or options.batch_size is not None:
        raise ValueError(
            "stream: expected an iterable of (X, y) beside classes or batch_size, got a"
            " Stream, which has its own"
        )
    check_stream(stream)
    T, _, s = stream.X.shape
    m = capacity_of(options.num_classes, stream.classes)
    schedule = schedule_of(options.evaluate, stream.task_ends, T)
    boundaries = options.boundaries if consolidates(learner) else "none"
    batches = announce(batches_of(stream, boundaries), options.lookahead)
    test = None if options.test is None else encode_test(options.test, stream.classes, s)
    check_expert(options.expert, test, m)
    if options.state is not None:
        check_state(learner, options, s, m)
    _check_one_program(options)
    about = _about(learner, stream, m, options)
    journal = options.keeping.journal(
        about,
        options.evaluate,
        test,
        options.expert,
        options.confusion,
        classes=[repr(label) for label in stream.classes.tolist()],
        tasks=digest_of((stream.class_task, stream.task)),
    )
    rows = (stream.weight > 0).sum(axis=1)
    return Course(batches, rows, m, schedule, test, about, journal)


def _check_one_program(options: RunOptions) -> None:
    """ValueError where a run that has to be one program is to be shown or kept in parts."""
    if options.mesh is not None and options.in_chunks:
        raise ValueError(
            "mesh: expected no chunk_size, progress, on_metrics and checkpoint, since a run over"
            f" several devices is one program, got chunk_size={options.chunk_size!r},"
            f" progress={options.progress!r}, on_metrics={options.on_metrics!r},"
            f" checkpoint={options.checkpoint!r}"
        )
    for name in ("checkpoint", "on_metrics"):
        if getattr(options, name) is not None and not options.guesses:
            raise ValueError(
                f"{name}: expected guesses=True, since a run that only adds up is one program"
            )


def _about(learner: Learner, stream: Stream, m: int, options: RunOptions) -> Provenance:
    state, rows, mesh = options.state, options.lookahead, options.mesh
    # Only where it is asked for, as records of before know nothing of it.
    more = {} if options.boundaries == "none" else {"boundaries": options.boundaries}
    return options.about(
        learner,
        fingerprint(stream),
        num_classes=m,
        guesses=options.guesses,
        state=None if state is None else digest_of(state),
        lookahead=None if rows is None else digest_of(np.asarray(rows)),
        mesh=None if mesh is None else {"devices": mesh.size, "layout": options.layout},
        **more,
    )


def _test_set(
    learner: Learner, state: State, stream: Stream, course: Course, options: RunOptions
) -> HeldOut | None:
    """The test set, if it is to be evaluated, with the scores of the expert."""
    if course.test is None or course.schedule is None:
        return None
    m, scores = course.num_classes, options.expert
    if isinstance(scores, str):
        scores = reference_scores(learner, state, stream, course.test[0], m)
    return examined(*course.test, stream.class_task, m, scores, options.confusion)


def _learn(
    learner: Learner,
    state: State,
    course: Course,
    columns: np.ndarray | None,
    test: HeldOut | None,
    options: RunOptions,
) -> tuple[State, StepRecord]:
    """The last state and what was kept of each batch.

    Args:
        learner: the method.
        state: where it begins.
        course: of the run.
        columns: (T,) see `scan_stream`.
        test: the test set, or None.
        options: of the run.
    """
    batches, mesh = course.batches, options.mesh
    follow = _follows(learner, state, course, columns)
    if mesh is not None:
        batches = place_batches(batches, mesh, options.layout)
    if not options.guesses and learner.stream.deferred is not None and batches.ends is None:
        return _deferred(learner, state, course._replace(batches=batches), columns, test, options)
    if options.in_chunks:
        return _in_chunks(learner, state, course, columns, test, options)
    return on_devices(
        mesh,
        options.layout,
        (whole_stream, run_whole),
        learner,
        {"num_steps": len(course.rows), "follow": follow},
        state,
        np.zeros(course.num_classes, bool),
        batches,
        columns=columns,
        test=test,
    )


def _follows(learner: Learner, state: State, course: Course, columns: np.ndarray | None) -> bool:
    """Whether the scores of the test set follow the learner, and are not computed anew."""
    form, width = learner.stream.follow, learner.stream.facts.width
    # Nothing follows what is done where a task ends.
    if form is None or width is None or course.batches.ends is not None:
        return False
    rows = course.batches.X.shape[1]
    return worth_following(columns, rows, width(state), course.num_classes)


def _in_chunks(
    learner: Learner,
    state: State,
    course: Course,
    columns: np.ndarray | None,
    test: HeldOut | None,
    options: RunOptions,
) -> tuple[State, StepRecord]:
    batches, journal, T = course.batches, course.journal, len(course.rows)
    size = min(-(-T // 20) if options.chunk_size is None else options.chunk_size, T)
    start = Start(
        state=state,
        seen=np.zeros(course.num_classes, bool),
        first=(batches.X[0], batches.weight[0]),
        test=embed_jit(learner, state, test),
        size=size,
        follow=_follows(learner, state, course, columns),
        ends=batches.ends is not None,
    )
    done = 0 if journal is None else journal.done
    chunks = windows(batches, columns, start=done, total=T, size=size)
    with track(T, options.progress) as show:
        stop, report = options.keeping.stop_on_failure, Reporter(show, options.on_metrics)
        return run_chunks(learner, start, chunks, journal, stop_on_failure=stop, report=report)


def _deferred(
    learner: Learner,
    state: State,
    course: Course,
    columns: np.ndarray | None,
    test: HeldOut | None,
    options: RunOptions,
) -> tuple[State, StepRecord]:
    """Decide only where the test set is evaluated, and at the end."""
    T = len(course.rows)
    plan = plan_blocks(columns, T, course.batches.X.shape[1])
    final, blocks = on_devices(
        options.mesh,
        options.layout,
        (scan_blocks, run_blocks),
        learner,
        {"num_batches": T},
        state,
        np.zeros(course.num_classes, bool),
        course.batches,
        plan,
        test,
    )
    return final, _record_of_blocks(blocks, plan.last, plan.decide, course.rows)


def _record_of_blocks(
    blocks: BlockRecord, last: np.ndarray, decide: np.ndarray, rows: np.ndarray
) -> StepRecord:
    """What is known of each batch, which is little where nothing was decided.

    Args:
        blocks: a record for each block.
        last: (K,) see `Plan`, as for the next.
        decide: (K,).
        rows: (T,) of each batch.
    """
    T, at = len(rows), last[decide]

    def spread(values: Any, empty: float) -> np.ndarray:
        values = fetch(values)[decide]
        everywhere = np.full((T, *values.shape[1:]), empty, values.dtype)
        everywhere[at] = values
        return everywhere

    none = np.zeros((T, blocks.healthy.shape[1]))
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
    return StepRecord(**record)
