"""`rvfl-jax fit`, `partial-fit`, `unlearn`, `undo`, `predict`, `evaluate` and `inspect`.

A model is a folder. Labels are text as it stands in the table. Nothing is written before all
input has been read and found good, but for predictions on rows of standard input, which come out as
these come in.
"""

import argparse
import io
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

from rvfl_jax.cli.kept_model import Fingerprint, KeptModel, Table, opened
from rvfl_jax.cli.model_folder import BEFORE, bring_back, folder_of, one_writer
from rvfl_jax.cli.predictions import PREDICTED, WRITERS
from rvfl_jax.core.checks import positive_int
from rvfl_jax.data.column_parts import Roles, Wanted, begun_columns, column_parts, has_lists
from rvfl_jax.data.columns import Columns, Source
from rvfl_jax.data.tables import STANDARD_INPUT, FieldError, Part, read_parts
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.fitted import fitted_of
from rvfl_jax.estimators.novelty import check_false_alarms, fewest_classes
from rvfl_jax.estimators.save import FILE
from rvfl_jax.files.checkpoint import load_checkpoint_file
from rvfl_jax.files.results_folder import check_folder
from rvfl_jax.learners.edrvfl.strength import AdaptiveK, adaptive_k
from rvfl_jax.metrics import area_under_curve, expected_calibration_error

BINS = 15
COLUMN_OPTIONS = "--text, --categorical, --ignore, --id, --time and --impute"


def fit(arguments: argparse.Namespace) -> int:
    """Begin a model and learn a table."""
    rows, wait = positive_int("--batch-rows", arguments.batch_rows), _wait(arguments)
    check_folder("--out", arguments.out)
    _check_free(arguments.out, arguments.force)
    model = EdRVFLClassifier(
        arguments.num_layers,
        arguments.num_nodes,
        arguments.ridge,
        _strength(arguments),
        activation=arguments.activation,
        feature_map=arguments.feature_map,
        scale=arguments.scale,
        class_balance=arguments.class_balance,
        novelty_score=None if arguments.novelty_score == "none" else arguments.novelty_score,
        random_state=arguments.seed,
    )
    kept = None
    fingerprint = Fingerprint()
    how, parts = _first_parts(arguments, rows)
    if how is not None:
        model._left_unscaled = how.are_counts
    for part in _counted(_with_a_hint(parts), "learned"):
        if kept is None:
            kept = KeptModel(model, Table(arguments.label, [*part.columns], how), [], {})
        kept.learn(part)
        fingerprint.add(part)
    assert kept is not None
    kept.note(arguments.data, fingerprint.hex(), 1, False)
    with one_writer(arguments.out, wait):
        # Another process may have been quicker.
        _check_free(arguments.out, arguments.force)
        kept.save(arguments.out)
    return 0


def partial_fit(arguments: argparse.Namespace) -> int:
    """Go on learning; the model in the folder is replaced when all went well."""
    wait, folder = _wait(arguments), _model_folder(arguments)
    out = arguments.out or folder
    other = out.resolve() != folder.resolve()
    check_folder("--out", out)
    if other:
        _check_free(out, arguments.force)
    with _writing(folder, wait, not other):
        kept = opened(folder, arguments.label)
        before = kept.known()
        fingerprint = Fingerprint()
        for part in _parts(arguments, kept.table, "learned", needs_label=True):
            kept.learn(part)
            fingerprint.add(part)
        kept.note(arguments.data, fingerprint.hex(), 1, arguments.again)
        with _writing(out, wait, other):
            if other:
                _check_free(out, arguments.force)
            kept.save(out)
    new = [label for label in kept.known() if label not in before]
    if new:
        print(f"New classes: {', '.join(new)}.", file=sys.stderr)
    return 0


def unlearn(arguments: argparse.Namespace) -> int:
    """Take the rows of a table out again; the model is replaced when all went well."""
    folder = _model_folder(arguments)
    with one_writer(folder, _wait(arguments)):
        kept = opened(folder, arguments.label)
        fingerprint = Fingerprint()
        for part in _parts(arguments, kept.table, "unlearned", needs_label=True):
            kept.unlearn(part)
            fingerprint.add(part)
        kept.note(arguments.data, fingerprint.hex(), -1, arguments.again)
        kept.save(folder)
    return 0


