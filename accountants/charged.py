"""The tokens of one account, the items of its plan, and what is charged for them.

A run of an item is one token for all its users or, where streams end early, several one after the
other: each is for the last users, none of whom was in those before.  So every user is in at most
``count`` tokens of the item that were not handed back, or ended before this user came.

How often a loss was charged is kept as the indices where that changes (`Tallies`): so a charge
costs the same for however many users it is, and however many others there are.  Composition is
looked at only where it can be the largest: of a range of users whose losses are a part of those of
the range beside it nothing needs to be computed.
"""

from __future__ import annotations

import re
import secrets
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from operator import add
from typing import Generic, NamedTuple, TypeVar, final

from privlearn.accountants.allowances import Allowances, Epochs, Levels
from privlearn.accountants.capped import CappedSums
from privlearn.accountants.loss_structure import over
from privlearn.accountants.per_user_charge import Amounts
from privlearn.accountants.persons import Visits
from privlearn.accountants.prices import LossPrice, Prices
from privlearn.accountants.streams import Stream
from privlearn.errors import (
    BudgetError,
    LedgerError,
    LossExceedsTokenError,
    TokenError,
    TokenSpentError,
    UsersError,
)
from privlearn.ledger.entries import (
    RESUME,
    SHA256,
    FunctionsEntry,
    IssueEntry,
    PhaseEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
    Users,
)
from privlearn.losses import Loss
from privlearn.losses.budgets import Currency
from privlearn.values.exact import exact_text

K = TypeVar("K", bound=Hashable)
_MOST_SEEN = 256
Pieces = list[tuple[range, Loss]]
"""What each of some users pays."""


