"""A model on disk as the commands use it: how it reads tables, and which it has learned."""

import hashlib
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.cli.model_folder import before_kept
from rvfl_jax.data.columns import Columns
from rvfl_jax.data.tables import Part, sole_label, unnamed
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.fitted import fitted_of
from rvfl_jax.estimators.save import load_model, notes_of, save_model


class Table(NamedTuple):
    """How a model reads tables.

    Attributes:
        label: name of the label column.
        columns: names of the features.
        how: what these are made of; None where each column is a number.
    """

    label: str
    columns: list[str]
    how: Columns | None = None


class Fingerprint:
    """SHA-256 of a table's rows, whatever file they come from, in whatever parts and order."""

    def __init__(self) -> None:
        self._sum, self._rows = 0, 0

    def add(self, part: Part) -> None:
        """More rows, with their labels."""
        assert part.labels is not None
        # Zero has two signs.
        X = np.ascontiguousarray(part.X + 0.0, "<f8")
        for row, label in zip(X, part.labels, strict=True):
            digest = hashlib.sha256(row.tobytes() + label.encode()).digest()
            self._sum += int.from_bytes(digest, "big")
        self._rows += len(X)

    def hex(self) -> str:
        """Of all rows so far."""
        return hashlib.sha256(f"{self._rows} {self._sum}".encode()).hexdigest()


class KeptModel(NamedTuple):
    """A model on disk.

    Attributes:
        model: the estimator.
        table: how it reads tables.
        strengths: one entry a batch learned: k of every sub-learner, put on the batch then
            announced.
        tables: by fingerprint, how many times a table was learned, less how often unlearned.
    """

    model: EdRVFLClassifier
    table: Table
    strengths: list[list[float]]
    tables: dict[str, int]

    def labels(self, part: Part) -> np.ndarray:
        """The labels of a part as the model has them, which may be numbers if Python made it."""
        assert part.labels is not None
        known = self.known()
        numbers = bool(known) and all(isinstance(label, int) for label in known.values())
        labels = np.empty(len(part.labels), dtype=object)
        labels[:] = [known.get(x, _number(x) if numbers else x) for x in part.labels]
        return labels

    def known(self) -> Mapping[str, Any]:
        """Classes seen so far, by their text and by the text that a table has for them.

        Earlier releases learned "0.0" where tables say "0" now.
        """
        if not hasattr(self.model, "num_rows_seen_"):
            return {}
        labels = self.model.classes_.tolist()
        exact = {str(label): label for label in labels}
        return {sole_label(text): label for text, label in exact.items()} | exact

    def learn(self, part: Part) -> None:
        """The next batch."""
        with _columns_in_order():
            self.model.partial_fit(part.X, self.labels(part))
        # Features made of columns come from `Columns.features`, as an array.
        if self.table.how is None and self.table.columns != unnamed(len(self.table.columns)):
            self.model.feature_names_in_ = np.array(self.table.columns, dtype=object)
        self.strengths.append(fitted_of(self.model).strengths.tolist())

    def unlearn(self, part: Part) -> None:
        """A batch that was learned before."""
        with _columns_in_order():
            self.model.unlearn(part.X, self.labels(part))

    def proba(self, X: np.ndarray) -> np.ndarray:
        """(rows, classes) probabilities."""
        with _columns_in_order():
            return self.model.predict_proba(X)

    def novelty(self, X: np.ndarray) -> np.ndarray:
        """(rows,) how unlike all that was learned."""
        with _columns_in_order():
            return self.model.novelty(X)

    def note(self, source: str, fingerprint: str, step: int, again: bool) -> None:
        """Note that a table was learned (step 1) or unlearned (-1).

        Raises:
            ValueError: if that was done before, and is not asked for again.
        """
        times = self.tables.get(fingerprint, 0) + step
        if abs(times) > 1 and not again:
            done = "learned" if step > 0 else "unlearned"
            raise ValueError(
                f"{source}: expected rows not yet {done}, got a table {done} before;"
                " --again does so once more"
            )
        self.tables[fingerprint] = times
        if not times:
            del self.tables[fingerprint]

    def save(self, folder: Path) -> None:
        """Replace what is in the folder, keep that as the model before, and say so."""
        notes = {
            "table": _described(self.table),
            "strengths": self.strengths,
            "tables": self.tables,
        }
        with before_kept(folder):
            save_model(self.model, folder, notes=notes)
        seen, classes = self.model.num_rows_seen_, len(self.model.classes_)
        print(f"Wrote {folder}: {seen} rows, {classes} classes.", file=sys.stderr)


def opened(folder: Path, label: str | None = None) -> KeptModel:
    """The model in a folder, also one that Python saved.

    Args:
        folder: of the model.
        label: name of the label column; that which the model was made with when None.

    Raises:
        ValueError: if there is none, it is damaged, or it is no classifier.
    """
    model, notes = load_model(folder), notes_of(folder)
    if not isinstance(model, EdRVFLClassifier):
        raise ValueError(f"{folder}: expected a classifier, got {type(model).__name__}")
    names = getattr(model, "feature_names_in_", unnamed(model.n_features_in_))
    table = notes.get("table", {})
    return KeptModel(
        model,
        _table(table, label, [*names]),
        notes.get("strengths", []),
        notes.get("tables", {}),
    )


def _described(table: Table) -> dict[str, Any]:
    """As JSON, in the form that earlier releases read where that says all."""
    told: dict[str, Any] = {"label": table.label, "columns": table.columns}
    return told if table.how is None else told | {"how": table.how.described()}


def _table(told: Mapping[str, Any], label: str | None, names: list[str]) -> Table:
    how = told.get("how")
    return Table(
        label or told.get("label", "label"),
        told.get("columns", names),
        None if how is None else Columns.from_description(how),
    )


@contextmanager
def _columns_in_order() -> Iterator[None]:
    """Without a word on arrays that have no names: `read_parts` has seen to their order."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        yield


def _number(text: str) -> Any:
    """An integer where the text is one as Python writes it."""
    try:
        return int(text) if str(int(text)) == text else text
    except ValueError:
        return text
