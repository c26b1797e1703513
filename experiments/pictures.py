"""What the experiments' figures share."""

from collections.abc import Sequence
from typing import Any

from matplotlib.ticker import MaxNLocator


def mark_ends(panel: Any, ends: Sequence[int]) -> None:
    """Grey lines at task ends; whole batches along the bottom."""
    panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    for end in ends:
        panel.axvline(end + 1, color="0.85", lw=0.8, zorder=0)
    panel.grid(axis="y", color="0.94")
    panel.spines[["top", "right"]].set_visible(False)
