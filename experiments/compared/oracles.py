"""ER, DER++ and EWC beside Avalanche's and Mammoth's: `python -m experiments.compared.oracles`.

Fashion-MNIST, five tasks of two classes, one pass over all 60,000 training rows. Both sides see the
same pixels in 0 .. 1, the same tasks in the same order, the same rows in the same batches of 32,
and begin at the same network of two hidden layers of 400 ReLU nodes; both take one step of plain
gradient descent a batch, in single precision. What a method draws, its memory and the rows of a
replay, is drawn by each side's own code. The bar is a mean difference of at most two points of
class-incremental accuracy after the last task.

- Fine-tuning, a control: Avalanche's Naive. Nothing is drawn; both sides do the same.
- EWC: Avalanche's EWC plugin, a penalty a task. It squares the gradient of a batch's mean loss,
  and its penalty is lambda times the quadratic without the half. Here it is called with lambda / 2
  and with batches of one row for the importance, of the last 256 rows of a task as ours; nothing is
  drawn. As it is, importance of all rows in batches of 32, it stands in a row of its own: the
  square of a mean of b gradients that were independent with mean 0 is 1/b of the mean of squares,
  so that its lambda counts 1/b of ours and more where the mean is not 0. The ratio of the traces is
  in the table.
- ER: Mammoth's Er, of the group of DER++, and Avalanche's Replay with its reservoir buffer, where
  an experience is a batch, as in its online scenarios.
- DER++: Mammoth's Derpp, its authors' own. Avalanche's is none to compare with: it keeps logits of
  after the batch, balances classes, and has one draw for both terms.

The peers run in another interpreter, since both want versions of their own:

    python3.11 -m venv PEERS
    PEERS/bin/pip install torch==2.14.1 torchvision==0.29.1 avalanche-lib==0.6.0 kornia timm pyyaml
    git clone https://github.com/aimagelab/mammoth MAMMOTH
    git -C MAMMOTH checkout e75a491c69fd729edeb01431afb753d9157d9a81
    python -m experiments.compared.oracles --peer-python PEERS/bin/python --mammoth MAMMOTH

Without both options ours alone is measured, and rows of peers are those kept.
"""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import jax
import numpy as np
import tyro

from experiments import fashion_mnist as fm
from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import Learner, run_stream
from rvfl_jax.learners.derpp import derpp
from rvfl_jax.learners.er import er
from rvfl_jax.learners.ewc import ewc
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.metrics import accuracy_matrix, average_accuracy, incremental_accuracy

