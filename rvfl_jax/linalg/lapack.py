"""LAPACK factorisations and solves of single matrices, which also vmap on a CPU."""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax import lax
from jax.custom_batching import custom_vmap

from rvfl_jax.core.types import Array


def one_by_one(function: Callable[..., Any], outputs: Any = True) -> Callable[..., Any]:
    """`function`, whose vmap on CPU is a loop of single LAPACK calls.

    A batched LAPACK kernel of jaxlib (seen in 0.10.2) waits, on a thread of XLA's pool, for
    work that it has put into the same pool. Two of them at once on a machine of few cores
    wait for ever. A single call does not use the pool; OpenBLAS threads it where it is
    large. Accelerators keep their batched kernels.

    Args:
        function: of matrices.
        outputs: True for each of its results, in their structure.
    """
    single = custom_vmap(function)

    @single.def_vmap
    def rule(axis_size: int, in_batched: list[bool], *args: Array) -> tuple[Any, Any]:
        del axis_size
        if not any(in_batched):
            # As second derivatives ask for it; `single` would ask itself without end.
            return function(*args), jax.tree.map(lambda _: False, outputs)
        batched = [x for x, is_batched in zip(args, in_batched, strict=True) if is_batched]

        def call(moving: list[Array]) -> Array:
            rest = iter(moving)
            pairs = zip(args, in_batched, strict=True)
            return single(*[next(rest) if is_batched else x for x, is_batched in pairs])

        if jax.default_backend() == "cpu":
            return lax.map(call, batched), outputs
        axes = [0 if is_batched else None for is_batched in in_batched]
        return jax.vmap(function, in_axes=axes)(*args), outputs

    return single


lapack_cholesky = one_by_one(partial(lax.linalg.cholesky, symmetrize_input=False))
lapack_lower = one_by_one(partial(lax.linalg.triangular_solve, left_side=True, lower=True))
lapack_upper = one_by_one(
    partial(lax.linalg.triangular_solve, left_side=True, lower=True, transpose_a=True)
)
lapack_eigh = one_by_one(
    lambda A: tuple(reversed(lax.linalg.eigh(A, symmetrize_input=False))), (True, True)
)
