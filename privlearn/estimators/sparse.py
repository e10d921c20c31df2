"""Private regression with few coefficients, in one pass."""

from __future__ import annotations

import dataclasses
from typing import Any, Final, NamedTuple, Self, cast, final

import numpy as np
from sklearn.utils.metaestimators import available_if

from privlearn.errors import HorizonError
from privlearn.estimators.accounts import Account, Terms
from privlearn.estimators.base import side_information
from privlearn.estimators.linear import PrivateLinearRegression
from privlearn.estimators.methods import Fitter, WithConstant
from privlearn.estimators.models import LinearModel
from privlearn.learners import DPPOFW
from privlearn.learners.messages import PrivateCounts
from privlearn.losses.budgets import Currency, GaussianDP, Renyi
from privlearn.mechanisms.constraint_sets import LpBall, Simplex
from privlearn.rows.domains import Array
from privlearn.tables.encoding import Encoding
from privlearn.values.validate import count, positive

_MOST_SUMS: Final = 500  # Inputs beyond which method="auto" may choose vertices, which cost no mu
_CHOOSING: Final = ("choices", "vertices")


class _Stream(NamedTuple):
    """What `partial_fit` goes on with."""

    rows: int
    account: Account
    learner: Any
    counts: PrivateCounts

    def add(self, more: PrivateCounts) -> None:
        self.counts.rows += more.rows
        for reason, number in more.reasons.items():
            self.counts.add(reason, number)


def _has_rows(estimator: PrivateSparseRegression) -> bool:
    if estimator.n_rows is None:
        raise AttributeError("n_rows: state the public number of rows of all calls together")
    return True


@final
class PrivateSparseRegression(PrivateLinearRegression):
    """Least squares on an ℓ1 ball or a simplex under (ε, δ)-differential privacy, in one pass.

    For many columns of which few matter: Frank-Wolfe and thresholded sums (`DPPOFW`) over epochs of
    rows, each of which has the whole budget.  `fit` shuffles the rows, as files are often sorted;
    `partial_fit` takes them as they come.

    Args:
        constraint: "l1" (the sum of |coefficients|, the intercept's among them, is at most
            ``radius``) or "simplex" (they are not negative and their sum is 1, without intercept:
            a mixture of the columns, in their own units if all bounds are those of the target).
        radius: of the ℓ1 ball, for a target on [−1, 1]; public.
        n_rows: for `partial_fit` the public number of rows of all its calls.
        method: "auto", "thresholds" (ℓ1), "projections", "choices" (ℓ1) or "vertices", see
            `DPPOFW`.
        budget, schema, bounds, target_bounds, ledger, accountant, simulate_noise: as in
            `PrivateLinearRegression`.

    Attributes:
        coef_: shape (inputs,), for encoded inputs and a target on [−1, 1]; see `coef_table_`.
        intercept_: a number, on the same scale.
        n_features_in_, feature_names_in_: as in scikit-learn.

    Source: `DPPOFW`; the guarantee is what the ledger of the fit proves.
    """

    _stream: _Stream | None = None

    def __init__(
        self,
        budget: Any = None,
        *,
        constraint: str = "l1",
        radius: float = 2.0,
        n_rows: int | None = None,
        schema: Any = None,
        bounds: Any = None,
        target_bounds: Any = None,
        method: str = "auto",
        ledger: Any = None,
        accountant: Any = None,
        simulate_noise: int | None = None,
    ) -> None:
        self.budget = budget
        self.constraint = constraint
        self.radius = radius
        self.n_rows = n_rows
        self.schema = schema
        self.bounds = bounds
        self.target_bounds = target_bounds
        self.method = method
        self.ledger = ledger
        self.accountant = accountant
        self.simulate_noise = simulate_noise

    def fit(self, X: Any, y: Any = None, *, people: Any = None) -> Self:
        """Learns from all records in random order, and pays; as in `PrivateLinearRegression`.

        What `partial_fit` had begun is forgotten.
        """
        self._stream = None
        return super().fit(X, y, people=people)

    @available_if(_has_rows)  # type: ignore[untyped-decorator]  # scikit-learn has no types
    def partial_fit(self, X: Any, y: Any = None, *, people: Any = None) -> Self:
        """Learns from the next rows, of ``n_rows`` in all its calls.

        The first call opens the account, with the whole budget; the last row closes it, and only
        then is there a ``certificate_``.  The model is public, and can be used, after every call.

        Args:
            X, y, people: as in `fit`.

        Raises:
            HorizonError: more rows than are left.
            BudgetError, DataError, ValueError, TypeError, LedgerError: as in `fit`; or another
                schema than in the first call.
            AttributeError: ``n_rows`` is not stated.
        """
        given = self._given(X, y, people)
        stream = self._stream
        rows = count(n_rows=cast(int, self.n_rows)) if stream is None else stream.rows
        came = 0 if stream is None else stream.counts.rows
        if came + given.rows > rows:
            raise HorizonError(
                f"n_rows = {rows}: {came:,} rows have come, and here are {given.rows:,} more; "
                "fit a clone to others"
            )
        if stream is None:
            terms, schema = self._terms(), given.encoding.schema
            currency = self._currency(given.encoding)
            account = Account(terms, rows, currency, given.rule, side_information(schema))
            stream = _Stream(rows, account, self._started(account, given), PrivateCounts())
            self._stream, self._model = stream, self._model_of(given.encoding, stream.learner)
        elif given.encoding.schema != self._model.encoding.schema:
            raise ValueError("schema: is another than in the first call of partial_fit")
        inputs, targets, whose, _ = given.records
        stream.learner.partial_fit(inputs, targets, people=whose)
        stream.add(given.counts)
        if stream.counts.rows == rows:
            self._finish(given, stream.account, stream.learner)
        else:
            self._model, self.method_ = self._model_of(given.encoding, stream.learner), self.method
            came = stream.counts.rows
            self.guarantee_ = f"open at {came:,} of {rows:,} rows; the whole budget counts"
        self._private_counts = stream.counts
        return self

    def _reads_once(self, encoding: Encoding) -> bool:
        return True

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_stream": None}

    def _features(self, X: Any, *, reset: bool) -> Any:
        return super()._features(X, reset=reset and self._stream is None)

    def _terms(self) -> Terms:
        terms = super()._terms()
        # the file is there since the first call
        return terms if self._stream is None else dataclasses.replace(terms, ledger=None)

    def _learner(self, encoding: Encoding, n: int) -> Fitter:
        method: Any = self.method
        if self.constraint == "simplex":
            if encoding.dim < 2:
                raise ValueError(
                    f"n_features = {encoding.dim}: a simplex mixes at least two inputs"
                )
            return cast(Fitter, DPPOFW(Simplex(encoding.dim), method=method))
        if self.constraint != "l1":
            raise ValueError(f"constraint = {self.constraint!r}: must be 'l1' or 'simplex'")
        ball = LpBall(encoding.dim + 1, 1, positive(radius=self.radius))
        return WithConstant(DPPOFW(ball, method=method))

    def _currency(self, encoding: Encoding) -> type[Currency]:
        choosing = self.method in _CHOOSING or (self.method == "auto" and encoding.dim > _MOST_SUMS)
        return Renyi if choosing else GaussianDP

    def _model_of(self, encoding: Encoding, learner: Any) -> LinearModel:
        intercept = getattr(learner, "intercept_", 0.0)
        coef: Array = learner.coef_
        return LinearModel(encoding, "squared", coef[None], np.array([intercept]))
