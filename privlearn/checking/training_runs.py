"""Runs of a training loop with chosen coins and noise, and the law of what a step releases."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import logging
import math
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np

from privlearn.checking.isolation import FORKS, contained, own_copy
from privlearn.checking.scripted_generator import (
    LEGACY_METHODS,
    ScriptedGenerator,
    Standard,
    Tape,
    scripted_globals,
    standard,
)
from privlearn.checking.targets import signature_of
from privlearn.errors import CheckError
from privlearn.rows.domains import Array
from privlearn.values.user_code import FAILED, attempted

fresh = np.random.default_rng  # also while it is replaced
_GENERATORS = (np.random.Generator, np.random.RandomState)
IN, OUT = 0.0, 1 - 2**-24  # a uniform number below every rate, and the largest one of float32
Coins = tuple[float | None, Mapping[int, float]]
"""The uniform numbers of a sample: of all records, or None for random ones, and of single ones."""
FREE: Coins = (None, {})


@dataclass
class StepTape(Tape):
    """The numbers of one run of a loop, which moves on to the next step when it has released. The
    first draw in a step of as many uniform numbers as there are ``records``, or of a multiple
    before the first release, or one by one, is that of the sample. ``forced`` are the coins of
    steps; ``bump`` is a step, a place in its noise, and what is added from there."""

    records: int = 0
    seed: int = 0
    forced: Mapping[int, Coins] = field(default_factory=dict)
    bump: tuple[int, int, Array] | None = None
    step: int = 0
    normals: Counter[int] = field(default_factory=Counter)  # How many normal numbers each step drew
    ahead: int = 0  # How many of these before the first coins: parameters to begin with
    repeated: set[str] = field(default_factory=set)  # What draws the same numbers in two steps
    _draws: Counter[str] = field(default_factory=Counter)
    _sampled: bool = False
    _met: dict[Any, int] = field(default_factory=dict)

    def next_step(self) -> None:
        self.step += 1
        self._draws, self._sampled = Counter(), False
        if "torch" in sys.modules:  # its own kernels, such as dropout
            sys.modules["torch"].default_generator.manual_seed(self.seed * 10_007 + self.step)

    def take(self, kind: Standard, n: int) -> Array:
        if kind == "uniform":
            return self._uniform(n)
        numbers = standard(kind, self._rng(kind), n)
        if kind == "normal":
            places = self.normals[self.step] + np.arange(n)
            self.normals[self.step] += n
            if self.bump is not None and self.bump[0] == self.step:
                _, first, added = self.bump
                hit = (places >= first) & (places < first + len(added))
                numbers[hit] += added[places[hit] - first]
        return numbers

    def met(self, what: Any, name: str) -> None:
        """Notes what decides a draw: the same in two steps, and so are their numbers."""
        if self._met.setdefault((name, what), self.step) != self.step:
            self.repeated.add(f"{name} (steps {self._met[name, what]} and {self.step})")

    def _rng(self, kind: str) -> np.random.Generator:
        """For the next draw of a kind in this step, however many of another kind there were."""
        self._draws[kind] += 1
        return fresh([self.seed, self.step, crc32(kind.encode()), self._draws[kind]])

    def _uniform(self, n: int) -> Array:
        if self.step == 1 and not self._draws["one"] + self._draws["coins"]:
            self.ahead = self.normals[1]
        if n == 1 and self.records != 1:
            numbers = self._rng("one").random(1)
            return self._coins(numbers, self.step, self._draws["one"] - 1)
        rows = n // self.records if self.records and n % self.records == 0 else 0
        if not rows or self._sampled or (rows > 1 and self.step > 1):
            return self._rng("uniform").random(n)
        self._sampled = rows == 1
        steps = range(self.step, self.step + rows)
        return np.concatenate(
            [self._coins(self._rng("coins").random(self.records), step) for step in steps]
        )

    def _coins(self, numbers: Array, step: int, first: int = 0) -> Array:
        everybody, single = self.forced.get(step, FREE)
        if everybody is not None and first < self.records:
            numbers[:] = everybody
        for record, number in single.items():
            if 0 <= record - first < len(numbers):
                numbers[record - first] = number
        return numbers


_Legacy: Any = type("_Legacy", (ScriptedGenerator,), LEGACY_METHODS)


@contextlib.contextmanager
def scripted(code: Any) -> Iterator[ScriptedGenerator]:
    """Yields a generator; while it lasts, what ``code`` draws comes from its tape, a `StepTape`.
    Generators that were made before are replaced where ``code`` names them; seeds are not heeded,
    but noted. torch's own kernels, such as dropout, draw from a seed for each step."""
    rng = _Legacy(StepTape(np.zeros(0)))

    def made(seed: Any = None, *_: Any, **__: Any) -> Any:
        if seed is not None:
            rng.tape.met(repr(seed), "a generator made of the same seed")
        return rng

    def seeded(*seed: Any, **_: Any) -> None:
        made(*seed)

    class State(np.random.RandomState):  # a class, as what takes one asks for its type
        def __new__(cls, *seed: Any) -> Any:
            return made(*seed)

    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        stack.enter_context(np.errstate(all="ignore"))
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable()
        stack.callback(np.random.set_state, np.random.get_state())
        stack.callback(random.setstate, random.getstate())
        own = {np.random.default_rng: made, np.random.RandomState: State}
        stack.enter_context(scripted_globals(rng))
        new: dict[str, Any] = {"default_rng": made, "RandomState": State, "seed": seeded}
        stack.enter_context(patch.multiple(np.random, **new))
        stack.enter_context(patch.object(random, "seed", seeded))
        _replace_own(stack, code, own, rng)
        if "torch" in sys.modules:
            _script_torch(stack, rng, seeded)
        if "jax" in sys.modules:
            _script_jax(stack, rng)
        yield rng


