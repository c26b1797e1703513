"""What processes hand each other: pickles that keep every dtype, and functions of JAX by name.

JAX reads a float64 array back as float32 where that is the global default, and its own functions
(`jax.numpy.tanh`, `jax.nn.relu`) cannot be pickled at all.
"""

import functools
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from pickle import PicklingError
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils

T = TypeVar("T", bound=type)


class _HostArray:
    """An array of JAX on its way: the numbers, and of a PRNG key its kind."""

    def __init__(self, numbers: np.ndarray, impl: str | None) -> None:
        self.numbers, self.impl = numbers, impl


class _Named:
    """A public function of JAX on its way."""

    def __init__(self, module: str, name: str) -> None:
        self.module, self.name = module, name


def portable(kind: T) -> T:
    """Class decorator for NamedTuples and dataclasses of arrays: pickled with every dtype kept."""

    def reduce(self: Any) -> Any:
        return _rebuilt, (type(self), packed(_parts(self)))

    def shallow(self: Any) -> Any:
        return type(self)(*_parts(self))

    changed: Any = kind
    changed.__reduce__, changed.__copy__ = reduce, shallow
    return kind


def _parts(value: Any) -> tuple[Any, ...]:
    if not is_dataclass(value):
        return tuple(value)
    return tuple(getattr(value, field.name) for field in fields(value))


def _rebuilt(kind: Callable[..., Any], parts: tuple[Any, ...]) -> Any:
    return kind(*unpacked(parts))


def packed(tree: Any) -> Any:
    """The tree with arrays of JAX on the host, and functions of JAX by their names."""
    return jax.tree.map(_pack, tree)


def unpacked(tree: Any) -> Any:
    """What was `packed`."""
    return jax.tree.map(_unpack, tree)


def _pack(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return _each(_pack, leaf)
    if isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer):
        if not is_key(leaf):
            return _HostArray(np.asarray(leaf), None)
        return _HostArray(np.asarray(jax.random.key_data(leaf)), str(jax.random.key_impl(leaf)))
    return (_public_name(leaf) or leaf) if callable(leaf) else leaf


def _unpack(leaf: Any) -> Any:
    if isinstance(leaf, np.ndarray) and leaf.dtype == object:
        return _each(_unpack, leaf)
    if isinstance(leaf, _Named):
        return getattr(_public_modules()[leaf.module], leaf.name)
    if not isinstance(leaf, _HostArray):
        return leaf
    with jax.enable_x64(True):
        numbers = jnp.asarray(leaf.numbers)
    return numbers if leaf.impl is None else jax.random.wrap_key_data(numbers, impl=leaf.impl)


def _each(function: Callable[[Any], Any], array: np.ndarray) -> np.ndarray:
    changed = np.empty(array.shape, object)
    for at, value in np.ndenumerate(array):
        changed[at] = function(value)
    return changed


def _public_modules() -> dict[str, Any]:
    return {module.__name__: module for module in (jax.numpy, jax.nn, jax.lax, jax.scipy.special)}


def _public_name(function: Any) -> _Named | None:
    """Under which public name JAX has this function; None for all others."""
    name = getattr(function, "__name__", "")
    for where, module in _public_modules().items():
        if name and getattr(module, name, None) is function:
            return _Named(where, name)
    return None


class Origin(NamedTuple):
    """How a learner was made: a function at the top of a module, and its arguments."""

    make: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def again(self) -> Callable[[], Any]:
        """A function without arguments that makes an equal learner, in any process.

        Raises:
            PicklingError: naming an argument that no other process can find.
        """
        for name, value in [*enumerate(self.args), *self.kwargs.items()]:
            for path, leaf in jax.tree_util.tree_leaves_with_path(value):
                where = f"{name}{jax.tree_util.keystr(path)}"
                if callable(leaf) and _public_name(leaf) is None and "<" in _qualified(leaf):
                    raise PicklingError(
                        "learner: expected functions from the top of a module, which other"
                        f" processes can import, got {_qualified(leaf)} for {where}"
                    )
        return functools.partial(_made, self.make, packed(self.args), packed(self.kwargs))


def _qualified(function: Any) -> str:
    return f"{function.__module__}.{getattr(function, '__qualname__', type(function).__name__)}"


def _made(make: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    return make(*unpacked(args), **unpacked(kwargs))


def fetch(array: Any) -> np.ndarray:
    """A whole array as NumPy, wherever its parts are."""
    if getattr(array, "is_fully_addressable", True):
        return np.asarray(array)
    return np.asarray(multihost_utils.process_allgather(array, tiled=True))


def is_key(leaf: Any) -> bool:
    """Whether a leaf is a typed PRNG key, which NumPy cannot hold."""
    dtype = getattr(leaf, "dtype", None)
    return dtype is not None and jnp.issubdtype(dtype, jax.dtypes.prng_key)
