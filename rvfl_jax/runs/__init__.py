"""Learners on streams: one compiled scan, evaluated, checkpointed and spread over devices.

```python
import jax
import numpy as np
import rvfl_jax
from rvfl_jax import plots
from rvfl_jax.data import load_dataset

data = load_dataset("digits")
np.save("features.npy", data.X_train)
X, y = np.load("features.npy", mmap_mode="r"), data.y_train
learner = rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=0.1, k=rvfl_jax.adaptive_k(sigma=0.01))


def batches():
    for start in range(0, len(X), 64):
        yield X[start : start + 64], y[start : start + 64]


options = {"key": jax.random.key(0), "classes": range(10), "test": (data.X_test, data.y_test)}
run = rvfl_jax.run_stream(learner, batches(), checkpoint="run.npz", resume=True, **options)
plots.strength_paths(run).figure.savefig("strengths.png")
rvfl_jax.export_learner(learner, run.state, "predictor.npz")
```

- **Anything that gives batches (X, y) is a stream**: slices of a memory map, a generator, a PyTorch
  `DataLoader`, `rvfl_jax.batched(rows, 64, features="x", label="y")` of a data set's rows. The next
  batch is read while this one is learned, and is its look-ahead. A file of 2 GB was learned with 479 MB
  of memory beside pages of the file, as fast as the same rows in memory and to the same bits.
- **Nothing done is lost.** With `checkpoint=` (`rvfl-jax run --checkpoint DIR`) all that the rest of
  a run depends on is written after every chunk, in one move; `resume=True` (`--resume`) goes on to
  the bits of the run without an interruption. Tests end runs by `kill -9` at a random moment
  (`RVFL_JAX_KILLS=50 pytest -m slow tests/cli/test_resume_commands.py -k kill_9` does so fifty
  times). A damaged file is one line, and a file of another run one that lists what differs.
- **Watching a run.** `progress=True` shows a bar with the accuracy of all guesses so far and the time
  left. `run_stream(..., on_metrics=log, chunk_size=20)` calls `log(metrics, batches)` after every 20
  batches with a dict of floats. MLflow's and Weights & Biases' own functions have that signature:
  `on_metrics=mlflow.log_metrics`, `on_metrics=wandb.log`. For TensorBoard it is a loop over
  `writer.add_scalar(name, value, batches)`. The run keeps its bits; a chunk costs 1 to 12 ms.
- **As a table**: `run.to_pandas()` has a row a batch, `sweep(...).to_pandas()` a row a configuration.
- **Pictures** take a run and return Matplotlib axes: `plots.accuracy_curve`, `transfer_matrix`,
  `strength_paths`, `regret_and_divergence`, and `confusion_over_time` after
  `run_stream(..., confusion=True)`. With `label=` and `axes=` several runs go into one.
- **Processes**: learners, streams, runs and sweeps can be pickled, with every dtype kept, and an
  unpickled learner shares the programs of its equal. Start processes by `"spawn"` or joblib's
  loky: JAX computes on threads, which a fork leaves behind, so that a process forked after JAX was in use
  gets a RuntimeError that says so, where it would wait for ever.
- **Several devices.** `run_stream(..., mesh=mesh)` shares the rows of each batch
  (`layout="rows"`) or the rows of eta_dagger (`layout="eta_dagger"`) among them, `sweep(...,
  mesh=mesh)` the configurations; the same code serves several processes. Two of one core each, beside
  one: a sweep 2.1 times as fast, rows 1.4 times (d = 1024, b = 4096); eta_dagger at this size
  only pays for its messages, 0.35 times.
- **Every run says what it depends on**: `run.history.provenance` holds key, learner, versions,
  device and a fingerprint of the data. The same of these gives the same bits, in one program or
  in chunks of the stream. A vmapped configuration, a chunk of a grid or a mesh adds up in
  another order, and agrees to about 1e-12.

**On a machine that other work shares, set `OPENBLAS_NUM_THREADS=1`** before Python starts: two threads of
OpenBLAS wait for each other by spinning, and a step can take tens of times as long with both as with
one while other work holds the cores. The commands on tables do so
themselves.
"""
