"""Methods that learn a stream: each a `Learner`, on the contract of `base`.

Methods beside edRVFL are registered by name, so that the command line finds them; the table of
`methods` says of each what it is and where it is from.

## Your own, and several compared

A learner is `init`, `step` and `scores` on any pytree; `make_learner` makes it one that streams,
sweeps, gradients, checkpoints and pictures take. The guide
writes streaming LDA, which ships beside experience replay with a flax network, an optax
optimiser and a reservoir (`rvfl_jax.learners.slda`, `rvfl_jax.learners.replay`). Where batches are
whole tasks, `in_minibatches(learner, rows=64, epochs=5)` makes inner epochs over each.

```python
import rvfl_jax
from rich import print
from rvfl_jax import plots
from rvfl_jax.data import load_dataset
from rvfl_jax.learners.replay import replay
from rvfl_jax.learners.slda import slda

data = load_dataset("digits")
stream = rvfl_jax.class_incremental_stream(
    data.X_train, data.y_train, num_tasks=5, num_batches=50, seed=0
)
learners = {
    "-R": rvfl_jax.edrvfl(num_layers=3, num_nodes=128, ridge=0.1, k=0.0),
    "SLDA": slda(shrinkage=0.03),
    "ER": replay(hidden=(100,), memory=200, drawn=50, updates=5),
}
result = rvfl_jax.compare(learners, stream, seeds=3, test=(data.X_test, data.y_test))
print(plots.comparison_table(result))
plots.comparison_figure(result).savefig("compared.png")
```

`run_stream(..., boundaries="given")` calls a learner's `consolidate` where a task ends; nothing else
tells it of tasks. `rvfl-jax run --styles ridge,slda,ewc` compares from the command line, where each method is
told of tasks or not as its authors have it; `rvfl-jax --list-methods` prints what there is.

## What ships

Methods that ship, each in the module of its name under `rvfl_jax.learners`, with its paper, its
equations and its cost; `rvfl_jax.learners.methods.METHODS` has the same as data:

| names | what they keep | any batches give the fit of all rows |
|---|---|---|
| `finetune`; `joint` (an offline expert) | a network | no |
| `ncm`, `simplecil` | class means | yes |
| `slda`, `lda` | class means and a covariance | yes |
| `randumb`, `klda` | the same in random Fourier features | yes |
| `ranpac` | sums of random ReLU features; lambda by held-out rows | but for lambda |
| `acil`, `gacl`, `foal` | a readout and its inverse Gram matrix | yes |
| `dsal` | two of these, the second for what the first leaves over | no |
| `replay`, also by the name `er` | a network, and rows in a reservoir | no |
| `derpp` | the same, and the logits of their time | no |
| `agem` | a network, and rows in a reservoir | no |
| `gem` | a network, and the last rows of each task | no |
| `gss` | a network, and rows with gradients apart | no |
| `ewc`, `online_ewc`, `mas` | a network, what holds it, and the last rows of a task | no |
| `task_free_mas` | a network, what holds it, and rows of most loss | no |
| `si` | a network, what holds it, and a path integral | no |
| `lwf` | a network, and how it was at the end of the last task | no |
| `owm` | a network, and a projector for each layer | no |
| `crnet1` | a readout of random ReLU features, and what holds it | no |
| `hat` | a network, and masks of each task | no |
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
