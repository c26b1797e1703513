"""What the learner keeps between steps, and how a state of another learner is recognised."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import differences, is_traced
from rvfl_jax.core.portable import fetch, portable
from rvfl_jax.core.types import Array, Name
from rvfl_jax.core.words import in_brief
from rvfl_jax.learners.base import state_differences
from rvfl_jax.learners.edrvfl.network import num_features_of
from rvfl_jax.learners.edrvfl.residual import Sketch


@portable
@in_brief
class EdRVFLState(NamedTuple):
    """All that the next step needs; the first four are the paper's.

    Attributes:
        W: (L, N + s, N) random weights.
        theta: (L, d, m) readout theta_{t+1}.
        eta_dagger: (L, d, d) inverse regularised Gram of what was learned.
        eta: (L, d, d) the same with the forward term of the announced batch, the paper's
            variable learning rate.
        theta_ridge: (L, d, m) the readout without forward term.
        k: (L,) strength of the forward term inside eta; 0 when no batch is announced.
        num_learned: () batches learned so far; batches without rows do not count.
        key: PRNG key of the random estimators of k; None without one.
        sketch: random projections of what was learned, from which `residual` and `condition`
            are estimated; each with a leading axis L.
        root: (L, d, d) upper R with R^T R = eta_dagger^-1, for solver="square_root"; None
            for the other solvers.
        prior: (L, d, m) the readout theta_0 that learning began from, see `with_prior`; None for 0.
        ridge: (L,) lambda of the learner; a learner with another one refuses the state.
        activation: name of the learner's activation, a static part of the structure.
    """

    W: Array
    theta: Array
    eta_dagger: Array
    eta: Array
    theta_ridge: Array
    k: Array
    num_learned: Array
    key: Array | None
    sketch: Sketch
    root: Array | None = None
    prior: Array | None = None
    ridge: Array | None = None
    activation: Name | None = None


def design_of(state: Any) -> dict[str, Any]:
    """What a state says of its learner; activation is None where it says nothing."""
    layers, _, nodes = jnp.shape(state.W)
    return {"num_layers": layers, "num_nodes": nodes, "activation": state.activation}


def columns_known(state: EdRVFLState) -> int:
    """How many leading columns hold classes that the readout knows."""
    known = np.flatnonzero(np.any(fetch(state.theta) != 0, axis=(0, 1)))
    return int(np.max(known, initial=-1)) + 1


def differences_of(expected: EdRVFLState, state: EdRVFLState, ridge: Any) -> list[str]:
    """In what a state is one of another learner or stream; see `StateFacts`."""
    wanted, found = (
        {**design_of(each), "features": num_features_of(each), "classes": each.theta.shape[-1]}
        for each in (expected, state)
    )
    if found["activation"] is None:
        del wanted["activation"], found["activation"]
    # A prior, a root or a key too much is no fault; states of before had no lambda.
    spare: dict[str, Any] = {
        name: None for name in ("key", "root", "prior") if getattr(expected, name) is None
    }
    shapes = state._replace(ridge=expected.ridge, activation=expected.activation, **spare)
    faults = differences(wanted, found) or state_differences(expected, shapes)
    return faults + _other_ridge(ridge, state.ridge)


def _other_ridge(mine: Any, theirs: Array | None) -> list[str]:
    """In what lambda differs, where both the learner and the state have one."""
    if theirs is None or is_traced(mine) or is_traced(theirs):
        return []
    kept = fetch(theirs)
    # Single precision may round it.
    if np.shape(mine) not in ((), kept.shape) or np.allclose(mine, kept, rtol=1e-6, atol=0):
        return []
    return [f"ridge: expected {np.asarray(mine).tolist()}, got {kept.tolist()}"]
