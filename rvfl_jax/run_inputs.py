"""What `run_stream` is given, checked on the host and brought into the scan's terms."""

from collections.abc import Sized
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rvfl_jax.batches import Batches
from rvfl_jax.checks import positive_int, real_matrix
from rvfl_jax.devices import check_width, fetch, init_over_mesh, place_state
from rvfl_jax.evaluation import Examined
from rvfl_jax.labels import to_columns
from rvfl_jax.scan import init_state
from rvfl_jax.types import Array, Learner, State

SCHEDULES = ("batch", "task", "never")


def schedule_of(evaluate: str | int, task_ends: np.ndarray, T: int) -> np.ndarray | None:
    """(T,) batches after which the test set is looked at; None for never."""
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
    return Batches(
        np.concatenate([batches.X, X]),
        np.concatenate([batches.y, np.zeros((1, b), batches.y.dtype)]),
        np.concatenate([batches.weight, weight]),
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
    """ValueError on an expert that is no name and no (L, n, m) scores."""
    if isinstance(expert, str):
        if expert != "offline":
            raise ValueError(f"expert: expected offline, an array or None, got {expert!r}")
    elif expert is not None and test is not None:
        n = len(test[1])
        if np.ndim(expert) != 3 or np.shape(expert)[1:] != (n, m):
            raise ValueError(f"expert: expected shape (L, {n}, {m}), got {np.shape(expert)}")


def check_state(state: Any, num_features: int, num_classes: int) -> None:
    """ValueError on a state of other shapes."""
    fits = state.W.shape[1] - state.W.shape[2], state.theta.shape[-1]
    if fits != (num_features, num_classes):
        raise ValueError(
            f"state: expected one for {num_features} features and {num_classes} classes,"
            f" got one for {fits[0]} and {fits[1]}"
        )


def columns_known(state: Any) -> int:
    """How many leading columns hold every class that a state can tell from the others."""
    known = np.flatnonzero(np.any(fetch(state.theta) != 0, axis=(0, 1)))
    return int(np.max(known, initial=-1)) + 1


def encode_test(
    test: tuple[Any, Any], classes: np.ndarray, num_features: int
) -> tuple[np.ndarray, np.ndarray]:
    """The test set as rows and columns."""
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
) -> Examined:
    """The test set as the scan takes it, for a readout of m columns."""
    rows = np.bincount(class_task[y], minlength=int(class_task.max()) + 1)
    # Columns that no class has claimed belong to no task.
    class_task = np.pad(class_task, (0, m - len(class_task)), constant_values=-1)
    counts = np.zeros((m, m), np.int32) if confusion else None
    return Examined(X, y, class_task, rows.astype(np.float32), reference, counts)


def start_state(
    learner: Learner,
    state: State | None,
    key: Array,
    num_features: int,
    num_classes: int,
    mesh: Mesh | None,
    layout: str,
) -> State:
    """The state to begin with, in the precision of this run and on its devices."""
    if state is not None:
        state = in_precision(state)
        if mesh is None:
            return state
        check_width(mesh, layout, state.theta.shape[1])
        return place_state(state, mesh, layout)
    if mesh is None:
        return init_state(learner, key, num_features, num_classes)
    init = partial(learner.init, num_features=num_features, num_classes=num_classes)
    check_width(mesh, layout, jax.eval_shape(init, key).theta.shape[1])
    return init_over_mesh(mesh, layout, learner, key, num_features, num_classes)


def in_precision(state: Any) -> Any:
    """The state with its numbers in the precision of this run."""
    dtype = jnp.result_type(float)

    def cast(leaf: Any) -> Any:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    return jax.tree.map(cast, state)
