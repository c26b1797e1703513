# ---
# jupyter:
#   jupytext:
#     formats: ipynb,py:percent
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Write your own learner
#
# A learner is three pure functions. Once they are written, everything here works on it: whole
# streams as one compiled program, sweeps, gradients, checkpoints, pictures, comparisons. This
# notebook writes streaming linear discriminant analysis, which ships as
# `rvfl_jax.learners.slda`, and names every concept on the way.
#
# ## The three functions
#
# | function | gives | what it is |
# |---|---|---|
# | `init(key, num_features, num_classes)` | `state` | before anything was learned |
# | `step(state, X_t, Y_t, X_next, *, weight_t, weight_next)` | `(state, info)` | learns a batch |
# | `scores(state, X)` | `(n, m)` | one number a row and class; the largest is the answer |
#
# **The state** is any pytree of arrays (a `NamedTuple`, a dictionary, a flax module's
# parameters). Its shapes must not change, since a whole stream is one `lax.scan`; so room is
# made in `init` for all `num_classes` columns, whatever comes first. Random numbers of later
# steps come from a key that the state carries.
#
# **A batch** is `X_t` (b, s) inputs and `Y_t` (b, m) one-hot targets, which are always finite.
# Every batch of a stream has the same b: shorter ones are filled up with rows of **weight** 0 in
# `weight_t` (b,), which must not count and whose inputs may hold anything. `rows_of` sets these to
# 0, gives weight 1 where there are no weights, and brings both to the dtype of the state. Weights
# are at least 0, and need not be whole.
#
# **`X_next`** are the inputs of the batch that comes next, without labels, `weight_next` their
# weights; at the end of a stream all of these are 0. Forward regularisation uses them; most methods
# do not. The three last arguments have the default None, for people who call `step` by hand.
#
# **Scores** of classes that were never met should be far below all others, but finite: a quarter of
# the least number of the dtype leaves room for sums.
#
# **`info`** is `StepInfo(guess_scores, healthy)`. `guess_scores` are the scores of this batch's
# rows *before* it was learned: from them come prequential loss and accuracy. `healthy` is False
# where the new state is not finite; the run then raises a `NumericalError` that names the batch,
# and `unless_unhealthy` leaves the state as it was. A third field, `extras`, is a dictionary of
# figures of your own, kept in `run.history.extras`.
#
# Functions are traced by JAX: no Python `if` on values, no shapes that depend on data, and no
# `float64` by name (`precision=` of a run decides what `jnp.zeros` gives).

# %%
# %matplotlib inline
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from IPython.display import display

import rvfl_jax
from rvfl_jax import StepInfo, class_incremental_stream, make_learner, plots
from rvfl_jax.data import load_dataset
from rvfl_jax.learners.parts import rows_of, unless_unhealthy
from rvfl_jax.metrics import brier_loss


class State(NamedTuple):
    """Rows (m,) and means (m, s) of each class, and the scatter (s, s) about the means."""

    count: jax.Array
    mean: jax.Array
    scatter: jax.Array


def slda(shrinkage=1e-4):
    """Streaming linear discriminant analysis."""

    def init(key, num_features, num_classes):
        s, m = num_features, num_classes
        return State(jnp.zeros(m), jnp.zeros((m, s)), jnp.zeros((s, s)))

    def scores(state, X):
        total = state.count.sum()
        covariance = state.scatter / jnp.where(total > 0, total, 1.0)
        shrunk = (1 - shrinkage) * covariance + shrinkage * jnp.eye(len(covariance))
        weights = jnp.linalg.solve(shrunk, state.mean.T)  # (s, m)
        z = X @ weights - jnp.sum(state.mean.T * weights, axis=0) / 2
        return jnp.where(state.count > 0, z, jnp.finfo(z.dtype).min / 4)  # not met yet

    def step(state, X_t, Y_t, X_next=None, *, weight_t=None, weight_next=None):
        X, weight = rows_of(X_t, weight_t, state.mean.dtype)
        count = weight @ Y_t
        total = state.count + count
        share = count / jnp.where(total > 0, total, 1.0)
        mean = (weight * Y_t.T) @ X / jnp.where(count > 0, count, 1.0)[:, None]
        apart = jnp.where(count[:, None] > 0, mean - state.mean, 0.0)
        within = X - Y_t @ mean
        scatter = (weight * within.T) @ within + (state.count * share * apart.T) @ apart
        new = State(total, state.mean + share[:, None] * apart, state.scatter + scatter)
        healthy = jnp.isfinite(new.scatter).all() & jnp.isfinite(new.mean).all()
        return unless_unhealthy(healthy, new, state), StepInfo(scores(state, X), healthy)

    return make_learner(init, step, scores, loss=brier_loss, description=f"slda({shrinkage=})")


