"""What is measured: every case is a name, its settings, and a function that gives its record."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.benchmarks.contenders import (
    CONTENDERS,
    Prepared,
    literal_numpy,
    literal_program,
    numpy_features,
    on_one_blas_thread,
    our_learner,
    our_program,
    torch_gram,
)
from experiments.benchmarks.contenders import gfdl as gfdl_contender
from experiments.benchmarks.hard_streams import measure_ill_conditioned, measure_long_stream
from experiments.benchmarks.problem import (
    FORWARD_K,
    RIDGE,
    SEED,
    Problem,
    Shape,
    equal_classes,
    network_weights,
    random_problem,
)
from experiments.benchmarks.timing import compile_timed, interleaved
from rvfl_jax import Stream, class_incremental_stream, run_stream
from rvfl_jax.data import load_dataset
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.batches import Batches

Record = dict[str, Any]
Progress = Callable[[str], None]
AGREEMENT = 1e-9
PARTIAL_ROWS = 3000


class Case(NamedTuple):
    """One file of results.

    Attributes:
        name: of the case and of its file.
        settings: whatever decides the numbers; a file with other settings is outdated.
        measure: `(repeats, progress) -> {"contenders": ..., "skipped": ...}`.
    """

    name: str
    settings: dict[str, Any]
    measure: Callable[[int, Progress], Record]


def all_cases(quick: bool) -> list[Case]:
    """Every case; `quick` keeps them all and shrinks them to a self-test."""
    return [
        Case("agreement", {"shape": _agreement_shape()._asdict()}, _agreement),
        *_step_cases(quick),
        *_compile_cases(quick),
        *_hard_cases(quick),
        *_evaluation_cases(quick),
        *_images_cases(quick),
        *_sweep_cases(quick),
    ]


# Learning a stream, contender by contender.


def _step_cases(quick: bool) -> list[Case]:
    """Bars 1 and 2: a large readout at one and five sub-learners, and many small batches."""
    cases = []
    # The self-test compiles as little as it can; `agreement` runs all of them anyway.
    left_out = ("ours_information", "ours_square_root") if quick else ()
    for L in (1, 5):
        shape = Shape(d=60, b=8, m=10, T=6, L=L) if quick else Shape(1500, 125, 100, 100, L)
        # The slow ones have a constant cost a step, so a part of the stream tells it.
        few = min(shape.T, 20)
        steps = dict.fromkeys(CONTENDERS, few) | {
            "ours_covariance": shape.T,
            "literal_jax": shape.T if L == 1 else few,
            "gemm_jax": shape.T,
        }
        steps = {name: count for name, count in steps.items() if name not in left_out}
        cases += [
            _stream_case(f"bar1_L{L}_{precision}", shape, precision, steps)
            for precision in ("single", "double")
        ]
    shape = Shape(d=40, b=4, m=5, T=12, L=2) if quick else Shape(500, 10, 10, 1000, 5)
    steps = dict.fromkeys(CONTENDERS, shape.T) | {
        "ours_information": min(shape.T, 200),
        "ours_square_root": min(shape.T, 200),
        "torch_gram": min(shape.T, 200),
        "gfdl": min(shape.T, 100),
    }
    steps = {name: count for name, count in steps.items() if name not in left_out}
    return [*cases, _stream_case("bar2", shape, "single", steps)]


def _stream_case(name: str, shape: Shape, precision: str, steps: Mapping[str, int]) -> Case:
    settings = {"shape": shape._asdict(), "precision": precision, "steps": dict(steps)}
    return Case(name, settings, partial(_measure_streams, shape, precision, steps))


def _measure_streams(
    shape: Shape, precision: str, steps: Mapping[str, int], repeats: int, progress: Progress
) -> Record:
    problem = random_problem(shape)
    prepared, skipped = {}, {}
    for name, count in steps.items():
        progress(f"{name}, set-up")
        try:
            prepared[name] = CONTENDERS[name](problem.first(count), precision)
        except ImportError as error:
            skipped[name] = str(error)
    calls = {name: p.run for name, p in prepared.items()}
    seconds, first, results = interleaved(calls, repeats, progress)
    contenders = {
        name: {
            "steps": steps[name],
            "seconds": seconds[name],
            "warm_up_seconds": first[name],
            "compile_seconds": p.compile_seconds,
            "precision": p.precision,
            "finite": _is_finite(p, results[name]),
        }
        for name, p in prepared.items()
    }
    return {"contenders": contenders, "skipped": skipped}


def _is_finite(prepared: Prepared, result: Any) -> bool | None:
    """Whether the readouts are numbers; None for bare matrix products, which have none."""
    return None if prepared.theta is None else bool(np.isfinite(prepared.theta(result)).all())


# The contenders compute the same thing.


def _agreement_shape() -> Shape:
    return Shape(d=40, b=12, m=5, T=8, L=3)


def _agreement(repeats: int, progress: Progress) -> Record:
    """Largest relative difference of every readout to the closed form, in float64.

    Raises:
        RuntimeError: if one of them computes something else.
    """
    del repeats
    problem = random_problem(_agreement_shape())
    want = {True: _closed_form(problem, FORWARD_K), False: _closed_form(problem, 0.0)}
    contenders, skipped = {}, {}
    for name, prepare in CONTENDERS.items():
        progress(name)
        # gfdl has weights of its own, bare products have no readout.
        if name == "gfdl" or name.startswith("gemm"):
            continue
        try:
            prepared = prepare(problem, "double")
        except ImportError as error:
            skipped[name] = str(error)
            continue
        assert prepared.theta is not None
        target = want[name != "torch_gram"]
        got = prepared.theta(jax.block_until_ready(prepared.run()))
        difference = float(np.max(np.abs(got - target)) / np.max(np.abs(target)))
        if not difference < AGREEMENT:
            raise RuntimeError(f"{name}: differs from the closed form by {difference:.1e}")
        contenders[name] = {"relative_difference": difference}
    return {"contenders": contenders, "skipped": skipped}


def _closed_form(problem: Problem, k: float) -> np.ndarray:
    """(lambda I + sum D^T D + k D_next^T D_next)^-1 sum D^T Y, by one dense solve each."""
    W, X = problem.W.astype(np.float64), problem.X.astype(np.float64)
    D = np.stack([np.stack(numpy_features(W, rows)) for rows in X])
    Y = problem.one_hot("float64")
    thetas = []
    for i in range(len(W)):
        past, upcoming = D[:-1, i].reshape(-1, problem.width), D[-1, i]
        gram = RIDGE * np.eye(problem.width) + past.T @ past + k * upcoming.T @ upcoming
        thetas.append(np.linalg.solve(gram, past.T @ Y[:-1].reshape(len(past), -1)))
    return np.stack(thetas)


# Compile time.


def _compile_cases(quick: bool) -> list[Case]:
    """Bar 3: the program must not grow with the stream."""
    d, b = (40, 5) if quick else (200, 10)
    lengths = (10, 100) if quick else (10, 10_000)
    shapes = [Shape(d, b, 10, T) for T in lengths]
    settings = {"shapes": [shape._asdict() for shape in shapes]}
    return [Case("bar3_compile", settings, partial(_measure_compile, shapes))]


def _measure_compile(shapes: list[Shape], repeats: int, progress: Progress) -> Record:
    makers = {"ours_covariance": _our_abstract, "literal_jax": _literal_abstract}
    runs = [(name, shape) for name in makers for shape in shapes]
    seconds: dict[str, list[float]] = {f"{name}_T{shape.T}": [] for name, shape in runs}
    # Whatever the process does only once must not count.
    _compile_seconds(makers["ours_covariance"], shapes[0])
    for turn in range(repeats):
        progress(f"repeat {turn + 1} of {repeats}")
        for name, shape in runs:
            seconds[f"{name}_T{shape.T}"].append(_compile_seconds(makers[name], shape))
    contenders = {
        name: {"compile_repeats": values, "precision": "single"} for name, values in seconds.items()
    }
    return {"contenders": contenders, "skipped": {}}


def _compile_seconds(make: Callable[[Shape], tuple[Any, ...]], shape: Shape) -> float:
    jax.clear_caches()
    with precision_scope("single"):
        return compile_timed(*make(shape))[1]


def _abstract(*shape: int, dtype: Any = np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _our_abstract(shape: Shape) -> tuple[Any, ...]:
    """The program and the shapes of its arguments; no stream is made for it."""
    T, b, s, m = shape.T, shape.b, shape.num_features, shape.m
    learner = our_learner(shape.L, shape.num_nodes, "covariance")
    state = jax.eval_shape(lambda key: learner.init(key, s, m), jax.random.key(SEED))
    rows = (T + 1, b)
    batches = Batches(_abstract(*rows, s), _abstract(*rows, dtype=np.int32), _abstract(*rows))
    return our_program(learner, T), state, _abstract(m, dtype=bool), batches


def _literal_abstract(shape: Shape) -> tuple[Any, ...]:
    T, b, m = shape.T, shape.b, shape.m
    W = _abstract(shape.L, shape.d, shape.num_nodes)
    program = literal_program(shape.L, shape.d, m)
    X = _abstract(T + 1, b, shape.num_features)
    return program, W, X, _abstract(T + 1, b, m)


# What is hard on numbers.


def _hard_cases(quick: bool) -> list[Case]:
    """Bars 4 and 5: nearly dependent features, and a million rows from a file."""
    features = {"windows": 10, "window_width": 10, "enhancement_nodes": 670}
    ill = {"dataset": "fashion-mnist", "rows_of_class": 2000, "b": 100, "num_nodes": 128}
    long = {"num_features": 250, "num_nodes": 250, "b": 100, "m": 10, "chunk_size": 100}
    batches = [1_000, 10_000]
    if quick:
        features = {"windows": 2, "window_width": 3, "enhancement_nodes": 20}
        ill = {"dataset": "digits", "rows_of_class": 100, "b": 50, "num_nodes": 16}
        long |= {"num_features": 10, "num_nodes": 10, "b": 5, "chunk_size": 4}
        batches = [5, 10]
    ill |= features | {"ridge": 2.0**-6, "weight_init": "uniform"}
    long |= {"batches": batches}
    return [
        Case("bar4_ill_conditioned", ill, partial(measure_ill_conditioned, ill)),
        Case("bar5_long_stream", long, partial(measure_long_stream, long)),
    ]


# Looking at the test set after every batch.


def _evaluation_cases(quick: bool) -> list[Case]:
    """Bar 6: what acc(t) at every batch adds to learning; one class a batch, in order."""
    shape = Shape(d=60, b=8, m=6, T=6) if quick else Shape(1500, 125, 100, 100)
    rows = 50 if quick else 10_000
    return [
        Case(
            f"bar6_{precision}",
            {"shape": shape._asdict(), "test_rows": rows, "precision": precision},
            partial(_measure_evaluation, shape, rows, precision),
        )
        for precision in ("single", "double")
    ]


def _measure_evaluation(
    shape: Shape, test_rows: int, precision: str, repeats: int, progress: Progress
) -> Record:
    rng = np.random.default_rng(SEED)
    centres = rng.standard_normal((shape.m, shape.num_features), np.float32)

    def draw(y: np.ndarray) -> np.ndarray:
        noise = rng.standard_normal((*y.shape, shape.num_features), np.float32)
        return (centres[y] + noise) / np.float32(np.sqrt(2 * shape.num_features))

    column = np.arange(shape.T) * shape.m // shape.T
    y = np.repeat(column[:, None], shape.b, axis=1).astype(np.int32)
    task_of_class = np.arange(shape.m, dtype=np.int32)
    weight = np.ones(y.shape, np.float32)
    stream = Stream(draw(y), y, weight, np.arange(shape.m), task_of_class[column], task_of_class)
    y_test = np.arange(test_rows) % shape.m
    test = (draw(y_test), y_test)
    learner = our_learner(shape.L, shape.num_nodes, "covariance")

    def run(evaluate: str) -> Any:
        return run_stream(
            learner,
            stream,
            key=jax.random.key(SEED),
            test=test,
            evaluate=evaluate,
            expert=None,
            precision=precision,
            on_failure="return",
        )

    calls = {f"evaluate_{when}": partial(_outcome_of(run), when) for when in ("never", "batch")}
    seconds, first, results = interleaved(calls, repeats, progress)
    contenders = {
        name: {
            "steps": shape.T,
            "seconds": seconds[name],
            "warm_up_seconds": first[name],
            "precision": precision,
            "accuracy": results[name].accuracy,
            "finite": results[name].healthy,
        }
        for name in calls
    }
    return {"contenders": contenders, "skipped": {}}


class Outcome(NamedTuple):
    """What is kept of a run: accuracy at the last look, and whether every step was healthy."""

    accuracy: float | None
    healthy: bool | None


def _outcome_of(run: Callable[..., Any]) -> Callable[..., Outcome]:
    """The run, forgetting all but its outcome; `run_stream` has waited for the rest."""

    def outcome(*args: Any) -> Outcome:
        history = run(*args).history
        accuracy = history.accuracy.get("class_incremental", ())
        last = float(accuracy[-1]) if len(accuracy) else None
        return Outcome(last, bool(history.healthy.all()))

    return outcome


# A whole job on images, decisions wanted at task ends only.


def _images_cases(quick: bool) -> list[Case]:
    """Bar 7: samples a second on Fashion-MNIST's raw pixels (digits as a self-test)."""
    settings = (
        {"dataset": "digits", "rows_of_class": 120, "num_nodes": 40, "b": 20}
        if quick
        else {"dataset": "fashion-mnist", "rows_of_class": 6000, "num_nodes": 2000, "b": 100}
    )
    settings |= {"tasks": 5, "partial_rows": 100 if quick else PARTIAL_ROWS}
    return [Case("bar7_images", settings, partial(_measure_images, settings))]


