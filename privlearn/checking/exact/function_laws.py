"""Exact laws of the output of ``f(data, rng)``, measured on the running code.

Here: outputs that no number moves, noise that is added, and choices by the largest noisy score."""

from __future__ import annotations

import bisect
import itertools
import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, NamedTuple, cast

import numpy as np
from scipy.special import ndtr

from privlearn.checking.exact.choices import _FAMILIES, _Choice, _Family
from privlearn.checking.exact.distributions import DistributionPair, whitened
from privlearn.checking.exact.one_number import (
    FAR,
    NOTHING_HIDES,
    Pieces,
    aligned,
    grid,
    located,
    lumped,
    mixture,
    pieces,
    shifted_pair,
)
from privlearn.checking.isolation import is_output
from privlearn.checking.sampling.encoding import Raised, layout, row_of
from privlearn.checking.scripted_generator import (
    REST,
    ScriptedGenerator,
    Standard,
    Tape,
    scripted_globals,
    standard,
)
from privlearn.checking.targets import has_own_randomness, runs_of
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Discrete, Normal, Product
from privlearn.rows.domains import Array

_MOST_NUMBERS = 512  # Of one run, where they are added
_HUGE = 1e12
_COINS, _MOST_COINS = (1e-9, 1e-5, 1e-3, 0.1, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-9), 24
NONE = np.zeros(0)
DEAD = 1e-12  # Of the output's size: what a number moves by less is the order of a sum
ORDER = "what the numbers of a run are depends on what is drawn, or on the data"


@dataclass(frozen=True)
class Seen:
    """One run: what left, taken apart, and what it had drawn."""

    leaves: dict[str, Any]
    tape: Tape
    value: Any

    def numbers(self) -> dict[str, float]:
        return {path: x for path, x in self.leaves.items() if type(x) is float}

    def form(self) -> dict[str, Any]:
        return {path: x for path, x in self.leaves.items() if type(x) is not float}


@dataclass
class Runs:
    """A function on chosen numbers, each run on fresh data; only while ``with`` lasts."""

    function: Callable[..., Any]
    rng: ScriptedGenerator = field(default_factory=lambda: ScriptedGenerator(Tape(NONE)))
    _stack: ExitStack = field(default_factory=ExitStack)
    _on: dict[int, tuple[Any, Callable[[Any], Any]]] = field(default_factory=dict)
    until: float = math.inf  # When there is no more time, on the clock of `time.process_time`

    def __enter__(self) -> Runs:
        if has_own_randomness(self.function):
            self._stack.enter_context(scripted_globals(self.rng))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(
        self, data: Any, script: Array = NONE, chance: np.random.Generator | None = None
    ) -> Seen:
        if time.process_time() > self.until:
            raise CheckError("its exact law takes too long")
        if id(data) not in self._on:
            self._on[id(data)] = data, runs_of(self.function)(data)
        self.rng.tape = tape = Tape(script, chance)
        value: Any
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                value = self._on[id(data)][1](self.rng)
            except BaseException as error:
                if not is_output(error):
                    raise
                value = Raised.by(error)
        leaves = row_of(value)
        leaves |= {f".warns[{i}]": str(warning.message) for i, warning in enumerate(said)}
        leaves[".layout"] = layout(value)
        return Seen(leaves, tape, value)


@dataclass(frozen=True)
class PairLaw:
    """Laws of the output on two data sets, or of what is computed from it."""

    how: str
    pair: DistributionPair
    exact: bool = True  # Whether it is the whole output
    affine: tuple[Affine, Affine] | None = None  # If noise is just added
    choice: bool = False  # Whether it is that of the largest noisy score


@dataclass(frozen=True)
class Affine:
    """paths of the output = centre + matrix @ z."""

    paths: tuple[str, ...]
    centre: Array
    matrix: Array
    kinds: tuple[Standard, ...]
    form: dict[str, Any]

    def at(self, z: Array) -> Array:
        return np.asarray(self.centre + self.matrix @ z)


