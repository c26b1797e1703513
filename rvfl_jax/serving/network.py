"""The numbers of an edRVFL network that predicts, for writers of other formats."""

from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.types import Learner, State
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.compiled import LINKS
from rvfl_jax.estimators.learned import Weights, weights_of
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.learners.edrvfl.learner import Options
from rvfl_jax.learners.edrvfl.network import activation_name

LAYERS = "layers"


class Calibrated(NamedTuple):
    """How scores become the probabilities of a classifier.

    Attributes:
        seen: (classes,) truth: whether the class of that answer was seen.
        power: inverse temperature.
        link: "log" or "identity", see `rvfl_jax.estimators.calibration`.
    """

    seen: np.ndarray
    power: float
    link: str


class Network(NamedTuple):
    """All numbers of a model, on the host.

    Attributes:
        first: (s', N) weights of layer 1; s' = s + 1 where inputs get a constant column.
        later: (L - 1, N + s', N) weights of the others.
        theta: (L, N + s', m) readouts, of the columns that are answered for (all m for a learner).
        bias: (L, m) added to the scores.
        intercept: whether inputs get a constant column.
        activation: g by name.
        ensemble: "mean" or "median".
        ending: how scores become answers: `Calibrated`; "softmax" for a learner; "numbers" for a
            regressor, and "number" for one with (n,) targets.
        answers: number of leading columns that are answered; None for all.
    """

    first: np.ndarray
    later: np.ndarray
    theta: np.ndarray
    bias: np.ndarray
    intercept: bool
    activation: str
    ensemble: str
    ending: Calibrated | str
    answers: int | None = None


def network_of_model(model: EdRVFLClassifier | EdRVFLRegressor, columns: Any) -> Network:
    """What a fitted estimator predicts with.

    Args:
        model: fitted.
        columns: (classes,) of the readout that are answered for; None for a regressor.

    Raises:
        ValueError: on a model whose features are no random layers.
    """
    kind = getattr(model, "feature_map", LAYERS)
    if kind != LAYERS:
        raise ValueError(f"feature_map: expected {LAYERS!r} for the format onnx, got {kind!r}")
    if isinstance(model, EdRVFLRegressor):
        design = model._same_design()[0]
        weights, readout = model._program().args
        theta = np.asarray(readout)
        bias = np.zeros((len(theta), theta.shape[-1]), theta.dtype)
        ending: Calibrated | str = "number" if model._fitted.one_output else "numbers"
    else:
        design, weights, readout, met = model._asking()
        seen = np.asarray(met)[columns]
        answered, scale = columns[seen], np.asarray(readout.scale)[columns[seen]]
        theta = np.asarray(readout.theta)[..., answered] * scale
        bias = np.asarray(readout.bias)[:, answered] * scale
        ending = Calibrated(seen, model.inverse_temperature_, LINKS[model.readout])
    first, later = _plain(weights)
    return Network(
        first=first,
        later=later,
        theta=theta,
        bias=bias,
        intercept=bool(model.intercept),
        activation=activation_name(model.activation),
        ensemble=dict(design.options)["ensemble"],
        ending=ending,
    )


def network_of_state(learner: Learner, state: State, answers: int) -> Network:
    """What a learner of `edrvfl` predicts with.

    Raises:
        ValueError: on another learner.
    """
    options = None if learner.recipe is None else learner.recipe.options
    if not isinstance(options, Options):
        raise ValueError(
            f"learner: expected one of edrvfl for the format onnx, got {learner.description!r}"
        )
    first, later = _plain(state.W)
    theta = np.asarray(state.theta)
    return Network(
        first=first,
        later=later,
        theta=theta,
        bias=np.zeros((len(theta), theta.shape[-1]), theta.dtype),
        intercept=False,
        activation=activation_name(options.activation),
        ensemble=options.ensemble,
        ending="softmax",
        answers=answers if answers < theta.shape[-1] else None,
    )


def _plain(weights: Any) -> Weights:
    """The weights on the host; ValueError on those of another network."""
    if not isinstance(weights, Weights):
        if np.ndim(weights) != 3:
            raise ValueError(
                "model: expected random weights (L, N + s, N) for the format onnx, got"
                f" {type(weights).__name__}"
            )
        weights = weights_of(np.asarray(weights))
    return Weights(*(np.asarray(part) for part in weights))
