"""What a result depends on: key, configuration, versions, device, data."""

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import jax
import numpy as np

from rvfl_jax.core.portable import is_key
from rvfl_jax.core.types import Array, Learner, Stream

PACKAGES = ("rvfl-jax", "jax", "jaxlib", "numpy")


@jax.tree_util.register_static
class Provenance(dict[str, Any]):
    """A plain dict that JAX takes for structure, so that a history has arrays for leaves."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(json.dumps(self, sort_keys=True))


def provenance(
    learner: Learner,
    data: str | Sequence[str],
    key: Array,
    precision: str,
    **circumstances: Any,
) -> Provenance:
    """A plain dict that goes into JSON: what the numbers of a run depend on.

    Two runs of equal contents give the same bits where every function in the learner's
    description (an activation of one's own, say) is the same one: a name is all that can be
    recorded of it.

    Args:
        learner: the method; it describes itself in `Learner.description`.
        data: fingerprint of a stream, or of several.
        key: PRNG key of the random features.
        precision: "double" or "single".
        **circumstances: whatever else the results depend on, as JSON takes it.
    """
    return Provenance(
        {
            "learner": learner.description,
            "key": _key_data(key),
            "precision": precision,
            "data": [data] if isinstance(data, str) else list(data),
            **circumstances,
            "versions": versions(),
            "python": platform.python_version(),
            "device": device(),
            "xla_flags": os.environ.get("XLA_FLAGS", ""),
        }
    )


def fingerprint(stream: Stream) -> str:
    """SHA-256 of what a learner sees of a stream: dtypes, shapes and bytes of X, y and weight."""
    return digest_of((stream.X, stream.y, stream.weight))


def digest_of(tree: Any) -> str:
    """SHA-256 of dtypes, shapes and bytes of all arrays in a tree.

    Of an array that other processes hold in part only dtype and shape count.
    """
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        array = jax.random.key_data(leaf) if is_key(leaf) else leaf
        digest.update(f"{np.dtype(array.dtype).str}{array.shape}".encode())
        if getattr(array, "is_fully_addressable", True):
            # Row by row: a memory-mapped array need not fit into memory.
            for row in np.asarray(array) if np.ndim(array) else [np.asarray(array)]:
                digest.update(row.tobytes())
    return digest.hexdigest()


@cache
def versions() -> dict[str, str | None]:
    """Of the packages that decide numbers; None for one that is not installed."""
    found: dict[str, str | None] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = None
    return found


def device() -> dict[str, Any]:
    """Kind, platform and number of the devices."""
    first = jax.devices()[0]
    return {"platform": first.platform, "kind": first.device_kind, "count": jax.device_count()}


def _key_data(key: Array) -> dict[str, Any]:
    typed = is_key(key)
    data = jax.random.key_data(key) if typed else key
    return {"impl": str(jax.random.key_impl(key)) if typed else "raw", "data": data.tolist()}
