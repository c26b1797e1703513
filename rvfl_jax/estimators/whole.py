"""Objects that change whole or not at all: `all_or_nothing`, and `of_one_moment` for readers.

A method that learns works on a copy, whose attributes take the place of the object's in one
assignment when it is through. Whatever is raised on the way, an interrupt included, leaves the
object as it was; and a reader in another thread, who looks at the attributes once, sees the object
before or after, never between. This holds as long as nothing that an attribute refers to is
changed in place: arrays are replaced, never written to nor donated.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")

TURN = "_turn"


def all_or_nothing(method: Callable[Concatenate[S, P], Any]) -> Callable[Concatenate[S, P], S]:
    """A method that changes its object, wholly or not at all, and returns it.

    Several threads take turns.
    """

    @wraps(method)
    def changed(self: S, /, *args: P.args, **kwargs: P.kwargs) -> S:
        with _turn_of(self):
            draft = as_it_stands(self)
            method(draft, *args, **kwargs)
            self.__dict__ = draft.__dict__
        return self

    return changed


def of_one_moment(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """A method that reads its object as it stands when it is called, whatever comes meanwhile."""

    @wraps(method)
    def read(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(as_it_stands(self), *args, **kwargs)

    return read


def as_it_stands(thing: S) -> S:
    """Another object with the attributes of this one, and apart from it from now on."""
    # One call without Python inside, which no other thread comes between.
    attributes = dict(thing.__dict__)
    copy: S = object.__new__(type(thing))
    copy.__dict__ = attributes
    return copy


def _turn_of(thing: Any) -> Any:
    """The lock of whoever changes it; the first one to come makes it."""
    lock = thing.__dict__.get(TURN)
    return lock if lock is not None else thing.__dict__.setdefault(TURN, threading.RLock())
