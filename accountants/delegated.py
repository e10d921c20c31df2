"""Sub-budgets: a part of an accountant's cap, handed to a component and given back unused."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any, Generic, Never, Protocol, Self, cast, final

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.state import AccountState
from privlearn.accountants.token_entries import TokenEntries
from privlearn.contract.protocols import Plan
from privlearn.contract.tokens import Token
from privlearn.errors import BudgetError, TokenCopyError
from privlearn.losses import Loss
from privlearn.losses.budgets import B
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import Exact, exact
from privlearn.values.validate import user_range


class _Parent(Protocol[B]):
    issuer: TokenEntries
    _log: AccountLog

    def held(self, label: str, users: range) -> list[range]: ...
    def _issue(
        self, price: Loss | B, users: range, label: str, failure: Fraction, allowance: str | None
    ) -> Token[B]: ...


@final
class Delegated(Generic[B]):
    """What a component is handed: it issues tokens up to its budget and gives back the rest.

    Made by `CentralAccountant.delegate`.  Its tokens are the accountant's own, so they open the
    rows of the accountant's billboard.  Closing ends it; tokens that are still out stay charged.
    """

    def __init__(
        self, parent: _Parent[B], state: AccountState, name: str, budget: B, users: range
    ) -> None:
        self._parent, self._name, self._budget, self._users = parent, name, budget, users
        self._allowance = state.allowances[name]
        self.issuer = parent.issuer

    @property
    def id(self) -> str:
        """Its name in the ledger."""
        return self._name

    @property
    def budget(self) -> B:
        """The cap for every user in this part."""
        return self._budget

    @property
    def users(self) -> range:
        """The arrival indices it was made for."""
        return self._users

    @property
    def adjacency(self) -> Adjacency:
        """The accountant's neighbour relation."""
        return self.issuer.adjacency

    @property
    def trust(self) -> Trust:
        """The accountant's."""
        return self.issuer.trust

    @property
    def people(self) -> None:
        """None: under a rule of participation nothing is delegated."""
        return

    def of_person(self, loss: Loss, users: range) -> Loss:
        """``loss`` as it is recorded, as an index is one person."""
        return self.issuer.of_person(loss, users)

    def divide(self, starts: Sequence[int]) -> None:
        """Refuses: there is no rule of participation here.

        Raises:
            BudgetError: always.
        """
        raise BudgetError("a delegated part has no rule of participation, and no batches")

    @property
    def learner(self) -> None:
        """None: a learner commits a plan, which is for the whole accountant."""
        return

    @property
    def resumed(self) -> bool:
        """False: a part ends with its process."""
        return False

    @property
    def begun(self) -> bool:
        """False: there is no plan here."""
        return False

    def record_learner(self, name: str, parameters: dict[str, Any], made: dict[str, Any]) -> None:
        """Refuses, as `commit`.

        Raises:
            BudgetError: always.
        """
        self.commit(())

    def replaying(self, *, goes_on: bool = False) -> Never:
        """Refuses: a part ends with its process.

        Raises:
            BudgetError: always.
        """
        raise BudgetError("a delegated part ends with its process: nothing goes on from it")

    def lost(self, label: str, users: range, upto: int | None = None) -> bool:
        """False: nothing goes on from here."""
        return False

    def rest(self, label: str, users: range) -> None:
        """None: there is no plan here."""
        return

    @property
    def closed(self) -> bool:
        """Whether it was given back."""
        return self._allowance.returned

    def spent(self, user: int | None = None) -> B:
        """What its tokens hold or have spent for one user (default: amount by amount, the most)."""
        return cast(B, self._allowance.meter.largest(self._range(user)))

    def remaining(self, user: int | None = None) -> B:
        """What can still be issued for one user (default: for all of them at once)."""
        return self._budget - self.spent(user)

    def _range(self, user: int | None) -> range:
        return self._users if user is None else range(user, user + 1)

    def issue(self, price: Loss | B, *, users: range, label: str, failure: Exact = 0) -> Token[B]:
        """Issues a token out of this part.

        Raises:
            BudgetError: it was given back, and otherwise as `CentralAccountant.issue`.
        """
        inside = self._allowance.meter.charged.check(user_range(users=users))
        return self._parent._issue(price, inside, label, exact("failure", failure), self._name)

    def commit(self, plan: Iterable[Plan]) -> None:
        """Refuses: a plan is for the whole accountant.

        Raises:
            BudgetError: always.
        """
        raise BudgetError("a delegated part takes no plan: commit one with the whole accountant")

    def left(self, label: str, users: range) -> int:
        """0: there is no plan here."""
        return 0

    def held(self, label: str, users: range) -> list[range]:
        """As the accountant's, all of whose tokens it knows."""
        return self._parent.held(label, users)

    @property
    def failure(self) -> Fraction:
        """The probability of failing that was handed over."""
        return self._allowance.meter.failure

    def close(self) -> None:
        """Gives back what was not used; may be called twice."""
        log = self._parent._log
        with log.lock:
            if not self._allowance.returned:
                log.take_back(self._name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refuse_copy(self, *_: object) -> Never:
        raise TokenCopyError("a delegated budget cannot be copied or pickled")

    __reduce__ = __reduce_ex__ = __copy__ = __deepcopy__ = _refuse_copy

    def __repr__(self) -> str:
        return f"Delegated({self._budget}, spent {self.spent()}, users={self._users})"
