"""Standard numbers, and the law of whatever is a function of one of them.

Its line is cut into pieces on which the outcome is the same, from a grid far into both tails on."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from scipy import stats

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.probe import Affine
from privlearn.checking.scripted_generator import Standard
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density, Discrete
from privlearn.rows.domains import Array

FAR = (5.0, 10.0, 30.0)
"""Scales of noise at which a function is looked at whatever their probability is."""
ERROR = 1e-8  # Of the logarithm of a probability that was found by halving
_MOST_RUNS = 30_000
_TAIL = 1e-12
_RARE = 1e-9  # Outcomes that are rarer, and that the end of the grid cuts off, prove nothing
_OPEN = FAR[-1] / 2  # Scales from which on a piece may go on as another one beyond the grid
_LEVELS = np.concatenate([np.geomspace(_TAIL, 0.01, 31), np.linspace(0.01, 0.5, 50)[1:]])
_SAME = 2e-14  # Numbers nearer than this are not told apart; of uniform ones all digits are
_LAWS: dict[Standard, Any] = {
    "normal": stats.norm,
    "laplace": stats.laplace,
    "gumbel": stats.gumbel_r,
    "exponential": stats.expon,
    "uniform": stats.uniform,
}


def grid(kind: Standard, more: Sequence[float] = ()) -> list[float]:
    """Numbers all over the line of one kind, and ``more`` with their neighbours inside of it."""
    law = _LAWS[kind]
    points = law.ppf(np.concatenate([_LEVELS, 1 - _LEVELS])).tolist()
    if kind == "uniform":
        points += [0.0, math.nextafter(1.0, 0.0)]
    else:
        points += [*FAR, *([] if kind == "exponential" else [-x for x in FAR])]
    within = [x for x in more if min(points) < x < max(points)]
    near = [math.nextafter(x, to) for x in within for to in (x, math.inf, -math.inf)]
    return sorted({*points, *near})


@dataclass(frozen=True)
class Pieces:
    """Of the line of one number: [starts[k], starts[k + 1]) gives outcomes[k]."""

    kind: Standard
    starts: tuple[float, ...]
    outcomes: tuple[Hashable, ...]

    def at(self, z: float) -> Hashable:
        k = int(np.searchsorted(self.starts, z, side="right")) - 1
        return self.outcomes[max(k, 0)]

    def masses(self) -> dict[Hashable, float]:
        total: dict[Hashable, float] = {}
        for outcome, more in zip(self.outcomes, self._likely().tolist(), strict=True):
            total[outcome] = total.get(outcome, 0.0) + more
        return total

    def _likely(self) -> Array:
        """The probability of each piece."""
        ends = np.array([-math.inf, *self.starts[1:], math.inf])
        below, above = _LAWS[self.kind].cdf(ends), _LAWS[self.kind].sf(ends)
        return np.asarray(np.where(below[1:] < 0.5, np.diff(below), -np.diff(above)))

    def _rough(self) -> set[Hashable]:
        """Outcomes whose probabilities have too few digits."""
        off = np.array([_near(self.kind, z) for z in self.starts])
        off *= _LAWS[self.kind].pdf(self.starts)
        errors: dict[Hashable, float] = {}
        for outcome, error in zip(
            self.outcomes, np.r_[0, off[1:]] + np.r_[off[1:], 0], strict=True
        ):
            errors[outcome] = errors.get(outcome, 0.0) + error
        return {outcome for outcome, p in self.masses().items() if p * ERROR < errors[outcome]}

    def against(self, other: Pieces) -> DistributionPair:
        """The laws of the outcomes of two data sets. What has too few digits is one outcome, and so
        is what is rare and may be there, or more likely, beyond the grid. A piece that begins near
        is none of these: what noise far out all gives, where it is cut off, is an atom however rare
        it is."""
        one, two = self.masses(), other.masses()
        ends = {cut.outcomes[k] for cut in (self, other) for k in (0, -1)}
        open_ = ends | {o for o in {**one, **two} if not (one.get(o) and two.get(o))}
        open_ -= self._begin_near() | other._begin_near()
        rare = {o for o in open_ if max(one.get(o, 0.0), two.get(o, 0.0)) < _RARE}
        return lumped(one, two, self._rough() | other._rough() | rare)

    def _begin_near(self) -> set[Hashable]:
        """Outcomes with a piece whose end nearer to 0 is no farther out than `_OPEN`."""
        if self.kind == "uniform":
            return set()
        ends = (*self.starts[1:], math.inf)
        cut = zip(self.starts, ends, self.outcomes, strict=True)
        return {outcome for a, b, outcome in cut if a < _OPEN and b > -_OPEN}

    def middles(self) -> dict[Hashable, float]:
        """A number for each outcome, in the middle of its likeliest piece."""
        found: dict[Hashable, tuple[float, float]] = {}
        ends = [*self.starts[1:], self.starts[-1] + 1 if self.kind != "uniform" else 1.0]
        for low, high, outcome, size in zip(
            self.starts, ends, self.outcomes, self._likely().tolist(), strict=True
        ):
            if outcome not in found or size > found[outcome][0]:
                found[outcome] = size, (low + high) / 2
        return {outcome: middle for outcome, (_, middle) in found.items()}


def _near(kind: Standard, z: float) -> float:
    return 2.0**-53 if kind == "uniform" else _SAME * max(1.0, abs(z))


def lumped(
    first: Mapping[Any, float], second: Mapping[Any, float], rare: Collection[Hashable]
) -> DistributionPair:
    """Two laws, with some outcomes not told apart from the likeliest one."""
    one, two = ({o: p for o, p in law.items() if o not in rare} for law in (first, second))
    likeliest = max(one, key=lambda o: one[o])
    for law, kept in ((first, one), (second, two)):
        more = math.fsum(p for o, p in law.items() if o in rare)
        kept[likeliest] = kept.get(likeliest, 0.0) + more
    return aligned(one, two)


def pieces(kind: Standard, outcome: Callable[[float], Hashable], at: Sequence[float]) -> Pieces:
    """Cuts the line where the outcome changes, between numbers ``at`` which it is asked. Raises
    CheckError: it changes too often."""
    starts, outcomes, runs = [at[0]], [outcome(at[0])], len(at)
    for low, high in itertools.pairwise(at):
        open_ends = [(low, outcomes[-1], high, outcome(high))]
        while open_ends:
            a, x, b, y = open_ends.pop()
            if x == y:
                continue
            middle = (a + b) / 2
            if b - a <= _near(kind, a) or middle in (a, b):
                starts.append(b)
                outcomes.append(y)
                continue
            runs += 1
            if runs > _MOST_RUNS:
                raise CheckError("the output changes too often with one random number")
            z = outcome(middle)
            open_ends += [(middle, z, b, y), (a, x, middle, z)]
    return Pieces(kind, tuple(starts), tuple(outcomes))


def aligned(
    first: Mapping[Any, float], second: Mapping[Any, float], label: str = ""
) -> DistributionPair:
    """Probabilities of outcomes, which need not add up to the last digit, as a pair of laws."""
    both = [key for key in {**first, **second} if first.get(key) or second.get(key)]
    laws = []
    for masses in (first, second):
        p = np.array([max(masses.get(key, 0.0), 0.0) for key in both])
        with np.errstate(divide="ignore"):
            laws.append(Discrete(np.log(p / p.sum())))
    return DistributionPair(laws[0], laws[1], label)


NOTHING_HIDES = DistributionPair(
    Discrete(np.array([0.0, -np.inf])), Discrete(np.array([-np.inf, 0.0])), "what no noise hides"
)


def located(kind: Standard, mean: float, scale: float) -> Density:
    """mean + scale·z, z standard."""
    law, size = _LAWS[kind], abs(scale)
    jumps = {"laplace": (mean,), "exponential": (mean,), "uniform": (mean, mean + scale)}

    def log_density(x: Array) -> Array:
        return np.asarray(law.logpdf((x[:, 0] - mean) / scale) - math.log(size))

    return Density(log_density, (mean,), size, jumps=(jumps.get(kind, ()),))


def shifted_pair(kind: Standard, shift: float, label: str = "") -> DistributionPair:
    """z + shift against z, by what is sufficient to tell them apart."""
    d = abs(shift)
    if kind == "exponential":
        return aligned({1: 1.0}, {0: -math.expm1(-d), 1: math.exp(-d)}, label)
    if kind == "uniform":
        d = min(d, 1.0)
        return aligned({0: 1 - d, 1: d}, {0: 1 - d, 2: d}, label)
    return DistributionPair(located(kind, shift, 1.0), located(kind, 0.0, 1.0), label)


def mixture(parts: Sequence[tuple[float, Density]]) -> Density:
    """Densities with weights; one of them if there is only one."""
    if len(parts) == 1:
        return parts[0][1]
    total = math.fsum(weight for weight, _ in parts)
    logs = [math.log(weight / total) for weight, _ in parts]

    def log_density(x: Array) -> Array:
        each = [log + part.log_density(x) for log, (_, part) in zip(logs, parts, strict=True)]
        return np.asarray(np.logaddexp.reduce(each, axis=0))

    middle = sum(weight / total * part.centre[0] for weight, part in parts)
    scale = min(part.scale for _, part in parts)
    jumps = sorted({x for _, part in parts for x in part.jumps[0]})
    return Density(log_density, (middle,), scale, jumps=(tuple(jumps),))


PIECE_ERROR = 1e-6  # Of a log probability
_POINTS = np.linspace(-30.1, 30.3, 81)  # Between which changes of the bin are looked for
_CUTS = np.array([-6.0, -3.0, -1.0, 0.0, 1.0, 3.0, 6.0])  # Bins end at what leaves there
_NEAR = 0.02  # Between further points about the noise that was found to act oddly
_LEAPS = 4  # Of each data set
_MOST_BINS = 96
_SAME_VALUE = 1e-8  # Of two numbers of the output, against the largest
_TRIED = 4  # Draws on which it is tried that the number depends on that line alone
_ELSEWHERE = 24  # Points at which it is tried that nothing was missed between others


def piecewise_pair(
    run: Callable[[Any, Array], Array], blocks: tuple[Any, Any], noise: Affine, z: Array
) -> DistributionPair | None:
    """The laws, on two data sets, of the number of the output on which ``z`` acts most oddly. None
    where it is no number, depends on more than one line of noise, or turns too often."""
    try:
        found = _line_of(run, blocks, noise, z)
        if found is None:
            return None
        number, line = found
        sides: list[Callable[[float], float]] = [
            partial(lambda block, t: float(run(block, t * line)[number]), block) for block in blocks
        ]
        at = np.unique([*_POINTS, *_CUTS, *(float(line @ z) + _NEAR * np.arange(-3, 4))])
        values = np.array([[side(t) for t in at] for side in sides])
        ends = [
            end for side, own in zip(sides, values, strict=True) for end in _leaps(side, at, own)
        ]
        edges = _edges(at, values, ends)
        laws = []
        for side in sides:

            def bin_of(t: float, side: Callable[[float], float] = side) -> int:
                return int(np.searchsorted(edges, side(t)))

            laws.append(pieces(noise.family, bin_of, list(map(float, at))))
            rng = np.random.default_rng(0)
            elsewhere = [*rng.normal(size=_ELSEWHERE), *rng.uniform(at[0], at[-1], _ELSEWHERE)]
            if len(edges) > _MOST_BINS or any(bin_of(t) != laws[-1].at(t) for t in elsewhere):
                return None
    except Exception:  # what it raises on some data is an output of another form
        return None
    pair = laws[0].against(laws[1])
    return DistributionPair(pair.p, pair.q, f"number {number} of what leaves, in bins")


def _line_of(
    run: Callable[[Any, Array], Array], blocks: tuple[Any, Any], noise: Affine, z: Array
) -> tuple[int, Array] | None:
    left = []
    for block in blocks:
        base, moved = run(block, 0 * z), run(block, z)
        if base.shape != moved.shape or base.shape != noise.matrix.shape[:1]:
            return None
        left.append(np.abs(moved - base - noise.matrix @ z))
    number = int(np.max(left, axis=0).argmax())
    line = noise.matrix[number]
    if not line.any() or (noise.family != "normal" and np.count_nonzero(line) > 1):
        return None
    line = line / np.linalg.norm(line)
    rng = np.random.default_rng(0)
    for block in blocks:
        for far in np.linspace(0.5, 6.0, _TRIED):
            other = far * rng.normal(size=len(z))
            one, two = run(block, other), run(block, (line @ other) * line)
            if not abs(one[number] - two[number]) <= 1e-7 * (1 + abs(one[number])):
                return None
    return number, line


def _edges(at: Array, values: Array, ends: list[float]) -> Array:
    """Between bins: about what leaves on whole intervals, at the ends of leaps, and elsewhere."""
    room = _SAME_VALUE * (1 + float(np.abs(values).max()))
    flat = values[:, 1:][np.abs(np.diff(values)) <= room]
    some = np.concatenate([flat, values[:, np.isin(at, _CUTS)].reshape(-1), ends])
    near = np.unique(np.round(some / room)) * room
    return np.unique(np.concatenate([near - 2 * room, near + 2 * room]))


def _leaps(side: Callable[[float], float], at: Array, values: Array) -> list[float]:
    """What leaves on either side of where that leaps most. Raises CheckError: it turns back
    without a leap, so that more may lie between the points."""
    slopes = np.diff(values) / np.diff(at)
    bends = np.abs(np.diff(slopes, prepend=slopes[0], append=slopes[-1]))
    odd, least = np.minimum(bends[:-1], bends[1:]), _SAME_VALUE * float(np.abs(slopes).max())
    ends, leaping = [], np.zeros(len(slopes), dtype=bool)
    for k in np.argsort(-odd)[:_LEAPS]:
        if odd[k] > least:
            low, high, one, two = at[k], at[k + 1], values[k], values[k + 1]
            while low < (middle := (low + high) / 2) < high:
                value = side(middle)
                if abs(value - one) > abs(value - two):
                    high, two = middle, value
                else:
                    low, one = middle, value
            ends += [one, two]
            leaping[k] = abs(two - one) > _SAME_VALUE * (1 + float(np.abs(values).max()))
    way = np.where(np.abs(slopes) > least, np.sign(slopes), 0.0)
    if ((way[1:] * way[:-1] < 0) & ~(leaping[1:] | leaping[:-1])).any():
        raise CheckError("the output turns back as noise grows")
    return ends
