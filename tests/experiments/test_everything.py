"""All experiments by one clock: resumed, failures told at the end, lanes filled longest first."""

import pytest

from experiments import everything
from experiments.results_file import ResultsFile
from experiments.settings import RESULTS


@pytest.fixture
def ran(monkeypatch):
    """What was run, in place of running it; "claims" fails."""
    names = []

    def timed(name, seeds, out, core):
        names.append((name, seeds))
        if name == "claims":
            raise RuntimeError(f"{name} ended with status 1")
        return 60.0 * seeds

    monkeypatch.setattr(everything, "timed", timed)
    return names


def test_lanes_are_filled_the_longest_first():
    assert everything.makespan([3.0, 1.0, 5.0, 2.0], 2) == 6.0
    assert everything.makespan([3.0, 1.0, 5.0, 2.0], 1) == 11.0
    assert everything.makespan([], 2) == 0.0


def test_what_the_clock_tells_of_is_not_run_again(ran, tmp_path):
    everything.run_all(["drift"], None, tmp_path, 1)
    everything.run_all(["drift", "unknown"], None, tmp_path, 1)
    assert ran == [("drift", 10), ("unknown", 3)]
    clock = everything.Clock(tmp_path)
    assert clock.times["unknown"]["seconds"] == 180.0
    assert clock.hours(2) == pytest.approx(600 / 3600)


def test_fewer_seeds_tell_what_all_take(ran, tmp_path):
    everything.run_all(["drift", "unknown"], 2, tmp_path, 2)
    assert sorted(ran) == [("drift", 2), ("unknown", 2)]
    assert everything.Clock(tmp_path).hours(1) == pytest.approx((120 * 5 + 120 * 1.5) / 3600)


def test_no_more_seeds_than_are_kept(ran, tmp_path):
    everything.run_all(["unknown"], 100, tmp_path, 1)
    assert ran == [("unknown", 3)]


def test_a_failure_is_told_when_the_rest_has_ended(ran, tmp_path):
    with pytest.raises(RuntimeError, match="1 of 2 experiments failed: claims ended with status 1"):
        everything.run_all(["claims", "drift"], 1, tmp_path, 1)
    assert list(everything.Clock(tmp_path).times) == ["drift"]


def test_every_experiment_with_kept_results_is_there():
    kept = {path.parent.name for path in RESULTS.glob("*/results.json")}
    assert {name for name in kept if "compared" not in name} == set(everything.EXPERIMENTS)


@pytest.mark.slow
def test_an_experiment_is_run_and_timed(tmp_path):
    seconds = everything.timed("drift", 1, tmp_path, everything.cores(1)[0])
    config = everything.import_module("experiments.drift").Config(seeds=1)
    made = ResultsFile(tmp_path / "drift" / "results.json", config)
    assert len(made.records) == 8
    assert seconds > sum(one["seconds"] for one in made.content["made"].values())
    assert "Rows after the change" in (tmp_path / "drift.log").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_failed_experiment_tells_its_last_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("RVFL_JAX_FEATURES", str(tmp_path / "nowhere"))
    with pytest.raises(RuntimeError, match=r"(?s)vit_table ended with status 1; .*nowhere"):
        everything.timed("vit_table", 1, tmp_path, everything.cores(1)[0])
