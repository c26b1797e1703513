"""What the guides tell of several labels and of drift, on few rows."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from experiments import drift, several_labels


def test_unions_hold_their_classes():
    y = several_labels.with_unions(np.arange(10))
    assert (y[:, :10] == np.eye(10)).all()
    assert y[:, 10:].sum(axis=0).tolist() == [4, 3, 3, 2]
    assert y[7].nonzero()[0].tolist() == [7, 12]


def test_the_bound_is_the_best_threshold_of_all():
    rng = np.random.default_rng(0)
    # Many rows share a score.
    scores, y = rng.integers(0, 6, (60, 3)) / 5, rng.integers(0, 2, (60, 3))
    y[:, 2] = 0
    found = several_labels.best_thresholds(scores, y)
    for label in range(2):
        every = [f1_score(y[:, label], scores[:, label] >= at) for at in np.unique(scores)]
        got = f1_score(y[:, label], scores[:, label] >= found[label])
        assert got == pytest.approx(max(every))


def test_chosen_thresholds_lie_below_the_bound(tmp_path):
    config = several_labels.Config(seeds=1, drawn_rows=400)
    found = several_labels.accuracy(config, several_labels.DRAWN, 0)
    bound = found.pop(several_labels.BEST)["macro F1"]
    assert len(found) == 2 * len(several_labels.CHOSEN)
    in_batches = {name: one["macro F1"] for name, one in found.items() if "batches" in name}
    assert max(in_batches.values()) <= bound
    assert in_batches["f1, in batches"] > in_batches["0.5, in batches"]


def test_classes_change_places_in_the_middle():
    X, y = drift.stream_of("change", 400, 3)
    same_X, same_y = drift.stream_of("none", 400, 3)
    assert (same_X == X).all()
    assert (y[:200] == same_y[:200]).all()
    assert (y[200:] == 1 - same_y[200:]).all()
    sides = same_X @ (same_X[same_y == 1].mean(axis=0) - same_X[same_y == 0].mean(axis=0))
    assert np.mean((sides > 0) == same_y) == pytest.approx(drift.BEST, abs=0.06)


def test_what_forgets_guesses_better_after_a_change(tmp_path):
    config = drift.Config(seeds=1, rows=600)
    drift.main(config, tmp_path)
    table = (tmp_path / "table.md").read_text()
    right = {line.split(" | ")[0][2:]: line.split(" | ")[1] for line in table.splitlines()[2:6]}
    assert float(right["0.99"]) > float(right["1.0"]) + 10
    assert float(right["chosen"]) > float(right["1.0"])
