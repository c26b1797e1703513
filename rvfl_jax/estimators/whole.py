"""Atomic changes of objects: `all_or_nothing` for writers, and `of_one_moment` for readers.

A method that learns works on a copy, whose attributes replace the object's in one assignment when
it has finished. Whatever is raised on the way, an interrupt included, leaves the object as it was;
a reader in another thread, which looks at the attributes once, sees the object before or after the
change, never between. This holds as long as nothing that an attribute refers to is changed in
place: arrays are replaced, never written to nor donated.
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
    """Make a method change its object either completely or not at all, and return it.

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
    """Make a method read its object as it stands at the call, whatever other threads change."""

    @wraps(method)
    def read(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return method(as_it_stands(self), *args, **kwargs)

    return read


def as_it_stands(thing: S) -> S:
    """A shallow copy, which later changes of the object do not reach."""
    # One call without Python inside, which no other thread comes between.
    attributes = dict(thing.__dict__)
    copy: S = object.__new__(type(thing))
    copy.__dict__ = attributes
    return copy


def _turn_of(thing: Any) -> Any:
    """The lock of whoever changes it; the first one to come makes it."""
    lock = thing.__dict__.get(TURN)
    return lock if lock is not None else thing.__dict__.setdefault(TURN, threading.RLock())
