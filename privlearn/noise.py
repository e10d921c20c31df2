"""Where noise comes from; it belongs to an accountant, so the ledger always knows."""

from __future__ import annotations

import math
import os
import secrets
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, final

import numpy as np

from privlearn._validate import count, positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import round_up
from privlearn.domains import Array, Norm
from privlearn.errors import BudgetError, TokenCopyError
from privlearn.losses import Laplace, Loss, gaussian_loss
from privlearn.more_losses import GeneralizedGaussian


class Noise(Protocol):
    """Independent noise on every vector, with the loss it gives at a sensitivity."""

    @property
    def norm(self) -> Norm:
        """The norm in which sensitivity counts."""

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """The loss of adding this noise to a vector of that sensitivity."""

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        """Fresh noise."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@final
@dataclass(frozen=True, slots=True)
class GaussianNoise:
    """N(0, std²) on each coordinate, in the unit of the data."""

    std: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", positive(std=self.std))

    @property
    def norm(self) -> Norm:
        return "l2"

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Gaussian loss of mass (sensitivity/std)², rounded up."""
        return gaussian_loss(sensitivity, self.std, adjacency)

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        return source.normal(shape) * self.std

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gaussian", "std": self.std}


@final
@dataclass(frozen=True, slots=True)
class LaplaceNoise:
    """Laplace noise of the given scale on each coordinate, in the unit of the data."""

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(scale=self.scale))

    @property
    def norm(self) -> Norm:
        return "l1"

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Laplace loss of ε = sensitivity/scale, rounded up."""
        epsilon = round_up(Fraction(positive(sensitivity=sensitivity)) / Fraction(self.scale))
        return Laplace(epsilon, adjacency=adjacency)

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        signs, exponentials = source.uniform(shape), -np.log(source.uniform(shape))
        return np.where(signs < 0.5, -1.0, 1.0) * exponentials * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "laplace", "scale": self.scale}


@final
@dataclass(frozen=True, slots=True)
class GumbelNoise:
    """Gumbel noise, distribution function exp(−e^{−x/scale}), for scores of which one is chosen.

    In double precision: below 37·scale, on a grid that is coarse only where few numbers lie.
    """

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(scale=self.scale))

    @property
    def norm(self) -> Norm:
        return "linf"

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Refused: the price of a choice depends on what is chosen from.

        Raises:
            BudgetError: always.
        """
        raise _for_choices(self)

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        return np.asarray(-self.scale * np.log(-np.log(source.uniform(shape))))

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gumbel", "scale": self.scale}


