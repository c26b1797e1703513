"""What a run is asked for, as one object that travels."""

from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jax.sharding import Mesh

from rvfl_jax.core.checks import one_of, positive_int, prng_key
from rvfl_jax.core.types import Array, Boundaries, Evaluate, Layout, Learner, Precision, State
from rvfl_jax.files.provenance import Provenance, provenance
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.runs.reporting import OnMetrics
from rvfl_jax.runs.resumable import Keeping
from rvfl_jax.runs.sharding import LAYOUTS, as_auto

BOUNDARIES = ("none", "given")


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """All arguments of `run_stream` but the learner and the stream; see there."""

    key: Array
    test: tuple[Any, Any] | None = None
    evaluate: Evaluate | int = "batch"
    expert: Literal["offline"] | np.ndarray | None = "offline"
    guesses: bool = True
    confusion: bool = False
    precision: Precision = "double"
    num_classes: int | None = None
    classes: Sequence[Hashable] | None = None
    batch_size: int | None = None
    state: State | None = None
    lookahead: Any = None
    boundaries: Boundaries = "none"
    chunk_size: int | None = None
    progress: bool | Callable[[int, int], None] = False
    on_metrics: OnMetrics | None = None
    checkpoint: str | Path | None = None
    resume: bool = False
    on_failure: Literal["raise", "return"] = "raise"
    mesh: Mesh | None = None
    layout: Layout = "rows"

    @property
    def keeping(self) -> Keeping:
        """What of the run is shown and kept while it goes on."""
        raises = self.on_failure == "raise"
        return Keeping(self.progress, self.checkpoint, self.resume, raises)

    @property
    def in_chunks(self) -> bool:
        """Whether the run is more than one program."""
        listens = self.on_metrics is not None
        return listens or self.chunk_size is not None or self.keeping.in_chunks

    def arithmetic(self) -> AbstractContextManager[None]:
        """The precision of the run, as a context that all of it computes in."""
        return precision_scope(self.precision)

    def about(self, learner: Learner, data: Any, **more: Any) -> Provenance:
        """What the run depends on: `data`, a fingerprint of the stream, and whatever is named."""
        return provenance(learner, data, self.key, self.precision, **more)

    def checked(self) -> "RunOptions":
        """The same in plain kinds; ValueError on what is wrong whatever the stream."""
        prng_key("key", self.key)
        one_of("on_failure", self.on_failure, ("raise", "return"))
        one_of("layout", self.layout, LAYOUTS)
        one_of("boundaries", self.boundaries, BOUNDARIES)
        if not (self.on_metrics is None or callable(self.on_metrics)):
            raise ValueError(
                f"on_metrics: expected a function of (metrics, batches), got {self.on_metrics!r}"
            )
        evaluate: Any = self.evaluate
        expert, size = self.expert, self.chunk_size
        if expert is not None and not isinstance(expert, str):
            expert = np.asarray(expert)
        return replace(
            self,
            evaluate=int(evaluate) if isinstance(evaluate, np.integer) else evaluate,
            expert=expert,
            chunk_size=None if size is None else positive_int("chunk_size", size),
            mesh=None if self.mesh is None else as_auto(self.mesh),
        )
