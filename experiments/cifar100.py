"""The paper's experiments on CIFAR-100, on frozen features: `python -m experiments.cifar100`.

A hundred classes in 5, 10, 20 or 100 tasks, 400 batches of 125 rows. Features of an
EfficientNet-lite0 trained on ImageNet, which never saw a CIFAR label (honest), and of a small
network trained with labels on CIFAR-100's training images (optimistic, as the paper's ResNet-56
is). Every style with the paper's network for it, with one network and lambda that all styles
share, and with the sparse autoencoder F between features and learner; then L, N, kappa and sigma
one at a time, and the decision regions.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import tyro

from experiments.cifar100_pictures import (
    CALLED,
    MEASURES,
    architecture,
    axis_words,
    beside_ridge,
    common_runs,
    cut,
    draw_architecture,
    draw_curves,
    draw_map,
    draw_regret,
    draw_sensitivity,
    draw_strengths,
    grid_of,
    paths_of,
)
from experiments.cifar100_runs import (
    ABLATIONS,
    BEHIND_F,
    GRID_ROWS,
    HONEST,
    KAPPA,
    KAPPAS,
    PAPER,
    PICTURED_ROWS,
    PLAIN,
    SIGMA,
    SIGMAS,
    Config,
    measure,
    place_of,
    settings_of,
)
from experiments.fashion_mnist import VARIANTS
from experiments.regions import draw_regions
from experiments.results_file import (
    Record,
    ResultsFile,
    markdown_table,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS

HEADINGS = (
    *("features", "tasks", "setting", "style", "ACC %", "A-bar %", "offline expert %"),
    *("BWT %", "largest gap to the expert %", "prequential loss", "looks"),
    *("cumulative regret, 10^-3", "KL at the end, nats", "loss beyond the expert's, sum, 10^-3"),
    *("KL from the expert at the end, 10^-6 nats", "seeds"),
)
# Batches whose strengths the table tells, the first announced one first.
TOLD = (1, 2, 3, 4)


def rows_of(config: Config, file: ResultsFile) -> Iterator[list[str]]:
    """One row a split, setting and style, then the ablations."""
    seeds = range(config.seeds)
    for features in config.features:
        for tasks in config.tasks:
            for setting in settings_of(features, tasks):
                for style in PAPER:
                    places = [place_of(features, tasks, s, setting, style) for s in seeds]
                    start = [features, str(tasks), setting, style]
                    yield _row(start, [file.records[place] for place in places])
    for name in ABLATIONS:
        for style in PAPER:
            places = [f"ablation | seed {seed} | {style} | {name}" for seed in seeds]
            start = [HONEST, "10", f"paper, {name}", style]
            yield _row(start, [file.records[place] for place in places])


def _row(start: list[str], found: list[Record]) -> list[str]:
    def told(value: Callable[[Record], float | None], factor: float = 1.0, digits: int = 4) -> str:
        return mean_and_deviation([value(record) for record in found], factor, digits)

    shown = ("ACC", "A_bar", "expert accuracy", "BWT")
    cells = [told(lambda record, name=name: record.get(name), 100, 2) for name in shown]
    gap = max(100 * abs(r["accuracy_class_incremental"] - r["expert accuracy"]) for r in found)
    return [
        *(*start, *cells, f"{gap:.3f}"),
        told(lambda record: record["prequential_loss"]),
        str(len(found[0]["evaluated"])),
        told(lambda record: sum(record["regret"]), 1e3, 5),
        told(lambda record: record["kl_curve"][-1], digits=5),
        told(lambda record: sum(record["excess_loss"]), 1e3, 5),
        told(lambda record: max(record["kl_from_expert_curve"][-1], 0.0), 1e6, 2),
        str(len(found)),
    ]


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """The rows, and what the pictures show in numbers."""
    sections = (
        (
            "One network and lambda: running sums over all looks beside -R's, %",
            _beside(config, file),
        ),
        (
            f"L and N on {HONEST}, 10 tasks, lambda = 1, ReLU",
            _of_architecture(config, file),
        ),
        (
            f"kappa alone (sigma = {SIGMA:g}) and sigma alone (kappa = {KAPPA:g}), -kF-Bayes with"
            f" the common network on {HONEST}, 10 tasks, {GRID_ROWS:,} test rows",
            _of_sensitivity(config, file),
        ),
        ("k of -kF-Bayes as printed at the paper's network", _of_strengths(config, file)),
        (
            f"Decision regions: {PICTURED_ROWS} test rows, 5 tasks, the common network, seed 0",
            _of_regions(file),
        ),
        (f"-R with N = {config.large_nodes} on {HONEST}, 10 tasks", _of_large(config, file)),
    )
    after = "".join(f"\n{title}:\n\n{markdown_table(*table)}" for title, table in sections)
    write_table(folder, HEADINGS, rows_of(config, file), after=after)


Table = tuple[list[str], list[list[str]]]


def _beside(config: Config, file: ResultsFile) -> Table:
    names = {
        "regret": "cumulative regret",
        "kl_curve": "KL",
        "excess_loss": "loss beyond the expert's",
    }
    rows = []
    for tasks in config.tasks:
        ridge = common_runs(config, file, tasks, "-R")
        for style in list(PAPER)[1:]:
            found, cells = common_runs(config, file, tasks, style), []
            for name in names:
                ours, theirs = (np.array([r[name] for r in runs]) for runs in (found, ridge))
                cells.append(mean_and_deviation(beside_ridge(ours, theirs)[:, -1], 1, 4))
            seen = [
                np.subtract(ours["curves"]["seen"], theirs["curves"]["seen"])
                for ours, theirs in zip(found, ridge, strict=True)
            ]
            cells.append(mean_and_deviation(np.mean(seen, axis=1), 100, 2))
            rows.append([str(tasks), style, *cells])
    return ["tasks", "style", *names.values(), "accuracy on classes seen, mean, points"], rows


def _of_architecture(config: Config, file: ResultsFile) -> Table:
    rows = []
    for axis in ("L", "N"):
        cells = {
            (style, name): architecture(config, file, axis, style, name)
            for style in PAPER
            for name in ("last", "A_bar")
        }
        at = cells["-R", "last"][0]
        for place, value in enumerate(at):
            rows.append([f"{axis} = {value}"])
            for style in PAPER:
                both = [cells[style, name][1][:, place] for name in ("last", "A_bar")]
                rows[-1].append(" / ".join(mean_and_deviation(one, 1, 2) for one in both))
    return ["varied", *(f"{style}: ACC / A-bar %" for style in PAPER)], rows


def _of_sensitivity(config: Config, file: ResultsFile) -> Table:
    rows = []
    for variant in VARIANTS:
        for axis, at in (("kappa", KAPPAS), ("sigma", SIGMAS)):
            row = [CALLED[variant], f"{axis} {at[0]:g} .. {at[-1]:g}"]
            for name, _, factor in MEASURES:
                values = factor * cut(grid_of(config, file, variant, name), axis).mean(axis=0)
                digits = 2 if factor > 1 else 4
                best = values.min() if name == "prequential_loss" else values.max()
                row.append(f"{values.min():.{digits}f} .. {values.max():.{digits}f}")
                row.append(_best_at(at, np.abs(values - best) < 10.0**-digits))
            rows.append(row)
    headings = ["variant", "varied"]
    for _, words, _ in MEASURES:
        headings += [words, f"best {axis_words(words)}"]
    return headings, rows


def _best_at(at: np.ndarray, best: np.ndarray) -> str:
    """Where a quantity is best to the digits shown, and whether that reaches the grid's edge."""
    if best.all():
        return "all"
    ends = [f"{value:g}" for value in at[best][[0, -1]]]
    return " .. ".join(dict.fromkeys(ends)) + ", at the edge" * bool(best[0] or best[-1])


