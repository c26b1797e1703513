"""Sums of Grams in strips on the host, against NumPy's dense products and solves."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from rvfl_jax.linalg import host_blas
from rvfl_jax.linalg.host_blas import (
    diagonal,
    packed,
    plus,
    plus_gram,
    ridge_solution,
    strips_of,
    strips_of_packed,
    threads_at_most,
    times,
    whole,
    zero_strips,
)
from tests import tolerances

LAYERS, ROWS = 2, 40


@pytest.fixture(params=["one thread", "threads"])
def narrow_strips(request, monkeypatch):
    """Strips of 16 rows, added up by one thread or by three."""
    monkeypatch.setattr(host_blas, "STRIP_ROWS", 16)
    if request.param == "threads":
        monkeypatch.setattr(host_blas, "WORTH_A_THREAD", 0)
        monkeypatch.setattr(host_blas, "_threads", lambda: 3)


def drawn(width, seed=0):
    return np.random.default_rng(seed).standard_normal((LAYERS, ROWS, width))


def dense(D):
    return D.swapaxes(1, 2) @ D


def close(found, want):
    scale = np.abs(want).max()
    np.testing.assert_allclose(found, want, rtol=0, atol=tolerances.REORDERED * scale)


@pytest.mark.parametrize("width", [1, 7, 16, 50, 129])
def test_grams_are_added_faded_and_taken_out(width, narrow_strips):
    D, more = drawn(width), drawn(width, 1)
    G = dense(D)
    strips = plus_gram(zero_strips(LAYERS, width), D)
    assert len(strips) == max(1, round(width / 16))
    assert sum(strip.size for strip in strips) <= LAYERS * width * (width + 17)
    close(whole(strips), G)
    close(diagonal(strips), np.diagonal(G, axis1=1, axis2=2))
    close(whole(strips_of(G)), G)
    faded = plus_gram(strips, more, past=0.5)
    close(whole(faded), 0.5 * G + dense(more))
    close(whole(plus_gram(plus_gram(strips, more), more, factor=-1.0)), G)
    of_layers = np.array([2.0, 3.0])
    close(
        whole(plus_gram(strips, more, factor=of_layers)),
        G + of_layers[:, None, None] * dense(more),
    )
    close(whole(plus(strips, plus_gram(zero_strips(LAYERS, width), more))), G + dense(more))


def test_nothing_given_is_written_to(narrow_strips):
    strips = plus_gram(zero_strips(LAYERS, 50), drawn(50))
    kept = [strip.copy() for strip in strips]
    for strip in strips:
        strip.flags.writeable = False
    D, B = drawn(50, 1), drawn(50, 2).swapaxes(1, 2)
    D.flags.writeable = B.flags.writeable = False
    plus_gram(strips, D, past=0.9)
    plus(strips, strips)
    ridge_solution(strips, 1.0, B)
    times(strips, B)
    for strip, before in zip(strips, kept, strict=True):
        np.testing.assert_array_equal(strip, before)


# Of both parities, with the middle within a strip and between two.
@pytest.mark.parametrize("width", [1, 2, 3, 16, 17, 33, 50, 64, 65, 129])
def test_products_and_solutions(width, narrow_strips):
    G = dense(drawn(width))
    strips, ridge = strips_of(G), np.array([0.5, 2.0])
    B = np.random.default_rng(2).standard_normal((LAYERS, width, 5))
    close(times(strips, B), G @ B)
    want = np.linalg.solve(G + ridge[:, None, None] * np.eye(width), B)
    np.testing.assert_allclose(ridge_solution(strips, ridge, B), want, rtol=0, atol=1e-10)
    B[:, :, 1] = 0.0
    one = np.linalg.solve(G + 0.5 * np.eye(width), B)
    np.testing.assert_allclose(ridge_solution(strips, 0.5, B), one, rtol=0, atol=1e-10)
    np.testing.assert_array_equal(ridge_solution(strips, 0.5, 0.0 * B), 0.0)


def test_what_is_too_wide_to_be_packed_is_solved_all_the_same(narrow_strips, monkeypatch):
    G, B = dense(drawn(50)), np.ones((LAYERS, 50, 2))
    packed_up = ridge_solution(strips_of(G), 0.5, B)
    monkeypatch.setattr(host_blas, "MOST_PACKED", 49)
    close(ridge_solution(strips_of(G), 0.5, B), packed_up)
    G[1, 3, 3] = -1e3
    found = ridge_solution(strips_of(G), 0.5, B)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


@pytest.mark.parametrize("at", [3, 45], ids=["first strip", "last strip"])
@pytest.mark.parametrize("value", [-1e3, np.nan, np.inf])
def test_what_is_not_positive_definite_has_no_solution(at, value, narrow_strips):
    G = dense(drawn(50))
    G[1, at, at] = value
    B = np.ones((LAYERS, 50, 2))
    found = ridge_solution(strips_of(G), 1.0, B)
    assert np.isfinite(found[0]).all()
    assert np.isnan(found[1]).all()


def test_overflow_gives_infinities_and_no_warning(narrow_strips):
    found = plus_gram(zero_strips(LAYERS, 50), 1e200 * drawn(50))
    assert np.isinf(diagonal(found)).all()
    assert np.isnan(ridge_solution(found, 1.0, np.ones((LAYERS, 50, 1)))).all()


def test_what_a_thread_raises_is_raised(monkeypatch):
    monkeypatch.setattr(host_blas, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(host_blas, "_threads", lambda: 2)
    monkeypatch.setattr(host_blas, "STRIP_ROWS", 16)
    strips = strips_of(dense(drawn(50)))
    with pytest.raises(ValueError, match="broadcast"):
        plus_gram(strips, drawn(50)[:, :, :49])
    before = threading.active_count()
    plus_gram(strips, drawn(50))
    assert threading.active_count() == before


def blas_threads():
    return [
        lib["num_threads"] for lib in host_blas._libraries().info() if lib["user_api"] == "blas"
    ]


def test_blas_takes_one_thread_while_anybody_adds_up_and_then_as_many_as_before():
    D = drawn(200)
    with threadpool_limits(2, "blas"):
        assert set(blas_threads()) == {2}
        with host_blas.one_thread_a_product(10**9):
            assert set(blas_threads()) == {1}
            plus_gram(zero_strips(LAYERS, 200), D)
            assert set(blas_threads()) == {1}
        assert set(blas_threads()) == {2}
        with pytest.raises(ValueError, match="broadcast"):
            plus_gram(zero_strips(LAYERS, 200), D[:, :, :199])
        assert set(blas_threads()) == {2}
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda _: plus_gram(zero_strips(LAYERS, 200), D), range(40)):
                pass
        assert set(blas_threads()) == {2}


def test_blas_keeps_its_threads_where_there_is_little_work(monkeypatch):
    monkeypatch.setattr(host_blas._limit, "begin", lambda: pytest.fail("nothing to limit"))
    plus_gram(zero_strips(LAYERS, 8), drawn(8))


@pytest.mark.parametrize("width", [1, 16, 40])
def test_the_packed_triangle_goes_there_and_back(width, narrow_strips):
    G = dense(drawn(width))
    triangle = packed(strips_of(G))
    np.testing.assert_array_equal(triangle, G[:, *np.tril_indices(width)])
    np.testing.assert_array_equal(whole(strips_of_packed(triangle, width)), np.tril(G) + upper(G))


def upper(G):
    """Of the mirrored lower triangle, as the halves of a product may differ by rounding."""
    return np.tril(G, -1).swapaxes(1, 2)


def test_threads_can_be_fewer(monkeypatch):
    pools = []

    class Noted(ThreadPoolExecutor):
        def __init__(self, count):
            pools.append(count)
            super().__init__(count)

    monkeypatch.setattr(host_blas, "_threads", lambda: 4)
    monkeypatch.setattr(host_blas, "WORTH_A_THREAD", 0)
    monkeypatch.setattr(host_blas, "ThreadPoolExecutor", Noted)
    for most in (None, 3, 9, 1):
        with threads_at_most(most):
            plus_gram(zero_strips(LAYERS, 8), drawn(8))
    plus_gram(zero_strips(LAYERS, 8), drawn(8))
    assert pools == [4, 3, 4, 4]