def demand_tape(runs: Runs, data: Any) -> None:
    """Raises CheckError: randomness is not on the tape, or answers are kept."""
    chance = [runs(data, chance=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    if chance[0].tape.unsupported:
        raise CheckError(f"draws by {', '.join(sorted(chance[0].tape.unsupported))} are not known")
    marks = [marks_of(seen.leaves) for seen in chance]
    forgot = chance[0].tape.kinds and not chance[1].tape.kinds
    if forgot or (chance[0].tape.kinds and marks[0] == marks[2] and _remembers(runs, data)):
        raise CheckError("it answers from memory: on the same data it gives the same noise again")
    if marks[0] != marks[1]:
        raise CheckError("it has randomness of its own, which the generator does not give")


def _remembers(runs: Runs, data: Any) -> bool:
    """Whether noise counts when data are seen for the first time, and not again."""
    if type(data) not in (list, np.ndarray) or not np.ndim(np.asarray(data, dtype=object)):
        return False
    for copies in (2, 3):
        new = data * copies if isinstance(data, list) else np.concatenate([data] * copies)
        first = runs(new, np.full(_MOST_NUMBERS, _HUGE)).numbers().values()
        again = runs(new).numbers().values()
        if [*first] == [*again] and max(map(abs, first), default=0.0) > math.sqrt(_HUGE):
            return True
    return False


def without_noise(runs: Runs, first: Any, second: Any) -> PairLaw:
    """Of outputs that follow from the data alone."""
    one, two = marks_of(runs(first).leaves), marks_of(runs(second).leaves)
    if one == two:
        return PairLaw("the same output on both data sets", aligned({0: 1.0}, {0: 1.0}))
    return PairLaw("nothing is drawn, and the outputs differ", NOTHING_HIDES)


def mark_of(leaf: Any) -> Hashable:
    """What makes a leaf what it is, the sign of zero included; numbers in their order."""
    if (type(leaf) is float and leaf == leaf) or (type(leaf) is int and abs(leaf) < 2**53):
        bits = int(np.float64(leaf).view(np.int64))
        return bits if bits >= 0 else -(bits & 2**63 - 1) - 1
    return (type(leaf).__name__, repr(leaf) if type(leaf) is float else leaf)


def marks_of(
    leaves: dict[str, Any], paths: Sequence[str] | None = None
) -> tuple[tuple[str, Hashable], ...]:
    """What makes leaves what they are."""
    inside = leaves if paths is None else {p: leaves[p] for p in paths if p in leaves}
    return tuple((path, mark_of(leaf)) for path, leaf in inside.items())


def affine_in(runs: Callable[..., Seen], data: Any) -> Affine:
    """The output as a function of the numbers, if that is affine; else a CheckError."""
    base = runs(data)
    kinds, numbers = tuple(base.tape.kinds), base.numbers()
    if len(kinds) > _MOST_NUMBERS:
        raise CheckError(f"{len(kinds)} random numbers are drawn: at most {_MOST_NUMBERS}")
    rest = np.array([REST[kind] for kind in kinds])

    def moved(script: Array) -> Array:
        seen = runs(data, script)
        if tuple(seen.tape.kinds) != kinds:
            raise CheckError(ORDER)
        values = np.array([*seen.numbers().values()])
        if seen.form() != base.form() or not np.isfinite(values).all():
            raise CheckError("noise moves something else than finite numbers")
        return values

    centre = moved(NONE)
    matrix = np.empty((len(numbers), len(kinds)))
    for i, kind in enumerate(kinds):
        script = np.full(i + 1, np.nan)
        script[i] = REST[kind] + (step := 0.25 if kind == "uniform" else 1.0)
        matrix[:, i] = (moved(script) - centre) / step
    found = Affine((*numbers,), centre - matrix @ rest, matrix, kinds, base.form())
    rng = np.random.default_rng(len(kinds))
    tried = [np.array([_far(k, scale, rng) for k in kinds]) for scale in (1.0,) * 6 + FAR * 4]
    coins = [i for i, kind in enumerate(kinds) if kind == "uniform"][:_MOST_COINS]
    places = np.arange(len(kinds))  # what a coin decides may be unlikely
    tried += [np.where(places == i, u, tried[0]) for i, u in itertools.product(coins, _COINS)]
    for z in tried:
        gap = np.abs(moved(z) - found.at(z))
        size = np.abs(matrix) @ np.abs(z)
        if not (gap <= 1e-7 * size + 1e-9 * (1 + np.abs(centre))).all():
            raise CheckError("the output is not a statistic plus noise")
    return found


def _far(kind: Standard, scale: float, rng: np.random.Generator) -> float:
    drawn = float(standard(kind, rng, 1)[0])
    if kind == "uniform" or scale == 1.0:
        return drawn
    return scale if drawn > REST[kind] or kind == "exponential" else -scale


def added(runs: Runs, first: Any, second: Any) -> PairLaw:
    """Noise that is added to a statistic."""
    one, two = affine_in(runs, first), affine_in(runs, second)
    how = "a statistic plus " + " and ".join(dict.fromkeys(one.kinds)) + " noise"
    law = PairLaw(how, NOTHING_HIDES, affine=(one, two))
    if one.form != two.form or one.paths != two.paths:
        return replace(law, how="what is no number differs, whatever is drawn", affine=None)
    if one.kinds != two.kinds:
        raise CheckError(ORDER)
    size = max(1.0, *(float(np.abs(x).max(initial=0)) for x in (one.centre, one.matrix)))
    live = np.flatnonzero((np.abs([one.matrix, two.matrix]) > DEAD * size).any(axis=(0, 1)))
    if not live.size:
        raise CheckError("no number moves the output by itself")
    kinds = [one.kinds[i] for i in live]
    shift, matrices = one.centre - two.centre, (one.matrix[:, live], two.matrix[:, live])
    if not np.allclose(*matrices, rtol=1e-9, atol=DEAD * size):
        raise CheckError("noise is scaled by the data")
    return replace(law, pair=_location(kinds, matrices[0], shift, DEAD * size))


def _location(kinds: list[Standard], matrix: Array, shift: Array, least: float) -> DistributionPair:
    if np.abs(shift).max(initial=0.0) <= least:
        return aligned({0: 1.0}, {0: 1.0})
    if set(kinds) == {"normal"}:
        zero = np.zeros(len(shift))
        return DistributionPair(*whitened(Normal(shift, matrix), Normal(zero, matrix)))
    inside = np.linalg.lstsq(matrix, shift, rcond=1e-12)[0]
    if np.linalg.norm(shift - matrix @ inside) > 1e-8 * np.linalg.norm(shift):
        return NOTHING_HIDES
    if np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        raise CheckError("several numbers that are not normal are added up")
    moved = zip(kinds, inside.tolist(), strict=True)
    return together([shifted_pair(kind, d) for kind, d in moved if abs(d) > 1e-12])


def together(parts: Sequence[DistributionPair]) -> DistributionPair:
    """Independent parts."""
    if NOTHING_HIDES in parts:
        return NOTHING_HIDES
    if len(parts) < 2:
        return parts[0] if parts else aligned({0: 1.0}, {0: 1.0})
    one, two = [part.p for part in parts], [part.q for part in parts]
    finite = [[law.log_mass for law in laws if isinstance(law, Discrete)] for laws in (one, two)]
    if len(finite[0]) == len(parts) and math.prod(map(len, finite[0])) < 2e5:
        both = [reduce(np.add.outer, logs).reshape(-1) for logs in finite]
        p, q = (Discrete(np.asarray(logs - np.logaddexp.reduce(logs))) for logs in both)
        return DistributionPair(p, q)
    p_all, q_all = (Product(tuple((law, 1) for law in laws)) for laws in (one, two))
    return DistributionPair(p_all, q_all)


_PICKED: dict[Standard, _Family] = {
    **{family.kind: family for family in _FAMILIES.values()},
    "normal": _Family("normal", lambda x: np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), ndtr, -4.0),
}


@dataclass(frozen=True)
class _Pick(_Choice):
    """The one outcome of a function among as many as it draws numbers."""

    outcomes: tuple[Hashable, ...] = ()

    def _left(self, block: Any, noise: Array) -> Array:
        mark = self.mark(block, noise)
        if mark not in self.outcomes:
            raise CheckError("there are other outcomes than the candidates")
        return np.array([self.outcomes.index(mark)])

    def mark(self, block: Any, noise: Array) -> Hashable:
        seen = self.mechanism(block, noise.reshape(-1))
        if len(seen.tape.kinds) != self.n:
            raise CheckError(ORDER)
        return marks_of(seen.leaves)


def chosen(runs: Runs, first: Any, second: Any) -> PairLaw:
    """One outcome for each number, that with the largest noisy score."""
    kinds = runs(first).tape.kinds
    n, family = len(kinds), _PICKED.get(kinds[0]) if kinds else None
    if family is None or n < 2 or len({*kinds}) > 1 or n > 128:
        raise CheckError("no choice by noisy scores")
    choice = _Pick(runs, cast(Any, None), family, n, 1, True)
    favours = family.floor + 2.0**20 * np.eye(n)
    one, two = (tuple(choice.mark(data, row) for row in favours) for data in (first, second))
    if one != two or len({*one}) < n:
        raise CheckError("no choice by noisy scores: outcomes are not one for each number")
    pair = replace(choice, outcomes=one).pair(first, second, "")
    if pair is None:
        raise CheckError("scores are too far apart for a law of the choice")
    return PairLaw(f"the largest of {n} scores with {family.kind} noise", pair, choice=True)


_MOST_PARTS = 128  # Numbers of one run that do something else than being added
_MOST_VALUES = 400  # Outcomes of one number that are no noise
_FEW = 24
_THRESHOLDS = 32
_MOST_LEAVES = 4_096
_TRIES = 24
_UNSEEN = 1e-12  # Probabilities that may be the rounding of others


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
    is all that it gives."""
    rows = [[int(mark) for mark in row] for row in marks]
    again = {m for row in rows for m, n in itertools.pairwise(row) if m == n}
    others = sorted({m for row in rows for m in row} - again)
    chosen = others[:: max(len(others) // _THRESHOLDS, 1)]
    open_ = [(row[k], row) for row in rows for k in (0, -1) if row[k] != row[(1, -2)[k]]]
    high = min((m for m, row in open_ if m > row[len(row) // 2]), default=math.inf)
    low = max((m for m, row in open_ if m <= row[len(row) // 2]), default=-math.inf)
    return [m for m in sorted({*again, *(m + 1 for m in again), *chosen}) if low < m <= high]


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
