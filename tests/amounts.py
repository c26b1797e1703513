"""Which cases of a test run with the quick tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, for `pytest.mark.parametrize`, all but the quick ones marked slow."""
    # As they are written: 1 is True to everything else.
    chosen, cases = set(map(repr, quick)), list(cases)
    missing = chosen - set(map(repr, cases))
    if missing:
        raise ValueError(f"quick: expected some of {cases}, got {', '.join(sorted(missing))} too")
    return [case if repr(case) in chosen else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
