"""What the classifier and the regressor share: parameters, batches, the held batch, the state."""

import warnings
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import Partial
from scipy.sparse import issparse
from sklearn.base import BaseEstimator
from sklearn.utils import check_array, check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from rvfl_jax.core.checks import NumericalError, differences, one_of, plain_array, real_numbers
from rvfl_jax.estimators import adding, compiled
from rvfl_jax.estimators.adding import REMEDY, raise_unless
from rvfl_jax.estimators.calibration import joined_guesses
from rvfl_jax.estimators.compiled import Design, PaddedRows, fading_of
from rvfl_jax.estimators.feature_maps import check_feature_map, is_lone
from rvfl_jax.estimators.fitted import MOST_ROWS, Fitted
from rvfl_jax.estimators.following import NEVER, Asked, few_rows
from rvfl_jax.estimators.learned import Batch
from rvfl_jax.estimators.padding import padded, rows_for
from rvfl_jax.estimators.readouts import Solved
from rvfl_jax.estimators.scaling import SCALES, Scaling, scaling_of
from rvfl_jax.estimators.sparse import check_columns, rows_of
from rvfl_jax.estimators.whole import TURN, as_it_stands, of_one_moment
from rvfl_jax.learners.edrvfl.algebra import check_forgetting
from rvfl_jax.learners.edrvfl.strength import AdaptiveK, ConstantK, resolve_strength
from rvfl_jax.linalg.precision import precision_scope

LOOKAHEADS = ("hold", "none")
RIDGE_NAMES = ("auto",)
# Batches of a fit whose result depends on batches: this many, of these sizes.
FIT_BATCHES, FIT_ROWS = 20, (8, 256)
# Numbers of square matrices that are kept beside the sums until the next row.
MOST_KEPT = 2**25
_PROGRAM_OPTIONS = (
    "num_layers",
    "num_nodes",
    "activation",
    "cold_start",
    "solver",
    "weight_init",
    "ensemble",
)
_KEPT_OPTIONS = ("feature_map", "weight_scale", "ridge", "intercept", "scale", "precision")


class Cache:
    """Results that follow from one learned state, each computed when it is first needed.

    Two threads that need one at the same time both compute it. The next state has its own cache.
    """

    def __init__(self, asked: Asked = NEVER) -> None:
        # What helps to answer is that of the state before, whatever other threads ask now, so
        # that all of them get the same bits.
        self._held: dict[Any, Any] = {}
        self.asked = asked

    @property
    def asked_by_now(self) -> Asked:
        """What helps to answer in the next state, too."""
        found: Asked = self._held.get("asked", self.asked)
        return found

    def note(self, asked: Asked) -> None:
        """Keep what helped to answer."""
        self._held["asked"] = asked

    def held(self, key: Any) -> Any:
        """The value of that key, or None if it was not computed yet."""
        return self._held.get(key)

    def get(self, key: Any, compute: Callable[[], Any]) -> Any:
        """The value of that key, computed if it was not yet."""
        if key not in self._held:
            self._held[key] = compute()
        return self._held[key]


