"""Which visits are learned: the rule, visit by visit.

What a person's next visit needs of the earlier ones is how many were learned, the slot of the last
of them, and how many stand in the batch of that slot.  Nothing of other persons enters, and nothing
of what records hold (docs/people.md).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from privlearn.values.participation import Participation

FORGOTTEN: Final = -1
"""In place of the last slot: of this person nothing is learned any more."""


class Standing(NamedTuple):
    """What is kept of one person."""

    number: int
    """0, 1, ... in the order in which persons were first seen."""
    used: int
    """Of ``most``: learned visits, or batches of a pooled rule."""
    last: int
    """The slot by which this was used last, or `FORGOTTEN`."""
    within: int
    """Learned visits in the batch of ``last``; 0 without ``per_batch``."""


def tombstone(number: int, rule: Participation) -> Standing:
    """What stays of a forgotten person, who has used up everything."""
    return Standing(number, rule.most, FORGOTTEN, 0)


class Verdict(NamedTuple):
    """Of each visit whether it is learned, whose it is (-1: nobody's), and whether it uses up a
    place in the rule, as of a batch of a pooled rule the first one does; and what changes."""

    learned: list[bool]
    persons: list[int]
    counted: list[bool]
    changed: dict[bytes, Standing]


def judge(
    rule: Participation,
    standings: Mapping[bytes, Standing],
    visitors: Sequence[bytes | None],
    slots: Sequence[int],
    starts: Sequence[int] | None,
    known: int,
) -> Verdict:
    """Judges one visit for each of ``slots``, which ascend; nothing is changed yet.

    Args:
        rule: that is kept.
        standings: of those of the visitors that are known.
        visitors: hashes of ids; None for nobody.
        slots: one for each visitor.
        starts: of all batches, of a rule that counts in batches.
        known: how many persons there are, and the number of the next one.
    """
    most, apart, pooled, per_batch = rule.most, rule.apart, rule.pooled, rule.per_batch
    learned, persons = [False] * len(slots), [-1] * len(slots)
    counted = [False] * len(slots)
    changed: dict[bytes, Standing] = {}
    stop = slots[-1] + 1 if slots else 0
    begin, end = 0, 0 if rule.batched else stop
    for place, (key, slot) in enumerate(zip(visitors, slots, strict=True)):
        if key is None:
            continue
        if slot >= end:
            begin, end = _batch(starts or (), slot, stop)
        standing = changed.get(key) or standings.get(key)
        if standing is None:
            standing = Standing(known, 0, -apart, 0)
            known += 1
        number, used, last, within = standing
        persons[place] = number
        same_batch = last >= begin
        if pooled:
            if same_batch:
                learned[place] = True
                continue
            if used >= most:
                continue
        elif used >= most or slot - last < apart:
            continue
        elif per_batch is not None:
            within = within + 1 if same_batch else 1
            if within > per_batch:
                continue
        learned[place] = counted[place] = True
        changed[key] = Standing(number, used + 1, slot, within)
    return Verdict(learned, persons, counted, changed)


def _batch(starts: Sequence[int], slot: int, stop: int) -> tuple[int, int]:
    following = bisect_right(starts, slot)
    return starts[following - 1], starts[following] if following < len(starts) else stop
