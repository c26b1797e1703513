"""Feature maps and lambda of the estimator on five data sets: `python -m experiments.feature_maps`.

Classes come one after another, in 50 batches (plants: 100); the end is accuracy over all classes
on test rows. One sub-learner of N = 512 nodes beside the inputs. Readouts do not depend on batches,
and batches are joined where nobody looks between them.

- `maps`: every map with lambda by generalised cross-validation, `ridge="auto"`, and as a
  discriminant with its shrinkage among five. The bandwidth of "fourier" is the median distance of
  the first batch, which has few classes; of rows of the whole stream; or, on the three smaller data
  sets, the latter by the best of three factors. What is chosen, but for lambda, is chosen by the
  accuracy on held-out training rows as beside the peers of `experiments.estimator`, and then
  learned with all of them.
- `lambda`: "auto" beside the default of 1 and beside the best of 9 on the same held-out rows, 1e-3
  to 1e3; for one sub-learner, for the estimator's defaults and for those of `rvfl-jax fit`. The
  mean over five looks, on the classes seen by then, tells of the way. The last column is the best
  of the nine on *test* rows, which nobody has: what there was to gain.

No test row enters any choice.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro

from experiments import estimator, peers
from experiments.features import FEATURES, cifar100_case
from experiments.results_file import Record, ResultsFile, markdown_table, mean_and_deviation
from experiments.settings import RESULTS, Once, steps_shown
from rvfl_jax import EdRVFLClassifier, Stream, class_incremental_stream
from rvfl_jax.estimators.compiled import layers_of
from rvfl_jax.linalg.host_blas import ridge_solution
from rvfl_jax.streams.labels import to_columns

CIFAR = next(iter(FEATURES))
DATA = ("digits", "letter", "plant margin", "fashion-mnist", "CIFAR-100 features")
SHORT = DATA[:3]
RIDGES = np.logspace(-3, 3, 9)
SHRINKAGES = (1e-4, 1e-3, 1e-2, 1e-1, 0.5)
FACTORS = (0.5, 1.0, 2.0)
LOOKS = 5
OF_ALL, CHOSEN = "fourier, bandwidth of all rows", "fourier, bandwidth chosen"


def squares(X: jax.Array) -> jax.Array:
    """A user's map: every input squared."""
    return jnp.square(X)


