"""ACIL is -R on its features; GACL and F-OAL are ACIL; DS-AL is its second stream beside ACIL."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import one_hot, run_stream
from rvfl_jax.learners.acil import acil
from rvfl_jax.learners.dsal import dsal
from rvfl_jax.learners.foal import foal
from rvfl_jax.learners.gacl import gacl
from tests import tolerances
from tests.amounts import slow_but
from tests.learners.test_means import scores_of, up_to
from tests.references import relative_error
from tests.streams import blobs, ragged_stream, reweighted

KEY = jax.random.key(0)
NODES = 12
TEST = blobs(60, seed=3)[0]


def relu(Z):
    return np.maximum(Z, 0)


def sigmoid(Z):
    return 1 / (1 + np.exp(-Z))


@pytest.mark.parametrize("t", slow_but([9], [2, 5, 9]))
@pytest.mark.parametrize("solver", ["covariance", "information"])
def test_acil_is_r_on_the_same_features(t, solver):
    """-R whose hidden weights are 0 learns its inputs, which here are ACIL's features."""
    part, _, _ = up_to(reweighted(ragged_stream()), t)
    state = run_stream(acil(num_nodes=NODES, ridge=0.1), part, key=KEY).state
    W = np.asarray(state.W)
    lifted = part._replace(X=relu(part.X.astype(float) @ W))
    r = rvfl_jax.edrvfl(num_layers=1, num_nodes=3, ridge=0.1, k=0.0, solver=solver)
    with jax.enable_x64(True):
        began = r.init(KEY, NODES, 4)
        began = began._replace(W=0 * began.W)
    theta = np.asarray(run_stream(r, lifted, key=KEY, state=began).state.theta)
    assert not theta[0, :3].any()
    assert relative_error(state.readout.theta, theta[0, 3:]) < tolerances.CLOSED_FORM
    # Control: another lambda is another readout.
    other = run_stream(acil(num_nodes=NODES, ridge=0.2), part, key=KEY).state.readout.theta
    assert relative_error(other, theta[0, 3:]) > 1e-4


@pytest.mark.parametrize("num_batches", [2, 4, 9])
@pytest.mark.parametrize(
    ("learner", "g", "ridge"),
    [
        (acil(num_nodes=NODES), relu, 0.1),
        (gacl(num_nodes=NODES), relu, 100.0),
        (foal(num_nodes=NODES), sigmoid, 1.0),
    ],
)
def test_all_three_are_the_joint_ridge_in_any_batches(learner, g, ridge, num_batches):
    """Of two batches each has more rows than there are nodes, of nine some have fewer."""
    stream = reweighted(ragged_stream(num_batches=num_batches))
    used = stream.weight > 0
    X, y, weight = stream.X[used].astype(float), stream.y[used], stream.weight[used]
    state = run_stream(learner, stream, key=KEY).state
    D = g(X @ np.asarray(state.W))
    A = (weight[:, None] * D).T @ D + ridge * np.eye(NODES)
    want = np.linalg.solve(A, (weight[:, None] * D).T @ np.eye(4)[y])
    assert relative_error(state.readout.theta, want) < tolerances.CLOSED_FORM
    got = scores_of(learner, state, TEST)
    assert relative_error(got, g(TEST @ np.asarray(state.W)) @ want) < tolerances.CLOSED_FORM
    with jax.enable_x64(True):
        fresh = learner.init(KEY, 6, 4)
        offline = learner.fit_offline(fresh, X, one_hot(y, 4), weight)
    assert relative_error(offline.readout.theta, want) < tolerances.CLOSED_FORM


def test_gacl_is_acil_by_another_name():
    stream = ragged_stream()
    one = run_stream(gacl(num_nodes=NODES, ridge=0.1), stream, key=KEY).state
    other = run_stream(acil(num_nodes=NODES, ridge=0.1), stream, key=KEY).state
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_the_split_of_targets_by_gacl_is_the_same_recursion():
    """Its two terms, for classes met before and new ones, from batches that mix both."""
    X, y = blobs(60)
    order = np.concatenate([np.flatnonzero(y < 2)[:15], np.arange(60)])
    state = acil(num_nodes=NODES, ridge=0.1)
    with jax.enable_x64(True):
        carried = state.init(KEY, 6, 4)
    W = np.asarray(carried.W)
    eta, theta, met = np.eye(NODES) / 0.1, np.zeros((NODES, 4)), np.zeros(4, bool)
    for rows in (order[:15], order[15:40], order[40:]):
        D, Y = relu(X[rows] @ W), np.eye(4)[y[rows]]
        eta = np.linalg.inv(np.linalg.inv(eta) + D.T @ D)
        before, exposed = np.where(met, theta, 0), np.where(met, Y, 0)
        theta = before - eta @ D.T @ (D @ before) + eta @ D.T @ exposed
        theta = theta + eta @ D.T @ (Y - exposed)
        met |= Y.any(axis=0)
        with jax.enable_x64(True):
            carried, _ = state.step(carried, X[rows], one_hot(y[rows], 4))
    assert relative_error(carried.readout.theta, theta) < tolerances.CLOSED_FORM


