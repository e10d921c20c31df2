"""What the noise of a stream does, and which noise would hide a change of its outputs.

What leaves is moved by M·z, z the numbers that are drawn.  M is found number by number, or guessed
from a ``factorization``: M = decode(L·scale) with L lower triangular and never written down; z
follows by forward substitution on many columns at once, block by block as noise is drawn.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from privlearn.errors import CheckError
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.noise_stream import NoiseStream
from privlearn.noise.exact.pool import Kind
from privlearn.rows.domains import Array

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
