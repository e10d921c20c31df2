"""Grants: caps inside an account for somebody, until some time, made by who keeps the budget."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from privlearn.accountants.accountant import CentralAccountant, JointAccountant, _Accountant
from privlearn.accountants.local import LocalAccountant
from privlearn.accountants.serving import default_socket, owning_ledger
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger
from privlearn.ledger.addresses import is_address
from privlearn.losses.budget_texts import parse_budget
from privlearn.losses.budgets import ApproxDP, Currency
from privlearn.values.adjacency import Trust
from privlearn.values.exact import exact

_KINDS = {
    Trust.CENTRAL: CentralAccountant,
    Trust.JOINT: JointAccountant,
    Trust.LOCAL: LocalAccountant,
}


@contextmanager
def kept_account(ledger: str, accountant: str | None) -> Iterator[_Accountant[Any]]:
    """An account to grant parts of, beside the processes that spend from it.

    A file that nobody serves has this process for its owner meanwhile.

    Args:
        ledger: a file, or an address in PostgreSQL.
        accountant: its id; default, the only one that is open.

    Raises:
        LedgerError: no such ledger or account, or another process has the file open.
        PeopleError: an account of persons, whose registry is needed.
    """
    if is_address(ledger):
        with Ledger.postgres(ledger, "join") as book:
            yield _account(book, accountant)
        return
    path = Path(ledger)
    if not path.is_file():
        raise LedgerError(f"{path}: there is no such ledger file")
    try:
        owned: Any = nullcontext(Ledger.connect(default_socket(path)))
    except LedgerError:
        owned = _owned(path)
    with owned as book, book:
        yield _account(book, accountant)


@contextmanager
def _owned(path: Path) -> Iterator[Ledger]:
    with owning_ledger(path) as socket:
        yield Ledger.connect(socket)


def _account(book: Ledger, accountant: str | None) -> _Accountant[Any]:
    opened = [e for e in book.opened if e.accountant in book.open_accountants]
    found = [e for e in opened if accountant in (None, e.accountant)]
    if len(found) != 1:
        had = ", ".join(e.accountant for e in opened) or "none"
        raise LedgerError(f"{book.name}: name one account: --accountant; open are {had}")
    kind: Any = _KINDS[found[0].trust]
    joined: _Accountant[Any] = kind.join(book, accountant=found[0].accountant)
    return joined


def cap_typed(text: str, of: Currency) -> Currency | ApproxDP:
    """A cap as somebody types it: a budget, or a part of the account's, such as ``10%``.

    Raises:
        ValueError: neither.
    """
    if text.endswith("%"):
        return of.share(exact("cap", text[:-1]) / 100)
    return parse_budget(text, pure=True)
