"""The paper's table on Fashion-MNIST-10/5: `python -m experiments.fashion_mnist_table`.

Five tasks of two classes, every style at T = 5, 10 and 20 batches, behind the sparse
autoencoder refitted on each task, test rows included (as published), and frozen (honest), with
the cold start of the paper's footnote 2 and the exact one.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import fashion_mnist as fm
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, Once, steps_shown
from rvfl_jax import (
    Learner,
    by_task,
    edrvfl,
    fine_tuned_edrvfl,
    non_incremental_edrvfl,
    offline_scores,
)
from rvfl_jax import run_stream as run_on
from rvfl_jax.encoders import LeakError, leak_guard, sparse_autoencoder
from rvfl_jax.metrics import PROTOCOLS, protocol_hits
from rvfl_jax.runs.comparison import run_metrics, separate_accuracy

# How the encoder is fitted: (protocol, fit_on).
ENCODERS = {
    "refit per task": ("refit_per_task", "training_inputs"),
    "frozen, training inputs": ("frozen", "training_inputs"),
    "frozen, first batch": ("frozen", "first_batch"),
}
COLD_STARTS = ("exact", "paper")
# The paper's cold start is tried behind the two encoders whose expert is one for all T.
COLD_STARTS_OF = dict.fromkeys(ENCODERS, COLD_STARTS) | {"frozen, first batch": ("exact",)}
REFERENCES = ("offline", "separate", "fine-tuned", "non-incremental")
# ACC, BWT and FWT as the paper prints them.
PAPER = {
    ("-R", 5): (0.4136, -0.0067, -0.6008),
    ("-R", 10): (0.5789, 0.0883, -0.4645),
    ("-R", 20): (0.9358, 0.0895, -0.1180),
    ("-kF", 5): (0.9787, 0.3206, -0.3389),
    ("-kF", 10): (0.9867, 0.0064, -0.0065),
    ("-kF", 20): (0.9876, 0.0077, -0.0062),
    ("-kF-Bayes", 5): (0.9804, 0.3581, -0.4130),
    ("-kF-Bayes", 10): (0.9879, 0.0063, -0.0066),
    ("-kF-Bayes", 20): (0.9872, 0.0108, -0.0066),
    ("offline", 5): (0.9876,),
    ("separate", 5): (0.9899,),
    ("fine-tuned", 5): (0.2655,),
    ("non-incremental", 5): (0.1974,),
}
GUARDED_ROWS = 2000
# Seeds whose strengths are drawn, as many as the paper draws.
PATHS = 6
PUBLISHED = "refit per task"
# Of the encoder's random weights: the one that all else has, and those after it.
ENCODER_DRAWS = range(fm.ENCODER_SEED, fm.ENCODER_SEED + 5)


@dataclass(frozen=True)
class Config:
    """Protocol of the table.

    Attributes:
        seeds: of task order, row order and random features.
        batches: T of the streams.
        encoders: of `ENCODERS`.
        rows: training rows, the same number of each class; all when None.
    """

    seeds: int = 10
    batches: tuple[int, ...] = (5, 10, 20)
    encoders: tuple[str, ...] = tuple(ENCODERS)
    rows: int | None = None


QUICK = Config(seeds=1, batches=(5,), encoders=tuple(ENCODERS)[:2], rows=10_000)


@cache
def _ridge_at(style: str) -> Learner:
    """-R at another style's lambda."""
    return edrvfl(num_layers=1, num_nodes=2, ridge=fm.RIDGES[style], k=0.0)


@cache
def _learner(style: str, cold_start: str) -> Learner:
    """Made once: every learner object is a program of its own."""
    options: dict[str, Any] = {"num_layers": 1, "num_nodes": 2, "ridge": fm.RIDGES["-R"]}
    if style == "fine-tuned":
        return fine_tuned_edrvfl(**options)
    if style == "non-incremental":
        return non_incremental_edrvfl(**options)
    return fm.paper_learner(style, cold_start)


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    parts = [(seed, name) for seed in range(config.seeds) for name in config.encoders]
    for done, (seed, name) in enumerate(parts):
        with steps_shown(f"seed {seed}, {name} ({done + 1} of {len(parts)})", file) as once:
            _measure_encoder(config, seed, name, once)


