"""Outputs that are made of parts, each a function of one number; coins in a row."""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.function_laws import (
    DEAD,
    NONE,
    ORDER,
    PairLaw,
    Runs,
    Seen,
    affine_in,
    mark_of,
    marks_of,
    together,
)
from privlearn.checking.exact.one_number import (
    NOTHING_HIDES,
    Pieces,
    grid,
    located,
    lumped,
    mixture,
    pieces,
)
from privlearn.checking.scripted_generator import Standard, Tape
from privlearn.errors import CheckError
from privlearn.rows.domains import Array

_MOST_PARTS = 128  # Numbers of one run that do something else than being added
_MOST_VALUES = 400  # Outcomes of one number that are no noise
_FEW = 24
_THRESHOLDS = 32
_MOST_LEAVES = 4_096
_TRIES = 24
_UNSEEN = 1e-12  # Probabilities that may be the rounding of others

# Parts that follow from one number each -----------------------------------------------------------


def in_parts(runs: Runs, first: Any, second: Any, mined: Sequence[float] = ()) -> PairLaw:
    """Parts that follow from one number each."""
    kinds = runs(first).tape.kinds
    if kinds != runs(second).tape.kinds:
        raise CheckError(ORDER)
    if len(kinds) > _MOST_PARTS:
        raise CheckError(f"{len(kinds)} random numbers are drawn: at most {_MOST_PARTS}")
    moved = [_moves(runs, data) for data in (first, second)]
    paths = list(dict.fromkeys([*runs(first).leaves, *runs(second).leaves]))
    parts: list[PairLaw] = []
    still = [path for path in paths if not any(path in m for by in moved for m in by)]
    for seed, data in itertools.product(range(_TRIES), (first, second)):
        by_chance = runs(data, chance=np.random.default_rng([seed, 5])).leaves
        if marks_of(by_chance, still) != marks_of(runs(data).leaves, still):
            raise CheckError("parts of the output move that no number moves by itself")
    if marks_of(runs(first).leaves, still) != marks_of(runs(second).leaves, still):
        return PairLaw("a part of the output that no number moves differs", NOTHING_HIDES)
    for draws, inside in _groups([one | two for one, two in zip(*moved, strict=True)]):
        if len(draws) > 1:
            raise CheckError("several numbers decide together on one part of the output")
        part = _Part(runs, len(kinds), kinds[draws[0]], draws[0], inside, mined)
        parts.append(part.law(first, second))
    return PairLaw(
        "; ".join(dict.fromkeys(part.how for part in parts)),
        together([part.pair for part in parts]),
        all(part.exact for part in parts),
    )


def _moves(runs: Runs, data: Any) -> list[set[str]]:
    """Which leaves each number moves, from three states of the others."""
    base = runs(data)
    moved: list[set[str]] = [set() for _ in base.tape.kinds]
    for seed in (None, 0, 1):
        rest = runs(data, chance=None if seed is None else np.random.default_rng(seed))
        unmoved = {*marks_of(rest.leaves)}
        for i, kind in enumerate(base.tape.kinds):
            middles = rest.tape.middles.get(i, ())[:_MOST_VALUES]
            for z in (*middles, *grid(kind)[:: 40 if seed else 20]):
                script = np.array(rest.tape.numbers)
                script[i] = z
                seen = runs(data, script)
                if seen.tape.kinds != base.tape.kinds:
                    raise CheckError(ORDER)
                moved[i] |= {path for path, _ in unmoved ^ {*marks_of(seen.leaves)}}
    return moved


def _looked_at(tape: Tape, i: int, mined: Sequence[float] = ()) -> list[float]:
    """Where the line of a number is looked at first; one that chooses does so at known places."""
    if i in tape.middles:
        return sorted({0.0, *tape.middles[i], math.nextafter(1.0, 0.0)})
    return grid(tape.kinds[i], mined)


def _groups(moved: Sequence[set[str]]) -> list[tuple[tuple[int, ...], set[str]]]:
    """Numbers that share no leaf with those of another group."""
    groups: list[tuple[tuple[int, ...], set[str]]] = []
    for i, paths in enumerate(moved):
        if not paths:
            continue
        apart = [group for group in groups if not group[1] & paths]
        shared = [group for group in groups if group[1] & paths]
        draws = tuple(sorted({i}.union(*(group[0] for group in shared))))
        groups = [*apart, (draws, paths.union(*(group[1] for group in shared)))]
    return groups


