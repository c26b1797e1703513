"""What a learner makes of test rows as classes arrive, laid out by t-SNE."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fashion_mnist import Case
from experiments.results_file import Record
from rvfl_jax import Learner, run_stream
from rvfl_jax.plots import COLOURS


def measure_regions(case: Case, learner: Learner, key: Any, rows: int) -> Record:
    """Places of test rows, and the task and the truth of each guess after every task.

    Args:
        case: what is learned, task after task.
        learner: the method.
        key: of its network.
        rows: how many test rows are drawn.

    Returns:
        places (rows, 2); classes, task and right, an entry a task: how many classes are learned,
        and of each row the task of the class guessed and whether that is its class.
    """
    from sklearn.manifold import TSNE

    chosen = np.random.default_rng(0).choice(len(case.columns), rows, replace=False)
    Z, columns = case.Z_test[chosen], case.columns[chosen]
    places = TSNE(random_state=0, init="pca").fit_transform(Z)
    record: Record = {"places": places.round(2), "classes": [], "task": [], "right": []}
    num_classes = len(case.stream.classes)
    run = partial(run_stream, learner, key=key, expert=None, num_classes=num_classes)
    start, state = 0, None
    for q, end in enumerate(case.stream.task_ends):
        cut = int(end) + 1
        parts = {n: getattr(case.stream, n)[start:cut] for n in ("X", "y", "weight", "task")}
        state = run(case.stream._replace(**parts), state=state).state
        guess = np.asarray(learner.predict(state, Z)).argmax(axis=1)
        record["classes"].append(int((case.stream.class_task <= q).sum()))
        record["task"].append(case.stream.class_task[guess])
        record["right"].append((guess == columns).astype(int))
        start = cut
    return record


def draw_regions(records: dict[str, Record], title: str, path: Path) -> None:
    """A row a record, a panel after each task; full colour where the class is right.

    Args:
        records: name of the row to what `measure_regions` gave.
        title: of the figure.
        path: of the picture.
    """
    from matplotlib.figure import Figure

    num_tasks = len(next(iter(records.values()))["classes"])
    figure = Figure(figsize=(2.6 * (num_tasks + 1), 2.9 * len(records)), layout="constrained")
    panels = figure.subplots(len(records), num_tasks + 1, squeeze=False)
    for row, (name, record) in zip(panels, records.items(), strict=True):
        places = np.array(record["places"])
        row[0].scatter(*places.T, color="0.8", s=5, lw=0)
        row[0].set(title="nothing learned", ylabel=name)
        learned = zip(row[1:], record["classes"], record["task"], record["right"], strict=True)
        for panel, classes, task, right in learned:
            _scatter(panel, places, task, np.array(right, bool))
            panel.set(title=f"{classes} classes: {np.mean(right):.0%} right")
        for panel in row:
            panel.set(xticks=[], yticks=[])
    handles = [
        panels[0, 0].scatter([], [], color=COLOURS[q], s=30, label=f"task {q + 1}")
        for q in range(num_tasks)
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=num_tasks)
    figure.suptitle(title)
    figure.savefig(path, dpi=130)


def _scatter(panel: Any, places: np.ndarray, task: Sequence[int], right: np.ndarray) -> None:
    tasks = np.array(task)
    for q in np.unique(tasks):
        for rows, alpha in ((~right, 0.25), (right, 0.9)):
            chosen = rows & (tasks == q)
            panel.scatter(*places[chosen].T, color=COLOURS[q], s=6, lw=0, alpha=alpha)
