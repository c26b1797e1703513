"""Build a `Learner` out of a plain step, and the ensembles that turn scores into one guess."""

import inspect
import weakref
from collections.abc import Callable, Hashable, Mapping
from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from functools import cache, partial, wraps
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import differences, is_traced, one_of, plain_array, shape
from rvfl_jax.core.portable import Origin, is_key
from rvfl_jax.core.types import (
    Answer,
    Array,
    Combine,
    Consolidate,
    Ensemble,
    FitOffline,
    Init,
    Learner,
    Loss,
    Recipe,
    State,
    StateFacts,
    Step,
    StepInfo,
    StreamForm,
    keep_state,
    squared_error,
)
from rvfl_jax.core.words import in_brief
from rvfl_jax.linalg.precision import scope_of
from rvfl_jax.metrics import by_learner, check_scores, mean_softmax

ENSEMBLES: tuple[Ensemble, ...] = ("mean", "median")


@in_brief
class Held(NamedTuple):
    """Carry of a learner without a stream form of its own: a state and the pending batch."""

    state: State
    X: Array
    weight: Array


def combiner(kind: str) -> Combine:
    """How (L, n, m) scores become (n, m) probabilities.

    Each sub-learner's scores go through softmax; "mean" averages them, "median" takes the
    median over sub-learners and rescales each row to sum 1.

    Raises:
        ValueError: on any other kind.
    """
    if one_of("ensemble", kind, ENSEMBLES) == "mean":
        return mean_softmax
    return _median_softmax


def _median_softmax(scores: Array) -> Array:
    check_scores(scores)
    each = jax.nn.softmax(scores, axis=-1)
    middle = jnp.median(each, axis=0)
    total = jnp.sum(middle, axis=-1, keepdims=True)
    # Sub-learners that agree on no class leave nothing in the middle.
    return jnp.where(total > 0, middle / jnp.where(total > 0, total, 1.0), jnp.mean(each, axis=0))


@partial(jax.jit, static_argnums=(0, 1, 2))
def _shared_program(
    functions: Callable[[Any, Any], Learner],
    options: Hashable,
    name: str,
    numbers: Any,
    *args: Any,
    **kwargs: Any,
) -> Any:
    return getattr(functions(options, numbers), name)(*args, **kwargs)


def shared_programs(
    functions: Callable[[Any, Any], Learner],
) -> Callable[[Any, Any], Learner]:
    """A maker of learners whose programs are compiled once for all that have equal options.

    Args:
        functions: `(options, numbers) -> Learner` with plain functions, at the top of a module.
            `options` are hashable; `numbers` are a pytree, nothing is known of their values.

    Returns:
        The same with compiled functions. Learners share programs where every option is known by
        its value; with another (a lambda, an object that may change) a learner has its own.
    """

    @wraps(functions)
    def make(options: Any, numbers: Any) -> Learner:
        learner = functions(options, numbers)
        origin = Origin(make, (options, numbers), {})
        if not all(map(_known_by_value, options)):
            learner = _with_programs(learner, lambda name: _own_program(getattr(learner, name)))
            object.__setattr__(learner, "origin", origin)
            return learner

        def program(name: str) -> Callable[..., Any]:
            return partial(_shared_program, functions, options, name, numbers)

        learner = _with_programs(learner, program)
        object.__setattr__(learner, "recipe", Recipe(make, options, numbers))
        object.__setattr__(learner, "origin", origin)
        return learner

    return make


def _known_by_value(option: Any) -> bool:
    """Whether equal options will always do the same: no closures, no objects that may change."""
    if isinstance(option, FunctionType | BuiltinFunctionType):
        return "<" not in option.__qualname__
    if isinstance(option, Learner):
        return option.recipe is not None
    by_identity: Any = object.__hash__
    if callable(option) and type(option).__hash__ is by_identity:
        return type(option).__module__.partition(".")[0] in ("jax", "jaxlib", "numpy")
    return isinstance(option, Hashable)


def _own_program(function: Callable[..., Any]) -> Callable[..., Any]:
    # Making one takes a millisecond, and few learners are ever called.
    compiled = cache(lambda: jax.jit(function))
    return lambda *args, **kwargs: compiled()(*args, **kwargs)


