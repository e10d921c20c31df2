"""The audit of a ledger, with the gains of streams worked out again."""

from __future__ import annotations

import os

from privlearn.accountants.audit import Examination, Examined
from privlearn.accountants.audit import examine as recompute
from privlearn.accountants.audited_accounts import Watcher
from privlearn.accountants.certificate import Certificate
from privlearn.mechanisms.recorded_streams import RecordedStreams


def audit(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
) -> Certificate:
    """As `privlearn.accountants.audit`, and what a person's visits move in streams is made again.

    Raises:
        PrivlearnError: as `privlearn.accountants.audit`.
    """
    return examine(path, delta=delta, head=head, user=user, rounds=rounds).certificate


def examine(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    watcher: Watcher | None = None,
) -> Examined:
    """As `audit`, with the accounts that the certificate follows from.

    Raises:
        PrivlearnError: as `privlearn.accountants.audit`.
    """
    return recompute(
        path,
        delta=delta,
        head=head,
        user=user,
        rounds=rounds,
        restate=RecordedStreams(),
        watcher=watcher,
    )


def examination(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    rounds: int = 1,
    watcher: Watcher | None = None,
) -> Examination:
    """As `examine`, of a ledger whose records are handed over one by one.

    Raises:
        ValueError: delta, head or rounds are none.
    """
    return Examination(
        path,
        delta=delta,
        head=head,
        rounds=rounds,
        restate=RecordedStreams(),
        watcher=watcher,
    )
