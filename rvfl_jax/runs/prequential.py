"""The prequential loss of a whole stream as a differentiable function.

Each batch is guessed before it is learned; with scores F_t (mean over sub-learners) of the n_t
rows of batch t, from the readout theta_t,

    loss_t = ||F_t - Y_t||_F^2 / n_t,        loss = sum_t n_t loss_t / sum_t n_t.

No test data enters, so that what minimises it has been chosen without any.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from rvfl_jax.core.checks import one_of, positive_int, prng_key
from rvfl_jax.core.types import Array, Boundaries, Learner, Stream
from rvfl_jax.runs.inputs import batches_of, capacity_of, check_learner
from rvfl_jax.runs.options import BOUNDARIES
from rvfl_jax.runs.scan import block_size
from rvfl_jax.runs.step import Learned, guess_and_learn, guess_and_learn_block
from rvfl_jax.streams.batches import BatchStep


def prequential_losses(
    learner: Learner,
    stream: Stream,
    *,
    key: Array,
    num_classes: int | None = None,
    checkpoint: bool | int = True,
    boundaries: Boundaries = "none",
) -> Array:
    """(T,) squared error of the guess on each batch before it is learned, mean over rows.

    Pure, and differentiable in forward and reverse mode with respect to whatever is traced:
    numbers that the learner was made of (k, ridge, kappa, sigma, weight_scale, also one per
    layer) and `stream.X`. Call it under `jit`, and under `jax.enable_x64(True)` for float64: this
    function computes in the precision of its surroundings.

    Example:
        >>> def loss(log):
        ...     ridge, k = jnp.exp(log["ridge"]), jnp.exp(log["k"])
        ...     learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=ridge, k=k)
        ...     return prequential_loss(learner, stream, key=jax.random.key(0))
        >>> with jax.enable_x64(True):
        ...     log = {"ridge": jnp.log(0.1), "k": jnp.log(0.5)}
        ...     value, gradient = jax.jit(jax.value_and_grad(loss))(log)

    Args:
        learner: the method.
        stream: from `class_incremental_stream`; its X may be traced.
        key: PRNG key of the random features.
        num_classes: m, the designed capacity; the classes of the stream when None.
        checkpoint: in reverse mode, True keeps the carries of about sqrt(T) steps and of
            one segment of sqrt(T) steps, which is computed again; an integer is the length
            of a segment; False keeps all T and saves the second computation.
        boundaries: as in `run_stream`.

    Returns:
        (T,); 0 for a batch without rows, infinite where the arithmetic failed (numbers out of
        range among the causes: what is traced cannot be checked beforehand).

    Raises:
        ValueError: on a capacity below the stream's classes, or a segment below 1.
    """
    return _losses_and_rows(learner, stream, key, num_classes, checkpoint, boundaries)[0]


def prequential_loss(
    learner: Learner,
    stream: Stream,
    *,
    key: Array,
    num_classes: int | None = None,
    checkpoint: bool | int = True,
    boundaries: Boundaries = "none",
) -> Array:
    """Mean over all rows of the stream, a scalar; see `prequential_losses` for the arguments."""
    losses, rows = _losses_and_rows(learner, stream, key, num_classes, checkpoint, boundaries)
    # Not 0 times infinity where a batch without rows failed.
    return jnp.sum(jnp.where(jnp.isinf(losses), losses, losses * rows)) / jnp.sum(rows)


def _losses_and_rows(
    learner: Learner,
    stream: Stream,
    key: Array,
    num_classes: int | None,
    checkpoint: bool | int,
    boundaries: str,
) -> tuple[Array, Array]:
    check_learner(learner)
    prng_key("key", key)
    m = capacity_of(num_classes, stream.classes)
    batches = batches_of(stream, one_of("boundaries", boundaries, BOUNDARIES))
    X, weight = jnp.asarray(stream.X), jnp.asarray(stream.weight)
    T = X.shape[0]
    steps = BatchStep(
        jnp.asarray(stream.y),
        weight,
        jnp.concatenate([X[1:], X[-1:]]),
        jnp.concatenate([weight[1:], jnp.zeros_like(weight[:1])]),
        None if batches.ends is None else jnp.asarray(batches.ends),
    )
    carry = learner.stream.begin(learner.init(key, X.shape[-1], m), X[0], weight[0])
    advance = partial(_loss_of_step, learner, m)
    size = block_size(learner, carry, batches, T)
    if size > 1:
        advance, steps = partial(_losses_of_block, learner, m), _cut(steps, size)
    count = len(steps.y)
    if checkpoint is False:
        results = lax.scan(advance, carry, steps)[1]
    else:
        length = math.isqrt(count - 1) + 1
        if checkpoint is not True:
            length = -(-positive_int("checkpoint", checkpoint) // size)
        results = _scan_in_segments(advance, carry, steps, min(length, count))
    losses, rows = (x.reshape(-1)[:T] for x in results)
    return losses, rows


def _loss_of_step(learner: Learner, m: int, carry: Any, step: BatchStep) -> tuple[Any, Any]:
    carry, learned = guess_and_learn(learner, m, carry, step)
    return carry, _loss_and_rows(learned)


def _losses_of_block(learner: Learner, m: int, carry: Any, steps: BatchStep) -> tuple[Any, Any]:
    carry, learned, _ = guess_and_learn_block(learner, m, carry, steps)
    return carry, jax.vmap(_loss_and_rows)(learned)


def _loss_and_rows(learned: Learned) -> tuple[Array, Array]:
    loss = learned.loss / jnp.maximum(learned.rows, 1)
    # A step that failed leaves the readout as it was, whose loss would pass for any other.
    return jnp.where(jnp.all(learned.info.healthy), loss, jnp.inf), learned.rows


def _cut(steps: BatchStep, length: int) -> BatchStep:
    """Pieces of `length` steps; batches of zero weight, which leave no trace, fill the last."""

    def cut(array: Array) -> Array:
        missing = -len(array) % length
        full = jnp.pad(array, [(0, missing)] + [(0, 0)] * (array.ndim - 1))
        return full.reshape(-1, length, *array.shape[1:])

    return jax.tree.map(cut, steps)


def _scan_in_segments(
    advance: Callable[[Any, BatchStep], tuple[Any, Any]], carry: Any, steps: BatchStep, length: int
) -> Any:
    """A scan of scans, each of `length` steps, that reverse mode computes twice."""

    @partial(jax.checkpoint, prevent_cse=False)
    def segment(carry: Any, steps: BatchStep) -> tuple[Any, Any]:
        return lax.scan(jax.checkpoint(advance, prevent_cse=False), carry, steps)

    return lax.scan(segment, carry, _cut(steps, length))[1]
