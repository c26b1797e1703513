"""What competes: functions that prepare a program which learns a whole stream.

Every contender gets the same rows and the same random weights (gfdl draws its own, of the
same sizes) and returns the readout of every sub-learner, so that `agreement` can compare.
Inputs are converted and placed before the clock starts.
"""

from collections.abc import Callable, Collection
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.linalg  # noqa: F401 (its LAPACK is jaxlib's, and must be loaded to be limited)
from jax import lax
from threadpoolctl import ThreadpoolController

import rvfl_jax
from experiments.benchmarks.problem import FORWARD_K, RIDGE, SEED, Problem
from experiments.benchmarks.timing import compile_timed
from rvfl_jax import features
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.linalg.products import matmul
from rvfl_jax.runs.scan import whole_stream
from rvfl_jax.streams.batches import Batches

DTYPES = {"single": "float32", "double": "float64"}


class Prepared(NamedTuple):
    """A program ready to run.

    Attributes:
        run: learns the whole stream.
        theta: readouts (L, d, m) out of what `run` returned, or None if there are none.
        compile_seconds: of tracing and compiling, None where nothing is compiled.
        precision: of the linear algebra, which a package may not let us choose.
    """

    run: Callable[[], Any]
    theta: Callable[[Any], np.ndarray] | None
    compile_seconds: float | None
    precision: str


def _compiled(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    theta: Callable[[Any], np.ndarray] | None,
    precision: str,
) -> Prepared:
    """`function` compiled in the precision of its arguments, and run in it."""
    with precision_scope(precision):
        program, seconds = compile_timed(function, *args)

    def run() -> Any:
        with precision_scope(precision):
            return program(*args)

    return Prepared(run, theta, seconds, precision)


def on_one_blas_thread(
    prepare: Callable[[Problem, str], Prepared],
) -> Callable[[Problem, str], Prepared]:
    """The contender with NumPy's and jaxlib's BLAS and LAPACK on one thread.

    Threads of OpenBLAS wait for each other by spinning. Where cores are few and busy that
    makes small factorisations many times slower, which would flatter whoever has none.
    Products that XLA compiles keep all cores.
    """

    def limited(problem: Problem, precision: str) -> Prepared:
        prepared = prepare(problem, precision)
        controller = ThreadpoolController()

        def run() -> Any:
            with controller.limit(limits=1, user_api="blas"):
                return jax.block_until_ready(prepared.run())

        return prepared._replace(run=run)

    return limited


def our_learner(num_layers: int, num_nodes: int, solver: str) -> rvfl_jax.Learner:
    """The learner under test, with the settings of all contenders."""
    return rvfl_jax.edrvfl(
        num_layers=num_layers, num_nodes=num_nodes, ridge=RIDGE, k=FORWARD_K, solver=solver
    )


def our_program(learner: rvfl_jax.Learner, num_steps: int) -> Callable[..., Any]:
    """Learns `num_steps` batches, as `run_stream` does without a test set."""
    return partial(whole_stream, learner, num_steps=num_steps)


def ours(solver: str) -> Callable[[Problem, str], Prepared]:
    """rvfl_jax with a solver by name."""

    def prepare(problem: Problem, precision: str) -> Prepared:
        learner = our_learner(len(problem.W), problem.num_nodes, solver)
        with precision_scope(precision):
            key, s, m = jax.random.key(SEED), problem.X.shape[-1], problem.num_classes
            X = jnp.asarray(problem.X, DTYPES[precision])
            batches = Batches(X, jnp.asarray(problem.y), jnp.ones(problem.y.shape, X.dtype))
            state = jax.jit(learner.init, static_argnums=(1, 2))(key, s, m)
            args = (state, jnp.zeros(m, bool), batches)
        program = our_program(learner, problem.num_steps)
        return _compiled(program, args, lambda result: np.asarray(result[0].theta), precision)

    return prepare


