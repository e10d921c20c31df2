"""Which visits of one person move the output most, among all that a rule of participation allows.

What visits move has the square sᵀGs, G the products of what each moves, s of −1, 0 and 1.  Regular
and random patterns are improved visit by visit; that no other moves more is not shown."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains import Array

Integers = NDArray[np.int64]
_SWEEPS, _MOVES = 12, 2**11  # Over all visits of a pattern; and moves of single visits
_BEGINNINGS, _RANDOM = 6, 16  # Regular patterns of each kind, and random ones
_IMPROVED = 8  # Of them


@dataclass(frozen=True)
class VisitRule:
    """As `Participation`; ``ends`` are one past the last slots of batches, if it counts in them."""

    most: int
    apart: int = 1
    in_a_batch: int | None = None
    ends: tuple[int, ...] = ()

    def __str__(self) -> str:
        batches = "" if self.in_a_batch is None else f", {self.in_a_batch} in a batch"
        return f"{self.most} visits, {self.apart} or more slots apart{batches}"


class Patterns:
    """All patterns of a rule among some slots, in ascending order. ``products`` is G; ``signed``
    says whether a visit can also move the output the other way."""

    def __init__(self, products: Array, slots: Integers, rule: VisitRule, signed: bool) -> None:
        self._products, self._slots, self._rule, self._signed = products, slots, rule, signed
        self._batches, self._in_a_batch = np.arange(len(slots)), rule.in_a_batch or 1
        if rule.in_a_batch is not None:
            self._batches = np.searchsorted(np.array(rule.ends), slots, side="right")

    def worst(self) -> tuple[Integers, Integers]:
        """Slots and signs of the visits with the largest sᵀGs that is found."""
        n, rng = int(self._slots[-1]) + 1, np.random.default_rng(0)
        wide = max(self._rule.apart, n // self._rule.most)
        begun = [self._first_that_fit(rng.permutation(len(self._slots))) for _ in range(_RANDOM)]
        for gap in (self._rule.apart, (self._rule.apart + wide) // 2, wide):
            for first in np.linspace(0, min(gap, n - 1), _BEGINNINGS).astype(int):
                places = np.searchsorted(self._slots, np.arange(first, n, gap))
                begun += [self._first_that_fit(order) for order in (places, places[::-1])]
        masses = {
            tuple(sorted(places)): float(self._products[np.ix_(places, places)].sum())
            for places in begun
        }
        chosen = [(), *sorted(masses, key=masses.__getitem__)[-_IMPROVED:]]
        found = [self._improved(list(places)) for places in chosen]
        _, worst, signs = max(found, key=lambda one: one[0])
        return self._slots[worst], np.array(signs)

    def _first_that_fit(self, order: Integers) -> list[int]:
        found: list[int] = []
        for place in order[order < len(self._slots)].tolist():
            if len(found) == self._rule.most:
                break
            far = np.abs(self._slots[found] - self._slots[place]) >= self._rule.apart
            beside = np.count_nonzero(self._batches[found] == self._batches[place])
            if far.all() and beside < self._in_a_batch:
                found.append(place)
        return found

    def _free(self, taken: list[int]) -> NDArray[np.bool_]:
        slots, apart = self._slots[taken], self._rule.apart
        blocked = np.zeros(len(self._slots) + 1, dtype=np.int64)
        np.add.at(blocked, np.searchsorted(self._slots, slots - apart, side="right"), 1)
        np.add.at(blocked, np.searchsorted(self._slots, slots + apart), -1)
        counts = np.bincount(self._batches[taken], minlength=int(self._batches[-1]) + 1)
        fits = (counts[self._batches] < self._in_a_batch) & (np.cumsum(blocked[:-1]) == 0)
        return np.asarray(fits, dtype=np.bool_)

    def _improved(self, places: list[int]) -> tuple[float, list[int], list[int]]:
        signs = dict.fromkeys(places, 1)
        pull = self._products[:, places].sum(axis=1)
        for _ in range(max(min(_SWEEPS, _MOVES // self._rule.most), 1)):
            before = dict(signs)
            for moved in [None, *before]:
                if moved is not None:
                    pull = pull - signs.pop(moved) * self._products[:, moved]
                while len(signs) < self._rule.most:
                    place, sign, gained = self._best(pull, list(signs))
                    if not gained > 0:
                        break
                    signs[place] = sign
                    pull = pull + sign * self._products[:, place]
            if signs == before:
                break
        where = list(signs)
        return float(np.array([*signs.values()]) @ pull[where]), where, [*signs.values()]

    def _best(self, pull: Array, others: list[int]) -> tuple[int, int, float]:
        """A further visit, its sign, and what it adds; −∞ where the rule allows none."""
        gained = np.diagonal(self._products) + 2 * (np.abs(pull) if self._signed else pull)
        gained = np.where(self._free(others), gained, -np.inf)
        place = int(gained.argmax())
        return place, -1 if self._signed and pull[place] < 0 else 1, float(gained[place])
