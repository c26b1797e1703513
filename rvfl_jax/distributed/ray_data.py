"""Ray Data: `map_batches` sums partitions, a tree of tasks merges them, one finish."""

import pickle
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from rvfl_jax.distributed.partitions import (
    FAN_IN,
    Embed,
    Named,
    Summing,
    admitted,
    concluded,
    merged,
    merged_by_tree,
    summing,
)
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.shared_sums import Sums


def fit_ray(
    dataset: Any,
    estimator: EdRVFLBase,
    label: str,
    *,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    embed: Embed | None = None,
    start: Sums | None = None,
    folder: str | Path | None = None,
) -> Any:
    """Fit an estimator to a dataset of Ray.

    The same as `sum_ray(...).finish()`, which see. Scores of a classifier are not calibrated:
    `sum_ray(...).finish(sample=(X, y))` does that on a sample of the rows.

    Args:
        dataset: of `ray.data`; blocks may lack labels, or have no rows.
        estimator: with an integer `random_state`; see `Sums.zero`.
        label: column of labels, or of targets for a regressor.
        features: columns of numbers or of vectors; None for all but the label and the weight.
        weight: column of weights of the rows.
        embed: makes (rows, features) of the columns of a partition, on its worker.
        start: sums of an earlier job, whose partitions are left out and whose rows count.
        folder: where the sums of each partition are kept; see `sum_ray`.

    Returns:
        A fitted estimator, with the readout of one `fit` on all rows.
    """
    return sum_ray(
        dataset,
        estimator,
        label,
        features=features,
        weight=weight,
        embed=embed,
        start=start,
        folder=folder,
    ).finish()


def sum_ray(
    dataset: Any,
    estimator: EdRVFLBase,
    label: str,
    *,
    features: Sequence[str] | None = None,
    weight: str | None = None,
    embed: Embed | None = None,
    start: Sums | None = None,
    folder: str | Path | None = None,
) -> Sums:
    """Sum a dataset of Ray on its workers.

    Blocks of the dataset are the partitions, and never leave their worker; merging goes by a tree
    of tasks, in the order of fingerprints, so that the result has the same bits whichever worker
    was first, or died. An embedder that has to be loaded is better a `map_batches` of its own
    before, with a class and `concurrency`, as Ray has it.

    Args:
        dataset: of `ray.data`; blocks may lack labels, or have no rows.
        estimator: with an integer `random_state`; see `Sums.zero`.
        label: column of labels, or of targets for a regressor.
        features: columns of numbers or of vectors; None for all but the label and the weight.
        weight: column of weights of the rows.
        embed: makes (rows, features) of the columns of a partition, on its worker.
        start: sums of an earlier job, whose partitions are left out and whose rows count.
        folder: seen by all workers, where the sums of each partition are kept. Another job of the
            same arguments takes from there what is done, after this one has been stopped; an
            embedding is known by its name alone.

    Raises:
        ValueError: on an estimator whose rows do not add up, on unusable rows, and on columns that
            are not there; the latter wrapped by Ray.
        ImportError: without Ray.
    """
    ray: Any = import_module("ray")

    task = summing(estimator, label, features, weight, embed, start, folder)
    summed = dataset.map_batches(partial(_row_of, task), batch_size=None, batch_format="numpy")
    blocks: list[Any] = summed.to_arrow_refs()
    list_names, read, merge = (ray.remote(function) for function in (_names, _read, _merged))
    names = ray.get([list_names.remote(block) for block in blocks])
    places = admitted(
        (Named(*name), (block, row))
        for block, found in zip(blocks, names, strict=True)
        for row, name in enumerate(found)
    )
    if not places:
        return concluded(task.zero, start, None)
    parts = [places[i : i + FAN_IN] for i in range(0, len(places), FAN_IN)]
    sums = [read.remote([row for _, row in part], *(block for block, _ in part)) for part in parts]
    whole = merged_by_tree(sums, lambda some: merge.remote(*some))
    return concluded(task.zero, start, ray.get(whole))


def _row_of(task: Summing, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A row that stands for a partition."""
    (name, rows), sums = task(columns)
    held = np.empty(1, object)
    held[0] = pickle.dumps(sums)
    return {"name": np.array([name]), "rows": np.array([rows]), "sums": held}


def _names(block: Any) -> list[tuple[str, int]]:
    """Of the partitions in a block (an Arrow table); their sums stay where they are."""
    if not block.num_rows:
        return []
    return list(zip(block["name"].to_pylist(), block["rows"].to_pylist(), strict=True))


def _read(rows: Sequence[int], *blocks: Any) -> Sums:
    """The sums in those rows of as many blocks, merged."""
    found = (block["sums"][row].as_py() for row, block in zip(rows, blocks, strict=True))
    return merged([pickle.loads(one) for one in found])


def _merged(*sums: Sums) -> Sums:
    return merged(sums)
