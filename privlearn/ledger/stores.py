"""Where a ledger stands that several processes write to: what is asked of such a place.

Each process holds a replica: the chain, and the accounts that follow from it.  It appends in a turn
of its own, at whose beginning it is told what others wrote since it looked last.  So every entry is
checked against all that stand before it, whoever wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from privlearn.ledger.chain import Record

Value = tuple[str, bytes]
"""What is written beside an entry: bytes, under the digest that the entry states."""


class Turn(NamedTuple):
    """What a process is told when its turn begins."""

    records: Iterable[Record]
    """Which stand behind those that it knows, the oldest first."""
    orphans: Sequence[str] = ()
    """Tokens and reserved parts of processes that are gone, by their names; ended ones among them.
    """


class SharedStore(Protocol):
    """One ledger that several processes append to, each with a store of its own.

    All methods raise LedgerFencedError once the epoch in which this store was opened is over, and
    LedgerError where the place cannot be reached.  Turns and what is written in them are one
    thread's at a time; other threads read and `check` meanwhile.
    """

    @property
    def name(self) -> str:
        """For messages: where it is, without secrets."""

    @property
    def writer(self) -> str:
        """Who writes in this epoch: 16 hexadecimal digits, the same for all processes in it."""

    @property
    def grantee(self) -> str | None:
        """Who this process writes for, if only what was granted to them; None if for anybody."""

    @property
    def epoch(self) -> int:
        """Of this ledger, from 1; it ends when somebody opens the ledger anew."""

    def iterate(self, begin: int) -> Iterator[Record]:
        """All entries from position ``begin`` on, the oldest first; outside of a turn, too."""

    def turn(self, size: int) -> AbstractContextManager[Turn]:
        """A block in which nobody else can append.

        Args:
            size: how many entries this process knows of.

        Raises:
            LedgerBusyError: others held it for too long.
        """

    def write(self, record: Record, value: Value | None) -> Record:
        """Appends in a turn; returns, when it is durable, the record that stands there.

        That may differ from ``record`` in what it tells of time.  A record whose nonce stands
        there already, with the same body, was written by a try whose answer was lost.

        Raises:
            LedgerBusyError: the turn is over, or others have written.  LedgerError: nothing was
            recorded, unless `doubtful`.
        """

    @property
    def doubtful(self) -> bool:
        """Whether the record of the last `write` may stand, also if that raised."""

    @property
    def checks(self) -> bool:
        """Whether the place checks entries with accounts of its own, and takes `write_ahead`."""

    def write_ahead(self, record: Record, value: Value | None) -> None:
        """Appends outside of a turn, behind whatever others wrote; durable when it returns.

        Of ``record`` body, data of extensions and nonce count.  Errors are those of `write`, and
        what the accounts of the place say.
        """

    def check(self) -> None:
        """Raises LedgerFencedError or LedgerError where `write` would.

        Also where others may have ended the tokens of this process, which its next turn tells.
        """

    def settle(self) -> None:
        """Returns when all that this process knows of is on disk, and its head is kept.

        The head is kept by the place, if it has an owner that does.  An entry that may wait (the
        issue of a token, its end) need not be on disk when `write` returns.
        """

    def value(self, digest: str) -> bytes | None:
        """What was written beside an entry; None where nothing was."""

    def enter(self, accountant: str, *, alone: bool) -> None:
        """Says, in a turn, that this process writes for an accountant, until it closes or ends.

        Raises:
            LedgerBusyError: ``alone``, and another process does.
        """

    def close(self) -> None:
        """Lets go of the place; may be called twice."""
