"""Several devices and several processes give what one device gives."""

import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import rvfl_jax
from tests import tolerances
from tests.references import relative_error
from tests.streams import blobs, environment, ragged_stream

ROOT = Path(__file__).parents[2]
FEW = "--xla_backend_optimization_level=0"


def started(script, *arguments, devices):
    flags = f"{FEW} --xla_force_host_platform_device_count={devices}"
    return subprocess.Popen(
        [sys.executable, "-m", f"tests.runs.{script}", *map(str, arguments)],
        cwd=ROOT,
        env=environment() | {"XLA_FLAGS": flags},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


@pytest.mark.slow
def test_eight_devices_equal_one():
    process = started("on_eight_devices", devices=8)
    output, _ = process.communicate(timeout=560)
    assert process.returncode == 0, output
    assert "largest array sent" in output


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [tmp_path / f"process{number}.npz" for number in range(2)]
    processes = [
        started("in_two_processes", port, number, files[number], devices=2) for number in range(2)
    ]
    outputs = [process.communicate(timeout=560)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    stream, test, key = ragged_stream(), blobs(50), jax.random.key(0)

    def make(k=1.0, ridge=0.5, solver="auto"):
        return rvfl_jax.edrvfl(num_layers=2, num_nodes=10, ridge=ridge, k=k, solver=solver)

    grid = {"ridge": [0.1, 1.0], "k": np.linspace(0, 2, 6)}
    expected = {"sweep": rvfl_jax.sweep(make, stream, grid, key=key).loss}
    for layout, solver in (("rows", "information"), ("eta_dagger", "covariance")):
        run = rvfl_jax.run_stream(make(solver=solver), stream, key=key, test=test)
        expected[f"{layout}_theta"] = run.state.theta
        expected[f"{layout}_eta_dagger"] = run.state.eta_dagger
        expected[f"{layout}_loss"] = run.history.prequential_loss
        expected[f"{layout}_regret"] = run.history.cumulative_regret
    for file in files:
        found = np.load(file)
        assert set(found) == set(expected)
        for name, value in expected.items():
            assert relative_error(found[name], value) <= tolerances.SHARDED, name
