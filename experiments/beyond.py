"""How far one replay-free pass comes, honestly: `python -m experiments.beyond`.

Class-incremental streams of ten Fashion-MNIST classes (five tasks, 20 batches) and of a hundred
CIFAR-100 classes (ten tasks, 400 batches). Encoders are fitted on the first batch without its
labels and then frozen, or were trained on other data, but for the CIFAR features that are named
optimistic. Every readout stands behind every encoder, on the same rows in the same order, or the
table has the reason.

Every method chooses among 13 settings, anew on each seed. Lambda of ridge and edRVFL, 1e-6 to 1e6
(1e-10 to 100 behind the sparse autoencoder, where the least was best), is that of least generalised
cross-validation of the learned state, which needs neither rows held out nor a second pass. Peers
get both: 13 shrinkages of streaming LDA from 1e-10 to 1, and 13 learning rates of SGD, are tried on
the stream less a fifth of each class, the accuracy on that fifth decides, and
all rows are learned with it (`experiments.peers`). The test set is looked at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments import fashion_mnist as fm
from experiments import peers
from experiments.features import FEATURES, cifar100, cifar100_case
from experiments.results_file import (
    Record,
    ResultsFile,
    mean_and_deviation,
    write_table,
)
from experiments.settings import RESULTS, Once, steps_shown
from rvfl_jax import (
    Learner,
    edrvfl,
    generalised_cross_validation,
    run_stream,
    with_ridge,
)
from rvfl_jax.encoders import Encoder, leak_guard, random_patches, sparse_autoencoder
from rvfl_jax.metrics import protocol_hits

RIDGE = 10.0
CANDIDATES = np.logspace(-6, 6, 13)
# Where the least of these was best.
FINE = np.logspace(-10, 2, 13)
FINE_ENCODERS = ("sparse autoencoder", "sparse autoencoder, shrink 2")
# Of the training rows, for the peers' settings.
HELD_OUT = 0.2
GUARDED_ROWS = 500
# Features from which on random nodes beside them are left out.
WIDE = 1000
# Of a random patch: two signs, four by four places.
FEATURES_A_FILTER = 32
SIDE = (28, 28)


@dataclass(frozen=True)
class Config:
    """What is compared.

    Attributes:
        seeds: of orders, encoders and networks.
        filters: of the random-patch encoders on Fashion-MNIST.
        cifar: whether CIFAR-100's features are there to be learned.
        rows: training rows of Fashion-MNIST; all when None.
    """

    seeds: int = 3
    filters: tuple[int, ...] = (100, 200)
    cifar: bool = True
    rows: int | None = None


def fashion_encoders(config: Config) -> dict[str, Encoder | None]:
    """Name to encoder; None for raw pixels."""
    patches: dict[str, Encoder | None] = {
        f"{count} random patches": random_patches(SIDE, count) for count in config.filters
    }
    return patches | {
        "raw pixels": None,
        "sparse autoencoder": sparse_autoencoder(),
        "sparse autoencoder, shrink 2": sparse_autoencoder(shrink=2.0),
    }


@cache
def readout_of(num_nodes: int) -> Learner:
    """-R in information form, made once; one node is as good as none."""
    return edrvfl(num_layers=1, num_nodes=num_nodes, ridge=RIDGE, k=0.0, solver="information")


def readouts(width: int) -> dict[str, Learner]:
    """Linear, and with as many random nodes beside the features as pay at that width."""
    found = {"ridge": readout_of(1)}
    if width < WIDE:
        nodes = 4096 if width < 500 else 2000
        found[f"edRVFL, N = {nodes}"] = readout_of(nodes)
    return found


def learned(
    case: fm.Case, learner: Learner, key: Any, *, fine: bool = False
) -> tuple[Record, Callable[..., Any]]:
    """Accuracy with the lambda that GCV chooses, and the predictor."""
    candidates = FINE if fine else CANDIDATES
    run = run_stream(learner, case.stream, key=key, evaluate="never", expert=None, guesses=False)
    scores = generalised_cross_validation(
        run.state, candidates, ridge=RIDGE, num_rows=case.stream.num_rows
    )
    at = int(np.argmin(scores[:, 0]))
    state = with_ridge(run.state, candidates[at], ridge=RIDGE)
    predict = partial(learner.predict, state)
    choice = {
        "chosen": {"lambda": float(candidates[at])},
        "edge": at in (0, len(candidates) - 1),
        "candidates": candidates,
        "GCV": scores[:, 0],
    }
    return {"choice": choice, **accuracies(case, np.asarray(predict(case.Z_test)))}, predict


def accuracies(case: fm.Case, scores: np.ndarray) -> Record:
    """Under all protocols, over the whole test set."""
    class_task = case.stream.class_task
    # A discriminant of little shrinkage has scores of 1e10 whose differences decide.
    with jax.enable_x64(True):
        hits = protocol_hits(
            np.asarray(scores, np.float64),
            case.columns,
            class_task=class_task,
            seen=np.ones(len(class_task), bool),
        )
    return {name: float(np.mean(hit)) for name, hit in hits.items()}


def measure_case(
    name: str, case: fm.Case, raw_test: np.ndarray, seed: int, once: Once, *, fine: bool = False
) -> None:
    """All readouts and peers on one stream of features."""
    key = jax.random.key(seed)
    for readout, learner in readouts(case.stream.X.shape[-1]).items():
        place = f"{name} | seed {seed} | {readout}"
        once(place, _guarded, case, raw_test, learner, key, fine=fine)
    for peer in peers.PEERS:
        once(f"{name} | seed {seed} | {peer}", of_peer, case, peer, seed)


def _guarded(
    case: fm.Case, raw_test: np.ndarray, learner: Learner, key: Any, *, fine: bool
) -> Record:
    record, predict = learned(case, learner, key, fine=fine)
    encode = case.encoded.encode_test if case.encoded else np.asarray
    leak_guard(lambda X: predict(encode(X)), raw_test[:GUARDED_ROWS])
    return record | {"leak guard": "passed"}


def of_peer(case: fm.Case, name: str, seed: int) -> Record:
    """Accuracy with the settings that are best on held-out training rows, and the choice."""
    peer = peers.PEERS[name]
    if peer.grid is peers.shrinkages:
        peer = replace(peer, grid=partial(peers.shrinkages, lowest=-10))
    choice = peers.choose(peer, case.stream, seed, share=HELD_OUT, count=len(CANDIDATES))
    scores = peer.fit(case.stream, seed, **choice["chosen"])(case.Z_test.astype(np.float64))
    return {"choice": choice, **accuracies(case, scores)}


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for name in FEATURES if config.cifar else ():
        # Missing files are told before hours have passed.
        cifar100(name)
    for seed in range(config.seeds):
        for name, encoder in fashion_encoders(config).items():
            label = f"Fashion-MNIST | {name}"
            if _complete(file, f"{label} | seed {seed}"):
                continue
            with steps_shown(f"seed {seed}, {label}", file) as once:
                case = fm.raw_case(seed, 20, config.rows)
                raw_test = case.Z_test
                if encoder is not None:
                    case = fm.encoded_case(case, encoder, "frozen", "first_batch", seed)
                measure_case(label, case, raw_test, seed, once, fine=name in FINE_ENCODERS)
                once(f"{label} | seed {seed} | complete", dict)
        for name in FEATURES if config.cifar else ():
            label = f"CIFAR-100 | {name}"
            if _complete(file, f"{label} | seed {seed}"):
                continue
            with steps_shown(f"seed {seed}, {label}", file) as once:
                case = cifar100_case(name, seed, num_tasks=10, num_batches=400)
                measure_case(label, case, case.Z_test, seed, once)
                once(f"{label} | seed {seed} | complete", dict)


def _complete(file: ResultsFile, place: str) -> bool:
    return f"{place} | complete" in file.records


def best_first(file: ResultsFile) -> list[tuple[tuple[str, str, str], list[Record]]]:
    """((data, encoder, readout), records of all seeds), best first within each data set."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for place, record in file.records.items():
        data, encoder, _, readout = place.split(" | ")
        if readout != "complete":
            groups.setdefault((data, encoder, readout), []).append(record)
    return sorted(
        groups.items(),
        key=lambda item: (item[0][0], -np.mean([r["class_incremental"] for r in item[1]])),
    )


