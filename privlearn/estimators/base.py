"""What all private estimators share: declared columns, one account a fit, and a public model.

Every ``fit`` is paid from an account of its own, or from a part of ``accountant=``.  Columns are
scaled by what was declared about them, never by the rows.  A record that cannot be used becomes the
null record, which changes nothing that others can see; `private_counts_` tells the operator how
many there were.
"""

from __future__ import annotations

import logging
import os
import secrets
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from html import escape
from typing import Any, Final, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data

from privlearn.accountants import Certificate
from privlearn.accountants.books import guarantee_line
from privlearn.estimators.accounts import Account, Terms
from privlearn.estimators.coefficients import CoefficientTable
from privlearn.estimators.methods import Fitter, Loss, Method, Task, method_named
from privlearn.estimators.models import LinearModel, save_model, table_to_predict
from privlearn.learners.messages import PrivateCounts
from privlearn.losses.budgets import Currency
from privlearn.rows.domains import Array
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import Encoded, read, read_encoded
from privlearn.tables.schema import Schema, plain_message
from privlearn.tables.table import Table
from privlearn.values.participation import Participation

_LOG: Final = logging.getLogger("privlearn")
_LOOKED: Final = (
    "whoever wrote the schema had seen private values of these data: what the schema tells of them "
    "is not covered"
)
_OPERATOR_ONLY: Final = frozenset({"private_counts_", "_private_counts"})


class Given(NamedTuple):
    """The records of a fit, and what is declared of them; all but their number is private."""

    encoding: Encoding
    records: Encoded
    absent: int = 0
    """So many of the last stand for records that did not come."""

    def __repr__(self) -> str:
        return f"<Given: {self.rows} rows>"

    @classmethod
    def of(cls, encoding: Encoding, table: Table) -> Self:
        """Those of a table that was read.

        Raises:
            ValueError: by another schema, whose persons and categories would be others.
        """
        if table.schema != encoding.schema:
            raise ValueError("schema: is not the one that the table was read with, table.schema")
        inputs, targets = encoding.inputs(table), encoding.targets(table)
        records = Encoded(inputs, targets, table.people, table.messages)
        return cls(encoding, records, table.absent)

    @property
    def rows(self) -> int:
        """How many there are; public."""
        return len(self.records.inputs)

    @property
    def counts(self) -> PrivateCounts:
        """How many are null, and why."""
        counts = PrivateCounts(self.rows)
        for _, reason in self.records.messages:
            counts.add(reason)
        if self.absent:
            counts.add("never came", self.absent)
        return counts

    @property
    def rule(self) -> Participation | None:
        """How often a person may have a row; None where each row is a person."""
        if self.records.people is None:
            return None
        return Participation(self.encoding.schema.rows_per_person, pooled=True)


