"""The paper's claims, each put to a test: `python -m experiments.claims`.

On every data set and in both orders (new classes task by task, and rows in random order) one
sweep runs all of lambda x strength over the same streams and networks, so that styles are
compared in pairs: same seed, same rows, same features. Lambda is chosen for every style alike,
by the prequential loss. Differences come with 95 % intervals of their mean over seeds (Student's
t), and where an interval holds 0 nothing is claimed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.features import FEATURES, cifar100
from experiments.results_file import Record, ResultsFile, markdown_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import (
    Learner,
    Stream,
    adaptive_k,
    class_incremental_stream,
    edrvfl,
    offline_scores,
    pad_batches,
    run_stream,
    sweep,
)
from rvfl_jax.data import Dataset, load_dataset
from rvfl_jax.encoders import leak_guard
from rvfl_jax.metrics import backward_transfer

RIDGES = np.logspace(-3, 3, 13)
STRENGTHS = np.array([0.0, 0.25, 0.5, 1.0, 1.4142127133, 2.0])
KAPPAS, SIGMAS = np.logspace(-1, 2, 4), np.logspace(-5, 0, 6)
ORDERS = ("new classes", "random order")
DATA = ("digits", "EfficientNet-lite0, ImageNet")


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: pairs that every difference is taken over.
        num_batches: of each stream.
        rows: training rows of CIFAR-100's features.
        num_nodes: N; one sub-learner.
        data: of `DATA`.
    """

    seeds: int = 10
    num_batches: int = 100
    rows: int = 10_000
    num_nodes: int = 256
    data: tuple[str, ...] = DATA


def data_of(name: str) -> Dataset:
    """Digits, or a feature file by its name in `experiments.features`."""
    return cifar100(name) if name in FEATURES else load_dataset(name)


def streams_of(config: Config, name: str, order: str) -> list[Stream]:
    """One stream a seed, padded alike; in random order every class is there from the start."""
    data = data_of(name)
    streams = []
    for seed in range(config.seeds):
        rng = np.random.default_rng(seed)
        rows = rng.permutation(len(data.X_train))[: config.rows]
        tasks = 1 if order == "random order" else 5
        streams.append(
            class_incremental_stream(
                data.X_train[rows],
                data.y_train[rows],
                num_tasks=tasks,
                num_batches=config.num_batches,
                seed=seed,
            )
        )
    longest = max(stream.X.shape[1] for stream in streams)
    return [pad_batches(stream, longest) for stream in streams]


class Makers:
    """`make_learner` of the two sweeps, one object a configuration."""

    def __init__(self, config: Config):
        self.network = {"num_layers": 1, "num_nodes": config.num_nodes}

    def constant(self, ridge: Any, k: Any) -> Learner:
        """-R, -F and -kF."""
        return edrvfl(**self.network, ridge=ridge, k=k)

    def adaptive(self, ridge: Any, kappa: Any, sigma: Any) -> Learner:
        """-kF-Bayes that takes out what it had put in."""
        return edrvfl(**self.network, ridge=ridge, k=adaptive_k(kappa, sigma, reuse_k=True))


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    makers = Makers(config)
    for name in config.data:
        for order in ORDERS:
            place = f"{name} | {order}"
            with steps_shown(place, file) as once:
                once(f"{place} | constant", _constant, config, makers, name, order)
                once(f"{place} | adaptive", _adaptive, config, makers, name, order)
                once(f"{place} | expert", _expert, config, makers, name, order)


def _constant(config: Config, makers: Makers, name: str, order: str) -> Record:
    return _swept(config, makers.constant, name, order, {"ridge": RIDGES, "k": STRENGTHS})


def _adaptive(config: Config, makers: Makers, name: str, order: str) -> Record:
    grid = {"ridge": RIDGES[::3], "kappa": KAPPAS, "sigma": SIGMAS}
    return _swept(config, makers.adaptive, name, order, grid)


