"""`Learned`: what an estimator has learned as sums, and the rows that wait to be added to them.

The Gram D^T D, the moment D^T Y and the counts are all that ridge regression needs of rows, and
they add up exactly. No inverse is kept: a readout is solved for when it is needed. Rows of small
calls wait until there are enough for an efficient matrix product; every readout includes them.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Name
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.learners.edrvfl.network import activation_name, resolve_activation
from rvfl_jax.learners.edrvfl.residual import Sketch
from rvfl_jax.learners.edrvfl.state import EdRVFLState
from rvfl_jax.learners.edrvfl.sums import Sums, learned_state
from rvfl_jax.linalg.precision import precision_scope

# A readout that guesses has seen at least half of the rows, and is at most that many times d old.
MOST_STALE = 4
# From this many features on a solution takes seconds: the first of them waits until rows have taken
# as long to be added, d^2 n flops against d^3 / 3.
MANY_FEATURES = 4096


class Batch(NamedTuple):
    """Rows as they came, checked: X (n, s), target (n,) or (n, m), weight (n,).

    X is an array, or `SparseRows` of which slices are.
    """

    X: Any
    target: np.ndarray
    weight: np.ndarray


class Weights(NamedTuple):
    """Random weights in use: first (s, N) of layer 1, which has no H_0, later (L-1, d, N)."""

    first: Any
    later: Any

    def whole(self) -> np.ndarray:
        """W (L, N + s, N), as the learners have it."""
        first = np.asarray(self.first)
        nodes = first.shape[1]
        top = np.concatenate([np.zeros((nodes, nodes), first.dtype), first])
        return np.concatenate([top[None], np.asarray(self.later)])


def weights_of(W: Any) -> Weights:
    """Of W (L, N + s, N)."""
    return Weights(W[0, W.shape[-1] :], W[1:])


class Standing(NamedTuple):
    """The readout that guesses rows before they are learned.

    Attributes:
        theta: (L, d, m).
        offset: (L, m), see `rvfl_jax.estimators.readouts.Solved`.
        counts: (m,) weight of the rows of each class that it knows; float64 on the host.
        rows: number that it knows; -1 for one that may have seen later rows, and must not guess.
    """

    theta: Any
    offset: Any
    counts: np.ndarray
    rows: int


@in_brief
class Learned(NamedTuple):
    """Sums over rows, and the rows that are not yet among them.

    Attributes:
        weights: of the random layers.
        sums: in float64, of the host or of JAX, without lambda and without the rows that wait.
        waiting: batches in the order that they came in.
        guessed: leading rows of these that were guessed already.
        standing: None for a regressor, which guesses nothing.
        announced: (n, s) inputs that come next, for a forward term; None without.
        rows: number learned, including those that wait.
        batches: number learned.
        gain: see `largest_feature`.
    """

    weights: Weights
    sums: Sums | HostSums
    standing: Standing | None
    gain: np.ndarray
    waiting: tuple[Batch, ...] = ()
    guessed: int = 0
    announced: np.ndarray | None = None
    rows: int = 0
    batches: int = 0

    @property
    def shape(self) -> tuple[int, int, int]:
        """(L, d, m)."""
        layers, width, outputs = np.shape(self.sums.moment)
        return layers, width, outputs

    @property
    def num_waiting(self) -> int:
        """Rows that wait."""
        return sum(len(batch.X) for batch in self.waiting)

    def is_due(self) -> bool:
        """Whether the readout that guesses is too old."""
        return self.standing is not None and self.is_stale(max(self.standing.rows, 0))

    def is_stale(self, known: int) -> bool:
        """Whether a readout of so many rows is: rows doubled, or it is 4 d rows behind."""
        width = self.shape[1]
        soonest = width // 3 if width >= MANY_FEATURES else 1
        return self.rows - known >= max(soonest, min(known, MOST_STALE * width))

    def grown(self, capacity: int) -> "Learned":
        """With room for so many classes; the sums of a class never seen are zero."""
        extra = capacity - self.shape[2]
        sums = self.sums._replace(
            moment=wider(self.sums.moment, extra), counts=wider(self.sums.counts, extra)
        )
        standing = self.standing
        if standing is not None:
            theta, offset, counts = (wider(leaf, extra) for leaf in standing[:3])
            standing = Standing(theta, offset, counts, standing.rows)
        return self._replace(sums=sums, standing=standing)

    def on_host(self) -> "Learned":
        """With arrays of NumPy, and the rows that wait in one batch."""
        waiting = (joined(self.waiting),) if self.waiting else ()
        return jax.tree.map(np.asarray, self._replace(waiting=()))._replace(
            waiting=waiting, guessed=self.guessed, rows=self.rows, batches=self.batches
        )


def wider(leaf: Any, extra: int) -> Any:
    """With so many columns of zeros more."""
    leaf = np.asarray(leaf)
    return np.pad(leaf, [(0, 0)] * (leaf.ndim - 1) + [(0, extra)])


def joined(batches: Sequence[Batch]) -> Batch:
    """One batch of the rows of all."""
    if len(batches) == 1:
        return batches[0]
    return Batch(*(np.concatenate(parts) for parts in zip(*batches, strict=True)))


def last_rows(batches: Sequence[Batch], count: int) -> Batch:
    """The last so many rows of batches that have them."""
    chosen: list[Batch] = []
    for batch in reversed(batches):
        if count <= 0:
            break
        chosen.append(Batch(*(part[-count:] for part in batch)))
        count -= len(batch.X)
    return joined(chosen[::-1])


def block_of(width: int, rows_at_once: int) -> int:
    """Rows that make a product efficient: fewer cost as much, as all d x d numbers are moved."""
    return min(rows_at_once, max(8, 1 << max(0, (width // 2).bit_length() - 1)))


def largest_feature(gain: np.ndarray, X: np.ndarray) -> float:
    """A bound of the features of X by activations that do not grow faster than their argument.

    Args:
        gain: (L,) largest sum of absolute weights that meet in a node.
        X: (n, s).
    """
    bound = float(np.abs(np.asarray(X, float)).max(initial=1.0))
    for factor in gain:
        bound = max(bound, float(factor) * bound)
    return bound


def programmed(sums: Sums | HostSums) -> Sums:
    """The sums as programs of JAX take them."""
    return sums.for_programs() if isinstance(sums, HostSums) else sums


def state_of(learned: Learned, sums: Sums, began_with: Any) -> EdRVFLState:
    """The state of `edrvfl` that has learned those sums, with nothing announced."""
    W: Any = learned.weights.whole()
    layers, width, outputs = learned.shape
    with precision_scope("double"):
        ridges: Any = np.broadcast_to(np.asarray(began_with["ridge"], W.dtype), (layers,))
        none: Any = np.zeros((layers, width, outputs), W.dtype)
        zeros: Any = np.zeros(layers, W.dtype)
        batches: Any = np.int32(learned.batches)
        probes = Sketch(zeros, none[..., :1], none[:, :1])
        empty = EdRVFLState(
            *(W, none, none[..., :1], none[..., :1], none, zeros, batches),
            key=None,
            sketch=probes,
            ridge=ridges,
            activation=Name(activation_name(began_with["activation"])),
        )
        found: EdRVFLState = _state(empty, sums, ridges)
        return found


@jax.jit
def _state(empty: EdRVFLState, sums: Sums, ridges: Any) -> Any:
    return learned_state(empty, sums, ridges, jnp.asarray(empty.num_learned))


def sums_with(sums: Sums, batch: Batch, learned: Learned, began_with: Any) -> Sums:
    """The sums with rows that wait."""
    Y = batch.target
    if Y.ndim == 1:
        Y = np.eye(learned.shape[2])[Y]
    g = resolve_activation(began_with["activation"])
    with precision_scope("double"):
        W: Any = learned.weights.whole()
        more = Sums.of_inputs(W, batch.X, Y, batch.weight, g)
        return sums.merge(more)
