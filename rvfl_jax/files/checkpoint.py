"""Checkpoints: a pytree of arrays and what belongs to it, in one file that is whole or not there.

The file is a NumPy `.npz`: one member an array, and `metadata` with a description in JSON. It is
written beside its place, flushed to the disk, and renamed; a process that is killed in the middle
leaves the checkpoint before. Every member carries a checksum that is verified on reading. Restoring
is strict: whatever differs from what is expected is listed, all of it, and nothing is cast.
"""

import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, NamedTuple
from uuid import uuid4

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.portable import is_key
from rvfl_jax.core.words import in_brief
from rvfl_jax.files.locks import try_lock
from rvfl_jax.files.provenance import versions

FORMAT = 1
_METADATA = "metadata"
# Parts of paths as they are now, and as files of earlier releases have them.
_FORMERLY = (
    (".carry.readouts.", ".carry.solver."),
    (".carry.pending.", ".carry.batch."),
    (".carry.begun.still", ".carry.rest.here"),
    (".carry.begun.", ".carry.rest."),
    (".sketch.", ".ledger."),
)


@in_brief
class Checkpoint(NamedTuple):
    """What a file holds: arrays by their path in the tree, and the description beside them."""

    arrays: dict[str, np.ndarray]
    metadata: dict[str, Any]


def save_checkpoint(path: str | Path, tree: Any, metadata: Mapping[str, Any]) -> None:
    """Write a pytree of arrays and a description; the file at `path` is replaced in one move.

    Args:
        path: of the file.
        tree: any pytree; PRNG keys among its leaves are kept with their implementation.
        metadata: what can be written as JSON.

    Raises:
        OSError: if the file cannot be written; what was at `path` is untouched.
    """
    path = Path(path)
    arrays, keys = _arrays_of(tree)
    described = {
        "format": FORMAT,
        "versions": versions(),
        "prng_keys": keys,
        "arrays": {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()},
        "metadata": dict(metadata),
    }
    members = {f"array {name}": array for name, array in arrays.items()}
    write_npz(path, {_METADATA: json_bytes(described), **members})


def write_npz(path: Path, members: Mapping[str, np.ndarray]) -> None:
    """Write arrays that are no objects; the file at `path` is replaced in one move.

    Raises:
        OSError: if the file cannot be written; what was at `path` is untouched.
    """
    # Named by keyword, which `allow_pickle=False` has no say in.
    replace_file(path, lambda file: np.savez(file, **members))  # type: ignore[arg-type]


def replace_file(path: Path, write: Callable[[IO[bytes]], Any]) -> None:
    """Write a file beside `path` and put it there in one move.

    A link stays one: the file that it leads to is replaced. What killed writers have left is
    swept.

    Args:
        path: of the file.
        write: writes the content.

    Raises:
        OSError: if the file cannot be written; what was at `path` is untouched.
    """
    path = Path(os.path.realpath(path))
    sweep_parts(path)
    # Not of `tempfile`, whose files nobody else may read.
    part = path.with_name(f"{path.name}.{uuid4().hex}.part")
    try:
        with part.open("xb") as file:
            # Where a file system has no locks, nobody sweeps.
            with suppress(OSError):
                try_lock(file.fileno())
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        _sync_folder(path.parent)
    except BaseException as error:
        part.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise OSError(error.errno, error.strerror, str(path)) from None
        raise


def sweep_parts(path: Path) -> None:
    """Remove what processes that were killed while they wrote `path` have left of it."""
    path = Path(os.path.realpath(path))
    ours = re.compile(re.escape(path.name) + r"\.[0-9a-f]{32}\.part")
    # What cannot be swept harms nobody; that the folder cannot be written to shows soon enough.
    with suppress(OSError):
        for part in path.parent.iterdir():
            if ours.fullmatch(part.name) and _is_left_behind(part):
                part.unlink(missing_ok=True)


def _is_left_behind(part: Path) -> bool:
    """Whether no process writes it any more: a lock ends with its process."""
    with suppress(FileNotFoundError), part.open("r+b") as file:
        return try_lock(file.fileno())
    return False


