"""A readout to begin from: the paper's theta_0, eqs. (20) and (26)."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.core.checks import finite, is_traced, shape
from rvfl_jax.core.types import Array
from rvfl_jax.learners.edrvfl.residual import sketch_of
from rvfl_jax.learners.edrvfl.sums import system_of
from rvfl_jax.linalg.precision import scope_of


def with_prior(state: Any, theta_0: Any) -> Any:
    """The state of a learner that begins from a given readout theta_0.

    lambda then pulls towards theta_0 and no longer towards 0, and so does the forward term: after
    every batch

        theta_{t+1} = theta_0 + eta_{t+1} sum_{i<=t} D_i^T (Y_i - D_i theta_0),

    the minimum of eq. (17) with the theta_0 in it, which eq. (20) steps to. Where lambda is large
    the learner stays near theta_0; with many rows it moves away. `theta` of another state
    with the same W is such a readout; `merge_states` adds what two such states learned.

    Example:
        >>> before = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0))
        >>> with jax.enable_x64(True):
        ...     state = learner.init(jax.random.key(0), stream.X.shape[-1], len(stream.classes))
        ...     state = rvfl_jax.with_prior(state, before.state.theta)
        >>> run = rvfl_jax.run_stream(learner, stream, key=jax.random.key(0), state=state)

    Args:
        state: of `learner.init`, before anything is learned.
        theta_0: (L, d, m) finite numbers; may be traced.

    Raises:
        ValueError: on another shape, numbers that are not finite, or a state that has learned.
    """
    shape("theta_0", theta_0, np.shape(state.theta), "(L, d, m) of the state")
    if not is_traced(theta_0):
        finite("theta_0", np.asarray(theta_0))
    if not is_traced(state.num_learned) and int(state.num_learned):
        raise ValueError(
            f"state: expected one that has learned nothing, got one of {int(state.num_learned)}"
            " batches"
        )
    with scope_of(state.theta):
        return _begun(state, jnp.asarray(theta_0, state.theta.dtype))


@jax.jit
def _begun(state: Any, theta_0: Array) -> Any:
    begun = state._replace(theta=theta_0, theta_ridge=theta_0, prior=theta_0)
    return begun._replace(sketch=jax.vmap(sketch_of)(*system_of(begun)))
