"""The ensemble deep RVFL learner with forward regularisation: Algorithms 1 and 2.

With theta_0 = 0 every step has a closed form, which the recursion reproduces exactly:

    theta_{t+1} = (lambda I + sum_{i<=t} D_i^T D_i + k D_{t+1}^T D_{t+1})^-1
                  sum_{i<=t} D_i^T Y_i.                                   (Theorems 1-3)

Only the latest forward penalty is ever inside. This file has the factory; how a learner is driven
along a stream is in `stream_form`, one sub-learner's equations are in `solvers`.

Source: J. Wang, M. Hu, N. Li, A. Al-Ali, P. N. Suganthan, "Randomized Neural Network with
Adaptive Forward Regularization for Online Task-free Class Incremental Learning", 2025.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import one_of, per_layer, plain_numbers, positive_int
from rvfl_jax.core.types import (
    ActivationName,
    Array,
    ColdStart,
    DeferredForm,
    Ensemble,
    Learner,
    Name,
    Solver,
    StepInfo,
    WeightInit,
)
from rvfl_jax.learners.base import (
    ENSEMBLES,
    check_batch,
    check_design,
    check_inputs,
    combiner,
    describe,
    shared_programs,
    some_rows,
)
from rvfl_jax.learners.edrvfl.block_form import block_form
from rvfl_jax.learners.edrvfl.deferred_form import deferred_form
from rvfl_jax.learners.edrvfl.network import (
    Activation,
    Initializer,
    activation_name,
    features,
    init_weights,
    num_features_of,
    resolve_activation,
    resolve_weight_init,
)
from rvfl_jax.learners.edrvfl.residual import empty_sketch
from rvfl_jax.learners.edrvfl.solvers.base import SolverOptions
from rvfl_jax.learners.edrvfl.solvers.choice import solvers_of
from rvfl_jax.learners.edrvfl.state import EdRVFLState, design_of
from rvfl_jax.learners.edrvfl.stream_form import EdRVFLStream
from rvfl_jax.learners.edrvfl.strength import (
    FORM,
    ConstantK,
    Strength,
    is_of_old,
    is_random,
    resolve_strength,
)
from rvfl_jax.learners.edrvfl.sums import learned_state, sums_of_rows
from rvfl_jax.linalg.products import matmul

SOLVERS: tuple[Solver, ...] = ("auto", "blocked", "covariance", "information", "square_root")
COLD_STARTS: tuple[ColdStart, ...] = ("exact", "paper")


class Options(NamedTuple):
    """What shapes a learner's programs; see `edrvfl`. `forward`: k is not known to be 0."""

    num_layers: int
    num_nodes: int
    activation: ActivationName | Activation
    cold_start: ColdStart
    solver: Solver
    weight_init: WeightInit | Initializer
    ensemble: Ensemble
    forward: bool


class Numbers(NamedTuple):
    """What only scales."""

    ridge: Array | float
    strength: Strength
    weight_scale: Array | float