@final
@dataclass(slots=True)
class Account:
    """One token's history; of its issue only what is still needed, as an audit may hold many."""

    token: str
    label: str
    users: Users
    planned: int | None
    allowance: str | None
    budget: Currency
    failure: Fraction
    spend: SpendEntry | None = None
    """Of a token that has ended, one of the same mechanism: its own stands in the ledger."""
    loss: Loss | None = None
    outcome: str | None = None
    held: bool = True
    """Whether its budget is charged; not once the loss or nothing is charged instead."""
    shared: bool = False
    """Whether it is for a loss that `Prices.shares` holds of."""
    functions: dict[str, None] | None = None
    """Names of user code that its rows passed through, in the order in which they came."""
    upto: int = 0
    """One past the last user whose row was open when a value left."""
    stream: Stream | None = None
    """What is known of a stream that is charged as far as it came, once it has ended."""
    wrong: bool = False
    """Whether an entry of it did not check, so that nothing of what it is charged becomes free."""
    running: bool = False
    """Whether it was spent and has not ended; not of a lease."""
    epochs: Epochs = None
    """Of the caps that renew among those that it is charged to, from the outermost in."""
    past: None = None
    """Nothing that it released in another process leaves again."""

    @property
    def all_left(self) -> bool:
        """Whether a value left, in phases, of all rows that were opened: nothing else can have."""
        return (
            self.stream is not None
            and self.stream.phase is not None
            and (max(self.upto, self.users[0]) == self.stream.reach)
        )

    def check_unspent(self, entry: SpendEntry) -> None:
        """Raises unless it can be spent, on these users."""
        if self.spend is not None or self.outcome is not None:
            raise TokenSpentError(f"token {self.token} {self._before()}")
        if entry.users != self.users:
            raise TokenError(f"token {self.token} was issued for users {self.users}")

    def check_holds(self, mechanism: str, loss: Loss, price: LossPrice, *, shares: bool) -> None:
        """Raises LossExceedsTokenError unless it holds what a loss costs.

        ``shares``: whether that is known to grow with a person's visits.
        """
        if self.budget is not price.budget and not self.budget.covers(price.budget):
            raise LossExceedsTokenError(
                f"{mechanism} costs {price.budget}, token {self.token} holds {self.budget}"
            )
        if self.shared and not shares:
            raise LossExceedsTokenError(
                f"{mechanism}: token {self.token} is for a loss that grows with a person's "
                f"visits, which {loss.kind!r} is not known to do; issue a token for this loss"
            )
        if price.failure > self.failure:
            raise LossExceedsTokenError(
                f"{mechanism} fails with probability {exact_text(price.failure)}, token "
                f"{self.token} holds {exact_text(self.failure)}"
            )

    def check_running(self) -> None:
        """Raises TokenError unless rows are opened for it."""
        if self.spend is None or self.outcome is not None:
            state = "unspent" if self.spend is None else "retired"
            raise TokenError(f"token {self.token} is {state}: no rows are opened for it")

    def check_phase(self, entry: PhaseEntry) -> None:
        """Raises unless the phase before is over, and this one ends among the users left."""
        self.check_running()
        if self.stream is None or self.stream.phase is None:
            raise TokenError(f"token {self.token} is not in phases")
        before = self.stream.phase
        if max(self.upto, self.users[0]) < before:
            raise TokenError(f"token {self.token}: the phase up to {before} has not been released")
        if not before < entry.stop <= self.users[1]:
            raise UsersError(
                f"token {self.token}: a phase from {before} to {entry.stop}, of users {self.users}"
            )

    def check_reach(self, entry: ReachEntry) -> None:
        """Raises unless the stream can come so far."""
        self.check_running()
        if self.stream is None:
            raise TokenError(f"token {self.token} is charged whole: it has no reach")
        before = self.stream.reach
        if not before < entry.stop <= self.users[1]:
            raise UsersError(
                f"token {self.token}: reach {entry.stop} after {before}, of users {self.users}"
            )
        if self.stream.phase not in (None, entry.stop):
            raise UsersError(
                f"token {self.token}: reach {entry.stop} in a phase up to {self.stream.phase}, "
                "whose rows are opened together"
            )

    def check_publish(self, entry: PublishEntry) -> None:
        """Raises unless a value can leave now, of these rows."""
        self.check_running()
        self._check_upto(entry.upto)
        phase = None if self.stream is None else self.stream.phase
        if phase is not None and not max(self.upto, self.users[0]) < entry.upto == phase:
            raise TokenError(
                f"token {self.token}: a value with rows up to {entry.upto}, in a phase up to "
                f"{phase}: one leaves at its end"
            )

    def check_functions(self, entry: FunctionsEntry) -> None:
        """Raises unless these functions are new."""
        self.check_running()
        if known := [name for name in entry.names if name in (self.functions or ())]:
            raise LedgerError(f"token {self.token}: functions {known} were named before")

    def check_retire(self, entry: RetireEntry) -> None:
        """Raises unless it can end so, with the value that it then releases."""
        if self.outcome is not None:
            raise TokenSpentError(f"token {self.token} {self._before()}")
        if (entry.outcome == "unused") is not (self.spend is None):
            state = "unspent" if self.spend is None else "spent"
            raise TokenError(f"token {self.token} is {state}: it cannot end as {entry.outcome}")
        if self.stream is not None and self.stream.phase is not None:
            self._check_end_in_phases(entry)
        if entry.value is None:
            return
        said = entry.value
        if set(said) != {"digest", "upto"} or not re.fullmatch(SHA256, str(said["digest"])):
            raise LedgerError(f"token {self.token}: data of {RESUME!r} must be digest and upto")
        if entry.outcome not in ("released", "uncovered"):
            raise LedgerError(f"token {self.token}: it ended {entry.outcome}, with a value")
        self._check_upto(said["upto"])

    def _check_end_in_phases(self, entry: RetireEntry) -> None:
        whole = self.upto == self.users[1]
        if entry.value is not None or (entry.outcome == "released" and not whole):
            raise TokenError(
                f"token {self.token}: it ended {entry.outcome} at user {self.upto} of {self.users}:"
                " in phases it is released with the value of the last one"
            )

    def _check_upto(self, upto: object) -> None:
        """Rows that a value is made of must have been within the reach when they were opened."""
        start, stop = self.users
        most = stop if self.stream is None else self.stream.reach
        if type(upto) is not int or not max(self.upto, start) <= upto <= most:
            raise UsersError(
                f"token {self.token}: a value with rows up to {upto!r}; must lie in "
                f"{max(self.upto, start)}..{most}"
            )

    def _before(self) -> str:
        match self.outcome:
            case None:
                return "was spent before: it stays charged; whether anything left is not known here"
            case "unused":
                return (
                    "was retired before, unspent and free of charge: by its own process, or by "
                    "another one when the connection of that was cut; issue another token"
                )
            case "lost":
                return (
                    "was spent and then retired before, its outcome lost: it stays charged, and "
                    "nothing more is released for it; issue another token"
                )
            case outcome:
                return f"was spent and then retired before, as {outcome}: it stays charged"


