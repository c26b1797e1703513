"""The examples in docstrings run as printed, and print what they say."""

import doctest
import pkgutil
import textwrap
from importlib import import_module

import pytest

import rvfl_jax


def modules_with_examples():
    found = []
    for module in pkgutil.walk_packages(rvfl_jax.__path__, "rvfl_jax."):
        # Both are entries: importing one runs the command line.
        if not module.name.endswith("__main__"):
            spec = module.module_finder.find_spec(module.name)
            if spec is not None and ">>> " in spec.loader.get_source(module.name):
                found.append(module.name)
    return found


def what_examples_take_for_granted():
    """What the package's own docstring says that they do."""
    block = rvfl_jax.__doc__.split("Examples take for granted:")[1]
    names = {}
    exec(textwrap.dedent(block.strip("\n")), names)
    return names


def test_there_are_examples():
    assert len(modules_with_examples()) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run_as_printed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(
        import_module(name), extraglobs=what_examples_take_for_granted(), report=True
    )
    assert tried > 0
    assert failed == 0
