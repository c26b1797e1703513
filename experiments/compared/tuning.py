"""Choosing: every method tries as many configurations, on rows held out of the first tasks.

Of the training rows of a setting's first tasks, in the order of classes of seed 0, a share of each
class is held out. Every configuration learns the others in one pass, online; its score is the
class-incremental accuracy on the rows held out, once these tasks are learned. One whose arithmetic
failed scores 0. Among equals the least prequential loss decides, where batches hold several classes
and their order matters to the method; elsewhere the configuration nearest the middle of its ranges.
Later tasks and test rows are never looked at.
"""

import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import fashion_mnist as fm
from experiments.compared import records
from experiments.compared.contenders import Contender
from experiments.compared.settings import Setting, case_of
from experiments.compared.spaces import CONFIGURATIONS, Point, Space, space_of
from experiments.peers import held_out_rows
from experiments.results_file import Record
from rvfl_jax import (
    Learner,
    NumericalError,
    Stream,
    by_task,
    class_incremental_stream,
    offline_scores,
    run_stream,
    sweep,
)
from rvfl_jax.metrics import accuracy, mean_softmax
from rvfl_jax.streams.labels import to_columns

KEY = 0
# Networks are run one after another: side by side they are slower on few cores.
ONE_AT_A_TIME = 1
SEVERAL = 2 * 2**30
EQUAL = 1e-9


class Trial(NamedTuple):
    """A stream to learn, and the rows held out with their labels."""

    stream: Stream
    X: np.ndarray
    y: np.ndarray


def trial_of(setting: Setting, stream: Stream, draw: int = 0) -> Trial:
    """The first tasks of a stream, cut anew without the rows held out."""
    tasks = setting.tuned_tasks
    used = (stream.weight > 0) & (stream.task < tasks)[:, None]
    X, y = stream.X[used], stream.y[used]
    chosen = fm.rows_of_each(y, setting.tuning_rows)
    X, y = X[chosen], y[chosen]
    held = held_out_rows(y, setting.held_out, draw)
    labels = stream.classes[y]
    known = stream.class_task < tasks
    rest = class_incremental_stream(
        X[~held],
        labels[~held],
        num_tasks=tasks,
        num_batches=max(tasks, round((~held).sum() / setting.batch_rows)),
        seed=draw,
        class_order=stream.classes[known],
        task_sizes=np.bincount(stream.class_task[known]),
    )
    return Trial(rest, X[held], labels[held])


class Scores(NamedTuple):
    """Of each point: the score, whether all was finite, the prequential loss or NaN."""

    accuracy: np.ndarray
    healthy: np.ndarray
    loss: np.ndarray


def tried(
    contender: Contender,
    make: Callable[..., Learner],
    space: Space,
    setting: Setting,
    trial: Trial,
    count: int,
) -> Scores:
    """Every configuration on a trial; `make` with what is fixed, one object for all trials."""
    if contender.role == "bound" and "learning_rate" in space.numbers:
        return _tried_offline(contender, make, space, setting, trial, count)
    if space.points(count) == [{}]:
        return _tried_alone(contender, make, setting, trial)
    stream = _as_given(contender, trial.stream)
    result = sweep(
        make,
        stream,
        space.points(count) if space.grid is None else space.axes(count),
        key=jax.random.key(KEY),
        test=(trial.X, trial.y),
        evaluate=stream.num_batches,
        precision=contender.precision,
        num_classes=setting.num_classes,
        boundaries=contender.boundaries,
        constants=space.constants,
        max_bytes=ONE_AT_A_TIME if contender.precision == "single" else SEVERAL,
    )
    loss = np.full(result.healthy.size, np.nan)
    if setting.mixed and not contender.any_batches:
        loss = result.prequential_loss.ravel()
    scores = result.accuracy["class_incremental"][..., -1].ravel()
    return Scores(scores, result.healthy.ravel(), loss)


def _as_given(contender: Contender, stream: Stream) -> Stream:
    """In one batch where batches do not matter, in one a task where a method wants that."""
    if contender.any_batches:
        return by_task(
            stream._replace(
                task=np.zeros_like(stream.task), class_task=np.zeros_like(stream.class_task)
            )
        )
    return by_task(stream) if contender.whole_tasks else stream


