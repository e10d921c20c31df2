"""Exact laws of the output of ``f(data, rng)``, measured on the running code.

Here: outputs that no number moves, noise that is added, and choices by the largest noisy score.
"""

from __future__ import annotations

import itertools
import math
import time
import warnings
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, cast

import numpy as np
from scipy.special import ndtr

from privlearn.checking.exact.choices import _FAMILIES, _Choice, _Family
from privlearn.checking.exact.distributions import DistributionPair, whitened
from privlearn.checking.exact.one_number import FAR, NOTHING_HIDES, aligned, shifted_pair
from privlearn.checking.isolation import is_output
from privlearn.checking.sampling.encoding import Raised, layout, row_of
from privlearn.checking.scripted_generator import (
    REST,
    ScriptedGenerator,
    Standard,
    Tape,
    scripted_globals,
    standard,
)
from privlearn.checking.targets import has_own_randomness, runs_of
from privlearn.errors import CheckError
from privlearn.losses.output_laws import Discrete, Normal, Product
from privlearn.rows.domains import Array

_MOST_NUMBERS = 512  # Of one run, where they are added
_HUGE = 1e12
_COINS, _MOST_COINS = (1e-9, 1e-5, 1e-3, 0.1, 0.9, 1 - 1e-3, 1 - 1e-5, 1 - 1e-9), 24
NONE = np.zeros(0)
DEAD = 1e-12  # Of the output's size: what a number moves by less is the order of a sum
ORDER = "what the numbers of a run are depends on what is drawn, or on the data"


@dataclass(frozen=True)
class Seen:
    """One run: what left, taken apart, and what it had drawn."""

    leaves: dict[str, Any]
    tape: Tape
    value: Any

    def numbers(self) -> dict[str, float]:
        return {path: x for path, x in self.leaves.items() if type(x) is float}

    def form(self) -> dict[str, Any]:
        return {path: x for path, x in self.leaves.items() if type(x) is not float}


@dataclass
class Runs:
    """A function on chosen numbers, each run on fresh data; only while ``with`` lasts."""

    function: Callable[..., Any]
    rng: ScriptedGenerator = field(default_factory=lambda: ScriptedGenerator(Tape(NONE)))
    _stack: ExitStack = field(default_factory=ExitStack)
    _on: dict[int, tuple[Any, Callable[[Any], Any]]] = field(default_factory=dict)
    until: float = math.inf
    """When there is no more time, on the clock of `time.process_time`."""

    def __enter__(self) -> Runs:
        if has_own_randomness(self.function):
            self._stack.enter_context(scripted_globals(self.rng))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def __call__(
        self, data: Any, script: Array = NONE, chance: np.random.Generator | None = None
    ) -> Seen:
        if time.process_time() > self.until:
            raise CheckError("its exact law takes too long")
        if id(data) not in self._on:
            self._on[id(data)] = data, runs_of(self.function)(data)
        self.rng.tape = tape = Tape(script, chance)
        value: Any
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                value = self._on[id(data)][1](self.rng)
            except BaseException as error:
                if not is_output(error):
                    raise
                value = Raised.by(error)
        leaves = row_of(value)
        leaves |= {f".warns[{i}]": str(warning.message) for i, warning in enumerate(said)}
        leaves[".layout"] = layout(value)
        return Seen(leaves, tape, value)


@dataclass(frozen=True)
class PairLaw:
    """Laws of the output on two data sets, or of what is computed from it."""

    how: str
    pair: DistributionPair
    exact: bool = True  # Whether it is the whole output
    affine: tuple[Affine, Affine] | None = None  # If noise is just added
    choice: bool = False  # Whether it is that of the largest noisy score


@dataclass(frozen=True)
class Affine:
    """paths of the output = centre + matrix @ z."""

    paths: tuple[str, ...]
    centre: Array
    matrix: Array
    kinds: tuple[Standard, ...]
    form: dict[str, Any]

    def at(self, z: Array) -> Array:
        return np.asarray(self.centre + self.matrix @ z)


def demand_tape(runs: Runs, data: Any) -> None:
    """Raises CheckError where randomness is not on the tape, or answers are kept."""
    chance = [runs(data, chance=np.random.default_rng(seed)) for seed in (0, 0, 1)]
    if chance[0].tape.unsupported:
        raise CheckError(f"draws by {', '.join(sorted(chance[0].tape.unsupported))} are not known")
    marks = [marks_of(seen.leaves) for seen in chance]
    forgot = chance[0].tape.kinds and not chance[1].tape.kinds
    if forgot or (chance[0].tape.kinds and marks[0] == marks[2] and _remembers(runs, data)):
        raise CheckError("it answers from memory: on the same data it gives the same noise again")
    if marks[0] != marks[1]:
        raise CheckError("it has randomness of its own, which the generator does not give")


