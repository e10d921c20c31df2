"""Exact laws of local reports: points of caps, and one of k answers.

A cap report about a direction u has, against the null law, density M = p/q where ⟨z, u⟩ is large
and m = (1−p)/(1−q) elsewhere.  The word that decides for the cap is halved to find p, that which
decides for u or −u to find its share; that points follow the null law inside and outside is tried
on thousands.  An answer of k is true where a word is below a threshold, and else uniform."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr
from scipy.stats import kstest

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.probe import UnpredictedError, released_on
from privlearn.checking.exact.search import LARGEST, SIZES
from privlearn.checking.mined import Mined, mined
from privlearn.checking.neighbours import (
    extreme_records,
    informative_records,
    record_pairs,
    record_pool,
    spend_of,
)
from privlearn.checking.reports import Axis, Coverage
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete
from privlearn.noise import CapNoise, CategoryNoise
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Kind, NoisePool, SeededWords, Variates
from privlearn.rows.domains import Array
from privlearn.values.records import join, length, record_at

ERROR = 1e-8  # Of a log probability
_TRIED = 4000  # Reports on which a law is tried
_FIT = 0.06
"""Distance of distribution functions that so many reports, and an axis estimated on them, allow."""
_MOST_ANSWERS = 100
_ROUNDED = 1e-4  # Of heights and lengths: reports are rounded to 2⁻²³ of their limit
_FIRST, _LAST = 0, 2**64 - 1
_BESIDE = 2.0**-40  # Between a probability and what is surely beyond it
_MENTIONED = 8  # Numbers that code mentions about which records are made


class _Words:
    """Seeded noise but for words that are written down. Of an answer the first; of caps, in turn,
    inside or not, u or −u, and which subspace."""

    name, simulated = "scripted", True

    def __init__(self, words: Iterable[int]) -> None:
        self._pool = NoisePool(SeededWords(0))
        self._words = iter(words)

    def pool(self) -> _Words:
        return self

    def words(self, n: int) -> NDArray[np.uint64]:
        drawn = self._pool.words(n)  # also where it is replaced: what follows stays as it is
        word = next(self._words, None)
        return drawn if word is None else np.full(n, word, np.uint64)

    def variates(self, kind: Kind, n: int) -> Variates:
        return self._pool.variates(kind, n)

    def floors(self, kind: Kind, n: int) -> Floors:
        return self._pool.floors(kind, n)

    def more(self) -> int:
        return self._pool.more()


def report_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> tuple[list[DistributionPair], Coverage] | None:
    """Laws of one user's report on pairs of records; None if it is none of these reports. Raises
    CheckError: what is drawn is not what these laws are about; or pairs of other records than
    opposite and null ones are given."""
    if not hasattr(mechanism, "release"):
        return None
    loss: Loss = mechanism.loss()
    spend = spend_of(mechanism, loss.adjacency)
    if not isinstance(spend.noise, CapNoise | CategoryNoise) or spend.arithmetic != "each":
        return None
    pool, numbers = None, mined(mechanism, most=_MENTIONED)
    if neighbours is None:
        records = informative_records(spend.domain)
        neighbours = record_pairs(spend.domain, records, loss.adjacency)[:1]
        pool = record_pool(spend.domain, numbers.values(), neighbours, within=False)[0]
    if any(length(block) != 1 for pair in neighbours for block in pair):
        raise CheckError("neighbours: a report's law is computed for one user only")
    if isinstance(spend.noise, CategoryNoise):
        k = spend.noise.categories
        laws = [[_answer_law(mechanism, loss, b, k) for b in pair] for pair in neighbours]
        result = [DistributionPair(p, q, f"pair {k}") for k, (p, q) in enumerate(laws)]
        return result, _tried(mechanism, loss, pool, numbers, neighbours, 1)
    null = record_at(extreme_records(spend.domain), slice(-1, None))
    result = []
    for k, pair in enumerate(neighbours):
        one, two = (_cap(mechanism, loss, block, null, spend.noise) for block in pair)
        result.append(_cap_pair(one, two, f"pair {k}"))
    return result, _tried(mechanism, loss, pool, numbers, neighbours, 3)


def _tried(
    mechanism: Any,
    loss: Loss,
    pool: Any,
    numbers: Mined,
    pairs: Sequence[tuple[Any, Any]],
    decide: int,
) -> Coverage:
    """Whether words decide as for one user among any number of others, wherever they stand. Raises
    UnpredictedError: somebody's report is drawn otherwise beside others."""
    far = join([*pairs[0]])
    pool = far if pool is None else pool
    first, count = record_at(far, slice(0, 1)), length(pool)
    rng = np.random.default_rng(0)
    sizes = sorted({*SIZES[::3], *numbers.sizes(LARGEST)[::2]})
    sets = [np.arange(count), *(rng.integers(count, size=n) for n in sizes)]
    for turn in range(min(decide, 2)):  # of caps, for being inside, and for which of two

        def reports(block: Any, word: int, turn: int = turn) -> Array:
            words = (
                [word] if decide == 1 else cycle((*[_FIRST] * turn, word, *[_FIRST] * (2 - turn)))
            )
            found = released_on(mechanism, loss, block, _Words(words))
            return found.reshape(length(block), -1).astype(np.float64)

        alone = reports(first, _FIRST)
        share = _turning(lambda word: np.array_equal(reports(first, word), alone))  # noqa: B023
        near = [int((share + side * _BESIDE) * 2.0**64) for side in (-1, 1)]
        words = [(max(near[0], _FIRST), _FIRST), (min(near[1], _LAST), _LAST)]
        pooled = far if turn else pool
        decided = (reports(pooled, _FIRST) != reports(pooled, _LAST)).any(axis=1)
        for chosen in sets:
            # inner records are mixtures of both turns, by their length
            picked = chosen % length(pooled)
            block = record_at(pooled, picked)
            ends = [reports(block, end) for _, end in words]
            turned = (ends[0] != ends[1]).any(axis=1) != decided[picked]
            for (word, _), at_end in zip(words, ends, strict=True):
                unlike = turned | (reports(block, word) != at_end).any(axis=1)
                if unlike.any():
                    who = f"user {int(unlike.argmax())} of {len(chosen)}"
                    raise UnpredictedError(f"{who} reports otherwise than a user alone")
    axes = (
        Axis("values", f"{count} records about {len(numbers.numbers)} numbers in code"),
        Axis("sizes", f"{sizes[0]} to {sizes[-1]:,} users at once, each of them looked at"),
    )
    return Coverage(axes)


