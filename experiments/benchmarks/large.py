"""Ten thousand random nodes on CIFAR-100: one pass beside a PyTorch loop, in one process.

The command: `python -m experiments.benchmarks.large --data FOLDER --out FOLDER`, FOLDER of the file
`cifar100_efflite0_pca256_f16.npz`. 50,000 rows of 256 features, class by class, in calls of 1,000;
d = 10,257 with the constant; lambda = 1 and the same random weights for both; float64. The loop
adds up D^T D and D^T Y and solves once at the end by Cholesky. Seconds of learning and of the first
answer, resident memory, and accuracy on 10,000 test rows.
"""

import argparse
import gc
import json
import resource
import time
from pathlib import Path
from typing import Any

import numpy as np

from experiments.benchmarks.machine import describe_machine
from rvfl_jax import EdRVFLClassifier

RIDGE, SEED, ROWS_A_CALL, TEST_PART = 1.0, 0, 1000, 2000
Record = dict[str, Any]


def main() -> None:
    """Measure, write large.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the feature file")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result")
    parser.add_argument("--nodes", type=int, default=10_000, help="N")
    parser.add_argument("--rows", type=int, default=50_000, help="rows that are learned")
    args = parser.parse_args()
    data = np.load(args.data / "cifar100_efflite0_pca256_f16.npz")
    X, y, X_test, y_test = (data[name] for name in ("f_train", "y_train", "f_test", "y_test"))
    few = np.random.default_rng(SEED).permutation(len(X))[: args.rows]
    order = few[np.argsort(y[few], kind="stable")]
    X, y = X[order].astype(float), y[order]
    X_test = X_test.astype(float)
    model = EdRVFLClassifier(1, args.nodes, ridge=RIDGE, random_state=SEED)
    result: Record = {"nodes": args.nodes, "rows": len(X), "ridge": RIDGE}
    result["ours"] = _ours(model, X, y, X_test, y_test)
    print(json.dumps(result["ours"]), flush=True)
    W = np.asarray(model._fitted.weights.first)
    del model
    gc.collect()
    result["torch"] = _torch(W, X, y, X_test, y_test)
    print(json.dumps(result["torch"]), flush=True)
    result["machine"] = describe_machine()
    path = args.out / "large.json"
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def _ours(model: Any, X: np.ndarray, y: np.ndarray, X_test: Any, y_test: Any) -> Record:
    # Programs are compiled on rows that another model forgets.
    began = time.perf_counter()
    other = EdRVFLClassifier(1, model.num_nodes, ridge=RIDGE, random_state=SEED)
    for start in (0, ROWS_A_CALL):
        rows = slice(start, start + ROWS_A_CALL)
        other.partial_fit(X[rows], y[rows], classes=np.unique(y))
    other.predict(X_test[:TEST_PART])
    del other
    compiled = time.perf_counter() - began
    gc.collect()
    start = time.perf_counter()
    for first in range(0, len(X), ROWS_A_CALL):
        rows = slice(first, first + ROWS_A_CALL)
        model.partial_fit(X[rows], y[rows], classes=np.unique(y))
    learned = time.perf_counter()
    answers = [model.predict(X_test[:TEST_PART])]
    asked = time.perf_counter()
    answers += [
        model.predict(X_test[i : i + TEST_PART]) for i in range(TEST_PART, len(X_test), TEST_PART)
    ]
    return {
        "seconds": asked - start,
        "seconds_to_learn": learned - start,
        "seconds_to_solve": asked - learned,
        "seconds_to_compile_and_warm": compiled,
        "peak_gigabytes": _peak(),
        "accuracy": float(np.mean(np.concatenate(answers) == y_test)),
    }


def _torch(W: np.ndarray, X: np.ndarray, y: np.ndarray, X_test: Any, y_test: Any) -> Record:
    import torch

    weights, one_hot = torch.from_numpy(W.copy()), np.eye(int(y.max()) + 1)

    def features(X: np.ndarray) -> Any:
        Z = torch.from_numpy(np.hstack([X, np.ones((len(X), 1))]))
        return torch.cat([torch.relu(Z @ weights), Z], dim=1)

    width = len(features(X[:1])[0])
    start = time.perf_counter()
    G = torch.zeros(width, width, dtype=torch.float64)
    M = torch.zeros(width, one_hot.shape[1], dtype=torch.float64)
    for first in range(0, len(X), ROWS_A_CALL):
        D = features(X[first : first + ROWS_A_CALL])
        G.addmm_(D.T, D)
        M.addmm_(D.T, torch.from_numpy(one_hot[y[first : first + ROWS_A_CALL]]))
    learned = time.perf_counter()
    G.diagonal().add_(RIDGE)
    theta = torch.cholesky_solve(M, torch.linalg.cholesky(G))
    asked = time.perf_counter()
    parts = range(0, len(X_test), TEST_PART)
    answers = [(features(X_test[i : i + TEST_PART]) @ theta).argmax(dim=1).numpy() for i in parts]
    return {
        "seconds": asked - start,
        "seconds_to_learn": learned - start,
        "seconds_to_solve": asked - learned,
        "peak_gigabytes": _peak(),
        "accuracy": float(np.mean(np.concatenate(answers) == y_test)),
    }


def _peak() -> float:
    """The most that this process has held so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


if __name__ == "__main__":
    main()