def _measure_encoder(config: Config, seed: int, name: str, once: Once) -> None:
    key = jax.random.key(seed)

    @cache
    def case(T: int) -> fm.Case:
        """Encoded when the first record asks for it; resumed runs need not."""
        # Only what is fitted on the first batch depends on how rows are cut into batches.
        again = config.batches[0] != T and ENCODERS[name][1] != "first_batch"
        return _case(config, seed, name, T, case(config.batches[0]) if again else None)

    @cache
    def apart(T: int, ridge: float) -> np.ndarray:
        """R_ind depends on features, network and lambda, not on batches or style."""
        if config.batches[0] != T and ENCODERS[name][1] != "first_batch":
            return apart(config.batches[0], ridge)
        return _separate(case(T), ridge, key)

    def run(T: int, style: str, cold_start: str) -> Record:
        return _run(case(T), _learner(style, cold_start), apart(T, fm.RIDGES[style]), key)

    first, lone = config.batches[0], fm.RIDGES["-R"]
    place = f"{name} | seed {seed}"
    once(f"{place} | offline", lambda: _offline(case(first), key))
    for style in ("fine-tuned", "non-incremental"):
        once(
            f"{place} | {style}",
            lambda style: _one_batch_a_task(case(first), style, apart(first, lone), key),
            style,
        )
    once(f"{place} | separate", lambda: {"ACC": apart(first, lone).mean()})
    if seed == 0:
        once(f"{name} | leak guard", lambda: _guarded(case(first), key))
        if name == PUBLISHED and config != QUICK:
            once(f"{name} | encoder draws", lambda: _over_draws(config, case(first), key))
        for style in ("-kF", "-kF-Bayes"):
            once(
                f"{name} | -R at lambda of {style}",
                lambda style: _run(
                    case(first), _ridge_at(style), apart(first, fm.RIDGES[style]), key
                ),
                style,
            )
    for T in config.batches:
        for cold_start in COLD_STARTS_OF[name]:
            for style in fm.RIDGES:
                once(f"{place} | T={T} | {cold_start} | {style}", run, T, style, cold_start)


def _case(
    config: Config,
    seed: int,
    name: str,
    T: int,
    same: fm.Case | None = None,
    draw: int = fm.ENCODER_SEED,
) -> fm.Case:
    protocol, fit_on = ENCODERS[name]
    raw = fm.raw_case(seed, T, config.rows)
    if same is not None:
        return fm.rebatched(same, raw)
    return fm.encoded_case(raw, sparse_autoencoder(), protocol, fit_on, draw)


def _over_draws(config: Config, first: fm.Case, key: Any) -> Record:
    """The expert behind draws of the published encoder, all else as for the first seed."""
    draws = []
    for draw in ENCODER_DRAWS:
        case = first
        if draw != fm.ENCODER_SEED:
            case = _case(config, 0, PUBLISHED, config.batches[0], draw=draw)
        scores = offline_scores(_learner("-R", "exact"), case.stream, case.Z_test, key=key)
        draws.append(_by_protocol(case, scores))
    return {"draws": draws}


def _separate(case: fm.Case, ridge: float, key: Any) -> np.ndarray:
    """(Q,) accuracy on each task of an expert trained on it alone."""
    tasks = by_task(case.stream)
    with jax.enable_x64(True):
        accuracy = separate_accuracy(
            edrvfl(num_layers=1, num_nodes=2, ridge=ridge, k=0.0),
            key,
            (tasks.X, tasks.y, tasks.weight),
            (case.Z_test, case.columns, case.stream.class_task),
        )
    return np.asarray(accuracy)


def _run(case: fm.Case, learner: Learner, R_ind: np.ndarray, key: Any) -> Record:
    history = run_on(
        learner,
        case.stream,
        key=key,
        test=(case.Z_test, case.y_test),
        evaluate="task",
        expert=None,
        on_failure="return",
    ).history
    return run_metrics(history, R_ind) | {
        "healthy": bool(history.healthy.all()),
        "k_t": history.k_t.mean(axis=1),
        "k_next": history.k_next.mean(axis=1),
        "R": history.R["class_incremental"],
        "R_seen": history.R["seen"],
    }


def _offline(case: fm.Case, key: Any) -> Record:
    """The expert on the encoder's test features, and on those of a test set not taken apart."""
    learner = _learner("-R", "exact")
    found = _by_protocol(case, offline_scores(learner, case.stream, case.Z_test, key=key))
    if case.encoded is not None and case.encoded.protocol == "refit_per_task":
        mixed = case.encoded.encode_test(fm.fashion_mnist().X_test)
        scores = offline_scores(learner, case.stream, mixed, key=key)
        found["mixed test set"] = _by_protocol(case, scores)
    return found