MAPS: dict[str, Any] = {
    "layers": "layers",
    "fourier": "fourier",
    OF_ALL: "fourier",
    CHOSEN: "fourier",
    "sparse": "sparse",
    "none": "none",
    "own: squares": squares,
}
# Beside "layers" of the protocol.
MODELS: dict[str, dict[str, Any]] = {
    "estimator": {},
    "command": {"scale": "first"},
}


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of orders, splits and networks.
        num_nodes: N.
        fashion_rows: training rows of Fashion-MNIST.
        cifar_rows: of the CIFAR-100 features, as many of each class.
    """

    seeds: int = 3
    num_nodes: int = 512
    fashion_rows: int = 10_000
    cifar_rows: int = 10_000


class Problem:
    """A stream, test rows with their columns, and what of the training rows is held out."""

    def __init__(self, stream: Stream, X_test: np.ndarray, columns: np.ndarray, held: float):
        self.stream, self.columns, self.share = stream, columns, held
        self.X_test = np.asarray(X_test, float)

    def held_out(self, seed: int) -> tuple[Stream, np.ndarray, np.ndarray]:
        return peers.held_out(self.stream, self.share, seed)


@cache
def problem(config: Config, name: str, seed: int) -> Problem:
    """Of a data set and a seed."""
    if name in estimator.PROBLEMS:
        found = estimator.problem(estimator.Config(fashion_rows=config.fashion_rows), name, seed)
        return Problem(*found, estimator.HELD_OUT[name])
    if name == "letter":
        data = estimator.letter(seed)
        stream = class_incremental_stream(
            data.X_train, data.y_train, num_tasks=13, num_batches=50, seed=seed
        )
        return Problem(stream, data.X_test, to_columns("y", data.y_test, stream.classes), 0.2)
    case = cifar100_case(CIFAR, seed, num_tasks=10, num_batches=50)
    stream = estimator.some_rows(case.stream, config.cifar_rows, seed)
    return Problem(stream, case.Z_test, case.columns, 0.2)


def joined(stream: Stream, ends: Sequence[int]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """(X, y) of all batches up to each of these, from the one before on."""
    batches, start = [*peers.batches_of(stream)], 0
    for end in (*ends, len(batches)):
        if end > start:
            X, y = zip(*batches[start:end], strict=True)
            yield np.concatenate(X), np.concatenate(y)
            start = end


def learned(stream: Stream, seed: int, first: bool = False, **options: Any) -> EdRVFLClassifier:
    """A model that learned a stream, the first batch by itself or not; labels are columns."""
    model = EdRVFLClassifier(random_state=seed, **options)
    for X, y in joined(stream, [1] if first else []):
        model.partial_fit(X, y)
    return model


def accuracy(model: EdRVFLClassifier, X: np.ndarray, y: np.ndarray) -> float:
    """The share of rows whose column is predicted."""
    return float(np.mean(model.predict(X) == y))


def by_lambda(model: EdRVFLClassifier, X: np.ndarray, y: np.ndarray) -> list[float]:
    """Accuracy for each of `RIDGES` of what one sub-learner has learned, in one pass."""
    fitted = model._settled()
    place = np.array(fitted.labels.labels)
    with jax.enable_x64(True):
        D = np.asarray(layers_of(fitted.weights, model._inputs(X), model._design()[0]))[0]
    reached = []
    for ridge in RIDGES:
        theta = ridge_solution(fitted.learned.sums.half, ridge, fitted.learned.sums.moment)[0]
        guessed = place[np.argmax((D @ theta)[:, : len(place)], axis=1)]
        reached.append(float(np.mean(guessed == y)))
    return reached


# --- maps --------------------------------------------------------------------------------------


def shrinkage_chosen(model: EdRVFLClassifier, X: np.ndarray, y: np.ndarray) -> Record:
    """The best on held-out rows."""
    grid = [{"shrinkage": shrinkage} for shrinkage in SHRINKAGES]
    model.set_params(readout="discriminant")
    reached = [accuracy(model.set_params(**settings), X, y) for settings in grid]
    model.set_params(readout="ridge")
    return peers.best_of(grid, reached)


def with_map(config: Config, name: str, kind: str, seed: int) -> Record:
    """Accuracy of a map at the end, by readout, and the seconds of its pass."""
    data = problem(config, name, seed)
    part, X, y = data.held_out(seed)
    options = {"num_layers": 1, "num_nodes": config.num_nodes, "ridge": "auto"}
    options |= {"feature_map": MAPS[kind]}
    first = kind == "fourier"
    factors = FACTORS if kind == CHOSEN else (1.0,)
    tried = [learned(part, seed, first, **options, weight_scale=factor) for factor in factors]
    reached = [accuracy(model, X, y) for model in tried]
    factor = peers.best_of([{"factor": factor} for factor in factors], reached)
    shrinkage = shrinkage_chosen(tried[factors.index(factor["chosen"]["factor"])], X, y)
    options["weight_scale"] = factor["chosen"]["factor"]
    start = time.process_time()
    model = learned(data.stream, seed, first, **options)
    seconds = time.process_time() - start
    ridge = accuracy(model, data.X_test, data.columns)
    model.set_params(readout="discriminant", **shrinkage["chosen"])
    return {
        "ridge": ridge,
        "discriminant": accuracy(model, data.X_test, data.columns),
        "lambda": model.ridge_.tolist(),
        "factor": factor,
        "shrinkage": shrinkage,
        "processor seconds": seconds,
        "width": model._fitted.shape[1],
    }


# --- lambda ------------------------------------------------------------------------------------


def looks(batches: int) -> list[int]:
    """Batches after which a look is taken."""
    return [batches * look // LOOKS for look in range(1, LOOKS + 1)]


def on_the_way(data: Problem, seed: int, **options: Any) -> Iterator[tuple[EdRVFLClassifier, Any]]:
    """The model at every look, and which test rows are of classes seen."""
    model = EdRVFLClassifier(random_state=seed, **options)
    ends = looks(len([*peers.batches_of(data.stream)]))
    # What standardises are the rows of the first batch, as of a stream.
    for number, (X, y) in enumerate(joined(data.stream, [1, *ends])):
        model.partial_fit(X, y)
        if number:
            yield model, np.isin(data.columns, model.classes_)


def fixed_and_auto(config: Config, name: str, kind: str, seed: int) -> Record:
    """Accuracy at every look with lambda = 1 and with "auto", of one kind of model."""
    data = problem(config, name, seed)
    options = MODELS.get(kind, {"num_layers": 1, "num_nodes": config.num_nodes})
    found: Record = {"lambda": []}
    for called, ridge in (("1", 1.0), ("auto", "auto")):
        found[called] = []
        for model, seen in on_the_way(data, seed, ridge=ridge, **options):
            found[called].append(accuracy(model, data.X_test[seen], data.columns[seen]))
            if ridge == "auto":
                found["lambda"].append(model.ridge_.tolist())
    if kind not in MODELS:
        found["by lambda, on test rows"] = by_lambda(model, data.X_test, data.columns)
        part, X, y = data.held_out(seed)
        grid = [{"ridge": float(ridge)} for ridge in RIDGES]
        found["choice"] = peers.best_of(grid, by_lambda(learned(part, seed, **options), X, y))
        at = grid.index(found["choice"]["chosen"])
        found["held out"] = found["by lambda, on test rows"][at]
    return found


# --- all of it ---------------------------------------------------------------------------------


def measure(config: Config, file: ResultsFile) -> None:
    """Fill the file with whatever is not there yet."""
    for name in DATA:
        for seed in range(config.seeds):
            with steps_shown(f"{name}, seed {seed}", file) as once:
                _measure(config, name, seed, once)


def _measure(config: Config, name: str, seed: int, once: Once) -> None:
    for kind in ("one sub-learner", *MODELS):
        once(f"lambda | {name} | {kind} | seed {seed}", fixed_and_auto, config, name, kind, seed)
    # The factor is chosen where passes are short.
    for kind in MAPS if name in SHORT else [kind for kind in MAPS if kind != CHOSEN]:
        once(f"maps | {name} | {kind} | seed {seed}", with_map, config, name, kind, seed)


def _found(file: ResultsFile, begins: str) -> list[Record]:
    return [record for name, record in file.records.items() if name.startswith(begins + " | seed")]


def _numbers(values: list[float]) -> str:
    return " / ".join(f"{value:.3g}" for value in values)


def table_of_maps(file: ResultsFile) -> str:
    """A line a data set and map."""
    rows = []
    for name in DATA:
        for kind in MAPS:
            found = _found(file, f"maps | {name} | {kind}")
            if not found:
                continue
            cells = [mean_and_deviation([r[key] for r in found], 100, 2) for key in READOUTS]
            shrinkages = _numbers([r["shrinkage"]["chosen"]["shrinkage"] for r in found])
            factors = _numbers([r["factor"]["chosen"]["factor"] for r in found])
            lambdas = _numbers([r["lambda"][0] for r in found])
            seconds = f"{np.median([r['processor seconds'] for r in found]):.1f}"
            width = str(found[0]["width"])
            shown = factors if kind == CHOSEN else ""
            rows.append([name, kind, *cells, width, lambdas, shrinkages, shown, seconds])
    headings = ["data", "map", "ridge %", "discriminant %", "d", "lambda", "shrinkage"]
    return markdown_table([*headings, "factor", "processor seconds"], rows)


READOUTS = ("ridge", "discriminant")


def table_of_lambdas(file: ResultsFile) -> str:
    """A line a data set and kind of model."""
    rows = []
    for name in DATA:
        for kind in ("one sub-learner", *MODELS):
            found = _found(file, f"lambda | {name} | {kind}")
            if not found:
                continue
            ends, ways = (
                {called: np.array([part(r[called]) for r in found]) for called in ("1", "auto")}
                for part in (lambda path: path[-1], np.mean)
            )
            cells = [mean_and_deviation(ends[called], 100, 2) for called in ("1", "auto")]
            gains = [mean_and_deviation(e["auto"] - e["1"], 100, 2) for e in (ends, ways)]
            lambdas = _numbers([r["lambda"][-1][0] for r in found])
            rest = ["", ""]
            if "held out" in found[0]:
                most = [max(r["by lambda, on test rows"]) for r in found]
                rest = [
                    mean_and_deviation(v, 100, 2) for v in ([r["held out"] for r in found], most)
                ]
            rows.append([name, kind, *cells, *gains, lambdas, *rest])
    headings = ["data", "model", "lambda 1 %", '"auto" %', "gain at the end", "gain over looks"]
    return markdown_table([*headings, "lambda of auto", "held out %", "best on test %"], rows)


def write_tables(config: Config, file: ResultsFile, path: Path) -> None:
    """Both tables, with what they are about."""
    parts = [
        f"Accuracy over all classes at the end, N = {config.num_nodes}, {config.seeds} seeds. d:"
        " features of the readout. The factor is on the frequencies.\n\n",
        table_of_maps(file),
        '\nLambda 1 beside `ridge="auto"`; the first lambda of the last look is shown. Gains are'
        " differences of the same seed.\n\n",
        table_of_lambdas(file),
    ]
    path.write_text("".join(parts), encoding="utf-8")


def main(config: Config, out: Path = RESULTS / "feature_maps") -> None:
    """Measure what is missing, then write results.json and table.md.

    Args:
        config: the protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    write_tables(config, file, out / "table.md")
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
