"""A run records what it depends on."""

import json

import jax
import numpy as np

import rvfl_jax
from rvfl_jax.provenance import fingerprint


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
    assert "activation=tanh" in learner.description
    assert "AdaptiveK(kappa=1.0, sigma=1e-05" in learner.description
    seen = []

    def traced(k):
        seen.append(rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=k).description)
        return k

    jax.make_jaxpr(traced)(1.0)
    assert "k=traced" in seen[0]
