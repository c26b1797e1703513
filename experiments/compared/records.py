"""Where records are: a file for each setting and method, so that one can be made again alone."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from experiments.compared.settings import Setting
from experiments.compared.spaces import Point, Space
from experiments.results_file import Record, ResultsFile

# Of a setting, what no record depends on, or its space says.
ELSEWHERE = ("name", "title", "inputs", "nodes_of_crnet")


@dataclass(frozen=True)
class Protocol:
    """What the records of a file depend on."""

    setting: dict[str, Any]
    of_the_method: dict[str, Any]


def protocol_of(setting: Setting, **of_the_method: Any) -> Protocol:
    """The protocol of a method on a setting."""
    return Protocol(
        {name: value for name, value in asdict(setting).items() if name not in ELSEWHERE},
        of_the_method,
    )


def folder_of(setting: Setting, out: Path) -> Path:
    """The folder of a setting's results."""
    return out / f"compared_{setting.name}"


def tuning_file(
    name: str, space: Space, setting: Setting, configurations: int, out: Path
) -> ResultsFile:
    """The sweep of a method, one record, "choice"."""
    protocol = protocol_of(setting, space=asdict(space), configurations=configurations)
    return ResultsFile(folder_of(setting, out) / "tuning" / f"{name}.json", protocol)


def runs_file(name: str, setting: Setting, chosen: Point, out: Path) -> ResultsFile:
    """The runs of a method with what was chosen for it, a record a seed."""
    protocol = protocol_of(setting, chosen=chosen)
    return ResultsFile(folder_of(setting, out) / "runs" / f"{name}.json", protocol)


def as_point(kept: Record) -> Point:
    """A configuration as JSON keeps it, with lists made tuples again."""
    return {name: tuple(v) if isinstance(v, list) else v for name, v in kept.items()}
