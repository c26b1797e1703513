"""Metrics against hand-made numbers and plain NumPy loops."""

import jax
import numpy as np
import pytest

from rvfl_jax import metrics
from rvfl_jax.learners.base import combiner
from tests import paper, tolerances

R = [[0.9, 0.1, 0.0], [0.6, 0.8, 0.2], [0.5, 0.7, 0.9]]


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def test_matrix_metrics():
    assert metrics.average_accuracy(R) == pytest.approx((0.5 + 0.7 + 0.9) / 3)
    assert metrics.backward_transfer(R) == pytest.approx((-0.4 - 0.1) / 2)
    assert metrics.forward_transfer(R, [0.9, 0.9, 0.95]) == pytest.approx((-0.1 - 0.05) / 2)


def test_forgetting():
    """Case 8."""
    got = metrics.forgetting([[0.9], [0.6, 0.8], [0.5, 0.7, 0.9]])
    assert np.isnan(got[0])
    np.testing.assert_allclose(got[1:], [0.30, 0.25])


def test_incremental_accuracy_weighs_tasks_by_their_rows():
    got = metrics.incremental_accuracy(R, [10, 30, 20])
    want = [0.9, (6 + 24) / 40, (5 + 21 + 18) / 60]
    np.testing.assert_allclose(got, want)


def test_one_task_has_no_transfer():
    assert np.isnan(metrics.backward_transfer([[0.5]]))
    assert np.isnan(metrics.forward_transfer([[0.5]], [0.6]))


@pytest.mark.parametrize("bad", [[[0.1, 0.2], [0.3]], [[0.1], [0.2, 0.3, 0.4]]])
def test_ragged_matrix_must_be_lower_triangular(bad):
    with pytest.raises(ValueError, match="R: expected"):
        metrics.average_accuracy(bad)


def test_forward_transfer_needs_one_expert_a_task():
    with pytest.raises(ValueError, match=r"R_ind: expected shape \(3,\)"):
        metrics.forward_transfer(R, [0.9, 0.9])


def test_cumulative_regret():
    assert metrics.cumulative_regret([1.0, -0.5, 2.0]).tolist() == [1.0, 0.5, 2.5]


def test_accuracy_for_many_learners_at_once():
    scores = np.array([[[0.1, 0.9], [0.8, 0.2]], [[0.6, 0.4], [0.7, 0.3]]])
    assert metrics.accuracy(scores, np.array([1, 1])).tolist() == [0.5, 0.0]


def test_protocols():
    probabilities = np.array(
        [
            [0.1, 0.2, 0.3, 0.4],  # true 2: right only within its task or among seen
            [0.6, 0.2, 0.1, 0.1],  # true 0: right everywhere
            [0.1, 0.2, 0.3, 0.4],  # true 3, not seen: right but for "seen"
            [0.5, 0.1, 0.3, 0.1],  # true 1: right in task only
        ]
    )
    hits = metrics.protocol_hits(
        probabilities,
        np.array([2, 0, 3, 1]),
        class_task=np.array([0, 0, 1, 1]),
        seen=np.array([True, True, True, False]),
    )
    assert hits["class_incremental"].tolist() == [False, True, True, False]
    assert hits["seen"].tolist() == [True, True, False, False]
    assert hits["task_aware"].tolist() == [False, True, True, False]
    assert hits["task_id"].tolist() == [True, True, True, True]


def test_regret_and_kl_by_hand():
    """Eqs. (34) and (35) for two sub-learners, two rows and three classes."""
    # Softmax of these is (1/2, 1/4, 1/4), (1/5, 3/5, 1/5); and (1/4, 1/4, 1/2), (1/5, 2/5, 2/5).
    scores = np.log([[[2.0, 1, 1], [1, 3, 1]], [[1.0, 1, 2], [1, 2, 2]]])
    targets = np.array([[1.0, 0, 0], [0, 1, 0]])
    # Sums over sub-learners: (3/4, 1/2, 3/4), (2/5, 1, 3/5); minus L Y, divided by L n = 4.
    want = ((5 / 4) ** 2 + (1 / 2) ** 2 + (3 / 4) ** 2 + (2 / 5) ** 2 + 1**2 + (3 / 5) ** 2) / 16
    np.testing.assert_allclose(metrics.regret(scores, targets), want, rtol=1e-6)
    np.testing.assert_allclose(paper.regret(scores, targets), want, rtol=tolerances.FORMULA)
    # Means are 3/8 and 1/2 for the true classes.
    want = -(np.log(3 / 8) + np.log(1 / 2)) / 2
    np.testing.assert_allclose(metrics.kl(scores, targets), want, rtol=1e-6)
    np.testing.assert_allclose(paper.kl(scores, targets), want, rtol=tolerances.FORMULA)


