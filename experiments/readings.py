"""Which reading of the paper gives its nine rows? `python -m experiments.readings`.

The paper leaves open what its code did with some things that decide these rows. Here each is read
in the ways that the text allows, behind the encoder refitted on each task (CRNet's public code does
so), with the paper's networks, lambda, k and the cold start of its footnote 2:

- what stands for X_{T+1}, which Algorithms 1 and 2 "assume accessible": nothing, the last batch
  again, or the first one, as where an index wraps around;
- what a batch holds where a task makes several: rows of both its classes, or one class after the
  other;
- the hidden nodes' activation, which is not told for this table;
- of -kF-Bayes, an inverse trace as eq. (29) prints it, the Moore-Penrose inverse that the text
  beside it names, or the trace that it offers instead;
- exact arithmetic, or the printed formulas as they stand, explicit inverses in double precision.

Exact arithmetic needs no more of a batch than D^T D and D^T Y, which is how it is done here; a test
holds it against the library and against the printed algorithms.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
import tyro
from scipy.linalg import cho_factor, cho_solve, eigvalsh, solve_triangular

from experiments import as_printed
from experiments import fashion_mnist as fm
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import edrvfl, encoders, features
from rvfl_jax.metrics import average_accuracy, backward_transfer, forward_transfer

BATCHES = (5, 10, 20)
# Batches are cut this fine; longer ones are several of them.
FINEST = 20
CLASSES = 10
AFTER = ("nothing", "last batch", "first batch")
CUTS = ("both classes", "class by class")
INVERSE_TRACE, MOORE_PENROSE, TRACE = "-kF-Bayes", "-kF-Bayes, Moore-Penrose", "-kF-Bayes, trace"
STYLES = ("-R", "-kF", INVERSE_TRACE, MOORE_PENROSE, TRACE)
KAPPA, SIGMA = 1.0, 1e-5
# Means and deviations as the paper prints them.
PRINTED_BY_PAPER = {
    ("-R", 5): ("0.4136 ± 0.0891", "-0.0067 ± 0.0336", "-0.6008 ± 0.1243"),
    ("-R", 10): ("0.5789 ± 0.1427", "0.0883 ± 0.1183", "-0.4645 ± 0.1639"),
    ("-R", 20): ("0.9358 ± 0.0267", "0.0895 ± 0.0838", "-0.1180 ± 0.0747"),
    ("-kF", 5): ("0.9787 ± 0.0145", "0.3206 ± 0.1144", "-0.3389 ± 0.1250"),
    ("-kF", 10): ("0.9867 ± 0.0002", "0.0064 ± 0.0036", "-0.0065 ± 0.0027"),
    ("-kF", 20): ("0.9876 ± 0.0001", "0.0077 ± 0.0110", "-0.0062 ± 0.0024"),
    ("-kF-Bayes", 5): ("0.9804 ± 0.0066", "0.3581 ± 0.0437", "-0.4130 ± 0.0475"),
    ("-kF-Bayes", 10): ("0.9879 ± 0.0008", "0.0063 ± 0.0036", "-0.0066 ± 0.0028"),
    ("-kF-Bayes", 20): ("0.9872 ± 0.0002", "0.0108 ± 0.0093", "-0.0066 ± 0.0023"),
}
# Singular values below that share of the largest count as 0, NumPy's default for `pinv`.
RCOND = 1e-15
# Activation, cut, and how many seeds at most: that of the two nodes hardly matters.
READINGS = (("relu", CUTS[0], 10), ("relu", CUTS[1], 10), ("sigmoid", CUTS[0], 3))
# (style, T, seeds) whose printed formulas are evaluated as they stand, on all rows. Batches of
# 6,000 and 12,000 rows, at T = 10 and 5, have inverses of matrices of that size, and are left out.
PRINTED = (("-R", 20, 3),)


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of task order, row order and hidden weights.
        printed: whether the printed formulas are evaluated too, which takes longest.
    """

    seeds: int = 10
    printed: bool = True


class Stream(NamedTuple):
    """A seed's stream in `FINEST` batches, and its test tasks, as features of the readout.

    Attributes:
        batches: (D, Y) each.
        tests: (D, columns) of each task, in the order of the stream.
    """

    batches: list[tuple[np.ndarray, np.ndarray]]
    tests: list[tuple[np.ndarray, np.ndarray]]


class Sums(NamedTuple):
    """What exact arithmetic needs of a batch.

    Attributes:
        gram: (d, d) D^T D.
        moment: (d, m) D^T Y.
        rows: b.
    """

    gram: np.ndarray
    moment: np.ndarray
    rows: int


