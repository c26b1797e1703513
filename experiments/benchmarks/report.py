"""One table and one picture out of the raw results."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.figure import Figure

COLUMNS = (
    "case",
    "contender",
    "precision",
    "ms a step",
    "min .. max",
    "literal / this",
    "this / products",
    "compile [s]",
    "remark",
)
STYLES = {
    "ours_covariance": ("#0072B2", "o", "-"),
    "ours_information": ("#56B4E9", "o", "--"),
    "ours_square_root": ("#0072B2", "x", "--"),
    "literal_jax": ("#D55E00", "s", "-"),
    "literal_numpy": ("#E69F00", "v", "--"),
    "literal_numpy_one_thread": ("#CC79A7", "^", "--"),
    "torch_gram": ("#009E73", "D", "--"),
    "gemm_jax": ("black", ".", ":"),
}
LABELS = {
    "ours_covariance": "rvfl_jax, covariance form",
    "ours_information": "rvfl_jax, information form",
    "ours_square_root": "rvfl_jax, square-root form",
    "literal_jax": "literal algorithm, JAX",
    "literal_numpy": "literal algorithm, NumPy",
    "literal_numpy_one_thread": "literal algorithm, NumPy, 1 thread",
    "torch_gram": "Gram and solve, PyTorch",
    "gemm_jax": "two matrix products only",
}
AXES = {
    "d": "readout inputs d",
    "b": "rows of a batch b",
    "L": "sub-learners L",
    "T": "batches T",
}


def write_report(folder: Path) -> str:
    """Write `table.md`, and `cost.png` if there are sweeps; returns the table."""
    found = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    # `one_program` and `out_of_core` keep theirs in the same folder, without contenders.
    records = [record for record in found if "contenders" in record]
    table = markdown_table(records)
    (folder / "table.md").write_text(table)
    if any(record["case"].startswith("sweep_") for record in records):
        cost_figure(records).savefig(folder / "cost.png", dpi=150)
    return table


def markdown_table(records: list[dict[str, Any]]) -> str:
    """All cases but the sweeps, a line for each contender."""
    lines = [_line(COLUMNS), _line(["---"] * len(COLUMNS))]
    for record in records:
        if not record["case"].startswith("sweep_"):
            lines += [_line(row) for row in _rows(record)]
    notes = "\n".join(
        f"- {record['case']}: {name} left out ({reason})"
        for record in records
        for name, reason in record["skipped"].items()
        if not record["case"].startswith("sweep_")
    )
    return "\n".join(lines) + "\n" + (f"\n{notes}\n" if notes else "")


def _line(cells: Any) -> str:
    return f"| {' | '.join(cells)} |"


def _rows(record: dict[str, Any]) -> Iterator[list[str]]:
    contenders = record["contenders"]
    per_step = {name: _milliseconds(c) for name, c in contenders.items() if "seconds" in c}
    medians = {name: median(values) for name, values in per_step.items()}
    literal = medians.get("literal_jax")
    for name, contender in contenders.items():
        values, middle = per_step.get(name), medians.get(name)
        # gfdl is float64 always; products of another precision are no limit of it.
        same = contender.get("precision") == record["settings"].get("precision")
        products = medians.get("gemm_jax") if same else None
        yield [
            record["case"],
            name,
            contender.get("precision", "double"),
            "" if middle is None else f"{middle:.3g}",
            "" if values is None else f"{min(values):.3g} .. {max(values):.3g}",
            _ratio(literal, middle),
            _ratio(middle, products),
            _compile(contender),
            _remark(record, name, contender, medians),
        ]


def _milliseconds(contender: dict[str, Any]) -> list[float]:
    return [1e3 * seconds / contender["steps"] for seconds in contender["seconds"]]


def _ratio(above: float | None, below: float | None) -> str:
    return "" if above is None or below is None else f"{above / below:.2f}"


def _compile(contender: dict[str, Any]) -> str:
    repeats = contender.get("compile_repeats")
    seconds = median(repeats) if repeats else contender.get("compile_seconds")
    return "" if seconds is None else f"{seconds:.2f}"


def _remark(
    record: dict[str, Any], name: str, contender: dict[str, Any], medians: dict[str, float]
) -> str:
    remarks = []
    if "relative_difference" in contender:
        remarks.append(f"off the closed form by {contender['relative_difference']:.1e}")
    if name == "evaluate_batch":
        remarks.append(f"{medians[name] / medians['evaluate_never']:.2f} times evaluate_never")
    if "rows" in contender:
        rate = 1e3 * contender["rows"] / contender["steps"] / medians[name]
        remarks.append(f"{rate:,.0f} samples/s on {contender['rows']} rows")
        if name != "torch_gram" and "torch_gram" in medians:
            remarks.append(f"{medians['torch_gram'] / medians[name]:.2f} times torch_gram's rate")
    if "relative_drift" in contender:
        remarks.append(
            f"off the offline solution by {contender['relative_drift']:.1e},"
            f" {contender['peak_memory_mb']:.0f} MB beside a file of {contender['file_mb']:.0f}"
        )
    if "points_off_offline" in contender:
        remarks.append(f"{contender['points_off_offline']:.2f} points off")
        first = contender["first_unhealthy_batch"]
        remarks.append("healthy" if first is None else f"flagged at batch {first}")
    if contender.get("accuracy") is not None:
        remarks.append(f"accuracy {contender['accuracy']:.4f}")
    if contender.get("finite") is False:
        remarks.append("NOT FINITE")
    if name in record["settings"].get("steps", {}):
        remarks.append(f"{contender['steps']} steps")
    return ", ".join(remarks)


def cost_figure(records: list[dict[str, Any]]) -> Figure:
    """Milliseconds a step against each size; points are medians, bars reach min and max."""
    figure = Figure(figsize=(10, 7.5), layout="constrained")
    panels = figure.subplots(2, 2, sharey=True)
    for panel, (axis, label) in zip(panels.flat, AXES.items(), strict=True):
        swept = sorted(
            (r for r in records if r["settings"].get("axis") == axis),
            key=lambda record: record["settings"]["value"],
        )
        for name in STYLES:
            _draw(panel, swept, name)
        panel.set(xscale="log", yscale="log", xlabel=label)
        ticks = [record["settings"]["value"] for record in swept]
        panel.set_xticks(ticks, labels=[str(tick) for tick in ticks])
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    for row in panels:
        row[0].set_ylabel("ms a step")
    found = [panel.get_legend_handles_labels() for panel in panels.flat]
    lines = {label: line for pair in found for line, label in zip(*pair, strict=True)}
    figure.legend(lines.values(), lines.keys(), loc="outside upper center", ncols=3, frameon=False)
    return figure


def _draw(panel: Any, swept: list[dict[str, Any]], name: str) -> None:
    points = [
        (record["settings"]["value"], _milliseconds(record["contenders"][name]))
        for record in swept
        if name in record["contenders"]
    ]
    if not points:
        return
    colour, marker, dashes = STYLES[name]
    sizes, values = zip(*points, strict=True)
    middle = [median(v) for v in values]
    below = [m - min(v) for m, v in zip(middle, values, strict=True)]
    above = [max(v) - m for m, v in zip(middle, values, strict=True)]
    panel.errorbar(
        sizes,
        middle,
        (below, above),
        color=colour,
        marker=marker,
        ls=dashes,
        capsize=2,
        label=LABELS[name],
    )
