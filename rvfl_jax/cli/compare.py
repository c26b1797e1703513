"""Compare styles of one learner on one data set over several seeds: the main job.

Every style of a seed sees the same split, stream and random features; the offline expert
with those features is fitted once per seed; excess loss and divergence are taken from it.
"""

import json
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax import metrics
from rvfl_jax.cli.compare_folder import RunFolder
from rvfl_jax.core.checks import one_of, positive_int
from rvfl_jax.core.types import (
    ActivationName,
    Array,
    ColdStart,
    Ensemble,
    Estimator,
    Evaluate,
    Learner,
    Order,
    Precision,
    Solver,
    Stream,
    WeightInit,
)
from rvfl_jax.data import Dataset, load_dataset
from rvfl_jax.files.checkpoint import replace_file
from rvfl_jax.files.provenance import device, digest_of, versions
from rvfl_jax.learners.baselines import separate_edrvfl
from rvfl_jax.learners.edrvfl.learner import edrvfl
from rvfl_jax.learners.edrvfl.strength import adaptive_k
from rvfl_jax.linalg.dense import PRECISIONS, matmul, precision_scope
from rvfl_jax.runs.comparison import OFFLINE, Comparison, StyleResult
from rvfl_jax.runs.history import History
from rvfl_jax.runs.run_stream import offline_scores, run_stream
from rvfl_jax.streams.class_incremental import by_task, class_incremental_stream, pad_batches
from rvfl_jax.streams.labels import to_columns

STYLES = ("ridge", "forward", "bayes")
# From this many training rows on, one seed is the default: a run takes minutes.
MANY_ROWS = 10_000
DEFAULT_SEEDS = 5
# Beyond this many products in the first layer a run goes in chunks, so that progress shows.
LARGE_RUN = 10**9

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Setting:
    """Data, stream and network, which every command has; see `rvfl-jax run --help`."""

    dataset: str = "digits"
    label: str = "label"
    tasks: int = 5
    batches: int = 50
    order: Order = "tasks"
    blur: float = 0.0
    num_layers: int = 3
    num_nodes: int = 128
    activation: ActivationName = "relu"
    weight_init: WeightInit = "lecun_uniform"
    ensemble: Ensemble = "mean"
    precision: Precision = "double"

    def stream(self, data: Dataset, seed: int) -> Stream:
        """The training rows as the stream of a seed."""
        return class_incremental_stream(
            data.X_train,
            data.y_train,
            num_tasks=self.tasks,
            num_batches=self.batches,
            seed=seed,
            order=self.order,
            blur=self.blur,
        )


@dataclass(frozen=True)
class Config(Setting):
    """What `rvfl-jax run` compares; see its `--help`."""

    ridge: float = 0.1
    styles: tuple[str, ...] = STYLES
    k: tuple[float, ...] = ()
    kappa: float = 1.0
    sigma: float = 1e-5
    estimator: Estimator = "inverse_trace"
    reuse_k: bool = False
    cold_start: ColdStart = "exact"
    solver: Solver = "auto"
    seeds: int | None = None
    evaluate: str = "batch"


