import gc
import os
from collections import Counter
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

# Most of the tests' time is compilation; the numbers hold at any level of optimisation.
# Tests of the main job and of threads run in processes of their own, without these flags.
FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):
    # A third of the time; later releases know no such flag, and end the process.
    FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(FLAGS))
# Two workers on two cores: threads of OpenBLAS that wait for each other's turn wait in vain.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import jax
import matplotlib
import pytest

import rvfl_jax
from rvfl_jax.cli.programs import caches, drop_old, programs_folder
from tests.streams import ragged_stream

matplotlib.use("Agg")

# What was imported stays; looking through it again and again is a tenth of the time of tracing.
gc.freeze()
gc.set_threshold(50_000, 20, 50)

# Files whose few tests take minutes.
LONG = (
    "test_compared",
    "test_devices",
    "test_estimator_properties",
    "test_river",
    "test_serving",
    "test_ray",
    "test_notebooks",
    "test_readme",
)

# A process may hold some 65,000 memory maps, and every compiled program takes several.
MANY_MAPS = 30_000


def pytest_configure():
    """Compile nothing that an earlier session compiled; tracing still takes its time.

    JAX tells of a compilation also where the cache has the program, so that tests that count
    compilations count programs.
    """
    if jax.config.jax_compilation_cache_dir is None:
        # Without a place to write every session compiles anew.
        with suppress(OSError):
            jax.config.update("jax_compilation_cache_dir", str(cache_folder()))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """Long files first, so that no worker begins one when the others have nothing left."""
    count = Counter(item.path for item in items)
    items.sort(key=lambda one: (one.path.stem not in LONG, -count[one.path], one.path))


def cache_folder():
    """One for each processor and jaxlib, as programs for another processor may not run."""
    folder = programs_folder(caches() / "rvfl-jax-tests")
    drop_old(folder.parent)
    return folder


@pytest.fixture(scope="module", autouse=True)
def few_programs_at_once():
    yield
    maps = Path("/proc/self/maps")
    if not maps.exists() or maps.read_text().count("\n") > MANY_MAPS:
        jax.clear_caches()


@pytest.fixture
def stream():
    return ragged_stream()


@pytest.fixture
def learner():
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0)
