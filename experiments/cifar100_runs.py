"""What the experiments on CIFAR-100 measure; `experiments.cifar100` tells what for.

Every number of a table or picture is in a record of `results.json`. Curves are kept to eight
significant digits, strengths to six.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import numpy as np

from experiments.comparison import accuracy_of, expert_of, guarded, run_and_keep
from experiments.fashion_mnist import VARIANTS, Case, encoded_case
from experiments.features import FEATURES, cifar100_case
from experiments.regions import measure_regions, states_at_ends
from experiments.results_file import Record, ResultsFile
from experiments.settings import Once, steps_shown
from rvfl_jax import (
    Learner,
    Sweep,
    adaptive_k,
    edrvfl,
    generalised_cross_validation,
    run_stream,
    sweep,
    with_ridge,
)
from rvfl_jax.encoders import sparse_autoencoder

HONEST = next(iter(FEATURES))
NUM_BATCHES = 400
# Batches between two looks at the test set, at most.
APART = 20
RIDGE = 2.0**-4
# Of the paper's table: network, forward strength, and the autoencoder on top.
PAPER: dict[str, dict[str, Any]] = {
    "-R": {"num_nodes": 512, "num_layers": 1, "activation": "leaky_relu", "k": 0.0},
    "-kF": {"num_nodes": 8, "num_layers": 5, "activation": "relu", "k": 2.2867217520},
    "-kF-Bayes": {"num_nodes": 512, "num_layers": 1, "activation": "tanh", "k": adaptive_k()},
}
ON_TOP = {"-R": (20, 10, 1000), "-kF": (30, 10, 1000), "-kF-Bayes": (20, 10, 900)}
# One network for all styles, where only the style is to make the difference.
COMMON = {"num_nodes": 512, "num_layers": 1, "activation": "relu"}
ABLATIONS: dict[str, dict[str, int]] = {
    "L + 2": {"extra_layers": 2},
    "N = 1024": {"num_nodes": 1024},
}
# Varied one at a time from the common network.
LAYERS = (1, 2, 3, 5, 8)
NODES = (2, 8, 32, 128, 512, 1024, 2048)
KAPPAS, SIGMAS = np.logspace(-3, 3, 7), np.logspace(-6, 1, 8)
# What one of them is held at while the other varies: what the paper names.
KAPPA, SIGMA = 1.0, 1e-5
# Of all test rows, these are looked at along the grid of kappa and sigma.
GRID_ROWS = 5000
# Runs whose strengths are shown, as in the paper.
PATHS = 6
CANDIDATES = np.logspace(-2, 4, 25)
GUARDED_ROWS = 1000
PICTURED_ROWS = 2000
PLAIN, BEHIND_F = "features", "behind F"


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of classes, tasks, rows and random features.
        tasks: the numbers of tasks.
        features: names of `experiments.features.FEATURES`.
        large_nodes: N of the network that is to come as far as it can.
    """

    seeds: int = 3
    tasks: tuple[int, ...] = (5, 10, 20, 100)
    features: tuple[str, ...] = tuple(FEATURES)
    large_nodes: int = 4096


@cache
def learner_of(style: str, extra_layers: int = 0, num_nodes: int | None = None) -> Learner:
    """A style at the paper's network, or with more layers or other nodes."""
    options = dict(PAPER[style])
    options["num_layers"] += extra_layers
    if num_nodes is not None:
        options["num_nodes"] = num_nodes
    return edrvfl(ridge=RIDGE, **options)


@cache
def common_learner(style: str, num_layers: int = 1) -> Learner:
    """A style at the network and lambda that all share, or with more layers."""
    return edrvfl(ridge=1.0, k=PAPER[style]["k"], **(COMMON | {"num_layers": num_layers}))


@cache
def large_learner(num_nodes: int) -> Learner:
    """-R in information form, which many nodes and few decisions ask for."""
    return edrvfl(ridge=1.0, k=0.0, solver="information", **(COMMON | {"num_nodes": num_nodes}))


def with_nodes(num_nodes: int, k: float) -> Learner:
    """A constant strength at the common network with other nodes; of a sweep."""
    return edrvfl(ridge=1.0, k=k, **(COMMON | {"num_nodes": num_nodes}))