class LearnerProgram:
    """A function whose first argument is a learner, compiled.

    Equal learners share its programs, which JAX keeps. One that is equal to itself alone has its
    own, which are freed with it: a process may make any number of them.
    """

    def __init__(self, function: Callable[..., Any], **options: Any) -> None:
        """Take the function and the options of `jax.jit`, with arguments by name."""
        self._function, self._options = function, options
        self._shared = jax.jit(function, **options)

    def __call__(self, learner: Learner, *args: Any, **kwargs: Any) -> Any:
        """What the function gives."""
        if learner.recipe is not None:
            return self._shared(learner, *args, **kwargs)
        if self not in learner.own_programs:
            # The learner holds the program, which must not hold it: else both would stay.
            one = weakref.ref(learner)

            def function(*args: Any, **kwargs: Any) -> Any:
                return self._function(one(), *args, **kwargs)

            function.__signature__ = _without_first(self._function)  # type: ignore[attr-defined]
            learner.own_programs[self] = jax.jit(function, **self._options)
        return learner.own_programs[self](*args, **kwargs)


def _without_first(function: Callable[..., Any]) -> inspect.Signature:
    """The signature of `partial(function, first)`."""
    signature = inspect.signature(function)
    return signature.replace(parameters=[*signature.parameters.values()][1:])


def _with_programs(learner: Learner, program: Callable[[str], Callable[..., Any]]) -> Learner:
    """The learner with its plain functions replaced by the programs of those names."""

    def called(name: str, for_people: Callable[[Any], Any] | None) -> Any:
        return as_program(getattr(learner, name), program(name), for_people)

    consolidate = learner.consolidate
    if consolidate is not keep_state:
        consolidate = called("consolidate", None)
    return replace(
        learner,
        step=called("step", info_values),
        predict=called("predict", values),
        scores=called("scores", values),
        fit_offline=None if learner.fit_offline is None else called("fit_offline", None),
        consolidate=consolidate,
    )


def as_program(
    function: Callable[..., Any],
    program: Callable[..., Any],
    for_people: Callable[[Any], Any] | None,
) -> Callable[..., Any]:
    """A learner's function as one compiled program when it is called by itself.

    Under an outer jit, vmap or grad it is traced like any other function. On a float64
    state it computes in float64, also where the global setting is float32; there JAX
    cannot work with float64 arrays, so that results for people come out in float32.

    Args:
        function: takes a state first, any pytree; one float64 leaf makes it float64.
        program: the same, compiled.
        for_people: applies to the result what it should do to all that is not a state, as
            `values` and `info_values` below; None leaves the result as it is.
    """

    @wraps(function)
    def call(state: State, *args: Any, **kwargs: Any) -> Any:
        args = tuple(map(_plain_argument, args))
        kwargs = {name: _plain_argument(value) for name, value in kwargs.items()}
        scope = scope_of(state)
        with scope:
            result = program(state, *args, **kwargs)
            narrow = for_people is not None and not isinstance(scope, nullcontext)
            return for_people(result) if for_people and narrow else result

    return call


def _plain_argument(value: Any) -> Any:
    """Lists would be taken for containers of scalars, and a mask for nothing at all."""
    if isinstance(value, np.ma.MaskedArray):
        return plain_array("batch", value)
    return np.asarray(value) if isinstance(value, list | tuple) else value


