"""Run twice by test_devices, once as each of two processes of one JAX program."""

import sys

import jax

jax.config.update("jax_cpu_collectives_implementation", "gloo")

import numpy as np
from jax.sharding import Mesh

import rvfl_jax
from rvfl_jax.core.portable import fetch
from tests.streams import blobs, ragged_stream


def main(port, number, out):
    jax.distributed.initialize(f"127.0.0.1:{port}", num_processes=2, process_id=number)
    assert jax.device_count() == 4
    assert len(jax.local_devices()) == 2
    mesh = Mesh(np.array(jax.devices()), ("devices",))
    stream, test, key = ragged_stream(), blobs(50), jax.random.key(0)

    def make(k=1.0, ridge=0.5, solver="auto"):
        return rvfl_jax.edrvfl(num_layers=2, num_nodes=10, ridge=ridge, k=k, solver=solver)

    found = {}
    for layout, solver in (("rows", "information"), ("eta_dagger", "covariance")):
        run = rvfl_jax.run_stream(
            make(solver=solver), stream, key=key, test=test, mesh=mesh, layout=layout
        )
        found[f"{layout}_theta"] = fetch(run.state.theta)
        found[f"{layout}_eta_dagger"] = fetch(run.state.eta_dagger)
        found[f"{layout}_loss"] = run.history.prequential_loss
        found[f"{layout}_regret"] = run.history.cumulative_regret
    grid = {"ridge": [0.1, 1.0], "k": np.linspace(0, 2, 6)}
    found["sweep"] = rvfl_jax.sweep(make, stream, grid, key=key, mesh=mesh).loss
    np.savez(out, **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
