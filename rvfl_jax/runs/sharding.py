"""Several devices: how a run is laid out over a mesh, by JAX's own sharding.

Two layouts of one run, both of which compute what one device computes:

- "rows": every device takes part of the rows of each batch. In information form the Gram and
  the moment of a batch are added up over the devices, an all-reduce of the lower half of a
  d x d matrix and of d m numbers a step; decisions are made on every device alike.
- "eta_dagger": every device holds part of the rows of the d x d matrices, for d too large for
  one device. In covariance form a step gathers a few b x d matrices and adds up b (b + m)
  numbers; no d x d matrix travels.

The compiler places the communication: nothing in the learners knows of devices. The same
code serves several processes, which must all call it with the same data.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.types import Array, Learner, State
from rvfl_jax.linalg.products import whole_products
from rvfl_jax.streams.batches import Batches

LAYOUTS = ("rows", "eta_dagger")


def as_auto(mesh: Mesh) -> Mesh:
    """The same devices, with sharding left to the compiler, whatever the mesh was made for."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def cut(mesh: Mesh, axis: int | None = None) -> NamedSharding:
    """Arrays cut along `axis` over all devices of the mesh; copied to each of them when None."""
    spec = PartitionSpec() if axis is None else PartitionSpec(*([None] * axis), mesh.axis_names)
    return NamedSharding(mesh, spec)


def place(array: Any, sharding: NamedSharding) -> Array:
    """An array laid over the devices; host data must be equal in all processes."""
    if not getattr(array, "is_fully_addressable", True):
        return jax.device_put(array, sharding)
    host = np.asarray(array)
    return jax.make_array_from_callback(host.shape, sharding, lambda index: host[index])


def place_batches(batches: Batches, mesh: Mesh, layout: str) -> Batches:
    """Batches over the devices: by rows, filled up with padding, or copied."""
    if one_of("layout", layout, LAYOUTS) != "rows":
        return jax.tree.map(partial(place, sharding=cut(mesh)), batches)
    missing = -batches.X.shape[1] % mesh.size

    def over_rows(array: np.ndarray) -> Array:
        # What there is one of for each batch has no rows.
        if array.ndim == 1:
            return place(array, cut(mesh))
        whole = np.pad(array, [(0, 0), (0, missing)] + [(0, 0)] * (array.ndim - 2))
        return place(whole, cut(mesh, 1))

    return jax.tree.map(over_rows, batches)


def check_width(learner: Learner, mesh: Mesh, layout: str, state: State) -> None:
    """ValueError unless the (d, d) matrices of a state can be cut evenly."""
    if one_of("layout", layout, LAYOUTS) != "eta_dagger":
        return
    width_of = learner.stream.facts.width
    if width_of is None:
        raise ValueError(
            'layout: expected "rows" for a learner that has no d x d matrices, got "eta_dagger"'
        )
    if width_of(state) % mesh.size:
        raise ValueError(
            f"layout: expected d = N + s to be a multiple of the {mesh.size} devices for"
            f' "eta_dagger", got {width_of(state)}; other num_nodes would do'
        )


def laid_out(learner: Learner, mesh: Mesh, layout: str, state: State) -> Any:
    """A state's shardings: its (L, d, d) matrices by rows, or everything copied."""
    width_of = learner.stream.facts.width
    width = width_of(state) if width_of is not None and layout == "eta_dagger" else None

    def of(leaf: Any) -> NamedSharding:
        large = leaf.ndim == 3 and leaf.shape[1:] == (width, width)
        return cut(mesh, 1 if large else None)

    return jax.tree.map(of, state)


def place_state(learner: Learner, state: State, mesh: Mesh, layout: str) -> State:
    """A state in its layout."""
    return jax.tree.map(place, state, laid_out(learner, mesh, layout, state))


def on_devices(
    mesh: Mesh | None,
    layout: str,
    programs: tuple[Callable[..., Any], Callable[..., Any]],
    learner: Learner,
    options: dict[str, Any],
    *args: Any,
    **traced: Any,
) -> tuple[State, Any]:
    """Run a program that gives a state and a record; the state comes back in its layout.

    Args:
        mesh: of the devices, or None for one.
        layout: of `LAYOUTS`.
        programs: the program compiled for one device, and as a plain function.
        learner: its first argument.
        options: its static arguments.
        *args: its other arguments.
        **traced: its other arguments that have names.
    """
    if mesh is None:
        return programs[0](learner, *args, **traced, **options)
    return _over_mesh(programs[1], mesh, layout, learner, tuple(options.items()), args, traced)


@partial(jax.jit, static_argnames=("program", "mesh", "layout", "options"))
def _over_mesh(
    program: Callable[..., tuple[State, Any]],
    mesh: Mesh,
    layout: str,
    learner: Learner,
    options: tuple[tuple[str, Any], ...],
    args: tuple[Any, ...],
    traced: dict[str, Any],
) -> tuple[State, Any]:
    with whole_products() if layout == "eta_dagger" else nullcontext():
        state, record = program(learner, *args, **traced, **dict(options))
    return lax.with_sharding_constraint(state, laid_out(learner, mesh, layout, state)), record


@partial(jax.jit, static_argnames=("mesh", "layout", "num_features", "num_classes"))
def init_over_mesh(
    mesh: Mesh, layout: str, learner: Learner, key: Array, num_features: int, num_classes: int
) -> State:
    """`learner.init`, of which no device keeps more than its part."""
    state = learner.init(key, num_features, num_classes)
    return lax.with_sharding_constraint(state, laid_out(learner, mesh, layout, state))
