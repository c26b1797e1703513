"""Two transcriptions of the paper, made by two who saw neither the package nor each other."""

import numpy as np
import pytest

from tests import paper, paper_again, tolerances
from tests.references import relative_error

LAMBDA = 0.4


def batches(num_batches=7, rows=4, width=6, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    return [
        (rng.normal(size=(rows, width)), np.eye(classes)[rng.integers(classes, size=rows)])
        for _ in range(num_batches)
    ]


def walked(algorithm, stream, last):
    for t, (D, Y) in enumerate(stream):
        algorithm.step(D, Y, stream[t + 1][0] if t + 1 < len(stream) else last)
        yield algorithm


def agree(algorithm, step, *strengths):
    for name in ("theta", "eta_dagger", "eta"):
        assert relative_error(getattr(algorithm, name), step[name]) <= tolerances.CLOSED_FORM
    for name in strengths:
        np.testing.assert_allclose(getattr(algorithm, name), step[name], rtol=1e-9)


@pytest.mark.parametrize("announced", [True, False], ids=["announced", "alone"])
@pytest.mark.parametrize("exact", [False, True], ids=["printed", "exact"])
@pytest.mark.parametrize("k", [0.0, 1.0, 1.414])
def test_algorithm_1(k, exact, announced):
    *stream, (last, _) = batches()
    last = last if announced else None
    again = walked(paper_again.AlgorithmOne(6, 3, LAMBDA, k, exact_start=exact), stream, last)
    steps = paper.algorithm_1(stream, LAMBDA, k, X_last=last, literal_start=not exact)
    for t, (algorithm, step) in enumerate(zip(again, steps, strict=True)):
        agree(algorithm, step)
        upcoming = stream[t + 1][0] if t + 1 < len(stream) else last
        want = paper.closed_form(stream, LAMBDA, t + 1, k, upcoming, not exact)
        assert relative_error(step["theta"], want) <= tolerances.CLOSED_FORM


@pytest.mark.parametrize("estimator", ["inverse_trace", "trace", "random_pick"])
@pytest.mark.parametrize("exact", [False, True], ids=["printed", "exact"])
def test_algorithm_2(exact, estimator):
    *stream, (last, _) = batches()

    def pick(t, which, rows):
        return (t + (which == "next")) % rows

    again = walked(
        paper_again.AlgorithmTwo(
            6, 3, LAMBDA, 0.8, 0.1, estimator=estimator, pick=pick, exact_start=exact
        ),
        stream,
        last,
    )
    options = {"D_last": last, "literal_start": not exact, "estimator": estimator, "pick": pick}
    steps = paper.algorithm_2(stream, LAMBDA, 0.8, 0.1, **options)
    taught = paper.pseudo_targets(stream, steps)
    for t, (algorithm, step) in enumerate(zip(again, steps, strict=True)):
        agree(algorithm, step, "k_t", "k_next")
        upcoming = stream[t + 1][0] if t + 1 < len(stream) else last
        want = paper.closed_form_targets(
            stream, LAMBDA, t + 1, step["k_next"], upcoming, not exact, taught
        )
        assert relative_error(step["theta"], want) <= tolerances.CLOSED_FORM
    reused = paper.algorithm_2_reusing(stream, LAMBDA, 0.8, 0.1, **options)
    assert relative_error(steps[-1]["theta"], reused[-1]["theta"]) > 1e-3, "they are two"
