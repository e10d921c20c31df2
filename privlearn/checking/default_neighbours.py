"""Neighbours to try where the user gives none: pairs of data sets, the most informative first.

The worst neighbours of a third-party mechanism are unknown.  What is tried here are records that
differ in every way that a fault was seen to need (all entries at once, one against the others, half
against half, only one, something against the null record, half of something), each by itself,
beside few and beside many others, and where the others bring a decision to its boundary.  A check
chooses among them on outputs of their own (`black_box`), so that more pairs cost power, but no
confidence.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import combinations, pairwise
from typing import Any

import numpy as np

from privlearn.checking.neighbours import extreme_records
from privlearn.checking.stream_runs import accepted_users, declared_users, fixed_users, released_by
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.rows import Rows
from privlearn.rows.domains import Array, Ball, Box, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import blanked, each_leaf, join, leaves, length, record_at

DataPair = tuple[Any, Any]  # Two data sets, or two records as blocks of one

FEW = 5  # Other records, all on one side of a sum
MANY = 12  # Other records, half of them on either side
PATH = 128  # Users of which one after the other changes sides, to find where a decision turns
STRIDE = 8  # So many change sides at a time at first
LONGEST = 256  # Rows of a stream that are drawn at most, and as many where it states no horizon
_ALONE = 13
_SEEDS = (1, 2, 3)
_LEAP = 1.5
"""A step along the path counts as a leap if it is so many times as long as the median one."""


def default_pairs(
    mechanism: Any,
    *,
    adjacency: Adjacency = Adjacency.REPLACE_ONE,
    records: Any = None,
    seed: int = 0,
) -> list[DataPair]:
    """Pairs of neighbouring data sets, as blocks of records.

    Raises:
        CheckError: it does not spend, or its domain did not come with this package and no records
            are given.
    """
    spend = spend_of(mechanism, adjacency)
    if records is None:
        records = informative_records(spend.domain, seed=seed)
    pairs = record_pairs(spend.domain, records, adjacency)
    if not hasattr(mechanism, "release"):
        return _in_streams(pairs, stream_rows(mechanism, adjacency) - 1, adjacency)
    alone = [] if adjacency is Adjacency.ADD_REMOVE else pairs  # an empty block has no form
    first = pairs[0]
    if spend.arithmetic != "own":  # others play no part in what the receipt, or each user, computes
        return [*alone, *(_beside(pair, first[0], 1) for pair in pairs[: 1 if alone else None])]
    turns: list[DataPair] = []
    if adjacency is Adjacency.REPLACE_ONE:
        turns = [turn for way in pairs[:2] for turn in turning_pairs(mechanism, way, adjacency)]
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
        _amid(other, far),
        _beside(far, far[0], FEW),
    ]
    return [*alone[:4], *turns, *crowded[:5], *alone[4:], *crowded[5:]]


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


def _sign_patterns(size: int, rng: np.random.Generator) -> Array:
    """All together, one against the rest, by turns, only one, halves, two, at random."""
    place, one = np.arange(size), np.eye(size)
    patterns = [
        np.ones(size),
        2 * one[0] - 1,
        np.where(place % 2 == 0, 1.0, -1.0),
        one[0],
        np.where(place < size / 2, 1.0, -1.0),
        1 - 2 * one[-1],
        one[-1],
        np.where(place < 2, 1.0, -1.0),
        np.where(rng.random(size) < 0.5, 1.0, -1.0),
    ]
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
        result = [(singles[i], singles[j]) for i, j in (places[k] for k in _in_turn(apart, _ALONE))]
        # whether somebody counts at all is a secret too, and half of something is no extreme
        far = np.linalg.norm(rows - null, axis=1)
        more = [(singles[int(far.argmax())], nobody)] if far.max(initial=0.0) > 0 else []
        for half in _halves(domain, singles, rows, result[:1]):
            more += [(half, result[0][1]), (half, nobody)]
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


def _halves(
    domain: Domain[Any], singles: list[Any], rows: Array, first: list[DataPair]
) -> list[Any]:
    if not first or not isinstance(first[0][0], np.ndarray) or first[0][0].dtype.kind != "f":
        return []
    place = next(i for i, single in enumerate(singles) if single is first[0][0])
    half = 0.5 * rows[place : place + 1]
    if half.shape != first[0][0].shape or not half.any():
        return []
    return [half]


def _null_record(record: Any) -> Any:
    """A record that no domain of floats can use; one of zeros where there are no floats."""
    return each_leaf(
        record, lambda leaf: np.full_like(leaf, np.nan if leaf.dtype.kind == "f" else -1)
    )


def _is_null(block: Any) -> bool:
    floats = [leaf for leaf in leaves(block) if leaf.dtype.kind == "f"]
    return bool(length(block)) and bool(floats) and all(np.isnan(leaf).all() for leaf in floats)


def _beside(pair: DataPair, other: Any, n: int) -> DataPair:
    crowd = record_at(other, np.zeros(n, dtype=int))
    return _joined(pair[0], crowd), _joined(pair[1], crowd)


def _amid(pair: DataPair, sides: DataPair) -> DataPair:
    if not length(sides[1]):
        return _beside(pair, sides[0], MANY)
    crowd = record_at(join(list(sides)), np.arange(MANY) % 2)
    return _joined(pair[0], crowd), _joined(pair[1], crowd)


def _opposite(pair: DataPair) -> Any:
    return pair[1] if length(pair[1]) else pair[0]


def _joined(*blocks: Any) -> Any:
    return join([block for block in blocks if length(block)] or [blocks[0]])


def turning_pairs(mechanism: Any, sides: DataPair, adjacency: Adjacency) -> list[DataPair]:
    """Neighbours between which the output leaps as users change sides, one after the other.

    With the noise held fixed the output of a sum moves by equal steps; that of a decision moves at
    once.  The leap is looked for in strides, and then within the stride in halves; and among few
    users, where both sides are near to what they have to reach.
    """
    both = join(list(sides))
    turns: list[DataPair] = []
    for n in (PATH, STRIDE):  # among few, and where a mechanism does not take so many
        try:
            leaps = [
                _leap(partial(_run, mechanism, both, n, seed, adjacency), n) for seed in _SEEDS
            ]
        except _Refused:
            continue
        result = Counter(m for m in leaps if m is not None)
        if turns:  # one more, where it is no accident of the noise
            agreed = [m for m, times in result.most_common(1) if 2 * times > len(_SEEDS)]
        else:
            agreed = list(result)
        turns += [(_blocks(both, m + 1, n), _blocks(both, m, n)) for m in agreed]
    return turns


class _Refused(Exception):
    """The mechanism does not run on so many users."""


def _blocks(both: Any, m: int, n: int) -> Any:
    return record_at(both, (np.arange(n) >= m).astype(int))


def _run(mechanism: Any, both: Any, n: int, seed: int, adjacency: Adjacency, m: int) -> Any:
    rows: Rows[Any] = Rows.seal(_blocks(both, m, n), users=range(n))
    try:
        return run_once(mechanism, rows, StubAccountant(seed, adjacency))
    except Exception as error:
        raise _Refused from error


def _leap(output: Callable[[int], Any], n: int) -> int | None:
    """m such that the output leaps from m users on the first side to m + 1; None if nowhere."""
    marks = list(range(0, n + 1, STRIDE if n > STRIDE else 1))
    outputs = {m: output(m) for m in marks}
    steps = [distance(outputs[a], outputs[b]) / (b - a) for a, b in pairwise(marks)]
    k = int(np.argmax(steps))
    if not steps[k] > _LEAP * float(np.median(steps)):
        return None
    low, high = marks[k], marks[k + 1]
    while high - low > 1:
        middle = (low + high) // 2
        outputs[middle] = output(middle)
        left = distance(outputs[low], outputs[middle]) / (middle - low)
        right = distance(outputs[middle], outputs[high]) / (high - middle)
        low, high = (low, middle) if left >= right else (middle, high)
    return low


def distance(first: Any, second: Any) -> float:
    """Between two outputs: of numbers the largest difference; of anything else, whether it is."""
    x, y = np.asarray(first), np.asarray(second)
    if x.shape != y.shape or x.dtype.kind != "f" or y.dtype.kind != "f":
        return 0.0 if x.shape == y.shape and np.array_equal(x, y) else 1.0
    with np.errstate(all="ignore"):
        apart = np.abs(x - y)
    if not np.isfinite(apart).all():
        return 0.0 if np.array_equal(x, y, equal_nan=True) else 1e300
    return float(apart.max(initial=0.0))


def stream_rows(mechanism: Any, adjacency: Adjacency = Adjacency.REPLACE_ONE) -> int:
    """The rows of a stream that are worth drawing: its horizon, if that is not too long.

    Where no horizon is stated, as many as it takes.
    """
    if (fixed := fixed_users(mechanism)) is not None:
        return fixed
    if (declared := declared_users(mechanism)) is not None:
        return min(declared, LONGEST)
    return max(accepted_users(mechanism, adjacency, LONGEST), 1)


def _in_streams(pairs: list[DataPair], behind: int, adjacency: Adjacency) -> list[DataPair]:
    quiet = blanked(pairs[0][0], np.ones(1, dtype=bool))
    made = [_beside(pair, quiet, behind) for pair in pairs]
    if not behind:
        return pairs
    made[1:1] = [_beside(pairs[0], pairs[0][0], behind)]
    half = behind // 2
    if half and adjacency is not Adjacency.ADD_REMOVE:
        early, late = (record_at(quiet, np.zeros(n, dtype=int)) for n in (half, behind - half))
        one, two = (join([early, record, late]) for record in pairs[0])
        made.append((one, two))
    return made
