"""The paper's claims, each put to a test: `python -m experiments.claims`.

On every data set and in both orders (new classes task by task, and rows in random order) one
sweep runs all of lambda x strength over the same streams and networks, so that styles are
compared in pairs: same seed, same rows, same features. -R and -kF choose among as many settings
(65 values of lambda; 13 of lambda times 5 of k) by the prequential loss, which sees no test row.
Differences come with 95 % intervals of their mean over seeds (Student's t), and where an interval
holds 0 nothing is claimed.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.fashion_mnist import PAPER_K
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
STRENGTHS = np.array([0.0, 0.25, 0.5, 1.0, PAPER_K, 2.0])
# -R alone has as many settings to choose from as -kF has with 5 strengths.
FINE_RIDGES = np.logspace(-3, 3, 65)
# T of the streams on which robustness to T is tried.
BATCHES = (5, 20, 100)
COLD_STARTS = ("exact", "paper")
KAPPAS, SIGMAS = np.logspace(-1, 2, 4), np.logspace(-5, 0, 6)
TAKES_OUT = "taking out what it put in"
FIXED: dict[str, Any] = {
    "-R": 0.0,
    "-F": 1.0,
    "-kF": PAPER_K,
    "-kF-Bayes": adaptive_k(reuse_k=True),
}
ORDERS = ("new classes", "random order")
DATA = ("digits", "EfficientNet-lite0, ImageNet")


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: pairs that every difference is taken over.
        num_batches: of each stream.
        rows: training rows of CIFAR-100's features.
        test_rows: of CIFAR-100's features.
        num_nodes: N; one sub-learner.
        data: of `DATA`.
    """

    seeds: int = 10
    num_batches: int = 100
    rows: int = 5_000
    test_rows: int = 2_500
    num_nodes: int = 256
    data: tuple[str, ...] = DATA


def data_of(config: Config, name: str) -> Dataset:
    """Digits, or a feature file by its name in `experiments.features`."""
    data = cifar100(name) if name in FEATURES else load_dataset(name)
    some = slice(config.test_rows)
    return data._replace(X_test=data.X_test[some], y_test=data.y_test[some])


def streams_of(
    config: Config, name: str, order: str, num_batches: int | None = None
) -> list[Stream]:
    """One stream a seed, padded alike; in random order every class is there from the start."""
    data = data_of(config, name)
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
                num_batches=num_batches or config.num_batches,
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

    def ridge_alone(self, ridge: Any) -> Learner:
        """-R."""
        return edrvfl(**self.network, ridge=ridge, k=0.0)

    def literal(self, ridge: Any) -> Learner:
        """-kF-Bayes as printed, untuned: it takes out another k than it had put in."""
        return edrvfl(**self.network, ridge=ridge, k=adaptive_k())

    def untuned(self, ridge: Any) -> Learner:
        """-kF-Bayes that takes out what it had put in, with default kappa and sigma."""
        return edrvfl(**self.network, ridge=ridge, k=adaptive_k(reuse_k=True))

    def adaptive(self, ridge: float) -> Any:
        """The same with kappa and sigma to choose, at one lambda."""
        return lambda kappa, sigma: edrvfl(
            **self.network, ridge=ridge, k=adaptive_k(kappa, sigma, reuse_k=True)
        )

    def fixed(self, ridge: float, style: str, cold_start: str = "exact") -> Learner:
        """A style at one lambda."""
        return edrvfl(**self.network, ridge=ridge, k=FIXED[style], cold_start=cold_start)


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    makers = Makers(config)
    for name in config.data:
        for order in ORDERS:
            place = f"{name} | {order}"
            with steps_shown(place, file) as once:
                for kind, (make, grid) in sweeps_of(makers).items():
                    once(f"{place} | {kind}", _swept, config, make, name, order, grid)
                once(f"{place} | expert", _expert, config, makers, name, order)
                alone = file.records[f"{place} | ridge alone"]
                ridge = alone["ridge axis"][_best(np.array(alone["loss"]))[0]]
                grid = {"kappa": KAPPAS, "sigma": SIGMAS}
                make = makers.adaptive(ridge)
                once(f"{place} | adaptive", _swept, config, make, name, order, grid)
                for style in FIXED:
                    once(
                        f"{place} | regret | {style}",
                        _regret,
                        config,
                        makers.fixed(ridge, style),
                        name,
                        order,
                    )
                if order == "new classes":
                    for style in FIXED:
                        for cold_start in COLD_STARTS:
                            learner = makers.fixed(ridge, style, cold_start)
                            at = f"{place} | T | {style} | {cold_start}"
                            once(at, _over_batches, config, learner, name)


def sweeps_of(makers: Makers) -> dict[str, tuple[Any, dict[str, np.ndarray]]]:
    """Kind of sweep to its maker and grid."""
    coarse = RIDGES[::3]
    return {
        "ridge alone": (makers.ridge_alone, {"ridge": FINE_RIDGES}),
        "constant": (makers.constant, {"ridge": RIDGES, "k": STRENGTHS}),
        "literal": (makers.literal, {"ridge": coarse}),
        "untuned": (makers.untuned, {"ridge": coarse}),
    }


