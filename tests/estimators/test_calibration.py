"""Inverse temperatures from guesses, and expected calibration error, on known answers."""

import numpy as np
import pytest

from rvfl_jax.estimators.calibration import (
    POWERS,
    Guesses,
    evenness,
    grown_guesses,
    inverse_temperature,
    linked,
    no_guesses,
    probabilities,
    tally,
)
from rvfl_jax.metrics import expected_calibration_error
from tests.tolerances import SINGLE


def told(z, columns, link):
    ones = np.ones(len(z), np.float32)
    both = np.stack([z, z]).astype(np.float32)
    return tally(no_guesses(z.shape[1], link), both, columns, ones, ones, link)


@pytest.mark.parametrize("link", ["log", "identity"])
@pytest.mark.parametrize("power", [0.7, 2.0, 8.0])
def test_the_power_that_made_the_labels_is_found(link, power):
    rng = np.random.default_rng(0)
    z = rng.uniform(0, 1, (20_000, 4)) ** 2
    p = probabilities(z, power, link)
    columns = (rng.random((len(z), 1)) > p.cumsum(axis=1)).sum(axis=1)
    found = inverse_temperature(told(z, columns, link), np.bincount(columns), link)
    assert found == pytest.approx(power, rel=0.08)
    after = expected_calibration_error(probabilities(z, found, link), columns)
    assert after < 0.015


def test_sums_are_those_of_a_loop():
    rng = np.random.default_rng(1)
    z, columns = rng.uniform(-0.2, 1, (30, 3)), rng.integers(0, 3, 30)
    got = told(z, columns, "log")
    for g, power in enumerate(POWERS["log"]):
        top = probabilities(z, power, "log").max(axis=1)
        np.testing.assert_allclose(
            got.confidence[1, :, g], np.bincount(columns, top, 3), rtol=SINGLE
        )
    np.testing.assert_allclose(got.hits[0], np.bincount(columns, z.argmax(axis=1) == columns, 3))
    np.testing.assert_allclose(got.rows, np.bincount(columns, minlength=3))


def test_padding_and_unmet_classes_count_nowhere():
    z = np.full((2, 4, 2), np.finfo(np.float32).min / 4, np.float32)
    nothing = np.zeros(4, np.float32)
    for link in ("log", "identity"):
        got = tally(no_guesses(2, link), z, np.zeros(4, int), nothing, nothing + 1, link)
        assert all((np.asarray(leaf) == 0).all() for leaf in got)
        assert inverse_temperature(got, np.zeros(2), link) == 1.0


def test_a_few_lucky_guesses_do_not_end_in_certainty():
    z = np.array([[0.9, 0.1], [0.2, 0.8]])
    power = inverse_temperature(told(z, np.array([0, 1]), "log"), np.ones(2), "log")
    assert probabilities(z, power, "log").max() < 0.95


def test_the_link_keeps_the_order_and_joins_smoothly():
    z = np.linspace(-0.3, 1.2, 2001)
    assert (np.diff(linked(z, "log", np)) > 0).all()
    slopes = np.diff(linked(np.array([-1e-6, 0.0, 1e-6]), "log", np))
    np.testing.assert_allclose(slopes[0], slopes[1], rtol=1e-4)


def test_guesses_grow_by_empty_classes():
    grown = grown_guesses(no_guesses(2, "log"), 5)
    assert isinstance(grown, Guesses)
    assert grown.confidence.shape == (2, 5, len(POWERS["log"]))


def test_expected_calibration_error_of_known_bins():
    proba = np.array([[0.9, 0.1]] * 10 + [[0.4, 0.6]] * 10)
    columns = np.array([0] * 7 + [1] * 3 + [1] * 6 + [0] * 4)
    assert expected_calibration_error(proba, columns) == pytest.approx(0.5 * 0.2 + 0.5 * 0.0)
    with pytest.raises(ValueError, match="one true column"):
        expected_calibration_error(proba, columns[:-1])


def test_evenness():
    assert evenness([5, 5, 5, 0]) == pytest.approx(1.0)
    assert evenness([1000, 1, 1]) == pytest.approx(1 / 3, abs=0.01)


def test_the_way_of_scoring_follows_the_counts():
    z, columns = np.array([[0.9, 0.3], [0.3, 0.8], [0.6, 0.4]] * 100), np.array([0, 1, 0] * 100)
    wrong = np.stack([z, z[:, ::-1]]).astype(np.float32)  # the balanced way misses them all
    ones = np.ones(len(z), np.float32)
    guesses = tally(no_guesses(2, "log"), wrong, columns, ones, ones, "log")
    assert inverse_temperature(guesses, [1000, 10], "log") > 5
    assert inverse_temperature(guesses, [100, 100], "log") < 0.5
