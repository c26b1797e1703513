"""Ray on this machine with two workers, in a process of its own."""

import json
import re
import subprocess
import sys

import pytest

import rvfl_jax
from tests import tolerances
from tests.streams import environment

pytest.importorskip("ray.data")

CODE = """
import os, signal, sys, warnings
from pathlib import Path
import numpy as np
import pandas as pd
import ray
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, Sums
from rvfl_jax.distributed import fit_ray, sum_ray
from tests.distributed.tables import MODEL, NAMES, fitted, partitions, table
from tests.estimators.test_estimator import SMALL

ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
import pyarrow
tables = [pyarrow.Table.from_pandas(part, preserve_index=False) for part in partitions()]
folder = Path(sys.argv[1])
rows, want = table(), fitted()


def far(model):
    found, scores = model.decision_function(rows[NAMES]), want.decision_function(rows[NAMES])
    return np.abs(found - scores).max() / np.abs(scores).max()


def summed(tables, **options):
    return sum_ray(ray.data.from_arrow(tables), MODEL, "label", weight="weight", **options)


with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    plain = summed(tables)
assert any("1 came more than once, with 109 rows" in str(each.message) for each in caught)
assert plain.rows == 240 and len(plain.ledger) == 4, plain
assert far(plain.finish()) < 1e-9

model = fit_ray(ray.data.from_arrow(tables[:5]), MODEL, "label", weight="weight")
assert far(model) < 1e-9 and model.feature_names_in_.tolist() == NAMES

# A worker that embeds, and is killed once for each of two partitions.
def embed(columns):
    for turn in ("first", "second"):
        try:
            (folder / turn).open("x").close()
        except FileExistsError:
            continue
        os.kill(os.getpid(), signal.SIGKILL)
    return np.column_stack([columns[name] for name in NAMES])

killed = summed(tables[:5], embed=embed)
assert (folder / "second").exists()
np.testing.assert_array_equal(killed.gram, plain.gram)
for label, moment in plain.moments.items():
    np.testing.assert_array_equal(killed.moments[label], moment)

# Stopped by a fault of its last partition, and gone on with.
bad = tables[4].set_column(0, "x0", pyarrow.array([float("nan")] * len(tables[4])))
kept = folder / "kept"
try:
    summed([*tables[:3], bad], folder=kept)
except Exception as error:
    assert "NaN" in str(error), error
else:
    raise AssertionError("expected the fault of the data to be told")
assert 1 <= len(list(kept.rglob("*.npz"))) <= 3
again = summed(tables[:5], folder=kept)
np.testing.assert_array_equal(again.gram, plain.gram)
on = summed(tables[:5], start=summed(tables[:2]))
assert on.ledger == plain.ledger and far(on.finish()) < 1e-9

# Nothing at all, and a regressor with vectors.
assert summed(tables[3:4]).rows == 0
vectors = ray.data.from_items(
    [{"v": row, "label": float(row[0])} for row in rows[NAMES].to_numpy()], override_num_blocks=3
)
found = fit_ray(vectors, EdRVFLRegressor(**SMALL), "label").predict(rows[NAMES].to_numpy())
X = rows[NAMES].to_numpy()
one = EdRVFLRegressor(**SMALL).fit(X, X[:, 0]).predict(X)
assert np.abs(found - one).max() < 1e-9 * np.abs(one).max()
ray.shutdown()
print("done")
"""


# Without a word of this package: what Ray needs of a machine.
STARTS = """
import ray
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
print(ray.get(ray.remote(lambda: "up").remote()))
"""


def run(*words, timeout=600):
    # With tokens Ray leaves one in the home of the user.
    own = environment() | {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=own,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )


@pytest.fixture(scope="module", autouse=True)
def _ray_starts_here():
    try:
        started = run("-c", STARTS, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("Ray does not start on this machine within two minutes")
    if started.returncode or "up" not in started.stdout:
        pytest.skip(f"Ray does not start on this machine: {started.stderr[-300:]}")


@pytest.mark.slow
def test_a_dataset_becomes_one_fit(tmp_path):
    done = run("-c", CODE, tmp_path)
    assert done.returncode == 0, done.stderr[-6000:]
    assert done.stdout.endswith("done\n")


@pytest.mark.slow
def test_the_measurement_of_many_machines(tmp_path):
    words = ("-m", "experiments.benchmarks.many_machines", "--out", tmp_path)
    done = run(*words, "--rows", 4000, "--nodes", 24)
    assert done.returncode == 0, done.stderr[-6000:]
    jobs = json.loads((tmp_path / "many_machines.json").read_text())["jobs"]
    assert jobs.keys() == {"plain", "worker killed", "partition twice", "gone on"}
    for job in jobs.values():
        assert job["rows_counted"] == 4000
        assert job["largest_relative_difference"] < tolerances.MACHINES
    assert jobs["worker killed"]["bits_of_plain"]
    assert jobs["partition twice"]["bits_of_plain"]
    assert len(jobs["partition twice"]["warning"]) == 1


@pytest.mark.slow
def test_the_guide_runs_as_printed():
    (example,) = re.findall(r"```python\n(.*?)```", rvfl_jax.distributed.__doc__, flags=re.DOTALL)
    done = run("-c", example)
    assert done.returncode == 0, done.stderr[-6000:]
    rows, score = done.stdout.split()
    assert rows == "1797"
    assert float(score) > 0.95
