"""A stream in several calls of one compiled program, so that progress shows and can be kept.

All that the rest of a run depends on between two calls is a `Standing`. Written to a file after
every call and read back, it gives the run that was never interrupted, to the last bit.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import differences
from rvfl_jax.core.types import Learner, State
from rvfl_jax.files.checkpoint import (
    Checkpoint,
    load_checkpoint_file,
    restore,
    save_checkpoint,
    sweep_parts,
)
from rvfl_jax.files.provenance import digest_of
from rvfl_jax.runs.evaluation import Examined
from rvfl_jax.runs.failure import raise_if_unhealthy
from rvfl_jax.runs.history import StepRecord
from rvfl_jax.runs.reporting import Reporter
from rvfl_jax.runs.scan import begin_jit, begin_to_follow_jit, finish_jit, scan_jit
from rvfl_jax.streams.batches import Batches, Chunk


class Standing(NamedTuple):
    """Where a run stands: the scan's carry, classes seen, followed scores and all records."""

    carry: Any
    seen: Any
    followed: Any
    record: StepRecord | None


# Other versions and devices may round otherwise, and are no reason to lose a long run.
ENVIRONMENT = ("versions", "python", "device", "xla_flags")


class Journal:
    """The file in which a run keeps where it stands.

    Attributes:
        done: batches that the file holds.
        looks: how often the test set was looked at in them.
        digest: of the rows learned, if the file tells.
    """

    def __init__(
        self,
        path: str | Path,
        description: Mapping[str, Any],
        environment: Mapping[str, Any],
        *,
        resume: bool,
    ) -> None:
        """Open the file, or begin one.

        Args:
            path: of the file.
            description: what a run is, as JSON takes it; a resumed one must have the same.
            environment: what else its last bits depend on; a difference is a warning.
            resume: go on from the file if there is one; otherwise there must be none.

        Raises:
            ValueError: if there is a file that is not to be gone on with, if it is damaged, or
                if it is of another run: all differences are listed.
        """
        self.path = Path(path)
        self._description = json.loads(json.dumps(description))
        self._environment = json.loads(json.dumps(environment))
        self._found: Checkpoint | None = None
        self.done, self.looks, self.digest = 0, 0, None
        if not self.path.parent.is_dir() or self.path.is_dir():
            raise ValueError(f"checkpoint: expected a file in a folder that is there, got {path}")
        if not self.path.exists():
            return
        if not resume:
            raise ValueError(
                f"checkpoint: expected no file yet at {str(path)!r}, got one; resume goes on from"
                " it"
            )
        self._found = load_checkpoint_file(self.path)
        metadata = self._found.metadata["metadata"]
        described = metadata.get("run")
        if not isinstance(described, dict):
            raise ValueError(f"{path}: expected the checkpoint of a run, got another file")
        faults = differences(self._description, described)
        if faults:
            raise ValueError(
                f"{path}: expected a checkpoint of this run, got one that differs in"
                f" {len(faults)}: " + "; ".join(faults)
            )
        others = differences(self._environment, metadata["environment"])
        if others:
            warnings.warn(
                f"{path}: begun under other circumstances, so that the last bits may differ from"
                " those of a run in one go: " + "; ".join(others),
                stacklevel=4,
            )
        self.done, self.looks = metadata["batches"], metadata["looks"]
        self.digest = metadata["digest"]
        sweep_parts(self.path)

    def read(self, like: Standing) -> Standing | None:
        """What the file holds, strictly in the structure of `like`; None for a new file."""
        if self._found is None:
            return None
        found = restore(self._found, like, what=str(self.path))
        self._found = None
        return found

    def write(self, standing: Standing, done: int, digest: str | None) -> None:
        """Replace the file; OSError leaves what was there."""
        about = {
            "run": self._description,
            "environment": self._environment,
            "batches": done,
            "looks": _looks(standing.record),
            "digest": digest,
        }
        save_checkpoint(self.path, standing, about)


class Keeping(NamedTuple):
    """What of a run is shown and kept while it goes on; see `run_stream`."""

    progress: bool | Callable[[int, int], None] = False
    checkpoint: str | Path | None = None
    resume: bool = False
    stop_on_failure: bool = True

    @property
    def in_chunks(self) -> bool:
        """Whether the run has to pause at all."""
        return bool(self.progress) or self.checkpoint is not None

    def journal(
        self,
        about: Mapping[str, Any],
        evaluate: str | int,
        test: tuple[np.ndarray, np.ndarray] | None,
        expert: Any,
        confusion: bool,
        **more: Any,
    ) -> Journal | None:
        """The file where the run keeps where it stands; None if it keeps nothing."""
        if self.checkpoint is None:
            if self.resume:
                raise ValueError("resume: expected a checkpoint to go on from, got none")
            return None
        description = {
            **{name: value for name, value in about.items() if name not in ENVIRONMENT},
            "evaluate": evaluate,
            "test": None if test is None else digest_of(test),
            "expert": expert if expert is None or isinstance(expert, str) else digest_of(expert),
            "confusion": confusion,
            **more,
        }
        environment = {name: about[name] for name in ENVIRONMENT}
        return Journal(self.checkpoint, description, environment, resume=self.resume)


