"""Exact fits on as many random features as their authors have: accuracy against N.

The tables give every method at most 1,024 nodes; RanPAC's and RanDumb's authors have 10,000 and
more. Here -R, RanPAC and RanDumb learn the same rows with N from 512 to 10,000. All three are sums
over rows, so that any batches in any order end in the same answers: here the Gram of each one's
features in blocks of 4,096 rows on the host, at half of the flops of the learners' own products,
which they equal (`tests/experiments/test_widths.py`).

At each N each chooses its lambda among 13 values by the rule of the tables: by the accuracy on rows
held out of the first tasks of seed 0, which the others of these tasks are learned of. The bandwidth
of RanDumb is the one of its table, chosen at 512 or 1,024 nodes. No test row enters.

    python -m experiments.compared widths --settings a,d10 --seeds 3
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from experiments.compared import records, tables
from experiments.compared.contenders import constant, contenders
from experiments.compared.settings import Setting, case_of
from experiments.compared.spaces import CONFIGURATIONS, Point, spaces
from experiments.compared.tuning import trial_of
from experiments.peers import best_of, shown
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from rvfl_jax import Stream, one_hot
from rvfl_jax.learners.edrvfl.network import features
from rvfl_jax.learners.randumb import randumb
from rvfl_jax.learners.ranpac import ranpac
from rvfl_jax.linalg import host_blas
from rvfl_jax.streams.labels import to_columns

WIDTHS = (512, 1024, 2048, 4096, 10_000)
QUICK_WIDTHS = (32, 64)
BLOCK_ROWS = 4096


class Shape(NamedTuple):
    """N, s and m."""

    num_nodes: int
    num_features: int
    num_classes: int


class Readout(Protocol):
    """What of sums over rows decides."""

    def __call__(self, sums: "Sums", ridge: float) -> tuple[np.ndarray, np.ndarray]:
        """Weights (d, m) and offsets (m,) with that lambda."""


class Sums(NamedTuple):
    """D^T D (1, d, d) by half, D^T Y (d, m), and the rows of each class (m,)."""

    gram: host_blas.Strips
    moment: np.ndarray
    counts: np.ndarray


def ridge_readout(sums: Sums, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """(lambda I + D^T D)^-1 D^T Y."""
    theta = host_blas.ridge_solution(sums.gram, ridge, sums.moment[None])[0]
    return theta, np.zeros(len(sums.counts))


def discriminant(sums: Sums, ridge: float) -> tuple[np.ndarray, np.ndarray]:
    """L mu_c and -mu_c^T L mu_c / 2 with L = (Sigma + lambda I)^-1, of the classes met."""
    rows, met = sums.counts.sum(), sums.counts > 0
    means = sums.moment / np.maximum(sums.counts, 1)
    about_means = host_blas.plus_gram(
        sums.gram, (np.sqrt(sums.counts) * means).T[None], factor=-1.0
    )
    weights = host_blas.ridge_solution(about_means, ridge * rows, rows * means[None])[0]
    return weights, np.where(met, -np.sum(weights * means, axis=0) / 2, -np.inf)


Features = Callable[[Any], Any]


def _of_ridge(key: Any, shape: Shape, point: Point) -> Features:
    del point
    learner = constant(0.0)(num_nodes=shape.num_nodes, ridge=1.0)
    W = learner.init(key, shape.num_features, shape.num_classes).W
    return lambda X: features(W, X, "relu")[0]


def _of_ranpac(key: Any, shape: Shape, point: Point) -> Features:
    del point
    learner = ranpac(num_nodes=shape.num_nodes, ridge=1.0)
    W = learner.init(key, shape.num_features, shape.num_classes).W
    return lambda X: jax.nn.relu(X @ W)


def _of_randumb(key: Any, shape: Shape, point: Point) -> Features:
    learner = randumb(num_nodes=shape.num_nodes, gamma=point["gamma"])
    phi = learner.init(key, shape.num_features, shape.num_classes).features
    return lambda X: phi(X)


class Method(NamedTuple):
    """An exact fit: its random features, what it solves, and the lambda that are tried."""

    features: Callable[[Any, Shape, Point], Features]
    readout: Readout
    ridges: np.ndarray


METHODS = {
    "-R": Method(_of_ridge, ridge_readout, np.logspace(-2, 4, 13)),
    "ranpac": Method(_of_ranpac, ridge_readout, np.logspace(1, 7, 13)),
    "randumb": Method(_of_randumb, discriminant, np.logspace(-12, 0, 13)),
}


def learned(name: str, stream: Stream, key: Any, shape: Shape, point: Point) -> "Fitted":
    """The sums of all rows of a stream in that method's features."""
    make_features = jax.jit(METHODS[name].features(key, shape, point))
    used = stream.weight > 0
    X, y = stream.X[used], stream.y[used]
    sums = None
    for start in range(0, len(X), BLOCK_ROWS):
        rows = slice(start, start + BLOCK_ROWS)
        D = np.asarray(make_features(X[rows].astype(np.float64)))
        Y = np.asarray(one_hot(y[rows], shape.num_classes), np.float64)
        if sums is None:
            width = D.shape[1]
            moment, counts = np.zeros((width, Y.shape[1])), np.zeros(Y.shape[1])
            sums = Sums(host_blas.zero_strips(1, width), moment, counts)
        gram = host_blas.plus_gram(sums.gram, D[None])
        sums = Sums(gram, sums.moment + D.T @ Y, sums.counts + Y.sum(axis=0))
    assert sums is not None
    return Fitted(make_features, METHODS[name].readout, sums)


