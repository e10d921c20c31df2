"""Parts of an account that tokens come out of: reserved for a component, or caps inside caps.

A *reserved part* is taken off what it is inside of when it is made, and pays for its tokens alone.
For a *cap* nothing is reserved: a token is charged to it and to all that it is inside of, or, if
one of these has no room, to none.  A cap may renew, with sums of its own for each public epoch: by
number, or by the clock, in which case an entry is in the epoch that its own time is in.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Self, final

from privlearn.accountants.capped import CappedSums
from privlearn.accountants.persons import Visits
from privlearn.errors import BudgetError, InsufficientBudgetError, LedgerError
from privlearn.ledger.chain import minute_of, text_of_minute
from privlearn.ledger.entries import CapEntry, DelegateEntry
from privlearn.losses.budgets import Currency

_NEVER = Fraction(0)
MOST_DEEP = 64
"""Parts and caps inside each other: each charge of one inside goes through all of them."""
CLOCK_BEHIND = (
    "the clock is behind what the last entries tell, and what renews or ends by the clock cannot "
    "tell where it is: set the clock, or wait until it is past them; nothing was charged"
)
Epochs = tuple[int, ...] | None
"""Numbers of epochs: of each cap that renews on a token's path, from the outermost in."""


@final
@dataclass(frozen=True, slots=True)
class Renewal:
    """When a cap renews: every so many minutes, or as its epochs are numbered."""

    every: int | None
    since: int
    """The minute, since 1970, in which epoch 0 by the clock began."""
    numbers: range

    @classmethod
    def of(cls, entry: CapEntry) -> Self | None:
        """That of a cap; None for one that does not renew."""
        if entry.every is None and entry.epochs is None:
            return None
        since = 0 if entry.since is None else minute_of(entry.since)
        return cls(entry.every, since, range(*entry.epochs or (0, 0)))

    def at(self, minute: int) -> int:
        """The epoch, by the clock, that a minute is in."""
        assert self.every is not None
        return (minute - self.since) // self.every

    def check(self, number: int, minute: int | None, latest: int) -> None:
        """Raises why an entry of this minute cannot be in an epoch; see `Allowance.check_epochs`.

        Args:
            number: of the epoch.
            minute: None where it is not known; 0 where the clock is behind.
            latest: the latest epoch of which there are entries.
        """
        if self.every is None:
            if number not in self.numbers:
                raise BudgetError(f"epoch {number}: there are {self.numbers}")
            return
        if minute == 0:
            raise LedgerError(CLOCK_BEHIND)
        now = None if minute is None else self.at(minute)
        if number < latest or number < 0 or now not in (None, number):
            over = max(latest, number if now is None else now)
            begins = text_of_minute(self.since + over * self.every)
            raise BudgetError(
                f"epoch {number}: it is epoch {over}, which began at {begins}; a token is spent in "
                "the epoch that it was issued in: hand it back, and issue another one"
            )

    def check_inside(self, outer: Renewal) -> None:
        """Raises BudgetError if some epoch would lie in two epochs of what it is inside of."""
        if self.every is not None and outer.every is not None:
            if outer.every % self.every or (self.since - outer.since) % self.every:
                raise BudgetError(
                    f"every = {self.every} minutes from {text_of_minute(self.since)}: its epochs "
                    f"overlap several of those that it is inside of, {outer.every} minutes from "
                    f"{text_of_minute(outer.since)}; take the same, or a part of it"
                )
        elif self.every is None and outer.every is None:
            low, high = outer.numbers.start, outer.numbers.stop
            if not (low <= self.numbers.start and self.numbers.stop <= high):
                raise BudgetError(
                    f"epochs = {self.numbers}: must be among those that it is inside of, "
                    f"{outer.numbers}, as a number is the same epoch in both"
                )


