"""Tokens, receipts and released values: spend before release.

A mechanism presents a `Token` together with a `Spend`, the statement of what it is about to do.
Only when the spend stands durably in the ledger does it get a `Receipt`, and only the receipt opens
rows (clipped by the stated domain) and draws noise (at the stated scale).  A `Released` value comes
out of a receipt and nowhere else, so a billboard can tell it from anything unpaid.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Generic, Never, cast, final

from privlearn.contract.issuing import MINT, Issuer, Mint, RecordedToken
from privlearn.contract.openings import check_partitions, check_rows, check_timetable, check_total
from privlearn.contract.partial_sums import check_terms
from privlearn.contract.partial_sums import partial_sum as partial_sum
from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Arithmetic as Arithmetic
from privlearn.contract.spends import Spend as Spend
from privlearn.errors import LossExceedsTokenError, TokenCopyError, TokenSpentError, UsersError
from privlearn.losses import Loss
from privlearn.losses.budgets import B, Currency
from privlearn.rows import PartialSum, Rows
from privlearn.rows.partitions.rows import PartitionedRows
from privlearn.storage.exclusive import Exclusive
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import exact_text
from privlearn.values.participation import Participation


@final
@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False, match_args=False)
class Token(Generic[B]):
    """The right to run one mechanism within ``budget`` on ``users``; made only by an accountant.

    It can be spent once, by a loss that the budget covers.  It cannot be copied, pickled or used
    in a forked process.
    """

    id: str
    """The token's name in the ledger."""
    budget: B
    """What the token holds."""
    failure: Fraction
    """The probability of failing that it may use besides."""
    users: range
    """The arrival indices whose rows it can open."""
    label: str
    """What it was issued for."""
    adjacency: Adjacency
    """The neighbour relation of the accountant."""
    _priced: Loss | None  # The loss whose price ``budget`` and ``failure`` are
    _issuer: Issuer
    _used: bool
    _lock: Exclusive

    def __init__(
        self,
        mint: Mint,
        issuer: Issuer,
        id: str,
        budget: B,
        users: range,
        label: str,
        failure: Fraction = Fraction(0),
        priced: Loss | None = None,
    ) -> None:
        if mint is not MINT:
            raise TypeError("tokens are made by an accountant: use accountant.issue(...)")
        fix = object.__setattr__
        fix(self, "id", id)
        fix(self, "budget", budget)
        fix(self, "failure", failure)
        fix(self, "users", users)
        fix(self, "label", label)
        fix(self, "adjacency", issuer.adjacency)
        fix(self, "_priced", priced)
        fix(self, "_issuer", issuer)
        fix(self, "_used", False)
        fix(self, "_lock", Exclusive(f"token {label!r}"))

    def check(self, rows: Rows[Any], spend: Spend) -> None:
        """Raises what `Receipt.open` would raise for ``rows``, before anything is spent."""
        check_rows(self, rows, self.users.start, spend.domain)

    def check_batches(self, rule: Participation, starts: Sequence[int]) -> None:
        """Whether a person has no more rows in each of these batches than in one of ``rule``.

        Args:
            rule: that a price takes for granted, and that counts within batches.
            starts: where batches of the token's users begin.

        Raises:
            UsersError: the accountant's rule allows more in a batch, or a batch of its own begins
                within one of these.
        """
        people = self._issuer.people
        if people is None:  # what is promised is about single rows
            return
        most, others = _in_a_batch(rule), _in_a_batch(people.rule)
        if others is None or (most is not None and others > most):
            raise UsersError(
                f"a price for {rule}: the accountant's rule is {people.rule}, with which a person "
                "may have more rows in a batch"
            )
        begun = set(starts)
        for batch in people.batches(self.users):
            if batch.start not in begun:
                raise UsersError(
                    f"a batch of the accountant's rule begins at slot {batch.start}, within one of "
                    "the mechanism's: every batch must lie within one that was declared"
                )

    def check_total(self, total: PartialSum, spend: Spend) -> None:
        """Raises what `Receipt.release_total` would raise for ``total``, before it is spent."""
        check_total(self, total, self.users.start)
        check_terms(spend, total)

    def check_partitions(self, rows: PartitionedRows[Any]) -> None:
        """Raises what `Receipt.open_partitions` would raise for ``rows``, before it is spent."""
        check_partitions(self, rows, self.users.start)

    def spend(self, spend: Spend) -> Receipt:
        """Records ``spend`` durably and returns the receipt that allows it.

        Raises:
            TokenSpentError: used before.
            LossExceedsTokenError: the loss costs more than the token holds (the token stays
                unspent).
            TokenCopyError: in a forked process.
            CurrencyError: the loss has no price in the token's currency.
            ProvenanceError: on a timetable, a mechanism that does not add up.
            UsersError: slots that are not over.
        """
        return Receipt(MINT, self._issuer, self, spend, self._recorded(spend))

    def _recorded(self, spend: Spend) -> RecordedToken:
        """The token's account, once ``spend`` stands durably; raises as `spend`."""
        people = self._issuer.people
        if people is not None:
            check_timetable(people, self, spend)
        loss = spend.loss(self.adjacency)
        if loss is not self._priced:
            self._check_price(spend.mechanism, self._issuer.of_person(loss, self.users))
        with self._lock:
            if self._used:
                raise self._was_used()
            object.__setattr__(self, "_used", True)
        try:
            return self._issuer.record_spend(self, spend, loss)
        except BaseException:
            # Not durable: the token may be tried again; the ledger refuses a second spend anyway.
            object.__setattr__(self, "_used", False)
            raise

    def _check_price(self, mechanism: str, loss: Loss) -> None:
        failure, price = _priced(self.budget, loss)
        if not self.budget.covers(price):
            raise LossExceedsTokenError(
                f"{mechanism} costs {price}, the token {self.label!r} holds {self.budget}"
            )
        if failure > self.failure:
            raise LossExceedsTokenError(
                f"{mechanism} fails with probability {exact_text(failure)}, the token "
                f"{self.label!r} holds {exact_text(self.failure)}"
            )

    def retire(self) -> None:
        """Hands the token back unused; its budget is free again.

        Raises:
            TokenSpentError: used before.
            TokenCopyError: in a forked process.
        """
        self._use()
        self._issuer.record_retire(self, "unused", None)

    def _use(self) -> None:
        with self._lock:
            if self._used:
                raise self._was_used()
            object.__setattr__(self, "_used", True)

    def _was_used(self) -> TokenSpentError:
        return TokenSpentError(f"token {self.label!r} was spent or retired before")

    def __repr__(self) -> str:
        state = "used" if self._used else "unspent"
        users = f"{self.users.start}..{self.users.stop - 1}"
        return f"Token({self.label!r}, {self.budget}, users={users}, {state})"

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a token cannot be copied or pickled: issue a second one")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy


