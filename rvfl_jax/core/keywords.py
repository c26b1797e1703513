"""Functions whose many options are written once, as the fields of a dataclass.

    @options_from_keywords(RunOptions)
    def run_stream(learner, stream, options): ...

is called `run_stream(learner, stream, key=key, precision="single")`. `help`, `inspect.signature`
and completion in notebooks show every field by name and default.
"""

import difflib
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any


def options_from_keywords(kind: Callable[..., Any]) -> Callable[[Callable[..., Any]], Any]:
    """Decorator: the last parameter of a function is made of the keyword arguments of its calls.

    Args:
        kind: dataclass of those options, all of them `kw_only`.

    Returns:
        The decorator. What it gives raises TypeError as any function does on an argument that is
        missing, unknown or given twice, and names the option that an unknown one is nearest to.
    """

    def decorate(function: Callable[..., Any]) -> Any:
        own = signature(function)
        *leading, last = own.parameters.values()
        shown = own.replace(parameters=[*leading, *signature(kind).parameters.values()])
        names = {each.name for each in leading}

        @wraps(function)
        def call(*args: Any, **keywords: Any) -> Any:
            _refuse_unknown(function.__name__, keywords, shown.parameters)
            try:
                shown.bind(*args, **keywords)
            except TypeError as error:
                raise TypeError(f"{function.__name__}() {error}") from None
            named = {name: value for name, value in keywords.items() if name in names}
            options = {name: value for name, value in keywords.items() if name not in names}
            return function(*args, **named, **{last.name: kind(**options)})

        changed: Any = call
        changed.__signature__ = shown
        changed.__annotations__ = {
            each.name: each.annotation
            for each in shown.parameters.values()
            if each.annotation is not Parameter.empty
        } | {"return": own.return_annotation}
        return changed

    return decorate


def _refuse_unknown(name: str, keywords: Any, known: Any) -> None:
    """TypeError in Python's words on the first keyword that is not known."""
    for keyword in keywords:
        if keyword not in known:
            near = difflib.get_close_matches(keyword, known, n=1)
            hint = f". Did you mean '{near[0]}'?" if near else ""
            raise TypeError(f"{name}() got an unexpected keyword argument '{keyword}'{hint}")
