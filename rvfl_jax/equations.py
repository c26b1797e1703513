"""The paper's equations and both of its algorithms, line by line: plain, slow, for one sub-learner.

Hold this beside the paper: every function is one numbered equation or a few printed lines, in the
paper's symbols and order, on dense matrices. Nothing here is fast or guarded; `edrvfl` learns the
same by other forms, and the tests hold the two together. Shapes: X (b, s), D (b, d) with
d = N + s, Y (b, m) one-hot, theta (d, m), eta and eta_dagger (d, d). Work in double precision
(`jax.enable_x64`).

Where the print leaves a choice: eta_t in eq. (29) is that of the step before, without dagger, and
eta_0 at t = 1; each trace is divided by the rows of its own batch; without X_{T+1} the last step
has no forward term; regret and KL are of whatever readout is handed over.

Source: J. Wang, M. Hu, N. Li, A. Al-Ali, P. N. Suganthan, "Randomized Neural Network with
Adaptive Forward Regularization for Online Task-free Class Incremental Learning", 2025.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

from rvfl_jax.core.types import Array, ColdStart
from rvfl_jax.core.words import in_brief

Activation = Callable[[Array], Array]


@in_brief
class Moment(NamedTuple):
    """What an algorithm holds after step t: theta_{t+1}, eta_dagger, eta_{t+1}, k_t and k_{t+1}."""

    theta: Array
    eta_dagger: Array
    eta: Array
    k_t: Array | float
    k_next: Array | float


# Section 3.2: the network and its offline expert.


def first_hidden(X: Array, W_1: Array, g: Activation) -> Array:
    """Eq. (2): H_1 = g(X W_1), with W_1 (s, N)."""
    return g(X @ W_1)


def next_hidden(H: Array, X: Array, W_l: Array, g: Activation) -> Array:
    """Eq. (3): H_l = g([H_{l-1} | X] W_l), with W_l (N + s, N)."""
    return g(jnp.hstack([H, X]) @ W_l)


def features(X: Array, weights: Sequence[Array], g: Activation) -> list[Array]:
    """D_l = [H_l | X] of every layer, below eq. (5)."""
    H = first_hidden(X, weights[0], g)
    D = [jnp.hstack([H, X])]
    for W_l in weights[1:]:
        H = next_hidden(H, X, W_l, g)
        D.append(jnp.hstack([H, X]))
    return D


def offline_objective(theta: Array, D: Array, Y: Array, ridge: float) -> Array:
    """Eq. (4): ||D theta - Y||_F^2 + lambda ||theta||_F^2."""
    return _square(D @ theta - Y) + ridge * _square(theta)


def offline_primal(D: Array, Y: Array, ridge: float) -> Array:
    """Eq. (5), primal: (D^T D + lambda I)^-1 D^T Y."""
    return jnp.linalg.inv(D.T @ D + ridge * jnp.eye(D.shape[1])) @ D.T @ Y


def offline_dual(D: Array, Y: Array, ridge: float) -> Array:
    """Eq. (5), dual: D^T (D D^T + lambda I)^-1 Y."""
    return D.T @ jnp.linalg.inv(D @ D.T + ridge * jnp.eye(len(D))) @ Y


# Section 4.3: forward regularisation with a constant k.


def initial_rate(ridge: float, width: int) -> Array:
    """Line 1 of both algorithms: eta_0 = (lambda I)^-1."""
    return jnp.linalg.inv(ridge * jnp.eye(width))


def recursive_objective(
    theta: Array,
    learned: tuple[Array, Array],
    batch: tuple[Array, Array],
    D_next: Array,
    k_t: Array | float,
    k_next: Array | float,
    theta_0: Array | float = 0.0,
) -> Array:
    """Eq. (26), which theta_{t+1} minimises; eq. (17) where k_t = k_{t+1} = k; eq. (25) in short.

    Args:
        theta: at which it is evaluated.
        learned: (theta_t, eta_t) of all batches before, eta_t^-1 = eta_0^-1 + sum_{j<t} D_j^T D_j
            + k_t D_t^T D_t.
        batch: (D_t, Y_t).
        D_next: D_{t+1}.
        k_t: strength of D_t in eta_t.
        k_next: k_{t+1}, strength of D_{t+1}.
        theta_0: where learning began.

    Returns:
        A scalar.
    """
    (theta_t, eta_t), (D_t, Y_t) = learned, batch
    step = theta - theta_t
    return (
        0.5 * jnp.trace(step.T @ jnp.linalg.inv(eta_t) @ step)
        + 0.5 * _square(D_t @ theta - Y_t)
        - 0.5 * k_t * _square(D_t @ (theta - theta_0))
        + 0.5 * k_next * _square(D_next @ (theta - theta_0))
    )


def absorbed(eta_dagger: Array, D: Array) -> Array:
    """Algorithm 1, line 8, and Algorithm 2, line 11.

    eta_dagger - eta_dagger D^T (I + D eta_dagger D^T)^-1 D eta_dagger, which is
    (eta_dagger^-1 + D^T D)^-1.
    """
    inner = jnp.linalg.inv(jnp.eye(len(D)) + D @ eta_dagger @ D.T)
    return eta_dagger - eta_dagger @ D.T @ inner @ D @ eta_dagger


def announced(eta_dagger: Array, D_next: Array, k: Array | float) -> Array:
    """Algorithm 1, line 9, and Algorithm 2, line 13: eta_{t+1}.

    eta_dagger - eta_dagger k D'^T (I + k D' eta_dagger D'^T)^-1 D' eta_dagger, which is
    (eta_dagger^-1 + k D'^T D')^-1.
    """
    inner = jnp.linalg.inv(jnp.eye(len(D_next)) + k * D_next @ eta_dagger @ D_next.T)
    return eta_dagger - eta_dagger @ (k * D_next.T) @ inner @ D_next @ eta_dagger


def theta_with_prior(
    theta: Array,
    eta_next: Array,
    D: Array,
    Y: Array,
    D_next: Array,
    k: Array | float,
    theta_0: Array,
) -> Array:
    """Eq. (20): theta_{t+1} of a learner that began at theta_0; eq. (21) where theta_0 = 0."""
    return (
        theta_constant(theta, eta_next, D, Y, D_next, k)
        + k * eta_next @ (D_next.T @ D_next - D.T @ D) @ theta_0
    )


def theta_constant(
    theta: Array, eta_next: Array, D: Array, Y: Array, D_next: Array, k: Array | float
) -> Array:
    """Theorem 3, eq. (21), and line 11 of Algorithm 1."""
    G, G_next = D.T @ D, D_next.T @ D_next
    return theta - eta_next @ ((G + k * G_next - k * G) @ theta - D.T @ Y)


# Section 4.4: adaptive k.


def theta_adaptive(
    theta: Array,
    eta_next: Array,
    D: Array,
    Y: Array,
    D_next: Array,
    k_t: Array | float,
    k_next: Array | float,
) -> Array:
    """Eq. (27), and line 14 of Algorithm 2."""
    G, G_next = D.T @ D, D_next.T @ D_next
    return theta - eta_next @ ((k_next * G_next + (1 - k_t) * G) @ theta - D.T @ Y)


def k_of_inverse_trace(D: Array, eta: Array, kappa: float, sigma: float) -> Array:
    """Eq. (29): kappa (Tr[(D eta D^T + sigma I)^-1] / b)^-1; eq. (28) where kappa 1, sigma 0."""
    inverse = jnp.linalg.inv(D @ eta @ D.T + sigma * jnp.eye(len(D)))
    return kappa / (jnp.trace(inverse) / len(D))


def k_of_random_pick(D: Array, eta: Array, kappa: float, sigma: float, row: int) -> Array:
    """Below eq. (28): 1 over one element of the inverse's diagonal, with eq. (29)'s scales."""
    inverse = jnp.linalg.inv(D @ eta @ D.T + sigma * jnp.eye(len(D)))
    return kappa / inverse[row, row]


def k_of_trace(D: Array, eta: Array, kappa: float) -> Array:
    """Below eq. (28): Tr[D eta D^T] / b, times kappa."""
    return kappa * jnp.trace(D @ eta @ D.T) / len(D)


# The algorithms, for one sub-learner whose features D_t are made by eqs. (2)-(3).


def algorithm_1(
    batches: Sequence[tuple[Array, Array]],
    ridge: float,
    k: Array | float,
    *,
    D_last: Array | None = None,
    cold_start: ColdStart = "paper",
) -> Iterator[Moment]:
    """Algorithm 1, edRVFL-kF for OTCIL; k = 0 is -R and k = 1 is -F.

    Args:
        batches: (D_t, Y_t) for t = 1 ... T.
        ridge: lambda.
        k: forward strength.
        D_last: features of X_{T+1}, which the paper assumes accessible; None leaves the last
            step without forward term.
        cold_start: "paper" follows footnote 2; "exact" lets batch 1's Gram enter, as Theorem 3
            has it.
    """
    width, m = batches[0][0].shape[1], batches[0][1].shape[1]
    theta, eta_dagger = jnp.zeros((width, m)), initial_rate(ridge, width)  # line 1
    for t, ((D, Y), D_next) in enumerate(_announcing(batches, D_last), start=1):  # lines 3-6
        # Line 7: if t == 1, eta_dagger_2 = eta_0 (footnote 2). Line 8: else update.
        if t > 1 or cold_start == "exact":
            eta_dagger = absorbed(eta_dagger, D)
        eta = announced(eta_dagger, D_next, k)  # line 9
        theta = theta_constant(theta, eta, D, Y, D_next, k)  # lines 10-11
        yield Moment(theta, eta_dagger, eta, k, k if len(D_next) else 0.0)


def algorithm_2(
    batches: Sequence[tuple[Array, Array]],
    ridge: float,
    kappa: float = 1.0,
    sigma: float = 1e-5,
    *,
    D_last: Array | None = None,
    cold_start: ColdStart = "paper",
    reuse_k: bool = False,
) -> Iterator[Moment]:
    """Algorithm 2, edRVFL-kF-Bayes for OTCIL, with eq. (29).

    Args:
        batches: (D_t, Y_t) for t = 1 ... T.
        ridge: lambda.
        kappa: scale of eq. (29).
        sigma: of eq. (29).
        D_last: see `algorithm_1`.
        cold_start: see `algorithm_1`; line 8 is that footnote here.
        reuse_k: True sets k_t to what the step before called k_{t+1}, as Theorem 4 has one k_t.
    """
    width, m = batches[0][0].shape[1], batches[0][1].shape[1]
    theta, eta_dagger = jnp.zeros((width, m)), initial_rate(ridge, width)  # line 1
    eta, k_next = eta_dagger, jnp.zeros(())
    for t, ((D, Y), D_next) in enumerate(_announcing(batches, D_last), start=1):  # lines 3-6
        # Lines 9 and 12: both strengths from the eta of the step before, eta_0 at t = 1.
        k_t = k_next if reuse_k else k_of_inverse_trace(D, eta, kappa, sigma)
        k_next = k_of_inverse_trace(D_next, eta, kappa, sigma) if len(D_next) else jnp.zeros(())
        # Lines 7-8: if t == 1, eta_dagger_1 = eta_0. Lines 10-11: else update.
        if t > 1 or cold_start == "exact":
            eta_dagger = absorbed(eta_dagger, D)
        eta = announced(eta_dagger, D_next, k_next)  # line 13
        theta = theta_adaptive(theta, eta, D, Y, D_next, k_t, k_next)  # line 14
        yield Moment(theta, eta_dagger, eta, k_t, k_next)


def _announcing(
    batches: Sequence[tuple[Array, Array]], D_last: Array | None
) -> Iterator[tuple[tuple[Array, Array], Array]]:
    """Each batch with the features of the next, no rows where there is none."""
    nothing = jnp.zeros((0, batches[0][0].shape[1]))
    upcoming = [D for D, _ in batches[1:]] + [nothing if D_last is None else D_last]
    yield from zip(batches, upcoming, strict=True)


# Section 5.1: metrics. R (Q, Q) has the accuracy on task j after task q in row q, column j.


def ACC(R: Array) -> Array:  # noqa: N802
    """Eq. (30)."""
    return jnp.mean(R[-1])


def BWT(R: Array) -> Array:  # noqa: N802
    """Eq. (31)."""
    return jnp.mean(R[-1, :-1] - jnp.diag(R)[:-1])


def FWT(R: Array, R_ind: Array) -> Array:  # noqa: N802
    """Eq. (32)."""
    return jnp.mean(jnp.diag(R)[1:] - R_ind[1:])


def acc(probabilities: Array, y: Array) -> Array:
    """Eq. (33), for (n, m) ensemble probabilities and (n,) columns."""
    return jnp.mean(jnp.argmax(probabilities, axis=-1) == y)


def regret(scores: Array, Y: Array) -> Array:
    """Eq. (34), for (L, n, m) scores D_l theta_l."""
    L, n, _ = scores.shape
    return _square((jnp.sum(jax.nn.softmax(scores), axis=0) - L * Y) / (L * n))


def KL(scores: Array, Y: Array) -> Array:  # noqa: N802
    """Eq. (35), for (L, n, m) scores; 0 ln 0 = 0."""
    L, n, _ = scores.shape
    guess = jnp.sum(jax.nn.softmax(scores), axis=0)
    return jnp.sum(jnp.where(Y > 0, Y * jnp.log(jnp.where(Y > 0, L * Y, 1.0) / guess), 0.0)) / n


def _square(A: Array) -> Array:
    """||A||_F^2."""
    return jnp.sum(A**2)
