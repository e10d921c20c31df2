"""Small games against one person's guarantee, enumerated to the end in exact numbers.

The product plays: its registry says who is learned, its billboard serves and delivers, its tokens
open rows.  Only the noise is put in place of its own: discrete Laplace noise of ratio 2 per unit
of one row, so that a claim of c units is a likelihood ratio of 2^c.  Outputs are read as low,
middle or high; the tails beyond all sums have the largest ratio that there is.

Everybody adapts.  What other persons answer depends on what they are shown, which follows from the
last output.  The person in question may come or not, and answer what it likes, after everything
that was shown to it: for a given transcript a strategy is one sequence of moves, so that the
maximum over sequences for each transcript is the maximum over strategies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from privlearn.accountants import JointAccountant
from privlearn.contract.billboard import Billboard
from privlearn.losses.budgets import PureDP
from privlearn.mechanisms import NoisySum
from privlearn.noise import NoiseSource
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

Array = NDArray[np.float64]
NULL = float("nan")
FAR = 8
"""More than all rows of a game add up to."""


class Visit(NamedTuple):
    """One visit, in one of the two worlds."""

    id: str | None
    value: float


class Move(NamedTuple):
    """What stands at one place of the schedule, in the two worlds."""

    here: Visit
    there: Visit


def other(id: str, value: float = 1.0) -> Move:
    """Another person, who is the same in both worlds."""
    return Move(Visit(id, value), Visit(id, value))


def nulled(id: str, value: float = 1.0) -> Move:
    """The person, against an empty slot."""
    return Move(Visit(id, value), Visit(None, NULL))


def replaced(id: str, value: float, by: float) -> Move:
    """The person, against another record of the same id."""
    return Move(Visit(id, value), Visit(id, by))


@dataclass
class Observer:
    """Reads what is opened, and says what is released."""

    outputs: Sequence[int]
    sums: list[int] = field(default_factory=list)

    def spent(self, token: Any, spend: Any) -> None:
        """Nothing is to be noted."""

    def opened(self, token: Any, spend: Any, users: range, rows: Any) -> None:
        """In units of one row, which all rows here are whole numbers of."""
        total = float(spend.grid.values(rows).sum())
        assert abs(total - round(total)) < 1e-9
        self.sums.append(round(total))

    def released(self, token: Any, value: Any) -> Any:
        """The output of the transcript that is played."""
        number = len(self.sums) - 1
        return np.full_like(value, self.outputs[number] if number < len(self.outputs) else 0)


@dataclass(frozen=True)
class Table:
    """What lies before a player: one account, with its billboard."""

    account: Any
    board: Billboard
    watcher: Observer
    game: Game

    def answers(self, visits: Sequence[Visit], users: range) -> Rows[Any]:
        """Serves some slots; others answer by what they are shown, the person as it likes."""
        own = np.array([[v.value, float(v.id == self.game.me)] for v in visits]).reshape(-1, 2)
        slots = None
        if self.game.at is not None:
            slots = [slot for slot in self.game.at if slot in users]
        rows = Rows.seal(own, users=users, slots=slots).map_rows(_whole)
        last = -1.0 if np.sum(self.board.get("sum", 0.0)) < 0 else 1.0

        def policy(block: Array) -> Array:
            return np.full((len(block), 1), last)

        shown = self.board.serve(rows, policy, people=[v.id for v in visits])
        return shown.deliver(_answer)

    def release(self, users: range, price: int, rows: Rows[Any]) -> None:
        """One sum of the rows of a token, posted for all to see."""
        mechanism = summing(price, self.game.adjacency)
        token = self.account.issue(mechanism.loss(), users=users, label="sum")
        if self.game.at is not None and self.account.people is not None:  # time passes
            self.account.people.skip_to(users.stop)
        self.board.post("sum", mechanism.release(rows, token))


def _whole(block: Array) -> Array:
    if np.isnan(block).any():
        raise ValueError("no number")
    return block


def _answer(own: Array, shown: Array) -> Array:
    return np.where(own[:, 1:] > 0, own[:, :1], own[:, :1] * shown)


Player = Callable[[Table, Sequence[Visit]], None]
"""Serves and releases what a schedule holds."""


def batch_by_batch(table: Table, visits: Sequence[Visit]) -> None:
    """Each token's slots are served, then summed."""
    at = table.game.at or range(table.game.slots)
    for users, price in table.game.tokens:
        own = [visit for visit, slot in zip(visits, at, strict=True) if slot in users]
        table.release(users, price, table.answers(own, users))


