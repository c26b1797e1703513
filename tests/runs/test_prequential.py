"""The prequential loss and its derivatives, in both modes and through every form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from tests import tolerances
from tests.amounts import slow_but

KEY = jax.random.key(0)
KINDS = ("constant", "at zero", "bayes", "reused", "trace")


@pytest.fixture(autouse=True)
def double():
    with jax.enable_x64(True):
        yield


def make(values, kind, solver):
    strength = {
        "constant": lambda: jnp.exp(values["k"]),
        "at zero": lambda: values["k"],
        "bayes": lambda: rvfl_jax.adaptive_k(jnp.exp(values["k"]), jnp.exp(values["sigma"])),
        "reused": lambda: rvfl_jax.adaptive_k(
            jnp.exp(values["k"]), jnp.exp(values["sigma"]), reuse_k=True
        ),
        "trace": lambda: rvfl_jax.adaptive_k(jnp.exp(values["k"]), estimator="trace"),
    }
    return rvfl_jax.edrvfl(
        num_layers=2,
        num_nodes=6,
        ridge=jnp.exp(values["ridge"]),
        k=strength[kind](),
        activation="tanh",
        weight_scale=jnp.exp(values["scale"]),
        solver=solver,
    )


def start(kind):
    k = 0.0 if kind == "at zero" else 0.3
    return {
        "k": jnp.array(k),
        "ridge": jnp.array([-1.0, -0.5]),
        "sigma": jnp.array(-2.0),
        "scale": jnp.array([0.1, -0.2]),
        "X": jnp.array(0.0),
    }


def difference(function, h=1e-3):
    """Central difference of fourth order at 0."""
    f = [float(function(step * h)) for step in (-2, -1, 1, 2)]
    return (f[0] - 8 * f[1] + 8 * f[2] - f[3]) / (12 * h)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "solver"),
    [(kind, solver) for solver in ("covariance", "information") for kind in KINDS]
    + [(kind, "square_root") for kind in ("at zero", "reused")],
)
def test_derivatives_equal_finite_differences_in_both_modes(stream, kind, solver):
    shift = jnp.asarray(np.random.default_rng(0).normal(size=stream.X.shape))

    @jax.jit
    def loss(values):
        moved = stream._replace(X=stream.X + values["X"] * shift)
        return rvfl_jax.prequential_loss(make(values, kind, solver), moved, key=KEY)

    values = start(kind)
    gradient = jax.jit(jax.grad(loss))(values)
    along = jax.jit(lambda direction: jax.jvp(loss, (values,), (direction,))[1])
    for name, entry in values.items():
        if name == "sigma" and kind not in ("bayes", "reused"):
            continue
        ones = jnp.ones_like(entry)
        direction = {**jax.tree.map(jnp.zeros_like, values), name: ones}
        forward = along(direction)
        backward = jnp.sum(gradient[name])
        moved = difference(
            lambda h, name=name, ones=ones: loss({**values, name: values[name] + h * ones})
        )
        assert np.isfinite(backward)
        assert abs(forward - moved) <= tolerances.DERIVATIVE * abs(moved), name
        assert abs(backward - forward) <= tolerances.REORDERED * max(1.0, abs(forward)), name


def test_log_k_of_minus_infinity_is_ridge_with_derivative_zero(stream):
    def loss(log_k):
        learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=6, ridge=0.5, k=jnp.exp(log_k))
        return rvfl_jax.prequential_loss(learner, stream, key=KEY)

    value, slope = jax.jit(jax.value_and_grad(loss))(-jnp.inf)
    ridge = rvfl_jax.edrvfl(num_layers=1, num_nodes=6, ridge=0.5, k=0.0)
    expected = jax.jit(lambda: rvfl_jax.prequential_loss(ridge, stream, key=KEY))()
    np.testing.assert_allclose(value, expected, rtol=tolerances.REORDERED)
    assert slope == 0


@pytest.mark.parametrize("checkpoint", slow_but([True, 4], [True, False, 1, 4, 50]))
def test_losses_are_those_of_the_run(stream, learner, checkpoint):
    history = rvfl_jax.run_stream(learner, stream, key=KEY).history
    losses = jax.jit(
        lambda: rvfl_jax.prequential_losses(learner, stream, key=KEY, checkpoint=checkpoint)
    )()
    np.testing.assert_allclose(losses, history.prequential_loss, rtol=tolerances.REORDERED)
    whole = jax.jit(lambda: rvfl_jax.prequential_loss(learner, stream, key=KEY))()
    expected = np.sum(history.prequential_loss * history.rows) / history.rows.sum()
    np.testing.assert_allclose(whole, expected, rtol=tolerances.REORDERED)


@pytest.mark.parametrize(("k", "ridge"), [(jnp.inf, 0.5), (-1.0, 1e-300), (1.0, -1.0)])
def test_what_failed_is_infinite_and_no_minimum(stream, k, ridge):
    """Numbers that are traced cannot be refused; a finite loss would let them win."""

    def loss(k, ridge):
        learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=6, ridge=ridge, k=k)
        return rvfl_jax.prequential_loss(learner, stream, key=KEY)

    assert jax.jit(loss)(k, ridge) == jnp.inf


@pytest.mark.slow
def test_second_derivatives_by_forward_over_reverse_mode(stream):
    def loss(log):
        learner = rvfl_jax.edrvfl(
            num_layers=1, num_nodes=6, ridge=jnp.exp(log[1]), k=jnp.exp(log[0])
        )
        return rvfl_jax.prequential_loss(learner, stream, key=KEY)

    with jax.enable_x64(True):
        log, step = jnp.array([0.2, -0.7]), 1e-4
        slope = jax.jit(jax.grad(loss))
        hessian = jax.jit(jax.hessian(loss))(log)
        columns = [(slope(log + step * e) - slope(log - step * e)) / (2 * step) for e in jnp.eye(2)]
    np.testing.assert_allclose(hessian, jnp.stack(columns), rtol=1e-4, atol=1e-7)


def test_padding_has_finite_derivatives(stream):
    def loss(weight, X):
        learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=6, ridge=0.5, k=1.0)
        return rvfl_jax.prequential_loss(
            learner, stream._replace(weight=weight, X=X), key=KEY, num_classes=4
        )

    X = np.where(stream.weight[..., None] > 0, stream.X, np.nan)
    slopes = jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(stream.weight), jnp.asarray(X))
    assert all(np.isfinite(slope).all() for slope in slopes)


def kept_bytes(stream, checkpoint):
    # With respect to the features: only then reverse mode needs every eta_dagger.
    def loss(scale):
        learner = rvfl_jax.edrvfl(
            num_layers=1,
            num_nodes=58,
            ridge=0.5,
            k=1.0,
            weight_scale=scale,
            solver="covariance",
        )
        return rvfl_jax.prequential_loss(learner, stream, key=KEY, checkpoint=checkpoint)

    compiled = jax.jit(jax.grad(loss)).lower(0.5).compile()
    return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.slow
def test_memory_of_reverse_mode_grows_like_the_root_of_the_length():
    rng = np.random.default_rng(0)

    def stream_of(T):
        X = rng.normal(size=(T, 2, 6)).astype(np.float32)
        y = (np.arange(2 * T) % 4).reshape(T, 2).astype(np.int32)
        ones = np.ones((T, 2), np.float32)
        return rvfl_jax.Stream(X, y, ones, np.arange(4), np.zeros(T, int), np.zeros(4, int))

    short, long = stream_of(64), stream_of(1024)
    carry = 64 * 64 * 8
    assert kept_bytes(long, False) > 1024 * carry
    assert kept_bytes(long, True) < 200 * carry
    # 16 times the steps: 4 times the memory, and the inputs themselves.
    assert kept_bytes(long, True) < 6 * kept_bytes(short, True)


def test_bad_arguments(stream, learner):
    with pytest.raises(ValueError, match="num_classes: expected at least 4, got 2"):
        rvfl_jax.prequential_loss(learner, stream, key=KEY, num_classes=2)
    with pytest.raises(ValueError, match="checkpoint: expected an integer of at least 1, got 0"):
        rvfl_jax.prequential_loss(learner, stream, key=KEY, checkpoint=0)
