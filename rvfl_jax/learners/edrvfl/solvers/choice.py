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
    # Steps of both take as long at b = 0.3 d for d = 500 and 0.4 d for 2,000 (AMD EPYC).
    return solvers[-1] if 5 * rows >= 2 * width else solvers[0]
