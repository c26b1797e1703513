"""Ways to carry one sub-learner's readout along a stream; one contract, one file each.

Each module has `begin`, `advance` and `finish` for a single sub-learner, without an
ensemble axis: `rvfl_jax.edrvfl` vmaps them.
"""