def _turning(holds: Callable[[int], bool]) -> float:
    """The share of words for which a condition holds that holds up to some word."""
    if holds(_LAST):
        return 1.0
    low, high = _FIRST, _LAST
    while high - low > 2**11:  # of 52 bits or more, all that doubles can tell
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return high / 2.0**64


def _answer_law(mechanism: Any, loss: Loss, block: Any, k: int) -> Discrete:
    if k > _MOST_ANSWERS:
        raise CheckError(f"{k} answers: at most {_MOST_ANSWERS} can be probed")
    many = record_at(block, np.zeros(_TRIED, int))

    def answers(of: Any, word: int) -> Array:
        return released_on(mechanism, loss, of, _Words([word])).reshape(-1).astype(np.float64)

    first, last = answers(many, _FIRST), answers(many, _LAST)
    masses = np.zeros(k)
    if len(np.unique(first)) == 1:  # not the null record, whose answer is uniform
        truth = int(first[0])
        masses[truth] = _turning(lambda word: bool(answers(block, word)[0] == truth))
        others = np.delete(np.arange(k), truth)
        masses[others] = (1 - masses[truth]) / len(others)
    else:
        if not np.array_equal(first, last):
            raise CheckError("a null answer depends on what decides about the truth")
        others = np.arange(k)
        masses[:] = 1 / k
    counts = np.array([np.count_nonzero(last == answer) for answer in others])
    expected = len(last) / len(others)
    excess = float(np.square(counts - expected).sum() / expected) - len(others)
    if counts.sum() != len(last) or excess > 8 * math.sqrt(2 * len(others)) + 16:
        raise CheckError("the other answers are not equally likely")
    return Discrete(np.log(masses))


@dataclass(frozen=True)
class _Cap:
    """The law of a report: a share of a cap around ``axis`` and the rest of one opposite."""

    axis: Array | None
    share: float = 0.0
    probability: float = 0.0
    mass: float = 0.0