def _by_protocol(case: fm.Case, scores: np.ndarray) -> Record:
    class_task = case.stream.class_task
    hits = protocol_hits(
        np.float32(scores.mean(axis=0)),
        case.columns,
        class_task=class_task,
        seen=np.ones(len(class_task), bool),
    )
    return {f"accuracy_{name}": float(np.mean(hit)) for name, hit in hits.items()}


def _one_batch_a_task(case: fm.Case, style: str, R_ind: np.ndarray, key: Any) -> Record:
    one = case.stream if case.stream.num_batches == fm.NUM_TASKS else by_task(case.stream)
    case = fm.Case(one, case.Z_test, case.y_test, case.columns, case.encoded)
    return _run(case, _learner(style, "exact"), R_ind, key)


def _guarded(case: fm.Case, key: Any) -> Record:
    """Does the leak guard pass? Said in its own words where it does not."""
    assert case.encoded is not None
    learner = _learner("-R", "exact")
    state = run_on(learner, case.stream, key=key).state
    encode = case.encoded.encode_test
    try:
        leak_guard(
            lambda X: learner.predict(state, encode(X)), fm.fashion_mnist().X_test[:GUARDED_ROWS]
        )
    except LeakError as leak:
        return {"passed": False, "message": str(leak)}
    return {"passed": True}


def rows_of(config: Config, file: ResultsFile) -> Iterator[Record]:
    """One row of the table each: means and deviations over seeds beside the paper's figures."""
    records = file.records
    for name in config.encoders:
        places = [f"{name} | seed {seed}" for seed in range(config.seeds)]
        for style in REFERENCES:
            found = [records[f"{place} | {style}"] for place in places]
            yield _row(name, "", style, "", found)
        if "mixed test set" in records[f"{places[0]} | offline"]:
            found = [records[f"{place} | offline"]["mixed test set"] for place in places]
            yield _row(name, "", "offline, mixed test set", "", found)
        if f"{name} | encoder draws" in records:
            found = records[f"{name} | encoder draws"]["draws"]
            yield _row(name, "", f"offline, {len(found)} draws of the encoder", "", found)
        for style in ("-kF", "-kF-Bayes"):
            found = [records[f"{name} | -R at lambda of {style}"]]
            label = f"-R at {style}'s lambda, one seed"
            yield _row(name, config.batches[0], label, "exact", found)
        for T in config.batches:
            for cold_start in COLD_STARTS_OF[name]:
                for style in fm.RIDGES:
                    found = [records[f"{p} | T={T} | {cold_start} | {style}"] for p in places]
                    yield _row(name, T, style, cold_start, found)


def _row(name: str, T: int | str, style: str, cold_start: str, found: list[Record]) -> Record:
    row: Record = {"encoder": name, "T": T, "cold start": cold_start, "style": style}
    accuracy = "ACC" if "ACC" in found[0] else "accuracy_class_incremental"
    for heading, metric in {
        "ACC": accuracy,
        "BWT": "BWT",
        "FWT": "FWT",
        **{protocol: f"accuracy_{protocol}" for protocol in PROTOCOLS},
    }.items():
        row[heading] = mean_and_deviation([record.get(metric) for record in found])
    row["seeds"] = str(len(found))
    published = PAPER.get((style, T or 5), ())
    for heading, value in zip(("ACC", "BWT", "FWT"), published, strict=False):
        row[f"paper {heading}"] = f"{value:.4f}"
    return row


HEADINGS = (
    *("encoder", "T", "cold start", "style", "ACC", "paper ACC", "BWT", "paper BWT"),
    *("FWT", "paper FWT", *PROTOCOLS, "seeds"),
)


def write_tables(rows: list[Record], folder: Path) -> None:
    """The rows as table.csv and as table.md."""
    cells = ([str(row.get(heading, "")) for heading in HEADINGS] for row in rows)
    write_table(folder, HEADINGS, cells)


