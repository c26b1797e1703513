"""One process that learns and predicts: `MODEL=flowers uvicorn experiments.serve_and_learn:app`.

    curl localhost:8000/learn -H 'Content-Type: application/json' -d '{"X": [[1, 0]], "y": ["a"]}'
    curl localhost:8000/predict -H 'Content-Type: application/json' -d '{"X": [[1, 0]]}'

Whoever predicts asks a model that nobody changes, and never waits for one that learns: the next
model takes its place when it is warm and on disk. Several processes would each have their own.
"""

import gc
import os
from threading import Lock
from typing import Annotated, Any

import numpy as np
from fastapi import Body, FastAPI, HTTPException

from rvfl_jax import EdRVFLClassifier, NumericalError, load_model, save_model
from rvfl_jax.estimators.whole import as_it_stands

MODEL, MOST_ROWS = os.environ.get("MODEL", "model"), 512
model = load_model(MODEL) if os.path.exists(MODEL) else EdRVFLClassifier(random_state=0)
app, writer = FastAPI(), Lock()
Rows = Annotated[list[list[float]], Body(embed=True)]
gc.freeze()  # to look through all that was imported, again and again, takes 15 ms each time


@app.post("/learn")
def learn(X: Rows, y: list[str]) -> dict[str, Any]:
    global model
    with writer:
        draft = told(as_it_stands(model).partial_fit, X, y)
        for power in range(3, MOST_ROWS.bit_length()):  # solves, and compiles what is new
            told(draft.predict_proba, np.resize(X, (1 << power, len(X[0]))))
        save_model(draft, MODEL)
        model = draft
    return {"rows": draft.num_rows_seen_, "classes": draft.classes_.tolist()}


@app.post("/predict")
def predict(X: Rows) -> dict[str, Any]:
    now = model
    probabilities = told(now.predict_proba, X)
    labels = now.classes_[probabilities.argmax(axis=1)]
    return {"y": labels.tolist(), "probability": probabilities.max(axis=1).tolist()}


def told(method: Any, *rows: Any) -> Any:
    try:
        return method(*rows)
    except (ValueError, NumericalError) as error:  # the model is the one before
        raise HTTPException(422, str(error)) from error
