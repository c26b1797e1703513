"""GSS: keep rows whose gradients point in different directions, and replay them.

Each update is a step of plain gradient descent on the batch's rows and on rows drawn from memory,
each row counting alike, as in `rvfl_jax.learners.replay`. Then each row of the batch, with gradient
g, is compared with n rows drawn from memory, with gradients G_1 to G_n, Algorithm 2 of the source:

    c = 1 + max_i g'G_i / (||g|| ||G_i||).                                                (1)

While there is room it is kept, with its score c. Later, where c < 1, a place i is drawn by the
scores C kept, and the row takes it by chance:

    P(place i) = C_i / sum_j C_j,      P(the row takes it) = C_i / (C_i + c).             (2)

A row that there is nothing to compare with has c = 1, as one at right angles.

A row's gradient for a layer is an outer product of what comes in, a, and of the gradient of what
goes out, e, which is that of the bias. So no gradient is ever formed: over layers l

    g'G_i = sum_l (1 + a_l'A_il) (e_l'E_il).                                              (3)

Shapes: g and G_i (P,), c scalar, C (r,); of a layer a_l and A_il (inputs,), e_l and E_il (nodes,).

Cost: 6 (b + d) flops a parameter and update, and 6 (b + r) to choose. Memory: the parameters and r
rows.

Source: R. Aljundi, M. Lin, B. Goujaud, Y. Bengio, "Gradient Based Sample Selection for Online
Continual Learning", NeurIPS 2019, the greedy form, with n = 10 and the rate 0.1.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.mlp_head import HIDDEN, MLPHead, Rows, follow, mlp_learner
from rvfl_jax.learners.rehearsal import loss_of_both, rehearsal_options
from rvfl_jax.learners.reservoir import Reservoir, draw, empty_reservoir
from rvfl_jax.linalg.products import matmul


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


def score_of(products: Array, lengths: Array, there: Array) -> Array:
    """() c (1) by products g'G_i (n,) and ||g|| ||G_i|| of those `there` (n,); 1 if none is."""
    cosine = products / jnp.maximum(lengths, jnp.finfo(lengths.dtype).tiny)
    most = jnp.max(jnp.where(there, cosine, -1.0))
    # Rounding may take the least cosine below -1.
    return jnp.where(jnp.any(there), jnp.maximum(1.0 + most, 0.0), 1.0)


def factors(params: Any, X: Array, Y: Array) -> tuple[list[Array], list[Array]]:
    """Of each row and layer what comes in (b, p), and the gradient of what goes out (b, q).

    The gradient of a row's loss is their outer product for the weights, the second for the bias.
    """
    layers = [params["params"][f"Dense_{i}"] for i in range(len(params["params"]))]

    def loss(offsets: list[Array]) -> tuple[Array, list[Array]]:
        Z, inputs = X, []
        for i, (layer, offset) in enumerate(zip(layers, offsets, strict=True)):
            inputs.append(Z)
            Z = matmul(jax.nn.relu(Z) if i else Z, layer["kernel"]) + layer["bias"] + offset
        return jnp.sum(optax.softmax_cross_entropy(Z, Y)), inputs

    nothing = [jnp.zeros((len(X), len(layer["bias"])), X.dtype) for layer in layers]
    deltas, inputs = jax.grad(loss, has_aux=True)(nothing)
    return [X, *map(jax.nn.relu, inputs[1:])], deltas


def products_of(one: list[Array], others: list[Array]) -> Array:
    """(n,) products (3) of a row's gradient with others', by inputs and deltas of each layer."""
    layers = len(one) // 2
    along = [matmul(b, a) for a, b in zip(one, others, strict=True)]
    pairs = zip(along[:layers], along[layers:], strict=True)
    return jnp.sum(jnp.stack([(1.0 + inputs) * deltas for inputs, deltas in pairs]), axis=0)


def consider(kept: Chosen, key: Array, x: Array, y: Array, c: Array, is_row: Array) -> Chosen:
    """The chosen rows after one more (s,), with score c, if it is a row, by the chances of (2)."""
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
        network = head.begin(optimiser, of_params, num_features, num_classes)
        rows = empty_reservoir(options.memory, num_features, num_classes)
        kept = Chosen(rows, jnp.zeros(options.memory))
        return GSSState(*network, kept, of_draws)

    def choose(kept: Chosen, params: Any, key: Array, rows: Rows) -> Chosen:
        X, Y, weight = rows
        widths = [X.shape[1], *options.hidden, *options.hidden, Y.shape[1]]
        cuts = [sum(widths[:i]) for i in range(1, len(widths))]

        def with_factors(X: Array, Y: Array) -> Array:
            inputs, deltas = factors(params, X, Y)
            return jnp.concatenate([*inputs, *deltas], axis=1)

        def one(kept: Chosen, row: tuple[Array, ...]) -> tuple[Chosen, None]:
            key, x, y, is_row = row
            of_rows, of_place = jax.random.split(key)
            others, _, there = draw(kept.rows, of_rows, options.compared)
            mine, theirs = jnp.split(x, cuts), jnp.split(others, cuts, axis=1)
            products = products_of(mine, theirs)
            own = products_of(mine, [part[None] for part in mine])
            squares = jax.vmap(lambda w: products_of(w, [part[None] for part in w])[0])(theirs)
            c = score_of(products, jnp.sqrt(own * squares), there > 0)
            return consider(kept, of_place, x, y, c, is_row), None

        # While rows are chosen those kept have their factors beside them.
        wide = kept.rows._replace(X=with_factors(kept.rows.X, kept.rows.Y))
        each = jax.random.split(key, len(X)), with_factors(X, Y), Y, weight > 0
        chosen, _ = lax.scan(one, kept._replace(rows=wide), each)
        return chosen._replace(rows=chosen.rows._replace(X=chosen.rows.X[:, : X.shape[1]]))

    def learn(state: GSSState, rows: Rows) -> GSSState:
        key, of_choice, *of_draws = jax.random.split(state.key, 2 + options.updates)
        params, moments = state.params, state.optimiser
        for of_draw in of_draws:
            loss = loss_of_both(head, rows, draw(state.kept.rows, of_draw, options.drawn))
            params, moments = follow(optimiser, params, moments, jax.grad(loss)(params))
        # Which rows are chosen jumps: it has no derivative.
        kept = choose(state.kept, lax.stop_gradient(params), of_choice, rows)
        return GSSState(params, moments, kept, key)

    description = describe("gss", learning_rate=learning_rate, **options._asdict())
    return mlp_learner(head, init, learn, description=description)
