"""The shapes that everything else agrees on: a learner, a stream, a run.

No algorithm lives here. Axis letters: L sub-learners, T batches, b rows a batch,
s input features, d readout inputs (N + s), m class columns, Q tasks, n test rows,
E evaluations.
"""

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace
from pickle import PicklingError
from typing import Any, Literal, NamedTuple
from typing import Protocol as Interface

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.portable import Origin, portable
from rvfl_jax.core.words import Summary, brief, cut, in_brief, listed, summarised

# Options of public functions, so that a type checker finds a slip.
Solver = Literal["auto", "blocked", "covariance", "information", "square_root"]
ColdStart = Literal["exact", "paper"]
Ensemble = Literal["mean", "median"]
ActivationName = Literal["relu", "leaky_relu", "sigmoid", "tanh", "swish"]
WeightInit = Literal[
    "uniform",
    "lecun_uniform",
    "lecun_normal",
    "he_uniform",
    "he_normal",
    "glorot_uniform",
    "orthogonal",
]
Estimator = Literal["inverse_trace", "trace", "random_diagonal", "random_variance"]
Precision = Literal["double", "single"]
Evaluate = Literal["batch", "task", "never"]
Layout = Literal["rows", "eta_dagger"]
Boundaries = Literal["none", "given"]
Order = Literal["classes", "tasks", "none"]
Lookahead = Literal["hold", "none"]
Scale = Literal["none", "first"]
FeatureMap = Literal["layers", "fourier", "sparse", "none"]
ReadoutName = Literal["ridge", "discriminant", "nearest_mean"]
NoveltyScore = Literal["blended", "relative_mahalanobis", "mahalanobis", "leverage"]
Criterion = Literal["prequential_loss", "prequential_accuracy"]
ExportFormat = Literal["jax", "onnx"]
# How guesses on a test set are judged; see `rvfl_jax.metrics.protocol_hits`.
Protocol = Literal["class_incremental", "seen", "task_aware", "task_id"]

Array = jax.Array
State = Any
Carry = Any


NO_EXTRAS: dict[str, Any] = {}


@portable
@in_brief
class StepInfo(NamedTuple):
    """Diagnostics of one step, for people; no later step needs them.

    Attributes:
        guess_scores: (L, b, m) raw scores of the incoming batch, from what was learned before
            it; (b, m) for a method without sub-learners. `Learner.combine` turns them into
            the guess.
        healthy: scalar or (L,), False where input or arithmetic was not finite, or what was
            learned has been lost to rounding.
        extras: the method's own figures by name, each a scalar or (L,). `run_stream` keeps them
            for every batch.
    """

    guess_scores: Array
    healthy: Array
    extras: dict[str, Array] = NO_EXTRAS


class Init(Interface):
    """How a learner begins: a state of any structure, for so many features and classes."""

    def __call__(self, key: Array, num_features: int, num_classes: int) -> State:
        """The state."""
        ...


class Step(Interface):
    """How a learner learns a batch, with what is known of the one that follows it."""

    def __call__(
        self,
        state: State,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        weight_next: Any = None,
    ) -> tuple[State, StepInfo]:
        """The state after it, and what may be worth seeing of the step."""
        ...


class Answer(Interface):
    """What a state says of inputs (n, s): scores or probabilities."""

    def __call__(self, state: State, X: Any) -> Array:
        """(L, n, m) or (n, m)."""
        ...


class FitOffline(Interface):
    """All rows at once, from the random features of a state."""

    def __call__(self, state: State, X: Any, Y: Any, weight: Any) -> State:
        """The state that has learned them."""
        ...


Combine = Callable[[Array], Array]
Consolidate = Callable[[State], State]
Loss = Callable[[Array, Array], Array]


class Decided(Interface):
    """What a driver reads of a decision, each (L,); how it scores is the method's own affair."""

    @property
    def healthy(self) -> Array:
        """See `StepInfo`."""
        ...

    @property
    def residual(self) -> Array:
        """See `History`."""
        ...

    @property
    def condition(self) -> Array:
        """See `History`."""
        ...


