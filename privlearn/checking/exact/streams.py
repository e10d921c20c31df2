"""What one record costs a stream of correlated normal noise, at every arrival of a long horizon.

The noise of a stream is W = L·z with z standard normal and L lower triangular, so a change s of the
running sums costs the mass ‖x‖² with L·x = s.  L is never written down: the factorisation is run
on many columns at once, and x found by forward substitution, block by block as noise is drawn.

That is a guess about the mechanism, which may use its factorisation wrongly.  It is then tried on
the running code, with the noise that was found written into its receipt: on one data set it must
release, to rounding, what it releases without noise on the other (`check_between`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg import solve_triangular

from privlearn.checking.exact.probe import centre, run
from privlearn.checking.scripted_noise import Script
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.rows.domains import Array, Domain

MOST_ARRIVALS = 2**16  # Arrivals of a longer stream that are looked at
_ALL_PLACES = 2048  # Every arrival is tried in streams that are no longer
_SOME_PLACES = 512
"""Arrivals of longer ones that are tried at random, beside the first, the last and doublings."""
_EDGE = 64  # First and last arrivals that are always tried
_AHEAD = 512  # Rows of noise that a factorisation may draw at once


class _Scripted:
    def __init__(self, columns: int) -> None:
        self.columns, self.drawn = columns, 0
        self.next: Callable[[int], Array] = self.zeros

    def __call__(self, rows: int) -> Array:
        if self.drawn:
            raise CheckError("noise is drawn while there is some left: check a window of it")
        if rows > _AHEAD:
            raise CheckError(f"{rows} rows of noise are drawn at once: at most {_AHEAD} are solved")
        self.drawn = rows
        return self.next(rows)

    def zeros(self, rows: int) -> Array:
        return np.zeros((rows, self.columns + _AHEAD))

    def units(self, rows: int) -> Array:
        z = self.zeros(rows)
        z[:, self.columns : self.columns + rows] = np.eye(rows)
        return z


def solved(
    factorization: Factorization,
    arrivals: int,
    sums: Callable[[range], Array],
    *,
    keep: bool = False,
) -> tuple[Array, Array]:
    """The noise z that moves W by given running sums.

    Returns:
        Squared lengths of the columns of z, and z, (arrivals, columns), or an empty array.

    Raises:
        CheckError: L is not lower triangular, singular, or not the same whatever is drawn.
    """
    columns = sums(range(1)).shape[1]
    script = _Scripted(columns)
    # a function of its own, because copies of the stream must draw from the same script
    stream = factorization.stream(lambda rows: script(rows))
    masses, blocks, at = np.zeros(columns), [], 0
    while at < arrivals:
        script.next, script.drawn = script.units, 0
        ahead = _advanced(copy.deepcopy(stream), script, arrivals - at)
        used = len(ahead)
        wanted = sums(range(at, at + used)) - ahead[:, :columns]
        units = ahead[:, columns : columns + used]
        if np.abs(np.triu(units, 1)).max(initial=0.0) > 0 or not np.diagonal(units).all():
            raise CheckError("the noise of a row depends on later rows, or a row has none")
        result = solve_triangular(units, wanted, lower=True)
        masses += (result**2).sum(axis=0)
        if keep:
            blocks.append(result)
        script.next, script.drawn = _written(script, result), 0
        _advanced(stream, script, used)
        at += used
    return masses, np.concatenate(blocks) if blocks else np.zeros((0, columns))


def _written(script: _Scripted, result: Array) -> Callable[[int], Array]:
    def z(rows: int) -> Array:
        made = script.zeros(rows)
        made[: len(result), : script.columns] = result
        return made

    return z


def _advanced(stream: NoiseStream, script: _Scripted, most: int) -> Array:
    first = stream.next(1)
    if not script.drawn:
        raise CheckError("a row of noise comes out before it is drawn")
    rest = stream.next(min(script.drawn, most) - 1)
    return np.concatenate([first, rest])


def tried_places(arrivals: int, also: range | list[int], seed: int = 0) -> list[int]:
    """Where the changed record is put: everywhere, or first, last, at doublings and at random."""
    if arrivals <= _ALL_PLACES:
        return list(range(arrivals))
    rng = np.random.default_rng(seed)
    some = {*range(_EDGE), *range(arrivals - _EDGE, arrivals), arrivals // 2}
    some |= {place for place in also if 0 <= place < arrivals}
    doublings = {2**k + move for k in range(arrivals.bit_length()) for move in (-1, 0)}
    some |= {place for place in doublings if place < arrivals}
    some |= {arrivals - place for place in doublings if 0 < place < arrivals}
    some |= set(rng.integers(0, arrivals, _SOME_PLACES).tolist())
    return sorted(some)


@dataclass(frozen=True)
class Stream:
    """A stream whose noise is that of its factorisation, as far as that is yet known."""

    mechanism: Any
    loss: Loss
    scale: float
    users: int
    batches: tuple[int, ...] = ()

    @property
    def domain(self) -> Domain[Any]:
        domain: Domain[Any] = self.mechanism.domain
        return domain

    @property
    def arrivals(self) -> int:
        return len(self.batches) or self.users

    def arrival(self, user: int) -> int:
        if not self.batches:
            return user
        return int(np.searchsorted(np.cumsum(self.batches), user, side="right"))

    def masses(self, users: list[int], move: Array) -> Array:
        """What it costs each of some users to move their contribution by ``move``."""
        arrivals = np.array([self.arrival(user) for user in users])
        unit, _ = solved(
            self.mechanism.factorization,
            self.arrivals,
            lambda part: (np.array(part)[:, None] >= arrivals).astype(np.float64),
        )
        return np.asarray(unit * float(move @ move) / self.scale**2)

    def noise_between(self, pair: tuple[Any, Any]) -> Array:
        """The noise that makes up for the difference of two data sets, (arrivals, size)."""
        moved = self.domain.clip(pair[0]) - self.domain.clip(pair[1])
        if self.batches:
            starts = np.cumsum([0, *self.batches[:-1]])
            moved = np.add.reduceat(moved, starts, axis=0)
        sums = np.cumsum(moved, axis=0)
        _, result = solved(
            self.mechanism.factorization,
            self.arrivals,
            lambda part: sums[part.start : part.stop],
            keep=True,
        )
        return np.asarray(result / self.scale)

    def check_between(self, pair: tuple[Any, Any], noise: Array) -> None:
        wanted = centre(self.mechanism, self.loss, pair[0])
        got = run(self.mechanism, self.loss, pair[1], Script(noise.reshape(-1)))
        _check_close(got, wanted)

    def check_noise(self, block: Any, seed: int) -> None:
        size = self.domain.size
        z = np.random.default_rng(seed).standard_normal((self.arrivals, size))
        rows = iter(z)

        def draw(n: int) -> Array:
            taken = [next(rows, np.zeros(size)) for _ in range(n)]
            return np.array(taken).reshape(n, size)

        noise = self.mechanism.factorization.stream(draw).next(self.arrivals) * self.scale
        wanted = centre(self.mechanism, self.loss, block)
        got = run(self.mechanism, self.loss, block, Script(z.reshape(-1)))
        _check_close(got, wanted + np.asarray(self.domain.decode(noise)).reshape(-1))


def _check_close(got: Array, wanted: Array) -> None:
    size = float(np.abs(wanted).max(initial=0.0))
    if got.shape != wanted.shape or not np.allclose(got, wanted, rtol=1e-7, atol=1e-8 * (1 + size)):
        raise CheckError("its noise is not that of its factorisation, scaled as it says")
