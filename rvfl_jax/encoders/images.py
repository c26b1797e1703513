"""Images to embed: a folder of class folders, or arrays in an .npz file."""

import hashlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.npz_file import read_npz
from rvfl_jax.words import in_brief

SPLITS = ("train", "test")
SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".tif", ".tiff")


@in_brief
class ImageSet(NamedTuple):
    """Labelled images, read when they are needed.

    Attributes:
        items: paths, or (h, w[, 3]) uint8 arrays.
        labels: one an item.
        split: "train", "test" or "" of each item.
        fingerprint: SHA-256 of what tells this set from another.
    """

    items: Any
    labels: np.ndarray
    split: np.ndarray
    fingerprint: str

    def read(self, rows: range) -> list[np.ndarray]:
        """(h, w, 3) uint8 images of some rows."""
        return [_pixels(self.items[row]) for row in rows]


def open_images(path: str | Path) -> ImageSet:
    """Images of a folder with one folder a class, or with train/ and test/ of such, or an .npz.

    An .npz file holds X (n, h, w) or (n, h, w, 3) uint8 and y, or X_train, y_train, X_test and
    y_test.

    Raises:
        ValueError: if nothing is there, or it is neither.
    """
    path = Path(path)
    if path.is_dir():
        return _open_folder(path)
    if path.suffix == ".npz" and path.is_file():
        return _open_arrays(path)
    raise ValueError(f"images: expected a folder or an .npz file, got {str(path)!r}")


def _open_folder(root: Path) -> ImageSet:
    splits = [name for name in SPLITS if (root / name).is_dir()]
    found: list[tuple[Path, str, str]] = []
    for split in splits or [""]:
        for folder in sorted(p for p in (root / split).iterdir() if p.is_dir()):
            files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES)
            found += [(file, folder.name, split) for file in files]
    if not found:
        raise ValueError(f"images: expected class folders of images in {str(root)!r}, found none")
    names = [f"{file.relative_to(root)} {file.stat().st_size}" for file, *_ in found]
    fingerprint = hashlib.sha256("\n".join(names).encode()).hexdigest()
    labels, parts = (np.array([entry[column] for entry in found]) for column in (1, 2))
    return ImageSet([file for file, *_ in found], labels, parts, fingerprint)


def _open_arrays(path: Path) -> ImageSet:
    try:
        arrays = read_npz(path)
    except ValueError as error:
        raise ValueError(f"images: {error}") from None
    parts = [("", "X", "y")] if "X" in arrays else [(s, f"X_{s}", f"y_{s}") for s in SPLITS]
    missing = [name for _, *names in parts for name in names if name not in arrays]
    if missing:
        raise ValueError(
            f"images: expected X and y, or X_train, y_train, X_test and y_test in {path.name},"
            f" missing {', '.join(missing)}"
        )
    X = np.concatenate([arrays[x] for _, x, _ in parts])
    labels = np.concatenate([arrays[y] for *_, y in parts])
    if X.dtype != np.uint8 or X.ndim not in (3, 4) or X.shape[3:] not in ((), (3,)):
        raise ValueError(
            f"images: expected (n, h, w) or (n, h, w, 3) uint8 in {path.name}, got {X.shape}"
            f" {X.dtype}"
        )
    if labels.shape != (len(X),):
        raise ValueError(f"images: expected {len(X)} labels, got shape {labels.shape}")
    split = np.concatenate([np.full(len(arrays[x]), name) for name, x, _ in parts])
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
