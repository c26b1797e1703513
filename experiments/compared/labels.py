"""Names beside points, where no two lie on each other, and axes that part what is nearly right."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

# Of a name from its point, in points, from near to far.
OFFSETS = [
    (radius * np.cos(angle), radius * np.sin(angle))
    for radius in (8, 14, 21, 30, 40, 52, 66, 82, 100, 120, 145)
    for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False)
]
FONT = 9
# Farther away than so many points a name has a line to its point.
NEAR = 12
# Points nearer to each other than so many share a name.
SAME = 4
# Orders of choosing that are tried; the one whose names are nearest to their points is taken.
ORDERS = 12
# Ticks of an axis that is even in the logarithm of what is missed, in % that is right.
TICKS = (0, 20, 40, 60, 70, 80, 85, 90, 93, 95, 97, 98, 99, 99.5)


@dataclass(frozen=True)
class Place:
    """Of a name: from its point, in points, and what it covers, box and line, in pixels."""

    offset: tuple[float, float]
    side: float
    box: np.ndarray
    line: np.ndarray


def place_labels(
    axis: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    names: Sequence[str],
    colours: Sequence[str],
) -> None:
    """Write a name for each point, near to it, where it covers no point, name or line.

    Points of one colour that lie on each other get one name with commas in it.
    """
    scale = axis.figure.dpi / 72
    points = axis.transData.transform(np.column_stack([xs, ys]))
    groups = together(points, colours, SAME * scale)
    joined = [", ".join(names[at] for at in group) for group in groups]
    anchors = np.array([points[group].mean(axis=0) for group in groups])
    sizes = np.array([_size(name) for name in joined]) * scale
    frame = axis.get_window_extent()
    inside = np.array([frame.x0, frame.y0, frame.x1, frame.y1])
    marks = [_box(x, y, 8 * scale, 8 * scale) for x, y in points]
    places = _best(anchors, sizes, marks, inside, scale)
    for group, name, place in zip(groups, joined, places, strict=True):
        x, y = (float(np.mean([values[at] for at in group])) for values in (xs, ys))
        far = np.hypot(*place.offset) > NEAR
        axis.annotate(
            name,
            (x, y),
            place.offset,
            textcoords="offset points",
            ha={-1: "right", 0: "center", 1: "left"}[int(place.side)],
            va="center",
            fontsize=FONT,
            color=colours[group[0]],
            zorder=4,
            arrowprops={
                "arrowstyle": "-",
                "color": "0.6",
                "lw": 0.7,
                "shrinkA": 1,
                "shrinkB": 3,
                "relpos": (0.5 - 0.5 * place.side, 0.5),
            }
            if far
            else None,
        )


def together(points: np.ndarray, colours: Sequence[str], near: float) -> list[list[int]]:
    """Indices of points by groups of one colour, each near to the first of its group."""
    groups: list[list[int]] = []
    for at, point in enumerate(points):
        for group in groups:
            apart = np.hypot(*(points[group[0]] - point))
            if colours[group[0]] == colours[at] and apart <= near:
                group.append(at)
                break
        else:
            groups.append([at])
    return groups


def _best(
    anchors: np.ndarray, sizes: np.ndarray, marks: list[Any], inside: np.ndarray, scale: float
) -> list[Place]:
    """Places in the order of the points, of the best of several orders of choosing."""
    draws = np.random.default_rng(0)
    orders = [np.argsort(anchors[:, 1]), np.argsort(-anchors[:, 1])]
    orders += [draws.permutation(len(anchors)) for _ in range(ORDERS)]
    found = [_greedy(order, anchors, sizes, marks, inside, scale) for order in orders]
    cost, best = min(found, key=lambda pair: pair[0])
    del cost
    return best


def _greedy(
    order: Any,
    anchors: np.ndarray,
    sizes: np.ndarray,
    marks: list[Any],
    inside: np.ndarray,
    scale: float,
) -> tuple[float, list[Place]]:
    taken, lines, cost = np.array(marks), np.zeros((0, 2)), 0.0
    chosen: dict[int, Place] = {}
    for at in order:
        own = np.hypot(*(taken[:, :2] + 4 * scale - anchors[at]).T) <= SAME * scale
        for offset in OFFSETS:
            place = _placed(offset, anchors[at], sizes[at], scale)
            if (place.box[:2] < inside[:2]).any() or (place.box[2:] > inside[2:]).any():
                continue
            if _meet(place.box, taken).any() or _holds(place.box[None], lines).any():
                continue
            if not _holds(taken[~own], place.line).any():
                break
        else:
            cost += 1000.0
        chosen[int(at)] = place
        cost += float(np.hypot(*place.offset))
        taken = np.concatenate([taken, place.box[None]])
        lines = np.concatenate([lines, place.line])
    return cost, [chosen[at] for at in range(len(anchors))]


def _placed(
    offset: tuple[float, float], anchor: np.ndarray, size: np.ndarray, scale: float
) -> Place:
    side = float(np.sign(np.round(offset[0], 6)))
    near = anchor + scale * np.array(offset)
    box = _box(*(near + np.array([side * size[0] / 2, 0.0])), *size)
    # The ends lie in the name and in the point themselves.
    return Place(offset, side, box, anchor + np.linspace(0.15, 0.9, 12)[:, None] * (near - anchor))


def _size(name: str) -> tuple[float, float]:
    """Width and height of a name, in points."""
    from matplotlib.textpath import TextPath

    return float(TextPath((0, 0), name, size=FONT).get_extents().width) + 3.0, 1.25 * FONT


def _box(x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])


def _meet(one: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Of each other box, whether it meets the one."""
    return np.all((one[:2] < others[:, 2:]) & (others[:, :2] < one[2:]), axis=1)


