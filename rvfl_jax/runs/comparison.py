"""Several learners on one stream, seed by seed: `compare`, and what it leaves behind.

Every learner of a seed sees the same stream and the same key. The offline expert, and the experts
that are trained on one task each, are those of the first learner that has one; excess loss,
divergence and forward transfer are taken from them.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax import metrics
from rvfl_jax.core.checks import one_of, positive_int
from rvfl_jax.core.progress import track
from rvfl_jax.core.types import Array, Boundaries, Evaluate, Learner, Precision, Stream
from rvfl_jax.core.words import Summary, summarised
from rvfl_jax.linalg.precision import PRECISIONS, precision_scope
from rvfl_jax.runs.expert import offline_scores
from rvfl_jax.runs.history import History
from rvfl_jax.runs.options import BOUNDARIES
from rvfl_jax.runs.reporting import OnMetrics
from rvfl_jax.runs.run_stream import run_stream
from rvfl_jax.runs.step import consolidates
from rvfl_jax.streams.class_incremental import by_task
from rvfl_jax.streams.labels import to_columns

OFFLINE = "offline expert"

Progress = Callable[[str, int, int], None]
# A seed's arrays and numbers of the experts.
References = tuple[dict[str, np.ndarray], dict[str, float]]


class Case(NamedTuple):
    """What a seed is about: a stream, its rows task by task, and the test set with its labels."""

    stream: Stream
    tasks: Stream
    test: tuple[Any, Any]


class RunSetting(NamedTuple):
    """How runs are made.

    Attributes:
        evaluate, precision: of `run_stream`.
        boundaries: of `run_stream`, for all learners or by name, "none" for names left out. That
            of a result has every name, with "given" for those alone that `consolidate`.
        every: batches of a chunk, or None.
        in_chunks: whether progress is reported within a run.
    """

    evaluate: Evaluate | int = "batch"
    precision: Precision = "double"
    boundaries: Boundaries | Mapping[str, Boundaries] = "none"
    every: int | None = None
    in_chunks: bool = False

    def told(self, style: str) -> Boundaries:
        """Whether the learner of that name is given the boundaries of tasks."""
        if isinstance(self.boundaries, Mapping):
            return self.boundaries.get(style, "none")
        return self.boundaries


class Keeper(Protocol):
    """Where what is done is kept, so that a killed comparison goes on."""

    def once(self, seed: int, compute: Callable[[], References]) -> References:
        """A seed's references, computed unless they are there."""

    def checkpoint(self, seed: int, style: str) -> Path:
        """The file of a run."""

    def timed(self, path: Path, begun: bool, seconds: float) -> float:
        """What the run in a file took."""


@summarised
@dataclass(repr=False)
class StyleResult:
    """One style over all seeds: metric name to one number a seed, and curves."""

    metrics: dict[str, list[float]] = field(default_factory=dict)
    histories: list[History] = field(default_factory=list)

    def add(self, values: dict[str, float]) -> None:
        """Append one seed's metrics."""
        for name, value in values.items():
            self.metrics.setdefault(name, []).append(float(value))

    def _summary(self) -> Summary:
        return Summary(f"StyleResult: {self.summary()}", [("metrics", ", ".join(self.metrics))])

    def summary(self) -> str:
        """Accuracy at the end over all seeds, in per cent."""
        values = 100 * np.array(self.metrics.get("accuracy_class_incremental", []))
        if not len(values):
            return "nothing yet"
        spread = f" ± {np.std(values, ddof=1):.2f}" if len(values) > 1 else ""
        return f"{np.mean(values):.2f}{spread} % class-incremental, {len(values)} seed(s)"


