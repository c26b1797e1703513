"""Errors of the caller, found on the host and named before anything is compiled."""

import math
import numbers
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.forks import refuse_after_fork
from rvfl_jax.core.portable import is_key

Word = TypeVar("Word", bound=str)


class NumericalError(ArithmeticError):
    """A factorisation failed or a value overflowed; the message names where and a remedy."""


def is_traced(value: Any) -> bool:
    """Whether `value` is abstract, so that its numbers are not known."""
    return isinstance(value, jax.core.Tracer)


def prng_key(name: str, key: Any) -> None:
    """ValueError unless `key` is one PRNG key of `jax.random.key`, or a raw one of `PRNGKey`.

    RuntimeError where nothing could be drawn from it, in a process forked while JAX was in use.
    """
    refuse_after_fork()
    shape = getattr(key, "shape", None)
    raw = getattr(key, "dtype", None) == np.uint32 and shape in ((2,), (4,))
    if not raw and not (is_key(key) and shape == ()):
        got = f"an array of shape {shape}" if shape else repr(key)
        raise ValueError(f"{name}: expected one PRNG key such as jax.random.key(0), got {got}")


def positive_int(name: str, value: Any) -> int:
    """`value` as an int of at least 1, or a ValueError."""
    integral = isinstance(value, int | np.integer) and not isinstance(value, bool)
    if not integral or value < 1:
        raise ValueError(f"{name}: expected an integer of at least 1, got {value!r}")
    return int(value)


def one_of(name: str, value: Any, choices: Iterable[Word]) -> Word:
    """`value` if it is one of `choices`, or a ValueError that lists them."""
    known = list(choices)
    if not isinstance(value, str) or value not in known:
        raise ValueError(f"{name}: expected one of {', '.join(known)}, got {value!r}")
    return known[known.index(value)]


def per_layer(name: str, value: Any, num_layers: int, *, minimum: float, strict: bool) -> Any:
    """A scalar or one number a layer, in range wherever its value is known.

    Returns a list as an array and anything else unchanged, so that Python floats stay
    weakly typed and traced values stay traced.
    """
    if not is_traced(value) and not _are_numbers(value):
        raise ValueError(f"{name}: expected a number or one a layer, got {value!r}")
    if isinstance(value, list | tuple):
        value = np.asarray(value, dtype=float)
    shape = np.shape(value)
    if shape not in ((), (num_layers,)):
        raise ValueError(f"{name}: expected a scalar or shape ({num_layers},), got shape {shape}")
    if is_traced(value):
        return value
    given = np.asarray(value, dtype=float)
    inside = given > minimum if strict else given >= minimum
    if not np.all(inside & np.isfinite(given)):
        relation = "greater than" if strict else "at least"
        raise ValueError(f"{name}: expected finite and {relation} {minimum:g}, got {value!r}")
    return value


def scalar(
    name: str, value: Any, *, minimum: float, maximum: float = math.inf, strict: bool = False
) -> Any:
    """One number in range wherever its value is known, as a float; a traced one unchanged.

    Raises:
        ValueError: on anything else; with `strict` also on `minimum` itself.
    """
    if np.ndim(value):
        raise ValueError(f"{name}: expected one number, got {value!r}")
    value = plain_numbers(per_layer(name, value, 1, minimum=minimum, strict=strict))
    if not is_traced(value) and value > maximum:
        raise ValueError(f"{name}: expected at most {maximum:g}, got {value!r}")
    return value


def _are_numbers(value: Any) -> bool:
    """Whether all of it are real numbers; truth values and strings are none."""
    if isinstance(value, list | tuple):
        return all(map(_are_numbers, value))
    if is_traced(value) or isinstance(value, numbers.Real | Decimal):
        return not isinstance(value, bool)
    return jnp.issubdtype(getattr(value, "dtype", np.void), jnp.number) and not np.iscomplexobj(
        value
    )


