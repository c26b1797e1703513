"""The pseudo-inverse of a symmetric matrix, with the derivative that it has at a constant rank."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array
from rvfl_jax.linalg.products import matmul, matmul_tn
from rvfl_jax.linalg.spd import eigh


class _Kept(NamedTuple):
    """Eigenvectors V (p, p), which of them are kept (p,), and one over their eigenvalues or 0."""

    V: Array
    kept: Array
    inverse: Array

    @classmethod
    def of(cls, M: Array, cutoff: Any) -> "_Kept":
        values, V = eigh(M)
        size = jnp.abs(values)
        kept = size > cutoff * jnp.max(size)
        return cls(V, kept, jnp.where(kept, 1.0 / jnp.where(kept, values, 1.0), 0.0))

    def solve(self, B: Array) -> Array:
        """M^+ B."""
        return matmul(self.V, self.inverse[:, None] * matmul_tn(self.V, B))

    def rest(self, B: Array) -> Array:
        """(I - M M^+) B."""
        return matmul(self.V, jnp.where(self.kept[:, None], 0.0, matmul_tn(self.V, B)))


@jax.custom_jvp
def pseudo_solve(M: Array, B: Array, cutoff: Any) -> Array:
    """M^+ B for a symmetric M (p, p) and B (p, q), about 10 p^3 flops.

    Args:
        M: symmetric.
        B: (p, q).
        cutoff: eigenvalues of a size of at most so many times the largest count as 0.
    """
    return _Kept.of(M, cutoff).solve(B)


@pseudo_solve.defjvp
def _pseudo_solve_jvp(
    primals: tuple[Array, Array, Any], tangents: tuple[Array, Array, Any]
) -> tuple[Array, Array]:
    """With R = I - M M^+:  dM^+ = - M^+ dM M^+ + M^+ M^+ dM R + R dM M^+ M^+."""
    M, B, cutoff = primals
    dM, dB, _ = tangents
    kept = _Kept.of(M, cutoff)
    X = kept.solve(B)
    within = kept.solve(dB - matmul(dM, X))
    across = kept.solve(kept.solve(matmul(dM, kept.rest(B)))) + kept.rest(matmul(dM, kept.solve(X)))
    return X, within + across