@final
class OpenPhases(list[tuple[str, int | None, range]]):
    """Phases that began, and whose token ended before their rows were opened.

    With its label and plan item, by which the token that goes on is known.
    """

    def leave(self, account: Account, stream: Stream) -> None:
        """A token ended, maybe in a phase of which no row was opened."""
        if stream.phase is not None and stream.reach < stream.phase:
            left = range(stream.reach, stream.phase)
            self.append((account.label, account.planned, left))

    def check(self, account: Account, entry: PhaseEntry) -> None:
        """Raises UsersError if a token's first phase is the rest of one with another end."""
        ends = [phase.stop for _, _, phase in self._left_of(account)]
        if ends and entry.stop not in ends:
            raise UsersError(
                f"token {account.token}: a phase to {entry.stop}, which began before as one to "
                f"{ends[0]}: an end stays where it was declared"
            )

    def begin(self, account: Account, entry: PhaseEntry) -> None:
        """A phase begins, maybe again."""
        same = [one for one in self._left_of(account) if one[2].stop == entry.stop]
        if same:
            self.remove(same[0])

    def _left_of(self, account: Account) -> list[tuple[str, int | None, range]]:
        stream, of = account.stream, (account.label, account.planned)
        if stream is None or stream.phase != stream.users.start:
            return []
        return [one for one in self if one[:2] == of and stream.phase in one[2]]


@final
@dataclass(slots=True)
class Planned:
    """One item and what is left of it."""

    label: str
    users: range
    loss: Loss
    count: int
    left: int
    """Runs that were not begun."""
    rests: list[int] = field(default_factory=list)
    """Of runs whose stream ended early: where the users begin whose rows it did not take."""

    def has(self, users: range) -> bool:
        """Whether a token of these users is left."""
        return (self.left > 0 and users == self.users) or self._rest(users) is not None

    def take(self, users: range) -> None:
        """A token of these users was issued."""
        rest = self._rest(users)
        if rest is None or (self.left > 0 and users == self.users):
            self.left -= 1
        else:
            self.rests.remove(rest)

    def give_back(self, users: range) -> None:
        """A token of these users was not used."""
        if users == self.users:
            self.left += 1
        else:
            self.rests.append(users.start)

    def end_early(self, stop: int) -> None:
        """The users from ``stop`` on were not in a stream that ended."""
        self.rests.append(stop)

    @property
    def rest(self) -> range | None:
        """The users of whom a further token can be issued; None if there is none."""
        if self.left > 0:
            return self.users
        return range(min(self.rests), self.users.stop) if self.rests else None

    def _rest(self, users: range) -> int | None:
        """Where the rest begins that a token of these users takes: the shortest one."""
        if users.stop != self.users.stop:
            return None
        return max((start for start in self.rests if start <= users.start), default=None)


