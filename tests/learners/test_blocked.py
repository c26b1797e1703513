"""The blocked form gives batch by batch what the recursion gives, whatever a stream holds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rvfl_jax
from rvfl_jax import adaptive_k
from rvfl_jax.learners.edrvfl.solvers.base import SolverOptions
from rvfl_jax.learners.edrvfl.solvers.blocked import where_it_pays
from rvfl_jax.linalg.products import strips
from rvfl_jax.runs.scan import block_size
from rvfl_jax.streams.batches import Batches
from tests import references, tolerances
from tests.amounts import slow_but
from tests.streams import blobs, ragged_stream, reweighted, weighted_batches

KEY = jax.random.key(0)
# 33 batches of three rows and 18 features: three at once.
NUM_BATCHES, NODES, RIDGE, SIZE = 33, 12, 0.3, 3
STRENGTHS = {
    "ridge": 0.0,
    "k": 1.414,
    "printed": adaptive_k(0.7, 0.2),
    "reused": adaptive_k(0.7, 0.2, reuse_k=True),
    "trace": adaptive_k(0.3, 0.1, "trace"),
    "random_diagonal": adaptive_k(0.3, 0.1, "random_diagonal"),
    "random_variance": adaptive_k(0.3, 0.1, "random_variance", reuse_k=True),
}
# Of a run, what is a figure of its own and no estimate of rounding.
ROUNDING = ("residual", "provenance", "classes")


def make(k, solver="blocked", num_layers=2, **options):
    options = {"ridge": RIDGE, "num_nodes": NODES} | options
    return rvfl_jax.edrvfl(num_layers=num_layers, k=k, solver=solver, **options)


@functools.cache
def small_batches():
    """Ragged and weighted, one batch empty, the first one too."""
    stream = reweighted(ragged_stream(97, NUM_BATCHES))
    weight = stream.weight.copy()
    weight[[0, 7]] = 0
    return stream._replace(weight=weight)


def size_of(learner, stream=None, num_steps=NUM_BATCHES):
    stream = small_batches() if stream is None else stream
    state = jax.eval_shape(lambda: learner.init(KEY, stream.X.shape[-1], len(stream.classes)))
    carry = jax.eval_shape(learner.stream.begin, state, stream.X[0], stream.weight[0])
    return block_size(learner, carry, Batches(stream.X, stream.y, stream.weight), num_steps)


def check_same_run(got, expected, tolerance=tolerances.CLOSED_FORM):
    """Every number of the state and of the history."""
    pairs = [(got.state, expected.state)]
    pairs += [
        (getattr(got.history, name), getattr(expected.history, name))
        for name in expected.history._fields
        if name not in ROUNDING
    ]
    for one, other in pairs:
        leaves, wanted = jax.tree.leaves(one), jax.tree.leaves(other)
        assert len(leaves) == len(wanted)
        for leaf, want in zip(leaves, wanted, strict=True):
            if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
                continue
            scale = np.nanmax(np.abs(np.asarray(want, float)), initial=0.0)
            np.testing.assert_allclose(leaf, want, rtol=0, atol=tolerance * scale)
    assert np.nanmax(got.history.residual, initial=0.0) <= tolerances.CLOSED_FORM


def run(learner, stream=None, **options):
    stream = small_batches() if stream is None else stream
    return rvfl_jax.run_stream(learner, stream, key=KEY, **{"test": blobs(40), **options})


# Every strength with both cold starts, and with both ways to look: scores that follow batch by
# batch, and the readout made for each of a few looks.
QUICK = {
    ("printed", "exact"),
    ("printed", "paper"),
    ("reused", "exact"),
    ("random_diagonal", "paper"),
}
LOOKS = [
    (name, cold_start, ("batch", 5)[(at + paper) % 2])
    for at, name in enumerate(STRENGTHS)
    for paper, cold_start in enumerate(("exact", "paper"))
]


@pytest.mark.parametrize(
    ("name", "cold_start", "evaluate"), slow_but([x for x in LOOKS if x[:2] in QUICK], LOOKS)
)
def test_blocks_are_single_steps(name, cold_start, evaluate):
    of = {
        solver: make(STRENGTHS[name], solver, cold_start=cold_start)
        for solver in ("blocked", "covariance")
    }
    assert size_of(of["blocked"]) == SIZE
    assert size_of(of["covariance"]) == 1
    runs = [run(of[s], evaluate=evaluate, lookahead=blobs(3)[0]) for s in of]
    assert runs[0].history.healthy.all()
    check_same_run(*runs)


@pytest.mark.parametrize(
    ("rows", "num_batches"), slow_but([(12, 29)], [(12, 29), (9, 45), (31, 14)])
)
@pytest.mark.parametrize(
    "name",
    slow_but(["printed", "reused"], ["printed", "reused", "k", "random_diagonal"]),
)
def test_batches_across_strips_of_a_product_are_single_steps(name, rows, num_batches):
    """Blocks of so many rows that half products are made in strips, with batches across them."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(rows * num_batches, 6))
    y = rng.permutation(np.arange(len(X)) % 4)
    stream = rvfl_jax.class_incremental_stream(X, y, num_tasks=2, num_batches=num_batches, seed=0)
    of = {s: make(STRENGTHS[name], s, 1, num_nodes=200) for s in ("blocked", "covariance")}
    size = size_of(of["blocked"], stream, num_batches)
    rows = stream.X.shape[1]
    across = [
        cut % rows
        for block in (size, (num_batches - 1) % size)
        for _, cut in strips((block + 1) * rows)[:-1]
    ]
    assert any(across)
    check_same_run(*(run(of[s], stream, test=None) for s in of))


