"""The peers of `experiments.compared.oracles`, in an interpreter that has PyTorch and no JAX.

Run as a script, `python oracles_peer.py avalanche` or `python oracles_peer.py mammoth FOLDER`, with
FOLDER a checkout of Mammoth. One line of JSON names the versions; then every line of standard
input is a job, answered by a line with `R`, accuracies on each task after each, over all classes,
and `seconds`, evaluation taken out.

A job names two .npz files, the stream and the parameters to begin with, so that both sides see the
same rows in the same batches and begin at the same network. What is a peer's own is its training:
loss, penalty, memory, draws and updates. What is ours here is named where it stands.
"""

import json
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Callable
from functools import lru_cache
from importlib.metadata import version
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn


class Case(NamedTuple):
    """A stream of full batches X (T, b, s), y (T, b), and test rows; `task` of batches and rows."""

    X: torch.Tensor
    y: torch.Tensor
    task: np.ndarray
    X_test: torch.Tensor
    y_test: torch.Tensor
    test_task: torch.Tensor

    def rows_of(self, q: int) -> tuple[torch.Tensor, torch.Tensor]:
        """All rows of a task in their order."""
        of_task = torch.from_numpy(self.task == q)
        return self.X[of_task].flatten(0, 1), self.y[of_task].flatten()

    @property
    def num_tasks(self) -> int:
        return int(self.task.max()) + 1


@lru_cache(maxsize=1)
def case_in(path: str) -> Case:
    """The stream in a file."""
    with np.load(path) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in Case._fields}
    return Case(**arrays)._replace(task=arrays["task"].numpy())


def begin_at(net: nn.Module, path: str) -> nn.Module:
    """The network with its linear layers as in a file, which has kernels (inputs, outputs)."""
    layers = [module for module in net.modules() if isinstance(module, nn.Linear)]
    with np.load(path) as file, torch.no_grad():
        assert len(file.files) == 2 * len(layers), file.files
        for i, layer in enumerate(layers):
            layer.weight.copy_(torch.from_numpy(file[f"kernel_{i}"].T))
            layer.bias.copy_(torch.from_numpy(file[f"bias_{i}"]))
    return net


def accuracies(net: nn.Module, case: Case) -> list[float]:
    """On the test rows of each task, over all classes."""
    with torch.no_grad():
        right = net(case.X_test).argmax(dim=1) == case.y_test
    tasks = range(case.num_tasks)
    return [right[case.test_task == q].double().mean().item() for q in tasks]


class Clock:
    """Seconds of training, between calls of `evaluated`."""

    def __init__(self, net: nn.Module, case: Case):
        self.net, self.case = net, case
        self.R: list[list[float]] = []
        self.seconds, self.begun = 0.0, time.perf_counter()

    def evaluated(self) -> None:
        """A task has ended."""
        self.seconds += time.perf_counter() - self.begun
        self.R.append(accuracies(self.net, self.case))
        self.begun = time.perf_counter()


# --- Avalanche --------------------------------------------------------------------------------


def avalanche(case: Case, start: str, job: dict[str, Any]) -> dict[str, Any]:
    """Naive, EWC or Replay of Avalanche; in Replay an experience is a batch, as it is online."""
    from avalanche.benchmarks import tensors_benchmark
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.models import SimpleMLP
    from avalanche.training import Naive
    from avalanche.training.plugins import EvaluationPlugin

    tasks = [case.rows_of(q) for q in range(case.num_tasks)]
    test = [(case.X_test[:1], case.y_test[:1])]
    benchmark = tensors_benchmark(
        train_tensors=tasks, test_tensors=test, task_labels=[0] * len(tasks)
    )
    hidden, classes = job["hidden"], job["num_classes"]
    net = SimpleMLP(classes, case.X.shape[-1], hidden[0], len(hidden), drop_rate=0)
    plugin = avalanche_plugin(job)
    strategy = Naive(
        model=begin_at(net, start),
        optimizer=torch.optim.SGD(net.parameters(), lr=job["learning_rate"]),
        train_mb_size=case.X.shape[1],
        plugins=[] if plugin is None else [plugin],
        evaluator=EvaluationPlugin(loggers=[]),
    )
    clock = Clock(net, case)
    for experience in benchmark.train_stream:
        parts = [experience]
        if job["method"] == "er":
            parts = split_online_stream([experience], case.X.shape[1], shuffle=False)
        for part in parts:
            # The loader of Replay shuffles its memory only along with the rows of an experience,
            # which here is one batch, so that its order is nothing.
            strategy.train(part, shuffle=job["method"] == "er")
        clock.evaluated()
    return {"R": clock.R, "seconds": clock.seconds} | importance_of(plugin)


