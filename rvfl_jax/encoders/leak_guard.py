"""Does a prediction depend on the company in which a test row comes?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from rvfl_jax.core.checks import real_matrix

# Rounding differs with the number of rows; a leak moves scores by tenths.
TOLERANCE = 1e-3
FEW = 64


class LeakError(AssertionError):
    """A test row's prediction changed with the rows around it."""


def leak_guard(
    predict: Callable[[np.ndarray], Any],
    X: Any,
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
) -> None:
    """Permute, mix and split the test rows; no prediction may change.

    Args:
        predict: everything between a raw test row and its scores, (n, s) to (n, m).
        X: (n, s) raw test rows, at least 2.
        seed: of the permutation and of the rows picked.
        tolerance: largest change allowed, relative to the largest score.

    Raises:
        LeakError: naming the arrangement, how many predictions changed and by how much.
        ValueError: on unusable rows.
    """
    X = real_matrix("X", X)
    if len(X) < 2:
        raise ValueError(f"X: expected at least 2 rows, got {len(X)}")
    rng = np.random.default_rng(seed)
    whole = np.asarray(predict(X))
    size = np.abs(whole).max()
    order = rng.permutation(len(X))
    half = len(X) // 2
    arrangements = {
        "permuting": [order],
        "splitting": [np.arange(half), np.arange(half, len(X))],
        "mixing": [np.sort(order[:half]), np.sort(order[half:])],
        "picking": [np.sort(order[: min(FEW, half)])],
    }
    for what, parts in arrangements.items():
        for rows in parts:
            scores = np.asarray(predict(X[rows]))
            change = np.abs(scores - whole[rows]).max(axis=1)
            # Not `change > ...`, which a NaN would pass.
            moved = ~(change <= tolerance * size)
            if moved.any():
                other = (scores.argmax(axis=1) != whole[rows].argmax(axis=1)).sum()
                raise LeakError(
                    f"{what} the test rows changed {int(moved.sum())} of {len(rows)} predictions,"
                    f" {int(other)} of them to another class (largest change"
                    f" {change.max() / size:.2g} of the largest score): something between a row"
                    " and its prediction was fitted on, or scaled by, the test rows"
                )
