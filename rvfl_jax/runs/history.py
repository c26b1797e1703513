"""What a run leaves behind, as plain NumPy arrays."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.portable import portable
from rvfl_jax.core.types import NO_EXTRAS, Array, State
from rvfl_jax.core.words import Summary, brief, cut, in_brief, number, summarised
from rvfl_jax.files.provenance import Provenance
from rvfl_jax.metrics import average_accuracy, backward_transfer, by_learner, cumulative_regret
from rvfl_jax.runs.evaluation import Evaluation, HeldOut
from rvfl_jax.runs.step import Learned


@in_brief
class StepRecord(NamedTuple):
    """What the scan keeps of one step; see `History`."""

    k_t: Array
    k_next: Array
    sigma_share: Array
    healthy: Array
    residual: Array
    condition: Array
    rows: Array
    hits: Array
    loss: Array
    evaluation: Evaluation | None
    extras: dict[str, Array] = NO_EXTRAS


# What a history has an attribute for; all other figures of a method go by name.
FIGURES = ("k_t", "k_next", "sigma_share", "residual", "condition")
# Figures of an evaluation, beside accuracies.
CURVES = ("regret", "kl", "excess_loss", "kl_from_expert")


def record_of(learned: Learned, evaluation: Evaluation | None) -> StepRecord:
    """What is kept of a batch, all figures one a sub-learner; NaN where the method has none."""
    info, scores = learned.info, by_learner(learned.info.guess_scores)

    def each(name: str, value: Any) -> Array:
        if jnp.shape(value) not in ((), scores.shape[:1]):
            raise ValueError(
                f"{name}: expected a scalar or shape {scores.shape[:1]}, one a sub-learner, got"
                f" {jnp.shape(value)}"
            )
        return jnp.broadcast_to(jnp.asarray(value), scores.shape[:1])

    unknown = jnp.full((), jnp.nan, scores.dtype)
    figures = {name: each(f"extras[{name!r}]", value) for name, value in info.extras.items()}
    return StepRecord(
        **{name: figures.pop(name) if name in figures else each(name, unknown) for name in FIGURES},
        healthy=each("healthy", info.healthy),
        rows=learned.rows,
        hits=learned.hits,
        loss=learned.loss,
        evaluation=evaluation,
        extras=figures,
    )


@jax.tree_util.register_static
class Classes(tuple[Any, ...]):
    """Labels in the order of their columns, which JAX takes for structure."""


@jax.tree_util.register_pytree_with_keys_class
class ByProtocol(dict[str, np.ndarray]):
    """Arrays by protocol; one that is not there says why."""

    def __missing__(self, protocol: str) -> np.ndarray:
        if self:
            raise KeyError(f"{protocol}: expected one of {', '.join(self)}")
        raise KeyError(
            f"{protocol}: the run has none, as it had no test set or, for R, was not evaluated at"
            ' every task end of a stream with tasks: run_stream(..., test=(X, y), evaluate="task")'
        )

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], tuple[str, ...]]:
        """The arrays, in the order of their names as JAX takes a dict."""
        names = tuple(sorted(self))
        return [(jax.tree_util.DictKey(name), self[name]) for name in names], names

    @classmethod
    def tree_unflatten(cls, names: tuple[str, ...], arrays: Any) -> "ByProtocol":
        """The arrays under these names."""
        return cls(zip(names, arrays, strict=True))


@summarised
class History(NamedTuple):
    """A run as plain NumPy arrays. T batches, E evaluations, L sub-learners, Q tasks.

    Attributes:
        k_t: (T, L) forward strength of the batch that was learned. Methods without such a figure
            have NaN here and in `k_next`, `sigma_share`, `residual` and `condition`.
        k_next: (T, L) forward strength of the announced batch.
        sigma_share: (T, L) see `rvfl_jax.learners.edrvfl.stream_form.Figures`.
        healthy: (T, L) False where the arithmetic of a batch failed; see `StepInfo`.
        residual: (T, L) relative residual of the readout; NaN at batches without a decision.
        condition: (T, L) an upper bound of the condition of the regularised Gram.
        rows: (T,) number of rows of each batch, without padding.
        prequential_accuracy: (T,) accuracy of the guesses on each batch before it was learned;
            NaN for a batch without rows.
        prequential_loss: (T,) the learner's loss of these guesses, mean over rows; for edRVFL
            their squared error, summed over columns.
        evaluated: (E,) batches after which the test set was evaluated.
        accuracy: protocol to (E,) accuracy on the test set; "class_incremental" is acc(t),
            eq. (33).
        task_accuracy: protocol to (E, Q) accuracy on the test rows of each task.
        learner_accuracy: (E, L) acc(t) of each sub-learner.
        regret: (E,) regret of the readout after each batch, eq. (34).
        cumulative_regret: (E,) its running sum.
        kl: (E,) divergence from the labels, in nats, eq. (35).
        excess_loss: (E,) squared loss of the raw scores minus that of the offline expert; NaN
            without an expert.
        kl_from_expert: (E,) divergence from the expert's probabilities; NaN without one.
        R: protocol to (Q, Q) accuracy on task j after task q; empty unless every task
            has the most rows in some batch and its end was evaluated on a test set.
        task_rows: (Q,) test rows of each task.
        provenance: key, learner, versions, device and a fingerprint of the stream.
        classes: labels in the order of their columns.
        task_ends: (Q,) last batch of each task; -1 for a task that has the most rows in no batch,
            and where tasks are not known.
        confusion: (E, m, m) number of test rows of the class of column i that were classified as
            that of column j; empty unless asked for.
        extras: name to (T, L), the other figures of the method, from `StepInfo.extras`.
    """

    k_t: np.ndarray
    k_next: np.ndarray
    sigma_share: np.ndarray
    healthy: np.ndarray
    residual: np.ndarray
    condition: np.ndarray
    rows: np.ndarray
    prequential_accuracy: np.ndarray
    prequential_loss: np.ndarray
    evaluated: np.ndarray
    accuracy: dict[str, np.ndarray]
    task_accuracy: dict[str, np.ndarray]
    learner_accuracy: np.ndarray
    regret: np.ndarray
    cumulative_regret: np.ndarray
    kl: np.ndarray
    excess_loss: np.ndarray
    kl_from_expert: np.ndarray
    R: dict[str, np.ndarray]
    task_rows: np.ndarray
    provenance: Provenance
    classes: Classes = Classes()
    task_ends: np.ndarray = np.zeros(0, int)
    confusion: np.ndarray = np.zeros((0, 0, 0), int)
    extras: dict[str, np.ndarray] = NO_EXTRAS

    def _summary(self) -> Summary:
        T, layers = self.k_t.shape
        count, tested = len(self.evaluated), int(np.sum(self.task_rows))
        title = (
            f"History: {T} batches of {int(self.rows.sum()):,} rows, {len(self.classes)} classes,"
            f" {layers} sub-learners, "
        )
        title += f"{count} evaluations on {tested} test rows" if count else "no test set"
        rows = [("every batch", _prequential(self)), ("arithmetic", _health(self.healthy))]
        if count:
            ends = [f"{name} {number(curve[-1])}" for name, curve in self.accuracy.items()]
            rows.append(("accuracy at the end", ", ".join(ends)))
            rows.append(("cumulative regret", number(self.cumulative_regret[-1])))
        if self.R:
            protocol = next(iter(self.R))
            R = self.R[protocol]
            accuracies = f"average accuracy {number(average_accuracy(R))}"
            if len(R) > 1:
                accuracies += f", backward transfer {number(backward_transfer(R))}"
            rows.append((f"R[{protocol!r}]", accuracies))
        return Summary(title, rows)


def _figures(history: History) -> dict[str, np.ndarray]:
    """Name to (T, L), the figures of every batch that the method has."""
    each = {name: getattr(history, name) for name in FIGURES} | history.extras
    return {name: values for name, values in each.items() if not np.isnan(values).all()}


def _prequential(history: History) -> str:
    guessed = np.isfinite(history.prequential_accuracy) & (history.rows > 0)
    if not guessed.any():
        return "not guessed before it was learned"
    weights = history.rows[guessed]
    accuracy = np.average(history.prequential_accuracy[guessed], weights=weights)
    loss = np.average(history.prequential_loss[guessed], weights=weights)
    return f"guessed before it was learned: accuracy {number(accuracy)}, loss {number(loss)}"


def _health(healthy: np.ndarray) -> str:
    failed = ~np.asarray(healthy).all(axis=1)
    return f"failed at batch {np.argmax(failed) + 1}" if failed.any() else "healthy throughout"


def build_history(
    scanned: StepRecord,
    schedule: np.ndarray | None,
    classes: Any,
    task_ends: np.ndarray,
    test: HeldOut | None,
    provenance: Provenance,
) -> History:
    """Make a `History` of what the scan recorded.

    Args:
        scanned: records with a leading axis of batches.
        schedule: (T,) after which batches the test set was evaluated, or None.
        classes: labels in the order of their columns.
        task_ends: (Q,) see `History`.
        test: the test set, or None.
        provenance: what the run depends on.
    """
    record: Any = jax.tree.map(np.asarray, scanned)
    with np.errstate(invalid="ignore", divide="ignore"):
        prequential_accuracy = record.hits / record.rows
        prequential_loss = record.loss / record.rows
    common: dict[str, Any] = {
        **{name: getattr(record, name) for name in FIGURES},
        "healthy": record.healthy,
        "extras": record.extras,
        "rows": record.rows,
        "prequential_accuracy": prequential_accuracy,
        "prequential_loss": prequential_loss,
        "provenance": provenance,
        "classes": Classes(classes),
        "task_ends": task_ends,
    }
    if record.evaluation is None or schedule is None or test is None:
        return History(**common, **_without_evaluations(record.k_t.shape[1]))
    return History(
        **common, **_evaluated(record.evaluation, np.flatnonzero(schedule), task_ends, test)
    )


def _without_evaluations(layers: int) -> dict[str, Any]:
    none = np.zeros(0)
    scalars = ("regret", "cumulative_regret", "kl", "excess_loss", "kl_from_expert", "task_rows")
    by_protocol = ("accuracy", "task_accuracy", "R")
    return {
        "evaluated": np.zeros(0, int),
        "learner_accuracy": np.zeros((0, layers)),
        **dict.fromkeys(scalars, none),
        **{name: ByProtocol() for name in by_protocol},
    }


def _evaluated(
    evaluation: Evaluation, evaluated: np.ndarray, task_ends: np.ndarray, test: HeldOut
) -> dict[str, Any]:
    """What a history has of its evaluations, after the batches `evaluated`."""
    # A run in chunks keeps only the evaluations that were made.
    kept: Any = jax.tree.map(
        lambda leaf: leaf if len(leaf) == len(evaluated) else leaf[evaluated], evaluation
    )
    R: dict[str, np.ndarray] = {}
    if np.isin(task_ends, evaluated).all():
        at_ends = np.searchsorted(evaluated, task_ends)
        R = {name: rows[at_ends] for name, rows in kept.task_accuracy.items()}
    return {
        "evaluated": evaluated,
        "accuracy": ByProtocol(kept.accuracy),
        "task_accuracy": ByProtocol(kept.task_accuracy),
        "learner_accuracy": kept.learner_accuracy,
        "regret": kept.regret,
        "cumulative_regret": cumulative_regret(kept.regret),
        "kl": kept.kl,
        "excess_loss": kept.excess_loss,
        "kl_from_expert": kept.kl_from_expert,
        "R": ByProtocol(R),
        "task_rows": np.asarray(test.rows_of_task, dtype=int),
        "confusion": np.zeros((0, 0, 0), int) if kept.confusion is None else kept.confusion,
    }


@portable
@summarised
class Run(NamedTuple):
    """What `run_stream` returns: the learner's last state and the history of its run."""

    state: State
    history: History

    def to_pandas(self) -> Any:
        """The history as a `pandas.DataFrame`, a row a batch; needs the package pandas.

        Columns are named as in `History`: `rows`, `prequential_accuracy`, `prequential_loss`,
        `healthy` (in all sub-learners); `k_t_0`, `k_t_1`, ... and so on, one a sub-learner; and,
        NaN at batches after which the test set was not evaluated, `accuracy_PROTOCOL`, `regret`,
        `cumulative_regret`, `kl`, `excess_loss`, `kl_from_expert` and `learner_accuracy_0`, ...
        The index `batch` counts from 0, as `evaluated` does. What belongs to tasks is left out:
        `R` and `task_accuracy` are arrays of their own.
        """
        import pandas

        history = self.history
        names = ("rows", "prequential_accuracy", "prequential_loss")
        columns = {name: getattr(history, name) for name in names}
        columns["healthy"] = history.healthy.all(axis=1)
        for name, values in _figures(history).items():
            columns |= {f"{name}_{layer}": each for layer, each in enumerate(values.T)}
        index = pandas.RangeIndex(len(history.rows), name="batch")
        frame = pandas.DataFrame(columns, index=index)
        if not len(history.evaluated):
            return frame
        curves = {f"accuracy_{name}": curve for name, curve in history.accuracy.items()}
        curves |= {name: getattr(history, name) for name in (*CURVES, "cumulative_regret")}
        each = history.learner_accuracy.T
        curves |= {f"learner_accuracy_{layer}": curve for layer, curve in enumerate(each)}
        return frame.join(pandas.DataFrame(curves, index=history.evaluated))

    def _summary(self) -> Summary:
        summary = self.history._summary()
        learner = str(self.history.provenance.get("learner") or "a learner")
        rows = [("state", cut(brief(self.state), 90)), ("history", summary.title), *summary.rows]
        return Summary(f"Run of {cut(learner, 200)}", rows)
