"""What `run_stream` is given, checked on the host and brought into the scan's terms."""

from collections.abc import Iterable, Mapping, Sized
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import positive_int, real_matrix
from rvfl_jax.core.types import Array, Learner, State, Stream
from rvfl_jax.learners.base import state_differences
from rvfl_jax.runs.evaluation import HeldOut
from rvfl_jax.runs.history import Run
from rvfl_jax.runs.options import RunOptions
from rvfl_jax.runs.scan import init_state
from rvfl_jax.runs.sharding import check_width, init_over_mesh, place_state
from rvfl_jax.streams.batches import Batches
from rvfl_jax.streams.labels import to_columns

SCHEDULES = ("batch", "task", "never")


def schedule_of(evaluate: str | int, task_ends: np.ndarray, T: int) -> np.ndarray | None:
    """(T,) batches after which the test set is evaluated; None for never."""
    if evaluate == "never":
        return None
    if evaluate == "batch":
        return np.ones(T, bool)
    at = np.zeros(T, bool)
    if evaluate == "task":
        at[task_ends[task_ends >= 0]] = True
    elif isinstance(evaluate, str):
        raise ValueError(
            f"evaluate: expected one of {', '.join(SCHEDULES)} or an integer, got {evaluate!r}"
        )
    else:
        at[positive_int("evaluate", evaluate) - 1 :: evaluate] = True
    at[-1] = True
    return at


def batches_of(stream: Stream, boundaries: str) -> Batches:
    """What a learner sees of a stream; the ends of tasks only where they are "given"."""
    ends = None
    if boundaries == "given":
        ends = np.zeros(stream.num_batches, bool)
        ends[stream.task_ends[stream.task_ends >= 0]] = True
    return Batches(stream.X, stream.y, stream.weight, ends)


def announce(batches: Batches, lookahead: Any) -> Batches:
    """The batches with inputs that follow them, (b', s), as one more."""
    if lookahead is None:
        return batches
    _, b, s = batches.X.shape
    rows = real_matrix("lookahead", lookahead)
    if rows.shape[1] != s or len(rows) > b:
        raise ValueError(f"lookahead: expected at most {b} rows of {s}, got shape {rows.shape}")
    X = np.zeros((1, b, s), batches.X.dtype)
    X[0, : len(rows)] = rows
    weight = (np.arange(b) < len(rows)).astype(batches.weight.dtype)[None]
    return batches._replace(
        X=np.concatenate([batches.X, X]),
        y=np.concatenate([batches.y, np.zeros((1, b), batches.y.dtype)]),
        weight=np.concatenate([batches.weight, weight]),
    )


def capacity_of(num_classes: int | None, classes: Sized) -> int:
    """m, columns of the readout."""
    m = len(classes) if num_classes is None else positive_int("num_classes", num_classes)
    if m < len(classes):
        raise ValueError(f"num_classes: expected at least {len(classes)}, got {m}")
    return m


def check_features(name: str, X: Any, num_features: int) -> np.ndarray:
    """X as a real matrix of so many features, or a ValueError."""
    X = real_matrix(name, X)
    if X.shape[1] != num_features:
        raise ValueError(f"{name}: expected {num_features} features, got {X.shape[1]}")
    return X


def check_expert(expert: Any, test: tuple[np.ndarray, np.ndarray] | None, m: int) -> None:
    """ValueError on an expert that is no name and no (L, n, m) or (n, m) scores."""
    if isinstance(expert, str):
        if expert != "offline":
            raise ValueError(f"expert: expected offline, an array or None, got {expert!r}")
    elif expert is not None and test is not None:
        n = len(test[1])
        if np.ndim(expert) not in (2, 3) or np.shape(expert)[-2:] != (n, m):
            raise ValueError(f"expert: expected shape (L, {n}, {m}), got {np.shape(expert)}")


def check_learner(learner: Any) -> None:
    """ValueError on what is no learner."""
    if not isinstance(learner, Learner):
        raise ValueError(
            f"learner: expected a Learner, such as edrvfl(...) gives, got {type(learner).__name__}"
        )


