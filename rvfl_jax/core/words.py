"""Objects in a few words: what `repr` and notebooks show of them. NumPy only."""

from collections.abc import Callable, Iterable, Mapping
from html import escape
from typing import Any, NamedTuple, TypeVar

import numpy as np

# Of a whole object, of one value inside it, and how many entries of a container.
MOST, MOST_OF_ONE, MOST_ENTRIES = 900, 120, 6

T = TypeVar("T", bound=type)


class Summary(NamedTuple):
    """A line that says what an object is, and pairs of a name and what to know under it."""

    title: str
    rows: list[tuple[str, str]]

    def text(self) -> str:
        """Several lines for a terminal."""
        width = max((len(name) for name, _ in self.rows), default=0)
        lines = [f"  {name:<{width}}  {text}" for name, text in self.rows]
        return cut("\n".join([self.title, *lines]), MOST)

    def html(self) -> str:
        """The same as a table for notebooks."""
        head = f"<tr><th colspan=2 style='text-align:left'>{escape(self.title)}</th></tr>"
        body = (
            f"<tr><td style='text-align:left'>{escape(name)}</td>"
            f"<td style='text-align:left'>{escape(text)}</td></tr>"
            for name, text in self.rows
        )
        return f"<table>{head}{''.join(body)}</table>"


def summarised(kind: T) -> T:
    """Class decorator: `repr` and notebooks show `_summary()`, a `Summary`."""

    def text(self: Any) -> str:
        return _attempt(lambda: self._summary().text(), self)

    def html(self: Any) -> str:
        return _attempt(lambda: self._summary().html(), self)

    changed: Any = kind
    changed.__repr__, changed._repr_html_ = text, html
    return kind


def in_brief(kind: T) -> T:
    """Class decorator: `repr` shows the fields, of arrays their dtype and shape, no numbers."""
    changed: Any = kind
    changed.__repr__ = _fields_in_brief
    return kind


def _attempt(text: Callable[[], str], value: Any) -> str:
    """Whatever an object holds, traced or put together by hand, its `repr` is no error."""
    try:
        return text()
    except Exception:
        return _fields_in_brief(value)


def _fields_in_brief(value: Any) -> str:
    names: Any = getattr(value, "_fields", None) or getattr(value, "__dataclass_fields__", ())
    shown = ", ".join(f"{name}={brief(getattr(value, name), 1)}" for name in names)
    return cut(f"{type(value).__name__}({shown})", MOST)


def brief(value: Any, depth: int = 0) -> str:
    """One value: dtype and shape of an array, the first few entries of a container."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return _array(value)
    if depth and hasattr(value, "_summary"):
        return _attempt(lambda: cut(value._summary().title, MOST_OF_ONE), value)
    if hasattr(value, "_fields"):
        return f"{type(value).__name__}({_entries(value._asdict(), depth, '=')})"
    if isinstance(value, Mapping):
        return f"{{{_entries(value, depth, ': ')}}}"
    if isinstance(value, list | tuple):
        return listed(value)
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}.{value.__qualname__}"
    return cut(repr(value), MOST_OF_ONE)


def _entries(values: Mapping[Any, Any], depth: int, between: str) -> str:
    if depth > 1:
        return "..."
    items = list(values.items())
    entries = [
        f"{name}{between}{brief(value, depth + 1)}" for name, value in items[: 2 * MOST_ENTRIES]
    ]
    return ", ".join(entries + ["..."] * (len(items) > 2 * MOST_ENTRIES))


def _array(array: Any) -> str:
    if array.shape == ():
        try:
            return str(np.asarray(array).item())
        except Exception:  # traced, donated, or a PRNG key
            pass
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def listed(values: Iterable[Any], most: int = MOST_ENTRIES) -> str:
    """The first few entries of a list, and how many there are."""
    entries = list(values)
    shown = ", ".join(cut(number(entry), 40) for entry in entries[:most])
    return f"[{shown}]" if len(entries) <= most else f"[{shown}, ...] ({len(entries)})"


def number(value: Any) -> str:
    """A float with four digits; anything else as it is, arrays in brief."""
    if isinstance(value, float | np.floating):
        return f"{float(value):.4g}"
    return str(value) if isinstance(value, int | np.integer) else brief(value)


def cut(text: str, most: int) -> str:
    """The text, or its beginning."""
    return text if len(text) <= most else f"{text[: most - 4]} ..."
