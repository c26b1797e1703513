"""A stream that drifts: how fast to forget, chosen while it goes on: `python -m experiments.drift`.

2,000 rows in batches of 50, of two classes with unit normal features around opposite means, where
the best rule is right on nine rows of ten. "change": in the middle the classes change places.
"none": they do not. N = 64, one sub-learner, lambda = 1, plain values that nobody chose. Every
batch but the first is predicted before it is learned; the share that is right counts. Beside
`PrequentialForgetting`, each of its factors by itself.
"""

from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import tyro

from experiments.results_file import Record, ResultsFile, mean_and_deviation, write_table
from experiments.settings import RESULTS, steps_shown
from rvfl_jax import EdRVFLClassifier, PrequentialForgetting

STREAMS = ("change", "none")
FACTORS = (1.0, 0.999, 0.99)
CHOSEN = "chosen"
BATCH, FEATURES, BEST = 50, 5, 0.9


@dataclass(frozen=True)
class Config:
    """Protocol.

    Attributes:
        seeds: of rows and networks.
        rows: of a stream.
    """

    seeds: int = 10
    rows: int = 2_000


def stream_of(name: str, rows: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """X (n, s) and y (n,) of 0 and 1."""
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, rows)
    direction = rng.standard_normal(FEATURES)
    distance = NormalDist().inv_cdf(BEST) * direction / np.linalg.norm(direction)
    X = rng.standard_normal((rows, FEATURES)) + np.where(y[:, None] == 1, 1.0, -1.0) * distance
    if name == "change":
        y = np.where(np.arange(rows) < rows // 2, y, 1 - y)
    return X, y


def model_of(factor: Any, seed: int) -> Any:
    """With that factor, or with the one that guesses choose."""
    if factor != CHOSEN:
        return EdRVFLClassifier(1, 64, 1.0, forgetting=factor, random_state=seed)
    return PrequentialForgetting(EdRVFLClassifier(1, 64, 1.0, random_state=seed), FACTORS)


def guessed(config: Config, name: str, factor: Any, seed: int) -> Record:
    """The share of rows guessed right, in all and by batch, and the factors in force."""
    X, y = stream_of(name, config.rows, seed)
    model, right, factors = model_of(factor, seed), [], []
    for start in range(0, len(y), BATCH):
        rows = slice(start, start + BATCH)
        if start:
            right.append(float(np.mean(model.predict(X[rows]) == y[rows])))
        model.partial_fit(X[rows], y[rows], classes=[0, 1])
        factors.append(float(model.forgetting_) if factor == CHOSEN else factor)
    found: Record = {"right": float(np.mean(right)), "by batch": right, "factors": factors}
    if factor == CHOSEN and name == "change":
        after = [i * BATCH for i, one in enumerate(factors) if one < 1.0]
        later = [row for row in after if row >= config.rows // 2]
        found["rows until it forgets"] = later[0] + BATCH - config.rows // 2 if later else None
    return found


def measure(config: Config, file: ResultsFile) -> None:
    """All records."""
    with steps_shown("drift", file) as once:
        for seed in range(config.seeds):
            for name in STREAMS:
                for factor in (CHOSEN, *FACTORS):
                    place = f"{name} | {factor} | {seed}"
                    once(place, guessed, config, name, factor, seed)


def tabulate(config: Config, file: ResultsFile, folder: Path) -> None:
    """Means and deviations over seeds."""
    seeds = range(config.seeds)

    def found(name: str, factor: Any, what: str) -> list[Any]:
        return [file.records[f"{name} | {factor} | {seed}"][what] for seed in seeds]

    rows = []
    for factor in (CHOSEN, *FACTORS):
        cells = [mean_and_deviation(found(name, factor, "right"), 100, 1) for name in STREAMS]
        rows.append([str(factor), *cells, str(config.seeds)])
    waited = found("change", CHOSEN, "rows until it forgets")
    headings = ["forgetting", "guessed right %, classes change places", "no drift", "seeds"]
    after = f"\nRows after the change until it forgets, by seed: {', '.join(map(str, waited))}.\n"
    write_table(folder, headings, rows, after=after)


def main(config: Config, out: Path = RESULTS / "drift") -> None:
    """Measure what is not kept yet, and write the table.

    Args:
        config: protocol.
        out: folder of the results.
    """
    file = ResultsFile(out / "results.json", config)
    measure(config, file)
    tabulate(config, file, out)
    print((out / "table.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    tyro.cli(main)
