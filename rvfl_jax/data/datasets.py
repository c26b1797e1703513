"""One door to all data: `load_dataset(name or path)`."""

from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.checks import real_matrix
from rvfl_jax.core.words import in_brief
from rvfl_jax.data.fashion_mnist import load_fashion_mnist
from rvfl_jax.data.tables import KINDS, is_no_label, read_parts
from rvfl_jax.files.npz import read_npz
from rvfl_jax.streams.labels import clean_labels

NAMES = ("digits", "fashion-mnist")
TEST_SHARE = 0.25
ROWS = 4096

# The keys under which feature files hold inputs and labels, in the order looked for.
_KEYS = (("X_train", "y_train", "X_test", "y_test"), ("f_train", "y_train", "f_test", "y_test"))


@in_brief
class Dataset(NamedTuple):
    """Training and test rows with their original labels.

    Attributes:
        name: for titles.
        X_train: (n, s).
        y_train: (n,).
        X_test: (n', s).
        y_test: (n',).
    """

    name: str
    X_train: np.ndarray
    y_train: np.ndarray
    X_test: np.ndarray
    y_test: np.ndarray


def load_dataset(name: str, *, seed: int = 0, label: str = "label") -> Dataset:
    """A named data set or a feature file.

    "digits" is scikit-learn's (1,797 images of 8 x 8, scaled to 0 .. 1). "fashion-mnist"
    is 60,000 + 10,000 images of 28 x 28, scaled to 0 .. 1, in its own split. A path ending
    in .npz holds X_train, y_train, X_test, y_test (or f_train and f_test for X), or X and
    y; any other table is read as `rvfl_jax.data.tables` says. What comes without a split of its
    own is split at random, a quarter of each class for testing.

    Args:
        name: "digits", "fashion-mnist" or a path.
        seed: of the split, where there is none.
        label: name of the label column of a table that is no .npz.

    Raises:
        ValueError: on an unknown name, a missing or empty file, or unusable contents.
    """
    if name == "digits":
        return _split(name, *_digits(), seed)
    if name == "fashion-mnist":
        return Dataset(name, *load_fashion_mnist())
    path = Path(name)
    if not name.lower().endswith(KINDS):
        raise ValueError(
            f"dataset: expected one of {', '.join(NAMES)} or a path to {', '.join(KINDS)},"
            f" got {name!r}"
        )
    if not path.is_file():
        raise ValueError(f"dataset: expected a file at {name!r}, found none")
    if path.suffix.lower() == ".npz":
        return _read_npz(path, seed)
    return _split(_title(path), *_read_table(name, label), seed)


def _title(path: Path) -> str:
    ending = next(kind for kind in KINDS if path.name.lower().endswith(kind))
    return path.name[: -len(ending)]


def _digits() -> tuple[np.ndarray, np.ndarray]:
    # Deferred: scikit-learn takes a second to import.
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return (X / 16).astype(np.float32), y


def _split(name: str, X: np.ndarray, y: np.ndarray, seed: int) -> Dataset:
    from sklearn.model_selection import train_test_split

    counts = np.unique(y, return_counts=True)[1]
    if counts.min() < 2:
        raise ValueError(f"{name}: expected at least 2 rows of each class, got {counts.min()}")
    X_train, X_test, y_train, y_test = train_test_split(
        X, y, test_size=TEST_SHARE, stratify=y, random_state=seed
    )
    return Dataset(name, X_train, y_train, X_test, y_test)


def _read_npz(path: Path, seed: int) -> Dataset:
    arrays = read_npz(path)
    for keys in _KEYS:
        if all(key in arrays for key in keys):
            X_train, y_train, X_test, y_test = (arrays[key] for key in keys)
            return Dataset(path.stem, *_rows(path, X_train, y_train), *_rows(path, X_test, y_test))
    if "X" in arrays and "y" in arrays:
        return _split(path.stem, *_rows(path, arrays["X"], arrays["y"]), seed)
    raise ValueError(
        f"{path.name}: expected arrays X and y, or X_train, y_train, X_test and y_test,"
        f" got {', '.join(sorted(arrays)) or 'none'}"
    )


def _rows(path: Path, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    try:
        if np.asarray(X).dtype.kind == "b":
            raise ValueError("X: expected real numbers, got bool")
        X, y = real_matrix("X", X), clean_labels("y", y)
        if y.dtype.kind == "U":
            row = next((i for i, text in enumerate(y.tolist()) if is_no_label(text)), None)
            if row is not None:
                raise ValueError(f"y: expected a label in row {row + 1}, got {y[row].item()!r}")
    except ValueError as error:
        raise ValueError(f"{path.name}: {error}") from None
    if len(X) != len(y):
        raise ValueError(f"{path.name}: y: expected {len(X)} labels, one a row of X, got {len(y)}")
    return X, y


def _read_table(name: str, label: str) -> tuple[np.ndarray, np.ndarray]:
    parts = [*read_parts(name, rows=ROWS, label=label, needs_label=True)]
    labels = _labels([text for part in parts for text in part.labels or ()])
    return _rows(Path(name), np.concatenate([part.X for part in parts]), labels)


def _labels(texts: list[str]) -> np.ndarray:
    """Whole numbers where every label is one, as it is written, else strings."""
    with suppress(ValueError):
        whole = [int(text) for text in texts]
        if [str(number) for number in whole] == texts:
            small = all(abs(number) < 2**63 for number in whole)
            return np.array(whole, dtype=np.int64 if small else object)
    with suppress(ValueError):
        # Fractions are refused as labels: most likely they are no names of classes.
        numbers = np.array([float(text) for text in texts])
        if not (numbers == np.round(numbers)).all():
            return numbers
    return np.array(texts)
