"""The folder in which `compare` keeps what is done, so that a killed comparison goes on."""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rvfl_jax.core.checks import differences
from rvfl_jax.files.checkpoint import load_checkpoint_file, save_checkpoint, sweep_parts

FILE = "comparison.npz"


class RunFolder:
    """A file for the whole, one for each seed's references, and one for each run."""

    def __init__(self, folder: Path, config: Mapping[str, Any], *, resume: bool) -> None:
        """Open the folder, or begin one.

        Args:
            folder: is made where it is missing.
            config: what is compared, as JSON takes it.
            resume: go on with what is there; otherwise nothing must be.

        Raises:
            ValueError: if something is there that is not to be gone on with, is damaged, or was
                begun with another configuration: all differences are listed.
        """
        self._folder, self._config = folder, dict(config)
        self._seconds: dict[str, float] = {}
        if (folder / FILE).exists():
            if not resume:
                raise ValueError(f"{folder}: expected no run there yet, got one; --resume goes on")
            found = load_checkpoint_file(folder / FILE).metadata["metadata"]
            faults = differences(self._config, found["config"])
            if faults:
                raise ValueError(f"{folder}: begun with other options: " + "; ".join(faults))
            self._seconds = found["seconds"]
            sweep_parts(folder / FILE)
            return
        folder.mkdir(parents=True, exist_ok=True)
        self._write()

    def checkpoint(self, seed: int, style: str) -> Path:
        """The file of a run."""
        name = re.sub(r"[^\w.+-]+", "_", style).strip("_-")
        return self._folder / f"seed_{seed}_{name}.npz"

    def once(
        self, seed: int, compute: Callable[[], tuple[dict[str, np.ndarray], dict[str, float]]]
    ) -> tuple[dict[str, np.ndarray], dict[str, float]]:
        """A seed's references: arrays and numbers, computed unless they are there."""
        path = self._folder / f"seed_{seed}_references.npz"
        sweep_parts(path)
        if path.exists():
            found = load_checkpoint_file(path)
            # The path of a member of a dict is ['name'].
            arrays = {name[2:-2]: array for name, array in found.arrays.items()}
            return arrays, found.metadata["metadata"]
        arrays, numbers = compute()
        save_checkpoint(path, arrays, numbers)
        return arrays, numbers

    def timed(self, path: Path, begun: bool, seconds: float) -> float:
        """What the run in a file took; NaN if it was interrupted.

        Args:
            path: of the run.
            begun: whether this process found it begun.
            seconds: what this process took for it.
        """
        if path.name not in self._seconds:
            self._seconds[path.name] = float("nan") if begun else seconds
            self._write()
        return self._seconds[path.name]

    def _write(self) -> None:
        about = {"config": self._config, "seconds": self._seconds}
        save_checkpoint(self._folder / FILE, {}, about)
