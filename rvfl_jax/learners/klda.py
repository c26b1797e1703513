"""Kernel linear discriminant analysis, by random Fourier features.

    score_c = phi(x)^T Lambda mu_c - mu_c^T Lambda mu_c / 2,                              (1)
    Lambda = ((1 - e) Sigma + e (tr Sigma / N) I)^-1,                                     (2)

with phi of `rvfl_jax.learners.random_maps.FourierMap`, mu_c the mean of class c in these features
and Sigma the covariance about the class means. Classes count alike. The paper inverts Sigma itself,
which has no inverse while rows are fewer than N; hence the shrinkage e. Any batches in any order
give the same.

With the same gamma and as much on the diagonal it is `rvfl_jax.learners.randumb`.

Shapes: x (s,), phi(x) (N,), mu_c a row of (m, N), Sigma and Lambda (N, N), e scalar.

Cost: 2 N^2 b + 2 s N b flops a batch for the sums, and one factorisation, N^3 / 3, wherever scores
are asked: once a batch for the guess, once more for each look at a test set. Memory: N^2 numbers.

Source: S. Momeni, S. Mazumder, B. Liu, "Continual Learning Using a Kernel-Based Method Over
Foundation Models", AAAI 2025, which has N = 5,000 and the bandwidth chosen by hand for an encoder;
its ensemble of several draws is not here.
"""

from functools import partial
from typing import Any

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.fourier_discriminant import fourier_discriminant
from rvfl_jax.learners.gaussian import shrunk
from rvfl_jax.learners.random_maps import NUM_NODES, checked_gamma


def klda(*, num_nodes: int = NUM_NODES, gamma: Any = None, shrinkage: Any = 1e-3) -> Learner:
    """Kernel LDA on random Fourier features of the inputs.

    Args:
        num_nodes: N, random features.
        gamma: of the kernel exp(-gamma ||x - x'||^2), above 0; None is 1 / s.
        shrinkage: e, above 0 and at most 1.

    Raises:
        ValueError: on anything out of range.
    """
    shrinkage = scalar("shrinkage", shrinkage, minimum=0.0, maximum=1.0, strict=True)
    return _klda((positive_int("num_nodes", num_nodes),), (checked_gamma(gamma), shrinkage))


@shared_programs
def _klda(options: tuple[int], numbers: tuple[Any, Any]) -> Learner:
    (num_nodes,), (gamma, shrinkage) = options, numbers
    description = describe("klda", num_nodes=num_nodes, gamma=gamma, shrinkage=shrinkage)
    return fourier_discriminant(num_nodes, gamma, partial(shrunk, share=shrinkage), description)
