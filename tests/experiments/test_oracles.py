"""ER, DER++ and EWC beside other codes: what both sides are given, and the table kept."""

import json
import shutil
import sys
from collections import Counter
from itertools import pairwise

import jax
import numpy as np
import pytest

from experiments import fashion_mnist as fm
from experiments.compared import oracles
from experiments.results_file import ResultsFile
from experiments.settings import RESULTS
from rvfl_jax.data import Dataset
from tests.streams import blobs

TINY = oracles.Config(
    seeds=1, batch=4, rows=80, hidden=(8, 8), memories=(12,), drawn=4, coefficient=1.0, window=8
)
# A peer that answers each job with what it was asked; its first line tells of versions.
ECHO = """
import json, sys
print(json.dumps({"echo": 1}), flush=True)
for line in sys.stdin:
    print(json.dumps({"job": json.loads(line)}), flush=True)
"""


@pytest.fixture
def tiny_rows(monkeypatch):
    X, y = blobs(100, features=5, classes=10)
    X = X.astype(np.float32)
    data = Dataset("tiny", X[:80], y[:80], X[80:], y[80:])
    monkeypatch.setattr(fm, "fashion_mnist", lambda: data)


@pytest.mark.slow
def test_our_half_runs_without_peers(tiny_rows, tmp_path):
    oracles.main(TINY, tmp_path)
    records = json.loads((tmp_path / "results.json").read_text())["records"]
    assert {name.split(" | ")[0] for name in records} == set(oracles.methods_of(TINY))
    assert all(name.split(" | ")[1] == oracles.OURS for name in records)
    for record in records.values():
        assert np.shape(record["R"]) == (5, 5)
        assert np.isfinite(record["R"]).all()
    assert records["EWC, lambda 1 | ours | seed 0"]["importance"] > 0


def test_what_is_drawn_is_drawn_by_the_seed_alone(tiny_rows):
    case = oracles.case_of(TINY, 0)
    once, again = (oracles.run_ours("ER, 12 rows", TINY, case, 0)["R"] for _ in range(2))
    np.testing.assert_array_equal(once, again)


def test_a_batch_must_divide_the_rows_of_a_task(tiny_rows):
    with pytest.raises(ValueError, match="divisor of the rows of a task, got 5"):
        oracles.case_of(oracles.Config(batch=5, rows=80), 0)


def _echoing_peers(script=ECHO):
    peers = oracles.Peers(None, None)
    peers.commands["avalanche"] = [sys.executable, "-c", script]
    return peers


def test_peers_are_given_our_stream_and_parameters(tiny_rows, tmp_path):
    case = oracles.case_of(TINY, 0)
    files = oracles.Files(TINY, 0, tmp_path, lambda: case)
    name = "EWC, lambda 1"
    peers = _echoing_peers()
    answers = [peers.ask("avalanche", files.job(name) | {"single_rows": True}) for _ in range(2)]
    peers.close()
    assert answers[0] == answers[1]
    assert answers[0]["peer"] == {"echo": 1}
    job = answers[0]["job"]
    assert job["coefficient"] == TINY.coefficient
    assert job["single_rows"]
    with np.load(job["stream"]) as stream:
        np.testing.assert_array_equal(stream["X"], case.stream.X)
        np.testing.assert_array_equal(stream["y"], case.stream.y)
        np.testing.assert_array_equal(stream["y_test"], case.columns)
        # Two classes a task, each its own.
        pairs = set(zip(stream["task"].repeat(4), stream["y"].ravel(), strict=True))
        assert Counter(task for task, _ in pairs) == dict.fromkeys(range(5), 2)
    state = oracles.start_of(name, TINY, case, 0)
    with np.load(job["start"]) as start:
        assert len(start.files) == 6
        kernel = state.params["params"]["Dense_1"]["kernel"]
        np.testing.assert_array_equal(start["kernel_1"], kernel)


def test_a_peer_that_ends_is_an_error():
    with pytest.raises(RuntimeError, match="avalanche: its process ended with 3"):
        _echoing_peers("raise SystemExit(3)").ask("avalanche", {})


@pytest.mark.slow
def test_a_peers_network_is_ours(tiny_rows, tmp_path):
    torch = pytest.importorskip("torch")
    from experiments.compared import oracles_peer

    case = oracles.case_of(TINY, 0)
    job = oracles.Files(TINY, 0, tmp_path, lambda: case).job("fine-tuning")
    sizes, layers = (5, *TINY.hidden, 10), []
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    net = oracles_peer.begin_at(torch.nn.Sequential(*layers[:-1]), job["start"])
    learner = oracles.learner_of("fine-tuning", TINY)
    state = learner.init(jax.random.key(0), 5, 10)
    theirs = oracles_peer.case_in(job["stream"])
    np.testing.assert_allclose(
        net(theirs.X_test).detach().numpy(), learner.scores(state, case.Z_test), atol=1e-5
    )
    clock = oracles_peer.Clock(net, theirs)
    clock.evaluated()
    right = np.argmax(learner.scores(state, case.Z_test), axis=1) == case.columns
    task = case.stream.class_task[case.columns]
    np.testing.assert_allclose(clock.R[0], [right[task == q].mean() for q in range(5)])


def _record(accuracy):
    return {"R": np.full((5, 5), accuracy), "seconds": 1.0}


@pytest.mark.parametrize(("apart", "verdict"), [(0.019, "yes"), (0.021, "no"), (-0.021, "no")])
def test_the_bar_is_two_points_of_the_mean(tmp_path, apart, verdict):
    config = oracles.Config(seeds=2, memories=(200,))
    file = ResultsFile(tmp_path / "results.json", config)
    for seed, noise in enumerate((0.01, -0.01)):
        for side, accuracy in (("ours", 0.5 + apart + noise), ("Mammoth, Er", 0.5)):
            place = f"ER, 200 rows | {side} | seed {seed}"
            file.once(place, _record, accuracy)
    # A seed that one side alone has does not count.
    file.once("ER, 200 rows | ours | seed 2", _record, 0.0)
    (row,) = oracles.rows_of(oracles.Config(seeds=3, memories=(200,)), file)
    cells = dict(zip(oracles.HEADINGS, row, strict=True))
    assert cells["within 2 points"] == verdict
    assert cells["difference, points"] == f"{100 * apart:.2f} ± 1.41"
    assert cells["seeds"] == "2"
    missing = oracles.missing_from(oracles.Config(seeds=3, memories=(200,)), file)
    assert "ER, 200 rows beside Mammoth, Er: 2 of 3 seeds" in missing
    assert "DER++, 200 rows beside Mammoth, Derpp: 0 of 3 seeds" in missing


def test_the_table_kept_is_that_of_the_results_kept(tmp_path):
    kept = RESULTS / "compared_oracles"
    shutil.copy(kept / "results.json", tmp_path)
    config = oracles.Config(
        seeds=json.loads((kept / "results.json").read_text())["config"]["seeds"]
    )
    file = ResultsFile(tmp_path / "results.json", config)
    assert file.records, "the configuration kept is the one of today"
    oracles.tabulate(config, file, tmp_path)
    for name in ("table.md", "table.csv"):
        assert (tmp_path / name).read_bytes() == (kept / name).read_bytes(), name
