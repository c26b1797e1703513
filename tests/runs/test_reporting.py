"""What a run tells while it goes on: to a function, to MLflow and TensorBoard, and as a table."""

import warnings

import jax
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import by_task, metrics
from rvfl_jax.learners.ncm import ncm
from rvfl_jax.runs.comparison import Case, RunSetting, compare_cases
from tests.compilations import counted_compilations
from tests.streams import blobs, ragged_stream
from tests.streams.test_feed import options_of, pairs_of
from tests.trees import same

KEY = jax.random.key(0)
TEST = blobs(60)


def make(k=1.0):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=k)


def told_by(source, **options):
    """What a run tells, and the run."""
    told = []
    run = rvfl_jax.run_stream(
        options.pop("learner", make()),
        source,
        on_metrics=lambda figures, step: told.append((step, figures)),
        **{"key": KEY, "chunk_size": 2, "test": TEST, **options},
    )
    return told, run


@pytest.mark.parametrize("read", [False, True], ids=["in memory", "read"])
def test_each_chunk_is_told_by_its_figures(read):
    """Against counting in the history of the same run in one program."""
    stream, options = ragged_stream(), {"expert": None}
    whole = rvfl_jax.run_stream(make(), stream, key=KEY, test=TEST, **options)
    source = stream
    if read:
        source = pairs_of(stream)
        options = options_of(stream, classes=stream.classes.tolist())
    told, run = told_by(source, **options)
    np.testing.assert_array_equal(run.state.theta, whole.state.theta)
    history, rows = whole.history, whole.history.rows
    hits = history.prequential_accuracy * rows
    assert [step for step, _ in told] == [2, 4, 6, 8, 9]
    begin = 0
    for step, figures in told:
        assert all(type(value) is float for value in figures.values())
        here, last = slice(begin, step), step - 1
        expected = {
            "rows": rows[:step].sum(),
            "healthy": 1.0,
            "prequential_accuracy": hits[here].sum() / rows[here].sum(),
            "prequential_loss": np.average(history.prequential_loss[here], weights=rows[here]),
            "prequential_accuracy_so_far": hits[:step].sum() / rows[:step].sum(),
        }
        for name in ("k_t", "k_next", "sigma_share", "residual", "condition"):
            expected[name] = getattr(history, name)[last].mean()
        expected |= {name: getattr(history, name)[last] for name in ("regret", "kl")}
        protocols = {f"accuracy_{name}": history.accuracy[name][last] for name in metrics.PROTOCOLS}
        if read:
            # Who reads as it comes knows of no tasks.
            protocols = {name: protocols[name] for name in list(protocols) if "task" not in name}
            figures = {n: v for n, v in figures.items() if "task" not in n}
        expected |= protocols
        assert figures == pytest.approx(expected, rel=1e-12)
        begin = step


def test_nothing_of_the_run_depends_on_who_listens(stream):
    whole = rvfl_jax.run_stream(make(), stream, key=KEY, test=TEST)
    with counted_compilations() as made:
        told, run = told_by(stream, chunk_size=None)
        assert len(told) == 9
        first = len(made)
        again, _ = told_by(stream, chunk_size=None)
    assert len(made) == first
    assert again == told
    same(run, whole)


def test_what_is_not_known_is_left_out(stream):
    told, _ = told_by(stream, test=None, learner=ncm())
    names = {"rows", "healthy", "prequential_accuracy_so_far"}
    names |= {"prequential_accuracy", "prequential_loss"}
    assert all(set(figures) == names for _, figures in told)
    # Of two chunks that were looked at once, one has something to tell.
    told, _ = told_by(stream, evaluate=4, chunk_size=3)
    assert ["accuracy_seen" in figures for _, figures in told] == [False, True, True]


def test_an_exception_ends_the_run_and_the_rest_is_told_later(stream, tmp_path):
    def stop(figures, step):
        if step >= 4:
            raise KeyboardInterrupt

    options = {"key": KEY, "chunk_size": 2, "checkpoint": tmp_path / "run.npz"}
    with pytest.raises(KeyboardInterrupt):
        rvfl_jax.run_stream(make(), stream, on_metrics=stop, **options)
    whole, _ = told_by(stream, test=None)
    rest, run = told_by(stream, test=None, checkpoint=tmp_path / "run.npz", resume=True)
    assert rest == whole[2:]
    same(run.state, rvfl_jax.run_stream(make(), stream, key=KEY).state)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on_metrics": "log"}, r"on_metrics: expected a function of \(metrics, batches\), got"),
        ({"on_metrics": print, "guesses": False}, "on_metrics: expected guesses=True"),
    ],
)
def test_what_cannot_be_told_is_refused(stream, options, message):
    with pytest.raises(ValueError, match=message):
        rvfl_jax.run_stream(make(), stream, key=KEY, **options)


