"""Predictions as text: CSV or JSON lines."""

import csv
import json
from collections.abc import Sequence
from typing import IO, Any

import numpy as np

# The name of a column that names rows, and what is in it for each of them.
Ids = tuple[str, Sequence[str]] | None
# The label of rows that are unlike all classes, and which rows are.
Unknown = tuple[str, np.ndarray] | None

PREDICTED = ("label", "probability", "probabilities")


def write_csv(
    out: IO[str],
    classes: Sequence[str],
    proba: np.ndarray,
    *,
    everything: bool,
    header: bool,
    ids: Ids = None,
    unknown: Unknown = None,
) -> None:
    """A row a prediction: its name, label, probability, and those of every class if asked for.

    The probability is that of the best class also where the label is "unknown".
    """
    writer = csv.writer(out, lineterminator="\n")
    if header:
        first = [] if ids is None else [ids[0]]
        writer.writerow([*first, "label", "probability", *(classes if everything else [])])
    for i, row in enumerate(proba):
        best = int(row.argmax())
        first = [] if ids is None else [ids[1][i]]
        rest = [f"{p:.6g}" for p in row] if everything else []
        label = _label(classes[best], i, unknown)
        writer.writerow([*first, label, f"{row[best]:.6g}", *rest])


def write_json_lines(
    out: IO[str],
    classes: Sequence[str],
    proba: np.ndarray,
    *,
    everything: bool,
    header: bool,
    ids: Ids = None,
    unknown: Unknown = None,
) -> None:
    """An object a prediction."""
    del header
    for i, row in enumerate(proba):
        best = int(row.argmax())
        line: dict[str, Any] = {} if ids is None else {ids[0]: ids[1][i]}
        label = _label(classes[best], i, unknown)
        line |= {"label": label, "probability": round(float(row[best]), 6)}
        if everything:
            line["probabilities"] = dict(zip(classes, row.round(6).tolist(), strict=True))
        out.write(json.dumps(line, ensure_ascii=False) + "\n")


def _label(best: str, row: int, unknown: Unknown) -> str:
    return best if unknown is None or not unknown[1][row] else unknown[0]


WRITERS = {"csv": write_csv, "jsonl": write_json_lines}