class Start(NamedTuple):
    """Where a run in chunks begins.

    Attributes:
        state: of the learner.
        seen: (m,) classes met before the stream.
        first: X and weight of its first batch.
        test: the test set, or None.
        size: batches of a chunk, the announced one left out.
        follow: see `begin_to_follow`.
        ends: whether the batches tell the ends of tasks.
    """

    state: State
    seen: Any
    first: tuple[Any, Any]
    test: Examined | None
    size: int
    follow: bool = False
    ends: bool = False


def run_chunks(
    learner: Learner,
    start: Start,
    chunks: Iterable[Chunk],
    journal: Journal | None,
    *,
    stop_on_failure: bool,
    report: Reporter,
) -> tuple[State, StepRecord]:
    """Learn chunks, from where the journal stands if it does.

    Args:
        learner: the method.
        start: where the stream begins, with the test set as `embed_test` gives it.
        chunks: those that the journal does not hold yet.
        journal: where to keep what was done, or None.
        stop_on_failure: whether arithmetic that failed ends the run, before it is kept.
        report: told of each chunk once it is kept.
    """
    standing, done = None, 0
    if journal is not None:
        standing = journal.read(_like(learner, start, journal))
        done = journal.done
        report.resumed(done, None if standing is None else standing.record)
    if standing is None:
        standing = _begin(learner, start)
    # The carry is donated, and its weights may share memory with the caller's state.
    carry, seen, followed = jax.tree.map(jnp.copy, standing[:3])
    records = [] if standing.record is None else [standing.record]
    for chunk in chunks:
        carry, seen, followed, record = scan_jit(
            learner,
            carry,
            seen,
            chunk.batches,
            num_steps=len(chunk.batches.weight) - 1,
            columns=chunk.columns,
            test=start.test,
            followed=followed,
        )
        learned = _kept(record, chunk)
        records.append(learned)
        if stop_on_failure and not learned.healthy.all():
            raise_if_unhealthy(_joined(records))
        done += chunk.length
        if journal is not None:
            records = [_joined(records)]
            journal.write(Standing(carry, seen, followed, records[0]), done, chunk.digest)
        report.learned(done, learned)
    return finish_jit(learner, carry), _joined(records)


def windows(
    batches: Batches, columns: np.ndarray | None, *, start: int, total: int, size: int
) -> Iterable[Chunk]:
    """The batches from `start` to `total` of a stream in memory, as chunks."""
    announced = len(batches.X) > total
    for at in range(start, total, size):
        length = min(size, total - at)
        steps = length if announced else size
        piece = jax.tree.map(partial(_window, start=at, length=steps + 1), batches)
        looks = None if columns is None else _window(columns, at, steps)
        yield Chunk(piece, looks, length)


def _begin(learner: Learner, start: Start) -> Standing:
    carry = begin_jit(learner, start.state, *start.first)
    followed = begin_to_follow_jit(learner, carry, start.test) if start.follow else None
    return Standing(carry, start.seen, followed, None)


def _like(learner: Learner, start: Start, journal: Journal) -> Standing:
    """Shapes and dtypes of where this run stands after so many batches."""

    def after_one_chunk() -> Standing:
        carry, _, followed, _ = _begin(learner, start)
        X, weight = start.first
        y = np.zeros(weight.shape, np.int32)
        ends = np.zeros(start.size + 1, bool) if start.ends else None
        rows = [jnp.broadcast_to(a, (start.size + 1, *a.shape)) for a in (X, y, weight)]
        batches = Batches(*rows)._replace(ends=ends)
        columns = None if start.test is None else jnp.zeros(start.size, int)
        return Standing(
            *scan_jit(
                learner,
                carry,
                jnp.asarray(start.seen),
                batches,
                num_steps=start.size,
                columns=columns,
                test=start.test,
                followed=followed,
            )
        )

    def of_length(length: int, leaves: Any) -> Any:
        return jax.tree.map(
            lambda leaf: jax.ShapeDtypeStruct((length, *leaf.shape[1:]), leaf.dtype), leaves
        )

    like = jax.eval_shape(after_one_chunk)
    looks = of_length(journal.looks, like.record.evaluation)
    record = of_length(journal.done, like.record._replace(evaluation=None))
    return like._replace(record=record._replace(evaluation=looks))


def _kept(scanned: StepRecord, chunk: Chunk) -> StepRecord:
    """Of every batch there is, and of the looks at the test set only those that were made."""
    record: StepRecord = jax.tree.map(lambda leaf: np.asarray(leaf)[: chunk.length], scanned)
    if chunk.columns is None:
        return record
    looks = np.asarray(chunk.columns)[: chunk.length] > 0
    looked = jax.tree.map(lambda leaf: leaf[looks], record.evaluation)
    return record._replace(evaluation=looked)


def _looks(record: StepRecord | None) -> int:
    leaves = jax.tree.leaves(record.evaluation) if record is not None else []
    return len(leaves[0]) if leaves else 0


def _joined(records: list[StepRecord]) -> StepRecord:
    return jax.tree.map(lambda *parts: np.concatenate(parts), *records)


def _window(array: np.ndarray, start: int, length: int) -> np.ndarray:
    """`length` entries from `start`, filled with zeros beyond the end."""
    piece = array[start : start + length]
    missing = length - len(piece)
    return np.pad(piece, [(0, missing)] + [(0, 0)] * (piece.ndim - 1)) if missing else piece
