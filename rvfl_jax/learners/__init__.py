"""Methods that learn a stream: each a `Learner`, on the contract of `base`.

Methods beside edRVFL are registered by name, so that the command line finds them; the table of
`methods` says of each what it is and where it is from.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from rvfl_jax.learners.methods import METHODS, module_of

# Name of each to the module that has a function of that name.
REGISTERED = {name: module_of(name) for name, method in METHODS.items() if method.style}


def register(name: str, module: str) -> None:
    """Make a learner known by name: `module` has a function `name`, whose arguments have defaults.

    Raises:
        ValueError: if the name is another's.
    """
    if REGISTERED.get(name, module) != module:
        raise ValueError(f"name: expected a free one, got {name!r} of {REGISTERED[name]}")
    REGISTERED[name] = module


def registered(name: str) -> Callable[..., Any]:
    """The function that makes the learner of that name."""
    found: Callable[..., Any] = getattr(import_module(REGISTERED[name]), name)
    return found
