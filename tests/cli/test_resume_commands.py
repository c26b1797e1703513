"""`rvfl-jax run` interrupted, killed, damaged or without room: one line, and nothing is lost."""

import codecs
import io
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, redirect_stderr

import numpy as np
import pytest

from rvfl_jax.cli.main import main
from rvfl_jax.files.checkpoint import load_checkpoint_file
from rvfl_jax.runs import resumable
from tests.streams import blobs, environment

pytestmark = pytest.mark.slow
# The bar is 50; so many take a quarter of an hour.
KILLS = int(os.environ.get("RVFL_JAX_KILLS", "2"))
OPTIONS = ["--seeds", "1", "--styles", "bayes", "--batches", "12", "--quiet", "--num-nodes", "32"]


def command(folder, *more):
    return ["run", "--checkpoint", str(folder / "kept"), "--out", str(folder / "out"), *more]


def contents(folder):
    return {p.name: p.read_bytes() for p in sorted(folder.iterdir())}


def one_line(capsys, start):
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith(f"rvfl-jax: {start}"), captured.err
    assert captured.err.count("\n") == 1


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run without an interruption."""
    folder = tmp_path_factory.mktemp("finished")
    assert main(command(folder, *OPTIONS)) == 0
    return folder


@pytest.fixture(scope="module")
def stopped_once(tmp_path_factory):
    """A run that Ctrl-C stopped in the middle."""
    folder, write = tmp_path_factory.mktemp("stopped"), resumable.Journal.write

    def write_and_stop(self, standing, done, digest):
        write(self, standing, done, digest)
        if done >= 5:
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch, redirect_stderr(io.StringIO()) as said:
        patch.setattr(resumable.Journal, "write", write_and_stop)
        assert main(command(folder, *OPTIONS)) == 130
    assert said.getvalue() == "rvfl-jax: interrupted; --resume goes on\n"
    return folder


@pytest.fixture
def stopped(stopped_once, tmp_path):
    """A copy of it, to be changed."""
    return shutil.copytree(stopped_once, tmp_path / "run")


def equal_runs(folder, other):
    """Final states and results to the last bit, times aside."""
    names = {p.name for p in (folder / "kept").iterdir()}
    assert names == {p.name for p in (other / "kept").iterdir()}
    for name in names - {"comparison.npz", "seed_0_references.npz"}:
        one, two = (load_checkpoint_file(f / "kept" / name) for f in (folder, other))
        assert one.metadata == two.metadata
        assert one.arrays.keys() == two.arrays.keys()
        for array in one.arrays:
            np.testing.assert_array_equal(one.arrays[array], two.arrays[array])
    found = [json.loads((f / "out" / "results.json").read_text()) for f in (folder, other)]
    for result in found:
        for part in (result["offline"], *(s["metrics"] for s in result["styles"].values())):
            part.pop("seconds")
            part.pop("samples_per_second", None)
    assert found[0] == found[1]


def test_ctrl_c_is_one_line_and_resume_goes_on(stopped, finished, capsys):
    assert main(command(stopped, *OPTIONS)) == 2
    one_line(capsys, f"{stopped / 'kept'}: expected no run there yet")
    assert main(command(stopped, *OPTIONS, "--resume")) == 0
    # Of a run in two parts no time is known, and the table says so by a blank.
    assert "samples per second" not in capsys.readouterr().out
    equal_runs(stopped, finished)


def test_other_options_are_listed(stopped, capsys):
    assert main(command(stopped, *OPTIONS, "--resume", "--ridge", "2", "--tasks", "2")) == 2
    one_line(capsys, f"{stopped / 'kept'}: begun with other options: tasks: expected 2, got 5; r")


def test_other_data_are_other_options(tmp_path, capsys):
    X, y = blobs(80)
    np.savez(tmp_path / "d.npz", X=X, y=y)
    options = ["--dataset", str(tmp_path / "d.npz"), "--tasks", "2", *OPTIONS]
    assert main(command(tmp_path, *options)) == 0
    np.savez(tmp_path / "d.npz", X=X + 1, y=y)
    capsys.readouterr()
    assert main(command(tmp_path, *options, "--resume")) == 2
    one_line(capsys, f"{tmp_path / 'kept'}: begun with other options: data: expected '")


@pytest.mark.parametrize("name", ["comparison.npz", "seed_0_references.npz", "seed_0_kF-Bayes.npz"])
@pytest.mark.parametrize("damage", ["truncated", "flipped"])
def test_damaged_files_are_one_line_and_stay(stopped, capsys, name, damage):
    path = stopped / "kept" / name
    whole = path.read_bytes()
    spoilt = bytearray(whole)
    spoilt[len(whole) // 3] ^= 4
    path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else bytes(spoilt))
    before = contents(stopped / "kept")
    assert main(command(stopped, *OPTIONS, "--resume")) == 2
    one_line(capsys, f"{path}: the checkpoint is damaged")
    assert contents(stopped / "kept") == before


@contextmanager
def full_disk(bytes_left):
    """Files cannot grow beyond so many bytes, as they cannot on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes_left, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("bytes_left", [1000, 20_000])
