"""What the estimators run, compiled once per design and bucket of rows and classes.

Everything that only scales (lambda, k, kappa, sigma) is an argument and everything that shapes
the program is in `Design`, so that a grid search over lambda and k shares its programs. No state is
donated: what a model knows must live on until everything that replaces it is there.

Counts and sums over guesses are kept on the host, in double precision whatever that of the model: a
float32 stops counting at 2**24.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.types import Array, Learner
from rvfl_jax.estimators.calibration import Guesses, no_guesses, probabilities, tally
from rvfl_jax.estimators.feature_maps import mapped
from rvfl_jax.estimators.learned import Weights
from rvfl_jax.estimators.readouts import Readout, balance, readout_of, together
from rvfl_jax.learners.base import combiner
from rvfl_jax.learners.edrvfl.algebra import forgotten_state, merged_state
from rvfl_jax.learners.edrvfl.learner import edrvfl
from rvfl_jax.learners.edrvfl.network import features, layer_features, resolve_activation
from rvfl_jax.learners.edrvfl.strength import AdaptiveK
from rvfl_jax.learners.edrvfl.sums import Sums, is_sound, learned_state, sums_of
from rvfl_jax.linalg.products import is_finite, matmul

LINKS = {"ridge": "log", "discriminant": "identity", "nearest_mean": "identity"}


@dataclass(frozen=True)
class Design:
    """Everything that decides which program runs.

    Attributes:
        options: of `edrvfl`, but for `ridge` and `k`.
        strength: "none" (k = 0), "constant", or (estimator, reuse_k) of `adaptive_k`.
        forgets: whether what was learned fades.
        num_inputs: features that count as inputs, without a constant column.
        feature_map: see `rvfl_jax.estimators.feature_maps`; other than "layers" only on sums.
    """

    options: tuple[tuple[str, Any], ...]
    strength: str | tuple[str, bool]
    forgets: bool
    num_inputs: int
    feature_map: Any = "layers"

    @property
    def activation(self) -> Any:
        """The activation of the hidden nodes."""
        return resolve_activation(dict(self.options)["activation"])

    @property
    def adds_up(self) -> bool:
        """Whether sums over rows, which fade where rows are forgotten, determine every readout.

        A forward term of constant strength is added when a readout is solved. "square_root" is
        for those who want no sums.
        """
        options = dict(self.options)
        constant = isinstance(self.strength, str)
        return constant and options["cold_start"] == "exact" and options["solver"] != "square_root"

    @property
    def additive(self) -> bool:
        """Whether the state after any rows is that of their sums, in whatever batches."""
        adds = isinstance(self.strength, str) or self.strength[1]
        return adds and not self.forgets and dict(self.options)["cold_start"] == "exact"

    def learner(self, numbers: dict[str, Any]) -> Learner:
        """The learner of this design."""
        k: Any = numbers["k"] if self.strength == "constant" else 0.0
        if not isinstance(self.strength, str):
            estimator, reuse_k = self.strength
            k = AdaptiveK(numbers["kappa"], numbers["sigma"], estimator, reuse_k)
        return edrvfl(
            **dict(self.options),
            ridge=numbers["ridge"],
            k=k,
            weight_scale=numbers["weight_scale"],
        )

    @property
    def combine(self) -> Any:
        """The learner's ensemble, which no number decides."""
        return combiner(dict(self.options)["ensemble"])


class PaddedRows(NamedTuple):
    """Padded rows on their way into a program: X (b, s), weight (b,), and what they are.

    `target` is (b,) columns for a classifier, (b, m) numbers for a regressor, None for rows
    that are announced.
    """

    X: Any
    weight: Any
    target: Any = None


@partial(jax.jit, static_argnames=("design", "num_features", "num_outputs"))
def begin(
    design: Design, numbers: dict[str, Any], seed: Any, *, num_features: int, num_outputs: int
) -> Any:
    """The state before anything was learned."""
    return design.learner(numbers).init(jax.random.key(seed), num_features, num_outputs)


class Fading(NamedTuple):
    """Weight that forgetting leaves: of each row of a batch (b,), and of all rows before it."""

    of_rows: Any
    of_past: Any


def fading_of(X: np.ndarray, weight: np.ndarray, rate: float) -> Fading:
    """What is left after a batch of which every row multiplies all earlier weights by `rate`.

    A row of weight 0, or whose inputs X (b, s) are all 0, makes nothing fade.
    """
    tells = (weight > 0) & np.any(X != 0, axis=1)
    later = tells.sum() - np.cumsum(tells)
    return Fading(rate**later, rate ** tells.sum())


