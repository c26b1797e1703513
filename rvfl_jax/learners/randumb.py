"""RanDumb: random Fourier features, decorrelated, and the nearest class mean.

    score_c = phi(x)^T Lambda mu_c - mu_c^T Lambda mu_c / 2,                              (1)
    Lambda = (Sigma + lambda I)^-1,                                                       (2)

which orders classes as the Mahalanobis distance of phi(x) to their means mu_c does, with phi of
`rvfl_jax.learners.random_maps.FourierMap` and Sigma the covariance about the class means. Nothing
is kept of a row but its part in these sums, so that any batches in any order give the same.

With the same gamma and the same lambda it is `rvfl_jax.learners.klda`; the two differ in what they
add to Sigma, and in defaults.

Shapes: x (s,), phi(x) (N,), mu_c a row of (m, N), Sigma and Lambda (N, N), lambda scalar.

Cost: 2 N^2 b + 2 s N b flops a batch for the sums, and one factorisation, N^3 / 3, wherever scores
are asked: once a batch for the guess, once more for each look at a test set. Memory: N^2 numbers.

Source: A. Prabhu, S. Sinha, P. Kumaraguru, P. Torr, O. Sener, P. Dokania, "Random Representations
Outperform Online Continually Learned Representations", NeurIPS 2024. It has N of 10,000 and more;
accuracy grows with N.
"""

from typing import Any

import jax.numpy as jnp

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.fourier_discriminant import fourier_discriminant
from rvfl_jax.learners.random_maps import NUM_NODES, checked_gamma


def randumb(*, num_nodes: int = NUM_NODES, gamma: Any = None, ridge: Any = 1e-5) -> Learner:
    """Nearest class mean in decorrelated random Fourier features.

    Args:
        num_nodes: N, random features.
        gamma: of the kernel exp(-gamma ||x - x'||^2), above 0; None is 1 / s.
        ridge: lambda, above 0, beside features whose squares sum to about 1.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = checked_gamma(gamma), scalar("ridge", ridge, minimum=0.0, strict=True)
    return _randumb((positive_int("num_nodes", num_nodes),), numbers)


@shared_programs
def _randumb(options: tuple[int], numbers: tuple[Any, Any]) -> Learner:
    (num_nodes,), (gamma, ridge) = options, numbers

    def regularised(Sigma: Array) -> Array:
        return Sigma + ridge * jnp.eye(len(Sigma), dtype=Sigma.dtype)

    description = describe("randumb", num_nodes=num_nodes, gamma=gamma, ridge=ridge)
    return fourier_discriminant(num_nodes, gamma, regularised, description)
