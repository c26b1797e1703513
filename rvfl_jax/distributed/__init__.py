"""Learning from partitions that many machines hold: Ray Data, Dask and Spark.

Every worker draws the same random network from one integer seed, sums its partition, and sends
D^T D and D^T Y, whose size does not depend on the number of rows. A tree adds them up, and one
machine solves once. The readout is that of one `fit` on all rows, to rounding.

```python
import ray
from sklearn.datasets import load_digits

from rvfl_jax import EdRVFLClassifier
from rvfl_jax.distributed import fit_ray

frame = load_digits(as_frame=True).frame  # or any dataset: ray.data.read_parquet("embeddings/")
dataset = ray.data.from_pandas(frame).repartition(4)
model = fit_ray(dataset, EdRVFLClassifier(num_nodes=64, random_state=0), "target")
print(model.num_rows_seen_, round(model.score(frame.drop(columns="target"), frame["target"]), 2))
```

`sum_ray`, `sum_dask` and `sum_spark` give the `rvfl_jax.Sums` instead, to be saved, merged with
others and finished with any lambda. This package has to be installed on the workers, with one
release of JAX, which is checked by a fingerprint of the weights. What counts once:

- A task that dies is run again by Ray, Dask or Spark, and the result of the dead one is dropped.
- A partition whose columns equal those of another, row by row, was sent twice: it is counted once,
  with a warning. A column that tells rows apart, such as an id, keeps alike partitions apart. A file
  listed twice is found where each file is a partition of its own, not where a reader joins it with
  others.
- What is in the ledger of `start` was counted by an earlier job, and is left out.

A sum takes L d (d + 1) / 2 numbers, so that a partition should have several times d rows. Others
are better joined before: `dataset.repartition`, `frame.repartition`, `coalesce`. A worker takes
as many threads as `OMP_NUM_THREADS` tells, which Ray and Spark set.
"""

from rvfl_jax.distributed.dask_frames import sum_dask
from rvfl_jax.distributed.ray_data import fit_ray, sum_ray
from rvfl_jax.distributed.spark_frames import sum_spark

__all__ = ["fit_ray", "sum_dask", "sum_ray", "sum_spark"]
