"""What one record costs a stream of normal or Laplace noise, wherever it stands and beside whom.

Guessed is what noise does to the outputs (`exact.probe`), the same for all data, and that
records add responses, alike for all arrivals or measured at each.  Both are tried on data sets in
which every record of a pool (extreme, null, numbers of the code) stands at every arrival, with
noise of 30 scales, rows that come in several calls, and fewer users.  Where outputs are others, the
arrival at which that begins is found by halving, and all records are tried there as neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import qr

from privlearn.checking.exact.distributions import AdditiveDistributions, DistributionPair
from privlearn.checking.exact.probe import (
    NOT_ADDED,
    DenseNoise,
    Numbers,
    SolvedNoise,
    StreamNoise,
    UnpredictedError,
    affine,
    check_sampler,
    run,
    telling_outputs,
)
from privlearn.checking.exact.search import laplace_pair
from privlearn.checking.mined import HASHED, Mined, in_variables, mined
from privlearn.checking.neighbours import each_float, extreme_records, spend_of
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import (
    accepted_users,
    calls_tried,
    declared_users,
    fixed_users,
    in_parts,
)
from privlearn.contract.spends import Spend
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete, normal
from privlearn.noise import GaussianNoise
from privlearn.rows import Rows
from privlearn.rows.clipping import clipping_of
from privlearn.rows.domains import Array
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import join, length, record_at
from privlearn.values.user_code import attempted

MOST_ARRIVALS = 2**16  # Arrivals of a longer stream that are looked at
_ENDLESS = 1024
"""Users of a stream without a horizon, or with one that is only there to end it, where none are
asked for."""
_NO_END = 2**20  # A horizon beyond which nobody plans for all arrivals
_MEASURED = 256  # A stream that does not say how many rows it takes is asked for so many
_FEW = 96  # Numbers that are probed one by one although the noise could be solved for
_MOST_DENSE = 512  # Numbers that are probed one by one; it takes the third power of that
_MOST_ALONE = 128  # Rows of a stream that is probed as they come in several calls
_MENTIONED, _MOST_UNLIKE = 6, 3  # Such numbers of the code, and ways that are looked at in full
_ALL_PLACES = 2048  # Every arrival is tried in streams that are no longer
_SOME_PLACES = 512
"""Arrivals of longer ones that are tried at random, beside the first, the last and doublings."""
_EDGE = 64  # First and last arrivals that are always tried
_AT_FIRST = 48  # Numbers of a stream on which its noisy integers are looked at
_EXTREMES, _NUMBERS = 14, 8  # Records of the domain, and numbers of the code, in the pool
_MOST_MOVES = 64  # Differences of two records
_LONG = 4096  # Arrivals of streams on which fewer data sets are tried
_JUMPS = 4  # Data sets in which the arrival is looked for from which outputs are unlike the guess
_SCALES = (1.0, 5.0, 10.0, 30.0)
_BY_CODE = 0.1  # Part of the noise that is a number of the code


def stream_distributions(
    mechanism: Any, claim: Any, neighbours: Sequence[tuple[Any, Any]] | None, users: int | None
) -> AdditiveDistributions:
    """The laws of a stream, `additive_distributions`. Raises CheckError: it does more than add
    normal or Laplace noise, or its records are unknown."""
    loss: Loss = mechanism.loss()
    spend = spend_of(mechanism, loss.adjacency)
    if loss.adjacency is Adjacency.ADD_REMOVE:
        raise CheckError("a stream without one row moves all later ones up: not looked at exactly")
    horizon = _horizon(mechanism, loss)
    asked = users or (None if neighbours is None else length(neighbours[0][0]))
    endless = _ENDLESS if hasattr(mechanism, "factorization") else _MEASURED
    most = asked or (horizon if horizon and horizon <= _NO_END else endless)
    if fixed_users(mechanism) is None:
        most = min(most, MOST_ARRIVALS)
    pool = _pool(mechanism, spend, neighbours)
    look = _Look(mechanism, loss, claim, spend, pool, most, horizon)
    pairs = None if pool.given else neighbours
    found = _stream(look, pairs)
    if in_parts(mechanism) or pairs is not None:
        return found
    unlike, axis = _unlike_calls(look)
    parts, coverage = [*found.parts], found.coverage + Coverage((axis,))
    for other in unlike[:_MOST_UNLIKE]:
        more = _stream(other, None)
        short = tuple(part for part in more.coverage.axes if not part.enough)
        parts, coverage = [*parts, *more.parts], coverage + Coverage(short)
    return found._replace(parts=parts, coverage=coverage)


def _horizon(mechanism: Any, loss: Loss) -> int | None:
    if (declared := declared_users(mechanism)) is not None:
        return declared
    if hasattr(mechanism, "factorization"):
        return None
    taken = accepted_users(mechanism, loss.adjacency, _MEASURED + 1)
    return taken if 0 < taken <= _MEASURED else None


class _Pool(NamedTuple):
    """Records that are tried; the one at ``null`` is that of everybody else at first."""

    records: Any
    contributions: Array  # (records, size)
    numbers: Mined
    given: bool  # Taken from neighbours, as the domain is not one of ours

    @property
    def size(self) -> int:
        return len(self.contributions)

    @property
    def null(self) -> int:
        return self.size - 1

    def block(self, chosen: Any) -> Any:
        return record_at(self.records, np.asarray(chosen))

    def moves(self, adjacency: Adjacency) -> Array:
        """Differences of contributions, the longest first."""
        ends = self.contributions
        if adjacency is Adjacency.REPLACE_ONE:
            i, j = np.array(list(combinations(range(self.size), 2))).reshape(-1, 2).T
            moves = ends[i] - ends[j]
        else:
            moves = ends[:-1] - ends[-1]
        moves = np.unique(np.round(moves, 12), axis=0)
        order = np.argsort(-np.linalg.norm(moves, axis=1), kind="stable")
        return np.asarray(moves[order[:_MOST_MOVES]])


def _pool(mechanism: Any, spend: Spend, neighbours: Any) -> _Pool:
    given = False
    try:
        extremes = extreme_records(spend.domain)
    except CheckError:
        if neighbours is None:
            raise
        given, (one, two) = True, neighbours[0]
        extremes = join([record_at(block, slice(None)) for block in (one, two)])
    last = length(extremes) - 1
    ends = record_at(extremes, np.unique([*range(min(_EXTREMES, last)), last]))
    rows = fixed_users(mechanism) or min(declared_users(mechanism) or last + 1, length(ends))
    with in_variables() as held:
        block = record_at(ends, np.arange(rows) % length(ends))
        attempted(run, mechanism, mechanism.loss(), block, Script(np.zeros(0)))
    numbers = mined(mechanism, spend.domain, also=held)
    special = [x for number in numbers.numbers[:_NUMBERS] for x in (number, 2 * number)]
    first = record_at(ends, slice(0, 1))
    more = [each_float(first, lambda leaf, x=x: np.full_like(leaf, x)) for x in special]
    records = join([*more, ends])
    return _Pool(records, _contributions(spend, records), numbers, given)


def _contributions(spend: Spend, records: Any) -> Array:
    """As a receipt opens them, each by itself."""
    clipping = clipping_of(spend.domain, spend.grid)
    made = []
    for k in range(length(records)):
        one = Rows.seal(record_at(records, slice(k, k + 1)), users=range(1))
        values = clipping.contributions(one)
        made.append(values if spend.grid is None else spend.grid.values(values))
    return np.concatenate(made).astype(np.float64)


@dataclass(frozen=True)
class _Look:
    mechanism: Any
    loss: Loss
    claim: Any
    spend: Spend
    pool: _Pool
    users: int
    horizon: int | None
    calls: tuple[int, ...] = ()  # Rows that are appended at once, in turn; empty: all
    first: int = 0  # The arrival of the first user

    @property
    def dim(self) -> int:
        return int(self.spend.domain.size)

    @property
    def sizes(self) -> tuple[int, ...]:
        return getattr(self.mechanism, "sizes", ()) if fixed_users(self.mechanism) else ()

    @property
    def arrivals(self) -> NDArray[np.int_]:
        """The arrival that each user is in."""
        users = np.arange(self.users)
        ends = np.cumsum(self.sizes)
        return np.asarray(np.searchsorted(ends, users, "right") if self.sizes else users)

    def run(self, block: Any, z: Array | None = None) -> Array:
        script = Script(np.zeros(0) if z is None else z)
        return run(self.mechanism, self.loss, block, script, self.calls, self.first)

    def runs(self, chosen: Any, z: Array | None = None) -> Array:
        return self.run(self.pool.block(chosen), z)

    @property
    def nobody(self) -> Any:
        return np.full(self.users, self.pool.null)

    def promised(self) -> list[tuple[range, Any]]:
        if self.claim is not None:
            return [(range(self.users), self.claim)]
        return list(self.loss.over(range(self.users)))

    def looked(self, places: int) -> str:
        tried = "" if places == self.users else f", the record at {places} of them"
        if self.users == self.horizon:
            return f"all {self.users} arrivals{tried}"
        if self.horizon is None:
            return f"the first {self.users} arrivals of a stream without a known horizon{tried}"
        return f"the first {self.users} of {self.horizon} arrivals{tried}"


def _noise(look: _Look) -> tuple[StreamNoise, _Look, str]:
    """What noise does, and to as many users as that can be found for; with why to no more."""
    why, numbers = "", look.users * look.dim
    if hasattr(look.mechanism, "factorization") and numbers > _FEW and not look.calls:
        try:
            return _solved(look), look, ""
        except CheckError as error:  # it goes about its noise in a way of its own
            why = f"; {error}"
    if numbers > _MOST_DENSE and fixed_users(look.mechanism) is None:
        if numbers > 2 * _MOST_DENSE:
            look = replace(look, users=max(_MOST_DENSE // look.dim, 1))
        script = Script(np.zeros(0))
        run(look.mechanism, look.loss, look.pool.block(look.nobody), script, look.calls)
        part = min(_MOST_DENSE / max(script.drawn.total(), 1), 1.0)
        look = replace(look, users=max(int(look.users * part), 1))
    block = look.pool.block(look.nobody)
    measured = affine(look.mechanism, look.loss, block, look.calls, look.first)
    return DenseNoise(measured.family, measured.matrix), look, why


def _solved(look: _Look) -> SolvedNoise:
    if not isinstance(look.spend.noise, GaussianNoise):
        raise CheckError("its noise is not normal: check it by sampling")
    arrivals = len(look.sizes) or look.users
    decoded = np.asarray(look.spend.domain.decode(np.eye(look.dim))).reshape(look.dim, -1)
    noise = SolvedNoise(look.mechanism.factorization, look.spend.noise.std, arrivals, decoded)
    _check_noise(look, noise, look.nobody, 0)
    first, rows = look.nobody, look.pool.contributions
    first[0] = int(np.argmax(np.linalg.norm(rows - rows[-1], axis=1)))
    if not _close(look.runs(first), _running_sums(look, noise).predicted(rows[first])):
        raise CheckError("its outputs are no running sums")
    return noise


def _check_noise(look: _Look, noise: StreamNoise, chosen: Any, seed: int) -> None:
    """Raises CheckError: random noise on one data set does not act as it does on others."""
    rng = np.random.default_rng(seed)
    z = rng.exponential(size=noise.count) * rng.choice([-1.0, 1.0], noise.count)
    z *= _SCALES[seed % len(_SCALES)]
    numbers = np.array([x for x in look.pool.numbers.numbers if abs(x) < 1e3])
    if len(numbers):
        some = rng.random(noise.count) < _BY_CODE
        by = rng.choice([1.001, -1.001], noise.count) / getattr(look.spend.noise, "std", 1.0)
        z = np.where(some, rng.choice(numbers, noise.count) * by, z)
    base, got = look.runs(chosen), look.runs(chosen, z)
    moved = noise.moved(z)
    _apart(got, base)
    _apart(base, moved)
    if not _close(got, base + moved):
        if isinstance(noise, DenseNoise):
            raise UnpredictedError(NOT_ADDED)
        raise CheckError("its noise is not that of its factorisation, scaled as it says")


def _apart(first: Array, second: Array) -> Array:
    if first.shape != second.shape:
        raise UnpredictedError("the number of outputs depends on data")
    return first - second


def _close(got: Array, wanted: Array) -> bool:
    size = float(np.abs(wanted).max(initial=0.0))
    return got.shape == wanted.shape and np.allclose(got, wanted, rtol=1e-7, atol=1e-8 * (1 + size))


@dataclass(frozen=True, eq=False)
class _Response:
    """What contributions do to the outputs."""

    base: Array
    null: Array
    at: NDArray[np.int_]  # Of each user, among the responses
    decoded: Array  # (size, width); all that matters where outputs are running sums
    each: Array | None = None
    """As long as the outputs: (places, size, outputs); None for running sums."""

    def predicted(self, contributions: Array) -> Array:
        """The outputs without noise, flat; contributions (users, size)."""
        by = np.zeros((int(self.at[-1]) + 1, contributions.shape[1]))
        np.add.at(by, self.at, contributions - self.null)
        if self.each is None:
            return np.asarray(self.base + (np.cumsum(by, axis=0) @ self.decoded).reshape(-1))
        return np.asarray(self.base + np.tensordot(by, self.each, axes=2))


def _running_sums(look: _Look, noise: SolvedNoise) -> _Response:
    base, null = look.runs(look.nobody), look.pool.contributions[look.pool.null]
    return _Response(base, null, look.arrivals, noise.decoded)


def _measured(look: _Look) -> _Response:
    """Of the first arrival, if the others move outputs as it does, or of each."""
    pool, users = look.pool, look.users
    base, null = look.runs(look.nobody), pool.contributions[pool.null]
    apart = pool.contributions - null
    _, sizes, order = qr(apart.T, pivoting=True, mode="economic")
    large = np.abs(np.diagonal(sizes))
    rank = int((large > 1e-9 * large[0]).sum()) if large[0] > 0 else 0
    if not rank:
        raise CheckError("no two of the records that are tried differ once they are clipped")
    spanning = order[:rank]
    inverse = np.linalg.pinv(apart[spanning])

    def measured(place: int) -> Array:
        moved = []
        for k in spanning:
            chosen = look.nobody
            chosen[place] = k
            moved.append(_apart(look.runs(chosen), base))
        return np.asarray(inverse @ np.array(moved))

    arrivals, first, alike = look.arrivals, measured(0), None
    rows = int(arrivals[-1]) + 1
    if len(base) % rows == 0:
        each, width = np.zeros((rows, *first.shape)), len(base) // rows
        for k in range(rows):
            each[k, :, k * width :] = first[:, : len(base) - k * width]
        alike = _Response(base, null, arrivals, first, each)
        tried = list(_data_sets(look))[:3]
        if all(_close(look.runs(c), alike.predicted(pool.contributions[c])) for c in tried):
            return alike
    if users * rank > 2 * _MOST_DENSE:
        if alike is None:
            raise CheckError(f"{users} records of {rank} numbers: too many to be tried one by one")
        return alike
    single = np.array([measured(place) for place in range(users)])
    return _Response(base, null, np.arange(users), first, single)


def _data_sets(look: _Look) -> Iterator[Any]:
    """Which records stand where: all of them, at every arrival, beside others of all kinds."""
    n, k = look.users, look.pool.size
    place, rng = np.arange(n), np.random.default_rng(0)
    yield rng.integers(0, k, n)
    yield np.where(place % 2 == 0, k - 2, look.pool.null)
    yield np.full(n, max(k - 2, 0))
    ends = np.argsort(-np.linalg.norm(look.pool.contributions, axis=1))[:2]
    yield np.where(place % 2 == 0, ends[0], ends[-1])
    yield np.where(place < n // 2, ends[0], ends[-1])
    yield np.full(n, ends[0])
    yield np.full(n, ends[-1])
    yield np.where(rng.random(n) < 0.1, rng.integers(0, k, n), look.pool.null)
    turned = rng.permutation(n)
    for step in range(k if n <= _LONG else min(k, 4)):
        yield (turned + step) % k


def _jumps(look: _Look, response: _Response) -> tuple[list[tuple[int, list[Array]]], int]:
    """Where outputs are unlike the guess: arrivals and outputs of all records there; and how often.
    Raises CheckError: noise acts otherwise there."""
    pool, unlike = look.pool, []
    for chosen in _data_sets(look):
        wrong = not _close(look.runs(chosen), response.predicted(pool.contributions[chosen]))
        unlike += [chosen] if wrong else []
    found = []
    for chosen in unlike[:_JUMPS]:
        low, high = 0, look.users  # as guessed with so many of the records, and not
        while high - low > 1:
            middle = (low + high) // 2
            mixed = np.where(np.arange(look.users) < middle, chosen, pool.null)
            fits = _close(look.runs(mixed), response.predicted(pool.contributions[mixed]))
            low, high = (middle, high) if fits else (low, middle)
        mixed = np.where(np.arange(look.users) < high, chosen, pool.null)
        outputs = []
        for record in range(pool.size):
            mixed[low] = record
            outputs.append(look.runs(mixed))
        found.append((low, outputs))
    return found, len(unlike)


class Shift(NamedTuple):
    """The noise that hides one record at one place."""

    place: int
    z: Array
    hidden: bool
    label: str

    @classmethod
    def of(cls, place: int, found: Numbers, k: int, label: str = "") -> Shift:
        """One column of what was found."""
        return cls(place, found.z[:, k], bool(found.solved[k]), label or f"arrival {place}")

    @property
    def mass(self) -> float:
        return float((self.z**2).sum()) if self.hidden else np.inf


def _stream(look: _Look, pairs: Sequence[tuple[Any, Any]] | None) -> AdditiveDistributions:
    noise, look, why = _noise(look)
    check_sampler(noise.family)
    matrix = noise.matrix if isinstance(noise, DenseNoise) else np.eye(1)
    if noise.family == "laplace" and np.linalg.matrix_rank(matrix) < matrix.any(axis=0).sum():
        raise CheckError("several Laplace numbers are added up: their law is not computed")
    if pairs is not None:
        return _of_pairs(look, noise, pairs, why)
    response = _running_sums(look, noise) if isinstance(noise, SolvedNoise) else _measured(look)
    jumps, unlike = _jumps(look, response)
    tried = list(_data_sets(look))
    for seed, chosen in enumerate(tried):
        _check_noise(look, noise, chosen, seed)
    starts = [part.start for part, _ in look.promised()]
    places = tried_places(look.users, [*starts, *look.pool.numbers.places(look.users)])
    shifts = [*_shifts(look, noise, response, places)]
    for place, outputs in jumps:
        shifts += _between(look, noise, place, outputs)
    parts = laws_of_shifts(noise.family, look.promised(), shifts)
    looked = look.looked(len(places)) + why
    sizes = _sizes(look)
    records = f"{look.pool.size} at every arrival, in {len(tried)} data sets"
    numbers, hashes = len(look.pool.numbers.numbers), look.pool.numbers.hashes
    axes = (
        Axis("arrivals", looked, look.users == look.horizon),
        Axis("records", records if not unlike else f"{records}; {unlike} unlike a sum", not unlike),
        Axis("noise", f"{-_SCALES[-1]:g} to {_SCALES[-1]:g} scales"),
        Axis("values", f"{numbers} numbers of the code{HASHED if hashes else ''}", not hashes),
        sizes,
    )
    telling = _telling(look)
    return AdditiveDistributions(parts, Coverage(axes), telling)


def _of_pairs(
    look: _Look, noise: StreamNoise, pairs: Sequence[tuple[Any, Any]], why: str
) -> AdditiveDistributions:
    """Of neighbours that were given: these, and no others."""
    if look.users < length(pairs[0][0]):
        rows = length(pairs[0][0])
        raise CheckError(f"{rows} rows of {look.dim} numbers: too many to probe one by one{why}")
    shifts = []
    for k, pair in enumerate(pairs):
        outputs = [look.run(block) for block in pair]
        found = noise.behind(_apart(*outputs)[:, None])
        shifts.append(Shift.of(_difference(look, pair), found, 0, f"pair {k}"))
        for seed, (block, base) in enumerate(zip(pair, outputs, strict=True)):
            z = np.random.default_rng(seed).standard_normal(noise.count)
            if not _close(look.run(block, z), base + noise.moved(z)):
                raise CheckError("noise acts otherwise on other data: check it by sampling")
    looked = look.looked(len({shift.place for shift in shifts})) + why
    axis = Axis("arrivals", f"{looked}, as given", False)
    parts = laws_of_shifts(noise.family, look.promised(), shifts)
    return AdditiveDistributions(parts, Coverage((axis,)), _telling(look))


def _difference(look: _Look, pair: tuple[Any, Any]) -> int:
    first, second = (look.spend.domain.clip(block) for block in pair)
    return int(np.argmax(np.abs(first - second).max(axis=1) > 0))


def _shifts(
    look: _Look, noise: StreamNoise, response: _Response, places: list[int]
) -> Iterator[Shift]:
    """Of the guess: at each place the largest; for Laplace noise of all moves that are as long."""
    moves = look.pool.moves(look.loss.adjacency)
    if isinstance(noise, SolvedNoise):
        masses = noise.unit_masses(look.arrivals[places]) * float(moves[0] @ moves[0])
        for place, mass in zip(places, masses, strict=True):
            yield Shift(place, np.array([mass**0.5]), True, f"arrival {place}")
        return
    assert response.each is not None
    units = response.each[response.at[places]].transpose(2, 0, 1)
    outputs, _, dim = units.shape
    found = noise.behind(units.reshape(outputs, -1))
    z = found.z.reshape(noise.count, len(places), dim)
    solved = np.asarray(found.solved).reshape(len(places), dim).min(axis=1)
    for k, place in enumerate(places):
        if not solved[k]:  # of some coordinate; a move may do without it
            some = noise.behind(units[:, k] @ moves[:4].T)
            yield from (Shift.of(place, some, m) for m in range(len(some.solved)))
            continue
        hidden = z[:, k] @ moves.T
        size = (hidden**2).sum(axis=0) if noise.family == "normal" else np.abs(hidden).sum(axis=0)
        yield Shift(place, hidden[:, int(size.argmax())], True, f"arrival {place}")


def _between(look: _Look, noise: StreamNoise, place: int, outputs: list[Array]) -> list[Shift]:
    """The farthest two of the outputs that records at one place give."""
    null = look.pool.null
    if look.loss.adjacency is Adjacency.REPLACE_ONE:
        ends = list(combinations(range(len(outputs)), 2))
    else:
        ends = [(k, null) for k in range(len(outputs)) if k != null]
    found = noise.behind(np.array([_apart(outputs[i], outputs[j]) for i, j in ends]).T)
    label = f"arrival {place}, beside some others"
    shifts = [Shift.of(place, found, k, label) for k in range(len(ends))]
    return [max(shifts, key=lambda shift: shift.mass)]


def laws_of_shifts(
    family: str, promised: Sequence[tuple[range, Any]], shifts: Sequence[Shift]
) -> list[tuple[Any, list[DistributionPair]]]:
    """What is promised to some users, with the laws of the shifts at their places."""
    inside = [(promise, [x for x in shifts if x.place in part]) for part, promise in promised]
    return [(promise, _laws(family, some)) for promise, some in inside if some]


def _laws(family: str, shifts: list[Shift]) -> list[DistributionPair]:
    """The pair with the largest shift; for Laplace noise all that are unlike."""
    worst = max(shifts, key=lambda shift: shift.mass)
    if not worst.hidden:
        apart = Discrete(np.array([0.0, -np.inf])), Discrete(np.array([-np.inf, 0.0]))
        return [DistributionPair(*apart, worst.label)]
    if family == "normal":
        return [DistributionPair(normal(worst.mass**0.5, 1.0), normal(0.0, 1.0), worst.label)]
    made: dict[tuple[float, ...], DistributionPair] = {}
    for shift in shifts:
        key = tuple(np.round(np.sort(np.abs(shift.z)), 9))
        made.setdefault(key, laplace_pair(shift.z, shift.label))
    return list(made.values())


def tried_places(arrivals: int, also: Sequence[int], seed: int = 0) -> list[int]:
    """Where the changed record is put: everywhere, or first, last, at doublings and at random."""
    if arrivals <= _ALL_PLACES:
        return list(range(arrivals))
    doublings = 2 ** np.arange(arrivals.bit_length())
    ends = np.r_[: _EDGE + 1, doublings, doublings - 1]
    others = np.random.default_rng(seed).integers(0, arrivals, _SOME_PLACES)
    some = np.r_[ends, arrivals - ends, arrivals // 2, np.asarray(also, dtype=int), others]
    return [int(place) for place in np.unique(some) if 0 <= place < arrivals]


def _unlike_calls(look: _Look) -> tuple[list[_Look], Axis]:
    """Ways in which rows may come that give other outputs than if they come at once, from 0 on."""
    mentioned = look.pool.numbers.sizes(look.users)[:_MENTIONED]
    tried = [*dict.fromkeys([*((n,) for n in mentioned), *calls_tried(look.mechanism)[1:]])]
    starts = look.pool.numbers.starts()[:_MENTIONED]
    unlike, refused = list[_Look](), list[str]()
    for calls, first in [*((calls, 0) for calls in tried), *(((), first) for first in starts)]:
        users = min(look.users, max(_MOST_ALONE, 3 * max(calls, default=1)))
        other = replace(look, calls=calls, first=first, users=users)
        z = np.random.default_rng(1).standard_normal(64 * users)
        for chosen in islice(_data_sets(other), 2):
            together = replace(other, calls=(), first=0).runs(chosen, z)
            try:
                got = other.runs(chosen, z)
            except Exception:  # a public number, which a stream may refuse
                refused.append(f"{calls[0]} at a time" if calls else f"from {first:,} on")
                break
            if not _close(got, together):
                unlike.append(replace(other, users=min(users, _MOST_ALONE)))
                break
    lengths = sorted(calls[0] for calls in tried[:-1])
    told = f"rows at once, {', '.join(map(str, lengths))} at a time, and in "
    told += f"calls of {', '.join(map(str, tried[-1]))} in turn"
    told += f"; users from {', '.join(f'{first:,}' for first in starts)} on"
    told += f"; refused: {', '.join(refused)}" if refused else ""
    told += f"; {len(unlike)} give other outputs" if unlike else ""
    return unlike, Axis("calls", told, len(unlike) <= _MOST_UNLIKE)


def _sizes(look: _Look) -> Axis:
    """Whether streams of fewer users begin as this one does."""
    if in_parts(look.mechanism):
        return Axis("sizes", f"{look.users} users, in parts that are fixed or declared before")
    n = look.users
    fewer = {1, 2, 3, 17, n // 2, n - 1, *look.pool.numbers.sizes(n)[:8]}
    chosen = next(_data_sets(look))
    z = np.random.default_rng(2).standard_normal(64 * n)
    whole, unlike = look.runs(chosen, z), []
    for m in sorted(m for m in fewer if 0 < m < n):
        part = look.runs(chosen[:m], z)
        unlike += [] if _close(part, whole[: len(part)]) else [m]
    tried = f"{len(fewer)} numbers of users, 1 to {n}"
    if unlike:
        return Axis("sizes", f"{tried}; with {unlike} users outputs are others", False)
    return Axis("sizes", tried)


def _telling(look: _Look) -> int:
    users = min(max(_AT_FIRST // look.dim, 2), look.users)
    if fixed_users(look.mechanism) is not None:
        users = look.users
    if users * look.dim > _FEW or look.spend.grid is None:
        return 0
    records = look.pool.records
    n = length(records)
    others = [record_at(records, slice(k % n, k % n + 1)) for k in range(n - users, n)]
    half, ends = users // 2, (n - 2, n - 1)
    first, second = (
        join([*others[:half], record_at(records, slice(k, k + 1)), *others[half + 1 :]])
        for k in ends
    )
    noise = affine(look.mechanism, look.loss, first)
    return telling_outputs(look.mechanism, look.loss, [(first, second)], noise)
