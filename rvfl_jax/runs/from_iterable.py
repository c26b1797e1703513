"""`run_stream` over batches that are read while it runs; see `rvfl_jax.streams.reader`."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.portable import fetch
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Learner
from rvfl_jax.files.provenance import Provenance, digest_of
from rvfl_jax.runs.history import Run, build_history
from rvfl_jax.runs.inputs import (
    capacity_of,
    check_expert,
    check_features,
    check_state,
    encode_test,
    examined,
    schedule_of,
    start_state,
)
from rvfl_jax.runs.options import RunOptions
from rvfl_jax.runs.reporting import Reporter
from rvfl_jax.runs.resumable import Journal, Start, run_chunks
from rvfl_jax.runs.scan import embed_jit
from rvfl_jax.streams.label_map import as_array
from rvfl_jax.streams.labels import classes_in_order, clean_labels
from rvfl_jax.streams.reader import Feed, Reader

UNKNOWN = "read as it came"


class Course(NamedTuple):
    """A run whose arguments fit together, before anything is computed.

    Attributes:
        known: labels with a column from the beginning, or None.
        num_classes: m.
        every: batches from one evaluation to the next; None for never.
        test: rows and columns of the test set, or None.
        expert: (L, n, m) test scores of the expert, or None.
        upcoming: (b', s) inputs announced to the last batch, or None.
    """

    known: list[Any] | None
    num_classes: int
    every: int | None
    test: tuple[np.ndarray, np.ndarray] | None = None
    expert: np.ndarray | None = None
    upcoming: np.ndarray | None = None


def run_feed(learner: Learner, pairs: Iterable[tuple[Any, Any]], options: RunOptions) -> Run:
    """Run a learner along batches (X, y); see `run_stream`.

    All test rows are of one task, and there is no R, since nobody says where tasks end.
    """
    _check_options(pairs, options)
    known, m = _capacity(options.classes, options.num_classes)
    course = Course(known, m, _every(options.evaluate))
    if options.test is not None and known is None:
        raise ValueError(
            "test: expected classes beside it, since its labels need columns, got none"
        )
    reader = Reader()
    try:
        feed = reader.ask(
            Feed,
            pairs,
            classes=known,
            capacity=m,
            batch_size=options.batch_size,
            chunk_size=options.chunk_size,
        ).result()
        return _run(learner, feed, reader, _checked(learner, feed, course, options), options)
    finally:
        reader.close()


def _check_options(pairs: Any, options: RunOptions) -> None:
    if not options.guesses or options.mesh is not None:
        raise ValueError(
            "stream: expected one in memory beside guesses=False or a mesh,"
            f" got {type(pairs).__name__}"
        )
    if options.boundaries != "none":
        raise ValueError(
            'boundaries: expected "none" for an iterable, which tells of no tasks, got'
            f" {options.boundaries!r}"
        )


def _checked(learner: Learner, feed: Feed, course: Course, options: RunOptions) -> Course:
    """The course with all that depends on the first batch; ValueError on what does not fit it."""
    s, m = feed.num_features, course.num_classes
    test = None
    if options.test is not None:
        test = encode_test(options.test, as_array(course.known or []), s)
    check_expert(options.expert, test, m)
    if options.state is not None:
        check_state(learner, options, s, m)
    upcoming = None
    if options.lookahead is not None:
        upcoming = check_features("lookahead", options.lookahead, s)
        if len(upcoming) > feed.batch_size:
            raise ValueError(
                f"lookahead: expected at most {feed.batch_size} rows, got {len(upcoming)}"
            )
    expert = None if isinstance(options.expert, str) else options.expert
    return course._replace(test=test, expert=expert, upcoming=upcoming)


def _run(learner: Learner, feed: Feed, reader: Reader, course: Course, options: RunOptions) -> Run:
    about = _about(learner, feed, course, options)
    journal = options.keeping.journal(
        about, options.evaluate, course.test, course.expert, options.confusion
    )
    if journal is not None and journal.done:
        _skip(feed, reader, journal)
    m, test = course.num_classes, None
    with options.arithmetic():
        state = start_state(learner, options, feed.num_features, m)
        if course.test is not None and course.every is not None:
            one_task = np.zeros(m if course.known is None else len(course.known), np.int32)
            test = examined(*course.test, one_task, m, course.expert, options.confusion)
        start = Start(
            state=state,
            seen=np.zeros(m, bool),
            first=feed.first,
            test=embed_jit(learner, state, test),
            size=feed.size,
        )
        chunks = reader.ahead(feed.chunks(course.every, course.upcoming))
        stop = options.keeping.stop_on_failure
        with track(None, options.progress) as show:
            report = Reporter(show, options.on_metrics)
            final, record = run_chunks(
                learner, start, chunks, journal, stop_on_failure=stop, report=report
            )
        jax.block_until_ready(final)
    about["data"] = [feed.digest]
    nowhere = np.full(1, -1)
    schedule = schedule_of(options.evaluate, nowhere, feed.done)
    record = jax.tree.map(fetch, record)
    history = build_history(record, schedule, feed.labels.labels, nowhere, test, about)
    return Run(final, history)


def _about(learner: Learner, feed: Feed, course: Course, options: RunOptions) -> Provenance:
    known, state, upcoming = course.known, options.state, course.upcoming
    return options.about(
        learner,
        UNKNOWN,
        num_classes=course.num_classes,
        batch_size=feed.batch_size,
        classes=None if known is None else [repr(label) for label in known],
        state=None if state is None else digest_of(state),
        lookahead=None if upcoming is None else digest_of(upcoming),
    )


def _skip(feed: Feed, reader: Reader, journal: Journal) -> None:
    """Read what the journal holds; ValueError if it is not what was learned."""
    found = reader.ask(feed.skip, journal.done).result()
    if found != journal.digest:
        raise ValueError(
            f"{journal.path}: expected the {journal.done} batches learned already, and then"
            " what was announced to them, batch or end, got others"
        )


def _capacity(
    classes: Sequence[Hashable] | None, num_classes: int | None
) -> tuple[list[Any] | None, int]:
    """Labels with a column from the beginning, and m."""
    if classes is None:
        if num_classes is None:
            raise ValueError(
                "num_classes: expected the most classes that an iterable may bring, or classes,"
                " got neither"
            )
        return None, positive_int("num_classes", num_classes)
    labels = clean_labels("classes", classes)
    known = classes_in_order(labels).tolist()
    if not known or len(known) < len(labels):
        raise ValueError(f"classes: expected each label once, got {list(classes)!r}")
    return known, capacity_of(num_classes, known)


def _every(evaluate: str | int) -> int | None:
    if evaluate == "never":
        return None
    if evaluate == "batch":
        return 1
    if isinstance(evaluate, str):
        raise ValueError(
            "evaluate: expected batch, never or an integer, since an iterable tells of no tasks,"
            f" got {evaluate!r}"
        )
    return positive_int("evaluate", evaluate)