@summarised
@dataclass(repr=False)
class Comparison:
    """Results of `compare`; `plots.comparison_figure` and `plots.comparison_table` show them.

    Attributes:
        name: what the data are called.
        learners: name of each learner to its description.
        styles: the same names to their results, in the order of the table.
        offline: the offline expert's; without metrics where no learner has one.
        stream: that of the first seed.
        setting: how the runs were made.
        seeds: number of seeds.
    """

    name: str
    learners: dict[str, str]
    styles: dict[str, StyleResult]
    offline: StyleResult
    stream: Stream
    setting: RunSetting
    seeds: int

    @property
    def rows(self) -> int:
        """Number of training rows that each run learned."""
        return self.stream.num_rows

    @property
    def task_ends(self) -> np.ndarray:
        """(Q,) task ends of the first seed."""
        return self.stream.task_ends

    @property
    def about(self) -> str:
        """Data and stream in a few words."""
        stream = self.stream
        return (
            f"{self.name}: {stream.num_tasks} tasks, {stream.num_batches} batches,"
            f" {self.rows:,} rows"
        )

    def _summary(self) -> Summary:
        results = {**self.styles, **({OFFLINE: self.offline} if self.offline.metrics else {})}
        title = f"Comparison on {self.about}, {self.seeds} seed(s)"
        return Summary(title, [(name, style.summary()) for name, style in results.items()])


def compare(
    learners: Mapping[str, Learner],
    stream: Stream | Callable[[int], Stream],
    seeds: int = 5,
    *,
    test: tuple[Any, Any],
    evaluate: Evaluate | int = "batch",
    precision: Precision = "double",
    boundaries: Boundaries | Mapping[str, Boundaries] = "none",
    progress: bool | Callable[[int, int], None] = False,
) -> Comparison:
    """Run learners on one stream, over several seeds.

    Example:
        >>> def stream(seed):
        ...     return class_incremental_stream(X, y, num_tasks=5, num_batches=50, seed=seed)
        >>> ours = rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=0.1, k=0.0)
        >>> learners = {"-R": ours, "SLDA": slda()}
        >>> result = compare(learners, stream, seeds=2, test=(X_test, y_test))
        >>> plots.comparison_figure(result).savefig("curves.png")

    Args:
        learners: name to learner; the table and the figure show these names.
        stream: one for all seeds, which then differ by the learners' key alone, or the stream of
            a seed; streams of one shape share compiled programs (see `pad_batches`).
        seeds: number of seeds; 0, 1, ... are run.
        test: (X, y), with labels as in the streams.
        evaluate: when to evaluate the test set; see `run_stream`.
        precision: "double" or "single".
        boundaries: "given" lets learners `consolidate` where tasks end; see `run_stream`. A mapping
            says so by name, and learners left out are told of none.
        progress: True for a progress bar, or a function of (batches done, batches in all).

    Returns:
        A `Comparison`.

    Raises:
        ValueError: on unusable input, before the first run as far as that is possible.
        NumericalError: if the arithmetic of a run failed.
    """
    if not learners:
        raise ValueError("learners: expected at least one, got none")
    number = positive_int("seeds", seeds)
    one_of("precision", precision, PRECISIONS)
    _check_boundaries(learners, boundaries)
    streams = [stream if isinstance(stream, Stream) else stream(seed) for seed in range(number)]
    cases = [Case(each, by_task(each), test) for each in streams]
    setting = RunSetting(evaluate, precision, boundaries)
    total = sum(each.num_batches for each in streams) * len(learners)
    with track(total, progress) as advance:

        def report(label: str, done: int, total: int) -> None:
            del label, total
            advance(done)

        return compare_cases("stream", learners, cases, setting, progress=report)


def _check_boundaries(
    learners: Mapping[str, Learner], boundaries: Boundaries | Mapping[str, Boundaries]
) -> None:
    """ValueError on a word or a name that is unknown."""
    if not isinstance(boundaries, Mapping):
        one_of("boundaries", boundaries, BOUNDARIES)
        return
    for name, each in boundaries.items():
        one_of("boundaries", name, learners)
        one_of(f"boundaries[{name!r}]", each, BOUNDARIES)