def _swept(config: Config, make: Any, name: str, order: str, grid: dict[str, np.ndarray]) -> Record:
    """Losses and accuracies with an axis of seeds last; every seed has a network of its own."""
    data, streams = data_of(config, name), streams_of(config, name, order)
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


def _regret(config: Config, learner: Learner, name: str, order: str) -> Record:
    """Regret and KL against the offline expert of the same lambda, every 5 batches, a seed."""
    data, found = data_of(config, name), []
    for seed, stream in enumerate(streams_of(config, name, order)):
        history = run_stream(
            learner,
            stream,
            key=jax.random.key(seed),
            test=(data.X_test, data.y_test),
            evaluate=5,
        ).history
        found.append((history.regret, history.kl))
    regret, kl = (np.stack(curves, axis=-1) for curves in zip(*found, strict=True))
    return {"regret": regret, "kl": kl}


def _over_batches(config: Config, learner: Learner, name: str) -> Record:
    """(T, seed) accuracy at the end over the T of `BATCHES`."""
    data, found = data_of(config, name), []
    for T in BATCHES:
        accuracies = []
        for seed, stream in enumerate(streams_of(config, name, "new classes", T)):
            run = run_stream(
                learner,
                stream,
                key=jax.random.key(seed),
                test=(data.X_test, data.y_test),
                evaluate=T,
                expert=None,
                on_failure="return",
            )
            accuracies.append(run.history.accuracy["class_incremental"][-1])
        found.append(accuracies)
    return {"accuracy": np.array(found)}


def _expert(config: Config, makers: Makers, name: str, order: str) -> Record:
    """How far -R, exact, is from the offline expert at the end of the stream."""
    data, gaps = data_of(config, name), []
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
    rows = [
        row
        for name in config.data
        for order in ORDERS
        for row in _rows_at(file, f"{name} | {order}", f"{name}, {order}")
    ]
    claims = list(dict.fromkeys(row[0] for row in rows))
    yield from sorted(rows, key=lambda row: claims.index(row[0]))


def _rows_at(file: ResultsFile, place: str, where: str) -> Iterator[tuple[str, str, str, str]]:
    def of(kind: str) -> dict[str, np.ndarray]:
        record = file.records[f"{place} | {kind}"]
        return {name: np.array(values, dtype=float) for name, values in record.items()}

    alone, constant, adaptive = of("ridge alone"), of("constant"), of("adaptive")
    expert = file.records[f"{place} | expert"]["largest relative difference of scores"]
    yield (
        "-R ends where the offline expert is",
        where,
        f"largest relative difference of test scores {expert:.1e}",
        "holds" if expert < 1e-6 else "does not hold",
    )
    yield from _of_strength(alone, constant, where)
    yield from _of_regret({style: of(f"regret | {style}") for style in FIXED}, where)
    yield from _of_bayes(constant, {"as printed": of("literal"), TAKES_OUT: of("untuned")}, where)
    yield _of_sensitivity(adaptive, where)
    if "new classes" in place:
        ends = {
            (style, cold): of(f"T | {style} | {cold}")["accuracy"]
            for style in FIXED
            for cold in COLD_STARTS
        }
        yield from _of_batches(ends, where)
        yield _of_transfer(constant, where)


def _of_strength(
    alone: dict[str, np.ndarray], constant: dict[str, np.ndarray], where: str
) -> Iterator[tuple[str, ...]]:
    at_zero, chosen = _best(alone["loss"]), _best_forward(constant["loss"])
    claims = (
        ("-kF at its best k and lambda loses no more than -R at its best lambda", "loss"),
        ("-kF lowers the prequential loss of the first quarter", "early"),
        ("-kF at its best ends with higher accuracy than -R", "accuracy"),
    )
    for claim, measure_name in claims:
        percent = measure_name == "accuracy"
        scale, unit = (100, " points") if percent else (1, "")
        difference = scale * (constant[measure_name][chosen] - alone[measure_name][at_zero])
        mean, low, high = interval(difference)
        evidence = (
            f"k = {constant['k axis'][chosen[1]]:g}, lambda {constant['ridge axis'][chosen[0]]:.3g}"
            f" against lambda {alone['ridge axis'][at_zero[0]]:.3g}:"
            f" {mean:+.4f} [{low:+.4f}, {high:+.4f}]{unit}"
        )
        yield (
            claim,
            where,
            evidence,
            _verdict(-mean, -high, -low) if not percent else _verdict(mean, low, high),
        )
    yield _of_causes(constant, where)


def _verdict(gain: float, low: float, high: float) -> str:
    """Of a gain and its interval."""
    return "holds" if low > 0 else "reversed" if high < 0 else "no difference"