def bayes_with_nodes(num_nodes: int, kappa: float) -> Learner:
    """-kF-Bayes at the common network with other nodes; of a sweep."""
    return edrvfl(ridge=1.0, k=adaptive_k(kappa), **(COMMON | {"num_nodes": num_nodes}))


def as_printed(kappa: float, sigma: float) -> Learner:
    """-kF-Bayes as printed at the common network; of a sweep."""
    return edrvfl(ridge=1.0, k=adaptive_k(kappa, sigma), **COMMON)


def reused(kappa: float, sigma: float) -> Learner:
    """-kF-Bayes with `reuse_k=True` at the common network; of a sweep."""
    return edrvfl(ridge=1.0, k=adaptive_k(kappa, sigma, reuse_k=True), **COMMON)


def rounded(values: Any, digits: int = 8) -> np.ndarray:
    """To so many significant digits, which keeps the file of results small."""
    values = np.asarray(values, dtype=float)
    return np.array([float(f"{v:.{digits}g}") for v in values.ravel()]).reshape(values.shape)


def settings_of(features: str, tasks: int) -> list[str]:
    """What is asked of a split: one network for all is compared on honest features alone."""
    honest = features == HONEST
    return ["paper"] + ["common"] * honest + ["F on top"] * (tasks == 10)


def place_of(features: str, tasks: int, seed: int, setting: str, style: str) -> str:
    """Name of the record of a run."""
    return f"{features} | {tasks} tasks | seed {seed} | {setting} | {style}"


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    measure_splits(config, file)
    measure_variations(config, file)
    measure_rest(config, file)
    measure_behind_f(config, file)


def measure_splits(config: Config, file: ResultsFile) -> None:
    """Every style at every split without F, then only the strengths of further seeds."""
    for features in config.features:
        for seed in range(config.seeds):
            for tasks in config.tasks:
                label = f"seed {seed + 1} of {config.seeds}, {features}, {tasks} tasks"
                with steps_shown(label, file) as once:
                    for setting in settings_of(features, tasks):
                        if setting != "F on top":
                            _measure_split(features, tasks, seed, setting, once)
    with steps_shown("strengths", file) as once:
        for features in config.features:
            for tasks in config.tasks:
                for seed in range(config.seeds, PATHS):
                    place = f"strengths | {features} | {tasks} tasks | seed {seed}"
                    once(place, _strengths, features, tasks, seed)


def measure_variations(config: Config, file: ResultsFile) -> None:
    """L, N, kappa and sigma, on ten tasks."""
    with steps_shown("ablations", file) as once:
        for seed in range(config.seeds):
            _measure_ablations(seed, once)
    with steps_shown("layers", file) as once:
        for seed in range(config.seeds):
            for style in PAPER:
                once(f"layers | seed {seed} | {style}", _layers, seed, style)
    with steps_shown("nodes", file) as once:
        for num_nodes in NODES:
            for seed in range(config.seeds):
                once(f"nodes {num_nodes} | seed {seed}", _nodes, num_nodes, seed)
    with steps_shown("sensitivity", file) as once:
        for variant, reuse in VARIANTS.items():
            for seed in range(config.seeds):
                once(f"sensitivity | {variant} | seed {seed}", _sensitivity, reuse, seed)


def measure_rest(config: Config, file: ResultsFile) -> None:
    """The large network, decision regions and the leak guard."""
    with steps_shown("large network", file) as once:
        for seed in range(config.seeds):
            once(f"large | seed {seed}", _large, config, seed)
        once("large | expert", _large_expert, config)
    with steps_shown("decision regions", file) as once:
        once(f"regions | {PLAIN}", _regions, PLAIN)
    with steps_shown("leak guard", file) as once:
        once("leak guard", _guarded)


def measure_behind_f(config: Config, file: ResultsFile) -> None:
    """Whatever has the sparse autoencoder between features and learner."""
    for features in config.features:
        for seed in range(config.seeds):
            label = f"seed {seed + 1} of {config.seeds}, {features}, F on top"
            with steps_shown(label, file) as once:
                for tasks in config.tasks:
                    if "F on top" in settings_of(features, tasks):
                        _measure_split(features, tasks, seed, "F on top", once)
    with steps_shown("regions and leak guard behind F", file) as once:
        once(f"regions | {BEHIND_F}", _regions, BEHIND_F)
        once("leak guard | F on top", _guarded_on_top)


