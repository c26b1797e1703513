"""One door to all data: `load_dataset(name or path)`."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.checks import real_matrix
from rvfl_jax.data.fashion_mnist import load_fashion_mnist
from rvfl_jax.labels import clean_labels
from rvfl_jax.words import in_brief

NAMES = ("digits", "fashion-mnist")
TEST_SHARE = 0.25

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
    y; one ending in .csv has a header, numbers, and a column of labels. What comes without
    a split of its own is split at random, a quarter of each class for testing.

    Args:
        name: "digits", "fashion-mnist" or a path.
        seed: of the split, where there is none.
        label: name of the label column of a CSV file.

    Raises:
        ValueError: on an unknown name, a missing or empty file, or unusable contents.
    """
    if name == "digits":
        return _split(name, *_digits(), seed)
    if name == "fashion-mnist":
        return Dataset(name, *load_fashion_mnist())
    path = Path(name)
    if path.suffix not in (".npz", ".csv"):
        raise ValueError(
            f"dataset: expected one of {', '.join(NAMES)} or a path to .npz or .csv, got {name!r}"
        )
    if not path.is_file():
        raise ValueError(f"dataset: expected a file at {name!r}, found none")
    if path.suffix == ".csv":
        return _split(path.stem, *_read_csv(path, label), seed)
    return _read_npz(path, seed)


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
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays: dict[str, np.ndarray] = {key: file[key] for key in file.files}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path.name}: expected a readable .npz file: {error}") from error
    for keys in _KEYS:
        if all(key in arrays for key in keys):
            X_train, y_train, X_test, y_test = (arrays[key] for key in keys)
            return Dataset(path.stem, *_rows(X_train, y_train), *_rows(X_test, y_test))
    if "X" in arrays and "y" in arrays:
        return _split(path.stem, *_rows(arrays["X"], arrays["y"]), seed)
    raise ValueError(
        f"{path.name}: expected arrays X and y, or X_train, y_train, X_test and y_test,"
        f" got {', '.join(sorted(arrays)) or 'none'}"
    )


def _rows(X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    X, y = real_matrix("X", X), clean_labels("y", y)
    if len(X) != len(y):
        raise ValueError(f"y: expected {len(X)} labels, one a row of X, got {len(y)}")
    return X, y


def _read_csv(path: Path, label: str) -> tuple[np.ndarray, np.ndarray]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [*csv.reader(file)] or [[]]
    if label not in header:
        raise ValueError(
            f"{path.name}: expected a column {label!r}, got {', '.join(header) or 'none'}"
        )
    column = header.index(label)
    X = np.empty((len(rows), len(header) - 1), np.float32)
    for number, row in enumerate(rows, start=2):
        if len(row) != len(header):
            raise ValueError(
                f"{path.name}, line {number}: expected {len(header)} fields, got {len(row)}"
            )
        try:
            X[number - 2] = row[:column] + row[column + 1 :]
        except ValueError as error:
            raise ValueError(f"{path.name}, line {number}: {error}") from None
    return _rows(X, _labels([row[column] for row in rows]))


def _labels(texts: list[str]) -> np.ndarray:
    """Numbers where every label is one, else strings; an empty field is no label."""
    if any(not text.strip() for text in texts):
        raise ValueError("y: expected a label in every row, got an empty field")
    try:
        return np.array([float(text) for text in texts])
    except ValueError:
        return np.array(texts)
