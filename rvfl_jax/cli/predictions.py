"""Predictions as text: CSV or JSON lines."""

import csv
import json
from collections.abc import Sequence
from typing import IO, Any

import numpy as np


def write_csv(
    out: IO[str], classes: Sequence[str], proba: np.ndarray, *, everything: bool, header: bool
) -> None:
    """A row a prediction: label, probability, and those of every class if asked for."""
    writer = csv.writer(out, lineterminator="\n")
    if header:
        writer.writerow(["label", "probability", *(classes if everything else [])])
    for row in proba:
        best = int(row.argmax())
        rest = [f"{p:.6g}" for p in row] if everything else []
        writer.writerow([classes[best], f"{row[best]:.6g}", *rest])


def write_json_lines(
    out: IO[str], classes: Sequence[str], proba: np.ndarray, *, everything: bool, header: bool
) -> None:
    """An object a prediction."""
    del header
    for row in proba:
        best = int(row.argmax())
        line: dict[str, Any] = {"label": classes[best], "probability": round(float(row[best]), 6)}
        if everything:
            line["probabilities"] = dict(zip(classes, row.round(6).tolist(), strict=True))
        out.write(json.dumps(line, ensure_ascii=False) + "\n")


WRITERS = {"csv": write_csv, "jsonl": write_json_lines}