@final
@dataclass(frozen=True, slots=True)
class ExponentialNoise:
    """Exponential noise of mean ``scale``, for scores of which one is chosen."""

    scale: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(scale=self.scale))

    @property
    def norm(self) -> Norm:
        return "linf"

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Refused: one-sided noise on a number that is released reveals it.

        Raises:
            BudgetError: always.
        """
        raise _for_choices(self)

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        return np.asarray(-self.scale * np.log(source.uniform(shape)))

    def to_dict(self) -> dict[str, Any]:
        return {"family": "exponential", "scale": self.scale}


def _for_choices(noise: GumbelNoise | ExponentialNoise) -> BudgetError:
    family = noise.to_dict()["family"]
    return BudgetError(
        f"{family} noise protects which of several scores is largest, not the scores: use "
        "ReportNoisyMax, or state own_loss"
    )


@final
@dataclass(frozen=True, slots=True)
class GeneralizedGaussianNoise:
    """Vectors (along the last axis) with density ∝ exp(−‖z‖²/(2std²)), ‖·‖ the norm of ℓp, p >= 2.

    Sampling (Han et al. 2022, Lemma 3.1 with its scale corrected: ``docs/errata``).  In polar
    coordinates of ‖·‖ the radius r has density ∝ r^{d−1}·exp(−r²/(2std²)), so r² is Gamma(d/2,
    scale 2std²): std² times the sum of d squared normals.  The direction is independent of it, with
    the law of x/‖x‖ for any x of density f(‖x‖); take ∏exp(−|x_i|^p), where |x_i|^p is Gamma(1/p)
    with a random sign.  For p = 2 it is N(0, std²) on every coordinate, and drawn as such.

    Args:
        std: σ; the mean of ‖z‖² is d·std², and the std of a coordinate is `coordinate_std`.
        exponent: p in [2, 1000].
    """

    std: float
    exponent: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "std", positive(std=self.std))
        object.__setattr__(self, "exponent", positive(exponent=self.exponent))
        if not 2 <= self.exponent <= 1000:
            raise ValueError(f"exponent = {self.exponent!r}: must lie in [2, 1000]")

    @property
    def norm(self) -> Norm:
        return "l2" if self.exponent == 2 else self.exponent

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """ρ = (p−1)·s²/(2std²) for a sensitivity s in ℓp, rounded up.

        ‖·‖ is (p−1)-smooth (Juditsky & Nemirovski 2008), and that is all that the proof in
        ``docs/errata/generalized-gaussian.md`` uses: κ = κ₊ = p − 1 in the norm of the noise
        itself.  Through ‖x‖_p <= d^{1/p−1/q}·‖x‖_q it is κs_q²/(2std²) with κ = (p−1)d^{2/p−2/q}.
        For p = 2 the Gaussian loss.
        """
        if self.exponent == 2:
            return gaussian_loss(sensitivity, self.std, adjacency)
        return GeneralizedGaussian(
            round_up(Fraction(self.exponent) - 1),
            round_up(Fraction(positive(sensitivity=sensitivity))),
            Fraction(self.std),
            adjacency=adjacency,
        )

    def draw(self, source: NoiseSource, shape: tuple[int, ...]) -> Array:
        if self.exponent == 2:
            return source.normal(shape) * self.std
        from scipy.special import gamma, gammaincinv

        squares = np.square(source.normal(shape)).sum(axis=-1, keepdims=True)
        signs, levels = np.where(source.uniform(shape) < 0.5, -1.0, 1.0), source.uniform(shape)
        share = 1 / self.exponent
        powers = np.asarray(gammaincinv(share, levels))
        # where powers underflow, the distribution function of |x| is x/Γ(1 + 1/p)
        sizes = np.where(powers > 1e-280, powers**share, levels * gamma(1 + share))
        largest = sizes.max(axis=-1, keepdims=True, initial=0.0)
        scaled = sizes / largest
        length = np.power(np.power(scaled, self.exponent).sum(axis=-1, keepdims=True), share)
        return np.asarray(signs * scaled * (np.sqrt(squares) * self.std / length))

    def coordinate_std(self, dim: int) -> float:
        """Standard deviation of each coordinate of a vector of length ``dim``.

        E r²·E(x₁²/‖x‖²), where ‖x‖^p is Gamma(d/p) and independent of x/‖x‖, so that the second
        factor is E x₁²/E‖x‖² = Γ(3/p)Γ(d/p)/(Γ(1/p)Γ((d+2)/p)).
        """
        p, d = self.exponent, count(dim=dim)
        if p == 2:
            return self.std
        logs = math.lgamma(3 / p) - math.lgamma(1 / p) + math.lgamma(d / p)
        return self.std * math.sqrt(d * math.exp(logs - math.lgamma((d + 2) / p)))

    def to_dict(self) -> dict[str, Any]:
        return {"family": "generalized-gaussian", "std": self.std, "exponent": self.exponent}


def noise_from_dict(data: dict[str, Any]) -> Noise | None:
    """Rebuilds a shipped noise from its JSON form; None for a family only its author knows."""
    match data.get("family"):
        case "gaussian":
            return GaussianNoise(data["std"])
        case "laplace":
            return LaplaceNoise(data["scale"])
        case "gumbel":
            return GumbelNoise(data["scale"])
        case "exponential":
            return ExponentialNoise(data["scale"])
        case "generalized-gaussian":
            return GeneralizedGaussianNoise(data["std"], data["exponent"])
    return None


class _Keystream:
    """Uniform 64-bit words from AES-256 in counter mode under a fresh key of the system."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        cipher = Cipher(algorithms.AES(secrets.token_bytes(32)), modes.CTR(bytes(16)))
        self._encryptor = cipher.encryptor()

    def words(self, n: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return np.frombuffer(self._encryptor.update(bytes(8 * n)), dtype=np.uint64)


class _Seeded:
    def __init__(self, seed: int) -> None:
        self._bits = np.random.PCG64(np.random.SeedSequence(seed))

    def words(self, n: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
        return self._bits.random_raw(n)


@final
class NoiseSource:
    """A stream of random numbers that cannot be rewound, copied or carried over a fork.

    `secure` draws from a cryptographic keystream; sampling is in double precision (Box-Muller,
    52-bit uniforms), so guarantees hold up to floating-point effects, which every certificate
    names.  `simulation` is reproducible; ledgers made with it are never certified.
    """

    __slots__ = ("_lock", "_pid", "_words", "name", "simulated")

    def __init__(self, words: _Keystream | _Seeded, name: str, simulated: bool):
        self._words, self.name, self.simulated = words, name, simulated
        self._pid = os.getpid()
        self._lock = threading.Lock()

    @classmethod
    def secure(cls) -> NoiseSource:
        """Noise for real releases: AES-256-CTR keystream, double-precision sampling."""
        return cls(_Keystream(), "secure keystream, floating-point sampling", simulated=False)

    @classmethod
    def simulation(cls, seed: int) -> NoiseSource:
        """Reproducible noise for experiments and tests; protects nobody."""
        return cls(
            _Seeded(count(seed=seed, at_least=0)), f"simulation, seed {seed}", simulated=True
        )

    def uniform(self, shape: tuple[int, ...]) -> Array:
        """Uniform numbers in (0, 1), never 0 or 1."""
        if os.getpid() != self._pid:
            raise TokenCopyError("a noise source cannot be used in a forked process")
        with self._lock:
            words = self._words.words(math.prod(shape))
        half = np.float64(0.5)
        return (((words >> np.uint64(12)).astype(np.float64) + half) * 2.0**-52).reshape(shape)

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Standard normal numbers; pairs by Box-Muller, tails up to 8.6."""
        total = math.prod(shape)
        pairs = (total + 1) // 2
        uniforms = self.uniform((2, pairs))
        radius = np.sqrt(-2.0 * np.log(uniforms[0]))
        angle = (2 * math.pi) * uniforms[1]
        flat = np.empty(2 * pairs)
        flat[:pairs] = radius * np.cos(angle)
        flat[pairs:] = radius * np.sin(angle)
        return flat[:total].reshape(shape)

    def __reduce__(self) -> str:
        raise TokenCopyError("a noise source cannot be copied or pickled")
