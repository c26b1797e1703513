"""Models change whole or not at all: exceptions thrown in anywhere, and readers beside a writer."""

import contextlib
import linecache
import pickle
import random
import sys
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest
from sklearn.exceptions import NotFittedError

import rvfl_jax
from rvfl_jax import EdRVFLClassifier, EdRVFLRegressor, merge
from rvfl_jax.core.checks import NumericalError
from rvfl_jax.estimators.base import MOST_ROWS
from tests.amounts import slow_but
from tests.estimators.test_estimator import SMALL, blobs

X, Y = blobs(120)
OURS = str(Path(rvfl_jax.__file__).parent)
# Where an exception would be one of the machinery's own, not of a caller's.
ELSEWHERE = ("contextlib.py", "threading.py", "/jax/", "/jaxlib/", "<frozen", "test_whole.py")


class Thrown(BaseException):
    """As an interrupt: no `except Exception` stops it."""


class Thrower:
    """Counts the lines that run outside JAX, and throws at the one that was asked for.

    With `ours` only lines of the package count.
    """

    def __init__(self, at=None, ours=False):
        self.at, self.seen, self.ours = at, 0, ours

    def __call__(self, frame, event, arg):
        name = frame.f_code.co_filename
        if any(part in name for part in ELSEWHERE) or (self.ours and OURS not in name):
            return None
        # A with statement is run through again when its block ends, before it has ended.
        in_with = linecache.getline(name, frame.f_lineno).lstrip().startswith("with ")
        if event == "line" and not in_with:
            self.seen += 1
            if self.seen == self.at:
                raise Thrown
        return self

    def run(self, action):
        before = sys.gettrace()
        sys.settrace(self)
        try:
            return action()
        finally:
            sys.settrace(before)


def whole(model):
    """Everything that a model holds, as bytes."""
    held = model.__getstate__()
    held.pop("_sklearn_version", None)
    held = {name: value for name, value in held.items() if name not in ("_memo", "_cache")}
    leaves, structure = jax.tree.flatten(held)
    return str(structure), [_told(leaf) for leaf in leaves]


def _told(leaf):
    if isinstance(leaf, np.random.RandomState):
        return repr(leaf.get_state())
    return leaf.tobytes() if isinstance(leaf, np.ndarray) else repr(leaf)


def fitted(**options):
    return EdRVFLClassifier(**SMALL | options).fit(X[:60], Y[:60])


def streaming(**options):
    return EdRVFLClassifier(**SMALL | options).partial_fit(X[:60], Y[:60])


LONG = np.resize(X, (MOST_ROWS + 200, 5)), np.resize(Y, MOST_ROWS + 200)
NEW = np.where(Y == 0, 17 + np.arange(len(Y)), Y)  # more classes than there is room for
CHANGES = {
    "fit": (streaming, lambda m: m.fit(X[:80], Y[:80])),
    "fit in batches": (streaming, lambda m: m.set_params(readout="nearest_mean").fit(X, Y)),
    "first fit": (lambda: EdRVFLClassifier(**SMALL), lambda m: m.fit(X[:60], Y[:60])),
    "partial_fit": (fitted, lambda m: m.partial_fit(X[60:], Y[60:])),
    "new classes": (fitted, lambda m: m.partial_fit(X[60:], NEW[60:], classes=[99])),
    "held": (lambda: streaming(k=1.0), lambda m: m.partial_fit(X[60:], Y[60:])),
    "in parts": (streaming, lambda m: m.partial_fit(*LONG)),
    "forgetting": (lambda: streaming(forgetting=0.99), lambda m: m.partial_fit(X[60:], Y[60:])),
    "scaled": (lambda: streaming(scale="first"), lambda m: m.partial_fit(X[60:], Y[60:])),
    "unlearn": (fitted, lambda m: m.unlearn(X[:20], Y[:20])),
    "unlearn a held batch": (lambda: streaming(k=1.0), lambda m: m.unlearn(X[:20], Y[:20])),
    "regressor": (
        lambda: EdRVFLRegressor(**SMALL).fit(X[:60], X[:60, :2]),
        lambda m: m.partial_fit(X[60:], X[60:, :2]),
    ),
}


@pytest.mark.parametrize(
    "name", slow_but(["fit", "new classes", "in parts", "unlearn", "regressor"], CHANGES)
)
def test_exceptions_anywhere_leave_the_old_or_the_new_model(name):
    """keras PR 21019: an interrupt left arrays deleted, and parts of a batch learned."""
    begin, change = CHANGES[name]
    start = begin()
    stored = pickle.dumps(start)
    change(start)
    new = whole(start)
    counted = Thrower()
    model = pickle.loads(stored)
    old = whole(model)
    counted.run(lambda: change(model))
    assert whole(model) == new
    model = pickle.loads(stored)
    last = Thrower(ours=True)
    last.run(lambda: change(model))
    # Attributes are set in the package's last lines, which are few among so many.
    draw = random.Random(name)
    throwers = [Thrower(at) for at in draw.sample(range(1, counted.seen + 1), 9)]
    near_the_end = range(max(1, last.seen - 60), last.seen + 1)
    throwers += [Thrower(at, ours=True) for at in draw.sample(near_the_end, 9)]
    for thrower in throwers:
        model = pickle.loads(stored)
        with contextlib.suppress(Thrown, Exception):  # others may take its place
            thrower.run(lambda model=model: change(model))
        found = whole(model)
        if name == "fit in batches" and found != new:
            # The caller's own change of a parameter comes first.
            assert whole(model.set_params(readout="ridge")) == old
        else:
            assert found in (old, new), f"thrown at line {thrower.at} of {counted.seen}"
        # And it goes on from there.
        model.predict(X) if found == new else change(model)
        assert whole(model) == new


