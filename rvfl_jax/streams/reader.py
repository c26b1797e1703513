"""Streams that need not fit into memory: batches from anything that can be iterated.

A batch is a pair (X, y). One batch is always read before the pending one is learned, since a
learner sees the inputs of the next; and one chunk of batches is read while the one before is
computed. All reading is done by one thread. Memory is that of three chunks.
"""

import contextvars
import hashlib
import itertools
import queue
import threading
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import plain_array, positive_int, real_matrix
from rvfl_jax.streams.batches import Batches, Chunk
from rvfl_jax.streams.class_incremental import stored_dtype
from rvfl_jax.streams.label_map import LabelMap
from rvfl_jax.streams.labels import clean_labels

# A chunk this large costs far more than the call that learns it.
CHUNK_BYTES = 1 << 25
MOST_BATCHES = 64

T = TypeVar("T")


class Rows(NamedTuple):
    """A checked batch: X (rows, s), and the column of each row."""

    X: np.ndarray
    columns: np.ndarray


class Feed:
    """Checked batches of one width, and the columns of their labels.

    Attributes:
        labels: those seen so far, or all that may come.
        batch_size: b, rows that batches are padded to.
        num_features: s.
        first: X (b, s) and weight (b,) of the first batch.
        size: batches of a chunk.
        done: batches handed over or skipped.
    """

    def __init__(
        self,
        pairs: Iterable[tuple[Any, Any]],
        *,
        classes: Sequence[Hashable] | None,
        capacity: int,
        batch_size: int | None,
        chunk_size: int | None,
    ) -> None:
        """Read the first batch.

        Args:
            pairs: of (X, y); X (rows, s) real and finite, y (rows,) labels.
            classes: labels in the order of their columns; in order of appearance when None.
            capacity: m, labels that there is room for.
            batch_size: most rows of a batch; those of the first when None.
            chunk_size: batches of a chunk; as many as take 32 MB, 64 at most, when None.

        Raises:
            ValueError: on no batch, or a first one that cannot be learned.
        """
        self.labels = LabelMap(() if classes is None else tuple(classes))
        self.done = self._seen = 0
        self._open, self._capacity = classes is None, capacity
        self._digest = hashlib.sha256()
        pairs = enumerate(pairs)
        head = next(pairs, None)
        if head is None:
            raise ValueError("stream: expected at least one batch (X, y), got none")
        X, _ = _matrix_and_labels(*head)
        self.batch_size = len(X) if batch_size is None else positive_int("batch_size", batch_size)
        self.num_features = X.shape[1]
        self._dtype = stored_dtype(X.dtype)
        fits = CHUNK_BYTES // (self.batch_size * self.num_features * self._dtype.itemsize)
        self.size = min(max(fits, 1), MOST_BATCHES)
        if chunk_size is not None:
            self.size = positive_int("chunk_size", chunk_size)
        rows = (self._checked(*pair) for pair in itertools.chain([head], pairs))
        first = next(rows)
        self._rows = itertools.chain([first], rows)
        batches = self._empty(1)
        _put(batches, 0, first)
        self.first = batches.X[0], batches.weight[0]

    @property
    def digest(self) -> str:
        """SHA-256 of dtypes, shapes and bytes of all batches handed over or skipped."""
        return self._digest.hexdigest()

    def skip(self, count: int) -> str:
        """Read past batches that are learned already; the digest that `chunks` gave with them.

        Raises:
            ValueError: if there are fewer.
        """
        for rows in itertools.islice(self._rows, count):
            self._count(rows)
        if self.done < count:
            raise ValueError(
                f"stream: expected at least the {count} batches learned already, got {self.done}"
            )
        upcoming = next(self._rows, None)
        if upcoming is not None:
            self._rows = itertools.chain([upcoming], self._rows)
        return self._digest_with(upcoming)

    def chunks(self, every: int | None, lookahead: np.ndarray | None) -> Iterator[Chunk]:
        """What is left of the stream.

        Args:
            every: evaluate the test set after every so many batches and at the end, or None.
            lookahead: (rows, s) inputs announced to the last batch, or None.
        """
        upcoming = next(self._rows, None)
        while upcoming is not None:
            batches, count, start = self._empty(self.size + 1), 0, self.done
            while upcoming is not None and count < self.size:
                _put(batches, count, upcoming)
                self._count(upcoming)
                count += 1
                upcoming = next(self._rows, None)
            if upcoming is not None:
                _put(batches, count, upcoming)
            elif lookahead is not None:
                _put(batches, count, Rows(lookahead, np.zeros(len(lookahead), np.int32)))
                X, y, weight = batches.X, batches.y, batches.weight
                batches = Batches(*(array[: count + 1] for array in (X, y, weight)))
            columns = None
            if every is not None:
                place = np.arange(len(batches.X) - 1)
                evaluated = ((start + place + 1) % every == 0) & (place < count)
                evaluated[count - 1] |= upcoming is None
                columns = np.where(evaluated, self._capacity, 0)
            yield Chunk(batches, columns, count, self._digest_with(upcoming))

    def _checked(self, t: int, pair: Any) -> Rows:
        X, labels = _matrix_and_labels(t, pair)
        if X.shape[1] != self.num_features:
            raise ValueError(f"batch {t}: expected {self.num_features} features, got {X.shape[1]}")
        if len(X) > self.batch_size:
            raise ValueError(
                f"batch {t}: expected at most {self.batch_size} rows, got {len(X)};"
                " batch_size makes room for more"
            )
        if not np.can_cast(X.dtype, self._dtype, "safe"):
            raise ValueError(
                f"batch {t}: expected numbers that fit {self._dtype}, as the first batch had them,"
                f" got {X.dtype}"
            )
        if self._open:
            self.labels = self.labels.extended(labels)
            if len(self.labels.labels) > self._capacity:
                raise ValueError(
                    f"batch {t}: expected at most {self._capacity} classes, got one more:"
                    f" {self.labels.labels[self._capacity]!r}"
                )
        return Rows(X, self.labels.columns(f"batch {t}", labels))

    def _count(self, rows: Rows) -> None:
        for array in rows:
            _add(self._digest, array)
        self._seen = max(self._seen, int(rows.columns.max()) + 1)
        self.done += 1

    def _digest_with(self, upcoming: Rows | None) -> str:
        """Digest of all that a learner has seen: batches, their labels, and what comes next."""
        digest = self._digest.copy()
        digest.update(repr(self.labels.labels[: self._seen]).encode())
        if upcoming is None:
            digest.update(b"the end")
        else:
            _add(digest, upcoming.X)
        return digest.hexdigest()

    def _empty(self, count: int) -> Batches:
        shape = count, self.batch_size
        X = np.zeros((*shape, self.num_features), self._dtype)
        return Batches(X, np.zeros(shape, np.int32), np.zeros(shape, np.float32))


