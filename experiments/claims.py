"""The paper's claims, each put to a test: `python -m experiments.claims`.

On every data set and in both orders (new classes task by task, and rows in random order) one
sweep runs all of lambda x strength over the same streams and networks, so that styles are
compared in pairs: same seed, same rows, same features. -R and -kF choose among as many settings
(65 values of lambda; 13 of lambda times 5 of k), -kF-Bayes among 13 of lambda, by the
prequential loss averaged over the seeds, which sees no test row. Differences come with 95 %
intervals of their mean over seeds (Student's t), and where an interval holds 0 nothing is
claimed. -kF-Bayes is tried as printed, where k_t is estimated anew, and taking out what it put
in (`adaptive_k(reuse_k=True)`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

from experiments.fashion_mnist import PAPER_K, VARIANTS
from experiments.features import FEATURES, cifar100
from experiments.results_file import Record, ResultsFile, write_table
from experiments.settings import RESULTS, Once, steps_shown
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
STRENGTHS = np.array([0.0, 0.005, 0.02, 0.08, 0.3, 1.0])
# -R alone has as many settings to choose from as -kF has with 5 strengths.
FINE_RIDGES = np.logspace(-3, 3, 65)
# T of the streams on which robustness to T is tried.
BATCHES = (5, 20, 100)
COLD_STARTS = ("exact", "paper")
KAPPAS, SIGMAS = np.logspace(-3, 2, 6), np.logspace(-5, 0, 6)
FIXED: dict[str, Any] = {
    "-R": 0.0,
    "-F": 1.0,
    "-kF": PAPER_K,
    **{f"-kF-Bayes {name}": adaptive_k(reuse_k=reuse) for name, reuse in VARIANTS.items()},
}
# Seeds on feature files, whose runs take longer.
FEATURE_SEEDS = 5
# Losses as near as that count as no more, and A-bar as near as that as insensitive.
LOSS_MARGIN, POINTS = 0.005, 1.0
AS_EXPERT = "-R ends where the offline expert is"
ORDERS = ("new classes", "random order")
DATA = ("digits", "EfficientNet-lite0, ImageNet")


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: pairs that every difference is taken over; at most `FEATURE_SEEDS` on features.
        num_batches: of each stream.
        rows: training rows of CIFAR-100's features.
        test_rows: of CIFAR-100's features, drawn at random.
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
    # Rows of feature files come in the order of their classes.
    some = np.random.default_rng(0).permutation(len(data.y_test))[: config.test_rows]
    return data._replace(X_test=data.X_test[some], y_test=data.y_test[some])


def seeds_of(config: Config, name: str) -> int:
    """How many seeds a data set has."""
    return min(config.seeds, FEATURE_SEEDS) if name in FEATURES else config.seeds


def streams_of(
    config: Config, name: str, order: str, num_batches: int | None = None
) -> list[Stream]:
    """One stream a seed, padded alike; in random order every class is there from the start."""
    data = data_of(config, name)
    streams = []
    for seed in range(seeds_of(config, name)):
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

    def untuned(self, reuse_k: bool) -> Any:
        """-kF-Bayes with default kappa and sigma."""
        return lambda ridge: edrvfl(**self.network, ridge=ridge, k=adaptive_k(reuse_k=reuse_k))

    def adaptive(self, ridge: float, reuse_k: bool) -> Any:
        """-kF-Bayes with kappa and sigma to choose, at one lambda."""
        return lambda kappa, sigma: edrvfl(
            **self.network, ridge=ridge, k=adaptive_k(kappa, sigma, reuse_k=reuse_k)
        )

    def fixed(self, ridge: float, style: str, cold_start: str = "exact") -> Learner:
        """A style at one lambda."""
        return edrvfl(**self.network, ridge=ridge, k=FIXED[style], cold_start=cold_start)


def place_of(config: Config, name: str, order: str) -> str:
    """How records begin; a record holds all seeds, so their number is part of its name."""
    return f"{name} | {order} | {seeds_of(config, name)} seeds"


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    makers = Makers(config)
    for name in config.data:
        for order in ORDERS:
            place = place_of(config, name, order)
            with steps_shown(place, file) as once:
                _measure_at(config, makers, name, order, place, once)


def _measure_at(
    config: Config, makers: Makers, name: str, order: str, place: str, once: Once
) -> None:
    def swept(kind: str, make: Any, grid: dict[str, np.ndarray]) -> Record:
        return once(f"{place} | {kind}", _swept, config, make, name, order, grid)

    alone = swept("ridge alone", makers.ridge_alone, {"ridge": FINE_RIDGES})
    ridge = alone["ridge axis"][_best(np.array(alone["loss"]))[0]]
    swept("constant", makers.constant, {"ridge": RIDGES, "k": STRENGTHS})
    for variant, reuse in VARIANTS.items():
        swept(f"untuned {variant}", makers.untuned(reuse), {"ridge": RIDGES})
        grid = {"kappa": KAPPAS, "sigma": SIGMAS}
        swept(f"adaptive {variant}", makers.adaptive(ridge, reuse), grid)
    once(f"{place} | expert", _expert, config, makers, name, order)
    for style in FIXED:
        learner = makers.fixed(ridge, style)
        once(f"{place} | regret | {style}", _regret, config, learner, name, order)
        if order == "new classes":
            for cold_start in COLD_STARTS:
                learner = makers.fixed(ridge, style, cold_start)
                once(f"{place} | T | {style} | {cold_start}", _over_batches, config, learner, name)


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
    """Regret and KL, eqs. (34)-(35), and both against the offline expert, every 5 batches."""
    data, found = data_of(config, name), []
    for seed, stream in enumerate(streams_of(config, name, order)):
        history = run_stream(
            learner,
            stream,
            key=jax.random.key(seed),
            test=(data.X_test, data.y_test),
            evaluate=5,
        ).history
        found.append(history)
    return {
        name: np.stack([getattr(history, name) for history in found], axis=-1)
        for name in ("regret", "kl", "excess_loss", "kl_from_expert")
    }


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
        for row in _rows_at(file, place_of(config, name, order), f"{name}, {order}")
    ]
    claims = list(dict.fromkeys(row[0] for row in rows))
    yield from sorted(rows, key=lambda row: claims.index(row[0]))


def _rows_at(file: ResultsFile, place: str, where: str) -> Iterator[tuple[str, str, str, str]]:
    def of(kind: str) -> dict[str, np.ndarray]:
        record = file.records[f"{place} | {kind}"]
        return {name: np.array(values, dtype=float) for name, values in record.items()}

    alone, constant = of("ridge alone"), of("constant")
    expert = file.records[f"{place} | expert"]["largest relative difference of scores"]
    yield (
        AS_EXPERT,
        f"{where}, exact cold start",
        f"largest relative difference of test scores {expert:.1e}",
        "holds" if expert < 1e-6 else "does not hold",
    )
    yield from _of_strength(alone, constant, where)
    yield from _of_regret({style: of(f"regret | {style}") for style in FIXED}, where)
    yield from _of_bayes(constant, {name: of(f"untuned {name}") for name in VARIANTS}, where)
    for variant in VARIANTS:
        yield _of_sensitivity(of(f"adaptive {variant}"), f"{where}, {variant}")
    if "new classes" in place:
        ends = {
            (style, cold): 100 * of(f"T | {style} | {cold}")["accuracy"]
            for style in FIXED
            for cold in COLD_STARTS
        }
        yield _of_cold_start(ends, where)
        yield from _of_batches(ends, where)
        yield _of_transfer(constant, where)


def _of_strength(
    alone: dict[str, np.ndarray], constant: dict[str, np.ndarray], where: str
) -> Iterator[tuple[str, ...]]:
    at_zero, chosen = _best(alone["loss"]), _best_forward(constant["loss"])
    settings = (
        f"k = {_told(constant['k axis'][1:], chosen[1] - 1)}, lambda"
        f" {_told(constant['ridge axis'], chosen[0])} against lambda"
        f" {_told(alone['ridge axis'], at_zero[0])}"
    )
    more = interval(constant["loss"][chosen] - alone["loss"][at_zero])
    margin = LOSS_MARGIN * float(alone["loss"][at_zero].mean())
    yield (
        "-kF at its best k and lambda loses no more than -R at its best lambda",
        where,
        f"{settings}: {in_words(more)}",
        _no_more(more, margin),
    )
    earlier = interval(alone["early"][at_zero] - constant["early"][chosen])
    yield (
        "-kF lowers the prequential loss of the first quarter",
        where,
        f"{settings}: lower by {in_words(earlier)}",
        _verdict(*earlier),
    )
    accuracy, ridge = 100 * constant["accuracy"], chosen[0]
    tuned = interval(accuracy[chosen] - 100 * alone["accuracy"][at_zero])
    equal = interval(accuracy[chosen] - accuracy[ridge, 0])
    better = _verdict(*equal)
    yield (
        "-kF at its best ends with higher accuracy than -R",
        where,
        f"{settings}: {in_words(tuned, 2)} points; at equal lambda {in_words(equal, 2)}",
        "by lambda alone" if better != "holds" and _verdict(*tuned) == "holds" else better,
    )
    yield _of_causes(constant, where)


def _told(axis: np.ndarray, place: int) -> str:
    """A chosen value, and that it is the last of its grid if it is."""
    edge = " (the edge of the grid)" if place in (0, len(axis) - 1) and len(axis) > 1 else ""
    return f"{axis[place]:.3g}{edge}"


def in_words(found: tuple[float, float, float], digits: int = 4) -> str:
    """A mean with its interval."""
    mean, low, high = (f"{value:+.{digits}f}" for value in found)
    return f"{mean} [{low}, {high}]"


def _no_more(difference: tuple[float, float, float], margin: float) -> str:
    """Of a loss that is to exceed another by no more than a margin."""
    _, low, high = difference
    if high < 0:
        return "holds, loses less"
    return "holds, as near as that" if high <= margin else "does not hold" if low > 0 else "open"


def _verdict(gain: float, low: float, high: float) -> str:
    """Of a gain and its interval."""
    return "holds" if low > 0 else "reversed" if high < 0 else "no difference"


def _of_causes(constant: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    """What the wrong k costs at the lambda best for -R, beside what a lambda ten times off does."""
    loss = constant["loss"]
    ridge = _best(loss[:, :1])[0]
    over_k = loss[ridge].mean(axis=-1)
    of_k = interval(loss[ridge, over_k.argmax()] - loss[ridge, over_k.argmin()])
    decade = int(np.argmin(np.abs(constant["ridge axis"] / constant["ridge axis"][0] - 10)))
    others = [at for at in (ridge - decade, ridge + decade) if 0 <= at < len(loss)]
    worse = max(others, key=lambda at: loss[at, 0].mean())
    of_ridge = interval(loss[worse, 0] - loss[ridge, 0])
    evidence = (
        f"worst k for best at lambda {constant['ridge axis'][ridge]:.3g}: loss {in_words(of_k)};"
        f" lambda {constant['ridge axis'][worse]:.3g} for it at k = 0: {in_words(of_ridge)}"
    )
    larger = "k" if of_k[1] > of_ridge[2] else "lambda" if of_ridge[1] > of_k[2] else "neither"
    return "what decides the loss: k or lambda", where, evidence, larger


def _best_forward(loss: np.ndarray) -> tuple[int, ...]:
    """The best place among strengths above 0."""
    ridge, k = _best(loss[:, 1:])
    return ridge, k + 1


def _of_regret(
    curves: dict[str, dict[str, np.ndarray]], where: str
) -> Iterator[tuple[str, str, str, str]]:
    """Regret at -R's lambda; seeds are the last axis."""
    quarter = len(curves["-R"]["regret"]) // 4
    base = curves["-R"]["regret"]
    for style in list(FIXED)[1:]:
        lower = []
        for part in (slice(quarter), slice(None)):
            ridge = base[part].sum(axis=0)
            saved = ridge - curves[style]["regret"][part].sum(axis=0)
            lower.append(interval(100 * saved / ridge))
        early, whole = (in_words(found, 3) for found in lower)
        yield (
            "forward regularisation lowers regret, early above all",
            f"{where}, {style}",
            f"at -R's lambda, less than -R's by: first quarter {early} %; whole stream {whole} %",
            _verdict(*lower[0]),
        )


