"""`run_stream` over batches that are read while it runs; see `rvfl_jax.streams.reader`."""

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import numpy as np

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.portable import fetch
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Array, Learner, State
from rvfl_jax.files.provenance import digest_of, provenance
from rvfl_jax.linalg.dense import precision_scope
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
from rvfl_jax.runs.resumable import Keeping, Start, run_chunks
from rvfl_jax.runs.scan import embed_jit
from rvfl_jax.streams.label_map import as_array
from rvfl_jax.streams.labels import classes_in_order, clean_labels
from rvfl_jax.streams.reader import Feed, Reader

UNKNOWN = "read as it came"


def run_feed(
    learner: Learner,
    pairs: Iterable[tuple[Any, Any]],
    *,
    key: Array,
    test: tuple[Any, Any] | None,
    evaluate: str | int,
    expert: str | np.ndarray | None,
    confusion: bool,
    precision: str,
    num_classes: int | None,
    classes: Sequence[Hashable] | None,
    batch_size: int | None,
    state: State | None,
    lookahead: Any,
    chunk_size: int | None,
    keeping: Keeping,
) -> Run:
    """Run a learner along batches (X, y); see `run_stream` for the arguments.

    All test rows are of one task, and there is no R, since nobody says where tasks end.
    """
    known, m = _capacity(classes, num_classes)
    every = _every(evaluate)
    if test is not None and known is None:
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
            batch_size=batch_size,
            chunk_size=chunk_size,
        ).result()
        return _run(
            learner,
            feed,
            reader,
            known,
            m,
            every,
            key=key,
            test=test,
            evaluate=evaluate,
            expert=expert,
            confusion=confusion,
            precision=precision,
            state=state,
            lookahead=lookahead,
            keeping=keeping,
        )
    finally:
        reader.close()


def _run(
    learner: Learner,
    feed: Feed,
    reader: Reader,
    known: list[Any] | None,
    m: int,
    every: int | None,
    *,
    key: Array,
    test: tuple[Any, Any] | None,
    evaluate: str | int,
    expert: str | np.ndarray | None,
    confusion: bool,
    precision: str,
    state: State | None,
    lookahead: Any,
    keeping: Keeping,
) -> Run:
    s = feed.num_features
    encoded = None if test is None else encode_test(test, as_array(known or []), s)
    check_expert(expert, encoded, m)
    if isinstance(expert, str):
        expert = None
    if state is not None:
        check_state(learner, state, key, s, m)
    upcoming = None
    if lookahead is not None:
        upcoming = check_features("lookahead", lookahead, s)
        if len(upcoming) > feed.batch_size:
            raise ValueError(
                f"lookahead: expected at most {feed.batch_size} rows, got {len(upcoming)}"
            )
    about = provenance(
        learner,
        UNKNOWN,
        key,
        precision,
        num_classes=m,
        batch_size=feed.batch_size,
        classes=None if known is None else [repr(label) for label in known],
        state=None if state is None else digest_of(state),
        lookahead=None if upcoming is None else digest_of(upcoming),
    )
    journal = keeping.journal(about, evaluate, encoded, expert, confusion)
    if journal is not None and journal.done:
        told = reader.ask(feed.skip, journal.done).result()
        if told != journal.digest:
            raise ValueError(
                f"{journal.path}: expected the {journal.done} batches learned already, and then"
                " what was announced to them, batch or end, got others"
            )
    with precision_scope(precision):
        state = start_state(learner, state, key, s, m, None, "rows")
        test_set = None
        if encoded is not None and every is not None:
            one_task = np.zeros(m if known is None else len(known), np.int32)
            test_set = examined(*encoded, one_task, m, expert, confusion)
        chunks = reader.ahead(feed.chunks(every, upcoming))
        with track(None, keeping.progress) as advance:
            final, record = run_chunks(
                learner,
                Start(
                    state,
                    np.zeros(m, bool),
                    feed.first,
                    embed_jit(learner, state, test_set),
                    feed.size,
                ),
                chunks,
                journal,
                stop_on_failure=keeping.stop_on_failure,
                advance=advance,
            )
        jax.block_until_ready(final)
    about["data"] = [feed.digest]
    nowhere = np.full(1, -1)
    schedule = schedule_of(evaluate, nowhere, feed.done)
    record = jax.tree.map(fetch, record)
    history = build_history(record, schedule, feed.labels.labels, nowhere, test_set, about)
    return Run(final, history)


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
