"""The streams that are learned: shapes, random rows, and the weights that all contenders share."""

from typing import NamedTuple

import jax
import numpy as np

from rvfl_jax import init_weights

SEED = 0
RIDGE = 1.0
# Neither 0 nor 1, where terms of the recursion drop out.
FORWARD_K = 1.414


class Shape(NamedTuple):
    """Sizes of a run: readout inputs d, rows b, classes m, batches T, sub-learners L."""

    d: int
    b: int
    m: int
    T: int
    L: int = 1

    @property
    def num_features(self) -> int:
        """Input features s: half of the readout's inputs, the other half is hidden nodes."""
        return self.d // 2

    @property
    def num_nodes(self) -> int:
        """Hidden nodes N = d - s of each sub-learner."""
        return self.d - self.num_features


class Problem(NamedTuple):
    """T batches to learn and one more to announce to the last step.

    Attributes:
        X: (T + 1, b, s).
        y: (T + 1, b) class columns.
        W: (L, N + s, N) random weights, those of a learner with key `jax.random.key(SEED)`.
        num_classes: m.
    """

    X: np.ndarray
    y: np.ndarray
    W: np.ndarray
    num_classes: int

    @property
    def num_steps(self) -> int:
        """T."""
        return len(self.X) - 1

    @property
    def num_nodes(self) -> int:
        """N."""
        return self.W.shape[2]

    @property
    def width(self) -> int:
        """d."""
        return self.W.shape[1]

    def first(self, steps: int) -> "Problem":
        """The same problem cut off after `steps` steps."""
        return self._replace(X=self.X[: steps + 1], y=self.y[: steps + 1])

    def one_hot(self, dtype: str) -> np.ndarray:
        """(T + 1, b, m) targets."""
        return np.eye(self.num_classes, dtype=dtype)[self.y]


def random_problem(shape: Shape) -> Problem:
    """Rows of unit length on average, so that float32 loses nothing at ridge 1."""
    rng = np.random.default_rng(SEED)
    s = shape.num_features
    X = rng.standard_normal((shape.T + 1, shape.b, s), np.float32) / np.float32(np.sqrt(s))
    y = rng.integers(0, shape.m, (shape.T + 1, shape.b)).astype(np.int32)
    return Problem(X, y, network_weights(s, shape.num_nodes, shape.L), shape.m)


def equal_classes(y: np.ndarray, rows: int) -> np.ndarray:
    """The first `rows` rows of every class, so that all batches are full."""
    return np.concatenate([np.flatnonzero(y == label)[:rows] for label in np.unique(y)])


def network_weights(num_features: int, num_nodes: int, num_layers: int) -> np.ndarray:
    """What `edrvfl(...).init(jax.random.key(SEED), ...)` draws."""
    W = init_weights(
        jax.random.key(SEED),
        num_layers=num_layers,
        num_features=num_features,
        num_nodes=num_nodes,
    )
    return np.asarray(W, np.float32)
