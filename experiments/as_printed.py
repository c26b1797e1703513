"""Algorithm 1 as printed, explicit inverses and all, in a precision of choice.

The library computes the same through factorisations and in double; this is for showing what the
formulas do to a stream where they are evaluated as they stand.
"""

from typing import Any

import jax
import numpy as np

from experiments.fashion_mnist import Case
from experiments.results_file import Record
from rvfl_jax import Learner


def run_as_printed(case: Case, learner: Learner, key: Any, k: float, ridge: float) -> Record:
    """Class-incremental accuracy at the end in single and in double precision.

    The features are the learner's own; the cold start is that of the paper's footnote 2, which
    leaves the first batch out of eta_dagger.
    """
    with jax.enable_x64(True):
        W = learner.init(key, case.Z_test.shape[1], len(case.stream.classes)).W[0]
    # The first layer has no hidden nodes before it, only inputs.
    W = np.asarray(W)[-case.Z_test.shape[1] :]
    found: Record = {}
    for dtype in (np.float32, np.float64):
        theta = learned(case, W.astype(dtype), k, ridge)
        guess = (_features(case.Z_test, W.astype(dtype)) @ theta).argmax(axis=1)
        found[np.dtype(dtype).name] = float(np.mean(guess == case.columns))
    return found


def _features(X: np.ndarray, W: np.ndarray) -> np.ndarray:
    X = X.astype(W.dtype)
    return np.concatenate([np.maximum(X @ W, 0), X], axis=1)


def learned(case: Case, W: np.ndarray, k: float, ridge: float) -> np.ndarray:
    """Theta after the last batch."""
    stream, dtype = case.stream, W.dtype
    used = stream.weight > 0
    D = [_features(X[rows], W) for X, rows in zip(stream.X, used, strict=True)]
    eye = np.eye(len(stream.classes), dtype=dtype)
    Y = [eye[y[rows]] for y, rows in zip(stream.y, used, strict=True)]
    width = D[0].shape[1]
    eta_dagger = np.eye(width, dtype=dtype) / dtype.type(ridge)
    theta = np.zeros((width, len(eye)), dtype)
    for t in range(len(D)):
        if t > 0:
            eta_dagger = _woodbury(eta_dagger, D[t], dtype.type(1))
        gradient = D[t].T @ Y[t]
        if t > 0:
            gradient += dtype.type(k - 1) * (D[t].T @ (D[t] @ theta))
        eta = eta_dagger
        if k and t + 1 < len(D):
            gradient -= dtype.type(k) * (D[t + 1].T @ (D[t + 1] @ theta))
            eta = _woodbury(eta_dagger, D[t + 1], dtype.type(k))
        theta = theta + eta @ gradient
    return theta


def _woodbury(eta: np.ndarray, D: np.ndarray, k: Any) -> np.ndarray:
    """(eta^-1 + k D^T D)^-1, with the inverse of a b x b matrix as the paper writes it."""
    inverse = np.linalg.inv(np.eye(len(D), dtype=D.dtype) + k * (D @ eta @ D.T))
    return eta - k * (eta @ D.T @ inverse @ D @ eta)
