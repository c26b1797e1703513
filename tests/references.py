"""The paper's equations as the tests ask for them, and what else is checked against NumPy.

Algorithms, closed forms and metrics are those of `tests.paper`, which was written from the paper
alone. Nothing here imports the package: what is compared with these must not share their code.
"""

import numpy as np

from tests import paper
from tests.paper import softmax

__all__ = ["softmax"]

ACTIVATIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z >= 0, z, 0.01 * z),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": np.tanh,
    "swish": lambda z: z / (1 + np.exp(-z)),
}


def features(W, X, activation="relu"):
    """(L, n, N + s) of eq. (2)-(3) for weights stacked as (L, N + s, N).

    The first layer sees no hidden features: the first N rows of its weights stand for H_0 = 0.
    """
    W = np.asarray(W, float)
    nodes = W.shape[2]
    layers = [W[0][nodes:], *W[1:]]
    return np.stack(paper.features(layers, X, ACTIVATIONS[activation]))


def ridge_solution(D, Y, ridge, weight=None):
    """Eq. (5) with row weights, which scale rows by their roots."""
    root = np.sqrt(np.ones(len(D)) if weight is None else np.asarray(weight, float))[:, None]
    return paper.offline_primal(root * D, root * Y, ridge)


def literal_algorithm(
    batches, ridge, *, k=None, kappa=1.0, sigma=1e-5, cold_start="exact", reuse_k=False, **estimator
):
    """Algorithm 1 (k given) and Algorithm 2 (k None) for one sub-learner, as printed.

    `batches` is a list of (D, Y) with rows already weighted and padding removed; the last batch
    has no successor. Yields theta, eta_dagger, eta, k_t, k_next after each step.
    """
    literal_start = cold_start == "paper"
    last = len(batches) - 1
    if k is not None:
        steps = paper.algorithm_1(batches, ridge, k, literal_start=literal_start)
        strengths = [(k, 0.0 if t == last else k) for t in range(len(batches))]
    else:
        algorithm = paper.algorithm_2_reusing if reuse_k else paper.algorithm_2
        # Where batch 1's Gram enters, k_2 is estimated before it does.
        steps = algorithm(
            batches,
            ridge,
            kappa,
            sigma,
            literal_start=literal_start,
            k_eta_at_start="eta_0",
            **estimator,
        )
        strengths = [(step["k_t"], step["k_next"]) for step in steps]
    for step, strength in zip(steps, strengths, strict=True):
        yield (step["theta"], step["eta_dagger"], step["eta"], *strength)


def closed_form(batches, ridge, t, k_next, *, cold_start="exact"):
    """Theorems 1-3 after step t (from 0), from all data at once."""
    upcoming = batches[t + 1][0] if t + 1 < len(batches) else None
    return paper.closed_form(batches, ridge, t + 1, k_next, upcoming, cold_start == "paper")


def relative_error(got, want):
    """Largest difference, relative to the largest entry."""
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape, (got.shape, want.shape)
    return np.max(np.abs(got - want)) / np.max(np.abs(want))


def sparse_autoencoder(projections, basis, X, *, l1, shrink):
    """What CRNet_I_MR.py's `preprocess` does of its random draws, and of the rows themselves.

    `projections` (N2, s + 1, N1) and the orthonormal `basis`, (N3, N1 N2 + 1) with N3 > N1 N2.
    """
    rows = (X - X.mean(axis=1, keepdims=True)) / X.std(axis=1, keepdims=True)
    rows = np.hstack([rows, np.full((len(X), 1), 0.1)])
    windows = []
    for projection in projections:
        A = rows @ projection
        A = (A - A.min(axis=0)) / (A.max(axis=0) - A.min(axis=0))
        inverse = np.linalg.inv(A.T @ A + np.eye(A.shape[1]))
        z = u = np.zeros((A.shape[1], rows.shape[1]))
        for _ in range(50):
            x = inverse @ (A.T @ rows + z - u)
            z = np.maximum(x + u - l1, 0) - np.maximum(-(x + u) - l1, 0)
            u = u + x - z
        T = rows @ z.T
        windows.append((T - T.min(axis=0)) / (T.max(axis=0) - T.min(axis=0)))
    Z = np.hstack(windows)
    arguments = np.hstack([Z, np.full((len(X), 1), 0.1)]) @ basis.T
    return np.hstack([Z, np.tanh(shrink / arguments.max() * arguments)])


def patch_features(
    filters, offset, scale, shift, images, *, patch_size, pooling, threshold, contrast
):
    """Every patch of every image by loops: normalise, filter, rectify both ways, average."""
    n, height, width, _ = images.shape
    p, g = patch_size, pooling
    rows, columns = height - p + 1, width - p + 1
    responses = np.zeros((n, rows, columns, filters.shape[1]))
    for i in range(rows):
        for j in range(columns):
            patch = images[:, i : i + p, j : j + p].reshape(n, -1)
            patch = patch - patch.mean(axis=1, keepdims=True)
            patch = patch / np.sqrt((patch**2).mean(axis=1, keepdims=True) + contrast**2)
            responses[:, i, j] = patch @ filters - offset
    both = np.concatenate(
        [np.maximum(responses - threshold, 0), np.maximum(-responses - threshold, 0)], axis=-1
    )
    cuts = [np.linspace(0, size, g + 1).round().astype(int) for size in (rows, columns)]
    pooled = np.stack(
        [
            both[:, cuts[0][i] : cuts[0][i + 1], cuts[1][j] : cuts[1][j + 1]].mean(axis=(1, 2))
            for i in range(g)
            for j in range(g)
        ],
        axis=1,
    )
    return (pooled.reshape(n, -1) - shift) * scale
