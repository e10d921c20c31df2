"""Runs a mechanism on noise that is written down in advance, to see what it does with it.

A mechanism whose output is an affine function of independent normal (or Laplace) numbers is known
completely once each of them was set to 1 in turn.  Nothing is taken from what the mechanism says
about itself: not its sensitivity, not its noise level, not its factorisation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, cast, final

import numpy as np

from privlearn._records import length
from privlearn.checking.stream_runs import released_by
from privlearn.checking.stub_accountant import StubAccountant
from privlearn.domains import Array
from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.noise import LaplaceNoise, NoiseSource
from privlearn.rows import Rows

_MOST_NUMBERS = 4096
_GRID = 512
_DRAWS, _DRAWS_EACH = 2_000, 64
"""Times that one run may ask for noise, and times more for every user."""
_SAMPLER_GAP = 0.004
"""Distance of a sampler's distribution function from the true one that the grid can resolve."""


class Script:
    """A noise source that hands out numbers written down in advance, and zeros behind them."""

    name, simulated = "scripted", True

    def __init__(self, numbers: Array, signs: Array | None = None) -> None:
        self._numbers, self._signs = numbers, signs
        self.normals = self.uniforms = 0

    def normal(self, shape: tuple[int, ...]) -> Array:
        first, self.normals = self.normals, self.normals + math.prod(shape)
        return self._take(self._numbers, first, shape)

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """In turn a sign (above 1/2 for +) and e^−x for the next number x."""
        if self.normals:
            raise CheckError("normal and uniform numbers are mixed: check it by sampling")
        n, calls = math.prod(shape), self.uniforms
        first = calls // 2
        if calls % (2 * n) not in (0, n):
            raise CheckError("uniform numbers are not used in pairs of a sign and a size")
        self.uniforms += n
        if calls % (2 * n) == 0:
            signs = np.ones(n) if self._signs is None else self._take(self._signs, first, (n,))
            return np.where(signs >= 0, 0.75, 0.25).reshape(shape)
        sizes = np.exp(-self._take(self._numbers, first - n // 2, shape))
        return np.asarray(np.minimum(sizes, 1 - 2.0**-53))  # uniforms are below 1

    def _take(self, numbers: Array, first: int, shape: tuple[int, ...]) -> Array:
        taken = np.zeros(math.prod(shape))
        part = numbers[first : first + len(taken)]
        taken[: len(part)] = part
        return taken.reshape(shape)


class _LimitedSource:
    """A noise source with a limit on its draws, for a mechanism that draws until a value suits it.

    Numbers that are written down in advance may never suit it, and the run would not end.
    """

    name, simulated = "scripted", True

    def __init__(self, source: Any, draws: int) -> None:
        self._source, self._most, self._left = source, draws, draws

    def normal(self, shape: tuple[int, ...]) -> Array:
        self._count()
        return cast(Array, self._source.normal(shape))

    def uniform(self, shape: tuple[int, ...]) -> Array:
        self._count()
        return cast(Array, self._source.uniform(shape))

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise CheckError(
                f"one run asks for noise more than {self._most} times, so that the noise may be "
                "chosen by what it gives: check it by sampling"
            )


def released_on(mechanism: Any, loss: Loss, block: Any, source: Any) -> Array:
    """What one run on ``block`` lets out, with the random numbers of ``source``."""
    users = range(length(block))
    limited = _LimitedSource(source, _DRAWS + _DRAWS_EACH * len(users))
    token = StubAccountant(cast(NoiseSource, limited), loss.adjacency).issue(users)
    return np.asarray(released_by(mechanism, Rows.seal(block, users=users), token)[1])


def run(mechanism: Any, loss: Loss, block: Any, script: Script) -> Array:
    """What one run on ``block`` lets out, as a flat vector."""
    value = released_on(mechanism, loss, block, script)
    if value.dtype.kind in "iu":
        raise CheckError("the output is a choice or a count, so noise is not just added")
    if value.dtype.kind != "f" or not np.isfinite(value).all():
        raise CheckError("the output is not made of finite numbers, so noise is not just added")
    return np.asarray(value, dtype=np.float64).reshape(-1)


class Affine(NamedTuple):
    """output = centre(data) + matrix @ z, z independent of one family ('normal' or 'laplace')."""

    family: str
    matrix: Array
    """(outputs, numbers drawn)"""


def affine(mechanism: Any, loss: Loss, block: Any) -> Affine:
    """The matrix that takes standard noise to the output, measured.

    Raises:
        CheckError: the output is not affine in normal or Laplace noise, or there is too much of it.
    """
    script = Script(np.zeros(0))
    base = run(mechanism, loss, block, script)
    if bool(script.normals) == bool(script.uniforms):
        raise CheckError("neither only normal noise nor only Laplace noise is drawn")
    family = "normal" if script.normals else "laplace"
    n = script.normals or script.uniforms // 2
    if n > _MOST_NUMBERS:
        raise CheckError(f"{n} random numbers are drawn: at most {_MOST_NUMBERS} can be probed")
    matrix = np.empty((len(base), n))
    for i in range(n):
        numbers = np.zeros(i + 1)
        numbers[i] = 1.0
        matrix[:, i] = _same_shape(run(mechanism, loss, block, Script(numbers)), base) - base
    return Affine(family, matrix)


def centre(mechanism: Any, loss: Loss, block: Any) -> Array:
    """The output without noise."""
    return run(mechanism, loss, block, Script(np.zeros(0)))


def check_noise(mechanism: Any, loss: Loss, block: Any, noise: Affine, seed: int) -> None:
    """Tries random noise on ``block``.

    Raises:
        CheckError: it does not act as ``noise`` says: the output is not affine, or its noise
            depends on the data.
    """
    rng = np.random.default_rng(seed)
    sizes: Array = rng.exponential(size=noise.matrix.shape[1:])
    signs = rng.choice([-1.0, 1.0], len(sizes))
    base = centre(mechanism, loss, block)
    script = Script(sizes * signs) if noise.family == "normal" else Script(sizes, signs)
    moved = _same_shape(run(mechanism, loss, block, script), base)
    expected = noise.matrix @ (sizes * signs)
    if len(base) != len(expected) or not np.allclose(
        moved - base, expected, rtol=1e-7, atol=1e-9 * (1 + float(np.abs(base).max(initial=0)))
    ):
        raise CheckError(
            "the output is not data plus noise whose law is the same for all data: check it by "
            "sampling (black_box)"
        )


def _same_shape(output: Array, base: Array) -> Array:
    if output.shape != base.shape:
        raise CheckError("outputs differ in shape from run to run: check by sampling (black_box)")
    return output


@final
@dataclass
class _Grid:
    """Words of uniform numbers on a grid: every pair of two numbers once."""

    calls: int = 0

    def words(self, n: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        ticks = ((np.arange(_GRID) + 0.5) / _GRID * 2.0**64).astype(np.uint64)
        slow, fast = np.repeat(ticks, _GRID), np.tile(ticks, _GRID)
        self.calls += 1
        if n == 2 * _GRID**2:
            return np.concatenate([slow, fast])
        return slow if self.calls % 2 else fast


def sampler_gap(family: str) -> float:
    """Distance between distribution functions: of the real sampler on a grid, and of its law."""
    source = NoiseSource(cast(Any, _Grid()), "grid", simulated=True)
    levels = (np.arange(64) + 0.5) / 64
    if family == "normal":
        from scipy.special import ndtri

        drawn, quantiles = source.normal((2 * _GRID**2,)), ndtri(levels)
    else:
        drawn = LaplaceNoise(1.0).draw(source, (_GRID**2,))
        quantiles = np.sign(levels - 0.5) * -np.log(2 * np.minimum(levels, 1 - levels))
    below = np.searchsorted(quantiles, drawn)
    reached = np.cumsum(np.bincount(below, minlength=65))[:64] / len(drawn)
    return float(np.abs(reached - levels).max())


def check_sampler(family: str) -> None:
    """Raises CheckError unless the numbers that are drawn have the law that is assumed."""
    gap = sampler_gap(family)
    if not gap <= _SAMPLER_GAP:
        raise CheckError(
            f"the {family} sampler is off by {gap:.3g} in its distribution function: the noise "
            "that is drawn is not the noise that is stated"
        )
