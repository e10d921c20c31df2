"""A NumPy generator whose draws are written down in advance, and recorded.

Whatever is drawn is a known function of independent *standard numbers*, which a check may choose:
normal, laplace, gumbel, exponential, or uniform on [0, 1)."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial, partialmethod
from typing import Any, Literal
from unittest.mock import patch

import numpy as np

from privlearn.errors import CheckError
from privlearn.rows.domains import Array

Standard = Literal["normal", "laplace", "gumbel", "exponential", "uniform"]
_LOCATED: tuple[Standard, ...] = ("normal", "laplace", "gumbel")
REST: dict[Standard, float] = {
    **dict.fromkeys(_LOCATED, 0.0),
    "exponential": 1.0,
    "uniform": 0.5,
}  # The standard number that is handed out where nothing is written down
MOST_NUMBERS, MOST_CALLS = 200_000, 20_000
_BELOW_ONE = math.nextafter(1.0, 0.0)
_UNSUPPORTED = (
    "beta bytes chisquare dirichlet f gamma geometric hypergeometric logistic logseries lognormal "
    "multinomial multivariate_hypergeometric negative_binomial noncentral_chisquare noncentral_f "
    "pareto permuted poisson power rayleigh standard_cauchy standard_gamma standard_t triangular "
    "vonmises wald weibull zipf"
)
_LEGACY = (
    "binomial choice exponential gumbel laplace normal permutation shuffle standard_exponential "
    "standard_normal uniform"
)


@dataclass
class Tape:
    """The numbers of one run: those that are written down (NaN leaves one open), and for open ones
    and behind them draws from ``chance``, or `REST`."""

    script: Array
    chance: np.random.Generator | None = None
    kinds: list[Standard] = field(default_factory=list)  # Of each number that was handed out
    numbers: list[float] = field(default_factory=list)
    calls: list[int] = field(default_factory=list)  # How many numbers each draw took
    middles: dict[int, tuple[float, ...]] = field(default_factory=dict)
    """For a uniform number that chooses among a few: numbers that choose each of them."""
    unsupported: set[str] = field(default_factory=set)
    """What was used whose numbers are not written down."""

    def take(self, kind: Standard, n: int) -> Array:
        first = len(self.numbers)
        if first + n > MOST_NUMBERS or len(self.calls) >= MOST_CALLS:
            most = f"{MOST_NUMBERS:,} numbers, or {MOST_CALLS:,} times"
            raise CheckError(f"one run draws more than {most}")
        taken = np.full(n, REST[kind]) if self.chance is None else standard(kind, self.chance, n)
        written = self.script[first : first + n]
        known = np.flatnonzero(~np.isnan(written))
        taken[known] = written[known]
        if kind == "uniform":
            taken = np.clip(taken, 0.0, _BELOW_ONE)
        self.kinds += [kind] * n
        self.numbers += taken.tolist()
        self.calls.append(n)
        return taken

    def one(self, kind: Standard) -> float:
        """The same as ``take(kind, 1)``."""
        return float(self.take(kind, 1)[0])


MOST_OPTIONS = 1_000  # Among so many a number is noted that chooses each of them


def standard(kind: Standard, rng: np.random.Generator, n: int) -> Array:
    """Independent standard numbers of one kind, shape (n,)."""
    match kind:
        case "normal":
            return rng.standard_normal(n)
        case "exponential":
            return rng.standard_exponential(n)
        case "uniform":
            return rng.random(n)
    return np.asarray(getattr(rng, kind)(0.0, 1.0, n))


def _shape(size: Any, *parameters: Any) -> tuple[int, ...]:
    if size is None:
        return np.broadcast_shapes(*(np.shape(p) for p in parameters))
    return (int(size),) if np.ndim(size) == 0 else tuple(int(n) for n in size)


class ScriptedGenerator(np.random.Generator):
    """A `numpy.random.Generator` on a tape; what cannot be put on one is noted on it."""

    def __init__(self, tape: Tape) -> None:
        seed = 0 if tape.chance is None else int(tape.chance.integers(2**32))
        super().__init__(np.random.PCG64(seed))
        self.tape = tape

    def __reduce__(self) -> Any:
        raise CheckError("the generator of a check is not pickled or copied")

    @property
    def bit_generator(self) -> Any:
        self.tape.unsupported.add("bit_generator")
        return super().bit_generator

    def spawn(self, n_children: int) -> Any:
        return [ScriptedGenerator(self.tape) for _ in range(n_children)]

    def _among(self, many: int, tops: Array) -> Array:
        """So many uniform numbers, each of which chooses by its place among ``tops``."""
        first = len(self.tape.numbers)
        if len(tops) <= MOST_OPTIONS:
            middles = tuple(((tops + np.concatenate([[0.0], tops[:-1]])) / 2).tolist())
            self.tape.middles |= dict.fromkeys(range(first, first + many), middles)
        return self.tape.take("uniform", many)

    def _numbers(self, kind: Standard, size: Any, *parameters: Any) -> Any:
        shape = _shape(size, *parameters)
        return self.tape.take(kind, math.prod(shape)).reshape(shape)

    def _made(self, kind: Standard, size: Any, of: Callable[..., Any], *parameters: Any) -> Any:
        if size is None and all(type(p) in (int, float) for p in parameters):
            result = of(self.tape.one(kind), *parameters)
            return result.item() if isinstance(result, np.generic) else result
        z = self._numbers(kind, size, *parameters)
        with np.errstate(all="ignore"):
            result = of(z, *(np.asarray(p) for p in parameters))
        scalar, values = size is None and np.ndim(z) == 0, np.asarray(result)
        return values.reshape(-1)[0].item() if scalar else values

    def _plain(self, kind: Standard, size: Any, dtype: Any, out: Any) -> Any:
        if size is None and out is None and dtype is np.float64:
            return self.tape.one(kind)
        shape = size if out is None or size is not None else out.shape
        drawn = self._made(kind, shape, lambda z: np.asarray(z, dtype=dtype))
        if out is None:
            return drawn
        out[...] = drawn
        return out

    def random(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self._plain("uniform", size, dtype, out)

    def standard_normal(self, size: Any = None, dtype: Any = np.float64, out: Any = None) -> Any:
        return self._plain("normal", size, dtype, out)

    def standard_exponential(
        self, size: Any = None, dtype: Any = np.float64, method: Any = "zig", out: Any = None
    ) -> Any:
        return self._plain("exponential", size, dtype, out)

    def _located(self, kind: Standard, loc: Any = 0.0, scale: Any = 1.0, size: Any = None) -> Any:
        if (np.asarray(scale) < 0).any():
            raise ValueError("scale < 0")
        return self._made(kind, size, lambda z, m, s: m + s * z, loc, scale)

    normal = partialmethod(_located, "normal")
    laplace = partialmethod(_located, "laplace")
    gumbel = partialmethod(_located, "gumbel")

    def exponential(self, scale: Any = 1.0, size: Any = None) -> Any:
        return self._made("exponential", size, lambda z, s: s * z, scale)

    def uniform(self, low: Any = 0.0, high: Any = 1.0, size: Any = None) -> Any:
        return self._made("uniform", size, lambda u, a, b: a + (b - a) * u, low, high)

    def integers(
        self, low: Any, high: Any = None, size: Any = None, dtype: Any = np.int64,
        endpoint: bool = False,
    ) -> Any:  # fmt: skip
        if high is None:
            low, high = 0, low
        low, high = np.asarray(low, dtype=object), np.asarray(high, dtype=object) + int(endpoint)
        if (np.asarray(high) <= low).any():
            raise ValueError("low >= high")
        shape, options = _shape(size, low, high), int(np.min(high - low))
        few = np.arange(1, min(options, MOST_OPTIONS + 1) + 1) / options
        u = self._among(math.prod(shape), few).reshape(shape)
        steps = np.frompyfunc(int, 1, 1)(np.floor(u * np.asarray(high - low, dtype=float)))
        drawn = np.asarray(low + steps).astype(dtype)
        return (
            drawn if drawn.ndim else (drawn.item() if dtype in (int, bool, object) else drawn[()])
        )

    def binomial(self, n: Any, p: Any, size: Any = None) -> Any:
        return self._made("uniform", size, _binomial, n, p)

    def choice(
        self, a: Any, size: Any = None, replace: bool = True, p: Any = None, axis: int = 0,
        shuffle: bool = True,
    ) -> Any:  # fmt: skip
        items = np.arange(a) if np.ndim(a) == 0 else np.asarray(a)
        n, shape = items.shape[axis], _shape(size)
        many = math.prod(shape)
        if p is not None and not (len(p) == n and abs(np.sum(p) - 1) < 1e-8):
            raise ValueError("probabilities do not sum to 1")
        if not n or (not replace and many > n):
            raise ValueError("Cannot take a larger sample than population when replace is False")
        left = np.full(n, 1 / n) if p is None else np.array(p, dtype=float)
        picked: list[int] = []
        for x in self._among(many, np.cumsum(left)):
            sums = np.cumsum(left)
            k = int(np.searchsorted(sums, x * sums[-1], side="right"))
            picked.append(min(k, int(np.flatnonzero(left)[-1])))
            if not replace:
                left[picked[-1]] = 0.0
        taken = items.take(np.reshape(picked, shape).astype(int), axis=axis)
        if size is not None:
            return taken
        return int(taken) if np.ndim(a) == 0 else np.asarray(taken)[()]

    def permutation(self, x: Any, axis: int = 0) -> Any:
        items = np.arange(x) if np.ndim(x) == 0 else np.array(x)
        return items.take(self._order(items.shape[axis]), axis=axis)

    def shuffle(self, x: Any, axis: int = 0) -> None:
        order = self._order(x.shape[axis] if isinstance(x, np.ndarray) else len(x))
        x[:] = x.take(order, axis=axis) if isinstance(x, np.ndarray) else [x[i] for i in order]

    def _order(self, n: int) -> list[int]:
        rest = list(range(n))
        u = self._among(max(n - 1, 0), np.arange(1, n + 1) / n)
        return [rest.pop(int(x * len(rest))) for x in u] + rest


def _binomial(u: Any, n: Any, p: Any) -> Any:
    if (np.asarray(n) == 1).all():
        return (u >= 1 - p).astype(np.int64)
    from scipy.stats import binom

    return np.maximum(binom.ppf(u, n, p), 0).astype(np.int64)


def _noted(self: ScriptedGenerator, name: str, /, *args: Any, **options: Any) -> Any:
    self.tape.unsupported.add(name)
    return getattr(np.random.Generator, name)(self, *args, **options)


for _name in _UNSUPPORTED.split():
    setattr(ScriptedGenerator, _name, partialmethod(_noted, _name))


LEGACY_METHODS: dict[str, Any] = {
    "rand": lambda rng, *shape: rng.random(shape or None),
    "randn": lambda rng, *shape: rng.standard_normal(shape or None),
    "random_sample": lambda rng, size=None: rng.random(size),
    "randint": lambda rng, low, high=None, size=None, dtype=int: rng.integers(
        low, high, size, dtype
    ),
}  # What `numpy.random` and a `RandomState` have beside the methods of a generator


@contextlib.contextmanager
def scripted_globals(rng: ScriptedGenerator) -> Iterator[None]:
    """While it lasts, `numpy.random` and `random` draw from its tape, and fresh generators, too.
    Generators with a seed of their own, and those that were made before, draw as ever."""
    fresh = np.random.default_rng
    replaced: dict[str, Any] = {name: getattr(rng, name) for name in _LEGACY.split()}
    replaced |= dict.fromkeys(("random", "ranf", "sample"), rng.random)
    replaced |= {name: partial(method, rng) for name, method in LEGACY_METHODS.items()}
    replaced["default_rng"] = lambda seed=None: (
        ScriptedGenerator(rng.tape) if seed is None else fresh(seed)
    )
    own: dict[str, Any] = {
        "random": rng.random,
        "uniform": rng.uniform,
        "gauss": lambda mu=0.0, sigma=1.0: rng.normal(mu, sigma),
        "normalvariate": lambda mu=0.0, sigma=1.0: rng.normal(mu, sigma),
        "expovariate": lambda lambd=1.0: rng.exponential(1 / lambd),
        "randint": lambda a, b: rng.integers(a, b, dtype=int, endpoint=True),
        "randrange": lambda a, b=None: rng.integers(a, b, dtype=int),
        "choice": lambda seq: seq[rng.integers(len(seq), dtype=int)],
        "shuffle": rng.shuffle,
        "getrandbits": lambda k: rng.integers(2**k, dtype=object),
    }
    with patch.multiple(np.random, **replaced), patch.multiple(random, **own):
        yield
