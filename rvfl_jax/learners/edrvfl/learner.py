"""The ensemble deep RVFL learner with forward regularisation: Algorithms 1 and 2.

With theta_0 = 0 every step has a closed form, which the recursion reproduces exactly:

    theta_{t+1} = (lambda I + sum_{i<=t} D_i^T D_i + k D_{t+1}^T D_{t+1})^-1
                  sum_{i<=t} D_i^T Y_i.                                   (Theorems 1-3)

Only the latest forward penalty is ever inside. One sub-learner's equations are in
`rvfl_jax.learners.edrvfl.solvers`; the vmap over sub-learners is in this file and nowhere else.

Source: J. Wang, M. Hu, N. Li, A. Al-Ali, P. N. Suganthan, "Randomized Neural Network with
Adaptive Forward Regularization for Online Task-free Class Incremental Learning", 2025.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from rvfl_jax.core.checks import (
    differences,
    is_traced,
    one_of,
    per_layer,
    plain_numbers,
    positive_int,
)
from rvfl_jax.core.portable import fetch, portable
from rvfl_jax.core.types import (
    ActivationName,
    Array,
    ColdStart,
    DeferredForm,
    Ensemble,
    FollowForm,
    Learner,
    Name,
    Solver,
    StateFacts,
    StepInfo,
    StreamForm,
    WeightInit,
)
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.base import (
    ENSEMBLES,
    check_batch,
    check_design,
    check_inputs,
    combiner,
    describe,
    shared_programs,
    some_rows,
    state_differences,
)
from rvfl_jax.learners.edrvfl.deferred_form import deferred_form
from rvfl_jax.learners.edrvfl.features import PendingBatch, featurise
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
from rvfl_jax.learners.edrvfl.residual import WORTHLESS, Sketch, empty_sketch, residual, update
from rvfl_jax.learners.edrvfl.solvers.base import (
    ReadoutSolver,
    Report,
    SolverOptions,
    Step,
    SubLearner,
)
from rvfl_jax.learners.edrvfl.solvers.choice import fastest, solvers_of
from rvfl_jax.learners.edrvfl.strength import (
    FORM,
    ConstantK,
    Strength,
    is_of_old,
    is_random,
    is_ridge,
    resolve_strength,
    sigma_share,
)
from rvfl_jax.learners.edrvfl.sums import learned_state, sums_of_rows
from rvfl_jax.linalg.products import is_finite, matmul

SOLVERS: tuple[Solver, ...] = ("auto", "covariance", "information", "square_root")
COLD_STARTS: tuple[ColdStart, ...] = ("exact", "paper")


@portable
@in_brief
class EdRVFLState(NamedTuple):
    """All that the next step needs; the first four are the paper's.

    Attributes:
        W: (L, N + s, N) random weights.
        theta: (L, d, m) readout theta_{t+1}.
        eta_dagger: (L, d, d) inverse regularised Gram of what was learned.
        eta: (L, d, d) the same with the forward term of the announced batch, the paper's
            variable learning rate.
        theta_ridge: (L, d, m) the readout without forward term.
        k: (L,) strength of the forward term inside eta; 0 when nothing is announced.
        num_learned: () batches learned so far; batches without rows do not count.
        key: PRNG key of the random estimators of k; None for all others.
        sketch: sums that the health of the solution is measured with, a leading L each.
        root: (L, d, d) upper R with R^T R = eta_dagger^-1, for solver="square_root"; None
            for all others.
        prior: (L, d, m) the readout theta_0 that it began from, see `with_prior`; None for 0.
        ridge: (L,) lambda of the learner, so that a state of another one is refused.
        activation: the name of the learner's, no array but part of the structure.
    """

    W: Array
    theta: Array
    eta_dagger: Array
    eta: Array
    theta_ridge: Array
    k: Array
    num_learned: Array
    key: Array | None
    sketch: Sketch
    root: Array | None = None
    prior: Array | None = None
    ridge: Array | None = None
    activation: Name | None = None


class Figures(NamedTuple):
    """What a step tells in `StepInfo.extras`.

    Attributes:
        k_t: (L,) forward strength of the batch that was learned.
        k_next: (L,) forward strength put on the announced batch; 0 when there is none.
        sigma_share: (L,) part of the trace in eq. (29) that sigma alone decides;
            near 1 when k has collapsed to plain ridge, 0 for a constant k.
        residual: (L,) relative residual ||A theta - B|| / ||B|| of the readout against
            the accumulated Gram A = lambda I + sum D^T D and moment B = lambda theta_0 +
            sum D^T Y, estimated from random sketches.
        condition: (L,) tr(A) / lambda, an upper bound of the condition of A that is close
            where the smallest eigenvalue is lambda.
    """

    k_t: Array
    k_next: Array
    sigma_share: Array
    residual: Array
    condition: Array


@in_brief
class Begun(NamedTuple):
    """The decision of the state that a run began with, kept while the stream stands still.

    Attributes:
        still: () True until there is a batch.
        theta: (L, d, m).
        k: (L,).
    """

    still: Array
    theta: Array
    k: Array


@in_brief
class StreamCarry(NamedTuple):
    """What the scan carries, with a pending batch.

    Attributes:
        W: (L, N + s, N).
        readouts: carries of the solver with a leading L.
        solver: the solver of these carries, which is no array but part of the structure.
        pending: the batch that was announced.
        num_learned: () batches.
        key: as in the state, as are `sketch` and `prior`.
        sketch: see `EdRVFLState`.
        begun: what the run began with.
        prior: see `EdRVFLState`.
    """

    W: Array
    readouts: Any
    solver: ReadoutSolver
    pending: PendingBatch
    num_learned: Array
    key: Array | None
    sketch: Sketch
    begun: Begun
    prior: Array | None = None

    @property
    def theta(self) -> Array:
        """(L, d, m) the readout of now."""
        theta = jax.vmap(self.solver.theta)(self.readouts)
        return jnp.where(self.begun.still, self.begun.theta, theta)


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
    next. For a constant k a broken promise costs nothing, since the step never leaves a
    forward term inside eta_dagger; -kF-Bayes would estimate its strengths from the wrong
    rows. Row weights act as in weighted ridge regression, on the forward term too; rows
    of weight 0 are padding and count nowhere.

    Args:
        num_layers: L, sub-learners.
        num_nodes: N, hidden nodes of each.
        ridge: lambda > 0, a scalar or (L,); may be traced.
        k: forward strength >= 0, a scalar or (L,), may be traced; or `adaptive_k(...)`. With
            k = 0 there is no forward term and what is announced tells nothing: `step` takes an
            `X_next` so that one loop serves every k, and does the same without it.
        activation: "relu", "leaky_relu", "sigmoid", "tanh", "swish" or any callable.
        cold_start: "exact" makes Theorem 2 hold: with k = 0 the learner equals the offline
            expert at every t. "paper" follows the paper's footnote 2, which sets
            eta_dagger_2 = eta_0, so that the Gram of batch 1 never enters.
        solver: "covariance" updates eta_dagger by low rank, 4 d^2 b flops a step;
            "information" accumulates Gram matrices and factorises each step,
            d^2 b + d^3 / 3 flops, or defers decisions (`run_stream(..., guesses=False)`);
            "square_root" updates a triangular factor by QR, for devices with float32 only;
            "auto" takes the information form when 2 b >= d, else the covariance form. All
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
        forward=not is_ridge(strength),
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

    def own_ridges(self, dtype: Any) -> Array:
        return lax.stop_gradient(jnp.broadcast_to(jnp.asarray(self.ridge, dtype), (self.layers,)))

    def check_own(self, state: EdRVFLState) -> None:
        mine = {"num_layers": self.layers, "num_nodes": self.nodes, "activation": self.g_name}
        check_design(mine, design_of(state))

    def begin(self, state: EdRVFLState, X: Any, weight: Any) -> StreamCarry:
        pending = featurise(state.W, X, weight, self.g)
        solve = fastest(self.solvers, *pending.D.shape[1:])
        each = SubLearner(
            state.eta_dagger, state.eta, state.theta_ridge, state.theta, state.k, state.root
        )
        readouts = jax.vmap(lambda r, D, prior: solve.begin(r, pending.of_one(D, prior)))(
            each, pending.D, _prior_guess(pending.D, state.prior)
        )
        begun = Begun(~jnp.any(pending.valid), state.theta, state.k)
        return StreamCarry(
            *(state.W, readouts, solve, pending, state.num_learned, state.key, state.sketch),
            begun,
            state.prior,
        )

    def advance(
        self, carry: StreamCarry, Y_t: Any, X_next: Any, weight_next: Any
    ) -> tuple[StreamCarry, StepInfo]:
        batch, dtype = carry.pending, carry.W.dtype
        upcoming = featurise(carry.W, X_next, weight_next, self.g)
        Y = batch.weighted(Y_t)
        usable = batch.finite & is_finite(Y)
        prior, prior_next = (_prior_guess(D, carry.prior) for D in (batch.D, upcoming.D))
        guess = carry.readouts.V if prior is None else carry.readouts.V + prior
        guess_scores = _unweighted(batch, guess)
        step_keys = _step_keys(self.strength, carry)
        per_learner = jax.tree.map(
            lambda v: jnp.broadcast_to(jnp.asarray(v, dtype), (self.layers,)), self.strength
        )

        def advance_one(
            readout: Any,
            D: Array,
            usable: Array,
            D_next: Array,
            prior_next: Array | None,
            strength: Strength,
            keys: Any,
        ) -> Any:
            step = Step(
                batch=batch.of_one(D),
                Y=Y,
                usable=usable,
                upcoming=upcoming.of_one(D_next, prior_next),
                strength=strength,
                first=carry.num_learned == 0,
                keys=keys,
            )
            return carry.solver.advance(readout, step)

        moved, report = jax.vmap(advance_one)(
            carry.readouts, batch.D, usable, upcoming.D, prior_next, per_learner, step_keys
        )
        sketch, gap = _health(carry, moved, report, upcoming.probe)
        extras = Figures(
            k_t=report.k_t,
            k_next=report.k_next,
            sigma_share=lax.stop_gradient(sigma_share(per_learner, report.k_next)),
            residual=gap,
            condition=sketch.trace / lax.stop_gradient(jnp.asarray(self.ridge, dtype)),
        )
        healthy = report.absorbed & report.sound & upcoming.finite & (gap <= WORTHLESS)
        info = StepInfo(guess_scores, healthy, extras._asdict())
        learned = carry.num_learned + jnp.any(batch.valid)
        begun = carry.begun._replace(still=carry.begun.still & ~jnp.any(upcoming.valid))
        carry = carry._replace(
            readouts=moved, pending=upcoming, num_learned=learned, sketch=sketch, begun=begun
        )
        return carry, info

    def finish(self, carry: StreamCarry) -> EdRVFLState:
        readout = jax.vmap(carry.solver.finish)(carry.readouts)
        still, begun = carry.begun.still, carry.begun
        return EdRVFLState(
            W=carry.W,
            theta=jnp.where(still, begun.theta, readout.theta),
            eta_dagger=readout.eta_dagger,
            eta=readout.eta,
            theta_ridge=readout.theta_ridge,
            k=jnp.where(still, begun.k, readout.k),
            num_learned=carry.num_learned,
            key=carry.key,
            sketch=carry.sketch,
            root=readout.root,
            prior=carry.prior,
            ridge=self.own_ridges(carry.W.dtype),
            activation=self.g_name,
        )

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
        carry = self.begin(state, X_t, weight_t)
        idle = ~jnp.any(carry.pending.valid)
        carry, info = self.advance(carry, Y_t, X_next, weight_next)
        idle &= ~jnp.any(carry.pending.valid)
        # The round trip through a solver's carry may round; a step without rows may not.
        before = state._replace(ridge=self.own_ridges(carry.W.dtype), activation=self.g_name)
        kept = jax.tree.map(lambda new, old: jnp.where(idle, old, new), self.finish(carry), before)
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

    def stream_form(self) -> StreamForm:
        """How it is driven along a stream."""
        return StreamForm(
            begin=self.begin,
            advance=self.advance,
            finish=self.finish,
            embed=lambda state, X: features(state.W, jnp.asarray(X), self.g),
            read=lambda carry, Z: matmul(Z, carry.theta),
            deferred=self.deferred(),
            read_leading=lambda carry, Z, columns: matmul(Z, carry.theta[..., :columns]),
            follow=FollowForm(_follow, _follow_step, _followed_scores),
            facts=StateFacts(
                num_features=num_features_of,
                width=lambda state: int(jnp.shape(state.theta)[1]),
                columns_known=_columns_known,
                differences=lambda expected, state: _differences(expected, state, self.ridge),
            ),
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
        stream=method.stream_form(),
        fit_offline=method.fit_offline,
        description=method.description(),
    )


def _health(
    carry: StreamCarry, readouts: Any, report: Report, probe_next: Array
) -> tuple[Sketch, Array]:
    """The sketch with the batch in hand, and (L,) the residual of the readouts after it."""
    # Diagnostics have no derivatives: they would cost memory, and norms have none at 0.
    watched = lax.stop_gradient((readouts, carry.pending, report, probe_next))
    sketch = _updated(carry.sketch, *watched[1:3])
    gap = jax.vmap(partial(_residual, carry.solver))(watched[0], sketch, watched[3])
    return sketch, gap


def design_of(state: Any) -> dict[str, Any]:
    """What a state says of its learner; activation is None where it says nothing."""
    layers, _, nodes = jnp.shape(state.W)
    return {"num_layers": layers, "num_nodes": nodes, "activation": state.activation}


def _columns_known(state: EdRVFLState) -> int:
    known = np.flatnonzero(np.any(fetch(state.theta) != 0, axis=(0, 1)))
    return int(np.max(known, initial=-1)) + 1


def _differences(expected: EdRVFLState, state: EdRVFLState, ridge: Any) -> list[str]:
    """In what a state is one of another learner or stream; see `StateFacts`."""
    wanted, found = (
        {**design_of(each), "features": num_features_of(each), "classes": each.theta.shape[-1]}
        for each in (expected, state)
    )
    if found["activation"] is None:
        del wanted["activation"], found["activation"]
    # A prior, a root or a key too much is no fault; states of before had no lambda.
    spare: dict[str, Any] = {
        name: None for name in ("key", "root", "prior") if getattr(expected, name) is None
    }
    shapes = state._replace(ridge=expected.ridge, activation=expected.activation, **spare)
    faults = differences(wanted, found) or state_differences(expected, shapes)
    return faults + _other_ridge(ridge, state.ridge)


def _other_ridge(mine: Any, theirs: Array | None) -> list[str]:
    """lambda, where both the learner and the state tell."""
    if theirs is None or is_traced(mine) or is_traced(theirs):
        return []
    told = fetch(theirs)
    # As near as single precision tells.
    if np.shape(mine) not in ((), told.shape) or np.allclose(mine, told, rtol=1e-6, atol=0):
        return []
    return [f"ridge: expected {np.asarray(mine).tolist()}, got {told.tolist()}"]


def _prior_guess(D: Array, prior: Array | None) -> Array | None:
    """(L, b, m) D theta_0, or None where theta_0 is 0."""
    return None if prior is None else matmul(D, prior)


def _follow(carry: StreamCarry, Z: Array) -> Any:
    following = carry.solver.follow
    return None if following is None else jax.vmap(following.begin)(carry.readouts, Z)


def _follow_step(followed: Any, carry: StreamCarry, Z: Array) -> Any:
    assert carry.solver.follow is not None
    return jax.vmap(carry.solver.follow.advance)(followed, carry.readouts, Z)


def _followed_scores(followed: Any, carry: StreamCarry, Z: Array) -> Array:
    following = carry.solver.follow
    assert following is not None
    return lax.cond(
        carry.begun.still,
        lambda: matmul(Z, carry.begun.theta),
        lambda: jax.vmap(following.read)(followed, carry.readouts),
    )


def _unweighted(batch: PendingBatch, scores: Array) -> Array:
    """(L, b, m) scores of the rows as they came; 0 in padding."""
    scale = jnp.where(batch.valid, 1.0 / jnp.where(batch.valid, batch.root, 1.0), 0.0)
    return scale[:, None] * scores


def _updated(sketch: Sketch, batch: PendingBatch, report: Report) -> Sketch:
    return jax.vmap(update)(
        sketch, batch.D, batch.probe, report.taught, report.weight, report.absorbed
    )


def _residual(solver: ReadoutSolver, readout: Any, sketch: Sketch, probe_next: Array) -> Array:
    theta, k = solver.solution(readout)
    return residual(sketch, theta, k, probe_next, readout.V)


def _step_keys(strength: Strength, carry: StreamCarry) -> tuple[Array | None, Array | None]:
    """(L,) keys for k_t and k_{t+1}, or None where the estimator is not random."""
    if not is_random(strength):
        return None, None
    assert carry.key is not None
    keys = jax.random.split(jax.random.fold_in(carry.key, carry.num_learned), (2, len(carry.W)))
    return keys[0], keys[1]