def _swept(config: Config, make: Any, name: str, order: str, grid: dict[str, np.ndarray]) -> Record:
    """Losses and accuracies with an axis of seeds last; every seed has a network of its own."""
    data, streams = data_of(name), streams_of(config, name, order)
    parts = []
    for seed, stream in enumerate(streams):
        result = sweep(
            make,
            stream,
            grid,
            key=jax.random.key(seed),
            test=(data.X_test, data.y_test),
            evaluate="task",
            progress=True,
        )
        quarter = config.num_batches // 4
        parts.append(
            {
                "loss": result.prequential_loss,
                "early": result.loss[..., :quarter].mean(axis=-1),
                "accuracy": result.accuracy["class_incremental"][..., -1],
                "on the way": result.accuracy["seen"].mean(axis=-1),
                "BWT": _backward(result.task_accuracy["class_incremental"]),
                "k": result.k_next.mean(axis=(-2, -1)),
            }
        )
    stacked = {name: np.stack([part[name] for part in parts], axis=-1) for name in parts[0]}
    return stacked | {f"{axis} axis": np.asarray(values) for axis, values in grid.items()}


def _backward(task_accuracy: np.ndarray) -> np.ndarray:
    """BWT of R matrices (..., Q, Q)."""
    Q = task_accuracy.shape[-1]
    each = [backward_transfer(R) for R in task_accuracy.reshape(-1, Q, Q)]
    return np.reshape(each, task_accuracy.shape[:-2])


def _expert(config: Config, makers: Makers, name: str, order: str) -> Record:
    """How far -R, exact, is from the offline expert at the end of the stream."""
    data, gaps = data_of(name), []
    learner = makers.constant(1.0, 0.0)
    for seed, stream in enumerate(streams_of(config, name, order)):
        key = jax.random.key(seed)
        want = offline_scores(learner, stream, data.X_test, key=key)
        state = run_stream(learner, stream, key=key, expert=None).state
        got = np.asarray(learner.scores(state, data.X_test))
        gaps.append(float(np.abs(got - want).max() / np.abs(want).max()))
        if seed == 0:
            leak_guard(lambda X, state=state: learner.predict(state, X), data.X_test[:1000])
    return {"largest relative difference of scores": max(gaps), "leak guard": "passed"}


def interval(differences: Any) -> tuple[float, float, float]:
    """Mean, and the ends of its 95 % interval by Student's t."""
    from scipy.stats import t

    values = np.asarray(differences, dtype=float)
    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return float(values.mean()), float(values.mean() - half), float(values.mean() + half)


def _best(loss: np.ndarray) -> tuple[int, ...]:
    """The place of least loss, averaged over seeds (the last axis)."""
    mean = loss.mean(axis=-1)
    return tuple(int(i) for i in np.unravel_index(np.argmin(mean), mean.shape))


def rows_of(config: Config, file: ResultsFile) -> Iterator[tuple[str, str, str, str]]:
    """(claim, where, evidence, verdict), one row a claim, data set and order."""
    for name in config.data:
        for order in ORDERS:
            where = f"{name}, {order}"
            place = f"{name} | {order}"
            constant = _arrays(file.records[f"{place} | constant"])
            adaptive = _arrays(file.records[f"{place} | adaptive"])
            expert = file.records[f"{place} | expert"]["largest relative difference of scores"]
            yield (
                "-R ends where the offline expert is",
                where,
                f"largest relative difference of test scores {expert:.1e}",
                "holds" if expert < 1e-6 else "does not hold",
            )
            yield from _of_strength(constant, where)
            yield from _of_bayes(constant, adaptive, where)
            if order == "new classes":
                yield _of_transfer(constant, where)


def _arrays(record: Record) -> dict[str, np.ndarray]:
    return {name: np.array(values, dtype=float) for name, values in record.items()}


