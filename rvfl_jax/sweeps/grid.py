"""What a sweep varies: axes of a grid, or a list of points, sorted into what can be traced."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rvfl_jax.core.checks import positive_int

SEED, STREAM, POINT = "seed", "stream", "point"


@dataclass(frozen=True)
class Axis:
    """Values that vary together.

    Attributes:
        name: of the axis in the results.
        size: how many.
        numbers: name to (size, ...) floats, which one program takes all at once.
        constants: name to `size` Python values, each of which needs a program of its own.
    """

    name: str
    size: int
    numbers: dict[str, np.ndarray] = field(default_factory=dict)
    constants: dict[str, list[Any]] = field(default_factory=dict)

    def at(self, index: int) -> dict[str, Any]:
        """The values at one place, as a maker of learners takes them."""
        numbers = {name: _plain(values[index]) for name, values in self.numbers.items()}
        return numbers | {name: values[index] for name, values in self.constants.items()}

    def groups(self) -> list[tuple[dict[str, Any], np.ndarray]]:
        """Constants that one program can hold, and the places that have them."""
        if not self.constants:
            return [({}, np.arange(self.size))]
        found: dict[Any, list[int]] = {}
        for index, values in enumerate(zip(*self.constants.values(), strict=True)):
            # With their types: True and 1 are equal, and mean different things.
            found.setdefault((values, tuple(map(type, values))), []).append(index)
        return [
            (dict(zip(self.constants, values, strict=True)), np.array(places))
            for (values, _), places in found.items()
        ]


def axes_of(grid: Any, num_streams: int | None, constants: Sequence[str]) -> list[Axis]:
    """The axes of a grid, in its order; the axis "stream" comes last unless the grid has it.

    Args:
        grid: a mapping of names to values, for all combinations, or a sequence of mappings,
            each of them one point.
        num_streams: how many streams there are, or None where there is only one.
        constants: names that are never traced.

    Raises:
        ValueError: on an empty grid or axis, points of different names, values of no use.
    """
    if isinstance(constants, str) or {SEED, STREAM} & set(constants):
        raise ValueError(
            f"constants: expected a list of names without {SEED} and {STREAM}, got {constants!r}"
        )
    if isinstance(grid, Mapping):
        axes = [_axis(str(name), {str(name): grid[name]}, constants) for name in grid]
    elif isinstance(grid, Sequence) and grid and all(isinstance(p, Mapping) for p in grid):
        names = list(grid[0])
        for place, point in enumerate(grid):
            if set(point) != set(names):
                raise ValueError(f"grid: expected {names} in point {place}, got {list(point)}")
        axes = [_axis(POINT, {str(n): [p[n] for p in grid] for n in names}, constants)]
    else:
        raise ValueError(f"grid: expected a mapping or a non-empty list of mappings, got {grid!r}")
    given = [axis for axis in axes if STREAM in axis.numbers]
    if given and num_streams is None:
        raise ValueError("grid: expected no axis named stream for one stream, got one")
    for axis in given:
        chosen = axis.numbers[STREAM]
        if not np.isin(chosen, np.arange(num_streams or 0)).all():
            raise ValueError(f"grid: expected streams below {num_streams}, got {chosen}")
    if num_streams is not None and not given:
        axes.append(Axis(STREAM, num_streams, {STREAM: np.arange(num_streams)}))
    if not axes:
        raise ValueError("grid: expected at least one axis, got none")
    return axes


def _axis(axis_name: str, columns: dict[str, Any], constants: Sequence[str]) -> Axis:
    numbers: dict[str, np.ndarray] = {}
    held: dict[str, list[Any]] = {}
    for name, given in columns.items():
        values = _listed(name, given)
        if not values:
            raise ValueError(f"grid: expected values for {name}, got none")
        traced = None if name in constants else _numbers(name, values)
        if traced is not None:
            numbers[name] = traced
            continue
        held[name] = [_plain(value) for value in values]
        try:
            hash(tuple(held[name]))
        except TypeError:
            raise ValueError(
                f"grid: expected numbers or hashable values for {name}, got {given!r}"
            ) from None
    return Axis(axis_name, len(values), numbers, held)


def _listed(name: str, given: Any) -> list[Any]:
    if isinstance(given, list | tuple | range):
        return list(given)
    values = np.atleast_1d(given)
    # Sets, generators and views become one object, which nobody means.
    if values.dtype.kind == "O" and not isinstance(given, np.ndarray):
        raise ValueError(f"grid: expected a list or an array of values for {name}, got {given!r}")
    return list(values)


def _numbers(name: str, values: list[Any]) -> np.ndarray | None:
    """Numbers as an array; None for values that can only be constants."""
    if name in (SEED, STREAM):
        return _circumstances(name, values)
    if any(isinstance(value, str | bool | np.bool_) or callable(value) for value in values):
        return None
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"grid: expected values of one shape for {name}, got {values!r}") from None
    return array.astype(float) if array.dtype.kind in "iuf" else None


def _circumstances(name: str, values: list[Any]) -> np.ndarray:
    integers = all(isinstance(v, int | np.integer) and not isinstance(v, bool) for v in values)
    if not integers or not all(0 <= int(value) < 2**32 for value in values):
        raise ValueError(f"grid: expected integers from 0 to 2**32 - 1 for {name}, got {values!r}")
    return np.array(values, np.uint32)


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


def programs(axes: list[Axis]) -> Iterator[tuple[dict[str, Any], list[np.ndarray]]]:
    """Constants of each program, and the places of every axis that it covers."""
    for parts in itertools.product(*(axis.groups() for axis in axes)):
        constants: dict[str, Any] = {}
        for held, _ in parts:
            constants |= held
        yield constants, [places for _, places in parts]


def random_points(
    ranges: Mapping[str, tuple[float, float]], num: int, *, seed: int
) -> list[dict[str, float]]:
    """`num` points for `sweep`, log-uniform between the bounds of every name.

    Args:
        ranges: name to (low, high), 0 < low <= high.
        num: number of points.
        seed: seed of the draw.

    Raises:
        ValueError: on bounds out of order or not positive.
    """
    positive_int("num", num)
    for name, (low, high) in ranges.items():
        if not 0 < low <= high < np.inf:
            raise ValueError(f"{name}: expected 0 < low <= high, got ({low!r}, {high!r})")
    rng = np.random.default_rng(seed)
    return [
        {name: float(np.exp(rng.uniform(*np.log(bounds)))) for name, bounds in ranges.items()}
        for _ in range(num)
    ]
