"""What the public functions ask of their callers: few parameters, short bodies, options by name."""

import ast
import inspect
import pathlib
from types import ModuleType

import jax
import pytest

import rvfl_jax
from rvfl_jax.runs.options import RunOptions
from rvfl_jax.serving.export import ExportOptions, LearnerExportOptions
from rvfl_jax.streams.class_incremental import CutOptions
from rvfl_jax.sweeps.options import SweepOptions
from tests.streams import ragged_stream

MOST_PARAMETERS, MOST_LINES = 8, 60
# Tables of options.
KINDS = ("Classifier", "MultiLabelClassifier", "Regressor")
TABLES = {"edrvfl", *(f"EdRVFL{kind}.__init__" for kind in KINDS)}
# Each with what its options are made of, and how often the function itself names a parameter.
BY_KEYWORD = [
    (rvfl_jax.run_stream, RunOptions, 2),
    (rvfl_jax.sweep, SweepOptions, 3),
    (rvfl_jax.class_incremental_stream, CutOptions, 2),
    (rvfl_jax.export_model, ExportOptions, 2),
    (rvfl_jax.export_learner, LearnerExportOptions, 3),
]
by_keyword = pytest.mark.parametrize(
    ("function", "options", "leading"), BY_KEYWORD, ids=[each[0].__name__ for each in BY_KEYWORD]
)


def functions_of(name, value):
    """(name, function) of a public object: itself, or what a class or a module defines."""
    if isinstance(value, ModuleType | type):
        where = value.__name__ if isinstance(value, ModuleType) else value.__module__
        for inner, member in vars(value).items():
            member = getattr(member, "__func__", getattr(member, "fget", None) or member)
            public = not inner.startswith("_") or inner == "__init__"
            if public and getattr(member, "__module__", None) == where and callable(member):
                yield from functions_of(f"{name}.{inner}", member)
    else:
        yield name, inspect.unwrap(value)


def test_no_public_function_takes_more_than_eight_parameters():
    counted = {
        name: len(inspect.signature(function).parameters)
        for public in rvfl_jax.__all__
        for name, function in functions_of(public, getattr(rvfl_jax, public))
        # What NamedTuples and dataclasses generate has a parameter a field.
        if hasattr(function, "__code__") and function.__code__.co_filename.endswith(".py")
    }
    assert len(counted) > 100
    assert counted.keys() >= TABLES
    assert {name for name, count in counted.items() if count > MOST_PARAMETERS} == TABLES


def lines_of_code(function, lines):
    """Lines that are neither empty, nor a comment, nor of the function's own docstring."""
    first = function.body[0]
    told = range(first.lineno, first.end_lineno + 1) if ast.get_docstring(function) else ()
    numbers = range(function.lineno, function.end_lineno + 1)
    return sum(
        bool(lines[at - 1].strip()) and lines[at - 1].strip()[0] != "#"
        for at in numbers
        if at not in told
    )


def test_no_function_is_longer_than_sixty_lines():
    counted = {}
    for path in pathlib.Path(rvfl_jax.__file__).parent.rglob("*.py"):
        text = path.read_text()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef):
                counted[path.name, node.name] = lines_of_code(node, text.splitlines())
    assert {name: count for name, count in counted.items() if count > MOST_LINES} == {}


@by_keyword
def test_every_option_is_shown_by_name_and_default(function, options, leading):
    shown = list(inspect.signature(function).parameters.values())
    fields = list(inspect.signature(options).parameters.values())
    assert shown[leading:] == fields
    assert all(each.kind is inspect.Parameter.KEYWORD_ONLY for each in fields)
    assert all(f"\n        {each.name}: " in function.__doc__ for each in shown)
    assert set(function.__annotations__) == {*(each.name for each in shown), "return"}


@by_keyword
def test_wrong_arguments_are_refused_as_python_does(function, options, leading):
    name, first = function.__name__, next(iter(inspect.signature(options).parameters))
    needed = dict.fromkeys(inspect.signature(function).parameters)
    with pytest.raises(TypeError) as slip:
        function(**needed, **{f"{first}s": 0})
    assert str(slip.value) == (
        f"{name}() got an unexpected keyword argument '{first}s'. Did you mean '{first}'?"
    )
    with pytest.raises(TypeError, match=rf"^{name}\(\) .*'options'$"):
        function(**needed, options=0)
    with pytest.raises(TypeError, match=rf"^{name}\(\) missing a required"):
        function()
    with pytest.raises(TypeError, match=rf"^{name}\(\) too many positional arguments"):
        function(*range(leading + 1), **dict.fromkeys(list(needed)[leading:]))
    with pytest.raises(TypeError, match=rf"^{name}\(\) multiple values"):
        function(0, **needed)


def test_every_argument_may_be_given_by_name():
    learner = rvfl_jax.edrvfl(num_layers=1, num_nodes=4, ridge=1.0, k=1.0)
    stream, key = ragged_stream(), jax.random.key(0)
    named = rvfl_jax.run_stream(key=key, stream=stream, learner=learner)
    plain = rvfl_jax.run_stream(learner, stream, key=key)
    assert named.history.provenance == plain.history.provenance
    assert (named.history.prequential_loss == plain.history.prequential_loss).all()
