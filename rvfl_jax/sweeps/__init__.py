"""Many configurations, seeds and task orders as one compiled program.

```python
import jax
import numpy as np
import rvfl_jax
from rvfl_jax.data import load_dataset

data = load_dataset("digits")
stream = rvfl_jax.class_incremental_stream(
    data.X_train, data.y_train, num_tasks=5, num_batches=50, seed=0
)


def make(k, ridge):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=64, ridge=ridge, k=k)


grid = {"ridge": [0.01, 0.1, 1.0], "k": np.linspace(0, 2, 17), "seed": range(3)}
result = rvfl_jax.sweep(make, stream, grid, key=jax.random.key(0))
print("best of", result.shape, result.best())
```

- **A sweep is one compiled program.** eta_dagger depends neither on a constant k nor on kappa and
  sigma, so that 64 values of k cost about as
  much as one `run_stream`, which keeps more (0.9 and 1.2 times, double and single precision), and an 8 x 8 grid of kappa and sigma of Algorithm 2 as printed
  2.1 and 2.0, without more memory (d = 1024, b = 64, 20 batches). What must differ (seeds, networks, lambda, task orders) is vmapped outside, cut
  into chunks that fit memory. The best is chosen by what was lost on each batch *before* it was
  learned; no test data enters. `rvfl-jax sweep` does the same from the command line, and
  `generalised_cross_validation` rates any lambda from a state alone.
- **The stream is differentiable.** `prequential_loss(learner, stream, key=key)` has gradients
  with respect to k (also at 0), lambda, kappa, sigma, the gain of the weights and X, in both
  modes, with memory that grows like the square root of the stream's length: 2.1 GiB through 2,000
  batches at d = 1024, whose carries alone would take 16 GiB. Value and gradient of
  k, lambda and the gain of the weights cost 6 forward passes.
- **Equal learners share their programs.** A `Learner` is a pytree whose leaves are lambda, k, kappa,
  sigma and the gain of the weights: a second one with other numbers compiles nothing, and can be
  stacked, vmapped and differentiated as it is. One with a function of its own (a lambda) has its own
  programs, some 20 MB, which are freed with it; `jax.clear_caches()` frees those that are shared.
"""
