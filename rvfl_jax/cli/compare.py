"""Compare styles on one data set over several seeds: the main job, `rvfl-jax run`.

Every style of a seed sees the same split, stream and random features; see
`rvfl_jax.runs.comparison`.
"""

import json
import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from rvfl_jax import metrics
from rvfl_jax.cli.compare_folder import RunFolder
from rvfl_jax.core.checks import one_of, positive_int
from rvfl_jax.core.types import (
    ActivationName,
    Boundaries,
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
from rvfl_jax.learners import REGISTERED, registered
from rvfl_jax.learners.edrvfl.learner import edrvfl
from rvfl_jax.learners.edrvfl.strength import adaptive_k
from rvfl_jax.learners.methods import METHODS
from rvfl_jax.linalg.precision import PRECISIONS
from rvfl_jax.runs.comparison import Case, Comparison, Progress, RunSetting, compare_cases
from rvfl_jax.runs.step import consolidates
from rvfl_jax.streams.class_incremental import by_task, class_incremental_stream, pad_batches

STYLES = ("ridge", "forward", "bayes")
# From this many training rows on, one seed is the default: a run takes minutes.
MANY_ROWS = 10_000
DEFAULT_SEEDS = 5
# Beyond this many products in the first layer a run goes in chunks, so that progress shows.
LARGE_RUN = 10**9


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
    large = cases[0].stream.X.size * config.num_nodes > LARGE_RUN
    boundaries = boundaries_of(learners)
    setting = RunSetting(evaluate, config.precision, boundaries, every=every, in_chunks=large)
    return compare_cases(data.name, learners, cases, setting, progress=progress, keeper=folder)


def make_learners(config: Config) -> dict[str, Learner]:
    """One learner a style, named as the tables name it; those of other methods as they come."""
    strengths: dict[str, Any] = {}
    others: dict[str, Learner] = {}
    for style in config.styles:
        _check_style(style)
        if style in REGISTERED:
            others[style] = registered(style)()
        elif style == "ridge":
            strengths["-R"] = 0.0
        elif style == "forward":
            strengths["-F"] = 1.0
        else:
            name = "-kF-Bayes (reused k)" if config.reuse_k else "-kF-Bayes"
            strengths[name] = adaptive_k(
                config.kappa, config.sigma, config.estimator, config.reuse_k
            )
    strengths |= {f"-kF (k={k!r})": k for k in config.k}
    if not strengths and not others:
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
    } | others


def _check_style(style: str) -> None:
    known = (*STYLES, *REGISTERED)
    if style not in known:
        raise ValueError(
            f"styles: expected one of {', '.join(known)}, got {style!r};"
            " rvfl-jax --list-methods tells of each"
        )


def boundaries_of(learners: Mapping[str, Learner]) -> dict[str, Boundaries]:
    """Who is told where tasks end: whom the table of methods says, and others that consolidate."""

    def told(name: str, learner: Learner) -> Boundaries:
        if name in METHODS:
            return METHODS[name].boundaries
        return "given" if consolidates(learner) else "none"

    return {name: told(name, learner) for name, learner in learners.items()}


def _folder(
    config: Config,
    cases: list[Case],
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
    streams = [case.stream for case in cases]
    learned = [(stream.X, stream.y, stream.weight, stream.task) for stream in streams]
    tested = [(case.test[0], np.asarray(case.test[1]).astype(str)) for case in cases]
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


def _cases(config: Config, data: Dataset, seeds: int) -> list[Case]:
    """Split, stream and per-task rows of each seed, padded alike to share programs."""
    cases = []
    for seed in range(seeds):
        if seed:
            data = load_dataset(config.dataset, seed=seed, label=config.label)
        stream = config.stream(data, seed)
        cases.append(Case(stream, by_task(stream), (data.X_test, data.y_test)))
    longest = max(case.stream.X.shape[1] for case in cases)
    largest = max(case.tasks.X.shape[1] for case in cases)
    return [
        Case(pad_batches(case.stream, longest), pad_batches(case.tasks, largest), case.test)
        for case in cases
    ]


def save_results(config: Config, result: Comparison, path: Path) -> None:
    """Write results.json: configuration, versions, device, and all raw numbers."""
    content = {
        "config": asdict(config),
        "dataset": result.name,
        "training_rows": result.rows,
        "seeds": result.seeds,
        "protocols": list(metrics.PROTOCOLS),
        "versions": versions(),
        "python": platform.python_version(),
        "device": device(),
        "boundaries": result.setting.boundaries,
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