def undo(arguments: argparse.Namespace) -> int:
    """Bring back the model before the last change."""
    folder = _model_folder(arguments)
    with one_writer(folder, _wait(arguments)):
        if (folder / BEFORE).is_file():
            # A damaged file must not take the place of a whole one.
            load_checkpoint_file(folder / BEFORE)
        bring_back(folder)
        kept = opened(folder)
    seen, classes = kept.model.num_rows_seen_, len(kept.model.classes_)
    print(f"Brought back {folder}: {seen} rows, {classes} classes.", file=sys.stderr)
    return 0


def predict(arguments: argparse.Namespace) -> int:
    """Print one prediction a row, as CSV or JSON lines."""
    kept = opened(_model_folder(arguments), arguments.label)
    kept = kept._replace(table=_with_id(kept.table, arguments.id))
    id_name = None if kept.table.how is None else kept.table.how.id
    at_once = arguments.data == STANDARD_INPUT
    # What comes from a file is printed when all of it has been found good.
    out = sys.stdout if at_once else io.StringIO()
    classes = [str(label) for label in kept.model.classes_]
    threshold = None if arguments.unknown is None else _threshold(kept, arguments, classes)
    header = True
    for part in _parts(arguments, kept.table, "predicted", needs_label=False, promptly=at_once):
        proba = kept.proba(part.X)
        ids = None if id_name is None else (id_name, part.ids or [])
        unknown = None
        if threshold is not None:
            unknown = (arguments.unknown, kept.novelty(part.X) > threshold)
        options = {"everything": arguments.probabilities, "header": header}
        WRITERS[arguments.format](out, classes, proba, **options, ids=ids, unknown=unknown)
        out.flush()
        header = False
    if isinstance(out, io.StringIO):
        sys.stdout.write(out.getvalue())
    return 0


def _threshold(kept: KeptModel, arguments: argparse.Namespace, classes: list[str]) -> float:
    """The novelty from which on a row gets the label of --unknown."""
    if arguments.unknown in classes:
        raise ValueError(f"--unknown: expected no class, got {arguments.unknown!r}")
    if kept.model.novelty_score is None:
        raise ValueError(
            "--unknown: expected a model that was made with --novelty-score, which notes while it"
            " learns how unlike the rest its rows are; fit it anew"
        )
    return kept.model.novelty_threshold(arguments.false_alarms)


def evaluate(arguments: argparse.Namespace) -> int:
    """Print accuracy and calibration on a labelled table that the model has not seen.

    Rows of classes not yet learned are counted by themselves, and told apart by their novelty.
    """
    kept = opened(_model_folder(arguments), arguments.label)
    classes = [str(label) for label in kept.model.classes_]
    place = {label: c for c, label in enumerate(kept.model.classes_.tolist())}
    column_of = {text: place[label] for text, label in kept.known().items()}
    check_false_alarms(arguments.false_alarms)
    probabilities, truth, novelties, learned = [], [], [], []
    measures = len(classes) >= fewest_classes(kept.model.novelty_score or "blended")
    unknown: Counter[str] = Counter()
    for part in _parts(arguments, kept.table, "evaluated", needs_label=True):
        assert part.labels is not None
        known = [i for i, label in enumerate(part.labels) if label in column_of]
        unknown.update(label for label in part.labels if label not in column_of)
        if known:
            probabilities.append(kept.proba(part.X[known]))
            truth += [column_of[part.labels[i]] for i in known]
        if measures:
            novelties.append(kept.novelty(part.X))
            learned += [label in column_of for label in part.labels]
    found: dict[str, Any] = {"rows": len(truth) + unknown.total()}
    found["rows_of_known_classes"] = len(truth)
    found |= _scores(classes, probabilities, truth) | {"rows_of_unknown_classes": unknown}
    if measures:
        told = _told_apart(kept.model, np.concatenate(novelties), np.array(learned), arguments)
        found["novelty"] = told
    _tell(found)
    return 0


