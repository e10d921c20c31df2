r"""Exact laws of choices: the candidates with the largest noisy scores.

Scores are measured on the running code, in units of the noise: how much on one candidate makes it
win; that picks follow from them is tried on random noise.  The law of the picks:

- Gumbel noise: P(i) = e^{s_i}/Σe^{s_j}, and so on among those left (Plackett & Luce).
- Any other: P(i) = ∫ f(x − s_i)·∏_{j≠i} F(x − s_j) dx; and P(i, then j) from one draw of noise is
  ∫ f(x − s_j)·(1 − F(x − s_i))·∏_{k≠i,j} F(x − s_k) dx.
- A fresh draw for each pick: the law of one, among those left.

What leaves may be the indices of the picks, or one number for each candidate (a price, an age)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from privlearn.checking.exact.choice_search import Scored, search_scores
from privlearn.checking.exact.distributions import DistributionPair, largest_ratio, renyi
from privlearn.checking.exact.probe import UnpredictedError, check_sampler, released_on
from privlearn.checking.exact.search import LARGEST
from privlearn.checking.mined import Mined, mined
from privlearn.checking.neighbours import (
    extreme_records,
    informative_records,
    record_pairs,
    record_pool,
    spend_of,
    worst_pairs,
)
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script, ScriptedCalls
from privlearn.checking.stream_runs import calls_tried, declared_users, is_stream
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete, Product
from privlearn.noise import ExponentialNoise, GumbelNoise, LaplaceNoise
from privlearn.noise.exact.pool import Kind
from privlearn.rows.domains import Array, Ball, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import join, length, record_at

_PAIRS = 6  # Pairs of records
_MOST_CANDIDATES = 128
_MOST_POINTS = 64  # Points whose differences are tried as records
_MOST_OUTCOMES = 5_000
_STEPS = 36  # Halvings that find a score
_ROUGHLY = 9  # Halvings before it is known which pairs are worst
_MOST_ALONE = 400  # Scores of single records that are measured to find the two farthest apart
_WORST = 1  # Pairs that are measured to the last digit by themselves, and as many beside others
_EACH = 3  # Pairs at most that are all measured to the last digit; of more the worst
_UNLIKELY = 12.0  # Others push a score down by half of so many units of the noise
_FAR = (1, 3, 6, 6, 6, 6, 9, 12, 12, 12, 15, 20, 30, 30, 30)  # Most units of random noise
_MENTIONED = 8  # Numbers that code mentions about which records are made
_FLOOR = 4.0  # Noise of all others while one candidate's score is measured lies so far below 0
_REACH = 18.0  # Scores further apart are not measured: what is that unlikely has no digits
_SURE = 2.0**20  # So much more noise than all others makes a candidate win whatever the scores are
_CROWD = 200  # Others at most who push against a record
_CROWDS = (LARGEST, _CROWD)  # Alike, among whom noise may not decide any longer
_FEW_CANDIDATES = 16  # Among which others at more places are tried
_MIDDLE = 3  # Candidates, of which one may lie between the others
_PARTS = 12  # Of what one record moves, to which scores beside others are measured at first
_FARTHEST = 4_096.0  # Units of noise that turn any pick, and more where leads are longer
_SLACK = 3.0  # Units of noise that all others hardly exceed
ERROR = 2e-7  # Of a log probability, from that of scores, and from what is too unlikely
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
) -> tuple[list[DistributionPair], Coverage] | None:
    """Laws of the picks on pairs of data sets; None if it is no mechanism that picks. Raises
    CheckError: it picks otherwise than by the largest noisy scores, or among too many; or its
    records are not known and no neighbours are given."""
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
    numbers, within = mined(mechanism, most=_MENTIONED), neighbours is not None
    if neighbours is not None:
        worst = made.most_apart(neighbours) if len(neighbours) > _EACH else range(len(neighbours))
        pairs = [made.pair(*neighbours[k], f"pair {k}") for k in worst]
        at_hand, crowds = [neighbours[k] for k in worst], Coverage()
    else:
        at_hand = [*_own_pairs(mechanism, spend, loss), *_mentioned(made, spend, numbers)]
        few = 2 if made.n <= _FEW_CANDIDATES else 1
        between = _between(spend.domain, at_hand[0])[:few]
        pairs = made.worst(at_hand, between)
        told = "at the ends of the domain" + (" and between them" if between else " only")
        crowds = Coverage((Axis("records", f"others {told}", bool(between) or made.n < _MIDDLE),))
    rough = [[made.scores(block, _ROUGHLY, some=True) for block in pair] for pair in at_hand]
    spreads = [_spread(*both) for both in rough]
    order = np.argsort(-np.array(spreads), kind="stable")
    if math.isinf(reach := max(spreads)):
        beyond = Axis("records", "scores move beyond what can be measured", False)
        return _measurable(pairs), Coverage((beyond,))
    first = [at_hand[k] for k in order[:_EACH]]
    pool, changing = record_pool(spend.domain, numbers.values(), first, within=within)
    moved = np.nan_to_num(np.subtract(*rough[order[0]]), posinf=0.0, neginf=0.0)
    scored = Scored(
        made.wins,
        [(int(moved.argmax()), int(moved.argmin())), (made.n - 1, 0)][: made.n - 1],
        partial(record_at, pool),
        length(pool),
        changing,
        loss.adjacency,
        numbers,
    )
    worse, coverage = search_scores(scored, reach, 2)
    odd = 0
    for one, two in worse:
        try:
            pairs.append(made.likely(one, two, "pair found"))
        except CheckError:
            odd += 1
    tried = f"up to {max(_FAR):g} units on all candidates"
    tried += f"; on {odd} pairs found picks are others" if odd else ""
    return _measurable(pairs), crowds + coverage + Coverage((Axis("noise", tried, not odd),))


def _own_pairs(mechanism: Any, spend: Spend, loss: Loss) -> list[tuple[Any, Any]]:
    records = informative_records(spend.domain)
    if isinstance(spend.domain, Ball) and hasattr(mechanism, "vertices"):
        records = _towards_vertices(spend.domain, mechanism.vertices, records)
    # under add-remove somebody else must be there
    return [
        (one, two) if length(two) else (join([one, one]), record_at(one, slice(0, 1)))
        for one, two in record_pairs(spend.domain, records, loss.adjacency)[:_PAIRS]
    ]


def _mentioned(made: _Choice, spend: Spend, numbers: Mined) -> list[tuple[Any, Any]]:
    """The two records about numbers of the code that move scores farthest apart."""
    pool, changing = record_pool(spend.domain, numbers.values(), within=False)
    rows = [record_at(pool, slice(k, k + 1)) for k in range(min(changing, _MOST_ALONE // made.n))]
    if made.loss.adjacency is not Adjacency.REPLACE_ONE or len(rows) < 2:
        return []
    scores = np.array([made.scores(row, _ROUGHLY, some=True) for row in rows])
    with np.errstate(invalid="ignore"):
        spread = np.nan_to_num(np.ptp(scores[:, None] - scores[None], axis=2), posinf=0.0)
    i, j = divmod(int(spread.argmax()), len(rows))
    return [(rows[i], rows[j])]


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
            what = f"gumbel noise chooses, and {picks.dtype} of shape {picks.shape} leaves: release"
            raise CheckError(f"{what} the index of the winner, or one number for each candidate")
        return None
    if named and family.kind != "gumbel" and not (picks % 1 == 0 and sum(source.sizes) > 1):
        return None  # Laplace and exponential noise may as well be added
    if picks.ndim > 1 or not source.sizes or len({*source.sizes}) > 1:
        raise CheckError("picks, but not from one number of noise for each candidate")
    n, top, draws = source.sizes[0], picks.size, len(source.sizes)
    if n < 2 and not named:
        raise CheckError("one number of noise was drawn, which favours none: draw one for each")
    if draws not in (1, top):
        raise CheckError("picks from neither one draw of noise nor one for each pick")
    one_draw = draws == 1
    if n > _MOST_CANDIDATES or math.perm(n, top) > _MOST_OUTCOMES:
        raise CheckError(f"{top} of {n} candidates: too many outcomes for their exact law")
    check_sampler(family.kind)
    if one_draw and top > 2 and family is not _FAMILIES[GumbelNoise]:
        raise CheckError("more than two picks from one draw: their law is not computed")
    made = _Choice(mechanism, loss, family, n, top, one_draw)
    if not named:
        return made
    names = made.winners(record_at(block, slice(0, 1)))
    if family.kind != "gumbel" and names != tuple(range(n)):
        return None
    return replace(made, names=names)


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
            raise CheckError(f"{left[0]!r} left, which no candidate stands for on other data")
        return np.array([self.names.index(left[0])])

    def winners(self, block: Any) -> tuple[float, ...]:
        noise = self.family.floor + _SURE * np.eye(self.n)
        names = tuple(float(self._left(block, row[None])[0]) for row in noise)
        if len({*names}) < self.n:
            raise CheckError("one number leaves for two: release the index of the winner")
        return names

    def _left(self, block: Any, noise: Array) -> Array:
        script = ScriptedCalls(self.family.kind, list(noise))
        return released_on(self.mechanism, self.loss, block, script).reshape(-1)

    def worst(
        self, alone: Sequence[tuple[Any, Any]], inner: Sequence[Any]
    ) -> list[DistributionPair | None]:
        """The farthest pairs by themselves, and among others; and where noise ceases to decide."""
        rough = [[self.scores(block, _ROUGHLY, some=True) for block in both] for both in alone]
        if odd := self._not_turned(alone, rough):
            return [*odd]
        reach = [_spread(a, b) for a, b in rough]
        near = [(np.maximum(a, -_REACH), np.maximum(b, -_REACH)) for a, b in rough]
        apart = [renyi(self.law(a), self.law(b), 2.0).value for a, b in near]
        result: list[DistributionPair | None] = []
        for k in np.argsort(-np.array(apart), kind="stable")[:_WORST]:
            one, two = alone[k]
            result.append(self.pair(one, two, f"pair {k}"))
        for k in np.argsort(-np.round(reach, 2), kind="stable")[:_WORST]:
            one, two = alone[k]
            beside = [
                [self.scores(b, _ROUGHLY) for b in c] for c in crowded(one, two, inner[:1], 1)
            ]
            far = max(reach[k], *(_spread(*both) for both in beside))
            if math.isinf(far):
                continue
            made = crowded(one, two, inner, min(math.ceil(_UNLIKELY / max(far, 1e-3)), _CROWD))
            steps = min(math.ceil(math.log2(_REACH * _PARTS / max(far, 1e-3))), _STEPS)
            for place in self.most_apart(made, steps):
                n = length(made[place][0]) - length(one)
                result.append(self.likely(*made[place], f"pair {k} beside {n} others"))
        return result

    def _not_turned(
        self, alone: Sequence[tuple[Any, Any]], rough: Sequence[Sequence[Array]]
    ) -> list[DistributionPair]:
        """Neighbours of which one has so clear a winner that noise does not decide any longer."""
        if self.n < 2 or self.top > 1:
            return []
        sides = [(k, side) for k, both in enumerate(alone) for side in (0, 1) if length(both[side])]
        leads = [-np.sort(rough[k][side])[-2] for k, side in sides]
        k, side = sides[int(np.argmax(np.where(np.isfinite(leads), leads, 0.0)))]
        j, i = (int(x) for x in np.argsort(-rough[k][side])[:2])
        lead, block, other = -rough[k][side][i], alone[k][side], alone[k][1 - side]
        far = min(max(_FARTHEST, 4 * LARGEST * lead), _SURE)

        def many(times: int) -> Any:
            return record_at(block, np.zeros(times, dtype=int))

        def turned(data: Any, gap: float = far) -> bool:
            try:
                return self.wins(data, i, j, gap)
            except Exception:  # so many rows are refused
                return True

        high = next((n for n in _CROWDS if 2 * n * lead < far and not turned(many(n))), 0)
        low = 0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if turned(many(middle)) else (low, middle)
        near = join([many(low), *([record_at(other, slice(0, 1))] if length(other) else [])])
        if not (high and length(near) and turned(near)):
            return []
        left, right = 0.0, far
        for _ in range(_STEPS):
            middle = (left + right) / 2
            left, right = (left, middle) if turned(near, middle) else (middle, right)
        # so far behind it wins at least so often: all these laws have tails of half of e^−x or more
        room = _SLACK + math.log(self.n)
        below = float(self.family.below(np.array(room)))
        least = (self.n - 1) * math.log(below) - right - room - math.log(2)
        sure, rare = np.array([0.0, -np.inf]), np.array([np.log1p(-np.exp(least)), least])
        told = f"{high} records alike, whose pick noise cannot turn"
        return [DistributionPair(Discrete(sure), Discrete(rare), told)]

    def most_apart(self, pairs: Sequence[tuple[Any, Any]], steps: int = _ROUGHLY) -> list[int]:
        """Those farthest apart in D(2), and in the worst case; roughly."""
        apart = []
        for first, second in pairs:
            rough = np.array([self.scores(block, steps, some=True) for block in (first, second)])
            if self.top > 1 and not np.isfinite(rough).all():
                apart.append((0.0, 0.0))
                continue
            p, q = map(self.law, np.maximum(rough, -_REACH))
            both = (p, q), (q, p)
            ratio = max(largest_ratio(*x).value for x in both)
            apart.append((max(renyi(*x, 2.0).value for x in both), ratio))
        return sorted({int(k) for k in np.argmax(apart, axis=0)})

    def scores(self, block: Any, steps: int = _STEPS, *, some: bool = False) -> Array:
        """In units of the noise, the largest 0; −inf where it is too low to be measured."""
        floor = self.family.floor
        low = np.full((1 if self.one_draw else self.top, self.n), floor)
        best = int(self.picks(block, low)[0])
        result = np.zeros(self.n)
        for i in range(self.n):
            if i != best:
                result[i] = -self._needed(block, low, i, steps)
        if self.n > 1 and np.isfinite(result).sum() == 1 and not some:
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

    def wins(self, block: Any, i: int, j: int, gap: float) -> bool:
        """Whether i is picked with so much more noise than j, and all others far below."""
        noise = np.full((1 if self.one_draw else self.top, self.n), self.family.floor)
        noise[:, [i, j]] += _SURE + np.array([gap, 0.0])
        return bool(self.picks(block, noise)[0] == i)

    def _try(self, block: Any, scores: Array) -> None:
        rng = np.random.default_rng(0)
        near = np.maximum(scores, -_REACH)
        # where scores are too low to be measured, noise is not to bring them up
        for far in _FAR if np.isfinite(scores).all() else _FAR[:7]:
            low = 0.0 if self.family.floor == 0 else -far
            noise = rng.uniform(low, far, (1 if self.one_draw else self.top, self.n))
            expected = _largest(near, noise, self.top, self.one_draw)
            if expected is not None and not np.array_equal(self.picks(block, noise), expected):
                raise UnpredictedError("the picks are not those of the largest noisy scores")

    def pair(self, first: Any, second: Any, label: str) -> DistributionPair | None:
        """The laws on two data sets; None where a candidate is too unlikely for its digits."""
        scores = self.scores(first), self.scores(second)
        if not np.isfinite(scores).all():
            return None
        return DistributionPair(self.law(scores[0]), self.law(scores[1]), label)

    def likely(self, first: Any, second: Any, label: str) -> DistributionPair | None:
        """As `pair`, given that the pick is none that is too unlikely on both, of one pick. What is
        too unlikely on one of them only is no likelier than what can still be measured."""
        scores = np.array([self.scores(block, some=True) for block in (first, second)])
        seen = np.isfinite(scores).any(axis=0)
        if seen.sum() < 2 or not (self.top == 1 or np.isfinite(scores).all()):
            return None
        scores = np.maximum(scores, -_REACH)
        return DistributionPair(self.law(scores[0][seen]), self.law(scores[1][seen]), label)

    def law(self, scores: Array) -> Discrete:
        gumbel = self.family is _FAMILIES[GumbelNoise]
        if self.one_draw and self.top == 2 and not gumbel:
            masses = np.log(_first_two(self.family, scores))
        else:
            softmax = lambda s: s - np.logaddexp.reduce(s)  # noqa: E731
            one = softmax if gumbel else partial(_winner, self.family)
            masses = np.array(_one_by_one(one, scores, self.top))
        return Discrete(masses - np.logaddexp.reduce(masses))


def _measurable(pairs: Sequence[DistributionPair | None]) -> list[DistributionPair]:
    result = [pair for pair in pairs if pair is not None]
    if not result:
        raise CheckError("scores are so far apart that candidates are too unlikely to be measured")
    return result


def crowded(one: Any, two: Any, inner: Sequence[Any], n: int) -> list[tuple[Any, Any]]:
    """Two data sets among others who make unlikely what either favours, so that it counts most.
    These are on either side, or at inner records, or parted between these, one in ten or half."""
    sides = [record_at(block, slice(0, 1)) for block in (one, two) if length(block)]
    crowds = [[(record, n)] for record in (*sides, *inner)]
    crowds += [
        [(side, here), (record, there)]
        for side in sides
        for record in inner
        for here, there in ((n, n), (n - 1, n), (9 * n - 1, n), (n - 1, 9 * n))
    ]
    result = []
    for crowd in crowds:
        others = [record_at(record, np.zeros(times, dtype=int)) for record, times in crowd]
        result.append((join([one, *others]), join([two, *others])))
    return result


def _between(domain: Any, pair: tuple[Any, Any]) -> list[Any]:
    """Records between two of vectors."""
    if not isinstance(domain, Ball | Box) or not all(map(length, pair)):
        return []
    low, high = (np.asarray(domain.clip(record_at(block, slice(0, 1)))) for block in pair)
    return [low + share * (high - low) for share in (0.5, 0.25)]


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


_MOST_PICKS = 256
_PICK_STEPS, _PICK_REACH = 36, 18.0  # Halvings that find a score, and the largest difference of two
_PICK_FLOOR = -4.0  # Noise of all other candidates
_TRIALS = 16  # Runs with random noise
PICKS_ERROR = _MOST_PICKS * ERROR  # Of a log probability of all picks together


def pick_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> tuple[list[DistributionPair], Coverage] | None:
    """Laws of all picks on pairs of data sets; None if it is no stream that picks. Raises
    CheckError: picks are not those of the largest noisy scores, too many, or too unlikely."""
    loss: Loss = mechanism.loss()
    if not is_stream(mechanism):
        return None
    spend = spend_of(mechanism, loss.adjacency)
    if not isinstance(spend.noise, GumbelNoise):
        return None
    tried = Axis("arrivals", "as given", False)
    if neighbours is None:
        n = declared_users(mechanism) or _MOST_PICKS
        places = sorted({0, n // 2, n - 1})
        tried = Axis("arrivals", f"the record at {places} of {n}, others null", n == len(places))
        pair = worst_pairs(spend.domain, adjacency=loss.adjacency)[0]
        quiet = record_at(extreme_records(spend.domain), np.full(n, -1))
        pools = [join([quiet, record]) for record in pair]
        chosen = [np.where(np.arange(n) == place, n, 0) for place in places]
        neighbours = [(record_at(pools[0], c), record_at(pools[1], c)) for c in chosen]
    check_sampler("gumbel")
    made = []
    for k, both in enumerate(neighbours):
        one, two = (_law(mechanism, loss, block) for block in both)
        made.append(DistributionPair(one, two, f"pair {k}"))
    return made, Coverage((tried,))


def _law(mechanism: Any, loss: Loss, block: Any) -> Product:
    def picks(numbers: Array, calls: tuple[int, ...] = ()) -> Array:
        script.append(Script(numbers.reshape(-1)))
        return released_on(mechanism, loss, block, script[-1], calls).reshape(-1)

    script: list[Script] = []
    n = len(picks(np.zeros(0)))
    k, rest = divmod(script[0].drawn.total(), max(n, 1))
    if rest or k < 2 or n > _MOST_PICKS or set(script[0].drawn) != {"gumbel"}:
        raise CheckError(f"{n} picks, but not each from one number of noise for each candidate")
    floor = np.full((n, k), _PICK_FLOOR)
    best, scores = picks(floor), np.zeros((n, k))
    for i in range(k):
        noise, low, high = floor.copy(), np.zeros(n), np.full(n, 2 * _PICK_REACH)
        for _ in range(_PICK_STEPS):
            middle = (low + high) / 2
            noise[:, i] = _PICK_FLOOR + middle
            wins = picks(noise) == i
            low, high = np.where(wins, low, middle), np.where(wins, middle, high)
        if (high > _PICK_REACH).any():
            raise CheckError("scores are so far apart that some candidates are too unlikely")
        scores[:, i] = np.where(best == i, 0.0, -high)
    rng = np.random.default_rng(0)
    ways = calls_tried(mechanism)
    for trial in range(_TRIALS):
        noise = _PICK_FLOOR + rng.uniform(0, 12.0, (n, k))
        noisy = np.sort(scores + noise, axis=1)
        clear = noisy[:, -1] - noisy[:, -2] > 1e-6
        if (picks(noise, ways[trial % len(ways)]) != (scores + noise).argmax(axis=1))[clear].any():
            raise UnpredictedError("the picks are not those of the largest noisy scores")
    masses = scores - np.logaddexp.reduce(scores, axis=1)[:, None]
    return Product(tuple((Discrete(mass), 1) for mass in masses))
