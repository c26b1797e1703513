"""Ways to carry one sub-learner's readout along a stream; one contract, one file each.

The contract is `rvfl_jax.learners.edrvfl.solvers.base.ReadoutSolver`.
"""