def test_regret_and_kl_are_those_of_the_transcription():
    rng = np.random.default_rng(0)
    scores, targets = rng.normal(size=(3, 7, 4)), np.eye(4)[rng.integers(4, size=7)]
    with jax.enable_x64(True):
        regret, kl = metrics.regret(scores, targets), metrics.kl(scores, targets)
    np.testing.assert_allclose(regret, paper.regret(scores, targets), rtol=tolerances.FORMULA)
    np.testing.assert_allclose(kl, paper.kl(scores, targets), rtol=tolerances.FORMULA)


def test_matrix_metrics_are_those_of_the_transcription():
    rng = np.random.default_rng(0)
    R, R_ind = rng.uniform(size=(4, 4)), rng.uniform(size=4)
    np.testing.assert_allclose(metrics.average_accuracy(R), paper.ACC(R))
    np.testing.assert_allclose(metrics.backward_transfer(R), paper.BWT(R))
    np.testing.assert_allclose(metrics.forward_transfer(R, R_ind), paper.FWT(R, R_ind))


def test_what_gets_better_is_forgotten_less_than_nothing():
    """The best accuracy so far is that of earlier tasks' ends, the present one left out."""
    np.testing.assert_allclose(
        metrics.forgetting([[0.5], [0.7, 0.9], [0.6, 0.95, 1.0]])[1:], [-0.2, 0.025]
    )


def test_excess_loss_divides_inside_the_norm():
    rng = np.random.default_rng(0)
    got, expert, targets = (rng.normal(size=(7, 3)) for _ in range(3))
    want = (((got - targets) / 7) ** 2).sum() - (((expert - targets) / 7) ** 2).sum()
    excess = metrics.excess_loss(got, expert, targets)
    np.testing.assert_allclose(excess, want, rtol=tolerances.FORMULA)


def test_kl_divergence():
    p = np.array([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    q = np.array([[0.25, 0.5, 0.25], [0.2, 0.3, 0.5]])
    np.testing.assert_allclose(
        metrics.kl_divergence(p, q), 0.5 * np.log(2) / 2, rtol=tolerances.FORMULA
    )
    assert float(metrics.kl_divergence(q, q)) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda R, F, Y: metrics.average_accuracy({"seen": R, "task_id": R}),
            r"R: expected the matrix of one protocol, such as R\['seen'\], got those of 2",
        ),
        (lambda R, F, Y: metrics.backward_transfer({}), "R: .* a run with a test set .*, got none"),
        (lambda R, F, Y: metrics.average_accuracy([]), "R: expected at least one task, got none"),
        (
            lambda R, F, Y: metrics.regret(F[0], Y),
            r"scores: expected shape \(L, n, m\), sub-learners first, got \(5, 3\); scores\[None\]",
        ),
        (lambda R, F, Y: metrics.kl(F[0], Y), r"scores: expected shape \(L, n, m\)"),
        (lambda R, F, Y: metrics.kl(F, Y[:4]), r"targets: expected shape \(5, 3\)"),
        (lambda R, F, Y: metrics.regret(F, Y.argmax(1)), r"targets: expected shape \(5, 3\)"),
        (lambda R, F, Y: metrics.excess_loss(F, F[0], Y), r"scores: expected shape \(5, 3\)"),
        (lambda R, F, Y: combiner("mean")(F[0]), r"scores: expected shape \(L, n, m\)"),
        (lambda R, F, Y: combiner("median")(F[0]), r"scores: expected shape \(L, n, m\)"),
    ],
)
def test_what_is_easily_mistaken_is_told(call, message):
    with pytest.raises(ValueError, match=message):
        call(np.eye(2), np.zeros((2, 5, 3)), np.eye(3)[[0, 1, 2, 0, 1]])
