"""Kept records are held against new ones number by number."""

import dataclasses
import json
from types import SimpleNamespace

import pytest

from experiments import verify


@dataclasses.dataclass(frozen=True)
class Config:
    """Of an experiment."""

    seeds: int = 2
    rows: int = 5


def experiment(shift=0.0):
    """One whose records are numbers of their seed; `shift` is what today's code does otherwise."""

    def measure(config, file):
        for seed in range(config.seeds):
            file.once(f"seed {seed}", lambda s=seed: {"ACC": 0.5 + s + shift, "seconds": shift})

    return SimpleNamespace(__name__="experiments.one", Config=Config, measure=measure)


@pytest.fixture
def kept(tmp_path):
    file = verify.ResultsFile(tmp_path / "results.json", Config(seeds=3))
    experiment().measure(Config(seeds=3), file)
    return json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))


def test_the_same_code_gives_the_same_records(kept):
    anew = verify.made_anew(experiment(), kept, ["seed 1"])
    assert anew == {"seed 1": {"ACC": 1.5, "seconds": 0.0}}
    assert verify.differences(kept["records"]["seed 1"], anew["seed 1"]) == {}


def test_other_code_is_told_and_what_a_clock_says_is_not(kept):
    anew = verify.made_anew(experiment(shift=0.25), kept, ["seed 2"])
    assert verify.differences(kept["records"]["seed 2"], anew["seed 2"]) == {"ACC": 0.1}


def test_fields_that_came_or_went_differ():
    assert verify.differences({"a": 1, "b": [1, 2]}, {"b": [1, 2, 3]}) == {
        "a": float("inf"),
        "b": float("inf"),
    }


def test_another_protocol_is_refused(kept):
    with pytest.raises(ValueError, match="expected the kept configuration"):
        verify.made_anew(experiment(), kept | {"config": {"seeds": 3, "rows": 6}}, ["seed 1"])


def test_only_records_that_tell_a_short_time_are_drawn(kept):
    kept["made"]["seed 0"]["seconds"] = 1e6
    del kept["made"]["seed 1"]
    assert verify.draw(kept, count=5, longest=60.0, seed=0, only="") == ["seed 2"]
    assert verify.draw(kept, count=5, longest=60.0, seed=0, only="seed 1") == []
