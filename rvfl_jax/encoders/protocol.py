"""On what an encoder is fitted, and what that tells a learner about the test set."""

import warnings
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from rvfl_jax.core.checks import one_of, positive_int, prng_key
from rvfl_jax.core.types import Array, Stream
from rvfl_jax.core.words import in_brief
from rvfl_jax.encoders.encoder import ROWS_AT_ONCE, Encoder, Params, encode

PROTOCOLS = ("frozen", "refit_per_task")
FITTED_ON = ("first_batch", "first_task", "training_inputs")


class LeakWarning(UserWarning):
    """Test features that depend on which test rows come together."""


@in_brief
class EncodedStream(NamedTuple):
    """A stream of features, and how test rows become features.

    Attributes:
        stream: the same rows, classes and tasks; X holds features, 0 in padding.
        encode_test: `(n, s) -> (n, width)`. Under "refit_per_task" the rows handed over
            together are the ones the encoder is fitted on.
        params: of the frozen encoder; None where there is none.
        protocol: "frozen" or "refit_per_task".
        fitted_on: what the frozen encoder saw, in words; for records.
    """

    stream: Stream
    encode_test: Callable[[Any], np.ndarray]
    params: Params
    protocol: str
    fitted_on: str


def encode_stream(
    encoder: Encoder,
    stream: Stream,
    *,
    key: Array,
    protocol: Literal["frozen", "refit_per_task"] = "frozen",
    fit_on: Literal["first_batch", "first_task", "training_inputs"] = "first_batch",
    max_rows: int | None = None,
    rows_at_once: int = ROWS_AT_ONCE,
) -> EncodedStream:
    """Put an encoder in front of a stream.

    "frozen" fits the encoder once, before the stream begins, on training inputs without
    their labels: those of the first batch, which a task-free learner has at hand; of the
    first task, which needs to know where it ends; or of the whole training set, as if
    unlabelled data of all tasks had been there before.

    "refit_per_task" is how the public code behind the paper's Fashion-MNIST figures goes: the
    encoder is fitted anew on the rows of each task, and *at test time on each task's test rows
    as well*. Features of a test row then depend on the rows that come with it and betray its
    task; it is there to place published figures, and warns.

    Args:
        encoder: what to fit.
        stream: raw rows.
        key: PRNG key of the encoder's draws.
        protocol: "frozen" or "refit_per_task".
        fit_on: what a frozen encoder is fitted on: "first_batch", "first_task" or
            "training_inputs".
        max_rows: fit on at most so many of them, drawn by the key; all when None.
        rows_at_once: see `encode`.

    Raises:
        ValueError: on unknown names or unusable rows.
    """
    prng_key("key", key)
    one_of("protocol", protocol, PROTOCOLS)
    one_of("fit_on", fit_on, FITTED_ON)
    used = stream.weight > 0
    if protocol == "refit_per_task":
        warnings.warn(
            "refit_per_task fits the encoder on test rows, task by task: accuracies tell what"
            " task a row comes from as much as what the learner knows",
            LeakWarning,
            stacklevel=2,
        )

        def encode_group(X: Any) -> np.ndarray:
            return encode(encoder, encoder.fit(key, X), X, rows_at_once=rows_at_once)

        parts = [(rows, encode_group(stream.X[rows])) for rows in _rows_of_tasks(stream, used)]
        width = parts[0][1].shape[1]
        Z = np.zeros((*stream.X.shape[:2], width), np.float32)
        for rows, features in parts:
            Z[rows] = features
        return EncodedStream(stream._replace(X=Z), encode_group, None, protocol, "each task")
    X, fitted_on = _fitting_rows(stream, used, fit_on)
    if max_rows is not None and positive_int("max_rows", max_rows) < len(X):
        chosen = jax.random.choice(jax.random.fold_in(key, 1), len(X), (max_rows,), replace=False)
        X, fitted_on = X[np.asarray(chosen)], f"{max_rows} rows of {fitted_on}"
    params = encoder.fit(key, X)

    def encode_test(X: Any) -> np.ndarray:
        return encode(encoder, params, X, rows_at_once=rows_at_once)

    features = encode_test(stream.X[used])
    Z = np.zeros((*stream.X.shape[:2], features.shape[1]), np.float32)
    Z[used] = features
    return EncodedStream(stream._replace(X=Z), encode_test, params, protocol, fitted_on)


def _rows_of_tasks(stream: Stream, used: np.ndarray) -> list[np.ndarray]:
    """(T, b) truth values of the rows of each task, by the task of their class."""
    task = stream.class_task[stream.y]
    return [used & (task == q) for q in range(stream.num_tasks)]


def _fitting_rows(stream: Stream, used: np.ndarray, fit_on: str) -> tuple[np.ndarray, str]:
    if fit_on == "first_batch":
        return stream.X[0][used[0]], f"the first batch ({int(used[0].sum())} rows)"
    if fit_on == "first_task":
        first = used & (stream.task == stream.task[0])[:, None]
        return stream.X[first], f"the first task ({int(first.sum())} rows)"
    return stream.X[used], f"all training inputs ({int(used.sum())} rows)"