def _measure_images(settings: Mapping[str, Any], repeats: int, progress: Progress) -> Record:
    data = load_dataset(settings["dataset"])
    chosen = np.sort(equal_classes(data.y_train, settings["rows_of_class"]))
    b, tasks, num_nodes = settings["b"], settings["tasks"], settings["num_nodes"]
    stream = class_incremental_stream(
        data.X_train[chosen],
        data.y_train[chosen],
        num_tasks=tasks,
        num_batches=len(chosen) // b,
        seed=SEED,
        order="tasks",
    )
    problem = _problem_of(stream, num_nodes)
    columns = {label: c for c, label in enumerate(stream.classes.tolist())}
    y_test = np.array([columns[label] for label in data.y_test.tolist()])
    gram = partial(
        torch_gram,
        problem,
        "double",
        readouts_at=set(stream.task_ends.tolist()),
        X_test=data.X_test,
    )
    part = problem.first(settings["partial_rows"] // b)
    whole, partly = problem.num_steps, part.num_steps
    learner = our_learner(1, num_nodes, "information")
    makers: dict[str, tuple[int, Callable[[], Prepared]]] = {
        "ours_run_stream": (whole, lambda: _our_run(learner, stream, data)),
        "torch_gram": (whole, gram),
        "torch_gram_float32_features": (whole, lambda: gram(feature_precision="single")),
        "gfdl": (partly, lambda: gfdl_contender(part, "double")),
        "literal_numpy": (partly, lambda: literal_numpy(part, "double")),
        "literal_numpy_one_thread": (
            partly,
            lambda: on_one_blas_thread(literal_numpy)(part, "double"),
        ),
    }
    prepared, skipped = {}, {}
    for name, (_, make) in makers.items():
        try:
            prepared[name] = make()
        except ImportError as error:
            skipped[name] = str(error)
    calls = {name: p.run for name, p in prepared.items()}
    seconds, first, results = interleaved(calls, repeats, progress)
    outcomes = {name: _images_outcome(name, result, y_test) for name, result in results.items()}
    contenders = {
        name: {
            "steps": makers[name][0],
            "rows": makers[name][0] * b,
            "seconds": seconds[name],
            "warm_up_seconds": first[name],
            "precision": "double",
            "accuracy": outcomes[name].accuracy,
            "finite": outcomes[name].healthy,
        }
        for name in prepared
    }
    return {"contenders": contenders, "skipped": skipped}


def _our_run(learner: Any, stream: Stream, data: Any) -> Prepared:
    """`run_stream` as a user calls it, checks of its input included."""

    def run() -> Any:
        return run_stream(
            learner,
            stream,
            key=jax.random.key(SEED),
            test=(data.X_test, data.y_test),
            evaluate="task",
            precision="double",
            expert=None,
            on_failure="return",
            guesses=False,
        )

    return Prepared(_outcome_of(run), None, None, "double")


def _images_outcome(name: str, result: Any, y_test: np.ndarray) -> Outcome:
    """Accuracy only where the whole stream was learned."""
    if isinstance(result, Outcome):
        return result
    if name.startswith("torch_gram"):
        theta, scores = result
        accuracy = float(np.mean(scores[0].numpy().argmax(axis=1) == y_test))
        return Outcome(accuracy, bool(np.isfinite(theta.numpy()).all()))
    return Outcome(None, None)


def _problem_of(stream: Stream, num_nodes: int) -> Problem:
    """The stream with its first batch announced at the end, which only ends a recursion."""
    if not (stream.weight > 0).all():
        raise ValueError("stream: expected full batches, got padding")
    again = np.r_[np.arange(len(stream.X)), 0]
    W = network_weights(stream.X.shape[-1], num_nodes, 1)
    return Problem(stream.X[again], stream.y[again], W, len(stream.classes))


# How the cost grows.

SWEPT = (
    "ours_covariance",
    "literal_jax",
    "literal_numpy",
    "literal_numpy_one_thread",
    "torch_gram",
    "gemm_jax",
)


def _sweep_cases(quick: bool) -> list[Case]:
    """Cost of a step against one size at a time, around d = 500, b = 50, L = 1, T = 50."""
    middle = Shape(40, 5, 10, 5) if quick else Shape(500, 50, 10, 50)
    values = {
        "d": (60,) if quick else (250, 500, 1000, 1500, 2000),
        "b": (20,) if quick else (5, 10, 25, 50, 100, 200, 400),
        "L": (2,) if quick else (1, 2, 4, 8),
        "T": (8,) if quick else (10, 30, 100, 300, 1000),
    }
    names = ("ours_covariance", "literal_numpy", "gemm_jax") if quick else SWEPT
    cases = []
    for axis, sizes in values.items():
        # Which form to take when is a question of b against d.
        forms = () if quick or axis != "b" else ("ours_information", "ours_square_root")
        for size in sizes:
            shape = middle._replace(**{axis: size})
            steps = dict.fromkeys((*names, *forms), shape.T)
            case = _stream_case(f"sweep_{axis}_{size:04d}", shape, "single", steps)
            cases.append(case._replace(settings=case.settings | {"axis": axis, "value": size}))
    return cases
