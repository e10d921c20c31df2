"""Standard numbers, and the law of whatever is a function of one of them.

Its line is cut into pieces on which the outcome is the same, from a grid far into both tails on.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.scripted_generator import Standard
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Density, Discrete
from privlearn.rows.domains import Array

FAR = (5.0, 10.0, 30.0)
"""Scales of noise at which a function is looked at whatever their probability is."""
ERROR = 1e-8
"""Of the logarithm of a probability that was found by halving."""
_MOST_RUNS = 30_000
_TAIL = 1e-12
_RARE = 1e-9
"""Outcomes that are rarer, and that the end of the grid cuts off, prove nothing."""
_OPEN = FAR[-1] / 2
"""Scales from which on a piece may go on as another one beyond the grid."""
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
        """The laws of the outcomes of two data sets.

        What has too few digits is one outcome, and so is what is rare and may be there, or more
        likely, beyond the grid.  A piece that begins near is none of these: what noise far out all
        gives, where it is cut off, is an atom however rare it is.
        """
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
    """Cuts the line where the outcome changes, between numbers ``at`` which it is asked.

    Raises:
        CheckError: it changes too often.
    """
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
