"""The task of a worker and the tree of merges, without any neighbour."""

from functools import partial

import numpy as np
import pytest

from rvfl_jax import Sums
from rvfl_jax.distributed import partitions as worker
from rvfl_jax.distributed.partitions import Named, admitted, merged, merged_by_tree, summing
from tests import tolerances
from tests.distributed.tables import MODEL, NAMES, fitted, partitions, table
from tests.estimators.test_estimator import assert_close

ROWS = table()


def task(label="label", weight="weight", **options):
    others = dict.fromkeys(["features", "embed", "start", "folder"]) | options
    return summing(MODEL, label, weight=weight, **others)


def columns_of(frame):
    return {name: frame[name].to_numpy() for name in frame}


def learned(found):
    with pytest.warns(UserWarning, match="1 came more than once, with 109 rows, and counted once"):
        once = admitted(found)
    return merged_by_tree(once, merged)


@pytest.mark.parametrize("fan_in", [2, 8])
def test_partitions_become_one_fit(fan_in, monkeypatch):
    monkeypatch.setattr(worker, "FAN_IN", fan_in)
    found = [task()(columns_of(part)) for part in partitions()]
    assert [named.rows for named, _ in found] == [70, 1, 109, 0, 60, 109]
    sums = learned(found)
    want = fitted()
    model = sums.finish()
    assert_close(
        model.decision_function(ROWS[NAMES]),
        want.decision_function(ROWS[NAMES]),
        tolerances.CLOSED_FORM,
    )
    assert model.feature_names_in_.tolist() == NAMES
    # Whoever was done first, rounding is the same.
    again = learned(reversed(found))
    np.testing.assert_array_equal(again.gram, sums.gram)


def test_vectors_embeddings_and_chosen_columns_are_features():
    X = ROWS[NAMES].to_numpy()
    plain = columns_of(ROWS)
    vectors = {"v": [*X], "label": plain["label"], "weight": plain["weight"]}
    halves = {"v": X[:, :3], "w": X[:, 3:]} | {name: plain[name] for name in ("label", "weight")}
    images = {"image": [row.tobytes() for row in X], "label": plain["label"]}

    def embed(columns):
        return np.stack([np.frombuffer(image) for image in columns["image"]])

    sums = [
        task()(plain)[1],
        task(features=NAMES)(plain | {"text": plain["label"]})[1],
        task()(vectors)[1],
        task(features=["v", "w"])(halves)[1],
    ]
    for each in sums:
        np.testing.assert_array_equal(each.gram, sums[0].gram)
    unweighted = Sums.zero(MODEL).add(X, plain["label"]).gram
    found = task(weight=None, embed=embed)(images)[1]
    np.testing.assert_array_equal(found.gram, unweighted)


def test_names_tell_contents():
    part = columns_of(partitions()[0])
    name = task()(part)[0].name
    assert task()({key: values.copy() for key, values in part.items()})[0].name == name
    long = np.arange(3000.0).reshape(1, -1)
    for other in (
        part | {"x1": part["x1"] + 1e-13},
        part | {"label": part["label"][::-1]},
        part | {"id": np.arange(70)},
        {key: values[:69] for key, values in part.items()},
    ):
        assert task()(other)[0].name != name
    # The text of a long vector leaves numbers out.
    near = long.copy()
    near[0, 1500] += 1
    digests = {worker.digest_of_columns({"v": [list(v)]}) for v in (long[0], near[0])}
    assert len(digests) == 2


def test_what_was_counted_before_is_left_out(monkeypatch):
    found = [task()(columns_of(part)) for part in partitions()[:2]]
    start = merged([sums for _, sums in found])
    more = task(start=start)
    assert more(columns_of(partitions()[0]))[0] == Named("", 0)
    assert more(columns_of(partitions()[2]))[0].rows == 109
    with pytest.raises(ValueError, match="sums: expected those of one estimator"):
        task(start=Sums.zero(type(MODEL)(random_state=3)))


def test_a_folder_keeps_what_is_done(tmp_path, monkeypatch):
    parts = [columns_of(part) for part in partitions()[:3]]
    first = [task(folder=tmp_path / "new")(part)[1] for part in parts[:2]]
    kept, summed = [*(tmp_path / "new").iterdir()], []
    add = Sums.add

    def noted(self, X, *rest):
        summed.append(len(X))
        return add(self, X, *rest)

    monkeypatch.setattr(Sums, "add", noted)
    again = [task(folder=tmp_path / "new")(part)[1] for part in parts]
    assert summed == [109]
    for one, other in zip(first, again, strict=False):
        np.testing.assert_array_equal(one.gram, other.gram)
    assert merged(again).finish().num_rows_seen_ == 180
    # A job of other arguments takes nothing from there.
    for options in ({"features": NAMES[:4]}, {"weight": None}, {"embed": np.hstack}):
        assert task(folder=tmp_path / "new", **options).folder not in kept
    assert task(folder=tmp_path / "new").folder in kept


def test_slips_are_named():
    part = columns_of(partitions()[0])
    with pytest.raises(ValueError, match="columns: expected 'labels', got"):
        task(label="labels")(part)
    with pytest.raises(ValueError, match="features: expected None where an embedding"):
        task(features=NAMES, embed=len)
    with pytest.raises(ValueError, match="forgetting: expected 1"):
        summing(type(MODEL)(forgetting=0.9, random_state=0), "label", *[None] * 5)


@pytest.mark.parametrize("told", [None, "1", "3", "many"])
def test_a_worker_takes_the_threads_that_it_is_told(told, monkeypatch):
    if told is None:
        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    else:
        monkeypatch.setenv("OMP_NUM_THREADS", told)
    assert worker._own_threads() == (int(told) if told in ("1", "3") else None)


def test_a_tree_merges_all_in_order():
    add = partial(sum, start=[])
    for count in (1, 2, 8, 9, 100):
        assert merged_by_tree([[i] for i in range(count)], add) == list(range(count))
