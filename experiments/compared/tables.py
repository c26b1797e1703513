"""Measuring: every method with what was chosen for it, on several seeds, as tables.

A seed draws the order of tasks and of rows, and what a method draws. Test rows are looked at where
tasks end. Forward transfer is taken from one and the same expert for all: the offline edRVFL with
the nodes and lambda that were chosen for -R, trained on each task alone.
"""

import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from experiments.compared import records
from experiments.compared.contenders import NOT_RUN, Contender, contenders
from experiments.compared.paper import PAPER
from experiments.compared.settings import SETTINGS, Setting, case_of
from experiments.compared.spaces import CONFIGURATIONS, Point, space_of, spaces
from experiments.compared.tuning import choice_of
from experiments.comparison import accuracy_of
from experiments.fashion_mnist import Case
from experiments.results_file import Record, markdown_table, mean_and_deviation, write_csv
from rvfl_jax import Learner, NumericalError, by_task, edrvfl, offline_scores, run_stream
from rvfl_jax.encoders import LeakError, leak_guard
from rvfl_jax.metrics import PROTOCOLS, forgetting, mean_softmax, protocol_hits
from rvfl_jax.runs.comparison import run_metrics, separate_accuracy

GUARDED_ROWS = 200
REFERENCE = "-R"
EXPERTS = "experts"
# Nothing is run that has no space yet.
NO_SPACE = "no search space yet"


def measure(
    setting: Setting, names: list[str], *, seeds: int, count: int = CONFIGURATIONS, out: Path
) -> None:
    """Runs of these methods on all seeds, each kept as it comes."""
    found, known = contenders(), spaces(_tuned_on(setting))
    for name in names:
        if name not in known:
            print(f"{setting.name}: {name} is not run: {NO_SPACE}", file=sys.stderr, flush=True)
            continue
        _measure_one(name, found[name], setting, seeds=seeds, count=count, out=out)


def _tuned_on(setting: Setting) -> Setting:
    """The setting whose choices are taken, cut down as this one is."""
    if setting.tuned_as is None:
        return setting
    other = SETTINGS[setting.tuned_as]
    same = ("hidden", "nodes", "drawn", "memory", "rows", "num_batches", "tuning_rows")
    return replace(other, **{part: getattr(setting, part) for part in same})


def chosen_for(name: str, setting: Setting, *, count: int, out: Path) -> tuple[Record, Point]:
    """What is known of the choice, and the configuration that is run."""
    tuned_on = _tuned_on(setting)
    choice = choice_of(name, contenders()[name], tuned_on, count=count, out=out)
    return choice, records.as_point(choice["chosen"])


def _measure_one(
    name: str, contender: Contender, setting: Setting, *, seeds: int, count: int, out: Path
) -> None:
    _, point = chosen_for(name, setting, count=count, out=out)
    file = records.runs_file(name, setting, point, out)
    learner, warm = contender.make(**point), False
    for seed in range(seeds):
        if f"seed {seed}" in file.records:
            continue
        case, key = case_of(setting, seed), jax.random.key(seed)
        R_ind = _experts(setting, seed, count=count, out=out)
        start = time.perf_counter()
        if contender.role == "bound":
            if not warm:
                _bound(case, learner, contender, key)
            file.once(f"seed {seed}", _bound, case, learner, contender, key)
        else:
            if not warm:
                # Compiled by a run of its own, so that no seconds below hold a compilation.
                run(case, learner, contender, key)
            file.once(f"seed {seed}", _run_and_keep, case, learner, contender, key, R_ind)
        warm = True
        took = time.perf_counter() - start
        print(f"{setting.name}: {name}: seed {seed}, {took:.0f} s", file=sys.stderr, flush=True)


def run(
    case: Case, learner: Learner, contender: Contender, key: Any, *, whole_tasks: bool | None = None
) -> Any:
    """A run with a look at the test set at each task end; in the batches that a method takes."""
    merged = contender.whole_tasks if whole_tasks is None else whole_tasks
    return run_stream(
        learner,
        by_task(case.stream) if merged else case.stream,
        key=key,
        test=(case.Z_test, case.y_test),
        evaluate="task",
        expert=None,
        precision=contender.precision,
        boundaries=contender.boundaries,
        on_failure="return",
    )


