"""Deferred decisions against decisions at every batch."""

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.runs.deferred import plan_blocks
from tests import references, tolerances
from tests.amounts import slow_but
from tests.compilations import counted_compilations
from tests.streams import blobs, ragged_stream, reweighted


def run(stream, *, guesses, k=1.0, evaluate="task", solver="information", **options):
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=9, ridge=0.3, k=k, solver=solver)
    return rvfl_jax.run_stream(
        learner,
        stream,
        key=jax.random.key(0),
        test=blobs(40, seed=3),
        evaluate=evaluate,
        guesses=guesses,
        **options,
    )


EACH = [(k, at, ahead) for k in (0.0, 1.414) for at in ("batch", "task", 4) for ahead in (0, 3)]
FEW = [(0.0, "task", 0), (1.414, 4, 3), (1.414, "batch", 0)]


@pytest.mark.parametrize(
    ("k", "evaluate", "rows_ahead"),
    slow_but(FEW, EACH),
)
def test_deferred_decisions_equal_decisions_at_every_batch(k, evaluate, rows_ahead):
    lookahead = np.ones((rows_ahead, 6)) if rows_ahead else None
    stream = reweighted(ragged_stream())
    at_once = run(stream, guesses=True, k=k, evaluate=evaluate, lookahead=lookahead)
    later = run(stream, guesses=False, k=k, evaluate=evaluate, lookahead=lookahead)
    for name in ("theta", "theta_ridge", "eta_dagger", "eta", "k"):
        want, got = getattr(at_once.state, name), getattr(later.state, name)
        np.testing.assert_allclose(got, want, rtol=0, atol=tolerances.CLOSED_FORM)
    assert later.state.num_learned == at_once.state.num_learned
    for protocol, want in at_once.history.accuracy.items():
        np.testing.assert_allclose(later.history.accuracy[protocol], want)
    for name in ("regret", "kl", "excess_loss", "kl_from_expert"):
        got, want = (getattr(one.history, name) for one in (later, at_once))
        np.testing.assert_allclose(got, want, atol=1e-9)
    np.testing.assert_array_equal(later.history.evaluated, at_once.history.evaluated)
    np.testing.assert_array_equal(later.history.rows, at_once.history.rows)
    assert np.isnan(later.history.prequential_accuracy).all()
    assert later.history.healthy.all()


@pytest.mark.slow
def test_going_on_from_a_state():
    stream = ragged_stream()
    whole = run(stream, guesses=False)
    half = [
        s._replace(X=s.X[p], y=s.y[p], weight=s.weight[p], task=s.task[p])
        for s in [stream]
        for p in (slice(0, 4), slice(4, None))
    ]
    first = run(half[0], guesses=False, evaluate="never")
    second = run(half[1], guesses=False, evaluate="never", state=first.state)
    error = references.relative_error(second.state.theta, whole.state.theta)
    assert error <= tolerances.CLOSED_FORM


def test_a_second_run_compiles_nothing():
    stream = ragged_stream()
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=9, ridge=0.3, k=0.0, solver="information")
    go = lambda: rvfl_jax.run_stream(  # noqa: E731
        learner, stream, key=jax.random.key(0), guesses=False
    )
    go()
    with counted_compilations() as made:
        go()
    assert not made


def test_blocks_cross_no_decision_and_leave_nothing_out():
    columns = np.zeros(37, int)
    columns[[4, 5, 20, 36]] = [1, 2, 2, 3]
    plan = plan_blocks(columns, 37, batch_rows=200)
    indices = plan.batches[plan.batches < 37]
    np.testing.assert_array_equal(indices, np.arange(37))
    assert plan.batches.shape[1] == 6
    np.testing.assert_array_equal(plan.last[plan.decide], [4, 5, 20, 36])
    np.testing.assert_array_equal(plan.columns[plan.decide], [1, 2, 2, 3])
    for row, last in zip(plan.batches, plan.last, strict=True):
        assert row[row < 37].max() == last


def test_failure_is_told_where_a_decision_was_wanted():
    stream = ragged_stream()
    huge = stream._replace(X=1e200 * np.ones_like(stream.X))
    with pytest.raises(rvfl_jax.NumericalError, match="batch"):
        run(huge, guesses=False, expert=None)