def literal_program(num_layers: int, width: int, num_classes: int) -> Callable[..., Any]:
    """Algorithm 1 with the steps as the paper prints them, in one scan.

    Both Woodbury updates form eta at full size: 12 d^2 b + 2 d^2 m flops a step. The first
    step adds all of D_1's Gram, where the paper leaves it out.
    """

    def learn(W: Any, X: Any, Y: Any) -> Any:
        dtype = W.dtype
        eye_b = jnp.eye(X.shape[1], dtype=dtype)

        def woodbury(eta: Any, D: Any, c: Any) -> Any:
            """(eta^-1 + c D^T D)^-1."""
            D_T = jnp.swapaxes(D, -1, -2)
            inner = eye_b + c * matmul(D, matmul(eta, D_T))
            # One by one, since batched LAPACK calls can be slow on CPU.
            inverse = lax.map(jnp.linalg.inv, inner)
            return eta - c * matmul(matmul(matmul(eta, D_T), inverse), matmul(D, eta))

        def step(carry: Any, batch: Any) -> Any:
            eta, theta, D = carry
            X_next, Y_t, c = batch
            D_next = features(W, X_next)
            D_T, D_next_T = jnp.swapaxes(D, -1, -2), jnp.swapaxes(D_next, -1, -2)
            eta_dagger = woodbury(eta, D, c)
            eta = woodbury(eta_dagger, D_next, FORWARD_K)
            change = c * matmul(D_T, matmul(D, theta))
            change += FORWARD_K * matmul(D_next_T, matmul(D_next, theta))
            theta = theta + matmul(eta, matmul(D_T, Y_t) - change)
            return (eta, theta, D_next), None

        eta_0 = jnp.broadcast_to(jnp.eye(width, dtype=dtype) / RIDGE, (num_layers, width, width))
        theta_0 = jnp.zeros((num_layers, width, num_classes), dtype)
        coefficients = jnp.full(len(X) - 1, 1 - FORWARD_K, dtype).at[0].set(1)
        start = (eta_0, theta_0, features(W, X[0]))
        (eta, theta, _), _ = lax.scan(step, start, (X[1:], Y[:-1], coefficients))
        return theta, eta

    return learn


def literal_jax(problem: Problem, precision: str) -> Prepared:
    """The literal algorithm under jit, all sub-learners side by side."""
    with precision_scope(precision):
        dtype = DTYPES[precision]
        args = tuple(jnp.asarray(a, dtype) for a in (problem.W, problem.X, problem.one_hot(dtype)))
    program = literal_program(len(problem.W), problem.width, problem.num_classes)
    return _compiled(program, args, lambda result: np.asarray(result[0]), precision)


def numpy_features(W: np.ndarray, X: np.ndarray) -> list[np.ndarray]:
    """D_l = [H_l | X] of every sub-learner, relu."""
    num_nodes = W.shape[2]
    H = np.maximum(X @ W[0, num_nodes:], 0)
    D = [np.hstack([H, X])]
    for W_l in W[1:]:
        H = np.maximum(D[-1] @ W_l, 0)
        D.append(np.hstack([H, X]))
    return D


def _numpy_woodbury(eta: np.ndarray, D: np.ndarray, c: float) -> np.ndarray:
    inner = np.eye(len(D), dtype=D.dtype) + c * (D @ (eta @ D.T))
    return eta - c * ((eta @ D.T) @ np.linalg.inv(inner)) @ (D @ eta)


def literal_numpy(problem: Problem, precision: str) -> Prepared:
    """The literal algorithm in NumPy, whose BLAS uses all cores."""
    dtype = DTYPES[precision]
    W, X, Y = (np.asarray(a, dtype) for a in (problem.W, problem.X, problem.one_hot(dtype)))
    k = FORWARD_K

    def run() -> np.ndarray:
        etas = [np.eye(problem.width, dtype=dtype) / RIDGE for _ in W]
        thetas = [np.zeros((problem.width, problem.num_classes), dtype) for _ in W]
        upcoming = numpy_features(W, X[0])
        for t in range(len(X) - 1):
            present, upcoming = upcoming, numpy_features(W, X[t + 1])
            c = 1.0 if t == 0 else 1 - k
            for i, (D, D_next) in enumerate(zip(present, upcoming, strict=True)):
                eta_dagger = _numpy_woodbury(etas[i], D, c)
                etas[i] = _numpy_woodbury(eta_dagger, D_next, k)
                change = c * D.T @ (D @ thetas[i]) + k * D_next.T @ (D_next @ thetas[i])
                thetas[i] = thetas[i] + etas[i] @ (D.T @ Y[t] - change)
        return np.stack(thetas)

    return Prepared(run, np.asarray, None, precision)


