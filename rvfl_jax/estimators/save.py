"""Estimators on disk: `save_model` and `load_model`.

What was learned goes into one checkpoint: weights (not only their seed), sums or readouts, counts,
calibration and the rows that wait to be learned. A restored model therefore answers, and goes on
learning, as the saved one: to the last bit, or to rounding where a wide readout was updated by low
rank, since a restored model solves for it anew.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rvfl_jax.estimators import additive, compiled, hosted
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.calibration import no_guesses
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.compiled import LINKS
from rvfl_jax.estimators.fitted import Fitted, fitted_of
from rvfl_jax.estimators.learned import Batch, Learned, programmed, weights_of
from rvfl_jax.estimators.multilabel import EdRVFLMultiLabelClassifier
from rvfl_jax.estimators.novelty import KEPT, Reference, Tally
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.estimators.scaling import Scaling
from rvfl_jax.estimators.thresholds import LabelGuesses
from rvfl_jax.estimators.whole import as_it_stands
from rvfl_jax.files.checkpoint import Checkpoint, load_checkpoint_file, restore, save_checkpoint
from rvfl_jax.learners.edrvfl.strength import FORM, AdaptiveK, adaptive_k, is_of_old
from rvfl_jax.learners.edrvfl.sums import Sums
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import LabelMap

FILE = "model.npz"
# Numbers of `Learned` that are no arrays.
COUNTED = ("guessed", "rows", "batches")
LABELLED = (EdRVFLClassifier, EdRVFLMultiLabelClassifier)
KINDS = {kind.__name__: kind for kind in (*LABELLED, EdRVFLRegressor)}
# What of a `Tally` is no array.
OF_TALLY = ("kind", "rows", "known_rows")


class KnownArrays(NamedTuple):
    """The arrays of a `Fitted` by their names in the file; `state` where sums do not tell all."""

    state: Any
    counts: Any
    guesses: Any


class KnownSums(NamedTuple):
    """The arrays of a `Fitted` on sums by their names in the file."""

    weights: Any
    sums: Any
    standing: Any
    gain: Any
    announced: Any
    counts: Any
    guesses: Any


def save_model(
    model: EdRVFLBase, folder: str | Path, *, notes: Mapping[str, Any] | None = None
) -> None:
    """Write a fitted estimator into a folder, which is created if it does not exist.

    Args:
        model: `EdRVFLClassifier`, `EdRVFLMultiLabelClassifier` or `EdRVFLRegressor`.
        folder: where `model.npz` is written; an existing file is replaced atomically.
        notes: anything else to keep with the model, as JSON; `notes_of` reads it. None keeps the
            notes that the model was loaded with, unless it has been fitted anew.

    Raises:
        ValueError: if the model has learned nothing, or has parameters or labels that JSON cannot
            hold, such as a function of your own as activation.
        OSError: if the file cannot be written; an existing file is left as it was.
    """
    fitted_of(model)
    model = as_it_stands(model)
    fitted = fitted_of(model)
    if notes is None:
        notes = fitted.notes
    plain = {"num_rows_seen_": fitted.num_rows, "n_features_in_": model.n_features_in_}
    if isinstance(model, EdRVFLClassifier):
        plain["_guessed_by"] = fitted.guessed_by
    else:
        plain["_one_output"] = fitted.one_output
    described: dict[str, Any] = {
        "kind": type(model).__name__,
        "parameters": {name: _encoded(name, v) for name, v in model.get_params().items()},
        "plain": plain,
        "capacity": fitted.capacity,
        "notes": dict(notes or {}),
    }
    names = getattr(model, "feature_names_in_", None)
    described["feature_names"] = None if names is None else [str(name) for name in names]
    known: Any = KnownArrays(fitted.learned, fitted.counts, fitted.guesses)
    tree: dict[str, Any] = {"pending": fitted.pending}
    if fitted.on_sums:
        learned = fitted.learned.on_host()
        # Files are of one form, whatever keeps the sums.
        sums = programmed(learned.sums)
        kept = learned.weights, sums, learned.standing, learned.gain, learned.announced
        known = KnownSums(*kept, fitted.counts, fitted.guesses)
        tree["waiting"] = learned.waiting[0] if learned.waiting else None
        plain |= {name: getattr(learned, name) for name in COUNTED}
    tree["known"] = known
    if fitted.scaling is not None:
        tree |= fitted.scaling._asdict()
    if fitted.label_guesses is not None:
        tree["label_guesses"] = fitted.label_guesses
    if isinstance(model, LABELLED):
        tree["rows_of_class"] = fitted.rows_of_class
        described["labels"] = [_encoded("label", label) for label in fitted.labels.labels]
        described["declared"] = [_encoded("label", label) for label in fitted.declared]
        described["balanced"] = _encoded("class_weight", fitted.balanced)
        if fitted.tally is not None:
            described["tally"] = {name: getattr(fitted.tally, name) for name in OF_TALLY}
            tree["tally"] = {
                name: leaf for name, leaf in fitted.tally._asdict().items() if name not in OF_TALLY
            }
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder / FILE, tree, described)


def load_model(folder: str | Path) -> Any:
    """Load the estimator that `save_model` wrote.

    Args:
        folder: that holds `model.npz`.

    Returns:
        `EdRVFLClassifier`, `EdRVFLMultiLabelClassifier` or `EdRVFLRegressor`, fitted.

    Raises:
        ValueError: if there is no such file, if it is damaged, or if its arrays do not fit its
            parameters; every difference is listed.
    """
    path = Path(folder) / FILE
    checkpoint = load_checkpoint_file(path)
    described = checkpoint.metadata["metadata"]
    kind = KINDS.get(described.get("kind"))
    if kind is None:
        raise ValueError(f"{path}: expected a model, got {described.get('kind')!r}")
    _bring_up_to_date(described, checkpoint)
    model = kind(**{name: _decoded(v) for name, v in described["parameters"].items()})
    plain = described["plain"]
    model.n_features_in_ = plain["n_features_in_"]
    if described["feature_names"] is not None:
        model.feature_names_in_ = np.array(described["feature_names"], dtype=object)
    model._memo = {}
    tree = restore(checkpoint, _expected(model, described, checkpoint), what=str(path))
    fitted = _fitted(model, described, tree)
    model._become(fitted)
    if model._is_on_sums() and not fitted.on_sums:
        # Files of earlier releases have a state, and a batch that was held back.
        fitted = model._settled()
        model._become(fitted._replace(learned=_as_sums(model, fitted)))
    return model


def _as_sums(model: Any, fitted: Fitted) -> Learned:
    """The sums of a state, at O(d^3)."""
    setting, state = model._own_setting(), fitted.learned
    with precision_scope(model.precision):
        sums = compiled.sums_now(state, setting.ridge, fitted.counts)
        W = np.asarray(state.W)
        standing = None
        if setting.kind is not None:
            standing = additive.no_standing(np.shape(state.theta))._replace(rows=-1)
        gain = np.abs(W).sum(axis=1).max(axis=1)
        sums = hosted.placed(sums)
        rows, batches = fitted.num_rows, int(state.num_learned)
        return Learned(weights_of(W), sums, standing, gain, rows=rows, batches=batches)


def _fitted(model: Any, described: dict[str, Any], tree: dict[str, Any]) -> Fitted:
    plain, known = described["plain"], tree["known"]
    counts, guesses = jax.tree.map(lambda leaf: leaf.astype(float), (known.counts, known.guesses))
    scaling = Scaling(tree["mean"], tree["scale"]) if "mean" in tree else None
    fitted = Fitted(
        _learned(plain, tree),
        counts,
        guesses,
        began_with=model._beginning(),
        pending=tree["pending"],
        num_rows=plain["num_rows_seen_"],
        scaling=scaling,
        one_output=plain.get("_one_output", False),
        # They belong to what began then, and a new beginning has none.
        notes=described["notes"] or None,
    )
    if not isinstance(model, LABELLED):
        return fitted
    of_labels = tree.get("label_guesses")
    if of_labels is not None:
        of_labels = of_labels._replace(rows=int(of_labels.rows))
    balanced = described.get("balanced")
    return fitted._replace(
        labels=LabelMap(tuple(_decoded(label) for label in described["labels"])),
        declared=frozenset(_decoded(label) for label in described["declared"]),
        rows_of_class=tree["rows_of_class"],
        guessed_by=plain.get("_guessed_by"),
        label_guesses=of_labels,
        balanced=None if balanced is None else _decoded(balanced),
        tally=Tally(**described["tally"], **tree["tally"]) if "tally" in described else None,
    )


def _learned(plain: dict[str, Any], tree: dict[str, Any]) -> Any:
    known = tree["known"]
    if isinstance(known, KnownArrays):
        return known.state
    standing = known.standing
    if standing is not None:
        standing = standing._replace(rows=int(standing.rows))
    waiting = () if tree["waiting"] is None else (tree["waiting"],)
    counted = {name: plain[name] for name in COUNTED}
    weights, sums, gain = known.weights, hosted.placed(known.sums), known.gain
    return Learned(*(weights, sums, standing, gain), waiting, announced=known.announced, **counted)


def notes_of(folder: str | Path) -> dict[str, Any]:
    """The `notes` that `save_model` was given, {} for none."""
    return load_checkpoint_file(Path(folder) / FILE).metadata["metadata"]["notes"]


def _bring_up_to_date(described: dict[str, Any], checkpoint: Checkpoint) -> None:
    """What commands of before `scale="first"` noted beside the model becomes part of it."""
    table = described["notes"].get("table", {})
    if "mean" not in table:
        return
    described["feature_names"] = table["columns"]
    mean, scale = np.array(table["mean"], float), np.array(table["scale"], float)
    if mean.any() or (scale != 1).any():
        described["parameters"]["scale"] = "first"
        checkpoint.arrays.update({"['mean']": mean, "['scale']": scale})


def _expected(model: Any, described: dict[str, Any], checkpoint: Checkpoint) -> dict[str, Any]:
    """Shapes and dtypes that the parameters ask for."""
    capacity = described["capacity"]
    # Files of earlier releases have counts and guesses in the precision of the model.
    kept = checkpoint.arrays.get("['known'].counts", np.zeros(0)).dtype
    dtype = np.dtype(model._dtype if kept == model._dtype else float)
    counts, guesses = np.zeros(capacity, dtype), None
    expected: dict[str, Any] = {"pending": None}
    if isinstance(model, EdRVFLClassifier):
        guesses = jax.tree.map(
            lambda leaf: leaf.astype(dtype),
            no_guesses(capacity, LINKS[described["plain"]["_guessed_by"]]),
        )
    if isinstance(model, LABELLED):
        expected["rows_of_class"] = np.zeros(len(described["labels"]), int)
        if "tally" in described:
            expected["tally"] = _expected_tally(capacity, checkpoint)
    if set(COUNTED) <= set(described["plain"]):
        known = _expected_sums(model, described, checkpoint)
        expected["known"] = known._replace(counts=counts, guesses=guesses)
        expected["waiting"] = _batch_in(checkpoint, "waiting")
        if isinstance(model, EdRVFLMultiLabelClassifier):
            expected["label_guesses"] = LabelGuesses.none(known.sums.moment.shape)
    else:
        state = _expected_state(model, described, checkpoint)
        expected["known"] = KnownArrays(state, counts, guesses)
    if model.scale == "first" and "['mean']" in checkpoint.arrays:
        expected |= {name: np.zeros(model.n_features_in_) for name in ("mean", "scale")}
    expected["pending"] = _batch_in(checkpoint, "pending")
    return expected


def _expected_tally(capacity: int, checkpoint: Checkpoint) -> dict[str, Any]:
    """Scores of so many classes, and a reference of the parts that the file has."""
    scores = np.zeros((capacity, KEPT))
    held = [checkpoint.arrays.get(f"['tally']['reference'].{part}") for part in Reference._fields]
    return {
        "values": scores,
        "worth": scores,
        "offered": np.zeros(capacity, int),
        "reference": None if all(part is None for part in held) else Reference(*held),
        "known": checkpoint.arrays.get("['tally']['known']", np.zeros(0)),
    }


def _batch_in(checkpoint: Checkpoint, name: str) -> Batch | None:
    """A batch of the file, which has as many rows as it came with."""
    held = [checkpoint.arrays.get(f"['{name}'].{part}") for part in Batch._fields]
    X, target, weight = held
    if X is None or target is None or weight is None:
        return None
    return Batch(X, target, weight)


def _expected_state(model: Any, described: dict[str, Any], checkpoint: Checkpoint) -> Any:
    design, numbers = model._design()
    capacity, width = described["capacity"], model.n_features_in_ + bool(model.intercept)
    with precision_scope(model.precision):
        state = jax.eval_shape(
            lambda: compiled.begin(
                design, numbers, np.int32(0), num_features=width, num_outputs=capacity
            )
        )
    # States of earlier releases did not tell their lambda.
    ridge = np.full(state.ridge.shape, numbers["ridge"], state.ridge.dtype)
    checkpoint.arrays.setdefault("['known'].state.ridge", ridge)
    return state


def _expected_sums(model: Any, described: dict[str, Any], checkpoint: Checkpoint) -> KnownSums:
    capacity, width = described["capacity"], model.n_features_in_ + bool(model.intercept)
    setting = model._setting(described["plain"].get("_guessed_by"))
    design, numbers = setting.design, setting.numbers
    with precision_scope(model.precision):
        weights, gain = jax.eval_shape(
            lambda: additive.begin(design, numbers, np.int32(0), num_features=width)
        )
        shape = (*additive.shape_of(design, weights, width), capacity)
        sums = jax.eval_shape(lambda: Sums.zero(shape, jnp.float64))
    standing = None if setting.kind is None else additive.no_standing(sums.moment.shape)
    announced = checkpoint.arrays.get("['known'].announced")
    if announced is not None:
        announced = np.zeros((len(announced), width))
    return KnownSums(weights, sums, standing, gain, announced, None, None)


def _encoded(name: str, value: Any) -> Any:
    """JSON that tells kinds apart which JSON mixes up."""
    if isinstance(value, AdaptiveK):
        parts = (value.kappa, value.sigma)
        kappa, sigma = (np.asarray(part, float).tolist() for part in parts)
        return {"adaptive_k": [kappa, sigma, value.estimator, value.reuse_k, FORM]}
    if isinstance(value, np.random.RandomState):
        algorithm, words, *rest = value.get_state(legacy=True)
        return {"random_state": [algorithm, np.asarray(words).tolist(), *rest]}
    if isinstance(value, tuple):
        return {"tuple": [_encoded(name, part) for part in value]}
    if isinstance(value, np.ndarray) and value.dtype.kind in "iufb":
        return {"array": [value.dtype.str, value.tolist()]}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _encoded(name, np.asarray(value).tolist())
    if isinstance(value, list):
        return [_encoded(name, part) for part in value]
    if isinstance(value, dict):
        pairs = [[_encoded(name, k), _encoded(name, v)] for k, v in value.items()]
        return {"dict": pairs}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{name}: expected numbers, strings or tuples to save, got {value!r}")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(part) for part in value]
    if not isinstance(value, dict):
        return value
    (kind, content), *_ = value.items()
    if kind == "adaptive_k":
        k = adaptive_k(*content[:4])
        if len(content) < 5 and not is_of_old(k):
            raise ValueError(
                f"k: expected the {k.estimator} strength of form {FORM}, got one of an earlier"
                " form, which learned otherwise; learn the model anew"
            )
        return k
    if kind == "array":
        return np.array(content[1], content[0])
    if kind == "random_state":
        generator = np.random.RandomState()
        generator.set_state(tuple(content))
        return generator
    if kind == "tuple":
        return tuple(_decoded(part) for part in content)
    return {_decoded(k): _decoded(v) for k, v in content}