# %% [markdown]
# `make_learner` makes a `Learner` of them; `description` is what records and `repr` say of it, its
# numbers included. What else it takes, where a method has it:
#
# - `loss`, by which guesses are judged, `(scores, targets) -> (b,)`. The default is the squared
#   error of the scores themselves, right for scores that estimate one-hot targets. Those of LDA
#   are log-likelihoods, and any network's are logits: `brier_loss` is the squared error of the
#   probabilities that their softmax gives, and right for whatever a softmax makes sense of. It
#   never changes what is learned.
# - `consolidate`, `state -> state`, which is called where a task ends if a run says
#   `boundaries="given"`, and never otherwise.
# - `fit_offline`, `(state, X, Y, weight) -> state`, the method that sees all rows at once, begun
#   from a fresh state: excess loss and forward transfer are measured from it, and are NaN
#   without it.
# - `combine`: `scores` may have a leading axis, (L, n, m), for an ensemble of L sub-learners;
#   `combine` says how it becomes (n, m) probabilities. The default is the mean of softmaxes.
#
# ## A stream, as one program

# %%
data = load_dataset("digits")
test = (data.X_test, data.y_test)
stream = class_incremental_stream(data.X_train, data.y_train, num_tasks=5, num_batches=50, seed=0)
key = jax.random.key(0)
run = rvfl_jax.run_stream(slda(1e-2), stream, key=key, test=test)
print(f"accuracy at the end {run.history.accuracy['class_incremental'][-1]:.4f}")

# %% [markdown]
# A check that costs nothing: a pass in other batches must end in the same state.

# %%
other = class_incremental_stream(data.X_train, data.y_train, num_tasks=5, num_batches=10, seed=0)
again = rvfl_jax.run_stream(slda(1e-2), other, key=key)
# Columns are the classes in the order of the stream, which is the same.
difference = max(float(np.abs(a - b).max()) for a, b in zip(run.state, again.state, strict=True))
print("largest difference below 1e-9:", difference < 1e-9)

# %% [markdown]
# ## Swept
#
# `sweep` takes the function that makes a learner, and traces the numbers that it is given: all
# values are one program.

# %%
result = rvfl_jax.sweep(slda, stream, {"shrinkage": np.geomspace(1e-4, 1.0, 9)}, key=key)
chosen = result.best()["shrinkage"]
print(f"shrinkage with the least prequential loss: {chosen:.1e}")

# %% [markdown]
# ## Differentiated
#
# A whole run is a function of its numbers.


# %%
def loss(log_shrinkage):
    """Mean prequential loss of a pass."""
    return rvfl_jax.prequential_loss(slda(jnp.exp(log_shrinkage)), stream, key=key)


with jax.enable_x64(True):
    at = jnp.log(1e-2)
    slope = jax.grad(loss)(at)
    numerical = (loss(at + 1e-3) - loss(at - 1e-3)) / 2e-3
print("gradient agrees with differences:", bool(np.isclose(slope, numerical, rtol=1e-3)))

# %% [markdown]
# ## Compared
#
# `compare` runs learners on the streams of several seeds, and gives the table and the picture
# of the command line. A method that is registered (`rvfl_jax.learners.register`) is also known
# to `rvfl-jax run --styles`.


# %%
def of_seed(seed):
    """The stream of a seed."""
    return class_incremental_stream(
        data.X_train, data.y_train, num_tasks=5, num_batches=50, seed=seed
    )


learners = {
    "-R": rvfl_jax.edrvfl(num_layers=3, num_nodes=128, ridge=0.1, k=0.0),
    "SLDA": slda(chosen),
}
comparison = rvfl_jax.compare(learners, of_seed, seeds=3, test=test)
for name, style in comparison.styles.items():
    print(name, style.summary())

# %%
figure = plots.comparison_figure(comparison)
figure.set_size_inches(10, 5)
display(figure)

# %% [markdown]
# ## Many learners, one program
#
# `make_learner` compiles for each learner that it makes. Where many differ in numbers alone,
# write the same functions under `shared_programs`, which takes what shapes a program
# (`options`, hashable) apart from what only scales (`numbers`): equal options then share every
# program, and the learner is a pytree of its numbers. The shipped `slda` is written so:
#
# ```python
# @shared_programs
# def _slda(options, shrinkage):
#     ...  # the three functions, as above
#     return plain_learner(init, step, scores, description=describe("slda", shrinkage=shrinkage))
#
# def slda(*, shrinkage=1e-4):
#     return _slda((), shrinkage)
# ```