@dataclass(frozen=True)
class _Part:
    """Leaves that follow from the number at one place."""

    runs: Runs
    many: int
    kind: Standard
    place: int
    paths: set[str]
    mined: Sequence[float]

    def leaves(self, data: Any, number: float) -> dict[str, Any]:
        script = np.full(self.place + 1, np.nan)
        script[-1] = number
        return self._inside(self.runs(data, script))

    def _inside(self, seen: Seen) -> dict[str, Any]:
        return {path: leaf for path, leaf in seen.leaves.items() if path in self.paths}

    def law(self, first: Any, second: Any) -> PairLaw:
        tapes = [self.runs(data).tape for data in (first, second)]
        middles = tapes[0].middles.get(self.place, ())
        at = sorted({z for tape in tapes for z in _looked_at(tape, self.place, self.mined)})
        seen = [[self.leaves(data, z) for z in at] for data in (first, second)]
        outcomes = {marks_of(leaves) for side in seen for leaves in side}
        label: Callable[[dict[str, Any]], Hashable] = marks_of
        if exact := len(outcomes) <= max(_FEW, 2 * len(middles)):
            how = f"one of {len(outcomes)} outcomes"
        else:
            label = self._binned(at, seen)
            how = "a function of one number that is no statistic plus noise"
        one, two = (
            self._pieces(data, dict(zip(at, side, strict=True)), label)
            for data, side in zip((first, second), seen, strict=True)
        )
        return PairLaw(how, one.against(two), exact)

    def _binned(
        self, at: Sequence[float], seen: list[list[dict[str, Any]]]
    ) -> Callable[[dict[str, Any]], Hashable]:
        """Into which bin a part falls that is a number."""
        number = (
            p for p in seen[0][0] if all(type(x.get(p)) in (int, float) for x in seen[0] + seen[1])
        )
        if (path := next(number, None)) is None:
            raise CheckError("a part of the output takes many values that are no numbers")
        # that neighbouring doubles give the same value makes it no atom
        apart = [k for k, z in enumerate(at) if not k or z > math.nextafter(at[k - 1], math.inf)]
        edges = _edges([[mark_of(side[k][path]) for k in apart] for side in seen])
        return lambda leaves: bisect.bisect_right(edges, cast(int, mark_of(leaves.get(path))))

    def _pieces(
        self,
        data: Any,
        known: dict[float, dict[str, Any]],
        label: Callable[[dict[str, Any]], Hashable],
    ) -> Pieces:
        """Where the outcome changes; random numbers, here and elsewhere, must give no other."""
        found = pieces(self.kind, lambda z: label(known.get(z) or self.leaves(data, z)), [*known])
        for seed in range(_TRIES):
            seen = self.runs(data, chance=np.random.default_rng([seed, 7]))
            if len(seen.tape.kinds) != self.many:
                raise CheckError(ORDER)
            if found.at(seen.tape.numbers[self.place]) != label(self._inside(seen)):
                raise CheckError("the output is not made of parts that follow from one number each")
        return found


def _within_reach(
    first: dict[Hashable, float], second: dict[Hashable, float]
) -> tuple[DistributionPair, bool]:
    """The laws of outcomes, and whether all were seen: what is too unlikely is one outcome."""
    both = {x: sorted((first.get(x, 0.0), second.get(x, 0.0))) for x in {**first, **second}}
    unlikely = {x for x, (p, q) in both.items() if 0 < p < _UNSEEN or q < _UNSEEN}
    return lumped(first, second, unlikely), not unlikely


