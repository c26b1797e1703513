"""The same stream in larger batches and without sharp boundaries: accuracy against batch size.

Fashion-MNIST on raw pixels in 5, 10, 20 and 400 batches, as the paper has it, and in 400 with
blurred boundaries, one pass each, with what was chosen for 600 batches of 100 rows. A network takes
a larger batch in pieces of 100 rows (`rvfl_jax.in_minibatches`), once: as many updates as in the
tables, so that batches change what is kept, announced and consolidated, and not how much is
learned. (In 400 batches it makes a third more: 150 rows are a piece of 100 and one of 50.) Closed
forms take a batch whole.
"""

import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments import fashion_mnist as fm
from experiments.compared import records, tables
from experiments.compared.contenders import WHOLE_TASKS, Contender, contenders
from experiments.compared.settings import Setting
from experiments.compared.spaces import CONFIGURATIONS, Point, spaces
from experiments.fashion_mnist import Case
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from rvfl_jax import Learner, in_minibatches

PIECE_ROWS = 100
# Settings whose streams are varied.
VARIED = ("a",)
# Of methods that take long for each batch.
FEW_BATCHES = 20


class Variant(NamedTuple):
    """A way to cut the stream."""

    num_batches: int
    blur: float = 0.0

    @property
    def name(self) -> str:
        """As records have it."""
        return f"T={self.num_batches}" + (f", blur {self.blur}" if self.blur else "")


VARIANTS = (Variant(5), Variant(10), Variant(20), Variant(400), Variant(400, 0.5))
QUICK_VARIANTS = (Variant(5), Variant(10, 0.5))


def variants_of(setting: Setting) -> tuple[Variant, ...]:
    """Fewer where there are few rows."""
    return VARIANTS if setting.rows is None else QUICK_VARIANTS


@lru_cache(maxsize=2)
def varied_case(setting: Setting, variant: Variant, seed: int) -> Case:
    """The rows and classes of a seed in other batches."""
    return fm.raw_case(seed, variant.num_batches, setting.rows, blur=variant.blur)


def learner_for(contender: Contender, point: Point, case: Case) -> Learner:
    """A method as it takes batches of this size."""
    rows, pieces = case.stream.X.shape[1], -(-case.stream.X.shape[1] // PIECE_ROWS)
    if "task_batches" in point:
        batches = case.stream.num_batches // case.stream.num_tasks
        point = point | {"task_batches": batches * pieces}
    learner = contender.make(**point)
    if contender.precision == "single" and rows > PIECE_ROWS:
        return in_minibatches(learner, rows=PIECE_ROWS)
    return learner


def taken(name: str, variant: Variant) -> bool:
    """Whether a method is run in these batches."""
    return name not in WHOLE_TASKS or variant.num_batches <= FEW_BATCHES


def _file(name: str, setting: Setting, point: Point, out: Path) -> ResultsFile:
    protocol = records.protocol_of(setting, chosen=point)
    return ResultsFile(records.folder_of(setting, out) / "curves" / f"{name}.json", protocol)


def measure(
    setting: Setting, names: list[str], *, seeds: int, count: int = CONFIGURATIONS, out: Path
) -> None:
    """Every learner in all batches and on all seeds, then table and picture."""
    if setting.name not in VARIED:
        print(f"{setting.name}: batches are varied on {VARIED}", file=sys.stderr, flush=True)
        return
    found, known = contenders(), spaces(setting)
    names = [name for name in names if found[name].role == "learner" and name in known]
    for variant in variants_of(setting):
        for seed in range(seeds):
            for name in names:
                _measure_one(name, found[name], setting, variant, seed, count=count, out=out)
    tabulate(setting, seeds=seeds, count=count, out=out)


def _measure_one(
    name: str,
    contender: Contender,
    setting: Setting,
    variant: Variant,
    seed: int,
    *,
    count: int,
    out: Path,
) -> None:
    _, point = tables.chosen_for(name, setting, count=count, out=out)
    file, place = _file(name, setting, point, out), f"{variant.name} | seed {seed}"
    if place in file.records or not taken(name, variant):
        return
    print(f"{setting.name}: {name}: {place}", file=sys.stderr, flush=True)
    case, key = varied_case(setting, variant, seed), jax.random.key(seed)
    learner = learner_for(contender, point, case)
    file.once(place, _final, case, learner, contender, key)


def _final(case: Case, learner: Learner, contender: Contender, key: Any) -> Record:
    history = tables.run(case, learner, contender, key, whole_tasks=False).history
    return tables.protocol_ends(history) | {"healthy": bool(history.healthy.all())}


# --- what is shown ----------------------------------------------------------------------------


def found_of(
    setting: Setting, *, seeds: int, count: int, out: Path
) -> dict[str, dict[Variant, np.ndarray]]:
    """Contender to variant to the final accuracy of each seed that is there, 0 where it failed."""
    result: dict[str, dict[Variant, np.ndarray]] = {}
    for name, contender in contenders().items():
        choice = tables.kept_choice(name, setting, count, out)
        if contender.role != "learner" or choice is None:
            continue
        file = _file(name, setting, records.as_point(choice["chosen"]), out)
        values = {
            variant: np.array(
                [
                    record["healthy"] * record["accuracy_class_incremental"]
                    for seed in range(seeds)
                    if (record := file.records.get(f"{variant.name} | seed {seed}"))
                ]
            )
            for variant in variants_of(setting)
        }
        values = {variant: each for variant, each in values.items() if len(each)}
        if values:
            result[name] = values
    return result


def tabulate(setting: Setting, *, seeds: int, count: int, out: Path) -> None:
    """table.csv, table.md and curves.png in the folder of curves."""
    folder = records.folder_of(setting, out) / "curves"
    folder.mkdir(parents=True, exist_ok=True)
    found, variants = found_of(setting, seeds=seeds, count=count, out=out), variants_of(setting)
    rows = []
    for name, contender in contenders().items():
        if contender.role == "bound":
            continue
        values = found.get(name, {})
        cells = [mean_and_deviation(values.get(variant, ())) for variant in variants]
        rows.append([contender.title, contender.family, *cells])
    headings = ["method", "family", *(variant.name for variant in variants)]
    told = "no seeds"
    if found:
        from experiments.compared.pictures import draw_batches, measured_in_batches, seeds_told

        told = seeds_told(measured_in_batches(found))
        draw_batches(setting, found, variants, folder / "curves.png")
    told = f"Final accuracy, {told}; 0 where the arithmetic failed."
    before = f"# {setting.title}, in other batches\n\n{told}\n\n"
    write_table(folder, headings, rows, before=before)
