"""`Sums`: all that an estimator learns of rows, for several machines to add up.

    Sums(rows a and b) = Sums(a) merged with Sums(b),      Sums.zero is that of no rows,

in any order and grouping. What travels between machines are arrays of NumPy: the lower triangle of
D^T D, and D^T y for every label that was met. lambda is no part of it and enters in `finish`.

A ledger names the partitions that are in the sums, each with a fingerprint of its rows, so that
one that is sent twice is counted once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from rvfl_jax.core.checks import differences, positive_int
from rvfl_jax.core.words import Summary, listed, summarised
from rvfl_jax.estimators import adding, hosted
from rvfl_jax.estimators.adding import raise_unless
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.calibration import no_guesses
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.compiled import LINKS
from rvfl_jax.estimators.learned import Batch
from rvfl_jax.estimators.padding import classes_for
from rvfl_jax.estimators.partition import (
    fingerprint_of,
    network_of,
    sums_of_batch,
    weights_fingerprint,
)
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.estimators.save import KINDS, _decoded, _encoded
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.files.checkpoint import load_checkpoint_file, restore, save_checkpoint
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.linalg.host_blas import packed, strips_of_packed
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import LabelMap, as_array

# Parameters that enter in `finish`; all others decide what rows add to the sums.
FINISHING = {
    "ridge",
    "k",
    "readout",
    "class_balance",
    "shrinkage",
    "forgetting",
    "lookahead",
    "cold_start",
    "solver",
    "ensemble",
    "precision",
}
KIND = "sums"
# Attributes that a file tells as they are.
TOLD = (
    "num_features",
    "feature_names",
    "fingerprint",
    "rows",
    "one_output",
    "ledger",
    "whole",
)


@summarised
@dataclass(frozen=True, eq=False, repr=False)
class Sums:
    """Sums over the rows of partitions, which machines make apart and merge.

    Example:
        >>> zero = Sums.zero(EdRVFLClassifier(num_nodes=64, random_state=0))
        >>> parts = [zero.add(X[i::4], y[i::4], partition=f"part {i}") for i in range(4)]
        >>> model = zero.merge(*parts, parts[0]).finish(ridge=0.5)
        >>> model.num_rows_seen_ == len(X)
        True

    Nothing is changed in place: every method returns other sums, and can be pickled or saved. The
    readout that `finish` gives is that of one `fit` on all rows.

    Attributes:
        kind: name of the estimator.
        parameters: of the estimator, `random_state` the integer seed of its weights.
        num_features: s; None before any are known.
        feature_names: of the columns, where they came with names.
        fingerprint: of the random weights; None while `num_features` is.
        scaling: what features are standardised with, for `scale="first"`.
        gram: (L, d (d + 1) / 2) lower triangle of D^T D, row after row; (L, 0) before any rows.
        moments: (L, d) D^T y by label; by number of the output for a regressor.
        counts: by label, the weight of its rows; sum of squares of an output.
        rows_of: by label, the number of its rows; of all rows for an output.
        rows: number of all rows.
        one_output: whether targets of a regressor came as (n,).
        ledger: fingerprint of the rows of every partition, by its name.
        whole: whether the sums are those of the partitions in the ledger, and of no other rows.
    """

    kind: str
    parameters: Mapping[str, Any]
    num_features: int | None
    feature_names: tuple[str, ...] | None
    fingerprint: str | None
    scaling: Scaling | None
    gram: np.ndarray
    moments: Mapping[Any, np.ndarray]
    counts: Mapping[Any, float]
    rows_of: Mapping[Any, int]
    rows: int
    one_output: bool
    ledger: Mapping[str, str]
    whole: bool

    @classmethod
    def zero(cls, estimator: EdRVFLBase, num_features: int | None = None) -> "Sums":
        """The sums of no rows.

        Args:
            estimator: `EdRVFLClassifier` or `EdRVFLRegressor` with an integer `random_state`. What
                it has learned does not matter, but for the scaling of `scale="first"`.
            num_features: s; None leaves it to the first rows.

        Raises:
            ValueError: on parameters with which rows do not add up, telling why.
        """
        _check_adds_up(estimator)
        scaling = None
        if estimator.scale == "first":
            scaling = estimator._fitted.scaling
            num_features = num_features or estimator.n_features_in_
        empty = _of_nothing(type(estimator).__name__, estimator.get_params(), scaling)
        if num_features is None:
            return empty
        num_features = positive_int("num_features", num_features)
        weights = network_of(empty._estimator(num_features), num_features)
        return replace(empty, num_features=num_features, fingerprint=weights.fingerprint)

    @property
    def labels(self) -> np.ndarray:
        """Labels met, in ascending order where they have one; numbers of a regressor's outputs."""
        met = LabelMap(tuple(self.moments))
        return met.sorted(np.ones(len(met.labels), bool))[0]

    def add(
        self, X: Any, y: Any, sample_weight: Any = None, *, partition: str | None = None
    ) -> "Sums":
        """With the rows of one partition.

        Beside half a Gram this takes a few d x d numbers, however few the rows are: a partition
        should have several times d.

        Args:
            X: (n, s) finite numbers, as for `fit`; n may be 0, which adds nothing.
            y: (n,) labels, of which any may be missing or new; or targets.
            sample_weight: (n,) at least 0.
            partition: its name in the ledger; under a name that is there already nothing is added.
                None adds the rows whatever came before.

        Raises:
            ValueError: on unusable input, or on other rows under a name that is in the ledger.
            NumericalError: if a value overflowed.
        """
        if not (X.shape[0] if hasattr(X, "shape") else len(X)):
            return self
        mark = None if partition is None else fingerprint_of(X, y, sample_weight)
        if partition is not None and partition in self.ledger:
            _check_marks(self.ledger, {partition: str(mark)})
            return self
        model = self._estimator(None)
        # Statistics of these rows alone scale nothing.
        model.scale = "none"
        if isinstance(model, EdRVFLClassifier):
            given: Any = model._checked(X, y, sample_weight, LabelMap(), reset=True)
            labels, rows_of = list(given.labels.labels), given.seen.tolist()
            LabelMap(tuple(self.moments)).check_kind("y", as_array(labels))
        else:
            given = model._checked(X, y, sample_weight, reset=True)
            labels = list(range(given.batch.target.shape[1]))
            rows_of = [len(given.batch.X)] * len(labels)
        names = getattr(model, "feature_names_in_", None)
        part = self._emptied(model.n_features_in_, None if names is None else tuple(names))
        if not len(given.batch.X):
            return self
        found = part._sums_of(model, given.batch, len(labels))
        part = replace(
            part,
            gram=packed(found.half),
            moments=dict(zip(labels, np.moveaxis(found.moment, 2, 0).copy(), strict=True)),
            counts=dict(zip(labels, found.counts[0].tolist(), strict=True)),
            rows_of=dict(zip(labels, rows_of, strict=True)),
            rows=len(given.batch.X),
            one_output=np.ndim(y) < 2,
            ledger={} if partition is None else {partition: str(mark)},
            whole=partition is not None,
        )
        return self.merge(part)

    def as_partition(self, name: str, fingerprint: str) -> "Sums":
        """The same sums, entered in the ledger as one partition.

        For rows that are known by other contents than those that were added, such as the images
        behind embeddings.

        Args:
            name: of the partition.
            fingerprint: of its content; see `rvfl_jax.estimators.partition.digest_of_columns`.

        Raises:
            ValueError: if there are partitions already.
        """
        if self.ledger:
            raise ValueError(f"as_partition: expected no partitions, got {listed(self.ledger)}")
        return replace(self, ledger={name: fingerprint}, whole=True)

    def merge(self, *others: "Sums") -> "Sums":
        """Of the rows of all.

        Sums all of whose partitions are in others count once. Where two have some partitions in
        common and not others, none can be left out, and they are refused: merge each
        partition's sums once.

        Args:
            *others: any number, of estimators that differ in nothing that shapes sums.

        Raises:
            ValueError: naming what differs, or the partitions that would count twice.
        """
        merged = self
        for other in others:
            merged = merged._with(other)
        return merged

    def subtract(self, other: "Sums") -> "Sums":
        """Of these rows without those of the other, which are among them.

        Its partitions leave the ledger, and may come again.

        Raises:
            ValueError: naming what differs, on partitions that are not here, on more rows of a
                label than there are, and where no rows could have such sums.
        """
        self._check_alike(other)
        if not other.rows:
            return self
        absent = [name for name in other.ledger if name not in self.ledger]
        if absent:
            raise ValueError(f"subtract: expected partitions that were added, got {listed(absent)}")
        _check_marks(self.ledger, other.ledger)
        for label, rows in other.rows_of.items():
            if rows > self.rows_of.get(label, 0):
                raise ValueError(
                    f"subtract: expected at most {self.rows_of.get(label, 0)} rows of"
                    f" {label!r}, got {rows}"
                )
        left = self._combined(other, -1)
        squares = left.gram[:, _diagonal_places(left.width if left.rows else 0)]
        if (squares < -1e-9 * (1.0 + np.abs(squares).max(initial=0.0))).any():
            raise ValueError("subtract: expected rows that were added; what is left are no sums")
        ledger = {name: mark for name, mark in self.ledger.items() if name not in other.ledger}
        return replace(left, ledger=ledger)

    def finish(self, ridge: Any = None, *, sample: tuple[Any, Any] | None = None) -> Any:
        """The estimator that has learned all rows.

        Its readout is that of one `fit` on them. It predicts, goes on learning, merges, unlearns
        and is saved as any other.

        Args:
            ridge: lambda, a scalar or (L,); None takes that of the estimator.
            sample: X and y of some of the rows added, by whose leave-one-out predictions
                probabilities of a classifier with `readout="ridge"` are calibrated, as `fit` does
                by all rows. Without it scores are their own probabilities until the model has
                learned more: `inverse_temperature_` is 1.

        Raises:
            ValueError: if there are no rows.
            NumericalError: if the sums could not be factorised.
        """
        if not self.rows or self.num_features is None:
            raise ValueError("finish: expected sums of at least one row, got none")
        model = self._estimator(self.num_features)
        if ridge is not None:
            model.ridge = ridge
        if self.feature_names is not None:
            model.feature_names_in_ = np.array(self.feature_names, dtype=object)
        self._begin(model)
        outputs, columns = model._fitted.capacity, range(len(self.moments))
        moment = np.zeros((len(self.gram), self.width, outputs))
        counts = np.zeros(outputs)
        moment[..., columns] = np.stack([*self.moments.values()], axis=2)
        counts[columns] = [*self.counts.values()]
        of_all = np.broadcast_to(counts, (len(moment), outputs))
        sums = HostSums(strips_of_packed(self.gram, self.width), moment, np.array(of_all))
        fitted = model._fitted
        learned = adding.changed(fitted.learned, hosted.placed(sums), self.rows)
        if fitted.guesses is not None:
            fitted = fitted._replace(counts=counts)
        fitted = fitted._replace(learned=learned._replace(batches=1), num_rows=self.rows)
        model._become(fitted)
        # What cannot be solved is refused now.
        model._solved(getattr(model, "readout", "ridge"))
        if sample is not None:
            _calibrate(model, *sample)
        return model

    def save(self, path: str | Path) -> None:
        """Write the sums into one `.npz` file, which is whole or not there, without pickles.

        Raises:
            ValueError: on parameters or labels that JSON cannot hold, such as an activation of
                your own.
            OSError: if the file cannot be written; an existing one is left as it was.
        """
        described = {
            "kind": KIND,
            "estimator": self.kind,
            "parameters": {name: _encoded(name, v) for name, v in self.parameters.items()},
            "labels": [_encoded("label", label) for label in self.moments],
        }
        described |= {name: getattr(self, name) for name in TOLD}
        save_checkpoint(path, self._arrays(), described)

    @classmethod
    def load(cls, path: str | Path) -> "Sums":
        """Read the sums that `save` wrote.

        Raises:
            ValueError: if there is no such file, or if it is damaged or of another kind.
        """
        checkpoint = load_checkpoint_file(path)
        described = checkpoint.metadata["metadata"]
        if described.get("kind") != KIND or described["estimator"] not in KINDS:
            raise ValueError(f"{path}: expected sums, got {described.get('kind')!r}")
        parameters = {name: _decoded(value) for name, value in described["parameters"].items()}
        told = {name: described[name] for name in TOLD}
        if told["feature_names"] is not None:
            told["feature_names"] = tuple(told["feature_names"])
        empty = replace(_of_nothing(described["estimator"], parameters), **told)
        labels = [_decoded(label) for label in described["labels"]]
        tree = restore(checkpoint, empty._expected(labels), what=str(path))
        return replace(
            empty,
            gram=tree["gram"],
            moments=dict(zip(labels, tree["moments"], strict=True)),
            counts=dict(zip(labels, tree["counts"].tolist(), strict=True)),
            rows_of=dict(zip(labels, tree["rows_of"].tolist(), strict=True)),
            scaling=Scaling(tree["mean"], tree["scale"]) if "mean" in tree else None,
        )

    @property
    def width(self) -> int:
        """Features of a readout, d = N + s and the constant column; 0 before s is known."""
        if self.num_features is None:
            return 0
        nodes, intercept = self.parameters["num_nodes"], self.parameters["intercept"]
        return int(nodes) + self.num_features + bool(intercept)

    # --- files ------------------------------------------------------------------------------

    def _arrays(self) -> dict[str, np.ndarray]:
        shape = (len(self.moments), len(self.gram), self.width)
        tree = {
            "gram": self.gram,
            "moments": np.stack([*self.moments.values()]) if self.moments else np.zeros(shape),
            "counts": np.array([*self.counts.values()], float),
            "rows_of": np.array([*self.rows_of.values()], int),
        }
        return tree if self.scaling is None else tree | self.scaling._asdict()

    def _expected(self, labels: list[Any]) -> dict[str, np.ndarray]:
        layers, many = len(self.gram), len(labels)
        triangle = self.width * (self.width + 1) // 2 if self.rows else 0
        tree = {
            "gram": np.zeros((layers, triangle)),
            "moments": np.zeros((many, layers, self.width)),
            "counts": np.zeros(many),
            "rows_of": np.zeros(many, int),
        }
        if self.parameters["scale"] == "first":
            tree |= {name: np.zeros(self.num_features or 0) for name in ("mean", "scale")}
        return tree

    # --- rows and estimators ----------------------------------------------------------------

    def _estimator(self, num_features: int | None) -> Any:
        model = KINDS[self.kind](**self.parameters)
        if num_features is not None:
            model.n_features_in_ = num_features
        return model

    def _emptied(self, num_features: int, names: tuple[str, ...] | None) -> "Sums":
        """Of no rows, for such features; checks that they are those of before."""
        network = network_of(self._estimator(num_features), num_features)
        empty = replace(
            _of_nothing(self.kind, self.parameters, self.scaling),
            num_features=num_features,
            feature_names=names,
            fingerprint=network.fingerprint,
        )
        self._check_alike(empty)
        return empty

    def _sums_of(self, model: EdRVFLBase, batch: Batch, outputs: int) -> HostSums:
        assert self.num_features is not None
        if self.scaling is not None:
            scaled = self.scaling.of(batch.X[:, : self.num_features])
            batch = batch._replace(X=np.hstack([scaled, batch.X[:, self.num_features :]]))
        return sums_of_batch(model, network_of(model, self.num_features), batch, outputs)

    def _begin(self, model: Any) -> None:
        """Begin an estimator that has room for the labels; its weights must be those of before."""
        labels = tuple(self.moments)
        if isinstance(model, EdRVFLClassifier):
            capacity = classes_for(len(labels))
            rest: dict[str, Any] = {
                "guesses": no_guesses(capacity, LINKS[model.readout]),
                "guessed_by": model.readout,
                "labels": LabelMap(labels),
                "rows_of_class": np.array([*self.rows_of.values()], int),
            }
        else:
            capacity, rest = len(labels), {"guesses": None, "one_output": self.one_output}
        assert self.num_features is not None
        model._begin(self.num_features, capacity, scaling=self.scaling, **rest)
        found = weights_fingerprint(model._fitted.weights)
        if found != self.fingerprint:
            raise ValueError(_other_weights(self.fingerprint, found))

    # --- the algebra ------------------------------------------------------------------------

    def _with(self, other: "Sums") -> "Sums":
        self._check_alike(other)
        shared = [name for name in other.ledger if name in self.ledger]
        _check_marks(self.ledger, other.ledger)
        if not shared:
            return self._combined(other, 1)
        if other.whole and len(shared) == len(other.ledger):
            return self
        if self.whole and len(shared) == len(self.ledger):
            return replace(other, parameters=self.parameters)
        raise ValueError(
            f"merge: expected every partition once, got {listed(shared)} in two sums that have"
            " other rows, too; merge the sums of each partition once"
        )

    def _combined(self, other: "Sums", factor: int) -> "Sums":
        """With `factor` 1 or -1 times what the other has; labels left without rows go."""
        rows_of = _plus(self.rows_of, other.rows_of, factor)
        kept = [label for label, rows in rows_of.items() if rows > 0]
        moments = _plus(self.moments, other.moments, factor)
        counts = _plus(self.counts, other.counts, factor)
        rows = self.rows + factor * other.rows
        gram = np.zeros((len(self.gram), 0))
        if rows:
            gram = _sum(self.gram, other.gram, factor)
        return replace(
            self,
            num_features=_either(self.num_features, other.num_features),
            feature_names=_either(self.feature_names, other.feature_names),
            fingerprint=_either(self.fingerprint, other.fingerprint),
            gram=gram,
            moments={label: moments[label] for label in kept},
            counts={label: counts[label] for label in kept},
            rows_of={label: rows_of[label] for label in kept},
            rows=rows,
            one_output=other.one_output if not self.rows else self.one_output,
            ledger={**self.ledger, **other.ledger},
            whole=self.whole and other.whole,
        )

    def _check_alike(self, other: Any) -> None:
        if not isinstance(other, Sums):
            raise ValueError(f"sums: expected Sums, got {type(other).__name__}")
        ours, theirs = (sums.described() for sums in (self, other))
        # What only one of them knows yet is no difference.
        for name in ("num_features", "feature_names", "fingerprint", "outputs"):
            if ours[name] is None or theirs[name] is None:
                ours[name] = theirs[name] = None
        if ours["fingerprint"] != theirs["fingerprint"]:
            both = ours.pop("fingerprint"), theirs.pop("fingerprint")
            if ours == theirs:
                raise ValueError(_other_weights(*both))
        changed = differences(ours, theirs)
        if changed:
            raise ValueError(f"sums: expected those of one estimator; {'; '.join(changed)}")

    def described(self) -> dict[str, Any]:
        """All that sums which are merged have in common."""
        shaping = (name for name in self.parameters if name not in FINISHING)
        described = {name: _plain(self.parameters[name]) for name in shaping}
        described |= {
            "estimator": self.kind,
            "num_features": self.num_features,
            "feature_names": self.feature_names,
            "fingerprint": self.fingerprint,
            "outputs": None,
        }
        if self.scaling is not None:
            described |= {name: part.tolist() for name, part in self.scaling._asdict().items()}
        if self.kind == EdRVFLRegressor.__name__ and self.rows:
            described["outputs"] = len(self.moments)
        return described

    def _summary(self) -> Summary:
        rows = [
            ("features", "not known yet" if self.num_features is None else str(self.num_features)),
            ("rows", str(self.rows)),
            ("labels", listed(self.moments)),
            ("partitions", str(len(self.ledger)) + ("" if self.whole else ", and other rows")),
            ("weights", str(self.fingerprint)),
        ]
        return Summary(f"Sums of {self.kind}", rows)