@jax.tree_util.register_static
class Name(str):
    """A word that JAX takes for structure."""


@in_brief
class DeferredForm(NamedTuple):
    """How a learner adds up batches and decides only when asked.

    Attributes:
        begin: `state -> sums`.
        absorb: `(sums, X, Y, weight) -> sums`, any number of rows.
        decide: `(sums, X_next, weight_next) -> decision` with theta, healthy, residual and
            condition; X_next is the batch announced at that moment.
        finish: `(state, sums, batches, X_next, weight_next) -> state`; `batches` were learned
            since `state`.
    """

    begin: Callable[[State], Any]
    absorb: Callable[[Any, Array, Array, Array], Any]
    decide: Callable[[Any, Array, Array], Decided]
    finish: Callable[[State, Any, Array, Array, Array], State]


@in_brief
class FollowForm(NamedTuple):
    """How the scores of fixed rows follow a learner, instead of being computed anew.

    Attributes:
        begin: `(carry, Z) -> followed`, or None where this carry has no such way.
        move: `(carry, Z) -> move`, what a step changes.
        advance: `(followed, carry, move) -> followed`, after every step.
        read: `(followed, carry, Z) -> (L, n, m)` raw scores.
    """

    begin: Callable[[Carry, Any], Any]
    move: Callable[[Carry, Any], Any]
    advance: Callable[[Any, Carry, Any], Any]
    read: Callable[[Any, Carry, Any], Array]


@in_brief
class BlockForm(NamedTuple):
    """How a learner learns several batches at once, to the result of learning them one by one.

    Attributes:
        size: `(carry, steps) -> r`, how many of a stream of so many; 1 where one at a time is
            as fast.
        advance: `(carry, Y, X_next, weight_next) -> (carry, infos, shared, each)`, all arguments
            and infos of r batches with a leading r, the pending one first.
        decided: `(shared, each of one batch) -> decided`, which the form reads and follows as it
            does the carry after that batch.
    """

    size: Callable[[Carry, int], int]
    advance: Callable[[Carry, Any, Any, Any], tuple[Carry, StepInfo, Any, Any]]
    decided: Callable[[Any, Any], Any]


@in_brief
class StateFacts(NamedTuple):
    """What only a method itself can tell of one of its states; None where it cannot.

    Attributes:
        num_features: `state -> s`.
        width: `state -> d`, of its (L, d, d) matrices, which devices may share.
        columns_known: `state -> number` of leading columns that hold every class it knows.
        differences: `(expected, state) -> what differs`, a line each, from what `init` gives in
            shapes. Without it structure, shapes and kinds of dtype are compared.
    """

    num_features: Callable[[State], int] | None = None
    width: Callable[[State], int] | None = None
    columns_known: Callable[[State], int] | None = None
    differences: Callable[[State, State], list[str]] | None = None


@in_brief
class StreamForm(NamedTuple):
    """How a learner is driven along a stream, with one announced batch pending.

    Attributes:
        begin: `(state, X_1, weight_1) -> carry`.
        advance: `(carry, Y_t, X_next, weight_next) -> (carry, info)`; learns the pending
            batch, and the next one is then pending.
        finish: `carry -> state`.
        embed: `(state, X) -> Z`, whatever of a fixed test set need be computed only once.
        read: `(carry, Z) -> (L, n, m)` or (n, m) raw scores.
        deferred: for streams on which decisions are rarely wanted; None where a method
            has to decide at every batch.
        read_leading: `(carry, Z, columns) -> (L, n, columns)` raw scores of the leading
            columns, a static number, for methods that give classes never seen the score 0
            (unless they began from a readout that knows them); None for all others.
        follow: for small batches and many classes, where the scores of a test set change by
            little at each step; None where a method has no such form.
        block: for small batches, many of which are faster learned at once; None where a method
            has no such form.
        facts: what the method tells of its states.
    """

    begin: Callable[[State, Any, Any], Carry]
    advance: Callable[[Carry, Any, Any, Any], tuple[Carry, StepInfo]]
    finish: Callable[[Carry], State]
    embed: Callable[[State, Any], Any]
    read: Callable[[Carry, Any], Array]
    deferred: DeferredForm | None = None
    read_leading: Callable[[Carry, Any, int], Array] | None = None
    follow: FollowForm | None = None
    block: BlockForm | None = None
    facts: StateFacts = StateFacts()


