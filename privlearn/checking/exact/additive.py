"""Output distributions of mechanisms that add normal or Laplace noise, once or along a stream.

Short streams, and mechanisms of any make, are probed number by number (`exact.probe`).  Long
streams whose noise is that of a factorisation are solved (`exact.streams`).  Either way the
changed record is put at arrivals all over the horizon; where only a window of the stream was looked
at, that is said, because later outputs can only tell more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from privlearn.checking.default_neighbours import spend_of, stated_spend
from privlearn.checking.exact.distributions import DistributionPair, whitened
from privlearn.checking.exact.probe import Affine, affine, centre, check_noise, check_sampler, run
from privlearn.checking.exact.streams import MOST_ARRIVALS, Stream, tried_places
from privlearn.checking.neighbours import each_float, extreme_records, worst_pairs
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import accepted_users, declared_users, fixed_users, is_stream
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Normal, Product, laplace, normal
from privlearn.noise import GaussianNoise
from privlearn.rows.domains import Array
from privlearn.values.grid import Grid
from privlearn.values.records import join, length, record_at

_REPORTS = 24  # Users of local reports, where none are asked for
_ENDLESS = 1024
"""Users of a stream without a horizon, or with one that is only there to end it, where none are
asked for."""
_AT_FIRST = 48  # Numbers of a stream that is solved for on which its noisy integers are looked at
_INNER = (0.618, 2.3e-4, 3.7e-4, 5.1e-4, 7.9e-4)
"""By which records are made smaller that need not be extreme."""
_NO_END = 2**20  # A horizon beyond which nobody plans for all arrivals
_MEASURED = 256  # A stream that does not say how many rows it takes is asked for so many
_PROBED = 96
"""Numbers of a stream that are probed one by one although its noise could be solved for."""
_MOST_PROBED = 512
"""Numbers of a stream that are probed one by one; it takes the third power of that."""

_FAR = 2.0**48  # Steps that are found from doubles with digits to spare
_OFF = 0.3  # Of a step, from the nearest integer; less is rounding


class AdditiveDistributions(NamedTuple):
    """What was promised to whom, and the laws that neighbours give."""

    parts: list[tuple[Any, list[DistributionPair]]]
    looked: str  # At which arrivals; empty for a single release
    whole: bool  # Whether all outputs were looked at
    telling: int = 0
    """Numbers of the output that are no function of the noisy integers of a stated grid."""


@dataclass(frozen=True)
class _Look:
    mechanism: Any
    loss: Loss
    claim: Any
    neighbours: Sequence[tuple[Any, Any]] | None
    users: int
    horizon: int | None

    @property
    def stream(self) -> bool:
        return is_stream(self.mechanism)

    @property
    def whole(self) -> bool:
        return not self.stream or self.users == self.horizon

    def looked(self, places: int) -> str:
        if not self.stream:
            return ""
        tried = "" if places == self.users else f", the record at {places} of them"
        if self.whole:
            return f"all {self.users} arrivals{tried}"
        if self.horizon is None:
            return f"the first {self.users} arrivals of a stream without a known horizon{tried}"
        return f"the first {self.users} of {self.horizon} arrivals{tried}"

    def promised(self) -> list[tuple[range, Any]]:
        if self.claim is not None or not self.stream:
            everybody = self.loss if self.claim is None else self.claim
            return [(range(self.users), everybody)]
        return list(self.loss.over(range(self.users)))


def additive_distributions(
    mechanism: Any, claim: Any, neighbours: Sequence[tuple[Any, Any]] | None, users: int | None
) -> AdditiveDistributions:
    """The laws of a mechanism that adds noise.

    Raises:
        CheckError: it does more than add normal or Laplace noise, or its neighbours are unknown.
    """
    loss: Loss = mechanism.loss()
    wanted = users if neighbours is None else length(neighbours[0][0])
    if not is_stream(mechanism):
        most = wanted or (_REPORTS if hasattr(mechanism, "open") else 3)
        return _probed(_Look(mechanism, loss, claim, neighbours, most, None))
    horizon = _horizon(mechanism, loss)
    most = wanted or (horizon if horizon and horizon <= _NO_END else _ENDLESS)
    if fixed_users(mechanism) is None:
        most = min(most, MOST_ARRIVALS)
    size = _size(mechanism, loss)
    why = ""
    if hasattr(mechanism, "factorization") and most * size > _PROBED:
        try:
            return _solved(_Look(mechanism, loss, claim, neighbours, most, horizon))
        except CheckError as error:  # it goes about its noise in a way of its own
            why = f"; {error}"
    if fixed_users(mechanism) is None:
        most = max(min(most, _MOST_PROBED // size), 1)
    if neighbours is not None and most < length(neighbours[0][0]):
        rows = length(neighbours[0][0])
        raise CheckError(f"{rows} rows of {size} numbers: too many to probe one by one{why}")
    result = _probed(_Look(mechanism, loss, claim, neighbours, most, horizon))
    return result._replace(looked=result.looked + why)


def _horizon(mechanism: Any, loss: Loss) -> int | None:
    if (declared := declared_users(mechanism)) is not None:
        return declared
    if hasattr(mechanism, "factorization"):
        return None
    taken = accepted_users(mechanism, loss.adjacency, _MEASURED + 1)
    return taken if 0 < taken <= _MEASURED else None


def _size(mechanism: Any, loss: Loss) -> int:
    spend = stated_spend(mechanism, loss.adjacency)
    return 1 if spend is None else int(spend.domain.size)


def _others(look: _Look) -> Any:
    if not hasattr(look.mechanism, "domain"):
        raise CheckError(f"{type(look.mechanism).__name__} has no domain: give neighbours yourself")
    records = extreme_records(look.mechanism.domain)
    return record_at(records, np.arange(look.users) % 2)


def _with_record(others: Any, place: int, record: Any) -> Any:
    before, behind = record_at(others, slice(0, place)), record_at(others, slice(place + 1, None))
    return join([part for part in (before, record, behind) if length(part)])


def _at(others: Any, place: int, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return _with_record(others, place, pair[0]), _with_record(others, place, pair[1])


def _difference(look: _Look, pair: tuple[Any, Any]) -> int:
    if not (look.stream and hasattr(look.mechanism, "domain")):
        return 0
    first, second = (look.mechanism.domain.clip(block) for block in pair)
    differ = np.flatnonzero((first != second).any(axis=1))
    return int(differ[0]) if len(differ) else 0


def _probed(look: _Look) -> AdditiveDistributions:
    mechanism, loss = look.mechanism, look.loss
    everywhere = hasattr(mechanism, "open")
    sets: list[tuple[tuple[Any, Any], int]]
    if look.neighbours is not None:
        sets = [(pair, _difference(look, pair)) for pair in look.neighbours]
    else:
        others, pairs = _others(look), worst_pairs(mechanism.domain, adjacency=loss.adjacency)
        if everywhere:
            sets = [(_at(others, j, pairs[0]), j) for j in range(look.users)]
        else:
            sets = [(_at(others, 0, pair), 0) for pair in pairs]
    noise = affine(mechanism, loss, sets[0][0][0])
    check_sampler(noise.family)
    tried = [*sets[:2], sets[-1]]  # the law of the noise on some, the shift on all
    for seed, block in enumerate(block for pair, _ in tried for block in pair):
        check_noise(mechanism, loss, block, noise, seed)
    shifts = [centre(mechanism, loss, a) - centre(mechanism, loss, b) for (a, b), _ in sets]
    places = [place for _, place in sets]
    paid = look.promised()
    if everywhere and look.claim is None:  # local reports are charged to each user, too
        paid = list(loss.over(range(look.users)))
    parts = [
        (promise, _laws(noise, shifts, places, part))
        for part, promise in paid
        if any(place in part for place in places)
    ]
    telling = _telling(look, [pair for pair, _ in tried], noise)
    return AdditiveDistributions(parts, look.looked(len(set(places))), look.whole, telling)


def _telling(look: _Look, pairs: Sequence[tuple[Any, Any]], noise: Affine) -> int:
    grid = spend_of(look.mechanism, look.loss.adjacency).grid
    if grid is None:
        return 0
    # two extreme records may be an even number of steps apart
    inner = [each_float(pairs[0][0], partial(np.multiply, factor)) for factor in _INNER]
    tried = [*pairs, *((block, pairs[0][1]) for block in inner)]
    return max(
        _differing_outputs(look.mechanism, look.loss, pair, noise, grid, seed)
        for seed, pair in enumerate(tried)
    )


def _differing_outputs(
    mechanism: Any, loss: Loss, pair: tuple[Any, Any], noise: Affine, grid: Grid, seed: int
) -> int:
    """How many numbers of the output tell which of two data sets the same noisy integers are of.

    Exact noise makes X + N private, X the integers of the data and N those of the noise, and
    whatever is computed from it.  So if X becomes X′ and N becomes N + X − X′, nothing may change:
    not the last bit of a double, as it does where noise is added to an exact sum after it was
    rounded.  X − X′ is taken from the outputs without noise, and must be integers.
    """
    first, second = pair
    shift = centre(mechanism, loss, first) - centre(mechanism, loss, second)
    moved = np.ldexp(np.linalg.lstsq(noise.matrix, shift, rcond=1e-12)[0], grid.bits)
    if np.abs(moved).max(initial=0.0) > _FAR:
        return 0
    whole = np.rint(moved)
    if np.abs(moved - whole).max(initial=0.0) > _OFF:
        return len(shift)
    drawn = np.rint(np.ldexp(np.random.default_rng(seed).normal(size=len(whole)), grid.bits))
    one = run(mechanism, loss, first, _steps(drawn, grid))
    two = run(mechanism, loss, second, _steps(drawn + whole, grid))
    return int(np.count_nonzero(one.view(np.int64) != two.view(np.int64)))


def _steps(numbers: Array, grid: Grid) -> Script:
    return Script(np.ldexp(numbers, -grid.bits))


def _telling_at_first(look: _Look, stream: Stream) -> int:
    size = _size(look.mechanism, look.loss)
    users = min(max(_AT_FIRST // size, 2), look.users)
    if fixed_users(look.mechanism) is not None:
        if stream.arrivals * size > _PROBED:
            return 0
        users = look.users
    if look.neighbours is None:
        pair = worst_pairs(look.mechanism.domain, adjacency=look.loss.adjacency)[0]
        first = _at(record_at(_others(look), slice(0, users)), users // 2, pair)
    else:
        one, two = look.neighbours[0]
        first = record_at(one, slice(0, users)), record_at(two, slice(0, users))
    noise = affine(look.mechanism, look.loss, first[0])
    return _telling(look, [first], noise)


def _laws(
    noise: Affine, shifts: Sequence[Array], places: Sequence[int], part: range
) -> list[DistributionPair]:
    """The pair with the largest shift among the users of ``part``; for Laplace noise all pairs."""
    chosen = [k for k, place in enumerate(places) if place in part]
    zero = np.zeros(len(noise.matrix))
    if noise.family == "normal":
        stacked = np.array([shifts[k] for k in chosen]).T
        solved = np.linalg.lstsq(noise.matrix, stacked, rcond=1e-12)[0]
        left = np.linalg.norm(stacked - noise.matrix @ solved, axis=0)
        masses = (solved**2).sum(axis=0)
        masses[left > 1e-8 * np.linalg.norm(stacked, axis=0)] = np.inf
        k = chosen[int(masses.argmax())]
        p, q = whitened(Normal(shifts[k], noise.matrix), Normal(zero, noise.matrix))
        return [DistributionPair(p, q, f"pair {k}, arrival {places[k]}")]
    if np.linalg.matrix_rank(noise.matrix) < noise.matrix.shape[1]:
        raise CheckError("several Laplace numbers are added up: their law is not computed")
    made: dict[tuple[float, ...], DistributionPair] = {}
    for k in chosen:
        inside = np.linalg.lstsq(noise.matrix, shifts[k], rcond=1e-12)[0]
        if np.linalg.norm(shifts[k] - noise.matrix @ inside) > 1e-8 * np.linalg.norm(shifts[k]):
            p, q = whitened(Normal(shifts[k], noise.matrix), Normal(zero, noise.matrix))
            return [DistributionPair(p, q, f"pair {k}")]
        moved = sorted(float(x) for x in np.abs(inside) if x > 1e-12)
        parts = [DistributionPair(laplace(x, 1.0), laplace(0.0, 1.0), f"pair {k}") for x in moved]
        if len(parts) > 1:
            one, two = (
                Product(tuple((law, 1) for law in laws))
                for laws in ([part.p for part in parts], [part.q for part in parts])
            )
            parts = [DistributionPair(one, two, f"pair {k}")]
        made.update({tuple(np.round(moved, 9)): part for part in parts})
    return list(made.values())


def _solved(look: _Look) -> AdditiveDistributions:
    spend = stated_spend(look.mechanism, look.loss.adjacency)
    if spend is None or not isinstance(spend.noise, GaussianNoise):
        raise CheckError("its noise is not normal: check it by sampling (black_box)")
    check_sampler("normal")
    sizes = getattr(look.mechanism, "sizes", ())
    stream = Stream(look.mechanism, look.loss, spend.noise.std, look.users, sizes)
    if look.neighbours is not None:
        places = [_difference(look, pair) for pair in look.neighbours]
        pairs = list(look.neighbours)
        noises = [stream.noise_between(pair) for pair in pairs]
        masses = np.array([float((noise**2).sum()) for noise in noises])
        for pair, noise in zip(pairs, noises, strict=True):
            stream.check_between(pair, noise)
        blocks = [pairs[0][0], pairs[-1][1]]
    else:
        others = _others(look)
        pair = worst_pairs(look.mechanism.domain, adjacency=look.loss.adjacency)[0]
        starts = [part.start for part, _ in look.promised()]
        places = tried_places(look.users, starts)
        domain = look.mechanism.domain
        move = (domain.clip(pair[0]) - domain.clip(pair[1]))[0]
        masses = stream.masses(places, move)
        tried = {0, look.users // 2, look.users - 1, places[int(masses.argmax())]}
        for place in sorted(tried):
            neighbours = _at(others, place, pair)
            stream.check_between(neighbours, stream.noise_between(neighbours))
        blocks = [others, _with_record(others, look.users // 2, pair[1])]
    for seed, block in enumerate(blocks):
        stream.check_noise(block, seed)
    parts = [
        (promise, [_largest(masses, places, part)])
        for part, promise in look.promised()
        if any(place in part for place in places)
    ]
    telling = _telling_at_first(look, stream)
    return AdditiveDistributions(parts, look.looked(len(set(places))), look.whole, telling)


def _largest(masses: Array, places: Sequence[int], part: range) -> DistributionPair:
    inside = [k for k, place in enumerate(places) if place in part]
    k = max(inside, key=lambda k: float(masses[k]))
    mass = float(masses[k])
    return DistributionPair(normal(mass**0.5, 1.0), normal(0.0, 1.0), f"arrival {places[k]}")
