"""How an estimator on sums learns and is read: functions from one `Fitted` to the next.

None of them changes what it is given. All go through the programs of `additive` or `hosted`, and of
`following`.
"""

from collections.abc import Iterator
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from rvfl_jax.core.checks import NumericalError
from rvfl_jax.estimators import additive, following, hosted
from rvfl_jax.estimators.calibration import joined_guesses
from rvfl_jax.estimators.compiled import Design, Fading, PaddedRows, fading_of
from rvfl_jax.estimators.feature_maps import median_distance
from rvfl_jax.estimators.fitted import Fitted
from rvfl_jax.estimators.following import NARROW, OFTEN, VERY_OFTEN, Asked, Following, few_rows
from rvfl_jax.estimators.learned import (
    Batch,
    Learned,
    Standing,
    block_of,
    joined,
    largest_feature,
    last_rows,
)
from rvfl_jax.estimators.padding import padded, rows_for
from rvfl_jax.estimators.readouts import Solved
from rvfl_jax.learners.edrvfl.host_sums import HostSums
from rvfl_jax.learners.edrvfl.network import ACTIVATIONS
from rvfl_jax.linalg.host_blas import one_thread_a_product
from rvfl_jax.linalg.precision import precision_scope

REMEDY = 'a larger ridge, precision="double", or features on a smaller scale'
# Features of at most this size, squared and summed over any number of rows, are finite.
SAFE = 1e140
# Below this size padding costs less than another program.
FINE = 256
# What was followed is begun anew where its residual is above this.
DRIFTED = 1e-11
# Up to this width every change is checked by a factorisation, which takes milliseconds.
CHECKED_WIDTH = 768


class Setting(NamedTuple):
    """What the parameters of an estimator say.

    Attributes:
        design: which programs run.
        numbers: of the learner.
        options: `class_balance` and `shrinkage` of a classifier.
        kind: of the readout that guesses; None for a regressor.
        forgetting: what a row is worth after one more.
        chooses: whether lambda is that of the sums, and not among the numbers.
    """

    design: Design
    numbers: dict[str, Any]
    options: dict[str, Any]
    kind: str | None
    forgetting: float
    chooses: bool = False

    @property
    def ridge(self) -> Any:
        """Lambda of the parameters; see `ridge_of` where it is chosen."""
        return self.numbers["ridge"]

    def decided(self, ridge: Any) -> "Setting":
        """With that lambda."""
        return self._replace(numbers=self.numbers | {"ridge": ridge}, chooses=False)

    def guides(self, learned: Learned) -> bool:
        """Whether what guesses is the ridge readout, without a forward term."""
        return self.kind == "ridge" and learned.announced is None

    @property
    def shrinkage(self) -> float:
        """Of the discriminant."""
        return float(self.options.get("shrinkage", 0.0))


def learned_of(fitted: Fitted) -> Learned:
    """What is learned as sums."""
    assert isinstance(fitted.learned, Learned)
    return fitted.learned


def ridge_of(setting: Setting, fitted: Fitted) -> Any:
    """Lambda, a scalar or (L,): of the parameters, or of all rows so far."""
    return settled(setting, fitted).ridges if setting.chooses else setting.ridge


def begun(
    setting: Setting, seed: Any, num_features: int, num_outputs: int, first: Any = None
) -> Learned:
    """What is learned of no rows, where those that come first are `first` (n, s)."""
    design, numbers = setting.design, setting.numbers
    if design.feature_map == "fourier":
        bandwidth = median_distance(() if first is None else first, design.num_inputs)
        numbers = numbers | {"weight_scale": numbers["weight_scale"] / bandwidth}
    weights, gain = additive.begin(design, numbers, seed, num_features=num_features)
    sums = hosted.no_sums((*additive.shape_of(design, weights, num_features), num_outputs))
    standing = None
    if setting.kind is not None:
        standing = additive.no_standing(np.shape(sums.moment))
    return Learned(weights, sums, standing, np.asarray(gain))


def programs_of(sums: Any) -> ModuleType:
    """What adds to such sums and solves them: BLAS on the host, or programs of JAX."""
    return hosted if isinstance(sums, HostSums) else additive


def raise_unless(healthy: Any, what: str) -> None:
    """Raise NumericalError with a remedy unless all went well."""
    if not bool(healthy):
        raise NumericalError(f"{what}. Remedy: {REMEDY}.")