def check_ridge(state: Any, ridge: Any) -> None:
    """ValueError unless a state was learned with this lambda, where both are known."""
    kept = getattr(state, "ridge", None)
    if kept is None or is_traced(ridge) or is_traced(kept):
        return
    learned, given = np.asarray(kept), np.asarray(ridge, dtype=float)
    # As near as single precision tells.
    if not np.allclose(given, learned, rtol=1e-6, atol=0):
        raise ValueError(
            f"ridge: expected that of the state, {learned.tolist()}, got {given.tolist()}"
        )


def plain_numbers(value: Any) -> Any:
    """A number as a float, several as an array of float64; traced ones unchanged."""
    if is_traced(value):
        return value
    return np.array(value, dtype=float) if np.ndim(value) else float(value)


def shape(name: str, array: Any, expected: tuple[int | None, ...], meaning: str) -> None:
    """ValueError unless `array` has the expected shape; None matches any length."""
    got = np.shape(array)
    # Sizes may be symbols of `jax.export`.
    fits = len(got) == len(expected) and all(
        want is None or size == want for size, want in zip(got, expected, strict=True)
    )
    if not fits:
        want = ", ".join("any" if e is None else str(e) for e in expected)
        raise ValueError(f"{name}: expected shape ({want}) = {meaning}, got {got}")


def real_matrix(name: str, X: Any) -> np.ndarray:
    """`X` as a non-empty (rows, features) array of finite numbers, or a ValueError."""
    X = plain_array(name, X)
    if X.ndim != 2:
        raise ValueError(f"{name}: expected 2 dimensions (rows, features), got shape {X.shape}")
    if 0 in X.shape:
        raise ValueError(f"{name}: expected at least one row and one feature, got shape {X.shape}")
    if X.dtype.kind not in "fiub":
        raise ValueError(f"{name}: expected real numbers, got dtype {X.dtype}")
    finite(name, X)
    return X


def plain_array(name: str, values: Any) -> np.ndarray:
    """An array of NumPy's own kinds: bfloat16 and its like widened, nothing masked.

    Raises:
        ValueError: with the first place that is masked, whose number means nothing.
    """
    if isinstance(values, np.ma.MaskedArray):
        masked = np.ma.getmaskarray(values)
        if masked.any():
            where = tuple(int(i) for i in np.argwhere(masked)[0])
            raise ValueError(
                f"{name}: expected values everywhere, got a masked one at {where}"
                f" ({int(masked.sum())} such entries); fill them or leave their rows out"
            )
        return np.asarray(values.data)
    array = np.asarray(values)
    if array.dtype.kind == "V" and jnp.issubdtype(array.dtype, jnp.number):
        wide = np.float32 if jnp.issubdtype(array.dtype, jnp.floating) else np.int8
        return array.astype(wide)
    return array


def finite(name: str, X: np.ndarray) -> None:
    """ValueError with the first place at which `X` is NaN or infinite."""
    if X.dtype.kind != "f":
        return
    with np.errstate(all="ignore"):
        # Half the price of looking at every number.
        if np.isfinite(X.sum(dtype=np.float64)):
            return
    bad = ~np.isfinite(X)
    if bad.any():
        where = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"{name}: expected finite numbers, got {X[where]} at {where}"
            f" ({int(bad.sum())} such entries)"
        )


def real_numbers(name: str, value: Any) -> np.ndarray:
    """A number or several as float64; ValueError on text, truth values and whatever else."""
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name}: expected a number, got {value!r}")
    return array.astype(float)


def is_number(value: Any) -> bool:
    """Whether `value` is a real, finite Python or NumPy number."""
    real = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return real and math.isfinite(value)


def differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """What differs between two descriptions, in words; what one of them lacks is None."""
    return [
        f"{name}: expected {expected.get(name)!r}, got {got.get(name)!r}"
        for name in {**expected, **got}
        if expected.get(name) != got.get(name)
    ]
