"""The audit of a ledger, with the gains of streams worked out again."""

from __future__ import annotations

import os

from privlearn.accountants.audit import Examination
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
    return examination(path, delta=delta, head=head, user=user, rounds=rounds).read().certificate


def examination(
    path: str | os.PathLike[str],
    *,
    delta: float | None = None,
    head: str | None = None,
    user: int | None = None,
    rounds: int = 1,
    watcher: Watcher | None = None,
) -> Examination:
    """As `audit`, with the accounts that the certificate follows from; nothing is read yet.

    Raises:
        ValueError: delta, head or rounds are none.
    """
    return Examination(
        path,
        delta=delta,
        head=head,
        user=user,
        rounds=rounds,
        restate=RecordedStreams(),
        watcher=watcher,
    )