def edrvfl(
    *,
    num_layers: int,
    num_nodes: int,
    ridge: Array | float,
    k: Strength | Array | float,
    activation: ActivationName | Activation = "relu",
    cold_start: ColdStart = "exact",
    solver: Solver = "auto",
    weight_init: WeightInit | Initializer = "lecun_uniform",
    weight_scale: Array | float = 1.0,
    ensemble: Ensemble = "mean",
) -> Learner:
    """Online ensemble deep RVFL with forward regularisation (-R, -F, -kF, -kF-Bayes).

    Example:
        >>> import jax, rvfl_jax
        >>> learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=1e-2, k=1.0)
        >>> state = learner.init(jax.random.key(0), num_features=8, num_classes=3)

    The stream must announce what it then delivers: `X_next` of one step is `X_t` of the
    next. With a constant k nothing is lost when another batch comes than was announced, since
    no forward term stays inside eta_dagger; -kF-Bayes would estimate its strengths from the
    wrong rows. Row weights act as in weighted ridge regression, on the forward term too; rows
    of weight 0 are padding and have no effect.

    Args:
        num_layers: L, the number of sub-learners.
        num_nodes: N, hidden nodes of each.
        ridge: lambda > 0, a scalar or (L,); may be traced.
        k: forward strength >= 0, a scalar or (L,), may be traced; or `adaptive_k(...)`. With
            k = 0 there is no forward term and the announced batch has no effect; `step` accepts
            `X_next` all the same, so that one loop serves every k.
        activation: "relu", "leaky_relu", "sigmoid", "tanh", "swish" or any callable.
        cold_start: "exact" makes Theorem 2 hold: with k = 0 the learner equals the offline
            expert at every t. "paper" follows the paper's footnote 2, which sets
            eta_dagger_2 = eta_0, so that the Gram of batch 1 never enters.
        solver: "covariance" updates eta_dagger by low rank, 4 d^2 b flops a step; "blocked"
            does so for many small batches at once where a stream is in memory;
            "information" accumulates Gram matrices and factorises each step,
            d^2 b + d^3 / 3 flops, or defers decisions (`run_stream(..., guesses=False)`);
            "square_root" updates a triangular factor by QR, for devices with float32 only;
            "auto" takes the information form when 2 b >= d, else the blocked form. All
            give the same results as far as precision allows.
        weight_init: a name of `rvfl_jax.learners.edrvfl.network.WEIGHT_INITS` or an initializer.
        weight_scale: > 0, factor on the random weights, which is the gain before each
            activation; a scalar or (L,), may be traced.
        ensemble: "mean" or "median" of the sub-learners' softmax.

    Returns:
        A `Learner`. Its `step` raises ValueError on shapes that do not fit the state.

    Raises:
        ValueError: on any argument out of range.
    """
    strength = resolve_strength(k, positive_int("num_layers", num_layers))
    options = Options(
        num_layers=int(num_layers),
        num_nodes=positive_int("num_nodes", num_nodes),
        activation=activation,
        cold_start=one_of("cold_start", cold_start, COLD_STARTS),
        solver=one_of("solver", solver, SOLVERS),
        weight_init=weight_init,
        ensemble=one_of("ensemble", ensemble, ENSEMBLES),
        forward=not strength.vanishes,
    )
    ridge = per_layer("ridge", ridge, num_layers, minimum=0.0, strict=True)
    weight_scale = per_layer("weight_scale", weight_scale, num_layers, minimum=0.0, strict=True)
    resolve_activation(activation)
    resolve_weight_init(weight_init)
    if not options.forward:
        strength = ConstantK(None)
    return _edrvfl(options, jax.tree.map(plain_numbers, Numbers(ridge, strength, weight_scale)))