def draw(config: Config, file: ResultsFile, path: Path) -> None:
    """ACC of every style as published and honest, beside the paper's."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    panels = figure.subplots(1, len(config.batches), sharey=True, squeeze=False)[0]
    shown = [
        ("refit per task", "paper", "as published: refit, paper's cold start", COLOURS[1], "s"),
        ("refit per task", "exact", "refit, exact", COLOURS[4], "^"),
        ("frozen, training inputs", "exact", "honest: frozen, exact", COLOURS[0], "o"),
        ("frozen, first batch", "exact", "frozen on the first batch, exact", COLOURS[5], "v"),
    ]
    for panel, T in zip(panels, config.batches, strict=True):
        for at, style in enumerate(fm.RIDGES):
            if (style, T) in PAPER:
                panel.plot(
                    at - 0.3, PAPER[style, T][0], "*", color="black", ms=11, label="paper", zorder=3
                )
            for offset, (name, cold_start, label, colour, marker) in enumerate(shown):
                if name not in config.encoders:
                    continue
                values = [
                    file.records[f"{name} | seed {s} | T={T} | {cold_start} | {style}"]["ACC"]
                    for s in range(config.seeds)
                ]
                x = at - 0.15 + 0.15 * offset
                panel.errorbar(
                    x,
                    np.mean(values),
                    np.std(values, ddof=min(1, config.seeds - 1)),
                    color=colour,
                    marker=marker,
                    ls="",
                    ms=7,
                    capsize=3,
                    label=label,
                )
        panel.set_title(f"T = {T}")
        panel.set_xticks(range(len(fm.RIDGES)), list(fm.RIDGES))
        panel.set(ylim=(0, 1.02), xlim=(-0.6, len(fm.RIDGES) - 0.4))
        panel.grid(axis="y", color="0.92")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("ACC over ten classes")
    entries = dict(zip(*reversed(panels[0].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=3)
    figure.suptitle(
        f"Fashion-MNIST-10/5, {config.seeds} seed{'s' * (config.seeds > 1)}:"
        " what the encoder sees of the test set decides"
    )
    figure.savefig(path, dpi=150)


def _results(config: Config, file: ResultsFile, name: str, T: int, cold_start: str) -> Any:
    """Style to its records over seeds."""
    places = [f"{name} | seed {s} | T={T} | {cold_start}" for s in range(config.seeds)]
    return {style: [file.records[f"{place} | {style}"] for place in places] for style in fm.RIDGES}


def _so_far(records: list[Record], protocol: str) -> np.ndarray:
    """(seed, Q) accuracy over the tasks so far, after each."""
    R = np.array([record[protocol] for record in records], dtype=float)
    return np.array([R[:, q, : q + 1].mean(axis=1) for q in range(R.shape[1])]).T


def draw_tasks(config: Config, file: ResultsFile, path: Path) -> None:
    """ACC over the tasks so far, after each task: as published above, honest below.

    Styles stand beside each other, since most of them coincide.
    """
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    shown = {
        ("refit per task", "paper"): "as published",
        ("frozen, training inputs", "exact"): "honest",
    }
    shown = {names: title for names, title in shown.items() if names[0] in config.encoders}
    if not shown:
        return
    figure = Figure(figsize=(11, 6.4), layout="constrained")
    panels = figure.subplots(len(shown), len(config.batches), sharex=True, squeeze=False)
    tasks = np.arange(1, fm.NUM_TASKS + 1)
    for row, ((name, cold_start), title) in zip(panels, shown.items(), strict=True):
        for panel, T in zip(row, config.batches, strict=True):
            found = _results(config, file, name, T, cold_start)
            for at, (style, marker) in enumerate(zip(found, "os^", strict=True)):
                curves = _so_far(found[style], "R")
                panel.errorbar(
                    tasks + 0.2 * (at - 1),
                    curves.mean(axis=0),
                    curves.std(axis=0, ddof=min(1, config.seeds - 1)),
                    color=COLOURS[at],
                    fmt=marker,
                    ms=5,
                    capsize=2,
                    label=style,
                )
            panel.set(title=f"T = {T}, {title}", ylim=(0, 1.1), xticks=tasks)
            panel.title.set_fontsize("medium")
            panel.grid(axis="y", color="0.92")
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("ACC over the tasks so far")
    for panel in panels[-1]:
        panel.set_xlabel("tasks learned")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(
        "As published: encoder refitted per task, paper's cold start; honest: encoder frozen,"
        f" exact; {config.seeds} seeds"
    )
    figure.savefig(path, dpi=130)


def draw_boundary(config: Config, file: ResultsFile, path: Path) -> None:
    """ACC over the tasks so far with the task boundary given and withheld.

    Who is told where a task ends knows which classes have come, and chooses among these alone; the
    readout is the same, since columns of one-hot ridge regression do not depend on each other.
    """
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    figure = Figure(figsize=(11, 3.9), layout="constrained")
    panels = figure.subplots(1, len(config.batches), sharey=True, squeeze=False)[0]
    tasks = np.arange(1, fm.NUM_TASKS + 1)
    for panel, T in zip(panels, config.batches, strict=True):
        found = _results(config, file, PUBLISHED, T, "paper")
        for at, (style, marker) in enumerate(zip(found, "os^", strict=True)):
            for protocol, fill, shift, told in (
                ("R", "white", -0.05, "withheld"),
                ("R_seen", COLOURS[at], 0.05, "given"),
            ):
                curves = _so_far(found[style], protocol)
                panel.errorbar(
                    tasks + 0.26 * (at - 1) + shift,
                    curves.mean(axis=0),
                    curves.std(axis=0, ddof=min(1, config.seeds - 1)),
                    color=COLOURS[at],
                    fmt=marker,
                    mfc=fill,
                    ms=5,
                    capsize=2,
                    label=f"{style}, {told}",
                )
        panel.set(title=f"T = {T}", xlabel="tasks learned", xticks=tasks, ylim=(0, 1.1))
        panel.grid(axis="y", color="0.92")
        panel.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("ACC over the tasks so far")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    figure.suptitle(
        "Task boundary given (full marks) and withheld (hollow); encoder refitted per task,"
        f" paper's cold start, {config.seeds} seeds"
    )
    figure.savefig(path, dpi=130)


def draw_strengths(config: Config, file: ResultsFile, path: Path) -> None:
    """Both strengths of each batch behind the encoders, one line a seed, the first six."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    names = [name for name in config.encoders if name != "frozen, first batch"]
    figure = Figure(figsize=(11, 3.3 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), len(config.batches), squeeze=False)
    for row, name in zip(panels, names, strict=True):
        for panel, T in zip(row, config.batches, strict=True):
            for record in _results(config, file, name, T, "paper")["-kF-Bayes"][:PATHS]:
                # k_{t+1} of a step and k_t of the next are of the same batch.
                batches = np.arange(2, T + 1)
                for values, colour, look, label in (
                    (record["k_next"][:-1], COLOURS[0], "o-", "$k_{t+1}$, when it is announced"),
                    (record["k_t"][1:], COLOURS[1], "s--", "$k_t$, when it is learned"),
                ):
                    scaled = 1e5 * np.array(values)
                    panel.plot(batches, scaled, look, color=colour, ms=3, lw=1, label=label)
            panel.set(title=f"T = {T}, {name}", xlabel="batch")
            panel.xaxis.get_major_locator().set_params(integer=True)
            panel.title.set_fontsize("medium")
            panel.grid(axis="y", color="0.92")
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("forward strength k, in 1e-5")
    entries = dict(zip(*reversed(panels[0, 0].get_legend_handles_labels()), strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside lower center", ncols=2)
    figure.suptitle(
        "-kF-Bayes: both strengths of each batch behind the encoder, paper's cold start,"
        f" {f'the first {PATHS} of ' if config.seeds > PATHS else ''}{config.seeds} seeds"
    )
    figure.savefig(path, dpi=130)


def main(config: Config, quick: bool = False, out: Path = RESULTS / "fashion_mnist_table") -> None:
    """Measure what is missing, then write results.json, tables and pictures.

    Args:
        config: the protocol.
        quick: one seed on a sixth of the rows, as a check, into a folder beside.
        out: folder of the results.
    """
    if quick:
        config, out = QUICK, out.with_name(f"{out.name}_quick")
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    write_tables(list(rows_of(config, file)), out)
    draw(config, file, out / "table.png")
    draw_tasks(config, file, out / "tasks.png")
    if PUBLISHED in config.encoders:
        draw_boundary(config, file, out / "boundary.png")
    draw_strengths(config, file, out / "strengths.png")
    print((out / "table.md").read_text(encoding="utf-8"))
    print(f"Wrote results.json, table.csv, table.md and pictures to {out}.")


if __name__ == "__main__":
    tyro.cli(main)
