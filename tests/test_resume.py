"""A run that is interrupted, killed or cannot write goes on to the bits of one that was not."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.checkpoint import load_checkpoint_file
from rvfl_jax.cli import main
from tests.streams import blobs, environment, ragged_stream
from tests.test_checkpoint import same
from tests.test_feed import options_of, pairs_of, small

KEY = jax.random.key(0)
# The bar is 50; so many take a quarter of an hour.
KILLS = int(os.environ.get("RVFL_JAX_KILLS", "2"))


class Interrupted(Exception):  # noqa: N818
    pass


def stop_after(batches):
    def progress(done, total):
        if done >= batches:
            raise Interrupted

    return progress


LEARNERS = {
    "ridge": {"k": 0.0, "solver": "information"},
    "forward": {"k": 1.0, "solver": "covariance"},
    "square root": {"k": 0.5, "solver": "square_root"},
    "bayes": {"k": rvfl_jax.adaptive_k(sigma=0.1, estimator="random_diagonal")},
}


@pytest.mark.parametrize("kind", LEARNERS)
@pytest.mark.parametrize("read", [False, True], ids=["in memory", "read"])
def test_interrupted_runs_go_on_to_the_last_bit(tmp_path, kind, read):
    stream, learner = ragged_stream(), small(**LEARNERS[kind])
    test = blobs(40, seed=0)
    more = {"test": test, "chunk_size": 2, "confusion": True}
    if read:
        more |= options_of(stream, classes=stream.classes.tolist())

    def run(**options):
        source = pairs_of(stream) if read else stream
        return rvfl_jax.run_stream(learner, source, **{"key": KEY, **more, **options})

    whole = run()
    for stop in (1, 4, 9):
        path = tmp_path / f"{stop}.npz"
        with pytest.raises(Interrupted):
            run(checkpoint=path, progress=stop_after(stop))
        steps = []
        gone_on = run(checkpoint=path, resume=True, progress=lambda d, t, s=steps: s.append(d))
        assert steps[0] >= stop
        assert steps[-1] == 9
        same(gone_on, whole)
        # Finished, the file holds the whole run.
        same(run(checkpoint=path, resume=True), whole)


def interrupted(path, learner, stream, **options):
    with pytest.raises(Interrupted):
        rvfl_jax.run_stream(
            learner,
            stream,
            key=KEY,
            checkpoint=path,
            chunk_size=2,
            progress=stop_after(4),
            **options,
        )


def test_another_run_is_refused_with_all_that_differs(tmp_path, learner, stream):
    path = tmp_path / "run.npz"
    interrupted(path, learner, stream)
    with pytest.raises(ValueError, match="expected no file yet"):
        rvfl_jax.run_stream(learner, stream, key=KEY, checkpoint=path)
    other = small(k=0.0)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="got one that differs in 4") as error:
        rvfl_jax.run_stream(
            other,
            stream,
            key=jax.random.key(1),
            evaluate=3,
            precision="single",
            checkpoint=path,
            resume=True,
        )
    for name in ("learner", "key", "precision: expected 'single', got 'double'", "evaluate"):
        assert name in str(error.value)
    assert path.read_bytes() == before


def test_other_tasks_are_another_run(tmp_path, learner, stream):
    path = tmp_path / "run.npz"
    interrupted(path, learner, stream)
    other = stream._replace(class_task=stream.class_task[::-1].copy())
    with pytest.raises(ValueError, match="differs in 1: tasks"):
        rvfl_jax.run_stream(learner, other, key=KEY, checkpoint=path, resume=True)
    renamed = stream._replace(classes=stream.classes + 1)
    with pytest.raises(ValueError, match="differs in 1: classes"):
        rvfl_jax.run_stream(learner, renamed, key=KEY, checkpoint=path, resume=True)


def test_what_was_announced_must_come(tmp_path, learner, stream):
    """The carry holds it: a batch beyond the place that changes would be learned as it was."""
    batches = list(pairs_of(stream))

    def stop(name, pairs):
        path = tmp_path / name
        options = options_of(stream, checkpoint=path, chunk_size=2)
        with pytest.raises(Interrupted):
            rvfl_jax.run_stream(learner, pairs, progress=stop_after(4), **options)
        return options | {"resume": True}

    changed = [*batches[:4], (batches[4][0] + 1, batches[4][1]), *batches[5:]]
    renamed = [(X, ["abcd"[c] for c in y]) for X, y in batches]
    for name, first, then in (
        ("changed", batches, changed),
        ("shorter", batches, batches[:4]),
        ("grown", batches[:4], batches),
        ("renamed", batches, renamed),
    ):
        options = stop(name, first)
        with pytest.raises(ValueError, match="expected the 4 batches learned already, and then"):
            rvfl_jax.run_stream(learner, then, **options)
    finished = rvfl_jax.run_stream(learner, batches[:4], **options_of(stream))
    gone_on = rvfl_jax.run_stream(learner, batches[4:], state=finished.state, **options_of(stream))
    assert gone_on.state.num_learned == 9


def test_failure_ends_a_run_before_it_is_kept(tmp_path, stream):
    learner = small(k=0.0, solver="covariance")
    huge = stream._replace(X=stream.X.astype(np.float64))
    huge.X[5] *= 1e200
    path, steps = tmp_path / "run.npz", []
    options = {"key": KEY, "chunk_size": 2, "progress": lambda done, total: steps.append(done)}
    with pytest.raises(rvfl_jax.NumericalError, match="batch 5"):
        rvfl_jax.run_stream(learner, huge, checkpoint=path, **options)
    assert steps[-1] == 4
    assert load_checkpoint_file(path).metadata["metadata"]["batches"] == 4
    whole = rvfl_jax.run_stream(learner, huge, on_failure="return", **options)
    assert steps[-1] == 9
    assert not whole.history.healthy[5].all()


def test_only_looks_that_were_made_are_kept(tmp_path, learner, stream):
    path = tmp_path / "run.npz"
    options = {"key": KEY, "test": blobs(40, seed=0), "evaluate": np.int64(4), "confusion": True}
    whole = rvfl_jax.run_stream(learner, stream, **options)
    kept = rvfl_jax.run_stream(learner, stream, checkpoint=path, chunk_size=3, **options)
    same(kept, whole)
    assert load_checkpoint_file(path).arrays[".record.evaluation.confusion"].shape == (3, 4, 4)
    assert kept.history.confusion.shape == (3, 4, 4)


def test_places_where_no_file_can_be(tmp_path, learner, stream):
    for path in (tmp_path, tmp_path / "no" / "run.npz"):
        with pytest.raises(ValueError, match="expected a file in a folder that is there"):
            rvfl_jax.run_stream(learner, stream, key=KEY, checkpoint=path, resume=True)


def test_other_batches_before_the_place_are_refused(tmp_path, learner, stream):
    path = tmp_path / "run.npz"
    options = options_of(stream, checkpoint=path, chunk_size=2)
    with pytest.raises(Interrupted):
        rvfl_jax.run_stream(learner, pairs_of(stream), progress=stop_after(4), **options)
    others = list(pairs_of(stream))
    others[1] = (others[1][0] + 1e-9, others[1][1])
    with pytest.raises(ValueError, match="expected the 4 batches learned already, and then"):
        rvfl_jax.run_stream(learner, others, resume=True, **options)
    with pytest.raises(ValueError, match="at least the 4 batches learned already, got 3"):
        rvfl_jax.run_stream(learner, list(pairs_of(stream))[:3], resume=True, **options)


def test_other_versions_are_a_warning(tmp_path, learner, stream, monkeypatch):
    path = tmp_path / "run.npz"
    interrupted(path, learner, stream)
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_another_day")
    with pytest.warns(UserWarning, match="begun under other circumstances.*another_day"):
        rvfl_jax.run_stream(learner, stream, key=KEY, checkpoint=path, resume=True, chunk_size=2)


def test_stale_parts_are_swept_away(tmp_path, learner, stream):
    path = tmp_path / "run.npz"
    interrupted(path, learner, stream)
    ours = tmp_path / f"run.npz.{'0' * 32}.part"
    others = [tmp_path / f"run2.npz.{'0' * 32}.part", tmp_path / "run.npz.bak.part"]
    for part in (ours, *others):
        part.write_bytes(b"half a checkpoint")
    with pytest.raises(ValueError, match="differs in 1"):
        rvfl_jax.run_stream(
            learner, stream, key=KEY, evaluate=2, checkpoint=path, resume=True, chunk_size=2
        )
    assert ours.exists()
    rvfl_jax.run_stream(learner, stream, key=KEY, checkpoint=path, resume=True, chunk_size=2)
    assert sorted(tmp_path.iterdir()) == sorted([path, *others])


def test_runs_that_are_one_program_keep_nothing(tmp_path, stream):
    learner = small(k=0.0, solver="information")
    with pytest.raises(ValueError, match="checkpoint: expected guesses=True"):
        rvfl_jax.run_stream(
            learner, stream, key=KEY, guesses=False, checkpoint=tmp_path / "run.npz"
        )


# The command line. Everything below is one line on standard error and loses nothing.

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


@pytest.fixture
def stopped(tmp_path, monkeypatch, capsys):
    """A run that Ctrl-C stopped in the middle."""
    from rvfl_jax import chunks

    write = chunks.Journal.write

    def write_and_stop(self, standing, done, digest):
        write(self, standing, done, digest)
        if done >= 5:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(chunks.Journal, "write", write_and_stop)
        assert main(command(tmp_path, *OPTIONS)) == 130
    assert capsys.readouterr().err == "rvfl-jax: interrupted; --resume goes on\n"
    return tmp_path


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
    before = contents(kept)
    with nobody():
        assert main(command(stopped, *OPTIONS, "--resume")) == 2
    one_line(capsys, "[Errno 13] Permission denied: ")
    kept.chmod(0o755)
    assert contents(kept) == before
    assert main(command(stopped, *OPTIONS, "--resume")) == 0
    equal_runs(stopped, finished)


@pytest.mark.slow
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


@pytest.mark.slow
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
