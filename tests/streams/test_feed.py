"""Streams read while they run give what the same stream in memory gives, to the last bit."""

import threading
import time

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax.streams.reader import Feed, Reader
from tests.streams import blobs, ragged_stream
from tests.trees import same

KEY = jax.random.key(0)


def small(**options):
    return rvfl_jax.edrvfl(**{"num_layers": 2, "num_nodes": 8, "ridge": 0.5, "k": 1.0, **options})


@pytest.fixture(scope="module")
def learner():
    return small()


def pairs_of(stream):
    """Batches as a loader gives them, without padding."""
    for X, y, weight in zip(stream.X, stream.y, stream.weight, strict=True):
        yield X[weight > 0], stream.classes[y[weight > 0]]


def options_of(stream, **more):
    return {"key": KEY, "batch_size": stream.X.shape[1], "num_classes": len(stream.classes), **more}


BAYES = rvfl_jax.adaptive_k(sigma=0.1)


@pytest.mark.parametrize(
    ("k", "chunk_size"), [(0.0, 4), (1.0, 1), (1.0, 2), (BAYES, 9), (BAYES, 50)], ids=str
)
def test_batches_that_are_read_give_the_bits_of_those_in_memory(k, chunk_size):
    stream, learner = ragged_stream(), small(k=k)
    whole = rvfl_jax.run_stream(learner, stream, key=KEY)
    read = rvfl_jax.run_stream(
        learner, pairs_of(stream), **options_of(stream, chunk_size=chunk_size)
    )
    same(read.state, whole.state)
    for name in ("k_t", "k_next", "healthy", "residual", "rows", "prequential_loss"):
        np.testing.assert_array_equal(getattr(read.history, name), getattr(whole.history, name))
    assert read.history.classes == whole.history.classes == tuple(stream.classes.tolist())


@pytest.mark.slow
def test_the_test_set_is_looked_at_as_often_as_asked(learner):
    stream = ragged_stream()
    X_test, y_test = blobs(40, seed=0)
    options = options_of(stream, test=(X_test, y_test), classes=stream.classes.tolist())
    whole = rvfl_jax.run_stream(learner, stream, key=KEY, test=(X_test, y_test), expert=None)
    for every, chunk_size in ((1, 4), (4, 3), (2, 1)):
        read = rvfl_jax.run_stream(
            learner, pairs_of(stream), evaluate=every, chunk_size=chunk_size, **options
        ).history
        at = read.evaluated
        np.testing.assert_array_equal(at, [t for t in range(9) if (t + 1) % every == 0 or t == 8])
        np.testing.assert_array_equal(
            read.accuracy["class_incremental"], whole.history.accuracy["class_incremental"][at]
        )
        assert read.R == {}
        np.testing.assert_array_equal(read.regret, whole.history.regret[at])
        assert np.isnan(read.excess_loss).all()


def test_scores_of_an_expert_give_the_excess_loss(learner):
    stream = ragged_stream()
    test = blobs(40, seed=0)
    expert = rvfl_jax.offline_scores(learner, stream, test[0], key=KEY)
    whole = rvfl_jax.run_stream(learner, stream, key=KEY, test=test, expert=expert)
    options = options_of(stream, test=test, classes=stream.classes.tolist(), expert=expert)
    read = rvfl_jax.run_stream(learner, pairs_of(stream), **options)
    for name in ("excess_loss", "kl_from_expert"):
        got, want = (getattr(one.history, name) for one in (read, whole))
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-12)


def test_lookahead_and_state_are_taken(learner):
    stream = ragged_stream()
    rows = blobs(5, seed=3)[0]
    first = rvfl_jax.run_stream(learner, stream, key=KEY)
    more = {"state": first.state, "lookahead": rows}
    whole = rvfl_jax.run_stream(learner, stream, key=KEY, **more)
    read = rvfl_jax.run_stream(learner, pairs_of(stream), **options_of(stream, **more))
    same(read.state, whole.state)


def test_reads_one_chunk_ahead_and_no_further(learner):
    stream = ragged_stream(num_batches=24)
    taken, most = [], []

    def counted():
        for t, pair in enumerate(pairs_of(stream)):
            taken.append(t)
            yield pair

    def progress(done, total):
        assert total == 0
        most.append(len(taken) - done)

    options = options_of(stream, chunk_size=3, progress=progress)
    rvfl_jax.run_stream(learner, counted(), **options)
    # The chunk in the thread, the one waiting, and the batch announced to it.
    assert max(most) <= 3 + 3 + 1
    assert taken == list(range(24))


