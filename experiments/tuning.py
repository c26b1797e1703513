"""SMAC3, the shared sweep and hypergradients on one budget: `python -m experiments.tuning`.

The paper tunes lambda of -R and -kF-Bayes, lambda and k of -kF, with 200 trials of SMAC3. Here
three searchers get as many passes along the same stream, in the same box on a logarithmic
scale, for the same loss: the prequential one (each batch is guessed before it is learned), which
sees no test row. They run in one process, one after another, in an order that turns with the seed.

- SMAC3: its hyperparameter optimisation facade, deterministic. A trial is one call of a program
  that is compiled once; numbers that only scale are arguments of it.
- sweep: one call of `rvfl_jax.sweep` on a regular grid of as many points.
- gradient: bounded L-BFGS on logarithms, from a point one would begin at by hand and then from
  random points of the box, until the budget is spent. A value with its gradient counts as many
  passes as it takes time, measured in turns with values alone and rounded up to a half.

A grid point counts as one pass though the sweep shares work among points, which shows in seconds.
These are of a clock on the wall; seconds of processor time, of all threads, stand beside them, as
they depend less on what else a machine does. `pip install -e ".[experiments,tuning]"` brings SMAC3.
"""

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import fashion_mnist as fm
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import (
    Learner,
    Stream,
    adaptive_k,
    class_incremental_stream,
    edrvfl,
    pad_batches,
    prequential_loss,
    run_stream,
    sweep,
)
from rvfl_jax.data import load_dataset
from rvfl_jax.plots import COLOURS, DASHES

Point = dict[str, float]


class Range(NamedTuple):
    """What one number is searched in, on a logarithmic scale; `zero`: or it is 0."""

    low: float
    high: float
    zero: bool = False


RIDGE = Range(1e-3, 1e3)
SPACES: dict[str, dict[str, Range]] = {
    "-R": {"ridge": RIDGE},
    "-kF": {"ridge": RIDGE, "k": Range(1e-3, 1e1, zero=True)},
    "-kF-Bayes": {"ridge": RIDGE, "kappa": Range(1e-3, 1e2), "sigma": Range(1e-5, 1.0)},
}
# Where one would begin by hand: -F with lambda = 1, or kappa = 1.
BY_HAND = {"ridge": 1.0, "k": 1.0, "kappa": 1.0, "sigma": 1e-2}
SEARCHERS = ("SMAC3", "sweep", "gradient")
# A pass of Fashion-MNIST takes as long as ten of digits, so that all are searched on digits alone.
STYLES: dict[str, tuple[str, ...]] = {"digits": tuple(SPACES), "Fashion-MNIST": ("-kF",)}
NUM_BATCHES = {"digits": 50, "Fashion-MNIST": 20}
# As the loss of a run whose arithmetic failed: searchers need a number. A guess of 0 loses 1.
FAILED = 1e6
# Nearer to an end of its range than that part of it, in logarithms, a number is at an edge.
EDGE = 0.01
# Values and values with gradients timed in turns.
TIMINGS = 9
# Near enough to the best known to count as found, and the least excess that is told or drawn.
NEAR, LEAST_DRAWN = 1e-3, 1e-7


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of the stream, the random features and the searchers.
        trials: passes that each searcher has.
        num_nodes: N; one sub-learner.
        rows: training rows of Fashion-MNIST, the same number of each class.
        data: of `STYLES`.
    """

    seeds: int = 3
    trials: int = 200
    num_nodes: int = 128
    rows: int = 500
    data: tuple[str, ...] = tuple(STYLES)


class Case(NamedTuple):
    """A seed's stream and test set, and the key of its random features."""

    stream: Stream
    test: tuple[np.ndarray, np.ndarray]
    key: Any


def case_of(config: Config, name: str, seed: int) -> Case:
    """Raw pixels, classes two by two; streams of all seeds have one shape, for one program."""
    T = NUM_BATCHES[name]
    if name == "Fashion-MNIST":
        raw = fm.raw_case(seed, T, rows=config.rows)
        return Case(raw.stream, (raw.Z_test, raw.y_test), jax.random.key(seed))
    data = load_dataset(name)
    streams = [
        class_incremental_stream(data.X_train, data.y_train, num_tasks=5, num_batches=T, seed=one)
        for one in range(config.seeds)
    ]
    longest = max(stream.X.shape[1] for stream in streams)
    stream = pad_batches(streams[seed], longest)
    return Case(stream, (data.X_test, data.y_test), jax.random.key(seed))