def with_rows(
    setting: Setting, fitted: Fitted, batch: Batch, X_next: Any, asked: Asked
) -> tuple[Fitted, Asked]:
    """Learn a batch, whose rows may wait to be added to the sums.

    Args:
        setting: see `Setting`.
        fitted: what is known.
        batch: the rows.
        X_next: (n, s) inputs that come next, for a forward term; or None.
        asked: what helped to compute the last readout.

    Returns:
        What is then known, and what then helps to compute a readout.

    Raises:
        NumericalError: if a feature overflowed, or a readout that is due could not be solved.
    """
    standing = learned_of(fitted).standing
    if standing is not None and standing.rows < 0:
        fitted = with_standing(setting, settled(setting, fitted))
    forgets = setting.forgetting < 1.0
    learned = learned_of(fitted)
    block = block_of(learned.shape[1], fitted.rows_at_once)
    waits = not forgets and len(batch.X) < block and _is_tame(setting.design, learned, batch)
    if waits and learned.num_waiting + len(batch.X) > block:
        fitted = settled(setting, fitted)
        asked = _checked(setting, fitted, asked)
    if not (waits or forgets or isinstance(batch.X, np.ndarray)):
        # Sparse rows are joined with no others, which would make all of them dense.
        fitted = settled(setting, fitted)
    fitted, fading = _appended(setting, fitted, batch, X_next)
    if not waits:
        fitted = settled(setting, fitted, fading)
    learned = learned_of(fitted)
    if asked.following is not None and learned.rows - asked.following.rows > learned.num_waiting:
        asked = asked._replace(following=None)
    due = learned.standing is not None and (forgets or learned.is_due())
    return _guided(setting, fitted, asked) if due else (fitted, asked)


def _appended(
    setting: Setting, fitted: Fitted, batch: Batch, X_next: Any
) -> tuple[Fitted, Fading | None]:
    """With the rows of a batch waiting, and the fading where old rows are forgotten."""
    learned, counts, fading, worth = learned_of(fitted), fitted.counts, None, batch.weight
    if setting.forgetting < 1.0:
        inputs = batch.X[:, : setting.design.num_inputs]
        fading = fading_of(inputs, batch.weight, setting.forgetting)
        worth, counts = worth * fading.of_rows, counts * fading.of_past
    if fitted.guesses is not None:
        counts = counts + np.bincount(batch.target, worth, len(counts))
    if isinstance(batch.X, np.ndarray):
        # The caller may use the array again.
        batch = batch._replace(X=batch.X.astype(np.float64))
    learned = learned._replace(
        waiting=(*learned.waiting, batch),
        announced=X_next,
        rows=learned.rows + len(batch.X),
        batches=learned.batches + 1,
    )
    return fitted._replace(learned=learned, counts=counts), fading


def _guided(setting: Setting, fitted: Fitted, asked: Asked) -> tuple[Fitted, Asked]:
    """With a readout of now to guess the rows that come."""
    at = follows(setting, fitted, asked) if setting.kind == "ridge" else None
    if at is None:
        fitted = with_standing(setting, settled(setting, fitted))
    else:
        guesses = guesses_of(setting, fitted)
        fitted = with_standing(setting, fitted._replace(guesses=guesses), at.theta)
    return fitted, asked._replace(following=at)


def _checked(setting: Setting, fitted: Fitted, asked: Asked) -> Asked:
    """Without a readout that has drifted away from the sums."""
    at = asked.following
    near = at is None or at.rows != learned_of(fitted).rows or is_near(setting, fitted, at)
    return asked if near else asked._replace(following=None)


def _is_tame(design: Design, learned: Learned, batch: Batch) -> bool:
    """Whether no feature can overflow, which else is found by computing them."""
    name = dict(design.options)["activation"]
    known = isinstance(name, str) and name in ACTIVATIONS
    known = known and not callable(design.feature_map)
    return known and largest_feature(learned.gain, batch.X) < SAFE


