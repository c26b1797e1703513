"""Named data sets and feature files as one record of rows, and how tables become features.

`read_columns` gives a server the features of its requests, as the table that a model was made with:

    from rvfl_jax import Predictor
    from rvfl_jax.data import read_columns

    columns, predictor = read_columns("mail.npz"), Predictor("mail.npz").warm_up(8)
    predictor.predict(columns.features([{"text": "where is my parcel", "amount": 3.5}]))
"""

from rvfl_jax.data.columns import Columns, read_columns
from rvfl_jax.data.datasets import Dataset, load_dataset

__all__ = ["Columns", "Dataset", "load_dataset", "read_columns"]
