"""Linear discriminant analysis with a covariance drawn to a sphere by as much as is best.

    score_c = x^T Lambda mu_c - mu_c^T Lambda mu_c / 2 + ln pi_c,                         (1)
    Lambda = ((1 - a) Sigma + a (tr Sigma / s) I)^-1,                                     (2)

with Sigma the scatter of rows about their class means by the number of rows, pi_c the share of
class c among the rows, or 1 for all, and a a number or that of the oracle approximating shrinkage,
which follows the rows (`rvfl_jax.learners.gaussian.oas_shrinkage`). With a number and priors it is
scikit-learn's LinearDiscriminantAnalysis(solver="lsqr", shrinkage=a), at every t and in any
batches. scikit-learn's OAS estimates one a for each class; here it is one of the pooled rows, as
in streaming LDA's initial fit.

Shapes: x (s,), mu_c a row of (m, s), Sigma and Lambda (s, s), pi (m,), a scalar.

Cost: 2 s^2 b flops a batch for the sums, and one factorisation, s^3 / 3, wherever scores are asked:
once a batch for the guess, once more for each look at a test set.

Sources: T. Hayes, C. Kanan, CVPR Workshops 2020, for the method and for OAS of the pooled rows;
Y. Chen et al., IEEE Transactions on Signal Processing 58 (10), 2010, for OAS itself.
"""

from typing import Any, Literal, NamedTuple

import jax.numpy as jnp

from rvfl_jax.core.checks import one_of, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.gaussian import Gaussians, oas_shrinkage, shrunk
from rvfl_jax.learners.parts import learn_in_blocks, rows_of, unless_unhealthy
from rvfl_jax.metrics import brier_loss

Priors = Literal["rows", "equal"]


class Options(NamedTuple):
    """What shapes the programs; `oas`: the share is not a number."""

    oas: bool
    priors: Priors


def lda(*, shrinkage: Any = "oas", priors: Priors = "rows") -> Learner:
    """Linear discriminant analysis on the inputs themselves.

    Args:
        shrinkage: a, from 0 to 1, or "oas"; with 0 the covariance of few rows has no inverse.
        priors: "rows" for the shares of the classes among the rows, "equal" for none.

    Raises:
        ValueError: on a shrinkage out of range, or priors of another name.
    """
    options = Options(isinstance(shrinkage, str), one_of("priors", priors, ("rows", "equal")))
    if options.oas:
        one_of("shrinkage", shrinkage, ("oas",))
        return _lda(options, None)
    return _lda(options, scalar("shrinkage", shrinkage, minimum=0.0, maximum=1.0))


@shared_programs
def _lda(options: Options, shrinkage: Any) -> Learner:
    def init(key: Array, num_features: int, num_classes: int) -> Gaussians:
        del key
        return Gaussians.none(num_features, num_classes)

    def scores(state: Gaussians, X: Any) -> Array:
        Sigma = state.covariance
        share = oas_shrinkage(Sigma, jnp.sum(state.rows)) if options.oas else shrinkage
        return state.scores(X, shrunk(Sigma, share), priors=options.priors == "rows")

    def step(
        state: Gaussians, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[Gaussians, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.mean.dtype)
        new = state.learn(X, Y_t, weight)
        return unless_unhealthy(new.healthy, new, state), StepInfo(scores(state, X), new.healthy)

    def fit_offline(state: Gaussians, X: Any, Y: Any, weight: Any) -> Gaussians:
        return learn_in_blocks(Gaussians.learn, state, X, Y, weight)

    told = "oas" if options.oas else shrinkage
    return plain_learner(
        init,
        step,
        scores,
        fit_offline=fit_offline,
        loss=brier_loss,
        description=describe("lda", shrinkage=told, priors=options.priors),
        sizes=lambda state: state.sizes,
    )