def torch_gram(
    problem: Problem,
    precision: str,
    *,
    readouts_at: Collection[int] | None = None,
    X_test: np.ndarray | None = None,
    feature_precision: str | None = None,
) -> Prepared:
    """Ridge regression in PyTorch as RanPAC does it: running Gram matrix, solve on request.

    Args:
        problem: what to learn.
        precision: of Gram matrix and solve.
        readouts_at: steps after which a readout is computed; every step when None.
        X_test: if given, every readout also scores these rows.
        feature_precision: of the random features; the same when None.
    """
    import torch

    torch_types = {"single": torch.float32, "double": torch.float64}
    dtype, feature_dtype = torch_types[precision], torch_types[feature_precision or precision]
    W, X = (torch.tensor(a, dtype=feature_dtype) for a in (problem.W, problem.X))
    Y = torch.tensor(problem.one_hot(DTYPES[precision]))
    Z = None if X_test is None else torch.tensor(X_test, dtype=feature_dtype)
    num_nodes, width = problem.num_nodes, problem.width
    eye = torch.eye(width, dtype=dtype)

    def embed(rows: Any) -> list[Any]:
        H = torch.relu(rows @ W[0, num_nodes:])
        D = [torch.cat([H, rows], dim=1)]
        for W_l in W[1:]:
            D.append(torch.cat([torch.relu(D[-1] @ W_l), rows], dim=1))
        return [D_l.to(dtype) for D_l in D]

    def run() -> Any:
        grams = [torch.zeros(width, width, dtype=dtype) for _ in W]
        moments = [torch.zeros(width, problem.num_classes, dtype=dtype) for _ in W]
        examined = None if Z is None else embed(Z)
        thetas, scores = [], None
        for t in range(problem.num_steps):
            for i, D in enumerate(embed(X[t])):
                grams[i] += D.T @ D
                moments[i] += D.T @ Y[t]
            if readouts_at is None or t in readouts_at:
                pairs = zip(grams, moments, strict=True)
                thetas = [torch.linalg.solve(G + RIDGE * eye, Q) for G, Q in pairs]
                if examined is not None:
                    scores = [D @ th for D, th in zip(examined, thetas, strict=True)]
        return torch.stack(thetas), scores

    def theta(result: Any) -> np.ndarray:
        return result[0].numpy()

    return Prepared(run, theta, None, precision)


def gfdl(problem: Problem, precision: str) -> Prepared:
    """The PyPI package gfdl: ensemble deep RVFL, `partial_fit` batch by batch.

    It draws weights of its own, adds biases and works in float64 whatever it is given.
    """
    del precision
    from gfdl.model import EnsembleGFDLClassifier

    X, y = problem.X.astype(np.float64), problem.y
    classes = np.arange(problem.num_classes)

    def run() -> Any:
        model = EnsembleGFDLClassifier(
            hidden_layer_sizes=(problem.num_nodes,) * len(problem.W),
            activation="relu",
            weight_scheme="lecun_uniform",
            seed=SEED,
            reg_alpha=RIDGE,
        )
        for t in range(problem.num_steps):
            model.partial_fit(X[t], y[t], classes=classes)
        return model

    return Prepared(run, lambda model: np.stack(model.coeffs_), None, "double")


# Distinct operands of the bare products; more would only fill memory.
_OPERANDS = 4


def _operands(problem: Problem, precision: str) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(SEED)
    L, d, b = len(problem.W), problem.width, problem.X.shape[1]
    dtype = DTYPES[precision]
    P = rng.standard_normal((L, d, d), np.float32).astype(dtype)
    return P, rng.standard_normal((_OPERANDS, L, b, d), np.float32).astype(dtype)


def gemm_jax(problem: Problem, precision: str) -> Prepared:
    """The least that the fast form has to do: (d, d) x (d, b) and (d, b) x (b, d), each step.

    4 d^2 b flops for each sub-learner, in a scan. A few columns of one step's result enter
    the next step, so that no step can be dropped or overlapped.
    """
    P, D = _operands(problem, precision)
    b = D.shape[2]

    def products(P: Any, D: Any) -> Any:
        def step(S: Any, t: Any) -> Any:
            D_t = D[t % _OPERANDS]
            G = matmul(P, jnp.swapaxes(D_t, -1, -2)) + 1e-30 * S[..., :b]
            return matmul(G, D_t), None

        return lax.scan(step, jnp.zeros_like(P), jnp.arange(problem.num_steps))[0]

    with precision_scope(precision):
        args = (jnp.asarray(P), jnp.asarray(D))
    return _compiled(products, args, None, precision)


def gemm_numpy(problem: Problem, precision: str) -> Prepared:
    """The same products through NumPy's BLAS, into memory that is there already."""
    P, D = _operands(problem, precision)
    L, d, b = len(P), P.shape[1], D.shape[2]
    G, S = np.empty((d, b), P.dtype), np.empty((d, d), P.dtype)

    def run() -> np.ndarray:
        for t in range(problem.num_steps):
            for i in range(L):
                D_t = D[t % _OPERANDS, i]
                np.matmul(P[i], D_t.T, out=G)
                np.matmul(G, D_t, out=S)
        return S

    return Prepared(run, None, None, precision)


CONTENDERS: dict[str, Callable[[Problem, str], Prepared]] = {
    "ours_covariance": ours("covariance"),
    "ours_information": ours("information"),
    "ours_square_root": ours("square_root"),
    # Its only LAPACK calls are inverses of b x b matrices.
    "literal_jax": on_one_blas_thread(literal_jax),
    "literal_numpy": literal_numpy,
    "literal_numpy_one_thread": on_one_blas_thread(literal_numpy),
    "torch_gram": torch_gram,
    "gfdl": gfdl,
    "gemm_jax": gemm_jax,
    "gemm_numpy": gemm_numpy,
}
