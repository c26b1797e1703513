"""A learner that begins at theta_0: eq. (13)'s minimum with theta_0 in it, in every form."""

import itertools
from itertools import pairwise

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import equations
from tests import paper, references, tolerances
from tests.amounts import slow_but
from tests.references import relative_error
from tests.streams import blobs, ragged_stream, reweighted, weighted_batches

KEY = jax.random.key(0)
LAMBDA = 0.3
SOLVERS = ("covariance", "information", "square_root")
STRENGTHS = {
    "ridge": 0.0,
    "forward": 1.414,
    "bayes": rvfl_jax.adaptive_k(0.7, 0.2, reuse_k=True),
}


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def make(k=1.0, solver="covariance", ridge=LAMBDA):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=9, ridge=ridge, k=k, solver=solver)


def begun(learner, seed=0):
    state = learner.init(KEY, 6, 4)
    theta_0 = np.random.default_rng(seed).normal(size=(2, 15, 4))
    return rvfl_jax.with_prior(state, theta_0), theta_0


def rows_of(stream, state, layer):
    return weighted_batches(stream, lambda X: references.features(state.W, X), layer)


@pytest.mark.parametrize(
    ("strength", "solver"),
    slow_but(
        [("ridge", "covariance"), ("forward", "information"), ("bayes", "square_root")],
        itertools.product(STRENGTHS, SOLVERS),
    ),
)
def test_closed_form_with_a_prior_at_every_t(strength, solver):
    stream = reweighted(ragged_stream())
    learner = make(STRENGTHS[strength], solver)
    state, theta_0 = begun(learner)
    batches = [rows_of(stream, state, layer) for layer in range(2)]
    for t in range(9):
        X_next = stream.X[t + 1] if t < 8 else None
        weights = {"weight_t": stream.weight[t]}
        weights |= {"weight_next": stream.weight[t + 1]} if t < 8 else {}
        guess = learner.scores(state, stream.X[t])
        Y = rvfl_jax.one_hot(stream.y[t], 4)
        state, info = learner.step(state, stream.X[t], Y, X_next, **weights)
        used = stream.weight[t] > 0
        np.testing.assert_allclose(info.guess_scores[:, used], guess[:, used], atol=1e-9)
        assert info.healthy.all()
        assert (np.asarray(info.extras["residual"]) < 1e-9).all()
        for layer, D in enumerate(batches):
            upcoming = D[t + 1][0] if t < 8 else None
            k_next = float(info.extras["k_next"][layer])
            want = paper.closed_form_prior(D, LAMBDA, t + 1, k_next, upcoming, theta_0[layer])
            assert relative_error(state.theta[layer], want) <= tolerances.CLOSED_FORM


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_run_in_double_is_the_closed_form(solver):
    stream = reweighted(ragged_stream())
    learner = make(1.414, solver)
    state, theta_0 = begun(learner)
    X_after = blobs(5, seed=3)[0]
    test = blobs(40)
    run = rvfl_jax.run_stream(learner, stream, key=KEY, state=state, lookahead=X_after, test=test)
    for layer in range(2):
        D_after = references.features(state.W, X_after)[layer]
        batches = rows_of(stream, state, layer)
        want = paper.closed_form_prior(batches, LAMBDA, 9, 1.414, D_after, theta_0[layer])
        assert relative_error(run.state.theta[layer], want) <= tolerances.CLOSED_FORM
        ridge = paper.closed_form_prior(batches, LAMBDA, 9, 0.0, None, theta_0[layer])
        assert relative_error(run.state.theta_ridge[layer], ridge) <= tolerances.CLOSED_FORM
    # What follows the scores, the expert and the residual know of the prior too.
    scores = references.features(state.W, test[0]) @ np.asarray(run.state.theta)
    guess = references.softmax(scores).mean(axis=0).argmax(axis=1)
    columns = np.array([stream.classes.tolist().index(label) for label in test[1]])
    accuracy = run.history.accuracy["class_incremental"][-1]
    np.testing.assert_allclose(accuracy, np.mean(guess == columns), atol=tolerances.COUNTS)
    assert run.history.residual.max() < 1e-9


def test_algorithm_2_as_printed_minimises_equation_26_around_a_prior():
    stream = reweighted(ragged_stream())
    learner = make(rvfl_jax.adaptive_k(0.7, 0.2))
    state, theta_0 = begun(learner)
    batches = [rows_of(stream, state, layer) for layer in range(2)]
    slope = jax.grad(equations.recursive_objective)
    for t in range(8):
        Y = rvfl_jax.one_hot(stream.y[t], 4)
        weights = {"weight_t": stream.weight[t], "weight_next": stream.weight[t + 1]}
        after, info = learner.step(state, stream.X[t], Y, stream.X[t + 1], **weights)
        for layer, ((D, Y_t), (D_next, _)) in enumerate(b[t : t + 2] for b in batches):
            eta_t = equations.announced(state.eta_dagger[layer], D, info.extras["k_t"][layer])
            learned = state.theta[layer], eta_t
            strengths = info.extras["k_t"][layer], info.extras["k_next"][layer]
            steep = slope(after.theta[layer], learned, (D, Y_t), D_next, *strengths, theta_0[layer])
            scale = np.abs(D.T @ Y_t).max() + np.abs(np.linalg.inv(eta_t) @ theta_0[layer]).max()
            assert np.abs(steep).max() <= tolerances.CLOSED_FORM * scale
        state = after


