"""Files that were written before names changed are read, and go on."""

from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import rvfl_jax
from rvfl_jax.files.checkpoint import load_checkpoint_file, restore
from tests import tolerances
from tests.references import relative_error
from tests.streams import ragged_stream

FORMER = Path(__file__).parent / "former"
KEY = jax.random.key(0)


class Stands(NamedTuple):
    carry: Any


def test_a_classifier_with_a_held_batch():
    """Two batches of a stream with k = 1, scaled, weighted, with a class declared."""
    model = rvfl_jax.load_model(FORMER)
    with np.load(FORMER / "answers.npz") as file:
        X, y, before, after = (file[name] for name in ("X", "y", "before", "after"))
    assert model.classes_.tolist() == ["cat", "cow", "dog", "hen"]
    assert model.num_rows_seen_ == 30
    np.testing.assert_allclose(model.predict_proba(X), before, atol=tolerances.CLOSED_FORM)
    model.partial_fit(X[30:], y[30:])
    # The readout is the same; rows are guessed by another one now, which moves the power alone.
    met = after.min(axis=0) > 0
    (logs, known) = (np.log(p[:, met]) for p in (model.predict_proba(X), after))
    (logs, known) = (each - each.mean(axis=1, keepdims=True) for each in (logs, known))
    power = np.sum(logs * known) / np.sum(known**2)
    assert 0.8 < power < 1.25
    np.testing.assert_allclose(logs, power * known, atol=tolerances.CLOSED_FORM)


def test_the_carry_of_a_run():
    """Four batches of -kF-Bayes, the fifth announced."""
    stream = ragged_stream()
    learner = rvfl_jax.edrvfl(
        num_layers=2,
        num_nodes=3,
        ridge=0.5,
        k=rvfl_jax.adaptive_k(sigma=0.1),
        solver="covariance",
    )
    found = load_checkpoint_file(FORMER / "run.npz")
    arrays = {name: array for name, array in found.arrays.items() if name.startswith(".carry.")}
    with jax.enable_x64(True):
        state = learner.init(KEY, stream.X.shape[-1], len(stream.classes))
        like = Stands(learner.stream.begin(state, stream.X[0], stream.weight[0]))
        carry = restore(found._replace(arrays=arrays), like).carry
        state = learner.stream.finish(jax.tree.map(jax.numpy.asarray, carry))
    first = stream._replace(
        X=stream.X[:4], y=stream.y[:4], weight=stream.weight[:4], task=stream.task[:4]
    )
    want = rvfl_jax.run_stream(learner, first, key=KEY).state
    assert int(state.num_learned) == 4
    for name in ("theta_ridge", "eta_dagger"):
        got = getattr(state, name)
        assert relative_error(got, getattr(want, name)) <= tolerances.CLOSED_FORM