def keep_state(state: State) -> State:
    """The `consolidate` of methods that need none."""
    return state


def squared_error(scores: Array, targets: Array) -> Array:
    """(b,) squared error of the sub-learners' mean scores (L, b, m), summed over columns."""
    return jnp.sum((jnp.mean(scores, axis=0) - targets) ** 2, axis=-1)


@in_brief
@dataclass(frozen=True)
class Recipe:
    """How a learner is made, so that learners made alike share their compiled programs.

    Attributes:
        make: `(options, numbers) -> Learner`, also where the numbers are traced.
        options: all that shapes a program.
        numbers: a pytree of all that only scales, which programs take as an argument; recipes
            that differ in nothing else are equal.
    """

    make: Callable[[Any, Any], "Learner"]
    options: Hashable
    numbers: Any = field(compare=False)


@jax.tree_util.register_pytree_node_class
@summarised
@dataclass(frozen=True, eq=False, repr=False)
class Learner:
    """A method as pure functions, and a pytree of the numbers in its configuration.

    As an argument of a compiled function it is traced: its numbers are leaves, and all else is
    part of the structure. Learners that differ in numbers only (lambda, k) therefore share one
    compiled program; they are equal if their numbers are equal in type and value. A learner put
    together by hand, changed by `dataclasses.replace`, or made with an option whose value may
    change (a lambda, an object with state) has no leaves and is equal only to itself. k is not a
    leaf where it is known to be 0.

    A learner can be pickled if its functions can be imported by name, which excludes options such
    as a lambda.

    Attributes:
        init: `(key, num_features, num_classes) -> state`.
        step: `(state, X_t, Y_t, X_next, *, weight_t=None, weight_next=None)
            -> (state, info)`.
        predict: `(state, X) -> (n, m)` ensemble probabilities.
        scores: `(state, X) -> (L, n, m)` raw scores of every sub-learner; (n, m) for a method
            without sub-learners.
        combine: `scores (L, n, m) -> (n, m)` ensemble probabilities.
        stream: the same step in the form that `run_stream` scans.
        fit_offline: `(state, X, Y, weight) -> state`, the offline expert with the same
            random features; None for a method without one.
        consolidate: `state -> state`, called where a task ends if a run says
            `boundaries="given"`; `keep_state` for methods that need none.
        loss: `(scores (L, b, m), targets (b, m)) -> (b,)`, the prequential loss, of the guesses on
            a batch before it is learned; squared error of the mean scores for methods whose
            scores estimate the targets.
        description: the method and its configuration in words, for records.
        recipe: how it was made; None if it was put together by hand.
        origin: the call that makes it again in another process; None if put together by hand.
        own_programs: programs compiled for it alone and freed with it; none if it has a recipe.
    """

    init: Init
    step: Step
    predict: Answer
    scores: Answer
    combine: Combine
    stream: StreamForm
    fit_offline: FitOffline | None = None
    consolidate: Consolidate = keep_state
    loss: Loss = squared_error
    description: str = ""
    recipe: Recipe | None = field(default=None, init=False)
    origin: Origin | None = field(default=None, init=False)
    own_programs: dict[Any, Any] = field(default_factory=dict, init=False)

    def tree_flatten(self) -> tuple[tuple[Any, ...], Any]:
        """For JAX: the numbers as leaves, and all else as structure."""
        if self.recipe is None:
            return (), self
        return (self.recipe.numbers,), replace(self.recipe, numbers=None)

    @classmethod
    def tree_unflatten(cls, rest: Any, children: tuple[Any, ...]) -> "Learner":
        """For JAX: the learner with these leaves, which may be anything."""
        return rest.make(rest.options, *children) if isinstance(rest, Recipe) else rest

    def __copy__(self) -> "Learner":
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> "Learner":
        return self

    def __reduce__(self) -> Any:
        if self.origin is None:
            raise PicklingError(
                "learner: expected one that edrvfl or another function made, which makes it again"
                " where it is read, got one put together by hand: send what makes it"
            )
        return _again, (self.origin.again(),)

    def _summary(self) -> Summary:
        if self.description:
            return Summary(f"Learner: {cut(self.description, 800)}", [])
        names = ("init", "step", "scores", "fit_offline")
        return Summary(
            "Learner put together by hand", [(name, brief(getattr(self, name))) for name in names]
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Learner):
            return NotImplemented
        if self is other or self.recipe is None or self.recipe != other.recipe:
            return self is other
        structures: list[Any] = [jax.tree.structure(learner) for learner in (self, other)]
        leaves = map(_same_number, jax.tree.leaves(self), jax.tree.leaves(other))
        return bool(structures[0] == structures[1]) and all(leaves)

    def __hash__(self) -> int:
        return object.__hash__(self) if self.recipe is None else hash(self.recipe)


