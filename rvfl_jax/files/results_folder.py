"""Where results go: found good before anything begins, and nothing there replaced unasked."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def check_folder(name: str, path: Path) -> None:
    """Refuse a folder that nothing could be written to, before anything begins.

    Raises:
        ValueError: if it is a file, or neither there nor to be made.
    """
    there = path
    while not there.exists() and not there.is_symlink() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise ValueError(f"{name}: expected a folder, got {path}, where {there} is none")
    effective = os.access in os.supports_effective_ids
    if not os.access(there, os.W_OK | os.X_OK, effective_ids=effective):
        raise ValueError(f"{name}: expected a folder to write to, got {path}: permission denied")


def check_results(folder: Path, names: Sequence[str], *, force: bool) -> None:
    """Refuse a folder that cannot be written to, or has such results.

    Raises:
        ValueError: see `check_folder`, or if there is a file of these names without `force`.
    """
    check_folder("--out", folder)
    there = [name for name in names if (folder / name).exists()]
    if there and not force:
        raise ValueError(f"{folder}: expected no {there[0]} there yet; --force replaces it")


def config_of(path: Path) -> Any:
    """The configuration whose results a file holds; None where it is not to be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))["config"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
