"""`IncrementalPipeline`: columns and texts by scikit-learn's own steps, batch by batch."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import RidgeClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.random_projection import SparseRandomProjection

from rvfl_jax import EdRVFLClassifier, IncrementalPipeline
from tests.amounts import slow_but
from tests.estimators.intents import SENTENCES, held_out, learned
from tests.estimators.test_estimator import blobs
from tests.tolerances import CLOSED_FORM

SMALL = {"num_nodes": 16, "num_layers": 1, "random_state": 0}


def frame(rows, seed):
    rng = np.random.default_rng(seed)
    amount = np.where(rng.random(rows) < 0.2, np.nan, 50 + 9 * rng.standard_normal(rows))
    table = pd.DataFrame({"amount": amount, "channel": rng.choice(["web", "mail"], rows)})
    table["note"] = rng.choice(["late parcel", "money back", "open today"], rows)
    return table, table["note"].str.split().str[0].to_numpy()


def columns():
    return ColumnTransformer(
        [
            ("amounts", make_pipeline(SimpleImputer(), StandardScaler()), ["amount"]),
            ("kinds", OneHotEncoder(handle_unknown="ignore"), ["channel"]),
            ("notes", HashingVectorizer(n_features=32), "note"),
        ]
    )


def test_a_column_transformer_is_that_of_the_first_batch():
    (first, y), (more, y_more), (asked, _) = frame(40, 0), frame(30, 1), frame(9, 2)
    more.loc[3, "channel"] = "fax"
    model = IncrementalPipeline([("columns", columns()), ("model", EdRVFLClassifier(**SMALL))])
    assert model.partial_fit(first, y) is model
    model.partial_fit(more, y_more, classes=["never"])
    by_hand = columns().fit(first)
    expected = EdRVFLClassifier(**SMALL).partial_fit(by_hand.transform(first), y)
    expected.partial_fit(by_hand.transform(more), y_more, classes=["never"])
    sure = expected.predict_proba(by_hand.transform(asked))
    np.testing.assert_array_equal(model.predict_proba(asked), sure)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(model)).predict_proba(asked), sure)
    assert model.classes_.tolist() == ["late", "money", "never", "open"]
    model.unlearn(more, y_more)
    alone = EdRVFLClassifier(**SMALL).partial_fit(by_hand.transform(first), y)
    np.testing.assert_allclose(
        model.decision_function(asked)[:, [0, 1, 3]],
        alone.decision_function(by_hand.transform(asked)),
        atol=CLOSED_FORM,
    )


def test_partial_fit_goes_on_from_fit_and_announces_what_is_next():
    X, y = blobs()
    model = IncrementalPipeline(
        [
            ("scale", StandardScaler()),
            ("no", "passthrough"),
            ("m", EdRVFLClassifier(**SMALL, k=1.0)),
        ]
    )
    model.fit(X[:100], y[:100])
    model.partial_fit(X[100:], y[100:], X_next=X[:7])
    scaler = StandardScaler().fit(X[:100])
    expected = EdRVFLClassifier(**SMALL, k=1.0).fit(scaler.transform(X[:100]), y[:100])
    expected.partial_fit(scaler.transform(X[100:]), y[100:], X_next=scaler.transform(X[:7]))
    np.testing.assert_array_equal(
        model.predict_proba(X), expected.predict_proba(scaler.transform(X))
    )


def test_a_first_batch_that_fails_is_none():
    X, y = blobs()
    model = IncrementalPipeline([("pca", PCA(2)), ("m", EdRVFLClassifier(**SMALL))])
    for bad, labels in ((X[:1], y[:1]), (X, y[:-1])):
        with pytest.raises(ValueError, match=r"expected|must be"):
            model.partial_fit(bad, labels)
        with pytest.raises(NotFittedError):
            model.unlearn(X, y)
    model.partial_fit(X, y)
    expected = EdRVFLClassifier(**SMALL).partial_fit(PCA(2).fit_transform(X), y)
    np.testing.assert_allclose(
        model.decision_function(X), expected.decision_function(PCA(2).fit_transform(X)), atol=1e-9
    )


def test_it_is_a_pipeline():
    X, y = blobs()
    model = IncrementalPipeline([("scale", StandardScaler()), ("m", EdRVFLClassifier(**SMALL))])
    found = GridSearchCV(model, {"m__ridge": [0.1, 1.0]}, cv=2).fit(X, y)
    assert isinstance(found.best_estimator_, IncrementalPipeline)
    found.best_estimator_.partial_fit(X, y)
    plain = IncrementalPipeline([("scale", StandardScaler()), ("m", RidgeClassifier())])
    assert not hasattr(plain, "partial_fit")
    assert not hasattr(plain, "unlearn")


STEPS = {
    "hashed to few": lambda: [HashingVectorizer(n_features=1024, ngram_range=(1, 2))],
    "projected": lambda: [
        HashingVectorizer(n_features=2**18),
        SparseRandomProjection(1024, dense_output=True, random_state=0),
    ],
}


@pytest.mark.parametrize("name", slow_but(["hashed to few"], STEPS))
def test_intents_grow_from_sentences(name):
    steps = [(f"step{i}", step) for i, step in enumerate(STEPS[name]())]
    classifier = EdRVFLClassifier(num_nodes=256, ridge=0.1, random_state=0)
    model = IncrementalPipeline([*steps, ("model", classifier)])
    for count, intent in enumerate(SENTENCES, start=1):
        model.partial_fit(learned(intent), [intent] * len(learned(intent)))
        sentences, truth = held_out([*SENTENCES][:count])
        assert model.score(sentences, truth) >= 0.85
    everything = [text for intent in SENTENCES for text in learned(intent)]
    labels = [intent for intent in SENTENCES for _ in learned(intent)]
    refitted = make_pipeline(*STEPS[name](), RidgeClassifier()).fit(everything, labels)
    assert model.score(*held_out()) >= refitted.score(*held_out()) - 0.1
    model.unlearn(learned("hours"), ["hours"] * len(learned("hours")))
    assert "hours" not in model.predict(sentences)
