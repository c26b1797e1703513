"""What methods that keep rows in a reservoir have as options."""

from typing import NamedTuple

from rvfl_jax.core.checks import positive_int
from rvfl_jax.learners.mlp_head import checked_hidden


class RehearsalOptions(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    memory: int
    drawn: int
    updates: int


def rehearsal_options(
    hidden: tuple[int, ...], memory: int, drawn: int, updates: int
) -> RehearsalOptions:
    """The options, checked; ValueError on anything out of range."""
    hidden = checked_hidden(hidden)
    sizes = {"memory": memory, "drawn": drawn, "updates": updates}
    options = RehearsalOptions(hidden, *(positive_int(name, n) for name, n in sizes.items()))
    if drawn > memory:
        raise ValueError(f"drawn: expected at most memory={memory}, got {drawn}")
    return options
