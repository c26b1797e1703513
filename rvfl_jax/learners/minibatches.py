"""Inner epochs: a learner that takes each batch in minibatches, and as often as asked.

Where a batch is a whole task, one gradient step a batch is next to none. Cut into p pieces of r
rows, a batch is learned by the p E steps

    S <- step(S, X_j, Y_j),      j = 1 .. p, as the rows come, and that E times over.     (1)

Rows are not shuffled: those of `rvfl_jax.class_incremental_stream` come shuffled within a task.
What a learner keeps, such as a reservoir, is shown each row once an epoch, so that a row counts E
times among the rows that passed by. The replay methods of Mammoth (P. Buzzega et al., NeurIPS 2020)
do the same: their `observe` adds its minibatch to the buffer in every epoch.

Shapes: X_j (r, s), Y_j (r, m); S is any state.

Cost: E passes over the rows of a batch, and the scores of all of them once. Memory: the batch once
more, cut up, and a second state to go back to.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.types import Array, Learner, Recipe, State, StepInfo
from rvfl_jax.learners.base import Held, plain_learner, shared_programs
from rvfl_jax.learners.parts import rows_of, unless_unhealthy


class Options(NamedTuple):
    """What shapes the programs: how the learner within is made, and the cut."""

    make: Callable[[Any, Any], Learner]
    options: Hashable
    rows: int
    epochs: int


def in_minibatches(learner: Learner, *, rows: int, epochs: int = 1) -> Learner:
    """The learner with steps that take a batch (b, s) in pieces of `rows`, `epochs` times over.

    Its state is that of `learner`, and so is all but the step: what it guesses, its loss, its
    offline fit, and what it does where a task ends, after all epochs over the last batch. The last
    piece is filled up with rows of weight 0; a batch of at most `rows` rows is one piece.

    A batch is learned whole or not at all. If a piece was not healthy, the state is the one before
    the batch, and `healthy` is False. `guess_scores` (b, m) are those of the state before the
    batch, `extras` those of the last piece. A piece announces the next as `X_next`, the last one
    the first `rows` rows of the next batch.

    Example:
        >>> learner = rvfl_jax.in_minibatches(er(), rows=64, epochs=5)
        >>> tasks = rvfl_jax.by_task(stream)
        >>> run = rvfl_jax.run_stream(learner, tasks, key=jax.random.key(0), precision="single")

    Args:
        learner: any whose stream form is its step, as `make_learner` gives it; all compared
            methods are.
        rows: r, of a piece.
        epochs: E, passes over the rows of each batch.

    Raises:
        ValueError: on rows or epochs below 1, and on learners with a stream form of their own, as
            `edrvfl` has, which is given smaller batches instead.
    """
    if not isinstance(learner, Learner) or learner.stream.begin is not Held:
        got = learner.description if isinstance(learner, Learner) else type(learner).__name__
        raise ValueError(
            "learner: expected one that learns a stream step by step, got"
            f" {got or 'one with a stream form of its own'}; cut its stream into smaller batches"
        )
    rows, epochs = positive_int("rows", rows), positive_int("epochs", epochs)
    made = learner.recipe or Recipe(_itself, learner, None)
    return _in_minibatches(Options(made.make, made.options, rows, epochs), made.numbers)


def _itself(learner: Learner, numbers: Any) -> Learner:
    """The maker of a learner that is known as this object alone."""
    del numbers
    return learner


@shared_programs
def _in_minibatches(options: Options, numbers: Any) -> Learner:
    learner = options.make(options.options, numbers)
    num_features = learner.stream.facts.num_features

    def step(
        state: State,
        X_t: Any,
        Y_t: Any,
        X_next: Any = None,
        *,
        weight_t: Any = None,
        weight_next: Any = None,
    ) -> tuple[State, StepInfo]:
        X, weight = rows_of(X_t, weight_t)
        rows = max(min(options.rows, len(X)), 1)
        pieces = Pieces.cut(rows, X, jnp.asarray(Y_t), weight)
        announced = pieces.announced(*rows_of(X[:0] if X_next is None else X_next, weight_next))
        count = pieces.number * options.epochs

        def learn(state: State, i: Array) -> tuple[State, tuple[Array, dict[str, Array]]]:
            X, Y, w = (x[i % pieces.number] for x in pieces)
            after = jnp.where(i + 1 < count, (i + 1) % pieces.number, pieces.number)
            X_after, w_after = (x[after] for x in announced)
            state, info = learner.step(state, X, Y, X_after, weight_t=w, weight_next=w_after)
            return state, (jnp.all(info.healthy), info.extras)

        new, (healthy, extras) = lax.scan(learn, state, jnp.arange(count))
        healthy = jnp.all(healthy)
        info = StepInfo(learner.scores(state, X), healthy, jax.tree.map(lambda x: x[-1], extras))
        return unless_unhealthy(healthy, new, state), info

    def sizes(state: State) -> tuple[int, int]:
        assert num_features is not None
        s = num_features(state)
        return s, jax.eval_shape(learner.scores, state, jnp.zeros((1, s))).shape[-1]

    name = learner.description or "a learner"
    return plain_learner(
        learner.init,
        step,
        learner.scores,
        combine=learner.combine,
        fit_offline=learner.fit_offline,
        consolidate=learner.consolidate,
        loss=learner.loss,
        description=f"in_minibatches({name}, rows={options.rows}, epochs={options.epochs})",
        sizes=None if num_features is None else sizes,
    )


class Pieces(NamedTuple):
    """A batch cut up: X (p, r, s), Y (p, r, m) and weight (p, r), 0 where the last is filled up."""

    X: Array
    Y: Array
    weight: Array

    @classmethod
    def cut(cls, rows: int, X: Array, Y: Array, weight: Array) -> "Pieces":
        """At least one piece, of r = `rows` rows each."""
        number = max(-(-len(X) // rows), 1)

        def in_pieces(x: Array) -> Array:
            return _of_length(x, number * rows).reshape(number, rows, *x.shape[1:])

        return cls(*map(in_pieces, (X, Y, weight)))

    @property
    def number(self) -> int:
        """The number of pieces, p."""
        return len(self.weight)

    def announced(self, X_next: Array, weight_next: Array) -> tuple[Array, Array]:
        """X and weight of all pieces, and in place p those of the first rows that come after."""
        rows = self.weight.shape[1]
        both = (self.X, X_next), (self.weight, weight_next)
        X, weight = (
            jnp.concatenate([own, _of_length(x[:rows], rows)[None].astype(own.dtype)])
            for own, x in both
        )
        return X, weight


def _of_length(x: Array, length: int) -> Array:
    """An array with zeros behind its last row."""
    return jnp.pad(x, [(0, length - len(x)), *[(0, 0)] * (x.ndim - 1)])
