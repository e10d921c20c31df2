"""How far a stream came, and whom its end frees.

A stream says in the ledger how far it comes before it opens rows, which it does in order of
arrival.  Once it has ended, those whose rows it cannot have taken are charged nothing for it, and a
stream that follows may take them.  docs/proofs.md, "Streams that end early", has the proof, and
why it needs a loss that holds whatever left before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, final

from privlearn.accountants.persons import Visits
from privlearn.contract.spends import PHASES
from privlearn.ledger.entries import OpenEntry, SpendEntry
from privlearn.losses import Loss
from privlearn.values.adjacency import Adjacency

SEGMENT = 256
"""The most users that a stream says it takes beyond those whose rows it is about to open."""
_LARGE = 16  # Users of a block that is a segment by itself
_SHARE = 8  # One in so many of the users so far is the most that a crash costs a stream of sums


@final
@dataclass(slots=True)
class Stream:
    """A stream that is charged, once it has ended, as far as it came."""

    mechanism: str
    loss: Loss
    derived: bool
    """Whether the loss follows from domain, noise and gain."""
    users: range
    reach: int
    """One past the last user whose row it may have taken."""
    each: bool = False
    """Whether every user has a report of their own."""
    phase: int | None = None
    """One past the last user of the phase that began last; None where it is not in phases."""
    freed: tuple[Freed, ...] = ()
    """Once it has ended: whose charges were taken off."""

    @property
    def paid(self) -> int:
        """One past the last user who is charged for it, once it has ended, or may be."""
        return min((kept.stop for _, kept, _ in self.freed), default=self.users.stop)

    def ahead(self, stop: int) -> int:
        """How far it should say that it comes, before it opens rows below ``stop``.

        Each word costs a sync, and each user beyond the last whose row was opened a crash: who
        takes rows one by one says somewhat more than is needed.
        """
        if self.each:
            return max(stop, self.reach + SEGMENT)
        if self.phase is not None:  # whose rows are opened together
            return stop
        if stop - self.reach >= _LARGE:
            return stop
        return stop + min(SEGMENT, (stop - self.users.start) // _SHARE)

    def come_to(self, stop: int) -> None:
        """Rows below ``stop`` may be taken from now on."""
        self.reach = max(self.reach, stop)


class Freed(NamedTuple):
    """Users who paid one loss of a stream that ended early."""

    users: range
    kept: range
    """The first of them, who go on paying."""
    loss: Loss


def ends_early(opened: OpenEntry, visits: Visits | None, entry: SpendEntry, loss: Loss) -> bool:
    """Whether a spend is charged as far as it comes, under an account that declares `RESUME`.

    Not under add-remove, where an index is no person that stays.  Of persons with several visits
    some could be in it, and some in the stream that follows, which costs no more only in phases;
    and what (ε, δ) says of a whole stream does not hold of its rest, given what left before.
    """
    if not entry.interactive or opened.adjacency is Adjacency.ADD_REMOVE:
        return False
    if visits is not None and visits.rule.most > 1 and PHASES not in entry.parameters:
        return False
    return not loss.failure()


def frees(outcome: str) -> bool:
    """Whether an end says nothing of rows that were still to come.

    An error may come from whoever was about to hand over rows, and depend on them.
    """
    return outcome != "uncovered"


def kept_until(stream: Stream, visits: Visits | None) -> int:
    """One past the last user who is charged: the reach, or the end of the batch that it is in."""
    if visits is None or not visits.starts:
        return stream.reach
    after = bisect_left(visits.starts, stream.reach)
    end = visits.starts[after] if after < len(visits.starts) else visits.users.stop
    return min(end, stream.users.stop)


def freed_after(stop: int, pieces: Iterable[tuple[range, Loss]]) -> Iterator[Freed]:
    """Of ``pieces`` of users who pay a loss each, those that end after ``stop``."""
    for users, loss in pieces:
        if users.stop > stop:
            yield Freed(users, range(users.start, max(users.start, stop)), loss)
