"""Trained predictors as files for JAX and NumPy, or for ONNX: `export_model`, `export_learner`.

`export_learner`, and `export_model` for the estimators, write a program of `jax.export`, for any number
of rows or a fixed `batch_size`, with all weights and labels. `Predictor` reads it: a NaN, another number
of features or a column of another name is an error that says where, rows are padded so that once warm
no number of them compiles, and the answers of an estimator have the bits of its own. Where
scikit-learn and the rest are not, `pip install jax flatbuffers` and a copy of the one file
`rvfl_jax/serving/predictor.py` do:

```python
import numpy as np
from rvfl_jax import Predictor

predictor = Predictor("predictor.npz").warm_up(64)  # compiles for every call of up to 64 rows
print(predictor.predict(np.zeros((3, 64))), predictor.predict_proba(np.zeros((1, 64))).max())
```

Without that file:

    import jax, numpy as np
    from jax import export

    file = np.load("digits.npz")
    predict = export.deserialize(bytearray(file["predict"]))
    with jax.enable_x64(True):  # for a model in double precision
        probabilities = np.asarray(predict.call(X))  # (n, s) to (n, classes)
    assert np.isfinite(probabilities).all()  # a row with NaN gets NaN, of which argmax makes 0
    labels = file["classes"][probabilities.argmax(axis=1)]

`jax.export` needs the package flatbuffers beside JAX. X has the dtype of the model and as many
rows as were asked for: any number compiles one program for each number of rows that comes, a
fixed `batch_size` one in all. The members of the file:

    predict    bytes of `jax.export.Exported.serialize()`, with all weights.
    classes    (classes,) labels in the order of the columns; not there for a regressor.
    metadata   bytes of a JSON object: `json.loads(file["metadata"].tobytes())`. It has `format`,
               `kind` ("classifier", "regressor" or "learner"), `precision`, `dtype`,
               `num_features`, `batch_size` (null for any), `rows_at_once` (of the largest program
               of an estimator), `columns` (null where features have no names), `standardised`,
               `platforms`, `versions` and, where there are any, `notes`: `how` among them says
               how a table becomes features, which `rvfl_jax.data.read_columns` reads.

Answers have the bits of the model's own, on the same machine with the same versions. Inputs are not
checked: a row with NaN gets NaN. JAX promises to read a file for six months of later releases.

A path that ends in `.onnx` (or `format="onnx"`) gets an ONNX graph of operator set 17, for any
number of rows or `batch_size` of them; `pip install "rvfl-jax[onnx]"` has what writes and runs it:

    import onnxruntime

    session = onnxruntime.InferenceSession("digits.onnx")
    labels, probabilities = session.run(None, {"X": X})  # of a regressor: [prediction]

Its input is `X` (n, s) in the dtype of the model, not yet scaled; its outputs are `label` (n,) and
`probabilities` (n, classes), or `prediction`. `session.get_modelmeta().custom_metadata_map` has
`metadata`, as above but for `platforms`, and `classes` as a JSON list. Answers are those of the
model to rounding, some 1e-14 in double precision and 1e-6 in single. A row with NaN has
probabilities NaN and a label all the same: check for it. The graph is for networks of `edrvfl` with
an activation that has a name; another one is refused when it is written.

Python looks for garbage among all that was imported now and then, which takes 15 ms: a server calls
`gc.freeze()` when it has warmed up.

A server that learns and predicts in one process needs no export: `experiments/serve_and_learn.py` is
one for FastAPI, on some twenty lines. It asks a model that nobody changes, and puts the next one in its
place once that has learned, is warm and is on disk.
"""