def _case(seed: int, tasks: int = 10) -> Case:
    return cifar100_case(HONEST, seed, num_tasks=tasks, num_batches=NUM_BATCHES)


def _measure_split(features: str, tasks: int, seed: int, setting: str, once: Once) -> None:
    case = cifar100_case(features, seed, num_tasks=tasks, num_batches=NUM_BATCHES)
    shared = cache(lambda: expert_of(case, common_learner("-R"), jax.random.key(seed)))
    for style in PAPER:
        place = place_of(features, tasks, seed, setting, style)
        once(place, _measured, case, setting, style, seed, shared)


def _measured(
    case: Case, setting: str, style: str, seed: int, shared: Callable[[], np.ndarray]
) -> Record:
    if setting == "common":
        return kept_of(case, common_learner(style), seed, scores=shared())
    case = _on_top(case, style) if setting == "F on top" else case
    strengths = (setting, style) == ("paper", "-kF-Bayes")
    return kept_of(case, learner_of(style), seed, strengths=strengths)


def kept_of(
    case: Case,
    learner: Learner,
    seed: int,
    *,
    scores: np.ndarray | None = None,
    strengths: bool = False,
) -> Record:
    """A run beside the offline expert: its metrics, and curves at 20 batches at least.

    Args:
        case: what is learned.
        learner: the method.
        seed: of its network.
        scores: of the offline expert with that network; fitted here when None.
        strengths: whether k of every batch is kept.
    """
    key = jax.random.key(seed)
    scores = expert_of(case, learner, key) if scores is None else scores
    every = min(case.stream.num_batches // case.stream.num_tasks, APART)
    record = run_and_keep(case, learner, key, evaluate=every, expert=scores)
    for name in ("k_t", "k_next", "prequential", "learner_accuracy"):
        kept = record.pop(name)
        if strengths and name.startswith("k_"):
            record[name] = rounded(kept[:, 0], 6)
    record["curves"] = {name: rounded(record["curves"][name]) for name in KEPT_CURVES}
    for name in ("regret", "kl_curve", "excess_loss", "kl_from_expert_curve"):
        record[name] = rounded(record[name])
    return record | {"expert accuracy": accuracy_of(scores, case, learner)}


KEPT_CURVES = ("class_incremental", "seen")


def _strengths(features: str, tasks: int, seed: int) -> Record:
    """Both strengths of -kF-Bayes as printed, at every batch."""
    case = cifar100_case(features, seed, num_tasks=tasks, num_batches=NUM_BATCHES)
    learner, key = learner_of("-kF-Bayes"), jax.random.key(seed)
    history = run_stream(learner, case.stream, key=key, expert=None).history
    return {
        "k_t": rounded(history.k_t[:, 0], 6),
        "k_next": rounded(history.k_next[:, 0], 6),
        "task_ends": case.stream.task_ends,
    }


def _on_top(case: Case, style: str) -> Case:
    """F, fitted on the first batch of features and frozen, between features and learner."""
    return encoded_case(case, sparse_autoencoder(*ON_TOP[style]), "frozen", "first_batch", 0)


def _measure_ablations(seed: int, once: Once) -> None:
    case = _case(seed)
    for style in PAPER:
        for name, options in ABLATIONS.items():
            place = f"ablation | seed {seed} | {style} | {name}"
            once(place, kept_of, case, learner_of(style, **options), seed)


def _layers(seed: int, style: str) -> Record:
    learner = common_learner(style, max(LAYERS))
    return along_layers(_case(seed), learner, jax.random.key(seed), LAYERS)


def along_layers(case: Case, learner: Learner, key: Any, layers: tuple[int, ...]) -> Record:
    """Accuracies of the first so many layers of one deep network, which learn independently.

    Args:
        case: what is learned, task after task.
        learner: of the most layers.
        key: of its network; fewer layers drawn with it are its first ones.
        layers: the numbers of layers.

    Returns:
        "last", accuracy at the end, and "A_bar", mean over task ends of that on the classes
        seen, for each number of layers.
    """
    stream, class_task = case.stream, case.stream.class_task
    row_task = class_task[case.columns]
    reached: list[list[float]] = []
    for q, state in enumerate(states_at_ends(stream, learner, key)):
        met = row_task <= q
        scores = np.asarray(learner.scores(state, case.Z_test[met]))
        guesses = (np.asarray(learner.combine(scores[:most])).argmax(axis=1) for most in layers)
        reached.append([float(np.mean(guess == case.columns[met])) for guess in guesses])
    return {"layers": layers, "last": reached[-1], "A_bar": rounded(np.mean(reached, axis=0))}


def _nodes(num_nodes: int, seed: int) -> Record:
    """-R and -kF in one program, which share eta_dagger, then -kF-Bayes."""
    case, found = _case(seed), {}
    constant = {"num_nodes": [num_nodes], "k": [PAPER["-R"]["k"], PAPER["-kF"]["k"]]}
    adaptive = {"num_nodes": [num_nodes], "kappa": [KAPPA]}
    for make, grid, styles in (
        (with_nodes, constant, ("-R", "-kF")),
        (bayes_with_nodes, adaptive, ("-kF-Bayes",)),
    ):
        result = _swept(case, make, grid, seed)
        for place, style in enumerate(styles):
            found[style] = {name: value[0, place] for name, value in result.items()}
    return found


def _swept(
    case: Case,
    make: Callable[..., Learner],
    grid: dict[str, Any],
    seed: int,
    rows: int | None = None,
) -> Record:
    """Accuracies and losses over a grid, looked at where tasks end."""
    result: Sweep = sweep(
        make,
        case.stream,
        grid,
        key=jax.random.key(seed),
        test=(case.Z_test[:rows], case.y_test[:rows]),
        evaluate="task",
    )
    return {
        "prequential_loss": rounded(result.prequential_loss),
        "last": rounded(result.accuracy["class_incremental"][..., -1]),
        "A_bar": rounded(result.accuracy["seen"].mean(axis=-1)),
        "k": rounded(result.k_next.mean(axis=(-2, -1))),
    }


def _sensitivity(reuse_k: bool, seed: int) -> Record:
    """Losses and accuracies over kappa and sigma, everything else as it is."""
    grid = {"kappa": KAPPAS, "sigma": SIGMAS}
    found = _swept(_case(seed), reused if reuse_k else as_printed, grid, seed, GRID_ROWS)
    return {"kappa": KAPPAS, "sigma": SIGMAS} | found


def _large(config: Config, seed: int) -> Record:
    """-R as wide as it pays; lambda by generalised cross-validation on what was learned."""
    case, key = _case(seed), jax.random.key(seed)
    learner = large_learner(config.large_nodes)
    run = run_stream(
        learner,
        case.stream,
        key=key,
        test=(case.Z_test, case.y_test),
        evaluate=NUM_BATCHES,
        expert=None,
        guesses=False,
    )
    gcv = generalised_cross_validation(
        run.state, CANDIDATES, ridge=1.0, num_rows=case.stream.num_rows
    )
    chosen = float(CANDIDATES[gcv[:, 0].argmin()])
    scores = learner.scores(with_ridge(run.state, chosen, ridge=1.0), case.Z_test)
    return {
        "accuracy at lambda 1": float(run.history.accuracy["class_incremental"][-1]),
        "accuracy at chosen lambda": accuracy_of(np.asarray(scores), case, learner),
        "chosen lambda": chosen,
    }


def _large_expert(config: Config) -> Record:
    """The offline expert of the large network, which costs as much as a run, of the first seed."""
    case, learner = _case(0), large_learner(config.large_nodes)
    return {"accuracy": accuracy_of(expert_of(case, learner, jax.random.key(0)), case, learner)}


def _regions(name: str) -> Record:
    """The styles at the network and lambda that all share, or -R with F between."""
    case, styles = _case(0, tasks=5), list(PAPER)
    if name == BEHIND_F:
        case, styles = _on_top(case, "-R"), ["-R"]
    learners = {style: common_learner(style) for style in styles}
    return measure_regions(case, learners, jax.random.key(0), PICTURED_ROWS)


def _guarded() -> Record:
    return guarded(_case(0), common_learner("-R"), jax.random.key(0), GUARDED_ROWS)


def _guarded_on_top() -> Record:
    case = _case(0)
    encoded, key = _on_top(case, "-R"), jax.random.key(0)
    return guarded(encoded, learner_of("-R"), key, GUARDED_ROWS, raw_test=case.Z_test)
