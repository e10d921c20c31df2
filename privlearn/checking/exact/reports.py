"""Exact laws of local reports: points of caps, and one of k answers.

A cap report about a direction u has, against the null law, density M where ⟨z, u⟩ is large and m
elsewhere.  Both are measured on the running code: as one uniform number goes from 0 to 1, the
report goes through all heights ⟨z, u⟩, and the null law's mass above them must grow along two
straight lines; the slopes are 1/M and 1/m.  Nothing is taken from what the report says of itself
but the surface that its null law is uniform or normal on.  An answer of k is told truly where a
uniform number is below a threshold, which is found, and is uniform among the others elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, ndtr

from privlearn._records import length, record_at
from privlearn.checking.default_neighbours import informative_records, record_pairs, spend_of
from privlearn.checking.exact.distributions import (
    DistributionPair,
)
from privlearn.checking.exact.probe import released_on
from privlearn.checking.neighbours import extreme_records
from privlearn.checking.scripted_noise import ScriptedPool
from privlearn.domains import Array
from privlearn.errors import CheckError
from privlearn.exact_noise.variates import Kind
from privlearn.losses import Loss
from privlearn.losses.output_laws import (
    Discrete,
)
from privlearn.noise import CapNoise, CategoryNoise, Surface

ERROR = 1e-8
"""Of a log probability, from that of the slopes."""
_FIT = 1e-6
_GRID = 64
_TICKS = 120
"""Numbers in (0, 1) on which answers are tried."""
_LEAST = 1e-9
"""A level so near 0 is inside of every cap."""


class _Levels(ScriptedPool):
    """Uniform numbers of one report are given one by one, and its normals whole."""

    def __init__(self, uniforms: Sequence[float], normals: Array | None = None) -> None:
        super().__init__()
        self._uniforms, self._normals = uniforms, normals

    @property
    def dim(self) -> int:
        """How many normals were asked for."""
        return self.drawn["normal"]

    def words(self, n: int) -> NDArray[np.uint64]:
        values = np.full(n, 0.3)
        values[: len(self._uniforms)] = self._uniforms[:n]
        return np.asarray(np.minimum(values, 1 - 2.0**-53) * 2.0**64, dtype=np.uint64)

    def numbers(self, kind: Kind, n: int) -> Array:
        return np.zeros(n) if self._normals is None else self._normals[:n]


def report_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> list[DistributionPair] | None:
    """Laws of one user's report on pairs of records; None if it is none of these reports.

    Raises:
        CheckError: what is drawn is not what these laws are about; or pairs of other records than
            opposite and null ones are given.
    """
    if not hasattr(mechanism, "release"):
        return None
    loss: Loss = mechanism.loss()
    spend = spend_of(mechanism, loss.adjacency)
    if not isinstance(spend.noise, CapNoise | CategoryNoise) or spend.arithmetic != "each":
        return None
    if neighbours is None:
        records = informative_records(spend.domain)
        neighbours = record_pairs(spend.domain, records, loss.adjacency)[:1]
    if any(length(block) != 1 for pair in neighbours for block in pair):
        raise CheckError("neighbours: a report's law is computed for one user only")
    if isinstance(spend.noise, CategoryNoise):
        laws = [[_answer_law(mechanism, loss, block) for block in pair] for pair in neighbours]
        return [DistributionPair(p, q, f"pair {k}") for k, (p, q) in enumerate(laws)]
    null = record_at(extreme_records(spend.domain), slice(-1, None))
    result = []
    for k, pair in enumerate(neighbours):
        one, two = (_cap(mechanism, loss, block, null, spend.noise.surface) for block in pair)
        result.append(_cap_pair(one, two, f"pair {k}"))
    return result


# Answers ------------------------------------------------------------------------------------------


def _answer_law(mechanism: Any, loss: Loss, block: Any) -> Discrete:
    """Of the answer of one user."""

    def answer(level: float, other: float) -> float:
        return float(released_on(mechanism, loss, block, _Levels((level, other))).reshape(-1)[0])

    ticks = (np.arange(_TICKS) + 0.5) / _TICKS
    few = ticks[:: _TICKS // 6]
    low, high = _LEAST, 1 - _LEAST
    answers = {answer(low, float(t)) for t in few}
    masses: dict[float, float] = {}
    share = 0.0
    if len(answers) == 1:  # not the null record, whose answer is uniform
        for _ in range(50):
            middle = (low + high) / 2
            same = {answer(middle, float(t)) for t in few} == answers
            low, high = (middle, high) if same else (low, middle)
        share = low
        masses[answers.pop()] = share
    others = [answer(1 - _LEAST, float(t)) for t in ticks]
    seen, counts = np.unique(others, return_counts=True)
    if max(counts) - min(counts) > 1 or min(counts) < 4:
        raise CheckError("the other answers are not equally likely, or too many")
    for value in seen.tolist():
        masses[value] = masses.get(value, 0.0) + (1 - share) / len(seen)
    known = [0.0 if value in masses else -math.inf for value in range(int(max(masses)) + 1)]
    logs = np.array([math.log(masses[v]) if not known[v] else -math.inf for v in range(len(known))])
    return Discrete(logs)


# Caps ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cap:
    """The law of a report: a share of a cap around ``axis`` and the rest of one opposite.

    Attributes:
        axis: unit vector in the coordinates of the report; None for the null law.
        share: of reports about ``axis``.
        probability: p, to fall into the cap.
        mass: q, of the cap under the null law.
    """

    axis: Array | None
    share: float = 0.0
    probability: float = 0.0
    mass: float = 0.0


def _cap(mechanism: Any, loss: Loss, block: Any, null: Any, surface: Surface) -> _Cap:
    def report(of: Any, level: float, turn: float = _LEAST, normals: Array | None = None) -> Array:
        source = _Levels((turn, level), normals)
        return released_on(mechanism, loss, of, source).reshape(-1).astype(np.float64)

    source = _Levels(())
    released_on(mechanism, loss, null, source)
    dim = source.dim
    numbers = np.random.default_rng(0).standard_normal((2, dim))
    still = report(null, 0.5)
    if not np.array_equal(still, report(null, 0.9, turn=0.9)):
        raise CheckError("a null report depends on what decides about caps")
    at_top = report(block, _LEAST) - still
    top = float(np.linalg.norm(at_top))
    if top == 0:
        return _Cap(None)
    axis = at_top / top
    full = [report(block, level, normals=numbers[0]) - still for level in (0.2, 0.9)]
    across = [x - (x @ axis) * axis for x in full]
    if surface == "sphere":
        scales = [float(np.linalg.norm(_own(x, axis))) for x in full]
    elif dim > 1:
        length_of = float(np.linalg.norm(numbers[0, 1:]))
        scales = [float(np.linalg.norm(_own(x, axis))) / length_of for x in across]
    else:
        raise CheckError("a normal report of one number: its scale cannot be told from its height")
    if not math.isclose(*scales, rel_tol=1e-9):
        raise CheckError(f"reports do not lie where a {surface} report lies")

    def above(level: float) -> float:
        return _mass_above(float((report(block, level) - still) @ axis) / scales[0], dim, surface)

    share = _turning(lambda turn: bool((report(block, _LEAST, turn) - still) @ axis > 0))
    if dim == 1:
        p = _turning(lambda level: bool((report(block, level) - still) @ axis > 0))
        return _Cap(axis, share, p, 0.5)
    return _Cap(axis, share, *_slopes(above))


def _own(report: Array, axis: Array) -> Array:
    """The part of a report that is not of other arms, whose numbers the axis does not touch."""
    first, last = np.flatnonzero(axis)[[0, -1]]
    arms = len(report)
    return report if last - first + 1 == arms else report[first : last + 1]


def _turning(holds: Any) -> float:
    """Where a condition on a number in (0, 1) that holds at 0 stops to hold."""
    if holds(1 - _LEAST):
        return 1.0
    low, high = _LEAST, 1 - _LEAST
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def _slopes(above: Any) -> tuple[float, float]:
    """p and q from the two straight lines that the null law's mass follows."""
    step = 1e-3
    first = above(step) / step
    # the second line begins at p, which may be near 1
    for step in (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7):
        last = (1 - above(1 - step)) / step
        if abs((1 - above(1 - step / 2)) / (step / 2) - last) < 1e-7 * last:
            break
    else:
        raise CheckError("no level is outside of the cap")
    p = (1 - last) / (first - last)
    for level in (np.arange(_GRID) + 0.5) / _GRID:
        line = level * first if level < p else 1 - (1 - level) * last
        if abs(above(float(level)) - line) > _FIT:
            raise CheckError("heights do not follow the null law inside and outside of a cap")
    return p, p * first


def _mass_above(height: float, dim: int, surface: Surface) -> float:
    """Of the null law, above a height along any axis."""
    if surface == "gaussian":
        return float(ndtr(-height))
    h = min(max(height, -1.0), 1.0)
    tail = 0.5 * float(betainc((dim - 1) / 2, 0.5, (1 - h) * (1 + h)))
    return tail if h >= 0 else 1 - tail


def _cap_pair(one: _Cap, two: _Cap, label: str) -> DistributionPair:
    """Both laws on the cells that the two caps, and the opposite ones, make."""
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
