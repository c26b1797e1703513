"""In which precision drivers compute, whatever the process-wide setting."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import jax.numpy as jnp

from rvfl_jax.core.checks import one_of
from rvfl_jax.core.forks import refuse_after_fork

PRECISIONS = ("double", "single")


def precision_scope(precision: str) -> AbstractContextManager[Any]:
    """The context in which a driver computes; the process-wide setting stays as it was.

    Args:
        precision: "double" or "single".

    Raises:
        ValueError: on any other name.
        RuntimeError: in a process forked while JAX was in use.
    """
    refuse_after_fork()
    return jax.enable_x64(one_of("precision", precision, PRECISIONS) == "double")


def scope_of(tree: Any) -> AbstractContextManager[Any]:
    """The context in which float64 arrays stay float64, whatever the global setting.

    RuntimeError in a process forked while JAX was in use.
    """
    refuse_after_fork()
    if jnp.result_type(float) == jnp.float64:
        return nullcontext()
    double = any(getattr(leaf, "dtype", None) == jnp.float64 for leaf in jax.tree.leaves(tree))
    return jax.enable_x64(True) if double else nullcontext()