def _cap(mechanism: Any, loss: Loss, block: Any, null: Any, noise: CapNoise) -> _Cap:
    def reports(of: Any, coin: int, turn: int = _FIRST) -> Array:
        found = released_on(mechanism, loss, of, _Words(cycle((coin, turn, _FIRST))))
        return found.reshape(length(of), -1).astype(np.float64)

    many, nulls = (record_at(one, np.zeros(_TRIED, int)) for one in (block, null))
    nobody = reports(nulls, _FIRST)
    if not np.array_equal(nobody, reports(nulls, _LAST, _LAST)):
        raise CheckError("a null report depends on what decides about caps")
    inside, outside = reports(many, _FIRST), reports(many, _LAST)
    own = (inside != nobody).any(axis=0)  # not of other arms, and not the name of a subspace
    if not own.any():
        return _Cap(None)
    if np.count_nonzero(own) != noise.dim:
        raise CheckError(f"{np.count_nonzero(own)} numbers of a report are about its user")
    nobody, inside, outside = nobody[:, own], inside[:, own], outside[:, own]
    towards = inside.mean(axis=0) - outside.mean(axis=0)
    axis = towards / np.linalg.norm(towards)
    scale = float(np.sqrt(np.mean(np.square(nobody).sum(axis=1))))
    if noise.surface == "gaussian":
        scale /= math.sqrt(noise.dim)
    elif any(
        np.abs(np.linalg.norm(part, axis=1) / scale - 1).max() > _ROUNDED
        for part in (nobody, inside, outside)
    ):
        raise CheckError("reports do not lie where a sphere report lies")
    t = noise.threshold
    q = _mass_above(np.array(t), noise).item()
    heights = [_mass_above(part @ axis / scale, noise) for part in (inside, outside, nobody)]
    shares = [heights[0] / q, (heights[1] - q) / (1 - q), heights[2]]
    if noise.dim == 1 and noise.surface == "sphere":
        follows = (heights[0] == 0).all() and (heights[1] == 1).all()
    else:
        follows = max(kstest(share, "uniform").statistic for share in shares) < _FIT
    if not follows:
        raise CheckError("heights do not follow the null law inside and outside of a cap")
    at_top = reports(block, _FIRST)[0]

    inside_up_to = _turning(lambda word: bool((reports(block, word)[0] == at_top).all()))
    ahead = _turning(lambda word: bool((reports(block, _FIRST, word)[0] == at_top).all()))
    whole = np.zeros(len(own))
    whole[own] = axis
    return _Cap(whole, ahead, inside_up_to, q)


def _mass_above(heights: Array, noise: CapNoise) -> Array:
    if noise.surface == "gaussian":
        return np.asarray(ndtr(-heights))
    h = np.clip(heights, -1.0, 1.0)
    if noise.dim == 1:
        return np.where(h > 0.5, 0.0, np.where(h < -0.5, 1.0, 0.5))
    tail = 0.5 * betainc((noise.dim - 1) / 2, 0.5, (1 - h) * (1 + h))
    return np.asarray(np.where(h >= 0, tail, 1 - tail))


def _cap_pair(one: _Cap, two: _Cap, label: str) -> DistributionPair:
    caps = [cap for cap in (one, two) if cap.axis is not None]
    if not caps:
        raise CheckError("both records are null")
    axis, q = caps[0].axis, caps[0].mass
    assert axis is not None
    for cap in caps[1:]:
        assert cap.axis is not None
        if not np.allclose(cap.axis, -axis, atol=1e-6) or not np.isclose(cap.mass, q, rtol=1e-7):
            raise CheckError("neighbours: caps that are not opposite; give opposite records")
    laws = []
    for cap in (one, two):
        masses = np.array([q, 1 - 2 * q, q])
        if cap.axis is not None:
            outside = (1 - cap.probability) / (1 - q)
            about = np.array([cap.probability, outside * (1 - 2 * q), outside * q])
            masses = cap.share * about + (1 - cap.share) * about[::-1]
            if cap is two and caps[0] is one:
                masses = masses[::-1]
        masses = masses[[0, 2]] if q == 0.5 or 1 - 2 * q < 1e-9 else masses
        laws.append(Discrete(np.log(masses / masses.sum())))
    return DistributionPair(laws[0], laws[1], label)
