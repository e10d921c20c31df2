"""What an account released before a restart, so that what follows from it can be made again.

A learner is a function of its parameters, of public time and of what was released.  On resuming it
runs once more over null records, up to where the ledger ends; wherever it would spend a token that
stands there, it is handed the value that left then.  Tokens of which nothing left are as if they
were not there: what they were for is passed over, now as in the process that came after theirs.
"""

from __future__ import annotations

from collections import defaultdict, deque
from dataclasses import dataclass, field
from typing import final

from privlearn.accountants.recorded_values import recorded_value
from privlearn.errors import LedgerError
from privlearn.ledger import Ledger
from privlearn.ledger.entries import (
    Entry,
    IssueEntry,
    PhaseEntry,
    PublishEntry,
    ReachEntry,
    RetireEntry,
    SpendEntry,
    Users,
)
from privlearn.rows.domains import Array


@final
@dataclass(slots=True)
class PastToken:
    """A token of an earlier process."""

    issue: IssueEntry
    ledger: Ledger
    spend: SpendEntry | None = None
    end: str | None = None
    reach: int = 0
    digests: deque[tuple[str, int]] = field(default_factory=deque)
    """Of the values that left, with one past the last user of each; those that are left to do."""
    phases: deque[int] = field(default_factory=deque)
    """Where its phases end, of those that did not begin again."""
    taken: bool = False

    @property
    def users(self) -> range:
        return range(*self.issue.users)

    @property
    def past(self) -> PastToken:
        return self

    @property
    def outcome(self) -> str | None:
        """How it ended, once all that it released has left again; None for one that was closed."""
        return None if self.digests or self.end == "released" else self.end

    def __len__(self) -> int:
        return len(self.digests)

    def next(self) -> tuple[Array, int]:
        """The next value, and one past the last user whose row it was made of.

        Raises:
            LedgerUnreadableError: it is missing, or was changed.
        """
        digest, upto = self.digests.popleft()
        return recorded_value(self.ledger, digest, f"token {self.issue.token}"), upto

    def check_spend(self, entry: SpendEntry) -> None:
        """Raises LedgerError unless it was spent by the same mechanism."""
        assert self.spend is not None
        now, then = entry.body(), self.spend.body()
        different = sorted(name for name in now if now[name] != then[name])
        if different:
            name = different[0]
            raise LedgerError(
                f"token {self.issue.token} was spent with {name} = {then[name]!r:.200}, and would "
                f"be now with {now[name]!r:.200}: resume with the parameters that the run began "
                "with"
            )


