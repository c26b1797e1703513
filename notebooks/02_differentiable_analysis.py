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
# # What would this stream have changed?
#
# A learner here has two numbers to set, the ridge $\lambda$ and the forward strength $k$,
# and the common way to set them is a grid. But a run along a stream is one pure function,
# without a training loop inside, and JAX differentiates it from end to end. So a stream can be
# asked two things that a grid cannot answer: which way it would have moved $k$ and $\lambda$,
# also with one of each per layer, and *at which batches* it would have done so.
#
# We take the same digits in two orders: five tasks of new classes, and shuffled.

# %%
import time
from functools import partial

import jax
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import optax

import rvfl_jax
from rvfl_jax.data import load_dataset

LAYERS, CLASSES = 3, 10
data = load_dataset("digits")
key = jax.random.key(0)


def make(k, ridge):
    return rvfl_jax.edrvfl(num_layers=LAYERS, num_nodes=64, ridge=ridge, k=k)


def cut(num_tasks):
    stream = rvfl_jax.class_incremental_stream(
        data.X_train, data.y_train, num_tasks=num_tasks, num_batches=50, seed=0
    )
    return rvfl_jax.pad_batches(stream, 28)  # one shape, so one program serves both


streams = {"new classes": cut(5), "shuffled": cut(1)}

# %% [markdown]
# ## A loss that needs no test set
#
# Every batch is guessed before it is learned. With scores $F_t$ for the targets $Y_t$,
#
# $$L(k, \lambda) = \frac{1}{n} \sum_t \lVert F_t - Y_t\rVert^2 .$$
#
# This is `prequential_loss`. It is differentiable in whatever the learner was made of, and no
# test data enters. The program below takes one $k$ and one $\lambda$ per layer; a number that
# all layers share has the sum of their derivatives. Fifty carries of this size fit in
# memory, so that reverse mode may keep them all (`checkpoint=False`).
#
# A derivative through fifty updates of an inverse matrix deserves a check.


# %%
def loss(point, stream):
    learner = make(*point)
    return rvfl_jax.prequential_loss(
        learner, stream, key=key, num_classes=CLASSES, checkpoint=False
    )


loss_alone = jax.jit(loss)
loss_and_gradient = jax.jit(jax.value_and_grad(loss))


def at(k, ridge):
    """The same two numbers for every layer, as the rows of a (2, L) array."""
    return np.outer([k, ridge], np.ones(LAYERS))


with jax.enable_x64(True):
    point, step = at(1.0, 1.0), 1e-5
    _, gradient = loss_and_gradient(point, streams["new classes"])
    difference = np.zeros_like(point)
    for place in np.ndindex(point.shape):
        nudge = np.zeros_like(point)
        nudge[place] = step
        up, down = (loss_alone(point + side, streams["new classes"]) for side in (nudge, -nudge))
        difference[place] = (up - down) / (2 * step)
error = np.max(np.abs(gradient - difference) / np.abs(gradient))
print(f"largest relative difference from central differences: {error:.0e}")
np.testing.assert_allclose(gradient, difference, rtol=1e-5)

# %% [markdown]
# ## One derivative before any search
#
# Would forward regularisation help at all? For one layer let $U_t = D_t \Phi_{t-1}$ be ridge's
# scores of the batch announced, and $M_t = D_t P_{t-1} D_t^\top$ the novelty of its rows, where
# $\Phi$ is the ridge readout and $P$ the inverse of its regularised Gram matrix. Then
#
# $$F_t = (I + k M_t)^{-1} U_t, \qquad
# \frac{\partial L}{\partial k}\Big|_{k=0} =
# \frac{2}{n} \sum_t \bigl\langle Y_t - U_t,\, M_t U_t \bigr\rangle .$$
#
# The derivative is negative, and so some $k > 0$ helps, where ridge speaks too loudly along
# what is novel. In logarithms $k = 0$ is infinitely far away; the derivative with respect
# to $k$ itself is as good there as anywhere.

# %%
GRID = {"k": np.logspace(-3, 1, 8), "ridge": np.logspace(-3, 2, 8)}

print("derivative with respect to k at k = 0\n   ridge" + "".join(f"{n:>14}" for n in streams))
at_zero = {name: [] for name in streams}
with jax.enable_x64(True):
    for ridge in GRID["ridge"]:
        for name, stream in streams.items():
            _, gradient = loss_and_gradient(at(0.0, ridge), stream)
            at_zero[name].append(float(gradient[0].sum()))
        print(f"{ridge:8.3f}" + "".join(f"{slopes[-1]:14.4f}" for slopes in at_zero.values()))
for slopes in at_zero.values():
    assert slopes[0] < 0 < slopes[-1]

# %% [markdown]
# Both orders answer alike: yes where the ridge is weak, no where it is strong. The two
# numbers stand in for each other, so that they have to be chosen together, and an answer at
# one $\lambda$ says nothing of another.
#
# ## The grid
#
# Sixty-four points, a factor of 3.7 apart in $k$ and of 5.2 in $\lambda$. Ridge has the same
# eight values of $\lambda$, and -kF-Bayes has them with its default $\kappa$ and $\sigma$, and
# also a grid of its own over $\kappa$. `sweep` makes one program of a whole grid.


# %%
def make_bayes(kappa, ridge):
    return make(rvfl_jax.adaptive_k(kappa, reuse_k=True), ridge)


BAYES_GRID = {"kappa": np.logspace(-4, 3, 8), "ridge": GRID["ridge"]}
grids, bayes_grids, chosen = {}, {}, {}
for name, stream in streams.items():
    both = GRID | {"k": np.append(0.0, GRID["k"])}
    swept = rvfl_jax.sweep(make, stream, both, key=key)
    ridge_only, grids[name] = swept.prequential_loss[0], swept.prequential_loss[1:]
    bayes_grids[name] = rvfl_jax.sweep(make_bayes, stream, BAYES_GRID, key=key)
    of_k, of_ridge = np.unravel_index(grids[name].argmin(), grids[name].shape)
    default = bayes_grids[name].prequential_loss[list(BAYES_GRID["kappa"]).index(1.0)]
    chosen[name] = {
        "-R": (ridge_only.min(), at(0.0, GRID["ridge"][ridge_only.argmin()])),
        "grid": (grids[name].min(), at(GRID["k"][of_k], GRID["ridge"][of_ridge])),
    }
    print(name)