def compare(
    config: Config,
    progress: Progress = lambda label, done, total: None,
    *,
    checkpoint: Path | None = None,
    resume: bool = False,
    every: int | None = None,
) -> Comparison:
    """Run all styles over all seeds.

    Args:
        config: what to compare.
        progress: called with (what, batches done, batches in all).
        checkpoint: folder in which everything done is kept, or None.
        resume: go on with what that folder holds, to the same results.
        every: batches between two checkpoints; about 20 a run when None.

    Raises:
        ValueError: on anything in `config` that cannot be run, before the first run, and on a
            folder that is damaged or of another comparison.
        OSError: if the folder cannot be written to.
        NumericalError: if a run's arithmetic failed.
    """
    learners = make_learners(config)
    one_of("precision", config.precision, PRECISIONS)
    evaluate = _evaluate(config)
    data = load_dataset(config.dataset, seed=0, label=config.label)
    few = len(data.X_train) < MANY_ROWS
    default = DEFAULT_SEEDS if few else 1
    seeds = default if config.seeds is None else positive_int("seeds", config.seeds)
    cases = _cases(config, data, seeds)
    folder = _folder(config, cases, checkpoint, resume, every)
    result = Comparison(
        config=config,
        dataset=data.name,
        styles={style: StyleResult() for style in learners},
        offline=StyleResult(),
        task_ends=cases[0][1].task_ends,
        rows=cases[0][1].num_rows,
        seeds=seeds,
    )
    total = seeds * len(learners) * config.batches
    done = 0
    for seed, (data, stream, tasks) in enumerate(cases):
        key = jax.random.key(seed)
        progress(f"seed {seed}: {OFFLINE}", done, total)
        first = next(iter(learners.values()))
        refer = partial(_references, config, first, data, stream, tasks, key)
        references, numbers = refer() if folder is None else folder.once(seed, refer)
        result.offline.add(numbers)
        for style, learner in learners.items():
            report = partial(_report, progress, f"seed {seed}: {style}", done, total)
            report(0, config.batches)
            kept = None if folder is None else folder.checkpoint(seed, style)
            begun = kept is not None and kept.exists()
            history, seconds = _timed_run(
                config,
                learner,
                stream,
                data,
                references["scores"],
                key,
                evaluate,
                report,
                kept,
                every,
            )
            if folder is not None and kept is not None:
                seconds = folder.timed(kept, begun, seconds)
            result.styles[style].histories.append(history)
            pace = {"seconds": seconds, "samples_per_second": stream.num_rows / seconds}
            result.styles[style].add(pace | run_metrics(history, references["R_ind"]))
            done += config.batches
    progress("done", total, total)
    return result


def make_learners(config: Config) -> dict[str, Learner]:
    """One learner a style, named as the tables name it."""
    strengths: dict[str, Any] = {}
    for style in config.styles:
        one_of("styles", style, STYLES)
        if style == "ridge":
            strengths["-R"] = 0.0
        elif style == "forward":
            strengths["-F"] = 1.0
        else:
            name = "-kF-Bayes (reused k)" if config.reuse_k else "-kF-Bayes"
            strengths[name] = adaptive_k(
                config.kappa, config.sigma, config.estimator, config.reuse_k
            )
    strengths |= {f"-kF (k={k!r})": k for k in config.k}
    if not strengths:
        raise ValueError("styles: expected at least one style or one k, got none")
    return {
        name: edrvfl(
            num_layers=config.num_layers,
            num_nodes=config.num_nodes,
            ridge=config.ridge,
            k=k,
            activation=config.activation,
            weight_init=config.weight_init,
            ensemble=config.ensemble,
            cold_start=config.cold_start,
            solver=config.solver,
        )
        for name, k in strengths.items()
    }


def _folder(
    config: Config,
    cases: list[tuple[Dataset, Stream, Stream]],
    checkpoint: Path | None,
    resume: bool,
    every: int | None,
) -> RunFolder | None:
    if checkpoint is None:
        if resume or every is not None:
            raise ValueError(
                "--checkpoint: expected a folder beside --resume and --every, got none"
            )
        return None
    if every is not None:
        positive_int("--every", every)
    learned = [(stream.X, stream.y, stream.weight, stream.task) for _, stream, _ in cases]
    tested = [(data.X_test, np.asarray(data.y_test).astype(str)) for data, _, _ in cases]
    described = asdict(config) | {"seeds": len(cases), "data": digest_of((learned, tested))}
    described = json.loads(json.dumps(described))
    return RunFolder(checkpoint, described, resume=resume)


def _evaluate(config: Config) -> Evaluate | int:
    """The schedule of evaluations, as `run_stream` takes it."""
    if config.evaluate.isdigit():
        return positive_int("evaluate", int(config.evaluate))
    schedules: tuple[Literal["batch", "task"], ...] = ("batch", "task")
    if config.evaluate not in schedules:
        raise ValueError(f"evaluate: expected batch, task or an integer, got {config.evaluate!r}")
    return one_of("evaluate", config.evaluate, schedules)


def _report(progress: Progress, label: str, done: int, total: int, now: int, _: int) -> None:
    progress(label, done + now, total)


def _cases(config: Config, data: Dataset, seeds: int) -> list[tuple[Dataset, Stream, Stream]]:
    """Split, stream and per-task rows of each seed, padded alike to share programs."""
    cases = []
    for seed in range(seeds):
        if seed:
            data = load_dataset(config.dataset, seed=seed, label=config.label)
        stream = config.stream(data, seed)
        cases.append((data, stream, by_task(stream)))
    longest = max(stream.X.shape[1] for _, stream, _ in cases)
    largest = max(tasks.X.shape[1] for _, _, tasks in cases)
    return [
        (data, pad_batches(stream, longest), pad_batches(tasks, largest))
        for data, stream, tasks in cases
    ]


