import os

# Most of the tests' time is compilation; the numbers hold at any level of optimisation.
# Tests of the main job and of threads run in processes of their own, without this flag.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")

import matplotlib
import numpy as np
import pytest

import rvfl_jax
from tests.streams import ragged_stream

matplotlib.use("Agg")


@pytest.fixture
def stream():
    return ragged_stream()


@pytest.fixture
def digits():
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    rows = np.random.default_rng(0).permutation(len(X))
    X, y = (X[rows] / 16).astype(np.float32), y[rows]
    return X[:1300], y[:1300], X[1300:], y[1300:]


@pytest.fixture
def learner():
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0)
