"""Images to a feature file, block by block, so that a killed job goes on where it was."""

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rvfl_jax.core.checks import positive_int
from rvfl_jax.core.progress import track
from rvfl_jax.encoders.image_models import ImageModel
from rvfl_jax.encoders.images import ImageSet
from rvfl_jax.files.checkpoint import write_npz
from rvfl_jax.files.npz import read_npz
from rvfl_jax.files.results_folder import check_folder


def embed_images(
    model: ImageModel,
    images: ImageSet,
    out: str | Path,
    *,
    batch_size: int = 64,
    progress: bool | Callable[[int, int], None] = False,
) -> bool:
    """Write the features of all images to `out`, an .npz that `load_dataset` reads.

    It holds X and y, or X alone for images without labels, and `files` where they come from a
    folder; of a set with a split X_train, y_train, files_train and so on.

    Every block of features is kept in a folder beside `out` until all are there. A second
    call goes on from these, and does nothing where `out` holds features of the same images
    through the same model.

    Args:
        model: of `load_image_model`.
        images: of `open_images`.
        out: file to write; replaced only by a complete one.
        batch_size: images of a block.
        progress: True for a progress bar, or a function of (images done, images).

    Returns:
        False if `out` was complete already.

    Raises:
        ValueError: if `out` is no .npz, an image cannot be read, or a feature is not finite.
    """
    out = Path(out)
    check_out(out)
    size = positive_int("batch_size", batch_size)
    mark = hashlib.sha256(f"{model.fingerprint} {images.fingerprint}".encode()).hexdigest()
    if fingerprint_of(out) == mark:
        return False
    # The block size is part of the name: blocks of another size hold other rows.
    folder = out.with_name(f"{out.stem}.{mark[:16]}.{size}.parts")
    folder.mkdir(parents=True, exist_ok=True)
    total = len(images.split)
    parts = []
    with track(total, progress, "images") as advance:
        for start in range(0, total, size):
            rows = range(start, min(start + size, total))
            part = folder / f"{start:09d}.npy"
            if not part.is_file():
                _write_block(model.embed(images.read(rows)), len(rows), part)
            parts.append(np.load(part, allow_pickle=False))
            advance(rows.stop)
    _write_features(np.concatenate(parts), images, model, mark, out)
    shutil.rmtree(folder)
    return True


def check_out(out: Path) -> None:
    """ValueError unless it is the name of an .npz in a folder that can be written to."""
    if out.suffix.lower() != ".npz" or out.is_dir():
        raise ValueError(f"out: expected a file that ends in .npz, got {out.name!r}")
    check_folder("out", out.parent)


def fingerprint_of(path: str | Path) -> str | None:
    """Fingerprint of encoder and images in a feature file; None where there is none."""
    try:
        found = read_npz(path, ("fingerprint",)).get("fingerprint")
    except ValueError:
        return None
    return None if found is None else str(found)


def _write_block(features: np.ndarray, rows: int, part: Path) -> None:
    if features.ndim != 2 or len(features) != rows or not np.isfinite(features).all():
        raise ValueError(
            f"model: expected {rows} rows of finite features, got shape {features.shape}"
            f" with {int((~np.isfinite(features)).sum())} that are not finite"
        )
    with part.with_suffix(".part").open("wb") as file:
        np.save(file, features.astype(np.float32))
    # Renamed when complete: a block that is there is whole.
    os.replace(part.with_suffix(".part"), part)


def _write_features(
    X: np.ndarray, images: ImageSet, model: ImageModel, mark: str, out: Path
) -> None:
    arrays: dict[str, Any] = {"fingerprint": mark, "encoder": model.description}
    for split in np.unique(images.split):
        ending = f"_{split}" if split else ""
        rows = images.split == split
        for name, values in (("X", X), ("y", images.labels), ("files", images.files)):
            if values is not None:
                arrays[f"{name}{ending}"] = values[rows]
    write_npz(out, arrays)