def compare_cases(
    name: str,
    learners: Mapping[str, Learner],
    cases: list[Case],
    setting: RunSetting,
    *,
    progress: Progress = lambda label, done, total: None,
    keeper: Keeper | None = None,
) -> Comparison:
    """All learners on the case of each seed.

    Args:
        name: of the data.
        learners: by name.
        cases: one a seed.
        setting: of all runs.
        progress: called with (what, batches done, batches in all).
        keeper: where what is done is kept, or None.
    """
    told: dict[str, Boundaries] = {
        style: setting.told(style) if consolidates(learner) else "none"
        for style, learner in learners.items()
    }
    setting = setting._replace(boundaries=told)
    result = Comparison(
        name=name,
        learners={style: learner.description for style, learner in learners.items()},
        styles={style: StyleResult() for style in learners},
        offline=StyleResult(),
        stream=cases[0].stream,
        setting=setting,
        seeds=len(cases),
    )
    total = sum(case.stream.num_batches for case in cases) * len(learners)
    done = 0
    for seed, case in enumerate(cases):
        progress(f"seed {seed}: {OFFLINE}", done, total)
        refer = partial(_references, learners, case, jax.random.key(seed), setting.precision)
        references, numbers = refer() if keeper is None else keeper.once(seed, refer)
        result.offline.add(numbers)
        for style, learner in learners.items():
            report = partial(_report, progress, f"seed {seed}: {style}", done, total)
            report({}, 0)
            file = None if keeper is None else keeper.checkpoint(seed, style)
            begun = file is not None and file.exists()
            history, seconds = _timed_run(
                style, learner, case, references.get("scores"), seed, setting, report, file
            )
            if keeper is not None and file is not None:
                seconds = keeper.timed(file, begun, seconds)
            result.styles[style].histories.append(history)
            pace = {"seconds": seconds, "samples_per_second": case.stream.num_rows / seconds}
            found = run_metrics(history, references.get("R_ind"))
            result.styles[style].add(pace | found)
            done += case.stream.num_batches
    progress("done", total, total)
    return result


def _report(
    progress: Progress, label: str, done: int, total: int, metrics: dict[str, float], now: int
) -> None:
    accuracy = metrics.get("prequential_accuracy_so_far")
    told = "" if accuracy is None else f", accuracy {accuracy:.3f}"
    progress(f"{label}{told}", done + now, total)


def _references(
    learners: Mapping[str, Learner], case: Case, key: Array, precision: Precision
) -> References:
    """Test scores of the offline expert, R_ind of experts on one task each, and metrics."""
    experts = (learner for learner in learners.values() if learner.fit_offline is not None)
    learner = next(experts, None)
    if learner is None:
        return {}, {}
    (stream, tasks, (X_test, y_test)) = case
    columns = to_columns("test y", y_test, stream.classes)
    with _clock() as clock:
        scores = offline_scores(learner, stream, X_test, key=key, precision=precision)
    with precision_scope(precision):
        hits, by_task_hits = _offline_hits(learner, scores, columns, stream.class_task)
        R_ind = separate_accuracy(
            learner,
            key,
            (tasks.X, tasks.y, tasks.weight),
            (X_test, columns, stream.class_task),
        )
    values = {f"accuracy_{name}": float(hit) for name, hit in hits.items()}
    values |= {"ACC": float(np.mean(by_task_hits)), "seconds": clock.seconds}
    return {"scores": scores, "R_ind": np.asarray(R_ind)}, values


@jax.jit
def _offline_hits(
    learner: Learner, scores: Array, columns: Array, class_task: Array
) -> tuple[dict[str, Array], Array]:
    everything = jnp.ones(len(class_task), bool)
    hits = metrics.protocol_hits(
        learner.combine(scores), columns, class_task=class_task, seen=everything
    )
    return (
        {name: jnp.mean(hit) for name, hit in hits.items()},
        _mean_by_task(hits["class_incremental"], class_task[columns], len(class_task)),
    )


def _mean_by_task(hit: Array, task: Array, bound: int) -> Array:
    """Accuracy on each task's rows, averaged over the tasks that have rows."""
    rows = jax.ops.segment_sum(jnp.ones_like(task), task, bound)
    right = jax.ops.segment_sum(hit.astype(jnp.int32), task, bound)
    return jnp.sum(right / jnp.maximum(rows, 1)) / jnp.sum(rows > 0)


