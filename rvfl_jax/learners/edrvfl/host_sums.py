"""`HostSums`: the sums of `Sums` as the host keeps them, half of every Gram, in float64.

For whoever learns by Python calls on a CPU, where BLAS adds up faster than XLA. Arrays are
replaced, never written to.
"""

from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.edrvfl.sums import Sums
from rvfl_jax.linalg.host_blas import (
    Strips,
    diagonal,
    one_thread_a_product,
    plus,
    plus_gram,
    strips_of,
    whole,
    zero_strips,
)


@in_brief
class HostSums(NamedTuple):
    """Sums over weighted rows, for every sub-learner.

    Attributes:
        half: D^T D (L, d, d), see `rvfl_jax.linalg.host_blas`.
        moment: (L, d, m) D^T Y.
        counts: (L, m) squares of the targets.
    """

    half: Strips
    moment: np.ndarray
    counts: np.ndarray

    @classmethod
    def zero(cls, shape: tuple[int, int, int]) -> "HostSums":
        """Of no rows, for readouts of that shape (L, d, m)."""
        layers, width, outputs = shape
        none = np.zeros(shape), np.zeros((layers, outputs))
        return cls(zero_strips(layers, width), *none)

    @classmethod
    def of(cls, sums: Any) -> "HostSums":
        """The same as those of JAX."""
        moment, counts = np.asarray(sums.moment), np.asarray(sums.counts)
        return cls(strips_of(np.asarray(sums.gram)), moment, counts)

    @property
    def gram(self) -> np.ndarray:
        """(L, d, d) D^T D, made anew."""
        return whole(self.half)

    @property
    def squares(self) -> np.ndarray:
        """(L, d) of the features, the diagonal of the Gram."""
        return diagonal(self.half)

    def for_programs(self, *, gram: bool = True) -> Sums:
        """As programs of JAX take them; without the Gram where they do not read it."""
        made: Any = self.gram if gram else np.zeros((len(self.moment), 0, 0))
        rest: Any = self.moment, self.counts
        return Sums(made, *rest)

    def plus(
        self, D: np.ndarray, Y: np.ndarray, past: float = 1.0, factor: float = 1.0
    ) -> "HostSums":
        """`past` times these sums and `factor` times those of rows; see `Sums.plus`."""
        with one_thread_a_product(D.size * Y.shape[-1]), np.errstate(all="ignore"):
            moment = past * self.moment + factor * (D.swapaxes(1, 2) @ Y)
            counts = past * self.counts + factor * np.sum(Y**2, axis=0)
        return HostSums(plus_gram(self.half, D, past, factor), moment, counts)

    def merge(self, other: "HostSums", columns: np.ndarray) -> "HostSums":
        """Of the rows of both, with column c of the other in place `columns[c]` of these."""
        moment, counts = np.array(self.moment), np.array(self.counts)
        places: Any = (..., columns)
        np.add.at(moment, places, other.moment)
        np.add.at(counts, places, other.counts)
        return HostSums(plus(self.half, other.half), moment, counts)
