"""The equations of the package against the transcription, and against what they should minimise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import equations, metrics
from tests import paper, tolerances
from tests.references import relative_error
from tests.streams import ragged_stream, weighted_batches
from tests.test_paper import LAMBDA, batches


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def check(moments, steps):
    for moment, step in zip(moments, steps, strict=True):
        for name in ("theta", "eta_dagger", "eta"):
            assert relative_error(getattr(moment, name), step[name]) <= tolerances.CLOSED_FORM
        for name in {"k_t", "k_next"} & set(step):
            np.testing.assert_allclose(getattr(moment, name), step[name], rtol=1e-9)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "alone"])
@pytest.mark.parametrize("cold_start", ["paper", "exact"])
def test_algorithms_are_those_of_the_transcription(cold_start, announced):
    *stream, (last, _) = batches()
    last = last if announced else None
    start = {"cold_start": cold_start, "D_last": last}
    literal = cold_start == "paper"
    for k in (0.0, 1.414):
        check(
            equations.algorithm_1(stream, LAMBDA, k, **start),
            paper.algorithm_1(stream, LAMBDA, k, X_last=last, literal_start=literal),
        )
    for reuse, reference in ((False, paper.algorithm_2), (True, paper.algorithm_2_reusing)):
        check(
            equations.algorithm_2(stream, LAMBDA, 0.8, 0.1, reuse_k=reuse, **start),
            reference(
                stream,
                LAMBDA,
                0.8,
                0.1,
                D_last=last,
                literal_start=literal,
                k_eta_at_start="eta_0",
            ),
        )


@pytest.mark.parametrize("cold_start", ["exact", "paper"])
@pytest.mark.parametrize("k", [1.4, rvfl_jax.adaptive_k(0.7, 0.2)], ids=["constant", "adaptive"])
def test_the_learner_is_what_the_equations_say(k, cold_start):
    """The fast form along a stream, and its last state by the printed lines."""
    stream = ragged_stream()
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=9, ridge=LAMBDA, k=k, cold_start=cold_start)
    state = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0)).state
    W = [state.W[0, 9:], state.W[1]]
    for layer in range(2):
        pairs = weighted_batches(
            stream, lambda X: np.stack(equations.features(X, W, jax.nn.relu)), layer
        )
        if isinstance(k, float):
            moments = equations.algorithm_1(pairs, LAMBDA, k, cold_start=cold_start)
        else:
            moments = equations.algorithm_2(pairs, LAMBDA, 0.7, 0.2, cold_start=cold_start)
        *_, last = moments
        assert relative_error(state.theta[layer], last.theta) <= tolerances.CLOSED_FORM
        assert relative_error(state.eta_dagger[layer], last.eta_dagger) <= tolerances.CLOSED_FORM


def slope_at(theta, *rest):
    return jax.grad(equations.recursive_objective)(theta, *rest)


def test_updates_minimise_their_objectives():
    """Eq. (27) is the minimum of (26) for any strengths, (20) that of (17), (5) that of (4)."""
    (D_1, _), (D_t, Y_t), (D_next, _) = batches(3)
    rng = np.random.default_rng(0)
    theta_t, theta_0 = rng.normal(size=(2, 6, 3))
    eta_dagger = equations.absorbed(equations.initial_rate(LAMBDA, 6), D_1)
    for k_t, k_next in ((0.3, 1.7), (2.0, 0.4)):
        eta_t = equations.announced(eta_dagger, D_t, k_t)
        eta = equations.announced(equations.absorbed(eta_dagger, D_t), D_next, k_next)
        theta = equations.theta_adaptive(theta_t, eta, D_t, Y_t, D_next, k_t, k_next)
        slope = slope_at(theta, (theta_t, eta_t), (D_t, Y_t), D_next, k_t, k_next)
        assert jnp.abs(slope).max() < 1e-10
    eta_t = equations.announced(eta_dagger, D_t, 0.6)
    eta = equations.announced(equations.absorbed(eta_dagger, D_t), D_next, 0.6)
    theta = equations.theta_with_prior(theta_t, eta, D_t, Y_t, D_next, 0.6, theta_0)
    slope = slope_at(theta, (theta_t, eta_t), (D_t, Y_t), D_next, 0.6, 0.6, theta_0)
    assert jnp.abs(slope).max() < 1e-10
    for solution in (equations.offline_primal, equations.offline_dual):
        theta = solution(D_t, Y_t, LAMBDA)
        slope = jax.grad(equations.offline_objective)(theta, D_t, Y_t, LAMBDA)
        assert jnp.abs(slope).max() < 1e-10


def test_strengths_are_those_of_the_transcription():
    (D, _), *_ = batches()
    eta = equations.initial_rate(LAMBDA, 6)
    found = {
        "inverse_trace": equations.k_of_inverse_trace(D, eta, 0.7, 0.2),
        "trace": equations.k_of_trace(D, eta, 0.7),
        "random_pick": equations.k_of_random_pick(D, eta, 0.7, 0.2, 2),
    }
    for estimator, k in found.items():
        want = paper.k_estimate(D, np.asarray(eta), 0.7, 0.2, estimator, row=2)
        np.testing.assert_allclose(k, want, rtol=tolerances.REORDERED)


def test_what_is_left_is_that_of_the_transcription():
    stream = batches()
    D, Y = stream[0]
    want = paper.offline_dual(D, Y, LAMBDA)
    assert relative_error(equations.offline_dual(D, Y, LAMBDA), want) <= tolerances.REORDERED
    theta_0 = np.random.default_rng(1).normal(size=(6, 3))
    theta, eta_dagger = theta_0, equations.initial_rate(LAMBDA, 6)
    *recursion, _ = paper.equation_20(stream, LAMBDA, 1.4, theta_0)
    for t, want in enumerate(recursion):
        (D, Y), (D_next, _) = stream[t : t + 2]
        eta_dagger = equations.absorbed(eta_dagger, D)
        eta = equations.announced(eta_dagger, D_next, 1.4)
        theta = equations.theta_with_prior(theta, eta, D, Y, D_next, 1.4, theta_0)
        assert relative_error(theta, want) <= tolerances.CLOSED_FORM
    P, y = np.random.default_rng(2).uniform(size=(9, 4)), np.arange(9) % 4
    np.testing.assert_allclose(equations.acc(P, y), paper.immediate_accuracy(P, y))
    losses = [0.5, 0.25, 0.125]
    np.testing.assert_allclose(metrics.cumulative_regret(losses), paper.cumulative_regret(losses))


def test_metrics_are_those_of_the_package():
    rng = np.random.default_rng(0)
    R, R_ind = rng.uniform(size=(4, 4)), rng.uniform(size=4)
    np.testing.assert_allclose(equations.ACC(jnp.asarray(R)), metrics.average_accuracy(R))
    np.testing.assert_allclose(equations.BWT(jnp.asarray(R)), metrics.backward_transfer(R))
    np.testing.assert_allclose(
        equations.FWT(jnp.asarray(R), R_ind), metrics.forward_transfer(R, R_ind)
    )
    scores, y = rng.normal(size=(3, 7, 4)), rng.integers(4, size=7)
    Y = np.eye(4)[y]
    np.testing.assert_allclose(equations.regret(scores, Y), metrics.regret(scores, Y))
    np.testing.assert_allclose(equations.KL(scores, Y), metrics.kl(scores, Y))
    np.testing.assert_allclose(equations.acc(scores[0], y), metrics.accuracy(scores[0], y))