def _remembers(runs: Runs, data: Any) -> bool:
    """Whether noise counts when data are seen for the first time, and not again."""
    if type(data) not in (list, np.ndarray) or not np.ndim(np.asarray(data, dtype=object)):
        return False
    for copies in (2, 3):
        new = data * copies if isinstance(data, list) else np.concatenate([data] * copies)
        first = runs(new, np.full(_MOST_NUMBERS, _HUGE)).numbers().values()
        again = runs(new).numbers().values()
        if [*first] == [*again] and max(map(abs, first), default=0.0) > math.sqrt(_HUGE):
            return True
    return False


def without_noise(runs: Runs, first: Any, second: Any) -> PairLaw:
    """Of outputs that follow from the data alone."""
    one, two = marks_of(runs(first).leaves), marks_of(runs(second).leaves)
    if one == two:
        return PairLaw("the same output on both data sets", aligned({0: 1.0}, {0: 1.0}))
    return PairLaw("nothing is drawn, and the outputs differ", NOTHING_HIDES)


def mark_of(leaf: Any) -> Hashable:
    """What makes a leaf what it is, the sign of zero included; numbers in their order."""
    if (type(leaf) is float and leaf == leaf) or (type(leaf) is int and abs(leaf) < 2**53):
        bits = int(np.float64(leaf).view(np.int64))
        return bits if bits >= 0 else -(bits & 2**63 - 1) - 1
    return (type(leaf).__name__, repr(leaf) if type(leaf) is float else leaf)


def marks_of(
    leaves: dict[str, Any], paths: Sequence[str] | None = None
) -> tuple[tuple[str, Hashable], ...]:
    """What makes leaves what they are."""
    inside = leaves if paths is None else {p: leaves[p] for p in paths if p in leaves}
    return tuple((path, mark_of(leaf)) for path, leaf in inside.items())


# Noise that is added ------------------------------------------------------------------------------


def affine_in(runs: Callable[..., Seen], data: Any) -> Affine:
    """The output as a function of the numbers, if that is affine; else a CheckError."""
    base = runs(data)
    kinds, numbers = tuple(base.tape.kinds), base.numbers()
    if len(kinds) > _MOST_NUMBERS:
        raise CheckError(f"{len(kinds)} random numbers are drawn: at most {_MOST_NUMBERS}")
    rest = np.array([REST[kind] for kind in kinds])

    def moved(script: Array) -> Array:
        seen = runs(data, script)
        if tuple(seen.tape.kinds) != kinds:
            raise CheckError(ORDER)
        values = np.array([*seen.numbers().values()])
        if seen.form() != base.form() or not np.isfinite(values).all():
            raise CheckError("noise moves something else than finite numbers")
        return values

    centre = moved(NONE)
    matrix = np.empty((len(numbers), len(kinds)))
    for i, kind in enumerate(kinds):
        script = np.full(i + 1, np.nan)
        script[i] = REST[kind] + (step := 0.25 if kind == "uniform" else 1.0)
        matrix[:, i] = (moved(script) - centre) / step
    found = Affine((*numbers,), centre - matrix @ rest, matrix, kinds, base.form())
    rng = np.random.default_rng(len(kinds))
    tried = [np.array([_far(k, scale, rng) for k in kinds]) for scale in (1.0,) * 6 + FAR * 4]
    coins = [i for i, kind in enumerate(kinds) if kind == "uniform"][:_MOST_COINS]
    places = np.arange(len(kinds))  # what a coin decides may be unlikely
    tried += [np.where(places == i, u, tried[0]) for i, u in itertools.product(coins, _COINS)]
    for z in tried:
        gap = np.abs(moved(z) - found.at(z))
        size = np.abs(matrix) @ np.abs(z)
        if not (gap <= 1e-7 * size + 1e-9 * (1 + np.abs(centre))).all():
            raise CheckError("the output is not a statistic plus noise")
    return found


def _far(kind: Standard, scale: float, rng: np.random.Generator) -> float:
    drawn = float(standard(kind, rng, 1)[0])
    if kind == "uniform" or scale == 1.0:
        return drawn
    return scale if drawn > REST[kind] or kind == "exponential" else -scale


