"""What learners make of test rows as classes arrive, laid out by t-SNE."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from experiments.fashion_mnist import Case
from experiments.results_file import Record
from rvfl_jax import Learner, Stream, run_stream
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.plots import COLOURS

# Rows that vote on a point of the plane, and points along each side of the picture.
VOTERS = 15
GRID = 300
# A point farther from its nearest row than this share of the picture's side stays white.
FAR = 0.035


def states_at_ends(stream: Stream, learner: Learner, key: Any) -> Iterator[Any]:
    """What the learner has become at the end of one task after another."""
    start, state = 0, None
    for end in stream.task_ends:
        cut = int(end) + 1
        parts = {n: getattr(stream, n)[start:cut] for n in ("X", "y", "weight", "task")}
        coming = stream.X[cut][stream.weight[cut] > 0] if cut < stream.num_batches else None
        state = run_stream(
            learner,
            stream._replace(**parts),
            key=key,
            expert=None,
            num_classes=len(stream.classes),
            state=state,
            lookahead=coming,
        ).state
        yield state
        start = cut


def measure_regions(case: Case, learners: Mapping[str, Learner], key: Any, rows: int) -> Record:
    """Places of test rows, and the class that each learner guesses for them after every task.

    Args:
        case: what is learned, task after task.
        learners: name to method, all with one network, whose features t-SNE lays out.
        key: of that network.
        rows: how many test rows are drawn.

    Returns:
        places (rows, 2) of what the readout is given; truth (rows,) columns; class_task, task of
        every column; classes, how many are learned after each task; guesses, of each learner
        the (tasks, rows) columns.
    """
    from sklearn.manifold import TSNE

    chosen = np.random.default_rng(0).choice(len(case.columns), rows, replace=False)
    Z, class_task = case.Z_test[chosen], case.stream.class_task
    guesses: dict[str, list[np.ndarray]] = {name: [] for name in learners}
    for name, learner in learners.items():
        for state in states_at_ends(case.stream, learner, key):
            guesses[name].append(np.asarray(learner.predict(state, Z)).argmax(axis=1))
    # (L, rows, d) to one row of all that the readouts are given.
    with precision_scope("double"):
        given = np.concatenate(np.asarray(learner.stream.embed(state, Z)), axis=1)
    places = TSNE(random_state=0, init="pca").fit_transform(given.astype(np.float32))
    return {
        "places": places.round(2),
        "truth": case.columns[chosen],
        "class_task": class_task,
        "classes": [int((class_task <= q).sum()) for q in range(case.stream.num_tasks)],
        "guesses": guesses,
    }


def votes(places: np.ndarray, guesses: np.ndarray, at: np.ndarray, voters: int) -> np.ndarray:
    """The class that most of the nearest rows are taken for, at each of some points.

    Args:
        places: (rows, 2).
        guesses: (rows,) columns.
        at: (n, 2) points.
        voters: how many rows vote.

    Returns:
        (n,) columns; of classes with as many votes, the first.
    """
    from sklearn.neighbors import KNeighborsClassifier

    return KNeighborsClassifier(voters).fit(places, guesses).predict(at)


def plane(places: np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    """((points, points, 2) grid around the rows, whether a row is near each of its points)."""
    from sklearn.neighbors import NearestNeighbors

    low, high = places.min(axis=0), places.max(axis=0)
    margin = 0.04 * (high - low)
    sides = [np.linspace(*ends, points) for ends in zip(low - margin, high + margin, strict=True)]
    at = np.stack(np.meshgrid(*sides), axis=-1)
    distance, _ = NearestNeighbors(n_neighbors=1).fit(places).kneighbors(at.reshape(-1, 2))
    return at, distance.reshape(points, points) < FAR * np.max(high - low)


def borders(classes: np.ndarray) -> np.ndarray:
    """Whether the class right of a point of a grid, or above it, is another one."""
    found = np.zeros(classes.shape, bool)
    found[:, :-1] |= classes[:, :-1] != classes[:, 1:]
    found[:-1] |= classes[:-1] != classes[1:]
    return found


def draw_regions(records: Mapping[str, Record], title: str, path: Path) -> None:
    """A row a record and learner, a panel before the first and after each task.

    The ground has the colour of the task of the class that most rows around are taken for, with
    lines where that class changes. Rows of classes not yet learned are small.

    Args:
        records: name of what is laid out, "" for none, to what `measure_regions` gave.
        title: of the figure.
        path: of the picture.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    rows = [(name, style) for name, record in records.items() for style in record["guesses"]]
    num_tasks = len(next(iter(records.values()))["classes"])
    size = (2.8 * (num_tasks + 1), 3.0 * len(rows) + 0.9)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(len(rows), num_tasks + 1, squeeze=False)
    for row, (name, style) in zip(panels, rows, strict=True):
        record = records[name]
        _draw_row(row, record, style, next(iter(record["guesses"])))
        row[0].set_ylabel(f"{style}\n{name}" if name else style, fontsize="large")
    marks: list[Any] = [
        Patch(color=COLOURS[q], alpha=0.45, label=f"a class of task {q + 1}")
        for q in range(num_tasks)
    ]
    dot = {"color": "none", "marker": "o", "markersize": 5, "mec": "none"}
    marks += [
        Line2D([], [], color="0.15", lw=0.8, label="border of predicted classes"),
        Line2D([], [], **dot, mfc="0.3", label="row taken for its class"),
        Line2D([], [], **dot | {"mec": "0.3"}, mfc="white", label="row taken for another one"),
        Line2D([], [], **dot | {"markersize": 2}, mfc="0.35", label="row of a class to come"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=(len(marks) + 1) // 2)
    figure.suptitle(title)
    figure.savefig(path, dpi=110)


def _draw_row(row: Any, record: Record, style: str, first: str) -> None:
    places, truth = np.array(record["places"]), np.array(record["truth"])
    task, colours = np.array(record["class_task"]), np.array(COLOURS)
    at, near = plane(places, GRID)
    row[0].scatter(*places.T, color="0.6", s=5, lw=0)
    row[0].set_title("0 classes learned")
    learned = zip(row[1:], record["classes"], record["guesses"][style], strict=True)
    for number, (panel, classes, guesses) in enumerate(learned):
        guesses = np.array(guesses)
        voted = votes(places, guesses, at.reshape(-1, 2), VOTERS).reshape(at.shape[:2])
        _colour_ground(panel, at, near, voted, task[voted])
        right, met = guesses == truth, task[truth] <= number
        panel.scatter(*places[~met].T, color="0.35", s=1.2, lw=0)
        for rows, filled in ((met & ~right, False), (right, True)):
            hue = colours[task[guesses[rows]]]
            faces, edges = (hue, "none") if filled else ("white", hue)
            panel.scatter(*places[rows].T, s=7, lw=0.7, facecolors=faces, edgecolors=edges)
        words = f"{classes} classes: {np.mean(right[met]):.1%} of their rows right"
        if style != first:
            unlike = np.mean(guesses != np.array(record["guesses"][first][number]))
            words += f"\n{unlike:.1%} of all answered unlike {first}"
        panel.set_title(words, fontsize="small")
    for panel in row:
        panel.set(xticks=[], yticks=[])


def _colour_ground(
    panel: Any, at: np.ndarray, near: np.ndarray, voted: np.ndarray, task: np.ndarray
) -> None:
    from matplotlib.colors import to_rgb

    palette = np.array([to_rgb(colour) for colour in COLOURS])
    image = np.concatenate([palette[task], np.where(near, 0.3, 0.0)[..., None]], axis=-1)
    image[borders(voted) & near] = (0.15, 0.15, 0.15, 0.8)
    extent = (*at[0, [0, -1], 0], *at[[0, -1], 0, 1])
    panel.imshow(image, origin="lower", extent=extent, aspect="auto", interpolation="nearest")
