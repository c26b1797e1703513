"""Algorithm 1 as printed, explicit inverses and all, in NumPy and a precision of choice.

The library computes the same through factorisations; this is for showing what the formulas do to a
stream where they are evaluated as they stand. `rvfl_jax.equations` has both algorithms line by
line.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]


def algorithm_1(
    batches: Sequence[Batch], after: np.ndarray | None, k: float, ridge: float
) -> Iterator[np.ndarray]:
    """Theta after every batch, with the cold start of footnote 2.

    Args:
        batches: (D_t, Y_t), all of one dtype, which is that of the arithmetic.
        after: features that stand for X_{T+1}; None for no forward term in the last step.
        k: forward strength, 0 for -R.
        ridge: lambda.
    """
    theta, eta_dagger = _start(batches, ridge)
    k = theta.dtype.type(k)
    for t, ((D, Y), D_next) in enumerate(_announcing(batches, after)):
        if t > 0:
            eta_dagger = _woodbury(eta_dagger, D, theta.dtype.type(1))
        gradient = D.T @ Y + (k - 1) * (D.T @ (D @ theta))
        eta = eta_dagger
        if k and D_next is not None:
            gradient -= k * (D_next.T @ (D_next @ theta))
            eta = _woodbury(eta_dagger, D_next, k)
        theta = theta + eta @ gradient
        yield theta


def _start(batches: Sequence[Batch], ridge: float) -> Batch:
    D, Y = batches[0]
    width = D.shape[1]
    return np.zeros((width, Y.shape[1]), D.dtype), np.eye(width, dtype=D.dtype) / D.dtype.type(
        ridge
    )


def _announcing(
    batches: Sequence[Batch], after: np.ndarray | None
) -> Iterator[tuple[Batch, np.ndarray | None]]:
    yield from zip(batches, [*(D for D, _ in batches[1:]), after], strict=True)


def _woodbury(eta: np.ndarray, D: np.ndarray, k: Any) -> np.ndarray:
    """(eta^-1 + k D^T D)^-1, with the inverse of a b x b matrix as the paper writes it."""
    inverse = np.linalg.inv(np.eye(len(D), dtype=D.dtype) + k * (D @ eta @ D.T))
    return eta - k * (eta @ D.T @ inverse @ D @ eta)