@partial(jax.jit, static_argnames=("design", "kind"))
def learn(
    design: Design,
    numbers: dict[str, Any],
    state: Any,
    counts: Any,
    rows: PaddedRows,
    announced: PaddedRows | None,
    fading: Fading | None,
    options: dict[str, Any],
    kind: str | None,
) -> tuple[Any, Guesses | None, Array]:
    """Guess a batch, learn it, and announce the next.

    Args:
        design: which program this is.
        numbers: of the learner.
        state: of the learner.
        counts: (m,) see `rvfl_jax.estimators.fitted.Fitted`.
        rows: of the batch.
        announced: those that come next.
        fading: what forgetting leaves.
        options: `class_balance` and `shrinkage` of a classifier.
        kind: of the readout that guesses; None for a regressor, which does not.

    Returns:
        The state, the sums over this batch's guesses, and whether all went well.
    """
    learner = design.learner(numbers)
    weight = jnp.asarray(rows.weight, state.W.dtype)
    counts = jnp.asarray(counts, weight.dtype)
    before = guesses = None
    if kind is not None and (kind != "ridge" or design.forgets):
        before = _scores_before(learner, state, counts, rows, options, kind)
    if fading is not None:
        kept = jnp.asarray(fading.of_past, weight.dtype)
        state = jax.lax.cond(
            kept < 1.0, lambda: forgotten_state(state, numbers["ridge"], kept), lambda: state
        )
        weight = weight * jnp.asarray(fading.of_rows, weight.dtype)
    X_next, weight_next = (None, None) if announced is None else (announced.X, announced.weight)
    state, info = learner.step(
        state,
        rows.X,
        targets_of(rows, state.theta),
        X_next,
        weight_t=weight,
        weight_next=weight_next,
    )
    if kind is not None:
        if before is None:
            powers = (options["class_balance"], 1.0)
            balanced = jnp.stack([balance(counts, power) for power in powers])
            before = info.guess_scores * balanced[:, None, None]
        guesses = guesses_made(design, counts, before, rows, LINKS[kind])
    return state, guesses, jnp.all(info.healthy)


def guesses_made(
    design: Design, counts: Array, scores: Array, rows: PaddedRows, link: str
) -> Guesses:
    """Sums over a batch's guesses, from their scores (2, L, b, m)."""
    met = counts > 0
    z = jax.vmap(together, (0, None, None))(scores, met, design.combine)
    experience = jnp.where(rows.weight > 0, counts[rows.target], 0.0)
    # The one class met so far is no guess.
    experience = jnp.where(jnp.sum(met) > 1, experience, 0.0)
    none, one = no_guesses(len(counts), link), jnp.ones_like(experience)
    return tally(none, z, rows.target, rows.weight * experience**2, one, link)


def layers_of(weights: Any, X: Any, design: Design) -> Array:
    """(L, b, d) features through W (L, N + s, N) or `Weights`: the one way from X to them."""
    if not isinstance(weights, Weights):
        return features(weights, jnp.asarray(X), design.activation)
    X = jnp.asarray(X, weights.first.dtype)
    if design.feature_map == "layers":
        return layer_features(*weights, X, design.activation)
    return mapped(design.feature_map, weights, X, design.num_inputs)


def targets_of(rows: PaddedRows, like: Array) -> Array:
    """(b, m) targets of rows for readouts or moments of that kind."""
    if jnp.ndim(rows.target) == 2:
        return jnp.asarray(rows.target, like.dtype)
    return jax.nn.one_hot(rows.target, like.shape[-1], dtype=like.dtype)


def _scores_before(
    learner: Learner,
    state: Any,
    counts: Array,
    rows: PaddedRows,
    options: dict[str, Any],
    kind: str,
) -> Array:
    """(2, L, b, m) scores of a batch before it is learned: as it stands, and balanced."""

    def scored(power: Any) -> Array:
        readout = readout_of(state, counts, kind, power, options["shrinkage"])
        scores = learner.scores(state._replace(theta=readout.theta), rows.X)
        return (scores + readout.bias[:, None]) * readout.scale

    return jnp.stack([scored(options["class_balance"]), scored(1.0)])


@partial(jax.jit, static_argnames=("design",))
def fits(design: Design, W: Array, rows: PaddedRows) -> Array:
    """Scalar truth: the squares of the batch's features do not overflow."""
    D = features(W, jnp.asarray(rows.X), design.activation)
    return is_finite(jnp.sum(D**2, axis=1))


@partial(jax.jit, static_argnames=("design",), donate_argnames=("sums",))
def add_rows(design: Design, W: Array, sums: Sums, rows: PaddedRows) -> Sums:
    """The sums with a batch added."""
    return sums.merge(_sums_of_rows(design, W, sums, rows))


@partial(jax.jit, static_argnames=("design",), donate_argnames=("sums",))
def subtract_rows(design: Design, W: Array, sums: Sums, rows: PaddedRows) -> Sums:
    """The sums with a batch taken out."""
    return sums.subtract(_sums_of_rows(design, W, sums, rows))