class _Method:
    """The functions of one configuration, which its `Learner` is made of."""

    def __init__(self, options: Options, numbers: Numbers) -> None:
        self.options = options
        self.ridge, self.strength, self.weight_scale = numbers
        if not options.forward:
            self.strength = ConstantK(0.0)
        self.layers, self.nodes = options.num_layers, options.num_nodes
        self.g = resolve_activation(options.activation)
        self.g_name = Name(activation_name(options.activation))
        self.combine = combiner(options.ensemble)
        paper = options.cold_start == "paper"
        self.solvers = solvers_of(options.solver, SolverOptions(options.forward, paper))
        self.stream = EdRVFLStream(
            num_layers=self.layers,
            ridge=self.ridge,
            strength=self.strength,
            activation=self.g,
            activation_name=self.g_name,
            solvers=self.solvers,
            deferred=self.deferred(),
        )

    def init(self, key: Array, num_features: int, num_classes: int) -> EdRVFLState:
        s = positive_int("num_features", num_features)
        m = positive_int("num_classes", num_classes)
        W = init_weights(
            key,
            num_layers=self.layers,
            num_features=s,
            num_nodes=self.nodes,
            weight_init=self.options.weight_init,
        )
        W *= jnp.broadcast_to(jnp.asarray(self.weight_scale, W.dtype), (self.layers,))[
            :, None, None
        ]
        theta = jnp.zeros((self.layers, self.nodes + s, m), W.dtype)
        ridges = jnp.broadcast_to(jnp.asarray(self.ridge, W.dtype), (self.layers,))
        eye = jnp.eye(self.nodes + s, dtype=W.dtype)
        eta_0 = eye / ridges[:, None, None]
        none = jnp.zeros(self.layers, W.dtype)
        learned = jnp.zeros((), jnp.int32)
        own_key = key if is_random(self.strength) else None
        sketch = jax.vmap(lambda r: empty_sketch(r, self.nodes + s, m))(lax.stop_gradient(ridges))
        root = None
        if any(each.needs_root for each in self.solvers):
            root = jnp.sqrt(ridges)[:, None, None] * eye
        return EdRVFLState(
            *(W, theta, eta_0, eta_0, theta, none, learned, own_key, sketch, root),
            ridge=lax.stop_gradient(ridges),
            activation=self.g_name,
        )

    def check_own(self, state: EdRVFLState) -> None:
        mine = {"num_layers": self.layers, "num_nodes": self.nodes, "activation": self.g_name}
        check_design(mine, design_of(state))

    def step(
        self,
        state: EdRVFLState,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        weight_next: Any = None,
    ) -> tuple[EdRVFLState, StepInfo]:
        self.check_own(state)
        sizes = num_features_of(state), jnp.shape(state.theta)[-1]
        check_batch(sizes, X_t, Y_t, X_next, weight_t, weight_next)
        b = jnp.shape(X_t)[0]
        X_t, Y_t, weight_t = some_rows(X_t, Y_t, weight_t)
        X_next, _, weight_next = some_rows(X_t[:0] if X_next is None else X_next, None, weight_next)
        carry = self.stream.begin(state, X_t, weight_t)
        idle = ~jnp.any(carry.pending.valid)
        carry, info = self.stream.advance(carry, Y_t, X_next, weight_next)
        idle &= ~jnp.any(carry.pending.valid)
        # The round trip through a solver's carry may round; a step without rows may not.
        after = self.stream.finish(carry)
        before = state._replace(ridge=after.ridge, activation=after.activation)
        kept = jax.tree.map(lambda new, old: jnp.where(idle, old, new), after, before)
        return kept, info._replace(guess_scores=info.guess_scores[:, :b])

    def scores(self, state: EdRVFLState, X: Any) -> Array:
        self.check_own(state)
        check_inputs(num_features_of(state), X)
        return matmul(features(state.W, jnp.asarray(X), self.g), state.theta)

    def fit_offline(self, state: EdRVFLState, X: Any, Y: Any, weight: Any) -> EdRVFLState:
        X, Y, weight = jnp.asarray(X), jnp.asarray(Y), jnp.asarray(weight)
        sums = sums_of_rows(state.W, X, Y, weight, self.g)
        return learned_state(state, sums, self.ridge, jnp.ones_like(state.num_learned))

    def deferred(self) -> DeferredForm | None:
        """The form that adds up and decides later, where k is constant and the solver adds."""
        additive = any(each.additive for each in self.solvers)
        if self.options.cold_start != "exact" or not additive:
            return None
        if not isinstance(self.strength, ConstantK):
            return None
        return deferred_form(self.ridge, self.strength.k, self.g)

    def description(self) -> str:
        """The method and its configuration in words."""
        strength = self.strength
        return describe(
            "edrvfl",
            num_layers=self.layers,
            num_nodes=self.nodes,
            ridge=self.ridge,
            k=strength.k if isinstance(strength, ConstantK) else strength,
            activation=self.options.activation,
            cold_start=self.options.cold_start,
            solver=self.options.solver,
            weight_init=self.options.weight_init,
            weight_scale=self.weight_scale,
            ensemble=self.options.ensemble,
            **({} if is_of_old(strength) else {"form": FORM}),
        )


@shared_programs
def _edrvfl(options: Options, numbers: Numbers) -> Learner:
    method = _Method(options, numbers)
    return Learner(
        init=method.init,
        step=method.step,
        predict=lambda state, X: method.combine(method.scores(state, X)),
        scores=method.scores,
        combine=method.combine,
        stream=method.stream.form()._replace(block=block_form(method.stream)),
        fit_offline=method.fit_offline,
        description=method.description(),
    )
