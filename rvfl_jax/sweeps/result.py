"""What a sweep leaves behind: labelled NumPy arrays."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from rvfl_jax.core.checks import NumericalError, one_of
from rvfl_jax.core.portable import portable
from rvfl_jax.core.types import Criterion
from rvfl_jax.core.words import Summary, brief, cut, number, summarised
from rvfl_jax.sweeps.grid import POINT, SEED, STREAM, Axis

# Averaged over when configurations are compared: they are circumstances, not choices.
CIRCUMSTANCES = (SEED, STREAM)
# Criteria that need no test data, and whether more is better.
CRITERIA: dict[Criterion, bool] = {"prequential_loss": False, "prequential_accuracy": True}


@portable
@summarised
@dataclass(frozen=True, repr=False)
class Sweep:
    """Results of `sweep`; every array begins with one dimension for each of `axes`.

    T batches, E evaluations, L sub-learners, Q tasks; "..." are the axes.

    Attributes:
        axes: names, in the order of the grid.
        coords: axis to its values; row numbers for the axes "point" and "stream".
        points: those of the axis "point", as passed to `make_learner`; empty without that axis.
            Points that differ in "seed" or "stream" alone are separate choices: give these an
            axis.
        healthy: (...,) False where arithmetic failed at any batch.
        prequential_loss: (...,) squared error of the guesses, mean over all rows of the
            stream; infinite where the run is not healthy.
        prequential_accuracy: (...,) of the guesses over all rows; 0 where not healthy.
        loss: (..., T) squared error of the guess on each batch, mean over its rows.
        k_next: (..., T, L) forward strength of the announced batch. Where an axis changes the
            number of sub-learners: (...,) objects, an array (T, L) for every configuration.
        evaluated: (E,) batches after which the test set was evaluated.
        accuracy: protocol to (..., E); empty without a test set.
        task_accuracy: protocol to (..., E, Q).
        learner_accuracy: (..., E, L), or objects (E, L) as for `k_next`; (..., 0) without a test
            set.
        provenance: see `rvfl_jax.files.provenance`; of the learner at the first point.
    """

    axes: tuple[str, ...]
    coords: dict[str, Any]
    points: tuple[dict[str, Any], ...]
    healthy: np.ndarray
    prequential_loss: np.ndarray
    prequential_accuracy: np.ndarray
    loss: np.ndarray
    k_next: np.ndarray
    evaluated: np.ndarray
    accuracy: dict[str, np.ndarray]
    task_accuracy: dict[str, np.ndarray]
    learner_accuracy: np.ndarray
    provenance: dict[str, Any]

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values along each axis."""
        return self.healthy.shape

    def mean(self, values: np.ndarray) -> np.ndarray:
        """An array of the axes' shape, averaged over "seed" and "stream"."""
        return values.mean(axis=tuple(i for i, a in enumerate(self.axes) if a in CIRCUMSTANCES))

    @property
    def choices(self) -> tuple[str, ...]:
        """The axes among which `best` chooses: all but "seed" and "stream"."""
        return tuple(axis for axis in self.axes if axis not in CIRCUMSTANCES)

    def best(self, criterion: Criterion = "prequential_loss") -> dict[str, Any]:
        """The arguments of `make_learner` that are best on average over seeds and streams.

        Args:
            criterion: "prequential_loss" or "prequential_accuracy"; neither sees test data.

        Raises:
            NumericalError: if no configuration stayed healthy.
            ValueError: on another criterion.
        """
        return self.ranking(criterion)[0][0]

    def ranking(
        self, criterion: Criterion = "prequential_loss"
    ) -> list[tuple[dict[str, Any], float]]:
        """All choices that stayed healthy, each with its criterion, best first."""
        one_of("criterion", criterion, CRITERIA)
        values = np.asarray(self.mean(getattr(self, criterion)))
        healthy = np.asarray(self.mean(self.healthy) == 1)
        if not healthy.any():
            raise NumericalError(
                "sweep: the arithmetic of every configuration failed. Remedy: a larger ridge,"
                ' features on a smaller scale, or precision="double".'
            )
        order = np.argsort(-values if CRITERIA[criterion] else values, axis=None, kind="stable")
        places = [np.unravel_index(at, values.shape) for at in order]
        return [(self.point(place), float(values[place])) for place in places if healthy[place]]

    def point(self, place: Sequence[Any]) -> dict[str, Any]:
        """The arguments of `make_learner` at these positions along `choices`."""
        chosen: dict[str, Any] = {}
        for axis, at in zip(self.choices, place, strict=True):
            chosen |= self.points[at] if axis == POINT else {axis: self.coords[axis][at]}
        return {n: v.item() if isinstance(v, np.generic) else v for n, v in chosen.items()}

    def _summary(self) -> Summary:
        size = " x ".join(map(str, self.shape))
        learner = str(self.provenance.get("learner") or "a learner")
        rows = [(axis, _ends(self.coords[axis])) for axis in self.axes]
        if self.points:
            rows.append(("one point", brief(self.points[0])))
        failed = int((~self.healthy).sum())
        rows.append(("arithmetic", f"failed in {failed}" if failed else "healthy throughout"))
        if np.asarray(self.mean(self.healthy) == 1).any():
            point, loss = self.ranking()[0]
            rows.append(("best", f"{brief(point)} with prequential loss {number(loss)}"))
        if self.accuracy:
            protocols = ", ".join(self.accuracy)
            rows.append(("accuracy", f"{protocols} in {len(self.evaluated)} evaluations"))
        title = f"Sweep of {size} configurations ({', '.join(self.axes)}), the first of them of"
        return Summary(f"{title} {cut(learner, 200)}", [(cut(n, 30), cut(t, 100)) for n, t in rows])

    def to_pandas(self) -> Any:
        """A `pandas.DataFrame` with a row a configuration; needs the package pandas.

        A column for each axis, and for each argument of `points`; then `healthy`,
        `prequential_loss`, `prequential_accuracy` and, of the last evaluation,
        `accuracy_PROTOCOL`. Values of an axis that are arrays, one number a sub-learner, are
        tuples. Curves over batches are in the arrays and in `to_xarray`.
        """
        import pandas

        places = np.indices(self.shape).reshape(len(self.shape), -1)
        columns: dict[str, Any] = {}
        for axis, at in zip(self.axes, places, strict=True):
            columns[axis] = [_plain(self.coords[axis][i]) for i in at]
            if axis == POINT:
                for name in self.points[0] if self.points else ():
                    columns[name] = [_plain(self.points[i][name]) for i in at]
        columns |= {name: getattr(self, name).ravel() for name in ("healthy", *CRITERIA)}
        for protocol, curves in self.accuracy.items():
            columns[f"accuracy_{protocol}"] = curves[..., -1].ravel()
        return pandas.DataFrame(columns)

    def to_xarray(self) -> Any:
        """The same as an `xarray.Dataset`; needs the package xarray.

        Entries are NaN for sub-learners that a configuration does not have.
        """
        import xarray

        rest = {"loss": ("batch",), "k_next": ("batch", "learner")}
        data = {
            name: ((*self.axes, *rest.get(name, ())), _filled(getattr(self, name)))
            for name in ("healthy", *CRITERIA, *rest)
        }
        for protocol, values in self.accuracy.items():
            data[f"accuracy_{protocol}"] = ((*self.axes, "evaluation"), values)
            data[f"task_accuracy_{protocol}"] = (
                (*self.axes, "evaluation", "task"),
                self.task_accuracy[protocol],
            )
        coords: dict[str, Any] = {}
        for axis, values in self.coords.items():
            extra = (f"{axis}_layer",) if np.ndim(values) > 1 else ()
            coords[f"{axis}_values" if extra else axis] = ((axis, *extra), values)
        for name in self.points[0] if self.points else ():
            values = np.array([point[name] for point in self.points])
            coords[name] = ((POINT, *(f"{name}_layer",) * (values.ndim - 1)), values)
        if self.accuracy:
            coords["evaluation"] = self.evaluated
        return xarray.Dataset(data, coords)