def _sums_of_rows(design: Design, W: Array, sums: Sums, rows: PaddedRows) -> Sums:
    Y = rows.target
    if jnp.ndim(Y) == 1:
        Y = jax.nn.one_hot(Y, sums.moment.shape[-1], dtype=sums.moment.dtype)
    return Sums.of_inputs(W, rows.X, Y, rows.weight, design.activation)


sums_now = jax.jit(sums_of)


@jax.jit
def conclude(state: Any, sums: Sums, ridge: Any, batches: Array) -> tuple[Any, Array]:
    """The state of these sums, `batches` further on, and whether the sums could be solved."""
    state = learned_state(state, sums, ridge, state.num_learned + batches)
    return state, is_sound(state)


@jax.jit
def merge(a: Any, b: Any, ridge: Any, columns: Array) -> tuple[Any, Array]:
    """See `rvfl_jax.learners.edrvfl.algebra.merged_state`."""
    state = merged_state(a, b, ridge, columns)
    return state, is_sound(state)


@partial(jax.jit, static_argnames=("design",))
def leave_one_out(
    design: Design, state: Any, counts: Any, rows: PaddedRows, class_balance: Any
) -> Guesses:
    """Each row of a batch guessed by the readout that learned all others, in closed form.

    Leaving out weight v = min(w, 1) of a row gives (D theta - v h y) / (1 - v h), where
    h = D eta_dagger D^T is the row's leverage.
    """
    D = features(state.W, jnp.asarray(rows.X), design.activation)
    counts = jnp.asarray(counts, D.dtype)
    weight = jnp.asarray(rows.weight, D.dtype)
    h = jnp.sum(matmul(D, state.eta_dagger) * D, axis=-1)[..., None]
    v = jnp.minimum(weight, 1.0)[:, None]
    scores = (matmul(D, state.theta_ridge) - v * h * targets_of(rows, state.theta)) / (1.0 - v * h)
    seen = counts > 0
    z = together(scores * balance(counts, class_balance), seen, design.combine)
    # A class cannot be guessed without the only row that shows it, nor where it is the only one.
    others = counts[rows.target] - v[:, 0]
    others = jnp.where((others > 1e-9) & (jnp.sum(seen) > 1), others, 0.0)
    # Counts are what they will be, so that both ways of scoring are one.
    none = no_guesses(len(counts), "log")
    return tally(none, jnp.stack([z, z]), rows.target, weight * others**2, weight, "log")


@partial(jax.jit, static_argnames=("kind",))
def ask(state: Any, counts: Array, class_balance: Any, shrinkage: Any, kind: str) -> Readout:
    """See `rvfl_jax.estimators.readouts.readout_of`."""
    return readout_of(state, counts, kind, class_balance, shrinkage)


@partial(jax.jit, static_argnames=("design",))
def answer(design: Design, W: Any, readout: Readout, seen: Array, X: Array) -> Array:
    """(n, m) scores of the ensemble."""
    scores = matmul(layers_of(W, X, design), readout.theta)
    scores = (scores + readout.bias[:, None]) * readout.scale
    return together(scores, seen, design.combine)


@partial(jax.jit, static_argnames=("design", "kind"))
def probable(
    design: Design,
    W: Any,
    readout: Readout,
    seen: Array,
    power: Array | float,
    X: Array,
    kind: str,
) -> Array:
    """(n, m) calibrated probabilities; 0 in columns of classes never seen."""
    return probabilities(answer(design, W, readout, seen, X), power, LINKS[kind], jnp)


@partial(jax.jit, static_argnames=("design",))
def predicted(design: Design, W: Any, theta: Array, X: Array) -> Array:
    """(n, m) mean or median of what the sub-learners of a regressor predict."""
    each = matmul(layers_of(W, X, design), theta)
    ensemble = jnp.median if dict(design.options)["ensemble"] == "median" else jnp.mean
    return ensemble(each, axis=0)


@partial(jax.jit, static_argnames=("design",))
def leverages(design: Design, state: Any, X: Array) -> Array:
    """(L, n) D eta_dagger D^T of each row."""
    D = features(state.W, jnp.asarray(X), design.activation)
    return jnp.sum(matmul(D, state.eta_dagger) * D, axis=-1)


@jax.jit
def squared_errors(state: Any, squares: Array, ridge: Any) -> tuple[Array, Array]:
    """Weighted sums of squared errors (L, m) of the ridge readout, and degrees of freedom (L,).

    See `Sums.squared_errors`, with ||Y||^2 = `squares` (m,); and
    tr(eta_dagger D^T D) = d - lambda tr(eta_dagger).
    """
    theta = state.theta_ridge
    ridges = jnp.broadcast_to(jnp.asarray(ridge, theta.dtype), (len(theta),))
    used = theta.shape[1] - ridges * jnp.trace(state.eta_dagger, axis1=1, axis2=2)
    return sums_of(state, ridges, squares).squared_errors(theta, ridges), used