@pytest.mark.parametrize("name", ["k", "printed", "reused"])
def test_every_step_is_the_papers_recursion(name):
    """Strengths at every batch and the readout at the end of 1, 2, ... 9 batches, three layers."""
    k, stream = STRENGTHS[name], small_batches()
    learner = make(k, num_layers=3)
    numbers = {"k": k} if name == "k" else {"kappa": 0.7, "sigma": 0.2, "reuse_k": name == "reused"}
    keep = np.flatnonzero(stream.weight.any(axis=1))[:9]
    stream = stream._replace(
        X=stream.X[keep], y=stream.y[keep], weight=stream.weight[keep], task=stream.task[keep]
    )
    whole = run(learner, stream, test=None)
    assert size_of(learner, stream, 9) == SIZE
    for layer in range(3):
        batches = weighted_batches(
            stream, lambda X: references.features(whole.state.W, X, "relu"), layer
        )
        steps = list(references.literal_algorithm(batches, RIDGE, **numbers))
        for t, (_, _, _, k_t, k_next) in enumerate(steps):
            last = t + 1 == len(steps)
            want = 0.0 if last else k_next
            np.testing.assert_allclose(
                whole.history.k_next[t, layer], want, rtol=tolerances.CLOSED_FORM
            )
            np.testing.assert_allclose(
                whole.history.k_t[t, layer], k_t, rtol=tolerances.CLOSED_FORM
            )


def test_readouts_inside_a_block_are_closed_forms():
    """Theorem 2 at every t: scores of the test set against one dense solve each."""
    stream, (X, _) = small_batches(), blobs(40)
    learner = make(1.414, num_layers=1)
    told = run(learner, evaluate="batch", confusion=True)
    W = told.state.W
    batches = weighted_batches(stream, lambda X: references.features(W, X, "relu"), 0)
    Z = references.features(W, X, "relu")[0]
    for t in range(NUM_BATCHES):
        k = float(told.history.k_next[t, 0])
        assert k == (1.414 if t + 1 < NUM_BATCHES and len(batches[t + 1][0]) else 0.0)
        theta = references.closed_form(batches, RIDGE, t, k, cold_start="exact")
        answers = np.argmax(Z @ theta, axis=1)
        counts = np.zeros_like(told.history.confusion[t])
        np.add.at(counts, (_columns(stream), answers), 1)
        np.testing.assert_array_equal(told.history.confusion[t], counts, err_msg=str(t))


def _columns(stream):
    labels = stream.classes.tolist()
    return [labels.index(label) for label in blobs(40)[1]]