def test_merging_leaves_both_as_they_were():
    models = fitted(), EdRVFLClassifier(**SMALL).fit(X[60:], NEW[60:])
    old = [whole(model) for model in models]
    counted = Thrower()
    counted.run(lambda: merge(*models))
    for at in random.Random(0).sample(range(1, counted.seen + 1), 20):
        with contextlib.suppress(Thrown, Exception):  # others may take its place
            Thrower(at).run(lambda: merge(*models))
        assert [whole(model) for model in models] == old


@pytest.mark.parametrize("kind", [EdRVFLClassifier, EdRVFLRegressor])
def test_failed_fits_leave_what_was_there(kind):
    options = {"num_layers": 1, "num_nodes": 12, "ridge": 1e-3, "precision": "single"}
    model = kind(**options, random_state=0)
    far = X[:60] + 1e7
    with pytest.raises(NumericalError):
        model.fit(far, Y[:60])
    with pytest.raises(NotFittedError):
        model.predict(X)
    assert not hasattr(model, "n_features_in_")
    model.fit(X[:60], Y[:60])
    old, answers = whole(model), model.predict(X)
    with pytest.raises(NumericalError):
        model.fit(far, Y[:60])
    assert whole(model) == old
    np.testing.assert_array_equal(model.predict(X), answers)
    with pytest.raises(ValueError, match=r"(labels|targets), one a row"):
        model.fit(X[:60, :3], Y[:59])
    assert whole(model) == old


def test_held_batches_are_not_the_callers_array():
    buffer = X[:60].copy()
    model = EdRVFLClassifier(**SMALL, k=1.0, intercept=False).partial_fit(buffer, Y[:60])
    before = model.predict_proba(X)
    buffer[:] = 0.0
    # A copy has to compute anew what follows from the held batch.
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.predict_proba(X), before)


def read_while_writing(model, change, answer, seconds, readers=4):
    """Answers of several threads beside those of the models that stood, and what was raised."""
    stood, given, faults = {answer(model)}, set(), []
    over = time.monotonic() + seconds
    stop = threading.Event()

    def read():
        try:
            while not stop.is_set():
                given.add(answer(model))
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=read) for _ in range(readers)]
    for thread in threads:
        thread.start()
    try:
        # On a busy machine a reader may wait for long.
        while (time.monotonic() < over or len(given) < 5) and not faults:
            change(model)
            stood.add(answer(model))
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    return stood, given, faults


@pytest.mark.parametrize(
    "seconds", [2, pytest.param(30, marks=pytest.mark.slow)], ids=["2 s", "30 s"]
)
def test_readers_beside_a_writer_see_models_that_stood(seconds):
    """aigamedev/scikit-neuralnetwork 220."""
    steps = iter(range(10**9))

    def change(model):
        step = next(steps)
        if step % 50 == 49:
            model.fit(X[:60], Y[:60])
        elif step % 10 == 9:
            model.unlearn(X[:10], Y[:10])
        else:
            model.partial_fit(X[:10], Y[:10] + 5 * (step % 3))

    def answer(model):
        return model.predict_proba(X[:7]).tobytes()

    stood, given, faults = read_while_writing(fitted(k=1.0), change, answer, seconds)
    assert not faults
    assert given <= stood
    assert len(given) >= 5


def test_pickles_and_counts_beside_a_writer_are_of_one_model():
    model = fitted()

    def answer(model):
        copy = pickle.loads(pickle.dumps(model))
        return (
            int(copy.class_count_.sum()),
            copy.num_rows_seen_,
            int(copy._fitted.rows_of_class.sum()),
        )

    def change(model):
        model.partial_fit(X[:10], Y[:10])

    _, given, faults = read_while_writing(model, change, answer, 1, readers=2)
    assert not faults
    assert all(len(set(counts)) == 1 for counts in given)
    assert len(given) >= 5


def test_several_writers_take_turns():
    model = fitted()

    def learn():
        for _ in range(20):
            model.partial_fit(X[:10], Y[:10])

    threads = [threading.Thread(target=learn) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert model.num_rows_seen_ == 60 + 3 * 20 * 10
    assert model.class_count_.sum() == model.num_rows_seen_