@final
class CommittedPlan(list[Planned]):
    """The items of a plan, found by what they are for."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, range], list[int]] = {}

    def add(self, label: str, users: range, loss: Loss, count: int) -> None:
        """A further item."""
        self._of.setdefault((label, users), []).append(len(self))
        self.append(Planned(label, users, loss, count, count))

    def item(self, position: int | None) -> Planned | None:
        """The item at a position; None where there is none, which only audits meet."""
        return None if position is None or not 0 <= position < len(self) else self[position]

    def position_for(self, label: str, users: range, loss: Loss, prices: Prices) -> int:
        """Position of the item that a new token can use.

        Raises:
            BudgetError: no item of the plan is left for this token.
        """
        for position in self._of.get((label, users), []):
            item = self[position]
            if item.left and (item.loss == loss or prices.dominates(item.loss, loss, users)):
                return position
        for position, item in enumerate(self):
            rest = item.label == label and item.has(users)
            if rest and prices.dominates(item.loss, loss, users):
                return position
        raise BudgetError(
            f"token {label!r} for users {users!r} is not (or no longer) in the committed plan; "
            "a plan is exhaustive: commit one that names it"
        )

    def item_of(self, entry: IssueEntry, users: range) -> Planned:
        """The item that a new token names; raises BudgetError unless it is for these users."""
        item = self.item(entry.planned)
        if item is None:
            raise BudgetError(f"token {entry.token} is not in the committed plan")
        if not item.has(users) or item.label != entry.label:
            raise BudgetError(f"token {entry.token} does not match plan item {entry.planned}")
        return item


@final
class Charged:
    """Sums of amounts under the caps of one account, and tallies of the losses that they are for.

    Args:
        meter: of the account itself; each part of it that was delegated has one of its own.
        prices: of losses in its currency.
        visits: the rule under which a person may come back; without one a person is an index.

    Attributes:
        planned: whether what can be spent was charged when the plan was committed.
        spent: losses that were spent, for each index.
        committed: losses of the plan.
        runs_spent: with a rule, losses of one row by the ranges of slots that they are on.
        runs_committed: the same of the plan.
    """

    def __init__(self, meter: CappedSums, prices: Prices, visits: Visits | None) -> None:
        self._meter, self._prices, self._visits = meter, prices, visits
        self.allowances = Allowances(meter, visits)
        self.planned = False
        self.spent: Tallies[Loss] = Tallies(meter.users)
        self.committed: Tallies[Loss] = Tallies(meter.users)
        self.runs_spent: Counter[tuple[int, int, Loss]] = Counter()
        self.runs_committed: Counter[tuple[int, int, Loss]] = Counter()

    def plan(self, users: range, loss: Loss, count: int) -> None:
        """Charges an item of the plan."""
        pieces = over(loss, users)
        self.charge(self._meter, pieces, count)
        if self._visits is not None:
            self.runs_committed[users.start, users.stop, loss] += count
        for piece, part in pieces:
            self.committed.add(piece, self._of_person(part, piece), count)

    def reserve(self, account: Account) -> None:
        """Charges what a new token holds."""
        if not self.planned:
            self._paying(account).charge(
                range(*account.users), account.budget, account.failure, shared=account.shared
            )

    def _paying(self, account: Account) -> CappedSums | Levels:
        name = account.allowance
        return self._meter if name is None else self.allowances.paying(name, account.epochs)

    def hand_back(self, account: Account) -> None:
        """Takes off what a token held."""
        if account.held and not self.planned:
            account.held = False
            self._paying(account).release(
                range(*account.users), account.budget, account.failure, shared=account.shared
            )

    def spend(
        self, account: Account | None, users: range, loss: Loss, price: LossPrice | None
    ) -> None:
        """Charges what a spend costs, in place of what its token held.

        Args:
            account: of the token; None for one that has ended, which only audits meet.
            users: of the spend.
            loss: that it states.
            price: of the loss, if it is known.
        """
        pieces = pieces_of(loss, users)
        for piece, part in pieces:
            self._add(piece, part)
        if self.planned:
            return
        if account is None:
            self.charge(self._meter, pieces)
            return
        whole = len(pieces) == 1 and account.users == (users.start, users.stop)
        if account.held and (account.wrong or whole):
            cost = price or self._prices.of_person(loss, users)
            budget, failure = cost.budget, cost.failure
            if account.wrong and account.budget.covers(budget) and failure <= account.failure:
                return
            same = budget.amounts == account.budget.amounts and failure == account.failure
            if whole and same and account.shared is self._shares(loss):
                account.held = False
                return
        self.hand_back(account)  # it may have held more than its one loss; the rest is free again
        self.charge(self._paying(account), pieces)

    def end_early(self, account: Account, stream: Stream) -> None:
        """Takes a stream's charges off the users whose rows it never took."""
        meter = self._paying(account)
        for users, kept, part in stream.freed:
            self._add(users, part, -1)
            if kept:
                self._add(kept, part)
            if not self.planned:
                self.charge(meter, [(users, part)], off=True)
                self.charge(meter, [(kept, part)] if kept else [])

    def charge(
        self, meter: CappedSums | Levels, pieces: Pieces, count: int = 1, *, off: bool = False
    ) -> None:
        """Charges ``count`` runs of what each of the users pays, or takes them off."""
        for users, loss in pieces:
            shared, price = self._shares(loss), self._prices.of_person(loss, users)
            budget = price.budget if count == 1 else price.budget * count
            charge = meter.release if off else meter.charge
            charge(users, budget, price.failure * count, shared=shared)

    def _shares(self, loss: Loss) -> bool:
        return self._visits is not None and self._prices.shares(loss)

    def _add(self, users: range, loss: Loss, count: int = 1) -> None:
        self.spent.add(users, self._of_person(loss, users), count)
        if self._visits is not None:
            run = users.start, users.stop, loss
            self.runs_spent[run] += count
            if not self.runs_spent[run]:
                del self.runs_spent[run]

    def _of_person(self, loss: Loss, users: range) -> Loss:
        return loss if self._visits is None else self._prices.loss_of_person(loss, users)