def _told_apart(
    model: EdRVFLClassifier, novelty: np.ndarray, known: np.ndarray, arguments: argparse.Namespace
) -> dict[str, Any]:
    """How well novelty tells rows of learned classes from others; None where nothing can tell."""
    score, threshold = model.novelty_score, np.inf
    if score is not None and fitted_of(model).tally is not None:
        threshold = model.novelty_threshold(arguments.false_alarms)
    above, there = novelty > threshold, bool(np.isfinite(threshold))

    def share(rows: np.ndarray) -> float | None:
        return float(above[rows].mean()) if there and rows.any() else None

    return {
        "score": score or "blended",
        "auroc": area_under_curve(novelty[known], novelty[~known]),
        "threshold": float(threshold) if there else None,
        "wanted_false_alarms": arguments.false_alarms,
        "false_alarms": share(known),
        "unknown_rows_found": share(~known),
    }


def _scores(
    classes: list[str], probabilities: list[np.ndarray], truth: list[int]
) -> dict[str, Any]:
    """Accuracy and calibration; None where there is no row to tell."""
    if not truth:
        names = ("accuracy", "balanced_accuracy", "expected_calibration_error")
        return dict.fromkeys(names) | {"accuracy_by_class": {}}
    proba, columns = np.concatenate(probabilities), np.array(truth)
    hit = proba.argmax(axis=1) == columns
    by_class = {classes[c]: float(hit[columns == c].mean()) for c in np.unique(columns)}
    return {
        "accuracy": float(hit.mean()),
        "balanced_accuracy": float(np.mean(list(by_class.values()))),
        "expected_calibration_error": expected_calibration_error(proba, columns, num_bins=BINS),
        "accuracy_by_class": by_class,
    }


def export(arguments: argparse.Namespace) -> int:
    """Write a file that predicts without this package: with JAX and NumPy, or an ONNX runtime."""
    from rvfl_jax.serving.export import export_model

    model, table, *_ = opened(_model_folder(arguments))
    check_folder("--out", arguments.out.parent)
    if arguments.out.is_dir():
        raise ValueError(f"--out: expected a file, got the folder {arguments.out}")
    if arguments.out.exists() and not arguments.force:
        raise ValueError(f"{arguments.out}: expected no file there yet; --force replaces it")
    notes = None if table.how is None else {"how": table.how.described()}
    options: dict[str, Any] = {"batch_size": arguments.batch_size, "columns": table.columns}
    export_model(model, arguments.out, notes=notes, format=arguments.format, **options)
    size = f"{len(table.columns)} columns to {len(model.classes_)} classes"
    print(f"Wrote {arguments.out}: {size}.", file=sys.stderr)
    return 0


def inspect(arguments: argparse.Namespace) -> int:
    """Print what a model is and what it has learned."""
    model, table, strengths, tables = opened(_model_folder(arguments))
    counts = zip(model.classes_, model.class_count_, strict=True)
    found = {
        "parameters": {name: repr(value) for name, value in model.get_params().items()},
        "label": table.label,
        "columns": table.columns if table.how is None else _told(table.how),
        "rows": model.num_rows_seen_,
        "tables": sum(times for times in tables.values() if times > 0),
        "rows_of_class": {str(label): float(count) for label, count in counts},
        "lambda": model.ridge_.tolist(),
        "condition_at_most": _condition(model),
        "forward_strengths": strengths if isinstance(model.k, AdaptiveK) else strengths[-1:],
        "inverse_temperature": model.inverse_temperature_,
    }
    _tell(found)
    return 0


def _told(how: Columns) -> dict[str, Any]:
    """What each column is."""
    told = {source.name: source.told for source in how.sources}
    roles = {"id": how.id, "time": how.time, "impute": how.impute}
    return {"features": told} | {name: role for name, role in roles.items() if role is not None}


