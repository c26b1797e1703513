"""What one machine sums of the rows of one partition, for `shared_sums`.

The random network is drawn anew on every machine, from one integer seed, and told by its
fingerprint: no weight travels, and machines whose releases of JAX draw differently are found out.
"""

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import check_random_state

from rvfl_jax.estimators import adding, additive, hosted
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.compiled import Design
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.learned import Batch, Learned, Weights
from rvfl_jax.estimators.padding import classes_for
from rvfl_jax.files.provenance import digest_of
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.linalg.precision import precision_scope

# Digits of a fingerprint: two partitions of 2^32 have the same with a chance of 1e-19.
DIGITS = 32
# "fourier" has a bandwidth of the rows that come first.
SHARED_MAPS = ("layers", "sparse")


class Network(NamedTuple):
    """Random layers.

    Attributes:
        weights: as programs take them.
        gain: (L,) see `rvfl_jax.estimators.learned.largest_feature`.
        fingerprint: of the weights.
    """

    weights: Weights
    gain: np.ndarray
    fingerprint: str


def network_of(model: EdRVFLBase, num_features: int) -> Network:
    """The random layers of an estimator with an integer seed, for so many features."""
    design, numbers = model._design()
    if design.feature_map not in SHARED_MAPS:
        raise ValueError(
            f"feature_map: expected one of {', '.join(SHARED_MAPS)} for sums of several machines,"
            f" whose features a seed draws, got {design.feature_map!r}"
        )
    scale = numbers["weight_scale"].tolist()
    return _network(
        # Only what draws counts, so that a process draws once.
        Design(design.options, "none", False, num_features, design.feature_map),
        tuple(scale) if isinstance(scale, list) else scale,
        int(model.random_state),
        num_features + bool(model.intercept),
    )


@lru_cache(maxsize=8)
def _network(design: Design, weight_scale: Any, seed: int, width: int) -> Network:
    drawn = np.int32(check_random_state(seed).randint(np.iinfo(np.int32).max))
    numbers = {"ridge": np.float64(1.0), "weight_scale": np.asarray(weight_scale, float)}
    with precision_scope("double"):
        weights, gain = additive.begin(design, numbers, drawn, num_features=width)
        return Network(weights, np.asarray(gain), weights_fingerprint(weights))


def weights_fingerprint(weights: Weights) -> str:
    """Of the numbers of random layers."""
    return digest_of(weights)[:DIGITS]


def sums_of_batch(model: EdRVFLBase, network: Network, batch: Batch, outputs: int) -> HostSums:
    """The sums of checked rows, on the host.

    Args:
        model: gives the design.
        network: of `network_of`.
        batch: rows as the network takes them.
        outputs: columns of the targets.

    Raises:
        NumericalError: if a value overflowed.
    """
    setting = adding.Setting(*model._design(), {}, None, 1.0)
    # Programs are made for few numbers of columns.
    columns = outputs if batch.target.ndim == 2 else classes_for(outputs)
    with precision_scope("double"):
        shape = additive.shape_of(setting.design, network.weights, batch.X.shape[1])
        none = hosted.no_sums((*shape, columns))
    learned = Learned(network.weights, none, None, network.gain, (batch,), len(batch.X))
    fitted = Fitted(learned, np.zeros(columns), None, began_with={})
    found = adding.settled(setting, fitted).learned.sums
    found = found if isinstance(found, HostSums) else HostSums.of(found)
    return found._replace(
        moment=found.moment[..., :outputs], counts=np.asarray(found.counts)[:, :outputs]
    )


def fingerprint_of(X: Any, y: Any, sample_weight: Any = None) -> str:
    """Of the rows of a partition, in their order: 32 hexadecimal digits.

    Args:
        X: (n, s) numbers; frames as arrays. Equal numbers count as equal whatever their dtype, but
            for a sparse matrix, which is told from a dense one.
        y: (n,) labels, or targets.
        sample_weight: (n,).
    """
    return digest_of_columns({"X": X, "y": y, "sample_weight": sample_weight})


def digest_of_columns(columns: Mapping[str, Any]) -> str:
    """Of arrays by their names, as `fingerprint_of`; text, bytes and vectors among them."""
    digest = hashlib.sha256()
    for name, values in columns.items():
        if issparse(values):
            rows = values.tocsr()
            parts = {"data": rows.data, "indices": rows.indices, "indptr": rows.indptr}
            digest.update(f"{name!r}{rows.shape}{digest_of_columns(parts)}".encode())
            continue
        array = np.asarray(values)
        digest.update(f"{name!r}{array.shape}".encode())
        if array.dtype.kind in "biuf":
            digest.update(np.ascontiguousarray(array, np.float64).tobytes())
            continue
        for value in array.ravel().tolist():
            content = _content(value)
            digest.update(f"{len(content)} ".encode() + content)
    return digest.hexdigest()[:DIGITS]


def _content(value: Any) -> bytes:
    if isinstance(value, bytes):
        return value
    if isinstance(value, np.ndarray | list | tuple):
        # The text of a long array leaves numbers out.
        return digest_of_columns({"": value}).encode()
    return repr(value).encode()