def _replace_own(
    stack: contextlib.ExitStack, code: Any, own: dict[Any, Any], rng: ScriptedGenerator
) -> None:
    """Generators, and what makes them, that a function has as globals or in its closure."""

    def instead(value: Any) -> Any:
        if isinstance(value, _GENERATORS):
            return rng
        return own.get(value) if inspect.isroutine(value) or isinstance(value, type) else None

    function = inspect.unwrap(getattr(code, "func", code))
    names = getattr(function, "__globals__", {})
    found = {name: new for name, value in names.items() if (new := instead(value)) is not None}
    stack.enter_context(patch.dict(names, found))
    for cell in getattr(function, "__closure__", None) or ():
        with contextlib.suppress(ValueError):
            before = cell.cell_contents
            if (new := instead(before)) is not None:
                cell.cell_contents = new
                stack.callback(setattr, cell, "cell_contents", before)


def _numbers(rng: Any, kind: Standard, real: Array | None, shape: Any, library: str) -> Array:
    """Numbers of the tape in place of those that a library drew, which are None while it traces."""
    size = int(np.prod(shape))
    if real is not None and size > 1:
        rng.tape.met(real.tobytes(), f"the same {kind} numbers of {library}")
    taken: Array = rng.tape.take(kind, size).reshape(shape)
    return np.asarray(np.minimum(taken, OUT)) if kind == "uniform" else taken


Drawing = Callable[..., Any]


def _script_torch(stack: contextlib.ExitStack, rng: Any, seeded: Drawing) -> None:
    import torch

    def numbers(kind: Standard, like: Any) -> Any:
        real = like.detach().cpu().double().numpy()
        return torch.from_numpy(_numbers(rng, kind, real, like.shape, "torch")).to(like)

    def drawn(kind: Standard, name: str) -> Drawing:
        real = getattr(torch, name)
        return lambda *args, **options: numbers(kind, real(*args, **options))

    def normal(mean: Any = 0.0, std: Any = 1.0, *args: Any, **options: Any) -> Any:
        return mean + std * numbers("normal", real_normal(mean, std, *args, **options))

    def normal_(self: Any, mean: Any = 0.0, std: Any = 1.0, *, generator: Any = None) -> Any:
        with torch.no_grad():
            return self.copy_(mean + std * numbers("normal", real_in_place(self, mean, std)))

    def bernoulli(probabilities: Any, *args: Any, **options: Any) -> Any:
        p = args[0] if args else options.get("p", probabilities)
        return (torch.rand_like(probabilities * 1.0) < p).to(probabilities)

    real_normal, real_in_place = torch.normal, torch.Tensor.normal_
    stack.callback(torch.set_rng_state, torch.get_rng_state())
    stack.callback(torch.set_num_threads, torch.get_num_threads())
    torch.set_num_threads(1)  # runs are small
    new: dict[str, Any] = {name: drawn("normal", name) for name in ("randn", "randn_like")}
    new |= {name: drawn("uniform", name) for name in ("rand", "rand_like")}
    new |= {"normal": normal, "bernoulli": bernoulli, "manual_seed": seeded}
    stack.enter_context(patch.multiple(torch, **new))
    stack.enter_context(patch.object(torch.Tensor, "normal_", normal_))


def _script_jax(stack: contextlib.ExitStack, rng: Any) -> None:
    import jax
    import jax.numpy as jnp

    def drawn(kind: Standard) -> Drawing:
        real = getattr(jax.random, kind)

        def draw(*args: Any, **options: Any) -> Any:
            like = real(*args, **options)
            known = None if isinstance(like, jax.core.Tracer) else np.asarray(like)
            return jnp.asarray(_numbers(rng, kind, known, like.shape, "JAX"), like.dtype)

        return draw

    def bernoulli(key: Any, p: Any = 0.5, shape: Any = None, **_: Any) -> Any:
        return uniform(key, jnp.shape(p) if shape is None else shape) < p

    def bounded(key: Any, shape: Any = (), dtype: Any = float, minval: Any = 0.0, maxval: Any = 1.0,
                **_: Any) -> Any:  # fmt: skip
        return minval + (maxval - minval) * uniform(key, shape, dtype)

    uniform = drawn("uniform")
    stack.enter_context(jax.disable_jit())  # else a draw happens once, when the code is traced
    new: dict[str, Any] = {
        "normal": drawn("normal"), "uniform": bounded, "bernoulli": bernoulli
    }  # fmt: skip
    stack.enter_context(patch.multiple(jax.random, **new))


Change = tuple[float, float]
"""Odd and even fields of a record are multiplied by these; after NaN: a number instead of them."""
_MOST_COLUMNS = 128  # of noise that is measured number by number


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


@dataclass(frozen=True)
class Run:
    """What a loop released in each step, how many normal numbers each drew, and how it ended.
    ``ahead``: of those of the first step, before its sample."""

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
        places = attempted(signature_of, self.train)
        self.takes_rng = places is not FAILED and places[0] > 1
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