@final
@dataclass(slots=True, eq=False)
class Allowance:
    """A reserved part, or a cap: sums of its own for the tokens that come out of it.

    Attributes:
        entry: that made it.
        meter: what is charged; of a cap that renews, over all epochs together.
        outer: what it is inside of; None for the account itself.
        returned: whether it was closed itself.
        renewing: those of its path that renew, from the outermost in; none outside of a reserved
            part, which was charged there in the epochs of its entry.
        until: the minute from which on nothing more comes out of it; None for no end.
        epochs: of a cap that renews, what is charged in each epoch.
    """

    entry: DelegateEntry | CapEntry
    meter: CappedSums
    outer: Allowance | None = None
    returned: bool = False
    visits: Visits | None = None
    renewal: Renewal | None = None
    renewing: tuple[Allowance, ...] = ()
    until: int | None = None
    epochs: dict[int, CappedSums] = field(default_factory=dict)
    latest: int = 0
    """The latest epoch in which something was charged."""

    def __post_init__(self) -> None:
        above = () if self.outer is None or self.reserved else self.outer.renewing
        if isinstance(self.entry, CapEntry):
            self.renewal = Renewal.of(self.entry)
            self.until = None if self.entry.until is None else minute_of(self.entry.until)
        self.renewing = above if self.renewal is None else (*above, self)

    @property
    def reserved(self) -> bool:
        return isinstance(self.entry, DelegateEntry)

    def reserved_in(self) -> dict[Allowance, int]:
        """Of a reserved part: the epochs of what it was inside of."""
        entry = self.entry
        if self.outer is None or not isinstance(entry, DelegateEntry):
            return {}
        return dict(zip(self.outer.renewing, entry.epochs or (), strict=False))

    @property
    def over(self) -> bool:
        """Whether nothing further comes out of it, or of something that it is inside of."""
        return any(part.returned for part in self.out())

    @property
    def path(self) -> list[str]:
        """The labels of all that it is inside of, and its own."""
        return [part.entry.label for part in self.out()][::-1]

    def out(self) -> Iterator[Allowance]:
        """Itself and what it is inside of, from the inside out."""
        part: Allowance | None = self
        while part is not None:
            yield part
            part = part.outer

    def in_epoch(self, number: int) -> CappedSums:
        """The sums of one epoch; new ones, which are in no book, if nothing was charged in it."""
        found, meter = self.epochs.get(number), self.meter
        return found or CappedSums(meter.users, meter.cap, meter.failure, self.visits)

    def check_epochs(self, epochs: Epochs, minute: int | None) -> None:
        """Raises unless an entry of that minute can be in these epochs, of which none is over.

        Args:
            epochs: of what renews of its path, from the outermost in.
            minute: that the entry tells; None where it is not known, 0 where the clock is behind.

        Raises:
            BudgetError: it cannot.  LedgerError: the clock is behind.
        """
        if len(epochs or ()) != len(self.renewing) or epochs == ():
            raise BudgetError(
                f"{self.words(None)}: epochs = {epochs}: must be one for each of "
                f"{len(self.renewing)} caps that renew"
            )
        numbered = set[int]()
        for one, number in zip(self.renewing, epochs or (), strict=True):
            assert one.renewal is not None
            try:
                one.renewal.check(number, minute, one.latest)
            except BudgetError as error:
                raise BudgetError(f"{one.words(None)}: {error}") from None
            numbered |= {number} if one.renewal.every is None else set()
        if len(numbered) > 1:
            raise BudgetError(f"epochs = {epochs}: a number is the same epoch in all caps")
        for level in self.out():
            entry = level.entry
            if isinstance(entry, DelegateEntry) and level.outer is not None:
                level.outer.check_epochs(entry.epochs, minute)
                return

    def check_until(self, minute: int | None) -> None:
        """Raises if an entry of that minute, as of `check_epochs`, is behind the end of a grant.

        Raises:
            BudgetError: it is.  LedgerError: the clock is behind.
        """
        for one in self.out():
            if one.until is None or minute is None:
                continue
            if minute == 0:
                raise LedgerError(CLOCK_BEHIND)
            if minute >= one.until:
                raise BudgetError(
                    f"{one.words(None)} was granted until {text_of_minute(one.until)}: nothing "
                    "more is issued or spent out of it"
                )

    def words(self, number: int | None) -> str:
        """How errors call it."""
        kind = "part" if self.reserved else "cap"
        return f"{kind} {'/'.join(self.path)!r}" + ("" if number is None else f", epoch {number}")


@final
class Levels:
    """Meters that are charged together."""

    __slots__ = ("_meters",)

    def __init__(self, meters: Sequence[CappedSums]) -> None:
        self._meters = meters

    def charge(
        self, users: range, amount: Currency, failure: Fraction, *, shared: bool = False
    ) -> None:
        for meter in self._meters:
            meter.charge(users, amount, failure, shared=shared)

    def release(
        self, users: range, amount: Currency, failure: Fraction, *, shared: bool = False
    ) -> None:
        for meter in self._meters:
            meter.release(users, amount, failure, shared=shared)