def _tell(found: dict[str, Any]) -> None:
    """A JSON object with a line for each of its members."""
    lines = [f"  {json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in found.items()]
    print("{\n" + ",\n".join(lines) + "\n}")


def _condition(model: EdRVFLClassifier) -> list[float]:
    """tr(A) / lambda of each sub-learner, an upper bound of the condition of A."""
    trace = model._settled().trace
    return (trace / model.ridge_).tolist()


def _strength(arguments: argparse.Namespace) -> float | AdaptiveK:
    """--k as the estimator takes it."""
    if arguments.k == "bayes":
        return adaptive_k(arguments.kappa, arguments.sigma)
    try:
        return float(arguments.k)
    except ValueError:
        raise ValueError(f"--k: expected a number or bayes, got {arguments.k!r}") from None


def _wait(arguments: argparse.Namespace) -> float:
    """--wait in seconds."""
    if not (math.isfinite(arguments.wait) and arguments.wait >= 0):
        raise ValueError(f"--wait: expected seconds of at least 0, got {arguments.wait!r}")
    return float(arguments.wait)


def _model_folder(arguments: argparse.Namespace) -> Path:
    folder = folder_of(arguments.model)
    if not (folder / FILE).is_file():
        raise ValueError(f"{folder}: expected a model that `rvfl-jax fit` made, found none")
    return folder


def _check_free(folder: Path, force: bool) -> None:
    if (folder / FILE).exists() and not force:
        raise ValueError(f"{folder}: expected no model there yet; --force replaces it")


def _writing(folder: Path, wait: float, here: bool) -> AbstractContextManager[None]:
    return one_writer(folder, wait) if here else nullcontext()


def _parts(
    arguments: argparse.Namespace,
    table: Table,
    done: str,
    *,
    needs_label: bool,
    promptly: bool = False,
) -> Iterator[Part]:
    rows = positive_int("--batch-rows", arguments.batch_rows)
    if table.how is not None:
        # What is learned is learned in order; what is predicted keeps the order of the table.
        wanted = Wanted(table.label, needs_label, done == "learned", done == "predicted")
        found = column_parts(arguments.data, table.how, wanted, rows=rows, promptly=promptly)
        return _counted(found, done)
    parts = read_parts(
        arguments.data,
        rows=rows,
        label=table.label,
        columns=table.columns,
        needs_label=needs_label,
        promptly=promptly,
    )
    return _counted(parts, done)


def _first_parts(arguments: argparse.Namespace, rows: int) -> tuple[Columns | None, Iterator[Part]]:
    """How the table of `fit` is read, None where every column is a number, and its parts."""
    roles = Roles(
        arguments.features,
        arguments.ignore or (),
        arguments.categorical or (),
        arguments.text or (),
        arguments.id,
        arguments.time,
        arguments.impute,
        positive_int("--text-width", arguments.text_width),
    )
    _check_id(roles.id)
    plain = roles == Roles(text_width=roles.text_width)
    if plain and not has_lists(arguments.data):
        return None, read_parts(arguments.data, rows=rows, label=arguments.label, needs_label=True)
    return begun_columns(arguments.data, roles, rows=rows, label=arguments.label)


def _with_a_hint(parts: Iterator[Part]) -> Iterator[Part]:
    """The parts; what refuses a field says what else a column may be."""
    try:
        yield from parts
    except FieldError as error:
        raise ValueError(f"{error}; {COLUMN_OPTIONS} say what else a column is") from None


def _with_id(table: Table, name: str | None) -> Table:
    """Read with another column that names rows."""
    _check_id(name)
    if name is None:
        return table
    how = table.how or Columns(tuple(Source(column) for column in table.columns))
    if name in (table.label, *(source.name for source in how.sources)):
        raise ValueError(f"--id: expected a column that is not learned, got {name!r}")
    return table._replace(how=how._replace(id=name))


def _check_id(name: str | None) -> None:
    if name in PREDICTED:
        raise ValueError(f"--id: expected a column by another name than predictions, got {name!r}")


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
