"""`rvfl-jax fit`, `partial-fit`, `predict`, `evaluate` and `inspect`: models on your own tables.

A model is a folder. Labels are text as it stands in the table. Features are standardised with the
mean and deviation of the rows that came first, which are kept with the model. Nothing is written
before all input has been read and found good.
"""

import argparse
import csv
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.checks import positive_int
from rvfl_jax.estimator import EdRVFLClassifier
from rvfl_jax.metrics import expected_calibration_error
from rvfl_jax.model_file import load_model, notes_of, save_model
from rvfl_jax.strength import AdaptiveK, adaptive_k
from rvfl_jax.tables import Part, read_parts

BINS = 15


class Table(NamedTuple):
    """How a model reads tables.

    Attributes:
        label: name of the label column.
        columns: names of the features.
        mean, scale: (s,) what features are standardised with.
    """

    label: str
    columns: list[str]
    mean: list[float]
    scale: list[float]

    def inputs(self, part: Part) -> np.ndarray:
        """(rows, s) standardised features."""
        return (part.X - np.array(self.mean)) / np.array(self.scale)


class Kept(NamedTuple):
    """A model on disk.

    Attributes:
        model: the estimator.
        table: how it reads tables.
        strengths: one entry a batch learned: k of every sub-learner, put on the batch then
            announced.
    """

    model: EdRVFLClassifier
    table: Table
    strengths: list[list[float]]

    def learn(self, part: Part) -> None:
        """The next batch."""
        assert part.labels is not None
        labels = np.array(part.labels, dtype=object)
        self.model.partial_fit(self.table.inputs(part), labels)
        self.strengths.append(np.asarray(self.model._known.state.k, float).tolist())

    def save(self, folder: Path) -> None:
        """Replace what is in the folder, and say so."""
        notes = {"table": self.table._asdict(), "strengths": self.strengths}
        save_model(self.model, folder, notes=notes)
        seen, classes = self.model.num_rows_seen_, len(self.model.classes_)
        print(f"Wrote {folder}: {seen} rows, {classes} classes.", file=sys.stderr)


def fit(arguments: argparse.Namespace) -> int:
    """Begin a model and learn a table."""
    rows = positive_int("--batch-rows", arguments.batch_rows)
    if (arguments.out / "model.npz").exists() and not arguments.force:
        raise ValueError(f"{arguments.out}: expected no model there yet; --force replaces it")
    model = EdRVFLClassifier(
        arguments.num_layers,
        arguments.num_nodes,
        arguments.ridge,
        _strength(arguments),
        activation=arguments.activation,
        class_balance=arguments.class_balance,
        random_state=arguments.seed,
    )
    kept = None
    parts = read_parts(arguments.data, rows=rows, label=arguments.label, needs_label=True)
    for part in _counted(parts, "learned"):
        if kept is None:
            kept = Kept(model, _table_of(part, arguments.label, arguments.scale), [])
        kept.learn(part)
    assert kept is not None
    kept.save(arguments.out)
    return 0


def partial_fit(arguments: argparse.Namespace) -> int:
    """Go on learning; the model in the folder is replaced when all went well."""
    kept = _opened(arguments.model)
    for part in _parts(arguments, kept.table, "learned", needs_label=True):
        kept.learn(part)
    kept.save(arguments.out or arguments.model)
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Print one prediction a row, as CSV or JSON lines."""
    model, table, _ = _opened(arguments.model)
    out = io.StringIO()
    classes = [str(label) for label in model.classes_]
    write = _json_lines if arguments.format == "jsonl" else _csv_lines
    header = True
    for part in _parts(arguments, table, "predicted", needs_label=False):
        proba = model.predict_proba(table.inputs(part))
        write(out, classes, proba, arguments.probabilities, header)
        header = False
    sys.stdout.write(out.getvalue())
    return 0


def evaluate(arguments: argparse.Namespace) -> int:
    """Print accuracy and calibration on a labelled table that the model has not seen."""
    model, table, _ = _opened(arguments.model)
    classes = [str(label) for label in model.classes_]
    column_of = {label: c for c, label in enumerate(classes)}
    probabilities, truth = [], []
    for part in _parts(arguments, table, "evaluated", needs_label=True):
        assert part.labels is not None
        unknown = next((label for label in part.labels if label not in column_of), None)
        if unknown is not None:
            raise ValueError(
                f"{arguments.data}: expected one of the {len(classes)} classes learned,"
                f" got {unknown!r}"
            )
        probabilities.append(model.predict_proba(table.inputs(part)))
        truth += [column_of[label] for label in part.labels]
    proba, columns = np.concatenate(probabilities), np.array(truth)
    hit = proba.argmax(axis=1) == columns
    by_class = {classes[c]: float(hit[columns == c].mean()) for c in np.unique(columns)}
    found = {
        "rows": len(columns),
        "accuracy": float(hit.mean()),
        "balanced_accuracy": float(np.mean(list(by_class.values()))),
        "expected_calibration_error": expected_calibration_error(proba, columns, num_bins=BINS),
        "accuracy_by_class": by_class,
    }
    _tell(found)
    return 0


def export(arguments: argparse.Namespace) -> int:
    """Write a file that predicts where only JAX and NumPy are installed."""
    from rvfl_jax.serving import export_model

    model, table, _ = _opened(arguments.model)
    if arguments.out.exists() and not arguments.force:
        raise ValueError(f"{arguments.out}: expected no file there yet; --force replaces it")
    export_model(
        model,
        arguments.out,
        batch_size=arguments.batch_size,
        mean=table.mean,
        scale=table.scale,
        columns=table.columns,
    )
    size = f"{len(table.columns)} columns to {len(model.classes_)} classes"
    print(f"Wrote {arguments.out}: {size}.", file=sys.stderr)
    return 0


def inspect(arguments: argparse.Namespace) -> int:
    """Print what a model is and what it has learned."""
    model, table, strengths = _opened(arguments.model)
    counts = zip(model.classes_, model.class_count_, strict=True)
    found = {
        "parameters": {name: repr(value) for name, value in model.get_params().items()},
        "label": table.label,
        "columns": table.columns,
        "rows": model.num_rows_seen_,
        "rows_of_class": {str(label): float(count) for label, count in counts},
        "condition_at_most": _condition(model),
        "forward_strengths": strengths if isinstance(model.k, AdaptiveK) else strengths[-1:],
        "inverse_temperature": model.inverse_temperature_,
    }
    _tell(found)
    return 0


def _tell(found: dict[str, Any]) -> None:
    """A JSON object with a line for each of its members."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in found.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


