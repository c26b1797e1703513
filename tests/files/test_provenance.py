"""A run records what it depends on."""

import json

import jax
import numpy as np

import rvfl_jax
from rvfl_jax.files.provenance import fingerprint


def test_a_run_records_what_it_depends_on(stream, learner):
    record = rvfl_jax.run_stream(learner, stream, key=jax.random.key(7)).history.provenance
    assert json.loads(json.dumps(record)) == record
    assert record["learner"].startswith("edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0")
    assert record["key"] == {"impl": "threefry2x32", "data": [0, 7]}
    assert record["versions"]["jax"] == jax.__version__
    assert record["precision"] == "double"
    assert record["device"]["platform"] == "cpu"
    assert record["data"] == [fingerprint(stream)]
    raw = rvfl_jax.run_stream(learner, stream, key=jax.random.PRNGKey(7)).history.provenance
    assert raw["key"] == {"impl": "raw", "data": [0, 7]}


def test_the_fingerprint_sees_every_change(stream):
    prints = {fingerprint(stream), fingerprint(stream._replace(X=stream.X.copy()))}
    assert len(prints) == 1
    moved = stream.X.copy()
    moved[-1, 0, 0] += 1e-6
    changes = [
        {"X": moved},
        {"X": stream.X.astype(np.float32)},
        {"X": stream.X[::-1]},
        {"y": stream.y + 1},
        {"weight": stream.weight * 2},
    ]
    prints |= {fingerprint(stream._replace(**change)) for change in changes}
    assert len(prints) == 1 + len(changes)


def test_descriptions_name_arrays_and_functions():
    learner = rvfl_jax.edrvfl(
        num_layers=2, num_nodes=4, ridge=[0.1, 0.2], k=rvfl_jax.adaptive_k(), activation=np.tanh
    )
    assert "ridge=[0.1, 0.2]" in learner.description
    assert "tanh" in learner.description
    assert "AdaptiveK(kappa=1.0, sigma=1e-05" in learner.description
    # Of what learns otherwise than it did, so that no checkpoint of before is gone on with.
    assert learner.description.endswith("form=2)")
    seen = []

    def traced(k):
        seen.append(rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=k).description)
        return k

    jax.make_jaxpr(traced)(1.0)
    assert "k=traced" in seen[0]


def test_two_runs_that_differ_differ_in_what_they_record(stream, learner):
    key = jax.random.key(0)
    state = rvfl_jax.run_stream(learner, stream, key=key).state
    runs = [
        {},
        {"state": state},
        {"lookahead": stream.X[0, :3]},
        {"num_classes": 6},
        {"guesses": False},
        {"precision": "single"},
        {"key": jax.random.key(1)},
    ]
    records = [
        rvfl_jax.run_stream(learner, stream, **({"key": key} | options)).history.provenance
        for options in runs
    ]
    assert len({hash(record) for record in records}) == len(runs)
    again = rvfl_jax.run_stream(learner, stream, key=key, state=state).history.provenance
    assert again == records[1]


def test_functions_of_equal_names_are_told_apart_by_where_they_are():
    one, two = (
        rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=1.0, activation=g).description
        for g in (_first(), _second())
    )
    assert one != two


def _first():
    return lambda x: x


def _second():
    return lambda x: 2 * x


def test_a_sweep_records_its_grid(stream):
    def make(k, activation):
        return rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=k, activation=activation)

    grid = {"k": [0.0, 1.0], "activation": ["relu", jax.numpy.tanh]}
    record = rvfl_jax.sweep(make, stream, grid, key=jax.random.key(0)).provenance
    assert json.loads(json.dumps(record)) == record
    assert record["grid"]["k"] == [0.0, 1.0]
    assert record["grid"]["activation"][0] == "relu"
