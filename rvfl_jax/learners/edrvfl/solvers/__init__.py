"""The recursion of one sub-learner in four forms, one contract, one file each; which one to take.

The contract is `rvfl_jax.learners.edrvfl.solvers.base.ReadoutSolver`.

Medians in ms a step, d = 1500, b = 125, m = 100, one sub-learner, 2 CPU cores, all in one process; more
cases are in experiments/benchmarks/results/table.md, raw seconds of all beside it. A step costs 1.6 times
its two d x d x b products at that size (1.86 times NumPy's in float32).

| | float32 | float64 |
|---|---|---|
| the two products alone | 11.6 | 20.8 |
| rvfl_jax | 18.8 | 34.0 |
| the literal algorithm in JAX, under jit | 47.5 | 82.5 |
| the literal algorithm in NumPy | 55.6 | 104 |
| PyTorch, running Gram matrix and a solve a batch | 61.3 | 98.1 |
| gfdl, `partial_fit` | | 185 |

| what you do | take | measured |
|---|---|---|
| decide at every batch, small batches | `"covariance"` (what `"auto"` takes while 2 b < d) | above: 19 ms, where information takes 79 and square root 65 |
| the same, many batches of a few rows | `"blocked"`: the same recursion, up to 96 rows at once (what `"auto"` then takes where the stream is long enough to be worth its compilation) | d = 500, float64: 28 µs a row in batches of one, where covariance takes 91; with five sub-learners and 10 rows 1.6 ms a batch, covariance 3.0, the literal algorithm 5.2 |
| decide at every batch, b near d or more | `"information"` (what `"auto"` takes from 2 b = d) | d = 500, float32: at b = 200 covariance takes 6.5 ms and information 7.5, at b = 400 they take 15.4 and 9.7 (PyTorch's Gram matrix and solve, for -R alone: 5.7 and 6.6) |
| decide rarely, as at task ends | `"information"` with `run_stream(..., guesses=False)` | Fashion-MNIST, N = 2000, float64: 3,411 samples/s at 86.55 %; PyTorch's Gram matrix and solve 1,429 |
| float32 only, nearly dependent features | `"square_root"` | Fashion-MNIST through the sparse features of a broad learning system, condition 2e9: square root 82.63 %, as the float64 offline solution; covariance was flagged at the third batch, information at the 25th |

A row so costs about the same in batches of any size: 18 to 38 µs at d = 500 and 242 to 451 at
d = 2000, from 1 to 800 rows a batch. PyTorch's Gram matrix and solve are ahead from 200 rows at
d = 500 and at 800 rows at d = 2000, by at most a third; at 10 rows they take 10 and 33 times as long.

In float32 all but the last can fail, and say so: a readout lost to rounding is flagged with
its batch. The default, float64, needs none of this care.

Accuracy on 10,000 test rows after *every* batch adds 1.2 times the cost of learning here: only
columns of classes met are scored. With few rows a batch and many classes the scores follow the
step's low-rank change instead.
"""
