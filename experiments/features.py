"""Feature files from outside: where they are, and class-incremental streams of CIFAR-100."""

import os
from functools import cache
from pathlib import Path

from experiments.fashion_mnist import Case
from rvfl_jax import class_incremental_stream
from rvfl_jax.data import Dataset, load_dataset
from rvfl_jax.streams.labels import to_columns

# Name to file, in the folder that RVFL_JAX_FEATURES names.
FEATURES = {
    "EfficientNet-lite0, ImageNet": "cifar100_efflite0_pca256_f16.npz",
    "network trained on CIFAR-100 (optimistic)": "cifar100_osi136_f16.npz",
}
FOLDER = "RVFL_JAX_FEATURES"


@cache
def cifar100(name: str) -> Dataset:
    """50,000 + 10,000 rows of features; float32 in memory.

    Raises:
        ValueError: if the folder of feature files is not named, or has no such file.
    """
    folder = os.environ.get(FOLDER)
    if folder is None:
        raise ValueError(f"{FOLDER}: expected the folder of {FEATURES[name]}, got nothing")
    data = load_dataset(str(Path(folder) / FEATURES[name]))
    return data._replace(
        X_train=data.X_train.astype("float32"), X_test=data.X_test.astype("float32")
    )


def cifar100_case(name: str, seed: int, *, num_tasks: int, num_batches: int) -> Case:
    """A stream whose seed draws which classes make a task, and the order of rows."""
    data = cifar100(name)
    stream = class_incremental_stream(
        data.X_train,
        data.y_train,
        num_tasks=num_tasks,
        num_batches=num_batches,
        seed=seed,
        order="classes",
    )
    columns = to_columns("y_test", data.y_test, stream.classes)
    return Case(stream, data.X_test, data.y_test, columns, None)