def _of_bayes(
    constant: dict[str, np.ndarray], variants: dict[str, dict[str, np.ndarray]], where: str
) -> Iterator[tuple[str, ...]]:
    best = _best(constant["loss"])
    scale = 100 / float(constant["loss"][best].mean())
    for variant, swept in variants.items():
        place = _best(np.nan_to_num(swept["loss"], nan=np.inf))
        more = interval(scale * (swept["loss"][place] - constant["loss"][best]))
        gap = interval(100 * (swept["accuracy"][place] - constant["accuracy"][best]))
        yield (
            "-kF-Bayes with default kappa and sigma is near the best constant k",
            f"{where}, {variant}",
            f"loss {in_words(more, 2)} %; accuracy at the end {in_words(gap, 2)} points",
            "holds (within 1 %)" if more[2] < 1 else "does not hold" if more[1] > 1 else "open",
        )


def _of_sensitivity(adaptive: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    """A-bar of the best and the worst kappa and sigma, as the paper has it, and the loss."""
    way = 100 * adaptive["on the way"]
    mean = way.mean(axis=-1)
    best, worst = (np.unravel_index(at, mean.shape) for at in (mean.argmax(), mean.argmin()))
    apart = interval(way[best] - way[worst])
    loss, last = (adaptive[name].mean(axis=-1) for name in ("loss", "accuracy"))
    return (
        "-kF-Bayes hardly depends on kappa and sigma",
        where,
        f"over {mean.size} settings A-bar {mean.min():.2f} to {mean.max():.2f} %, apart"
        f" {in_words(apart, 2)} points; accuracy at the end {100 * last.min():.2f} to"
        f" {100 * last.max():.2f} %; loss {loss.min():.3f} to {loss.max():.3f}",
        f"holds (within {POINTS:g} point)" if apart[2] < POINTS else "does not hold",
    )


def _of_cold_start(
    ends: dict[tuple[str, str], np.ndarray], where: str
) -> tuple[str, str, str, str]:
    """What the cold start as printed costs -R, in points of accuracy at the end."""
    costs = [
        interval(printed - exact)
        for printed, exact in zip(ends["-R", "paper"], ends["-R", "exact"], strict=True)
    ]
    lost = [str(T) for T, (_, _, high) in zip(BATCHES, costs, strict=True) if high < 0]
    shown = "; ".join(
        f"T = {T}: {in_words(cost, 2)}" for T, cost in zip(BATCHES, costs, strict=True)
    )
    return (
        AS_EXPERT,
        f"{where}, cold start as printed",
        f"accuracy beyond the expert's, points: {shown}",
        f"does not hold at T = {', '.join(lost)}" if lost else "no difference",
    )


def _of_batches(
    ends: dict[tuple[str, str], np.ndarray], where: str
) -> Iterator[tuple[str, str, str, str]]:
    """How much a stream of few batches costs, beside what it costs -R."""
    for cold_start in COLD_STARTS:
        few_many = {style: ends[style, cold_start][[0, -1]] for style in FIXED}
        cost = {style: interval(many - few) for style, (few, many) in few_many.items()}
        for style in list(FIXED)[1:]:
            moved = {at: np.abs(few_many[at][1] - few_many[at][0]) for at in ("-R", style)}
            verdict = _verdict(*interval(moved["-R"] - moved[style]))
            if verdict == "holds" and moved[style].mean() > moved["-R"].mean() / 2:
                verdict = "hardly"
            yield (
                "forward regularisation makes the result robust to T",
                f"{where}, {style}, cold start {cold_start}",
                f"accuracy lost from T = {BATCHES[-1]} to {BATCHES[0]}, points:"
                f" {in_words(cost[style], 2)}; -R {in_words(cost['-R'], 2)}",
                verdict,
            )


def _of_transfer(constant: dict[str, np.ndarray], where: str) -> tuple[str, str, str, str]:
    mean, low, high = interval(100 * constant["BWT"][_best(constant["loss"])])
    evidence = f"{in_words((mean, low, high), 2)} points over all classes"
    return "backward transfer is positive", where, evidence, _verdict(mean, low, high)


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """One row a claim and place."""
    headings = ("claim", "where", "evidence (loss: prequential, squared)", "verdict")
    write_table(folder, headings, rows_of(config, file))


def main(config: Config, out: Path = RESULTS / "claims") -> None:
    """Measure what is missing, then write results.json, table.csv and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
