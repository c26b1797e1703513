"""The command line: `rvfl-jax`, or `python -m rvfl_jax`."""