class EdRVFLBase(BaseEstimator):  # type: ignore[misc]
    """Parameters and the learning of batches; see `EdRVFLClassifier` and `EdRVFLRegressor`.

    Public methods that learn are `all_or_nothing`, and those that read are `of_one_moment`, which
    is why nothing that an attribute refers to may be changed in place.
    """

    _fitted: Fitted
    _cache: Cache
    # (s,) features that `scale="first"` leaves as they are, for whoever knows that they are
    # indicators or counts of words; it matters for the first rows alone.
    _left_unscaled: np.ndarray | None = None

    def _design(self) -> tuple[Design, dict[str, Any]]:
        """Which programs run, and with what numbers; checks every parameter that has changed.

        Raises:
            ValueError: on a parameter out of range.
        """
        memo = self.__dict__.get("_memo", {})
        values = [getattr(self, name) for name in _parameters_of(type(self))]  # type: ignore[arg-type]
        values.append(getattr(self, "n_features_in_", 0))
        before, found = memo.get("design", ((), None))
        same = len(before) == len(values)
        if not same or any(a is not b for a, b in zip(before, values, strict=True)):
            found = self._checked_design()
            memo["design"] = values, found
        return found

    def _checked_design(self) -> tuple[Design, dict[str, Any]]:
        one_of("lookahead", self.lookahead, LOOKAHEADS)
        one_of("scale", self.scale, SCALES)
        check_feature_map(self.feature_map, self.num_nodes)
        forgetting = check_forgetting(self.forgetting)
        own = {name: getattr(self, name) for name in _PROGRAM_OPTIONS}
        if is_lone(self.feature_map):
            own["num_layers"] = 1
        strength = resolve_strength(self.k, own["num_layers"])
        numbers: dict[str, Any] = {
            # Where it is chosen no program begins with it.
            "ridge": np.ones(()) if self._chooses() else real_numbers("ridge", self.ridge),
            "weight_scale": real_numbers("weight_scale", self.weight_scale),
        }
        kind: Any = "none"
        if isinstance(strength, AdaptiveK):
            kind = (strength.estimator, strength.reuse_k)
            numbers |= {
                "kappa": np.asarray(strength.kappa, float),
                "sigma": np.asarray(strength.sigma, float),
            }
        elif not strength.vanishes:
            assert isinstance(strength, ConstantK)
            kind = "constant"
            numbers |= {"k": np.asarray(strength.k, float)}
        inputs = getattr(self, "n_features_in_", 0)
        design = Design(tuple(own.items()), kind, forgetting < 1.0, inputs, self.feature_map)
        self._check_options()
        # Checks every number, too.
        design.learner(numbers)
        self._check_sums(design)
        return design, numbers

    def _check_sums(self, design: Design) -> None:
        """Raise ValueError on options that take sums where a state is kept."""
        if self.precision == "double" and design.adds_up:
            return
        if self._chooses() or self.feature_map != "layers":
            name, usual = ("ridge", "numbers") if self._chooses() else ("feature_map", '"layers"')
            raise ValueError(
                f"{name}: expected {usual} for -kF-Bayes, the paper's cold start, the square-root"
                f" solver or single precision, which keep no sums, got {getattr(self, name)!r}"
            )

    def _chooses(self) -> bool:
        """Whether lambda is chosen from what was learned."""
        return isinstance(self.ridge, str) and bool(one_of("ridge", self.ridge, RIDGE_NAMES))

    def _check_options(self) -> None:
        """Raise ValueError on options of the subclass out of range."""

    def _options(self) -> dict[str, Any]:
        return {}

    def _readout_kind(self) -> str | None:
        """Of the readout that guesses each batch; None where nothing is guessed."""
        return None

    def _begin(self, num_features: int, num_outputs: int, first: Any = None, **rest: Any) -> None:
        """A fresh state, with the `rest` of `Fitted`; everything learned before is gone.

        `first` (n, s) are the rows that come first, as the network takes them.
        """
        design, numbers = self._design()
        seed = np.int32(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
        width = num_features + bool(self.intercept)
        with precision_scope(self.precision):
            if self._is_on_sums():
                setting = self._setting(rest.get("guessed_by"))
                learned: Any = adding.begun(setting, seed, width, num_outputs, first)
            else:
                learned = compiled.begin(
                    design, numbers, seed, num_features=width, num_outputs=num_outputs
                )
        self._memo: dict[str, Any] = {}
        counts = np.zeros(num_outputs)
        self._become(Fitted(learned, counts, began_with=self._beginning(), **rest), Asked())

    def _start(self, given: Any) -> None:
        """Begin with what a subclass has checked; everything learned before is gone."""
        raise NotImplementedError

    def _grown(self, given: Any) -> Fitted:
        """What is fitted, with room for what is given."""
        raise NotImplementedError

    def _make_ready(self, given: Any, *, fresh: bool) -> None:
        """Begin, or go on with room for what is given."""
        if fresh:
            self._start(given)
            return
        self._same_design()
        self._taken_up()
        self._become(self._grown(given)._replace(scaling=given.scaling))

    def _become(self, fitted: Fitted, asked: Asked | None = None) -> None:
        if asked is None:
            asked = self._cache.asked_by_now if "_cache" in self.__dict__ else Asked()
        self._fitted, self._cache = fitted, Cache(asked)

    def _is_on_sums(self) -> bool:
        """Whether sums in double precision tell all that is learned."""
        return self.precision == "double" and self._design()[0].adds_up

    def _setting(self, kind: str | None) -> adding.Setting:
        design, numbers = self._design()
        forgetting, chooses = float(self.forgetting), self._chooses()
        return adding.Setting(design, numbers, self._options(), kind, forgetting, chooses)

    def _own_setting(self) -> adding.Setting:
        """What the programs of sums have to know; checks that the parameters are those of then."""
        self._same_design()
        return self._setting(self._readout_kind())

    def _taken_up(self) -> None:
        """Go on from what somebody who asked has computed already."""
        settled = self._cache.held("settled")
        if self._fitted.on_sums and settled is not None:
            self._become(settled)

    def _ridge(self) -> Any:
        """Lambda in force, a scalar or (L,)."""
        if not self._chooses():
            return self._same_design()[1]["ridge"]
        return self._cache.get(
            "lambda", lambda: adding.ridge_of(self._own_setting(), self._settled())
        )

    @property
    @of_one_moment
    def ridge_(self) -> np.ndarray:
        """(L,) lambda of the readouts; for `ridge="auto"` that of all rows so far."""
        check_is_fitted(self)
        return np.broadcast_to(np.asarray(self._ridge(), float), self._fitted.shape[:1]).copy()

    @property
    def num_rows_seen_(self) -> int:
        """Number of rows given so far."""
        return self._fitted.num_rows

    @property
    def mean_(self) -> np.ndarray:
        """(s,) mean that is subtracted from features, for `scale="first"`."""
        return self._scaling("mean_").mean

    @property
    def scale_(self) -> np.ndarray:
        """(s,) what features are divided by, for `scale="first"`."""
        return self._scaling("scale_").scale

    def _scaling(self, name: str) -> Scaling:
        scaling = self._fitted.scaling
        if scaling is None:
            raise AttributeError(f"{name}: expected features that were scaled, got none")
        return scaling

    @property
    def _dtype(self) -> type[np.floating[Any]]:
        return np.float64 if self.precision == "double" else np.float32

    def _beginning(self) -> dict[str, Any]:
        """The parameters that must not change while learning goes on."""
        names = (*_PROGRAM_OPTIONS, *_KEPT_OPTIONS)
        described = {name: _comparable(getattr(self, name)) for name in names}
        strength = self._design()[0].strength
        described["kind of k"] = strength if isinstance(strength, str) else ("adaptive", *strength)
        described["forgets"] = self.forgetting < 1.0
        return described

    def _same_design(self) -> tuple[Design, dict[str, Any]]:
        """The design that the state was begun with.

        Raises:
            ValueError: if parameters have changed since that shape what was learned.
        """
        found = self._design()
        if self._memo.get("checked") is not found:
            changed = differences(self._fitted.began_with, self._beginning())
            if changed:
                raise ValueError(
                    "parameters: expected those that learning began with; fit anew, or set back "
                    + "; ".join(changed)
                )
            self._memo["checked"] = found
        return found

    def _validated(self, X: Any, *, reset: bool, **options: Any) -> np.ndarray:
        """(n, s) finite numbers, with the names and the number of features checked; or CSR."""
        if isinstance(X, np.ndarray | jax.Array):
            X = plain_array("X", X)
        check_columns(X)
        checked: np.ndarray = validate_data(
            self, X, reset=reset, dtype="numeric", accept_sparse="csr", **options
        )
        return checked.astype(float) if checked.dtype.kind not in "fiub" else checked

    def _inputs(self, X: Any) -> np.ndarray:
        """(n, s) rows as the network takes them: checked, scaled, with the constant column."""
        check_is_fitted(self)
        return self._prepared(self._validated(X, reset=False), self._fitted.scaling)

    def _prepared(self, X: np.ndarray, scaling: Scaling | None) -> np.ndarray:
        """Validated rows, scaled and with the constant column."""
        rows: np.ndarray = rows_of(X, scaling, bool(self.intercept))
        return rows

    def _scaling_by(self, X: np.ndarray, weight: np.ndarray, *, reset: bool) -> Scaling | None:
        """The scaling of all rows, which is by those that came first."""
        before = None if reset else self._fitted.scaling
        if before is None and self.scale == "first" and X.shape[0]:
            if issparse(X):
                raise ValueError(
                    'scale: expected "none" for sparse X, which loses its zeros where a mean is'
                    ' subtracted, got "first"'
                )
            return scaling_of(X, weight).but_for(self._left_unscaled)
        return before

    def _announced(self, X_next: Any, scaling: Scaling | None) -> np.ndarray | None:
        """Inputs that come next, as the network takes them; asked once the scaling is known."""
        if X_next is None:
            return None
        return self._prepared(self._validated(X_next, reset=False), scaling)

    def _before_learning(self, batch: Batch) -> None:
        """What a subclass has to know of rows before they are learned."""

    def _learn(self, batch: Batch, X_next: np.ndarray | None) -> None:
        """Learn a batch, or hold it back until the next one can be announced to it.

        Raises:
            NumericalError: if the batch could not be learned; what was known stays.
        """
        design, _ = self._same_design()
        self._before_learning(batch)
        if X_next is not None and design.strength == "none":
            warnings.warn("X_next: not used, since k = 0", UserWarning, stacklevel=4)
        if self._fitted.on_sums:
            self._add(batch, None if design.strength == "none" else X_next)
            self._count(len(batch.X))
            return
        holds = self.lookahead == "hold" and design.strength != "none"
        pending = self._fitted.pending
        if pending is not None:
            self._advance(pending, batch.X)
        elif holds and X_next is None:
            self._check_fits(batch, design)
        if holds and X_next is None:
            # The caller may use the array again.
            self._become(self._fitted._replace(pending=batch._replace(X=batch.X.copy())))
        else:
            self._advance(batch, X_next)
        self._count(len(batch.X))

    def _add(self, batch: Batch, X_next: np.ndarray | None) -> None:
        """Learn a batch as sums.

        A batch held back would be learned with nothing announced after it whenever somebody asks,
        which is to learn it at once.
        """
        with precision_scope(self.precision):
            X_next = None if X_next is None else X_next.astype(np.float64)
        asked = self._cache.asked_by_now
        self._become(*adding.with_rows(self._own_setting(), self._fitted, batch, X_next, asked))

    def _count(self, rows: int) -> None:
        """That more rows were given, from which nothing else follows."""
        self._fitted = self._fitted._replace(num_rows=self._fitted.num_rows + rows)

    def _check_fits(self, batch: Batch, design: Design) -> None:
        """NumericalError for a batch that could not be learned later, and would block the rest."""
        rows, _ = self._rows(batch, None, design)
        with precision_scope(self.precision):
            fits = bool(compiled.fits(design, self._fitted.learned.W, rows))
        raise_unless(fits, "partial_fit: a value overflowed")

    def _after(self, batch: Batch, X_next: np.ndarray | None, failed: str) -> Fitted:
        """What is fitted after a batch, with none pending.

        Raises:
            NumericalError: with `failed`, if it could not be learned.
        """
        design, numbers = self._same_design()
        rows, announced = self._rows(batch, X_next, design)
        options, kind = self._options(), self._readout_kind()
        fitted = self._fitted
        state, counts, guesses = fitted.learned, fitted.counts, fitted.guesses
        fading, worth = None, batch.weight
        if design.forgets:
            fading = fading_of(rows.X[:, : design.num_inputs], rows.weight, float(self.forgetting))
            worth = worth * fading.of_rows[: len(worth)]
            counts = counts * fading.of_past
        with precision_scope(self.precision):
            state, made, healthy = compiled.learn(
                design, numbers, state, fitted.counts, rows, announced, fading, options, kind
            )
            raise_unless(bool(healthy), failed)
        if guesses is not None:
            counts = counts + np.bincount(batch.target, worth, len(counts))
            guesses = joined_guesses(guesses, made)
        return fitted._replace(learned=state, counts=counts, guesses=guesses, pending=None)

    def _advance(self, batch: Batch, X_next: np.ndarray | None) -> None:
        if self._fitted.on_sums:
            self._add(batch, X_next)
            return
        design, _ = self._same_design()
        parts = [batch]
        if design.additive and isinstance(design.strength, str):
            parts = [*in_parts(batch, MOST_ROWS)]
        for part in parts:
            announced = X_next if part is parts[-1] else None
            failed = "partial_fit: a factorisation failed or a value overflowed"
            self._become(self._after(part, announced, failed))

    def _fit_at_once(self, batch: Batch) -> Any:
        """Add all rows up and decide once, where the result does not depend on batches.

        Returns:
            theta and what goes with it, for guesses that leave a row out.
        """
        fitted = self._fitted
        counts, guesses = fitted.counts, fitted.guesses
        if not fitted.on_sums:
            return self._fit_state_at_once(batch)
        setting = self._own_setting()
        # Nothing is guessed before it is learned.
        learned = fitted.learned._replace(
            waiting=(batch,), guessed=len(batch.X), rows=len(batch.X), batches=1
        )
        fitted = adding.settled(setting, fitted._replace(learned=learned))
        if guesses is None:
            self._become(fitted)
            self._count(len(batch.X))
            # What cannot be solved is refused now.
            return self._solved("ridge")
        with precision_scope(self.precision):
            sums = fitted.learned.sums
            ridge = adding.ridge_of(setting, fitted)
            theta, inverse, sound = adding.programs_of(sums).conclude(sums, ridge)
        raise_unless(bool(sound), "fit: a factorisation failed or a value overflowed")
        fitted = fitted._replace(counts=counts, guesses=guesses)
        self._become(adding.with_standing(setting, fitted, theta))
        self._count(len(batch.X))
        return theta, inverse

    def _fit_state_at_once(self, batch: Batch) -> Any:
        design, numbers = self._same_design()
        with precision_scope(self.precision):
            state = self._fitted.learned
            sums = compiled.sums_now(state, numbers["ridge"])
            for part in in_parts(batch, self._fitted.rows_at_once):
                rows, _ = self._rows(part, None, design)
                sums = compiled.add_rows(design, state.W, sums, rows)
            state, sound = compiled.conclude(state, sums, numbers["ridge"], np.int32(1))
            raise_unless(bool(sound), "fit: a factorisation failed or a value overflowed")
        self._become(self._fitted._replace(learned=state))
        self._count(len(batch.X))
        return state

    def _fit_in_batches(self, batch: Batch) -> None:
        """Learn rows in random order, batch by batch, each announced to the one before."""
        design, _ = self._same_design()
        order = np.arange(len(batch.X))
        if not design.forgets:
            order = check_random_state(self.random_state).permutation(order)
        shuffled = Batch(batch.X[order], batch.target[order], batch.weight[order])
        size = int(np.clip(len(order) // FIT_BATCHES, *FIT_ROWS))
        parts = [*in_parts(shuffled, size)]
        for part, following in zip(parts, [*parts[1:], None], strict=True):
            hold = self.lookahead == "hold" and following is not None
            self._before_learning(part)
            self._advance(part, following.X if hold and following is not None else None)
        self._count(len(batch.X))

    def _settled(self) -> Fitted:
        """What is fitted once the held batch is learned too, with nothing announced after it."""
        if self._fitted.pending is None and not self._waits():
            return self._fitted
        layers, width, _ = self._fitted.shape
        if self._fitted.on_sums and layers * width**2 > MOST_KEPT:
            # A second Gram is not kept beside the first, whatever it takes to make it again.
            return self._settle()
        return self._cache.get("settled", self._settle)

    def _waits(self) -> bool:
        return self._fitted.on_sums and bool(self._fitted.learned.waiting)

    def _settle(self) -> Fitted:
        if self._fitted.on_sums:
            return adding.settled(self._own_setting(), self._fitted)
        assert self._fitted.pending is not None
        failed = "the batch held back: a factorisation failed or a value overflowed"
        return self._after(self._fitted.pending, None, failed)

    def _take_pending(self) -> None:
        """Learn the held batch, or the rows that wait, for good."""
        if self._fitted.pending is not None:
            self._advance(self._fitted.pending, None)
        elif self._waits():
            self._become(self._settled())

    def _check_unlearns(self) -> None:
        """ValueError where what is learned is not that of its rows alone."""
        if not self._same_design()[0].additive:
            raise ValueError(
                'unlearn: expected forgetting=1, cold_start="exact" and a constant k or'
                " adaptive_k(reuse_k=True), for which the state is that of its rows"
            )

    def _left_without(self, batch: Batch, squares: np.ndarray | None) -> Fitted:
        """What would be fitted had these rows never been seen; the counts stay.

        Args:
            batch: the rows.
            squares: (m,) of their targets; None where those learned before are not known.

        Raises:
            ValueError: if what would be left are no sums over rows.
        """
        self._taken_up()
        self._take_pending()
        before = self._fitted
        if before.on_sums:
            fitted = adding.without(self._own_setting(), before, batch)
            errors: Any = adding.errors_left(self._own_setting(), fitted, before)
            refuse_unless(errors is not None)
            known = np.asarray(before.learned.sums.counts)
        else:
            fitted, known = self._without(batch), before.counts
            if squares is None:
                return fitted
            with precision_scope(self.precision):
                left = known - squares
                errors, _ = compiled.squared_errors(fitted.learned, left, self.ridge)
        if (np.asarray(errors) < -1e-6 * (1.0 + known)).any():
            raise ValueError(
                "unlearn: expected rows that were learned, with the labels they had; what would be"
                " left has negative squared errors"
            )
        return fitted

    def _without(self, batch: Batch) -> Fitted:
        """What would be fitted had these rows never been seen."""
        design, numbers = self._same_design()
        fitted = self._fitted
        with precision_scope(self.precision):
            sums = compiled.sums_now(fitted.learned, numbers["ridge"])
            for part in in_parts(batch, self._fitted.rows_at_once):
                rows, _ = self._rows(part, None, design)
                sums = compiled.subtract_rows(design, fitted.learned.W, sums, rows)
            state, sound = compiled.conclude(fitted.learned, sums, numbers["ridge"], np.int32(0))
        refuse_unless(bool(sound))
        return fitted._replace(learned=state)

    def _solved(self, kind: str) -> Solved:
        """The readout of that kind of the sums as they stand, solved when it is first asked for."""
        shrinkage = float(self._options().get("shrinkage", 0.0))
        return self._cache.get((kind, shrinkage), lambda: self._solve(kind))

    def _solve(self, kind: str) -> Solved:
        setting, learned = self._own_setting(), self._fitted.learned
        if kind == "nearest_mean":
            return adding.solved(setting, self._settled(), kind)
        if kind != "ridge":
            return adding.solved(setting.decided(self._ridge()), self._settled(), kind)
        before, standing = self._cache.asked, learned.standing
        after_few = learned.rows - before.rows <= few_rows(learned.shape[1])
        asked = Asked(learned.rows, before.times + 1 if after_few else 0, before.following)
        if standing is not None and standing.rows == learned.rows and setting.guides(learned):
            self._cache.note(asked)
            return Solved(standing.theta, standing.offset)
        at = adding.follows(setting, self._fitted, asked)
        if at is None and adding.is_worth_following(setting, learned, asked):
            at = adding.followed_anew(setting, self._settled())
        self._cache.note(asked._replace(following=at))
        if at is None:
            return adding.solved(setting.decided(self._ridge()), self._settled(), kind)
        return adding.unshifted(at.theta)

    def _rows(
        self, batch: Batch, X_next: np.ndarray | None, design: Design
    ) -> tuple[PaddedRows, PaddedRows | None]:
        """The batch and the announced inputs, padded to one size, so that sizes do not multiply."""
        longest = max(len(batch.X), 0 if X_next is None else len(X_next))
        size = rows_for(longest)
        X = self._sized(batch.X, size)
        rows = PaddedRows(X, padded(batch.weight, size), padded(batch.target, size))
        if design.strength == "none":
            return rows, None
        if X_next is None:
            return rows, PaddedRows(np.zeros_like(X), np.zeros(size))
        return rows, PaddedRows(self._sized(X_next, size), padded(np.ones(len(X_next)), size))

    def _sized(self, X: np.ndarray, size: int) -> np.ndarray:
        """Padded, and of one dtype, so that programs do not multiply by that of the caller."""
        with np.errstate(over="ignore"):
            return padded(X.astype(self._dtype), size)

    def _program(self) -> Partial:
        """From (n, s) padded rows, intercept included, to (n, m) numbers told of each.

        A tree whose leaves are all that was learned, so that it can be exported.
        """
        raise NotImplementedError

    def _in_buckets(self, X: np.ndarray, program: Callable[[np.ndarray], Any]) -> list[np.ndarray]:
        """Results of a program on padded parts of X, without the padding."""
        check_is_fitted(self)
        results = []
        most = self._fitted.rows_at_once
        with precision_scope(self.precision):
            for start in range(0, len(X), most):
                part = X[start : start + most]
                result = np.asarray(program(self._sized(part, rows_for(len(part)))))
                results.append(result[..., : len(part), :])
                self._check_answers(results[-1], start)
        return results

    def _check_answers(self, answers: np.ndarray, start: int) -> None:
        """NumericalError naming the first row without a finite answer; (..., rows, m)."""
        with np.errstate(all="ignore"):
            # Half the price of looking at every number.
            if np.isfinite(answers.sum(dtype=np.float64)):
                return
        lost = ~np.isfinite(answers).all(axis=(*range(answers.ndim - 2), -1))
        if lost.any():
            row = start + int(np.argmax(lost))
            raise NumericalError(
                f"X: row {row} is too large for {self.precision} precision, its answer is not"
                f" finite ({int(lost.sum())} such rows). Remedy: {REMEDY}."
            )

    def __getstate__(self) -> dict[str, Any]:
        # JAX would read float64 arrays back as float32 where that is the global default.
        state = dict(BaseEstimator.__getstate__(as_it_stands(self)))
        state.pop(TURN, None)
        if "_fitted" in state:
            fitted = state["_fitted"]
            learned = fitted.learned
            learned = learned.on_host() if fitted.on_sums else jax.tree.map(_on_host, learned)
            state["_fitted"] = fitted._replace(learned=learned)
            state["_memo"], state["_cache"] = {}, Cache()
        return state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Whether anything was learned."""
        return "_fitted" in self.__dict__


def _comparable(value: Any) -> Any:
    return value.tolist() if isinstance(value, np.ndarray | np.generic | jax.Array) else value


@cache
def _parameters_of(kind: Any) -> list[str]:
    """Names of the parameters; scikit-learn takes 0.2 ms to find them."""
    return kind._get_param_names()


def _on_host(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return leaf
    return np.asarray(leaf)


def row_weights(sample_weight: Any, count: int) -> np.ndarray:
    """(count,) finite weights of at least 0; ones for None, and one number applies to all rows.

    Raises:
        ValueError: on anything else.
    """
    if sample_weight is None:
        return np.ones(count)
    if np.ndim(np.asarray(sample_weight)) == 0:
        sample_weight = np.full(count, sample_weight)
    weight = check_array(
        sample_weight,
        ensure_2d=False,
        dtype=float,
        input_name="sample_weight",
        ensure_min_samples=0,
    )
    if weight.shape != (count,):
        raise ValueError(f"sample_weight: expected shape ({count},), got {weight.shape}")
    if (weight < 0).any():
        raise ValueError(f"sample_weight: expected at least 0, got {weight.min()}")
    return weight


def refuse_unless(sound: bool) -> None:
    """Raise ValueError on rows that were never learned."""
    if not sound:
        raise ValueError(
            "unlearn: expected rows that were learned, with the weights they had; what"
            " would be left is not positive definite"
        )


def in_parts(batch: Batch, most: int) -> Iterator[Batch]:
    """The batch in pieces of at most so many rows."""
    for start in range(0, len(batch.X), most):
        here = slice(start, start + most)
        yield Batch(batch.X[here], batch.target[here], batch.weight[here])