def tabulate(file: ResultsFile, folder: Path) -> None:
    """Means and deviations over seeds, what was chosen, and a line for what is left out."""
    rows = []
    for names, found in best_first(file):
        cells = [
            mean_and_deviation([record[protocol] for record in found], 100, 2)
            for protocol in ("class_incremental", "task_aware")
        ]
        choices = [record["choice"] for record in found if "choice" in record]
        chosen = peers.shown_over_seeds(choices) if choices else ""
        rows.append([*names, *cells, chosen, str(len(found))])
    wide = {row[1] for row in rows if "random patches" in row[1]}
    for encoder in sorted(wide):
        count = int(encoder.split()[0]) * FEATURES_A_FILTER
        times = ((count + 2000) / count) ** 2
        reason = (
            f"left out: {count:,} random features already; nodes make it {times:.1f} times the work"
        )
        rows.append(["Fashion-MNIST", encoder, "edRVFL, N = 2000", "", "", reason, ""])
    headings = (
        *("data", "encoder", "readout", "class incremental %", "task aware %"),
        *("chosen, by seed", "seeds"),
    )
    fixed = [f"- {name}: {peer.fixed}." for name, peer in peers.PEERS.items()]
    after = (
        f"\nChosen by generalised cross-validation of the learned state: lambda, {_grids(file)};"
        f" by the accuracy on a fifth of each class of the training rows, held out, and learned on"
        f' all of them: {len(CANDIDATES)} settings of each peer. "edge": the best is at an end of'
        " its grid. Fixed:\n\n"
        "- ridge, edRVFL: -R, one sub-learner of ReLU nodes, inputs as they are.\n"
        + "\n".join(fixed)
        + "\n"
    )
    write_table(folder, headings, rows, after=after)


