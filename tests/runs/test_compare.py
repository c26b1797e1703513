"""Several learners on one stream, from Python."""

import io

import jax
import numpy as np
import pytest
from rich.console import Console

import rvfl_jax
from rvfl_jax import class_incremental_stream, compare, edrvfl, plots
from rvfl_jax.cli.compare import Config, make_learners
from rvfl_jax.cli.compare import compare as compare_styles
from rvfl_jax.data import load_dataset
from rvfl_jax.learners import REGISTERED, register, registered
from rvfl_jax.learners.base import make_learner
from rvfl_jax.learners.ewc import ewc
from rvfl_jax.metrics import mean_softmax
from tests.streams import blobs, ragged_stream

SMALL = {"num_layers": 2, "num_nodes": 8, "ridge": 0.5}
LEARNERS = {"-R": edrvfl(**SMALL, k=0.0), "-F": edrvfl(**SMALL, k=1.0)}


@pytest.fixture(scope="module")
def result():
    return compare(LEARNERS, ragged_stream(), seeds=2, test=blobs(40))


def printed(table):
    console = Console(file=io.StringIO(), width=100)
    console.print(table)
    return console.file.getvalue()


def test_each_run_is_that_of_its_learner_and_seed(result):
    assert list(result.styles) == ["-R", "-F"]
    for name, style in result.styles.items():
        for seed, history in enumerate(style.histories):
            key = jax.random.key(seed)
            alone = rvfl_jax.run_stream(LEARNERS[name], ragged_stream(), key=key, test=blobs(40))
            np.testing.assert_array_equal(
                history.accuracy["class_incremental"], alone.history.accuracy["class_incremental"]
            )
            np.testing.assert_allclose(history.excess_loss, alone.history.excess_loss, atol=1e-12)
    # -R is its expert in the end.
    ends = result.styles["-R"].metrics["accuracy_class_incremental"]
    assert ends == pytest.approx(result.offline.metrics["accuracy_class_incremental"])


def test_tables_and_pictures_are_made_of_it(result):
    told = printed(plots.comparison_table(result))
    assert "97 rows" in told
    assert all(name in told for name in ("-R", "-F", "offline expert"))
    figure = plots.comparison_figure(result)
    assert [line.get_label() for line in figure.axes[0].lines][:2] == ["-R", "-F"]
    assert "4 classes" not in repr(result)
    assert "class-incremental" in repr(result)


@pytest.mark.slow
def test_learners_are_told_of_tasks_by_name():
    """Each run is the one that it would be alone, and only those that were told are marked."""
    learner = ewc(hidden=(6,), window=12, coefficient=50.0)
    learners = {"told": learner, "not": learner, **LEARNERS}
    arguments = {"seeds": 1, "test": blobs(40)}
    by_name = compare(learners, ragged_stream(), boundaries={"told": "given"}, **arguments)
    losses = {name: style.histories[0].prequential_loss for name, style in by_name.styles.items()}
    for name, boundaries in (("told", "given"), ("not", "none")):
        alone = rvfl_jax.run_stream(
            learner, ragged_stream(), key=jax.random.key(0), boundaries=boundaries
        )
        np.testing.assert_allclose(losses[name], alone.history.prequential_loss, rtol=1e-12)
    assert (losses["told"] != losses["not"]).any()
    table = printed(plots.comparison_table(by_name))
    assert table.count("tasks told") == 1
    assert table.index("told") < table.index("tasks told") < table.index("not")
    assert by_name.setting.boundaries == {
        "told": "given",
        "not": "none",
        "-R": "none",
        "-F": "none",
    }


@pytest.mark.slow
def test_all_are_told_that_are_to_be():
    learners = {"ewc": ewc(hidden=(6,), window=12), **LEARNERS}
    result = compare(
        learners, ragged_stream(num_batches=2), seeds=1, test=blobs(9), boundaries="given"
    )
    assert result.setting.boundaries == {"ewc": "given", "-R": "none", "-F": "none"}


def test_a_learner_without_an_expert_has_no_reference():
    def init(key, num_features, num_classes):
        state = LEARNERS["-R"].init(key, num_features, num_classes)
        return state

    plain = make_learner(
        init, LEARNERS["-R"].step, LEARNERS["-R"].scores, combine=mean_softmax, description="mine"
    )
    result = compare({"mine": plain}, ragged_stream(), seeds=1, test=blobs(40))
    assert not result.offline.metrics
    assert "FWT" not in result.styles["mine"].metrics
    assert "offline expert" not in printed(plots.comparison_table(result))
    assert len(plots.comparison_figure(result).axes[0].lines) > 0


def test_streams_of_seeds_and_progress_are_those_of_the_command_line():
    data = load_dataset("digits", seed=0)
    options = {"num_tasks": 2, "num_batches": 4, "order": "tasks"}

    def stream(seed):
        return class_incremental_stream(data.X_train, data.y_train, seed=seed, **options)

    config = Config(tasks=2, batches=4, num_layers=1, num_nodes=8, seeds=1, styles=("ridge",))
    theirs = compare_styles(config)
    told = []
    mine = compare(
        make_learners(config),
        stream,
        seeds=1,
        test=(data.X_test, data.y_test),
        progress=lambda done, total: told.append((done, total)),
    )
    assert told[-1] == (4, 4)
    for name, values in theirs.styles["-R"].metrics.items():
        if "second" not in name:
            assert mine.styles["-R"].metrics[name] == values
    assert mine.offline.metrics["ACC"] == theirs.offline.metrics["ACC"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learners": {}}, "learners: expected at least one"),
        ({"seeds": 0}, "seeds: expected an integer of at least 1"),
        ({"precision": "half"}, "precision: expected one of"),
        ({"boundaries": "guessed"}, "boundaries: expected one of none, given, got 'guessed'"),
        ({"boundaries": {"-Q": "given"}}, "boundaries: expected one of -R, -F, got '-Q'"),
        ({"boundaries": {"-R": "yes"}}, r"boundaries\['-R'\]: expected one of none, given"),
    ],
)
def test_what_cannot_be_compared(change, message):
    arguments = {"learners": LEARNERS, "stream": ragged_stream(), "test": blobs(9)} | change
    with pytest.raises(ValueError, match=message):
        compare(arguments.pop("learners"), arguments.pop("stream"), **arguments)


def test_registered_learners_are_styles(monkeypatch):
    monkeypatch.setattr("rvfl_jax.learners.REGISTERED", dict(REGISTERED))
    with pytest.raises(ValueError, match="name: expected a free one, got 'slda'"):
        register("slda", "elsewhere")
    register("slda", "rvfl_jax.learners.slda")
    learners = make_learners(Config(styles=("slda", "ridge")))
    assert sorted(learners) == ["-R", "slda"]
    assert learners["slda"] == registered("slda")()
