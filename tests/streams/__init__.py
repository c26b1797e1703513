"""Small streams, and what else several tests share."""

import os

import numpy as np

import rvfl_jax


def environment():
    """The environment of a process that runs as a user's would."""
    return {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}


def blobs(rows=97, features=6, classes=4, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(rows) % classes
    centres = rng.normal(size=(classes, features))
    return centres[y] + rng.normal(size=(rows, features)), y


def ragged_stream(rows=97, num_batches=9, **options):
    """Batches of unequal length, so that most of them are padded."""
    X, y = blobs(rows)
    return rvfl_jax.class_incremental_stream(
        X, y, num_tasks=2, num_batches=num_batches, seed=1, **options
    )


def reweighted(stream, seed=0):
    """The same stream with row weights between 0.5 and 2, padding kept."""
    draw = np.random.default_rng(seed).uniform(0.5, 2.0, stream.weight.shape)
    return stream._replace(weight=np.where(stream.weight > 0, draw, 0.0))


def weighted_batches(stream, D_of, layer):
    """[(sqrt(w) D, sqrt(w) Y)] of one sub-learner, padding removed."""
    m = len(stream.classes)
    batches = []
    for X, y, w in zip(stream.X, stream.y, stream.weight, strict=True):
        rows = w > 0
        root = np.sqrt(w[rows])[:, None]
        batches.append((root * D_of(X[rows])[layer], root * np.eye(m)[y[rows]]))
    return batches
