"""Run by test_devices in a process of its own, with eight virtual devices."""

import re
import sys

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

import rvfl_jax
from tests import tolerances
from tests.references import relative_error
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
STREAM, TEST = ragged_stream(), blobs(50)
# Batches of two rows, of which a block holds four.
SMALL = ragged_stream(97, 49)
GRID = {"ridge": [0.1, 1.0], "k": np.linspace(0, 2, 11)}


def make(k=1.0, ridge=0.5, solver="auto"):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=10, ridge=ridge, k=k, solver=solver)


def check_runs(mesh):
    kinds = [
        ("rows", "information", 1.0),
        ("rows", "information", rvfl_jax.adaptive_k(sigma=0.1)),
        ("rows", "covariance", 0.0),
        ("eta_dagger", "covariance", 1.0),
        ("eta_dagger", "covariance", rvfl_jax.adaptive_k(sigma=0.1)),
        ("eta_dagger", "blocked", rvfl_jax.adaptive_k(sigma=0.1)),
    ]
    for layout, solver, k in kinds:
        learner = make(k, solver=solver)
        stream = SMALL if solver == "blocked" else STREAM
        one = rvfl_jax.run_stream(learner, stream, key=KEY, test=TEST)
        many = rvfl_jax.run_stream(learner, stream, key=KEY, test=TEST, mesh=mesh, layout=layout)
        for name in ("W", "theta", "eta_dagger", "eta", "theta_ridge"):
            got, expected = getattr(many.state, name), getattr(one.state, name)
            assert relative_error(got, expected) <= tolerances.SHARDED, (layout, name)
        for name in ("prequential_loss", "cumulative_regret", "kl", "excess_loss", "k_next"):
            got, expected = getattr(many.history, name), getattr(one.history, name)
            if not expected.any():
                assert not got.any()
                continue
            assert relative_error(got, expected) <= tolerances.SHARDED, (layout, name)
        parts = many.state.eta_dagger.addressable_shards
        assert len(parts) == 8
        rows = 16 // (8 if layout == "eta_dagger" else 1)
        assert all(part.data.shape == (2, rows, 16) for part in parts)
        print(layout, solver, "agree")


def check_going_on(mesh):
    learner = make(solver="information")
    halves = [
        STREAM._replace(X=STREAM.X[cut], y=STREAM.y[cut], weight=STREAM.weight[cut])
        for cut in (slice(0, 5), slice(5, None))
    ]
    first = rvfl_jax.run_stream(learner, halves[0]._replace(task=STREAM.task[:5]), key=KEY)
    rest = halves[1]._replace(task=STREAM.task[5:])
    alone = rvfl_jax.run_stream(learner, rest, key=KEY, state=first.state)
    shared = rvfl_jax.run_stream(learner, rest, key=KEY, state=first.state, mesh=mesh)
    assert relative_error(shared.state.theta, alone.state.theta) <= tolerances.SHARDED
    asked = rvfl_jax.run_stream(learner, STREAM, key=KEY, test=TEST, guesses=False)
    together = rvfl_jax.run_stream(learner, STREAM, key=KEY, test=TEST, guesses=False, mesh=mesh)
    assert relative_error(together.state.theta, asked.state.theta) <= tolerances.SHARDED
    print("going on and on request agree")


def check_sweep(mesh):
    one = rvfl_jax.sweep(make, STREAM, GRID, key=KEY, test=TEST)
    for grid in (GRID, GRID | {"ridge": [1.0]}):
        many = rvfl_jax.sweep(make, STREAM, grid, key=KEY, test=TEST, mesh=mesh)
        expected = one.loss[-len(grid["ridge"]) :]
        assert relative_error(many.loss, expected) <= tolerances.SHARDED
        assert many.shape == expected.shape[:2]
    print("sweeps agree")


def check_errors(mesh):
    odd = rvfl_jax.edrvfl(num_layers=1, num_nodes=11, ridge=0.5, k=1.0)
    for learner, options, message in (
        (odd, {"layout": "eta_dagger"}, "expected d = N + s to be a multiple of the 8 devices"),
        (make(), {"layout": "columns"}, "layout: expected one of rows, eta_dagger"),
        (make(), {"chunk_size": 2}, "mesh: expected no chunk_size"),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            rvfl_jax.run_stream(learner, STREAM, key=KEY, mesh=mesh, **options)
    print("errors are told")


def check_communication(mesh):
    """In the layout eta_dagger no d x d matrix travels."""
    from rvfl_jax.runs.scan import run_whole
    from rvfl_jax.runs.sharding import _over_mesh, init_over_mesh, place_batches
    from rvfl_jax.streams.batches import Batches

    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=314, ridge=1.0, k=1.0, solver="covariance")
    state = init_over_mesh(mesh, "eta_dagger", learner, KEY, 6, 4)
    batches = place_batches(Batches(STREAM.X, STREAM.y, STREAM.weight), mesh, "eta_dagger")
    program = _over_mesh.lower(
        run_whole,
        mesh,
        "eta_dagger",
        learner,
        (("num_steps", 9),),
        (state, np.zeros(4, bool), batches),
        {},
    )
    moved = []
    for line in program.compile().as_text().splitlines():
        found = re.search(r"= (.*?) (all-reduce|all-gather|all-to-all|collective-permute)\(", line)
        if found and "while/body" in line:
            shapes = re.findall(r"f\d+\[([\d,]+)\]", found.group(1))
            moved += [int(np.prod([int(n) for n in shape.split(",")])) for shape in shapes]
    assert moved
    assert max(moved) <= STREAM.X.shape[1] * 320, sorted(moved)[-5:]
    print("largest array sent in a step:", max(moved), "numbers, d x d are", 320 * 320)


if __name__ == "__main__":
    assert jax.device_count() == 8
    flat = Mesh(np.array(jax.devices()), ("devices",))
    check_runs(flat)
    check_going_on(jax.make_mesh((2, 4), ("hosts", "chips")))
    check_sweep(flat)
    check_sweep(jax.make_mesh((2, 4), ("hosts", "chips")))
    check_errors(flat)
    check_communication(flat)
    sys.exit(0)