def _tried_alone(
    contender: Contender, make: Callable[..., Learner], setting: Setting, trial: Trial
) -> Scores:
    """The only configuration of a method that has nothing to tune."""
    history = run_stream(
        make(),
        trial.stream,
        key=jax.random.key(KEY),
        test=(trial.X, trial.y),
        evaluate=trial.stream.num_batches,
        expert=None,
        precision=contender.precision,
        num_classes=setting.num_classes,
        boundaries=contender.boundaries,
        on_failure="return",
    ).history
    score = history.accuracy["class_incremental"][-1:]
    return Scores(score, np.array([history.healthy.all()]), np.full(1, np.nan))


def _tried_offline(
    contender: Contender,
    make: Callable[..., Learner],
    space: Space,
    setting: Setting,
    trial: Trial,
    count: int,
) -> Scores:
    """The same of a bound, which learns all rows at once."""
    columns, found = to_columns("y", trial.y, trial.stream.classes), []
    for point in space.points(count):
        learner = make(**point)
        try:
            scores = offline_scores(
                learner,
                trial.stream,
                trial.X,
                key=jax.random.key(KEY),
                num_classes=setting.num_classes,
                precision=contender.precision,
            )
        except NumericalError:
            found.append(np.nan)
            continue
        found.append(float(accuracy(mean_softmax(scores), columns)))
    reached = np.array(found)
    healthy = np.isfinite(reached)
    return Scores(np.where(healthy, reached, 0.0), healthy, np.full(len(reached), np.nan))


def best_of(space: Space, points: list[Point], scores: np.ndarray, losses: np.ndarray) -> int:
    """The place of the best point; see the module for ties."""
    equals = np.flatnonzero(scores >= scores.max() - EQUAL)
    if np.isfinite(losses[equals]).any():
        return int(equals[np.nanargmin(losses[equals])])
    return int(min(equals, key=lambda at: space.off_centre(points[at])))


def choose(name: str, contender: Contender, setting: Setting, count: int) -> Record:
    """The whole sweep of a method, and what is chosen."""
    space, start = space_of(name, setting), time.perf_counter()
    points = space.points(count)
    stream = case_of(setting, 0).stream
    trials = [trial_of(setting, stream, draw) for draw in range(setting.draws)]
    # A sweep compiles anew for another function.
    cheaper = dict(space.cheaper)
    if "task_batches" in space.fixed:
        cheaper["task_batches"] = trials[0].stream.num_batches // setting.tuned_tasks
    make = partial(contender.make, **{**space.fixed, **cheaper})
    found = [tried(contender, make, space, setting, trial, count) for trial in trials]
    healthy = np.all([one.healthy for one in found], axis=0)
    scores = np.where(healthy, np.mean([one.accuracy for one in found], axis=0), 0.0)
    losses = np.mean([np.where(healthy, one.loss, np.nan) for one in found], axis=0)
    at = best_of(space, points, scores, losses)
    return {
        "chosen": dict(space.fixed) | points[at],
        "score": float(scores[at]),
        "edge": space.at_the_edge(points[at]),
        "remark": space.remark,
        "configurations": len(points),
        "failed": int((~healthy).sum()),
        "tasks": setting.tuned_tasks,
        "rows learned": [trial.stream.num_rows for trial in trials],
        "rows held out": [len(trial.y) for trial in trials],
        "batches": 0 if contender.any_batches else trials[0].stream.num_batches,
        "points": points,
        "scores": scores,
        "prequential_loss": losses,
        "sweep seconds": round(time.perf_counter() - start, 2),
    }


def choice_of(
    name: str,
    contender: Contender,
    setting: Setting,
    *,
    count: int = CONFIGURATIONS,
    out: Path,
    tuned_as: Setting | None = None,
) -> Record:
    """The choice as it is kept, made now unless it is there."""
    tuned_on = tuned_as or setting
    file = records.tuning_file(name, space_of(name, tuned_on), tuned_on, count, out)
    if "choice" not in file.records:
        print(f"{tuned_on.name}: tuning {name}", file=sys.stderr, flush=True)
        record: dict[str, Any] = file.once("choice", choose, name, contender, tuned_on, count)
        seconds = record["sweep seconds"]
        said = f"{record['score']:.4f} with {record['chosen']}, {seconds:.0f} s"
        print(f"{tuned_on.name}: {name}: {said}", file=sys.stderr, flush=True)
    return file.records["choice"]
