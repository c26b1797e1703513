"""`python -m rvfl_jax` is `rvfl-jax`."""

from rvfl_jax.cli.main import command

command()