def build_sweep(
    axes: list[Axis],
    parts: list[tuple[list[np.ndarray], Any]],
    schedule: np.ndarray | None,
) -> Sweep:
    """Put chunks together.

    Args:
        axes: of the grid.
        parts: places of every axis, and what was kept there.
        schedule: (T,) after which batches the test set was evaluated, or None.

    Returns:
        The results without their provenance.
    """
    shape = tuple(axis.size for axis in axes)
    evaluated = np.zeros(0, int) if schedule is None else np.flatnonzero(schedule)

    def at_evaluations(values: np.ndarray) -> np.ndarray:
        return np.take(values, evaluated, axis=len(shape))

    def evaluated_part(part: Any) -> Any:
        return part._replace(evaluation=jax.tree.map(at_evaluations, part.evaluation))

    places = [where for where, _ in parts]
    kept: Any = jax.tree.map(
        lambda *leaves: _joined(shape, places, leaves), *[evaluated_part(part) for _, part in parts]
    )
    rows = kept.rows.sum(axis=-1)
    with np.errstate(invalid="ignore"):
        loss = np.where(kept.healthy, kept.loss.sum(axis=-1) / rows, np.inf)
        accuracy = np.where(kept.healthy, kept.hits.sum(axis=-1) / rows, 0.0)
        each = kept.loss / kept.rows
    seen = kept.evaluation
    points = [axis for axis in axes if axis.name == POINT]
    return Sweep(
        axes=tuple(axis.name for axis in axes),
        coords={axis.name: _coordinates(axis) for axis in axes},
        points=tuple(_handed(points[0].at(i)) for i in range(points[0].size)) if points else (),
        healthy=kept.healthy,
        prequential_loss=loss,
        prequential_accuracy=accuracy,
        loss=each,
        k_next=kept.k_next,
        evaluated=evaluated,
        accuracy={} if seen is None else seen.accuracy,
        task_accuracy={} if seen is None else seen.task_accuracy,
        learner_accuracy=np.zeros((*shape, 0)) if seen is None else seen.learner_accuracy,
        provenance={},
    )


