"""What others do with the same features in one pass without replay, for `experiments.beyond`."""

from collections.abc import Callable

import numpy as np

from rvfl_jax import Stream

Scores = Callable[[np.ndarray], np.ndarray]


def class_means(stream: Stream) -> np.ndarray:
    """(m, s) mean of each class."""
    used = stream.weight > 0
    Y = np.eye(len(stream.classes))[stream.y[used]]
    return (Y.T @ stream.X[used]) / Y.sum(axis=0)[:, None]


def nearest_class_mean(stream: Stream) -> Scores:
    """Running class means; the nearest one wins."""
    means = class_means(stream)
    return lambda X: 2 * X @ means.T - np.sum(means**2, axis=1)


def streaming_lda(stream: Stream, shrinkage: float = 1e-4) -> Scores:
    """Deep SLDA (Hayes and Kanan, CVPR Workshops 2020): running means, one shared covariance.

    The covariance is updated row by row around the mean of the row's class at that moment; here
    a batch at a time, around the means before the batch, which for batches of one class is
    their order of updates to the first digit.
    """
    m, s = len(stream.classes), stream.X.shape[-1]
    means, counts = np.zeros((m, s)), np.zeros(m)
    covariance, total = np.eye(s), 0.0
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        X, y = X[weight > 0].astype(np.float64), y[weight > 0]
        for label in np.unique(y):
            rows = X[y == label]
            known, n = counts[label], len(rows)
            fresh = rows.mean(axis=0)
            centre = means[label] if known else fresh
            spread = rows - centre
            # A class's first rows have no mean before them but their own.
            scale = known / (known + n) if known else 1.0
            covariance = (total * covariance + scale * spread.T @ spread) / (total + n)
            total += n
            means[label] = (known * means[label] + n * fresh) / (known + n)
            counts[label] += n
    precision = np.linalg.inv((1 - shrinkage) * covariance + shrinkage * np.eye(s))
    directions = means @ precision
    offsets = -0.5 * np.sum(directions * means, axis=1)
    return lambda X: X @ directions.T + offsets


def sgd(stream: Stream, seed: int) -> Scores:
    """scikit-learn's linear SGD classifier with logistic loss, `partial_fit` a batch."""
    from sklearn.linear_model import SGDClassifier

    model = SGDClassifier(loss="log_loss", random_state=seed)
    classes = np.arange(len(stream.classes))
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        used = weight > 0
        model.partial_fit(X[used], y[used], classes=classes)

    def scores(X: np.ndarray) -> np.ndarray:
        found = np.asarray(model.decision_function(X))
        # Two classes share one column.
        return np.stack([-found, found], axis=1) if found.ndim == 1 else found

    return scores
