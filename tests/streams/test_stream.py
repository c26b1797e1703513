"""Streams: every row once, tasks apart unless blurred, labels in order of appearance."""

import ml_dtypes
import numpy as np
import pytest
from ml_dtypes import bfloat16

import rvfl_jax
from tests.streams import blobs, ragged_stream


def make(X=None, y=None, **options):
    if X is None:
        X, y = blobs()
    return rvfl_jax.class_incremental_stream(
        X, y, **{"num_tasks": 2, "num_batches": 9, "seed": 0, **options}
    )


def rows_of(stream):
    keep = stream.weight > 0
    return stream.X[keep], stream.classes[stream.y[keep]]


def test_every_row_comes_once_with_its_label():
    X, y = blobs()
    got_X, got_y = rows_of(make(X, y))
    want = sorted(map(tuple, np.column_stack([X, y])))
    assert sorted(map(tuple, np.column_stack([got_X, got_y]))) == want


def test_tasks_are_apart_and_in_order():
    stream = make()
    assert (np.diff(stream.task) >= 0).all()
    for t in range(9):
        classes = stream.y[t][stream.weight[t] > 0]
        assert (stream.class_task[classes] == stream.task[t]).all()
    assert stream.task_ends.tolist() == [4, 8]


def test_columns_are_in_order_of_appearance():
    stream = make(order="classes")
    seen = stream.y[stream.weight > 0]
    _, first = np.unique(seen, return_index=True)
    assert (np.diff(first) > 0).all()


def test_batches_differ_by_one_row_at_most_within_equal_tasks():
    lengths = (make().weight > 0).sum(axis=1)
    assert lengths.sum() == 97
    assert lengths.max() - lengths.min() <= 3


def test_seed_alone_decides():
    again, other = make(seed=3), make(seed=4)
    assert np.array_equal(make(seed=3).X, again.X)
    assert not np.array_equal(again.X, other.X)


def test_class_order_may_be_given():
    stream = make(class_order=[3, 1, 0, 2], task_sizes=[1, 3])
    task_of = dict(zip(stream.classes.tolist(), stream.class_task.tolist(), strict=True))
    assert task_of == {3: 0, 1: 1, 0: 1, 2: 1}


def test_order_tasks_keeps_neighbouring_classes_together():
    orders = set()
    for seed in range(8):
        stream = make(order="tasks", seed=seed)
        pairs = [frozenset(stream.classes[stream.class_task == q].tolist()) for q in (0, 1)]
        assert set(pairs) == {frozenset({0, 1}), frozenset({2, 3})}
        orders.add(tuple(pairs))
    assert len(orders) == 2


def test_order_none_sorts():
    stream = make(order="none")
    assert set(stream.classes[stream.class_task == 0].tolist()) == {0, 1}


def test_order_tasks_moves_unequal_sizes_with_their_tasks():
    for seed in range(6):
        stream = make(order="tasks", task_sizes=[1, 3], seed=seed)
        tasks = [set(stream.classes[stream.class_task == q].tolist()) for q in (0, 1)]
        assert {0} in tasks
        assert {1, 2, 3} in tasks


@pytest.mark.parametrize("labels", [[1, 2, 3, 4, 5], [3, 17, 250], ["cat", "dog", "emu"]])
def test_labels_need_not_start_at_zero(labels):
    """Case 3."""
    y = np.resize(labels, 40)
    stream = make(np.arange(80.0).reshape(40, 2), y, num_batches=5)
    assert sorted(stream.classes.tolist()) == sorted(labels)
    X, got = rows_of(stream)
    assert all(label == y[int(x[0]) // 2] for x, label in zip(X, got, strict=True))


def test_labels_of_mixed_kind_and_length():
    """Case 4: whole strings come back, and tuples are labels like any other."""
    labels = np.empty(3, object)
    labels[:] = ["cat", ("a", 1), "hippopotamus"]
    stream = make(np.arange(60.0).reshape(30, 2), np.resize(labels, 30), num_batches=4)
    assert set(stream.classes.tolist()) == {"cat", ("a", 1), "hippopotamus"}


def test_integral_floats_are_integers():
    X, y = blobs()
    assert make(X, y.astype(float)).classes.dtype.kind == "i"


def test_blur_mixes_only_near_boundaries():
    X, y = blobs(400)
    stream = make(X, y, num_batches=20, blur=0.3)
    tasks = [set(stream.class_task[stream.y[t][stream.weight[t] > 0]]) for t in range(20)]
    assert tasks[0] == {0}
    assert tasks[-1] == {1}
    assert {0, 1} in tasks
    assert sorted(map(tuple, rows_of(stream)[0])) == sorted(map(tuple, X))


def test_uint8_images_stay_uint8():
    X, y = blobs()
    pixels = np.clip(X * 40 + 100, 0, 255).astype(np.uint8)
    assert make(pixels, y).X.dtype == np.uint8


def test_by_task_gives_one_batch_a_task():
    stream = rvfl_jax.by_task(make())
    assert stream.task.tolist() == [0, 1]
    assert sorted(map(tuple, rows_of(stream)[0])) == sorted(map(tuple, rows_of(make())[0]))


def test_by_task_keeps_row_weights():
    stream = ragged_stream()
    weight = np.where(stream.weight > 0, 1 + np.abs(stream.X[..., 0]), 0)
    merged = rvfl_jax.by_task(stream._replace(weight=weight))
    keep = merged.weight > 0
    np.testing.assert_allclose(merged.weight[keep], 1 + np.abs(merged.X[keep][:, 0]))


def test_pad_batches_adds_rows_without_weight():
    stream = make()
    padded = rvfl_jax.pad_batches(stream, 20)
    assert padded.X.shape == (9, 20, 6)
    assert not padded.weight[:, stream.X.shape[1] :].any()
    assert np.array_equal(rows_of(padded)[0], rows_of(stream)[0])
    assert make(batch_size=20).X.shape == (9, 20, 6)
    with pytest.raises(ValueError, match="batch_size: expected at least"):
        rvfl_jax.pad_batches(stream, 5)
    with pytest.raises(ValueError, match="batch_size: expected at least"):
        make(batch_size=5)


NAN = np.full((97, 6), np.nan)
MASKED = np.ma.array(np.arange(6).reshape(3, 2), mask=[[0, 0], [1, 0], [0, 0]])


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "int4"])
def test_narrow_numbers_mean_what_they_are(dtype):
    X = (np.arange(12).reshape(6, 2) % 8).astype(getattr(ml_dtypes, dtype))
    stream = make(X, [0, 1, 2, 0, 1, 2], num_batches=3)
    assert stream.X.dtype == np.float32
    np.testing.assert_array_equal(np.unique(stream.X), np.unique(X.astype(float)))


