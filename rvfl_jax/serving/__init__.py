"""Trained predictors as files for JAX and NumPy, or for ONNX: `export_model`, `export_learner`.

    from rvfl_jax import Predictor

    predictor = Predictor("digits.npz").warm_up(64)
    labels = predictor.predict(X)

`rvfl_jax.serving.predictor` checks inputs, naming the row of a NaN, and pads them so that no number
of rows compiles anew; its file can be copied to where this package is not. Without it:

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
               `platforms` and `versions`.

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
"""
