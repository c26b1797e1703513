"""Seconds of competing programs, taken in turns so that noise of the machine hits all alike."""

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax

# Idle threads of another library spin for a while before they sleep; they must not count
# against the program that is timed next.
PAUSE = 0.05


def compile_timed(function: Callable[..., Any], *args: Any) -> tuple[Callable[..., Any], float]:
    """The program compiled for `args`, and the seconds that tracing and compiling took."""
    start = time.perf_counter()
    compiled = jax.jit(function).lower(*args).compile()
    return compiled, time.perf_counter() - start


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    """Wall-clock seconds until the result is there, and the result."""
    start = time.perf_counter()
    result = jax.block_until_ready(call())
    return time.perf_counter() - start, result


def interleaved(
    calls: Mapping[str, Callable[[], Any]],
    repeats: int,
    progress: Callable[[str], None] = lambda message: None,
) -> tuple[dict[str, list[float]], dict[str, float], dict[str, Any]]:
    """Call everything once to warm up, then all in turns, each round from another start.

    Args:
        calls: programs without arguments, by name.
        repeats: rounds that count.
        progress: is told what runs next.

    Returns:
        The seconds of every repeat, the seconds of the first call, and the result of the
        first call, each by name.
    """
    first, results = {}, {}
    for name, call in calls.items():
        progress(f"{name}, warm-up")
        first[name], results[name] = seconds_of(call)
    names = list(calls)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(repeats):
        start = turn % len(names)
        progress(f"repeat {turn + 1} of {repeats}")
        for name in names[start:] + names[:start]:
            time.sleep(PAUSE)
            seconds[name].append(seconds_of(calls[name])[0])
    return seconds, first, results
