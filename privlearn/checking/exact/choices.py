r"""Exact laws of choices: the candidates with the largest noisy scores.

The scores are measured on the running code, in units of the noise: how much noise on one candidate
makes it win.  With them the law of the picks follows:

- Gumbel noise: P(i) = e^{s_i}/Σe^{s_j}, and so on among those left (Plackett & Luce).
- Any other: P(i) = ∫ f(x − s_i)·∏_{j≠i} F(x − s_j) dx; and P(i, then j) from one draw of noise is
  ∫ f(x − s_j)·(1 − F(x − s_i))·∏_{k≠i,j} F(x − s_k) dx.
- A fresh draw for each pick: the law of one, among those left.

That picks follow from scores and noise in this way is tried on random noise.

What leaves may be the indices of the picks, or one number for each candidate (a price, an age):
which number belongs to which is then read off from runs in which each of them wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from privlearn.checking.default_neighbours import informative_records, record_pairs, spend_of
from privlearn.checking.exact.distributions import DistributionPair, largest_ratio, renyi
from privlearn.checking.exact.probe import check_sampler, released_on
from privlearn.checking.scripted_noise import ScriptedCalls
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete
from privlearn.noise import ExponentialNoise, GumbelNoise, LaplaceNoise
from privlearn.noise.exact.pool import Kind
from privlearn.rows.domains import Array, Ball
from privlearn.values.records import join, length, record_at

_PAIRS = 6  # Pairs of records
_MOST_CANDIDATES = 128
_MOST_POINTS = 64  # Points whose differences are tried as records
_MOST_OUTCOMES = 5_000
_STEPS = 36  # Halvings that find a score
_ROUGHLY = 9  # Halvings before it is known which pairs are worst
_WORST = 1  # Pairs that are measured to the last digit by themselves, and as many beside others
_EACH = 3  # Pairs at most that are all measured to the last digit; of more the worst
_UNLIKELY = 12.0  # Others push a score down by half of so many units of the noise
_TRIALS = 16  # Runs with random noise for each data set
_FLOOR = 4.0  # Noise of all others while one candidate's score is measured lies so far below 0
_REACH = 18.0  # Scores further apart are not measured: what is that unlikely has no digits
_SURE = 2.0**20  # So much more noise than all others makes a candidate win whatever the scores are
_CROWD = 200  # Others at most who push against a record
ERROR = 4 * _REACH * 2.0**-_STEPS  # Of a log probability, from that of the scores
_NODES = np.polynomial.legendre.leggauss(16)


@dataclass(frozen=True)
class _Family:
    kind: Kind
    density: Callable[[Array], Array]
    below: Callable[[Array], Array]
    floor: float


_FAMILIES: dict[type, _Family] = {
    GumbelNoise: _Family(
        "gumbel", lambda x: np.exp(-x - np.exp(-x)), lambda x: np.exp(-np.exp(-x)), -_FLOOR
    ),
    ExponentialNoise: _Family(
        "exponential",
        lambda x: np.where(x >= 0, np.exp(-np.maximum(x, 0)), 0.0),
        lambda x: -np.expm1(-np.maximum(x, 0)),
        0.0,
    ),
    LaplaceNoise: _Family(
        "laplace",
        lambda x: np.exp(-np.abs(x)) / 2,
        lambda x: np.where(x < 0, np.exp(np.minimum(x, 0)) / 2, 1 - np.exp(-np.maximum(x, 0)) / 2),
        -_FLOOR,
    ),
}


def choice_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> list[DistributionPair] | None:
    """Laws of the picks on pairs of data sets; None if it is no mechanism that picks.

    Raises:
        CheckError: it picks otherwise than by the largest noisy scores, or among too many; or its
            records are not known and no neighbours are given.
    """
    if not hasattr(mechanism, "release"):
        return None
    loss: Loss = mechanism.loss()
    spend = spend_of(mechanism, loss.adjacency)
    family = _FAMILIES.get(type(spend.noise))
    if family is None:
        return None
    made = _made(mechanism, loss, spend, family, neighbours)
    if made is None:
        return None
    if neighbours is not None:
        worst = made.most_apart(neighbours) if len(neighbours) > _EACH else range(len(neighbours))
        return _measurable([made.pair(*neighbours[k], f"pair {k}") for k in worst])
    records = informative_records(spend.domain)
    if isinstance(spend.domain, Ball) and hasattr(mechanism, "vertices"):
        records = _towards_vertices(spend.domain, mechanism.vertices, records)
    tried = record_pairs(spend.domain, records, loss.adjacency)[:_PAIRS]
    # under add-remove somebody else must be there
    alone = [
        (one, two) if length(two) else (join([one, one]), record_at(one, slice(0, 1)))
        for one, two in tried
    ]
    return made.worst(alone)


def _made(
    mechanism: Any,
    loss: Loss,
    spend: Spend,
    family: _Family,
    neighbours: Sequence[tuple[Any, Any]] | None,
) -> _Choice | None:
    block = informative_records(spend.domain) if neighbours is None else neighbours[0][0]
    source = ScriptedCalls(family.kind, [])
    picks = released_on(mechanism, loss, record_at(block, slice(0, 1)), source)
    named = picks.dtype.kind == "f" and picks.size == 1
    if picks.dtype.kind not in "iu" and not named:
        if family.kind == "gumbel":
            raise CheckError(
                f"gumbel noise chooses, and what leaves has the type {picks.dtype} and the shape "
                f"{picks.shape}: release the index of the winner, or one number for each candidate"
            )
        return None
    if named and family.kind != "gumbel":
        return None  # Laplace and exponential noise may as well be added
    if picks.ndim > 1 or not source.sizes or len({*source.sizes}) > 1:
        raise CheckError("picks, but not from one number of noise for each candidate")
    n, top, draws = source.sizes[0], picks.size, len(source.sizes)
    if n < 2 and not named:
        raise CheckError(
            "one number of noise was drawn, which favours no candidate if it is added to all their "
            "scores: draw one for each, such as receipt.draw(scores.shape)"
        )
    if draws not in (1, top):
        raise CheckError("picks from neither one draw of noise nor one for each pick")
    one_draw = draws == 1
    if n > _MOST_CANDIDATES or math.perm(n, top) > _MOST_OUTCOMES:
        raise CheckError(
            f"{top} of {n} candidates: too many outcomes for their exact law (at most "
            f"{_MOST_CANDIDATES} candidates, {_MOST_OUTCOMES} ordered picks); check one with fewer"
        )
    check_sampler(family.kind)
    if one_draw and top > 2 and family is not _FAMILIES[GumbelNoise]:
        raise CheckError("more than two picks from one draw: their law is not computed")
    made = _Choice(mechanism, loss, family, n, top, one_draw)
    return replace(made, names=made.winners(record_at(block, slice(0, 1)))) if named else made


@dataclass(frozen=True)
class _Choice:
    mechanism: Any
    loss: Loss
    family: _Family
    n: int
    top: int
    one_draw: bool
    names: tuple[float, ...] = ()
    """The number that leaves where a candidate wins, of each; empty if its index does."""

    def picks(self, block: Any, noise: Array) -> Array:
        """On scripted noise, shape (draws, n)."""
        left = self._left(block, noise)
        if not self.names:
            return left
        if left[0] not in self.names:
            raise CheckError(
                f"{float(left[0])!r} left, which no candidate stands for on other data: they must "
                "follow from public numbers"
            )
        return np.array([self.names.index(left[0])])

    def winners(self, block: Any) -> tuple[float, ...]:
        noise = self.family.floor + _SURE * np.eye(self.n)
        names = tuple(float(self._left(block, row[None])[0]) for row in noise)
        if len({*names}) < self.n:
            raise CheckError(
                "one number leaves for two candidates, so that their scores cannot be measured: "
                "release the index of the winner"
            )
        return names

    def _left(self, block: Any, noise: Array) -> Array:
        script = ScriptedCalls(self.family.kind, list(noise))
        return released_on(self.mechanism, self.loss, block, script).reshape(-1)

    def worst(self, alone: Sequence[tuple[Any, Any]]) -> list[DistributionPair]:
        rough = [[self.scores(block, _ROUGHLY) for block in both] for both in alone]
        reach = [_spread(a, b) for a, b in rough]
        near = [(np.maximum(a, -_REACH), np.maximum(b, -_REACH)) for a, b in rough]
        apart = [renyi(self.law(a), self.law(b), 2.0).value for a, b in near]
        result: list[DistributionPair | None] = []
        for k in np.argsort(-np.array(apart), kind="stable")[:_WORST]:
            one, two = alone[k]
            result.append(self.pair(one, two, f"pair {k}"))
        for k in np.argsort(-np.round(reach, 2), kind="stable")[:_WORST]:
            if reach[k] > 0:
                one, two = alone[k]
                result += self.crowded(one, two, reach[k], f"pair {k}")
        return _measurable(result)

    def most_apart(self, pairs: Sequence[tuple[Any, Any]]) -> list[int]:
        apart = []
        for first, second in pairs:
            rough = [self.scores(block, _ROUGHLY) for block in (first, second)]
            if not np.isfinite(rough).all():
                apart.append((0.0, 0.0))
                continue
            p, q = map(self.law, rough)
            apart.append((renyi(p, q, 2.0).value, largest_ratio(p, q).value))
        return sorted({int(k) for k in np.argmax(apart, axis=0)})

    def crowded(
        self, one: Any, two: Any, reach: float, label: str
    ) -> list[DistributionPair | None]:
        """Among others who make what either record favours unlikely, so that it counts most."""
        n = min(math.ceil(_UNLIKELY / reach), _CROWD)
        made = []
        for side in (one, two):
            crowd = record_at(side, np.zeros(n, dtype=int))
            blocks = join([one, crowd]), join([two, crowd])
            made.append(self.pair(*blocks, f"{label} beside {n} others"))
        return made

    def scores(self, block: Any, steps: int = _STEPS) -> Array:
        """In units of the noise, the largest 0; −inf where it is too low to be measured."""
        floor = self.family.floor
        low = np.full((1 if self.one_draw else self.top, self.n), floor)
        best = int(self.picks(block, low)[0])
        result = np.zeros(self.n)
        for i in range(self.n):
            if i != best:
                result[i] = -self._needed(block, low, i, steps)
        if self.n > 1 and np.isfinite(result).sum() == 1:
            raise CheckError("the picks are not those of the largest noisy scores")
        if steps == _STEPS:
            self._try(block, result)
        return result

    def _needed(self, block: Any, low: Array, i: int, steps: int) -> float:
        left, right = 0.0, _REACH
        noise = low.copy()
        noise[:, i] = low[0, i] + right
        if self.picks(block, noise)[0] != i:
            return math.inf
        for _ in range(steps):
            middle = (left + right) / 2
            noise[:, i] = low[0, i] + middle
            left, right = (left, middle) if self.picks(block, noise)[0] == i else (middle, right)
        return (left + right) / 2

    def _try(self, block: Any, scores: Array) -> None:
        rng = np.random.default_rng(0)
        near = np.maximum(scores, -_REACH)
        for _ in range(_TRIALS):
            noise = self._random(rng)
            expected = _largest(near, noise, self.top, self.one_draw)
            if expected is not None and not np.array_equal(self.picks(block, noise), expected):
                raise CheckError("the picks are not those of the largest noisy scores")

    def _random(self, rng: np.random.Generator) -> Array:
        shape = (1 if self.one_draw else self.top, self.n)
        return np.asarray(self.family.floor + rng.uniform(0, 12.0, shape))

    def pair(self, first: Any, second: Any, label: str) -> DistributionPair | None:
        """The laws on two data sets; None where a candidate is too unlikely for its digits."""
        scores = self.scores(first), self.scores(second)
        if not np.isfinite(scores).all():
            return None
        return DistributionPair(self.law(scores[0]), self.law(scores[1]), label)

    def law(self, scores: Array) -> Discrete:
        gumbel = self.family is _FAMILIES[GumbelNoise]
        if self.one_draw and self.top == 2 and not gumbel:
            masses = np.log(_first_two(self.family, scores))
        else:
            one = _softmax if gumbel else partial(_winner, self.family)
            masses = np.array(_one_by_one(one, scores, self.top))
        return Discrete(masses - np.logaddexp.reduce(masses))


def _measurable(pairs: Sequence[DistributionPair | None]) -> list[DistributionPair]:
    result = [pair for pair in pairs if pair is not None]
    if not result:
        raise CheckError(
            "scores are so far apart, in units of the noise, that some candidates are too unlikely "
            "for their law to be measured; give neighbours of fewer users"
        )
    return result


def _spread(first: Array, second: Array) -> float:
    """How far differences of scores move between two data sets; ∞ if beyond what is measured."""
    seen = np.isfinite(first) & np.isfinite(second)
    return float(np.ptp(first[seen] - second[seen])) if seen.any() else math.inf


def _largest(scores: Array, noise: Array, top: int, one_draw: bool) -> Array | None:
    """The picks by definition; None where two are too near to tell."""
    picks: list[int] = []
    left = scores.copy()
    for k in range(top):
        noisy = left + noise[0 if one_draw else k]
        order = np.argsort(-noisy)
        if noisy[order[0]] - noisy[order[1]] < 1e-6:
            return None
        picks.append(int(order[0]))
        left[order[0]] = -np.inf
    return np.array(picks)


def _softmax(scores: Array) -> Array:
    return np.asarray(scores - np.logaddexp.reduce(scores))


def _one_by_one(one: Callable[[Array], Array], scores: Array, top: int) -> list[float]:
    if top == 1:
        return list(one(scores))
    result = []
    for first, log_mass in enumerate(one(scores)):
        rest = _one_by_one(one, np.delete(scores, first), top - 1)
        result += [float(log_mass) + log_rest for log_rest in rest]
    return result


def _grid(scores: Array) -> tuple[Array, Array]:
    """Nodes and weights of panels between all kinks, from far below to far above."""
    far = np.concatenate([[-45.0], np.linspace(-20, 20, 41), [45.0]])
    seen = scores[np.isfinite(scores)]
    edges = np.unique(np.concatenate([seen, *(far + s for s in (seen.min(), seen.max()))]))
    half = np.diff(edges)[:, None] / 2
    nodes = edges[:-1, None] + half * (1 + _NODES[0])
    return nodes.reshape(-1), (half * _NODES[1]).reshape(-1)


def _winner(family: _Family, scores: Array) -> Array:
    nodes, weights = _grid(scores)
    away = nodes - scores[:, None]
    below = family.below(away)
    masses = [
        weights @ (family.density(away[i]) * np.delete(below, i, axis=0).prod(axis=0))
        for i in range(len(scores))
    ]
    with np.errstate(divide="ignore"):
        return np.log(masses)


def _first_two(family: _Family, scores: Array) -> Array:
    """Probabilities of the ordered best two from one draw, in the order of `permutations`."""
    nodes, weights = _grid(scores)
    away = nodes - scores[:, None]
    below, density = family.below(away), family.density(away)
    above = 1 - below
    return np.array(
        [
            weights @ (density[j] * above[i] * np.delete(below, [i, j], axis=0).prod(axis=0))
            for i, j in permutations(range(len(scores)), 2)
        ]
    )


def _towards_vertices(domain: Ball, vertices: Any, records: Array) -> Array:
    if vertices.count > _MOST_POINTS:
        return records
    points = vertices.points(np.arange(vertices.count))
    apart = (points[:, None] - points[None]).reshape(-1, vertices.dim)
    order = np.argsort(-np.linalg.norm(apart, axis=1), kind="stable")[: 2 * _PAIRS]
    far = apart[order] * (1e3 * domain.radius / np.abs(apart).max())
    if domain.norm == "linf":
        far = np.sign(apart[order]) * domain.radius * 1e3
    return np.concatenate([far, records])
