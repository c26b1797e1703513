"""The package as it is imported: late, under every name, in any order."""

import subprocess
import sys

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
    assert dir(rvfl_jax) == sorted(rvfl_jax.__all__)
    with pytest.raises(AttributeError, match="no attribute 'edrvlf'"):
        rvfl_jax.edrvlf  # noqa: B018


@pytest.mark.parametrize(
    "imports",
    [
        pytest.param("import rvfl_jax", marks=pytest.mark.slow),
        pytest.param("import rvfl_jax.run, rvfl_jax.sweep_job", marks=pytest.mark.slow),
        pytest.param("import rvfl_jax.edrvfl, rvfl_jax.sweep", marks=pytest.mark.slow),
        "from rvfl_jax.edrvfl import edrvfl; from rvfl_jax.sweep import sweep; import rvfl_jax",
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


def test_help_waits_for_no_heavy_import():
    done = run(
        "import sys\n"
        "from rvfl_jax.cli import main\n"
        "for line in (['--help'], ['fit', '--help'], ['run', '--help']):\n"
        "    try: main(line)\n"
        "    except SystemExit as stop: assert stop.code == 0\n"
        "heavy = {'jax', 'numpy', 'sklearn', 'matplotlib', 'rich', 'flax', 'optax', 'chex'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    assert done.returncode == 0, done.stderr
    assert "partial-fit" in done.stdout