def added(runs: Runs, first: Any, second: Any) -> PairLaw:
    """Noise that is added to a statistic."""
    one, two = affine_in(runs, first), affine_in(runs, second)
    how = "a statistic plus " + " and ".join(dict.fromkeys(one.kinds)) + " noise"
    law = PairLaw(how, NOTHING_HIDES, affine=(one, two))
    if one.form != two.form or one.paths != two.paths:
        return replace(law, how="what is no number differs, whatever is drawn", affine=None)
    if one.kinds != two.kinds:
        raise CheckError(ORDER)
    size = max(1.0, *(float(np.abs(x).max(initial=0)) for x in (one.centre, one.matrix)))
    live = np.flatnonzero((np.abs([one.matrix, two.matrix]) > DEAD * size).any(axis=(0, 1)))
    if not live.size:
        raise CheckError("no number moves the output by itself")
    kinds = [one.kinds[i] for i in live]
    shift, matrices = one.centre - two.centre, (one.matrix[:, live], two.matrix[:, live])
    if not np.allclose(*matrices, rtol=1e-9, atol=DEAD * size):
        raise CheckError("noise is scaled by the data")
    return replace(law, pair=_location(kinds, matrices[0], shift, DEAD * size))


def _location(kinds: list[Standard], matrix: Array, shift: Array, least: float) -> DistributionPair:
    if np.abs(shift).max(initial=0.0) <= least:
        return aligned({0: 1.0}, {0: 1.0})
    if set(kinds) == {"normal"}:
        zero = np.zeros(len(shift))
        return DistributionPair(*whitened(Normal(shift, matrix), Normal(zero, matrix)))
    inside = np.linalg.lstsq(matrix, shift, rcond=1e-12)[0]
    if np.linalg.norm(shift - matrix @ inside) > 1e-8 * np.linalg.norm(shift):
        return NOTHING_HIDES
    if np.linalg.matrix_rank(matrix) < matrix.shape[1]:
        raise CheckError("several numbers that are not normal are added up")
    moved = zip(kinds, inside.tolist(), strict=True)
    return together([shifted_pair(kind, d) for kind, d in moved if abs(d) > 1e-12])


def together(parts: Sequence[DistributionPair]) -> DistributionPair:
    """Independent parts."""
    if NOTHING_HIDES in parts:
        return NOTHING_HIDES
    if len(parts) < 2:
        return parts[0] if parts else aligned({0: 1.0}, {0: 1.0})
    one, two = [part.p for part in parts], [part.q for part in parts]
    finite = [[law.log_mass for law in laws if isinstance(law, Discrete)] for laws in (one, two)]
    if len(finite[0]) == len(parts) and math.prod(map(len, finite[0])) < 2e5:
        both = [reduce(np.add.outer, logs).reshape(-1) for logs in finite]
        p, q = (Discrete(np.asarray(logs - np.logaddexp.reduce(logs))) for logs in both)
        return DistributionPair(p, q)
    p_all, q_all = (Product(tuple((law, 1) for law in laws)) for laws in (one, two))
    return DistributionPair(p_all, q_all)


# Choices ------------------------------------------------------------------------------------------

_PICKED: dict[Standard, _Family] = {
    **{family.kind: family for family in _FAMILIES.values()},
    "normal": _Family("normal", lambda x: np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi), ndtr, -4.0),
}


@dataclass(frozen=True)
class _Pick(_Choice):
    """The one outcome of a function among as many as it draws numbers."""

    outcomes: tuple[Hashable, ...] = ()

    def _left(self, block: Any, noise: Array) -> Array:
        mark = self.mark(block, noise)
        if mark not in self.outcomes:
            raise CheckError("there are other outcomes than the candidates")
        return np.array([self.outcomes.index(mark)])

    def mark(self, block: Any, noise: Array) -> Hashable:
        seen = self.mechanism(block, noise.reshape(-1))
        if len(seen.tape.kinds) != self.n:
            raise CheckError(ORDER)
        return marks_of(seen.leaves)


def chosen(runs: Runs, first: Any, second: Any) -> PairLaw:
    """One outcome for each number, that with the largest noisy score."""
    kinds = runs(first).tape.kinds
    n, family = len(kinds), _PICKED.get(kinds[0]) if kinds else None
    if family is None or n < 2 or len({*kinds}) > 1 or n > 128:
        raise CheckError("no choice by noisy scores")
    choice = _Pick(runs, cast(Any, None), family, n, 1, True)
    favours = family.floor + 2.0**20 * np.eye(n)
    one, two = (tuple(choice.mark(data, row) for row in favours) for data in (first, second))
    if one != two or len({*one}) < n:
        raise CheckError("no choice by noisy scores: outcomes are not one for each number")
    pair = replace(choice, outcomes=one).pair(first, second, "")
    if pair is None:
        raise CheckError("scores are too far apart for a law of the choice")
    return PairLaw(f"the largest of {n} scores with {family.kind} noise", pair, choice=True)