@final
class Replay:
    """All that an account released, in the order of its tokens.

    Entries are added while they are read, so that a ledger is read once; then it
    begins, and tokens are taken.
    """

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._tokens: dict[str, PastToken] = {}
        self._taken: dict[str, PastToken] = {}
        self._spent: list[PastToken] = []
        self._waiting: dict[tuple[str, Users], deque[PastToken]] = defaultdict(deque)
        """Tokens that released something, by label and users."""
        self._nothing_left: set[tuple[str, Users]] = set()
        """Of which label and users a token was spent that released nothing."""
        self._by_end: dict[tuple[str, int], deque[PastToken]] = defaultdict(deque)
        """The same by label and last user; those that were taken go when they are met."""

    def add(self, entry: Entry) -> None:
        tokens = self._tokens
        match entry:
            case IssueEntry():
                tokens[entry.token] = PastToken(entry, self._ledger, reach=entry.users[0])
            case SpendEntry():
                tokens[entry.token].spend = entry
            case ReachEntry():
                tokens[entry.token].reach = entry.stop
            case PhaseEntry():
                tokens[entry.token].phases.append(entry.stop)
            case PublishEntry():
                tokens[entry.token].digests.append((entry.digest, entry.upto))
            case RetireEntry():
                token = tokens[entry.token]
                token.end = entry.outcome
                if entry.value is not None:
                    token.digests.append((entry.value["digest"], entry.value["upto"]))

    def begin(self) -> None:
        """All entries of earlier processes were added; what they left open was lost."""
        for token in self._tokens.values():
            if token.spend is not None:
                token.end = token.end or "lost"
                self._spent.append(token)
            label, users = token.issue.label, token.issue.users
            if token.spend is not None and not token.digests:
                self._nothing_left.add((label, users))
            if token.digests:
                self._waiting[label, users].append(token)
                self._by_end[label, users[1]].append(token)
        self._tokens = {}

    def points(self, unbounded: frozenset[str] = frozenset()) -> list[int]:
        """Where public time stood when something was released, or lost; ascending.

        Args:
            unbounded: labels of tokens for all users, whoever has come.
        """
        found: set[int] = set()
        for token in self._spent:
            assert token.spend is not None
            found.update(upto for _, upto in token.digests)
            if token.spend.interactive:
                if token.end != "released":  # one that was closed has said all that it had
                    found.add(token.reach)
            elif token.issue.label not in unbounded:
                found.add(token.users.stop)
        return sorted(found)

    def taken(self, unbounded: frozenset[str] = frozenset()) -> int:
        """One past the last user whose row was certainly there when something was released."""
        stop = 0
        for token in self._spent:
            assert token.spend is not None
            stop = max([stop, *(upto for _, upto in token.digests)])
            if not token.spend.interactive and token.issue.label not in unbounded:
                stop = max(stop, token.users.stop)
        return stop

    @property
    def over(self) -> bool:
        """Whether all that was released has left again."""
        return not self._waiting and not any(map(len, self._taken.values()))

    def lost(self, label: str, users: range) -> bool:
        """Whether a token of these users was spent, and released nothing."""
        return (label, (users.start, users.stop)) in self._nothing_left

    def left(self, label: str, users: range) -> int:
        """How many tokens of these users released something that has not left again."""
        return len(self._waiting.get((label, (users.start, users.stop)), ()))

    def released(self, label: str, users: range, upto: int) -> bool:
        """Whether a token of these users next releases something of rows before ``upto``."""
        return any(
            token.digests[0][1] == upto
            for token in self._waiting.get((label, (users.start, users.stop)), ())
        )

    def rest(self, label: str, users: range) -> range | None:
        """Of a stream of these users: those of the next token that released something."""
        waiting = self._by_end.get((label, users.stop), deque())
        while waiting and waiting[0].taken:
            waiting.popleft()
        return waiting[0].users if waiting else None

    def take(self, label: str, users: range) -> PastToken:
        """The next token of these users.

        Raises:
            LedgerError: there is none.
        """
        waiting = self._waiting.get((label, (users.start, users.stop)))
        if not waiting:
            raise LedgerError(
                f"token {label!r} for users {users!r}: no such token released anything before the "
                "restart; resume with the parameters that the run began with, and let a learner "
                "ask accountant.lost(label, users) before it issues: a lost step moves nothing"
            )
        token = waiting.popleft()
        if not waiting:
            del self._waiting[label, token.issue.users]
        token.taken = True
        self._taken[token.issue.token] = token
        return token

    def holds(self, token: str) -> bool:
        return token in self._taken

    def check_all_left(self) -> None:
        """Raises LedgerError if something was released that has not left again.

        What learned from it then decides otherwise now, so that its state is not what was public.
        """
        waiting = (token for tokens in self._waiting.values() for token in tokens)
        for token in (*waiting, *self._taken.values()):
            if token.digests:
                raise LedgerError(
                    f"token {token.issue.token} ({token.issue.label!r}) released a value that was "
                    "not asked for again: the learner is not what it was; go on with the versions "
                    "of privlearn and NumPy that the run was begun with; in a learner of your own, "
                    "_pass_again must take null records as real ones are taken, releases included"
                )

    def begun_again(self, token: str, stop: int) -> None:
        """Compares the end of a phase with that of the phase that began there.

        Raises:
            LedgerError: it ended elsewhere, or none began.
        """
        phases = self._taken[token].phases
        if not phases or phases[0] != stop:
            then = f"the phase ended at {phases[0]}" if phases else "no phase began here"
            raise LedgerError(
                f"token {token}: {then}, and now one would at {stop}: resume with the parameters "
                "that the run began with, and with ends that follow from releases alone"
            )
        phases.popleft()

    def spent(self, entry: SpendEntry) -> PastToken:
        """The token that a spend was made with, and is made with again.

        Raises:
            LedgerError: it was another spend.
        """
        token = self._taken[entry.token]
        token.check_spend(entry)
        return token