def _of_strengths(config: Config, file: ResultsFile) -> Table:
    def span(values: Iterable[float]) -> str:
        values = np.asarray(values)
        return f"{values.min():.3g} .. {values.max():.3g}"

    rows = []
    for features in config.features:
        for tasks in config.tasks:
            found = paths_of(config, file, features, tasks)
            added = np.array([record["k_next"] for record in found])[:, :-1]
            anew = np.array([record["k_t"] for record in found])[:, 1:]
            for words, values in (("put on it announced", added), ("anew, learned", anew)):
                early = [span(values[:, at - 1]) for at in TOLD]
                rows.append([features, str(tasks), words, *early, span(values[:, TOLD[-1] :])])
    headings = ["features", "tasks", f"k, least .. greatest of {len(found)} runs"]
    return [*headings, *(f"batch {at + 1}" for at in TOLD), "all later ones"], rows


def _of_regions(file: ResultsFile) -> Table:
    rows = []
    for name in (PLAIN, BEHIND_F):
        record = file.records[f"regions | {name}"]
        truth, task = np.array(record["truth"]), np.array(record["class_task"])
        first = next(iter(record["guesses"].values()))
        for style, guesses in record["guesses"].items():
            right, unlike = [], []
            for place, guess in enumerate(map(np.array, guesses)):
                met = task[truth] <= place
                right.append(f"{100 * np.mean(guess[met] == truth[met]):.2f}")
                unlike.append(f"{100 * np.mean(guess != np.array(first[place])):.2f}")
            rows.append([name, style, ", ".join(right), ", ".join(unlike)])
    words = [
        "rows of classes learned right, after each task, %",
        "unlike -R's answer, of all rows, %",
    ]
    return ["input", "style", *words], rows


def _of_large(config: Config, file: ResultsFile) -> Table:
    large = [file.records[f"large | seed {seed}"] for seed in range(config.seeds)]
    names = ["accuracy at lambda 1", "accuracy at chosen lambda"]
    cells = [mean_and_deviation([r[name] for r in large], 100, 2) for name in names]
    own = large[0]["accuracy at lambda 1"] - file.records["large | expert"]["accuracy"]
    names.append("from the expert, seed 0")
    cells.append(f"{100 * own:.3f}")
    chosen = sorted({f"{record['chosen lambda']:.3g}" for record in large})
    headings = [f"{name}, %" for name in names]
    return [*headings, "lambda by generalised cross-validation"], [[*cells, ", ".join(chosen)]]


def draw(config: Config, file: ResultsFile, out: Path) -> None:
    """All pictures of the records."""
    draw_curves(config, file, out / "curves.png")
    draw_regret(config, file, out / "regret.png")
    draw_strengths(config, file, out / "strengths.png")
    draw_architecture(config, file, out / "architecture.png")
    draw_sensitivity(config, file, out / "sensitivity.png")
    draw_map(config, file, out / "sensitivity_map.png")
    draw_regions(
        {
            "" if name == PLAIN else name: file.records[f"regions | {name}"]
            for name in (PLAIN, BEHIND_F)
        },
        f"{PICTURED_ROWS} test rows of CIFAR-100/5 laid out by t-SNE of what the readouts are given"
        " (hidden nodes and inputs), as classes are learned",
        out / "regions.png",
    )


def main(config: Config, out: Path = RESULTS / "cifar100") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and the pictures.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    draw(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
