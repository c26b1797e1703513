"""Compiled programs kept from process to process, and a start without what is not needed."""

import os
import subprocess
import sys
import time
import warnings

import numpy as np
import pytest

from rvfl_jax.cli.main import main
from rvfl_jax.cli.programs import keep_programs, programs_folder
from tests.streams import blobs

COUNTED = """
import sys
from rvfl_jax.cli.start import begin
begin("predict", cache=True)
from jax import monitoring
from rvfl_jax.cli.main import main
made = []
monitoring.register_event_listener(lambda event, **_: made.append(event.rpartition("/")[2]))
status = main(sys.argv[1:])
needless = "matplotlib rich flax optax chex pandas scipy.stats._stats_py rvfl_jax.plots"
assert not set(needless.split()) & set(sys.modules)
import pandas, scipy.stats
assert pandas.DataFrame and scipy.stats.norm.cdf(0) == 0.5
print(made.count("cache_hits"), made.count("cache_misses"), file=sys.stderr)
"""


def environment(home, **more):
    """That of a user with this cache folder; flags of the tests stay, as they compile sooner."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    return {**kept, "XDG_CACHE_HOME": str(home), **more}


def entries(home):
    return {path.name: path.read_bytes() for path in home.glob("rvfl-jax/programs/*/*-cache")}


@pytest.fixture(scope="module")
def question(tmp_path_factory):
    """A model, a table and the answer."""
    folder = tmp_path_factory.mktemp("model")
    X, y = blobs()
    np.savez(folder / "t.npz", X=X, y=y)
    table, model = str(folder / "t.npz"), str(folder / "m")
    options = ["--num-nodes", "12", "--num-layers", "1", "--out", model]
    assert main(["fit", table, *options]) == 0
    return ["predict", model, table]


def begun(question, home, *options, before=()):
    """A process that answers."""
    return subprocess.Popen(
        [*before, sys.executable, "-m", "rvfl_jax", *question, *options],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.fixture(scope="module")
def cached(question, tmp_path_factory):
    """A cache folder with what a first process left there, and its answer."""
    home = tmp_path_factory.mktemp("cached")
    answer, told = begun(question, home).communicate()
    assert told == ""
    assert answer.startswith("label,probability\n")
    return home, answer


def test_the_second_process_compiles_nothing_and_imports_little(question, cached):
    home, answer = cached
    before = entries(home)
    assert {name.partition("-")[0] for name in before} == {"jit_finished", "jit_probable"}
    done = subprocess.run(
        [sys.executable, "-c", COUNTED, *question],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == (answer, "2 0\n")
    assert entries(home) == before


def test_no_cache_keeps_nothing(question, cached, tmp_path):
    answer, told = begun(question, tmp_path, "--no-cache").communicate()
    assert (answer, told) == (cached[1], "")
    assert not any(tmp_path.iterdir())


@pytest.mark.slow
def test_what_is_no_program_is_replaced(question, cached):
    home, answer = cached
    whole = entries(home)
    for path in home.glob("rvfl-jax/programs/*/*-cache"):
        path.write_bytes(path.read_bytes()[:-9])
    assert begun(question, home).communicate() == (answer, "")
    assert entries(home).keys() == whole.keys()
    assert begun(question, home).communicate() == (answer, "")
    assert all(len(found) > len(whole[name]) - 9 for name, found in entries(home).items())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="has no such limits")
def test_a_full_disk_is_no_error(question, cached, tmp_path):
    full = ["sh", "-c", 'ulimit -f 1 && exec "$@"', "sh"]
    assert begun(question, tmp_path, before=full).communicate() == (cached[1], "")
    assert not entries(tmp_path)


@pytest.mark.slow
def test_two_processes_at_once(question, cached, tmp_path):
    processes = [begun(question, tmp_path) for _ in range(2)]
    assert [one.communicate() for one in processes] == [(cached[1], "")] * 2
    assert len(entries(tmp_path)) == 2
    assert begun(question, tmp_path).communicate() == (cached[1], "")


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.setattr("os.environ", {"XDG_CACHE_HOME": str(tmp_path)})
    with warnings.catch_warnings():
        yield tmp_path


def test_a_folder_of_ones_own_wins(home):
    os.environ["JAX_COMPILATION_CACHE_DIR"] = "mine"
    before = dict(os.environ)
    keep_programs()
    assert os.environ == before
    assert not any(home.iterdir())


def test_old_entries_are_removed(home):
    folder = programs_folder(home / "rvfl-jax" / "programs")
    assert folder.stat().st_mode & 0o077 == 0
    another = folder.parent / "another-processor"
    another.mkdir()
    month = time.time() - 31 * 86_400
    for path in (folder / "read", folder / "written", folder / "old", another / "old"):
        path.touch()
        os.utime(path, (month, month))
    os.utime(folder / "read", (time.time(), month))
    os.utime(folder / "written", (month, time.time()))
    keep_programs()
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == str(folder)
    assert {path.name for path in folder.iterdir()} == {"read", "written"}
    assert not any(another.iterdir())


@pytest.mark.parametrize("why", ["no folder", "no home", "of another user"])
def test_no_folder_is_no_error(home, monkeypatch, why):
    if why == "no folder":
        (home / "rvfl-jax").touch()
    elif why == "no home":
        monkeypatch.setattr("os.environ", {})
        monkeypatch.setattr("os.path.expanduser", lambda path: path)
    else:
        monkeypatch.setattr("os.getuid", lambda: -1)
    keep_programs()
    assert "JAX_COMPILATION_CACHE_DIR" not in os.environ


def test_other_warnings_are_shown(home):
    folder = programs_folder(home / "rvfl-jax" / "programs")
    names = ["jit_learn-1-cache", "jit_learn-2-cache", "jit_learn_more-1-cache"]
    for name in names:
        (folder / name).touch()
    fault = "Error writing persistent compilation cache entry for 'jit_learn': OSError: full"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        keep_programs()
        warnings.warn(fault, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
    assert [str(warning.message) for warning in told] == ["something else"]
    assert [path.name for path in folder.iterdir()] == names[2:]
