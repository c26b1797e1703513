"""Images to embed: a folder of class folders or of new images, or arrays in an .npz file."""

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.words import in_brief
from rvfl_jax.files.npz import read_npz

SPLITS = ("train", "test")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@in_brief
class ImageSet(NamedTuple):
    """Images, read when they are needed.

    Attributes:
        items: paths, or (h, w[, 3]) uint8 arrays.
        labels: one an item; None for new images, which have none.
        split: "train", "test" or "" of each item.
        fingerprint: SHA-256 of what tells this set from another.
        files: path of each item within the folder; None where they come from arrays.
    """

    items: Any
    labels: np.ndarray | None
    split: np.ndarray
    fingerprint: str
    files: np.ndarray | None = None

    def read(self, rows: range) -> list[np.ndarray]:
        """(h, w, 3) uint8 images of some rows."""
        return [_pixels(self.items[row]) for row in rows]


def open_images(path: str | Path) -> ImageSet:
    """Images of a folder with one folder a class, or with train/ and test/ of such, or an .npz.

    A folder of images alone holds new ones, without labels. An .npz file holds X (n, h, w) or
    (n, h, w, 3) uint8 and y (or no y, for new ones), or X_train, y_train, X_test and y_test.

    Raises:
        ValueError: if nothing is there, or it is neither.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix.lower() == ".npz" and path.is_file():
        return _open_arrays(path)
    raise ValueError(f"images: expected a folder or an .npz file, got {str(path)!r}")


def _open_folder(root: Path) -> ImageSet:
    splits = [name for name in SPLITS if (root / name).is_dir()]
    found: list[tuple[Path, str, str]] = []
    for split in splits or [""]:
        for folder in sorted(p for p in (root / split).iterdir() if p.is_dir()):
            found += [(file, folder.name, split) for file in _images(folder.rglob("*"))]
    loose = [file for part in ("", *splits) for file in _images((root / part).iterdir())]
    if loose and (found or splits):
        raise ValueError(
            f"images: expected all images of {str(root)!r} in class folders, or none, got"
            f" {loose[0].relative_to(root)} beside folders"
        )
    found += [(file, "", "") for file in loose]
    if not found:
        raise ValueError(f"images: expected images or class folders of such in {str(root)!r}")
    files = [file.relative_to(root).as_posix() for file, *_ in found]
    names = [f"{name} {file.stat().st_size}" for name, (file, *_) in zip(files, found, strict=True)]
    fingerprint = hashlib.sha256("\n".join(names).encode()).hexdigest()
    labels, parts = (np.array([entry[column] for entry in found]) for column in (1, 2))
    return ImageSet(
        [file for file, *_ in found],
        None if loose else labels,
        parts,
        fingerprint,
        np.array(files),
    )


def _images(paths: Iterable[Path]) -> list[Path]:
    return sorted(path for path in paths if path.suffix.lower() in SUFFIXES and path.is_file())


def _open_arrays(path: Path) -> ImageSet:
    try:
        arrays = read_npz(path)
    except ValueError as error:
        raise ValueError(f"images: {error}") from None
    parts = [("", "X", "y")] if "X" in arrays else [(s, f"X_{s}", f"y_{s}") for s in SPLITS]
    new = "X" in arrays and "y" not in arrays
    missing = [] if new else [name for _, *names in parts for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"images: expected X and y, or X_train, y_train, X_test and y_test in {path.name},"
            f" missing {', '.join(missing)}"
        )
    X = np.concatenate([arrays[x] for _, x, _ in parts])
    if X.dtype != np.uint8 or X.ndim not in (3, 4) or X.shape[3:] not in ((), (3,)):
        raise ValueError(
            f"images: expected (n, h, w) or (n, h, w, 3) uint8 in {path.name}, got {X.shape}"
            f" {X.dtype}"
        )
    split = np.concatenate([np.full(len(arrays[x]), name) for name, x, _ in parts])
    if new:
        return ImageSet(X, None, split, hashlib.sha256(X.tobytes()).hexdigest())
    labels = np.concatenate([arrays[y] for *_, y in parts])
    if labels.shape != (len(X),):
        raise ValueError(f"images: expected {len(X)} labels, got shape {labels.shape}")
    digest = hashlib.sha256(X.tobytes() + np.ascontiguousarray(labels).tobytes())
    return ImageSet(X, labels, split, digest.hexdigest())


def _pixels(item: Any) -> np.ndarray:
    if isinstance(item, Path):
        # Deferred: only folders of files need it.
        from PIL import Image

        try:
            with Image.open(item) as image:
                return np.asarray(image.convert("RGB"))
        except OSError as error:
            raise ValueError(f"images: {item} cannot be read: {error}") from None
    return np.repeat(item[..., None], 3, axis=-1) if item.ndim == 2 else item