@pytest.mark.slow
def test_it_begins_from_what_somebody_knows():
    """theta_0, and a state that has learned and announced before."""
    stream = small_batches()
    runs = []
    for solver in ("blocked", "covariance"):
        learner = make(adaptive_k(0.7, 0.2), solver)
        with jax.enable_x64(True):
            state = learner.init(KEY, 6, 4)
            theta = jax.random.normal(jax.random.key(1), state.theta.shape)
            state = rvfl_jax.with_prior(state, theta)
            Y = rvfl_jax.one_hot(stream.y[1], 4)
            state, _ = learner.step(state, stream.X[1], Y, stream.X[0], weight_t=stream.weight[1])
        runs.append(rvfl_jax.run_stream(learner, stream, key=KEY, state=state, test=blobs(40)))
    check_same_run(*runs)


@pytest.mark.parametrize("name", [pytest.param("k", marks=pytest.mark.slow), "printed"])
def test_a_batch_that_cannot_be_learned_leaves_no_trace(name):
    """The middle one of a block is not finite: all else is what single steps make of it."""
    stream = small_batches()
    X = stream.X.copy()
    X[10] = 1.7e308
    runs = [
        run(
            make(STRENGTHS[name], solver),
            stream._replace(X=X),
            on_failure="return",
            expert=None,
        )
        for solver in ("blocked", "covariance")
    ]
    # It is announced by one step and learned by the next.
    assert np.flatnonzero(~runs[0].history.healthy.all(axis=1)).tolist() == [9, 10]
    check_same_run(*runs)


@pytest.mark.parametrize("name", slow_but(["ridge", "printed"], ["ridge", "k", "printed"]))
def test_a_factor_that_fails_names_its_batch(name):
    """Gram matrices overflow in batch 10; what was learned before it stays, and stays finite."""
    stream = small_batches()
    X = stream.X.copy()
    X[10] *= 1e160
    runs = [
        run(make(STRENGTHS[name], solver), stream._replace(X=X), on_failure="return", test=None)
        for solver in ("blocked", "covariance")
    ]
    first = [int(np.argmin(each.history.healthy.all(axis=1))) for each in runs]
    assert first[0] == first[1]
    np.testing.assert_allclose(
        runs[0].history.k_next[: first[0]],
        runs[1].history.k_next[: first[0]],
        rtol=tolerances.CLOSED_FORM,
    )
    assert np.isfinite(runs[0].state.theta_ridge).all()
    assert np.isfinite(runs[0].state.eta_dagger).all()
    with pytest.raises(rvfl_jax.NumericalError, match=f"batch {first[0]}"):
        run(make(STRENGTHS[name]), stream._replace(X=X), test=None)


@pytest.mark.parametrize("name", ["k", "printed"])
def test_a_first_batch_that_overflows_leaves_no_moment(name):
    """Of the paper's cold start, whose D^T Y would enter without its Gram."""
    stream = small_batches()
    X = stream.X.copy()
    X[1] *= 1e160
    learner = make(STRENGTHS[name], cold_start="paper")
    found = run(learner, stream._replace(X=X), on_failure="return", test=None)
    assert not found.history.healthy[1].any()
    # A moment of 1e160 would stay there.
    assert np.abs(found.state.theta_ridge).max() < 1e3
    assert np.isfinite(found.state.eta_dagger).all()