def _grids(file: ResultsFile) -> str:
    """The grids of lambda that records were chosen from, in words."""
    found = {
        tuple(record["choice"]["candidates"])
        for record in file.records.values()
        if "candidates" in record.get("choice", {})
    }
    told = [f"{len(grid)} values from {grid[0]:g} to {grid[-1]:g}" for grid in sorted(found)]
    return " or ".join(told)


def draw(file: ResultsFile, path: Path) -> None:
    """Class-incremental accuracy of every encoder and readout, ours filled, peers hollow."""
    from matplotlib.figure import Figure

    from rvfl_jax.plots import COLOURS

    ranked = best_first(file)
    sets = list(dict.fromkeys(names[0] for names, _ in ranked))
    sizes = [sum(names[0] == data for names, _ in ranked) for data in sets]
    figure = Figure(figsize=(10, 1.6 + 0.3 * sum(sizes)), layout="constrained")
    panels = figure.subplots(len(sets), 1, height_ratios=sizes, squeeze=False)[:, 0]
    for panel, data in zip(panels, sets, strict=True):
        shown = [(names[1:], found) for names, found in ranked if names[0] == data][::-1]
        encoders = list(dict.fromkeys(names[0] for names, _ in shown[::-1]))
        for at, ((encoder, readout), found) in enumerate(shown):
            colour = COLOURS[encoders.index(encoder) % len(COLOURS)]
            values = 100 * np.array([record["class_incremental"] for record in found])
            spread = values.std(ddof=min(1, len(values) - 1))
            panel.errorbar(
                values.mean(),
                at,
                xerr=spread,
                fmt="o",
                ms=7,
                color=colour,
                mfc="white" if readout in peers.PEERS else colour,
                mew=1.6,
                capsize=3,
            )
            panel.annotate(
                f"{values.mean():.1f}",
                (values.mean() + spread, at),
                (9, 0),
                textcoords="offset points",
                va="center",
                fontsize=9,
            )
        labels = [f"{encoder}: {readout}" for (encoder, readout), _ in shown]
        panel.set_yticks(range(len(shown)), labels, fontsize=9)
        for label, ((encoder, _), _) in zip(panel.get_yticklabels(), shown, strict=True):
            label.set_color(COLOURS[encoders.index(encoder) % len(COLOURS)])
        panel.set(xlim=(0, 100), ylim=(-0.7, len(shown) - 0.3))
        panel.set_xlabel("class-incremental accuracy %")
        panel.set_title(data, loc="left")
        panel.grid(axis="x", color="0.92")
        panel.spines[["top", "right"]].set_visible(False)
    figure.suptitle(
        "One pass, no replay: full marks are ours, hollow ones peers; colours are encoders"
    )
    figure.savefig(path, dpi=110)


def main(config: Config, out: Path = RESULTS / "beyond") -> None:
    """Measure what is missing, then write results.json, table.csv, table.md and accuracy.png.

    Args:
        config: what is compared.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(file, out)
    draw(file, out / "accuracy.png")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