def _edges(marks: Sequence[Sequence[Any]]) -> list[int]:
    """Marks between which an output is: values that come again by themselves, and some others.

    Beyond what one data set gives at the end of the grid, outputs are not told apart, unless that
    is all that it gives.
    """
    rows = [[int(mark) for mark in row] for row in marks]
    again = {m for row in rows for m, n in itertools.pairwise(row) if m == n}
    others = sorted({m for row in rows for m in row} - again)
    chosen = others[:: max(len(others) // _THRESHOLDS, 1)]
    open_ = [(row[k], row) for row in rows for k in (0, -1) if row[k] != row[(1, -2)[k]]]
    high = min((m for m, row in open_ if m > row[len(row) // 2]), default=math.inf)
    low = max((m for m, row in open_ if m <= row[len(row) // 2]), default=-math.inf)
    return [m for m in sorted({*again, *(m + 1 for m in again), *chosen}) if low < m <= high]


# Coins, one after the other ------------------------------------------------------------------


def tossed(runs: Runs, first: Any, second: Any) -> PairLaw:
    """Coins, of which the next depends on the last, and noise at the end."""
    laws: list[dict[Hashable, float]] = [{}, {}]
    for law, data in zip(laws, (first, second), strict=True):
        for chance, script in _branches(runs, data):
            end = _at_the_end(runs, data, script)
            law[end] = law.get(end, 0.0) + chance
    how = "coins, one after the other"
    noisy = {isinstance(end, _Noisy) for law in laws for end in law}
    if noisy == {False}:
        return PairLaw(how, *_within_reach(laws[0], laws[1]))
    if noisy == {True, False}:  # what comes without noise does so with a probability
        sums: list[dict[Hashable, float]] = [defaultdict(float), defaultdict(float)]
        for law, lump in zip(laws, sums, strict=True):
            for end, p in law.items():
                lump[_Noisy if isinstance(end, _Noisy) else end] += p
        return PairLaw(how + ", and sometimes noise", _within_reach(sums[0], sums[1])[0], False)
    if max(map(len, laws)) > _MOST_VALUES:
        raise CheckError("coins fall in too many ways")
    mixed = [mixture([(m, located(*cast(_Noisy, end))) for end, m in law.items()]) for law in laws]
    return PairLaw(how + ", and noise", DistributionPair(mixed[0], mixed[1]))


class _Noisy(NamedTuple):
    kind: Standard
    centre: float
    scale: float


def _branches(runs: Runs, data: Any) -> Iterator[tuple[float, Array]]:
    """Probabilities of the ways that uniform numbers go, with numbers that go so."""
    left: list[tuple[float, list[float]]] = [(1.0, [])]
    turns: dict[int, set[float]] = {}  # Where each number decided before, whatever fell then
    ends = 0
    while left:
        chance, script = left.pop()
        tapes = [_by_chance(runs, data, script, seed).tape for seed in range(3)]
        kinds = tapes[0].kinds
        i = next((i for i in range(len(script), len(kinds)) if kinds[i] == "uniform"), None)
        if i is None:
            yield chance, np.array(script)
            ends += 1
            if ends + len(left) > _MOST_LEAVES:
                raise CheckError("coins fall in too many ways")
            continue
        if any(tape.kinds[: i + 1] != kinds[: i + 1] for tape in tapes):
            raise CheckError(ORDER)
        script = script + [math.nan] * (i - len(script))

        def outcome(z: float, script: list[float] = script) -> Hashable:
            seen = [_by_chance(runs, data, [*script, z], seed) for seed in range(3)]
            return tuple((tuple(x.tape.kinds), marks_of(x.leaves)) for x in seen)

        at = _looked_at(tapes[0], i)
        if i not in tapes[0].middles:
            at = sorted({*at[:: 32 if i in turns else 4], at[-1], *turns.get(i, ())})
        cut = pieces("uniform", outcome, at)
        below = (math.nextafter(z, 0.0) for z in cut.starts[1:])
        turns.setdefault(i, set()).update(cut.starts, below)
        if len(cut.outcomes) > _MOST_VALUES:
            raise CheckError("a uniform number decides on too many outcomes")
        middles = cut.middles()
        left += [(chance * p, [*script, middles[o]]) for o, p in cut.masses().items() if p > 0]


def _by_chance(runs: Runs, data: Any, script: list[float], seed: int) -> Seen:
    return runs(data, np.array(script, dtype=float), np.random.default_rng([seed, 11]))


def _at_the_end(runs: Runs, data: Any, script: Array) -> Hashable:
    """The output once all coins are tossed: its marks, or one number with noise."""
    marks = {marks_of(_by_chance(runs, data, list(script), seed).leaves) for seed in range(3)}
    if len(marks) == 1:
        return marks.pop()
    found = affine_in(lambda data, more=NONE: runs(data, _merged(script, more)), data)
    if len(found.paths) != 1:
        raise CheckError("coins and noise decide together on several numbers")
    scales = {i: float(x) for i, x in enumerate(found.matrix[0]) if abs(x) > DEAD}
    kinds = {found.kinds[i] for i in scales}
    if len(scales) > 1 and kinds != {"normal"}:
        raise CheckError("several numbers that are not normal are added up")
    scale = next(iter(scales.values())) if len(scales) == 1 else math.hypot(*scales.values())
    return _Noisy(kinds.pop(), *(float(f"{x:.9g}") + 0.0 for x in (found.centre[0], scale)))


def _merged(fixed: Array, script: Array) -> Array:
    both = np.full(max(len(fixed), len(script)), np.nan)
    both[: len(script)] = script
    both[: len(fixed)] = np.where(np.isnan(fixed), both[: len(fixed)], fixed)
    return both