class Fitted(NamedTuple):
    """A method's features and what it has learned."""

    features: Features
    readout: Readout
    sums: Sums

    def decided(self, X: np.ndarray, ridges: Iterable[float]) -> Iterator[np.ndarray]:
        """(n,) columns with each of these lambda."""
        D = np.asarray(self.features(X.astype(np.float64)))
        for ridge in ridges:
            weights, offsets = self.readout(self.sums, ridge)
            yield (D @ weights + offsets).argmax(axis=1)


def widths_of(setting: Setting) -> tuple[int, ...]:
    """Few nodes where the tables have few."""
    return WIDTHS if max(setting.nodes) >= min(WIDTHS) else QUICK_WIDTHS


def folder_of(setting: Setting, out: Path) -> Path:
    """Where this is kept."""
    return records.folder_of(setting, out) / "widths"


def file_of(name: str, setting: Setting, point: Point, out: Path) -> ResultsFile:
    """The records of a method; of its table's choice only what is taken over matters."""
    fixed = {key: point[key] for key in ("gamma",) if key in point}
    protocol = records.protocol_of(setting, fixed=fixed, ridges=METHODS[name].ridges.tolist())
    return ResultsFile(folder_of(setting, out) / f"{name}.json", protocol)


def measure(
    setting: Setting, names: list[str], *, seeds: int, count: int = CONFIGURATIONS, out: Path
) -> None:
    """Every width, the widest last, and every method on a seed before the next seed."""
    names = [name for name in METHODS if name in names and name in spaces(setting)]
    points = {name: tables.chosen_for(name, setting, count=count, out=out)[1] for name in names}
    for num_nodes in widths_of(setting):
        for seed in range(seeds):
            for name in names:
                file = file_of(name, setting, points[name], out)
                _measure_one(name, file, setting, num_nodes, seed, points[name])
    tabulate(setting, seeds=seeds, count=count, out=out)


def _measure_one(
    name: str, file: ResultsFile, setting: Setting, num_nodes: int, seed: int, point: Point
) -> None:
    place = f"N={num_nodes} | seed {seed}"
    if place in file.records:
        return
    print(f"{setting.name}: {name}: {place}", file=sys.stderr, flush=True)
    choice = file.once(f"N={num_nodes} | choice", choose, name, setting, num_nodes, point)
    file.once(place, final, name, setting, num_nodes, seed, point, choice["chosen"]["lambda"])


@jax.enable_x64(True)
def choose(name: str, setting: Setting, num_nodes: int, point: Point) -> Record:
    """The lambda that is best on the held-out rows of the tables' first trial."""
    trial = trial_of(setting, case_of(setting, 0).stream)
    shape = Shape(num_nodes, setting.num_features, setting.num_classes)
    fitted = learned(name, trial.stream, jax.random.key(0), shape, point)
    columns = to_columns("y", trial.y, trial.stream.classes)
    ridges = METHODS[name].ridges.tolist()
    reached = [float(np.mean(at == columns)) for at in fitted.decided(trial.X, ridges)]
    return best_of([{"lambda": ridge} for ridge in ridges], reached)


