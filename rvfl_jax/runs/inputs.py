"""What `run_stream` is given, checked on the host and brought into the scan's terms."""

from collections.abc import Iterable, Mapping, Sized
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from rvfl_jax.core.checks import differences, is_traced, positive_int, real_matrix
from rvfl_jax.core.types import Array, Learner, State
from rvfl_jax.runs.evaluation import Examined
from rvfl_jax.runs.history import Run
from rvfl_jax.runs.scan import init_state
from rvfl_jax.runs.sharding import check_width, fetch, init_over_mesh, place_state
from rvfl_jax.streams.batches import Batches
from rvfl_jax.streams.labels import to_columns

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


def check_state(learner: Learner, state: Any, num_features: int, num_classes: int) -> None:
    """ValueError that lists in what a state is not one of this learner and stream."""
    expected = jax.eval_shape(
        lambda key: learner.init(key, num_features, num_classes), jax.random.key(0)
    )
    if type(state) is not type(expected):
        more = "; `run.state` is one" if isinstance(state, Run) else ""
        raise ValueError(
            f"state: expected {type(expected).__name__}, got {type(state).__name__}{more}"
        )
    told = [_told_by(each) for each in (expected, state)]
    if None in (told[0].get("activation"), told[1].get("activation")):
        told = [{n: v for n, v in each.items() if n != "activation"} for each in told]
    faults = differences(*told) or _misshapen(expected, state)
    faults += _other_ridge(learner, state)
    if faults:
        raise ValueError(
            f"state: expected one of this learner and stream, got another: {'; '.join(faults)}"
        )


def _told_by(state: Any) -> dict[str, Any]:
    if not hasattr(state, "W") or not hasattr(state, "theta"):
        return {}
    layers, width, nodes = state.W.shape
    told = {"num_layers": layers, "num_nodes": nodes, "features": width - nodes}
    activation = getattr(state, "activation", None)
    return told | {"classes": state.theta.shape[-1], "activation": activation}


def _misshapen(expected: Any, state: Any) -> list[str]:
    """Arrays that are not there, or of another shape."""
    paths = jax.tree_util.tree_leaves_with_path
    got = {jax.tree_util.keystr(path): leaf.shape for path, leaf in paths(state)}
    return [
        f"{name[1:]}: expected shape {leaf.shape}, got {got.get(name, 'none')}"
        for name, leaf in ((jax.tree_util.keystr(path), leaf) for path, leaf in paths(expected))
        # States of before had no lambda.
        if name != ".ridge" and got.get(name) != leaf.shape
    ]


def _other_ridge(learner: Learner, state: Any) -> list[str]:
    """lambda, where both the learner and the state tell."""
    numbers = learner.origin.args[-1] if learner.origin and learner.origin.args else None
    mine, theirs = getattr(numbers, "ridge", None), getattr(state, "ridge", None)
    if mine is None or theirs is None or is_traced(mine) or is_traced(theirs):
        return []
    theirs = fetch(theirs)
    # As near as single precision tells.
    if np.shape(mine) not in ((), theirs.shape) or np.allclose(mine, theirs, rtol=1e-6, atol=0):
        return []
    return [f"ridge: expected {np.asarray(mine).tolist()}, got {theirs.tolist()}"]


def columns_known(state: Any) -> int:
    """How many leading columns hold every class that a state can tell from the others."""
    known = np.flatnonzero(np.any(fetch(state.theta) != 0, axis=(0, 1)))
    return int(np.max(known, initial=-1)) + 1


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
