"""Somebody who comes back because the last offer was good: exactly, in a game of six slots.

Each slot is a batch; its sum leaves with discrete Laplace noise of ratio 2, clamped, so that a row
of size 1 costs one unit, log 2.  One person comes in slot 0, and again in slot 2 if she liked what
the release of slot 0 made of her offer.  The others come one after the other, whatever happens, and
answer +1 and -1 in turn.  The registry, the rows and the sums are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import groupby
from math import log2
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from privlearn.losses.budgets import ZCDP
from privlearn.mechanisms import NoisySum
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Ball
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation

SLOTS, CLAMP, MOST = 6, 4, 2
OUTPUTS = range(-CLAMP, CLAMP + 1)
Clock = Literal["arrivals", "timetable"]
Visit = tuple[int, str, float]
"""Time, person, answer."""
Schedule = Callable[[bool], list[Visit]]
"""The visits, by whether the offer was liked."""
SUM = NoisySum.calibrated(Ball(1.0, 1), ZCDP(1), adjacency=Adjacency.ZERO_OUT)


def others() -> list[Visit]:
    return [(t, f"other {t}", 1.0 if t % 2 == 0 else -1.0) for t in range(1, SLOTS)]


def absent(liked: bool) -> list[Visit]:
    return others()


def once(liked: bool) -> list[Visit]:
    return [(0, "me", 1.0), *others()]


def returning(liked: bool) -> list[Visit]:
    again = [(2, "me", -1.0)] if liked else []
    return sorted([*once(liked), *again], key=lambda visit: visit[:2])  # "me" before "other"


def slot_sums(visits: Sequence[Visit], clock: Clock) -> list[int]:
    """The sum of each slot, of what a real registry lets through."""
    people = People.memory(Participation(MOST, clock=clock))
    people.bind("account", range(SLOTS))
    found: list[Rows[NDArray[np.float64]]] = []
    if clock == "arrivals":  # whoever comes takes the next slot, while there is one
        for slot, (_, person, answer) in enumerate(visits[:SLOTS]):
            row = Rows.seal(np.array([[answer]]), users=range(slot, slot + 1))
            found.append(people.admit(row, [person]))
    else:
        for t, at in groupby(visits, key=lambda visit: visit[0]):
            for _, person, answer in at:
                begin = min(people.clock or 0, t)
                row = Rows.seal(np.array([[answer]]), users=range(begin, t + 1), slots=[t])
                found.append(people.admit(row, [person]))
    rows = Rows.concat(found)
    grid = SUM.spend().grid
    assert grid is not None
    assert rows.users == range(SLOTS)
    sums = [SUM.partial(rows.slice(range(t, t + 1))) for t in range(SLOTS)]
    return [round(float(grid.values(PartialSum._opened(each))[0])) for each in sums]


def mass(output: int, total: int) -> Fraction:
    """P(clamped output | sum): (1/3)·2^−|k − s| inside, both tails at the ends."""
    inside = Fraction(1, 3 * 2 ** abs(output - total))
    return inside if abs(output) < CLAMP else 2 * inside


def units(one: Sequence[int], other: Sequence[int]) -> NDArray[np.int64]:
    """log2 of the ratio of the laws, for all outputs of all slots, shape (9,) * 6."""
    total = np.zeros((1,) * SLOTS, dtype=np.int64)
    for t, (a, b) in enumerate(zip(one, other, strict=True)):
        each = [log2(mass(k, a) / mass(k, b)) for k in OUTPUTS]
        shape = [len(OUTPUTS) if i == t else 1 for i in range(SLOTS)]
        assert each == [round(x) for x in each]
        total = total + np.array(each, dtype=np.int64).reshape(shape)
    return total


def cost(one: Schedule, other: Schedule, clock: Clock) -> int:
    """The largest |log ratio| over all transcripts, in units; an offer is liked if y_0 > 0."""
    worst = 0
    for liked in (False, True):
        ratio = units(slot_sums(one(liked), clock), slot_sums(other(liked), clock))
        first = np.array([(k > 0) is liked for k in OUTPUTS])
        worst = max(worst, int(abs(ratio[first]).max()))
    return worst


@pytest.mark.parametrize("total", range(-2, 3))
def test_the_noise_is_a_law(total: int) -> None:
    assert sum(mass(k, total) for k in OUTPUTS) == 1


def test_on_a_timetable_it_is_covered_why_somebody_comes_back() -> None:
    assert cost(returning, absent, "timetable") == MOST
    assert cost(once, absent, "timetable") == 1
    assert cost(returning, once, "timetable") == 1


def test_with_arrivals_as_clock_it_is_not() -> None:
    """Whoever comes back moves everybody behind by one slot: 2 units in each of four slots.

    For a public schedule of slots the claim would be 1 for once, and 2 for twice.
    """
    claim = 1 + MOST
    assert cost(returning, once, "arrivals") == 8 > claim


def test_for_a_public_schedule_arrivals_keep_the_claim() -> None:
    def empty(visits: list[Visit]) -> list[Visit]:
        return [(t, "me", 0.0) if who == "me" else (t, who, x) for t, who, x in visits]

    assert cost(returning, lambda liked: empty(returning(liked)), "arrivals") == MOST