def _run_and_keep(
    case: Case, learner: Learner, contender: Contender, key: Any, R_ind: np.ndarray
) -> Record:
    start = time.perf_counter()
    ended = run(case, learner, contender, key)
    seconds, history = time.perf_counter() - start, ended.history
    R = history.R["class_incremental"]
    figures = run_metrics(history, R_ind)
    kept = {name: float(value) for name, value in figures.items() if np.isfinite(value)}
    return kept | {
        "forgetting": float(forgetting(R)[-1]),
        "learned": float(np.diag(R).mean()),
        "first tasks": float(R[-1, : len(R) // 2].mean()),
        "last tasks": float(R[-1, -(len(R) // 2) :].mean()),
        "seen": history.accuracy["seen"],
        "R": R if len(R) <= 20 else None,
        "healthy": bool(history.healthy.all()),
        "seconds": seconds,
        "state bytes": bytes_of(ended.state),
        "guard": _guarded(case, learner, ended.state),
    }


def protocol_ends(history: Any) -> Record:
    """Accuracy on the whole test set at the end, by protocol."""
    return {f"accuracy_{name}": float(curve[-1]) for name, curve in history.accuracy.items()}


def bytes_of(state: Any) -> int:
    """What a state takes, arrays and keys."""
    return sum(leaf.nbytes for leaf in map(_plain, jax.tree.leaves(state)))


def _plain(leaf: Any) -> Any:
    is_key = jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return jax.random.key_data(leaf) if is_key else leaf


def _guarded(case: Case, learner: Learner, state: Any) -> str:
    """Whether answers to test rows as the method is given them depend on the other rows."""
    try:
        leak_guard(lambda X: learner.predict(state, X), case.Z_test[:GUARDED_ROWS])
    except LeakError:
        return "fails"
    return "passes"


def _bound(case: Case, learner: Learner, contender: Contender, key: Any) -> Record:
    """A bound, which has learned all rows at once."""
    start = time.perf_counter()
    try:
        scores = offline_scores(
            learner, case.stream, case.Z_test, key=key, precision=contender.precision
        )
    except NumericalError:
        return {"healthy": False, "seconds": time.perf_counter() - start}
    seconds = time.perf_counter() - start
    class_task = case.stream.class_task
    hits = protocol_hits(
        mean_softmax(np.float32(scores)),
        case.columns,
        class_task=class_task,
        seen=np.ones(len(class_task), bool),
    )
    task = class_task[case.columns]
    right = np.asarray(hits["class_incremental"])
    return {f"accuracy_{name}": float(np.mean(hit)) for name, hit in hits.items()} | {
        "ACC": float(np.mean([right[task == q].mean() for q in range(case.stream.num_tasks)])),
        "accuracy": accuracy_of(scores, case, learner),
        "healthy": True,
        "seconds": seconds,
    }


def _experts(setting: Setting, seed: int, *, count: int, out: Path) -> np.ndarray:
    """(Q,) accuracy on each task of the edRVFL that is trained on it alone."""
    _, point = chosen_for(REFERENCE, setting, count=count, out=out)
    file = records.runs_file(EXPERTS, setting, point, out)

    def made() -> Record:
        case = case_of(setting, seed)
        tasks = by_task(case.stream)
        with jax.enable_x64(True):
            found = separate_accuracy(
                edrvfl(num_layers=1, k=0.0, **point),
                jax.random.key(seed),
                (tasks.X, tasks.y, tasks.weight),
                (case.Z_test, case.columns, case.stream.class_task),
            )
        return {"R_ind": np.asarray(found)}

    return np.asarray(file.once(f"seed {seed}", made)["R_ind"])


# --- tables -----------------------------------------------------------------------------------

PLAIN = {
    "ACC": "ACC",
    "BWT": "BWT",
    "FWT": "FWT",
    "forgetting": "forgetting",
    **{protocol: f"accuracy_{protocol}" for protocol in PROTOCOLS},
}
REACHED = (
    *("method", "family", "ACC", "paper ACC", "BWT", "FWT", "forgetting", *PROTOCOLS),
    *("seconds", "seeds"),
)
GIVEN = (
    *("method", "boundaries", "batches", "passes", "updates", "state bytes", "rows kept"),
    *("chosen", "edge", "configurations", "leak guard", "remark"),
)


def rows_of(setting: Setting, *, seeds: int, count: int, out: Path) -> Iterator[Record]:
    """One row a method, also of those that are not run; from what is kept, running nothing."""
    for name, contender in contenders().items():
        choice = kept_choice(name, setting, count, out)
        row: Record = {"method": contender.title, "family": contender.family}
        row["paper ACC"] = _published(setting, name)
        if choice is None:
            known = name in spaces(setting)
            yield row | {"remark": f"not run: {'not yet tuned' if known else NO_SPACE}"}
            continue
        file = records.runs_file(name, setting, records.as_point(choice["chosen"]), out)
        found = [file.records.get(f"seed {seed}") for seed in range(seeds)]
        done = [record for record in found if record is not None]
        if not done:
            yield row | {"remark": "not run: tuned, not yet measured"}
            continue
        yield row | _figures(done) | _circumstances(name, contender, setting, choice, done)
    for title, reason in NOT_RUN.values():
        yield {"method": title, "remark": f"not run: {reason}"}


def kept_choice(name: str, setting: Setting, count: int, out: Path) -> Record | None:
    """The choice of a method if there is one; nothing is run."""
    tuned_on = _tuned_on(setting)
    if name not in spaces(tuned_on):
        return None
    file = records.tuning_file(name, space_of(name, tuned_on), tuned_on, count, out)
    return file.records.get("choice")


def _published(setting: Setting, name: str) -> str:
    value = PAPER.get(setting.name, {}).get(name)
    return "" if value is None else f"{value:.3f}"


def _figures(done: list[Record]) -> Record:
    row = {
        heading: mean_and_deviation([record.get(metric) for record in done])
        for heading, metric in PLAIN.items()
    }
    row["seconds"] = f"{np.median([record['seconds'] for record in done]):.1f}"
    row["seeds"] = str(len(done))
    return row


def _circumstances(
    name: str, contender: Contender, setting: Setting, choice: Record, done: list[Record]
) -> Record:
    chosen, space = choice["chosen"], space_of(name, _tuned_on(setting))
    tuned = {key: value for key, value in chosen.items() if key not in space.fixed}
    joint = contender.role == "bound" and name == "joint"
    remarks = [choice["remark"]]
    sick = sum(not record["healthy"] for record in done)
    if sick:
        remarks.append(f"arithmetic failed on {sick} of {len(done)} seeds")
    # Where the arithmetic failed an answer is no number, which equals nothing.
    guards = {record["guard"] for record in done if "guard" in record and record["healthy"]}
    sizes = {record["state bytes"] for record in done if "state bytes" in record}
    return {
        "batches": "one a task" if contender.whole_tasks else f"{setting.num_batches}",
        "passes": "10" if joint else "1",
        "updates": str(chosen.get("updates", 1)) if contender.precision == "single" else "",
        "boundaries": contender.boundaries,
        "state bytes": " / ".join(f"{size:,}" for size in sorted(sizes)),
        "rows kept": str(space.rows_kept) if contender.role == "learner" else "all",
        "chosen": ", ".join(f"{key} {_short(value)}" for key, value in tuned.items()),
        "edge": ", ".join(choice["edge"]),
        "configurations": str(choice["configurations"]),
        "leak guard": " / ".join(sorted(guards)),
        "remark": "; ".join(filter(None, remarks)),
    }


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}"
    return "x".join(map(str, value)) if isinstance(value, list) else str(value)


def tabulate(setting: Setting, *, seeds: int, count: int, out: Path) -> Path:
    """table.csv and, in two parts, table.md of a setting from what is kept."""
    folder = records.folder_of(setting, out)
    folder.mkdir(parents=True, exist_ok=True)
    rows = list(rows_of(setting, seeds=seeds, count=count, out=out))
    headings = tuple(dict.fromkeys(REACHED + GIVEN))
    write_csv(folder, headings, _cells(headings, rows))
    reached = markdown_table(REACHED, _cells(REACHED, [row for row in rows if row.get("ACC")]))
    given = markdown_table(GIVEN, _cells(GIVEN, rows))
    parts = _before(setting), reached, _after(setting), "\n## What each was given\n\n", given
    (folder / "table.md").write_text("".join(parts), encoding="utf-8")
    return folder / "table.md"


def _cells(headings: tuple[str, ...], rows: list[Record]) -> list[list[str]]:
    return [[str(row.get(heading, "")) for heading in headings] for row in rows]


def _before(setting: Setting) -> str:
    leak = (
        "\n\n**The encoder leaks**: it is refitted on the test rows of each task by themselves, so"
        " that a row tells its task. Configurations are those of the frozen encoder."
        if setting.leaks
        else ""
    )
    # Names within keep their capitals.
    inputs = setting.inputs[0].upper() + setting.inputs[1:]
    return (
        f"# {setting.title}\n\n{inputs}. {setting.num_tasks} tasks,"
        f" {setting.num_batches} batches, one pass.{leak}\n\n"
    )


def _after(setting: Setting) -> str:
    tuned = _tuned_on(setting)
    return (
        f"\nChosen among the configurations of `experiments.compared.spaces` by the accuracy on"
        f" {100 * tuned.held_out:.0f} % of the training rows of the first {tuned.tuned_tasks} of"
        f" {tuned.num_tasks} tasks of seed 0, which the others are learned of; no test row enters."
        " Mean ± standard deviation over seeds. ACC, BWT, FWT and forgetting are class-incremental,"
        " FWT against one edRVFL trained on each task alone. Seconds: the median of whole warm runs"
        " with a look at the test set at each task end. edge: numbers chosen at an end of their"
        " range. State: as it is after the run, in double precision for closed forms and in single"
        " for networks. The paper's ACC is behind the encoder as published.\n"
    )