def values(result: Any) -> Any:
    """Every float64 array of a result as float32."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, result)


def info_values(result: tuple[State, StepInfo]) -> tuple[State, StepInfo]:
    """The same for the `StepInfo` of a step."""
    return result[0], values(result[1])


def check_batch(
    sizes: tuple[int, int],
    X_t: Any,
    Y_t: Any,
    X_next: Any = None,
    weight_t: Any = None,
    weight_next: Any = None,
) -> None:
    """ValueError on any shape of a step that does not fit, before anything is traced.

    Args:
        sizes: (s, m), features and classes of the state.
        X_t: expected (b, s).
        Y_t: expected (b, m).
        X_next: expected (b_next, s) or None.
        weight_t: expected (b,) or None.
        weight_next: expected (b_next,) or None.
    """
    s, m = sizes
    shape("X_t", X_t, (None, s), "(b, num_features)")
    b = np.shape(X_t)[0]
    shape("Y_t", Y_t, (b, m), "(b, num_classes)")
    if weight_t is not None:
        shape("weight_t", weight_t, (b,), "(b,)")
    if X_next is None:
        if weight_next is not None:
            raise ValueError("weight_next: expected None without X_next, got weights")
        return
    shape("X_next", X_next, (None, s), "(b_next, num_features)")
    if weight_next is not None:
        shape("weight_next", weight_next, (np.shape(X_next)[0],), "(b_next,)")


def check_design(expected: Mapping[str, Any], got: Mapping[str, Any]) -> None:
    """ValueError that lists in what a state is one of another learner; None is not known."""
    known = {name: value for name, value in got.items() if value is not None}
    faults = differences({name: expected[name] for name in known}, known)
    if faults:
        raise ValueError(f"state: expected one of this learner, got another: {'; '.join(faults)}")


def some_rows(X: Any, Y: Any, weight: Any) -> tuple[Any, Any, Any]:
    """A batch as it is; one row of weight 0 for a batch without rows, which is learned alike."""
    if np.shape(X)[0]:
        return X, Y, weight
    X = jnp.zeros((1, *np.shape(X)[1:]))
    return X, None if Y is None else jnp.zeros((1, *np.shape(Y)[1:])), jnp.zeros(1)


def check_inputs(num_features: int, X: Any) -> None:
    """ValueError unless X has so many features."""
    shape("X", X, (None, num_features), "(n, num_features)")


def state_differences(expected: State, state: State) -> list[str]:
    """In what a state is not of the structure, shapes and kinds of dtype of another, in words.

    Args:
        expected: arrays, or anything with a shape and a dtype.
        state: arrays.
    """
    want, got = (
        {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(t)}
        for t in (expected, state)
    )
    faults = [
        f"{_plain_path(name)}: expected {said[0]}, got {said[1]}"
        for name, leaf in want.items()
        if (said := _other_leaf(leaf, got.get(name))) is not None
    ]
    faults += [
        f"{_plain_path(name)}: expected none, got shape {np.shape(leaf)}"
        for name, leaf in got.items()
        if name not in want
    ]
    structures: list[Any] = [jax.tree.structure(tree) for tree in (expected, state)]
    if not faults and structures[0] != structures[1]:
        return [f"structure: expected {structures[0]}, got {structures[1]}"]
    return faults


def _plain_path(name: str) -> str:
    return name.removeprefix(".") or "state"


def _other_leaf(want: Any, got: Any) -> tuple[str, str] | None:
    """What is expected of a leaf and what it is, where they differ."""
    if got is None:
        return f"shape {want.shape}", "none"
    if np.shape(got) != want.shape:
        return f"shape {want.shape}", f"{np.shape(got)}"
    kinds = _kind(want), _kind(got)
    return kinds if kinds[0] != kinds[1] else None


def _kind(leaf: Any) -> str:
    if is_key(leaf):
        return "a PRNG key"
    dtype = getattr(leaf, "dtype", None) or np.asarray(leaf).dtype
    kinds = {jnp.floating: "real numbers", jnp.integer: "integers", jnp.bool_: "truth values"}
    return next((word for kind, word in kinds.items() if jnp.issubdtype(dtype, kind)), str(dtype))


def describe(name: str, **options: Any) -> str:
    """`name(option=value, ...)` with arrays as lists, for records; traced values say so."""

    def word(value: Any) -> str:
        if is_traced(value):
            return "traced"
        if isinstance(value, np.ndarray | jax.Array | np.generic):
            return repr(np.asarray(value).tolist())
        if callable(value) and hasattr(value, "__qualname__"):
            return f"{value.__module__}.{value.__qualname__}"
        if is_dataclass(value) and not isinstance(value, type):
            parts = {part.name: getattr(value, part.name) for part in fields(value)}
            return describe(type(value).__name__, **parts)
        return getattr(value, "__name__", None) or repr(value)

    return f"{name}({', '.join(f'{option}={word(value)}' for option, value in options.items())})"


def make_learner(
    init: Init,
    step: Step,
    scores: Answer,
    *,
    combine: Combine = mean_softmax,
    fit_offline: FitOffline | None = None,
    consolidate: Consolidate = keep_state,
    loss: Loss = squared_error,
    description: str = "",
) -> Learner:
    """Build a `Learner` from a plain step.

    Along a stream one batch is held back, so that the step sees the inputs of the next.

    Args:
        init: `(key, num_features, num_classes) -> state`, any pytree of arrays.
        step: `(state, X_t, Y_t, X_next, *, weight_t, weight_next) -> (state, info)`.
        scores: `(state, X) -> (n, m)`, or (L, n, m) of L sub-learners.
        combine: (L, n, m) scores, L = 1 where there are no sub-learners, to (n, m)
            probabilities; see `combiner`.
        fit_offline: the offline expert, if the method has one.
        consolidate: `state -> state`, applied where a task ends.
        loss: `(scores (L, b, m), targets) -> (b,)`, the prequential loss; use
            `rvfl_jax.metrics.brier_loss` where scores do not estimate one-hot targets.
        description: the method and its configuration in words, for records.
    """
    parts: dict[str, Any] = {
        "combine": combine,
        "fit_offline": fit_offline,
        "consolidate": consolidate,
        "loss": loss,
        "description": description,
    }
    plain = plain_learner(init, step, scores, **parts)
    learner = _with_programs(plain, lambda name: _own_program(getattr(plain, name)))
    origin = Origin(make_learner, (init, step, scores), parts)
    object.__setattr__(learner, "origin", origin)
    return learner


def plain_learner(
    init: Init,
    step: Step,
    scores: Answer,
    *,
    combine: Combine = mean_softmax,
    fit_offline: FitOffline | None = None,
    consolidate: Consolidate = keep_state,
    loss: Loss = squared_error,
    description: str = "",
    sizes: Callable[[State], tuple[int, int]] | None = None,
) -> Learner:
    """The same of functions that are not compiled, for `shared_programs`.

    With `sizes`, `state -> (s, m)`, batches and inputs of other shapes are a ValueError, and an
    export knows the number of features.
    """
    facts = StateFacts()
    if sizes is not None:
        step, scores = _checked_step(step, sizes), _checked_scores(scores, sizes)
        facts = StateFacts(num_features=lambda state: sizes(state)[0])

    def advance(
        carry: Held, Y_t: Array, X_next: Array, weight_next: Array
    ) -> tuple[Held, StepInfo]:
        state, info = step(
            carry.state, carry.X, Y_t, X_next, weight_t=carry.weight, weight_next=weight_next
        )
        return Held(state, X_next, weight_next), info

    def combined(scores: Array) -> Array:
        return combine(by_learner(scores))

    return Learner(
        init=init,
        step=step,
        predict=lambda state, X: combined(scores(state, X)),
        scores=scores,
        combine=combined,
        stream=StreamForm(
            begin=Held,
            advance=advance,
            finish=lambda carry: carry.state,
            embed=lambda state, X: X,
            read=lambda carry, Z: scores(carry.state, Z),
            facts=facts,
        ),
        fit_offline=fit_offline,
        consolidate=consolidate,
        loss=loss,
        description=description,
    )


def _checked_step(step: Step, sizes: Callable[[State], tuple[int, int]]) -> Step:
    @wraps(step)
    def checked(
        state: State,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        weight_next: Any = None,
    ) -> tuple[State, StepInfo]:
        check_batch(sizes(state), X_t, Y_t, X_next, weight_t, weight_next)
        return step(state, X_t, Y_t, X_next, weight_t=weight_t, weight_next=weight_next)

    return checked


def _checked_scores(scores: Answer, sizes: Callable[[State], tuple[int, int]]) -> Answer:
    @wraps(scores)
    def checked(state: State, X: Any) -> Array:
        check_inputs(sizes(state)[0], X)
        return scores(state, X)

    return checked
