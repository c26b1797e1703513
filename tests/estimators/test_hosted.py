"""Sums by BLAS on the host and by programs of JAX: one model, whatever is done to it."""

import pickle

import jax
import numpy as np
import pytest

from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, load_model, merge, save_model
from rvfl_jax.estimators import hosted
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.learners.edrvfl.sums import Sums
from rvfl_jax.linalg import host_blas
from tests.amounts import slow_but
from tests.estimators.test_estimator import assert_close, blobs, in_batches

X, Y = blobs(num_rows=300, num_classes=4, num_features=6)
OPTIONS = {"num_layers": 2, "num_nodes": 60, "ridge": np.array([0.5, 2.0]), "random_state": 0}
WEIGHT = np.random.default_rng(1).integers(0, 4, 300) / 2.0


@pytest.fixture(autouse=True)
def narrow_strips(monkeypatch):
    monkeypatch.setattr(host_blas, "STRIP_ROWS", 16)


@pytest.fixture
def by_programs(monkeypatch):
    """Makes models whose sums are those of JAX, as where JAX has an accelerator."""

    def make(change):
        with monkeypatch.context() as patched:
            patched.setattr(hosted, "is_host_faster", lambda: False)
            return change()

    return make


def started(**options):
    model = EdRVFLClassifier(**OPTIONS | options)
    return model.partial_fit(X[:150], Y[:150], sample_weight=WEIGHT[:150])


def added(model):
    return in_batches(model, X[150:], Y[150:], (1, 40, 9, 100))


def merged(model):
    other = EdRVFLClassifier(**model.get_params()).partial_fit(X[150:], Y[150:] + 2)
    return merge(model, other)


CHANGES = {
    "weights": (started, lambda m: m.partial_fit(X[150:], Y[150:], sample_weight=WEIGHT[150:])),
    "few rows a call": (started, added),
    "forgetting": (lambda: started(forgetting=0.99), added),
    "discriminant": (lambda: started(readout="discriminant", shrinkage=0.3), added),
    "shrunk whole": (lambda: started(readout="discriminant", shrinkage=1.0), added),
    "nearest mean": (lambda: started(readout="nearest_mean"), added),
    "announced": (
        lambda: started(k=np.array([1.5, 0.5])),
        lambda m: m.partial_fit(X[150:200], Y[150:200], X_next=X[200:]),
    ),
    "unlearn": (
        started,
        lambda m: m.unlearn(X[20:90], Y[20:90], sample_weight=WEIGHT[20:90]),
    ),
    "merge": (started, merged),
    "more classes": (started, lambda m: m.partial_fit(X[150:], np.arange(150))),
    "fit": (started, lambda m: m.fit(X, Y, sample_weight=WEIGHT)),
}


def answers(model):
    return {
        "scores": model.decision_function(X),
        "probabilities": model.predict_proba(X),
        "spread": model.predict_std(X),
        "trace": model._fitted.trace,
        "gram": np.asarray(model._settled().learned.sums.gram),
        "moment": np.asarray(model._settled().learned.sums.moment),
        "counts": np.asarray(model._settled().learned.sums.counts),
        "eta_dagger": np.asarray(model._fitted.state.eta_dagger),
    }


@pytest.mark.parametrize(
    "name", slow_but(["weights", "few rows a call", "discriminant", "unlearn", "fit"], CHANGES)
)
def test_both_learn_the_same(name, by_programs):
    begin, change = CHANGES[name]
    ours, theirs = change(begin()), by_programs(lambda: change(begin()))
    assert isinstance(ours._fitted.learned.sums, HostSums)
    assert isinstance(theirs._fitted.learned.sums, Sums)
    want = answers(theirs)
    for what, found in answers(ours).items():
        assert_close(np.nan_to_num(found), np.nan_to_num(want[what]), 1e-9)


def test_regressors_learn_the_same(by_programs):
    def learned():
        model = EdRVFLRegressor(**OPTIONS)
        for start in (0, 90):
            rows = slice(start, start + 90)
            model.partial_fit(X[rows], X[rows, :2], sample_weight=WEIGHT[rows])
        return model

    assert_close(learned().predict(X), by_programs(learned).predict(X), 1e-9)


@pytest.mark.parametrize("away", [False, True], ids=["to the host", "to programs"])
def test_files_pass_from_one_to_the_other(away, by_programs, tmp_path):
    elsewhere = by_programs if away else lambda change: change()
    here = (lambda change: change()) if away else by_programs
    model = here(lambda: added(started()))
    save_model(model, tmp_path)
    again = elsewhere(lambda: load_model(tmp_path))
    assert type(again._fitted.learned.sums) is not type(model._fitted.learned.sums)
    for what, found in answers(again).items():
        assert_close(np.nan_to_num(found), np.nan_to_num(answers(model)[what]), 1e-12)
    # Pickles go on as they were.
    twin = pickle.loads(pickle.dumps(model))
    assert type(twin._fitted.learned.sums) is type(model._fitted.learned.sums)
    assert_close(added(twin).decision_function(X), added(model).decision_function(X), 1e-12)


def test_the_host_keeps_half(by_programs):
    ours, theirs = (
        found(lambda: added(started()))._settled()
        for found in (lambda change: change(), by_programs)
    )
    held = [sum(leaf.nbytes for leaf in jax.tree.leaves(f.learned.sums)) for f in (ours, theirs)]
    assert held[0] < 0.75 * held[1]


def test_rows_of_padding_are_not_multiplied(monkeypatch):
    seen = []

    def noted(strips, D, *rest):
        seen.append(D.shape[1])
        return host_blas.plus_gram(strips, D, *rest)

    monkeypatch.setattr("rvfl_jax.learners.edrvfl.host_sums.plus_gram", noted)
    EdRVFLClassifier(**OPTIONS).partial_fit(X[:131], Y[:131]).unlearn(X[:3], Y[:3])
    assert seen == [131, 3]


def test_residuals_tell_readouts_that_drifted():
    model = started()
    sums, ridge = model._settled().learned.sums, OPTIONS["ridge"]
    theta = np.asarray(model._solved("ridge").theta)
    assert (hosted.relative_residual(sums, ridge, theta) < 1e-12).all()
    moved = hosted.relative_residual(sums, ridge, theta * np.array([1.0, 1.01])[:, None, None])
    assert moved[0] < 1e-12
    assert moved[1] > 1e-3