@jax.jit
def separate_accuracy(
    learner: Learner,
    key: Array,
    tasks: tuple[Array, Array, Array],
    test: tuple[Array, Array, Array],
) -> Array:
    """(Q,) class-incremental accuracy on each task of the expert trained on it alone.

    Args:
        learner: has `fit_offline`.
        key: of the random features.
        tasks: X, y and weight of `by_task`.
        test: inputs, columns and the task of each class.
    """
    (X, y, weight), (X_test, columns, class_task) = tasks, test
    m = len(class_task)
    state = learner.init(key, X.shape[-1], m)
    fit = learner.fit_offline
    assert fit is not None

    def accuracy(task: tuple[Array, Array, Array, Array]) -> Array:
        X, y, weight, q = task
        scores = learner.scores(fit(state, X, jax.nn.one_hot(y, m), weight), X_test)
        right = jnp.argmax(learner.combine(scores), axis=-1) == columns
        own = class_task[columns] == q
        return jnp.sum(right & own) / jnp.sum(own)

    return jax.lax.map(accuracy, (X, y, weight, jnp.arange(len(X))))


def _timed_run(
    style: str,
    learner: Learner,
    case: Case,
    scores: np.ndarray | None,
    seed: int,
    setting: RunSetting,
    report: OnMetrics,
    file: Path | None,
) -> tuple[History, float]:
    with _clock() as clock:
        run = run_stream(
            learner,
            case.stream,
            key=jax.random.key(seed),
            test=case.test,
            evaluate=setting.evaluate,
            expert=scores,
            precision=setting.precision,
            boundaries=setting.told(style),
            chunk_size=setting.every,
            on_metrics=report if setting.in_chunks or file is not None else None,
            checkpoint=file,
            resume=file is not None,
        )
    return run.history, clock.seconds


def run_metrics(history: History, R_ind: np.ndarray | None) -> dict[str, float]:
    """One number a metric of a run, named as `results.json` names them."""
    values = {
        "prequential_loss": float(
            np.nansum(history.prequential_loss * history.rows) / history.rows.sum()
        )
    }
    if np.isfinite(history.sigma_share).all():
        values["sigma_share"] = float(np.mean(history.sigma_share))
    if not len(history.evaluated):
        return values
    values |= {f"accuracy_{name}": curve[-1] for name, curve in history.accuracy.items()}
    values["cumulative_regret"] = history.cumulative_regret[-1]
    values["kl"] = history.kl[-1]
    values["cumulative_excess_loss"] = float(np.sum(history.excess_loss))
    values["kl_from_expert"] = history.kl_from_expert[-1]
    if history.R:
        R = history.R["class_incremental"]
        values |= {
            "ACC": metrics.average_accuracy(R),
            "BWT": metrics.backward_transfer(R),
        }
        if R_ind is not None:
            values["FWT"] = metrics.forward_transfer(R, R_ind)
        so_far = metrics.incremental_accuracy(R, history.task_rows)
        values |= {"A_bar": float(so_far.mean()), "A_B": float(so_far[-1])}
    return values


class _Clock:
    seconds = 0.0


@contextmanager
def _clock() -> Iterator[_Clock]:
    """Wall seconds of the block, tracing and compilation taken out."""
    clock, compiling = _Clock(), []

    def listen(event: str, duration_secs: float, **_: Any) -> None:
        if event.startswith("/jax/core/compile/"):
            now = time.perf_counter()
            compiling.append((now - duration_secs, now))

    jax.monitoring.register_event_duration_secs_listener(listen)
    start = time.perf_counter()
    try:
        yield clock
    finally:
        clock.seconds = max(time.perf_counter() - start - covered(compiling), 1e-9)
        jax.monitoring.unregister_event_duration_listener(listen)


def covered(spans: list[tuple[float, float]]) -> float:
    """Length that (start, end) spans cover together; tracing nests, and counts once."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total
