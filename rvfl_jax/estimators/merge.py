"""Combine two classifiers that learned apart into the one that would have learned everything."""

from typing import Any

import jax
import numpy as np
from sklearn.utils.validation import check_is_fitted

from rvfl_jax.core.checks import differences
from rvfl_jax.estimators import adding, compiled
from rvfl_jax.estimators.adding import raise_unless
from rvfl_jax.estimators.calibration import merged_guesses
from rvfl_jax.estimators.classifier import EdRVFLClassifier
from rvfl_jax.estimators.fitted import Fitted, fitted_of
from rvfl_jax.estimators.following import Asked
from rvfl_jax.estimators.novelty import merged_tally
from rvfl_jax.estimators.whole import TURN, as_it_stands
from rvfl_jax.linalg.precision import precision_scope
from rvfl_jax.streams.label_map import as_array


def merge(a: EdRVFLClassifier, b: EdRVFLClassifier) -> EdRVFLClassifier:
    """Combine what two classifiers learned apart.

    The readout equals, exactly, that of one classifier that learned all rows of both. Their sums
    are added, at O(d^2); only models that keep a state in place of sums (see
    `EdRVFLClassifier`) take O(d^3).

    Args:
        a: fitted, without forgetting.
        b: fitted, with the parameters, the random weights (give both the same integer
            `random_state`), the features and, for `scale="first"`, the scaling of `a`. It may
            have learned other classes.

    Returns:
        A new classifier; `a` and `b` stay as they are.

    Raises:
        ValueError: if `a` and `b` do not fit together as above.
        NumericalError: if the sums could not be factorised.
    """
    for name, model in (("a", a), ("b", b)):
        if not isinstance(model, EdRVFLClassifier):
            raise ValueError(f"{name}: expected an EdRVFLClassifier, got {type(model).__name__}")
        check_is_fitted(model)
    a, b = as_it_stands(a), as_it_stands(b)
    _check_alike(a, b)
    # Nothing that both refer to is changed in place.
    merged = as_it_stands(a)
    merged.__dict__.pop(TURN, None)
    merged._memo = {}
    merged._taken_up()
    merged._take_pending()
    _take_in(merged, b)
    return merged


def _check_alike(a: EdRVFLClassifier, b: EdRVFLClassifier) -> None:
    for name, model in (("a", a), ("b", b)):
        if not model._same_design()[0].additive:
            raise ValueError(
                f'{name}: expected forgetting=1, cold_start="exact" and a constant k or'
                " adaptive_k(reuse_k=True), for which the state is that of its rows"
            )
    begun = (
        dict(fitted.began_with) | {"readout": fitted.guessed_by}
        for fitted in map(fitted_of, (a, b))
    )
    changed = differences(*begun)
    if changed:
        raise ValueError(f"b: expected the parameters of a; {'; '.join(changed)}")
    of_a, of_b = (jax.tree.leaves(fitted_of(model).weights) for model in (a, b))
    if not all(np.array_equal(mine, theirs) for mine, theirs in zip(of_a, of_b, strict=True)):
        raise ValueError(
            "b: expected the random weights of a, got others; give both one integer random_state"
        )
    for name in ("mean_", "scale_") if a.scale == "first" else ():
        if not np.array_equal(getattr(a, name), getattr(b, name)):
            raise ValueError(
                f"b: expected the {name} of a, got another; begin both on the same rows, or scale"
                " features before them"
            )
    names_a, names_b = (getattr(model, "feature_names_in_", None) for model in (a, b))
    if names_a is not None and names_b is not None and list(names_a) != list(names_b):
        raise ValueError(f"b: expected the features {list(names_a)}, got {list(names_b)}")


def _take_in(model: EdRVFLClassifier, other: EdRVFLClassifier) -> None:
    """Add what `other` knows to `model`, whose columns grow by the labels it lacks."""
    theirs = other._settled()
    names = as_array(list(theirs.labels.labels))
    ours = model._fitted.with_labels(model._fitted.labels.extended(names))
    # Columns beyond the labels hold zeros, and may go anywhere.
    places = np.zeros(theirs.capacity, np.int32)
    places[: len(names)] = ours.labels.columns("b", names)
    learned = _learned_by_both(model, ours, theirs, places)
    assert ours.guesses is not None
    assert theirs.guesses is not None
    counts = ours.counts + np.bincount(places, theirs.counts, ours.capacity)
    rows = ours.rows_of_class.copy()
    rows[places[: len(names)]] += theirs.rows_of_class
    model._become(
        asked=Asked(),
        fitted=ours._replace(
            learned=learned,
            counts=counts,
            guesses=merged_guesses(ours.guesses, theirs.guesses, places, counts),
            rows_of_class=rows,
            declared=ours.declared | theirs.declared,
            num_rows=ours.num_rows + theirs.num_rows,
            tally=merged_tally(ours.tally, theirs.tally, places, ours.capacity),
        ),
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
