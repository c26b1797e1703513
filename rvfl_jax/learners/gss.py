"""GSS: keep rows whose gradients point in different directions, and replay them.

Each update is a step of plain gradient descent on the batch's rows and on rows drawn from memory,
each row counting alike, as in `rvfl_jax.learners.replay`. Then each row of the batch, with gradient
g, is compared with n rows drawn from memory, with gradients G_1 to G_n, Algorithm 2 of the source:

    c = 1 + max_i g'G_i / (||g|| ||G_i||).

While there is room it is kept, with its score c. Later, where c < 1, a place i is drawn with
probability C_i / sum_j C_j by the scores kept, and the row takes it with probability
C_i / (C_i + c). A row that there is nothing to compare with has c = 1, as one at right angles.

Cost: 6 (b + d) flops a parameter and update, and 6 (n + 1) b to choose. Memory: the parameters and
r rows; choosing needs n + 1 gradients at once.

Source: R. Aljundi, M. Lin, B. Goujaud, Y. Bengio, "Gradient Based Sample Selection for Online
Continual Learning", NeurIPS 2019, the greedy form, with n = 10 and the rate 0.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax
from jax.flatten_util import ravel_pytree

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner, StepInfo
from rvfl_jax.learners.base import describe, plain_learner, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, follow, is_sound
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.learners.rehearsal import loss_of_both, rehearsal_options
from rvfl_jax.learners.reservoir import Reservoir, draw, empty_reservoir
from rvfl_jax.linalg.products import matmul
from rvfl_jax.metrics import brier_loss


class Chosen(NamedTuple):
    """Rows kept, of which `passed` counts the places taken, and their scores C (r,)."""

    rows: Reservoir
    score: Array


class GSSState(NamedTuple):
    """Parameters, the optimiser's state, chosen rows, and the key of the next draws."""

    params: Any
    optimiser: Any
    kept: Chosen
    key: Array


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    memory: int
    drawn: int
    compared: int
    updates: int


def gss(
    *,
    learning_rate: Any = 0.1,
    hidden: tuple[int, ...] = HIDDEN,
    memory: int = 200,
    drawn: int = 10,
    compared: int = 10,
    updates: int = 1,
) -> Learner:
    """Gradient-based sample selection, greedy.

    Args:
        learning_rate: of gradient descent, above 0.
        hidden: nodes of each hidden layer; none for a linear model.
        memory: rows kept.
        drawn: rows drawn from them for each update, at most `memory`.
        compared: n, rows drawn from them to compare a new one with, at most `memory`.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    learning_rate = scalar("learning_rate", learning_rate, minimum=0.0, strict=True)
    hidden, memory, drawn, updates = rehearsal_options(hidden, memory, drawn, updates)
    if positive_int("compared", compared) > memory:
        raise ValueError(f"compared: expected at most memory={memory}, got {compared}")
    return _gss(Options(hidden, memory, drawn, compared, updates), learning_rate)


def score_of(g: Array, G: Array, there: Array) -> Array:
    """() c of a gradient g (P,) against those (n, P) that are `there` (n,); 1 if none is."""
    lengths = jnp.linalg.norm(g) * jnp.linalg.norm(G, axis=1)
    cosine = matmul(G, g) / jnp.maximum(lengths, jnp.finfo(g.dtype).tiny)
    most = jnp.max(jnp.where(there, cosine, -1.0))
    # Rounding may take the least cosine below -1.
    return jnp.where(jnp.any(there), jnp.maximum(1.0 + most, 0.0), 1.0)


def consider(kept: Chosen, key: Array, x: Array, y: Array, c: Array, is_row: Array) -> Chosen:
    """The chosen rows after one more (s,), with score c, if it is a row."""
    rows, size = kept.rows, len(kept.score)
    of_place, of_luck = jax.random.split(key)
    drawn = jax.random.categorical(of_place, jnp.log(kept.score))
    there = kept.score[drawn]
    total = there + c
    luck = jax.random.uniform(of_luck, dtype=c.dtype)
    takes = (c < 1) & (luck * total < there)
    # Places beyond the end are dropped.
    place = jnp.where(rows.passed < size, rows.passed, jnp.where(takes, drawn, size))
    place = jnp.where(is_row, place, size)
    passed = jnp.minimum(rows.passed + is_row, size)
    return Chosen(
        Reservoir(
            rows.X.at[place].set(x, mode="drop"), rows.Y.at[place].set(y, mode="drop"), passed
        ),
        kept.score.at[place].set(c, mode="drop"),
    )


@shared_programs
def _gss(options: Options, learning_rate: Any) -> Learner:
    head, optimiser = MLPHead(options.hidden), optax.sgd(learning_rate)

    def init(key: Array, num_features: int, num_classes: int) -> GSSState:
        of_params, of_draws = jax.random.split(key)
        params = head.init(of_params, num_features, num_classes)
        rows = empty_reservoir(options.memory, num_features, num_classes)
        kept = Chosen(rows, jnp.zeros(options.memory))
        return GSSState(params, optimiser.init(params), kept, of_draws)

    def scores(state: GSSState, X: Any) -> Array:
        return head.logits(state.params, X)

    def choose(kept: Chosen, params: Any, key: Array, rows: tuple[Array, ...]) -> Chosen:
        def gradient(x: Array, y: Array) -> Array:
            one = x[None], y[None], jnp.ones(1, x.dtype)
            return ravel_pytree(jax.grad(head.loss)(params, *one))[0]

        def one(kept: Chosen, row: tuple[Array, ...]) -> tuple[Chosen, None]:
            key, x, y, is_row = row
            of_rows, of_place = jax.random.split(key)
            X, Y, there = draw(kept.rows, of_rows, options.compared)
            c = score_of(gradient(x, y), jax.vmap(gradient)(X, Y), there > 0)
            return consider(kept, of_place, x, y, c, is_row), None

        X, Y, weight = rows
        return lax.scan(one, kept, (jax.random.split(key, len(X)), X, Y, weight > 0))[0]

    def step(
        state: GSSState, X_t: Any, Y_t: Any, X_next: Any = None, *, weight_t: Any = None, **_: Any
    ) -> tuple[GSSState, StepInfo]:
        del X_next
        X, weight = rows_of(X_t, weight_t, state.kept.score.dtype)
        rows = X, jnp.asarray(Y_t, X.dtype), weight
        key, of_choice, *of_draws = jax.random.split(state.key, 2 + options.updates)
        params, moments = state.params, state.optimiser
        for of_draw in of_draws:
            loss = loss_of_both(head, rows, draw(state.kept.rows, of_draw, options.drawn))
            params, moments = follow(optimiser, params, moments, jax.grad(loss)(params))
        # Which rows are chosen jumps: it has no derivative.
        kept = choose(state.kept, lax.stop_gradient(params), of_choice, rows)
        healthy = is_sound(params)
        new = GSSState(params, moments, kept, key)
        info = StepInfo(scores(state, X), healthy)
        # A batch of no rows leaves no trace, not even a draw.
        return unless_unhealthy(healthy & jnp.any(weight > 0), new, state), info

    return plain_learner(
        init,
        step,
        scores,
        loss=brier_loss,
        description=describe("gss", learning_rate=learning_rate, **options._asdict()),
        sizes=lambda state: head.sizes(state.params),
    )