_PRICED: dict[int, tuple[Loss, Currency, Fraction, Currency]] = {}
"""By identity of the loss, which a mechanism keeps: a budget, and what the loss costs in it."""
_MOST_PRICED = 256


def _priced(budget: B, loss: Loss) -> tuple[Fraction, B]:
    """How likely a loss is to fail, and what it costs besides, in the currency of a budget."""
    seen = _PRICED.get(id(loss))
    if seen is not None and seen[0] is loss and _counted_alike(seen[1], budget):
        return seen[2], cast(B, seen[3])
    failure = loss.failure()
    price = budget.price(loss.unless_failed() if failure else loss)
    if len(_PRICED) >= _MOST_PRICED:
        _PRICED.clear()
    _PRICED[id(loss)] = loss, budget, failure, price
    return failure, price


def _counted_alike(one: Currency, other: Currency) -> bool:
    """Whether both are of one currency, at the same orders."""
    orders = [getattr(each, "_orders", ()) for each in (one, other)]
    return one.__class__ is other.__class__ and orders[0] == orders[1]


def _in_a_batch(rule: Participation) -> int | None:
    return 1 if rule.pooled else rule.per_batch


def mint_token(
    issuer: Issuer,
    id: str,
    budget: B,
    users: range,
    label: str,
    failure: Fraction = Fraction(0),
    priced: Loss | None = None,
) -> Token[B]:
    """Makes a token; for accountants only (see the contributors' guide).

    ``priced``: the loss whose price ``budget`` and ``failure`` are, if they are one's.
    """
    if not isinstance(budget, Currency):
        raise TypeError(f"budget = {budget!r}: must be a currency such as ZCDP('0.1')")
    return Token(MINT, issuer, id, budget, users, label, failure, priced)