def _holds(boxes: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Of each box and point, whether the point is in the box."""
    low, high = boxes[:, None, :2], boxes[:, None, 2:]
    return np.all((points > low) & (points < high), axis=2)


def spread(places: Sequence[float], gap: float, low: float, high: float) -> np.ndarray:
    """The same places in their order, moved apart by at least `gap` and between the bounds."""
    given = np.asarray(places, float)
    order = np.argsort(given)
    moved, steps = given[order], gap * np.arange(len(given))
    # Least squares without crossing is isotonic regression of what lies above even steps.
    from sklearn.isotonic import isotonic_regression

    if not len(moved):
        return moved
    settled = isotonic_regression(moved - steps) + steps
    over = max(0.0, settled[-1] - high)
    settled = np.maximum(settled - over, low + steps)
    found = np.empty(len(given))
    found[order] = settled
    return found


def by_misses(axis: Any, which: str, values: Sequence[float]) -> None:
    """Make an axis of accuracies, in %, even in the logarithm of what is missed."""

    def forward(right: Any) -> Any:
        return -np.log10(np.maximum(100.0 - np.asarray(right, float), 0.05))

    def backward(place: Any) -> Any:
        return 100.0 - 10.0 ** -np.asarray(place, float)

    low, high = forward(min(values)), forward(max(values))
    room = 0.07 * max(high - low, 0.1)
    ends = float(backward(low - room)), float(backward(high + room))
    if which == "y":
        axis.set_yscale("function", functions=(forward, backward))
        axis.set_ylim(*ends)
    else:
        axis.set_xscale("function", functions=(forward, backward))
        axis.set_xlim(*ends)
    ticks = [tick for tick in TICKS if ends[0] <= tick <= ends[1]]
    scale = axis.yaxis if which == "y" else axis.xaxis
    scale.set_major_locator(FixedLocator(ticks))
    scale.set_major_formatter(FuncFormatter(lambda tick, _: f"{tick:g}"))
    scale.set_minor_locator(NullLocator())