OURS = "ours"
LEARNERS: dict[str, Callable[..., Learner]] = {
    "finetune": finetune,
    "ewc": ewc,
    "er": er,
    "derpp": derpp,
}
# Points of the mean difference.
BAR = 2.0
# Of methods that draw nothing: both sides differ by roundings on every seed.
SEEDS_WITHOUT_DRAWS = 5


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of the order of tasks and rows, the network, and all draws; of methods that draw
            nothing the first five at most.
        batch: rows of a batch; must divide the rows of a task.
        rows: training rows, the same number of each class; all when None.
        hidden: nodes of the two hidden layers.
        memories: rows that ER and DER++ keep.
        drawn: rows of a draw.
        rate: of fine-tuning and ER.
        rate_of_derpp: and alpha and beta are its `answers` and `labels`.
        rate_of_ewc: lower, since lambda makes the loss steep.
        coefficient: lambda of EWC.
        window: rows that EWC's importance is taken of.
    """

    seeds: int = 10
    batch: int = 32
    rows: int | None = None
    hidden: tuple[int, int] = (400, 400)
    memories: tuple[int, ...] = (200, 500)
    drawn: int = 10
    rate: float = 0.1
    rate_of_derpp: float = 0.03
    answers: float = 1.0
    labels: float = 0.5
    rate_of_ewc: float = 0.01
    coefficient: float = 100.0
    window: int = 256


class Method(NamedTuple):
    """A learner with its settings, and what of the peers is held against it.

    Attributes:
        learner: name in `LEARNERS`.
        settings: of the learner.
        peers: name to (library, what its job has beside the settings).
    """

    learner: str
    settings: dict[str, Any]
    peers: dict[str, tuple[str, dict[str, Any]]]


def methods_of(config: Config) -> dict[str, Method]:
    """What is compared, by the names of the table."""
    methods = {
        "fine-tuning": Method(
            "finetune", {"learning_rate": config.rate}, {"Avalanche, Naive": ("avalanche", {})}
        ),
        f"EWC, lambda {config.coefficient:g}": Method(
            "ewc",
            {
                "learning_rate": config.rate_of_ewc,
                "coefficient": config.coefficient,
                "window": config.window,
            },
            {
                "Avalanche, EWC of single rows": ("avalanche", {"single_rows": True}),
                "Avalanche, EWC as it is": ("avalanche", {"single_rows": False}),
            },
        ),
    }
    for memory in config.memories:
        replay = {"memory": memory, "drawn": config.drawn}
        methods[f"ER, {memory} rows"] = Method(
            "er",
            {"learning_rate": config.rate} | replay,
            {"Mammoth, Er": ("mammoth", {}), "Avalanche, Replay": ("avalanche", {})},
        )
        weights = {"answers": config.answers, "labels": config.labels}
        methods[f"DER++, {memory} rows"] = Method(
            "derpp",
            {"learning_rate": config.rate_of_derpp} | weights | replay,
            {"Mammoth, Derpp": ("mammoth", {})},
        )
    return methods


def seeds_of(method: str, config: Config) -> range:
    """That it is measured on."""
    draws = "drawn" in methods_of(config)[method].settings
    return range(config.seeds if draws else min(config.seeds, SEEDS_WITHOUT_DRAWS))


@cache
def learner_of(method: str, config: Config) -> Learner:
    """Made once: every learner object is a program of its own."""
    learner, settings, _ = methods_of(config)[method]
    return LEARNERS[learner](hidden=config.hidden, **settings)


# --- both sides -------------------------------------------------------------------------------


def case_of(config: Config, seed: int) -> fm.Case:
    """A stream without padding, since peers know of no weights."""
    rows = config.rows or len(fm.fashion_mnist().X_train)
    case = fm.raw_case(seed, rows // config.batch, config.rows)
    if case.stream.X.shape[1] != config.batch or not (case.stream.weight > 0).all():
        raise ValueError(f"batch: expected a divisor of the rows of a task, got {config.batch}")
    return case


def start_of(method: str, config: Config, case: fm.Case, seed: int) -> Any:
    """The state that both sides begin with."""
    features, classes = case.stream.X.shape[-1], len(case.stream.classes)
    return learner_of(method, config).init(jax.random.key(seed), features, classes)


def run_ours(method: str, config: Config, case: fm.Case, seed: int) -> Record:
    """Accuracies on each task after each; seconds with evaluation and compilation."""
    begin = time.perf_counter()
    run = run_stream(
        learner_of(method, config),
        case.stream,
        key=jax.random.key(seed),
        state=start_of(method, config, case, seed),
        test=(case.Z_test, case.y_test),
        evaluate="task",
        expert=None,
        guesses=False,
        precision="single",
        boundaries="given",
    )
    record = {
        "R": run.history.R["class_incremental"],
        "seconds": time.perf_counter() - begin,
    }
    if methods_of(config)[method].learner == "ewc":
        importance = jax.tree.leaves(run.state.anchor.importance)
        record["importance"] = sum(
            np.sum(leaf, dtype=float) for leaf in map(np.asarray, importance)
        )
    return record


class Peers:
    """Peers as processes that wait for jobs; without interpreters there are none."""

    def __init__(self, python: Path | None, mammoth: Path | None):
        # A job has files of its own, and a peer may change its folder.
        self.commands: dict[str, list[str]] = {}
        script = str(Path(__file__).with_name("oracles_peer.py"))
        if python is not None:
            # Not resolved: a link to an interpreter is what makes its environment.
            self.commands["avalanche"] = [str(python.absolute()), script, "avalanche"]
            if mammoth is not None:
                folder = str(mammoth.resolve())
                self.commands["mammoth"] = [str(python.absolute()), script, "mammoth", folder]
        self.running: dict[str, subprocess.Popen[str]] = {}
        self.versions: dict[str, Record] = {}

    def ask(self, library: str, job: Record) -> Record:
        """The answer to a job, with the peer's versions."""
        if library not in self.running:
            pipe = subprocess.PIPE
            command = self.commands[library]
            self.running[library] = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
            self.versions[library] = self._line(library)
        process = self.running[library]
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        return self._line(library) | {"peer": self.versions[library]}

    def _line(self, library: str) -> Record:
        process = self.running[library]
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            process.communicate()
            raise RuntimeError(f"{library}: its process ended with {process.returncode}, see above")
        return json.loads(line)

    def close(self) -> None:
        """Let them end."""
        for process in self.running.values():
            process.communicate()