def pieces_of(loss: Loss, users: range) -> list[tuple[range, Loss]]:
    """What each of the users pays; everybody the most where the loss is not for so many.

    The second is only in what an audit reads.
    """
    try:
        return loss.over(users)
    except ValueError:
        return [(users, loss)]


class Top(NamedTuple):
    """A range of users whose tally is no part of the tally beside it."""

    first: int
    """Its first arrival index."""
    terms: int
    """Different things in its tally."""


@final
class Tallies(Generic[K]):
    """How often each loss was charged to each arrival index: a multiset for each.

    Args:
        users: all arrival indices; what is added outside of them does not count.
    """

    __slots__ = ("_edges", "_seen", "users")

    def __init__(self, users: range) -> None:
        self.users = users
        self._edges: dict[K, dict[int, int]] = {}
        self._seen: dict[int, tuple[K, dict[int, int]]] = {}

    def add(self, users: range, what: K, count: int = 1) -> None:
        """Counts ``what`` so many times for each of the users."""
        start, stop = users.start, users.stop
        if start < self.users.start:
            start = self.users.start
        if start >= stop or start >= self.users.stop:
            return
        edges = self._of(what)
        _change(edges, start, count)
        if stop < self.users.stop:
            _change(edges, stop, -count)

    def add_all(self, other: Tallies[K]) -> None:
        """Counts what another book counts."""
        for what, edges in other._edges.items():
            mine = self._of(what)
            for at, change in edges.items():
                _change(mine, at, change)
            left = sum(edges.values())
            if left and other.users.stop < self.users.stop:
                _change(mine, other.users.stop, -left)

    def mapped(self, function: Callable[[K], K]) -> Tallies[K]:
        """The same with something else in each place; what becomes equal is added up."""
        found: Tallies[K] = Tallies(self.users)
        for what, edges in self._edges.items():
            mine = found._of(function(what))
            for at, change in edges.items():
                _change(mine, at, change)
        return found

    def _of(self, what: K) -> dict[int, int]:
        seen = self._seen.get(id(what))
        if seen is not None and seen[0] is what:  # the hash of a loss takes time
            return seen[1]
        edges = self._edges.get(what)
        if edges is None:
            edges = self._edges[what] = {}
        if len(self._seen) >= _MOST_SEEN:
            self._seen.clear()
        self._seen[id(what)] = what, edges
        return edges

    def __iter__(self) -> Iterator[K]:
        return iter(self._edges)

    def of(self, user: int) -> dict[K, int]:
        """The tally of one user."""
        counts = {what: _at(edges, user) for what, edges in self._edges.items()}
        return {what: count for what, count in counts.items() if count}

    def pieces(self, users: range | None = None) -> Iterator[tuple[range, dict[K, int]]]:
        """Every tally within ``users`` (default: all), in order; as much work as they are long."""
        within = self.users if users is None else users
        tally: dict[K, int] = {}
        at = within.start
        for edge, changes in self._steps():
            if edge >= within.stop:
                break
            if edge > at:
                yield range(at, edge), dict(tally)
                at = edge
            _apply(tally, changes)
        yield range(at, within.stop), dict(tally)

    def tops(self) -> list[Top]:
        """Where the tallies are that matter to a maximum over users, each different one once.

        All others are a part of one of these.
        """
        weights = {what: secrets.randbits(128) for what in self._edges}
        tally: dict[K, int] = {}
        # Equal tallies have equal sums of weights.  Different ones have, too, with probability
        # 2^-128: the weights are drawn here, after the file was written.
        found: dict[int, Top] = {}
        mark, begun, risen = 0, self.users.start, True
        for edge, changes in self._steps():
            if edge > begun and risen and any(change < 0 for _, change in changes):
                found.setdefault(mark, Top(begun, len(tally)))
            risen = any(change > 0 for _, change in changes) or (risen and edge == begun)
            begun = edge
            for what, change in changes:
                mark += weights[what] * change
            _apply(tally, changes)
        if risen:
            found.setdefault(mark, Top(begun, len(tally)))
        return list(found.values())

    def at(self, firsts: Sequence[int]) -> list[dict[K, int]]:
        """The tallies of some users, which are in order."""
        tally: dict[K, int] = {}
        found = []
        steps, end = self._steps(), self._end()
        edge, changes = next(steps, end)
        for first in firsts:
            while changes and edge <= first:
                _apply(tally, changes)
                edge, changes = next(steps, end)
            found.append(dict(tally))
        return found

    def sums(self, value: Callable[[K], Amounts], firsts: Sequence[int]) -> list[Amounts]:
        """The sums of the values of all that was counted for some users, which are in order."""
        values = {what: value(what) for what in self._edges}
        total: Amounts | None = None
        found = []
        steps, end = self._steps(), self._end()
        edge, changes = next(steps, end)
        for first in firsts:
            while changes and edge <= first:
                for what, change in changes:
                    more = tuple([amount * change for amount in values[what]])
                    total = more if total is None else tuple(map(add, total, more))
                edge, changes = next(steps, end)
            found.append(total or ())
        return found

    def _end(self) -> tuple[int, list[tuple[K, int]]]:
        return self.users.stop, []

    def _steps(self) -> Iterator[tuple[int, list[tuple[K, int]]]]:
        changes: dict[int, list[tuple[K, int]]] = {}
        for what, edges in self._edges.items():
            for at, change in edges.items():
                changes.setdefault(at, []).append((what, change))
        return ((at, changes[at]) for at in sorted(changes))


def _change(edges: dict[int, int], at: int, by: int) -> None:
    after = edges.get(at, 0) + by
    if after:
        edges[at] = after
    else:
        del edges[at]


def _at(edges: dict[int, int], user: int) -> int:
    return sum(change for edge, change in edges.items() if edge <= user)


def _apply(tally: dict[K, int], changes: list[tuple[K, int]]) -> None:
    for what, change in changes:
        count = tally.get(what, 0) + change
        if count:
            tally[what] = count
        else:
            del tally[what]
