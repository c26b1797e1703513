"""The network of an estimator, or of a state of `edrvfl`, written as an ONNX graph.

    H_l = g([H_{l-1} | X] W_l + w_l),   z_l = ([H_l | X] theta_l + b_l)

with the constant column of an estimator inside w_l and b_l. An ensemble of classifiers ends as
`rvfl_jax.estimators.readouts.together` and `rvfl_jax.estimators.calibration.probabilities` have it,
on the columns of classes that were seen. See `rvfl_jax.serving` for what a file holds.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.checks import one_of
from rvfl_jax.estimators.calibration import FLOOR
from rvfl_jax.files.checkpoint import replace_file
from rvfl_jax.serving.network import Calibrated, Network

# The oldest that has all operators in double precision; runtimes since 2022 read it.
OPSET, IR_VERSION = 17, 8
# A file of protocol buffers holds no more.
MOST_BYTES = 2**31 - 2**20
NEGATIVE_SLOPE = 0.01
# How far a graph's answers may be from the model's, which tells a wrong graph from rounding.
CLOSE = {"double": 1e-6, "single": 1e-2}
ROWS_CHECKED = 8


class Standardisation(NamedTuple):
    """(s,) what is subtracted from inputs and what they are divided by, each or None."""

    mean: np.ndarray | None
    scale: np.ndarray | None


def write_onnx(
    path: Path,
    network: Network,
    scaling: Standardisation,
    described: Mapping[str, Any],
    labels: np.ndarray | None,
    answer: Callable[[np.ndarray], np.ndarray],
) -> None:
    """Write a graph that gives the answers of a model; see `rvfl_jax.serving`.

    The graph is evaluated on a few rows before it is written, so that a model with a part that is
    not known here is refused and no wrong file can come out.

    Args:
        path: of the file, replaced atomically.
        network: what the graph computes.
        scaling: of the inputs.
        described: the metadata.
        labels: (classes,) of the answers' columns; None for a regressor.
        answer: (n, s) inputs in the model's precision to its answers.

    Raises:
        ImportError: without the package onnx.
        ValueError: on a model that a graph cannot hold, or cannot be written here.
        OSError: if the file cannot be written; what was there is untouched.
    """
    onnx = _onnx()
    one_of("activation", network.activation, _ACTIVATIONS)
    size = sum(each.nbytes for each in (network.first, network.later, network.theta))
    if size > MOST_BYTES:
        raise ValueError(
            f"model: expected at most {MOST_BYTES:,} bytes of weights in an ONNX file, got {size:,}"
        )
    graph = _graph_of(network, scaling, described, labels)
    model = graph.model(described, labels)
    onnx.checker.check_model(model)
    _check_agrees(model, graph.answers, scaling, described, answer)
    content = model.SerializeToString()
    replace_file(path, lambda file: file.write(content))


def _onnx() -> Any:
    try:
        import onnx
        import onnx.reference
    except ImportError as error:
        raise ImportError(
            'format: expected the package onnx for "onnx", got none;'
            ' pip install "rvfl-jax[onnx]" installs it'
        ) from error
    return onnx


class _Graph:
    """Nodes and constants, which are named as they are added.

    Attributes:
        answers: name of the output that holds the answers.
    """

    answers = "probabilities"

    def __init__(self, dtype: np.dtype[Any]) -> None:
        self.dtype = dtype
        self.nodes: list[Any] = []
        self.constants: list[Any] = []
        self.inputs: list[Any] = []
        self.outputs: list[Any] = []

    def constant(self, value: Any, dtype: Any = None) -> str:
        """A constant; numbers in the precision of the model unless said otherwise."""
        onnx, name = _onnx(), f"constant_{len(self.constants)}"
        array = np.array(value, self.dtype if dtype is None else dtype, order="C")
        if array.dtype.kind == "U":
            texts = [text.encode() for text in array.tolist()]
            tensor = onnx.helper.make_tensor(name, onnx.TensorProto.STRING, array.shape, texts)
        else:
            tensor = onnx.numpy_helper.from_array(array, name)
        self.constants.append(tensor)
        return name

    def add(self, kind: str, *inputs: str, name: str | None = None, **attributes: Any) -> str:
        """The first output of a node of that kind."""
        name = f"{kind}_{len(self.nodes)}" if name is None else name
        self.nodes.append(_onnx().helper.make_node(kind, inputs, [name], **attributes))
        return name

    def affine(self, x: str, W: np.ndarray, b: np.ndarray) -> str:
        """X W + b."""
        return self.add("Gemm", x, self.constant(W), self.constant(b))

    def model(self, described: Mapping[str, Any], labels: np.ndarray | None) -> Any:
        """The whole file."""
        onnx = _onnx()
        graph = onnx.helper.make_graph(
            self.nodes, "rvfl_jax", self.inputs, self.outputs, self.constants
        )
        model = onnx.helper.make_model(
            graph,
            opset_imports=[onnx.helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
            producer_name="rvfl-jax",
            producer_version=described["versions"]["rvfl-jax"],
        )
        told = {"metadata": json.dumps(dict(described))}
        if labels is not None:
            told["classes"] = json.dumps(labels.tolist())
        onnx.helper.set_model_props(model, told)
        return model


def _graph_of(
    network: Network,
    scaling: Standardisation,
    described: Mapping[str, Any],
    labels: np.ndarray | None,
) -> _Graph:
    graph = _Graph(np.dtype(described["dtype"]))
    make = _onnx().helper.make_tensor_value_info
    kind = _onnx().helper.np_dtype_to_tensor_dtype
    rows = described["batch_size"] or "rows"
    graph.inputs.append(make("X", kind(graph.dtype), [rows, described["num_features"]]))
    scores = _scores(graph, network, _standardised(graph, "X", scaling))
    ending = network.ending
    if labels is None:
        graph.answers = "prediction"
        answered = _numbers(graph, scores, network)
        columns = [] if ending == "number" else [network.theta.shape[-1]]
    else:
        answered = (
            _calibrated(graph, scores, network, ending)
            if isinstance(ending, Calibrated)
            else _leading(graph, _ensemble(graph, scores, network), network.answers)
        )
        columns = [len(labels)]
        best = graph.add("ArgMax", answered, axis=1, keepdims=0)
        graph.add("Gather", graph.constant(labels, labels.dtype), best, name="label")
        of_labels = _onnx().TensorProto.STRING if labels.dtype.kind == "U" else kind(labels.dtype)
        graph.outputs.append(make("label", of_labels, [rows]))
    graph.add("Identity", answered, name=graph.answers)
    graph.outputs.append(make(graph.answers, kind(graph.dtype), [rows, *columns]))
    return graph


def _standardised(graph: _Graph, x: str, scaling: Standardisation) -> str:
    if scaling.mean is not None:
        x = graph.add("Sub", x, graph.constant(scaling.mean))
    return x if scaling.scale is None else graph.add("Div", x, graph.constant(scaling.scale))


def _scores(graph: _Graph, network: Network, x: str) -> list[str]:
    """(n, m) scores of every sub-learner."""
    g, scores = _ACTIVATIONS[network.activation], []
    H = g(graph, graph.affine(x, *_apart(network.first, network.intercept)))
    for layer, (theta, bias) in enumerate(zip(network.theta, network.bias, strict=True)):
        D = graph.add("Concat", H, x, axis=1)
        W, constant = _apart(theta, network.intercept)
        scores.append(graph.affine(D, W, constant + bias))
        if layer < len(network.later):
            H = g(graph, graph.affine(D, *_apart(network.later[layer], network.intercept)))
    return scores


def _apart(W: np.ndarray, intercept: bool) -> tuple[np.ndarray, np.ndarray]:
    """The rows that meet inputs, and the one that meets a constant column."""
    return (W[:-1], W[-1]) if intercept else (W, np.zeros(W.shape[1], W.dtype))


def _relu(graph: _Graph, x: str) -> str:
    return graph.add("Relu", x)


def _leaky_relu(graph: _Graph, x: str) -> str:
    # The attribute of LeakyRelu is single whatever its input.
    return graph.add("Max", x, graph.add("Mul", x, graph.constant(NEGATIVE_SLOPE)))


def _sigmoid(graph: _Graph, x: str) -> str:
    return graph.add("Sigmoid", x)


def _tanh(graph: _Graph, x: str) -> str:
    return graph.add("Tanh", x)


def _swish(graph: _Graph, x: str) -> str:
    return graph.add("Mul", x, graph.add("Sigmoid", x))


_ACTIVATIONS: dict[str, Callable[[_Graph, str], str]] = {
    "relu": _relu,
    "leaky_relu": _leaky_relu,
    "sigmoid": _sigmoid,
    "tanh": _tanh,
    "swish": _swish,
}


def _stacked(graph: _Graph, each: list[str]) -> str:
    """(L, n, m) of L times (n, m)."""
    axis = graph.constant([0], np.int64)
    return graph.add("Concat", *(graph.add("Unsqueeze", x, axis) for x in each), axis=0)


def _median(graph: _Graph, stacked: str, layers: int) -> str:
    """(n, m) median of (L, n, m)."""
    upper = layers // 2 + 1
    name = f"TopK_{len(graph.nodes)}"
    count = graph.constant([upper], np.int64)
    node = _onnx().helper.make_node("TopK", [stacked, count], [name, f"{name}_places"], axis=0)
    graph.nodes.append(node)
    middle = [upper - 1] if layers % 2 else [upper - 2, upper - 1]
    chosen = graph.add("Gather", name, graph.constant(middle, np.int64), axis=0)
    return graph.add("ReduceMean", chosen, axes=[0], keepdims=0)


def _numbers(graph: _Graph, scores: list[str], network: Network) -> str:
    """What a regressor predicts."""
    stacked = _stacked(graph, scores)
    if network.ensemble == "median":
        told = _median(graph, stacked, len(scores))
    else:
        told = graph.add("ReduceMean", stacked, axes=[0], keepdims=0)
    if network.ending != "number":
        return told
    return graph.add("Squeeze", told, graph.constant([1], np.int64))


def _ensemble(graph: _Graph, scores: list[str], network: Network) -> str:
    """(n, m) probabilities; see `rvfl_jax.learners.base.combiner`."""
    each = _stacked(graph, [graph.add("Softmax", z, axis=1) for z in scores])
    mean = graph.add("ReduceMean", each, axes=[0], keepdims=0)
    if network.ensemble == "mean":
        return mean
    middle = _median(graph, each, len(scores))
    total = graph.add("ReduceSum", middle, graph.constant([1], np.int64))
    positive = graph.add("Greater", total, graph.constant(0.0))
    divisor = graph.add("Where", positive, total, graph.constant(1.0))
    return graph.add("Where", positive, graph.add("Div", middle, divisor), mean)


def _calibrated(graph: _Graph, scores: list[str], network: Network, ending: Calibrated) -> str:
    """(n, classes) probabilities, 0 for classes never seen."""
    z = scores[0]
    if len(scores) > 1:
        sums = [graph.add("ReduceLogSumExp", each, axes=[1]) for each in scores]
        shift = graph.add("ReduceMean", _stacked(graph, sums), axes=[0], keepdims=0)
        least = graph.constant(np.finfo(graph.dtype).tiny)
        mixed = graph.add("Max", _ensemble(graph, scores, network), least)
        z = graph.add("Add", graph.add("Log", mixed), shift)
    if ending.link == "log":
        z = _logarithm(graph, z)
    told = graph.add("Softmax", graph.add("Mul", z, graph.constant(ending.power)), axis=1)
    if ending.seen.all():
        return told
    return graph.add("MatMul", told, graph.constant(np.eye(len(ending.seen))[ending.seen]))


def _logarithm(graph: _Graph, z: str) -> str:
    """See `rvfl_jax.estimators.calibration.linked`."""
    zero, floor = graph.constant(0.0), graph.constant(FLOOR)
    high = graph.add("Log", graph.add("Add", graph.add("Max", z, zero), floor))
    down = graph.add("Div", graph.add("Min", z, zero), floor)
    low = graph.add("Add", down, graph.constant(np.log(FLOOR)))
    return graph.add("Where", graph.add("GreaterOrEqual", z, zero), high, low)


def _leading(graph: _Graph, told: str, count: int | None) -> str:
    if count is None:
        return told
    return graph.add("Gather", told, graph.constant(np.arange(count), np.int64), axis=1)


def _check_agrees(
    model: Any,
    output: str,
    scaling: Standardisation,
    described: Mapping[str, Any],
    answer: Callable[[np.ndarray], np.ndarray],
) -> None:
    """ValueError if the graph gives other answers than the model."""
    X = np.random.default_rng(0).normal(size=(ROWS_CHECKED, described["num_features"]))
    X = X if scaling.scale is None else X * scaling.scale
    X = (X if scaling.mean is None else X + scaling.mean).astype(described["dtype"])
    expected = answer(X)
    (got,) = _onnx().reference.ReferenceEvaluator(model).run([output], {"X": X})
    size = max(1.0, float(np.abs(expected).max()))
    apart = float(np.abs(got - expected).max()) if got.shape == expected.shape else np.inf
    if not apart <= CLOSE[described["precision"]] * size:
        raise ValueError(
            "model: expected one whose answers an ONNX graph gives, got one with a part that is"
            f" not known to the writer, so that they differ by {apart:.2g}"
        )