# --- DS-AL ------------------------------------------------------------------------------------


def dual_stream(W, batches, ridge, compensation_ridge, *, cleansed=True, early=False):
    """Both readouts, as the source has them, of batches (X, Y)."""
    nodes, m = W.shape[1], batches[0][1].shape[1]
    R, R_c = np.eye(nodes) / ridge, np.eye(nodes) / compensation_ridge
    theta, theta_c = np.zeros((nodes, m)), np.zeros((nodes, m))
    for X, Y in batches:
        D, C = relu(X @ W), np.tanh(X @ W)
        before = theta
        R = R - R @ D.T @ np.linalg.inv(np.eye(len(D)) + D @ R @ D.T) @ D @ R
        theta = theta + R @ D.T @ (Y - D @ theta)
        left_over = Y - D @ (before if early else theta)
        if cleansed:
            left_over[:, ~Y.any(axis=0)] = 0
        R_c = R_c - R_c @ C.T @ np.linalg.inv(np.eye(len(C)) + C @ R_c @ C.T) @ C @ R_c
        theta_c = theta_c + R_c @ C.T @ (left_over - C @ theta_c)
    return theta, theta_c


def batches_of(stream):
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        used = weight > 0
        yield X[used].astype(float), np.eye(4)[y[used]]


@pytest.mark.parametrize("num_batches", [2, 9])
def test_dsal_is_its_transcription(num_batches):
    stream = ragged_stream(num_batches=num_batches)
    learner = dsal(num_nodes=NODES, ridge=0.1, compensation_ridge=0.5, compensation=0.7)
    state = run_stream(learner, stream, key=KEY).state
    W, batches = np.asarray(state.W), [*batches_of(stream)]
    theta, theta_c = dual_stream(W, batches, 0.1, 0.5)
    assert relative_error(state.main.theta, theta) < tolerances.CLOSED_FORM
    assert relative_error(state.compensation.theta, theta_c) < tolerances.CLOSED_FORM
    want = relu(TEST @ W) @ theta + 0.7 * np.tanh(TEST @ W) @ theta_c
    assert relative_error(scores_of(learner, state, TEST), want) < tolerances.CLOSED_FORM
    # Controls: previous labels kept, and residuals of the readout before the batch.
    for fault in ({"cleansed": False}, {"early": True}):
        assert relative_error(dual_stream(W, batches, 0.1, 0.5, **fault)[1], theta_c) > 1e-3


def test_cleansed_columns_are_those_of_the_classes_before_where_batches_are_phases():
    """One batch a task of new classes: what the source cuts by the number of new classes."""
    stream = ragged_stream(num_batches=2)
    seen = np.zeros(4, bool)
    for _, Y in batches_of(stream):
        assert not (seen & Y.any(axis=0)).any()
        seen |= Y.any(axis=0)


def test_without_compensation_it_is_acil():
    stream = ragged_stream()
    learner = dsal(num_nodes=NODES, compensation=0.0)
    both = run_stream(learner, stream, key=KEY).state
    alone = run_stream(acil(num_nodes=NODES), stream, key=KEY).state
    np.testing.assert_array_equal(both.W, alone.W)
    np.testing.assert_array_equal(both.main.theta, alone.readout.theta)
    want = scores_of(acil(num_nodes=NODES), alone, TEST)
    np.testing.assert_array_equal(scores_of(learner, both, TEST), want)
    # Control: with some the answers move.
    assert relative_error(scores_of(dsal(num_nodes=NODES), both, TEST), want) > 1e-3


@pytest.mark.parametrize(
    ("make", "options", "message"),
    [
        (acil, {"num_nodes": 0}, "num_nodes: "),
        (acil, {"ridge": 0.0}, "ridge: "),
        (acil, {"activation": "step"}, "activation: expected one of relu"),
        (gacl, {"weight_scale": 0.0}, "weight_scale: "),
        (foal, {"ridge": -1.0}, "ridge: "),
        (dsal, {"num_nodes": 1.5}, "num_nodes: "),
        (dsal, {"ridge": 0.0}, "ridge: "),
        (dsal, {"compensation_ridge": 0.0}, "compensation_ridge: "),
        (dsal, {"compensation": -0.1}, "compensation: "),
    ],
)
def test_options_out_of_range(make, options, message):
    with pytest.raises(ValueError, match=message):
        make(**options)
