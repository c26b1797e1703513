"""Which solvers a learner may use, and which one its batches get."""

from rvfl_jax.learners.edrvfl.solvers import blocked, covariance, information, square_root
from rvfl_jax.learners.edrvfl.solvers.base import ReadoutSolver, SolverOptions

BY_NAME = {
    "blocked": blocked.solver,
    "covariance": covariance.solver,
    "information": information.solver,
    "square_root": square_root.solver,
}


def solvers_of(name: str, options: SolverOptions) -> tuple[ReadoutSolver, ...]:
    """Those that a learner may use: the one of that name, or for "auto" those it chooses from."""
    if name == "auto":
        return blocked.where_it_pays(options), information.solver(options)
    return (BY_NAME[name](options),)


def fastest(solvers: tuple[ReadoutSolver, ...], rows: int, width: int) -> ReadoutSolver:
    """The one for batches of so many rows of so many features."""
    # Its steps are no slower from 0.4 d on, but in single precision its factor fails earlier.
    return solvers[-1] if 2 * rows >= width else solvers[0]
