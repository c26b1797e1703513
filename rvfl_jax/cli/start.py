"""What the process `rvfl-jax` does to begin soon, before anything heavy is imported."""

import gc
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import LazyLoader
from types import ModuleType

from rvfl_jax.cli.programs import compile_anew, keep_programs

_MODULES = {
    "run": ("rvfl_jax.cli.compare", "rvfl_jax.plots"),
    "sweep": ("rvfl_jax.cli.sweep", "rvfl_jax.plots"),
    "embed": ("rvfl_jax.encoders",),
}
# Each of these is a third of scikit-learn's second, which imports them for nothing that we call.
_UNUSED, _LATE = "pandas", "scipy.stats"


def begin(command: str, *, cache: bool) -> None:
    """Import what a command needs, and set where its programs are kept.

    Args:
        command: as it was typed.
        cache: whether programs of earlier processes are read, and new ones kept.
    """
    if cache:
        keep_programs()
    else:
        compile_anew()
    with _without_looking_for_garbage():
        if command in _MODULES:
            for name in _MODULES[command]:
                import_module(name)
            return
        # Threads of OpenBLAS wait for each other by spinning: on a machine that other work shares,
        # factors of a few hundred columns take fifty times as long with two of them as with one.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        with _lean_scikit_learn():
            import_module("rvfl_jax.cli.models")


@contextmanager
def _without_looking_for_garbage() -> Iterator[None]:
    """What is imported stays; looking through it, at the end too, takes a quarter of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@contextmanager
def _lean_scikit_learn() -> Iterator[None]:
    """Whoever asks for what is left out here gets it, as soon as the block is over."""
    modules: dict[str, ModuleType | None] = sys.modules  # type: ignore[assignment]
    late = _Late()
    # To Python, None stands for a module that cannot be imported.
    modules.setdefault(_UNUSED, None)
    sys.meta_path.insert(0, late)
    try:
        yield
    finally:
        sys.meta_path.remove(late)
        if modules[_UNUSED] is None:
            del modules[_UNUSED]


class _Late:
    """Finds a module that is loaded when something in it is first asked for."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Of that module; nothing for others, which are found as always."""
        spec = PathFinder.find_spec(name, path, target) if name == _LATE else None
        if spec is not None and spec.loader is not None:
            spec.loader = LazyLoader(spec.loader)
        return spec