def check_batches(stream: Any) -> None:
    """ValueError on what is no iterable of batches, though it could be mistaken for one."""
    how = (
        "class_incremental_stream(X, y, num_tasks=..., num_batches=..., seed=...) cuts rows into a"
        " stream, and [(X, y)] is one of a single batch"
    )
    pair = isinstance(stream, tuple | list) and len(stream) == 2
    if pair and [getattr(part, "ndim", 0) for part in stream] == [2, 1]:
        raise ValueError(f"stream: expected batches (X, y), got one pair of arrays; {how}")
    if hasattr(stream, "shape") or isinstance(stream, Mapping | str | bytes):
        raise ValueError(f"stream: expected batches (X, y), got {type(stream).__name__}; {how}")
    if not isinstance(stream, Iterable):
        raise ValueError(
            f"stream: expected a Stream or an iterable of (X, y), got {type(stream).__name__}"
        )


def shapes_of(learner: Learner, key: Array, num_features: int, num_classes: int) -> Any:
    """Structure, shapes and dtypes of what `learner.init` gives."""
    return jax.eval_shape(lambda key: learner.init(key, num_features, num_classes), key)


def check_state(learner: Learner, options: RunOptions, num_features: int, num_classes: int) -> None:
    """ValueError that lists in what the state given is not one of this learner and stream."""
    state: Any = options.state
    expected = shapes_of(learner, options.key, num_features, num_classes)
    if isinstance(state, Run) or (type(state) is not type(expected) and _is_container(expected)):
        more = "; `run.state` is one" if isinstance(state, Run) else ""
        raise ValueError(
            f"state: expected {type(expected).__name__}, got {type(state).__name__}{more}"
        )
    faults = (learner.stream.facts.differences or state_differences)(expected, state)
    if faults:
        raise ValueError(
            f"state: expected one of this learner and stream, got another: {'; '.join(faults)}"
        )


def _is_container(tree: Any) -> bool:
    return not jax.tree_util.all_leaves([tree])


def columns_known(learner: Learner, state: Any) -> int:
    """How many leading columns hold every class that a state knows of, if the method tells."""
    known = learner.stream.facts.columns_known
    return 0 if known is None else known(state)


def encode_test(
    test: tuple[Any, Any], classes: np.ndarray, num_features: int
) -> tuple[np.ndarray, np.ndarray]:
    """The test set as rows and columns."""
    pair = isinstance(test, tuple | list) and len(test) == 2
    if not pair:
        raise ValueError(
            f"test: expected a pair (X, y), got {type(test).__name__}"
            + (f" of {len(test)}" if hasattr(test, "__len__") else "")
        )
    X = check_features("test X", test[0], num_features)
    y = to_columns("test y", test[1], classes)
    if len(y) != len(X):
        raise ValueError(f"test y: expected {len(X)} labels, got {len(y)}")
    return X, y


def examined(
    X: np.ndarray,
    y: np.ndarray,
    class_task: np.ndarray,
    m: int,
    reference: Any,
    confusion: bool = False,
) -> HeldOut:
    """The test set as the scan takes it, for a readout of m columns."""
    rows = np.bincount(class_task[y], minlength=int(class_task.max()) + 1)
    # Columns that no class has claimed belong to no task.
    class_task = np.pad(class_task, (0, m - len(class_task)), constant_values=-1)
    counts = np.zeros((m, m), np.int32) if confusion else None
    return HeldOut(X, y, class_task, rows.astype(np.float32), reference, counts)


def start_state(
    learner: Learner, options: RunOptions, num_features: int, num_classes: int
) -> State:
    """The state to begin with, in the precision of this run and on its devices."""
    mesh, layout = options.mesh, options.layout
    if options.state is not None:
        state = in_precision(options.state)
        if mesh is None:
            return state
        check_width(learner, mesh, layout, state)
        return place_state(learner, state, mesh, layout)
    if mesh is None:
        return init_state(learner, options.key, num_features, num_classes)
    shapes = shapes_of(learner, options.key, num_features, num_classes)
    check_width(learner, mesh, layout, shapes)
    return init_over_mesh(mesh, layout, learner, options.key, num_features, num_classes)


def in_precision(state: Any) -> Any:
    """The state with its numbers in the precision of this run."""
    dtype = jnp.result_type(float)

    def cast(leaf: Any) -> Any:
        leaf = leaf if hasattr(leaf, "dtype") else np.asarray(leaf)
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, state)
