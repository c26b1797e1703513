"""Named data sets and feature files, as one record of training and test rows."""

from rvfl_jax.data.datasets import Dataset, load_dataset

__all__ = ["Dataset", "load_dataset"]
