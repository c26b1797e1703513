"""Exact fits by sums on the host: learners' own answers, one choice for all seeds, the table."""

import shutil
from dataclasses import replace

import jax
import numpy as np
import pytest

import rvfl_jax
from experiments.compared import settings, widths
from experiments.compared.contenders import constant
from experiments.compared.settings import SETTINGS
from experiments.compared.spaces import CONFIGURATIONS
from experiments.results_file import ResultsFile
from experiments.settings import RESULTS
from rvfl_jax.learners.randumb import randumb
from rvfl_jax.learners.ranpac import ranpac
from tests import references, tolerances
from tests.experiments.test_compared import TOY, toy_case

KEY, SHAPE = jax.random.key(3), widths.Shape(num_nodes=24, num_features=5, num_classes=6)
POINT, RIDGE = {"gamma": 0.3}, 0.01
LEARNERS = {
    "-R": constant(0.0)(num_nodes=24, ridge=RIDGE),
    "ranpac": ranpac(num_nodes=24, ridge=RIDGE),
    "randumb": randumb(num_nodes=24, **POINT, ridge=RIDGE),
}


@pytest.fixture
def toy(monkeypatch):
    monkeypatch.setitem(settings.MAKERS, "toy", lambda setting, seed: toy_case(seed))
    settings.case_of.cache_clear()
    yield
    settings.case_of.cache_clear()


@pytest.mark.parametrize("name", widths.METHODS)
def test_sums_on_the_host_answer_as_the_learner_after_its_stream(name, monkeypatch):
    case = toy_case(0)
    # So that several blocks, the last one short, make the sums.
    monkeypatch.setattr(widths, "BLOCK_ROWS", 100)
    with jax.enable_x64(True):
        fitted = widths.learned(name, case.stream, KEY, SHAPE, POINT)
        weights, offsets = fitted.readout(fitted.sums, RIDGE)
        found = np.asarray(fitted.features(case.Z_test.astype(np.float64))) @ weights + offsets
        decided = list(fitted.decided(case.Z_test, [1e6, RIDGE]))
    run = rvfl_jax.run_stream(LEARNERS[name], case.stream, key=KEY, expert=None)
    with jax.enable_x64(True):
        own = np.asarray(LEARNERS[name].scores(run.state, case.Z_test.astype(np.float64)))
    own = own.reshape(-1, *own.shape[-2:])[0]
    assert references.relative_error(found, own) <= tolerances.CLOSED_FORM
    np.testing.assert_array_equal(decided[1], own.argmax(axis=1))
    assert not np.array_equal(decided[0], decided[1])


def test_a_class_without_rows_is_never_the_discriminants_answer():
    stream = toy_case(0).stream
    stream = stream._replace(weight=np.where(stream.y == 2, 0, stream.weight))
    with jax.enable_x64(True):
        fitted = widths.learned("randumb", stream, KEY, SHAPE, POINT)
        (decided,) = fitted.decided(stream.X[stream.y == 2], [RIDGE])
    assert fitted.sums.counts[2] == 0
    assert not (decided == 2).any()


def test_the_choice_sees_no_test_row_and_serves_all_seeds(toy, tmp_path, monkeypatch):
    chosen = widths.choose("ranpac", TOY, 24, {})
    assert chosen["held-out accuracy"][0] != chosen["held-out accuracy"][-1]
    monkeypatch.setitem(
        settings.MAKERS,
        "toy",
        lambda setting, seed: replace(toy_case(seed), Z_test=np.full((60, 5), np.nan)),
    )
    settings.case_of.cache_clear()
    assert widths.choose("ranpac", TOY, 24, {}) == chosen
    settings.case_of.cache_clear()
    monkeypatch.setitem(settings.MAKERS, "toy", lambda setting, seed: toy_case(seed))
    file = ResultsFile(tmp_path / "file.json", TOY)
    for seed in range(2):
        widths._measure_one("ranpac", file, TOY, 24, seed, {})
    assert list(file.records) == ["N=24 | choice", "N=24 | seed 0", "N=24 | seed 1"]
    record = file.records["N=24 | seed 1"]
    assert record["ACC"] == pytest.approx(np.mean(record["tasks"]))
    assert 1 / 6 < record["ACC"] <= 1


@pytest.mark.parametrize("name", ["d10"])
def test_the_table_kept_is_that_of_the_records_kept(name, tmp_path):
    kept = RESULTS / f"compared_{name}"
    shutil.copytree(kept, tmp_path / kept.name)
    folder = tmp_path / kept.name / "widths"
    widths.tabulate(SETTINGS[name], seeds=3, count=CONFIGURATIONS, out=tmp_path)
    for part in ("table.md", "table.csv"):
        assert (folder / part).read_bytes() == (kept / "widths" / part).read_bytes(), part
    assert "10,000" in (folder / "table.md").read_text(encoding="utf-8")