def test_a_mask_that_hides_nothing_is_none():
    whole = np.ma.array(MASKED.data)
    stream = make(whole, whole[:, 0], num_batches=3)
    assert type(stream.X) is np.ndarray
    assert sorted(stream.classes.tolist()) == [0, 2, 4]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (dict(X=np.zeros((0, 6)), y=np.zeros(0, int)), "X: expected at least one row"),
        (dict(X=np.zeros(6), y=np.zeros(6, int)), r"X: expected 2 dimensions .* got shape \(6,\)"),
        (dict(X=np.array([["a"]]), y=[0]), "X: expected real numbers"),
        (dict(X=NAN, y=np.arange(97) % 4), r"X: expected finite numbers, got nan at \(0, 0\)"),
        (dict(X=np.zeros((3, 2)), y=[0, 1]), "y: expected 3 labels"),
        (dict(X=np.zeros((3, 2)), y=[[0], [1], [1]]), "y: expected 1 dimension"),
        (dict(X=np.zeros((3, 2)), y=[0, 1.5, 1]), "y: expected integral numbers, got .*1.5"),
        (dict(X=np.zeros((3, 2)), y=[0, np.nan, 1]), "y: expected integral numbers, got .*nan"),
        (dict(X=np.zeros((3, 2)), y=[0, -1, 1]), "y: expected labels of at least 0, got .*-1"),
        (dict(X=np.zeros((2, 2)), y=np.array(["a", None], object)), "y: expected hashable labels"),
        (dict(X=np.zeros((2, 2)), y=["a", float("nan")]), "y: expected hashable labels"),
        (dict(X=np.zeros((2, 2)), y=np.array([-1, "a"], object)), "y: expected hashable labels"),
        (dict(X=np.zeros((2, 2)), y=np.array([0.5, 1], object)), "y: expected hashable labels"),
        (dict(X=np.zeros((2, 2)), y=np.array([1j, 2j])), "y: expected integers, strings"),
        (dict(num_tasks=5), r"num_tasks: expected at most 4"),
        (dict(num_tasks=0), "num_tasks: expected an integer of at least 1"),
        (dict(num_batches=1), r"num_batches: expected 2 \(the tasks\) to 97 \(the rows\), got 1"),
        (dict(num_batches=98), "num_batches: expected"),
        (dict(blur=1.5), "blur: expected a number from 0 to 1"),
        (dict(order="random"), "order: expected one of classes, tasks, none"),
        (dict(class_order=[0, 1, 2]), "class_order: expected each of the 4 labels once"),
        (dict(class_order=[0, 1, 2, 2]), "class_order"),
        (dict(task_sizes=[2, 3]), "task_sizes: expected 2 positive integers that sum to 4"),
        (dict(task_sizes=[4, 0]), "task_sizes"),
        (
            dict(X=MASKED, y=[0, 1, 1]),
            r"X: .* got a masked one at \(1, 0\) \(1 such",
        ),
        (dict(X=np.zeros((3, 2)), y=MASKED[:, 0]), r"y: .* masked one at \(1,\)"),
        (dict(X=np.full((2, 2), np.nan, bfloat16), y=[0, 1]), "X: expected finite numbers"),
        (dict(X=np.zeros((3, 2), "V2"), y=[0, 1, 1]), "X: expected real numbers"),
    ],
)
def test_bad_input(change, message):
    with pytest.raises(ValueError, match=message):
        make(**change)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0.0, 1.9999999, 2.0], "expected integral numbers, got .*1.9999999.* in row 1"),
        ([0, 3], "expected an index below 3, got .*3.* in row 1"),
        ([0, -1], "at least 0"),
        ([0, np.nan], "integral"),
        ([0, np.inf], "integral"),
        (["a"], "expected column indices"),
    ],
)
def test_one_hot_never_makes_a_zero_row(labels, message):
    """Case 2."""
    with pytest.raises(ValueError, match=message):
        rvfl_jax.one_hot(labels, 3)


def test_one_hot():
    """Cases 1 and 2: integral floats are accepted, a column is what it was before."""
    assert rvfl_jax.one_hot([0.0, 2.0], 3).tolist() == [[1, 0, 0], [0, 0, 1]]
    assert rvfl_jax.one_hot([2], 3).tolist() == [[0, 0, 1]]
    assert rvfl_jax.one_hot([True, False], 2).tolist() == [[0, 1], [1, 0]]
