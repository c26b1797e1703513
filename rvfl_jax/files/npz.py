"""Arrays of an .npz file that somebody else wrote: all of them, or one line that names the file."""

from collections.abc import Collection
from pathlib import Path

import numpy as np


def read_npz(path: str | Path, only: Collection[str] | None = None) -> dict[str, np.ndarray]:
    """The arrays of a file by name.

    Args:
        path: of the file.
        only: names to read, of which any may be missing; all when None.

    Raises:
        ValueError: on anything else: a file that is missing, damaged, renamed, or holds objects.
    """
    try:
        with open(path, "rb") as handle:
            found = np.load(handle, allow_pickle=False)
            if not isinstance(found, np.lib.npyio.NpzFile):
                raise ValueError("it holds one array, as an .npy does")
            with found:
                wanted = [name for name in found.files if only is None or name in only]
                return {name: found[name] for name in wanted}
    except Exception as error:
        # A flipped bit may raise anything, from a checksum to an unknown kind of compression.
        why = (str(error) or type(error).__name__).splitlines()[0]
        raise ValueError(f"{path}: expected a readable .npz file: {why}") from None
