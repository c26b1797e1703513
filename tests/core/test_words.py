"""What `repr` and notebooks show of every public object: a few lines that say what it is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import encoders
from rvfl_jax.cli.sweep import SweepConfig, SweepOutcome
from rvfl_jax.data import load_dataset
from rvfl_jax.files.checkpoint import load_checkpoint_file, save_checkpoint
from rvfl_jax.runs.comparison import Comparison, RunSetting, StyleResult
from tests.streams import blobs, ragged_stream

KEY = jax.random.key(0)
MOST = 1000


def make(k=1.0, ridge=0.5, **options):
    return rvfl_jax.edrvfl(num_layers=2, num_nodes=8, ridge=ridge, k=k, **options)


@pytest.fixture(scope="module")
def objects(tmp_path_factory):
    """One of every kind that public names are, make or give, with words that it must say."""
    stream, (X, y) = ragged_stream(), blobs(60)
    run = rvfl_jax.run_stream(make(), stream, key=KEY, test=(X, y))
    Y = np.eye(4)[stream.y[0]]
    state, info = make().step(run.state, stream.X[0], Y, stream.X[1])
    sweep = rvfl_jax.sweep(make, stream, {"k": [0.5, 1.0], "ridge": [0.1, 1.0]}, key=KEY)
    style = StyleResult({"accuracy_class_incremental": [0.9, 0.95]}, [run.history])
    classifier = rvfl_jax.EdRVFLClassifier(num_layers=1, num_nodes=8).fit(X, y)
    regressor = rvfl_jax.EdRVFLRegressor(num_layers=1, num_nodes=8)
    tags = np.stack([y == 0, y < 2], axis=1).astype(int)
    several = rvfl_jax.EdRVFLMultiLabelClassifier(num_layers=1, num_nodes=8).fit(X, tags)
    pipeline = rvfl_jax.IncrementalPipeline([("model", classifier)])
    path = tmp_path_factory.mktemp("words") / "c.npz"
    rvfl_jax.export_learner(make(), run.state, path)
    predictor = rvfl_jax.Predictor(path)
    save_checkpoint(path, run.state, {"run": "words"})
    encoder = encoders.random_patches((3, 2), 2, patch_size=2, pooling=1)
    learner = make()
    deep = rvfl_jax.edrvfl(num_layers=300, num_nodes=8, ridge=np.arange(1.0, 301), k=1.0)
    by_hand = rvfl_jax.make_learner(
        learner.init, learner.step, learner.scores, combine=learner.combine
    )
    fine = rvfl_jax.fine_tuned_edrvfl(num_layers=2, num_nodes=8, ridge=0.5)
    labels = np.array([f"{c} " + "a long name " * 20 for c in range(4)])
    return {
        "Learner": (learner, "edrvfl(num_layers=2, num_nodes=8, ridge=0.5, k=1.0"),
        "Learner of many layers": (deep, "num_layers=300"),
        "Learner by hand": (by_hand, "put together by hand"),
        "Learner without memory": (fine, "fine_tuned_edrvfl(num_layers=2"),
        "Recipe": (learner.recipe, "Options"),
        "StreamForm": (learner.stream, "advance="),
        "EdRVFLState": (state, "W=float64[2,14,8], theta=float64[2,14,4]"),
        "ReadoutState": (fine.init(KEY, 6, 4), "theta=float32[2,14,4]"),
        "StepInfo": (info, "guess_scores=float32[2,12,4]"),
        "Sketch": (state.sketch, "moment=float64[2,4,4]"),
        "Run": (run, "class_incremental 0."),
        "History": (run.history, "9 batches of 97 rows, 4 classes, 2 sub-learners"),
        "Stream": (stream, "97 rows of 6 features in 9 batches, 4 classes in 2 tasks"),
        "Stream of long names": (stream._replace(classes=labels), "'0 a long name"),
        "Sweep": (sweep, "2 x 2 configurations (k, ridge)"),
        "SweepOutcome": (
            SweepOutcome(SweepConfig(), "digits", sweep, sweep.best(), {"ACC": 0.9}),
            "ACC 0.9",
        ),
        "Comparison": (
            Comparison("digits", {"-R": "edrvfl()"}, {"-R": style}, style, stream, RunSetting(), 2),
            "92.50 ± 3.54 % class-incremental",
        ),
        "StyleResult": (style, "2 seed(s)"),
        "Checkpoint": (load_checkpoint_file(path), "float64[2,14,8]"),
        "Predictor": (predictor, "learner, 6 features, 4 classes, double precision"),
        "AdaptiveK": (rvfl_jax.adaptive_k(), "inverse_trace"),
        "AdaptiveK of many layers": (rvfl_jax.adaptive_k(np.ones(300)), "kappa=float64[300]"),
        "EdRVFLClassifier": (classifier, "num_nodes=8"),
        "EdRVFLRegressor": (regressor, "num_nodes=8"),
        "EdRVFLMultiLabelClassifier": (several, "num_nodes=8"),
        "IncrementalPipeline": (pipeline, "num_nodes=8"),
        "PrequentialForgetting": (rvfl_jax.PrequentialForgetting(classifier), "num_nodes=8"),
        "Sums": (rvfl_jax.Sums.zero(rvfl_jax.EdRVFLClassifier(random_state=0)), "EdRVFLClassifier"),
        "Dataset": (load_dataset("digits"), "X_train=float"),
        "Encoder": (encoder, "random_patches"),
        "EncodedStream": (
            encoders.encode_stream(encoder, stream, key=KEY),
            "Stream: 97 rows of ",
        ),
        "NumericalError": (rvfl_jax.NumericalError("batch 3: overflowed"), "batch 3"),
    }


def test_every_public_object_is_told_in_a_few_lines(objects):
    for name, (value, words) in objects.items():
        told = repr(value)
        assert words in told, (name, told)
        assert len(told) < MOST, name
        assert " at 0x" not in told, (name, told)
        assert told.count("\n") <= 12, name


@pytest.mark.parametrize("name", ["Learner", "Run", "History", "Stream", "Sweep", "Comparison"])
def test_notebooks_get_a_table(objects, name):
    value, words = objects[name]
    shown = value._repr_html_()
    assert shown.startswith("<table>")
    assert words.split("(")[0] in shown
    assert len(shown) < 3 * MOST


def test_descriptions_hold_every_number_that_repr_leaves_out():
    kappa = np.linspace(0.0, 1.0, 300)
    learner = rvfl_jax.edrvfl(
        num_layers=300, num_nodes=8, ridge=0.5, k=rvfl_jax.adaptive_k(kappa, sigma=0.1)
    )
    assert repr(kappa.tolist()) in learner.description
    short = make(rvfl_jax.adaptive_k(sigma=0.1)).description
    strength = "AdaptiveK(kappa=1.0, sigma=0.1, estimator='inverse_trace', reuse_k=False)"
    assert f"k={strength}, activation" in short
    assert repr(rvfl_jax.adaptive_k(sigma=0.1)) == strength


def test_html_is_escaped(stream):
    named = stream._replace(classes=np.array(["<b>", "&", "c", "d"]))
    assert "&lt;b&gt;" in named._repr_html_()


def test_every_public_name_has_a_repr_of_its_own_that_is_short(objects):
    kinds = {type(value).__name__ for value, _ in objects.values()}
    for name in rvfl_jax.__all__:
        public = getattr(rvfl_jax, name)
        assert len(repr(public)) < MOST
        assert not isinstance(public, type) or name in kinds, f"no example of {name} above"


def test_repr_never_fails_on_what_is_traced_donated_or_odd(stream):
    told = []

    @jax.jit
    def look(state, X):
        told.append(repr(state))
        told.append(repr(stream._replace(X=X)))
        return state

    state = make().init(KEY, 6, 4)
    look(state, stream.X)
    assert "theta=float32[2,14,4]" in told[0]
    assert "97 rows" in told[1]
    jax.jit(lambda k: told.append(repr(make(k=k))) or k)(1.0)
    assert "k=traced" in told[2]
    state.num_learned.delete()
    assert "num_learned=int32[]" in repr(state)
    assert repr(stream._replace(X=None)).startswith("Stream(X=None, y=int32[9,12]")
    assert "state=None" in repr(rvfl_jax.Run(None, None))


def test_tuples_stay_tuples(stream):
    state = make().init(KEY, 6, 4)
    W, theta, *_ = state
    assert W is state.W
    assert theta is state[1]
    assert state._replace(k=jnp.ones(2)).k.sum() == 2
    assert list(state._asdict()) == list(state._fields)
    assert isinstance(stream, tuple)
