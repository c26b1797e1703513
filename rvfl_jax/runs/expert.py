"""The offline expert of a run: the same random features, and the whole stream at once."""

from typing import Any

import jax
import numpy as np

from rvfl_jax.core.checks import NumericalError, prng_key
from rvfl_jax.core.portable import fetch
from rvfl_jax.core.types import Array, Learner, Precision, State, Stream
from rvfl_jax.learners.base import LearnerProgram
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.metrics import by_learner
from rvfl_jax.runs.failure import REMEDY
from rvfl_jax.runs.inputs import capacity_of, check_features, check_learner
from rvfl_jax.runs.scan import init_state
from rvfl_jax.streams.batches import Batches
from rvfl_jax.streams.class_incremental import check_stream


def _scores_of_the_expert(
    learner: Learner, state: State, batches: Batches, X_test: Array, num_classes: int
) -> Array:
    X = batches.X.reshape(-1, batches.X.shape[-1])
    Y = jax.nn.one_hot(batches.y.reshape(-1), num_classes)
    assert learner.fit_offline is not None
    fitted = learner.fit_offline(state, X, Y, batches.weight.reshape(-1))
    return by_learner(learner.scores(fitted, X_test))


_offline_scores = LearnerProgram(_scores_of_the_expert, static_argnames="num_classes")


def offline_scores(
    learner: Learner,
    stream: Stream,
    X_test: Any,
    *,
    key: Array,
    num_classes: int | None = None,
    precision: Precision = "double",
) -> np.ndarray:
    """(L, n, m) test scores of the expert that learns the whole stream at once, eq. (5).

    The expert has the random features that `learner.init(key, ...)` draws, so it is the
    reference of every run with that key and network, whatever its k, that began from no prior.

    Args:
        learner: the method; its numbers but lambda and the network do not matter.
        stream: from `class_incremental_stream` or built by hand.
        X_test: (n, s).
        key: PRNG key of the random features.
        num_classes: m, the designed capacity; the classes of the stream when None.
        precision: "double" or "single".

    Raises:
        ValueError: if the method has no offline counterpart, or on unusable data.
    """
    check_learner(learner)
    prng_key("key", key)
    if learner.fit_offline is None:
        raise ValueError("learner: expected one with fit_offline, got one without")
    check_stream(stream)
    X_test = check_features("X_test", X_test, stream.X.shape[-1])
    m = capacity_of(num_classes, stream.classes)
    with precision_scope(precision):
        state = init_state(learner, key, stream.X.shape[-1], m)
        scores = reference_scores(learner, state, stream, X_test, m)
    assert scores is not None
    return scores


def reference_scores(
    learner: Learner, state: State, stream: Stream, X_test: np.ndarray, num_classes: int
) -> np.ndarray | None:
    """(L, n, m) test scores of the expert with the features of a state; None without one."""
    if learner.fit_offline is None:
        return None
    batches = Batches(stream.X, stream.y, stream.weight)
    return _finite_scores(_offline_scores(learner, state, batches, X_test, num_classes))


def _finite_scores(scores: Array) -> np.ndarray:
    fetched = fetch(scores)
    if not np.isfinite(fetched).all():
        raise NumericalError(
            f"offline expert: the factorisation failed or a value overflowed. Remedy: {REMEDY}."
        )
    return fetched