def test_errors_of_the_source_reach_the_caller(learner):
    stream = ragged_stream()

    def breaks():
        yield from list(pairs_of(stream))[:5]
        raise ConnectionError("the disk is gone")

    before = threading.active_count()
    with pytest.raises(ConnectionError, match="the disk is gone"):
        rvfl_jax.run_stream(learner, breaks(), **options_of(stream, chunk_size=2))
    assert threading.active_count() == before


def test_a_reader_keeps_order_and_ends():
    reader = Reader()
    assert list(reader.ahead(iter(range(7)))) == list(range(7))
    assert list(reader.ahead(iter(()))) == []
    reader.close()
    assert not reader._thread.is_alive()


def test_one_thread_reads_everything_with_the_settings_of_the_caller(learner, tmp_path):
    X, y = blobs(40)
    found = []

    def source():
        for start in range(0, 40, 8):
            part = jax.numpy.asarray(X[start : start + 8])
            found.append((part.dtype, threading.get_ident()))
            yield part, y[start : start + 8]

    with jax.enable_x64(True):
        read = rvfl_jax.run_stream(learner, source(), key=KEY, num_classes=4, chunk_size=2)
    plain = ((X[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8))
    same(read.state, rvfl_jax.run_stream(learner, plain, key=KEY, num_classes=4).state)
    assert found == [(np.dtype(np.float64), found[0][1])] * 5
    assert found[0][1] != threading.get_ident()


def test_a_source_that_blocks_holds_up_no_interruption(learner):
    stream, blocked = ragged_stream(), threading.Event()

    def stuck():
        yield from list(pairs_of(stream))[:7]
        blocked.wait(30)

    def interrupt(done, total):
        raise KeyboardInterrupt

    begun = time.monotonic()
    options = options_of(stream, chunk_size=2, progress=interrupt)
    with pytest.raises(KeyboardInterrupt):
        rvfl_jax.run_stream(learner, stuck(), **options)
    assert time.monotonic() - begun < 25
    blocked.set()


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.float16])
def test_no_feature_is_rounded_on_its_way(dtype):
    X = (blobs(12)[0] * 1000).astype(dtype)
    X[0, 0] = np.iinfo(dtype).max // 3 if np.dtype(dtype).kind == "i" else 60000
    X[0, 0] = min(int(X[0, 0]), 1_700_000_001)
    y = np.arange(12) % 4
    feed = Feed([(X, y)], classes=None, capacity=4, batch_size=None, chunk_size=None)
    (chunk,) = feed.chunks(None, None)
    np.testing.assert_array_equal(chunk.batches.X[0].astype(np.float64), X.astype(np.float64))
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=1, num_batches=1, seed=0)
    np.testing.assert_array_equal(np.sort(stream.X[0], axis=0), np.sort(X, axis=0))


def test_dtypes_are_kept_and_taken():
    X, y = blobs(20)
    images = (X * 10).astype(np.uint8)
    for given, kept in (
        (images, np.uint8),
        (X.astype(np.float32), np.float32),
        (X > 0, np.float32),
    ):
        feed = Feed([(given, y)], classes=None, capacity=4, batch_size=None, chunk_size=None)
        assert feed.first[0].dtype == kept
        (chunk,) = feed.chunks(None, None)
        np.testing.assert_array_equal(chunk.batches.X[0], given.astype(kept))


def test_rows_of_data_sets_make_batches():
    X, y = blobs(23)
    as_pairs = list(rvfl_jax.batched(zip(X, y, strict=True), 10))
    records = ({"x": x.reshape(2, 3), "label": int(c)} for x, c in zip(X, y, strict=True))
    as_mappings = list(rvfl_jax.batched(records, 10, features="x", label="label"))
    for batches in (as_pairs, as_mappings):
        assert [len(part) for part, _ in batches] == [10, 10, 3]
        np.testing.assert_array_equal(np.concatenate([part for part, _ in batches]), X)
        assert [label for _, labels in batches for label in labels] == y.tolist()
    with pytest.raises(ValueError, match="rows 0 to 9: expected features at 'pixels'"):
        next(rvfl_jax.batched([{"x": X[0], "label": 0}] * 20, 10, features="pixels", label="label"))
    with pytest.raises(ValueError, match="batch_size: expected an integer"):
        rvfl_jax.batched([], 0)


