"""Which cases of a test run with the quick tests."""

from collections.abc import Iterable
from typing import Any

import pytest


def slow_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """The cases, for `pytest.mark.parametrize`, all but the quick ones marked slow."""
    quick, cases = list(quick), list(cases)
    missing = [case for case in quick if case not in cases]
    if missing:
        raise ValueError(f"quick: expected some of {cases}, got {missing} too")
    return [case if case in quick else _slow(case) for case in cases]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow)
