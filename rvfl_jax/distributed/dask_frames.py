"""Dask: a delayed task a partition of a frame, and a tree of delayed merges."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rvfl_jax.distributed.partitions import (
    Embed,
    Named,
    admitted,
    concluded,
    merged,
    merged_by_tree,
    summing,
)
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.shared_sums import Sums


def sum_dask(
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
    """Sum a frame of Dask by its scheduler.

    Args:
        frame: of `dask.dataframe`; its partitions are those of the ledger.
        estimator: with an integer `random_state`.
        label: column of labels, or of targets for a regressor.
        features: columns of numbers or of vectors; None for all but the label and the weight.
        weight: column of weights of the rows.
        embed: makes (rows, features) of the columns of a partition, on its worker.
        start: sums of an earlier job, whose partitions are left out and whose rows count.
        folder: where the sums of each partition are kept; see `rvfl_jax.distributed.sum_ray`.

    Raises:
        ValueError: as `sum_ray`.
        ImportError: without Dask.
    """
    dask: Any = import_module("dask")

    task = summing(estimator, label, features, weight, embed, start, folder)
    summed = dask.delayed(lambda part: task({name: part[name] for name in part.columns}))
    # Kept where they were made, until merged.
    parts = dask.persist(*(summed(part) for part in frame.to_delayed()))
    names = dask.compute(*(part[0] for part in parts))
    once = admitted((Named(*name), part[1]) for name, part in zip(names, parts, strict=True))
    if not once:
        return concluded(task.zero, start, None)
    merge: Any = dask.delayed(merged)
    return concluded(
        task.zero, start, merged_by_tree(once, lambda some: merge(list(some))).compute()
    )