def settled(setting: Setting, fitted: Fitted, fading: Any = None) -> Fitted:
    """Add the rows that wait to the sums.

    Args:
        setting: see `Setting`.
        fitted: what is known.
        fading: of the one batch that waits.

    Raises:
        NumericalError: if a value overflowed.
    """
    learned = learned_of(fitted)
    if not learned.waiting:
        return fitted
    batch, sums, guesses = joined(learned.waiting), learned.sums, fitted.guesses
    fresh = batch.weight * (np.arange(len(batch.X)) >= learned.guessed)
    worth, past = (batch.weight, 1.0) if fading is None else (batch.weight * fading[0], fading[1])
    with precision_scope("double"):
        for here in _parts(len(batch.X), fitted.rows_at_once):
            rows, size = _padded(batch, fresh, here)
            sums, made, finite = programs_of(sums).absorb(
                setting.design,
                learned.weights,
                sums,
                learned.standing,
                rows,
                (padded(worth[here], size), past),
                setting.options,
                setting.kind,
            )
            raise_unless(finite, "rows: a value overflowed")
            past = 1.0
            if guesses is not None:
                guesses = joined_guesses(guesses, made)
    learned = learned._replace(sums=sums, waiting=(), guessed=0)
    return fitted._replace(learned=learned, guesses=guesses)


def guesses_of(setting: Setting, fitted: Fitted) -> Any:
    """The guesses, including those of rows that wait."""
    learned, guesses = learned_of(fitted), fitted.guesses
    if guesses is None or learned.guessed == learned.num_waiting:
        return guesses
    batch = last_rows(learned.waiting, learned.num_waiting - learned.guessed)
    assert learned.standing is not None
    assert setting.kind is not None
    with precision_scope("double"):
        for here in _parts(len(batch.X), fitted.rows_at_once):
            rows, _ = _padded(batch, batch.weight, here)
            made = additive.guess(
                *(setting.design, learned.weights, learned.standing, rows),
                setting.options,
                setting.kind,
            )
            guesses = joined_guesses(guesses, made)
    return guesses


def without(setting: Setting, fitted: Fitted, batch: Batch) -> Fitted:
    """Take rows out of the sums; the counts stay."""
    fitted = settled(setting, fitted)
    learned = learned_of(fitted)
    sums = learned.sums
    with precision_scope("double"):
        for here in _parts(len(batch.X), fitted.rows_at_once):
            rows, _ = _padded(batch, batch.weight, here)
            sums = programs_of(sums).take_out(setting.design, learned.weights, sums, rows)
    return fitted._replace(learned=changed(learned, sums, learned.rows - len(batch.X)))


def errors_left(setting: Setting, fitted: Fitted, before: Fitted) -> np.ndarray | None:
    """(L, m) squared errors that would be left, of which none is negative; None without a solution.

    Up to a width of `CHECKED_WIDTH` they are those of the ridge readout, at a factorisation.
    Beyond it they are those of the readout that guessed last, which take a few products with
    theta; sums that no rows have are then found out when the next readout is solved.
    """
    learned = learned_of(fitted)
    programs = programs_of(learned.sums)
    with precision_scope("double"):
        if learned.shape[1] <= CHECKED_WIDTH:
            ridge = ridge_of(setting, before)
            theta, inverse, sound = programs.conclude(learned.sums, ridge)
            errors, _ = programs.squared_errors(learned.sums, theta, inverse, ridge)
            return np.asarray(errors) if bool(sound) else None
        standing = learned_of(before).standing
        theta = np.zeros(learned.shape) if standing is None else standing.theta
        squares = np.asarray(learned.sums.squares)
        if (squares < -1e-9 * (1.0 + np.abs(squares).max())).any():
            return None
        return np.asarray(programs.errors_at(learned.sums, theta))


def changed(learned: Learned, sums: Any, rows: int) -> Learned:
    """Replace the sums by others that did not come about by learning rows one after another."""
    standing = learned.standing
    if standing is not None:
        standing = standing._replace(rows=-1)
    return learned._replace(sums=sums, standing=standing, announced=None, rows=rows)


def solved(setting: Setting, fitted: Fitted, kind: str) -> Solved:
    """The readout of that kind, at one factorisation.

    Raises:
        NumericalError: if that failed.
    """
    learned = learned_of(fitted)
    assert not learned.waiting
    # Means need none.
    ridge = setting.ridge if kind == "nearest_mean" else ridge_of(setting, fitted)
    announced = None
    if learned.announced is not None:
        X = learned.announced
        size = rows_for(len(X))
        rows = PaddedRows(padded(X, size), padded(np.ones(len(X)), size))
        announced = rows, setting.numbers["k"]
    with precision_scope("double"):
        found, sound = programs_of(learned.sums).solve(
            *(setting.design, learned.weights, learned.sums, ridge),
            *(fitted.counts, setting.shrinkage, announced),
            kind=kind,
        )
    raise_unless(sound, "readout: a factorisation failed")
    return found


