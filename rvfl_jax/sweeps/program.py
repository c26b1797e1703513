"""A nest of configuration axes as one compiled program, cut into chunks that fit memory.

A configuration axis is a `vmap` around the whole scan. Whatever does not depend on an axis
stays without it in the scan's carry: eta_dagger is the same for every constant k and for every
kappa and sigma, so that such axes cost little more than one run. Axes are nested with the dearest
outside, which `_carried_bytes` finds out by tracing, so that an axis of seeds copies eta_dagger
and an axis of k inside it does not.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import jaxprs_in_params
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rvfl_jax.core.portable import fetch
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.core.words import in_brief
from rvfl_jax.runs.evaluation import Evaluation, HeldOut, embed_test
from rvfl_jax.runs.scan import scan_stream
from rvfl_jax.runs.sharding import as_auto
from rvfl_jax.streams.batches import Batches
from rvfl_jax.sweeps.grid import SEED, STREAM, Axis

# Intermediates of the size of the largest one that are alive at once, about.
INTERMEDIATES = 3
# An axis that makes the carry so many times larger shares next to nothing.
COSTLY_GROWTH = 1.5


class Constant(NamedTuple):
    """A value beside its type, which tells True from 1 where programs are looked up."""

    kind: type
    value: Any


@in_brief
class Kept(NamedTuple):
    """What a sweep keeps of a run; see `Sweep`."""

    healthy: Array
    loss: Array
    hits: Array
    rows: Array
    k_next: Array
    evaluation: Evaluation | None


class Job(NamedTuple):
    """What every configuration of a sweep shares; each leaf of `data` has a stream axis or not.

    Attributes:
        key: of the random features.
        batches: X (T, b, s), y and weight (T, b), ends (T,) or None; with a leading axis of
            streams if several.
        columns: (T,) see `scan_stream`; never batched.
        test: (y, class_task, rows_of_task) likewise with a leading axis, or None.
        X_test: the inputs of the test set, or None.
    """

    key: Any
    batches: Batches
    columns: Any
    test: Any
    X_test: Any


class Room(NamedTuple):
    """What a program may take: bytes beside the data, and the devices that share it, or None."""

    max_bytes: int
    mesh: Mesh | None


def point_at(axes: list[Axis], places: Sequence[int]) -> dict[str, Any]:
    """What a maker of learners gets at these places of all axes."""
    values: dict[str, Any] = {}
    for axis, place in zip(axes, places, strict=True):
        values |= axis.at(place)
    return {name: value for name, value in values.items() if name not in (SEED, STREAM)}


class Program:
    """One compiled program over the axes that it can trace, run in chunks."""

    def __init__(
        self,
        make_learner: Callable[..., Learner],
        held: dict[str, Any],
        axes: list[Axis],
        places: list[np.ndarray],
        job: Job,
        room: Room,
        *,
        num_steps: int,
        num_classes: int,
    ):
        self.axes, self.places, self.job = axes, places, job
        self.max_bytes, self.mesh = room
        self.traced = [i for i, axis in enumerate(axes) if axis.numbers]
        point = point_at(axes, [int(where[0]) for where in places])
        held = {name: value for name, value in held.items() if name not in (SEED, STREAM)}
        self.fixed = {
            "make_learner": make_learner,
            "held": tuple(sorted((name, Constant(type(v), v)) for name, v in held.items())),
            # What `make_learner` reads beside its arguments may have changed since the last call.
            "described": self._described(make_learner, point),
            "num_steps": num_steps,
            "num_classes": num_classes,
        }
        self.order, self.growth = self._nesting()

    def _described(self, make_learner: Callable[..., Learner], point: dict[str, Any]) -> str:
        """The learner in words, swept numbers traced, so that other values are the same program."""
        make_learner(**point)  # refuses what tracing cannot see
        swept = {name for i in self.traced for name in self.axes[i].numbers} & point.keys()
        fixed = {name: value for name, value in point.items() if name not in swept}
        told: list[str] = []

        def tell(numbers: dict[str, Any]) -> None:
            told.append(make_learner(**numbers, **fixed).description)

        jax.eval_shape(tell, {name: point[name] for name in swept})
        return told[0]

    def _values(self, axis: int, chosen: np.ndarray) -> dict[str, Any]:
        numbers = self.axes[axis].numbers
        values: dict[str, Any] = {
            name: array[self.places[axis][chosen]] for name, array in numbers.items()
        }
        if STREAM in values:
            which = values.pop(STREAM)
            data = (self.job.batches, self.job.test)
            # All of them in order: the data as they are.
            if not np.array_equal(which, np.arange(len(self.job.batches.X))):
                data = jax.tree.map(lambda leaf: leaf[which], data)
            values[STREAM] = data
        return values

    def _nesting(self) -> tuple[list[int], dict[int, float]]:
        """Traced axes from the dearest to the cheapest, and what each multiplies the carry by."""
        one = [np.zeros(1, int)] * len(self.axes)
        base = self._bytes([], one)
        growth = {}
        for i in self.traced:
            size = len(self.places[i])
            chosen = list(one)
            chosen[i] = np.zeros(2, int)
            alone = self._bytes([i], chosen) - base
            growth[i] = 1 + alone * (size - 1) / base if size > 1 else 1.0
        per_value = {i: (growth[i] - 1) / max(len(self.places[i]) - 1, 1) for i in self.traced}
        return sorted(self.traced, key=lambda i: -per_value[i]), growth

    def _bytes(self, order: list[int], chosen: list[np.ndarray]) -> float:
        """Memory of the scan with the axes in `order` batched, all others at one value."""
        mapped = [self._values(i, chosen[i] if i in order else np.zeros(1, int)) for i in order]
        rest: dict[str, Any] = {}
        for i in self.traced:
            if i not in order:
                values = self._values(i, np.zeros(1, int))
                rest |= jax.tree.map(lambda leaf: leaf[0], values)
        leaves, tree = jax.tree.flatten((self.job, rest, tuple(mapped)))
        shapes = tuple(jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in leaves)
        double = jnp.result_type(float) == jnp.float64
        return _traced_bytes(tuple(self.fixed.items()), tree, shapes, double)

    def run(self, wanted: int) -> Iterator[tuple[list[np.ndarray], Any]]:
        """Places of every axis and what was kept there, with axes in the grid's order."""
        shared = self._shared_axis()
        sizes = self._chunk_sizes(wanted, shared)
        starts = [range(0, len(self.places[i]), sizes[i]) for i in self.order]
        for corner in np.ndindex(*(len(start) for start in starts)):
            chosen = [np.arange(len(places)) for places in self.places]
            for i, start, at in zip(self.order, starts, corner, strict=True):
                # The last chunk starts early, so that all have one shape.
                begin = min(start[at], len(self.places[i]) - sizes[i])
                chosen[i] = np.arange(begin, begin + sizes[i])
            yield self._run_chunk(chosen, shared)

    def _run_chunk(
        self, chosen: list[np.ndarray], shared: int | None
    ) -> tuple[list[np.ndarray], Any]:
        padded = list(chosen)
        if shared is not None:
            assert self.mesh is not None
            missing = -len(chosen[shared]) % self.mesh.size
            padded[shared] = np.pad(chosen[shared], (0, missing), mode="edge")
        mapped = tuple(self._values(i, padded[i]) for i in self.order)
        at = None if shared is None else self.order.index(shared)
        mesh = None if shared is None else self.mesh
        kept = _compiled(self.job, {}, mapped, **self.fixed, shared=at, mesh=mesh)
        kept = jax.tree.map(lambda leaf: self._arranged(fetch(leaf), shared, chosen), kept)
        return [p[c] for p, c in zip(self.places, chosen, strict=True)], kept

    def _arranged(self, leaf: np.ndarray, shared: int | None, chosen: list[np.ndarray]) -> Any:
        """Drop what filled up the devices, and bring axes into the grid's order."""
        if shared is not None:
            leaf = np.take(leaf, range(len(chosen[shared])), self.order.index(shared))
        inverse = list(np.argsort(self.order))
        leaf = np.transpose(leaf, inverse + list(range(len(self.order), leaf.ndim)))
        for i in range(len(self.axes)):
            if i not in self.order:
                leaf = np.expand_dims(leaf, i)
        return leaf

    def _shared_axis(self) -> int | None:
        """The axis that the devices share: the outermost that gives each of them something."""
        if self.mesh is None or not self.order:
            return None
        enough = [i for i in self.order if len(self.places[i]) >= self.mesh.size]
        return enough[0] if enough else max(self.order, key=lambda i: len(self.places[i]))

    def _chunk_sizes(self, wanted: int, shared: int | None) -> dict[int, int]:
        """Values of each axis in one chunk, cut from the dearest axis inwards."""
        devices = 1 if self.mesh is None else self.mesh.size
        sizes = {i: len(self.places[i]) for i in self.order}
        need = self._bytes(self.order, [np.arange(len(p)) for p in self.places]) / devices
        pieces = 1
        for i in self.order:
            full = len(self.places[i])
            smallest = min(full, devices) if i == shared else 1
            fit = full
            if need > self.max_bytes:
                fit = max(smallest, int(full * self.max_bytes / need))
            elif pieces < wanted and self.growth[i] > COSTLY_GROWTH:
                fit = max(smallest, -(-full * pieces // wanted))
            need *= fit / full
            pieces *= -(-full // fit)
            sizes[i] = fit
        return sizes


@lru_cache(maxsize=256)
def _traced_bytes(fixed: Any, tree: Any, shapes: Any, double: bool) -> float:
    """`_carried_bytes` of a nest for inputs of these shapes; tracing takes a second."""
    del double  # only tells the two precisions apart
    inputs = jax.tree.unflatten(tree, shapes)
    options = dict(fixed)
    traced = jax.make_jaxpr(partial(_nested, **options))(*inputs)
    return _carried_bytes(traced.jaxpr, options["num_steps"])


def _carried_bytes(jaxpr: Any, num_steps: int) -> float:
    """What the scan over the stream holds: carry, constants, and its largest intermediates."""
    found = 0.0
    for equation in jaxpr.eqns:
        inner = list(jaxprs_in_params(equation.params))
        if equation.primitive.name == "scan" and _is_along_stream(equation, num_steps):
            held = sum(_size(variable.aval) for variable in equation.invars)
            largest = max(_largest(body) for body in inner)
            found = max(found, held + INTERMEDIATES * largest)
        for body in inner:
            found = max(found, _carried_bytes(body, num_steps))
    return found


def _is_along_stream(scan: Any, num_steps: int) -> bool:
    """Whether a scan takes its batches from the whole stream, one by one or in blocks."""
    lengths = (num_steps, num_steps + 1)
    return any(size in lengths for variable in scan.invars for size in variable.aval.shape)


def _largest(jaxpr: Any) -> float:
    sizes = [_size(v.aval) for equation in jaxpr.eqns for v in equation.outvars]
    bodies = [b for equation in jaxpr.eqns for b in jaxprs_in_params(equation.params)]
    return max([*sizes, *(_largest(body) for body in bodies), 0.0])


def _size(aval: Any) -> float:
    return float(np.prod(aval.shape)) * getattr(aval.dtype, "itemsize", 8)


def _run_one(
    job: Job,
    point: dict[str, Any],
    *,
    make_learner: Callable[..., Learner],
    held: tuple[tuple[str, Constant], ...],
    described: str,
    num_steps: int,
    num_classes: int,
) -> Kept:
    """One configuration along its stream."""
    del described  # only tells one program from another
    numbers = {name: value for name, value in point.items() if name not in (SEED, STREAM)}
    key = jax.random.fold_in(job.key, point[SEED]) if SEED in point else job.key
    batches, labels = point.get(STREAM, (job.batches, job.test))
    batches = jax.tree.map(jnp.asarray, batches)
    constants = {name: constant.value for name, constant in held}
    learner = make_learner(**constants, **numbers)
    state = learner.init(key, batches.X.shape[-1], num_classes)
    test = embed_test(learner, state, None if labels is None else HeldOut(job.X_test, *labels))
    carry = learner.stream.begin(state, batches.X[0], batches.weight[0])
    *_, record = scan_stream(
        learner,
        carry,
        jnp.zeros(num_classes, bool),
        batches,
        num_steps=num_steps,
        columns=None if job.columns is None else jnp.asarray(job.columns),
        test=test,
    )
    return Kept(
        jnp.all(record.healthy),
        record.loss,
        record.hits,
        record.rows,
        record.k_next,
        record.evaluation,
    )


def _nested(
    job: Job, rest: dict[str, Any], mapped: tuple[dict[str, Any], ...], /, **fixed: Any
) -> Kept:
    """`_run_one` with one vmap an axis, the first of `mapped` outermost."""

    def run(*parts: dict[str, Any]) -> Kept:
        point = dict(rest)
        for part in parts:
            point |= part
        return _run_one(job, point, **fixed)

    for i in reversed(range(len(mapped))):
        run = jax.vmap(run, in_axes=tuple(0 if j == i else None for j in range(len(mapped))))
    return run(*mapped)


@partial(
    jax.jit,
    static_argnames=(
        *("make_learner", "held", "described", "num_steps", "num_classes"),
        *("shared", "mesh"),
    ),
)
def _compiled(
    job: Job,
    rest: dict[str, Any],
    mapped: tuple[dict[str, Any], ...],
    *,
    shared: int | None,
    mesh: Mesh | None,
    **fixed: Any,
) -> Kept:
    nested = partial(_nested, **fixed)
    if mesh is None or shared is None:
        return nested(job, rest, mapped)
    mesh = as_auto(mesh)
    names = PartitionSpec(mesh.axis_names)
    inputs = tuple(names if i == shared else PartitionSpec() for i in range(len(mapped)))
    outputs = PartitionSpec(*([None] * shared), mesh.axis_names)
    part = jax.shard_map(
        nested,
        mesh=mesh,
        in_specs=(PartitionSpec(), PartitionSpec(), inputs),
        out_specs=outputs,
        check_vma=False,
    )
    # Every process reads all results.
    whole = NamedSharding(mesh, PartitionSpec())
    return jax.lax.with_sharding_constraint(part(job, rest, mapped), whole)
