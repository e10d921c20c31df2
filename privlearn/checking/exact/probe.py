"""Runs a mechanism on noise that is written down in advance, to see what it does with it.

An output that is an affine function of independent normal (or Laplace) numbers is known completely
once each of them was set to 1 in turn.  Nothing that a mechanism says about itself is believed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from privlearn.checking.neighbours import each_float, spend_of
from privlearn.checking.scripted_noise import LimitedSource, Script
from privlearn.checking.stream_runs import StubAccountant, released_by
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.noise import NoiseSource
from privlearn.noise.exact.pool import Kind, variates
from privlearn.noise.exact.tables import FLOOR_BITS
from privlearn.rows import Rows
from privlearn.rows.domains import Array
from privlearn.values.grid import Grid
from privlearn.values.records import length

_MOST_NUMBERS = 4096
_GRID = 1 << 14  # Words of each sign, or half, on which a sampler is tried
_IN_SCIPY = {"normal": "norm", "laplace": "laplace", "exponential": "expon", "gumbel": "gumbel_r"}
_DRAWS, _DRAWS_EACH = 2_000, 64
"""Times that one run may ask for noise, and times more for every user."""
_SAMPLER_GAP = 1e-3
"""Distance of a sampler's distribution function from the true one that the grid can resolve."""


def released_on(
    mechanism: Any, loss: Loss, block: Any, source: Any, calls: tuple[int, ...] = (), first: int = 0
) -> Array:
    """What one run on ``block`` lets out, with the random numbers of ``source``. A stream takes its
    rows in turn as many at a time as ``calls`` says; at once if it says nothing. ``first`` is the
    arrival number of the first row."""
    users = range(first, first + length(block))
    limited = LimitedSource(source, _DRAWS + _DRAWS_EACH * len(users))
    token = StubAccountant(cast(NoiseSource, limited), loss.adjacency).issue(users)
    return np.asarray(released_by(mechanism, Rows.seal(block, users=users), token, calls)[1])


def run(
    mechanism: Any,
    loss: Loss,
    block: Any,
    script: Script,
    calls: tuple[int, ...] = (),
    first: int = 0,
) -> Array:
    """What one run on ``block`` lets out, as a flat vector; see `released_on`."""
    value = released_on(mechanism, loss, block, script, calls, first)
    if value.dtype.kind in "iu":
        raise CheckError("the output is a choice or a count, so noise is not just added")
    if value.dtype.kind != "f" or not np.isfinite(value).all():
        raise CheckError("the output is not made of finite numbers, so noise is not just added")
    return np.asarray(value, dtype=np.float64).reshape(-1)


class UnpredictedError(CheckError):
    """Outputs are not those that follow from data and noise as they were measured.

    Attributes:
        pairs: neighbours on which that was seen; samples may tell more.
    """

    def __init__(self, why: str, pairs: Sequence[tuple[Any, Any]] = ()) -> None:
        super().__init__(f"{why}: check it by sampling")
        self.pairs = tuple(pairs)


NOT_ADDED = "the output is not data plus noise whose law is the same for all data"


class Affine(NamedTuple):
    """output = centre(data) + matrix @ z, z independent of one family ('normal' or 'laplace')."""

    family: Kind
    matrix: Array  # (outputs, numbers drawn)


def affine(
    mechanism: Any, loss: Loss, block: Any, calls: tuple[int, ...] = (), first: int = 0
) -> Affine:
    """The matrix that takes standard noise to the output, measured. Raises CheckError: the
    output is not affine in normal or Laplace noise, or there is too much of it."""
    script = Script(np.zeros(0))
    base = run(mechanism, loss, block, script, calls, first)
    if set(script.drawn) not in ({"normal"}, {"laplace"}):
        raise CheckError("neither only normal noise nor only Laplace noise is drawn")
    ((family, n),) = script.drawn.items()
    if n > _MOST_NUMBERS:
        raise CheckError(f"{n} random numbers are drawn: at most {_MOST_NUMBERS} can be probed")
    matrix = np.empty((len(base), n))
    for i in range(n):
        numbers = np.zeros(i + 1)
        numbers[i] = 1.0
        moved = run(mechanism, loss, block, Script(numbers), calls, first)
        matrix[:, i] = _same_shape(moved, base) - base
    return Affine(family, matrix)