def with_standing(setting: Setting, fitted: Fitted, theta: Any = None) -> Fitted:
    """With a readout of now to guess later rows; solved where theta is None."""
    learned = learned_of(fitted)
    assert setting.kind is not None
    if theta is None:
        quiet = fitted._replace(learned=learned._replace(announced=None))
        found = solved(setting, quiet, setting.kind)
    else:
        found = unshifted(theta)
    standing = Standing(found.theta, found.offset, fitted.counts, learned.rows)
    return fitted._replace(learned=learned._replace(standing=standing, guessed=learned.num_waiting))


def unshifted(theta: Any) -> Solved:
    """A readout without offsets, as "ridge" is."""
    offset: Any = np.zeros((len(theta), theta.shape[-1]))
    return Solved(theta, offset)


def follows(setting: Setting, fitted: Fitted, asked: Asked) -> Following | None:
    """The ridge readout of now by low rank; None where solving is cheaper or safer."""
    learned = learned_of(fitted)
    if learned.shape[1] < NARROW or setting.forgetting < 1.0 or learned.announced is not None:
        return None
    # Another lambda is no change of low rank.
    if setting.chooses:
        return None
    at = asked.following
    if at is None and learned.rows == learned.num_waiting:
        at = following.begun(learned.shape)
    if at is None:
        return None
    if np.shape(at.theta)[-1] < learned.shape[2]:
        at = at.grown(learned.shape[2])
    behind = learned.rows - at.rows
    size = rows_for(behind)
    if behind == 0:
        return at
    far = behind > few_rows(learned.shape[1]) and at.P is not None
    room = following.room(learned.shape)
    if behind > learned.num_waiting or far or size > room:
        return None
    with precision_scope("double"), one_thread_a_product(size * learned.shape[1] ** 2):
        if at.used + size > room:
            if at.P is None and asked.times < OFTEN:
                return None
            P, K = following.taken_in(at.P, at.K, setting.ridge)
            at = Following(P, K, at.theta, 0, at.rows)
        at = at.with_room(size)
        batch = last_rows(learned.waiting, behind)
        rows, _ = _padded(batch, batch.weight, slice(0, behind), size)
        K, theta, finite = following.follow(
            setting.design, learned.weights, at[:3], np.int32(at.used), rows, setting.ridge
        )
        if not bool(finite):
            return None
    return Following(at.P, K, theta, at.used + behind, learned.rows)


def is_worth_following(setting: Setting, learned: Learned, asked: Asked) -> bool:
    """Whether readouts were asked for so often that an inverse pays."""
    wide = learned.shape[1] >= NARROW and learned.announced is None
    steady = setting.forgetting == 1.0 and not setting.chooses
    return wide and steady and asked.times >= VERY_OFTEN


def followed_anew(setting: Setting, fitted: Fitted) -> Following:
    """The ridge readout of the sums, with all that it takes to follow it from now on."""
    learned = learned_of(fitted)
    with precision_scope("double"):
        theta, inverse, sound = programs_of(learned.sums).conclude(learned.sums, setting.ridge)
        raise_unless(sound, "readout: a factorisation failed")
        P = following.inverse_of(inverse)
    empty = following.begun(learned.shape)
    return Following(P, empty.K, theta, 0, learned.rows)


def is_near(setting: Setting, fitted: Fitted, at: Following) -> bool:
    """Whether a readout that was followed up to the sums solves them still."""
    with precision_scope("double"):
        sums = learned_of(fitted).sums
        residual = programs_of(sums).relative_residual(sums, setting.ridge, at.theta)
        return bool(np.all(np.asarray(residual) < DRIFTED))


def _padded(
    batch: Batch, weight: np.ndarray, here: slice, size: int | None = None
) -> tuple[PaddedRows, int]:
    """Some rows of a batch as programs take them, and how many that are."""
    size = _bucket(here.stop - here.start) if size is None else size
    X = padded(np.asarray(batch.X[here], np.float64), size)
    return PaddedRows(X, padded(weight[here], size), padded(batch.target[here], size)), size


def _bucket(count: int) -> int:
    """A power of two that holds so many rows, or three quarters of a large one."""
    size = rows_for(count)
    return size * 3 // 4 if size >= FINE and count <= size * 3 // 4 else size


def _parts(count: int, most: int) -> Iterator[slice]:
    for start in range(0, count, most):
        yield slice(start, min(count, start + most))
