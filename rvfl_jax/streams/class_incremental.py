"""Class-incremental streams: rows ordered by task, cut into padded batches (NumPy only)."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec
from typing import Protocol as Interface

import numpy as np

from rvfl_jax.core.checks import (
    finite,
    is_number,
    one_of,
    plain_array,
    positive_int,
    real_matrix,
)
from rvfl_jax.core.keywords import options_from_keywords
from rvfl_jax.core.types import Order, Stream
from rvfl_jax.streams.labels import classes_in_order, clean_labels, to_columns

P = ParamSpec("P")

ORDERS = ("classes", "tasks", "none")


@dataclass(frozen=True, kw_only=True)
class CutOptions:
    """All arguments of `class_incremental_stream` but the rows; see there."""

    num_tasks: int
    num_batches: int
    seed: int
    order: Order = "classes"
    class_order: Sequence[Any] | None = None
    task_sizes: Sequence[int] | None = None
    blur: float = 0.0
    batch_size: int | None = None


class _MakeStream(Interface[P]):
    def __call__(self, X: Any, y: Any, *args: P.args, **options: P.kwargs) -> Stream: ...


def _stream_with(
    kind: Callable[P, CutOptions],
) -> Callable[[Callable[[Any, Any, CutOptions], Stream]], _MakeStream[P]]:
    """What a type checker knows of the decorator: calls take the arguments of `kind`."""
    return options_from_keywords(kind)


@_stream_with(CutOptions)
def class_incremental_stream(X: Any, y: Any, options: CutOptions) -> Stream:  # noqa: D417
    """Cut labelled rows into a stream whose tasks bring new classes.

    Rows are shuffled within their task. With sharp boundaries every task gets batches of
    its own, in proportion to its rows and at least one; with `blur` > 0 rows near a
    boundary mix with the neighbouring task and batches may hold both.

    Args:
        X: (n, s) real, finite.
        y: (n,) labels of any hashable kind; integral floats count as integers.
        num_tasks: Q, at most the number of classes.
        num_batches: T >= Q, over the whole stream.
        seed: seed of the order of classes and of the shuffles.
        order: what the seed shuffles besides rows. "classes": which classes make a task, and
            so the tasks; "tasks": only the order of tasks, whose classes are neighbours
            among the sorted labels (the paper's protocol); "none": neither.
        class_order: all labels, in the order in which tasks bring them; replaces `order`.
        task_sizes: (Q,) number of classes of each task; as equal as possible when None, the larger
            tasks first.
        blur: 0 .. 1, half-width of the mixing zone around each boundary in units of a task.
        batch_size: rows to pad every batch to; the longest batch when None.

    Returns:
        A `Stream` whose columns are in order of first appearance.

    Raises:
        ValueError: on empty, non-finite or misshapen data, labels that cannot be classes,
            T < Q, or a class order or task sizes that do not fit the labels.
    """
    X = real_matrix("X", X)
    labels = clean_labels("y", y)
    if len(labels) != len(X):
        raise ValueError(f"y: expected {len(X)} labels, one a row of X, got {len(labels)}")
    rng = np.random.default_rng(options.seed)
    order, blur = one_of("order", options.order, ORDERS), options.blur
    present = classes_in_order(labels)
    Q = positive_int("num_tasks", options.num_tasks)
    if len(present) < Q:
        raise ValueError(f"num_tasks: expected at most {len(present)} (the classes), got {Q}")
    T = positive_int("num_batches", options.num_batches)
    if not Q <= T <= len(X):
        raise ValueError(f"num_batches: expected {Q} (the tasks) to {len(X)} (the rows), got {T}")
    if not is_number(blur) or not 0 <= blur <= 1:
        raise ValueError(f"blur: expected a number from 0 to 1, got {blur!r}")
    sizes = _task_sizes(options.task_sizes, Q, len(present))
    if options.class_order is None:
        arranged, sizes = _shuffled(present, sizes, order, rng)
    else:
        arranged = _given_order(present, options.class_order)
    task_of_class = np.repeat(np.arange(Q), sizes)
    row_task = task_of_class[to_columns("y", labels, arranged)]
    rows, cuts = _arrange(row_task, Q, T, blur, rng)
    classes = classes_in_order(labels[rows])
    columns = to_columns("y", labels, classes)
    class_task = task_of_class[to_columns("class_order", classes, arranged)]
    return _pad(X, columns, row_task, rows, cuts, classes, class_task, options.batch_size)


def by_task(stream: Stream) -> Stream:
    """The same rows with one batch a task, as the non-continual references need them.

    Rows go to the task of their class, so that blurred boundaries become sharp.
    """
    keep = stream.weight > 0
    X, y, weight = stream.X[keep], stream.y[keep], stream.weight[keep]
    row_task = stream.class_task[y]
    rows = np.argsort(row_task, kind="stable")
    cuts = np.searchsorted(row_task[rows], np.arange(stream.num_tasks + 1))
    merged = _pad(X, y, row_task, rows, cuts, stream.classes, stream.class_task, None)
    padded_weight = merged.weight.copy()
    padded_weight[merged.weight > 0] = weight[rows]
    return merged._replace(weight=padded_weight)


def pad_batches(stream: Stream, batch_size: int) -> Stream:
    """The same stream with every batch padded to `batch_size` rows of weight 0.

    Streams of different seeds padded alike share one compiled program.

    Raises:
        ValueError: if the batches are longer than that already.
    """
    extra = batch_size - stream.X.shape[1]
    if extra < 0:
        raise ValueError(
            f"batch_size: expected at least {stream.X.shape[1]} (the longest batch),"
            f" got {batch_size}"
        )

    def pad(array: np.ndarray) -> np.ndarray:
        return np.pad(array, [(0, 0), (0, extra)] + [(0, 0)] * (array.ndim - 2))

    return stream._replace(X=pad(stream.X), y=pad(stream.y), weight=pad(stream.weight))


def stored_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """What features are kept in: their own dtype, or the smallest float that loses none of them."""
    if dtype.kind in "fu":
        return dtype
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32) else np.float64)


def check_stream(stream: Stream) -> None:
    """ValueError if the stream's arrays do not fit together or hold what cannot be learned."""
    if not isinstance(stream, Stream):
        raise ValueError(
            "stream: expected a Stream, such as class_incremental_stream gives, got"
            f" {type(stream).__name__}"
        )
    X, y, weight = (
        plain_array(f"stream.{name}", getattr(stream, name)) for name in ("X", "y", "weight")
    )
    if X.ndim != 3 or 0 in X.shape:
        raise ValueError(f"stream.X: expected non-empty (T, b, num_features), got {X.shape}")
    for name, array in (("y", y), ("weight", weight)):
        if array.shape != X.shape[:2]:
            raise ValueError(f"stream.{name}: expected shape {X.shape[:2]}, got {array.shape}")
    if y.dtype.kind not in "iu":
        raise ValueError(f"stream.y: expected integer columns, got dtype {y.dtype}")
    if not (np.isfinite(weight) & (weight >= 0)).all():
        raise ValueError("stream.weight: expected finite weights of at least 0, got others")
    used = weight > 0
    if not used.any():
        raise ValueError("stream.weight: expected at least one row of positive weight, got none")
    inside = (y >= 0) & (y < len(stream.classes))
    if (used & ~inside).any():
        raise ValueError(
            f"stream.y: expected columns 0 to {len(stream.classes) - 1}, got {y[used & ~inside][0]}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        summable = X.dtype.kind != "f" or np.isfinite(X.sum(dtype=np.float64))
    if not summable:
        finite("stream.X", np.where(used[..., None], X, 0))


def _shuffled(
    present: np.ndarray, sizes: np.ndarray, order: str, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    # Sorted where that is possible, so that the result depends on the seed alone.
    classes = present if present.dtype == object else np.sort(present)
    if order == "classes":
        return rng.permutation(classes), sizes
    if order == "none":
        return classes, sizes
    tasks = np.split(classes, np.cumsum(sizes)[:-1])
    places = rng.permutation(len(tasks))
    return np.concatenate([tasks[q] for q in places]), sizes[places]


def _given_order(present: np.ndarray, given: Sequence[Any]) -> np.ndarray:
    order = classes_in_order(clean_labels("class_order", given))
    if len(order) != len(given) or set(order.tolist()) != set(present.tolist()):
        raise ValueError(
            f"class_order: expected each of the {len(present)} labels once, got {list(given)!r}"
        )
    return order


def _task_sizes(given: Sequence[int] | None, num_tasks: int, num_classes: int) -> np.ndarray:
    if given is None:
        small, larger = divmod(num_classes, num_tasks)
        return np.array([small + (q < larger) for q in range(num_tasks)])
    sizes = np.asarray(given)
    fits = sizes.shape == (num_tasks,) and sizes.dtype.kind in "iu" and (sizes > 0).all()
    if not fits or sizes.sum() != num_classes:
        raise ValueError(
            f"task_sizes: expected {num_tasks} positive integers that sum to {num_classes},"
            f" got {given!r}"
        )
    return sizes


def _arrange(
    row_task: np.ndarray,
    num_tasks: int,
    num_batches: int,
    blur: float,
    rng: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray]:
    """Row order, and the T + 1 places at which it is cut into batches."""
    n = len(row_task)
    position = row_task + rng.random(n)
    if blur == 0:
        rows = np.argsort(position, kind="stable")
        return rows, _sharp_cuts(np.bincount(row_task, minlength=num_tasks), num_batches)
    # Only rows within `blur` of a boundary move, so the middle of a task stays pure.
    near = np.abs(position - np.clip(np.round(position), 1, num_tasks - 1)) < blur
    position += near * rng.uniform(-blur, blur, n)
    return np.argsort(position, kind="stable"), np.linspace(0, n, num_batches + 1).astype(int)


def _sharp_cuts(rows_of_task: np.ndarray, num_batches: int) -> np.ndarray:
    batches = _apportion(rows_of_task, num_batches)
    cuts = [0]
    for rows, count in zip(rows_of_task, batches, strict=True):
        start = cuts[-1]
        cuts += [start + rows * (i + 1) // count for i in range(count)]
    return np.array(cuts)


def _apportion(rows_of_task: np.ndarray, num_batches: int) -> np.ndarray:
    """Batches of each task: one each, then always to the task with the longest batches."""
    batches = np.ones(len(rows_of_task), dtype=int)
    for _ in range(num_batches - len(batches)):
        batches[np.argmax(rows_of_task / batches)] += 1
    return batches


def _pad(
    X: np.ndarray,
    columns: np.ndarray,
    row_task: np.ndarray,
    rows: np.ndarray,
    cuts: np.ndarray,
    classes: np.ndarray,
    class_task: np.ndarray,
    batch_size: int | None,
) -> Stream:
    longest = int(np.diff(cuts).max())
    b = longest if batch_size is None else positive_int("batch_size", batch_size)
    if b < longest:
        raise ValueError(f"batch_size: expected at least {longest} (the longest batch), got {b}")
    T = len(cuts) - 1
    batches = np.zeros((T, b, X.shape[1]), stored_dtype(X.dtype))
    y = np.zeros((T, b), np.int32)
    weight = np.zeros((T, b), np.float32)
    task = np.zeros(T, np.int32)
    for t, (start, end) in enumerate(itertools.pairwise(cuts)):
        chosen = rows[start:end]
        batches[t, : len(chosen)] = X[chosen]
        y[t, : len(chosen)] = columns[chosen]
        weight[t, : len(chosen)] = 1
        task[t] = np.bincount(row_task[chosen]).argmax()
    return Stream(batches, y, weight, classes, task, class_task.astype(np.int32))
