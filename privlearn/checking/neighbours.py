"""Records at the edge of what a user can contribute, in pairs that differ as much as they can.

Records are made raw, many times too large, and get into their domain by its own `clip`: what a
check then sees is what the code does, not what `sensitivity` says."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, count
from typing import Any

import numpy as np

from privlearn.checking.exact.visit_patterns import Patterns, VisitRule
from privlearn.checking.stream_runs import (
    StubAccountant,
    accepted_users,
    declared_users,
    fixed_users,
    released_by,
)
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss, VisitsLoss
from privlearn.mechanisms import Objective
from privlearn.mechanisms.choice_model import NO_ITEM, Answer
from privlearn.mechanisms.linear_models import Labelled
from privlearn.mechanisms.multinomial import Choices
from privlearn.rows import Rows
from privlearn.rows.domains import (
    Array,
    Ball,
    Box,
    Categories,
    Counted,
    Domain,
    GradientHessian,
    OneOf,
    PSDTrace,
)
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.records import blanked, each_leaf, join, leaves, length, record_at

_TOO_LARGE = 1e3  # How many times too large records are before they are clipped
_NOT_NUMBERS = (math.nan, math.inf, -math.inf)
_MOST = 24  # Pairs that are returned at most


def each_float(block: Any, change: Callable[..., Any]) -> Any:
    """A block of records with its floating-point numbers changed, all else as it is."""

    def changed(leaf: Any) -> Any:
        return np.asarray(change(leaf), dtype=leaf.dtype) if leaf.dtype.kind == "f" else leaf

    return each_leaf(block, changed)


def with_leaf(block: Any, number: int, new: Any) -> Any:
    """A block of records with one of its arrays, counted in field order, exchanged."""
    numbers = count()
    return each_leaf(block, lambda leaf: new if next(numbers) == number else leaf)


def rows_about(
    row: Any, numbers: Sequence[float], *, each: bool = True
) -> Iterator[tuple[str, Any]]:
    """Rows like ``row``, as blocks of one, that hold some numbers or what is no number, and which.
    Each fills an array, and if ``each`` also stands in its last entry alone."""
    for number, leaf in enumerate(leaves(row)):
        where = "" if not isinstance(row, tuple) else f" in part {number}"
        for value in _for(leaf.dtype, numbers):
            filled = np.full_like(leaf, value)
            yield f"{value!r}{where}", with_leaf(row, number, filled)
            if leaf.size > 1 and each:
                one = np.array(leaf)
                one.reshape(-1)[-1] = value
                yield f"one {value!r}{where}", with_leaf(row, number, one)


def _for(dtype: np.dtype[Any], numbers: Sequence[float]) -> list[Any]:
    if dtype.kind == "f":
        largest = float(np.finfo(dtype).max)
        with np.errstate(over="ignore"):
            made = [float(dtype.type(x)) for x in (*numbers, largest, -largest)]
        distinct = {(x, math.copysign(1.0, x)): x for x in made if math.isfinite(x)}
        return [*distinct.values(), *_NOT_NUMBERS]
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        whole = [int(x) for x in numbers if math.isfinite(x) and x == int(x)]
        inside = [x for x in whole if limits.min <= x <= limits.max]
        return list(dict.fromkeys([*inside, int(limits.min), int(limits.max)]))
    if dtype.kind == "b":
        return [False, True]
    return [""] if dtype.kind == "U" else []


def worst_pairs(
    domain: Domain[Any] | Objective[Any], *, adjacency: Adjacency = Adjacency.REPLACE_ONE
) -> list[tuple[Any, Any]]:
    """Pairs of records, as blocks of length 1, whose contributions differ most; worst first. Of an
    objective they are ordered by the distance of gradients. Under zero-out every second record
    counts as the null record (it is all NaN); under add-remove every second block is empty. Raises
    CheckError: a domain that did not come with this package."""
    objective = domain if isinstance(domain, Objective) else None
    space = domain.domain if isinstance(domain, Objective) else domain
    block = extreme_records(space)
    last = length(block) - 1  # the null record
    pairs = list(combinations(range(last + 1), 2))
    if adjacency is not Adjacency.REPLACE_ONE:
        pairs = [(i, last) for i in range(last)]
    far = _distances(space.clip(block), pairs, objective)
    width = int(adjacency is not Adjacency.ADD_REMOVE)
    order = np.argsort(-far, kind="stable")  # simple records first
    return [
        (record_at(block, slice(i, i + 1)), record_at(block, slice(j, j + width)))
        for i, j in (pairs[k] for k in order[:_MOST] if far[k] > 0)
    ]


def _distances(
    contributions: Array, pairs: list[tuple[int, int]], objective: Objective[Any] | None
) -> Array:
    """How far each pair is apart, over the largest such distance, in the norm that shows it best.
    For an objective in ℓ2 between gradients, at the θ that shows it best."""
    first, second = np.array(pairs).T
    if objective is None:
        apart = contributions[first] - contributions[second]
        by_norm = np.array([np.abs(apart).sum(axis=1), np.linalg.norm(apart, axis=1)])
        scaled = by_norm / np.maximum(by_norm.max(axis=1, keepdims=True), 1e-300)
        # the farthest in ℓ2 comes first, among equals (rounding aside) the farthest in ℓ1
        return np.asarray(np.round(np.maximum(scaled[0], scaled[1] + 1e-5 * scaled[0]), 9))
    most = np.zeros(len(pairs))
    axes = np.concatenate([np.eye(objective.dim), -np.eye(objective.dim)])
    for size in (0.0, 1.0, 5.0):
        for theta in size * axes[: None if size else 1]:
            slopes = objective.gradients(contributions, theta)
            most = np.maximum(most, np.linalg.norm(slopes[first] - slopes[second], axis=1))
    return np.asarray(np.round(most / max(float(most.max()), 1e-300), 9))


def extreme_records(domain: Domain[Any], *, seed: int = 0) -> Any:
    """A block of records that `clip` puts at the edge of the domain; the last one is null."""
    rng = np.random.default_rng(seed)
    match domain:
        case Ball():
            return _signed(_directions(domain.size, rng), domain.radius * _TOO_LARGE)
        case Box():
            middle, half = (domain.low + domain.high) / 2, (domain.high - domain.low) / 2
            edge = middle + half * _TOO_LARGE * np.sign(_signed(_directions(domain.size, rng), 1.0))
            return np.concatenate([edge[:-1], edge[-1:] * np.nan])
        case PSDTrace():
            return _factors(domain, rng)
        case GradientHessian():
            return _lines(domain)
        case Counted():
            inner = extreme_records(domain.inner, seed=seed)
            return np.concatenate([inner[:-1], np.full_like(inner[-1:], np.nan)])
        case OneOf():
            inner = extreme_records(domain.inner, seed=seed)
            real = np.arange(length(inner) - 1)
            twice = record_at(inner, np.concatenate([np.repeat(real, 2), [length(inner) - 1]]))
            return twice, (np.arange(2 * len(real) + 1) + 1) // 2 % 2 * (domain.arms - 1)
        case Categories():
            some = np.arange(min(domain.size, 6))
            return np.concatenate([some, some[:0] if len(some) % 2 == 0 else [0], [domain.size]])
        case Labelled():
            x = _signed(_directions(domain.dim, rng), domain.radius * _TOO_LARGE)
            twice = np.repeat(x, 2, axis=0)[:-1]
            low = np.arange(len(twice)) % 2 == 1
            return twice, np.where(low, domain.low - 1.0, domain.high + 1.0)
        case Choices():
            return _choices(domain, rng)
    raise CheckError(f"{type(domain).__name__}: the worst records are not known; give neighbours=")


def _directions(size: int, rng: np.random.Generator) -> Array:
    unit = np.eye(size)
    many = [np.ones(size), unit[0], unit[-1], unit[0] - 0.5 * unit[-1], rng.standard_normal(size)]
    directions = np.array(many[:1] if size == 1 else many)
    return np.asarray(directions / np.linalg.norm(directions, axis=1, keepdims=True))


def _signed(directions: Array, scale: float) -> Array:
    both = np.stack([directions, -directions], axis=1).reshape(-1, directions.shape[1])
    return np.concatenate([both * scale, np.full((1, directions.shape[1]), np.nan)])


def _factors(domain: PSDTrace, rng: np.random.Generator) -> Array:
    """Factors (n, 2, dim): single vectors, two at once, and none."""
    scale = np.sqrt(domain.trace) * _TOO_LARGE
    single = _directions(domain.dim, rng)
    if domain.dim > 1:
        unit = np.eye(domain.dim)
        single = np.concatenate([unit[:2], [unit[0] + unit[1], unit[0] - unit[1]], single])
    block = np.zeros((len(single) + 1, 2, domain.dim))
    block[:-1, 0] = single
    block[-2, 1] = rng.standard_normal(domain.dim) if domain.dim > 1 else 0.0
    block[-1] = np.nan
    return np.asarray(block * scale)


def _lines(domain: GradientHessian) -> Array:
    """Records (n, 2, dim + 2): single lines along an axis and at the worst angle, two at once."""
    x, turned = np.zeros((2, domain.dim))
    angle = math.acos(min(0.5 / domain.weight**2, math.sqrt(0.5))) if domain.dim > 1 else 0.0
    x[0] = 1.0
    turned[[-1, 0]] = math.sin(angle), math.cos(angle)
    lines = [(x, 1, 1), (x, -1, 0), (turned, -1, 1), (x, -1, 1), (turned, 1, 0), (turned, 0, 1)]
    block = np.zeros((len(lines) + 2, 2, domain.dim + 2))
    block[:-2, 0] = [[*features, s, h] for features, s, h in lines]
    block[-2, 0, :-1], block[-2, 1] = [*x, -1], [*turned, 0, 1]
    block[-1] = np.nan
    return np.asarray(block * _TOO_LARGE)


def _choices(domain: Choices, rng: np.random.Generator) -> Answer:
    k, d = domain.max_items, domain.dim
    directions, signs = list(_directions(d, rng)), np.where(np.arange(k) % 2 == 0, 1.0, -1.0)
    if d > 1:  # two long gradients that are nearly opposite at one θ, along the second axis
        tilt = np.zeros(d)
        tilt[:2] = 1.0, 0.25
        directions[:0] = [tilt, tilt * np.where(np.arange(d) == 0, -1.0, 1.0)]
    features, choices = [], []
    for direction in directions:
        for turn in (1.0, -1.0):
            picks = [0, *([1] if k > 1 and turn == 1.0 else []), *([NO_ITEM] * domain.outside)]
            features += [turn * signs[:, None] * direction * _TOO_LARGE] * len(picks)
            choices += picks
    features.append(np.full((k, d), np.nan))
    choices.append(0)
    n = len(features)
    return Answer(np.array(features), np.ones((n, k)), np.array(choices, dtype=np.int64))


DataPair = tuple[Any, Any]  # Two data sets, or two records as blocks of one
FEW = 5  # Other records, all on one side of a sum
MANY = 12  # Other records, half of them on either side
LONGEST = 256  # Rows of a stream that are drawn at most, and as many where it states no horizon
_NO_END, _ENDLESS = 2**20, 32  # A horizon that is only there to end it, and rows drawn of it
_ALONE = 13
_MOST_GIVEN = 16  # Given data sets, and records of each, of which others are made


def default_pairs(
    mechanism: Any, *, adjacency: Adjacency = Adjacency.REPLACE_ONE, records: Any = None
) -> list[DataPair]:
    """Pairs of neighbouring data sets, as blocks of records. Raises CheckError: it does not
    spend, or its domain did not come with this package and no records are given."""
    spend = spend_of(mechanism, adjacency)
    if records is None:
        records = informative_records(spend.domain)
    pairs = record_pairs(spend.domain, records, adjacency)
    if not hasattr(mechanism, "release"):
        rows = stream_rows(mechanism, adjacency)
        rule = rule_of(mechanism, mechanism.loss(), spend)
        visits = [] if rule is None else _of_persons(pairs, rows, rule)
        return [*visits, *_in_streams(pairs, rows - 1, adjacency)]
    alone = [] if adjacency is Adjacency.ADD_REMOVE else pairs  # an empty block has no form
    first = pairs[0]
    if spend.arithmetic != "own":  # others play no part in what the receipt, or each user, computes
        return [*alone, *(_beside(pair, first[0], 1) for pair in pairs[: 1 if alone else None])]
    # others who do not count may leave a mechanism that counts, or averages, with one record
    nobody = _null_record(record_at(records, slice(0, 1)))
    far, other = first, pairs[min(1, len(pairs) - 1)]
    floats = [[x for x in leaves(b) if x.dtype.kind == "f"] if length(b) else [] for _, b in pairs]
    lost = [bool(some) and all(np.isnan(x).all() for x in some) for some in floats]
    null = pairs[lost.index(True)] if True in lost else far
    opposite = [pair[1] if length(pair[1]) else pair[0] for pair in (far, other)]
    crowded = [
        _beside(null, far[0], 1),
        _beside(other, opposite[1], FEW),
        _beside(far, opposite[0], 1),
        _beside(far, nobody, FEW),
        _beside(other, opposite[1], 1),
        _beside(null, far[0], FEW),
        _beside(far, opposite[0], FEW),
        _beside(other, _joined(*far), MANY),
        _beside(far, far[0], FEW),
    ]
    return [*alone[:4], *crowded[:5], *alone[4:], *crowded[5:]]


def spend_of(mechanism: Any, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> Spend:
    """What a mechanism states when it spends, found by a run on a null record."""
    spend = stated_spend(mechanism, adjacency)
    if spend is None:
        name = getattr(mechanism, "__name__", type(mechanism).__name__)
        raise CheckError(f"{name} released without spending its token")
    return spend


def stated_spend(mechanism: Any, adjacency: Adjacency) -> Spend | None:
    """As `spend_of`; None where it did not spend."""
    stub = StubAccountant(0, adjacency)
    run_once(mechanism, Rows.null(range(fixed_users(mechanism) or 1)), stub)
    return stub.last_spend


def visits_of(loss: Any) -> tuple[int, int] | None:
    """The most visits of a person that a loss is about, and how far apart; None: of one row. Of a
    loss of several parts, if all of them are about visits."""
    if isinstance(loss, VisitsLoss):
        return loss.most, loss.apart
    inner = loss.inner() if isinstance(loss, Loss) else ()
    rules = [visits_of(part) for part, _ in inner]
    found = [rule for rule in rules if rule is not None]
    whole = found and len(found) == len(rules)
    return (min(most for most, _ in found), max(apart for _, apart in found)) if whole else None


def participation_of(mechanism: Any, spend: Spend) -> Participation | None:
    """The rule that a mechanism, or what it spends, states."""
    found = getattr(mechanism, "participation", None) or spend.parameters.get("participation")
    found = Participation.from_dict(found) if isinstance(found, dict) else found
    return found if isinstance(found, Participation) else None


def rule_of(mechanism: Any, loss: Any, spend: Spend) -> VisitRule | None:
    """Which visits of one person a loss is about; None: of one row. Raises CheckError: the
    rule counts within batches, and the mechanism has no ``sizes`` of any."""
    visits = visits_of(loss)
    if visits is None:
        return None
    stated, sizes = participation_of(mechanism, spend), getattr(mechanism, "sizes", None)
    if stated is None or stated.in_a_batch is None:
        return VisitRule(*visits)
    if not isinstance(sizes, tuple):
        raise CheckError(f"{stated}: counts within batches, and it has no sizes of its own")
    return VisitRule(*visits, stated.in_a_batch, tuple(np.cumsum(sizes).tolist()))


def run_once(mechanism: Any, rows: Rows[Any], stub: StubAccountant) -> Any:
    """One output of a mechanism or of a whole stream on sealed rows."""
    return released_by(mechanism, rows, stub.issue(rows.users))[1]


def informative_records(domain: Domain[Any], *, seed: int = 0) -> Any:
    """Extreme records of a shipped domain, vectors of mixed signs among them; the last is null."""
    if not isinstance(domain, Ball | Box):
        return extreme_records(domain, seed=seed)
    signs = _sign_patterns(domain.size, np.random.default_rng(seed))
    far = 1e3 * np.stack([signs, -signs], axis=1).reshape(-1, domain.size)
    if isinstance(domain, Ball):
        far = far * domain.radius
    else:
        far = (domain.low + domain.high) / 2 + far * (domain.high - domain.low) / 2
    return np.concatenate([far, np.full((1, domain.size), np.nan)])


def record_pool(
    domain: Domain[Any], numbers: Sequence[float], given: Sequence[DataPair] = (), *, within: bool
) -> tuple[Any, int]:
    """Records to make data sets of, as one block: the first two far apart, the last one null. They
    are extreme, hold ``numbers``, or come from data sets that are given; how many, at the head, may
    be exchanged for each other, is returned too. ``within``: those are the first two that differ in
    the given ones, and what lies between these. Raises CheckError: nothing is known of its records.
    """
    parts = [part for pair in given[:_MOST_GIVEN] for part in _given_records(*pair)]
    if not within:
        try:
            one, two = worst_pairs(domain)[0]
            parts += [one, two, informative_records(domain), extreme_records(domain)]
            parts += [0.5 * _clipped(domain, one)] if isinstance(domain, Ball | Box) else []
        except CheckError:
            if not given:
                raise
    row = record_at(parts[0], slice(0, 1))
    about, nobody = [record for _, record in rows_about(row, numbers)], _null_record(row)
    if within:
        sides = join(parts)
        about = [record for record in about if _between(record, sides)]
        ends = join([record_at(sides, slice(0, 2)), *about])
        return join([ends, record_at(sides, slice(2, None)), nobody]), length(ends)
    pool = join([*parts, *about])
    if type(domain).__module__.startswith("privlearn."):  # another may tell what comes out alike
        seen = dict[bytes, int]()
        for k, contribution in enumerate(_clipped(domain, pool)):
            seen.setdefault(contribution.tobytes(), k)
        if seen.get(null := _clipped(domain, nobody)[0].tobytes(), 0) > 1:
            seen.pop(null)
        pool = record_at(pool, np.array([*seen.values()], dtype=int))
    return join([pool, nobody]), length(pool) + 1


def _given_records(first: Any, second: Any) -> list[Any]:
    """Of two data sets, those that differ first."""
    if not (length(first) and length(second)):
        return [block for block in (first, second) if length(block)]
    n = min(length(first), length(second))
    differ = np.zeros(n, dtype=bool)
    for x, y in zip(leaves(first), leaves(second), strict=True):
        same = np.equal(x[:n], y[:n]) | (np.not_equal(x[:n], x[:n]) & np.not_equal(y[:n], y[:n]))
        differ |= ~same.reshape(n, -1).all(axis=1)
    order = np.argsort(~differ, kind="stable")
    sides = [record_at(block, order[:1]) for block in (first, second)]
    both = join([first, second])
    return [*sides, record_at(both, np.arange(length(both))[:_MOST_GIVEN])]


def _between(record: Any, sides: Any) -> bool:
    """Whether all numbers of a record lie between those of the first two of a block."""
    return all(
        bool(((leaf >= side[:2].min(axis=0)) & (leaf <= side[:2].max(axis=0))).all())
        for leaf, side in zip(leaves(record), leaves(sides), strict=True)
        if leaf.dtype.kind in "fiu"
    )


def _sign_patterns(size: int, rng: np.random.Generator) -> Array:
    """All together, one against the rest, by turns, only one, halves, two, at random."""
    place, one = np.arange(size), np.eye(size)
    sides = place % 2 == 0, place < size / 2, place < 2, rng.random(size) < 0.5
    turns, halves, two, random = (np.where(side, 1.0, -1.0) for side in sides)
    first, last = 2 * one[0] - 1, 1 - 2 * one[-1]
    patterns = [np.ones(size), first, turns, one[0], halves, last, one[-1], two, random]
    return np.array(patterns[:1] if size == 1 else patterns)


def record_pairs(domain: Domain[Any], records: Any, adjacency: Adjacency) -> list[DataPair]:
    """Pairs of records, as blocks of one, that differ in ways of their own; the farthest first.
    Under zero-out the second record is null, under add-remove the second block is empty. Raises
    CheckError: no two records differ."""
    rows, null = _clipped(domain, records), np.asarray(domain.null(), dtype=np.float64)
    n = len(rows)
    nobody = _null_record(record_at(records, slice(0, 1)))
    singles = [record_at(records, slice(i, i + 1)) for i in range(n)]
    if adjacency is not Adjacency.REPLACE_ONE:
        removed = adjacency is Adjacency.ADD_REMOVE
        other = record_at(nobody, slice(0, 0)) if removed else nobody
        result = [(singles[i], other) for i in _in_turn(rows if removed else rows - null, _ALONE)]
    else:
        places = list(combinations(range(n), 2))
        apart = np.array([rows[i] - rows[j] for i, j in places]).reshape(len(places), -1)
        chosen = [places[k] for k in _in_turn(apart, _ALONE)]
        result = [(singles[i], singles[j]) for i, j in chosen]
        # whether somebody counts at all is a secret too, and half of something is no extreme
        far = np.linalg.norm(rows - null, axis=1)
        more = [(singles[int(far.argmax())], nobody)] if far.max(initial=0.0) > 0 else []
        for i, j in chosen[:1]:
            half, one = 0.5 * rows[i : i + 1], singles[i]
            plain = isinstance(one, np.ndarray) and one.dtype.kind == "f"
            if plain and half.shape == one.shape and half.any():
                more += [(half, singles[j]), (half, nobody)]
        result[2:2] = more
    if not result:
        raise CheckError("records: no two of them differ once they are clipped")
    return result


def _clipped(domain: Domain[Any], records: Any) -> Array:
    with np.errstate(all="ignore"):
        return np.asarray(domain.clip(records), dtype=np.float64)


def _in_turn(apart: Array, most: int) -> list[int]:
    """Far differences first, leaving out those along a line that was taken."""
    sizes = [np.linalg.norm(apart, ord=order, axis=1) for order in (2, 1, math.inf)]
    far = [size / max(float(size.max(initial=0.0)), 1e-300) for size in sizes]
    order = np.argsort(-np.round(np.max(far, axis=0) + 1e-5 * far[0], 9), kind="stable")
    unit = apart / np.maximum(sizes[0], 1e-300)[:, None]
    chosen: list[int] = []
    for k in order:
        if not sizes[0][k] > 0 or len(chosen) == most:
            break
        if not chosen or np.abs(unit[chosen] @ unit[k]).max() < 0.999:
            chosen.append(int(k))
    return chosen


def _null_record(record: Any) -> Any:
    """A record that no domain of floats can use; one of zeros where there are no floats."""
    return each_leaf(
        record, lambda leaf: np.full_like(leaf, np.nan if leaf.dtype.kind == "f" else -1)
    )


def _beside(pair: DataPair, other: Any, n: int) -> DataPair:
    """Among n others, by turns of those of a block."""
    crowd = record_at(other, np.arange(n) % length(other))
    return _joined(pair[0], crowd), _joined(pair[1], crowd)


def _joined(*blocks: Any) -> Any:
    return join([block for block in blocks if length(block)] or [blocks[0]])


def stream_rows(mechanism: Any, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> int:
    """The rows of a stream that are worth drawing: its horizon, if that is not too long. Where no
    horizon is stated, as many as it takes."""
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    if (declared := declared_users(mechanism)) is not None:
        return min(declared, LONGEST if declared <= _NO_END else _ENDLESS)
    return max(accepted_users(mechanism, adjacency, LONGEST), 1)


def _in_streams(pairs: list[DataPair], behind: int, adjacency: Adjacency) -> list[DataPair]:
    if not behind:
        return pairs
    quiet = blanked(pairs[0][0], np.ones(1, dtype=bool))
    made = [_beside(pair, quiet, behind) for pair in pairs]
    made[1:1] = [_beside(pairs[0], pairs[0][0], behind)]
    half = behind // 2
    if half and adjacency is not Adjacency.ADD_REMOVE:
        early, late = (record_at(quiet, np.zeros(n, dtype=int)) for n in (half, behind - half))
        one, two = (join([early, record, late]) for record in pairs[0])
        made.append((one, two))
    return made


def _of_persons(pairs: list[DataPair], rows: int, rule: VisitRule) -> list[DataPair]:
    """All visits of a person, where they count most in a running sum, beside nobody."""
    slots = np.arange(rows)
    sums = (rows - np.maximum.outer(slots, slots)).astype(np.float64)
    came = np.isin(slots, Patterns(sums, slots, rule, signed=False).worst()[0]).astype(int)
    quiet = blanked(pairs[0][0], np.ones(1, dtype=bool))
    return [
        (record_at(join([quiet, first]), came), record_at(join([quiet, second]), came))
        for first, second in pairs[:2]
    ]
