"""Neighbours to try where the user gives none: pairs of data sets, the most informative first.

Records differ in every way that a fault was seen to need, each by itself and beside few and many
others.  A check chooses among them on outputs of their own, so that more pairs cost no confidence.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from typing import Any

import numpy as np

from privlearn.checking.exact.visit_patterns import Patterns, VisitRule
from privlearn.checking.neighbours import extreme_records, rows_about, worst_pairs
from privlearn.checking.stream_runs import accepted_users, declared_users, fixed_users, released_by
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss, VisitsLoss
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.participation import Participation
from privlearn.values.records import blanked, each_leaf, join, leaves, length, record_at

DataPair = tuple[Any, Any]  # Two data sets, or two records as blocks of one

FEW = 5  # Other records, all on one side of a sum
MANY = 12  # Other records, half of them on either side
LONGEST = 256  # Rows of a stream that are drawn at most, and as many where it states no horizon
_NO_END, _ENDLESS = 2**20, 32  # A horizon that is only there to end it, and rows drawn of it
_ALONE = 13
_MOST_GIVEN = 16  # Given data sets, and records of each, of which others are made


def default_pairs(
    mechanism: Any,
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    records: Any = None,
) -> list[DataPair]:
    """Pairs of neighbouring data sets, as blocks of records.

    Raises:
        CheckError: it does not spend, or its domain did not come with this package and no records
            are given.
    """
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
    null = next((pair for pair in pairs if _is_null(pair[1])), far)
    crowded = [
        _beside(null, far[0], 1),
        _beside(other, _opposite(other), FEW),
        _beside(far, _opposite(far), 1),
        _beside(far, nobody, FEW),
        _beside(other, _opposite(other), 1),
        _beside(null, far[0], FEW),
        _beside(far, _opposite(far), FEW),
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
    """The most visits of a person that a loss is about, and how far apart; None: of one row.

    Of a loss of several parts, if all of them are about visits.
    """
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
    """Which visits of one person a loss is about; None: of one row.

    Raises:
        CheckError: the rule counts within batches, and the mechanism has no ``sizes`` of any.
    """
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
    """Records to make data sets of, as one block: the first two far apart, the last one null.

    Args:
        domain: whose extreme records are taken, if it came with this package.
        numbers: that records are to hold.
        given: data sets whose records are to be among them.
        within: whether these say which records may be exchanged for each other: the first two that
            differ, and what lies between these.

    Returns:
        The records, and how many of them, at the head, may be exchanged for each other.

    Raises:
        CheckError: nothing is known of its records.
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

    Under zero-out the second record is null, under add-remove the second block is empty.

    Raises:
        CheckError: no two records differ.
    """
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


def _is_null(block: Any) -> bool:
    floats = [leaf for leaf in leaves(block) if leaf.dtype.kind == "f"]
    return bool(length(block)) and bool(floats) and all(np.isnan(leaf).all() for leaf in floats)


def _beside(pair: DataPair, other: Any, n: int) -> DataPair:
    """Among n others, by turns of those of a block."""
    crowd = record_at(other, np.arange(n) % length(other))
    return _joined(pair[0], crowd), _joined(pair[1], crowd)


def _opposite(pair: DataPair) -> Any:
    return pair[1] if length(pair[1]) else pair[0]


def _joined(*blocks: Any) -> Any:
    return join([block for block in blocks if length(block)] or [blocks[0]])


def stream_rows(mechanism: Any, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> int:
    """The rows of a stream that are worth drawing: its horizon, if that is not too long.

    Where no horizon is stated, as many as it takes.
    """
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
