"""Several devices: how a run is laid out over a mesh, by JAX's own sharding.

Two layouts of one run, both of which compute what one device computes:

- "rows": every device takes part of the rows of each batch. In information form a step adds
  up its d x d Gram and d x m moment over the devices (an all-reduce of d (d + m) numbers).
- "eta_dagger": every device holds part of the rows of the d x d matrices, for d too large for
  one device. A step gathers D P (b d numbers) and adds up b (b + m) numbers.
"""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from rvfl_jax.checks import one_of
from rvfl_jax.types import Array

LAYOUTS = ("rows", "eta_dagger")


def as_auto(mesh: Mesh) -> Mesh:
    """The same devices, with sharding left to the compiler, whatever the mesh was made for."""
    if all(kind == AxisType.Auto for kind in mesh.axis_types):
        return mesh
    return Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * mesh.devices.ndim)


def place(mesh: Mesh, array: Any, axis: int | None = None) -> Array:
    """An array that every process holds, laid over the mesh: cut along `axis`, or copied.

    Args:
        mesh: the devices.
        array: host data, equal in all processes.
        axis: to cut along; copied to every device when None.
    """
    spec = PartitionSpec() if axis is None else PartitionSpec(*([None] * axis), mesh.axis_names)
    host = np.asarray(array)
    return jax.make_array_from_callback(
        host.shape, NamedSharding(mesh, spec), lambda index: host[index]
    )


def fetch(array: Array) -> np.ndarray:
    """A result that every device holds, as a NumPy array."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    return np.asarray(array.addressable_data(0))


def check_layout(layout: str) -> str:
    """ValueError unless `layout` is one of `LAYOUTS`."""
    return one_of("layout", layout, LAYOUTS)
