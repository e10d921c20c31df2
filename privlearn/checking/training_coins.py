"""The coins and the noise of a training loop, chosen by a check: of NumPy, `random`, torch and JAX.

Every number that a loop draws is a function of seed, step and place in the step, so that two runs
on neighbouring data meet the same coins.  Uniform numbers, of which a Poisson sampler draws one for
each record, and normal ones, which are the noise, may be chosen one by one.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import random
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch
from zlib import crc32

import numpy as np

from privlearn.checking.scripted_generator import (
    LEGACY_METHODS,
    ScriptedGenerator,
    Standard,
    Tape,
    scripted_globals,
    standard,
)
from privlearn.rows.domains import Array

fresh = np.random.default_rng  # also while it is replaced
_GENERATORS = (np.random.Generator, np.random.RandomState)
IN, OUT = 0.0, 1 - 2**-24  # a uniform number below every rate, and the largest one of float32
Coins = tuple[float | None, Mapping[int, float]]
"""The uniform numbers of a sample: of all records, or None for random ones, and of single ones."""
FREE: Coins = (None, {})


@dataclass
class StepTape(Tape):
    """The numbers of one run of a loop, which moves on to the next step when it has released.

    Args:
        records: of the data; the first draw of so many uniform numbers in a step, or of a multiple
            before the first release, or one by one, is that of the sample.
        seed: of all numbers that are not chosen.
        forced: the coins of steps.
        bump: step, place in its noise, and what is added to the normal numbers from there.
    """

    records: int = 0
    seed: int = 0
    forced: Mapping[int, Coins] = field(default_factory=dict)
    bump: tuple[int, int, Array] | None = None
    step: int = 0
    normals: Counter[int] = field(default_factory=Counter)
    """How many normal numbers each step drew."""
    ahead: int = 0
    """How many of these before the first coins: parameters to begin with."""
    repeated: set[str] = field(default_factory=set)
    """What draws the same numbers in two steps."""
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
    but noted.  torch's own kernels, such as dropout, draw from a seed for each step.
    """
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
