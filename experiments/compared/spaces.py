"""What of each method is tuned: as many configurations for each, drawn once.

A space has numbers between bounds, three decades or more about the documented default, and options
of a few values that shape programs. Its configurations are a Latin hypercube in the logarithms of
the numbers, with the options in turn: of 64 configurations and two widths each width has 32. Where
programs share work along an axis (the Gram matrix does not depend on k), a space is a grid of such
draws. Widths are the same for all of a kind: two hidden layers of 400 or 200 nodes, and 512 or
1,024 random features. A method without numbers has one configuration, and its record says so.
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from experiments.compared.settings import Setting

Point = dict[str, Any]

CONFIGURATIONS = 64
DRAWN_BY = 20
# A number is at the edge within this share of its range, in its logarithm.
EDGE = 1 / 32
WINDOW_ROWS = 256
HARD_ROWS = 30
# Of the joint network while it is tuned; a run has more.
JOINT_PASSES = 2


@dataclass(frozen=True)
class Space:
    """A search space.

    Attributes:
        numbers: name to (low, high).
        options: name to the values that each need a program of their own.
        fixed: what all configurations have.
        cheaper: what they have in its place while they are tried, to the same end or nearly.
        grid: name of a number to how many values of it; all together make a grid.
        rows_kept: of the stream, in the state.
        remark: for records and tables.
    """

    numbers: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    options: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    cheaper: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, int] | None = None
    rows_kept: int = 0
    remark: str = ""

    @property
    def constants(self) -> tuple[str, ...]:
        """Names that a sweep passes untraced."""
        return tuple(self.options)

    def points(self, count: int = CONFIGURATIONS) -> list[Point]:
        """The configurations, without what is fixed."""
        combined = [
            dict(zip(self.options, values, strict=True))
            for values in itertools.product(*self.options.values())
        ]
        if not self.numbers:
            return combined[:count]
        if self.grid is not None:
            return self._grid_points(count, combined)
        drawn = latin_hypercube(self.numbers, count)
        return [combined[i % len(combined)] | point for i, point in enumerate(drawn)]

    def axes(self, count: int = CONFIGURATIONS) -> dict[str, list[Any]]:
        """The same of a grid, axis by axis."""
        assert self.grid is not None
        options = {name: list(values) for name, values in self.options.items()}
        sizes = _shrunk(dict(self.grid), count, math.prod(map(len, options.values())))
        axes = {
            name: sorted(point[name] for point in latin_hypercube({name: self.numbers[name]}, n))
            for name, n in sizes.items()
        }
        return options | axes

    def _grid_points(self, count: int, combined: list[Point]) -> list[Point]:
        axes = self.axes(count)
        return [
            dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())
        ]

    def at_the_edge(self, point: Point) -> list[str]:
        """Numbers of a point that lie at an end of their ranges."""
        places = {name: self.place(name, point[name]) for name in self.numbers}
        return [name for name, place in places.items() if not EDGE < place < 1 - EDGE]

    def place(self, name: str, value: float) -> float:
        """From 0 to 1, where a value lies in the logarithm of its range."""
        low, high = np.log(self.numbers[name])
        return float((np.log(value) - low) / (high - low))

    def off_centre(self, point: Point) -> float:
        """How far a point is from the middle of its ranges."""
        return sum(abs(self.place(name, point[name]) - 0.5) for name in self.numbers)


def latin_hypercube(
    ranges: Mapping[str, tuple[float, float]], count: int, seed: int = DRAWN_BY
) -> list[dict[str, float]]:
    """`count` points, every number once in each of `count` equal parts of its log-range."""
    rng = np.random.default_rng(seed)
    columns = {}
    for name, (low, high) in ranges.items():
        share = (rng.permutation(count) + rng.random(count)) / count
        columns[name] = low * (high / low) ** share
    return [{name: float(columns[name][i]) for name in ranges} for i in range(count)]


def _shrunk(sizes: dict[str, int], count: int, options: int) -> dict[str, int]:
    """The sizes of a grid halved, the largest first, until it has no more than `count` points."""
    while options * math.prod(sizes.values()) > count and max(sizes.values()) > 1:
        largest = max(sizes, key=lambda name: sizes[name])
        sizes[largest] //= 2
    return sizes


def about(default: float, decades: float = 4.0) -> tuple[float, float]:
    """So many decades with the default in their middle."""
    factor = 10 ** (decades / 2)
    return default / factor, default * factor


def spaces(setting: Setting) -> dict[str, Space]:
    """Name of each contender to its space on a setting."""
    parts = (_bounds, _closed_forms, _replay, _regularised, _others, _ours)
    return {name: space for part in parts for name, space in part(setting).items()}


def space_of(name: str, setting: Setting) -> Space:
    """That of one contender.

    Raises:
        ValueError: if it has none yet.
    """
    found = spaces(setting)
    if name not in found:
        raise ValueError(f"{name}: expected a method with a search space, got none; see `spaces`")
    return found[name]


RATE = about(0.1, 3.0)
SLOW_RATE = about(0.03, 3.0)


def _bounds(setting: Setting) -> dict[str, Space]:
    widths = {"hidden": setting.hidden}
    return {
        "finetune": Space({"learning_rate": RATE}, widths | {"updates": (1, 2)}),
        "joint": Space(
            {"learning_rate": RATE},
            widths,
            cheaper={"passes": JOINT_PASSES},
            remark="tuned with two passes over the rows of the first tasks, run with ten",
        ),
        "joint_ridge": _ours(setting)["-R"],
    }


def _closed_forms(setting: Setting) -> dict[str, Space]:
    nodes = {"num_nodes": setting.nodes}
    gamma = about(1 / setting.num_features, 3.0)
    return {
        "ncm": Space(remark="no hyperparameters"),
        "simplecil": Space(remark="no hyperparameters that its decisions depend on"),
        "slda": Space({"shrinkage": (1e-7, 0.99)}),
        "lda": Space(
            options={"priors": ("rows", "equal")},
            remark="no hyperparameters but its priors: OAS sets the shrinkage",
        ),
        "ranpac": Space(
            {"ridge": (1e-3, 1e5)}, nodes, remark="lambda a number: batches are too small to choose"
        ),
        "randumb": Space({"gamma": gamma, "ridge": about(1e-5, 6.0)}, nodes),
        "klda": Space({"gamma": gamma, "shrinkage": (1e-6, 0.99)}, nodes),
        "acil": Space({"ridge": about(0.1, 6.0)}, nodes),
        "gacl": Space({"ridge": about(100.0, 6.0)}, nodes),
        "foal": Space({"ridge": about(1.0, 6.0), "weight_scale": about(1.0, 2.0)}, nodes),
        "dsal": Space(
            {
                "ridge": about(0.1, 6.0),
                "compensation_ridge": about(0.1, 6.0),
                "compensation": about(1.0, 2.0),
            },
            nodes,
        ),
    }


def _replay(setting: Setting) -> dict[str, Space]:
    r, Q = setting.memory, setting.num_tasks
    widths = {"hidden": setting.hidden}
    drawing = widths | {"drawn": setting.drawn}
    memory = {"fixed": {"memory": r}, "rows_kept": r}
    rate = {"learning_rate": RATE}
    of_a_task = max(r // Q, 1)
    return {
        "er": Space(rate, drawing, **memory),
        "agem": Space(rate, drawing, **memory),
        "gss": Space(rate, drawing, **memory),
        "derpp": Space(
            {"learning_rate": SLOW_RATE, "answers": about(1.0), "labels": about(0.5, 3.0)},
            drawing,
            **memory,
        ),
        "gem": Space(
            rate | {"strength": about(0.5, 3.0)},
            widths,
            fixed={"memory": of_a_task, "tasks": max(Q - 1, 1)},
            # Places that stay empty cost a gradient each, and change nothing.
            cheaper={"tasks": max(setting.tuned_tasks - 1, 1)},
            rows_kept=of_a_task * Q,
            remark="as many rows in all as the other replay methods, shared among the tasks",
        ),
    }


def _regularised(setting: Setting) -> dict[str, Space]:
    widths, rate = {"hidden": setting.hidden}, {"learning_rate": RATE}
    window = {"fixed": {"window": WINDOW_ROWS}, "rows_kept": WINDOW_ROWS}
    return {
        "ewc": Space(rate | {"coefficient": about(1000.0, 6.0)}, widths, **window),
        "online_ewc": Space(
            {"learning_rate": SLOW_RATE, "coefficient": about(90.0, 6.0)}, widths, **window
        ),
        "si": Space(rate | {"coefficient": about(1.0, 6.0), "damping": about(0.1, 4.0)}, widths),
        "mas": Space(rate | {"coefficient": about(1.0, 6.0)}, widths, **window),
        "task_free_mas": Space(
            rate | {"coefficient": about(0.5, 6.0), "mean_below": about(0.2, 2.0)},
            widths,
            fixed={"hard": HARD_ROWS},
            rows_kept=HARD_ROWS,
        ),
        "lwf": Space(
            rate | {"coefficient": about(1.0, 4.0), "temperature": about(2.0, 1.2)}, widths
        ),
    }


def _others(setting: Setting) -> dict[str, Space]:
    widths, Q = {"hidden": setting.hidden}, setting.num_tasks
    of_a_task = {"task_batches": setting.num_batches // Q}
    return {
        "owm": Space(
            {"learning_rate": about(0.2, 3.0), "alpha": about(0.9, 3.0)}, widths, fixed=of_a_task
        ),
        "crnet1": Space(
            {"penalty": about(3000.0, 6.0), "weight_scale": about(1.0, 2.0)},
            {"num_nodes": setting.nodes_of_crnet},
            remark="a task is a batch; fewer nodes than the 900 of its source, by their cost",
        ),
        "hat": Space(
            {
                "learning_rate": about(0.05, 3.0),
                "coefficient": about(0.75, 3.0),
                "largest_scale": about(400.0, 2.0),
            },
            widths,
            fixed=of_a_task | {"tasks": Q},
        ),
    }


def _ours(setting: Setting) -> dict[str, Space]:
    nodes, ridge = {"num_nodes": setting.nodes}, (1e-3, 1e4)
    at_the_end = "k changes nothing once the last batch is learned: among equals the least loss"
    return {
        "-R": Space({"ridge": ridge}, nodes),
        "-F": Space({"ridge": ridge}, nodes),
        "-kF": Space(
            {"ridge": ridge, "k": about(1.0, 3.0)},
            nodes,
            grid={"ridge": 8, "k": 4},
            remark=at_the_end,
        ),
        "-kF-Bayes": Space(
            {"ridge": ridge, "kappa": about(1.0, 4.0)}, nodes, grid={"ridge": 8, "kappa": 4}
        ),
    }
