r"""Laws of the privacy loss on a lattice and their convolutions, from above and from below.

Upper side: a law is moved to a lattice of losses k*step by splitting every outcome between its two
neighbours so that the mean of Y = dP/dQ stays: a spread, which can only raise the expectation of a
convex function of Y.  Lower side: the same split, read as a randomised rounding of the loss, is
something an adversary can do.  All weights are >= 0 and are only added and multiplied, so rounding
errors are relative, also far out in the tails; long convolutions go by FFT, whose absolute errors
are added above and taken off below (`privlearn.accountants.fourier`).  See
``docs/proofs.md#composition``, points 2, 3 and 8.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from privlearn.accountants import fourier
from privlearn.accountants.fourier import dot
from privlearn.losses.steps import Array, Direction, GaussianStep, PairStep, Points

ULP = 2.0**-53
COARSEST = 0.125
_DIRECT = 30_000_000  # Products of a direct convolution that takes no longer than by FFT
_MOST_PRODUCTS = 4_000_000_000  # Of all convolutions of one power: some seconds if all are direct
_SHORT = 2**16  # Points of a law that an FFT does not mind
ASKED = 4e5
"""δ over the tail that is cut, about."""
_LONGEST = 2**20  # Points of a common lattice
_COARSER = 10  # How much larger the step of a common lattice may be than wanted
_FEW = 500  # Steps for which a lattice is as fine as for so many
_LEAST_SPLIT = 1e-3  # Share of a law between its largest losses, for which its lattice is chosen
_LEAST_POINTS = 100  # Of it in a standard deviation
_WIDEST = 64.0  # Step of a lattice; the ratios of neighbours overflow beyond
_MOST_LONG = 10**5  # Copies of a law without a largest loss that are convolved in groups
_LONGEST_DIRECT = 4096  # Points of a law that is convolved directly
_MOST_LAWS = 256  # Different laws for which it pays to have one
_BLUR = 1e-3  # Mass that may be unknown at the bottom of a law, of which it is above the tail
_UNSEEN = 1e-5  # Share of δ that the rounding of an FFT may make up before more is done about it
_OF_MANY_UNSEEN = 0.03  # The same of so many steps that there is no time for anything else
_MOST_UNSEEN = 3e-4  # Above this share a direct convolution on a coarser lattice is better


class Mesh(NamedTuple):
    """How fine lattices are: points per standard deviation, fewer where arrays get long."""

    limit: float = math.inf
    """The largest step; where finite, laws end on it."""
    points: int = 100
    long: int = 24_000
    least: int = 50
    share: float = 5e-5
    """Of ε, that one lattice for all may add."""


FINE = Mesh(points=200, long=48_000, least=200, share=9e-6)


class Law(NamedTuple):
    """A law of the loss on the lattice {k*step : k >= low}, see the module's docstring.

    ``p``: P-weights, at least (in convex order) those of every law it stands for.  ``floor``: at
    most the P-weights of the randomised rounding (the array ``p`` itself where no more is known).
    ``q``: at least its Q-weights times e^(k*step).  ``lost``: P-mass counted as an infinite loss,
    absent from ``p``.  ``spill``: P-mass in ``floor`` that the lower side must not count.
    ``rounding``: relative error bound of every weight.
    """

    step: float
    low: int
    p: Array
    floor: Array
    q: Array
    lost: float
    spill: float
    rounding: float

    @property
    def std(self) -> float:
        """Standard deviation of the loss under P."""
        k = np.asarray(np.arange(len(self.p)) * self.step, dtype=np.float64)
        total = float(self.p.sum())
        away = np.square(k - dot(self.p, k) / total)
        return math.sqrt(max(dot(self.p, away) / total, 0.0))


class TooLong(Exception):
    """So many steps, or so long laws, that a composition takes too long."""


def _split(points: Points, step: float) -> Law:
    """Moves the P-mass p at each loss to the two lattice neighbours, keeping the mean of Y.

    The share that goes up is (1 - e^-v)/(1 - e^-step) with v the distance to the lower neighbour.
    It is raised by more than its rounding error and the error of the quadrature (below 1e-13 of p).
    """
    loss, p, lost, spill = points
    below = np.floor(loss / step)
    v = loss - below * step
    slack = 16 * ULP * (2 + np.abs(loss)) / step + 1e-13 / step
    up = np.clip(np.expm1(-v) / math.expm1(-step) + slack, 0.0, 1.0)
    low = int(below.min())
    index = (below - low).astype(np.intp)
    size = int(index.max()) + 2
    weights: Array = np.bincount(index, p * (1 - up), size).astype(np.float64)
    weights += np.bincount(index + 1, p * up, size)
    scaled = p * np.exp(-v)
    other: Array = np.bincount(index, scaled * (1 - up), size).astype(np.float64)
    other += np.bincount(index + 1, scaled * up * math.exp(step), size)
    return Law(step, low, weights, weights, other, lost, spill, 1e-12 + 4 * len(p) * ULP / size)


def _coarsen(law: Law) -> Law:
    if law.step > _WIDEST:
        raise TooLong
    up = min(1 / (1 + math.exp(-law.step)) * (1 + 8 * ULP), 1.0)
    down, grow = 1 - up, math.exp(law.step)
    start = law.low % 2

    def halved(weights: Array, above: float, below: float) -> Array:
        padded = np.zeros(start + len(weights) + (start + len(weights) + 1) % 2)
        padded[start : start + len(weights)] = weights
        even, odd = padded[::2].copy(), padded[1::2]
        even[1:] += odd * above
        even[:-1] += odd * below
        return even

    p = halved(law.p, up, down)
    floor = p if law.floor is law.p else halved(law.floor, up, down)
    with np.errstate(over="ignore", invalid="ignore"):
        q = halved(law.q, up * grow, down / grow)
    if not np.isfinite(q).all():
        raise TooLong
    low = (law.low - start) // 2
    rounding = law.rounding + 16 * ULP
    return _trim(Law(2 * law.step, low, p, floor, q, law.lost, law.spill, rounding), 0.0)


def _trim(law: Law, tail: float) -> Law:
    """Cuts at most ``tail`` P-mass on each side: top to infinity, bottom up to the first point."""
    p = law.p
    first = int(np.searchsorted(np.cumsum(p), tail, side="right"))
    above = np.cumsum(p[::-1])
    last = len(p) - int(np.searchsorted(above, tail, side="right"))
    first = min(first, max(last - 1, 0))
    if first == 0 and last == len(p):
        return law
    new_p, new_q = p[first:last].copy(), law.q[first:last].copy()
    moved = float(p[:first].sum())
    new_p[0] += moved
    floor = law.floor[first:last].copy()
    spill = law.spill
    if law.floor is p:
        floor, spill = new_p, spill + moved * (1 + len(p) * ULP)
    lost = law.lost + float(p[last:].sum()) * (1 + len(p) * ULP)
    rounding = law.rounding + 2 * max(first, 1) * ULP
    return Law(law.step, law.low + first, new_p, floor, new_q, lost, spill, rounding)


def _join(one: Law, two: Law, tail: float, direct: bool = False) -> Law:
    while one.step < two.step:
        one = _coarsen(one)
    while two.step < one.step:
        two = _coarsen(two)
    if not direct and len(one.p) * len(two.p) > _DIRECT:
        found = _spectral([(one, 1), (two, 1)], tail)
        if found is not None:
            return found
    terms = min(len(one.p), len(two.p)) + 4
    same = one.floor is one.p and two.floor is two.p
    p = np.convolve(one.p, two.p)
    return _trim(
        Law(
            one.step,
            one.low + two.low,
            p,
            p if same else np.convolve(one.floor, two.floor),
            np.convolve(one.q, two.q),
            one.lost + two.lost,
            one.spill + two.spill,
            one.rounding + two.rounding + terms * ULP,
        ),
        tail,
    )


def _spectral(
    parts: Sequence[tuple[Law, int]], tail: float, most: float = _MOST_UNSEEN
) -> Law | None:
    """Laws on one lattice, each so often, by FFT; None where its rounding would be seen.

    That is where tails are very thin and heavy.  At most ``tail`` is cut on each side, twice.
    """
    where = fourier.window([(law.p, n) for law, n in parts], tail)
    law = _enclosed(parts, where, partial(fourier.convolve, care=0))
    tries: list[_Convolve] = [partial(fourier.convolve, care=care) for care in (1, 3)]
    if len(parts) == 1 and fourier.rare(parts[0][0].p, parts[0][1]):
        tries = [partial(_apart, tail, care) for care in (0, 1)]
    for enough, convolve in zip((_UNSEEN, most), tries, strict=True):
        if _unsure(law, tail) > enough:
            law = _enclosed(parts, where, convolve)
    return _trim(law, tail) if _unsure(law, tail) <= most else None


def _apart(
    tail: float, care: int, factors: fourier.CountedWeights, where: fourier.Window
) -> fourier.Enclosed:
    ((weights, count),) = factors
    return fourier.power(weights, count, where, tail, care)


def _unsure(law: Law, tail: float) -> float:
    """The share of the mass beyond that is not known where that is the δ asked for, about."""
    beyond = np.cumsum(law.p[::-1])
    place = min(int(np.searchsorted(beyond, ASKED * tail)), len(beyond) - 1)
    unsure = float((law.p - law.floor)[len(beyond) - 1 - place :].sum())
    return unsure / float(beyond[place])


_Convolve = Callable[[fourier.CountedWeights, fourier.Window], fourier.Enclosed]


def _enclosed(parts: Sequence[tuple[Law, int]], where: fourier.Window, convolve: _Convolve) -> Law:
    upper = convolve([(law.p, n) for law, n in parts], where)
    lower = upper
    if any(law.floor is not law.p for law, _ in parts):
        lower = convolve([(law.floor, n) for law, n in parts], where)
    other = convolve([(law.q, n) for law, n in parts], where)
    rounding = math.expm1(sum(n * math.log1p(law.rounding) for law, n in parts))
    p = upper.most
    p[0] += where.below
    # where too little is known, which is at the bottom, all mass that may be there moves up
    unknown = np.cumsum((p - lower.least)[::-1])[::-1]
    first = min(int(np.searchsorted(-unknown, -_BLUR)), len(p) - 1)
    if first:
        total = math.exp(sum(n * math.log(float(law.p.sum())) for law, n in parts))
        p = p[first:].copy()
        p[0] += max(total * (1 + rounding + 1e-9) - float(lower.least[first:].sum()), 0.0)
    return Law(
        parts[0][0].step,
        sum(n * law.low for law, n in parts) + where.first + first,
        p,
        lower.least[first:],
        other.most[first:],
        sum(n * law.lost for law, n in parts) * (1 + 4 * ULP) + where.above * (1 + rounding),
        sum(n * law.spill for law, n in parts) * (1 + 4 * ULP),
        rounding + max(part.rounding for part in (upper, lower, other)),
    )


def _settle(law: Law, mesh: Mesh) -> Law:
    """Coarsens while there are more than twice as many points as wanted, up to ``mesh.limit``."""
    while law.step < mesh.limit:
        points = law.std / law.step
        wanted = mesh.points if len(law.p) < mesh.long else mesh.least
        if points <= 2 * wanted and (len(law.p) < 2 * mesh.long or law.step >= COARSEST):
            break
        law = _coarsen(law)
    return law


def _power(law: Law, count: int, tail: float, mesh: Mesh) -> Law:
    """The same law ``count`` times: by squaring where it is short, else in groups by FFT.

    The law of a group is not much longer than that of one, or than `_SHORT`; `_settle` shortens it.
    """
    if count == 1:
        return law
    if len(law.p) ** 2 <= _DIRECT:
        return _squared(law, count, tail, mesh if count <= _MOST_LONG else Mesh(mesh.limit))
    width = 3 * math.sqrt(-2 * math.log(tail)) * law.std / law.step
    room = max(len(law.p), _SHORT)
    group = count if width * math.sqrt(count) <= room else max(int((room / width) ** 2), 2)
    groups, rest = divmod(count, group)
    found = _spectral([(law, group)], tail * group)
    if found is None:
        short = mesh._replace(long=_LONGEST_DIRECT, points=50, least=20)
        while len(law.p) > short.long:
            law = _coarsen(law)
        return _squared(law, count, tail, short, direct=True)
    if groups > 1:
        found = _power(_settle(found, mesh), groups, tail * group, mesh)
    if rest:
        others = _power(law, rest, tail, mesh)
        found = _join(_settle(found, mesh), _settle(others, mesh), tail * count)
    return found


def _squared(law: Law, count: int, tail: float, mesh: Mesh, direct: bool = False) -> Law:
    work = _MOST_PRODUCTS

    def join(one: Law, two: Law) -> Law:
        nonlocal work
        work -= len(one.p) * len(two.p)
        if work < 0:
            raise TooLong
        return _settle(_join(one, two, tail, direct), mesh)

    result: Law | None = None
    square = law
    while True:
        if count & 1:
            result = square if result is None else join(result, square)
        count >>= 1
        if not count:
            assert result is not None
            return result
        square = join(square, square)


def dyadic(size: float) -> float:
    """The largest power of two that is at most ``size``."""
    return 2.0 ** math.floor(math.log2(size))


def _leaf(step: PairStep, tail: float, mesh: Mesh, way: Direction) -> Law:
    """One step on a lattice that suits the standard deviation of its loss."""
    rough = step.points(way, COARSEST, tail)
    share = rough.p / rough.p.sum()
    spread = math.sqrt(float(dot(share, (rough.loss - dot(share, rough.loss)) ** 2)))
    size = min(dyadic(max(spread, 1e-30) / mesh.points), mesh.limit, COARSEST)
    length = float(np.ptp(rough.loss))
    while length / size > 2 * mesh.long and size < COARSEST:
        size *= 2
    points = step.points(way, size, tail)
    return _split(points, size)


class Frame(NamedTuple):
    """What is roughly known of a composition at some δ, and how long its lattice is in nats."""

    epsilon: float
    order: float
    std: float
    length: float
    runs: int

    def size(self, mesh: Mesh, spare: float) -> float | None:
        """The step of one lattice for all; None if it would have too many points.

        At order a the split of every loss adds about a/12 of the squared step to what it costs; so
        the order at which the tail is described best says how much of ε the whole adds, which is to
        be the share of the ``mesh`` and ``spare`` besides.
        """
        added = mesh.share * max(self.epsilon, self.std) + spare
        wanted = math.sqrt(12 * added / (max(self.runs, _FEW) * self.order))
        size = min(max(wanted, self.length / _LONGEST), self.std / _LEAST_POINTS)
        size = min(size, mesh.limit, COARSEST / 8)
        if math.isfinite(mesh.limit):
            size = dyadic(size)
        enough = size <= _COARSER * wanted and self.length <= 1.01 * _LONGEST * size
        return size if enough else None


def frame(counts: Mapping[PairStep, int], tail: float, way: Direction) -> Frame:
    """From moments of laws on a few points; nothing that is proved rests on it."""
    total = sum(counts.values())
    rises, falls = 2.0 ** np.arange(-6, 20, 0.5), 4.0 ** np.arange(-3, 8)
    orders = np.concatenate((rises, -falls))
    moments, variance, longest = np.zeros(len(orders)), 0.0, 0.0
    for step, count in counts.items():
        loss, p, _, _ = step.points(way, COARSEST, tail / total)
        p = p / p.sum()
        variance += count * dot(p, (loss - dot(p, loss)) ** 2)
        longest = max(longest, float(np.ptp(loss)))
        exponents = orders[:, None] * loss
        top = exponents.max(axis=1)
        moments += count * (top + np.log(np.einsum("ij,j->i", np.exp(exponents - top[:, None]), p)))
    std = math.sqrt(variance)
    log_delta = min(math.log(ASKED * tail), -1.0)
    reached = (moments[: len(rises)] - log_delta) / rises
    at = int(np.argmin(reached))
    room = (moments - math.log(tail)) / np.abs(orders)
    # beyond some order it is the largest losses that count, which a finer lattice hardly changes
    order = min(1 + float(rises[at]), 1 - 8 * log_delta / max(float(reached[at]), std))
    width = float(room[: len(rises)].min() + room[len(rises) :].min())
    length = max(width, longest * max(len(counts) / 4, 1))
    return Frame(float(reached[at]), order, std, length, total)


def _of_one(only: PairStep, length: float, size: float | None) -> float | None:
    """The step of a lattice for one law: on it lie all its losses, or at least the largest."""
    own, most = only.lattice(), only.largest()
    if (size or length / _LONGEST) < own < _WIDEST:
        return own  # nothing is split
    if size is None or not size < most < math.inf:
        return size
    loss, p, _, _ = only.points("remove", COARSEST, 1e-12)
    split = float(p[np.abs(loss) < most * (1 - 1e-9)].sum())  # only this mass is moved
    size = min(size * max(0.5 / math.sqrt(max(split, _LEAST_SPLIT)), 1.0), most)
    return most / math.ceil(most / size)


def _common(
    counts: Mapping[PairStep, int], tail: float, mesh: Mesh, way: Direction, spare: float
) -> Law | None:
    """All steps on one lattice and by one FFT; None where that is long, or its rounding is seen."""
    if len(counts) > _MOST_LAWS:
        return None
    share, framed = tail / (4 * sum(counts.values())), frame(counts, tail, way)
    size = framed.size(mesh, spare)
    if len(counts) == 1 and mesh.limit == math.inf:
        size = _of_one(next(iter(counts)), framed.length, size)
    if size is None:
        return None
    laws = [(_split(step.points(way, size, share), size), n) for step, n in counts.items()]
    most = _MOST_UNSEEN if sum(counts.values()) <= _MOST_LONG else _OF_MANY_UNSEEN
    law = laws[0][0] if laws[0][1] == 1 and len(laws) == 1 else _spectral(laws, tail / 4, most)
    while law is not None and law.step < mesh.limit < math.inf:
        law = _coarsen(law)
    return law


def merged(steps: Sequence[tuple[PairStep, int]]) -> dict[PairStep, int]:
    """Equal steps together, and all Gaussian mass in one."""
    counts: dict[PairStep, int] = {}
    mass = 0.0
    for step, count in steps:
        if isinstance(step, GaussianStep):
            mass += step.mu_squared * count
        else:
            counts[step] = counts.get(step, 0) + count
    if mass:
        counts[GaussianStep(mass * (1 + (len(steps) + 4) * ULP))] = 1
    return counts


def block(
    steps: Sequence[tuple[PairStep, int]],
    tail: float,
    mesh: Mesh,
    direction: Direction,
    spare: float = 0.0,
) -> Law:
    """The law of all these steps; their order does not matter.

    On one lattice where that is possible; else small ones are joined first.  ``spare``: nats that ε
    may be larger, as in a direction that is not the worse one.

    Raises:
        TooLong: no bound on work would be kept.
    """
    counts = merged(steps)
    total = sum(counts.values())
    share = tail / (4 * total)
    common = _common(counts, tail, mesh, direction, spare)
    if common is not None:
        return common
    if any(n > _MOST_LONG and step.largest() == math.inf for step, n in counts.items()):
        raise TooLong
    heap: list[tuple[float, int, Law]] = []
    for number, (step, count) in enumerate(counts.items()):
        law = _power(_leaf(step, share, mesh, direction), count, share, mesh)
        heap.append((law.std, number, law))
    heapq.heapify(heap)
    number = len(heap)
    while len(heap) > 1:
        one, two = heapq.heappop(heap)[2], heapq.heappop(heap)[2]
        law = _settle(_join(one, two, share), mesh)
        heapq.heappush(heap, (law.std, number, law))
        number += 1
    law = heap[0][2]
    while law.step < mesh.limit < math.inf:
        law = _coarsen(law)
    return law


class DeltaCurve(NamedTuple):
    """delta(epsilon) from above and from below."""

    upper: Callable[[float], float]
    lower: Callable[[float], float]


def curve_of_law(law: Law) -> DeltaCurve:
    """The hockey-stick curve of a lattice law."""
    points = (law.low + np.arange(len(law.p))) * law.step

    def upper(epsilon: float) -> float:
        start = int(np.searchsorted(points, epsilon))
        total = dot(-np.expm1(epsilon - points[start:]), law.p[start:])
        return min(total * (1 + law.rounding + 1e-12) + law.lost, 1.0)

    after_p = np.append(np.cumsum(law.floor[::-1])[::-1], 0.0)

    def lower(epsilon: float) -> float:
        start = int(np.searchsorted(points, epsilon))
        last = min(start + 3, len(points))
        excess = np.exp(np.minimum(epsilon - points[max(start - 2, 0) :], 700.0))
        q = law.q[max(start - 2, 0) :] * excess
        near = last - max(start - 2, 0)
        beyond = float(q[near:].sum()) + np.cumsum(q[:near][::-1])[::-1]
        p = after_p[max(start - 2, 0) : last] * (1 - law.rounding - 1e-11)
        best = float((p - beyond * (1 + law.rounding + 1e-11)).max(initial=0.0))
        return max(best - law.spill, 0.0)

    return DeltaCurve(upper, lower)