def json_bytes(described: Mapping[str, Any]) -> np.ndarray:
    """(bytes,) uint8 of a description as JSON."""
    return np.frombuffer(json.dumps(described).encode(), np.uint8)


def load_checkpoint_file(path: str | Path) -> Checkpoint:
    """Read a whole checkpoint and verify it.

    Raises:
        ValueError: if there is none, or it is damaged or of another format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"checkpoint: expected a file at {str(path)!r}, found none")
    try:
        with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
            described = json.loads(file[_METADATA].tobytes())
            arrays = {
                name.removeprefix("array "): file[name] for name in file.files if name != _METADATA
            }
    except Exception as error:
        # A flipped bit may raise anything, from a checksum to an unknown kind of compression.
        raise ValueError(f"{path}: the checkpoint is damaged: {_first_line(error)}") from error
    if described.get("format") != FORMAT:
        raise ValueError(
            f"{path}: expected a checkpoint of format {FORMAT}, got {described.get('format')!r}"
        )
    found = {name: [str(a.dtype), list(a.shape)] for name, a in arrays.items()}
    if found != described["arrays"]:
        raise ValueError(f"{path}: the checkpoint is damaged: its arrays are not those it lists")
    return Checkpoint(arrays, described)


def restore(checkpoint: Checkpoint, like: Any, *, what: str = "checkpoint") -> Any:
    """The saved arrays in the structure of `like`, as host arrays to the last bit.

    Args:
        checkpoint: of `load_checkpoint_file`.
        like: a pytree of arrays, or of anything with a shape and a dtype.
        what: for messages.

    Raises:
        ValueError: listing every array that is missing, not expected, or of another shape or
            dtype.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    expected = {jax.tree_util.keystr(path): leaf for path, leaf in leaves}
    checkpoint = _renamed(checkpoint, expected)
    keys = checkpoint.metadata["prng_keys"]
    faults = [f"{name}: expected, not there" for name in expected if name not in checkpoint.arrays]
    faults += [f"{name}: there, not expected" for name in checkpoint.arrays if name not in expected]
    for name, leaf in expected.items():
        if name in checkpoint.arrays:
            faults += _difference(name, leaf, checkpoint.arrays[name], keys.get(name))
    if faults:
        raise ValueError(f"{what}: {len(faults)} differences: " + "; ".join(faults))
    restored = [
        jax.random.wrap_key_data(jnp.asarray(checkpoint.arrays[name]), impl=keys[name])
        if name in keys
        else checkpoint.arrays[name]
        for name in expected
    ]
    return jax.tree_util.tree_unflatten(structure, restored)


def _renamed(checkpoint: Checkpoint, expected: Mapping[str, Any]) -> Checkpoint:
    """The checkpoint with the names that are expected where it has arrays by former ones."""
    now = {}
    for name in expected:
        former = name
        for part, before in _FORMERLY:
            former = former.replace(part, before)
        if name not in checkpoint.arrays and former not in expected:
            now[former] = name
    keys = checkpoint.metadata["prng_keys"]
    return Checkpoint(
        {now.get(name, name): array for name, array in checkpoint.arrays.items()},
        checkpoint.metadata | {"prng_keys": {now.get(name, name): v for name, v in keys.items()}},
    )


def _arrays_of(tree: Any) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    arrays, keys = {}, {}
    for path, leaf in leaves:
        name = jax.tree_util.keystr(path)
        if is_key(leaf):
            keys[name] = str(jax.random.key_impl(leaf))
            leaf = jax.random.key_data(leaf)
        arrays[name] = np.asarray(leaf)
    return arrays, keys


def _difference(name: str, leaf: Any, got: np.ndarray, key: str | None) -> list[str]:
    if is_key(leaf):
        return [] if key is not None else [f"{name}: expected a PRNG key, got {got.dtype}"]
    shape, dtype = tuple(np.shape(leaf)), np.dtype(getattr(leaf, "dtype", type(leaf)))
    if (shape, dtype) == (got.shape, got.dtype):
        return []
    return [f"{name}: expected {dtype}{list(shape)}, got {got.dtype}{list(got.shape)}"]


def _sync_folder(folder: Path) -> None:
    """The rename itself on the disk, where the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
