"""Run by test_serving in a process of its own: writes predictors and what their models say.

A second process then serves them without rvfl_jax; this one runs as a user's would.
"""

import sys
from pathlib import Path

import jax
import numpy as np

import rvfl_jax
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.serving.export import export_learner, export_model
from tests.streams import blobs, ragged_stream

ROWS = (1, 7, 64, 300)
OPTIONS = {"num_layers": 2, "num_nodes": 40, "ridge": 0.5, "random_state": 0}
NAMES = np.array(["ash", "beech", "cedar", "elm"])


def inputs(rows, dtype, features=6):
    return np.random.default_rng(rows).normal(size=(rows, features)).astype(dtype)


def write(folder, name, export, answer, dtype=np.float64, rows=ROWS):
    """Both kinds of file, and what the model says of the same inputs."""
    export(folder / f"{name}.npz", None)
    export(folder / f"{name}_64.npz", 64)
    said = {}
    for n in rows:
        said[f"X {n}"] = inputs(n, dtype)
        said[f"answer {n}"] = answer(said[f"X {n}"])
    np.savez(folder / f"{name}.said", **said)


def learner(folder, name, precision="double", **options):
    learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=40, ridge=0.5, k=1.0, **options)
    stream = ragged_stream()
    run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0), precision=precision)

    def answer(X):
        with precision_scope(precision):
            return np.asarray(learner.predict(run.state, X))

    def export(path, size):
        export_learner(learner, run.state, path, classes=NAMES[stream.classes], batch_size=size)

    write(folder, name, export, answer, run.state.theta.dtype)


def classifier(folder, name, declared=None, rows=ROWS, shift=0.0, spread=1.0, **options):
    X, y = blobs(200)
    X = X * spread + shift
    model = EdRVFLClassifier(**OPTIONS | options)
    for part in (slice(0, 120), slice(120, None)):
        model.partial_fit(X[part], NAMES[y[part]], classes=declared)

    def export(path, size):
        export_model(model, path, batch_size=size)

    write(folder, name, export, model.predict_proba, model._dtype, rows)


def regressor(folder, name, outputs, **options):
    X, _ = blobs(200)
    target = np.sin(X @ np.random.default_rng(1).normal(size=(6, *outputs)))
    model = EdRVFLRegressor(**OPTIONS | options).fit(X, target)
    write(
        folder, name, lambda path, size: export_model(model, path, batch_size=size), model.predict
    )


def scaled(folder, name):
    """A model that scales by itself takes raw features."""
    rng = np.random.default_rng(2)
    classifier(folder, name, shift=rng.normal(size=6), spread=rng.uniform(0.1, 9, 6), scale="first")


def given(folder, name):
    """A model takes raw features that the file standardises."""
    X, y = blobs(200)
    rng = np.random.default_rng(2)
    mean, scale = rng.normal(size=6), rng.uniform(0.1, 3.0, 6)

    def standardised(X):
        return (X - mean) / scale

    model = EdRVFLClassifier(**OPTIONS).fit(standardised(X), NAMES[y].astype(object))

    def export(path, size):
        export_model(model, path, batch_size=size, mean=mean, scale=scale, columns=list("abcdef"))

    write(folder, name, export, lambda X: model.predict_proba(standardised(X)))


CASES = {
    "learner": lambda *at: learner(*at),
    "learner_single": lambda *at: learner(*at, precision="single"),
    "learner_median": lambda *at: learner(*at, ensemble="median", activation="tanh"),
    "classifier": lambda *at: classifier(*at, declared=["yew"]),
    "classifier_single": lambda *at: classifier(*at, precision="single"),
    # One batch is held back.
    "classifier_forward": lambda *at: classifier(*at, k=1.0, ensemble="median", intercept=False),
    "classifier_discriminant": lambda *at: classifier(*at, readout="discriminant"),
    "classifier_long": lambda *at: classifier(*at, rows=(64, 4096, 4097, 9000)),
    "regressor": lambda *at: regressor(*at, (), num_layers=3),
    "regressor_median": lambda *at: regressor(*at, (2,), ensemble="median"),
    "given": given,
    "scaled": scaled,
}

if __name__ == "__main__":
    folder = Path(sys.argv[1])
    for name in sys.argv[2:]:
        CASES[name](folder, name)