@cache
def encoded_tasks() -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """(Z, y, Z_test, y_test) of each pair of classes, the encoder fitted on each of the four."""
    data = fm.fashion_mnist()
    encoder = encoders.sparse_autoencoder()
    key = jax.random.key(fm.ENCODER_SEED)

    def refitted(X: np.ndarray) -> np.ndarray:
        return encoders.encode(encoder, encoder.fit(key, X), X)

    tasks = []
    for pair in np.arange(CLASSES).reshape(fm.NUM_TASKS, -1):
        train, test = np.isin(data.y_train, pair), np.isin(data.y_test, pair)
        parts = (data.X_train[train], data.y_train[train], data.X_test[test], data.y_test[test])
        tasks.append((refitted(parts[0]), parts[1], refitted(parts[2]), parts[3]))
    return tasks


def stream_of(seed: int, activation: str, cut: str) -> Stream:
    """A seed's order of tasks, classes and rows, through its hidden nodes, in double precision."""
    tasks, rng = encoded_tasks(), np.random.default_rng(seed)
    width = tasks[0][0].shape[1]
    learner = edrvfl(num_layers=1, num_nodes=2, ridge=1.0, k=0.0, activation=activation)
    with jax.enable_x64(True):
        W = learner.init(jax.random.key(seed), width, CLASSES).W

    def readout_inputs(Z: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            return np.asarray(features(W, Z, activation)[0])

    batches, tests = [], []
    for task in rng.permutation(len(tasks)):
        Z, y, Z_test, y_test = tasks[task]
        rows = rng.permutation(len(y))
        if cut == "class by class":
            rows = np.concatenate(
                [rows[y[rows] == label] for label in rng.permutation(np.unique(y))]
            )
        D, Y = readout_inputs(Z[rows]), np.eye(CLASSES)[y[rows]]
        parts = FINEST // len(tasks)
        batches += zip(np.array_split(D, parts), np.array_split(Y, parts), strict=True)
        tests.append((readout_inputs(Z_test), y_test))
    return Stream(batches, tests)


def sums_of(batches: Sequence[tuple[np.ndarray, np.ndarray]]) -> list[Sums]:
    """Of each batch."""
    return [Sums(D.T @ D, D.T @ Y, len(D)) for D, Y in batches]


def joined(sums: Sequence[Sums], num_batches: int) -> list[Sums]:
    """The same rows in fewer batches."""
    each = len(sums) // num_batches
    groups = [sums[start : start + each] for start in range(0, len(sums), each)]
    return [Sums(*(sum(values) for values in zip(*group, strict=True))) for group in groups]


class Learned(NamedTuple):
    """What a style made of a stream.

    Attributes:
        thetas: after every batch but the last.
        last: after the last one, by what stood for X_{T+1}.
        k_t: of every batch.
        k_next: of every batch that follows one in the stream.
    """

    thetas: list[np.ndarray]
    last: dict[str, np.ndarray]
    k_t: list[float]
    k_next: list[float]


def exact(sums: Sequence[Sums], style: str) -> Learned:
    """The printed algorithms without rounding.

    theta_{t+1} = eta_{t+1} B_{t+1}, B_{t+1} = B_t + D_t^T (Y_t + (k_t - k_added) D_t theta_t); the
    first batch's Gram is in no eta but those that it is announced to.
    """
    ridge = fm.RIDGES[paper_style(style)]
    absorbed = ridge * np.eye(len(sums[0].gram))
    precision, B = absorbed, np.zeros_like(sums[0].moment)
    learned, theta, added = Learned([], {}, [], []), B, 0.0
    for t, now in enumerate(sums):
        k_t = _strength(now, precision, style)
        if t > 0:
            absorbed = absorbed + now.gram
            B = B + (k_t - added) * (now.gram @ theta)
        B = B + now.moment
        learned.k_t.append(k_t)
        if t + 1 < len(sums):
            added = _strength(sums[t + 1], precision, style)
            precision = absorbed + added * sums[t + 1].gram
            theta = _solved(precision, B)
            learned.thetas.append(theta)
            learned.k_next.append(added)
    endings = {"nothing": None, "last batch": sums[-1], "first batch": sums[0]}
    for after, batch in endings.items():
        k = 0.0 if batch is None else _strength(batch, precision, style)
        forward = 0.0 if batch is None else k * batch.gram
        learned.last[after] = _solved(absorbed + forward, B)
    return learned


def paper_style(style: str) -> str:
    """The paper's row that a style is a reading of."""
    return "-kF-Bayes" if style.startswith("-kF-Bayes") else style


def _strength(batch: Sums, precision: np.ndarray, style: str) -> float:
    if style in ("-R", "-kF"):
        return float(fm.STRENGTHS[style])
    return strength(batch, precision, style)


def _solved(precision: np.ndarray, moment: np.ndarray) -> np.ndarray:
    return cho_solve(cho_factor(precision), moment)


def strength(batch: Sums, precision: np.ndarray, style: str) -> float:
    """Eq. (29) from sums: M = D eta D^T and eta^(1/2) D^T D eta^(1/2) differ by zero eigenvalues.

    So Tr[(M + sigma I)^-1] = Tr[(G + sigma A)^-1 A] + (b - d) / sigma with A = eta^-1, and Tr[M]
    = Tr[A^-1 G].
    """
    rows, width = batch.rows, len(precision)
    if style == TRACE:
        return float(KAPPA * np.trace(_solved(precision, batch.gram)) / rows)
    if style == MOORE_PENROSE:
        factor = np.linalg.cholesky(precision)
        half = solve_triangular(factor, batch.gram, lower=True)
        values = eigvalsh(solve_triangular(factor, half.T, lower=True))
        inverse = np.sum(1 / values[values > RCOND * rows * values.max()])
    else:
        inverse = np.trace(_solved(batch.gram + SIGMA * precision, precision))
        inverse += (rows - width) / SIGMA
    return float(KAPPA * rows / inverse)


def metrics(thetas: Sequence[np.ndarray], stream: Stream, alone: np.ndarray) -> Record:
    """ACC, BWT and FWT of theta after each task."""
    R = np.array([[_accuracy(theta, *test) for test in stream.tests] for theta in thetas])
    return {
        "ACC": average_accuracy(R),
        "BWT": backward_transfer(R),
        "FWT": forward_transfer(R, alone),
    }


def experts(sums: Sequence[Sums], stream: Stream, ridge: float) -> np.ndarray:
    """(Q,) accuracy on each task of ridge regression on that task alone."""
    tasks = joined(sums, len(stream.tests))
    eye = ridge * np.eye(len(tasks[0].gram))
    thetas = [_solved(task.gram + eye, task.moment) for task in tasks]
    return np.array(
        [_accuracy(theta, *test) for theta, test in zip(thetas, stream.tests, strict=True)]
    )


def _accuracy(theta: np.ndarray, D: np.ndarray, columns: np.ndarray) -> float:
    return float(np.mean((D @ theta).argmax(axis=1) == columns))


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for seed in range(config.seeds):
        with steps_shown(f"seed {seed + 1} of {config.seeds}", file) as once:
            for activation, cut, seeds in READINGS:
                if seed < seeds:
                    once(f"{activation} | {cut} | seed {seed}", _read, seed, activation, cut)
    with steps_shown("as printed", file) as once:
        for style, T, seeds in PRINTED if config.printed else ():
            for seed in range(seeds):
                once(f"as printed | {style} | T={T} | seed {seed}", _printed, seed, style, T)


def _read(seed: int, activation: str, cut: str) -> Record:
    """Every style at every T and ending: {T: {style: {ending: metrics}}}, and the strengths."""
    stream = stream_of(seed, activation, cut)
    finest = sums_of(stream.batches)
    alone = {style: experts(finest, stream, ridge) for style, ridge in fm.RIDGES.items()}
    record: Record = {}
    for T in BATCHES:
        if cut == "class by class" and T == fm.NUM_TASKS:
            # A batch is a task, whatever the order of its rows.
            continue
        ends = np.arange(1, fm.NUM_TASKS) * (T // fm.NUM_TASKS) - 1
        for style in STYLES:
            learned = exact(joined(finest, T), style)
            thetas = [learned.thetas[end] for end in ends]
            record[f"T={T} | {style}"] = {
                after: metrics([*thetas, last], stream, alone[paper_style(style)])
                for after, last in learned.last.items()
            } | {"k_t": learned.k_t, "k_next": learned.k_next}
    return record


def _printed(seed: int, style: str, T: int) -> Record:
    stream = stream_of(seed, "relu", CUTS[0])
    each = FINEST // T
    batches = [
        tuple(np.concatenate(parts) for parts in zip(*stream.batches[at : at + each], strict=True))
        for at in range(0, FINEST, each)
    ]
    ridge, after = fm.RIDGES[style], batches[0][0]
    found = as_printed.algorithm_1(batches, after, fm.STRENGTHS[style], ridge)
    thetas = list(found)[T // fm.NUM_TASKS - 1 :: T // fm.NUM_TASKS]
    return metrics(thetas, stream, experts(sums_of(stream.batches), stream, ridge))


def rows_of(config: Config, file: ResultsFile) -> Iterator[list[str]]:
    """The paper's row, then every reading of it, T by T and style by style."""
    names = ("ACC", "BWT", "FWT")
    for T in BATCHES:
        for style in fm.RIDGES:
            yield [f"T = {T}, {style}", "the paper", *PRINTED_BY_PAPER[style, T], "10"]
            for reading, found in _found(config, file, style, T):
                cells = [mean_and_deviation([record[name] for record in found]) for name in names]
                yield [f"T = {T}, {style}", reading, *cells, str(len(found))]


def _found(
    config: Config, file: ResultsFile, style: str, T: int
) -> Iterator[tuple[str, list[Record]]]:
    variants = [name for name in STYLES if paper_style(name) == style]
    for activation, cut, seeds in READINGS:
        places = [f"{activation} | {cut} | seed {s}" for s in range(min(seeds, config.seeds))]
        records = [file.records[place] for place in places]
        for variant in variants if f"T={T} | {style}" in records[0] else ():
            # -R puts nothing on an announced batch, so that its rows are one.
            for after in AFTER if style != "-R" else AFTER[:1]:
                told = [activation, cut] if T > fm.NUM_TASKS else [activation]
                told += [f"then {after}"] if style != "-R" else []
                told += variant.split(", ")[1:]
                yield ", ".join(told), [record[f"T={T} | {variant}"][after] for record in records]
    for name, length, seeds in PRINTED if config.printed else ():
        if (name, length) == (style, T):
            reading = "relu, both classes, then first batch, formulas as printed"
            places = [f"as printed | {style} | T={T} | seed {seed}" for seed in range(seeds)]
            yield reading, [file.records[place] for place in places]


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """Nine rows of the paper, each above its readings."""
    headings = ("row", "reading", "ACC", "BWT", "FWT", "seeds")
    write_table(folder, headings, rows_of(config, file))


def draw(config: Config, file: ResultsFile, path: Path) -> None:
    """ACC, BWT and FWT of the paper and of each reading, a column a T, styles side by side."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    shown = {
        "nothing follows": ("relu", CUTS[0], "nothing", COLOURS[1], "s"),
        "the first batch follows": ("relu", CUTS[0], "first batch", COLOURS[0], "o"),
        "the same, one class a batch": ("relu", CUTS[1], "first batch", COLOURS[2], "^"),
    }
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(3, len(BATCHES), sharey="row", squeeze=False)
    for column, T in zip(panels.T, BATCHES, strict=True):
        column[0].set_title(f"T = {T}")
        for at, style in enumerate(STYLES):
            published = [cell.split(" ± ") for cell in PRINTED_BY_PAPER[paper_style(style), T]]
            for panel, name, (mean, deviation) in zip(
                column, ("ACC", "BWT", "FWT"), published, strict=True
            ):
                marks = [("paper", float(mean), float(deviation), "black", "*")]
                for label, (activation, cut, after, colour, marker) in shown.items():
                    places = [f"{activation} | {cut} | seed {seed}" for seed in range(config.seeds)]
                    found = [file.records[place].get(f"T={T} | {style}") for place in places]
                    if found[0] is not None:
                        values = [record[after][name] for record in found]
                        spread = np.std(values, ddof=min(1, len(values) - 1))
                        marks.append((label, np.mean(values), spread, colour, marker))
                for place, (label, centre, spread, colour, marker) in enumerate(marks):
                    panel.errorbar(
                        at + 0.2 * (place - 1.5),
                        centre,
                        spread,
                        fmt=marker,
                        color=colour,
                        ms=9 if marker == "*" else 6,
                        capsize=3,
                        label=label,
                    )
    for row, name in zip(panels, ("ACC", "BWT", "FWT"), strict=True):
        row[0].set_ylabel(name)
        for panel in row:
            panel.set_xticks(range(len(STYLES)), [name.replace(", ", ",\n") for name in STYLES])
            panel.tick_params(axis="x", labelsize="x-small")
            panel.grid(axis="y", color="0.92")
            panel.axhline(0, color="0.8", lw=0.8, zorder=0)
            panel.spines[["top", "right"]].set_visible(False)
    entries = dict(zip(*reversed(panels[0, 1].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=4)
    figure.suptitle(
        "Fashion-MNIST-10/5, encoder refitted per task, paper's cold start, exact arithmetic:"
        f" what follows the last batch; {config.seeds} seeds"
    )
    figure.savefig(path, dpi=130)


def main(config: Config, out: Path = RESULTS / "readings") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and rows.png.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw(config, file, out / "rows.png")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
