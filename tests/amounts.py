"""Which cases of a test run with the quick tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, for `pytest.mark.parametrize`, all but the quick ones marked slow."""
    quick, cases = list(quick), list(cases)
    # As they are written: 1 is True to everything else.
    names = set(map(repr, cases))
    missing = [case for case in quick if repr(case) not in names]
    if missing:
        raise ValueError(f"quick: expected some of {cases}, got {missing} too")
    chosen = set(map(repr, quick))
    return [case if repr(case) in chosen else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