@jax.enable_x64(True)
def final(
    name: str, setting: Setting, num_nodes: int, seed: int, point: Point, ridge: float
) -> Record:
    """ACC after the last task with that lambda."""
    case = case_of(setting, seed)
    shape = Shape(num_nodes, setting.num_features, setting.num_classes)
    fitted = learned(name, case.stream, jax.random.key(seed), shape, point)
    right = next(fitted.decided(case.Z_test, [ridge])) == case.columns
    task = case.stream.class_task[case.columns]
    each = [float(right[task == q].mean()) for q in range(setting.num_tasks)]
    return {"ACC": float(np.mean(each)), "accuracy": float(right.mean()), "tasks": each}


# --- what is shown ----------------------------------------------------------------------------

HEADINGS = ("method", "N", "features", "ACC", "lambda", "seeds")


class Found(NamedTuple):
    """A method at one N: how many features its readout has, its choice, and ACC by seed."""

    num_nodes: int
    num_features: int
    choice: Record
    reached: np.ndarray


def found_of(
    setting: Setting, *, seeds: int, count: int, out: Path
) -> Iterator[tuple[str, list[Found]]]:
    """Every method with the widths that are there, from what is kept."""
    for name in METHODS:
        choice = tables.kept_choice(name, setting, count, out)
        if choice is None:
            continue
        kept = file_of(name, setting, records.as_point(choice["chosen"]), out).records
        direct = setting.num_features if name == "-R" else 0
        ways = []
        for num_nodes in widths_of(setting):
            places = [f"N={num_nodes} | seed {seed}" for seed in range(seeds)]
            reached = np.array([kept[place]["ACC"] for place in places if place in kept])
            if len(reached):
                chosen = kept[f"N={num_nodes} | choice"]
                ways.append(Found(num_nodes, num_nodes + direct, chosen, reached))
        if ways:
            yield name, ways


def tabulate(setting: Setting, *, seeds: int, count: int, out: Path) -> None:
    """table.csv, table.md and widths.png."""
    folder, titles = folder_of(setting, out), contenders()
    found = dict(found_of(setting, seeds=seeds, count=count, out=out))
    rows = [
        [
            titles[name].title,
            f"{one.num_nodes:,}",
            f"{one.num_features:,}",
            mean_and_deviation(one.reached),
            shown(one.choice["chosen"]).removeprefix("lambda ") + " (edge)" * one.choice["edge"],
            str(len(one.reached)),
        ]
        for name, ways in found.items()
        for one in ways
    ]
    grids = ", ".join(
        f"{titles[name].title} {METHODS[name].ridges[0]:g} to {METHODS[name].ridges[-1]:g}"
        for name in found
    )
    before = f"# {setting.title}, exact fits on more random features\n\n"
    after = (
        f"\nACC in the end; mean ± standard deviation over seeds. Features: of the readout, -R's"
        f" with the inputs beside its nodes. Lambda, of 13 values each ({grids}), by the accuracy"
        f" on {100 * setting.held_out:.0f} % of the training rows of the first"
        f" {setting.tuned_tasks} of {setting.num_tasks} tasks of seed 0; no test row enters.\n"
    )
    folder.mkdir(parents=True, exist_ok=True)
    write_table(folder, HEADINGS, rows, before=before, after=after)
    if found:
        draw(setting, found, folder / "widths.png")


def draw(setting: Setting, found: dict[str, list[Found]], path: Path) -> None:
    """ACC against the features of the readout, with the deviation over seeds."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS, DASHES

    figure = Figure(figsize=(7.5, 4.8), layout="constrained")
    panel, titles = figure.subplots(), contenders()
    for (name, ways), colour, dash in zip(found.items(), COLOURS, DASHES, strict=False):
        xs = [one.num_features for one in ways]
        means = [100 * one.reached.mean() for one in ways]
        spread = [100 * one.reached.std(ddof=min(1, len(one.reached) - 1)) for one in ways]
        look = {"color": colour, "ls": dash, "lw": 1.8, "marker": "o", "ms": 5, "capsize": 3}
        panel.errorbar(xs, means, yerr=spread, label=titles[name].title, **look)
    ticks = sorted({one.num_nodes for ways in found.values() for one in ways})
    panel.set(xscale="log", xlabel="features of the readout", ylabel="ACC in the end, %")
    panel.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    panel.minorticks_off()
    panel.grid(color="0.92")
    panel.spines[["top", "right"]].set_visible(False)
    panel.legend()
    most = max(len(one.reached) for ways in found.values() for one in ways)
    figure.suptitle(f"{setting.title}: {most} seed{'s' * (most > 1)}, bars: deviation over seeds")
    figure.savefig(path, dpi=120)