GRIDS = [
    {"kappa": [0.3, 2.0], "sigma": [0.1, 0.5]},
    pytest.param({"k": np.linspace(0.1, 2, 5)}, marks=pytest.mark.slow),
    pytest.param({"ridge": [0.1, 1.0], "k": [0.5, 1.5]}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: "-".join(grid))
def test_sweeps_are_runs_of_their_own(grid):
    def maker(k=1.0, kappa=None, sigma=None, ridge=RIDGE):
        return make(k if kappa is None else adaptive_k(kappa, sigma), ridge=ridge)

    swept = rvfl_jax.sweep(maker, small_batches(), grid, key=KEY)
    for place in np.ndindex(swept.prequential_loss.shape):
        point = {name: values[i] for (name, values), i in zip(grid.items(), place, strict=True)}
        one = run(maker(**point), test=None).history
        loss = swept.prequential_loss[place]
        np.testing.assert_allclose(loss, _mean_loss(one), rtol=tolerances.CLOSED_FORM)


def _mean_loss(history):
    rows = (small_batches().weight > 0).sum(axis=1)
    losses = np.where(rows > 0, history.prequential_loss, 0.0)
    return float((losses * rows).sum() / rows.sum())


@pytest.mark.slow
@pytest.mark.parametrize("checkpoint", [True, False, 8])
def test_losses_and_their_gradients(checkpoint):
    """With respect to lambda, kappa and sigma, through blocks and a padded last one."""
    stream = small_batches()

    def loss(log, solver):
        ridge, kappa, sigma = jnp.exp(log)
        learner = make(adaptive_k(kappa, sigma), solver, ridge=ridge)
        return rvfl_jax.prequential_loss(learner, stream, key=KEY, checkpoint=checkpoint)

    at = np.log([RIDGE, 0.7, 0.2])
    with jax.enable_x64(True):
        got, expected = (
            jax.jit(jax.value_and_grad(functools.partial(loss, solver=solver)))(at)
            for solver in ("blocked", "covariance")
        )
    np.testing.assert_allclose(got[0], expected[0], rtol=tolerances.CLOSED_FORM)
    assert references.relative_error(got[1], expected[1]) <= tolerances.CLOSED_FORM


@pytest.mark.slow
def test_in_parts_and_from_anything_that_can_be_iterated(tmp_path):
    """Chunks that no block divides; resumed to the last bit; batches from a generator."""
    learner = make(adaptive_k(0.7, 0.2))
    whole = run(learner, test=None)
    options = {"test": None, "chunk_size": 8}
    in_chunks = run(learner, progress=lambda done, total: None, **options)
    check_same_run(in_chunks, whole)

    class StoppedError(Exception):
        pass

    def stop(done, total):
        if done >= 16:
            raise StoppedError

    file = tmp_path / "run.ckpt"
    with pytest.raises(StoppedError):
        run(learner, checkpoint=file, progress=stop, **options)
    resumed = run(learner, checkpoint=file, resume=True, **options)
    for got, want in zip(
        jax.tree.leaves((resumed.state, resumed.history._replace(provenance=None))),
        jax.tree.leaves((in_chunks.state, in_chunks.history._replace(provenance=None))),
        strict=True,
    ):
        np.testing.assert_array_equal(np.asarray(got), np.asarray(want))
    stream = ragged_stream(97, NUM_BATCHES)
    batches = [
        (X[w > 0], stream.classes[y[w > 0]])
        for X, y, w in zip(stream.X, stream.y, stream.weight, strict=True)
    ]
    fed = rvfl_jax.run_stream(
        learner, iter(batches), key=KEY, classes=stream.classes.tolist(), batch_size=3
    )
    got, want = fed.state.theta, run(learner, stream, test=None).state.theta
    assert references.relative_error(got, want) <= tolerances.CLOSED_FORM


def test_single_precision():
    runs = [run(make(1.0, solver), precision="single") for solver in ("blocked", "covariance")]
    got, expected = (each.state.theta for each in runs)
    assert got.dtype == np.float32
    assert references.relative_error(got, expected) <= tolerances.SINGLE
    assert runs[0].history.healthy.all()


def test_blocks_leave_as_few_single_steps_as_they_can():
    learner = make(1.0, num_nodes=60)
    whole = size_of(learner, num_steps=1000)
    assert whole == 10
    assert [size_of(learner, num_steps=n) for n in (1, 2, 7, 11, 30, 31, 44)] == [
        *(1, 2, 7, 11, 10, 10, 11)
    ]
    auto = make(1.0, "auto", num_nodes=60)
    assert [size_of(auto, num_steps=n) for n in (100, 10_000)] == [1, 10]


def test_auto_takes_blocks_where_they_pay():
    """Small batches, many of them or of a wide readout; what it gives is the same."""
    size = where_it_pays(SolverOptions(True, False)).block.size
    assert [size(rows, 500, 5, 1000) for rows in (1, 10, 32, 33, 125)] == [96, 9, 3, 1, 1]
    assert [size(27, 192, 3, steps) for steps in (50, 400)] == [1, 3]
    stream, learners = small_batches(), [make(1.0, solver) for solver in ("auto", "covariance")]
    repeated = jax.tree.map(
        lambda a: np.concatenate([a] * 110), stream._replace(classes=None, class_task=None)
    )
    long = repeated._replace(classes=stream.classes, class_task=stream.class_task)
    assert [size_of(each, long, len(long.X)) for each in learners] == [3, 1]
    check_same_run(*(run(each, long, test=None) for each in learners))
