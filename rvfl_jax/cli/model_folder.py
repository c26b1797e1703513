"""The folder of a model: one writer at a time, and the model before the last change beside it."""

import filecmp
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from rvfl_jax.estimators.save import FILE
from rvfl_jax.files.checkpoint import sweep_parts
from rvfl_jax.files.locks import alone

LOCK, BEFORE = "lock", "model.before.npz"


def folder_of(path: Path) -> Path:
    """The folder that is meant: itself, or that of its model's file.

    Raises:
        ValueError: on another file.
    """
    if path.name == FILE and path.is_file():
        return path.parent
    if path.is_file():
        raise ValueError(f"{path}: expected the folder of a model, got a file")
    return path


@contextmanager
def one_writer(folder: Path, wait: float) -> Iterator[None]:
    """Nobody else writes this model meanwhile, as long as all writers ask here.

    Args:
        folder: is made where it is missing.
        wait: seconds to wait for another writer at most.

    Raises:
        ValueError: if another process writes all the time.
        OSError: if the folder cannot be made or written to.
    """

    def waiting() -> None:
        print(f"{folder}: waiting for another process that writes it", file=sys.stderr)

    folder.mkdir(parents=True, exist_ok=True)
    try:
        with alone(folder / LOCK, wait=wait, waiting=waiting):
            yield
    except TimeoutError:
        raise ValueError(
            f"{folder}: expected no other process to write it, got one for {wait:g} s;"
            " --wait waits longer"
        ) from None


@contextmanager
def before_kept(folder: Path) -> Iterator[None]:
    """Keep the model that is there beside that which the block writes.

    Where the block fails, what was kept beside it so far stays.
    """
    now, before = folder / FILE, folder / BEFORE
    if not now.exists():
        yield
        return
    sweep_parts(before)
    older = _part_of(before)
    try:
        if before.exists():
            _link(before, older)
        _put(now, before)
        try:
            yield
        except BaseException:
            if filecmp.cmp(now, before, shallow=False):
                before.unlink()
                if older.exists():
                    os.replace(older, before)
            raise
    finally:
        older.unlink(missing_ok=True)


def bring_back(folder: Path) -> None:
    """Change the model with the one before, so that a second call takes the first back.

    Raises:
        ValueError: if there is none, or it is the same.
        OSError: if the folder cannot be written to.
    """
    now, before = folder / FILE, folder / BEFORE
    if not before.is_file() or (now.exists() and filecmp.cmp(now, before, shallow=False)):
        raise ValueError(f"{folder}: expected a model before the last change, found none")
    sweep_parts(now)
    sweep_parts(before)
    kept = _part_of(before)
    try:
        if now.exists():
            _link(now, kept)
        _put(before, now)
        if kept.exists():
            os.replace(kept, before)
    finally:
        kept.unlink(missing_ok=True)


def _put(path: Path, at: Path) -> None:
    """The same file by another name also, in one move."""
    at = Path(os.path.realpath(at))
    part = _part_of(at)
    try:
        _link(path, part)
        os.replace(part, at)
    finally:
        # Where both are one file already, replacing leaves both.
        part.unlink(missing_ok=True)


def _part_of(path: Path) -> Path:
    """A new file beside it, which `sweep_parts` knows."""
    return path.with_name(f"{path.name}.{uuid4().hex}.part")


def _link(path: Path, other: Path) -> None:
    """A second name of a file; a copy where links cannot be."""
    try:
        os.link(os.path.realpath(path), other)
    except OSError:
        shutil.copyfile(path, other)
