"""Compiled programs that the command line keeps for its next process, in JAX's own cache.

They lie in `programs` under `$XDG_CACHE_HOME/rvfl-jax` or `~/.cache/rvfl-jax`, in a folder for each
jaxlib and processor, since a program made for another processor may not run. Nothing here is ever
an error: where a folder cannot be made, or an entry cannot be read or written, the program is
compiled. Any of it may be deleted at any time.

JAX writes an entry in place. A process that is killed meanwhile, a full disk or another process
that reads too soon make an entry that is no program; whoever meets one removes it, and compiles.
"""

import glob
import hashlib
import os
import platform
import re
import time
import warnings
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

KEPT_DAYS = 30
_FAULT = "Error (?:reading|writing) persistent compilation cache entry"
_NAMED_FAULT = re.compile(f"{_FAULT} for '([^']+)'")


def keep_programs() -> None:
    """Have JAX, which is not imported yet, find what earlier processes compiled.

    Where `JAX_COMPILATION_CACHE_DIR` is set, the user has seen to that.
    """
    if "JAX_COMPILATION_CACHE_DIR" in os.environ:
        return
    # A home may be missing, too, or belong to somebody else.
    with suppress(OSError, RuntimeError):
        folder = programs_folder(caches() / "rvfl-jax" / "programs")
        drop_old(folder.parent)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder)
        # Programs of a few milliseconds are many.
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
        warnings.filterwarnings("always", _FAULT)
        warnings.showwarning = partial(_drop_faulty, folder, warnings.showwarning)


def compile_anew() -> None:
    """Have JAX, which is not imported yet, read and keep no program."""
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"


def programs_folder(folder: Path) -> Path:
    """The folder in there for this processor and jaxlib, which is made where it is missing.

    Raises:
        OSError: if it cannot be made, or is another user's, whose programs may be anything.
    """
    from jaxlib.version import __version__

    machine = f"{__version__} {platform.machine()} {_processor()}"
    folder = folder / hashlib.sha256(machine.encode()).hexdigest()[:16]
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if hasattr(os, "getuid") and folder.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder}: expected a folder of this user")
    return folder


def caches() -> Path:
    """The user's folder of things that may be deleted."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def _processor() -> str:
    """What the processor can do, as Linux tells it."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                return line
    return platform.processor()


def drop_old(folder: Path) -> None:
    """Remove entries that nobody has read or written for a month, of other processors too."""
    oldest = time.time() - KEPT_DAYS * 86_400
    for entry in folder.glob("*/*"):
        # Another process may be doing the same.
        with suppress(OSError):
            found = entry.stat()
            if max(found.st_atime, found.st_mtime) < oldest:
                entry.unlink()


def _drop_faulty(folder: Path, show: Any, message: Warning | str, *rest: Any, **more: Any) -> None:
    """Show a warning; but one of an entry that is no program removes all that may be meant."""
    fault = _NAMED_FAULT.match(str(message))
    if fault is None:
        show(message, *rest, **more)
        return
    for entry in folder.glob(f"{glob.escape(fault[1])}-*"):
        with suppress(OSError):
            entry.unlink()
