"""Merging and unlearning states of `edrvfl`, against runs over the rows that are left."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import NumericalError, adaptive_k, merge_states, run_stream, unlearn_rows
from rvfl_jax.learners.edrvfl.algebra import grown_state
from rvfl_jax.linalg.precision import precision_scope
from tests.amounts import slow_but
from tests.streams import ragged_stream
from tests.tolerances import CLOSED_FORM

KEY = jax.random.key(0)
VARIANTS = [
    {"k": 0.0},
    {"k": 1.5},
    {"k": 0.0, "solver": "square_root"},
    {"k": adaptive_k(reuse_k=True)},
]


def learner_of(**options):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=np.array([0.5, 0.8]), **options)


def halves(stream):
    """Two streams of the same classes, and the point where they part."""
    half = stream.num_batches // 2
    parts = (slice(None, half), slice(half, None))
    return [
        stream._replace(X=stream.X[p], y=stream.y[p], weight=stream.weight[p], task=stream.task[p])
        for p in parts
    ]


def close(a, b):
    for name in ("theta", "theta_ridge", "eta_dagger", "eta"):
        got, expected = (np.asarray(getattr(state, name)) for state in (a, b))
        atol = CLOSED_FORM * np.abs(expected).max()
        np.testing.assert_allclose(got, expected, rtol=0, atol=atol, err_msg=name)


@pytest.mark.parametrize("options", slow_but(VARIANTS[1:2] + VARIANTS[3:], VARIANTS), ids=str)
def test_merged_states_are_those_of_one_run(options):
    stream, learner = ragged_stream(), learner_of(**options)
    whole = run_stream(learner, stream, key=KEY).state
    a, b = (run_stream(learner, part, key=KEY).state for part in halves(stream))
    merged = merge_states(a, b, ridge=np.array([0.5, 0.8]))
    close(merged, whole)
    assert int(merged.num_learned) == int(whole.num_learned)
    on = run_stream(learner, stream, key=KEY, state=merged).state
    close(on, run_stream(learner, stream, key=KEY, state=whole).state)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
def test_unlearned_states_never_saw_the_rows(options):
    stream, learner = ragged_stream(), learner_of(**options)
    first, second = halves(stream)
    state = run_stream(learner, stream, key=KEY).state
    Y = np.eye(len(stream.classes))[second.y.reshape(-1)]
    X = second.X.reshape(-1, second.X.shape[-1]).astype(float)
    weight = second.weight.reshape(-1)
    X[weight == 0] = np.nan  # padding may hold anything
    left = unlearn_rows(state, X, Y, weight=weight)
    close(left, run_stream(learner, first, key=KEY).state)


def test_states_of_other_networks_do_not_merge():
    stream, learner = ragged_stream(), learner_of(k=0.0)
    a = run_stream(learner, stream, key=KEY).state
    b = run_stream(learner, stream, key=jax.random.key(1)).state
    with pytest.raises(ValueError, match="random weights W of a"):
        merge_states(a, b, ridge=np.array([0.5, 0.8]))
    with pytest.raises(ValueError, match="ridge: expected finite and greater than 0"):
        merge_states(a, a, ridge=0.0)
    with pytest.raises(ValueError, match=r"ridge: expected that of the state, \[.*\], got 0.5"):
        merge_states(a, a, ridge=0.5)


def test_rows_are_unlearned_with_the_activation_that_learned_them():
    stream = ragged_stream()
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=0.0, activation="tanh")
    state = run_stream(learner, stream, key=KEY).state
    rows = stream.X[0], np.eye(4)[stream.y[0]]
    with pytest.raises(ValueError, match="activation: expected 'relu', got 'tanh'"):
        unlearn_rows(state, *rows)
    left = unlearn_rows(state, *rows, activation="tanh", weight=stream.weight[0])
    assert left.activation == "tanh"


def test_rows_never_learned_cannot_be_unlearned():
    stream, learner = ragged_stream(), learner_of(k=0.0)
    state = run_stream(learner, stream, key=KEY).state
    m, s = len(stream.classes), stream.X.shape[-1]
    with pytest.raises(NumericalError, match="not positive definite"):
        unlearn_rows(state, 100 * np.ones((3, s)), np.eye(m)[[0, 1, 1]])
    with pytest.raises(ValueError, match="Y: expected shape"):
        unlearn_rows(state, np.ones((3, s)), np.eye(m)[[0, 1]])


def test_grown_states_are_those_of_a_larger_capacity():
    stream, learner = ragged_stream(), learner_of(k=1.0)
    m = len(stream.classes)
    small = run_stream(learner, stream, key=KEY).state
    large = run_stream(learner, stream, key=KEY, num_classes=m + 5).state
    with precision_scope("double"):
        grown = grown_state(small, m + 5)
    close(grown, large)
    assert grown.sketch.moment.shape == large.sketch.moment.shape
