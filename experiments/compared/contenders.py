"""Who is compared: the methods of the library's table, ours, and the bounds."""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from typing import Any, Literal, NamedTuple

from rvfl_jax import Learner, adaptive_k, edrvfl
from rvfl_jax.learners.methods import METHODS, module_of

Role = Literal["learner", "bound"]
OURS = "forward ridge"


class Contender(NamedTuple):
    """One row of the tables.

    Attributes:
        title: as its authors write it.
        family: of ideas.
        make: the function that makes the learner, with options by name.
        boundaries: "given" if it is told where a task ends, else "none".
        precision: of its arithmetic here.
        role: "bound" for one that is trained on all rows at once.
        any_batches: whether it ends in the same answers after any batches, so that configurations
            may be tried on a single one.
        whole_tasks: whether it is given each task as one batch.
    """

    title: str
    family: str
    make: Callable[..., Learner]
    boundaries: Literal["none", "given"] = "none"
    precision: Literal["single", "double"] = "double"
    role: Role = "learner"
    any_batches: bool = False
    whole_tasks: bool = False


def constant(k: float) -> Callable[..., Learner]:
    """Maker of edRVFL with one layer and this forward strength."""

    def make(*, num_nodes: int, ridge: Any) -> Learner:
        return edrvfl(num_layers=1, num_nodes=num_nodes, ridge=ridge, k=k)

    return make


def forward(*, num_nodes: int, ridge: Any, k: Any) -> Learner:
    """-kF with one layer."""
    return edrvfl(num_layers=1, num_nodes=num_nodes, ridge=ridge, k=k)


def bayes(*, num_nodes: int, ridge: Any, kappa: Any) -> Learner:
    """-kF-Bayes as printed, with one layer."""
    return edrvfl(num_layers=1, num_nodes=num_nodes, ridge=ridge, k=adaptive_k(kappa))


# Behind the last batch nothing is announced: what -F knows at the end of its rows is what -R knows.
OWN = {
    "-R": Contender("-R", OURS, constant(0.0), any_batches=True),
    "-F": Contender("-F", OURS, constant(1.0), any_batches=True),
    "-kF": Contender("-kF", OURS, forward),
    "-kF-Bayes": Contender("-kF-Bayes", OURS, bayes),
}
JOINT_RIDGE = {
    "joint_ridge": Contender("Joint ridge", "bound", constant(0.0), role="bound", any_batches=True)
}
# What has no row of figures, and why.
NOT_RUN = {
    "replay": ("Replay", "the same learner as ER"),
    "crnet2": ("CRNet-II", "in no public code"),
}
# Methods to which every batch is a task: a task is one batch to them.
WHOLE_TASKS = ("crnet1",)
# Sums over rows that do not depend on the batches once lambda is a number.
SUMS = ("ranpac",)


def contenders() -> dict[str, Contender]:
    """Name to contender, in the order of the tables: bounds, the methods by family, ours."""
    found = {name: _of_the_library(name) for name in METHODS if name not in NOT_RUN}
    bounds = {name: one for name, one in found.items() if one.family == "bound"}
    return bounds | JOINT_RIDGE | found | OWN


def _of_the_library(name: str) -> Contender:
    method = METHODS[name]
    make = getattr(import_module(module_of(name)), name)
    # Single precision is enough for networks trained by gradients.
    by_gradients = "learning_rate" in signature(make).parameters
    return Contender(
        method.title,
        method.family,
        make,
        boundaries=method.boundaries,
        precision="single" if by_gradients else "double",
        role="learner" if method.style else "bound",
        any_batches=method.exact or name in SUMS,
        whole_tasks=name in WHOLE_TASKS,
    )