def test_a_data_loader_of_torch_is_a_stream(learner):
    torch = pytest.importorskip("torch")
    X, y = blobs(40)
    data = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(y))
    loader = torch.utils.data.DataLoader(data, batch_size=8)
    read = rvfl_jax.run_stream(learner, loader, key=KEY, num_classes=4)
    plain = ((X[i : i + 8], y[i : i + 8]) for i in range(0, 40, 8))
    same(read.state, rvfl_jax.run_stream(learner, plain, key=KEY, num_classes=4).state)


def test_memory_mapped_files_are_read_in_slices(learner, tmp_path):
    X, y = blobs(64)
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    slices = ((mapped[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16))
    plain = ((X[i : i + 16], y[i : i + 16]) for i in range(0, 64, 16))
    read = rvfl_jax.run_stream(learner, slices, key=KEY, num_classes=4)
    same(read.state, rvfl_jax.run_stream(learner, plain, key=KEY, num_classes=4).state)


X, Y = blobs(8)
NAN = np.where(np.arange(6) == 2, np.nan, X)


@pytest.mark.parametrize(
    ("pairs", "options", "message"),
    [
        ([], {}, r"stream: expected at least one batch \(X, y\), got none"),
        ([X], {}, r"batch 0: expected a pair \(X, y\), got an array of shape \(8, 6\)"),
        ([{"x": X, "y": Y}], {}, r"batch 0: expected a pair \(X, y\), got a mapping with x, y"),
        ([(X, Y), X], {}, r"batch 1: expected a pair"),
        ([(X, Y), 3], {}, r"batch 1: expected a pair \(X, y\), got int"),
        ([(X, Y), (X[:, :5], Y)], {}, "batch 1: expected 6 features, got 5"),
        ([(X, Y), (NAN, Y)], {}, r"batch 1: expected finite numbers, got nan at \(0, 2\)"),
        ([(X, Y), (X, Y[:5])], {}, "batch 1: expected 8 labels, one a row, got 5"),
        ([(X, Y), (X, Y - 1)], {}, "batch 1: expected labels of at least 0, got .*-1.* in row 0"),
        ([(X[:4], Y[:4]), (X, Y)], {}, "batch 1: expected at most 4 rows, got 8; batch_size"),
        ([(X, Y)], {"batch_size": 7}, "batch 0: expected at most 7 rows, got 8"),
        ([(X.astype(np.uint8), Y), (X, Y)], {}, "batch 1: expected numbers that fit uint8"),
        ([(X.astype(np.float32), Y), (X, Y)], {}, "batch 1: expected numbers that fit float32"),
        ([(X.astype(np.uint8), Y), (X.astype(np.uint16), Y)], {}, "fit uint8.*got uint16"),
        (5, {}, r"stream: expected a Stream or an iterable of \(X, y\), got int"),
        ([(X, Y)], {"num_classes": 3}, "batch 0: expected at most 3 classes, got one more: 3"),
        ([(X, Y)], {"num_classes": None}, "num_classes: expected the most classes"),
        ([(X, Y)], {"classes": [0, 1, 2]}, "batch 0: expected one of the 3 known classes, got 3"),
        ([(X, Y)], {"classes": [0, 1, 2, 3, 3]}, "classes: expected each label once"),
        ([(X, Y)], {"classes": [0, 1, 2, 3, 4]}, "num_classes: expected at least 5, got 4"),
        ([(X, Y)], {"test": (X, Y)}, "test: expected classes beside it"),
        ([(X, Y)], {"evaluate": "task"}, "evaluate: expected batch, never or an integer"),
        ([(X, Y)], {"guesses": False}, "stream: expected one in memory beside guesses=False"),
        ([(X, Y)], {"lookahead": X[:, :2]}, "lookahead: expected 6 features, got 2"),
        ([(X, Y)], {"lookahead": np.tile(X, (2, 1))}, "lookahead: expected at most 8 rows"),
        ([(X, Y)], {"resume": True}, "resume: expected a checkpoint to go on from, got none"),
        ([(X, Y)], {"expert": "offlin"}, "expert: expected offline, an array or None"),
    ],
)
def test_bad_batches_are_named(learner, pairs, options, message):
    with pytest.raises(ValueError, match=message):
        rvfl_jax.run_stream(learner, pairs, **{"key": KEY, "num_classes": 4, **options})


def test_a_stream_in_memory_has_classes_of_its_own(learner, stream):
    for more in ({"classes": [0, 1, 2, 3]}, {"batch_size": 30}):
        with pytest.raises(ValueError, match="stream: expected an iterable of"):
            rvfl_jax.run_stream(learner, stream, key=KEY, **more)
