"""Data sets that differ in all visits of one person, and what is promised of them.

Neither a `VisitsLoss` nor what `for_visits` says is believed: which visits are worst follows from
the rule and from what single ones move on the running code."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.probe import (
    Affine,
    DenseNoise,
    affine,
    centre,
    check_noise,
    check_sampler,
    solved,
)
from privlearn.checking.exact.search import shift_pair
from privlearn.checking.exact.visit_patterns import Integers, Patterns, VisitRule
from privlearn.checking.neighbours import (
    extreme_records,
    participation_of,
    rule_of,
    spend_of,
    visits_of,
    worst_pairs,
)
from privlearn.checking.reports import Axis
from privlearn.checking.stream_runs import (
    StubAccountant,
    accepted_users,
    fixed_users,
    is_stream,
    released_by,
)
from privlearn.checking.stream_runs import declared_users as horizon_of
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.people import People
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.records import join, length, record_at

_SEVERAL = (2, 3, 5, 17)  # Rows that change at once where no rule says how many
_PROBED = 96  # Numbers of noise that are probed one by one
_MOST_SLOTS = 1024  # Slots among which patterns are looked for
_LONGEST, _ENDLESS = 2**16, 1024  # Slots of a stream that are looked at
_NO_END = 2**20  # A horizon beyond which nobody plans for all arrivals
_CELLS = 2**22  # Numbers of the columns of the noise that are held at once
_OURS = __name__.partition(".")[0] + "."


@dataclass(frozen=True)
class VisitPairs:
    """Promises, each with data sets that differ in visits of one person, and with their laws. The
    first ``ruled`` are about the rule. There are laws where noise is just added."""

    asked: list[tuple[Any, tuple[Any, Any], DistributionPair | None]]
    ruled: int
    axis: Axis


def visit_pairs(mechanism: Any, claim: Any) -> VisitPairs | None:
    """The worst visits of a person that are found; None where nothing is promised of persons."""
    own = mechanism.loss()
    promise = own if claim is None else claim
    of_rows = visits_of(promise) is None and visits_of(own) is None
    if of_rows and not isinstance(promise, Loss):
        return None
    ours = isinstance(promise, Loss) and _is_ours(promise)
    try:
        spend = spend_of(mechanism, own.adjacency)
        if of_rows and ours:
            return VisitPairs([], 0, _proved(mechanism, spend))
        look = _Visits.of(mechanism, own, spend)
        rule = rule_of(mechanism, promise, spend) or rule_of(mechanism, own, spend)
        kept = [] if rule is None else look.kept(rule)
        asked = [(promise, one) for one in kept]
        if not ours:
            beyond = [replace(kept[0], most=2 * kept[0].most)] if kept else _several(look.slots)
            asked += [(_price(promise, one), one) for one in beyond]
        told = [(price, one) for price, one in asked if price is not None]
        pairs = look.worst(told)
    except Exception as error:  # of the mechanism, too, which may not run on so many rows
        reason = f"none, as {type(error).__name__}: {error}"
        return VisitPairs([], 0, Axis("persons", reason, enough=False))
    text = f"{told[-1][1]}, the last of {len(told)}" if len(told) > 2 else ""
    text = text or "; ".join(str(one) for _, one in told) or "no price is stated for several rows"
    return VisitPairs(pairs, len(kept), Axis("persons", text + look.cut, not look.cut))


def _proved(mechanism: Any, spend: Spend) -> Axis:
    if participation_of(mechanism, spend) is not None:
        told = "a rule is stated, and a price of one row, so that a group is charged"
        return Axis("persons", told, enough=False)
    return Axis("persons", "one row; the price of several follows, for losses of this package")


def _is_ours(loss: Loss) -> bool:
    return type(loss).__module__.startswith(_OURS) and all(_is_ours(x) for x, _ in loss.inner())


def _several(slots: int) -> list[VisitRule]:
    """Numbers of visits side by side, and of two that are farther and farther apart."""
    gaps = {2**k for k in range(1, slots.bit_length()) if 2**k < slots} | {max(slots - 1, 1)}
    beside = [VisitRule(most) for most in _SEVERAL if most <= slots]
    return [*beside, *(VisitRule(2, apart) for apart in sorted(gaps))]


def _price(promise: Any, rule: VisitRule) -> Loss | None:
    try:
        return promise.for_visits(rule.most, rule.apart) if isinstance(promise, Loss) else None
    except ValueError:  # no price, so nothing is promised
        return None


@dataclass(frozen=True)
class _Visits:
    """A mechanism, and data sets for it in which one person's visits differ."""

    mechanism: Any
    loss: Loss
    spend: Spend
    ways: list[tuple[Any, Any]]
    """Records in which a visit differs, as blocks of one; and those that differ the other way."""
    others: Any  # Everybody else's, (slots, ...)
    cut: str  # Why not all slots are looked at; empty if they are

    @classmethod
    def of(cls, mechanism: Any, loss: Loss, spend: Spend) -> _Visits:
        cut, slots = "", _SEVERAL[-1] + 1
        if hasattr(mechanism, "open"):
            few = max(_PROBED // int(spend.domain.size), 2)
            fits, end = _LONGEST if hasattr(mechanism, "factorization") else few, slots
            if is_stream(mechanism):
                end = horizon_of(mechanism) or accepted_users(mechanism, loss.adjacency, fits + 1)
            fits = min(fits, _ENDLESS) if end > _NO_END else fits
            slots = fixed_users(mechanism) or min(end, fits)
            cut = f"; among the first {slots} slots" if slots < end and is_stream(mechanism) else ""
        pairs = worst_pairs(spend.domain, adjacency=loss.adjacency)
        if loss.adjacency is Adjacency.REPLACE_ONE:
            ways = [pairs[0], pairs[0][::-1]]
        else:
            clip = spend.domain.clip
            moves = [clip(a)[0] - clip(b).sum(axis=0) for a, b in pairs]
            ways = [p for p, m in zip(pairs, moves, strict=True) if np.allclose(m, -moves[0])]
            ways = [pairs[0], *ways[:1]]
        others = record_at(extreme_records(spend.domain), np.arange(slots) % 2)
        return cls(mechanism, loss, spend, ways, others, cut)

    @property
    def slots(self) -> int:
        return length(self.others)

    def pair(self, slots: Integers, signs: Integers) -> tuple[Any, Any]:
        """Two data sets that differ in the visits of one person at these slots."""
        made = []
        for side in (0, 1):
            removed = not length(self.ways[0][side])
            pool = join([self.others, *(way[side] for way in self.ways if not removed)])
            chosen = np.arange(self.slots)
            chosen[slots] = np.where(signs > 0, self.slots, self.slots + 1)
            made.append(record_at(pool, np.delete(chosen, slots) if removed else chosen))
        return made[0], made[1]

    def worst(
        self, told: Sequence[tuple[Any, VisitRule]]
    ) -> list[tuple[Any, tuple[Any, Any], DistributionPair | None]]:
        """Data sets that differ in the visits that move most, for each promise."""
        slots, products, noise = self._moves()
        found = []
        for price, rule in told:
            pair = self.pair(*Patterns(products, slots, rule, len(self.ways) > 1).worst())
            found.append((price, pair, None if noise is None else self._law(noise, pair)))
        return found

    def _moves(self) -> tuple[Integers, Array, Affine | None]:
        """Slots, the products of what visits there move, and the noise, if it is just added. Where
        that is not known they are those of a running sum."""
        long = self.slots * int(self.spend.domain.size) > _PROBED
        if hasattr(self.mechanism, "factorization") and long:
            return *self._solved(), None
        slots = np.arange(self.slots)
        try:
            noise = affine(self.mechanism, self.loss, self.others)
            check_sampler(noise.family)
        except CheckError:
            return slots, self.slots - np.maximum.outer(slots, slots).astype(np.float64), None
        ones = np.ones(1, dtype=np.int64)
        changes = [self._change(self.pair(slots[k : k + 1], ones)) for k in slots]
        z = DenseNoise(noise.family, noise.matrix).behind(np.array(changes).T).z
        return slots, z.T @ z, noise

    def _solved(self) -> tuple[Integers, Array]:
        sizes = getattr(self.mechanism, "sizes", ())
        arrivals, n = len(sizes) or self.slots, self.slots
        most = min(_MOST_SLOTS, _CELLS // arrivals)
        even = np.linspace(0, n - 1, min(n, most // 2)).astype(int)
        slots = np.unique([*range(min(n, most // 2 if n > most else n)), *even])
        at = np.searchsorted(np.cumsum(sizes), slots, side="right") if sizes else slots
        _, columns = solved(
            self.mechanism.factorization,
            arrivals,
            lambda part: (np.array(part)[:, None] >= at).astype(np.float64),
            keep=True,
        )
        return slots, columns.T @ columns

    def _change(self, pair: tuple[Any, Any]) -> Array:
        first, second = (centre(self.mechanism, self.loss, block) for block in pair)
        return first - second

    def _law(self, noise: Affine, pair: tuple[Any, Any]) -> DistributionPair:
        for seed, block in enumerate(pair):
            check_noise(self.mechanism, self.loss, block, noise, seed)
        return shift_pair(noise, self._change(pair), "visits of a person")

    def kept(self, rule: VisitRule) -> list[VisitRule]:
        """The rule, and what it opens for registries with more visits or other batches."""
        kept, ends = [rule], list(rule.ends)
        stated = participation_of(self.mechanism, self.spend)
        if stated is None or rule.in_a_batch is None:
            return kept
        if self._opens(Participation(rule.most, rule.apart), ()):
            kept = [replace(rule, in_a_batch=None)]
        long = np.flatnonzero(np.diff(ends[:-1], prepend=0) > 1)
        if len(long):
            ends[long[0]] -= 1
            if self._opens(stated, [0, *ends[:-1]]):
                kept.append(replace(rule, ends=tuple(ends)))
        return kept

    def _opens(self, rule: Participation, starts: Sequence[int]) -> bool:
        """Whether it runs for a registry with another rule, or with other batches."""
        users = range(self.slots)
        registry = People.memory(rule)
        registry.bind("check", users)
        if rule.batched:
            registry.divide(starts)
        stub = StubAccountant(0, self.loss.adjacency, people=registry)
        rows = registry.admit(Rows.seal(self.others, users=users), ["somebody"] * len(users))
        if rule.pooled:
            rows = rows.pool(lambda block: record_at(block, 0))
        try:
            released_by(self.mechanism, rows, stub.issue(users))
        except Exception:
            return False
        return True
