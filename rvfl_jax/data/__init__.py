"""Named data sets and feature files as one record of rows, and how tables become features."""

from rvfl_jax.data.columns import Columns, read_columns
from rvfl_jax.data.datasets import Dataset, load_dataset

__all__ = ["Columns", "Dataset", "load_dataset", "read_columns"]
