"""What one run looks like from outside, written down at the accountant's receipts."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from privlearn.checking.isolation import TimeLimit
from privlearn.checking.replay.canonical import (
    CanonicalForm,
    CanonicalValue,
    marshalled,
    public_parts,
)
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import RowLocalityError
from privlearn.ledger import Ledger
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency

U = TypeVar("U")


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """A spend, the beginning of a phase, an opening of rows, or a release."""

    what: str
    at: int
    """Number of users who had arrived, the public clock; when a phase begins, who had received
    something, as a block of users is there before the first of them is served."""
    token: str
    """Its number; the whole id has the accountant's in it, which is random."""
    label: str
    users: range
    spend: Spend
    adjacency: Adjacency
    said: str  # For a spend its ledger entry, in full; for a release shape and type
    rows: NDArray[Any] | None = None
    """The clipped rows, integers where the spend has a grid; or the value before it was frozen."""

    @property
    def numbers(self) -> Array:
        if self.what == "open" and self.spend.grid is not None and self.rows is not None:
            return self.spend.grid.values(self.rows)
        return np.asarray(self.rows, dtype=np.float64)

    @property
    def reach(self) -> float:
        return self.spend.domain.sensitivity(self.adjacency, self.spend.noise.norm)

    def key(self) -> tuple[Any, ...]:
        return (self.what, self.at, self.token, self.label, self.users, self.said)


PublicState = dict[str, bytes]  # What can be seen, by name, as `marshalled` forms


def _one(users: range) -> int:
    return 1


@dataclass(slots=True)
class RecordedRun:
    """One run, seen from outside."""

    events: list[TokenEvent] = field(default_factory=list)
    outputs: list[CanonicalValue] = field(default_factory=list)
    ledger: list[str] = field(default_factory=list)
    states: list[PublicState] = field(default_factory=list)
    times: list[int] = field(default_factory=list)  # When they were looked at
    asked: dict[str, bytes] = field(default_factory=dict)  # What methods answered at the end
    failures: set[int] = field(default_factory=set)  # Users who got an error
    operator_only: frozenset[str] = frozenset()  # Attributes that are not in them
    captured: list[tuple[int, str, str]] = field(default_factory=list)
    error: str = ""
    coupled: str = ""  # What was said where rows were found to depend on each other
    users: range = range(0)
    """Of the accountant."""
    room: Callable[[range], int] = _one
    """How many rows of the person who differs a token for some slots may open."""


class Recorder:
    """An observer that writes down what happens."""

    def __init__(self, limit: TimeLimit) -> None:
        self.run = RecordedRun()
        self.clock = 0
        self.learner: Any = None
        self.accountant: Any = None
        self.probe: Callable[[Any], Any] | None = None
        self.looks: Container[int] | None = None
        self._limit = limit
        self._names: Mapping[str, str] = {}
        self._spends: dict[str, Spend] = {}

    def follow(self, ledger: Ledger, names: Mapping[str, str] | None = None) -> None:
        """Says where the entries stand, and what random names in them are replaced by."""
        self._ledger, self._names = ledger, self._names if names is None else names

    def nameless(self, text: str) -> str:
        for name, by in self._names.items():
            text = text.replace(name, by)
        return text

    def failed(self, error: BaseException, how: str = "") -> str:
        """What an error tells its user, or if it ends the run everybody."""
        told = self.nameless(f"{how}{type(error).__name__}: {error}")
        if isinstance(error, RowLocalityError):
            self.run.coupled = told
        return told

    def look(self, *, last: bool = False) -> None:
        """Writes down what can be seen of the learner now."""
        known = {"accountant": self.accountant, "learner": self.learner}
        parts = public_parts(self.learner)
        if self.probe is not None:
            parts["the answer to the probe"] = self.probe(self.learner)
        json, objects = CanonicalForm(known), CanonicalForm(known, objects=True, posts=last)
        self.saw(
            {
                name: marshalled((json if name == "public_state()" else objects).of(value, name))
                for name, value in parts.items()
            }
        )
        self.run.operator_only |= objects.left_out

    def saw(self, state: PublicState) -> None:
        """Writes down what is public now."""
        self.run.states.append(state)
        self.run.times.append(self.clock)

    def arriving(self, users: Iterable[U], total: int) -> Iterator[U]:
        """The users, one by one, while the clock ticks; there is a look before some."""
        for user in users:
            if self.learner is not None and (self.looks is None or self.clock in self.looks):
                self.look()
            self.clock += 1
            self._limit.where = f"; {self.clock} of {total} users had arrived"
            self._limit.check()
            yield user

    def spent(self, token: Token[Any], spend: Spend) -> None:
        self._spends[token.id] = spend
        entry = self._ledger.entries[-1].model_dump_json()
        self._note("spend", token, token.users, self.nameless(entry))

    def begun(self, token: Token[Any], users: range) -> None:
        self._note("begin", token, users)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self._note("open", token, users, rows=np.array(rows))

    def released(self, token: Token[Any], value: Array) -> Array:
        array = np.array(value)
        self._note("release", token, token.users, f"{array.dtype.str}{array.shape}", array)
        return value

    def _note(
        self, what: str, token: Token[Any], users: range, said: str = "", rows: Any = None
    ) -> None:
        at = len(self.run.outputs) if what == "begin" else self.clock
        number, spend = token.id.rpartition("/")[2], self._spends[token.id]
        event = TokenEvent(what, at, number, token.label, users, spend, token.adjacency, said, rows)
        self.run.events.append(event)


class Replayer(Recorder):
    """An observer that hands out the values released in an earlier run.

    With ``rows`` it also puts back the rows that were opened there: noise and rows are then those
    of that run, so that everything released must be as well.
    """

    def __init__(self, limit: TimeLimit, earlier: RecordedRun, *, rows: bool = False) -> None:
        super().__init__(limit)
        self._releases = iter([event for event in earlier.events if event.what == "release"])
        self._opened = iter([event for event in earlier.events if event.what == "open" and rows])

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        """Clipped rows were opened; the earlier ones overwrite them, before anybody reads them."""
        earlier = next(self._opened, None)
        if earlier is not None and earlier.rows is not None and earlier.rows.shape == rows.shape:
            rows[...] = earlier.rows
        super().opened(token, spend, users, rows)

    def released(self, token: Token[Any], value: Array) -> Array:
        super().released(token, value)
        frozen = next(self._releases, None)
        # One release too many, or of something else, is found when the runs are compared.
        return value if frozen is None or frozen.rows is None else frozen.rows