class Reader:
    """One thread for all that is asked of a source, some of which bear no other.

    It sees the caller's context and its setting of 64 bits. It is not waited for: a source that
    blocks must not hold up Ctrl-C.
    """

    def __init__(self) -> None:
        """Start the thread."""
        self._tasks: queue.SimpleQueue[Any] = queue.SimpleQueue()
        context = contextvars.copy_context()
        wide = jnp.result_type(float) == np.float64
        self._thread = threading.Thread(target=context.run, args=(self._work, wide), daemon=True)
        self._thread.start()

    def ask(self, function: Callable[..., T], *args: Any, **options: Any) -> "Future[T]":
        """What a function gives when the thread comes to it."""
        future: Future[T] = Future()
        self._tasks.put((future, function, args, options))
        return future

    def ahead(self, items: Iterator[T]) -> Iterator[T]:
        """The same items, each made while the one before is used."""
        end = object()
        coming: Future[Any] = self.ask(next, items, end)
        while (item := coming.result()) is not end:
            coming = self.ask(next, items, end)
            yield item

    def close(self) -> None:
        """Let the thread end after what it is doing."""
        self._tasks.put(None)
        self._thread.join(timeout=1)

    def _work(self, wide: bool) -> None:
        with jax.enable_x64(wide):
            while (task := self._tasks.get()) is not None:
                future, function, args, options = task
                try:
                    future.set_result(function(*args, **options))
                except BaseException as error:
                    future.set_exception(error)


def batched(
    rows: Iterable[Any], batch_size: int, *, features: Any = 0, label: Any = 1
) -> Iterator[tuple[np.ndarray, list[Any]]]:
    """Group single rows, such as those of a data set, into batches for `run_stream`.

    Example:
        >>> rows = ({"x": image, "y": digit} for image, digit in zip(X, y))
        >>> stream = batched(rows, 64, features="x", label="y")
        >>> run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0), classes=range(10))

    Args:
        rows: pairs (x, y), or mappings.
        batch_size: number of rows of each batch; the last may have fewer.
        features: index or key of a row's features, which are flattened.
        label: index or key of a row's label.

    Raises:
        ValueError: on a row without them, or a batch size below 1.
    """
    positive_int("batch_size", batch_size)

    def whole() -> Iterator[tuple[np.ndarray, list[Any]]]:
        source = iter(rows)
        start = 0
        while part := list(itertools.islice(source, batch_size)):
            try:
                X = np.stack([np.ravel(row[features]) for row in part])
                yield X, [_plain_label(row[label]) for row in part]
            except (LookupError, TypeError) as error:
                raise ValueError(
                    f"rows {start} to {start + len(part) - 1}: expected features at {features!r}"
                    f" and a label at {label!r}: {type(error).__name__}: {error}"
                ) from None
            start += len(part)

    return whole()


def _matrix_and_labels(t: int, pair: Any) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(pair, Mapping | str) or not hasattr(pair, "__len__") or len(pair) != 2:
        raise ValueError(f"batch {t}: expected a pair (X, y), got {_in_brief(pair)}")
    X = real_matrix(f"batch {t}", pair[0])
    y = pair[1]
    # Tensors of other libraries are arrays to NumPy, and not to a list.
    y = plain_array(f"batch {t}", y) if hasattr(y, "__array__") else y
    labels = clean_labels(f"batch {t}", y)
    if len(labels) != len(X):
        raise ValueError(f"batch {t}: expected {len(X)} labels, one a row, got {len(labels)}")
    return X, labels


def _add(digest: Any, array: np.ndarray) -> None:
    digest.update(f"{array.dtype.str}{array.shape}".encode())
    digest.update(np.ascontiguousarray(array).data)


def _in_brief(value: Any) -> str:
    if isinstance(value, Mapping):
        return f"a mapping with {', '.join(map(str, value))}"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"{type(value).__name__}" + (f" of {len(value)}" if hasattr(value, "__len__") else "")


def _plain_label(label: Any) -> Any:
    return np.asarray(label).item() if hasattr(label, "__array__") else label


def _put(batches: Batches, place: int, rows: Rows) -> None:
    X, columns = rows
    count = len(X)
    batches.X[place, :count] = X
    batches.y[place, :count] = columns
    batches.weight[place, :count] = 1
