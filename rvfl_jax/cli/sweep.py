"""The job of `rvfl-jax sweep`: a grid on one data set, chosen from without its test set."""

import json
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rvfl_jax import metrics
from rvfl_jax.cli.compare import Setting, plain
from rvfl_jax.core.types import Criterion, Learner
from rvfl_jax.core.words import Summary, cut, number, summarised
from rvfl_jax.data import load_dataset
from rvfl_jax.files.checkpoint import replace_file
from rvfl_jax.learners.edrvfl.learner import edrvfl
from rvfl_jax.learners.edrvfl.strength import adaptive_k
from rvfl_jax.runs.comparison import Progress
from rvfl_jax.runs.run_stream import run_stream
from rvfl_jax.streams.class_incremental import pad_batches
from rvfl_jax.sweeps.result import CRITERIA, Sweep
from rvfl_jax.sweeps.sweep import sweep


@dataclass(frozen=True)
class SweepConfig(Setting):
    """What `rvfl-jax sweep` tries; see its `--help`."""

    k: tuple[float, ...] = ()
    kappa: tuple[float, ...] = ()
    sigma: tuple[float, ...] = ()
    ridge: tuple[float, ...] = (0.1,)
    weight_scale: tuple[float, ...] = ()
    seeds: int = 3
    orders: int = 1
    criterion: Criterion = "prequential_loss"


@summarised
@dataclass(repr=False)
class SweepOutcome:
    """The sweep, its best point, and what that point reaches on the test set, once.

    Attributes:
        config: what was asked for.
        dataset: name of the data.
        result: of `sweep`.
        best: what `make_learner` got.
        test: metric to its value on the test set: the first order, the first seed.
    """

    config: SweepConfig
    dataset: str
    result: Sweep
    best: dict[str, Any]
    test: dict[str, float]

    def _summary(self) -> Summary:
        summary = self.result._summary()
        tested = ", ".join(f"{name} {number(value)}" for name, value in self.test.items())
        rows = [*summary.rows, ("the best on the test set", cut(tested, 150))]
        return Summary(f"{self.dataset}: {cut(summary.title, 200)}", rows)


def run_sweep(config: SweepConfig, progress: Progress | None = None) -> SweepOutcome:
    """Sweep, choose, and test the choice once; without progress, in as few chunks as fit.

    Raises:
        ValueError: on anything in `config` that cannot be run, before the first run.
        NumericalError: if the best configuration failed on its own.
    """
    grid = grid_of(config)
    data = load_dataset(config.dataset, seed=0, label=config.label)
    streams = [config.stream(data, seed) for seed in range(config.orders)]
    longest = max(stream.X.shape[1] for stream in streams)
    streams = [pad_batches(stream, longest) for stream in streams]
    key = jax.random.key(0)
    make = partial(make_learner, config)
    result = sweep(
        make,
        streams if len(streams) > 1 else streams[0],
        grid,
        key=key,
        precision=config.precision,
        progress=False if progress is None else partial(progress, "configurations"),
    )
    best = result.best(config.criterion)
    history = run_stream(
        make(**best),
        streams[0],
        key=jax.random.fold_in(key, 0),
        test=(data.X_test, data.y_test),
        evaluate="task",
        expert=None,
        precision=config.precision,
    ).history
    test = {f"accuracy_{name}": float(curve[-1]) for name, curve in history.accuracy.items()}
    if history.R:
        test["ACC"] = metrics.average_accuracy(history.R["class_incremental"])
    return SweepOutcome(config, data.name, result, best, test)


def grid_of(config: SweepConfig) -> dict[str, Any]:
    """The axes that have values; k is 1 where nothing is said of the forward strength.

    Raises:
        ValueError: on a constant k together with the kappa or sigma of an adaptive one.
    """
    if config.k and (config.kappa or config.sigma):
        raise ValueError("k: expected either k or kappa and sigma, got both")
    grid: dict[str, Any] = {}
    for name in ("kappa", "sigma", "k", "ridge", "weight_scale"):
        values = getattr(config, name)
        if values:
            grid[name] = np.array(values, dtype=float)
    if not any(name in grid for name in ("k", "kappa", "sigma")):
        grid["k"] = np.array([1.0])
    if config.seeds < 1 or config.orders < 1:
        raise ValueError(
            f"seeds, orders: expected at least 1 of each, got {config.seeds}, {config.orders}"
        )
    if config.criterion not in CRITERIA:
        raise ValueError(
            f"criterion: expected one of {', '.join(CRITERIA)}, got {config.criterion!r}"
        )
    return grid | {"seed": np.arange(config.seeds)}


def make_learner(
    config: SweepConfig,
    k: Any = None,
    kappa: Any = 1.0,
    sigma: Any = 1e-5,
    ridge: Any = 0.1,
    weight_scale: Any = 1.0,
) -> Learner:
    """A point's learner: a constant k, or -kF-Bayes that takes out what it had put in."""
    return edrvfl(
        num_layers=config.num_layers,
        num_nodes=config.num_nodes,
        ridge=ridge,
        k=adaptive_k(kappa, sigma, reuse_k=True) if k is None else k,
        activation=config.activation,
        weight_init=config.weight_init,
        weight_scale=weight_scale,
        ensemble=config.ensemble,
    )


def drawn_axes(result: Sweep) -> tuple[str, str | None]:
    """The two longest axes that are chosen among, for a picture: x, and y or None."""
    sizes = {axis: len(result.coords[axis]) for axis in result.choices}
    longest = sorted(sizes, key=lambda axis: -sizes[axis])
    two = len(longest) > 1 and sizes[longest[1]] > 1
    return longest[0], longest[1] if two else None


def save_sweep(outcome: SweepOutcome, path: Path) -> None:
    """Write sweep.json: configuration, provenance, coordinates, and all raw numbers."""
    result = outcome.result
    content = {
        "config": asdict(outcome.config),
        "dataset": outcome.dataset,
        "provenance": result.provenance,
        "axes": list(result.axes),
        "coords": result.coords,
        "healthy": result.healthy,
        "prequential_loss": result.prequential_loss,
        "prequential_accuracy": result.prequential_accuracy,
        "criterion": outcome.config.criterion,
        "best": outcome.best,
        "test_of_the_best": outcome.test,
    }
    text = json.dumps(plain(content)) + "\n"
    replace_file(path, lambda file: file.write(text.encode()))
