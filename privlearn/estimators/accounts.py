"""The account that one fit spends from: its own, or a part of one that several fits share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self, final

from privlearn.accountants import CentralAccountant, Certificate, Delegated, Nested
from privlearn.accountants.books import Book, check_new
from privlearn.errors import BudgetError
from privlearn.estimators.methods import Fitter
from privlearn.ledger.entries import PlanEntry, RetireEntry
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

STATE_IT: Final = "budget: state it, as ApproxDP(1, 1e-5)"
FIT: Final = "a finished fit, of which load_model(...) reads what was saved"
_NO_BAD_SCORE: Final = (
    "in GridSearchCV and cross_val_score pass error_score='raise': the account is empty, and a "
    "missing score says nothing about the model"
)


@final
@dataclass(frozen=True)
class Terms:
    """What a fit is to be paid from; parameters of an estimator."""

    budget: ApproxDP | Currency | None
    ledger: Any
    accountant: Any
    simulate_noise: int | None
    name: str
    """Of the estimator."""

    def check(self) -> None:
        """Raises TypeError or ValueError for what cannot be an account.

        Raises:
            BudgetError: no budget is stated.
            LedgerError: the file of the ledger is there already.
        """
        if self.accountant is not None:
            for name in ("ledger", "simulate_noise"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: is the accountant's; leave it out with accountant=")
        if isinstance(self.accountant, Delegated):
            return
        if self.budget is None:
            raise BudgetError(STATE_IT)
        if not isinstance(self.budget, ApproxDP | Currency):
            raise TypeError(
                f"budget = {self.budget!r}: must be ApproxDP(epsilon, delta), or a currency such "
                "as GaussianDP(mu)"
            )
        if isinstance(self.ledger, str | os.PathLike) and self.ledger != "auto":
            check_new(Path(self.ledger), FIT)


@final
class Account:
    """Where one fit spends; `start` hands its accountant to a learner.

    As a context manager it gives back what a part has left, if the fit ends with an exception.

    Args:
        terms: checked.
        users: rows of the fit.
        currency: that a promise of (ε, δ) is counted in.
        rule: how often a person may have a row; None where each row is a person.
        side_information: for the certificate.

    Raises:
        BudgetError: a shared accountant has not so much left.
        LedgerError, OSError: the file of the ledger cannot be made.
    """

    def __init__(
        self,
        terms: Terms,
        users: int,
        currency: type[Currency],
        rule: Participation | None,
        side_information: Sequence[str],
    ) -> None:
        self.path: str | None = None
        self._shared = terms.accountant
        if self._shared is not None:
            self._owner: Any = self._part(terms, users, rule)
            return
        counted = currency if isinstance(terms.budget, ApproxDP) else None
        self._options: dict[str, Any] = {
            "users": range(users),
            "currency": counted,
            "side_information": side_information,
        }
        self._terms, self._rule = terms, rule
        self._owner = None

    def _part(self, terms: Terms, users: int, rule: Participation | None) -> Any:
        shared = terms.accountant
        if rule is not None:
            raise ValueError("people: one person, many rows has no price in a shared accountant=")
        if users > len(shared.users):
            raise BudgetError(
                f"accountant: it is for {len(shared.users):,} users, and there are {users:,} rows: "
                f"make it with users=range({users}) or more"
            )
        if isinstance(shared, Delegated):
            return shared
        budget = terms.budget
        if isinstance(budget, ApproxDP) and not isinstance(budget, type(shared.budget)):
            own = CentralAccountant(
                budget,
                users=range(1),
                noise=NoiseSource.simulation(0),
                currency=type(shared.budget),
            )
            budget = own.budget
        try:
            return shared.delegate(budget, users=shared.users, label=terms.name)
        except BudgetError as error:
            error.add_note(_NO_BAD_SCORE)
            raise

    def start(self, learner: Fitter, rehearsal: Fitter) -> None:
        """Starts the learner, after one that shows that it can be started."""
        if self._owner is None:
            terms = self._terms
            if isinstance(terms.ledger, str | os.PathLike):
                rehearsal.start(self._opened(Book(None, 0, terms.name, FIT)))
            book = Book(terms.ledger, terms.simulate_noise, terms.name, FIT)
            self._owner = self._opened(book)
            self.path = book.path
        learner.start(self._owner)

    def _opened(self, book: Book) -> CentralAccountant[Any]:
        people = None if self._rule is None else People.memory(self._rule)
        return book.account(self._terms.budget, people=people, **self._options)

    @property
    def users(self) -> int:
        """All who are charged."""
        return len(self._owner.users)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if isinstance(self._owner, Delegated) and self._owner is not self._shared:
            self._owner.close()

    @contextmanager
    def progress(self, name: str) -> Iterator[None]:
        """A block in which a bar counts releases, on a terminal and after a second."""
        ledger = getattr(self._owner, "ledger", None)
        if ledger is None:
            yield
            return
        with _Bar(name) as bar:
            ledger.listen(bar)
            try:
                yield
            finally:
                ledger.unlisten(bar)

    def close(self) -> Certificate | None:
        """Ends it; what it proves, None of a part."""
        self._owner.close()
        if isinstance(self._owner, Delegated):
            inside = isinstance(self._shared, Delegated | Nested)
            return None if inside else self._shared.certificate()
        certificate: Certificate = self._owner.certificate()
        return certificate

    @property
    def head(self) -> str | None:
        """The last hash of its own ledger; None of a part."""
        ledger = getattr(self._owner, "ledger", None)
        return None if ledger is None else str(ledger.head)


class _Bar:
    """Counts the ends of releases as they are recorded; what it shows is public."""

    def __init__(self, name: str) -> None:
        from tqdm import tqdm

        self._bar = tqdm(desc=name, unit=" releases", disable=None, delay=1, leave=False)

    def put(self, entry: Any) -> None:
        if isinstance(entry, PlanEntry):
            self._bar.total = sum(item.count for item in entry.items)
        elif isinstance(entry, RetireEntry):
            self._bar.update()

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.close()