def test_a_full_disk_is_one_line_and_loses_nothing(stopped, finished, capsys, bytes_left):
    before = contents(stopped / "kept")
    with full_disk(bytes_left):
        assert main(command(stopped, *OPTIONS, "--resume")) == 2
    one_line(capsys, "[Errno 27] File too large: ")
    assert contents(stopped / "kept") == before
    assert main(command(stopped, *OPTIONS, "--resume")) == 0
    equal_runs(stopped, finished)


@contextmanager
def nobody():
    """Root may write anywhere; nobody may not."""
    if os.geteuid() != 0:
        yield
        return
    # What names in an .npz are read with; its module may lie where root alone may read.
    codecs.lookup("cp437")
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_folder_is_one_line_and_loses_nothing(stopped, finished, capsys):
    kept = stopped / "kept"
    for folder in (*stopped.parents, stopped):
        if folder.owner() == kept.owner() and folder != folder.parent:
            folder.chmod(folder.stat().st_mode | 0o011)
    for path in kept.iterdir():
        path.chmod(0o644)
    kept.chmod(0o555)
    # Results could be written; what is refused is the checkpoint.
    (stopped / "out").mkdir()
    (stopped / "out").chmod(0o777)
    before = contents(kept)
    with nobody():
        assert main(command(stopped, *OPTIONS, "--resume")) == 2
    one_line(capsys, f"--checkpoint: expected a folder to write to, got {kept}")
    kept.chmod(0o755)
    assert contents(kept) == before
    assert main(command(stopped, *OPTIONS, "--resume")) == 0
    equal_runs(stopped, finished)


def test_ctrl_c_ends_the_process_in_one_line(tmp_path):
    folder = tmp_path / "run"
    for wait in (0.7, 3.0, 6.0):
        process = spawn(folder, stderr=subprocess.PIPE)
        time.sleep(wait)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
        # On a machine that is fast enough the run may be over.
        assert process.returncode in (130, 0)
        if process.returncode:
            assert said == b"rvfl-jax: interrupted; --resume goes on\n"
    assert spawn(folder).wait(timeout=300) == 0


def test_kill_9_at_random_moments(tmp_path):
    """Each run is killed once, at any moment from its start on, and goes on to the same bits."""
    plain = tmp_path / "plain"
    begun = time.monotonic()
    process = spawn(plain)
    assert process.wait(timeout=300) == 0
    whole = time.monotonic() - begun
    rng = np.random.default_rng(0)
    stages = []
    for kill in range(KILLS):
        folder = tmp_path / str(kill)
        process = spawn(folder)
        time.sleep(rng.uniform(0, whole))
        process.send_signal(signal.SIGKILL)
        process.wait()
        stages.append(len(list((folder / "kept").iterdir())) if (folder / "kept").exists() else 0)
        assert spawn(folder).wait(timeout=300) == 0
        equal_runs(folder, plain)
    print(f"{KILLS} kills in runs of {whole:.1f} s; files there when killed: {stages}")


def spawn(folder, stderr=subprocess.DEVNULL):
    folder.mkdir(exist_ok=True)
    line = [
        sys.executable,
        "-m",
        "rvfl_jax",
        *command(folder, *OPTIONS, "--resume", "--every", "1"),
    ]
    return subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=stderr)