def _references(
    config: Config,
    learner: Learner,
    data: Dataset,
    stream: Stream,
    tasks: Stream,
    key: Array,
) -> tuple[dict[str, np.ndarray], dict[str, float]]:
    """Test scores of the offline expert, R_ind of experts on one task each, and metrics."""
    columns = to_columns("test y", data.y_test, stream.classes)
    with _clock() as clock:
        scores = offline_scores(learner, stream, data.X_test, key=key, precision=config.precision)
    with precision_scope(config.precision):
        hits, by_task_hits = _offline_hits(learner, scores, columns, stream.class_task)
        R_ind = separate_accuracy(
            learner,
            key,
            (tasks.X, tasks.y, tasks.weight),
            (data.X_test, columns, stream.class_task),
            ridge=config.ridge,
            activation=config.activation,
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


@partial(jax.jit, static_argnames="activation")
def separate_accuracy(
    learner: Learner,
    key: Array,
    tasks: tuple[Array, Array, Array],
    test: tuple[Array, Array, Array],
    *,
    ridge: float,
    activation: ActivationName,
) -> Array:
    """(Q,) class-incremental accuracy on each task of the expert trained on it alone.

    Args:
        learner: gives the network and the ensemble.
        key: of the random features.
        tasks: X, y and weight of `by_task`.
        test: inputs, columns and the task of each class.
        ridge: lambda.
        activation: of the network.
    """
    (X, y, weight), (X_test, columns, class_task) = tasks, test
    m = len(class_task)
    state = learner.init(key, X.shape[-1], m)
    thetas = separate_edrvfl(
        state.W, X, jax.nn.one_hot(y, m), ridge=ridge, activation=activation, weight=weight
    )
    Z = learner.stream.embed(state, X_test)

    def accuracy(task: tuple[Array, Array]) -> Array:
        theta, q = task
        right = jnp.argmax(learner.combine(matmul(Z, theta)), axis=-1) == columns
        own = class_task[columns] == q
        return jnp.sum(right & own) / jnp.sum(own)

    return jax.lax.map(accuracy, (thetas, jnp.arange(len(X))))


def _timed_run(
    config: Config,
    learner: Learner,
    stream: Stream,
    data: Dataset,
    scores: np.ndarray,
    key: Array,
    evaluate: Evaluate | int,
    progress: Callable[[int, int], None],
    checkpoint: Path | None,
    every: int | None,
) -> tuple[History, float]:
    large = stream.X.size * config.num_nodes > LARGE_RUN
    with _clock() as clock:
        run = run_stream(
            learner,
            stream,
            key=key,
            test=(data.X_test, data.y_test),
            evaluate=evaluate,
            expert=scores,
            precision=config.precision,
            chunk_size=every,
            progress=progress if large or checkpoint is not None else False,
            checkpoint=checkpoint,
            resume=checkpoint is not None,
        )
    return run.history, clock.seconds


def run_metrics(history: History, R_ind: np.ndarray) -> dict[str, float]:
    """One number a metric of a run, named as `results.json` names them."""
    values = {
        "prequential_loss": float(
            np.nansum(history.prequential_loss * history.rows) / history.rows.sum()
        )
    }
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
            "FWT": metrics.forward_transfer(R, R_ind),
        }
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


def save_results(result: Comparison, path: Path) -> None:
    """Write results.json: configuration, versions, device, and all raw numbers."""
    content = {
        "config": asdict(result.config),
        "dataset": result.dataset,
        "training_rows": result.rows,
        "seeds": result.seeds,
        "protocols": list(metrics.PROTOCOLS),
        "versions": versions(),
        "python": platform.python_version(),
        "device": device(),
        "offline": result.offline.metrics,
        "styles": {
            name: {"metrics": style.metrics, "runs": [h._asdict() for h in style.histories]}
            for name, style in result.styles.items()
        },
    }
    text = json.dumps(plain(content)) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))


def plain(value: Any) -> Any:
    """Arrays as lists, NaN as null, so that any JSON reader takes it."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, float):
        return float(f"{value:.10g}") if np.isfinite(value) else None
    return value
