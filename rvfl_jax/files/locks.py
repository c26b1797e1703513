"""Locks between processes, which end with the process that holds them."""

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

PAUSE_S = 0.05


def try_lock(handle: int) -> bool:
    """Lock an open file for this process alone; False if another holds it."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    return True


@contextmanager
def alone(path: Path, *, wait: float, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the lock of a file, which is made where it is missing and stays.

    Args:
        path: of the file. It is never removed: two processes could hold two files of one name.
        wait: seconds to wait for another process at most.
        waiting: called once before waiting.

    Raises:
        TimeoutError: if another process holds it all the time.
        OSError: if the file cannot be opened.
    """
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        end, waited = time.monotonic() + wait, False
        while not try_lock(handle):
            if time.monotonic() >= end:
                raise TimeoutError
            if not waited:
                waiting()
                waited = True
            time.sleep(PAUSE_S)
        yield
    finally:
        os.close(handle)
