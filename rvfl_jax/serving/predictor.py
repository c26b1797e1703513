"""Serving: an exported model that checks its inputs and compiles for no new number of rows.

This file needs JAX, flatbuffers and NumPy alone, and nothing else of this package: it can be copied
beside a server.

    predictor = Predictor("digits.npz").warm_up(64)
    labels = predictor.predict(X)
"""

import json
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax import export

# Sizes that calls are padded to are powers of two between these; see `rvfl_jax.estimators.padding`.
FEWEST_ROWS, MOST_ROWS = 8, 4096
MOST_NAMES = 5


class Predictor:
    """A predictor read from a file that `export_model` or `export_learner` wrote.

    Example:
        >>> rvfl_jax.export_model(rvfl_jax.EdRVFLClassifier().fit(X, y), "digits.npz")
        >>> predictor = Predictor("digits.npz").warm_up(64)
        >>> predictor.predict(X[:7]).shape, predictor.predict_proba(X[:7]).shape
        ((7,), (7, 10))

    The number of rows is padded to a power of two (to `batch_size` for a file with a fixed one),
    so that few programs serve any number. Predictions of an exported estimator equal its own bit
    for bit; those of an exported learner equal `learner.predict` on the padded rows. Threads may
    share a predictor. Pickling keeps only the path; unpickling reads the file again.

    Attributes:
        classes: (m,) labels in the order of the columns; None for a regressor.
        metadata: see `rvfl_jax.serving`.
    """

    def __init__(self, path: str | Path) -> None:
        """Read a file.

        Raises:
            ValueError: on one that is damaged or no exported predictor.
            OSError: on one that cannot be read.
        """
        self._path = Path(path).absolute()
        try:
            # Opened here, since NumPy leaves a damaged file open.
            with self._path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
                self.metadata: dict[str, Any] = json.loads(file["metadata"].tobytes())
                exported = export.deserialize(bytearray(file["predict"].tobytes()))
                self.classes = file["classes"] if "classes" in file.files else None
        except OSError:
            raise
        except Exception as error:  # a flipped bit may raise anything
            raise ValueError(f"{path}: expected an exported predictor: {error}") from error
        self._call = jax.jit(exported.call)
        self._width: int = self.metadata["num_features"]
        self._dtype = np.dtype(self.metadata["dtype"])
        self._outputs = exported.out_avals[0].shape[1:]
        self._in_use_by: int | None = None

    def warm_up(self, rows: int | None = None) -> "Predictor":
        """Compile for every call of up to so many rows, or of any number when None; takes seconds.

        Returns:
            The predictor itself.
        """
        for size in self._sizes(self._most if rows is None else rows):
            self._answer(np.zeros((size, self._width), self._dtype))
        return self

    def predict(self, X: Any) -> np.ndarray:
        """(n,) labels, or the (n,) or (n, m) numbers of a regressor.

        Args:
            X: (n, s) real numbers, an array or a data frame, not yet scaled.

        Raises:
            ValueError: on other features, or on a value that is not finite, naming its row.
            ArithmeticError: if the prediction of a row overflowed.
            RuntimeError: in a process forked after JAX was in use here.
        """
        answers = self._answers(X)
        return answers if self.classes is None else self.classes[answers.argmax(axis=1)]

    def predict_proba(self, X: Any) -> np.ndarray:
        """(n, m) probabilities in the order of `classes`; see `predict`."""
        if self.classes is None:
            raise ValueError("predict_proba: expected a classifier, got a regressor")
        return self._answers(X)

    def __repr__(self) -> str:
        about = self.metadata
        size = f"{self._width} features"
        if self.classes is not None:
            size += f", {len(self.classes)} classes"
        return (
            f"Predictor({str(self._path)[-200:]!r}): {about['kind']}, {size},"
            f" {about['precision']} precision"
        )

    def __reduce__(self) -> Any:
        return Predictor, (self._path,)

    @property
    def _most(self) -> int:
        """Rows of the largest program."""
        return self.metadata["batch_size"] or self.metadata.get("rows_at_once") or MOST_ROWS

    def _size(self, rows: int) -> int:
        """What a call of so many rows is padded to."""
        fixed = self.metadata["batch_size"]
        return fixed or min(self._most, max(FEWEST_ROWS, 1 << (rows - 1).bit_length()))

    def _sizes(self, rows: int) -> list[int]:
        if isinstance(rows, bool) or not isinstance(rows, int | np.integer) or rows < 1:
            raise ValueError(f"rows: expected an integer of at least 1, got {rows!r}")
        return sorted({self._size(1 << i) for i in range(int(rows - 1).bit_length() + 1)})

    def _answers(self, X: Any) -> np.ndarray:
        checked, most = self._checked(X), self._most
        answers = np.zeros((len(checked), *self._outputs), self._dtype)
        for start in range(0, len(checked), most):
            part = checked[start : start + most]
            padded = np.zeros((self._size(len(part)), self._width), self._dtype)
            padded[: len(part)] = part
            answers[start : start + most] = self._answer(padded)[: len(part)]
        failed = ~np.isfinite(answers).all(axis=tuple(range(1, answers.ndim)))
        if failed.any():
            raise ArithmeticError(
                f"X: expected rows whose answers are numbers, got one in row {failed.argmax()} that"
                f" overflows ({int(failed.sum())} such rows)"
            )
        return answers

    def _answer(self, X: np.ndarray) -> np.ndarray:
        """Of rows of a size that there is a program for."""
        if self._in_use_by not in (None, os.getpid()):
            raise RuntimeError(
                "Predictor: expected a process of its own, got one forked after JAX was in use,"
                ' which would wait for ever; start processes by "spawn", or read the file there'
            )
        self._in_use_by = os.getpid()
        with jax.enable_x64(self._dtype == np.float64):
            return np.asarray(self._call(X))

    def _checked(self, X: Any) -> np.ndarray:
        """(n, s) finite numbers in the precision of the model."""
        self._check_names(X)
        given = _plain(X)
        if given.ndim != 2 or given.shape[1] != self._width:
            raise ValueError(f"X: expected shape (n, {self._width}), got {given.shape}")
        if given.dtype.kind not in "fiub":
            raise ValueError(f"X: expected real numbers, got dtype {given.dtype}")
        with np.errstate(over="ignore"):
            numbers = given.astype(self._dtype)
        bad = ~np.isfinite(numbers)
        if bad.any():
            row, column = (int(i) for i in np.argwhere(bad)[0])
            name = (self.metadata["columns"] or {column: column})[column]
            raise ValueError(
                f"X: expected finite numbers in {self._dtype}, got {given[row, column]} in row"
                f" {row}, column {name!r} ({int(bad.any(axis=1).sum())} such rows)"
            )
        return numbers

    def _check_names(self, X: Any) -> None:
        known, given = self.metadata["columns"], getattr(X, "columns", None)
        if known is None or given is None:
            return
        names = [str(name) for name in given]
        missing = [name for name in known if name not in names]
        other = [name for name in names if name not in known]
        if missing or other:
            faults = [
                f"{len(some)} {what} ({', '.join(map(repr, some[:MOST_NAMES]))})"
                for what, some in (("missing", missing), ("not known", other))
                if some
            ]
            raise ValueError(f"X: expected the columns that were learned, got {', '.join(faults)}")
        if names != known:
            raise ValueError(f"X: expected the columns in their order, {known[:MOST_NAMES]} first")


def _plain(X: Any) -> np.ndarray:
    """An array of numbers, of which nothing is masked."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.getmaskarray(X).any():
        where = np.argwhere(np.ma.getmaskarray(X))[0].tolist()
        raise ValueError(f"X: expected values everywhere, got a masked one at {tuple(where)}")
    array = np.asarray(X)
    # bfloat16 and its like are no numbers to NumPy.
    narrow = array.dtype.kind == "V" and jax.numpy.issubdtype(array.dtype, jax.numpy.number)
    return array.astype(np.float32) if narrow else array
