"""The package as it is imported: late, under every name, in any order."""

import subprocess
import sys
from typing import get_args

import pytest

import rvfl_jax
from tests.streams import environment


def run(code):
    return subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, check=False
    )


def test_every_public_name_is_there():
    for name in rvfl_jax.__all__:
        assert getattr(rvfl_jax, name).__name__.removeprefix("rvfl_jax.") == name
    modules = ["data", "distributed", "encoders", "plots", "serving"]
    assert dir(rvfl_jax) == sorted([*rvfl_jax.__all__, *modules])
    for name in modules:
        assert getattr(rvfl_jax, name).__name__ == f"rvfl_jax.{name}"
    with pytest.raises(AttributeError, match="no attribute 'edrvlf'"):
        rvfl_jax.edrvlf  # noqa: B018


def test_types_of_options_are_what_the_functions_take():
    from rvfl_jax import edrvfl, metrics
    from rvfl_jax.core import types
    from rvfl_jax.estimators import base, feature_maps, novelty, readouts, scaling
    from rvfl_jax.learners import base as learner
    from rvfl_jax.learners.edrvfl import network, strength
    from rvfl_jax.linalg.precision import PRECISIONS
    from rvfl_jax.runs import sharding as devices
    from rvfl_jax.runs.inputs import SCHEDULES
    from rvfl_jax.serving.export import FORMATS
    from rvfl_jax.streams import class_incremental as stream
    from rvfl_jax.sweeps.result import CRITERIA

    module = sys.modules[edrvfl.__module__]
    for kind, choices in (
        (types.Solver, module.SOLVERS),
        (types.ColdStart, module.COLD_STARTS),
        (types.Ensemble, learner.ENSEMBLES),
        (types.ActivationName, network.ACTIVATIONS),
        (types.WeightInit, network.WEIGHT_INITS),
        (types.Estimator, strength.ESTIMATORS),
        (types.Precision, PRECISIONS),
        (types.Evaluate, SCHEDULES),
        (types.Layout, devices.LAYOUTS),
        (types.Order, stream.ORDERS),
        (types.Lookahead, base.LOOKAHEADS),
        (types.Scale, scaling.SCALES),
        (types.FeatureMap, feature_maps.FEATURE_MAPS),
        (types.ReadoutName, readouts.READOUTS),
        (types.NoveltyScore, novelty.NOVELTY_SCORES),
        (types.Criterion, CRITERIA),
        (types.Protocol, metrics.PROTOCOLS),
        (types.ExportFormat, FORMATS),
    ):
        assert get_args(kind) == tuple(choices)


SLIPS = {
    'rvfl_jax.edrvfl(num_layers=1, num_nodes=2, ridge=1.0, k=1.0, solver="covarianc")': "covarianc",
    'rvfl_jax.edrvfl(num_layers=1, num_nodes=2, ridge=1.0, k=1.0, activation="rleu")': "rleu",
    'rvfl_jax.adaptive_k(estimator="inverse")': "inverse",
    'rvfl_jax.EdRVFLClassifier(lookahead="holt")': "holt",
    'rvfl_jax.EdRVFLRegressor(precision="float32")': "float32",
    'rvfl_jax.run_stream(learner, [], key=key, precision="float64")': "float64",
    'rvfl_jax.run_stream(learner, [], key=key, evaluate="tasks")': "tasks",
    "rvfl_jax.run_stream(learner, [], key=key).history.acuracy": 'no attribute "acuracy"',
    "rvfl_jax.run_stream(learner, [], key=key).history.k_next": None,
    "rvfl_jax.run_stream(learner, [], key=key, evalute=1)": "evalute",
    "rvfl_jax.run_stream(learner, [])": "key",
    "rvfl_jax.run_stream(stream=[], learner=learner, key=key, evaluate=1)": None,
    "rvfl_jax.sweep(lambda k: learner, [], {}, key=key, max_bites=1)": "max_bites",
    "rvfl_jax.sweep(lambda k: learner, [], {}, key=key)": None,
    "rvfl_jax.sweep(lambda k: k, [], {}, key=key)": None,
    "rvfl_jax.sweep(rvfl_jax.one_hot, [], {}, key=key)": "Learner",
    'rvfl_jax.class_incremental_stream(0, 0, num_tasks=1, num_batches=1, seed="0")': "int",
    "rvfl_jax.export_learner(learner, 0, 'a.npz', clases=[1])": "clases",
}


@pytest.mark.slow
def test_a_type_checker_finds_slips(tmp_path):
    lines = ["import jax", "import rvfl_jax", "key = jax.random.key(0)"]
    lines.append("learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=2, ridge=1.0, k=1.0)")
    (tmp_path / "user.py").write_text("\n".join([*lines, *SLIPS]))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--cache-dir=/dev/null", tmp_path],
        capture_output=True,
        text=True,
        check=False,
    )
    told = {
        int(line.split(":")[1]): line for line in done.stdout.splitlines() if ": error:" in line
    }
    assert set(told) == {len(lines) + i for i, slip in enumerate(SLIPS.values(), start=1) if slip}
    for number, slip in enumerate(SLIPS.values(), start=len(lines) + 1):
        assert slip is None or slip in told[number]


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import rvfl_jax", marks=pytest.mark.slow),
        pytest.param("import rvfl_jax.runs.run_stream, rvfl_jax.cli.sweep", marks=pytest.mark.slow),
        "from rvfl_jax.learners.edrvfl.learner import edrvfl; import rvfl_jax.sweeps.sweep",
    ],
)
def test_functions_are_not_hidden_by_modules_of_their_name(imports):
    done = run(
        f"{imports}\n"
        "import types\n"
        "assert isinstance(rvfl_jax.edrvfl, types.FunctionType)\n"
        "assert isinstance(rvfl_jax.sweep, types.FunctionType)\n"
        "from rvfl_jax import *\n"
        "assert sweep is rvfl_jax.sweep and edrvfl is rvfl_jax.edrvfl\n"
        "assert rvfl_jax.plots.heat_map and metrics.PROTOCOLS\n"
    )
    assert done.returncode == 0, done.stderr


def test_an_import_sets_nothing_of_jax():
    done = run(
        "import jax\n"
        "before = dict(jax.config.values)\n"
        "from rvfl_jax import *\n"
        "import rvfl_jax.cli.models\n"
        "assert dict(jax.config.values) == before\n"
    )
    assert done.returncode == 0, done.stderr


def test_help_waits_for_no_heavy_import():
    done = run(
        "import sys\n"
        "from rvfl_jax.cli.main import main\n"
        "for line in (['--help'], ['fit', '--help'], ['run', '--help'], ['--list-methods']):\n"
        "    try: main(line)\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'jax', 'numpy', 'sklearn', 'matplotlib', 'rich', 'flax', 'optax', 'chex'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "partial-fit" in done.stdout
    assert "Kirkpatrick et al. 2017" in done.stdout
