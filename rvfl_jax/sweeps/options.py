"""What a sweep is asked for, as one object that travels."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from typing import Protocol as Interface

from jax.sharding import Mesh

from rvfl_jax.core.checks import one_of, positive_int, prng_key
from rvfl_jax.core.types import Array, Boundaries, Evaluate, Learner, Precision
from rvfl_jax.runs.options import BOUNDARIES

# What a chunk may take beside the data: carries, constants and the largest intermediates.
MAX_BYTES = 2 * 2**30


class MakeLearner(Interface):
    """What makes the learner of a point of the grid, by the names of its axes.

    To type checkers the arguments are any, since the grid names them; they come by keyword.
    """

    def __call__(self, *args: Any, **point: Any) -> Learner:
        """The learner; numbers may be traced."""
        ...


@dataclass(frozen=True, kw_only=True)
class SweepOptions:
    """All arguments of `sweep` but the maker of learners, the stream and the grid; see there."""

    key: Array
    test: tuple[Any, Any] | None = None
    evaluate: Evaluate | int = "task"
    precision: Precision = "double"
    num_classes: int | None = None
    boundaries: Boundaries = "none"
    constants: Sequence[str] = ("num_layers", "num_nodes")
    max_bytes: int = MAX_BYTES
    mesh: Mesh | None = None
    progress: bool | Callable[[int, int], None] = False

    def check(self) -> None:
        """ValueError on what is wrong whatever the stream and the grid."""
        prng_key("key", self.key)
        positive_int("max_bytes", self.max_bytes)
        one_of("boundaries", self.boundaries, BOUNDARIES)
