import os

# Most of the tests' time is compilation; the numbers hold at any level of optimisation.
# Tests of the main job and of threads run in processes of their own, without this flag.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
# Two workers on two cores: threads of OpenBLAS that wait for each other's turn wait in vain.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import matplotlib
import pytest

import rvfl_jax
from tests.streams import ragged_stream

matplotlib.use("Agg")


@pytest.fixture(scope="module", autouse=True)
def few_programs_at_once():
    """A process may hold some 65,000 memory maps, and every compiled program takes several."""
    yield
    jax.clear_caches()


@pytest.fixture
def stream():
    return ragged_stream()


@pytest.fixture
def learner():
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0)
