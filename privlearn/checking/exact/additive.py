"""Output distributions of mechanisms that add normal or Laplace noise.

They are probed number by number (`exact.probe`); streams in a way of their own (`exact.streams`).
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privlearn.checking.exact.distributions import AdditiveDistributions, DistributionPair
from privlearn.checking.exact.one_number import located, mixture
from privlearn.checking.exact.probe import (
    Affine,
    DenseNoise,
    UnpredictedError,
    affine,
    centre,
    check_noise,
    check_sampler,
    run,
    telling_outputs,
)
from privlearn.checking.exact.search import FARTHEST, LARGEST, SIZES, Searched, search
from privlearn.checking.exact.streams import Shift, laws_of_shifts, stream_distributions
from privlearn.checking.mined import in_variables, mined
from privlearn.checking.neighbours import (
    extreme_records,
    record_pool,
    spend_of,
    stated_spend,
    worst_pairs,
)
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_generator import Standard
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import is_stream
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.output_laws import Discrete
from privlearn.rows.domains import Array, Domain
from privlearn.values.adjacency import Adjacency
from privlearn.values.records import join, length, record_at

_MENTIONED = 12  # Numbers that code mentions about which records are made
_LATER = (40, 80, 120, 140, 180, 230, 280, 350, 450, 600, 900)
"""Numbers of rows from which on data sets begin at another arrival; none is a usual size."""
_REPORTS = 24  # Users of local reports, where none are asked for


@dataclass(frozen=True)
class _Look:
    mechanism: Any
    loss: Loss
    claim: Any
    neighbours: Sequence[tuple[Any, Any]] | None
    users: int


def additive_distributions(
    mechanism: Any, claim: Any, neighbours: Sequence[tuple[Any, Any]] | None, users: int | None
) -> AdditiveDistributions:
    """The laws of a mechanism that adds noise. Raises CheckError: it does more than add normal
    or Laplace noise, or its neighbours are unknown."""
    if is_stream(mechanism):
        return stream_distributions(mechanism, claim, neighbours, users)
    wanted = users if neighbours is None else length(neighbours[0][0])
    if not hasattr(mechanism, "release"):
        raise CheckError("it has neither release(rows, token) nor open(token)")
    look = _Look(mechanism, mechanism.loss(), claim, neighbours, wanted or 3)
    if not hasattr(mechanism, "open"):
        return _released(look)
    return _probed(replace(look, users=wanted or _REPORTS))


def _domain(look: _Look) -> Domain[Any]:
    return spend_of(look.mechanism, look.loss.adjacency).domain


def _others(look: _Look) -> Any:
    records = extreme_records(_domain(look))
    return record_at(records, np.arange(look.users) % 2)


def _with_record(others: Any, place: int, record: Any) -> Any:
    before, behind = record_at(others, slice(0, place)), record_at(others, slice(place + 1, None))
    return join([part for part in (before, record, behind) if length(part)])


def _at(others: Any, place: int, pair: tuple[Any, Any]) -> tuple[Any, Any]:
    return _with_record(others, place, pair[0]), _with_record(others, place, pair[1])


def _released(look: _Look) -> AdditiveDistributions:
    """A single release: searched for what is worse than the data sets at hand."""
    mechanism, loss = look.mechanism, look.loss
    domain = spend_of(mechanism, loss.adjacency).domain
    if look.neighbours is not None:
        sets = list(look.neighbours)
    else:
        nobody = record_at(extreme_records(domain), np.full(look.users, -1))
        sets = [_at(nobody, 0, pair) for pair in worst_pairs(domain, adjacency=loss.adjacency)]
    noise = _noise_on(look, sets[0][0])
    with in_variables() as held:
        centre(mechanism, loss, sets[0][1])
    numbers = mined(mechanism, most=_MENTIONED, also=held)
    starts = (0,) if loss.adjacency is Adjacency.ADD_REMOVE else (0, *numbers.starts())

    def first(rows: int) -> int:
        return starts[bisect(_LATER, rows) % len(starts)]

    within = look.claim is not None and look.neighbours is not None
    pool, changing = record_pool(domain, numbers.values(), look.neighbours or (), within=within)
    subject = Searched(
        run=lambda block, z: run(mechanism, loss, block, Script(z), (), first(length(block))),
        count=length(pool),
        take=lambda chosen: record_at(pool, chosen),
        changing=changing,
        null=length(pool) - 1,
        adjacency=loss.adjacency,
        mined=numbers,
        starts=starts,
    )
    found = search(subject, noise, sets)
    some = [] if found.bounded or found.suspects else [*sets[:2], sets[-1]]
    promise = loss if look.claim is None else look.claim
    return AdditiveDistributions(
        [(promise, [pair.laws for pair in found.shifted])],
        found.coverage,
        # no integers are read off what was cut or rounded afterwards
        telling_outputs(mechanism, loss, some, noise) if some else 0,
        found,
    )


def _noise_on(look: _Look, block: Any) -> Affine:
    noise = affine(look.mechanism, look.loss, block)
    check_sampler(noise.family)
    few = noise.family == "laplace" and np.linalg.matrix_rank(noise.matrix) < noise.matrix.shape[1]
    if few:
        raise CheckError("several Laplace numbers are added up: their law is not computed")
    return noise


def _probed(look: _Look) -> AdditiveDistributions:
    mechanism, loss = look.mechanism, look.loss
    sets: list[tuple[tuple[Any, Any], int]]
    if look.neighbours is not None:
        sets = [(pair, 0) for pair in look.neighbours]
    else:
        others, pairs = _others(look), worst_pairs(_domain(look), adjacency=loss.adjacency)
        sets = [(_at(others, j, pairs[0]), j) for j in range(look.users)]
    noise = _noise_on(look, sets[0][0][0])
    tried = [*sets[:2], sets[-1]]  # the law of the noise on some, the shift on all
    for seed, block in enumerate(block for pair, _ in tried for block in pair):
        check_noise(mechanism, loss, block, noise, seed)
    changes = [centre(mechanism, loss, a) - centre(mechanism, loss, b) for (a, b), _ in sets]
    found = DenseNoise(noise.family, noise.matrix).behind(np.array(changes).T)
    shifts = [Shift.of(place, found, k, f"pair {k}") for k, (_, place) in enumerate(sets)]
    paid = [(range(look.users), loss if look.claim is None else look.claim)]
    if look.claim is None:  # local reports are charged to each user, too
        paid = list(loss.over(range(look.users)))
    parts = laws_of_shifts(noise.family, paid, shifts)
    telling = telling_outputs(mechanism, loss, [pair for pair, _ in tried], noise)
    return AdditiveDistributions(parts, _tried_each(look), telling)


def _tried_each(look: _Look) -> Coverage:
    """Whether each user's report is made as that of a user alone, among up to 1,000 of them. Raises
    UnpredictedError: some report is not."""
    mechanism, loss = look.mechanism, look.loss
    domain, numbers = spend_of(mechanism, loss.adjacency).domain, mined(mechanism, most=_MENTIONED)
    pool, _ = record_pool(domain, numbers.values(), look.neighbours or (), within=False)
    count, rng = length(pool), np.random.default_rng(0)
    noise = affine(mechanism, loss, record_at(pool, slice(0, 1))).matrix
    alone = run(mechanism, loss, pool, Script(np.zeros(0))).reshape(count, -1)
    sizes = sorted({*SIZES[::3], *numbers.sizes(LARGEST)})
    for n in sizes:
        chosen = rng.integers(count, size=n)
        far = rng.choice([1.0, 5.0, 10.0, FARTHEST], size=(n, 1))
        z = np.clip(far * rng.normal(size=(n, noise.shape[1])), -FARTHEST, FARTHEST)
        block = record_at(pool, chosen)
        got = run(mechanism, loss, block, Script(z.reshape(-1))).reshape(n, -1)
        wanted = alone[chosen] + z @ noise.T
        unlike = ~np.isclose(got, wanted, rtol=1e-6, atol=1e-6 * np.abs(noise).max()).all(axis=1)
        if unlike.any():
            place = int(unlike.argmax())
            other = _with_record(block, place, record_at(pool, slice(0, 1)))
            told = f"the report of user {place} of {n} is made otherwise than that of a user alone"
            raise UnpredictedError(told, [(block, other)])
    axes = (
        Axis("values", f"{count} records about {len(numbers.numbers)} numbers in code"),
        Axis("sizes", f"{sizes[0]} to {sizes[-1]:,} users at once, each of them looked at"),
        Axis("noise", f"−{FARTHEST:g} to {FARTHEST:g} scales"),
    )
    return Coverage(axes)


_RUNS = 1_000  # On each data set
_FIRST, _MANY = 12, 64  # Runs, on so many records, in which it is seen whether there are coins
_FAILS = 1e-6  # Probability that the rate is below what is taken for it
_NULLS = 3  # Records beside the one that differs
_SAME = 1e-7


@dataclass(frozen=True)
class SampledLaw:
    """Laws on two data sets at the least rate that the counts allow, and what was tried."""

    pair: DistributionPair
    coverage: Coverage


def sampled_law(
    output: Callable[[Any, Array], Array], pair: tuple[Any, Any], family: Standard, matrix: Array
) -> SampledLaw | None:
    """Laws of a sample's noisy sum; None if the output is none, such as without coins. ``output``
    is flat, of data and standard noise, with fresh coins; the data sets of ``pair`` differ in one
    record, all others are null; ``matrix`` takes the noise to the output."""
    from scipy.stats import binomtest

    rng = np.random.default_rng(0)
    seen = [_centres(output, data, matrix, rng) for data in pair]
    bases = [value for value in seen[0] if value in seen[1]]
    values = sorted(map(len, seen))
    if values not in ([1, 2], [2, 2]) or len(bases) != 1:
        return None
    moves = [(value, n) for part in seen for value, n in part.items() if value != bases[0]]
    count, runs = sum(n for _, n in moves), _RUNS * len(moves)
    low, high = binomtest(count, runs).proportion_ci(1 - 2 * _FAILS)  # Clopper and Pearson's
    found = [_in_units(matrix, np.subtract(value, bases[0])) for value, _ in moves]
    shifts = [shift for shift in found if shift is not None]
    label = f"a sample at a rate of {low:.3g}"
    if len(shifts) < len(found):
        bare = DistributionPair(
            Discrete(np.log([1 - low, low])), Discrete(np.array([0.0, -np.inf])), label
        )
        return SampledLaw(bare, _coverage(low, high, runs))
    places = _on_a_line(shifts, family)
    if places is None:
        return None
    zero = located(family, 0.0, 1.0)
    moved = [mixture([(1 - low, zero), (low, located(family, x, 1.0))]) for x in places]
    laws = [*moved, zero][:2]
    return SampledLaw(DistributionPair(laws[0], laws[1], label), _coverage(low, high, runs))


def _coverage(low: float, high: float, runs: int) -> Coverage:
    rate = f"a record is in the sample at a rate between {low:.3g} and {high:.3g} ({runs} runs)"
    records = Axis("records", "one; all others null", enough=False)
    return Coverage((Axis("coins", rate, enough=False), records))


def _centres(
    output: Callable[[Any, Array], Array], data: Any, matrix: Array, rng: np.random.Generator
) -> dict[tuple[float, ...], int]:
    """What is left of outputs without their noise, and how often; up to three of them."""
    found: dict[tuple[float, ...], int] = {}
    for _ in range(_RUNS):
        z = rng.standard_normal((matrix.shape[1],))
        noise = np.asarray(matrix @ z)
        if (out := output(data, z)).shape != noise.shape:
            raise CheckError("the length of the output is up to chance")
        room = _SAME * (1 + np.abs(noise).max(initial=0.0))
        left = tuple(float(x) + 0.0 for x in np.round(out - noise, 6))
        near = next((x for x in found if np.abs(np.subtract(x, left)).max() < room + 2e-6), left)
        found[near] = found.get(near, 0) + 1
        if len(found) > 2:
            break
    return found


def _in_units(matrix: Array, move: Array) -> Array | None:
    """The move in standard numbers; None if no noise hides it."""
    inside = np.linalg.lstsq(matrix, move, rcond=1e-12)[0]
    hidden = np.linalg.norm(move - matrix @ inside) <= 1e-5 * np.linalg.norm(move)
    return np.asarray(inside, dtype=np.float64) if hidden else None


def _on_a_line(shifts: Sequence[Array], family: str) -> list[float] | None:
    """Where the records move the noise to, in units of it; None if that is no line."""
    size = max(float(np.linalg.norm(shift)) for shift in shifts)
    along = shifts[0] / np.linalg.norm(shifts[0])
    if family == "laplace" and np.count_nonzero(np.abs(along) > 1e-5) > 1:
        return None
    places = [float(shift @ along) for shift in shifts]
    off = max(float(np.linalg.norm(s - p * along)) for s, p in zip(shifts, places, strict=True))
    return places if off <= 1e-5 * size else None


def law_of_coins(mechanism: Any) -> SampledLaw | None:
    """Of a mechanism that tosses coins of its own; None if it is none."""
    loss = mechanism.loss()
    spend = stated_spend(mechanism, loss.adjacency) if hasattr(mechanism, "release") else None
    if spend is None:
        return None

    def output(block: Any, z: Array) -> Array:
        return run(mechanism, loss, block, Script(z))

    try:
        null = record_at(extreme_records(spend.domain), slice(-1, None))
        pair = worst_pairs(spend.domain, adjacency=loss.adjacency)[0]
        first, second = (join([part, *[null] * _NULLS]) for part in pair)
        many = join([first] * (_MANY // (_NULLS + 1)))
        still = [output(many, np.zeros(0)) for _ in range(_FIRST)]
        if all(np.array_equal(still[0], other) for other in still[1:]):
            return None
        noise = affine(mechanism, loss, join([null] * (_NULLS + 1)))
        check_sampler(noise.family)
        return sampled_law(output, (first, second), noise.family, noise.matrix)
    except CheckError:  # noise that is not added, or of another law
        return None
