"""Encoders: their equations, what they are fitted on, and the guard against leaks."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import orth

import rvfl_jax
from rvfl_jax import encoders
from tests import references
from tests.tolerances import COUNTS, SINGLE

SIDE = 8


@pytest.fixture(scope="module")
def digits():
    from rvfl_jax.data import load_dataset

    return load_dataset("digits")


@pytest.fixture(scope="module")
def stream(digits):
    return rvfl_jax.class_incremental_stream(
        digits.X_train, digits.y_train, num_tasks=5, num_batches=10, seed=0
    )


def sparse():
    return encoders.sparse_autoencoder(3, 4, 20)


def patches(**options):
    return encoders.random_patches((SIDE, SIDE), 6, patch_size=3, pooling=2, **options)


FROZEN = {"sparse autoencoder": sparse, "random patches": patches}


@pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN.keys())
def test_features_are_functions_of_their_own_row(make, digits):
    encoder = make()
    params = encoder.fit(jax.random.key(0), digits.X_train)
    whole = encoders.encode(encoder, params, digits.X_test)
    blocks = encoders.encode(encoder, params, digits.X_test, rows_at_once=7)
    np.testing.assert_allclose(whole, blocks, atol=1e-4)
    assert np.isfinite(whole).all()


@pytest.mark.parametrize("make", FROZEN.values(), ids=FROZEN.keys())
def test_same_key_same_features_other_key_others(make, digits):
    encoder = make()
    fit = [encoder.fit(jax.random.key(seed), digits.X_train) for seed in (0, 0, 1)]
    first, again, other = (encoders.encode(encoder, p, digits.X_test) for p in fit)
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 0.01


@pytest.mark.parametrize("shrink", [0.8, 300.0])
def test_sparse_autoencoder_is_the_predecessors(shrink, digits):
    encoder = encoders.sparse_autoencoder(3, 4, 20, shrink=shrink)
    key = jax.random.key(3)
    params = encoder.fit(key, digits.X_train)
    draws, turn = jax.random.split(key)
    projections = 2 * jax.random.normal(draws, (3, SIDE * SIDE + 1, 4), jnp.float32) - 1
    basis = orth(2 * np.asarray(jax.random.normal(turn, (20, 13), jnp.float32), float) - 1)
    # Singular vectors have no sign of their own.
    basis *= np.sign((basis * np.asarray(params.directions).T).sum(axis=0))
    want = references.sparse_autoencoder(
        np.asarray(projections, float),
        basis,
        digits.X_train.astype(float),
        l1=1e-3,
        shrink=shrink,
    )
    got = encoders.encode(encoder, params, digits.X_train)
    np.testing.assert_allclose(got[:, :12], want[:, :12], atol=SINGLE)
    np.testing.assert_allclose(got[:, :12].min(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(got[:, :12].max(axis=0), 1, atol=1e-5)
    # The gain multiplies what rounding left.
    np.testing.assert_allclose(got[:, 12:], want[:, 12:], atol=max(1.0, shrink) * 1e-5)


def test_sparse_reconstruction_is_the_minimum(digits):
    """No small change of any weight lowers the objective by more than ADMM leaves over."""
    from rvfl_jax.encoders.sparse_autoencoder import _sparse_reconstruction

    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 5)).astype(np.float32)
    # Gram near the identity, where 50 steps converge.
    A = (rng.normal(size=(60, 4)) / np.sqrt(60)).astype(np.float32)
    l1 = 1.0
    w = np.asarray(_sparse_reconstruction(jnp.asarray(A), jnp.asarray(X), l1), float)

    def objective(w):
        return 0.5 * ((A @ w - X) ** 2).sum() + l1 * np.abs(w).sum()

    assert (w == 0).any()
    assert (w != 0).any()
    for place in np.ndindex(w.shape):
        for change in (-1e-2, 1e-2):
            moved = w.copy()
            moved[place] += change
            assert objective(moved) > objective(w) - 1e-3


def test_enhancement_is_bounded_by_shrink_on_fitted_rows(digits):
    encoder = encoders.sparse_autoencoder(3, 4, 20, shrink=0.5)
    params = encoder.fit(jax.random.key(0), digits.X_train)
    nodes = encoders.encode(encoder, params, digits.X_train)[:, 12:]
    assert nodes.shape == (len(digits.X_train), 20)
    assert nodes.max() == pytest.approx(np.tanh(0.5), abs=1e-4)
    directions = np.asarray(params.directions)
    np.testing.assert_allclose(directions @ directions.T, np.eye(13), atol=1e-5)


def test_sparse_autoencoder_survives_flat_rows():
    X = np.zeros((10, 6), np.float32)
    encoder = sparse()
    features = encoders.encode(encoder, encoder.fit(jax.random.key(0), X), X)
    assert np.isfinite(features).all()


def test_random_patches_are_the_reference(digits):
    encoder = patches(num_patches=400, threshold=0.1)
    params = encoder.fit(jax.random.key(0), digits.X_train)
    got = encoders.encode(encoder, params, digits.X_test[:20])
    want = references.patch_features(
        *(np.asarray(leaf, float) for leaf in params),
        digits.X_test[:20].astype(float).reshape(-1, SIDE, SIDE, 1),
        patch_size=3,
        pooling=2,
        threshold=0.1,
        contrast=0.1,
    )
    assert got.shape == (20, 2 * 6 * 4)
    np.testing.assert_allclose(got, want, atol=SINGLE)


def test_random_patch_features_are_standardised_by_the_fitted_rows(digits):
    """As far as a thousand of them tell."""
    encoder = patches(num_patches=2000, whitening=0.5)
    params = encoder.fit(jax.random.key(0), digits.X_train)
    features = encoders.encode(encoder, params, digits.X_train)
    live = np.asarray(params.scale) > 0
    np.testing.assert_allclose(features[:, live].mean(axis=0), 0, atol=0.15)
    np.testing.assert_allclose(features[:, live].std(axis=0), 1, atol=0.15)


def test_random_patches_take_colour():
    rng = np.random.default_rng(0)
    X = rng.random((30, 7 * 9 * 3), np.float32)
    encoder = encoders.random_patches((7, 9, 3), 5, patch_size=3, pooling=2, num_patches=100)
    features = encoders.encode(encoder, encoder.fit(jax.random.key(0), X), X)
    assert features.shape == (30, 2 * 5 * 4)
    assert np.isfinite(features).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: encoders.sparse_autoencoder(0), "num_windows: expected an integer"),
        (lambda: encoders.sparse_autoencoder(l1=0.0), "l1: expected a positive number"),
        (lambda: encoders.sparse_autoencoder(shrink=float("nan")), "shrink: expected"),
        (lambda: encoders.random_patches((8,), 4), "image_shape: expected 2 or 3 sides"),
        (lambda: encoders.random_patches((8, 8), 4, patch_size=7), "at least 4 places"),
        (lambda: encoders.random_patches((8, 8), 4, num_patches=3, pooling=2), "at most"),
        (lambda: encoders.random_patches((8, 8), 4, pooling=2, threshold=-1), "threshold"),
        (lambda: encoders.ResNet(depth=57).init(jax.random.key(0), jnp.zeros((1, 32, 32, 3))),
         "depth: expected 6 n"),
    ],
)  # fmt: skip
def test_bad_sizes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_rows_of_another_size_are_named(digits):
    encoder = encoders.random_patches((28, 28), 4)
    with pytest.raises(ValueError, match=r"expected shape \(n, 784\)"):
        encoder.fit(jax.random.key(0), digits.X_train)


@pytest.mark.parametrize(
    ("make", "fit_on"),
    [
        (sparse, "first_batch"),
        (sparse, "first_task"),
        pytest.param(sparse, "training_inputs", marks=pytest.mark.slow),
        (patches, "training_inputs"),
    ],
)
def test_frozen_encoders_pass_the_leak_guard(make, fit_on, stream, digits):
    encoded = encoders.encode_stream(make(), stream, key=jax.random.key(0), fit_on=fit_on)
    encoders.leak_guard(_predictor(encoded), digits.X_test)


@pytest.mark.parametrize("make", [sparse, pytest.param(patches, marks=pytest.mark.slow)])
def test_refitted_encoders_fail_the_leak_guard(make, stream, digits):
    with pytest.warns(encoders.LeakWarning, match="fits the encoder on test rows"):
        encoded = encoders.encode_stream(
            make(), stream, key=jax.random.key(0), protocol="refit_per_task"
        )
    with pytest.raises(encoders.LeakError, match="fitted on, or scaled by, the test rows"):
        encoders.leak_guard(_predictor(encoded), digits.X_test)


def _predictor(encoded):
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=8, ridge=0.1, k=0.0)
    run = rvfl_jax.run_stream(learner, encoded.stream, key=jax.random.key(0))

    def predict(X):
        return learner.predict(run.state, encoded.encode_test(X))

    return predict


def test_leak_guard_sees_a_scaler_fitted_on_the_test_set(digits):
    def predict(X):
        return (X - X.mean(axis=0)) / (X.std(axis=0) + 1)

    with pytest.raises(encoders.LeakError, match="splitting the test rows"):
        encoders.leak_guard(predict, digits.X_test)


def test_leak_guard_sees_rows_that_change_places(digits):
    with pytest.raises(encoders.LeakError, match="permuting the test rows"):
        encoders.leak_guard(lambda X: X * np.arange(len(X))[:, None], digits.X_test)


def test_leak_guard_sees_nan(digits):
    with pytest.raises(encoders.LeakError):
        encoders.leak_guard(lambda X: X * np.nan, digits.X_test)
    with pytest.raises(ValueError, match="at least 2 rows"):
        encoders.leak_guard(lambda X: X, digits.X_test[:1])


def test_frozen_encoder_knows_only_what_it_was_fitted_on(stream, digits):
    """Later batches may hold anything: parameters come from the first alone."""
    encoder, key = sparse(), jax.random.key(0)
    changed = stream._replace(X=stream.X.copy())
    changed.X[1:] = np.random.default_rng(0).random(changed.X[1:].shape)
    one, other = (
        encoders.encode_stream(encoder, s, key=key, fit_on="first_batch") for s in (stream, changed)
    )
    np.testing.assert_array_equal(one.encode_test(digits.X_test), other.encode_test(digits.X_test))
    np.testing.assert_array_equal(one.stream.X[0], other.stream.X[0])


def test_encoded_stream_keeps_rows_and_padding(stream):
    padded = rvfl_jax.pad_batches(stream, stream.X.shape[1] + 3)
    padded.X[padded.weight == 0] = np.nan
    encoded = encoders.encode_stream(sparse(), padded, key=jax.random.key(0))
    assert encoded.stream.X.shape == (*padded.y.shape, 32)
    assert (encoded.stream.X[padded.weight == 0] == 0).all()
    assert encoded.fitted_on == f"the first batch ({int(padded.weight[0].sum())} rows)"
    used = padded.weight > 0
    again = encoded.encode_test(padded.X[used])
    np.testing.assert_allclose(encoded.stream.X[used], again, atol=COUNTS)


def test_max_rows_limits_what_is_fitted_on(stream):
    encoded = encoders.encode_stream(
        sparse(), stream, key=jax.random.key(0), fit_on="training_inputs", max_rows=50
    )
    assert encoded.fitted_on.startswith("50 rows of all training inputs")


def test_unknown_protocols_are_named(stream):
    for options in ({"protocol": "thawed"}, {"fit_on": "test"}):
        with pytest.raises(ValueError, match="expected one of"):
            encoders.encode_stream(sparse(), stream, key=jax.random.key(0), **options)


class TestResNet:
    def test_has_the_published_number_of_weights(self):
        """0.85 million for CIFAR-10, table 6 of He et al. (2016)."""
        shapes = jax.eval_shape(
            encoders.ResNet(56, num_classes=10).init,
            jax.random.key(0),
            jnp.zeros((1, 32, 32, 3)),
        )
        weights = sum(leaf.size for leaf in jax.tree.leaves(shapes["params"]))
        assert weights == 853_018
        kernels = [leaf for leaf in jax.tree.leaves(shapes["params"]) if leaf.ndim == 4]
        assert len(kernels) == 55

    def test_halves_places_and_doubles_widths(self):
        network = encoders.ResNet(20, num_classes=0)

        def answer(x):
            variables = network.init(jax.random.key(0), x)
            return network.apply(variables, x, capture_intermediates=True, mutable="intermediates")

        features, seen = jax.eval_shape(answer, jnp.zeros((2, 32, 32, 3)))
        shapes = [
            seen["intermediates"][f"stage{stage}_block3"]["__call__"][0].shape
            for stage in (1, 2, 3)
        ]
        assert shapes == [(2, 32, 32, 16), (2, 16, 16, 32), (2, 8, 8, 64)]
        assert features.shape == (2, 64)

    def test_checkpoint_round_trip(self, tmp_path):
        network = encoders.ResNet(8, num_classes=5)
        X = np.random.default_rng(0).random((4, 32 * 32 * 3), np.float32)
        variables = network.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
        path = tmp_path / "resnet.npz"
        encoders.save_checkpoint(path, variables)
        encoder = encoders.resnet(path, depth=8)
        features = encoders.encode(encoder, encoder.fit(jax.random.key(1), X), X)
        assert features.shape == (4, 64)
        head = variables["params"]["head"]
        mean, deviation = (np.asarray(v, np.float32) for v in _cifar())
        images = (X.reshape(-1, 32, 32, 3) - mean) / deviation
        logits = network.apply(variables, images)
        np.testing.assert_allclose(features @ head["kernel"] + head["bias"], logits, atol=1e-4)

    def test_another_network_lists_what_differs(self, tmp_path):
        network = encoders.ResNet(8, num_classes=5)
        path = tmp_path / "resnet.npz"
        encoders.save_checkpoint(path, network.init(jax.random.key(0), jnp.zeros((1, 32, 32, 3))))
        with pytest.raises(ValueError, match="is no resnet-14") as error:
            encoders.resnet(path, depth=14)
        assert "stage1_block2" in str(error.value)
        path.write_bytes(b"nothing")
        with pytest.raises(ValueError, match=r"readable \.npz"):
            encoders.resnet(path, depth=8)
        with pytest.raises(ValueError, match=r"readable \.npz"):
            encoders.resnet(tmp_path / "none.npz")


def _cifar():
    from rvfl_jax.encoders.resnet import CIFAR_DEVIATION, CIFAR_MEAN

    return CIFAR_MEAN, CIFAR_DEVIATION
