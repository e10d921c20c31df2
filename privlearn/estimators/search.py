"""A search for the best of several candidates, paid for as a whole from one ledger.

A default that was chosen on other tables beats or ties a search in most of our measurements: a
search pays where n·μ is large.  `PrivateSearchCV.plan` says beforehand what is left for each fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone
from sklearn.model_selection import ParameterGrid
from sklearn.utils.validation import check_is_fitted

from privlearn.accountants import CentralAccountant, Certificate, Delegated
from privlearn.accountants.books import Book, guarantee_line
from privlearn.errors import BudgetError
from privlearn.estimators.accounts import FIT, STATE_IT
from privlearn.estimators.base import Given, PrivateEstimator, side_information
from privlearn.estimators.choice import PrivateChoiceModel
from privlearn.estimators.models import LinearModel, PublicModel
from privlearn.estimators.search_plan import SearchPlan, planned
from privlearn.estimators.stopping import SCORE_BITS, Opened, RandomStopping, RowScores, sealed
from privlearn.losses.budgets import ZCDP, ApproxDP, Currency, GaussianDP, PureDP
from privlearn.mechanisms import ReportNoisyMax
from privlearn.mechanisms.vertices import SimplexVertices
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import Encoded, read_encoded
from privlearn.tables.table import Table, public_split

_WORST: Final = 0.25
"""A squared residual, of targets on [−1, 1], that counts as a whole miss."""
_DECLARED: Final = ("schema", "bounds", "target_bounds", "classes")
_PAID: Final = ("budget", "ledger", "accountant", "simulate_noise")
_PEOPLE: Final = "rows of a search"
_TIME: Final = (
    "only the operator learns how long the search ran, which tells about the number of its tries"
)


class Chosen(NamedTuple):
    """What `select_best` chose."""

    model: Any
    """The candidate."""
    place: int
    """Of the candidate in their list."""
    guarantee: str
    """Of the choice, in one line."""
    certificate: Certificate


def select_best(
    candidates: Sequence[PrivateEstimator | PublicModel],
    X: Any,
    y: Any = None,
    *,
    budget: ApproxDP | PureDP,
    ledger: Any = None,
    simulate_noise: int | None = None,
) -> Chosen:
    """The one of several finished models that predicts the most of some rows, as a noisy choice.

    Only the choice is paid for, by report-noisy-max: the candidates must be public, and learned
    from other rows than these.  So it chooses among what was made of one release.  A row counts
    1 for a class that is predicted; of a regression 1 − 4r², r the residual on [−1, 1], at least 0.

    Args:
        candidates: at least 2 fitted models of one schema.
        X, y: rows that none of them learned from, as in their ``predict`` and ``score``.
        budget: of the choice, which spends ε of it.
        ledger, simulate_noise: as of an estimator.

    Raises:
        BudgetError, LedgerError: as of an estimator's ``fit``.
        TypeError, ValueError: no such models, or of different schemas.

    Source: docs/proofs.md, "Choices".
    """
    if len(candidates) < 2:
        raise ValueError(f"candidates: {len(candidates)} of them: must be at least 2")
    models = [_public_model(each) for each in candidates]
    schema = models[0].encoding.schema
    if any(model.encoding.schema != schema for model in models):
        raise ValueError("candidates: must be models of one schema")
    if not isinstance(budget, ApproxDP | PureDP):
        raise BudgetError("budget: state it, as ApproxDP(1, 1e-5) or PureDP(1)")
    encoding = models[0].encoding
    if isinstance(X, Table):
        given = Given.of(encoding, X)
    else:
        given = Given(encoding, read_encoded(X, encoding, target=y))
    _check_rows_are_people(given)
    rows = Opened(given.records.inputs, np.asarray(given.records.targets))
    book = Book(ledger, simulate_noise, "select-best", "a finished choice")
    declared = side_information(schema)
    with closing(
        book.account(PureDP(budget.epsilon), users=range(given.rows), side_information=declared)
    ) as account:
        index = _noisy_max(models, rows, account)
    delta = float(budget.delta) if isinstance(budget, ApproxDP) else None
    certificate = book.certificate(delta)
    text = guarantee_line(certificate, book.path, shared=False)
    return Chosen(candidates[index], index, text, certificate)


class PrivateSearchCV(MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]  # no types
    """The best of a grid of private estimators, under one (ε, δ) for fits and choice together.

    Rows are held out at random, by a split that no row decides.  Neither how the others did nor how
    many were tried is kept or told.

    Args:
        estimator: a private estimator, with what is declared and without a budget.
        grid: parameters with lists of values, or several such mappings, as in scikit-learn.
        budget: ApproxDP(epsilon, delta), of everything.
        held_out: a share of the rows, or a number of them.
        ledger: as of the estimators.
        method: "all" fits each candidate once; "stopping" draws candidates a secret number of
            times, about which only the time it takes tells; "auto" takes stopping where it leaves
            each fit 1.2 times the μ, see `plan`.

    Attributes:
        best_params_, best_index_: in the order of `sklearn.model_selection.ParameterGrid`.
        best_estimator_: as it was chosen; a further fit would have to be paid for.
        guarantee_, certificate_, ledger_: as of the estimators, for the whole.

    Source: `privlearn.estimators.search_plan`, `privlearn.losses.selection`.
    """

    def __init__(
        self,
        estimator: Any,
        grid: Any,
        *,
        budget: Any = None,
        held_out: float | int = 0.2,
        ledger: Any = None,
        method: str = "auto",
    ) -> None:
        self.estimator = estimator
        self.grid = grid
        self.budget = budget
        self.held_out = held_out
        self.ledger = ledger
        self.method = method

    best_estimator_: PrivateEstimator
    best_params_: dict[str, Any]
    best_index_: int
    guarantee_: str
    certificate_: Certificate
    ledger_: str | None

    def plan(self) -> SearchPlan:
        """Which way is taken, what each fit gets, and what a default would have; reads no row.

        Raises:
            BudgetError, TypeError, ValueError: as `fit`.
        """
        budget = self._checked()
        return self._planned(budget, [_currency_ahead(each) for each in self._candidates()])

    def fit(self, X: Any, y: Any = None) -> Self:
        """Searches, and pays for it.

        Args:
            X, y: as of the estimator.

        Raises:
            BudgetError: no budget is stated.
            TokenError: a fit failed inside of stopping, whose charge stays.
            TypeError, ValueError, DataError: a parameter or the form of the data is wrong; nothing
                was spent.
            LedgerError: the file of the ledger is there already.
        """
        budget, candidates = self._checked(), self._candidates()
        seed = self.estimator.simulate_noise
        book = Book(self.ledger, seed, "private-search", FIT)
        for each in candidates:
            each.set_params(budget=budget, simulate_noise=None)
        given = candidates[0]._given(X, y, None)
        for each in candidates[1:]:
            each._loss(given.encoding.schema)
        _check_rows_are_people(given)
        currencies = [each._currency(given.encoding) for each in candidates]
        plan = self._planned(budget, currencies)
        split = public_split(given.rows, self.held_out, seed=seed)
        search = _Search(candidates, given, plan, book, _common(currencies), split)
        index, best = search.stopping(self._grid()) if plan.way == "stopping" else search.every()
        self.best_index_, self.best_params_ = index, list(ParameterGrid(self.grid))[index]
        self.certificate_ = book.certificate(float(budget.delta))
        self.ledger_ = book.path
        self.guarantee_ = guarantee_line(self.certificate_, book.path, shared=False)
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(candidates[0], name):
                setattr(best, name, getattr(candidates[0], name))
        best.guarantee_, best.certificate_ = self.guarantee_, self.certificate_
        best.ledger_, best._head, best._private_counts = self.ledger_, book.head, search.counts
        self.best_estimator_ = best
        book.close()
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """As of ``best_estimator_``."""
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)

    def score(self, X: Any, y: Any = None) -> float:
        """As of ``best_estimator_``; for the operator only."""
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    def _checked(self) -> ApproxDP:
        if self.budget is None:
            raise BudgetError(STATE_IT)
        if not isinstance(self.budget, ApproxDP):
            raise TypeError(f"budget = {self.budget!r}: a search is paid as ApproxDP(1, 1e-5)")
        if not isinstance(self.estimator, PrivateEstimator):
            raise TypeError(_refused(self.estimator))
        if isinstance(self.estimator, PrivateChoiceModel):
            raise TypeError("estimator: a search scores single rows, and no choices among items")
        for name in ("budget", "ledger", "accountant"):
            if getattr(self.estimator, name, None) is not None:
                raise ValueError(f"estimator.{name}: is the search's; leave it out there")
        return self.budget

    def _candidates(self) -> list[PrivateEstimator]:
        grid = list(ParameterGrid(self.grid))
        for name in sorted({name for each in grid for name in each} & {*_DECLARED, *_PAID}):
            raise ValueError(f"grid: {name} is the same for all candidates: state it in estimator")
        if len(grid) < 2:
            raise ValueError(f"grid: {len(grid)} candidate: fit it, with the whole budget")
        return [clone(self.estimator).set_params(**each) for each in grid]

    def _planned(self, budget: ApproxDP, currencies: Sequence[type[Currency]]) -> SearchPlan:
        common = _common(currencies)
        cap = CentralAccountant(
            budget, users=range(1), noise=NoiseSource.simulation(0), currency=common
        ).budget
        default = float(cap.gaussian_mass()) ** 0.5
        gaussian = common is GaussianDP
        return planned(len(currencies), budget, default, self.method, gaussian=gaussian)

    def _grid(self) -> list[dict[str, str]]:
        return [
            {name: f"{value!r:.80}" for name, value in sorted(each.items())}
            for each in ParameterGrid(self.grid)
        ]


class _Search:
    """One run: rows to learn from are the first users of its accounts, those held out the last."""

    def __init__(
        self,
        candidates: Sequence[PrivateEstimator],
        given: Given,
        plan: SearchPlan,
        book: Book,
        currency: type[Currency],
        split: tuple[NDArray[np.intp], NDArray[np.intp]],
    ) -> None:
        self._candidates, self._plan, self._book = candidates, plan, book
        self._currency, self._encoding = currency, given.encoding
        n, records = given.rows, given.records
        first, last = split
        if not len(first) or not len(last):
            raise ValueError(f"held_out: {len(last)} of {n} rows: must leave some on both sides")
        self._learn, self._users = range(len(first)), range(n)
        self._held = range(len(first), n)
        order = np.r_[first, last]
        self._rows = Opened(records.inputs[order], np.asarray(records.targets)[order])
        learned = set(first.tolist())
        told_of = [each for each in records.messages if each[0] in learned]
        self.counts = self._part_of(self._rows.part(self._learn), told_of).counts
        self._declared = side_information(given.encoding.schema)
        self._rehearse()

    def _rehearse(self) -> None:
        """Starts every learner once: what is wrong with one is said before anything is spent."""
        noise = NoiseSource.simulation(0)
        for which in range(len(self._candidates)):
            with self._account(self._cap(), self._learn, noise=noise) as account:
                part = account.delegate(self._part(account), users=self._learn, label="fit")
                self._learner(which).start(part)

    def _cap(self) -> ApproxDP | GaussianDP:
        tries = self._plan.tries
        if self._plan.way == "stopping" and tries is not None:
            return GaussianDP.from_mu_squared(tries.loss.mu_squared)
        return self._plan.budget

    def _part(self, account: CentralAccountant[Any]) -> Currency:
        cap: Currency = account.budget
        return cap if self._plan.way == "stopping" else cap.split(self._plan.candidates)[0]

    def _account(
        self, cap: Any, users: range, *, noise: NoiseSource | None = None, **given: Any
    ) -> CentralAccountant[Any]:
        if isinstance(cap, ApproxDP):
            given["currency"] = self._currency
        if noise is not None:
            return CentralAccountant(cap, users=users, noise=noise, **given)
        declared = self._declared if self._plan.way == "all" else [*self._declared, _TIME]
        return self._book.account(
            cap, users=users, population=_PEOPLE, side_information=declared, **given
        )

    def _learner(self, which: int) -> Any:
        return self._candidates[which]._learner(self._encoding, len(self._learn))

    def _part_of(self, rows: Opened, messages: Sequence[tuple[int, str]] = ()) -> Given:
        return Given(self._encoding, Encoded(rows.x, rows.y, None, list(messages)))

    def _fit(self, which: int, part: Delegated[Any], rows: Opened) -> PrivateEstimator:
        made: PrivateEstimator = clone(self._candidates[which]).set_params(accountant=part)
        given = self._part_of(rows)
        account = made._open_account(given)
        learner = made._started(account, given)
        made._learn(given, account, learner)
        made._model, made.method_ = made._model_of(self._encoding, learner), made.method
        made.set_params(accountant=None)
        return made

    def every(self) -> tuple[int, PrivateEstimator]:
        """Fits all candidates, and chooses one by the rows that were held out."""
        fits = []
        account = self._account(self._plan.budget, self._learn)
        with closing(account):
            # both accounts stand in the ledger before anything is released
            choice = self._account(PureDP(self._plan.budget.epsilon), self._held)
            with closing(choice):
                learn = self._rows.part(self._learn)
                for which in range(self._plan.candidates):
                    part = self._part(account)
                    with account.delegate(part, users=self._learn, label="fit") as own:
                        fits.append(self._fit(which, own, learn))
                models = [fit._fitted() for fit in fits]
                index = _noisy_max(models, self._rows.part(self._held), choice)
        return index, fits[index]

    def stopping(self, grid: Sequence[Any]) -> tuple[int, PrivateEstimator]:
        """Fits a secret number of times.

        The account stays open in the ledger, as the entry that ends one has a date: it would tell
        how long it took.
        """
        tries, budget = self._plan.tries, self._plan.budget
        assert tries is not None
        classes = self._encoding.schema.classes
        mechanism: RandomStopping[PrivateEstimator] = RandomStopping(
            tries,
            self._plan.candidates,
            self._fit,
            lambda fit: np.r_[fit._fitted().coef.ravel(), fit._fitted().intercept.ravel()],
            lambda fit, rows: _row_scores(fit._fitted(), rows),
            self._encoding.dim,
            1.0 if classes is None else len(classes) - 1.0,
            self._learn,
            grid,
        )
        account = self._account(PureDP(budget.epsilon), self._users, failure=budget.delta)
        token = account.issue(mechanism.loss(), users=self._users, label="search")
        index, best, _ = mechanism.release(sealed(*self._rows), token, account.noise)
        return index, best


def _noisy_max(
    models: Sequence[LinearModel], rows: Opened, account: CentralAccountant[PureDP]
) -> int:
    """Which model has the most hits, by an exponential mechanism over all of the account."""
    points = SimplexVertices(len(models))
    mechanism = ReportNoisyMax.calibrated(points, 0.5, account.budget, adjacency=account.adjacency)
    centred = np.stack([_row_scores(model, rows) for model in models], axis=1) / 2**SCORE_BITS - 0.5
    centred[~np.isfinite(rows.y)] = np.nan
    token = account.issue(mechanism.loss(), users=account.users, label="choice")
    return int(mechanism.release(Rows.seal(centred, users=account.users), token).value[0])


def _row_scores(model: LinearModel, rows: Opened) -> RowScores:
    """How well each row is predicted, whole numbers of 2^−10 in 0..2^10; 0 of null rows."""
    usable = np.isfinite(rows.y) & np.isfinite(rows.x).all(axis=1)
    scores = np.where(usable[:, None], rows.x, 0.0) @ model.coef.T + model.intercept
    if model.loss == "squared":
        missed = np.clip((np.clip(scores[:, 0], -1, 1) - rows.y) ** 2 / _WORST, 0, 1)
        good = 1 - np.where(usable, missed, 1.0)
    else:
        places = scores.argmax(axis=1) if model.loss == "softmax" else scores[:, 0] > 0
        good = (places == rows.y) & usable
    return np.asarray(np.floor(good * 2**SCORE_BITS), dtype=np.int64)


def _public_model(candidate: object) -> LinearModel:
    model = candidate._model if isinstance(candidate, PublicModel) else None
    if isinstance(candidate, PrivateChoiceModel):
        raise TypeError("candidates: rows are scored singly, and choices are among several items")
    if isinstance(candidate, PrivateEstimator):
        model = candidate._fitted()
    if isinstance(model, LinearModel):
        return model
    raise TypeError(
        f"candidates: {type(candidate).__name__}: must be fitted private estimators, or models of "
        "load_model"
    )


def _currency_ahead(estimator: PrivateEstimator) -> type[Currency]:
    """What an estimator counts in, by what is declared."""
    schema, bounds = estimator.schema, estimator.bounds
    if schema is None and bounds is None:
        raise ValueError("estimator.bounds: state them, or estimator.schema")
    if schema is None:
        names = list(bounds) if isinstance(bounds, Mapping) else None
        dim = len(bounds) if names or np.ndim(bounds) == 2 else 1
        schema = estimator._declared(dim, names)
    return estimator._currency(Encoding(schema))


def _common(currencies: Sequence[type[Currency]]) -> type[Currency]:
    """What all of several methods have a price in."""
    return currencies[0] if len(set(currencies)) == 1 else ZCDP


def _check_rows_are_people(given: Given) -> None:
    if given.records.people is not None:
        raise ValueError(
            "people: one person with many rows has no price in a search; fit one estimator"
        )


def _refused(estimator: object) -> str:
    steps = getattr(estimator, "steps", None)
    if steps is None:
        return f"estimator = {estimator!r:.80}: must be a private estimator"
    learned = [
        name
        for name, step in steps
        if any(key.endswith("_") and not key.startswith("_") for key in vars(step))
    ]
    which = f" (it has: {', '.join(learned)})" if learned else ""
    return (
        f"estimator: a Pipeline, whose steps learn from rows outside of the guarantee{which}; "
        "declare bounds and categories in a Schema, which scales by them"
    )
