"""What others do with the same features in one pass without replay, and how settings are chosen.

One rule serves every peer of every experiment. Of the training rows a share is held out, the same
share of each class (`held_out`). Each method tries the same number of configurations, each by one
pass over the rest in the order of the stream; the accuracy on the held-out rows over all classes
decides (`best_of`; among equals the middle one), and what was chosen learns all training rows. No
test row enters. Grids are wide enough that the best is inside, or the table says "edge".

Inputs are given as each method wants them: scikit-learn asks for inputs of mean 0 and variance 1
for its SGD, which here stands behind a `StandardScaler` that has seen the batches so far and no
more; means and covariances need no scale.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.results_file import Record
from rvfl_jax import Stream

Scores = Callable[[np.ndarray], np.ndarray]
Settings = dict[str, float]
NOTHING = "nothing to choose"


def batches_of(stream: Stream) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(X, y) of each batch in double precision, without padding and without empty ones."""
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        if (weight > 0).any():
            yield X[weight > 0].astype(np.float64), y[weight > 0]


# --- choosing ---------------------------------------------------------------------------------


def held_out_rows(y: np.ndarray, share: float, seed: int) -> np.ndarray:
    """(n,) whether a row is held out: that share of each class, at least one, never its last."""
    rng = np.random.default_rng([seed, 1])
    held = np.zeros(len(y), bool)
    for label in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == label))
        held[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return held


def held_out(stream: Stream, share: float, seed: int) -> tuple[Stream, np.ndarray, np.ndarray]:
    """The stream without the rows held out, and these with their columns."""
    used = np.flatnonzero(stream.weight.reshape(-1) > 0)
    held = used[held_out_rows(stream.y.reshape(-1)[used], share, seed)]
    weight = stream.weight.reshape(-1).copy()
    weight[held] = 0
    X = stream.X.reshape(-1, stream.X.shape[-1])[held].astype(np.float64)
    return stream._replace(weight=weight.reshape(stream.weight.shape)), X, stream.y.ravel()[held]


def best_of(grid: Sequence[Settings], accuracies: Sequence[float]) -> Record:
    """What is kept of a choice: the grid, what each reached on held-out rows, and the best.

    Among equals the middle one is taken. The best is at an edge if it is first or last of those
    with the same names of settings.
    """
    reached = np.asarray(accuracies, float)
    best = np.flatnonzero(reached == reached.max())
    at = int(best[len(best) // 2])
    family = [i for i, settings in enumerate(grid) if settings.keys() == grid[at].keys()]
    return {
        "grid": list(grid),
        "held-out accuracy": [float(value) for value in reached],
        "chosen": grid[at],
        "edge": len(family) > 1 and at in (family[0], family[-1]),
    }


def shown(settings: Settings) -> str:
    """Settings as a table has them."""
    return ", ".join(f"{name} {value:.3g}" for name, value in settings.items()) or NOTHING


def shown_over_seeds(choices: Sequence[Record]) -> str:
    """What was chosen on every seed in turn; once where it is the same, a lone name said once."""
    names = [shown(choice["chosen"]) + (" (edge)" if choice["edge"] else "") for choice in choices]
    if len(set(names)) < 2:
        return "".join(names[:1])
    first = names[0].split(" ")[0]
    if all(len(choice["chosen"]) == 1 and first in choice["chosen"] for choice in choices):
        names[1:] = [name.removeprefix(first + " ") for name in names[1:]]
    return " / ".join(names)


# --- the peers --------------------------------------------------------------------------------


class NearestClassMean:
    """Running class means; the nearest one wins."""

    def __init__(self, num_classes: int):
        self.counts, self.sums = np.zeros(num_classes), 0.0

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        Y = np.eye(len(self.counts))[y]
        self.sums = self.sums + Y.T @ X
        self.counts += Y.sum(axis=0)

    def scores(self, X: np.ndarray) -> np.ndarray:
        means = self.sums / np.maximum(self.counts, 1)[:, None]
        found = 2 * X @ means.T - np.sum(means**2, axis=1)
        return np.where(self.counts > 0, found, -np.inf)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.scores(X).argmax(axis=1)


class StreamingLDA:
    """Deep SLDA (Hayes and Kanan, CVPR Workshops 2020): running means, one shared covariance.

    The covariance is updated row by row around the mean of the row's class at that moment; here
    a batch at a time, around the means before the batch, which for batches of one class is
    their order of updates to the first digit. The shrinkage enters when scores are asked for.
    """

    def __init__(self, num_classes: int, shrinkage: float = 1e-4):
        self.counts, self.shrinkage = np.zeros(num_classes), shrinkage
        self.total = 0.0
        self.means: np.ndarray | None = None

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        from scipy.linalg.blas import dsyrk

        if self.means is None:
            self.means = np.zeros((len(self.counts), X.shape[1]))
            # The upper triangle alone is kept up to date.
            self.covariance = np.eye(X.shape[1], order="F")
        for label in np.unique(y):
            rows = X[y == label]
            known, n = self.counts[label], len(rows)
            fresh = rows.mean(axis=0)
            spread = rows - (self.means[label] if known else fresh)
            # A class's first rows have no mean before them but their own.
            scale = known / (known + n) if known else 1.0
            grown = self.total + n
            self.covariance = dsyrk(
                scale / grown,
                spread.T,
                beta=self.total / grown,
                c=self.covariance,
                overwrite_c=True,
            )
            self.total = grown
            self.means[label] = (known * self.means[label] + n * fresh) / (known + n)
            self.counts[label] += n

    def scores(self, X: np.ndarray) -> np.ndarray:
        from scipy.linalg import cho_factor, cho_solve

        assert self.means is not None
        shrunk = (1 - self.shrinkage) * self.covariance
        shrunk[np.diag_indices_from(shrunk)] += self.shrinkage
        factor = cho_factor(shrunk, lower=False, overwrite_a=True)
        directions = cho_solve(factor, self.means.T)
        found = X @ directions - 0.5 * np.sum(directions.T * self.means, axis=1)
        return np.where(self.counts > 0, found, -np.inf)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.scores(X).argmax(axis=1)


class Sgd:
    """scikit-learn's linear SGD classifier with logistic loss, behind a running StandardScaler.

    Args:
        num_classes: that it is told of beforehand.
        seed: of the order within a batch.
        eta0: a constant learning rate; None for scikit-learn's default, "optimal", which falls.
        alpha: L2 penalty, which sets the rate where that is "optimal".
    """

    def __init__(self, num_classes: int, seed: int, eta0: float | None = None, alpha: float = 1e-4):
        from sklearn.linear_model import SGDClassifier
        from sklearn.preprocessing import StandardScaler

        rate = {"learning_rate": "optimal"}
        if eta0 is not None:
            rate = {"learning_rate": "constant", "eta0": eta0}
        self.model = SGDClassifier(loss="log_loss", random_state=seed, alpha=alpha, **rate)
        self.scaler, self.classes = StandardScaler(), np.arange(num_classes)

    def partial_fit(self, X: np.ndarray, y: np.ndarray) -> None:
        self.learn(self.scaler.partial_fit(X).transform(X), y)

    def learn(self, Z: np.ndarray, y: np.ndarray) -> None:
        """A batch that is scaled already."""
        self.model.partial_fit(Z, y, classes=self.classes)

    def scores(self, X: np.ndarray) -> np.ndarray:
        found = np.asarray(self.model.decision_function(self.scaler.transform(X)))
        # Two classes share one column.
        return np.stack([-found, found], axis=1) if found.ndim == 1 else found

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(self.scaler.transform(X))


def learn(model: Any, stream: Stream) -> Any:
    """The model after one pass."""
    for X, y in batches_of(stream):
        model.partial_fit(X, y)
    return model


def class_means(stream: Stream) -> np.ndarray:
    """(m, s) mean of each class."""
    model = learn(NearestClassMean(len(stream.classes)), stream)
    return model.sums / model.counts[:, None]


def nearest_class_mean(stream: Stream, seed: int = 0) -> Scores:
    """Of one pass; nothing is drawn."""
    del seed
    return learn(NearestClassMean(len(stream.classes)), stream).scores


def streaming_lda(stream: Stream, seed: int = 0, shrinkage: float = 1e-4) -> Scores:
    """Of one pass; nothing is drawn. 1e-4 is its authors' shrinkage."""
    del seed
    return learn(StreamingLDA(len(stream.classes), shrinkage), stream).scores


def sgd(stream: Stream, seed: int, **settings: float) -> Scores:
    """Of one pass."""
    return learn(Sgd(len(stream.classes), seed, **settings), stream).scores


# --- their settings ---------------------------------------------------------------------------


def shrinkages(count: int, lowest: float = -6) -> list[Settings]:
    """From ten to that power, 1e-6, to 1, which is the nearest class mean."""
    return [{"shrinkage": float(value)} for value in np.logspace(lowest, 0, count)]


def rates(count: int) -> list[Settings]:
    """scikit-learn's default, a rate that falls, and constant learning rates from 1e-8 to 0.1."""
    constant = [{"eta0": float(value)} for value in np.logspace(-8, -1, count - 1)]
    return [{"alpha": 1e-4}, *constant]


def lda_accuracies(
    stream: Stream, X: np.ndarray, y: np.ndarray, seed: int, grid: Sequence[Settings]
) -> list[float]:
    """Accuracy on (X, y) of every shrinkage; one pass serves them all."""
    del seed
    model, reached = learn(StreamingLDA(len(stream.classes)), stream), []
    for settings in grid:
        model.shrinkage = settings["shrinkage"]
        reached.append(float(np.mean(model.predict(X) == y)))
    return reached


def sgd_accuracies(
    stream: Stream, X: np.ndarray, y: np.ndarray, seed: int, grid: Sequence[Settings]
) -> list[float]:
    """Accuracy on (X, y) of every learning rate, side by side behind one scaler."""
    models = [Sgd(len(stream.classes), seed, **settings) for settings in grid]
    scaler = models[0].scaler
    for A, b in batches_of(stream):
        Z = scaler.partial_fit(A).transform(A)
        for model in models:
            model.learn(Z, b)
    Z = scaler.transform(X)
    return [float(np.mean(model.model.predict(Z) == y)) for model in models]


@dataclass(frozen=True)
class Peer:
    """A method of one pass, and what of it is chosen.

    Attributes:
        fixed: what is not chosen, in words.
        fit: stream, seed and settings to scores.
        grid: number of configurations to these; None where there is nothing to choose.
        accuracies: stream, rows, their columns, seed and grid to what each reaches on these rows.
    """

    fixed: str
    fit: Callable[..., Scores]
    grid: Callable[[int], list[Settings]] | None = None
    accuracies: Callable[..., list[float]] | None = None


PEERS = {
    "nearest class mean": Peer("Euclidean, inputs as they are", nearest_class_mean),
    "streaming LDA": Peer(
        "inputs as they are; shrinkage towards the identity",
        streaming_lda,
        shrinkages,
        lda_accuracies,
    ),
    "SGD (scikit-learn)": Peer(
        "log_loss, alpha 1e-4, behind a running StandardScaler; eta0: a constant rate, alpha: the"
        ' rate "optimal"',
        sgd,
        rates,
        sgd_accuracies,
    ),
}


def choose(peer: Peer, stream: Stream, seed: int, *, share: float, count: int) -> Record:
    """The settings that are best on held-out training rows, among `count`."""
    if peer.grid is None or peer.accuracies is None:
        return {"grid": [], "held-out accuracy": [], "chosen": {}, "edge": False}
    part, X, y = held_out(stream, share, seed)
    grid = peer.grid(count)
    return best_of(grid, peer.accuracies(part, X, y, seed, grid))
