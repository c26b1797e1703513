"""The one driver of learners along streams.

`run_stream` checks its inputs on the host, picks the precision, compiles, shows progress and
hands back plain arrays; the scan itself is in `rvfl_jax.runs.scan`.
"""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec
from typing import Protocol as Interface

from rvfl_jax.core.keywords import options_from_keywords
from rvfl_jax.core.types import Learner, Stream
from rvfl_jax.runs.failure import raise_if_unhealthy
from rvfl_jax.runs.from_iterable import run_feed
from rvfl_jax.runs.history import Run
from rvfl_jax.runs.in_memory import run_in_memory
from rvfl_jax.runs.inputs import check_batches, check_learner
from rvfl_jax.runs.options import RunOptions

P = ParamSpec("P")


class _RunStream(Interface[P]):
    def __call__(
        self,
        learner: Learner,
        stream: Stream | Iterable[tuple[Any, Any]],
        *args: P.args,
        **options: P.kwargs,
    ) -> Run: ...


def _driver_with(
    kind: Callable[P, RunOptions],
) -> Callable[[Callable[[Learner, Any, RunOptions], Run]], _RunStream[P]]:
    """What a type checker knows of the decorator: calls take the arguments of `kind`."""
    return options_from_keywords(kind)


@_driver_with(RunOptions)
def run_stream(  # noqa: D417
    learner: Learner, stream: Stream | Iterable[tuple[Any, Any]], options: RunOptions
) -> Run:
    """Run a learner once along a stream, in one pass and in one compiled program.

    Example:
        >>> stream = class_incremental_stream(X, y, num_tasks=5, num_batches=20, seed=0)
        >>> run = run_stream(learner, stream, key=jax.random.key(0), test=(X_test, y_test))
        >>> run.history.accuracy["class_incremental"].shape
        (20,)

    A second run on the same shapes compiles nothing, be it of another learner that differs in
    numbers only (lambda, k above 0, kappa, sigma, `weight_scale`).

    Any other iterable of batches (X, y) is a stream too: a generator, slices of a memory-mapped
    file, a PyTorch DataLoader, `batched(rows, 64)` of a data set. A thread reads it chunk by chunk,
    one chunk ahead and always one batch further, the look-ahead, so that memory does not grow with
    the stream but for the numbers of the history. Such a stream has no tasks and no offline
    expert, and unusable input raises an error only when it is reached.

    Args:
        learner: the method.
        stream: from `class_incremental_stream` or built by hand, or an iterable of (X, y) with
            X (rows, s) and y (rows,) labels.
        key: PRNG key of the random features.
        test: (X, y) with labels as in the stream, or None.
        evaluate: when to evaluate the test set: after every "batch", at the end of every "task",
            "never", or an integer E for every E batches and at the end.
        expert: reference of excess loss and divergence: "offline" fits it (if the method has
            one), an (L, n, m) array is the result of `offline_scores`, None leaves both NaN.
        guesses: whether each batch is guessed before it is learned. False leaves the
            prequential figures NaN; a learner in information form with a constant k then
            only adds up, and solves for a readout where the test set is evaluated and at the end.
        confusion: whether every evaluation counts which class was classified as which.
        precision: "double" or "single", for this run only; the global setting is left
            alone.
        num_classes: m, the designed capacity; the classes of the stream when None.
        classes: for an iterable, all labels in the order of their columns. Without them columns
            are in order of appearance, up to `num_classes`, and there can be no test.
        batch_size: for an iterable, the most rows of a batch; those of the first when None.
        state: state to continue from, which stays usable; a fresh one from `key` when None.
        lookahead: (b', s) inputs that follow the stream, b' at most b, announced to the
            last step; without them the last step has no forward term.
        boundaries: "given" lets the learner `consolidate` after the last batch of each task, as
            `stream.task_ends` has them, before the test set is evaluated; "none", the paper's
            setting, keeps task ends from it.
        chunk_size: batches per compiled call. None runs the stream as one program, or in
            about 20 chunks when progress is shown, told or kept; chunks of an iterable take 32 MB.
        progress: True for a progress bar with the accuracy of all guesses so far and the time
            left, or a function of (batches done, batches; 0 where their number is not known).
        on_metrics: function of (metrics, batches done), called after each chunk, between compiled
            calls; `mlflow.log_metrics` and `wandb.log` are such functions. The metrics are a
            dict of plain floats by the names of `History`: `prequential_accuracy` and
            `prequential_loss` of the chunk's rows, `prequential_accuracy_so_far`, `rows` so far,
            `healthy`; of the last evaluation in the chunk `accuracy_PROTOCOL`, `regret`, `kl`,
            `excess_loss` and `kl_from_expert`; and of the last batch, means over sub-learners,
            `k_t`, `k_next`, `residual`, `condition` and what else the method has. What is not
            known is left out. Telling takes no time beside that of the chunks, 1 to 12 ms each. A
            resumed run tells of the chunks that it learns itself. An exception ends the run, whose
            checkpoint has the chunk already.
        checkpoint: file that holds, after every chunk, all that the rest of the run depends on.
            It is replaced atomically, so that a kill at any moment leaves a whole one.
        resume: whether to continue from that file if it exists. The arguments must be those of
            the run that wrote it, and an iterable must begin anew with the same batches. The
            result is that of an uninterrupted run, to the last bit. A finished run is only read;
            `state=run.state` continues where it ended.
        on_failure: "raise" a NumericalError that names the batch, in chunks as soon as it
            happens and before it is kept; or "return" the run, whose `history.healthy` shows where.
        mesh: devices to run on together, of one process or of several; None is one device.
        layout: what the devices of a mesh share. "rows": the rows of each batch, for
            learners in information form. "eta_dagger": the rows of d x d matrices too large
            for one device, for learners in covariance form; d must be a multiple of the
            number of devices. Both give the results of one device up to the order of sums.

    Returns:
        A `Run`; its `history.provenance` records what the results depend on.

    Raises:
        ValueError: on unusable input, before anything is compiled; in an iterable, when it is
            reached. On a checkpoint that is damaged or of another run, listing what differs.
        NumericalError: if a factorisation failed or a value overflowed.
        OSError: if the checkpoint cannot be written; the one before is left.
    """
    check_learner(learner)
    options = options.checked()
    if isinstance(stream, Stream):
        run = run_in_memory(learner, stream, options)
    else:
        check_batches(stream)
        run = run_feed(learner, stream, options)
    if options.on_failure == "raise":
        raise_if_unhealthy(run.history)
    return run