def _condition(model: EdRVFLClassifier) -> list[float]:
    """tr(A) / lambda of each sub-learner, an upper bound of the condition of A."""
    trace = np.asarray(model._settled().state.ledger.trace)
    return (trace / np.broadcast_to(np.asarray(model.ridge, float), trace.shape)).tolist()


def _table_of(part: Part, label: str, scale: str) -> Table:
    width = len(part.columns)
    mean, deviation = np.zeros(width), np.ones(width)
    if scale == "first":
        mean, deviation = part.X.mean(axis=0), part.X.std(axis=0)
        # A feature that stood still at first may move later.
        deviation = np.where(deviation > 1e-12 * np.maximum(np.abs(mean), 1), deviation, 1.0)
    return Table(label, list(part.columns), mean.tolist(), deviation.tolist())


def _strength(arguments: argparse.Namespace) -> float | AdaptiveK:
    """--k as the estimator takes it."""
    if arguments.k == "bayes":
        return adaptive_k(arguments.kappa, arguments.sigma)
    try:
        return float(arguments.k)
    except ValueError:
        raise ValueError(f"--k: expected a number or bayes, got {arguments.k!r}") from None


def _parts(
    arguments: argparse.Namespace, table: Table, done: str, *, needs_label: bool
) -> Iterator[Part]:
    parts = read_parts(
        arguments.data,
        rows=positive_int("--batch-rows", arguments.batch_rows),
        label=table.label,
        columns=table.columns,
        needs_label=needs_label,
    )
    return _counted(parts, done)


def _counted(parts: Iterator[Part], done: str) -> Iterator[Part]:
    """The parts, with the rows so far on standard error where somebody is watching."""
    if not sys.stderr.isatty():
        yield from parts
        return
    rows = 0
    try:
        for part in parts:
            yield part
            rows += len(part.X)
            print(f"\r{rows:,} rows {done}", end="", file=sys.stderr, flush=True)
    finally:
        print("\r\033[K", end="", file=sys.stderr, flush=True)


def _opened(folder: Path) -> Kept:
    model, notes = load_model(folder), notes_of(folder)
    if "table" not in notes:
        raise ValueError(f"{folder}: expected a model that `rvfl-jax fit` made, got another")
    return Kept(model, Table(**notes["table"]), notes.get("strengths", []))


def _csv_lines(
    out: io.StringIO, classes: list[str], proba: np.ndarray, everything: bool, header: bool
) -> None:
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(["label", "probability", *(classes if everything else [])])
    for row in proba:
        best = int(row.argmax())
        rest = [f"{p:.6g}" for p in row] if everything else []
        writer.writerow([classes[best], f"{row[best]:.6g}", *rest])


def _json_lines(
    out: io.StringIO, classes: list[str], proba: np.ndarray, everything: bool, header: bool
) -> None:
    del header
    for row in proba:
        best = int(row.argmax())
        line: dict[str, Any] = {"label": classes[best], "probability": round(float(row[best]), 6)}
        if everything:
            line["probabilities"] = dict(zip(classes, row.round(6).tolist(), strict=True))
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