class HeldOut(NamedTuple):
    """Rows that were not paid for; private."""

    targets: Array
    """As `Encoding.targets`, shape (m,) of those that are usable."""
    scores: Array
    known: NDArray[np.bool_]
    """Which rows these are, shape (n,)."""

    def __repr__(self) -> str:
        return "<HeldOut>"


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """The base of private estimators; parameters are those of its subclasses.

    Subclasses declare the target (`_target_of`), say what is to be learned (`_loss`), and may hand
    over a learner of their own (`_learner`).
    """

    budget: Any
    schema: Any
    bounds: Any
    method: str
    ledger: Any
    accountant: Any
    simulate_noise: int | None
    _private_counts: PrivateCounts

    # What subclasses say ------------------------------------------------------------------------

    @abstractmethod
    def _declared(self, dim: int, names: Sequence[str] | None) -> Schema:
        """The schema of an array of ``dim`` columns.

        Raises:
            ValueError: bounds, target_bounds or classes are missing, or not of their form.
        """

    @abstractmethod
    def _loss(self, schema: Schema) -> Loss:
        """What is to be learned.

        Raises:
            ValueError: the schema's target is of another kind.
        """

    def _learner(self, encoding: Encoding, n: int) -> Fitter:
        """A learner that has not started; may be called twice."""
        schema = encoding.schema
        classes = len(schema.classes or ())
        task = Task(
            self._loss(schema), encoding.dim, classes, encoding.row_norm, schema.rows_per_person
        )
        return self._chosen(encoding).make(task)

    def _currency(self, encoding: Encoding) -> type[Currency]:
        """What a promise of (ε, δ) is counted in."""
        return self._chosen(encoding).currency

    def _chosen(self, encoding: Encoding) -> Method:
        return method_named(self.method, self._loss(encoding.schema))

    # Learning -------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, *, people: Any = None) -> Self:
        """Learns from all records at once, and pays for it.

        Args:
            X: with ``schema=`` a frame, a mapping of columns, the path of a file or a
                `privlearn.tables.Table`, or an array with the features in their order; else an
                array of numbers or a frame, shape (n, d).
            y: the target, shape (n,); None if ``X`` has it.
            people: whose each row is, shape (n,): the guarantee is then for each person with all
                rows.  None if the schema names a column with it, or each row is a person.

        Raises:
            BudgetError: no budget is stated, or a shared accountant has not enough.
            DataError, ValueError, TypeError: what is declared, or the form of the data, is wrong;
                nothing was spent.
            LedgerError: the file of the ledger is there already.
        """
        given = self._given(X, y, people)
        with self._open_account(given) as account:
            learner = self._started(account, given)
            self._log("begins with %d records", account.users)
            with account.progress(type(self).__name__):
                self._learn(given, account, learner)
            return self._finish(given, account, learner)

    def _given(self, X: Any, y: Any, people: Any) -> Given:
        """The records; all that can be wrong with the form of a call is said here."""
        self._terms().check()
        if self.schema is not None:
            return self._by_schema(X, y, people)
        if self.bounds is None:
            raise ValueError(
                "bounds: state them, as (low, high) for all columns, an array of shape (d, 2) or a "
                "mapping by name, from what is known of the columns and never from these rows; or "
                "state schema="
            )
        if y is None:
            raise ValueError(
                f"{type(self).__name__} requires y to be passed, but the target y is None"
            )
        columns = getattr(X, "columns", None)
        X = self._features(X, reset=True)
        names = getattr(self, "feature_names_in_", None)
        if names is None and columns is not None:  # scikit-learn keeps names that are text only
            names = [str(name) for name in columns]
        try:
            schema = self._declared(self.n_features_in_, names)
        except ValidationError as error:
            raise ValueError(plain_message(error)) from None
        self._loss(schema)
        target = column_or_1d(_own_cells(y), warn=True)
        encoding = Encoding(schema)
        return Given(encoding, read_encoded(X, encoding, target=target, people=people))

    def _by_schema(self, X: Any, y: Any, people: Any) -> Given:
        schema = self.schema
        if not isinstance(schema, Schema):
            raise TypeError(f"schema = {schema!r:.80}: must be a privlearn.tables.Schema")
        for name in ("bounds", "target_bounds", "classes"):
            if getattr(self, name, None) is not None:
                raise ValueError(f"{name}: stands in the schema; leave it out with schema=")
        if schema.target is None:
            raise ValueError("schema.target: must name the column that is to be predicted")
        self._loss(schema)
        encoding = Encoding(schema)
        if not isinstance(X, Table):
            given = Given(encoding, read_encoded(X, encoding, target=y, people=people))
        elif y is not None or people is not None:
            raise ValueError("y, people: a Table has them; leave them out")
        else:
            given = Given.of(encoding, X)
        self.n_features_in_ = len(schema.features)
        self.feature_names_in_ = np.array(schema.features, dtype=object)
        return given

    def _features(self, X: Any, *, reset: bool) -> Any:
        X = _own_cells(X)
        frame = hasattr(X, "columns") or hasattr(X, "column_names")
        form: dict[str, Any] = {"dtype": None, "ensure_all_finite": False}
        X = validate_data(self, X, reset=reset, skip_check_array=frame, **form)
        if frame and not hasattr(self, "feature_names_in_"):
            X = check_array(X, estimator=self, **form)
        return X

    def _terms(self) -> Terms:
        return Terms(
            self.budget, self.ledger, self.accountant, self.simulate_noise, type(self).__name__
        )

    def _open_account(self, given: Given) -> Account:
        return Account(
            self._terms(),
            given.rows,
            self._currency(given.encoding),
            given.rule,
            side_information(given.encoding.schema),
        )

    def _started(self, account: Account, given: Given) -> Fitter:
        """The learner of an account: all that will be spent stands in its ledger."""
        encoding, n = given.encoding, given.rows
        learner = self._learner(encoding, n)
        account.start(learner, self._learner(encoding, n))
        return learner

    def _reads_once(self, encoding: Encoding) -> bool:
        """Whether the order of the rows matters, so that they are shuffled."""
        return self._chosen(encoding).reads_once

    def _learn(self, given: Given, account: Account, learner: Any) -> None:
        """Hands all records to the learner."""
        records = given.records
        if self._reads_once(given.encoding):
            records = self._shuffled(given, account.users)
        learner.partial_fit(records.inputs, records.targets, people=records.people)
        absent = account.users - len(records.inputs)
        if absent:
            learner.skip(absent)

    def _shuffled(self, given: Given, users: int) -> Encoded:
        """All users in random order, as files are often sorted; drawn without looking at a row."""
        inputs, targets, people, _ = given.records
        seed = secrets.randbits(128) if self.simulate_noise is None else self.simulate_noise
        order = np.random.default_rng(seed).permutation(users)
        came = order < given.rows
        rows, labels = np.full((users, inputs.shape[1]), np.nan), np.full(users, np.nan)
        rows[came], labels[came] = inputs[order[came]], np.asarray(targets)[order[came]]
        ids = None
        if people is not None:
            ids = tuple(people[i] if i < given.rows else None for i in order)
        return Encoded(rows, labels, ids, [])

    def _model_of(self, encoding: Encoding, learner: Any) -> LinearModel:
        """What the learner has made public."""
        noise = learner.noise_std_
        return LinearModel(
            encoding,
            self._loss(encoding.schema),
            np.atleast_2d(learner.coef_),
            np.atleast_1d(learner.intercept_),
            None if noise is None else np.atleast_2d(noise),
        )

    def _finish(self, given: Given, account: Account, learner: Fitter) -> Self:
        """Publishes what was learned, once all have come."""
        self._model = self._model_of(given.encoding, learner)
        self.method_ = self.method
        self._head = account.head
        self.certificate_ = account.close()
        self.ledger_ = account.path
        shared = self.accountant is not None
        self.guarantee_ = guarantee_line(self.certificate_, self.ledger_, shared=shared)
        self._private_counts = given.counts
        self._log("ends: %s", self.guarantee_)
        return self

    def _log(self, text: str, *values: object) -> None:
        """A public step."""
        _LOG.info(f"{type(self).__name__} {text}", *values)

    # What was learned -----------------------------------------------------------------------------

    certificate_: Certificate | None
    """What the ledger of the fit proves; None of a part of an account."""
    guarantee_: str
    """The same in one line."""
    ledger_: str | None
    """The file of the ledger; None where it was kept in memory, or is the accountant's."""

    @property
    def schema_(self) -> Schema:
        """What the columns were declared to be."""
        return self._fitted().encoding.schema

    @property
    def coef_table_(self) -> CoefficientTable:
        """Names of the inputs, their coefficients and the least intervals that the noise leaves.

        In the scale of the encoding: inputs on [−1, 1] or indicators, a regression's target on
        [−1, 1].
        """
        return CoefficientTable.of(self._fitted())

    @property
    def private_counts_(self) -> PrivateCounts:
        """How many records came and how many are null, and why; for the operator only.

        Raises:
            AttributeError: not fitted, or read from a pickle, which does not hold it.
        """
        if not hasattr(self, "_private_counts"):
            raise AttributeError("private_counts_: only where the estimator was fitted")
        return self._private_counts

    def _fitted(self) -> LinearModel:
        check_is_fitted(self, "method_")
        return self._model

    def _table(self, X: Any) -> Table:
        schema = self._fitted().encoding.schema
        if self.schema is None and not isinstance(X, Table):
            X = self._features(X, reset=False)
        return table_to_predict(X, schema)

    def _scores(self, X: Any) -> Array:
        model = self._fitted()
        return model.scores(self._table(X))

    def _held_out(self, X: Any, y: Any) -> HeldOut:
        """Rows with their targets, as at `fit`."""
        model = self._fitted()
        schema = replace(model.encoding.schema, person=None, rows_per_person=1)
        if not isinstance(X, Table):
            X = self._features(X, reset=False) if self.schema is None else X
            X = read(X, schema, target=y)
        targets = model.encoding.targets(X)
        known = np.isfinite(targets)
        return HeldOut(targets[known], model.scores(X)[known], known)

    def predict(self, X: Any) -> NDArray[Any]:
        """Labels, or targets in their own units within their bounds, shape (n,).

        Every row has an answer: a cell that is missing, or nothing that its kind takes, counts as
        missing.

        Raises:
            NotFittedError: not fitted.
            DataError, ValueError, TypeError: ``X`` lacks a column, or has another form.
        """
        scores = self._scores(X)
        return self._model.answers(scores)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the public model as JSON, which `load_model` reads: schema, coefficients,
        guarantee.

        Raises:
            NotFittedError: not fitted.
            OSError: it cannot be written.
        """
        save_model(
            path,
            self._fitted(),
            estimator=type(self).__name__,
            method=self.method_,
            guarantee=self.guarantee_,
            ledger_head=self._head,
        )

    # scikit-learn ---------------------------------------------------------------------------------

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.simulate_noise is None
        tags.target_tags.required = True
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True  # cells that are no numbers make their record null
        return tags

    def __dir__(self) -> list[str]:
        return [name for name in super().__dir__() if name not in _OPERATOR_ONLY]

    def __getstate__(self) -> dict[str, Any]:
        state: Mapping[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name not in _OPERATOR_ONLY}

    def _repr_html_inner(self) -> str:
        shown = str(super()._repr_html_inner())
        told = getattr(self, "guarantee_", None)
        return shown if told is None else f"{shown}<p>{escape(told)}</p>"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle: dict[str, Any] = super()._repr_mimebundle_(**kwargs)
        if "text/html" in bundle:
            bundle["text/html"] = self._repr_html_inner()
        return bundle


class TableScore:
    """``score`` of rows that hold their targets themselves; before scikit-learn's mixin."""

    _fitted: Callable[[], LinearModel]
    _held_out: Callable[[Any, Any], HeldOut]

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """R², or the accuracy of a classification; for the operator only.

        It is made of rows that were not paid for, so it must not be released.  Of a frame, file or
        `Table` with the target in it, rows without a usable target do not count.

        Args:
            X, y: as in `fit`, of rows that were held out.
            sample_weight: of each row, shape (n,).
        """
        if y is not None:
            return float(super().score(X, y, sample_weight))  # type: ignore[misc]  # of the mixin
        from sklearn.metrics import accuracy_score, r2_score

        targets, scores, known = self._held_out(X, None)
        if sample_weight is not None:
            sample_weight = np.asarray(sample_weight)[known]
        model = self._fitted()
        truth, found = model.encoding.from_target(targets), model.answers(scores)
        measure = r2_score if model.loss == "squared" else accuracy_score
        return float(measure(truth, found, sample_weight=sample_weight))


def _own_cells(values: Any) -> Any:
    """A list as an array of objects: one cell must not decide the type of others.

    A row of another length than most is as many missing cells.
    """
    if not isinstance(values, list | tuple) or not values:
        return values
    widths = [len(row) if isinstance(row, list | tuple | np.ndarray) else -1 for row in values]
    width = max(set(widths), key=widths.count)
    found = np.full((len(values), width) if width >= 0 else len(values), None, dtype=object)
    for i, row in enumerate(values):
        if widths[i] == width:
            found[i] = row
    return found


def side_information(schema: Schema) -> list[str]:
    """What a certificate says of a schema."""
    told = [
        f"bounds, categories and classes of the {len(schema.features)} columns and of the target "
        "are declared public"
    ]
    return [*told, _LOOKED] if schema.looked_at_data else told