@final
class Allowances(dict[str, Allowance]):
    """The reserved parts and caps of an account, by their names.

    Args:
        meter: of the account, which is charged for all of them.
        visits: the rule under which a person may come back.

    Attributes:
        timed: whether one renews or ends by the clock, so that entries are looked at with times.
    """

    def __init__(self, meter: CappedSums, visits: Visits | None = None) -> None:
        self._whole, self._visits = meter, visits
        self.timed = False
        self._labels: dict[tuple[str | None, str], Allowance] = {}

    def at(self, name: str) -> Allowance:
        """One that was not returned, nor anything that it is inside of.

        Raises:
            BudgetError: there is none of that name.
        """
        allowance = self.standing(name)
        if allowance.over:
            raise BudgetError(f"{allowance.words(None)}: what it is inside of was returned before")
        return allowance

    def standing(self, name: str) -> Allowance:
        """One that was not returned itself.

        Raises:
            BudgetError: there is none of that name.
        """
        allowance = self.get(name)
        if allowance is None:
            raise BudgetError(f"allowance {name} was never delegated here")
        if allowance.returned:
            raise BudgetError(f"{allowance.words(None)}: it was returned before")
        return allowance

    def granted(self, name: str | None, to: str) -> bool:
        """Whether a cap, or one that it is inside of, was granted to somebody."""
        part = None if name is None else self.get(name)
        found = () if part is None else part.out()
        return any(isinstance(one.entry, CapEntry) and one.entry.to == to for one in found)

    def cap(self, within: str | None, label: str) -> Allowance | None:
        """The cap of that label inside another one, or the account."""
        return self._labels.get((within, label))

    # Tokens ---------------------------------------------------------------------------------------

    def paying(self, name: str, epochs: Epochs) -> CappedSums | Levels:
        """What carries a token: a reserved part until it is returned, else all levels."""
        part = self.get(name)
        if part is None:
            return self._whole
        numbers = dict(zip(part.renewing, epochs or (), strict=False))  # of as many, once checked
        meters: list[CappedSums] = []
        for level in part.out():
            if level.reserved and level.returned:  # what it held is charged to what it was inside
                numbers.update(level.reserved_in())
                continue
            meters.append(level.meter)
            if level in numbers:
                number = numbers[level]
                level.latest = max(level.latest, number)
                meters.append(level.epochs.setdefault(number, level.in_epoch(number)))
            if level.reserved:
                return Levels(meters)
        return Levels([*meters, self._whole])

    def paid_before(self, name: str | None) -> bool:
        """Whether a token is charged to a reserved part, for which the account was charged."""
        part = None if name is None else self.get(name)
        return part is not None and any(one.reserved and not one.returned for one in part.out())

    def check(
        self,
        name: str,
        epochs: Epochs,
        minute: int | None,
        users: range,
        amount: Currency,
        failure: Fraction,
        *,
        shared: bool = False,
    ) -> None:
        """Raises InsufficientBudgetError unless every level that a token is charged to has room.

        Raises:
            BudgetError: no such allowance, or not in these epochs.  UsersError: others than its.
            LedgerError: the clock is behind.
        """
        part = self.at(name)
        part.meter.charged.check(users)
        part.check_epochs(epochs, minute)
        part.check_until(minute)
        for words, meter in self._limits(name, epochs):
            try:
                meter.check(users, amount, failure, shared=shared)
            except InsufficientBudgetError as error:
                raise error.of(words) if words else error from None

    def room(self, name: str, epochs: Epochs, users: range) -> Currency:
        """What every level has left for each of the users, amount by amount."""
        left: list[tuple[Fraction, ...]] = []
        for _, meter in self._limits(name, epochs):
            pairs = zip(meter.cap.amounts, meter.largest(users).amounts, strict=True)
            left.append(tuple(max(cap - spent, _NEVER) for cap, spent in pairs))
        return self._whole.cap._of(tuple(map(min, *left)) if len(left) > 1 else left[0])

    def _limits(self, name: str, epochs: Epochs) -> Iterator[tuple[str, CappedSums]]:
        """The sums that a token is to stay within, from the inside out, and how errors call them.

        Of a cap that renews those of the epoch.
        """
        part = self[name]
        numbers = dict(zip(part.renewing, epochs or (), strict=True))
        for level in part.out():
            number = numbers.get(level)
            meter = level.meter if number is None else level.in_epoch(number)
            yield level.words(number), meter
            if level.reserved:
                return
        yield "", self._whole

    def epochs_at(self, name: str, minute: int, number: int | None) -> Epochs:
        """In which epochs a token would be that is issued now; None if nothing renews.

        Args:
            name: what it comes out of.
            minute: of now.
            number: of the epoch, where these are told by number.

        Raises:
            BudgetError: ``number`` is missing, or for nothing.
        """
        part = self[name]
        numbered = [one for one in part.renewing if one.renewal and one.renewal.every is None]
        if (number is None) is bool(numbered):
            what = "name the one that is spent in, .epoch(number)" if numbered else "there are none"
            raise BudgetError(f"{part.words(None)}: epochs by number: {what}")
        found = []
        for one in part.renewing:
            assert one.renewal is not None
            by_number = number if one in numbered else None
            found.append(one.renewal.at(minute) if by_number is None else by_number)
        return tuple(found) or None

    # How they begin and end -----------------------------------------------------------------------

    def check_cap(
        self, entry: CapEntry, users: range, cap: Currency, failure: Fraction, minute: int | None
    ) -> None:
        """Raises why a cap cannot stand.

        Raises:
            BudgetError: its name or label is taken, it is larger than what it is inside of, or its
                epochs fit neither each other nor those of that.
            LedgerError: it begins later than now, or the clock is behind.
        """
        if entry.allowance in self or self.cap(entry.within, entry.label) is not None:
            raise BudgetError(f"cap {entry.label!r} or {entry.allowance}: it was made before")
        outer = None if entry.within is None else self.at(entry.within)
        self.check_depth(entry)
        meter = self._whole if outer is None else outer.meter
        meter.charged.check(users)
        if not meter.cap.covers(cap) or failure > meter.failure:
            where = "the account" if outer is None else outer.words(None)
            raise BudgetError(
                f"cap {entry.label!r} of {cap}, failure {failure}: larger than that of {where}, "
                f"{meter.cap}, failure {meter.failure}, which is the most that it could ever spend"
            )
        if (entry.every is None) is not (entry.since is None) or (entry.every and entry.epochs):
            raise BudgetError(
                f"cap {entry.label!r}: renews every so many minutes since a time, or by numbers"
            )
        if entry.epochs is not None and entry.epochs[0] >= entry.epochs[1]:
            raise BudgetError(f"cap {entry.label!r}: epochs = {entry.epochs}: must ascend")
        renewal = Renewal.of(entry)
        if renewal is not None:
            if renewal.every is not None and minute is not None:
                renewal.check(renewal.at(minute), minute, 0)
            for one in () if outer is None else outer.renewing:
                assert one.renewal is not None
                renewal.check_inside(one.renewal)

    def check_depth(self, entry: CapEntry | DelegateEntry) -> None:
        """Raises BudgetError where parts and caps would lie too deep."""
        if entry.within in self and self._outside(entry) is None:
            raise BudgetError(f"{entry.label!r}: parts and caps lie at most {MOST_DEEP} deep")

    def _outside(self, entry: CapEntry | DelegateEntry) -> Allowance | None:
        """What a part or cap is inside of; None for the account, or too deep, as an audit may."""
        found = None if entry.within is None else self.get(entry.within)
        return None if found is None or len(found.path) >= MOST_DEEP else found

    def begin(self, entry: CapEntry, cap: Currency, failure: Fraction) -> None:
        """A cap stands; a second one of a name is only in what an audit reads."""
        if entry.allowance not in self:
            meter = CappedSums(range(*entry.users), cap, failure, self._visits)
            made = Allowance(entry, meter, self._outside(entry), visits=self._visits)
            self[entry.allowance] = made
            self._labels.setdefault((entry.within, entry.label), made)
            self.timed = self.timed or entry.every is not None or entry.until is not None

    def reserve(self, entry: DelegateEntry, budget: Currency, failure: Fraction) -> None:
        """Takes a part off the cap; a second one of a name is only in what an audit reads."""
        sums = CappedSums(range(*entry.users), budget, failure)
        made = Allowance(entry, sums, self._outside(entry))
        self.setdefault(entry.allowance, made)
        self._around(made).charge(sums.users, budget, failure)

    def _around(self, part: Allowance) -> CappedSums | Levels:
        """What a reserved part is charged to."""
        entry = part.entry
        epochs = entry.epochs if isinstance(entry, DelegateEntry) else None
        outer = part.outer
        return self._whole if outer is None else self.paying(outer.entry.allowance, epochs)

    def end(self, name: str) -> None:
        """Nothing further comes out of it; what tokens of a reserved part hold stays charged."""
        allowance = self.standing(name)
        allowance.returned = True
        if not allowance.reserved:
            return
        inner, around = allowance.meter, self._around(allowance)
        around.release(inner.users, inner.cap, inner.failure)
        for piece, value in inner.pieces():
            around.charge(piece, value, _NEVER)
        for piece, failed in inner.failures():
            around.charge(piece, inner.cap.zero(), failed)
