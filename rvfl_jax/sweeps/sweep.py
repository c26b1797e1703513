"""Many configurations along one stream, or several: `sweep`."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ParamSpec
from typing import Protocol as Interface

import jax
import numpy as np

from rvfl_jax.core.keywords import options_from_keywords
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Learner, Stream
from rvfl_jax.files.provenance import Provenance, fingerprint, provenance
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.runs.evaluation import columns_seen
from rvfl_jax.runs.inputs import batches_of, capacity_of, encode_test, examined, schedule_of
from rvfl_jax.streams.class_incremental import check_stream
from rvfl_jax.sweeps.grid import Axis, axes_of, programs
from rvfl_jax.sweeps.options import MakeLearner, SweepOptions
from rvfl_jax.sweeps.program import Job, Program, Room, point_at
from rvfl_jax.sweeps.result import Sweep, build_sweep

P = ParamSpec("P")
Grid = Mapping[str, Any] | Sequence[Mapping[str, Any]]

# With progress shown, work is cut into about so many chunks where that costs nothing.
CHUNKS_SHOWN = 10


class _RunSweep(Interface[P]):
    def __call__(
        self,
        make_learner: MakeLearner,
        stream: Stream | Sequence[Stream],
        grid: Grid,
        *args: P.args,
        **options: P.kwargs,
    ) -> Sweep: ...


def _sweep_with(
    kind: Callable[P, SweepOptions],
) -> Callable[[Callable[[MakeLearner, Any, Grid, SweepOptions], Sweep]], _RunSweep[P]]:
    """What a type checker knows of the decorator: calls take the arguments of `kind`."""
    return options_from_keywords(kind)


@_sweep_with(SweepOptions)
def sweep(  # noqa: D417
    make_learner: MakeLearner,
    stream: Stream | Sequence[Stream],
    grid: Grid,
    options: SweepOptions,
) -> Sweep:
    """Run every configuration of a grid along a stream; one program, one compilation.

    Example:
        >>> def make(k, ridge):
        ...     return rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=ridge, k=k)
        >>> grid = {"ridge": np.logspace(-3, 1, 5), "k": np.linspace(0, 2, 64)}
        >>> result = rvfl_jax.sweep(make, stream, grid, key=jax.random.key(0))
        >>> run = rvfl_jax.run_stream(make(**result.best()), stream, key=jax.random.key(0))

    Args:
        make_learner: `make_learner(**point) -> Learner`, a pure function. Called with traced
            numbers; pass the same function again, not a new lambda, to compile nothing anew.
        stream: a stream, or several of equal shapes (`pad_batches`), such as task orders,
            which become the axis "stream".
        grid: name to values, of which all combinations run; or a list of points, such as
            `random_points` draws, which become the axis "point". Values are numbers, or one
            array of numbers a layer. The name "seed" is not handed to `make_learner`: its
            integers give each configuration the key `jax.random.fold_in(key, seed)`. Values
            that are not numbers (activations, solvers) cost one program each.
        key: PRNG key of the random features.
        test: (X, y) with labels in the stream's own terms, or None.
        evaluate: when to evaluate the test set, as in `run_stream`; "task" evaluates all
            configurations where a task of any of the streams ends.
        precision: "double" or "single".
        num_classes: m, the designed capacity; the classes of the stream when None.
        boundaries: as in `run_stream`.
        constants: names whose numbers are passed to `make_learner` untraced, at the cost of one
            program for each value.
        max_bytes: memory for one chunk of configurations beside the data, about; larger grids
            run in several chunks.
        mesh: devices that share the configurations; every device runs its own part.
        progress: True for a progress bar, or a function of (configurations done, all).

    Returns:
        A `Sweep`: labelled arrays, and the best configuration by prequential loss. States are not
        kept; to have one, run the best configuration again.

    Raises:
        ValueError: on unusable input or values out of range, before anything is compiled.
    """
    options.check()
    if not callable(make_learner):
        raise ValueError(
            "make_learner: expected a function that makes a learner of a point, got"
            f" {type(make_learner).__name__}"
        )
    if not isinstance(stream, Sequence):
        raise ValueError(f"stream: expected a Stream or several, got {type(stream).__name__}")
    several = not isinstance(stream, Stream)
    streams: list[Stream] = [stream] if isinstance(stream, Stream) else list(stream)
    _check_streams(streams)
    axes = axes_of(grid, len(streams) if several else None, options.constants)
    _check_values(make_learner, axes)
    T = streams[0].num_batches
    m = max(capacity_of(options.num_classes, one.classes) for one in streams)
    schedule = None if options.test is None else _schedule(options.evaluate, streams, T)
    job = _job(streams, several, schedule, m, options)
    # Said before anything runs: what has been computed is not lost to an axis without words.
    about = _about(make_learner, axes, streams, m, options)
    total = math.prod(axis.size for axis in axes)
    parts: list[tuple[list[np.ndarray], Any]] = []
    progress = options.progress
    with precision_scope(options.precision), track(total, progress, "configurations") as advance:
        known = np.zeros([axis.size for axis in axes], bool)
        room, sizes = Room(options.max_bytes, options.mesh), {"num_steps": T, "num_classes": m}
        for held, places in programs(axes):
            program = Program(make_learner, held, axes, places, job, room, **sizes)
            for chunk, kept in program.run(CHUNKS_SHOWN if progress else 1):
                parts.append((chunk, kept))
                # Chunks may overlap.
                known[np.ix_(*chunk)] = True
                advance(int(known.sum()))
    return replace(build_sweep(axes, parts, schedule), provenance=about)


def _about(
    make_learner: MakeLearner,
    axes: list[Axis],
    streams: list[Stream],
    m: int,
    options: SweepOptions,
) -> Provenance:
    """What the sweep depends on."""
    mesh, boundaries = options.mesh, options.boundaries
    return provenance(
        make_learner(**point_at(axes, [0] * len(axes))),
        [fingerprint(one) for one in streams],
        options.key,
        options.precision,
        num_classes=m,
        grid={axis.name: _in_words(axis) for axis in axes},
        constants=list(options.constants),
        mesh=None if mesh is None else {"devices": mesh.size},
        **({} if boundaries == "none" else {"boundaries": boundaries}),
    )


def _in_words(axis: Axis) -> list[Any]:
    """Values of an axis as JSON takes them; of functions and the like, their names."""
    names = [*axis.numbers, *axis.constants]
    points = [axis.at(place) for place in range(axis.size)]
    values = [point[names[0]] if len(names) == 1 else point for point in points]
    return json.loads(json.dumps(values, default=_word))


def _word(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray) else str(value)


def _schedule(evaluate: str | int, streams: list[Stream], T: int) -> np.ndarray | None:
    """One schedule for all, since an evaluation that only some need would cost all of them."""
    each = [schedule_of(evaluate, one.task_ends, T) for one in streams]
    wanted = [one for one in each if one is not None]
    return np.any(wanted, axis=0) if wanted else None


def _check_streams(streams: list[Stream]) -> None:
    if not streams:
        raise ValueError("stream: expected at least one, got none")
    for one in streams:
        check_stream(one)
        if one.X.shape != streams[0].X.shape:
            raise ValueError(
                f"stream: expected equal shapes (see pad_batches), got {streams[0].X.shape}"
                f" and {one.X.shape}"
            )
        if one.num_tasks != streams[0].num_tasks:
            raise ValueError(
                f"stream: expected equal numbers of tasks, got {streams[0].num_tasks}"
                f" and {one.num_tasks}"
            )


def _check_values(make_learner: MakeLearner, axes: list[Axis]) -> None:
    """Every value, and every combination of constants, is tried on the host first."""
    for _, places in programs(axes):
        first = [int(where[0]) for where in places]
        for number, where in enumerate(places):
            for place in where:
                point = point_at(axes, first[:number] + [int(place)] + first[number + 1 :])
                learner = make_learner(**point)
                if not isinstance(learner, Learner):
                    raise ValueError(
                        f"make_learner: expected it to give a Learner, got {learner!r}"
                    )


def _job(
    streams: list[Stream],
    several: bool,
    schedule: np.ndarray | None,
    m: int,
    options: SweepOptions,
) -> Job:
    batches = _stack([batches_of(one, options.boundaries) for one in streams], several)
    test = options.test
    s = streams[0].X.shape[-1]
    columns, labels, X_test = None, None, None
    if test is not None and schedule is not None:
        seen_by = [columns_seen(0, one.y, one.weight) for one in streams]
        columns = np.where(schedule, np.max(seen_by, axis=0), 0)
        sets = [
            examined(*encode_test(test, one.classes, s), one.class_task, m, None) for one in streams
        ]
        X_test = sets[0].X
        labels = _stack([(e.y, e.class_task, e.rows_of_task) for e in sets], several)
    return Job(options.key, batches, columns, labels, X_test)


def _stack(trees: list[Any], several: bool) -> Any:
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trees) if several else trees[0]
