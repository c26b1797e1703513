"""The streams that methods are compared on, each online in one pass with about 100 rows a batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from experiments import fashion_mnist as fm
from experiments import plant_margin
from experiments.fashion_mnist import Case
from experiments.features import FEATURES, cifar100_case
from rvfl_jax.encoders import sparse_autoencoder

HONEST_FEATURES = next(iter(FEATURES))
ENCODED_WIDTH = 770


@dataclass(frozen=True)
class Setting:
    """A stream for each seed, and how it is tuned for.

    Attributes:
        name: short, of the folder.
        title: for people.
        num_features: s.
        num_classes: m.
        num_tasks: Q.
        tuned_tasks: the first so many are tuned on.
        num_batches: T.
        tuning_rows: of these tasks, the same number of each class, or None for all.
        held_out: the share of them that decides.
        draws: of the rows held out, over which scores are averaged.
        batch_rows: of a batch while tuning.
        memory: rows that a replay method may keep.
        drawn: rows that it may draw for an update.
        hidden: layers that networks may have.
        nodes: random features that methods may have.
        nodes_of_crnet: the same of CRNet-I, which takes m N^3 flops a batch.
        mixed: whether batches hold several classes, so that a guess can be right.
        rows: training rows, the same number of each class, or None for all; of Fashion-MNIST.
        tuned_as: the setting whose choice is taken, or None to tune.
        leaks: whether the encoder sees the test rows of a task by themselves.
        inputs: what the methods are given, in words.
    """

    name: str
    title: str
    num_features: int
    num_classes: int
    num_tasks: int
    tuned_tasks: int
    num_batches: int
    inputs: str
    tuning_rows: int | None = None
    held_out: float = 0.1
    draws: int = 1
    batch_rows: int = 100
    memory: int = 200
    drawn: tuple[int, ...] = (10, 100)
    hidden: tuple[tuple[int, ...], ...] = ((400, 400), (200, 200))
    nodes: tuple[int, ...] = (512, 1024)
    nodes_of_crnet: tuple[int, ...] = (256, 512)
    mixed: bool = True
    rows: int | None = None
    tuned_as: str | None = None
    leaks: bool = False

    def case(self, seed: int) -> Case:
        """The stream and test set of a seed, which draws the order of tasks and of rows."""
        return MAKERS[self.name](self, seed)


FASHION: dict[str, Any] = {
    "num_classes": 10,
    "num_tasks": fm.NUM_TASKS,
    "tuned_tasks": 2,
    "num_batches": 600,
    "tuning_rows": 12_000,
}
ENCODED = "770 features of the sparse autoencoder, fitted on the training inputs and frozen"
CIFAR: dict[str, Any] = {
    "num_features": 256,
    "num_classes": 100,
    "num_batches": 500,
    "memory": 1000,
    "nodes_of_crnet": (64, 128),
    "inputs": "256 features of an ImageNet network that saw no label of CIFAR-100, as they are",
}
SETTINGS = {
    "a": Setting(
        "a",
        "Fashion-MNIST-10/5, raw pixels",
        num_features=784,
        inputs="pixels from 0 to 1",
        **FASHION,
    ),
    "b": Setting(
        "b",
        "Fashion-MNIST-10/5 behind the frozen encoder",
        num_features=ENCODED_WIDTH,
        inputs=ENCODED,
        **FASHION,
    ),
    "c": Setting(
        "c",
        "Fashion-MNIST-10/5 behind the encoder as published, which leaks",
        num_features=ENCODED_WIDTH,
        inputs="the same encoder refitted on each task, test rows included: a row tells its task",
        tuned_as="b",
        leaks=True,
        **FASHION,
    ),
    "d10": Setting("d10", "CIFAR-100/10, honest features", num_tasks=10, tuned_tasks=3, **CIFAR),
    "d20": Setting("d20", "CIFAR-100/20, honest features", num_tasks=20, tuned_tasks=4, **CIFAR),
    "e": Setting(
        "e",
        "Plant margins-100/100",
        num_features=64,
        num_classes=100,
        num_tasks=100,
        tuned_tasks=10,
        num_batches=100,
        inputs="64 margin features, times 100",
        held_out=0.25,
        draws=4,
        batch_rows=9,
        nodes_of_crnet=(64, 128),
        mixed=False,
    ),
}
# What a letter stands for.
GROUPS = {"d": ("d10", "d20")}


def quick(setting: Setting) -> Setting:
    """The same machinery with small networks, on few rows where a setting has many."""
    few = {"rows": 2000, "num_batches": 20, "tuning_rows": 400}
    return replace(
        setting,
        hidden=((32,),),
        nodes=(64,),
        nodes_of_crnet=(32,),
        drawn=(10,),
        memory=min(setting.memory, 100),
        **(few if setting.name in "abc" else {}),
    )


def named(names: str) -> list[Setting]:
    """Settings by letters with commas between.

    Raises:
        ValueError: on a name that is none.
    """
    found: list[Setting] = []
    for name in filter(None, names.split(",")):
        members = GROUPS.get(name, (name,))
        if not set(members) <= set(SETTINGS):
            raise ValueError(f"settings: expected some of {', '.join(SETTINGS)}, got {name!r}")
        found += [SETTINGS[member] for member in members]
    return found


def _raw(setting: Setting, seed: int) -> Case:
    return fm.raw_case(seed, setting.num_batches, setting.rows)


def _frozen(setting: Setting, seed: int) -> Case:
    raw = _raw(setting, seed)
    return fm.encoded_case(raw, sparse_autoencoder(), "frozen", "training_inputs", fm.ENCODER_SEED)


def _as_published(setting: Setting, seed: int) -> Case:
    raw = _raw(setting, seed)
    return fm.encoded_case(
        raw, sparse_autoencoder(), "refit_per_task", "training_inputs", fm.ENCODER_SEED
    )


def _cifar(setting: Setting, seed: int) -> Case:
    return cifar100_case(
        HONEST_FEATURES, seed, num_tasks=setting.num_tasks, num_batches=setting.num_batches
    )


def _plants(setting: Setting, seed: int) -> Case:
    del setting
    return plant_margin.plant_case(plant_margin.Config(), seed)


# Name of a setting to what makes its streams.
MAKERS: dict[str, Callable[[Setting, int], Case]] = {
    "a": _raw,
    "b": _frozen,
    "c": _as_published,
    "d10": _cifar,
    "d20": _cifar,
    "e": _plants,
}


@lru_cache(maxsize=8)
def case_of(setting: Setting, seed: int) -> Case:
    """Kept, since all methods of a seed share it."""
    return setting.case(seed)