def _of_nothing(kind: str, parameters: Mapping[str, Any], scaling: Scaling | None = None) -> Sums:
    return Sums(
        kind=kind,
        parameters=parameters,
        num_features=None,
        feature_names=None,
        fingerprint=None,
        scaling=scaling,
        gram=np.zeros((int(parameters["num_layers"]), 0)),
        moments={},
        counts={},
        rows_of={},
        rows=0,
        one_output=False,
        ledger={},
        whole=True,
    )


def _check_adds_up(estimator: Any) -> None:
    """ValueError, telling why, on an estimator whose rows do not add up."""
    if not isinstance(estimator, EdRVFLBase) or type(estimator).__name__ not in KINDS:
        raise ValueError(
            "estimator: expected EdRVFLClassifier or EdRVFLRegressor, got"
            f" {type(estimator).__name__}"
        )
    design, _ = clone(estimator)._design()
    reasons = {
        "forgetting: expected 1, as what a row is worth depends on the rows learned after it, and"
        " partitions have no order": design.forgets,
        "k: expected a constant, as -kF-Bayes takes its strength from one batch after another, and"
        " partitions have no order": not isinstance(design.strength, str),
        'cold_start: expected "exact", as "paper" leaves the Gram of the first batch out, and'
        " partitions have no first": estimator.cold_start != "exact",
        'precision: expected "double", as single precision keeps no sums': (
            estimator.precision != "double"
        ),
        'solver: expected another than "square_root", which keeps no sums': (
            estimator.solver == "square_root"
        ),
        'class_weight: expected None or a dict, as "balanced" needs the counts of all rows first;'
        " class_balance=1 does without": getattr(estimator, "class_weight", None) == "balanced",
        'scale: expected "none", or an estimator that has begun on a few rows and has their mean_'
        " and scale_, as every partition would be scaled by its own rows": (
            estimator.scale == "first" and getattr(estimator, "_fitted", None) is None
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ValueError(reason)
    seed = estimator.random_state
    if not isinstance(seed, int | np.integer) or isinstance(seed, bool):
        raise ValueError(
            "random_state: expected an integer, from which every machine draws the same weights,"
            f" got {seed!r}"
        )


def _calibrate(model: Any, X: Any, y: Any) -> None:
    """Calibrate on rows among those learned, by their leave-one-out predictions."""
    if not isinstance(model, EdRVFLClassifier) or model.readout != "ridge":
        raise ValueError('sample: expected none but for a classifier with readout="ridge"')
    labels = model._fitted.labels
    batch = model._checked(X, y, None, labels, reset=False).batch
    if int(batch.target.max(initial=0)) >= len(labels.labels):
        raise ValueError("sample: expected rows among those added, got a label that was not")
    with precision_scope("double"):
        sums = model._fitted.learned.sums
        theta, inverse, sound = adding.programs_of(sums).conclude(sums, model._ridge())
    raise_unless(bool(sound), "finish: a factorisation failed")
    model._leave_one_out(batch, (theta, inverse))


def _check_marks(known: Mapping[str, str], more: Mapping[str, str]) -> None:
    """ValueError on one name for two partitions."""
    for name, mark in more.items():
        if known.get(name, mark) != mark:
            raise ValueError(
                f"partition: expected the rows that {name!r} stands for, got others; give every"
                " partition a name of its own"
            )


def _other_weights(expected: Any, got: Any) -> str:
    return (
        f"weights: expected those of fingerprint {expected}, got {got} from the same seed; take one"
        " release of jax on all machines"
    )


def _plus(a: Mapping[Any, Any], b: Mapping[Any, Any], factor: int) -> dict[Any, Any]:
    found = dict(a)
    for key, value in b.items():
        found[key] = found[key] + factor * value if key in found else factor * value
    return found


def _sum(a: np.ndarray, b: np.ndarray, factor: int) -> np.ndarray:
    """Of triangles, of which (L, 0) stands for zeros."""
    if not a.shape[1]:
        return factor * b
    if not b.shape[1]:
        return a
    return a + b if factor == 1 else a - b


def _either(a: Any, b: Any) -> Any:
    return b if a is None else a


def _diagonal_places(width: int) -> np.ndarray:
    """Of the diagonal in the lower triangle."""
    rows = np.arange(width)
    return rows * (rows + 3) // 2


def _plain(value: Any) -> Any:
    return value.tolist() if hasattr(value, "tolist") else value
