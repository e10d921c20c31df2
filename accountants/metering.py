"""Accounts that pay for code that is not ours: ``accountant.meter``."""

from __future__ import annotations

from typing import Any, Protocol

from privlearn.accountants.state import AccountState
from privlearn.accountants.token_entries import TokenEntries
from privlearn.contract.leases import Lease
from privlearn.contract.metering import Meter as Meter
from privlearn.contract.metering import TrustedCode as TrustedCode
from privlearn.contract.metering import loss_of, metered_spend
from privlearn.contract.protocols import Mechanism
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError, LeaseError
from privlearn.losses import Loss
from privlearn.losses.budgets import Budget


class _Issues(Protocol):
    """What a meter needs of an account, or of a part of one."""

    issuer: TokenEntries
    _state: AccountState

    @property
    def users(self) -> range: ...
    def issue(self, price: Loss, *, users: range, label: str) -> Token[Any]: ...


class Metering:
    """The side of an account, or of a part of one, that pays for code of others."""

    def meter(
        self: _Issues,
        price: Loss | Budget,
        *,
        label: str,
        users: range | None = None,
        code: TrustedCode | None = None,
        runs: int | None = None,
    ) -> Meter:
        """Pays for one call of code that is not ours, before it runs; see `Meter`.

        Whether the code earns its price is its own word, and so is that it opens nobody's data
        but ``users``' and of each as the price says; the certificate names it as trusted.

        Args:
            price: of one call: a loss, or a budget that its output keeps.
            label: what it is for, or the label of a committed plan.
            users: whose data it opens; default, all of the account's.
            code: that is trusted, and the parameters which the price came from.
            runs: pays at once, before the first, for so many calls, as `Lease` does.

        Raises:
            AdjacencyError: a loss of another neighbour relation.
            LeaseError: runs of a part of an account, or as ``accountant.lease``.
            TypeError, ValueError: no price, or none that can be paid.
        """
        loss = loss_of(price, self.issuer.adjacency)
        spend = metered_spend(loss, code)
        whom = self.users if users is None else users
        if runs is not None:
            lease = _leased(self, _Runs(loss), runs, whom, label)
            return Meter(lease._token_of_run, spend, label, keep=False, lease=lease)

        def pays() -> Token[Any]:
            if self.issuer.past is not None:
                raise BudgetError(
                    f"meter {label!r}: a learner runs again over what was released before a "
                    "restart; code that is not ours would run anew, and is not paid for"
                )
            return self.issue(loss, users=whom, label=label)

        # a learner goes on from the values in the ledger, of which this is none
        return Meter(pays, spend, label, keep=self._state.learner is None)


class _Runs:
    """What a lease of a meter is of; it is run by the meter."""

    def __init__(self, loss: Loss) -> None:
        self._loss = loss

    def loss(self) -> Loss:
        return self._loss

    def release(self, rows: Any, token: Token[Any], /) -> Any:
        raise NotImplementedError


def _leased(
    account: Any, mechanism: Mechanism[Any], runs: int, users: range, label: str
) -> Lease[Any]:
    if not hasattr(account, "lease"):
        raise LeaseError(
            f"meter {label!r}: runs are leased from an account, not from a part of one"
        )
    leased: Lease[Any] = account.lease(mechanism, runs=runs, users=users, label=label)
    return leased
