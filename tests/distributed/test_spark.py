"""Frames of Spark on this machine, in a process of its own: two tasks at a time."""

import shutil
import subprocess
import sys

import pytest

from tests.streams import environment

pytest.importorskip("pyspark")

CODE = """
import warnings
import numpy as np
from pyspark.sql import SparkSession
from rvfl_jax.distributed import sum_spark
from tests.distributed.tables import MODEL, NAMES, fitted, partitions, table

spark = (
    SparkSession.builder.master("local[2]")
    .config("spark.ui.enabled", False)
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.sql.shuffle.partitions", 2)
    .getOrCreate()
)
spark.sparkContext.setLogLevel("ERROR")
parts = partitions()
# The number of its partition, by which Spark places rows; and one partition that gets none.
numbered = [(number, list(row)) for number, part in enumerate(parts) for row in part.values]
placed = spark.sparkContext.parallelize(numbered).partitionBy(len(parts), lambda number: number)
rows = placed.map(lambda pair: [v if isinstance(v, str) else float(v) for v in pair[1]])
frame = rows.toDF(list(parts[0].columns))
assert frame.rdd.getNumPartitions() == len(parts)
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    sums = sum_spark(frame, MODEL, "label", weight="weight")
assert any("1 came more than once, with 109 rows" in str(each.message) for each in caught)
assert sums.rows == 240 and len(sums.ledger) == 4, sums
found = sums.finish().decision_function(table()[NAMES])
want = fitted().decision_function(table()[NAMES])
assert np.abs(found - want).max() < 1e-9 * np.abs(want).max()
assert sum_spark(frame, MODEL, "label", weight="weight", start=sums).ledger == sums.ledger
spark.stop()
print("done")
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("java") is None, reason="Spark needs Java")
def test_a_frame_becomes_one_fit():
    # Else Spark's workers are of whatever Python comes first.
    own = environment() | {"PYSPARK_PYTHON": sys.executable}
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=own, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.endswith("done\n")
