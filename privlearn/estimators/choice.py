"""The multinomial logit on long tables: one line per item of a choice situation.

An item with encoded inputs x has utility x·β + constant, and is chosen with a probability that is
proportional to the exponential of it.  Where one of the items must be chosen, inputs are centred
over each situation's items, which changes no probability, and there is no constant.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Final, Self, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.errors import AdjacencyError
from privlearn.estimators.accounts import Account
from privlearn.estimators.base import Given, HeldOut, PrivateEstimator, side_information
from privlearn.estimators.choice_models import (
    NO_SITUATIONS,
    ChoiceModel,
    Situated,
    items_to_predict,
    save_choice_model,
    with_constant,
)
from privlearn.estimators.methods import CONSTANT, Loss
from privlearn.estimators.models import LinearModel
from privlearn.estimators.situations import RECORD, Situations, centred, gathered_by_id
from privlearn.learners import OnePassNewtonMNL
from privlearn.learners.messages import PrivateCounts
from privlearn.losses.budgets import Currency, GaussianDP
from privlearn.rows.domains import Array
from privlearn.tables.encoding import Encoding
from privlearn.tables.readers import read
from privlearn.tables.schema import Schema
from privlearn.tables.table import Table
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count

_UNIT: Final = 0.75
"""Items are clipped to this part of the norm that the declared columns are clipped to.  On the
shipped cars and four simulated markets at ε = .3, 1 and 3 it keeps the most of the likelihood's
gain among .75, 1, 1.25, 1.5 and 2, or is within .03 of the most; 1 loses up to .08."""


@final
class PrivateChoiceModel(PrivateEstimator):
    """A multinomial logit under (ε, δ)-differential privacy, of a varying number of items.

    One choice situation is one record, and may have any number of lines up to ``max_items``, which
    may stand anywhere.  The target says of each line whether its item was chosen; ``person`` of the
    schema, or ``people=``, is the id of the situation: somebody's next choice has another id, and
    is another record.

    Args:
        n_situations: their public number; of more, some are left out, by their ids alone.
        max_items: the most items of a situation, public; default ``schema.rows_per_person``.  A
            situation with more is null.
        outside_option: whether nothing may be chosen: no line of a situation is then marked.
        schema: a `privlearn.tables.Schema` with a `Boolean` as its target, or a `Category` of two,
            of which the second is "chosen".
        bounds: for arrays, as in `PrivateLinearRegression`; y is then 0 or 1.
        budget, ledger, accountant, simulate_noise: as in `PrivateLinearRegression`.

    Attributes:
        coef_: shape (inputs,), for encoded inputs; see `coef_table_`.  Long items are clipped, and
            weak effects are drawn towards 0, so that tastes are compared by their ratios.
        intercept_: the utility of any item against choosing nothing; 0 where one must be chosen.
        classes_: the labels of an item that was not chosen, and of one that was.

    Source: `OnePassNewtonMNL`; how lines become records, and why that moves no other record, stands
    in `privlearn.estimators.situations`.
    """

    method = "one-pass"

    def __init__(
        self,
        budget: Any = None,
        *,
        n_situations: int | None = None,
        max_items: int | None = None,
        outside_option: bool = False,
        schema: Any = None,
        bounds: Any = None,
        ledger: Any = None,
        accountant: Any = None,
        simulate_noise: int | None = None,
    ) -> None:
        self.budget = budget
        self.n_situations = n_situations
        self.max_items = max_items
        self.outside_option = outside_option
        self.schema = schema
        self.bounds = bounds
        self.ledger = ledger
        self.accountant = accountant
        self.simulate_noise = simulate_noise

    def fit(self, X: Any, y: Any = None, *, people: Any = None) -> Self:
        """Learns from all situations, each in one pass, and pays for it.

        Args:
            X: as in `PrivateLinearRegression.fit`, one line per item.
            y: whether each item was chosen, shape (lines,); None if ``X`` has it.
            people: the id of each line's situation, shape (lines,); None if ``X`` has it.

        Raises:
            BudgetError, DataError, ValueError, TypeError, LedgerError: as there; ``n_situations``
                or the most items are not stated.
            AdjacencyError: an accountant for another neighbour relation than replace-one.
        """
        return super().fit(X, y, people=people)

    def _declared(self, dim: int, names: Sequence[str] | None) -> Schema:
        return Schema.of_arrays(dim, self.bounds, names=names, classes=(0, 1))

    def _loss(self, schema: Schema) -> Loss:
        if len(schema.classes or ()) != 2:
            raise ValueError(
                f"schema.target = {schema.target!r}: must say of each item whether it was chosen, "
                "as a Boolean, or a Category of two of which the second is 'chosen'"
            )
        return "logistic"

    def _given(self, X: Any, y: Any, people: Any) -> Given:
        if self.n_situations is None:
            raise ValueError(
                "n_situations: state the number of choice situations, which is public, from what "
                "is known of the survey or market"
            )
        count(n_situations=self.n_situations)
        if self.accountant is not None and self.accountant.adjacency is not Adjacency.REPLACE_ONE:
            raise AdjacencyError(
                f"accountant: is for {self.accountant.adjacency.value}; a situation that is gone "
                "leaves its place to another, which is a replaced record: take replace-one"
            )
        given = super()._given(X, y, people)
        self._most(given.encoding.schema)
        if given.records.people is None:
            raise ValueError(NO_SITUATIONS)
        return given

    def _most(self, schema: Schema) -> int:
        stated = self.max_items
        most = schema.rows_per_person if stated is None else count(max_items=stated)
        if most == 1 and (stated is None or not self.outside_option):
            raise ValueError(
                "max_items = 1: state the most items of a situation, here or as "
                "schema.rows_per_person; one is a choice only where nothing may be chosen"
            )
        return most

    def _scale(self, encoding: Encoding) -> float:
        return _UNIT * math.hypot(encoding.row_norm, CONSTANT * self.outside_option)

    def _open_account(self, given: Given) -> Account:
        told = [*side_information(given.encoding.schema), RECORD]
        n = cast(int, self.n_situations)  # checked in `_given`
        return Account(self._terms(), n, self._currency(given.encoding), None, told)

    def _learner(self, encoding: Encoding, n: int) -> Any:
        return OnePassNewtonMNL(
            n_items=self._most(encoding.schema),
            dim=encoding.dim + bool(self.outside_option),
            outside_option=bool(self.outside_option),
            feature_scale=self._scale(encoding),
        )

    def _currency(self, encoding: Encoding) -> type[Currency]:
        return GaussianDP

    def _learn(self, given: Given, account: Account, learner: Any) -> None:
        inputs, chosen, ids, messages = given.records
        outside = bool(self.outside_option)
        found = gathered_by_id(
            ids or (),
            learner.batches_,
            with_constant(inputs, outside),
            np.asarray(chosen),
            situations=account.users,
            max_items=self._most(given.encoding.schema),
            outside=outside,
            told=messages,
        )
        features = found.features if outside else centred(found.features, found.offered)
        learner.partial_fit(features, found.choices, offered=found.offered)
        self._private_counts = _counts(found)  # `_finish` counts lines

    def _model_of(self, encoding: Encoding, learner: Any) -> LinearModel:
        self._choice = ChoiceModel(
            encoding, learner.theta_, self._scale(encoding), bool(self.outside_option)
        )
        intercept = np.array([self._choice.intercept])
        return LinearModel(encoding, "logistic", self._choice.coef[None], intercept)

    def _finish(self, given: Given, account: Account, learner: Any) -> Self:
        counts = self._private_counts
        super()._finish(given, account, learner)
        self._private_counts = counts
        self.guarantee_ = self.guarantee_.replace("the record of one person", "one situation")
        return self

    @property
    def coef_(self) -> Array:
        """For encoded inputs, shape (inputs,); a copy."""
        return np.array(self._fitted().coef[0])

    @property
    def intercept_(self) -> float:
        """The utility of any item against choosing nothing."""
        return float(self._fitted().intercept[0])

    @property
    def classes_(self) -> NDArray[Any]:
        """The labels of an item that was not chosen, and of one that was."""
        return self._fitted().encoding.from_target(np.arange(2))

    def _situated(self, X: Any, people: Any) -> Situated:
        schema = self._fitted().encoding.schema
        if self.schema is None and not isinstance(X, Table):
            X = self._features(X, reset=False)
        return self._choice.situated(items_to_predict(X, schema, people))

    def decision_function(self, X: Any, *, people: Any = None) -> Array:
        """Utilities of the items as they were learned from, shape (lines,); else as `predict`."""
        return self._choice.utilities(self._situated(X, people))

    def predict(self, X: Any, *, people: Any = None) -> NDArray[Any]:
        """The label of each line: "chosen" for the likeliest item of its situation, shape (lines,).

        Where choosing nothing is likelier than any item, no line has it.  A line without an id is a
        situation by itself.

        Args:
            X, people: as in `fit`; situations may have any number of lines.

        Raises:
            NotFittedError: not fitted.
            DataError, ValueError, TypeError: ``X`` lacks a column, or has another form.
        """
        return self._choice.most_likely(self._situated(X, people))

    def predict_proba(self, X: Any, *, people: Any = None) -> Array:
        """The probability of each line's item within its situation, shape (lines,).

        Raises:
            NotFittedError, DataError, ValueError, TypeError: as `predict`.
        """
        return self._choice.probabilities(self._situated(X, people))

    def score(self, X: Any, y: Any = None, *, people: Any = None) -> float:
        """Mean log-likelihood of the choices, nats per situation; for the operator only.

        It is made of rows that were not paid for, so it must not be released.  The uniform choice
        has minus the mean logarithm of the number of items.  Situations without exactly one marked
        line (at most one, if nothing may be chosen) do not count.

        Args:
            X, y, people: as in `fit`, of situations that were held out.
        """
        schema = self._fitted().encoding.schema
        if not isinstance(X, Table):
            X = self._features(X, reset=False) if self.schema is None else X
            X = read(X, schema, target=y, people=people)
        return float(self._choice.log_likelihoods(X).mean())

    def _held_out(self, X: Any, y: Any) -> HeldOut:
        raise TypeError("PrivateChoiceModel: single lines have no answer to be right about; score")

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the public model as JSON, which `load_model` reads.

        Raises:
            NotFittedError: not fitted.
            OSError: it cannot be written.
        """
        self._fitted()
        save_choice_model(
            path,
            self._choice,
            estimator=type(self).__name__,
            method=self.method_,
            guarantee=self.guarantee_,
            ledger_head=self._head,
        )


def _counts(found: Situations) -> PrivateCounts:
    """Records and why some are null, and what is in none."""
    counts = PrivateCounts(len(found.choices))
    for _, reason in found.messages:
        counts.add(reason)
    for number, reason in found.left_out:
        counts.rows += number
        counts.add(reason, number)
    return counts