@cache
def maker(style: str, num_nodes: int) -> Callable[..., Learner]:
    """`make_learner(**point)` of a style; the same function again for the same arguments."""

    def make(ridge: Any, k: Any = 0.0, kappa: Any = None, sigma: Any = None) -> Learner:
        strength = k if kappa is None else adaptive_k(kappa, sigma)
        return edrvfl(num_layers=1, num_nodes=num_nodes, ridge=ridge, k=strength)

    make.__qualname__ = f"make {style}"
    return make


def start_of(style: str) -> Point:
    """Where the first descent begins."""
    return {name: BY_HAND[name] for name in SPACES[style]}


def grid_of(style: str, trials: int) -> dict[str, np.ndarray]:
    """A regular grid of at most so many points; 0 is the first value where it is allowed.

    200 points are 10 lambda x 20 k, finer in k since the sweep shares eta_dagger along it, and
    8 lambda x 5 kappa x 5 sigma.
    """
    space = SPACES[style]
    coarse, fine = round(math.sqrt(trials / 2)), int(trials ** (1 / 3))
    sizes = {1: [trials], 2: [coarse, trials // coarse], 3: [trials // fine**2, fine, fine]}
    grid = {}
    for (name, within), size in zip(space.items(), sizes[len(space)], strict=True):
        values = np.geomspace(within.low, within.high, size - within.zero)
        grid[name] = np.append(0.0, values) if within.zero else values
    return grid


class Programs(NamedTuple):
    """Compiled for all streams of one shape, with the seconds that took.

    Attributes:
        value: (point, X, y, weight, key) -> loss.
        gradient: the same -> (loss, derivatives with respect to the point).
        seconds: of compiling both and the sweep, by searcher.
    """

    value: Any
    gradient: Any
    seconds: dict[str, float]


def compiled(config: Config, style: str, case: Case) -> Programs:
    """The loss of a style and its gradient as programs; the sweep's is warm afterwards."""
    make = maker(style, config.num_nodes)

    def loss(point: Any, X: Any, y: Any, weight: Any, key: Any) -> Any:
        stream = case.stream._replace(X=X, y=y, weight=weight)
        # All carries fit in memory, so that nothing has to be computed a second time.
        return prequential_loss(make(**point), stream, key=key, checkpoint=False)

    seconds, programs = {}, {}
    with jax.enable_x64(True):
        inputs = (_traced(start_of(style)), *_data(case))
        for name, function in (("SMAC3", loss), ("gradient", jax.value_and_grad(loss))):
            begin = time.perf_counter()
            programs[name] = jax.jit(function).lower(*inputs).compile()
            seconds[name] = time.perf_counter() - begin
    grid, took = grid_of(style, config.trials), []
    for _ in range(2):
        begin = time.perf_counter()
        sweep(make, case.stream, grid, key=case.key)
        took.append(time.perf_counter() - begin)
    # The first call compiles and runs, the second only runs.
    seconds["sweep"] = max(took[0] - took[1], 0.0)
    return Programs(programs["SMAC3"], programs["gradient"], seconds)


def _traced(point: Point) -> dict[str, Any]:
    return {name: jnp.asarray(value, float) for name, value in point.items()}


def _data(case: Case) -> tuple[Any, ...]:
    X, y, weight, *_ = case.stream.X, case.stream.y, case.stream.weight
    return (jnp.asarray(X, float), jnp.asarray(y), jnp.asarray(weight, float), case.key)


class OutOfPassesError(Exception):
    """The budget is spent."""


class Objective:
    """The prequential loss of a style along a stream, and what was spent on it.

    Attributes:
        trials: passes to spend.
        cost: passes that a value with its gradient counts as.
        evaluations: values asked for, with a gradient or without.
        passes: spent.
        inside: seconds spent in the programs.
        best: least loss and where.
        steps: [passes, seconds, loss] where the least loss fell.
    """

    def __init__(self, programs: Programs, case: Case, trials: int, cost: float):
        self.programs, self.trials, self.cost = programs, trials, cost
        with jax.enable_x64(True):
            self.data = jax.block_until_ready(_data(case))
        self.evaluations, self.passes, self.inside = 0, 0.0, 0.0
        self.best: tuple[float, Point] = (math.inf, {})
        self.steps: list[list[float]] = []
        self.begin()

    def begin(self) -> None:
        """Start the clocks."""
        self.begun, self.begun_on_processor = time.perf_counter(), time.process_time()

    def value(self, point: Point) -> float:
        """The loss, for one pass."""
        return float(self._call(self.programs.value, point, 1.0))

    def with_gradient(self, point: Point) -> tuple[float, Point]:
        """The loss and its derivatives with respect to logarithms."""
        value, slopes = self._call(self.programs.gradient, point, self.cost)
        return float(value), {name: point[name] * float(slopes[name]) for name in point}

    def _call(self, program: Any, point: Point, cost: float) -> Any:
        if self.passes + cost > self.trials:
            raise OutOfPassesError
        begin = time.perf_counter()
        with jax.enable_x64(True):
            result = jax.block_until_ready(program(_traced(point), *self.data))
        self.inside += time.perf_counter() - begin
        self.spend(cost, 1, float(jax.tree.leaves(result)[0]), point)
        return result

    def spend(self, passes: float, evaluations: int, loss: float, point: Point) -> None:
        """Book passes, the least loss that they found, and when."""
        self.passes += passes
        self.evaluations += evaluations
        if loss < self.best[0]:
            self.best = (loss, dict(point))
            self.steps.append([self.passes, time.perf_counter() - self.begun, loss])


def finite(loss: float) -> float:
    """The loss as searchers take it."""
    return loss if math.isfinite(loss) else FAILED


def by_smac(objective: Objective, style: str, case: Case, make: Any, seed: int) -> None:
    """As the paper tunes; the initial design, the forest and the rest are SMAC's defaults."""
    del case, make
    # What other packages warn of on import and in their loops is not about this experiment.
    with warnings.catch_warnings(), TemporaryDirectory() as folder:
        warnings.simplefilter("ignore")
        from smac import HyperparameterOptimizationFacade, Scenario

        objective.begin()

        def target(configuration: Any, seed: int = 0) -> float:
            del seed
            return finite(objective.value(point_of(style, dict(configuration))))

        scenario = Scenario(
            smac_space(style, seed),
            deterministic=True,
            n_trials=objective.trials,
            output_directory=Path(folder),
            seed=seed,
        )
        HyperparameterOptimizationFacade(
            scenario, target, logging_level=False, overwrite=True
        ).optimize()


def smac_space(style: str, seed: int) -> Any:
    """The box for SMAC: where 0 is allowed, a switch decides whether there is a number at all."""
    from ConfigSpace import Categorical, ConfigurationSpace, EqualsCondition, Float

    space = ConfigurationSpace(seed=seed)
    for name, within in SPACES[style].items():
        number = Float(name, (within.low, within.high), log=True)
        space.add(number)
        if within.zero:
            switch = Categorical(f"{name} above 0", [True, False], default=True)
            space.add(switch)
            space.add(EqualsCondition(number, switch, True))
    return space


def point_of(style: str, configuration: dict[str, Any]) -> Point:
    """A configuration of SMAC as a point; a number that is switched off is 0."""
    return {name: float(configuration.get(name, 0.0)) for name in SPACES[style]}


def by_sweep(objective: Objective, style: str, case: Case, make: Any, seed: int) -> None:
    """One call, which tells of nothing before its end."""
    del seed
    begin = time.perf_counter()
    result = sweep(make, case.stream, grid_of(style, objective.trials), key=case.key)
    objective.inside += time.perf_counter() - begin
    size = result.healthy.size
    objective.spend(size, size, float(result.prequential_loss.min()), result.best())


def by_gradient(objective: Objective, style: str, case: Case, make: Any, seed: int) -> None:
    """Descents one after another; the first begins by hand, the others anywhere in the box."""
    del case, make
    from scipy.optimize import minimize

    space, rng = SPACES[style], np.random.default_rng(seed)
    bounds = [(math.log(within.low), math.log(within.high)) for within in space.values()]

    def point_at(logarithms: Any) -> Point:
        values = np.exp(np.asarray(logarithms, float))
        return dict(zip(space, values.tolist(), strict=True))

    def function(logarithms: Any) -> tuple[float, np.ndarray]:
        loss, slopes = objective.with_gradient(point_at(logarithms))
        gradient = np.array([slopes[name] for name in space])
        return finite(loss), gradient if np.isfinite(gradient).all() else 0 * gradient

    logarithms = np.log([start_of(style)[name] for name in space])
    try:
        while True:
            end = minimize(function, logarithms, jac=True, method="L-BFGS-B", bounds=bounds)
            point = point_at(end.x)
            zeros = {
                name: 0.0
                for name, within in space.items()
                if within.zero and edge_of(within, point[name]) == "lowest"
            }
            if zeros:
                # No logarithm reaches 0; a descent that ends at the edge before it tries it.
                objective.value(point | zeros)
            logarithms = np.array([rng.uniform(*bound) for bound in bounds])
    except OutOfPassesError:
        return


SEARCH: dict[str, Callable[..., None]] = dict(
    zip(SEARCHERS, (by_smac, by_sweep, by_gradient), strict=True)
)


def edge_of(within: Range, value: float) -> str:
    """ "0", "lowest", "highest" or "" for inside."""
    if value == 0:
        return "0"
    span = math.log(within.high / within.low)
    if math.log(value / within.low) < EDGE * span:
        return "lowest"
    return "highest" if math.log(within.high / value) < EDGE * span else ""


def cost_of(programs: Programs, style: str, case: Case) -> Record:
    """Seconds of a value and of a value with its gradient, in turns, and their ratio."""
    took: dict[str, list[float]] = {"value": [], "gradient": []}
    with jax.enable_x64(True):
        inputs = (_traced(start_of(style)), *_data(case))
        for _ in range(TIMINGS):
            for name, times in took.items():
                begin = time.perf_counter()
                jax.block_until_ready(getattr(programs, name)(*inputs))
                times.append(time.perf_counter() - begin)
    ratios = [b / a for a, b in zip(took["value"], took["gradient"], strict=True)]
    return {
        "seconds of a pass": median(took["value"]),
        "ratio": median(ratios),
        "counted": math.ceil(2 * median(ratios)) / 2,
        "compilation": programs.seconds,
    }


def search(
    config: Config,
    style: str,
    case: Case,
    programs: Programs,
    searcher: str,
    seed: int,
    cost: float,
) -> Record:
    """One search; the test set is looked at when it is over."""
    make = maker(style, config.num_nodes)
    objective = Objective(programs, case, config.trials, cost)
    SEARCH[searcher](objective, style, case, make, seed)
    seconds = time.perf_counter() - objective.begun
    on_processor = time.process_time() - objective.begun_on_processor
    loss, point = objective.best
    edges = {name: edge_of(within, point[name]) for name, within in SPACES[style].items()}
    return {
        "loss": loss,
        "point": point,
        "edges": {name: edge for name, edge in edges.items() if edge},
        "evaluations": objective.evaluations,
        "passes": objective.passes,
        "seconds": seconds,
        "own seconds": seconds - objective.inside,
        "processor seconds": on_processor,
        "steps": objective.steps,
        "accuracy": accuracy_of(config, style, case, point),
    }


def accuracy_of(config: Config, style: str, case: Case, point: Point) -> float:
    """Of the test set at the end of the stream, over all classes."""
    history = run_stream(
        maker(style, config.num_nodes)(**point),
        case.stream,
        key=case.key,
        test=case.test,
        evaluate=case.stream.num_batches,
        expert=None,
        on_failure="return",
    ).history
    return float(history.accuracy["class_incremental"][-1])


def by_hand(config: Config, style: str, case: Case, programs: Programs) -> Record:
    """What nobody searched: the point at which the descents begin."""
    objective = Objective(programs, case, 1, math.inf)
    point = start_of(style)
    loss = objective.value(point)
    return {"loss": loss, "point": point, "accuracy": accuracy_of(config, style, case, point)}


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for name in config.data:
        for style in STYLES[name]:
            place = f"{name} | {style}"
            with steps_shown(place, file) as once:
                _measure_at(config, file, name, style, place, once)


def _measure_at(
    config: Config, file: ResultsFile, name: str, style: str, place: str, once: Any
) -> None:
    wanted = [
        f"{place} | seed {seed} | {what}"
        for seed in range(config.seeds)
        for what in ("by hand", *SEARCHERS)
    ]
    if set(wanted) <= set(file.records):
        return
    if find_spec("smac") is None:
        raise SystemExit('tuning: SMAC3 is missing: pip install -e ".[experiments,tuning]"')
    first = case_of(config, name, 0)
    programs = compiled(config, style, first)
    cost = once(f"{place} | cost", cost_of, programs, style, first)["counted"]
    for seed in range(config.seeds):
        case, at = case_of(config, name, seed), f"{place} | seed {seed}"
        once(f"{at} | by hand", by_hand, config, style, case, programs)
        turn = seed % len(SEARCHERS)
        for searcher in (*SEARCHERS[turn:], *SEARCHERS[:turn]):
            arguments = (config, style, case, programs, searcher, seed, cost)
            once(f"{at} | {searcher}", search, *arguments)


def found(config: Config, file: ResultsFile, place: str, searcher: str) -> list[Record]:
    """The records of all seeds."""
    return [file.records[f"{place} | seed {seed} | {searcher}"] for seed in range(config.seeds)]


def best_known(config: Config, file: ResultsFile, place: str) -> list[float]:
    """The least loss of each seed that any searcher found."""
    losses = [[record["loss"] for record in found(config, file, place, name)] for name in SEARCHERS]
    return [min(of_seed) for of_seed in zip(*losses, strict=True)]


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """One row a data set, style and searcher."""
    headings = (
        *("data", "style", "searcher", "loss found", "beyond the best known %, worst seed"),
        *("evaluations", "passes", "until within 0.1 %: passes", "seconds"),
        *("seconds in all, warm", "the searcher's own", "processor seconds", "compilation"),
        *("found at", "at an edge of the box", "test accuracy %"),
    )
    rows = []
    for name in config.data:
        for style in STYLES[name]:
            place = f"{name} | {style}"
            rows += [
                [name, style, searcher, *_cells(config, file, place, searcher)]
                for searcher in ("by hand", *SEARCHERS)
            ]
    costs = [
        f"{name}, {style}: {cost['ratio']:.1f}, counted as {cost['counted']:g}, a pass takes"
        f" {1e3 * cost['seconds of a pass']:.0f} ms"
        for name in config.data
        for style in STYLES[name]
        for cost in [file.records[f"{name} | {style} | cost"]]
    ]
    after = (
        f"\nMeans and standard deviations of {config.seeds} seeds; N = {config.num_nodes}, L = 1;"
        f" digits in {NUM_BATCHES['digits']} batches, {config.rows:,} rows of Fashion-MNIST in"
        f" {NUM_BATCHES['Fashion-MNIST']}. Medians of the seeds are what is given as evaluations,"
        " passes, seconds and numbers found. Within 0.1 % of the least loss that any of the three"
        " found on a seed: the median seed, where all seeds came as near; else how many did.\n\n"
        "A pass is a value of the loss, or a point of the grid. A value with its gradient takes"
        " so many times a value (median of pairs measured in turns): " + "; ".join(costs) + ".\n"
    )
    write_table(folder, headings, rows, after=after)


def _cells(config: Config, file: ResultsFile, place: str, searcher: str) -> list[str]:
    records, best = found(config, file, place, searcher), best_known(config, file, place)
    losses = [record["loss"] for record in records]
    excess = max(loss / least - 1 for loss, least in zip(losses, best, strict=True))
    points = [record["point"] for record in records]
    at = ", ".join(
        f"{_symbol(name)} {median(point[name] for point in points):.3g}" for name in points[0]
    )
    cells = [
        mean_and_deviation(losses, 1, 4),
        f"{100 * excess:.2g}" if excess > LEAST_DRAWN else "0",
    ]
    accuracy = mean_and_deviation([record["accuracy"] for record in records], 100, 2)
    if searcher == "by hand":
        return [*cells, "1", "1", *[""] * 6, at, "", accuracy]

    def middle(key: str, digits: str) -> str:
        return format(median(record[key] for record in records), digits)

    compilation = file.records[f"{place} | cost"]["compilation"][searcher]
    return [
        *cells,
        middle("evaluations", ".0f"),
        middle("passes", ".4g"),
        *_until_near(records, best),
        middle("seconds", ".1f"),
        middle("own seconds", ".1f"),
        middle("processor seconds", ".1f"),
        f"{compilation:.1f}",
        at,
        _edges_told(records),
        accuracy,
    ]


def _until_near(records: list[Record], best: list[float]) -> list[str]:
    """Passes and seconds of the median seed until `NEAR` the best known; or how many came near."""
    near = [
        next((step for step in record["steps"] if step[2] <= (1 + NEAR) * least), None)
        for record, least in zip(records, best, strict=True)
    ]
    reached = [step for step in near if step is not None]
    if len(reached) < len(near):
        return [f"{len(reached)} of {len(near)} seeds", ""]
    return [f"{median(s[0] for s in reached):.4g}", f"{median(s[1] for s in reached):.1f}"]


def _edges_told(records: list[Record]) -> str:
    """Which numbers are at which end, with how many of the seeds."""
    ends = [(n, edge) for record in records for n, edge in record["edges"].items()]
    words = [
        f"{_symbol(name)} {'= 0' if edge == '0' else edge}, {ends.count((name, edge))} of"
        f" {len(records)}"
        for name, edge in dict.fromkeys(ends)
    ]
    return "; ".join(words) or "no"


def _symbol(name: str) -> str:
    return "lambda" if name == "ridge" else name


def curve(record: Record, least: float, column: int, where: np.ndarray) -> np.ndarray:
    """Relative excess of the least loss so far, at these passes (0) or seconds (1).

    Args:
        record: of a search.
        least: the best known loss.
        column: what is spent.
        where: increasing amounts of it.

    Returns:
        As long as `where`, at least `LEAST_DRAWN`; infinite before the first loss.
    """
    steps = np.array(record["steps"])
    place = np.searchsorted(steps[:, column], where, side="right") - 1
    excess = np.where(place >= 0, steps[place, 2] / least - 1, np.inf)
    return np.maximum(excess, LEAST_DRAWN)


def draw(config: Config, file: ResultsFile, path: Path) -> None:
    """Excess of the best loss so far against passes and seconds, a row a data set and style."""
    from matplotlib.figure import Figure

    places = [(name, style) for name in config.data for style in STYLES[name]]
    figure = Figure(figsize=(10, 1 + 2.9 * len(places)), layout="constrained")
    panels = figure.subplots(len(places), 2, squeeze=False, sharex="col", sharey="row")
    for row, (name, style) in zip(panels, places, strict=True):
        for column, panel in enumerate(row):
            _draw_searches(config, file, f"{name} | {style}", column, panel)
        numbers = ", ".join(map(_symbol, SPACES[style]))
        row[0].set_title(f"{name}, {style}: {numbers}", loc="left")
        row[0].set_ylabel("loss beyond the best known, %")
    for panel, spent in zip(panels[-1], ("passes along the stream", "seconds, warm"), strict=True):
        panel.set_xlabel(spent)
    figure.legend(
        *panels[0, 0].get_legend_handles_labels(),
        loc="outside upper center",
        ncols=3,
        title=f"best loss so far, median and range of {config.seeds} seeds;"
        f" less than {100 * LEAST_DRAWN:.0e} % is drawn as that",
    )
    figure.savefig(path, dpi=120)


def _draw_searches(config: Config, file: ResultsFile, place: str, column: int, panel: Any) -> None:
    best = best_known(config, file, place)
    for searcher, colour, dash in zip(SEARCHERS, COLOURS, DASHES, strict=False):
        records = found(config, file, place, searcher)
        end = median(record[("passes", "seconds")[column]] for record in records)
        first = max(record["steps"][0][column] for record in records)
        # From where every seed has a loss to where the median seed is through.
        where = np.geomspace(min(first, end), end, 600)
        pairs = zip(records, best, strict=True)
        curves = 100 * np.array([curve(record, least, column, where) for record, least in pairs])
        middle, low, high = np.median(curves, axis=0), curves.min(axis=0), curves.max(axis=0)
        look = {"color": colour, "ms": 9, "markeredgewidth": 2}
        if searcher == "sweep":
            # It tells of nothing before its end.
            ends = 100 * np.array([r["loss"] / m - 1 for r, m in zip(records, best, strict=True)])
            ends = np.maximum(ends, 100 * LEAST_DRAWN)
            middle_end = np.median(ends)
            spread = [[middle_end - ends.min()], [ends.max() - middle_end]]
            look |= {"marker": "s", "mfc": "none", "capsize": 6, "ls": "", "zorder": 4}
            panel.errorbar(end, middle_end, spread, label="sweep, at its end", **look)
            continue
        panel.fill_between(where, low, high, color=colour, alpha=0.2, lw=0)
        panel.plot(
            where, middle, ls=dash, lw=2.2, label=searcher, marker="o", markevery=[-1], **look
        )
    panel.set(xscale="log", yscale="log")
    panel.grid(color="0.92")
    panel.spines[["top", "right"]].set_visible(False)


def main(config: Config, out: Path = RESULTS / "tuning") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and curves.png.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw(config, file, out / "curves.png")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