def _of_causes(constant: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    """The loss that k lowers at the lambda best for -R, beside what lambda lowers at k = 0."""
    ridge = _best(constant["loss"][:, :1])[0]
    k = int(constant["loss"][ridge].mean(axis=-1).argmin())
    middle = len(constant["ridge axis"]) // 2
    of_k = interval(constant["loss"][ridge, 0] - constant["loss"][ridge, k])
    of_ridge = interval(constant["loss"][middle, 0] - constant["loss"][ridge, 0])
    shown = (f"{mean:.4f} [{low:.4f}, {high:.4f}]" for mean, low, high in (of_k, of_ridge))
    by_k, by_ridge = shown
    evidence = (
        f"lowered by k = {constant['k axis'][k]:g} at -R's lambda: {by_k};"
        f" by lambda {constant['ridge axis'][ridge]:.3g} in place of 1 at k = 0: {by_ridge}"
    )
    gains = {"k": of_k, "lambda": of_ridge}
    real = [name for name, (_, low, _) in gains.items() if low > 0]
    verdict = max(real, key=lambda name: gains[name][0], default="neither")
    return "what lowers the loss: k or lambda", where, evidence, verdict


def _best_forward(loss: np.ndarray) -> tuple[int, ...]:
    """The best place among strengths above 0."""
    ridge, k = _best(loss[:, 1:])
    return ridge, k + 1


def _of_regret(
    curves: dict[str, dict[str, np.ndarray]], where: str
) -> Iterator[tuple[str, str, str, str]]:
    """Regret at one lambda, so that all have one expert; seeds are the last axis."""
    quarter = len(curves["-R"]["regret"]) // 4
    base = curves["-R"]["regret"]
    for style in ("-F", "-kF", "-kF-Bayes"):
        lower = []
        for part in (slice(quarter), slice(None)):
            ridge = base[part].sum(axis=0)
            lower.append(
                interval(100 * (ridge - curves[style]["regret"][part].sum(axis=0)) / ridge)
            )
        early, whole = (f"{mean:+.2f} % [{low:+.2f}, {high:+.2f}]" for mean, low, high in lower)
        yield (
            "forward regularisation lowers regret, early above all",
            f"{where}, {style}",
            f"cumulative regret less than -R's by: first quarter {early}; whole stream {whole}",
            _verdict(*lower[0]),
        )


def _of_bayes(
    constant: dict[str, np.ndarray], variants: dict[str, dict[str, np.ndarray]], where: str
) -> Iterator[tuple[str, ...]]:
    best = _best(constant["loss"])
    for variant, swept in variants.items():
        place = _best(np.nan_to_num(swept["loss"], nan=np.inf))
        mean, low, high = interval(swept["loss"][place] - constant["loss"][best])
        share = mean / float(constant["loss"][best].mean())
        gap = 100 * float((swept["accuracy"][place] - constant["accuracy"][best]).mean())
        yield (
            "-kF-Bayes with default kappa and sigma is near the best constant k",
            f"{where}, {variant}",
            f"loss {mean:+.4f} [{low:+.4f}, {high:+.4f}], {share:+.2%};"
            f" accuracy at the end {gap:+.2f} points",
            "holds (within 1 %)" if share < 0.01 else "does not hold",
        )


def _of_sensitivity(adaptive: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    loss, accuracy, k = (adaptive[name].mean(axis=-1) for name in ("loss", "accuracy", "k"))
    return (
        "-kF-Bayes hardly depends on kappa and sigma",
        where,
        f"over {loss.size} settings loss {loss.min():.4f} to {loss.max():.4f}, accuracy at the end"
        f" {100 * accuracy.min():.2f} to {100 * accuracy.max():.2f} %, mean k {k.min():.1e} to"
        f" {k.max():.1e}",
        "holds" if loss.max() / loss.min() < 1.01 else "does not hold for the loss",
    )


def _of_batches(
    ends: dict[tuple[str, str], np.ndarray], where: str
) -> Iterator[tuple[str, str, str, str]]:
    """How far apart the accuracies at the ends of streams of few and of many batches are."""
    for cold_start in COLD_STARTS:
        means = {style: 100 * ends[style, cold_start].mean(axis=1) for style in FIXED}
        spread = {style: float(np.ptp(mean)) for style, mean in means.items()}
        shown = "; ".join(
            f"{style} " + " / ".join(f"{value:.2f}" for value in mean)
            for style, mean in means.items()
        )
        forward = max(value for style, value in spread.items() if style != "-R")
        both = max(spread.values())
        yield (
            "forward regularisation makes the result robust to T",
            f"{where}, cold start {cold_start}",
            f"accuracy at the end % at T = {' / '.join(map(str, BATCHES))}: {shown}",
            "all alike, -R too"
            if both < 0.5
            else "holds"
            if forward < 0.5 * spread["-R"]
            else "does not hold",
        )


def _of_transfer(constant: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    mean, low, high = interval(100 * constant["BWT"][_best(constant["loss"])])
    evidence = f"{mean:+.2f} [{low:+.2f}, {high:+.2f}] points over all classes"
    return "backward transfer is positive", where, evidence, _verdict(mean, low, high)


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
