"""Combine estimators that learned apart into the one that would have learned everything."""

from typing import Any, TypeVar

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from rvfl_jax.core.checks import differences
from rvfl_jax.estimators import adding, compiled
from rvfl_jax.estimators.adding import raise_unless
from rvfl_jax.estimators.base import EdRVFLBase
from rvfl_jax.estimators.calibration import merged_guesses
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.fitted import Fitted, fitted_of
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.multilabel import EdRVFLMultiLabelClassifier
from rvfl_jax.estimators.novelty import merged_tally
from rvfl_jax.estimators.regressor import EdRVFLRegressor
from rvfl_jax.estimators.thresholds import merged_label_guesses
from rvfl_jax.estimators.whole import TURN, as_it_stands
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import as_array

Model = TypeVar("Model", bound=EdRVFLBase)


def merge(a: Model, b: Model, *others: Model) -> Model:
    """Combine what two estimators or more learned apart.

    The readout equals, exactly, that of one estimator that learned all rows of all of them. Their
    sums are added, at O(d^2) each; only models that keep a state in place of sums (see
    `EdRVFLClassifier`) take O(d^3).

    Args:
        a: fitted, without forgetting.
        b: fitted, with the parameters, the random weights (give both the same integer
            `random_state`), the features and, for `scale="first"`, the scaling of `a`. A
            classifier may have learned other classes or labels, a regressor has as many outputs.
        *others: any number more, as `b`.

    Returns:
        A new estimator; those given stay as they are.

    Raises:
        ValueError: if they do not fit together as above; naming the first as "a", and so on.
        NumericalError: if the sums could not be factorised.
    """
    models = [a, b, *others]
    named = [(_name_of(i), model) for i, model in enumerate(models)]
    kinds = (EdRVFLClassifier, EdRVFLRegressor, EdRVFLMultiLabelClassifier)
    kind = next((kind for kind in kinds if isinstance(a, kind)), EdRVFLClassifier)
    for name, model in named:
        if not isinstance(model, kind):
            raise ValueError(f"{name}: expected an {kind.__name__}, got {type(model).__name__}")
        check_is_fitted(model)
    named = [(name, as_it_stands(model)) for name, model in named]
    (_, first), *rest = named
    _check_additive("a", first)
    for name, model in rest:
        _check_additive(name, model)
        _check_alike(first, name, model)
    # Nothing that both refer to is changed in place.
    merged = as_it_stands(first)
    merged.__dict__.pop(TURN, None)
    merged._memo = {}
    merged._taken_up()
    merged._take_pending()
    for _, model in rest:
        _take_in(merged, model)
    return merged


def _name_of(place: int) -> str:
    return chr(ord("a") + place) if place < 26 else f"model {place + 1}"


def _check_additive(name: str, model: EdRVFLBase) -> None:
    if not model._same_design()[0].additive:
        raise ValueError(
            f'{name}: expected forgetting=1, cold_start="exact" and a constant k or'
            " adaptive_k(reuse_k=True), for which the state is that of its rows"
        )


def _check_alike(a: EdRVFLBase, name: str, b: EdRVFLBase) -> None:
    begun = (
        dict(fitted.began_with) | {"readout": fitted.guessed_by}
        for fitted in map(fitted_of, (a, b))
    )
    changed = differences(*begun)
    if changed:
        raise ValueError(f"{name}: expected the parameters of a; {'; '.join(changed)}")
    of_a, of_b = (jax.tree.leaves(fitted_of(model).weights) for model in (a, b))
    if not all(np.array_equal(mine, theirs) for mine, theirs in zip(of_a, of_b, strict=True)):
        raise ValueError(
            f"{name}: expected the random weights of a, got others; give both one integer"
            ' random_state, and begin both on the same rows for feature_map="fourier"'
        )
    for what in ("mean_", "scale_") if a.scale == "first" else ():
        if not np.array_equal(getattr(a, what), getattr(b, what)):
            raise ValueError(
                f"{name}: expected the {what} of a, got another; begin both on the same rows, or"
                " scale features before them"
            )
    names_a, names_b = (getattr(model, "feature_names_in_", None) for model in (a, b))
    if names_a is not None and names_b is not None and list(names_a) != list(names_b):
        raise ValueError(f"{name}: expected the features {list(names_a)}, got {list(names_b)}")
    outputs = [fitted_of(model).capacity for model in (a, b)]
    if isinstance(a, EdRVFLRegressor) and outputs[0] != outputs[1]:
        raise ValueError(f"{name}: expected {outputs[0]} outputs a row, got {outputs[1]}")


def _take_in(model: EdRVFLBase, other: EdRVFLBase) -> None:
    """Add what `other` knows to `model`, whose columns grow by the labels it lacks."""
    ours, theirs = model._fitted, other._settled()
    rows = ours.num_rows + theirs.num_rows
    if isinstance(model, EdRVFLRegressor):
        learned = _learned_by_both(model, ours, theirs, np.arange(theirs.capacity, dtype=np.int32))
        both = ours._replace(
            learned=learned, num_rows=rows, one_output=ours.one_output and theirs.one_output
        )
    else:
        both = _classes_of_both(model, theirs)._replace(num_rows=rows)
    model._become(asked=Asked(), fitted=both)


def _classes_of_both(model: EdRVFLBase, theirs: Fitted) -> Fitted:
    """What both classifiers know, of classes or of labels."""
    names = as_array(list(theirs.labels.labels))
    ours = model._fitted.with_labels(model._fitted.labels.extended(names))
    # Columns beyond the labels hold zeros, and may go anywhere.
    places = np.zeros(theirs.capacity, np.int32)
    places[: len(names)] = ours.labels.columns("b", names)
    learned = _learned_by_both(model, ours, theirs, places)
    counts = ours.counts + np.bincount(places, theirs.counts, ours.capacity)
    rows = ours.rows_of_class.copy()
    rows[places[: len(names)]] += theirs.rows_of_class
    guesses, of_labels = ours.guesses, ours.label_guesses
    if guesses is not None and theirs.guesses is not None:
        guesses = merged_guesses(guesses, theirs.guesses, places, counts)
    if of_labels is not None and theirs.label_guesses is not None:
        of_labels = merged_label_guesses(of_labels, theirs.label_guesses, places)
    return ours._replace(
        learned=learned,
        counts=counts,
        guesses=guesses,
        label_guesses=of_labels,
        rows_of_class=rows,
        declared=ours.declared | theirs.declared,
        tally=merged_tally(ours.tally, theirs.tally, places, ours.capacity),
    )


def _learned_by_both(model: Any, ours: Fitted, theirs: Fitted, places: np.ndarray) -> Any:
    """Sums added up; states go through their sums, at O(d^3)."""
    mine, other = ours.learned, theirs.learned
    with precision_scope(model.precision):
        if ours.on_sums:
            sums = adding.programs_of(mine.sums).together_with(mine.sums, other.sums, places)
            both = mine._replace(batches=mine.batches + other.batches)
            return adding.changed(both, sums, mine.rows + other.rows)
        ridge = model._design()[1]["ridge"]
        state, sound = compiled.merge(mine, other, ridge, places)
    raise_unless(bool(sound), "merge: a factorisation failed")
    return state