@contextmanager
def peers_from(python: Path | None, mammoth: Path | None) -> Iterator[Peers]:
    """Peers that end with the block."""
    peers = Peers(python, mammoth)
    try:
        yield peers
    finally:
        peers.close()


def write_stream(path: Path, case: fm.Case) -> None:
    """What a peer reads."""
    stream = case.stream
    np.savez(
        path,
        X=stream.X,
        y=stream.y.astype(np.int64),
        task=np.asarray(stream.task),
        X_test=case.Z_test,
        y_test=case.columns.astype(np.int64),
        test_task=stream.class_task[case.columns],
    )


def write_start(path: Path, state: Any) -> None:
    """Kernels and biases in their order."""
    layers = state.params["params"]
    arrays = {}
    for i in range(len(layers)):
        arrays[f"kernel_{i}"] = np.asarray(layers[f"Dense_{i}"]["kernel"])
        arrays[f"bias_{i}"] = np.asarray(layers[f"Dense_{i}"]["bias"])
    np.savez(path, **arrays)


def measure(config: Config, file: ResultsFile, peers: Peers) -> None:
    """Fill the file with whatever is not there yet, the peers' where there are peers."""
    for seed in range(config.seeds):
        measure_seed(config, file, peers, seed)


def measure_seed(config: Config, file: ResultsFile, peers: Peers, seed: int) -> None:
    """Ours and the peers' of every method."""
    case = cache(lambda: case_of(config, seed))

    def ours(name: str) -> Record:
        return run_ours(name, config, case(), seed)

    with steps_shown(f"seed {seed}", file) as once, TemporaryDirectory() as folder:
        files = Files(config, seed, Path(folder), case)

        def theirs(name: str, library: str, extra: Record) -> Record:
            return peers.ask(library, files.job(name) | extra)

        for name, method in methods_of(config).items():
            if seed not in seeds_of(name, config):
                continue
            once(f"{name} | {OURS} | seed {seed}", ours, name)
            for peer, (library, extra) in method.peers.items():
                if library in peers.commands:
                    once(f"{name} | {peer} | seed {seed}", theirs, name, library, extra)


@dataclass(frozen=True)
class Files:
    """A seed's files for peers, written when they are first asked for."""

    config: Config
    seed: int
    folder: Path
    case: Callable[[], fm.Case]

    def job(self, name: str) -> Record:
        """A job, with its files there."""
        stream, start = self.folder / "stream.npz", self.folder / "start.npz"
        if not stream.is_file():
            write_stream(stream, self.case())
        write_start(start, start_of(name, self.config, self.case(), self.seed))
        method = methods_of(self.config)[name]
        return {
            "method": method.learner,
            "stream": str(stream),
            "start": str(start),
            "seed": self.seed,
            "hidden": self.config.hidden,
            "num_classes": len(self.case().stream.classes),
        } | method.settings


# --- the table --------------------------------------------------------------------------------

HEADINGS = (
    "method",
    "peer",
    "ours, %",
    "peer, %",
    "difference, points",
    "furthest seed",
    "ours, A-bar, %",
    "peer, A-bar, %",
    "importance, peer / ours",
    "seconds, ours",
    "seconds, peer",
    "seeds",
    f"within {BAR:g} points",
)


def final(record: Record) -> float:
    """Class-incremental accuracy after the last task; tasks have as many test rows, so ACC."""
    return 100 * average_accuracy(record["R"])


