"""Rows of unknown classes: whose rows choose, and what is told of them."""

import json

import numpy as np
import pytest
from sklearn.metrics import roc_auc_score, roc_curve

from experiments import unknown
from experiments.results_file import ResultsFile
from rvfl_jax.estimators.novelty import NOVELTY_SCORES, OF_M
from tests.estimators.test_estimator import blobs

SMALL = unknown.Config(seeds=1, num_nodes=8)
X, Y = blobs(num_rows=1200, num_classes=12)


@pytest.fixture
def rows(monkeypatch):
    given = [X[:800], Y[:800], X[800:], Y[800:]]
    monkeypatch.setattr(unknown, "rows_of", lambda name: tuple(given))
    return given


def test_no_test_row_enters_the_choice(rows):
    found = unknown.choice(SMALL, "letter", 10)
    rows[2:] = [np.full_like(X, np.nan), np.full_like(Y, -1)]
    assert unknown.choice(SMALL, "letter", 10) == found
    split = unknown.split_to_choose("letter", 10)
    assert len(np.unique(split.y)) == 3
    # Of three more known classes no row is learned.
    assert len(split.others) == np.isin(rows[1], missing(split)).sum()


def missing(split):
    """The classes of known ones that are left out in the choice, drawn as there."""
    rng = np.random.default_rng(10)
    known, _ = unknown.halves(np.unique(Y), rng)
    others = np.setdiff1d(known, np.unique(split.y))
    assert len(others) == 3
    return others


def test_unknown_classes_are_never_learned(rows):
    split = unknown.split_of("letter", 0)
    known = np.unique(split.y)
    assert len(known) == 6
    assert len(split.known) == np.isin(rows[3], known).sum()
    assert len(split.known) + len(split.others) == len(rows[3])
    np.testing.assert_allclose(split.X.mean(axis=0), 0.0, atol=1e-12)


def test_the_share_passed_is_that_of_the_curve():
    rng = np.random.default_rng(0)
    known, others = rng.standard_normal(200), rng.standard_normal(300) + 1
    truth = np.r_[np.zeros(200), np.ones(300)]
    # Known rows that pass are those below; the curve counts unknown ones above.
    false, true, _ = roc_curve(truth, np.r_[known, others], drop_intermediate=False)
    assert unknown.passed(known, others) == pytest.approx(1 - true[false <= 0.05].max())


def test_records_and_tables_are_of_the_same_scores(rows, tmp_path):
    file = ResultsFile(tmp_path / "results.json", SMALL)
    unknown.measure(SMALL, file)
    unknown.tabulate(SMALL, file, tmp_path)
    record = file.records["scores | letter | seed 0"]
    split = unknown.split_of("letter", 0)
    model = unknown.model_of(SMALL, 0).fit(split.X, split.y)
    truth = np.r_[np.zeros(len(split.known)), np.ones(len(split.others))]
    for kind in NOVELTY_SCORES:
        found = np.concatenate([model.novelty(Z, kind=kind) for Z in (split.known, split.others)])
        assert record[kind]["auroc"] == pytest.approx(roc_auc_score(truth, found), abs=1e-3)
    text = (tmp_path / "table.md").read_text()
    assert f"| blended | {100 * record['blended']['auroc']:.1f} |" in text
    assert "class after class" in text


def test_the_library_blends_as_was_chosen():
    kept = json.loads((unknown.RESULTS / "unknown" / "results.json").read_text())["records"]
    mean = {
        share: np.mean([r[f"{share:g}"] for name, r in kept.items() if name.startswith("choice")])
        for share in unknown.SHARES
    }
    assert max(mean, key=mean.get) == pytest.approx(1 - OF_M["blended"])
