"""HAT, hard attention to the task: each task has a mask on hidden nodes, and keeps what it uses.

Every hidden layer has an embedding e of each task, from N(0, 1), and in task t the nodes

    h' = a * h,    a = sigmoid(s e_t),                                                    (1)
    s = 1 / s_max + (s_max - 1 / s_max) (u - 1) / (U - 1)                           (2; their eq. 3)

at the u-th of U updates of the task, with s = s_max after them and wherever an answer is asked
for. At each update weights and embedding descend

    CE + lambda sum_i a_i (1 - a_used_i) / sum_i (1 - a_used_i),                    (3; their eq. 4)

sums over all hidden nodes, a_used the largest mask that tasks which have ended had on a node. The
gradient of a weight from node j to i is multiplied by

    1 - min(a_used_i, a_used_j),                                                    (4; their eq. 2)

that of a weight from an input and of a bias by 1 - a_used_i, and that of the embedding by

    s_max (cosh(s e) + 1) / (s (cosh(e) + 1)),    |s e| <= 50 there;                      (5)

after it, |e| <= 6. So where masks are 0 or 1 the answers of an ended task stay as they are.

HAT is task-incremental: it has a readout for each task, and is told which to ask. Here one readout
has all classes, the cross-entropy of a task is over the classes met in it, and columns of classes
that came in tasks before too are held as hidden layers are. Classes are inferred with their task:
the score of a class is the largest log-probability that it has under the masks of the tasks it came
in, among the classes of that task,

    score_c = max over t, of those with rows of c, of log p_t(c | x);                     (6)

so the answer is that of the task which is most certain, by its largest probability. Where a task
has one class this says nothing, and the first such task is taken. Among classes of one task that
came in no other, the answer is HAT's own: accuracies under the protocol `task_aware` are those of
the method as published.

Shapes: of a hidden layer h, h', a, a_used and e_t (nodes,), its embeddings (K, nodes); s, u and
lambda scalars; p_t (m,), 0 for classes not met in task t.

A further task than there are masks shares the last. Cost: 6 b flops a parameter and update, and
2 K b for answers, with K masks. Memory: the parameters, K + 1 numbers a hidden node and K m rows of
classes.

Source: J. Serra, D. Suris, M. Miron, A. Karatzoglou, "Overcoming Catastrophic Forgetting with Hard
Attention to the Task", ICML 2018, with lambda = 0.75, s_max = 400 and the rate 0.05; limits of the
embedding are those of its code, repository joansj/hat. There s rises anew in every epoch, and 2
layers of 2000 nodes have dropout, which is left out, as is the schedule of the rate.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax import lax

from rvfl_jax.core.checks import positive_int, scalar
from rvfl_jax.core.types import Array, Learner
from rvfl_jax.learners.base import describe, shared_programs
from rvfl_jax.learners.layers import activations, layers_of, with_layers
from rvfl_jax.learners.mlp_head import (
    HIDDEN,
    MLPHead,
    Rows,
    checked_hidden,
    follow,
    mlp_learner,
)
from rvfl_jax.learners.parts import of_met_classes, unless_unhealthy, weighted_mean

# Of the embedding, and of s e where its gradient is scaled.
LARGEST, LARGEST_SCALED = 6.0, 50.0

# One array for each hidden layer: (nodes,) masks, or (K, nodes) embeddings.
OfLayers = tuple[Array, ...]


class HATState(NamedTuple):
    """Parameters, embeddings and the optimiser's state; largest masks of ended tasks; counts.

    `rows` (K, m) are those of each class in each task, `learned` the batches of the task in hand,
    and `ended` the tasks that have ended.
    """

    params: Any
    embeddings: OfLayers
    optimiser: Any
    used: OfLayers
    rows: Array
    learned: Array
    ended: Array


class Numbers(NamedTuple):
    """What only scales."""

    coefficient: Any
    largest_scale: Any
    learning_rate: Any


class Options(NamedTuple):
    """What shapes the programs."""

    hidden: tuple[int, ...]
    tasks: int
    task_batches: int
    updates: int


def hat(
    *,
    coefficient: Any = 0.75,
    largest_scale: Any = 400.0,
    learning_rate: Any = 0.05,
    hidden: tuple[int, ...] = HIDDEN,
    tasks: int = 20,
    task_batches: int = 10,
    updates: int = 1,
) -> Learner:
    """Hard attention to the task, for runs with `boundaries="given"`.

    Args:
        coefficient: lambda, at least 0.
        largest_scale: s_max, at least 1.
        learning_rate: of gradient descent on weights and embeddings, above 0.
        hidden: nodes of each hidden layer, one layer at least.
        tasks: K, tasks that there are masks for.
        task_batches: batches that a task has; in further ones s stays at s_max.
        updates: gradient steps a batch.

    Raises:
        ValueError: on anything out of range.
    """
    numbers = Numbers(
        scalar("coefficient", coefficient, minimum=0.0),
        scalar("largest_scale", largest_scale, minimum=1.0),
        scalar("learning_rate", learning_rate, minimum=0.0, strict=True),
    )
    if not hidden:
        raise ValueError("hidden: expected one layer at least, whose nodes have masks, got none")
    sizes = {"tasks": tasks, "task_batches": task_batches, "updates": updates}
    counts = (positive_int(name, size) for name, size in sizes.items())
    return _hat(Options(checked_hidden(hidden), *counts), numbers)


def attention(embeddings: OfLayers, task: Any, scale: Any) -> OfLayers:
    """The masks (1) (nodes,) of a task."""
    return tuple(jax.nn.sigmoid(scale * e[task]) for e in embeddings)


def newly_used(masks: OfLayers, used: OfLayers) -> Array:
    """() the second term of (3), without lambda: the mean mask on what no ended task uses, or 0."""
    free = [1.0 - of_layer for of_layer in used]
    room = sum((jnp.sum(of_layer) for of_layer in free), jnp.zeros(()))
    taken = sum((jnp.sum(a * f) for a, f in zip(masks, free, strict=True)), jnp.zeros(()))
    return jnp.where(room > 0, taken / jnp.where(room > 0, room, 1.0), 0.0)


def protected(gradient: Any, used: OfLayers, met_before: Array) -> Any:
    """The gradient of the parameters without what ended tasks use (4).

    Args:
        gradient: of the structure of the parameters.
        used: (nodes,) the largest mask so far, for each hidden layer.
        met_before: (m,) truth, whether a class came in an ended task.
    """
    # All inputs are used, and so are the logits of classes met before.
    ends = [jnp.ones(()), *used, met_before.astype(used[0].dtype)]

    def held(layer: dict[str, Array], before: Array, after: Array) -> dict[str, Array]:
        of_weights = jnp.minimum(jnp.atleast_1d(before)[:, None], after)
        return {
            "kernel": layer["kernel"] * (1.0 - of_weights),
            "bias": layer["bias"] * (1.0 - after),
        }

    return with_layers(list(map(held, layers_of(gradient), ends[:-1], ends[1:])))


def compensated(gradient: Array, e: Array, scale: Any, largest_scale: Any) -> Array:
    """The gradient of an embedding as if its mask were sigmoid(e), and s_max times that (5)."""
    steep = jnp.cosh(jnp.clip(scale * e, -LARGEST_SCALED, LARGEST_SCALED)) + 1.0
    return gradient * (largest_scale / scale) * steep / (jnp.cosh(e) + 1.0)


def log_probabilities(params: Any, X: Any, masks: OfLayers, rows: Array) -> Array:
    """(b, m) under the masks of a task, among classes with rows (m,) in it; far less elsewhere."""
    z = of_met_classes(rows, activations(params, X, masks)[-1])
    return of_met_classes(rows, jax.nn.log_softmax(z))


def task_loss(params: Any, masks: OfLayers, rows: Rows, met: Array) -> Array:
    """CE of (3): the mean by weight of rows, among classes with rows (m,) in the task."""
    X, Y, weight = rows
    logits = of_met_classes(met, activations(params, X, masks)[-1])
    each = optax.softmax_cross_entropy(logits, Y)
    return weighted_mean(each, weight)


def begun(options: Options, key: Array, num_features: int, num_classes: int) -> HATState:
    """The state before anything was learned."""
    params = MLPHead(options.hidden).init(key, num_features, num_classes)
    keys = jax.random.split(jax.random.fold_in(key, 1), len(options.hidden))
    # In float32, so that both precisions share one network.
    drawn = (
        jax.random.normal(key, (options.tasks, nodes), jnp.float32)
        for key, nodes in zip(keys, options.hidden, strict=True)
    )
    embeddings = tuple(e.astype(jnp.result_type(float)) for e in drawn)
    return HATState(
        params,
        embeddings,
        optax.sgd(0.0).init((params, embeddings)),
        tuple(map(jnp.zeros, options.hidden)),
        jnp.zeros((options.tasks, num_classes)),
        jnp.zeros((), jnp.int32),
        jnp.zeros((), jnp.int32),
    )


def scale_at(options: Options, largest_scale: Any, learned: Array, update: int) -> Array:
    """The s (2) of an update, counted from 0, of a batch after `learned` others of its task."""
    last = options.task_batches * options.updates - 1
    done = learned.astype(jnp.result_type(float)) * options.updates + update
    progress = jnp.minimum(done / last, 1.0) if last else jnp.ones(())
    least = 1.0 / largest_scale
    return least + (largest_scale - least) * progress


def updated(state: HATState, rows: Rows, task: Array, scale: Array, numbers: Numbers) -> HATState:
    """The state after one update of a task on rows X, Y and weight, at this s."""

    def loss(trained: tuple[Any, OfLayers]) -> Array:
        params, embeddings = trained
        masks = attention(embeddings, task, scale)
        attended = numbers.coefficient * newly_used(masks, state.used)
        return task_loss(params, masks, rows, state.rows[task]) + attended

    trained = state.params, state.embeddings
    of_params, of_embeddings = jax.grad(loss)(trained)
    before = jnp.arange(len(state.rows))[:, None] < state.ended
    met_before = jnp.any(before & (state.rows > 0), axis=0)
    gradient = (
        protected(of_params, state.used, met_before),
        tuple(
            compensated(g, e, scale, numbers.largest_scale)
            for g, e in zip(of_embeddings, state.embeddings, strict=True)
        ),
    )
    optimiser = optax.sgd(numbers.learning_rate)
    (params, embeddings), moments = follow(optimiser, trained, state.optimiser, gradient)
    limited = tuple(jnp.clip(e, -LARGEST, LARGEST) for e in embeddings)
    return state._replace(params=params, embeddings=limited, optimiser=moments)


@shared_programs
def _hat(options: Options, numbers: Numbers) -> Learner:
    def task_of(state: HATState) -> Array:
        return jnp.minimum(state.ended, options.tasks - 1)

    def scores(state: HATState, X: Any) -> Array:
        def under(task: tuple[OfLayers, Array]) -> Array:
            embeddings, rows = task
            masks = attention(embeddings, ..., numbers.largest_scale)
            return log_probabilities(state.params, X, masks, rows)

        # (6).
        return jnp.max(lax.map(under, (state.embeddings, state.rows)), axis=0)

    def learn(state: HATState, rows: Rows) -> HATState:
        _, Y, weight = rows
        task = task_of(state)
        new = state._replace(rows=state.rows.at[task].add(weight @ Y))
        for update in range(options.updates):
            scale = scale_at(options, numbers.largest_scale, state.learned, update)
            new = updated(new, rows, task, scale, numbers)
        return new._replace(learned=state.learned + 1)

    def consolidate(state: HATState) -> HATState:
        masks = attention(state.embeddings, task_of(state), numbers.largest_scale)
        used = tuple(map(jnp.maximum, state.used, masks))
        none = jnp.zeros_like(state.learned)
        new = state._replace(used=used, learned=none, ended=state.ended + 1)
        return unless_unhealthy(state.learned > 0, new, state)

    return mlp_learner(
        MLPHead(options.hidden),
        partial(begun, options),
        learn,
        scores=scores,
        trained=lambda state: (state.params, state.embeddings),
        consolidate=consolidate,
        description=describe("hat", **numbers._asdict(), **options._asdict()),
    )