def _joined(
    shape: tuple[int, ...], places: list[list[np.ndarray]], leaves: tuple[np.ndarray, ...]
) -> np.ndarray:
    """Chunks in the places of a grid of that shape; as objects where theirs differ beyond it."""
    rests = {leaf.shape[len(shape) :] for leaf in leaves}
    dtype = np.result_type(*leaves)
    whole = np.empty((*shape, *rests.pop()), dtype) if len(rests) == 1 else np.empty(shape, object)
    for where, leaf in zip(places, leaves, strict=True):
        if whole.dtype != object:
            whole[np.ix_(*where)] = leaf
            continue
        for at in np.ndindex(*leaf.shape[: len(shape)]):
            # Not a view, which would keep all of its chunk.
            whole[tuple(w[i] for w, i in zip(where, at, strict=True))] = leaf[at].copy()
    return whole


def _plain(value: Any) -> Any:
    """One cell of a table: arrays of numbers as tuples."""
    if isinstance(value, np.ndarray | list | tuple):
        array = np.asarray(value)
        return tuple(array.tolist()) if array.ndim else array.item()
    return value.item() if isinstance(value, np.generic) else value


def _filled(values: np.ndarray) -> np.ndarray:
    """One array of arrays of several shapes, NaN where one is shorter."""
    if values.dtype != object:
        return values
    longest = np.max([np.shape(value) for value in values.flat], axis=0)
    whole = np.full((*values.shape, *longest), np.nan)
    for at, value in np.ndenumerate(values):
        whole[(*at, *map(slice, np.shape(value)))] = value
    return whole


def _ends(values: Any) -> str:
    """How many values an axis has, and the first and the last of them."""
    ends = [value_in_words(value) for value in (values[0], values[-1])]
    return f"{len(values)} value{'s' * (len(values) > 1)}, {' to '.join(ends[: len(values)])}"


def _coordinates(axis: Axis) -> Any:
    if axis.name == POINT:
        return np.arange(axis.size)
    if axis.numbers:
        return axis.numbers[axis.name]
    values = np.empty(axis.size, dtype=object)
    values[:] = axis.constants[axis.name]
    return values


def _handed(point: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in point.items() if name not in CIRCUMSTANCES}


def value_in_words(value: Any, digits: int = 4) -> str:
    """A value of an axis as tables and pictures show it."""
    if isinstance(value, np.ndarray | list | tuple) and np.asarray(value).dtype.kind == "f":
        return ", ".join(f"{float(entry):.{digits}g}" for entry in value)
    return f"{value:.{digits}g}" if isinstance(value, float | np.floating) else str(value)
