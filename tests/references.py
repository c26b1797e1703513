"""Independent solutions in dense float64 NumPy, written from the equations alone.

Nothing here imports the package: what is compared with these must not share their code.
"""

import numpy as np

ACTIVATIONS = {
    "relu": lambda z: np.maximum(z, 0),
    "leaky_relu": lambda z: np.where(z >= 0, z, 0.01 * z),
    "sigmoid": lambda z: 1 / (1 + np.exp(-z)),
    "tanh": np.tanh,
    "swish": lambda z: z / (1 + np.exp(-z)),
}


def features(W, X, activation="relu"):
    """Eq. (2)-(3), literally: H_0 = 0, H_l = g([H_{l-1} | X] W_l), D_l = [H_l | X]."""
    W, X = np.asarray(W, float), np.asarray(X, float)
    H = np.zeros((len(X), W.shape[2]))
    D = []
    for W_l in W:
        H = ACTIVATIONS[activation](np.hstack([H, X]) @ W_l)
        D.append(np.hstack([H, X]))
    return np.stack(D)


def ridge_solution(D, Y, ridge, weight=None):
    """Eq. (5) with row weights: (D^T diag(w) D + lambda I)^-1 D^T diag(w) Y."""
    w = np.ones(len(D)) if weight is None else np.asarray(weight, float)
    gram = D.T @ (w[:, None] * D) + ridge * np.eye(D.shape[1])
    return np.linalg.solve(gram, D.T @ (w[:, None] * Y))


def strength(D, eta, kappa, sigma):
    """Eq. (29)."""
    Q = D @ eta @ D.T
    return kappa / (np.trace(np.linalg.inv(Q + sigma * np.eye(len(D)))) / len(D))


def strength_by_trace(D, eta, kappa):
    """The trace estimator of the paper."""
    return kappa * np.trace(D @ eta @ D.T) / len(D)


def literal_algorithm(
    batches, ridge, *, k=None, kappa=1.0, sigma=1e-5, cold_start="exact", reuse_k=False
):
    """Algorithm 1 (k given) and Algorithm 2 (k None) for one sub-learner, as printed.

    Works on eta and eta_dagger by explicit inverses. `batches` is a list of (D, Y) with
    rows already weighted and padding removed; the last batch has no successor. Yields
    theta, eta_dagger, eta, k_t, k_next after each step.
    """
    d, m = batches[0][0].shape[1], batches[0][1].shape[1]
    eta = np.eye(d) / ridge
    theta = np.zeros((d, m))
    announced = 0.0
    for t, (D, Y) in enumerate(batches):
        D_next = batches[t + 1][0] if t + 1 < len(batches) else np.zeros((0, d))
        if k is None:
            k_next = strength(D_next, eta, kappa, sigma) if len(D_next) else 0.0
            k_t = announced if reuse_k else strength(D, eta, kappa, sigma)
        else:
            k_next, k_t = (k if len(D_next) else 0.0), k
        if t == 0 and cold_start == "paper":
            eta_dagger = np.eye(d) / ridge
        elif t == 0:
            eta_dagger = np.linalg.inv(ridge * np.eye(d) + D.T @ D)
        else:
            eta_dagger = np.linalg.inv(np.linalg.inv(eta) + (1 - k_t) * D.T @ D)
        previous = np.linalg.inv(eta)
        eta = np.linalg.inv(np.linalg.inv(eta_dagger) + k_next * D_next.T @ D_next)
        theta = theta + eta @ (D.T @ Y - (np.linalg.inv(eta) - previous) @ theta)
        announced = k_next
        yield theta, eta_dagger, eta, k_t, k_next


def closed_form(batches, ridge, t, k_next, *, cold_start="exact"):
    """Theorems 1-3 after step t (from 0), from all data at once."""
    d = batches[0][0].shape[1]
    A = ridge * np.eye(d)
    for D, _ in batches[1 if cold_start == "paper" else 0 : t + 1]:
        A = A + D.T @ D
    if t + 1 < len(batches):
        A = A + k_next * batches[t + 1][0].T @ batches[t + 1][0]
    B = sum(D.T @ Y for D, Y in batches[: t + 1])
    return np.linalg.solve(A, B)


def softmax(z):
    e = np.exp(z - z.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def relative_error(got, want):
    got, want = np.asarray(got, float), np.asarray(want, float)
    assert got.shape == want.shape, (got.shape, want.shape)
    return np.max(np.abs(got - want)) / np.max(np.abs(want))


def sparse_windows(projections, X, *, l1):
    """Windows of the broad learning system: ADMM on each, features scaled to [0, 1].

    `projections` (N2, s + 1, N1); the constant 0.1 stands last in every row.
    """
    rows = (X - X.mean(axis=1, keepdims=True)) / X.std(axis=1, keepdims=True)
    rows = np.hstack([rows, np.full((len(X), 1), 0.1)])
    windows = []
    for projection in projections:
        A = rows @ projection
        inverse = np.linalg.inv(A.T @ A + np.eye(A.shape[1]))
        z = u = np.zeros((A.shape[1], rows.shape[1]))
        for _ in range(50):
            x = inverse @ (A.T @ rows + z - u)
            z = np.maximum(x + u - l1, 0) - np.maximum(-(x + u) - l1, 0)
            u = u + x - z
        T = rows @ z.T
        windows.append((T - T.min(axis=0)) / (T.max(axis=0) - T.min(axis=0)))
    return np.hstack(windows)


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
