"""Names beside points, where no two lie on each other."""

from collections.abc import Sequence
from typing import Any

import numpy as np

# Of a name from its point, in points, from near to far.
OFFSETS = [
    (radius * np.cos(angle), radius * np.sin(angle))
    for radius in (9, 16, 24, 34, 46, 60, 76, 94, 114)
    for angle in np.linspace(0, 2 * np.pi, 16, endpoint=False)
]
FONT = 8.5
NEAR = 12


def place_labels(
    axis: Any,
    xs: Sequence[float],
    ys: Sequence[float],
    names: Sequence[str],
    colours: Sequence[str],
) -> None:
    """Write a name for each point, the nearest place first that covers nothing."""
    figure = axis.figure
    scale = figure.dpi / 72
    points = axis.transData.transform(np.column_stack([xs, ys]))
    taken = [_box(x, y, 7 * scale, 7 * scale) for x, y in points]
    frame = axis.get_window_extent()
    inside = np.array([frame.x0, frame.y0, frame.x1, frame.y1])
    # Crowded points choose last, and far.
    for at in np.argsort(points[:, 1]):
        width, height = 0.58 * FONT * len(names[at]) * scale, 1.25 * FONT * scale
        for dx, dy in OFFSETS:
            side = np.sign(np.round(dx, 6))
            centre = points[at] + np.array([dx * scale + side * width / 2, dy * scale])
            box = _box(*centre, width, height)
            within = (box[:2] >= inside[:2]).all() and (box[2:] <= inside[2:]).all()
            if within and not any(_meet(box, other) for other in taken):
                break
        taken.append(box)
        far = np.hypot(dx, dy) > NEAR
        axis.annotate(
            names[at],
            (xs[at], ys[at]),
            (dx, dy),
            textcoords="offset points",
            ha={-1: "right", 0: "center", 1: "left"}[int(side)],
            va="center",
            fontsize=FONT,
            color=colours[at],
            zorder=4,
            arrowprops={"arrowstyle": "-", "color": "0.6", "lw": 0.6, "shrinkA": 0}
            if far
            else None,
        )


def _box(x: float, y: float, width: float, height: float) -> np.ndarray:
    return np.array([x - width / 2, y - height / 2, x + width / 2, y + height / 2])


def _meet(one: np.ndarray, other: np.ndarray) -> bool:
    return bool((one[:2] < other[2:]).all() and (other[:2] < one[2:]).all())


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