def test_a_prior_may_be_traced():
    learner = make()
    state, theta_0 = begun(learner)
    fresh = state._replace(theta=0 * state.theta, theta_ridge=0 * state.theta, prior=None)
    jitted = jax.jit(rvfl_jax.with_prior)(fresh, theta_0)
    np.testing.assert_array_equal(jitted.theta, state.theta)
    np.testing.assert_allclose(jitted.sketch.moment, state.sketch.moment, atol=1e-12)


def test_algorithm_2_as_printed_begins_at_a_prior_in_every_solver():
    stream = reweighted(ragged_stream())
    thetas = []
    for solver in SOLVERS:
        learner = make(rvfl_jax.adaptive_k(0.7, 0.2), solver)
        run = rvfl_jax.run_stream(learner, stream, key=KEY, state=begun(learner)[0])
        thetas.append(run.state.theta)
    assert relative_error(thetas[1], thetas[0]) <= tolerances.CLOSED_FORM
    assert relative_error(thetas[2], thetas[0]) <= tolerances.CLOSED_FORM


def test_equation_20_steps_to_the_closed_form():
    rng = np.random.default_rng(0)
    batches = [(rng.normal(size=(4, 6)), np.eye(3)[rng.integers(3, size=4)]) for _ in range(5)]
    theta_0 = rng.normal(size=(6, 3))
    theta = theta_0
    eta_dagger = equations.initial_rate(LAMBDA, 6)
    for t, ((D, Y), (D_next, _)) in enumerate(pairwise(batches), start=1):
        eta_dagger = equations.absorbed(eta_dagger, D)
        eta = equations.announced(eta_dagger, D_next, 1.4)
        theta = equations.theta_with_prior(theta, eta, D, Y, D_next, 1.4, theta_0)
        want = paper.closed_form_prior(batches, LAMBDA, t, 1.4, D_next, theta_0)
        assert relative_error(theta, want) <= tolerances.CLOSED_FORM


@pytest.mark.slow
def test_what_adds_up_knows_the_prior_once():
    stream = ragged_stream()
    learner = make(1.0, "information")
    state, _ = begun(learner)
    halves = [
        stream._replace(X=stream.X[p], y=stream.y[p], weight=stream.weight[p], task=stream.task[p])
        for p in (slice(0, 4), slice(4, None))
    ]
    whole = rvfl_jax.run_stream(learner, stream, key=KEY, state=state).state
    parts = [rvfl_jax.run_stream(learner, half, key=KEY, state=state).state for half in halves]
    merged = rvfl_jax.merge_states(*parts, ridge=LAMBDA)
    assert relative_error(merged.theta, whole.theta) <= tolerances.CLOSED_FORM
    rows = halves[1].weight > 0
    Y = np.eye(4)[halves[1].y[rows]]
    left = rvfl_jax.unlearn_rows(whole, halves[1].X[rows], Y)
    assert relative_error(left.theta, parts[0].theta) <= tolerances.CLOSED_FORM
    later = rvfl_jax.run_stream(learner, stream, key=KEY, state=state, guesses=False).state
    assert relative_error(later.theta, whole.theta) <= tolerances.CLOSED_FORM
    other = make(1.0, "information", ridge=2.0)
    want = rvfl_jax.run_stream(other, stream, key=KEY, state=begun(other)[0]).state
    changed = rvfl_jax.with_ridge(whole, 2.0, ridge=LAMBDA)
    assert relative_error(changed.theta, want.theta) <= tolerances.CLOSED_FORM
    rows = stream.weight > 0
    fitted = learner.fit_offline(
        state, stream.X[rows], np.eye(4)[stream.y[rows]], np.ones(rows.sum())
    )
    assert relative_error(fitted.theta, whole.theta) <= tolerances.CLOSED_FORM
    with pytest.raises(ValueError, match="began at 0, got one with a prior"):
        rvfl_jax.generalised_cross_validation(whole, [0.1, 1.0], ridge=LAMBDA, num_rows=97)
    with pytest.raises(ValueError, match="prior readout of a"):
        rvfl_jax.merge_states(
            parts[0], rvfl_jax.run_stream(learner, halves[1], key=KEY).state, ridge=LAMBDA
        )


def test_a_prior_of_zeros_is_none(stream):
    learner = make()
    state = learner.init(KEY, 6, 4)
    zeros = rvfl_jax.with_prior(state, np.zeros((2, 15, 4)))
    got, want = (
        rvfl_jax.run_stream(learner, stream, key=KEY, state=s).state for s in (zeros, state)
    )
    assert relative_error(got.theta, want.theta) <= tolerances.REORDERED


def test_bad_priors(stream):
    learner = make()
    state = learner.init(KEY, 6, 4)
    with pytest.raises(ValueError, match=r"theta_0: expected shape \(2, 15, 4\)"):
        rvfl_jax.with_prior(state, np.zeros((15, 4)))
    with pytest.raises(ValueError, match="theta_0: expected finite"):
        rvfl_jax.with_prior(state, np.full((2, 15, 4), np.nan))
    learned = rvfl_jax.run_stream(learner, stream, key=KEY).state
    with pytest.raises(ValueError, match="expected one that has learned nothing, got one of 9"):
        rvfl_jax.with_prior(learned, np.zeros((2, 15, 4)))
