"""What all pictures share."""

from collections.abc import Iterator
from itertools import count, cycle
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

# Okabe and Ito's palette, distinguishable with every common kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
DASHES = ("-", "--", "-.", ":")


def line_styles() -> Iterator[dict[str, Any]]:
    """Colours and dashes for one line after another."""
    for colour, dash in zip(cycle(COLOURS), cycle(DASHES), strict=False):
        yield {"color": colour, "ls": dash, "lw": 1.8}


def axes_or_new(axes: Any, size: tuple[float, float]) -> Any:
    """The axes given, or those of a new figure, which belongs to no window."""
    if axes is not None:
        return axes
    axes = Figure(figsize=size, layout="constrained").add_subplot()
    axes.set_prop_cycle(color=COLOURS)
    return axes


def label_for(axes: Any, label: str | None, default: str) -> str:
    """What a curve is called in the legend, so that none is called as another in these axes."""
    if label is not None:
        return str(label)
    taken = set(axes.get_legend_handles_labels()[1])
    names = (default if i == 1 else f"{default} {i}" for i in count(1))
    return next(name for name in names if name not in taken)


def over_batches(axes: Any, task_ends: np.ndarray) -> None:
    """Whole numbers along the bottom, task ends as faint lines."""
    for end in task_ends[task_ends >= 0]:
        axes.axvline(end + 1, color="0.8", lw=0.8, zorder=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="0.92")
