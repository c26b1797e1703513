"""`rvfl-jax --list-methods`: every method that `run` can compare, without importing JAX."""

from collections.abc import Iterator
from typing import TextIO

from rvfl_jax.learners.methods import METHODS, Method

MEMORY, SOURCE = "L (2 d^2 + d (N + 2 m))", "Wang et al. 2025"
# What `run` calls the styles of the paper.
OURS: dict[str, Method] = {
    "ridge": Method("edRVFL -R", "recursive ridge", MEMORY, SOURCE),
    "forward": Method("edRVFL -F", "forward ridge", MEMORY, SOURCE),
    "--k K": Method("edRVFL -kF", "forward ridge", MEMORY, SOURCE),
    "bayes": Method("edRVFL -kF-Bayes", "forward ridge", MEMORY, SOURCE, exact=False),
}
HEADINGS = (
    "name",
    "title",
    "family",
    "boundaries",
    "keeps rows",
    "passes",
    "memory",
    "source",
)
LEGEND = """\
name: of a style of rvfl-jax run, whose option --k is -kF; all below bayes are functions of modules
  of that name in rvfl_jax.learners. joint is an offline expert, and no style.
boundaries: given if the method has to be told where a task ends, as run then does.
passes: over the rows of a batch, by default.
memory: numbers in the state, but for some vectors: s features, m classes, N random features,
  P parameters of a network, r rows kept; L sub-learners with d = N + s."""


def rows() -> Iterator[tuple[str, ...]]:
    """The cells of each method, below `HEADINGS`."""
    for name, method in {**OURS, **METHODS}.items():
        yield (
            name,
            method.title,
            method.family,
            method.boundaries,
            "yes" if method.keeps_rows else "no",
            str(method.passes),
            method.memory,
            method.source or "-",
        )


def print_methods(out: TextIO) -> None:
    """The table and its legend: lines of columns for programs, in a terminal as wide as that is."""
    if out.isatty():
        _print_in_terminal(out)
    else:
        lines = [HEADINGS, *rows()]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  ".join(cells).rstrip(), file=out)
    print(f"\n{LEGEND}", file=out)


def _print_in_terminal(out: TextIO) -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE, padding=(0, 1, 0, 0))
    for heading in HEADINGS:
        table.add_column(heading, no_wrap=heading == "name", overflow="fold")
    for cells in rows():
        table.add_row(*cells)
    Console(file=out).print(table)
