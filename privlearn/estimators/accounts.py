"""The account that one fit spends from: its own, or a part of one that several fits share."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self, final

from privlearn.accountants import CentralAccountant, Certificate, Delegated
from privlearn.accountants.audit import certify
from privlearn.errors import BudgetError, LedgerError, PrivlearnError
from privlearn.estimators.methods import Fitter
from privlearn.ledger import Ledger
from privlearn.ledger.entries import PlanEntry, RetireEntry
from privlearn.ledger.reader import iterate_records
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.participation import Participation

STATE_IT: Final = "budget: state it, as ApproxDP(1, 1e-5)"
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
            check_new(Path(self.ledger))


def check_new(path: Path) -> None:
    """Checks that no file is there.

    Raises:
        LedgerError: one is; it says what it holds and what can be done.
    """
    if not path.exists():
        return
    found = "there is a file, which is no ledger; choose another path"
    with suppress(PrivlearnError, OSError):
        kinds = [record.body.get("entry") for record in iterate_records(path, vouched=True)]
        found = (
            "it holds a finished fit. Its model is the estimator that was fitted, or "
            "load_model(...) of what it saved; "
        )
        if "close" not in kinds:
            found = (
                "it holds a fit that was cut off, or has not ended; it counts with its whole "
                "budget. "
            )
        found += (
            f"`privlearn audit {path}` shows its guarantee. A further fit is paid for once more, "
            "and needs another path, or ledger='auto'"
        )
    raise LedgerError(f"ledger = {str(path)!r}: {found}")


def _dated(name: str) -> Path:
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in name)
    stem = f"privlearn{words.removeprefix('-private')}-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    path, number = Path(f"{stem}.db"), 2
    while path.exists():
        path, number = Path(f"{stem}-{number}.db"), number + 1
    return path


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
                rehearsal.start(self._opened(Book(None, 0, terms.name)))
            book = Book(terms.ledger, terms.simulate_noise, terms.name)
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
            return None if isinstance(self._shared, Delegated) else self._shared.certificate()
        certificate: Certificate = self._owner.certificate()
        return certificate

    @property
    def head(self) -> str | None:
        """The last hash of its own ledger; None of a part."""
        ledger = getattr(self._owner, "ledger", None)
        return None if ledger is None else str(ledger.head)


@final
class Book:
    """One ledger for several accounts, made with the first of them.

    Args:
        ledger: as of an estimator.
        simulate_noise: as of an estimator.
        name: of a dated file.

    Attributes:
        path: of the file, once it is made; None in memory, and of a ledger that was handed over.

    Raises:
        LedgerError: the file of the ledger is there already.
    """

    path: str | None = None

    def __init__(self, ledger: Any, simulate_noise: int | None, name: str) -> None:
        if isinstance(ledger, str | os.PathLike) and ledger != "auto":
            check_new(Path(ledger))
        self._given, self._seed, self._of = ledger, simulate_noise, name
        self._book: Ledger | None = None

    def account(self, cap: Any, *, users: range, **given: Any) -> CentralAccountant[Any]:
        """Opens an account beside those that are there; arguments are those of an accountant."""
        first, source = self._book is None, self._given
        if self._book is None:
            if isinstance(source, str | os.PathLike):
                path = _dated(self._of) if source == "auto" else Path(source)
                self._book, self.path = Ledger.create(path), str(path)
            else:
                self._book = source if isinstance(source, Ledger) else Ledger.memory()
            seed = self._seed
            self._noise = NoiseSource.secure() if seed is None else NoiseSource.simulation(seed)
        return CentralAccountant(
            cap, users=users, ledger=self._book, noise=self._noise, shared=not first, **given
        )

    def certificate(self, delta: float | None) -> Certificate:
        """What all accounts promise together."""
        assert self._book is not None
        return certify(self._book.iterate(), delta=delta)

    def close(self) -> None:
        """Ends it for this process; accounts that are open stay open in the file."""
        if self._book is not None:
            self._book.close()

    @property
    def head(self) -> str | None:
        """The last hash of the ledger."""
        return None if self._book is None else str(self._book.head)


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
