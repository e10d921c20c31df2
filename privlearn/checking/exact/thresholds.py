r"""Exact laws of answers that compare noisy numbers with a noisy threshold (sparse vector).

An answer is ⊤ where α + Σβ_j z_j >= 0 for the numbers z that are drawn; α and β may depend on the
answers before.  They are measured on the running code by halving where a number turns the answer.
A sequence has P(s) = ∫ f(t) ∏_j [F(h_j(t)) − F(l_j(t))]^+ dt, where number j must lie between l_j
and h_j, and t is the noise that answers have in common.  Taken are sequences whose ratio between
two data sets grows most, answer by answer, and all that leave them; their sum must be 1."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from privlearn.checking.exact.distributions import DistributionPair
from privlearn.checking.exact.probe import check_sampler, released_on
from privlearn.checking.mined import mined
from privlearn.checking.neighbours import each_float, informative_records, record_pairs, spend_of
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import calls_tried, declared_users, fixed_users, is_stream
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete
from privlearn.noise import ExponentialNoise, GaussianNoise, GumbelNoise, LaplaceNoise
from privlearn.noise.exact.pool import Kind
from privlearn.rows.domains import Array, Ball, Box
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import join, length, record_at

ERROR = 1e-6  # Of a log probability
_FAR = 2.0**20  # A number so large turns every answer that it can turn
_START = 3.0  # Of noise above 0, where it is found what it does
_PUSH = 48.0  # So far beyond its turn a number is put to hold an answer
_CLOSE = 2.0**-26  # Of a turn
_NUDGE = 2.0**-8  # By which others are moved, to see whether a turn moves
_STEPS = 24  # Answers that are followed
_MOST_NUMBERS = 512
_PAIRS = 2  # Pairs of records, and numbers of the code that are tried
_MOST_LONG = 96  # Pairs times numbers that are drawn
_PLAIN = 2.0  # Numbers of the code that are no larger are no values that it looks for
_OPPOSED = (8, 10, 0)  # Informative records: halves, the last against the others, all alike
_BEYOND = 24  # Others beyond those, who make the opposite answer unlikely
_CROWD = 256  # Others at most who bring an answer to its turn
_LONGEST = 32  # Rows of a stream
_TRIALS = 24  # Runs with random noise for each data set
_UNLIKELY = 1e-280
_NEXT = 1e-5  # To a turn: which of two answers is given is not known
_REACH = 46.0  # Numbers further from 0 are left out of integrals
_LARGE = 1e300  # The code of an answer that is no number
_NODES = np.polynomial.legendre.leggauss(12)
Answer = float
Answers = tuple[Answer, ...]
Run = Callable[[Any, Array], Answers]


class _Law(NamedTuple):
    kind: Kind
    name: str  # In `scipy.stats`
    least: float = -_FAR

    @property
    def of(self) -> Any:
        from scipy import stats  # late, as it takes a second

        return getattr(stats, self.name)


_LAWS: dict[type, _Law] = {
    LaplaceNoise: _Law("laplace", "laplace"),
    ExponentialNoise: _Law("exponential", "expon", 0.0),
    GumbelNoise: _Law("gumbel", "gumbel_r"),
    GaussianNoise: _Law("normal", "norm"),
}


class _Bound(NamedTuple):
    """constant + Σ slopes_j z_j >= 0, or < 0 where ``sign`` is −1."""

    constant: float
    slopes: dict[int, float]
    sign: int = 1

    def edge(self, number: int, z: Array) -> float:
        """The value of one number at which it turns, the others as they are."""
        rest = sum(b * float(z[j]) for j, b in self.slopes.items() if j != number)
        return -(self.constant + rest) / self.slopes[number]

    def interval(self, number: int, z: Array) -> tuple[float, float]:
        """Where one number keeps it, the others as they are."""
        slope = self.slopes.get(number, 0.0)
        if not slope:
            return -math.inf, math.inf
        edge = self.edge(number, z)
        return (edge, math.inf) if self.sign * slope > 0 else (-math.inf, edge)


class _Step(NamedTuple):
    """The answers that may follow, in order of a number, and the turns between them."""

    answers: Answers
    number: int = 0
    turns: tuple[_Bound, ...] = ()

    def bounds(self, answer: Answer) -> list[_Bound]:
        k = self.answers.index(answer)
        above = [turn._replace(sign=-1) for turn in self.turns[k : k + 1]]
        return [*self.turns[max(k - 1, 0) : k], *above]

    def given(self, z: Array) -> Answer | None:
        """None next to a turn."""
        apart = [float(z[self.number]) - turn.edge(self.number, z) for turn in self.turns]
        if any(abs(x) < _NEXT for x in apart):
            return None
        return self.answers[sum(x > 0 for x in apart)]


@dataclass
class _Node:
    """What is known where some answers were given: noise that gives them, and their bounds."""

    answers: Answers
    z: Array
    bounds: list[_Bound]
    step: _Step | None = None


@dataclass
class _Data:
    """One data set."""

    run: Callable[..., Answers]
    law: _Law
    count: int
    nodes: dict[Answers, _Node | None] = field(default_factory=dict)
    last: dict[int, float] = field(default_factory=dict)  # What moved the turn before

    def node(self, answers: Answers) -> _Node | None:
        """None where these answers cannot be given."""
        if answers not in self.nodes:
            self.nodes[answers] = self._made(answers)
        return self.nodes[answers]

    def _made(self, answers: Answers) -> _Node | None:
        if not answers:
            start = 0.1 + _START * (self.law.least == 0)  # no two numbers alike
            return _Node((), np.asarray(start + 0.618 * np.arange(self.count) % 1), [])
        before = self.node(answers[:-1])
        step = self.step(before)
        if before is None or step is None or answers[-1] not in step.answers:
            return None
        bounds = [*before.bounds, *step.bounds(answers[-1])]
        node = _Node(answers, before.z.copy(), bounds)
        if step.turns:  # a value that gives this answer, far from all turns
            low, high = self._room(node, step.number)
            middle = (low + high) / 2
            if high - low > 2 * _PUSH:
                middle = low + _PUSH if step.answers[0] != answers[-1] else high - _PUSH
            node.z[step.number] = middle
        return node

    def _room(self, node: _Node, number: int, z: Array | None = None) -> tuple[float, float]:
        low, high = self.law.least, _FAR
        for bound in node.bounds:
            least, most = bound.interval(number, node.z if z is None else z)
            low, high = max(low, least), min(high, most)
        return low, high

    def step(self, node: _Node | None) -> _Step | None:
        """None where no answer follows."""
        if node is None:
            return None
        if node.step is None:
            node.step = self._measured(node)
        return node.step if node.step.answers else None

    def _measured(self, node: _Node) -> _Step:
        i = len(node.answers)
        given = self.run(node.z)
        if given[:i] != node.answers:
            raise CheckError("answers are not those that noise was found to give")
        if len(given) == i:
            return _Step(())
        used = {j for bound in node.bounds for j in bound.slopes}
        last = max(used, default=-1)
        likely = [j for j in (last + 2, last + 1) if j < self.count]
        rest = [j for j in range(self.count - 1, -1, -1) if j not in likely]
        for j in [*likely, *sorted(rest, key=lambda j: j in used)]:
            low, high = self._room(node, j)
            inner = min(1e-6, (high - low) / 4)
            if self._parted(node, node.z, j, low + inner, high - inner):
                return self._turned(node, j, low + inner, high - inner)
        return _Step((given[i],))

    def _answer(self, node: _Node, z: Array) -> Answer | None:
        """None where the answers before are others, or none follows."""
        i, given = len(node.answers), self.run(z)
        return given[i] if given[:i] == node.answers and len(given) > i else None

    def _turned(self, node: _Node, j: int, low: float, high: float) -> _Step:
        answers, turns = [self._known(node, node.z, j, low)], list[_Bound]()
        last = self._known(node, node.z, j, high)
        while answers[-1] != last:
            place = self._halved(node, node.z, j, low, high)
            near = 4 * _CLOSE * max(1.0, abs(place))
            others = self._others(node, j, place, near)
            slopes = {k: self._slope(node, j, k, place, near) for k in others}
            constant = place - sum(s * float(node.z[k]) for k, s in slopes.items())
            turns.append(_Bound(-constant, {j: 1.0, **{k: -s for k, s in slopes.items()}}))
            self.last = slopes
            low = place + near
            answers.append(self._known(node, node.z, j, low))
            if len(turns) > 3:
                raise CheckError("one number turns an answer more than three times")
        return _Step(tuple(answers), j, tuple(turns))

    def _known(self, node: _Node, z: Array, j: int, value: float) -> Answer:
        answer = self._answer(node, _with(z, j, value))
        if answer is None:
            raise CheckError("noise on one answer changes those before it")
        return answer

    def _halved(self, node: _Node, z: Array, j: int, low: float, high: float) -> float:
        """Where the answer turns first, as far as halving finds it; mostly near 0."""
        first = self._known(node, z, j, low)
        for reach in (1.0, 16.0, 256.0):
            for edge in (-reach, reach):
                if low < edge < high:
                    below = self._known(node, z, j, edge) == first
                    low, high = (edge, high) if below else (low, edge)
            if high - low <= 2 * reach:
                break
        while high - low > _CLOSE * max(1.0, abs(low), abs(high)):
            middle = (low + high) / 2
            below = self._known(node, z, j, middle) == first
            low, high = (middle, high) if below else (low, middle)
        return (low + high) / 2

    def _others(self, node: _Node, j: int, place: float, near: float) -> list[int]:
        """The numbers that move a turn: those of the turn before are tried by themselves."""
        likely = [k for k in self.last if k != j]
        groups = [[k] for k in likely]
        groups += [[k for k in range(self.count) if k not in (j, *likely)]]
        weights, moving = 0.5 + np.random.default_rng(0).random(self.count), list[int]()
        above = self._answer(node, _with(node.z, j, place + near))
        while groups:
            group = groups.pop()
            if not group or not self._moves(node, j, place + near, group, weights, above):
                continue
            half = len(group) // 2
            groups += [group[:half], group[half:]] if half else []
            moving += [] if half else group
        return moving

    def _moves(
        self, node: _Node, j: int, value: float, group: list[int], by: Array, above: Answer | None
    ) -> bool:
        for way in (-_NUDGE, _NUDGE):
            z = _with(node.z, j, value)
            z[group] = np.maximum(z[group] + way * by[group], self.law.least)
            if self._answer(node, z) != above:
                return True
        return False

    def _slope(self, node: _Node, j: int, k: int, place: float, near: float) -> float:
        for way in (1.0, -1.0):
            z = _with(node.z, k, float(node.z[k]) + way)
            if z[k] < self.law.least:
                continue
            if (guess := self.last.get(k)) is not None:
                moved = place + way * guess
                if self._parted(node, z, j, moved - near, moved + near):
                    return guess
            low, high = self._room(node, j, z)
            for reach in (8.0, 2 * _FAR):
                ends = max(low + 1e-6, place - reach), min(high - 1e-6, place + reach)
                if self._parted(node, z, j, *ends):
                    return way * (self._halved(node, z, j, *ends) - place)
        raise CheckError("a number moves the turn of an answer out of sight")

    def _parted(self, node: _Node, z: Array, j: int, low: float, high: float) -> bool:
        """Whether two values of a number give two answers."""
        ends = [self._answer(node, _with(z, j, value)) for value in (low, high)]
        return None not in ends and ends[0] != ends[1]


def _with(z: Array, number: int, value: float) -> Array:
    moved = z.copy()
    moved[number] = value
    return moved


def _mass(law: _Law, bounds: Sequence[_Bound]) -> float:
    """The probability of all bounds at once: of independent parts, each about a number in common.
    Raises CheckError: a part has no number in all bounds of two numbers."""
    parts: list[tuple[set[int], list[_Bound]]] = []
    for bound in bounds:
        joined = [part for part in parts if part[0] & bound.slopes.keys()]
        parts = [part for part in parts if part not in joined]
        numbers = set(bound.slopes).union(*(part[0] for part in joined))
        parts.append((numbers, [bound, *(one for part in joined for one in part[1])]))
    result = 1.0
    for _, made in parts:
        uses = Counter(j for bound in made for j in bound.slopes)
        common = set(uses).intersection(*(b.slopes for b in made if len(b.slopes) > 1))
        if not common or any(len(bound.slopes) > 2 for bound in made):
            raise CheckError("answers depend on noise in common in more than one way")
        result *= _integral(law, max(common, key=lambda j: (uses[j], -j)), made)
    return result


def _lines(child: int, parent: int, made: Sequence[_Bound]) -> list[tuple[float, float, bool]]:
    """Bounds of a number as lines in its parent: constant, slope, whether from below."""
    result = []
    for bound in made:
        if own := bound.slopes.get(child):
            slope = -bound.slopes.get(parent, 0.0) / own
            result.append((-bound.constant / own, slope, bound.sign * own > 0))
    return result


def _width(law: _Law, lines: Sequence[tuple[float, float, bool]], at: Array) -> Array:
    low, high = np.full(len(at), -np.inf), np.full(len(at), np.inf)
    for constant, slope, lower in lines:
        line = constant + slope * at
        low, high = (np.maximum(low, line), high) if lower else (low, np.minimum(high, line))
    right, left = law.of.sf(low) - law.of.sf(high), law.of.cdf(high) - law.of.cdf(low)
    return np.asarray(np.maximum(np.where(low > 0, right, left), 0.0))


def _integral(law: _Law, parent: int, made: Sequence[_Bound]) -> float:
    """Over the number that bounds have in common; of each other one the width is left."""
    numbers = {j for bound in made for j in bound.slopes if j != parent}
    children = [_lines(child, parent, made) for child in sorted(numbers)]
    own = _lines(parent, parent, [bound for bound in made if len(bound.slopes) == 1])
    own = [(constant, 0.0, lower) for constant, _, lower in own]
    if not children:
        return float(_width(law, own, np.zeros(1))[0])
    low = max([law.least, -_REACH, *(x for x, _, lower in own if lower)])
    high = min([_REACH, *(x for x, _, lower in own if not lower)])
    if not low < high:
        return 0.0
    kinks = [np.linspace(low, high, 97), np.zeros(1)]
    lines = [line for child in children for line in child]
    for constant, slope, _ in lines:
        apart = [(c - constant) / (slope - s) for c, s, _ in lines if s != slope]
        kinks.append(np.array(apart))
        if slope:
            kinks.append((np.linspace(-_REACH, _REACH, 49) - constant) / slope)
    edges = np.unique(np.clip(np.concatenate(kinks), low, high))
    half = np.diff(edges)[:, None] / 2
    nodes = (edges[:-1, None] + half * (1 + _NODES[0])).reshape(-1)
    values = law.of.pdf(nodes)
    for child in children:
        values = values * _width(law, child, nodes)
    return float((half * _NODES[1]).reshape(-1) @ values)


def _sequences(one: _Data, two: _Data) -> tuple[list[float], list[float]]:
    """Probabilities of the sequence whose ratio grows most, and of all that leave it."""
    masses: tuple[list[float], list[float]] = ([], [])
    given: Answers = ()
    while True:
        steps = [data.step(data.node(given)) for data in (one, two)]
        answers = sorted({a for step in steps if step is not None for a in step.answers})
        if not answers:
            break
        found = {a: [_of(data, (*given, a)) for data in (one, two)] for a in answers}
        ratios = {a: _log(p) - _log(q) for a, (p, q) in found.items() if p > _UNLIKELY}
        best = max(ratios, key=lambda a: (ratios[a], found[a][0]), default=answers[0])
        for a in answers:
            if a != best:
                masses[0].append(found[a][0])
                masses[1].append(found[a][1])
        given = (*given, best)
        if ratios.get(best) == math.inf:
            _check_impossible(one, two, given)
        if len(given) >= _STEPS or min(found[best]) <= _UNLIKELY:
            break
    for kept, data in zip(masses, (one, two), strict=True):
        kept.append(_of(data, given))
        if abs(math.fsum(kept) - 1) > 1e-6:
            raise CheckError(f"probabilities of answers add up to {math.fsum(kept):.6g}")
    return masses


def _of(data: _Data, answers: Answers) -> float:
    node = data.node(answers)
    return 0.0 if node is None else _mass(data.law, node.bounds)


def _log(mass: float) -> float:
    return math.log(mass) if mass > 0 else -math.inf


def _check_impossible(one: _Data, two: _Data, answers: Answers) -> None:
    """Answers that were found impossible on one data set must not come out of it."""
    node, rng = one.node(answers), np.random.default_rng(0)
    assert node is not None
    for k in range(4 * _TRIALS):
        z = np.maximum(node.z + rng.normal(scale=4.0 ** (k % 3), size=one.count), one.law.least)
        if two.run(z)[: len(answers)] == answers:
            raise CheckError("answers depend on noise in a way that was not found")


def _check_random(data: _Data, ways: Sequence[tuple[int, ...]]) -> None:
    """Answers to random noise must follow from the turns, whichever rows come at once."""
    rng = np.random.default_rng(1)
    for k in range(_TRIALS):
        z = rng.exponential(scale=1.0 + 3 * (k % 2), size=data.count)
        if data.law.least < 0:
            z *= rng.choice([-1.0, 1.0], data.count)
        given = data.run(z, ways[k % len(ways)])
        for i in range(len(given)):
            node = data.nodes.get(given[:i])
            if node is None or node.step is None:
                break
            expected = node.step.given(z)
            if expected is None:
                break
            if given[i] != expected:
                raise CheckError("answers do not follow from comparisons of noise")


def threshold_pairs(
    mechanism: Any, neighbours: Sequence[tuple[Any, Any]] | None
) -> tuple[list[DistributionPair], Coverage] | None:
    """Laws of answers on pairs of data sets; None if it gives no answers from a few. Raises
    CheckError: answers are not comparisons of noisy numbers with a noisy threshold; or its
    records are not known and no neighbours are given."""
    if not (hasattr(mechanism, "release") or is_stream(mechanism)):
        return None
    loss: Loss = mechanism.loss()
    law = _LAWS.get(type(spend_of(mechanism, loss.adjacency).noise))
    if law is None:
        return None
    special = [x for x in mined(type(mechanism)).numbers if abs(x) > _PLAIN]
    pairs = list(neighbours or _data_pairs(mechanism, loss, special[:_PAIRS]))
    reader = _reader(mechanism, loss, law, [block for pair in pairs[:2] for block in pair])
    if reader is None:
        return None
    check_sampler(law.kind)
    result, turned = [], False
    asked, pairs = len(pairs), pairs[: max(_MOST_LONG // reader.count, 2)]
    for k, pair in enumerate(pairs):
        for way, (first, second) in enumerate((pair, pair[::-1])):
            for cut in reader.cuts:
                one, two = (reader.data(block, cut) for block in (first, second))
                masses = _sequences(one, two)
                for data in (one, two):
                    _check_random(data, calls_tried(mechanism))
                    turned = turned or any(n and n.bounds for n in data.nodes.values())
                p, q = (Discrete(np.array([_log(x) for x in kept])) for kept in masses)
                result.append(DistributionPair(p, q, f"pair {k}{', reversed' if way else ''}"))
    if not turned:
        raise CheckError("no noise turns an answer")
    rows, declared = length(pairs[0][0]), declared_users(mechanism)
    all_values = len(special) <= _PAIRS and len(pairs) == asked
    axes = [
        Axis("records", f"{len(pairs)} pairs", neighbours is None),
        Axis("outputs", f"those of up to {_STEPS} answers whose ratio grows most"),
        Axis("values", f"{len(special)} numbers of the code", all_values),
    ]
    if is_stream(mechanism):
        looked = f"the record at first and in the middle of {rows} of {declared or 'any number'}"
        axes.append(Axis("arrivals", looked, rows == declared))
    return result, Coverage(tuple(axes))


@dataclass(frozen=True)
class _Reader:
    """Runs, and answers read off from what leaves."""

    mechanism: Any
    loss: Loss
    law: _Law
    count: int
    constants: frozenset[float] | None  # Answers; None: all that leaves is one
    place: bool = False
    """Whether one number, an integer as a float, says which is the first that is above."""
    cuts: tuple[float, ...] = (0.0,)
    """Of numbers that leave in place of answers: whether they are at least so large is one."""

    def data(self, block: Any, cut: float) -> _Data:
        return _Data(partial(self.answers, block, cut), self.law, self.count)

    def answers(self, block: Any, cut: float, z: Array, calls: tuple[int, ...] = ()) -> Answers:
        value = released_on(self.mechanism, self.loss, block, Script(z), calls)
        flat = value.reshape(-1)
        if len(flat) == 1 and (self.place or flat.dtype.kind in "iu"):  # the first that is above
            first = int(flat[0])
            return (0.0,) * first + (1.0,) if first >= 0 else (0.0,) * self.count
        numbers = [_number(x) for x in flat.tolist()]
        if self.constants is None:
            return tuple(numbers)
        known = self.constants
        return tuple(x if x in known else _LARGE + (x >= cut) for x in numbers)


def _number(x: Any) -> float:
    return -_LARGE if x is None or x != x else float(x)


def _reader(mechanism: Any, loss: Loss, law: _Law, blocks: Sequence[Any]) -> _Reader | None:
    rng, count, kinds = np.random.default_rng(0), 1, set[str]()
    seen: tuple[list[float], ...] = ([], [], [])  # by the size of the noise
    for k in range(_TRIALS):
        z = rng.exponential(scale=8.0 ** (k % 3), size=_MOST_NUMBERS)
        z *= rng.choice([-1.0, 1.0], _MOST_NUMBERS) if law.least < 0 else 1.0
        script = Script(z)
        value = released_on(mechanism, loss, blocks[k % len(blocks)], script)
        kinds.add(value.dtype.kind)
        count = max(count, script.drawn.total())
        if not kinds <= set("iubf") or set(script.drawn) != {law.kind} or count > _MOST_NUMBERS:
            return None
        seen[k % 3].extend(_number(x) for x in value.reshape(-1).tolist())
        if k == 2 and value.dtype.kind == "f" and not {*seen[0]} & {*seen[1]}:
            return None  # numbers, and no answers
    numbers = {x for values in seen for x in values}
    place = value.size == 1 and numbers <= {float(k) for k in range(-1, count + 1)}
    made = _Reader(mechanism, loss, law, count, None, place)
    if place:
        return made
    times = Counter(x for values in seen for x in values)
    constants = frozenset(x for x, n in times.items() if n > 2)
    low = [[x for x in values if x not in constants] for values in seen]
    if "f" not in kinds or not any(low):
        return made
    if not constants or kinds != {"f"}:
        return None
    return replace(
        made, constants=constants, cuts=tuple(min(values) for values in low[:2] if values)
    )


def _data_pairs(mechanism: Any, loss: Loss, special: Sequence[float]) -> list[tuple[Any, Any]]:
    """Records of opposite signs beside others who bring answers to their turn, and beyond it."""
    domain = spend_of(mechanism, loss.adjacency).domain
    records = informative_records(domain)
    first, last = (record_at(records, slice(k, k + 1 or None)) for k in (0, -1))
    alone = record_pairs(domain, records, loss.adjacency)[:_PAIRS]
    if loss.adjacency is Adjacency.REPLACE_ONE and isinstance(domain, Ball | Box):
        starts = (0,) if domain.size == 1 else _OPPOSED
        pick = [[record_at(records, slice(k + at, k + at + 1)) for at in (0, 1)] for k in starts]
        alone = [(one, two) for one, two in pick]
    if is_stream(mechanism):
        rows = fixed_users(mechanism) or min(declared_users(mechanism) or _LONGEST, _LONGEST)
        places = sorted({0, rows // 2})
        return [_among(alone[0], one, rows - 1, place) for one in (last, first) for place in places]
    n = _turning(mechanism, loss, first)
    odd = [each_float(first, lambda leaf, x=x: np.full_like(leaf, x)) for x in special]
    near = [_among(pair, first, n) for pair in alone]
    beyond = _among(alone[0], first, n + _BEYOND)
    return [*near, beyond, *(_among((record, alone[0][1]), first, n) for record in odd)]


def _among(pair: tuple[Any, Any], other: Any, n: int, place: int = 0) -> tuple[Any, Any]:
    """A pair of records beside n others, who are all alike."""
    before, behind = (record_at(other, np.zeros(k, dtype=int)) for k in (place, n - place))
    sides = [[part for part in (before, block, behind) if length(part)] for block in pair]
    one, two = (join(parts or [before]) for parts in sides)  # empty under add-remove
    return one, two


def _turning(mechanism: Any, loss: Loss, record: Any) -> int:
    """How many alike it takes until what leaves without noise is another; 1 if it never is."""

    def left(n: int) -> bytes:
        block = record_at(record, np.zeros(n, dtype=int))
        return released_on(mechanism, loss, block, Script(np.zeros(0))).tobytes()

    low, high, first = 1, _CROWD, left(1)
    if first == left(high):
        return 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if left(middle) == first else (low, middle)
    return low
