"""Equations displayed in the docstrings of methods: numbered, in order, with shapes; and cited."""

import ast
import io
import re
import tokenize
from pathlib import Path

import pytest

import rvfl_jax.learners
from rvfl_jax.learners.methods import METHODS

FOLDER = Path(rvfl_jax.learners.__file__).parent
PARTS = (
    "anchored",
    "fisher",
    "fourier_discriminant",
    "gaussian",
    "minibatches",
    "mlp_head",
    "random_maps",
    "recursion",
    "reservoir",
)
MODULES = sorted({*METHODS, *PARTS})
NUMBER = re.compile(r"\((\d+)(?:; their [^()]*)?\)$")
CITED = re.compile(r"(?<![\w.)\]])\((\d)\)")


def displays(docstring):
    """Displayed paragraphs, each a list of lines."""
    paragraphs = [paragraph.splitlines() for paragraph in docstring.split("\n\n")]
    return [lines for lines in paragraphs if all(line.startswith("    ") for line in lines)]


def numbers(docstring):
    """Those at the ends of displayed lines."""
    lines = [line for display in displays(docstring) for line in display]
    return [int(found[1]) for found in map(NUMBER.search, lines) if found]


def cited(source):
    """Numbers named in comments and in docstrings of functions and classes."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    told = [token.string for token in tokens if token.type == tokenize.COMMENT]
    kinds = ast.FunctionDef | ast.ClassDef
    inside = [node for node in ast.walk(ast.parse(source)) if isinstance(node, kinds)]
    told += [(ast.get_docstring(node) or "").partition("\n")[0] for node in inside]
    return {int(number) for text in told for number in CITED.findall(text)}


@pytest.mark.parametrize("name", MODULES)
def test_displayed_equations_are_numbered_and_have_shapes(name):
    source = (FOLDER / f"{name}.py").read_text("utf-8")
    docstring = ast.get_docstring(ast.parse(source))
    found = numbers(docstring)
    assert found == list(range(1, len(found) + 1))
    assert found
    assert all(any(NUMBER.search(line) for line in display) for display in displays(docstring))
    assert "\n\nShapes: " in docstring
    assert cited(source) <= set(found)


def test_what_is_not_in_order_or_not_there_is_seen():
    assert numbers("x\n\n    a = 1,  (1; their eq. 11)\n    b = f(2)  (3)\n\n(4)") == [1, 3]
    assert displays("x\n\n    a = 1\n\ny (1)") == [["    a = 1"]]
    assert cited('def f():\n    """P (2) of x."""\n    # (7): as there.\n    return g(3)\n') == {
        2,
        7,
    }
