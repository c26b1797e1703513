"""A run that is interrupted or cannot write goes on to the bits of one that was not."""

import itertools

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.files.checkpoint import load_checkpoint_file
from tests.amounts import slow_but
from tests.streams import blobs, ragged_stream
from tests.streams.test_feed import options_of, pairs_of, small
from tests.trees import same

KEY = jax.random.key(0)


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


# One in memory and one that is read are quick; the rest is slow.
QUICK = [("bayes", False), ("forward", True)]


@pytest.mark.parametrize(
    ("kind", "read"),
    slow_but(QUICK, itertools.product(LEARNERS, (False, True))),
    ids=lambda value: {False: "in memory", True: "read"}.get(value, value),
)
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