def centre(mechanism: Any, loss: Loss, block: Any) -> Array:
    """The output without noise."""
    return run(mechanism, loss, block, Script(np.zeros(0)))


def check_noise(mechanism: Any, loss: Loss, block: Any, noise: Affine, seed: int) -> None:
    """Raises CheckError: random noise on ``block`` does not act as ``noise`` says."""
    rng = np.random.default_rng(seed)
    sizes: Array = rng.exponential(size=noise.matrix.shape[1:])
    signs = rng.choice([-1.0, 1.0], len(sizes))
    base = centre(mechanism, loss, block)
    moved = _same_shape(run(mechanism, loss, block, Script(sizes * signs)), base)
    expected = noise.matrix @ (sizes * signs)
    if len(base) != len(expected) or not np.allclose(
        moved - base, expected, rtol=1e-7, atol=1e-9 * (1 + float(np.abs(base).max(initial=0)))
    ):
        raise CheckError(f"{NOT_ADDED}: check it by sampling")


def _same_shape(output: Array, base: Array) -> Array:
    if output.shape != base.shape:
        raise CheckError("outputs differ in shape from run to run: check by sampling")
    return output


@dataclass(frozen=True)
class _Grid:
    def words(self, n: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        ticks = ((np.arange(n // 2) + 0.5) / (n // 2) * 2.0**64).astype(np.uint64)
        return np.concatenate([ticks & ~np.uint64(1), ticks | np.uint64(1)])

    def more(self) -> int:
        return 1 << 63


def sampler_gap(kind: Kind) -> float:
    """Distance between distribution functions: of the real sampler on a grid, and of its law."""
    from scipy import stats  # late, as it takes a second

    drawn = np.ldexp(variates(kind, _Grid(), 2 * _GRID).floors, -FLOOR_BITS)
    levels = (np.arange(64) + 0.5) / 64
    below = np.searchsorted(getattr(stats, _IN_SCIPY[kind]).ppf(levels), drawn)
    reached = np.cumsum(np.bincount(below, minlength=65))[:64] / len(drawn)
    return float(np.abs(reached - levels).max())


def check_sampler(kind: Kind) -> None:
    """Raises CheckError unless the numbers that are drawn have the law that is assumed."""
    gap = sampler_gap(kind)
    if not gap <= _SAMPLER_GAP:
        raise CheckError(f"the {kind} sampler is off by {gap:.3g}: its noise is not the stated one")


_INNER = (0.618, 2.3e-4, 3.7e-4, 5.1e-4, 7.9e-4)
"""By which records are made smaller that need not be extreme."""
_FAR = 2.0**48  # Steps that are found from doubles with digits to spare
_OFF = 0.3  # Of a step, from the nearest integer; less is rounding


def telling_outputs(
    mechanism: Any, loss: Loss, pairs: Sequence[tuple[Any, Any]], noise: Affine
) -> int:
    """Numbers of the output that are no function of the noisy integers of a stated grid."""
    grid = spend_of(mechanism, loss.adjacency).grid
    if grid is None:
        return 0
    # two extreme records may be an even number of steps apart
    inner = [each_float(pairs[0][0], partial(np.multiply, factor)) for factor in _INNER]
    tried = [*pairs, *((block, pairs[0][1]) for block in inner)]
    return max(
        _differing_outputs(mechanism, loss, pair, noise, grid, seed)
        for seed, pair in enumerate(tried)
    )


def _differing_outputs(
    mechanism: Any, loss: Loss, pair: tuple[Any, Any], noise: Affine, grid: Grid, seed: int
) -> int:
    """How many numbers of the output tell which of two data sets the same noisy integers are of.
    Exact noise makes X + N private, X the integers of the data: if X becomes X′ and N becomes N + X
    − X′, not the last bit may change. X − X′ is taken from outputs without noise."""
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


_AHEAD = 512  # Rows of noise that a factorisation may draw at once
_UNSOLVED = 1e-6  # Of a change; what is left of it was not hidden


class _Scripted:
    """Noise of one block: given columns, and behind them units, or zeros in their place."""

    def __init__(self, columns: int) -> None:
        self.columns, self.drawn = columns, 0
        self.given: Array | None = None

    def __call__(self, rows: int) -> Array:
        if self.drawn:
            raise CheckError("noise is drawn while there is some left: check a window of it")
        if rows > _AHEAD:
            raise CheckError(f"{rows} rows of noise are drawn at once: at most {_AHEAD} are solved")
        self.drawn, z = rows, np.zeros((rows, self.columns + _AHEAD))
        if self.given is None:
            z[:, self.columns : self.columns + rows] = np.eye(rows)
        else:
            z[: len(self.given), : self.columns] = self.given
        return z


def solved(
    factorization: Factorization,
    arrivals: int,
    sums: Callable[[range], Array],
    *,
    keep: bool = False,
) -> tuple[Array, Array]:
    """The noise z that moves W by given running sums: squared lengths of its columns, and if it is
    kept z itself, (arrivals, columns). Raises CheckError: L is not lower triangular, singular,
    or not the same whatever is drawn."""
    columns = sums(range(1)).shape[1]
    script = _Scripted(columns)
    # a function of its own, because copies of the stream must draw from the same script
    stream = factorization.stream(lambda rows: script(rows))
    masses, blocks, at = np.zeros(columns), [], 0
    while at < arrivals:
        script.given, script.drawn = None, 0
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
        script.given, script.drawn = result, 0
        _advanced(stream, script, used)
        at += used
    return masses, np.concatenate(blocks) if blocks else np.zeros((0, columns))


def _advanced(stream: NoiseStream, script: _Scripted, most: int) -> Array:
    first = stream.next(1)
    if not script.drawn:
        raise CheckError("a row of noise comes out before it is drawn")
    rest = stream.next(min(script.drawn, most) - 1)
    return np.concatenate([first, rest])


class Numbers(NamedTuple):
    """The noise, one column for each change of the outputs, and whether it makes up for it."""

    z: Array
    solved: Array


@dataclass(frozen=True, eq=False)
class DenseNoise:
    """M, written down."""

    family: Kind
    matrix: Array

    @property
    def count(self) -> int:
        return len(self.matrix.T)

    def moved(self, z: Array) -> Array:
        return np.asarray(self.matrix @ z)

    def behind(self, changes: Array) -> Numbers:
        z: Array = np.asarray(np.linalg.lstsq(self.matrix, changes, rcond=1e-12)[0], np.float64)
        return Numbers(z, _reached(changes, self.matrix @ z))


def _reached(wanted: Array, got: Array) -> Array:
    left = np.linalg.norm(wanted - got, axis=0)
    return np.asarray(left <= _UNSOLVED * np.linalg.norm(wanted, axis=0))


@dataclass(frozen=True, eq=False)
class SolvedNoise:
    """Normal noise of a ``factorization``, scaled and decoded."""

    factorization: Factorization
    scale: float
    arrivals: int
    decoded: Array  # What each number of a row becomes in an output, (size, width)
    family: Kind = "normal"

    @property
    def size(self) -> int:
        return len(self.decoded)

    @property
    def count(self) -> int:
        return self.arrivals * self.size

    def moved(self, z: Array) -> Array:
        rows = iter(z.reshape(self.arrivals, self.size))

        def draw(n: int) -> Array:
            taken = [next(rows, np.zeros(self.size)) for _ in range(n)]
            return np.array(taken).reshape(n, self.size)

        noise = self.factorization.stream(draw).next(self.arrivals)
        return np.asarray(noise * self.scale @ self.decoded).reshape(-1)

    def behind(self, changes: Array) -> Numbers:
        columns = changes.shape[1]
        wanted = changes.reshape(self.arrivals, -1, columns)
        sums = np.einsum("awk,ws->ask", wanted, np.linalg.pinv(self.decoded))
        reached = _reached(
            changes, np.einsum("ask,sw->awk", sums, self.decoded).reshape(-1, columns)
        )
        flat = sums.reshape(self.arrivals, -1)
        _, z = solved(
            self.factorization, self.arrivals, lambda part: flat[part.start : part.stop], keep=True
        )
        return Numbers(z.reshape(self.count, columns) / self.scale, reached)

    def unit_masses(self, arrivals: NDArray[np.int_]) -> Array:
        """Of a running sum that moves by 1 from each of some arrivals on."""
        masses, _ = solved(
            self.factorization,
            self.arrivals,
            lambda part: (np.array(part)[:, None] >= arrivals).astype(np.float64),
        )
        return np.asarray(masses / self.scale**2)


StreamNoise = DenseNoise | SolvedNoise