def _of_strength(constant: dict[str, np.ndarray], where: str) -> Iterator[tuple[str, ...]]:
    at_zero = (_best(constant["loss"][:, :1])[0], 0)
    chosen = _best_forward(constant["loss"])
    claims = (
        ("-kF at its best k and lambda loses no more than -R at its best lambda", "loss"),
        ("forward regularisation lowers the loss of the first quarter", "early"),
        ("-kF at its best ends with higher accuracy", "accuracy"),
    )
    for claim, measure_name in claims:
        values = constant[measure_name]
        mean, low, high = interval(values[chosen] - values[at_zero])
        scale = 100 if measure_name == "accuracy" else 1
        unit = " points" if measure_name == "accuracy" else ""
        evidence = (
            f"k = {constant['k axis'][chosen[1]]:g}, lambda {constant['ridge axis'][chosen[0]]:.3g}"
            f" against lambda {constant['ridge axis'][at_zero[0]]:.3g}:"
            f" {scale * mean:+.4f} [{scale * low:+.4f}, {scale * high:+.4f}]{unit}"
        )
        better = low > 0 if measure_name == "accuracy" else high < 0
        worse = high < 0 if measure_name == "accuracy" else low > 0
        yield (
            claim,
            where,
            evidence,
            "holds" if better else "reversed" if worse else "no difference",
        )
    same = constant["loss"][at_zero[0], _best_at(constant["loss"], at_zero[0])]
    mean, low, high = interval(same - constant["loss"][at_zero])
    tuned = interval(
        constant["loss"][at_zero] - constant["loss"][len(constant["ridge axis"]) // 2, 0]
    )
    yield (
        "what comes from k, and what from lambda",
        where,
        f"best k at -R's lambda: loss {mean:+.4f} [{low:+.4f}, {high:+.4f}];"
        f" best lambda against lambda 1, k = 0: {tuned[0]:+.4f} [{tuned[1]:+.4f}, {tuned[2]:+.4f}]",
        "k" if -mean > -tuned[0] else "lambda",
    )


def _best_forward(loss: np.ndarray) -> tuple[int, ...]:
    """The best place among strengths above 0."""
    ridge, k = _best(loss[:, 1:])
    return ridge, k + 1


def _best_at(loss: np.ndarray, ridge: int) -> int:
    return int(loss[ridge].mean(axis=-1).argmin())


def _of_bayes(
    constant: dict[str, np.ndarray], adaptive: dict[str, np.ndarray], where: str
) -> Iterator[tuple[str, ...]]:
    kappa, sigma = int(np.argmin(np.abs(KAPPAS - 1))), 0
    untuned = adaptive["loss"][:, kappa, sigma]
    at = int(untuned.mean(axis=-1).argmin())
    best = constant["loss"][_best(constant["loss"])]
    mean, low, high = interval(untuned[at] - best)
    share = mean / float(best.mean())
    yield (
        "-kF-Bayes with default kappa and sigma is near the best constant k",
        where,
        f"loss {mean:+.4f} [{low:+.4f}, {high:+.4f}], {share:+.2%}",
        "holds (within 1 %)" if share < 0.01 else "does not hold",
    )
    over = adaptive["loss"][at].mean(axis=-1)
    accuracy = 100 * adaptive["accuracy"][at].mean(axis=-1)
    yield (
        "-kF-Bayes hardly depends on kappa and sigma",
        where,
        f"over {over.size} settings loss {over.min():.4f} to {over.max():.4f}, accuracy at the end"
        f" {accuracy.min():.2f} to {accuracy.max():.2f} %, mean k"
        f" {adaptive['k'][at].min():.1e} to {adaptive['k'][at].max():.1e}",
        "holds" if over.max() / over.min() < 1.01 else "does not hold for the loss",
    )


def _of_transfer(constant: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    best = _best(constant["loss"])
    mean, low, high = interval(100 * constant["BWT"][best])
    return (
        "backward transfer is positive",
        where,
        f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] points, ten-way"
        if "digits" in where
        else f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] points",
        "holds" if low > 0 else "reversed" if high < 0 else "no difference",
    )


def write_table(config: Config, file: ResultsFile, path: Path) -> None:
    """One row a claim and place."""
    headings = ("claim", "where", "evidence (loss: prequential, squared)", "verdict")
    path.write_text(markdown_table(headings, rows_of(config, file)), encoding="utf-8")


def main(config: Config, out: Path = RESULTS / "claims") -> None:
    """Measure what is missing, then write results.json and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    write_table(config, file, out / "table.md")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
