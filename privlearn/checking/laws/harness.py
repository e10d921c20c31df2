"""Runs of one mechanism under check that can be compared, as their noise can be held fixed."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from privlearn.accountants import CentralAccountant, LocalAccountant
from privlearn.checking.isolation import OutputCapture
from privlearn.checking.stream_runs import is_stream, released_by
from privlearn.contract.spends import Spend
from privlearn.contract.tokens import Token
from privlearn.errors import CheckError, CurrencyError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, Currency, GaussianDP, PureDP, Renyi
from privlearn.noise import NoiseSource
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.records import length, rebuilt, record_at

CAPS: tuple[Currency, ...] = (
    PureDP(10**9),
    ZCDP(10**9),
    GaussianDP(10**9),
    Renyi({"1.5": 10**9, 2: 10**9, 8: 10**9, 32: 10**9}),
)
"""One of each currency, with room for everything."""
Book = CentralAccountant[Any] | LocalAccountant[Any]
"""Of a case: local where every user's report is the user's own."""
USERS = 6


class RunObserver:
    """Records what a mechanism does with its receipt, in order."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.spends: list[Spend] = []
        self.rows: list[Array] = []

    def spent(self, token: Token[Any], spend: Spend) -> None:
        self.said.append("spend")
        self.spends.append(spend)

    def opened(self, token: Token[Any], spend: Spend, users: range, rows: Array) -> None:
        self.said.append("open")
        # Those of a spend with a grid are integers.
        self.rows.append(np.array(rows) if spend.grid is None else spend.grid.values(rows))

    def released(self, token: Token[Any], value: Array) -> Array:
        self.said.append("release")
        return value


@dataclass(frozen=True)
class ObservedRun:
    """One run."""

    released: Any
    value: Array
    observer: RunObserver
    book: Book
    token: Token[Any]
    said: str  # what it printed, warned of and logged

    @property
    def opened(self) -> Array:
        return np.concatenate(self.observer.rows) if self.observer.rows else np.zeros((0, 0))


@dataclass(frozen=True)
class Case:
    """A mechanism under check with the records it is tried on."""

    mechanism: Any
    name: str
    loss: Loss
    spend: Spend
    block: Any
    seed: int
    examples: Any
    records: Any  # Those of the examples that were given; None if none were
    untouched: Any  # the mechanism before its first run
    cap: Currency = field(init=False)
    observed: dict[str, ObservedRun] = field(default_factory=dict)

    def __post_init__(self) -> None:
        caps = [cap for cap in CAPS if price_in(cap, self.loss) is not None]
        if not caps:
            raise CheckError(f"{self.name}: its loss has no price in any currency")
        object.__setattr__(self, "cap", caps[0])

    @property
    def stream(self) -> bool:
        return is_stream(self.mechanism)

    @property
    def users(self) -> range:
        return range(length(self.block))

    @property
    def rows(self) -> Rows[Any]:
        return sealed(self.block)

    def account(self, users: range, seed: int | None = None) -> tuple[Book, RunObserver]:
        observer = RunObserver()
        kind = LocalAccountant if self.spend.arithmetic == "each" else CentralAccountant
        book: Book = kind(
            self.cap,
            users=users,
            noise=NoiseSource.simulation(self.seed if seed is None else seed),
            adjacency=self.loss.adjacency,
            observer=observer,
            failure=Fraction(999, 1000) if self.loss.failure() else 0,
        )
        return book, observer

    def run(self, rows: Rows[Any], *, seed: int | None = None) -> ObservedRun:
        book, observer = self.account(rows.users, seed)
        token = book.issue(self.loss, users=rows.users, label="law")
        capture = OutputCapture(lambda: 0)
        with capture.capturing():
            released, value = released_by(self.mechanism, rows, token)
        said = "".join(f"{where}: {text}" for _, text, where in capture.captured)
        said = said.replace(book.id, "accountant")
        return ObservedRun(released, np.asarray(value), observer, book, token, said)

    def one_by_one(self, rows: Rows[Any], *, seed: int | None = None) -> Array:
        book, _ = self.account(rows.users, seed)
        token = book.issue(self.loss, users=rows.users, label="law")
        with self.mechanism.open(token) as stream:
            each = [stream.append(rows.slice(range(i, i + 1))) for i in rows.users]
        return np.concatenate([np.asarray(getattr(one, "value", one)) for one in each])

    def replaced(self, at: int, record: Any) -> Rows[Any]:
        """The rows with one exchanged for a block of one, whatever its form, or for None (null)."""
        parts = [Rows.seal(record_at(self.block, slice(0, at)), users=range(at))] if at else []
        place = range(at, at + 1)
        parts.append(Rows.null(place) if record is None else Rows.seal(_sent(record), users=place))
        if at + 1 < len(self.users):
            behind = record_at(self.block, slice(at + 1, None))
            parts.append(Rows.seal(behind, users=range(at + 1, len(self.users))))
        return Rows.concat(parts)


def sealed(block: Any) -> Rows[Any]:
    """Rows of as many users as there are records."""
    return Rows.seal(block, users=range(length(block)))


def _sent(record: Any) -> Any:
    """A block of one as a list, whose records may have any form: that of an array is public."""
    if isinstance(record, tuple):
        return rebuilt(record, [_sent(field) for field in record])
    return list(record)


def price_in(cap: Currency, loss: Loss) -> Currency | None:
    """What a loss costs apart from its failures; None where it has no such price."""
    try:
        return cap.price(loss.unless_failed())
    except CurrencyError:
        return None