def on_the_way(record: Record) -> float:
    """A-bar: the mean over tasks of the accuracy on all classes so far."""
    R = accuracy_matrix(record["R"])
    return 100 * float(incremental_accuracy(R, [1] * len(R)).mean())


def pairs_of(config: Config, file: ResultsFile) -> Iterator[tuple[str, str, list[Any]]]:
    """Each method and peer, with the records of the seeds that both have."""
    for name, method in methods_of(config).items():
        for peer in method.peers:
            pairs = [
                [file.records.get(f"{name} | {side} | seed {seed}") for side in (OURS, peer)]
                for seed in seeds_of(name, config)
            ]
            yield name, peer, [pair for pair in pairs if None not in pair]


def rows_of(config: Config, file: ResultsFile) -> Iterator[list[str]]:
    """A line for each peer of each method that was measured."""
    for name, peer, pairs in pairs_of(config, file):
        if pairs:
            yield [name, peer, *_cells(pairs)]


def missing_from(config: Config, file: ResultsFile) -> str:
    """What was not measured, in words; nothing where all was."""
    parts = [
        f"{name} beside {peer}: {len(pairs)} of {len(seeds_of(name, config))} seeds"
        for name, peer, pairs in pairs_of(config, file)
        if len(pairs) < len(seeds_of(name, config))
    ]
    return (
        "\nNot measured yet, the same command goes on: " + "; ".join(parts) + ".\n" if parts else ""
    )


def _cells(pairs: list[Any]) -> list[str]:
    ours, theirs = zip(*pairs, strict=True)
    ends = np.array([[final(record) for record in side] for side in (ours, theirs)])
    apart = ends[0] - ends[1]
    ratio = ""
    if "importance" in theirs[0]:
        ratios = [b["importance"] / a["importance"] for a, b in pairs]
        ratio = mean_and_deviation(ratios, digits=3)
    return [
        mean_and_deviation(ends[0], digits=2),
        mean_and_deviation(ends[1], digits=2),
        mean_and_deviation(apart, digits=2),
        f"{apart[np.argmax(np.abs(apart))]:.2f}",
        *(mean_and_deviation(map(on_the_way, side), digits=2) for side in (ours, theirs)),
        ratio,
        *(f"{np.mean([record['seconds'] for record in side]):.0f}" for side in (ours, theirs)),
        str(len(pairs)),
        "yes" if abs(apart.mean()) <= BAR else "no",
    ]


BEFORE = """# ER, DER++ and EWC beside Avalanche's and Mammoth's own code

Fashion-MNIST, five tasks of two classes, one pass in batches of {batch}, 2 x {nodes} ReLU nodes,
plain gradient descent; both sides with the same rows in the same batches from the same parameters.
Class-incremental accuracy on all test rows after the last task, which is ACC too, as tasks have as
many test rows; A-bar is the mean over tasks of the accuracy on all classes so far. Means and sample
deviations over seeds; differences are ours minus the peer's, seed by seed.

"""
AFTER = """
Where nothing is drawn, fine-tuning and EWC of single rows, what is left between the sides are
roundings. "As it is" Avalanche's EWC squares gradients of batches: what its importance is of ours
is what its lambda counts of ours. Seconds are no benchmark: other work went on beside, and ours are
with compilation and evaluation.
"""


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """table.csv and table.md."""
    before = BEFORE.format(batch=config.batch, nodes=config.hidden[0])
    after = AFTER + missing_from(config, file)
    write_table(folder, HEADINGS, rows_of(config, file), before=before, after=after)


def main(
    config: Config,
    out: Path = RESULTS / "compared_oracles",
    peer_python: Path | None = None,
    mammoth: Path | None = None,
) -> None:
    """Measure what is missing, then write results.json, table.csv and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
        peer_python: interpreter that has PyTorch and Avalanche; without it ours alone is measured.
        mammoth: checkout of Mammoth.
    """
    file = ResultsFile(out / "results.json", config)
    with peers_from(peer_python, mammoth) as peers:
        measure(config, file, peers)
    tabulate(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
