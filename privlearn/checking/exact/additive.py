"""Output distributions of mechanisms that add normal or Laplace noise.

They are probed number by number (`exact.probe`); streams in a way of their own (`exact.streams`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from privlearn.checking.default_neighbours import record_pool, spend_of
from privlearn.checking.exact.distributions import AdditiveDistributions
from privlearn.checking.exact.last_bits import telling_outputs
from privlearn.checking.exact.probe import (
    Affine,
    UnpredictedError,
    affine,
    centre,
    check_noise,
    check_sampler,
    run,
)
from privlearn.checking.exact.search import (
    FARTHEST,
    LARGEST,
    SIZES,
    Searched,
    search,
)
from privlearn.checking.exact.stream_noise import DenseNoise
from privlearn.checking.exact.streams import Shift, laws_of_shifts, stream_distributions
from privlearn.checking.mined import mined
from privlearn.checking.neighbours import extreme_records, worst_pairs
from privlearn.checking.reports import Axis, Coverage
from privlearn.checking.scripted_noise import Script
from privlearn.checking.stream_runs import is_stream
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.rows.domains import Domain
from privlearn.values.records import join, length, record_at

_MENTIONED = 12  # Numbers that code mentions about which records are made
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
    """The laws of a mechanism that adds noise.

    Raises:
        CheckError: it does more than add normal or Laplace noise, or its neighbours are unknown.
    """
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
    numbers = mined(mechanism, most=_MENTIONED)
    within = look.claim is not None and look.neighbours is not None
    pool, changing = record_pool(domain, numbers.values(), look.neighbours or (), within=within)
    subject = Searched(
        run=lambda block, z: run(mechanism, loss, block, Script(z)),
        count=length(pool),
        take=lambda chosen: record_at(pool, chosen),
        changing=changing,
        null=length(pool) - 1,
        adjacency=loss.adjacency,
        mined=numbers,
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
    """Whether each user's report is made as that of a user alone, among up to 1,000 of them.

    Raises:
        UnpredictedError: some report is not.
    """
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
            raise UnpredictedError(f"the report of user {place} of {n} is made otherwise than that "
                                   "of a user alone", [(block, other)])  # fmt: skip
    return Coverage(
        (
            Axis("values", f"{count} records about {len(numbers.numbers)} numbers in code"),
            Axis("sizes", f"{sizes[0]} to {sizes[-1]:,} users at once, each of them looked at"),
            Axis("noise", f"−{FARTHEST:g} to {FARTHEST:g} scales"),
        )
    )