@dataclass(frozen=True)
class Game:
    """One rule, its tokens, and what may stand at each place of the schedule.

    Args:
        rule: of participation.
        tokens: slots, and the price for one row in units.
        moves: for each place, what the person may do there (or who else comes).
        starts: where batches begin.
        at: on a timetable the slot of each place; else place and slot are the same.
        adjacency: of the account.
        me: the person's id.
        player: how it is played.
    """

    rule: Participation
    tokens: Sequence[tuple[range, int]]
    moves: Sequence[Sequence[Move]]
    starts: Sequence[int] = ()
    at: Sequence[int] | None = None
    adjacency: Adjacency = Adjacency.ZERO_OUT
    me: str = "i"
    player: Player = batch_by_batch

    @property
    def slots(self) -> int:
        """How many there are."""
        return max(users.stop for users, _ in self.tokens)

    def claim(self) -> Fraction:
        """What the product says that a person is charged for the same tokens, in units."""
        account = self._account(None)
        for users, price in self.tokens:
            account.issue(summing(price, self.adjacency).loss(), users=users, label="sum")
        return Fraction(account.spent().epsilon)

    def worst(self) -> Fraction:
        """The largest likelihood ratio of a transcript, over all strategies."""
        prices = [price for _, price in self.tokens]
        found = Fraction(0)
        for outputs in product((-FAR, FAR), repeat=len(prices) - 1):
            for schedule in product(*self.moves):
                here = self.sums(tuple(move.here for move in schedule), outputs)
                there = self.sums(tuple(move.there for move in schedule), outputs)
                found = max(found, *_ratios(here, there, outputs, prices))
        return found

    def sums(self, visits: Sequence[Visit], outputs: Sequence[int]) -> tuple[int, ...]:
        """What the tokens sum up in one world, for one transcript."""
        watcher = Observer(outputs)
        account = self._account(watcher)
        board = Billboard(account, account.users)
        self.player(Table(account, board, watcher, self), visits)
        assert len(watcher.sums) == len(self.tokens)
        return tuple(watcher.sums)

    def _account(self, watcher: Observer | None) -> JointAccountant[PureDP]:
        account = JointAccountant(
            PureDP(100),
            users=range(self.slots),
            noise=NoiseSource.simulation(0),
            adjacency=self.adjacency,
            people=People.memory(self.rule),
            observer=watcher,
        )
        if self.rule.batched:
            account.divide(self.starts)
        return account


@cache
def summing(price: int, adjacency: Adjacency) -> NoisySum[Any]:
    """A sum of numbers within [-1, 1], of which one unit costs so much."""
    moved = 2 if adjacency is Adjacency.REPLACE_ONE else 1
    return NoisySum.calibrated(
        Ball(1.0, 1), PureDP(price * moved), noise="laplace", adjacency=adjacency
    )


def _ratios(
    here: Sequence[int], there: Sequence[int], outputs: Sequence[int], prices: Sequence[int]
) -> Iterator[Fraction]:
    """Of all transcripts in which the outputs have these signs, either world first."""
    assert max(map(abs, (*here, *there))) < FAR
    seen: list[tuple[int, ...]] = [(0, FAR) if output > 0 else (-FAR,) for output in outputs]
    for transcript in product(*seen, (-FAR, 0, FAR)):
        ratio = Fraction(1)
        for output, a, b, price in zip(transcript, here, there, prices, strict=True):
            ratio *= law(output, a, price) / law(output, b, price)
        yield ratio
        yield 1 / ratio


@cache
def law(output: int, total: int, price: int) -> Fraction:
    """The probability of low, middle or high: `total` and noise of P(k) ~ 2^(-price |k|)."""
    q = Fraction(1, 2**price)

    def at_least(k: int) -> Fraction:
        """P(noise >= k)."""
        return q**k / (1 + q) if k > 0 else 1 - q ** (1 - k) / (1 + q)

    if output == 0:
        return 1 - law(FAR, total, price) - law(-FAR, total, price)
    return at_least(FAR - total if output > 0 else FAR + total)
