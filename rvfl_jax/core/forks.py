"""Processes that were forked while JAX was in use, where every computation would wait for ever.

JAX computes on threads of its own, and a fork copies none of them.
"""

import os
import sys

_used = _forked_in_use = False


def _in_use() -> bool:
    """Whether JAX has started its threads in this process, for us or for others."""
    if _used:
        return True
    # Only a private function tells of others; without it what we started is known.
    bridge = sys.modules.get("jax._src.xla_bridge")
    started = getattr(bridge, "backends_are_initialized", None)
    return bool(started and started())


def _after_fork() -> None:
    global _forked_in_use
    _forked_in_use = _forked_in_use or _in_use()


def refuse_after_fork() -> None:
    """RuntimeError in a process that could only hang."""
    global _used
    _used = True
    if _forked_in_use:
        raise RuntimeError(
            "rvfl_jax: expected a process of its own, got one forked after JAX was in use, which"
            ' would wait for ever. Start processes by multiprocessing.get_context("spawn") or by'
            " joblib's default, loky"
        )


# Not on Windows, which cannot fork.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