def avalanche_plugin(job: dict[str, Any]) -> Any:
    """What makes the naive strategy a method."""
    from avalanche.training.plugins import EWCPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer

    class OfSingleRows(EWCPlugin):
        """Gradients of single rows are squared, those of the last rows of a task; ours."""

        def compute_importances(
            self,
            model: Any,
            criterion: Any,
            optimizer: Any,
            dataset: Any,
            device: Any,
            batch_size: int,
            num_workers: int = 0,
        ) -> Any:
            last = dataset.subset(range(max(0, len(dataset) - job["window"]), len(dataset)))
            return super().compute_importances(
                model, criterion, optimizer, last, device, 1, num_workers
            )

    if job["method"] == "er":
        memory, drawn = job["memory"], job["drawn"]
        policy = ReservoirSamplingBuffer(memory)
        return ReplayPlugin(memory, batch_size_mem=drawn, storage_policy=policy)
    if job["method"] == "ewc":
        # Its penalty is lambda times the quadratic, not half of that.
        return (OfSingleRows if job["single_rows"] else EWCPlugin)(job["coefficient"] / 2)
    return None


def importance_of(plugin: Any) -> dict[str, float]:
    """The trace of the importance of all tasks."""
    if not hasattr(plugin, "importances"):
        return {}
    each = [kept.data for task in plugin.importances.values() for kept in task.values()]
    return {"importance": float(sum(kept.double().sum() for kept in each))}


# --- Mammoth ----------------------------------------------------------------------------------


class NoDatasets(ModuleType):
    """In place of Mammoth's data sets, one of which downloads a network where it is imported."""

    def __init__(self) -> None:
        super().__init__("datasets")
        # A package, for what is imported from inside it.
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def use_mammoth(folder: str) -> None:
    """Make its packages importable."""
    sys.path.insert(0, folder)
    sys.modules["datasets"] = NoDatasets()


def mammoth(case: Case, start: str, job: dict[str, Any]) -> dict[str, Any]:
    """Sgd, Er or Derpp of Mammoth, batch by batch, as its own loop calls `observe`."""
    from backbone.MNISTMLP import BaseMNISTMLP
    from models.derpp import Derpp
    from models.er import Er
    from models.sgd import Sgd

    kinds = {"finetune": Sgd, "er": Er, "derpp": Derpp}
    first, second = job["hidden"]
    assert first == second, "its network has two hidden layers of one size"
    options = Namespace(
        lr=job["learning_rate"],
        optimizer="sgd",
        optim_wd=0.0,
        optim_mom=0.0,
        optim_nesterov=False,
        label_perc=1,
        buffer_size=job.get("memory"),
        minibatch_size=job.get("drawn"),
        alpha=job.get("answers"),
        beta=job.get("labels"),
    )
    tasks, classes = case.num_tasks, job["num_classes"]
    about = SimpleNamespace(
        N_CLASSES=classes, N_TASKS=tasks, SETTING="class-il", N_CLASSES_PER_TASK=classes // tasks
    )
    net = begin_at(BaseMNISTMLP(case.X.shape[-1], classes, first), start)
    model = kinds[job["method"]](net, nn.functional.cross_entropy, options, None, dataset=about)
    clock = Clock(net, case)
    for t, (X, y) in enumerate(zip(case.X, case.y, strict=True)):
        model.observe(X, y, X)
        if t + 1 == len(case.task) or case.task[t + 1] != case.task[t]:
            clock.evaluated()
    return {"R": clock.R, "seconds": clock.seconds}


def main(library: str, *folder: str) -> None:
    """Answer jobs until standard input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr
    # Of what is deprecated in the peers' own code.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    run: Callable[..., dict[str, Any]] = {"avalanche": avalanche, "mammoth": mammoth}[library]
    named = {"torch": torch.__version__, "python": sys.version.split()[0]}
    if library == "avalanche":
        named["avalanche-lib"] = version("avalanche-lib")
    else:
        use_mammoth(*folder)
    print(json.dumps(named), file=answers, flush=True)
    for line in sys.stdin:
        job = json.loads(line)
        torch.manual_seed(job["seed"])
        # Mammoth draws from NumPy's global generator.
        np.random.seed(job["seed"])  # noqa: NPY002
        answer = run(case_in(job["stream"]), job["start"], job)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
