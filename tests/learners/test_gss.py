"""GSS: scores by hand, places taken as often as they should be, rows of the stream alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import softmax

from rvfl_jax import run_stream
from rvfl_jax.learners.finetune import finetune
from rvfl_jax.learners.gss import Chosen, consider, gss, score_of
from rvfl_jax.learners.reservoir import Reservoir
from tests.learners.test_regularisation import equal, gradients_by_hand
from tests.learners.test_rehearsal import BATCHES, KEY, SMALL, X_0, Y_0, after, begun
from tests.streams import ragged_stream


def by_hand(params, X, Y):
    """(rows, P) gradients of rows by themselves."""
    each = gradients_by_hand(params, X, lambda i, z: softmax(z) - Y[i])
    return np.array([np.concatenate([np.ravel(part) for part in row]) for row in each])


def cosines(G, g):
    return G @ g / (np.linalg.norm(G, axis=1) * np.linalg.norm(g))


def test_a_score_is_the_largest_cosine_and_one():
    rng = np.random.default_rng(0)
    G, g = rng.normal(size=(4, 30)), rng.normal(size=30)

    def score(g, G, there):
        lengths = np.linalg.norm(G, axis=1) * np.linalg.norm(g)
        return float(score_of(jnp.asarray(G @ g), jnp.asarray(lengths), np.array(there, bool)))

    with jax.enable_x64(True):
        for there in ([1, 1, 1, 1], [1, 0, 1, 0]):
            want = 1 + cosines(G[np.array(there, bool)], g).max()
            assert score(g, G, there) == pytest.approx(want, rel=1e-12)
        assert score(g, G, [0, 0, 0, 0]) == 1
        assert score(g, -g[None], [1]) == pytest.approx(0, abs=1e-12)
        assert score(g, -g[None], [1]) >= 0
        assert score(0 * g, G, [1, 1, 1, 1]) == 1
        # Control: the longest gradient is not the nearest.
        assert score(np.array([1.0, 0.0]), np.array([[9.0, 9.0], [1.0, 0.0]]), [1, 1]) == 2


def test_while_there_is_room_all_rows_are_kept_with_their_scores():
    """Each is compared with all that came before it."""
    learner = gss(**SMALL, memory=12, drawn=4, compared=12)
    _, state = after(learner, (X_0, Y_0))
    np.testing.assert_array_equal(state.kept.rows.X, X_0)
    np.testing.assert_array_equal(state.kept.rows.Y, Y_0)
    G = by_hand(state.params, X_0, Y_0)
    want = [1.0] + [1 + cosines(G[:i], G[i]).max() for i in range(1, 12)]
    np.testing.assert_allclose(state.kept.score, want, rtol=0, atol=1e-9)
    # Control: by the parameters before the batch they are others.
    before = by_hand(after(learner)[0].params, X_0, Y_0)
    assert abs(1 + cosines(before[:5], before[5]).max() - want[5]) > 1e-4


def chosen(scores):
    size = len(scores)
    rows = Reservoir(jnp.zeros((size, 1)), jnp.zeros((size, 1)), jnp.asarray(size, jnp.int32))
    return Chosen(rows, jnp.asarray(scores))


@pytest.mark.parametrize("c", [0.25, 1.0])
def test_places_are_taken_with_their_probabilities(c):
    scores, trials = np.array([0.2, 0.5, 0.3, 1.0]), 4000

    def taken(key):
        row = jnp.ones(1), jnp.ones(1), jnp.asarray(c), jnp.asarray(True)
        return consider(chosen(scores), key, *row)

    found = jax.jit(jax.vmap(taken))(jax.random.split(KEY, trials))
    new = np.asarray(found.rows.X[..., 0])
    counts = np.append(new.sum(axis=0), trials - new.sum())
    if c >= 1:  # a row like one that is there takes no place
        assert counts[-1] == trials
        return
    shares = scores / scores.sum() * scores / (scores + c)
    expected = trials * np.append(shares, 1 - shares.sum())
    assert stats.chisquare(counts, expected).pvalue > 1e-3
    np.testing.assert_allclose(np.asarray(found.score)[new > 0], c, rtol=1e-6)
    # Control: places alike is something else.
    alike = trials * np.append(np.full(4, shares.sum() / 4), 1 - shares.sum())
    assert stats.chisquare(counts, alike).pvalue < 1e-9


def test_what_is_no_row_takes_no_place():
    row = jnp.ones(1), jnp.ones(1), jnp.asarray(0.1), jnp.asarray(False)
    for key in jax.random.split(KEY, 5):
        assert equal(consider(chosen([1.0, 1.0]), key, *row), chosen([1.0, 1.0]))


def test_memory_is_of_rows_of_the_stream_and_apart():
    stream = ragged_stream()
    learner = gss(**SMALL, memory=12, drawn=4, compared=3)
    state = run_stream(learner, stream, key=KEY).state
    used = stream.weight > 0
    rows = {tuple(row) for row in stream.X[used].astype(float).tolist()}
    kept = {tuple(row) for row in np.asarray(state.kept.rows.X).tolist()}
    assert kept <= rows
    assert len(kept) == 12
    assert state.kept.rows.passed == 12
    score = np.asarray(state.kept.score)
    assert np.all((score >= 0) & (score <= 2))


def test_gradients_that_point_elsewhere_take_places():
    """Rows of another class go against all that is kept; once more the same rows, none."""
    learner = gss(**SMALL | {"learning_rate": 1e-6}, memory=12, drawn=4, compared=12)
    first, other = (np.tile(np.eye(4)[k], (12, 1)) for k in (0, 1))
    with_others = after(learner, (X_0, first), (X_0, other))[-1].kept.rows.Y
    with_same = after(learner, (X_0, first), (X_0, first))
    assert np.asarray(with_others)[:, 1].sum() > 0
    # Control: rows whose gradients are there already have a cosine of 1.
    assert equal(with_same[1].kept, with_same[2].kept)


def test_of_an_empty_memory_it_is_fine_tuning():
    learner = gss(**SMALL, memory=12, drawn=4, compared=3)
    states, alone = after(learner, *BATCHES, params=begun()), after(finetune(**SMALL), *BATCHES)
    assert equal(states[1].params, alone[1].params)
    # Control: at the second it draws.
    assert not equal(states[2].params, alone[2].params)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"memory": 0}, "memory: "),
        ({"memory": 20, "compared": 21}, "compared: expected at most memory=20, got 21"),
        ({"drawn": 0}, "drawn: "),
        ({"learning_rate": 0.0}, "learning_rate: "),
    ],
)
def test_options_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        gss(**options)