def test_mlflow_logs_a_run_in_a_local_folder(stream, tmp_path, monkeypatch):
    # Without it MLflow 3 wants a database, for which the small package has no driver.
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow, folder = pytest.importorskip("mlflow"), (tmp_path / "runs").as_uri()
    with warnings.catch_warnings():
        # A folder is no longer what MLflow likes best.
        warnings.simplefilter("ignore")
        mlflow.set_tracking_uri(folder)
        with mlflow.start_run() as active:
            run = rvfl_jax.run_stream(
                make(), stream, key=KEY, test=TEST, on_metrics=mlflow.log_metrics, chunk_size=1
            )
        client = mlflow.MlflowClient(folder)
        curve = client.get_metric_history(active.info.run_id, "accuracy_class_incremental")
    assert [entry.step for entry in curve] == list(range(1, 10))
    accuracy = run.history.accuracy["class_incremental"]
    np.testing.assert_allclose([entry.value for entry in curve], accuracy, rtol=1e-12)


def test_tensorboard_logs_a_run_in_a_local_folder(stream, tmp_path):
    tensorboard = pytest.importorskip("tensorboardX")
    with tensorboard.SummaryWriter(tmp_path) as writer:

        def log(figures, step):
            for name, value in figures.items():
                writer.add_scalar(name, value, step)

        told = []
        run = rvfl_jax.run_stream(make(), stream, key=KEY, on_metrics=log, chunk_size=1)
    (file,) = tmp_path.glob("events.*")
    told = {step: value for name, step, value in scalars_of(file) if name == "prequential_loss"}
    assert list(told) == list(range(1, 10))
    # Scalars are kept in single precision.
    np.testing.assert_allclose(list(told.values()), run.history.prequential_loss, rtol=1e-6)


def scalars_of(file):
    """(name, step, value) of an event file: each record has a length, a checksum, the event."""
    from tensorboardX.proto.event_pb2 import Event

    content, at = file.read_bytes(), 0
    while at < len(content):
        length = int.from_bytes(content[at : at + 8], "little")
        event = Event.FromString(content[at + 12 : at + 12 + length])
        yield from ((each.tag, event.step, each.simple_value) for each in event.summary.value)
        at += 16 + length


@pytest.mark.parametrize("total", ["known", "unknown"])
def test_the_bar_has_the_accuracy_and_the_time_left(stream, capsys, total):
    known = total == "known"
    source = stream if known else pairs_of(stream)
    options = {"key": KEY} if known else options_of(stream)
    run = rvfl_jax.run_stream(make(), source, progress=True, **options)
    captured = capsys.readouterr()
    assert captured.out == ""
    history = run.history
    accuracy = np.average(history.prequential_accuracy, weights=history.rows)
    shown = " ".join(captured.err.split())
    assert f"accuracy {accuracy:.3f} {'ETA' if known else 'elapsed'} 0:00:" in shown


def test_a_comparison_shows_the_accuracy_of_the_run_in_hand(stream):
    told = []
    case, setting = Case(stream, by_task(stream), TEST), RunSetting(every=5, in_chunks=True)
    result = compare_cases(
        "blobs", {"NCM": ncm()}, [case], setting, progress=lambda *now: told.append(now)
    )
    history = result.styles["NCM"].histories[0]
    hits = history.prequential_accuracy * history.rows
    accuracy = [hits[:n].sum() / history.rows[:n].sum() for n in (5, 9)]
    assert told == [
        ("seed 0: offline expert", 0, 9),
        ("seed 0: NCM", 0, 9),
        (f"seed 0: NCM, accuracy {accuracy[0]:.3f}", 5, 9),
        (f"seed 0: NCM, accuracy {accuracy[1]:.3f}", 9, 9),
        ("done", 9, 9),
    ]


def test_a_run_is_a_table_with_a_row_a_batch(stream):
    run = rvfl_jax.run_stream(make(), stream, key=KEY, test=TEST, evaluate=4)
    frame, history = run.to_pandas(), run.history
    assert frame.index.name == "batch"
    assert frame.index.tolist() == list(range(9))
    for name in ("rows", "prequential_accuracy", "prequential_loss"):
        np.testing.assert_array_equal(frame[name], getattr(history, name))
    assert frame["healthy"].all()
    for layer in (0, 1):
        np.testing.assert_array_equal(frame[f"k_next_{layer}"], history.k_next[:, layer])
        learner = frame[f"learner_accuracy_{layer}"].dropna()
        np.testing.assert_array_equal(learner, history.learner_accuracy[:, layer])
    for name in ("regret", "cumulative_regret", "kl", "excess_loss", "kl_from_expert"):
        np.testing.assert_array_equal(frame[name].dropna(), getattr(history, name))
    for name, curve in history.accuracy.items():
        np.testing.assert_array_equal(frame[f"accuracy_{name}"].dropna(), curve)
    assert frame.index[frame["accuracy_seen"].notna()].tolist() == history.evaluated.tolist()
    short = rvfl_jax.run_stream(ncm(), stream, key=KEY).to_pandas()
    columns = ["rows", "prequential_accuracy", "prequential_loss", "healthy"]
    assert short.columns.tolist() == columns
