"""Spark: `mapInPandas` sums partitions of a frame, `treeReduce` merges them."""

import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rvfl_jax.distributed.partitions import Embed, Named, admitted, concluded, merged, summing
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.shared_sums import Sums

SCHEMA = "name string, rows long, sums binary"


def sum_spark(
    frame: Any,
    estimator: EdRVFLBase,
    label: str,
    *,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    embed: Embed | None = None,
    start: Sums | None = None,
    folder: str | Path | None = None,
) -> Sums:
    """Sum a frame of Spark on its executors.

    Args:
        frame: of `pyspark.sql`; its partitions are those of the ledger, and each has to fit into
            the memory of a Python worker.
        estimator: with an integer `random_state`.
        label: column of labels, or of targets for a regressor.
        features: columns of numbers or of vectors; None for all but the label and the weight.
        weight: column of weights of the rows.
        embed: makes (rows, features) of the columns of a partition, on its worker.
        start: sums of an earlier job, whose partitions are left out and whose rows count.
        folder: where the sums of each partition are kept; see `rvfl_jax.distributed.sum_ray`.

    Raises:
        ValueError: as `sum_ray`; on the rows wrapped by Spark.
        ImportError: without Spark.
    """
    task = summing(estimator, label, features, weight, embed, start, folder)

    def summed(frames: Iterator[Any]) -> Iterator[Any]:
        import pandas

        # Spark hands over a partition piece by piece.
        pieces = [piece for piece in frames if len(piece)]
        if pieces:
            whole = pandas.concat(pieces, ignore_index=True)
            (name, rows), sums = task({column: whole[column] for column in whole.columns})
            held = {"name": [name], "rows": [rows], "sums": [pickle.dumps(sums)]}
            yield pandas.DataFrame(held)

    parts = frame.mapInPandas(summed, SCHEMA).cache()
    try:
        names = [Named(*row) for row in parts.select("name", "rows").collect()]
        if not admitted((name, name) for name in names):
            return concluded(task.zero, start, None)
        once = parts.where("name <> ''").dropDuplicates(["name"])
        # Sums travel as bytes, which Spark copies as they are.
        whole = once.rdd.map(lambda row: bytes(row.sums)).treeReduce(_merged, depth=2)
        return concluded(task.zero, start, pickle.loads(whole))
    finally:
        parts.unpersist()


def _merged(a: bytes, b: bytes) -> bytes:
    return pickle.dumps(merged([pickle.loads(a), pickle.loads(b)]))
