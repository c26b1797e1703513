"""Cases that are not quick are marked, and none is lost."""

import pytest

from tests.amounts import slow_but


def test_all_cases_stay_and_the_others_are_slow():
    first, second, third = slow_but([2, (3, "c")], [1, 2, (3, "c")])
    assert first.values == (1,)
    assert [mark.name for mark in first.marks] == ["slow"]
    assert (second, third) == (2, (3, "c"))


def test_a_quick_case_that_is_none_is_told():
    with pytest.raises(ValueError, match=r"expected some of \['a'\], got \['b'\] too"):
        slow_but(["b"], ["a"])


def test_cases_are_told_apart_as_they_are_written():
    quick, slow = slow_but([True], [True, 1])
    assert quick is True
    assert slow.values == (1,)
    assert [mark.name for mark in slow.marks] == ["slow"]