def _again(make: Callable[[], Learner]) -> Learner:
    return make()


def _same_number(one: Any, other: Any) -> bool:
    """Equal values of one type; what is traced is equal to itself alone."""
    if one is other or isinstance(one, jax.core.Tracer) or isinstance(other, jax.core.Tracer):
        return one is other
    return type(one) is type(other) and np.array_equal(one, other)


@summarised
class Stream(NamedTuple):
    """A labelled batch stream on the host.

    Attributes:
        X: (T, b, s) inputs, padded.
        y: (T, b) column index of each row's class; 0 in padding.
        weight: (T, b) row weights; 0 marks padding.
        classes: (m,) original labels; column c stands for `classes[c]`.
        task: (T,) task of each batch (of most of its rows when boundaries are blurred).
        class_task: (m,) task of each class.

    A learner sees X, y and weight only; `task` and `class_task` are for evaluation.
    """

    X: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    classes: np.ndarray
    task: np.ndarray
    class_task: np.ndarray

    @property
    def num_batches(self) -> int:
        """T, the number of batches."""
        return self.X.shape[0]

    @property
    def num_tasks(self) -> int:
        """Q, the number of tasks."""
        return int(self.class_task.max()) + 1

    @property
    def num_rows(self) -> int:
        """Number of rows of positive weight in the whole stream."""
        return int((self.weight > 0).sum())

    @property
    def task_ends(self) -> np.ndarray:
        """(Q,) index of the last batch of each task; -1 if it leads none."""
        of_task = self.task[None] == np.arange(self.num_tasks)[:, None]
        last = self.num_batches - 1 - np.argmax(of_task[:, ::-1], axis=1)
        return np.where(of_task.any(axis=1), last, -1)

    def _summary(self) -> Summary:
        (T, b, s), classes = self.X.shape, np.asarray(self.classes).tolist()
        rows = (self.weight > 0).sum(axis=1)
        title = (
            f"Stream: {self.num_rows:,} rows of {s} features in {T} batches,"
            f" {len(classes)} classes in {self.num_tasks} tasks"
        )
        return Summary(
            title,
            [
                ("X", f"{brief(self.X)}, padded to {b} rows a batch"),
                ("rows", f"{rows.min()} to {rows.max()} a batch"),
                ("classes", listed(classes)),
                ("task ends", f"after batches {listed(self.task_ends + 1)}"),
            ],
        )
