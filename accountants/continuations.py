"""Accounts that stand in a ledger and go on: after a restart, or beside other processes."""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from privlearn.accountants.account_log import AccountLog
from privlearn.accountants.beginnings import check_people, noise_like, opened_as
from privlearn.accountants.replay import Replay
from privlearn.accountants.spend_forms import OtherLosses
from privlearn.accountants.state import AccountState
from privlearn.accountants.turn_lock import News
from privlearn.errors import LedgerError, LedgerHeadError
from privlearn.ledger import Ledger
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.values.adjacency import Trust


class Continuation(NamedTuple):
    """What an account that stands in a ledger goes on with."""

    log: AccountLog
    noise: NoiseSource
    before: Replay
    """What it released before, for a learner that runs again over it."""


def read_account(
    book: Ledger,
    trust: Trust,
    noise: NoiseSource | None,
    accountant: str | None,
    people: People | None,
) -> Continuation:
    """An accountant that the ledger holds, and what it released before.

    Raises:
        LedgerError, LedgerHeadError, PeopleError: as `Accountant.resume`.
    """
    with book.turn():  # it may have been opened since this process connected
        pass
    first = opened_as(book, trust, accountant)
    source = noise if noise is not None else noise_like(first)
    if source.simulated is not first.simulated:
        raise LedgerError(f"noise = {source.name}: the ledger was begun with {first.noise}")
    state, seen, before = AccountState(first), 0, Replay(book)
    others, news = OtherLosses(), News(first.accountant)
    stands = book.listen(news) if book.shared else None  # from here on others may write
    for entry in islice(book.entries, stands):
        if entry.accountant == first.accountant:
            if seen:
                state.check(entry)
                state.record(entry)
                others.note(state, entry)
                if state.learner is not None:  # which stands before the first token
                    before.add(entry)
            seen += 1
    if state.closed:
        raise LedgerError(
            f"{book.name}: its accountant was closed, and takes no further entries; it can be "
            "audited"
        )
    if book.unknown_head and not state.resumable:
        raise LedgerHeadError(
            "unknown_head = True: the account was begun by a version whose ledgers cannot say "
            "so; give head=, the last hash, which `privlearn audit` prints"
        )
    if people is not None or first.participation is not None:
        check_people(people, state)
    return Continuation(AccountLog(state, seen, book, news, others), source, before)
