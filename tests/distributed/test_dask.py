"""Frames of Dask, by its schedulers of one machine."""

import numpy as np
import pytest

from rvfl_jax import Sums
from rvfl_jax.distributed import sum_dask
from tests import tolerances
from tests.distributed.tables import MODEL, NAMES, fitted, partitions, table
from tests.estimators.test_estimator import assert_close

dask = pytest.importorskip("dask")
frames = pytest.importorskip("dask.dataframe")
ROWS = table()


def frame(parts):
    return frames.from_delayed([dask.delayed(part) for part in parts], verify_meta=False)


@pytest.mark.parametrize("scheduler", ["threads", "synchronous"])
def test_a_frame_becomes_one_fit(scheduler, tmp_path):
    with dask.config.set(scheduler=scheduler):
        with pytest.warns(UserWarning, match="1 came more than once, with 109 rows"):
            sums = sum_dask(frame(partitions()), MODEL, "label", weight="weight")
        want = fitted().decision_function(ROWS[NAMES])
        found = sums.finish().decision_function(ROWS[NAMES])
        assert_close(found, want, tolerances.CLOSED_FORM)
        # A job that was stopped goes on.
        half = sum_dask(frame(partitions()[:2]), MODEL, "label", weight="weight")
        half.save(tmp_path / "half.npz")
        start = Sums.load(tmp_path / "half.npz")
        rest = sum_dask(frame(partitions()[:5]), MODEL, "label", weight="weight", start=start)
        assert rest.ledger == sums.ledger
        assert_close(rest.gram, sums.gram, tolerances.REORDERED)


def test_a_frame_without_rows_adds_nothing():
    empty = frame(partitions()[3:4])
    assert sum_dask(empty, MODEL, "label").rows == 0
    start = Sums.zero(MODEL).add(ROWS[NAMES], ROWS["label"])
    np.testing.assert_array_equal(sum_dask(empty, MODEL, "label", start=start).gram, start.gram)
