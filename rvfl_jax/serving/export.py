"""Write trained predictors: `export_model`, `export_learner`; see `rvfl_jax.serving`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec
from typing import Protocol as Interface

import jax
import jax.numpy as jnp
import numpy as np
from jax import export

from rvfl_jax.core.checks import finite, one_of, positive_int, shape
from rvfl_jax.core.keywords import options_from_keywords
from rvfl_jax.core.portable import is_key
from rvfl_jax.core.types import Array, ExportFormat, Learner, State
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.fitted import fitted_of
from rvfl_jax.estimators.padding import FEWEST_ROWS, rows_for
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.estimators.whole import as_it_stands
from rvfl_jax.files.checkpoint import json_bytes, write_npz
from rvfl_jax.files.provenance import versions
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.serving.network import Network, network_of_model, network_of_state
from rvfl_jax.serving.onnx_graph import Standardisation, write_onnx

P = ParamSpec("P")

FORMAT = 1
PLATFORMS = ("cpu", "cuda", "tpu")
_KNOWN_PLATFORMS = ("cpu", "cuda", "rocm", "tpu")
FORMATS: tuple[ExportFormat, ...] = ("jax", "onnx")


class _Predictor(NamedTuple):
    """What is exported.

    Attributes:
        kind: see `metadata`.
        learned: a tree of all arrays that `answer` needs.
        answer: `(learned, (n, s) inputs) -> (n, m)` or (n,).
        num_features: s.
        dtype: of inputs and answers.
        classes: (m,) labels; None for a regressor.
        network: gives the numbers of the network, for a graph.
        rows_at_once: of the largest program of a model that pads its rows; None for a learner.
    """

    kind: str
    learned: Any
    answer: Callable[[Any, Array], Array]
    num_features: int
    dtype: np.dtype[Any]
    classes: Any
    network: Callable[[], Network]
    rows_at_once: int | None = None


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """What any predictor may be exported with; see `export_model`."""

    batch_size: int | None = None
    mean: Any = None
    scale: Any = None
    columns: Sequence[str] | None = None
    platforms: Sequence[str] = PLATFORMS
    format: ExportFormat | None = None
    notes: Mapping[str, Any] | None = None


@dataclass(frozen=True, kw_only=True)
class LearnerExportOptions(ExportOptions):
    """What a learner may be exported with; see `export_learner`."""

    classes: Any = None
    num_features: int | None = None


class _ExportModel(Interface[P]):
    def __call__(
        self, model: EdRVFLBase, path: str | Path, *args: P.args, **options: P.kwargs
    ) -> None: ...


class _ExportLearner(Interface[P]):
    def __call__(
        self,
        learner: Learner,
        state: State,
        path: str | Path,
        *args: P.args,
        **options: P.kwargs,
    ) -> None: ...


def _model_with(
    kind: Callable[P, ExportOptions],
) -> Callable[[Callable[[Any, Any, ExportOptions], None]], _ExportModel[P]]:
    """What a type checker knows of the decorator: calls take the arguments of `kind`."""
    return options_from_keywords(kind)


def _learner_with(
    kind: Callable[P, LearnerExportOptions],
) -> Callable[[Callable[[Any, Any, Any, LearnerExportOptions], None]], _ExportLearner[P]]:
    """The same for a learner."""
    return options_from_keywords(kind)


@_model_with(ExportOptions)
def export_model(model: EdRVFLBase, path: str | Path, options: ExportOptions) -> None:  # noqa: D417
    """Write `predict_proba` of a classifier, or `predict` of a regressor, into one file.

    Example:
        >>> model = rvfl_jax.EdRVFLClassifier(random_state=0).fit(X, y)
        >>> export_model(model, "digits.npz", batch_size=64)

    See `rvfl_jax.serving` for how the file is read. A batch that the model holds back for the
    next (`lookahead="hold"`) counts as learned.

    Args:
        model: fitted `EdRVFLClassifier`, whose labels are numbers or strings, or
            `EdRVFLRegressor`.
        path: of the file, customarily ending in `.npz`; an existing file is replaced atomically.
        batch_size: number of rows of every call; None for any number from 1.
        mean: (s,) means that inputs are standardised with, (X - mean) / scale in the precision
            of the model; None for 0, or for those that a model with `scale="first"` keeps.
        scale: (s,) standard deviations, above 0; None for 1, or as for `mean`.
        columns: s names of the features; None for those that the model was fitted with.
        platforms: where the file is to run, some of "cpu", "cuda", "rocm" and "tpu"; an ONNX
            graph runs wherever there is a runtime.
        format: "jax", a program of `jax.export`, or "onnx"; None for that of the path's ending,
            which is "onnx" for `.onnx`.
        notes: anything else to keep in the file's metadata, as JSON, such as how a table becomes
            features; None for nothing.

    Raises:
        ValueError: on a model that is not fitted, or any argument out of range; nothing is
            written.
        ImportError: for "onnx" without the package onnx.
        OSError: if the file cannot be written; what was there is untouched.
    """
    if not isinstance(model, EdRVFLClassifier | EdRVFLRegressor):
        raise ValueError(
            f"model: expected EdRVFLClassifier or EdRVFLRegressor, got {type(model).__name__}"
        )
    fitted_of(model)
    model = as_it_stands(model)
    if options.columns is None:
        options = replace(options, columns=getattr(model, "feature_names_in_", None))
    scaling = fitted_of(model).scaling
    if scaling is not None:
        if options.mean is not None or options.scale is not None:
            raise ValueError("mean, scale: expected None for a model that scales by itself")
        options = replace(options, mean=scaling[0], scale=scaling[1])
    _write(Path(path), _of_model(model), options)


@_learner_with(LearnerExportOptions)
def export_learner(  # noqa: D417
    learner: Learner, state: State, path: str | Path, options: LearnerExportOptions
) -> None:
    """Write `learner.predict` of a state into one file.

    Example:
        >>> run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0))
        >>> export_learner(learner, run.state, "digits.npz", classes=stream.classes)

    Args:
        learner: the method.
        state: what it has learned. If any of its numbers is double, the file computes in double
            precision and returns probabilities in it.
        path: see `export_model`.
        classes: labels of the leading columns, numbers or strings, such as
            `run.history.classes`; the columns after them are left out. None for 0 to m - 1.
        num_features: s; needed only where the learner cannot read it from a state.
        batch_size: see `export_model`.
        mean: see `export_model`; None for 0.
        scale: see `export_model`; None for 1.
        columns: see `export_model`; None for no names.
        platforms: see `export_model`.
        format: see `export_model`; "onnx" takes states of `edrvfl` alone.
        notes: see `export_model`.

    Raises:
        ValueError, ImportError, OSError: see `export_model`.
    """
    num_features = options.num_features
    if num_features is None:
        features_of = learner.stream.facts.num_features
        if features_of is None:
            raise ValueError(
                "num_features: expected a number, as the learner does not tell it, got None"
            )
        num_features = features_of(state)
    width = positive_int("num_features", num_features)
    double = any(getattr(leaf, "dtype", None) == np.float64 for leaf in jax.tree.leaves(state))
    dtype = np.dtype(np.float64 if double else np.float32)
    with precision_scope(_precision(dtype)):
        one_row = jax.ShapeDtypeStruct((1, width), dtype)
        m = jax.eval_shape(learner.predict, state, one_row).shape[-1]
        state = _read_part(learner, state, one_row)
    labels = range(m) if options.classes is None else options.classes
    count = min(len(labels), m)

    def answer(state: State, X: Array) -> Array:
        # Columns that no class has claimed have a share of the probability all the same.
        return learner.predict(state, X)[:, :count]

    network = partial(network_of_state, learner, state, count)
    predictor = _Predictor("learner", state, answer, width, dtype, labels, network)
    _write(Path(path), predictor, options)


def _read_part(learner: Learner, state: State, inputs: jax.ShapeDtypeStruct) -> State:
    """The state with zeros for all that `learner.predict` does not read.

    A program for any number of rows keeps every array that it is given.
    """
    leaves, structure = jax.tree.flatten(state)
    shapes = jax.eval_shape(lambda state: state, state)
    read = export.export(jax.jit(learner.predict))(shapes, inputs).module_kept_var_idx
    kept = [
        leaf if i in read or is_key(leaf) else np.zeros(leaf.shape, leaf.dtype)
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(structure, kept)


def _of_model(model: EdRVFLClassifier | EdRVFLRegressor) -> _Predictor:
    fitted = fitted_of(model)
    kind, classes, chosen = "regressor", None, None
    if isinstance(model, EdRVFLClassifier):
        kind, (classes, chosen) = "classifier", fitted.classes()
    most = fitted.rows_at_once

    def answer(program: Callable[[Array], Array], X: Array) -> Array:
        if model.intercept:
            X = jnp.concatenate([X, jnp.ones((X.shape[0], 1), X.dtype)], axis=1)
        answers = _in_buckets(program, X, most)
        if isinstance(model, EdRVFLClassifier):
            return answers[:, chosen]
        return answers[:, 0] if fitted.one_output else answers

    dtype = np.dtype(model._dtype)
    return _Predictor(
        kind=kind,
        learned=model._program(),
        answer=answer,
        num_features=model.n_features_in_,
        dtype=dtype,
        classes=classes,
        network=partial(network_of_model, model, chosen),
        rows_at_once=most,
    )


def _in_buckets(program: Callable[[Array], Array], X: Array, most: int) -> Array:
    """`program` on blocks of `most` rows, and on the rest padded to a size that the model has.

    A product of matrices rounds differently for another number of rows. The number may be a
    symbol here, which is a constant once the file is called; XLA then drops all of the switch
    but one case, and the loop where there is no whole block.
    """
    rows, width = X.shape
    full, rest = rows // most, rows % most
    sizes = [FEWEST_ROWS << i for i in range((most // FEWEST_ROWS).bit_length())]
    if isinstance(rows, int):
        sizes = [rows_for(rest)]

    def padded(size: int) -> Callable[[Array], Array]:
        return lambda X: _resized(program(_resized(X, size)), rest)

    fitting = jnp.sum(jnp.asarray(rest) > np.array(sizes[:-1], int))
    ended = jax.lax.switch(fitting, [padded(size) for size in sizes], X[full * most :])
    # One block more than are read: JAX does not know that there is one.
    blocks = _resized(X, (full + 1) * most).reshape(full + 1, most, width)
    answers = jnp.zeros((full + 1, most, ended.shape[1]), ended.dtype)
    answers = jax.lax.fori_loop(
        0, full, lambda i, answers: answers.at[i].set(program(blocks[i])), answers
    )
    whole = answers.reshape((full + 1) * most, ended.shape[1])[: full * most]
    return jnp.concatenate([whole, ended])


def _resized(array: Array, rows: Any) -> Array:
    """With zeros below, or without the last rows."""
    zero = jnp.zeros((), array.dtype)
    return jax.lax.pad(array, zero, ((0, rows - array.shape[0], 0), (0, 0, 0)))


def _write(path: Path, predictor: _Predictor, options: ExportOptions) -> None:
    """Check everything, trace, and write."""
    kind = _format_of(path, options)
    described = _described(predictor, options)
    labels = None if predictor.classes is None else _plain_labels(predictor.classes)
    scaling = _standardisation_of(predictor, options)

    def predict(X: Array) -> Array:
        # Else XLA copies and transposes weights while it compiles, at four times the time.
        learned = jax.tree.map(_opaque, predictor.learned)
        return predictor.answer(learned, _standardised(X, scaling))

    if kind == "onnx":
        _write_graph(path, predictor, scaling, described, labels, predict)
        return
    members = {"metadata": json_bytes(described)}
    if labels is not None:
        members["classes"] = labels
    with precision_scope(described["precision"]):
        rows = described["batch_size"] or export.symbolic_shape("rows")[0]
        inputs = jax.ShapeDtypeStruct((rows, predictor.num_features), predictor.dtype)
        exported = export.export(jax.jit(predict), platforms=described["platforms"])(inputs)
    if labels is not None:
        _check_count(labels, exported.out_avals[0].shape[-1])
    members["predict"] = np.frombuffer(exported.serialize(), np.uint8)
    write_npz(path, members)


def _write_graph(
    path: Path,
    predictor: _Predictor,
    scaling: Standardisation,
    described: dict[str, Any],
    labels: np.ndarray | None,
    predict: Callable[[Array], Array],
) -> None:
    """The same as an ONNX graph."""

    def answer(X: np.ndarray) -> np.ndarray:
        with precision_scope(described["precision"]):
            return np.asarray(jax.jit(predict)(X))

    with precision_scope(described["precision"]):
        inputs = jax.ShapeDtypeStruct((1, predictor.num_features), predictor.dtype)
        count = jax.eval_shape(predict, inputs).shape[-1]
        network = predictor.network()
    if labels is not None:
        _check_count(labels, count)
    described = {name: about for name, about in described.items() if name != "platforms"}
    write_onnx(path, network, scaling, described, labels, answer)


def _check_count(labels: np.ndarray, count: int) -> None:
    shape("classes", labels, (count,), "(m,), one label a column")


def _format_of(path: Path, options: ExportOptions) -> ExportFormat:
    """The format asked for, or that of the ending; ValueError on what does not go with it."""
    if options.format is None:
        kind: ExportFormat = "onnx" if path.suffix.lower() == ".onnx" else "jax"
    else:
        one_of("format", options.format, FORMATS)
        kind = options.format
    if kind == "onnx" and tuple(options.platforms) != PLATFORMS:
        raise ValueError(
            "platforms: expected none to be chosen for an ONNX graph, which runs wherever there is"
            f" a runtime, got {tuple(options.platforms)}"
        )
    return kind


def _described(predictor: _Predictor, options: ExportOptions) -> dict[str, Any]:
    """The metadata; ValueError on options out of range."""
    size, names, s = options.batch_size, options.columns, predictor.num_features
    if names is not None:
        shape("columns", np.array(names, object), (s,), "(s,), one name a feature")
    if not len(options.platforms):
        raise ValueError("platforms: expected at least one, got none")
    return {
        "format": FORMAT,
        "kind": predictor.kind,
        "precision": _precision(predictor.dtype),
        "dtype": predictor.dtype.name,
        "num_features": s,
        "batch_size": None if size is None else positive_int("batch_size", size),
        "rows_at_once": predictor.rows_at_once,
        "columns": None if names is None else [str(name) for name in names],
        "standardised": options.mean is not None or options.scale is not None,
        "platforms": [one_of("platforms", name, _KNOWN_PLATFORMS) for name in options.platforms],
        "versions": versions(),
        **({} if options.notes is None else {"notes": dict(options.notes)}),
    }


def _standardisation_of(predictor: _Predictor, options: ExportOptions) -> Standardisation:
    """Mean and scale in the precision of the model; ValueError on numbers that do not fit."""
    given = {"mean": options.mean, "scale": options.scale}
    numbers = {name: np.asarray(v, float) for name, v in given.items() if v is not None}
    for name, values in numbers.items():
        shape(name, values, (predictor.num_features,), "(s,), one number a feature")
        finite(name, values)
    if (numbers.get("scale", np.ones(1)) <= 0).any():
        raise ValueError(f"scale: expected above 0, got {numbers['scale'].min()}")
    return Standardisation(
        *(numbers[name].astype(predictor.dtype) if name in numbers else None for name in given)
    )


def _standardised(X: Array, scaling: Standardisation) -> Array:
    """(X - mean) / scale."""
    X = X if scaling.mean is None else X - scaling.mean
    # XLA would make a division by constants a product with their rounded reciprocals.
    return X if scaling.scale is None else X / jnp.where(X == X, scaling.scale, jnp.nan)


def _plain_labels(classes: Any) -> np.ndarray:
    """The labels as an array that needs no pickle."""
    given = classes.tolist() if hasattr(classes, "tolist") else list(classes)
    labels = [label.item() if isinstance(label, np.generic) else label for label in given]
    kinds = {type(label) for label in labels}
    if len(kinds) != 1 or not kinds <= {bool, int, float, str}:
        got = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ValueError(f"classes: expected labels all bool, int, float or str, got {got}")
    array = np.array(labels)
    for label, kept in zip(labels, array.tolist(), strict=True):
        if kept != label or array.dtype.kind == "O":
            raise ValueError(
                f"classes: expected labels that NumPy keeps as they are, got {label!r}"
            )
    return array


def _opaque(leaf: Any) -> Any:
    """An array that XLA takes for no constant at first."""
    return leaf if is_key(leaf) else jax.lax.optimization_barrier(jnp.asarray(np.asarray(leaf)))


def _precision(dtype: np.dtype[Any]) -> str:
    return "double" if dtype == np.float64 else "single"
