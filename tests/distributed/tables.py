"""A table in partitions, of which some lack labels, one is empty and one comes twice."""

import numpy as np
import pandas as pd

from rvfl_jax import EdRVFLClassifier
from tests.estimators.test_estimator import SMALL, blobs

NAMES = [f"x{i}" for i in range(5)]
MODEL = EdRVFLClassifier(**SMALL)


def table():
    """240 rows in order of classes, with an id and a weight."""
    X, y = blobs(num_rows=240, num_classes=4, num_features=5)
    order = np.argsort(y)
    weight = np.random.default_rng(1).integers(1, 4, 240) / 2.0
    return pd.DataFrame(X[order], columns=NAMES).assign(
        label=np.array(["ant", "bee", "cat", "dog"])[y[order]], weight=weight
    )


def partitions():
    """The rows of `table` in parts, one of them twice, and one without rows."""
    rows = table()
    parts = [rows[0:70], rows[70:71], rows[71:180], rows[180:180], rows[180:240]]
    return [part.reset_index(drop=True) for part in [*parts, parts[2]]]


def fitted(rows=None):
    """What one machine learns of them."""
    rows = table() if rows is None else rows
    model = EdRVFLClassifier(**SMALL)
    return model.fit(rows[NAMES], rows["label"], sample_weight=rows["weight"])
