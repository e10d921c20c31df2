"""Runs of a training loop with chosen coins and noise, and the law of what a step releases."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from privlearn.checking.isolation import FORKS, contained, own_copy
from privlearn.checking.training_coins import StepTape, fresh, scripted
from privlearn.errors import CheckError
from privlearn.rows.domains import Array

Change = tuple[float, float]
"""Odd and even fields of a record are multiplied by these; after NaN: a number instead of them."""
_MOST_COLUMNS = 128  # of noise that is measured number by number

# Data -------------------------------------------------------------------------------------------


def columns(data: Any) -> list[Any]:
    """The columns of a tuple or dict; an array or a list of records is one."""
    if isinstance(data, dict):
        return list(data.values())
    return list(data) if isinstance(data, tuple) else [data]


def _each_column(data: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(data, dict):
        return {name: change(column) for name, column in data.items()}
    return tuple(map(change, data)) if isinstance(data, tuple) else change(data)


def rows_of(data: Any, order: list[int]) -> Any:
    """Some records, in this order."""

    def column(values: Any) -> Any:
        return [values[i] for i in order] if isinstance(values, list) else values[order]

    return _each_column(data, column)


def with_record(data: Any, index: int, donor: int, change: Change) -> Any:
    """The data with one record changed; what is no float is that of another record."""
    instead = math.isnan(change[0])
    factors = itertools.cycle([(0, change[1])] if instead else [(by, 0) for by in change])

    def column(values: Any) -> Any:
        copy = own_copy(values)
        copy[index] = _scaled(values[index], values[donor], factors)
        return copy

    return _each_column(data, column)


def all_scaled(data: Any, by: float) -> Any:
    """The data with all floats multiplied."""
    return _each_column(data, lambda column: _scaled(column, column, itertools.repeat((by, 0.0))))


def _scaled(value: Any, other: Any, factors: Iterator[tuple[float, float]]) -> Any:
    if isinstance(value, list | tuple):
        return type(value)(_scaled(v, o, factors) for v, o in zip(value, other, strict=True))
    if isinstance(value, dict):
        return {key: _scaled(v, other[key], factors) for key, v in value.items()}
    kind = getattr(getattr(value, "dtype", None), "kind", None)
    floats = isinstance(value, float) or kind == "f" or getattr(value, "is_floating_point", bool)()
    if not floats:
        return other
    by, plus = next(factors)
    return value * by + plus


# Runs -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """What a loop released in each step, how many normal numbers each drew, and how it ended.

    ``ahead``: of those of the first step, before its sample.
    """

    released: list[Array]
    normals: Mapping[int, int]
    ahead: int
    repeated: set[str]
    ended: bool
    error: str | None
    precision: float


def _flat(output: Any, precision: list[float]) -> Array:
    if hasattr(output, "state_dict"):
        output = output.state_dict()
    if hasattr(output, "detach"):
        output = output.detach().cpu()
        output = output.numpy() if output.dtype.is_floating_point else np.asarray(output)
    if isinstance(output, Mapping):
        output = list(output.values())
    if isinstance(output, list | tuple) or inspect.isgenerator(output):
        return np.concatenate([np.zeros(0), *(_flat(part, precision) for part in output)])
    values = np.asarray(output)
    if values.dtype.kind == "f" or values.dtype.name == "bfloat16":
        known = values.dtype.kind == "f"
        precision.append(float(np.finfo(values.dtype).eps) if known else 2**-7)
    try:
        return np.array(values, dtype=np.float64).reshape(-1)
    except (TypeError, ValueError):
        kind = type(output).__name__
        raise CheckError(f"train yields a {kind}: must be arrays, tensors or numbers") from None


@dataclass(frozen=True)
class Law:
    """``centre + matrix @ z``, and the matrix that takes moves of the centre back to the noise."""

    centre: Array
    matrix: Any  # dense or sparse
    back: Any
    error: float  # of the centre, and of what it was moved by
    wrong: str | None = None

    @property
    def normals(self) -> int:
        return int(self.matrix.shape[1])

    def shift(self, other: Array) -> tuple[float, float, float]:
        """To another centre, in units of the noise; its error; how far it is where none is."""
        by = other - self.centre
        noise = self.back @ by
        bare = float(np.abs(by - self.matrix @ noise).max(initial=0.0))
        steep = np.linalg.norm(self.back @ np.full(len(by), self.error))
        return float(np.linalg.norm(noise)), float(steep), bare

    def differs(self, other: Law) -> bool:
        """Whether the variances are apart by more than rounding."""
        if not self.normals or not abs(self.matrix).max():
            return False
        mine, theirs = (law.matrix @ law.matrix.T for law in (self, other))
        apart = abs(mine - theirs).max() / max(abs(mine).max(), abs(theirs).max())
        return bool(apart > 5e-3 + 4 * self.error / abs(self.matrix).max())

    def fits(self, *moves: tuple[Array, Array]) -> bool:
        """Whether these changes of the noise move what is released as the law says."""
        return all(
            np.abs(self.matrix @ by - moved).max() <= 8 * self.error + 1e-3 * np.abs(moved).max()
            for by, moved in moves
        )


def directions(n: int) -> Array:
    """Two fixed vectors of n numbers between 0.5 and 1.5 in size."""
    rng = fresh(n)
    return np.asarray(rng.uniform(0.5, 1.5, (2, n)) * rng.choice([-1.0, 1.0], (2, n)))


@dataclass
class Loop:
    """The loop, its data and its claim."""

    train: Callable[..., Any]
    data: Any
    claim: list[tuple[float, float, int]]
    n: int = field(init=False)

    def __post_init__(self) -> None:
        lengths = {len(column) for column in columns(self.data)}
        if len(lengths) != 1 or lengths < {2} or max(lengths) < 2:
            raise CheckError(f"data: {sorted(lengths)} records; must be two or more in all columns")
        self.n = lengths.pop()
        if not callable(self.train):
            raise CheckError(f"train = {self.train!r}: must be a generator function")
        self.takes_rng = _positional(self.train) > 1
        self.steps = sum(count for *_, count in self.claim)

    def claimed(self, step: int) -> tuple[float, float]:
        for multiplier, rate, count in self.claim:
            if step <= count:
                return multiplier, rate
            step -= count
        return self.claim[-1][:2]

    def run(self, data: Any = None, *, stop: int, **options: Any) -> Run:
        """The loop up to a step, with numbers as the options of a `StepTape` say."""
        data = own_copy(self.data if data is None else data)
        tape = self.rng.tape = StepTape(np.zeros(0), records=len(columns(data)[0]), **options)
        tape.next_step()
        released: list[Array] = []
        precision = [2**-52]
        error = None
        try:
            output = self.train(data, self.rng) if self.takes_rng else self.train(data)
            steps = output if inspect.isgenerator(output) else iter([output])
            for value in itertools.islice(steps, stop):
                released.append(_flat(value, precision))
                tape.next_step()
            if inspect.isgenerator(output):
                output.close()
        except CheckError:
            raise
        except Exception as raised:
            told = f"{type(raised).__name__}: {raised}"
            error = f"it stopped after step {len(released)} of {self.steps}: {told}"
        if contained.forks:
            raise CheckError(f"train {FORKS}")
        ended = len(released) < stop and error is None
        return Run(released, tape.normals, tape.ahead, tape.repeated, ended, error, max(precision))

    @contextlib.contextmanager
    def scripted(self) -> Iterator[None]:
        """While it lasts, runs draw from tapes; one step was taken, so that all is imported."""
        for steps in (1, 0):
            with scripted(self.train) as self.rng:
                self.run(stop=steps)
                if not steps:
                    yield

    # Laws -----------------------------------------------------------------------------------------

    def law(self, step: int, noise: int, data: Any = None, **tape: Any) -> Law:
        """Of what a step releases; ``noise`` normal numbers, the last ones, may be noise."""

        def run(by: Array | None = None) -> Run:
            bump = {} if by is None else {"bump": (step, first, by)}
            again = self.run(data, stop=step, **tape, **bump)
            if again.error or len(again.released) < step:
                raise Failed(again.error or f"no release in step {step}")
            return again

        base = run()
        centre = base.released[-1]
        noise = min(noise, base.normals[step])
        first = base.normals[step] - noise
        error = 8 * base.precision * float(np.abs(centre).max(initial=0.0)) + 1e-300
        law = Law(centre, np.zeros((len(centre), noise)), np.zeros((noise, len(centre))), error)
        if not np.isfinite(centre).all():
            raise Failed("released numbers are not finite")
        if not noise:
            return law
        near, far = directions(noise)
        forth, back, away = (run(by).released[-1] - centre for by in (near, -near, 30 * far))
        moved = np.flatnonzero(np.abs(away) > 4 * error)
        if len(moved) <= noise:
            law = _one_number_each(law, moved, away[moved] / (30 * far[noise - len(moved) :]))
            if law.fits((near, forth), (-near, back)):
                return law
        if noise <= _MOST_COLUMNS:
            found = [(run(row).released[-1] - centre) / 30 for row in 30 * np.eye(noise)]
            matrix = np.stack(found, axis=1)
            law = replace(law, matrix=matrix, back=np.linalg.pinv(matrix, rcond=1e-6))
            if law.fits((near, forth), (-near, back), (30 * far, away)):
                return law
        even = np.abs(forth + back).max(initial=0.0) <= 8 * error + 1e-3 * np.abs(forth).max()
        return replace(law, wrong="is cut off" if even else "is no linear part of what is released")


class Failed(Exception):
    """A run did not come to its end."""


def _one_number_each(law: Law, moved: Any, scales: Array) -> Law:
    """Each number that the noise moves has one of the last normal numbers, in their order."""
    from scipy.sparse import csr_array

    places = moved, law.normals - len(moved) + np.arange(len(moved))
    matrix = csr_array((scales, places), shape=law.matrix.shape)
    back = csr_array((1 / scales, places[::-1]), shape=law.back.shape)
    return replace(law, matrix=matrix, back=back)


def _positional(function: Any) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 1
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in parameters)
