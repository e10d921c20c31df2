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
from privlearn.errors import TokenCopyError
from privlearn.losses import Laplace, Loss, gaussian_loss


class Noise(Protocol):
    """Independent noise on every coordinate, with the loss it gives at a sensitivity."""

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


def noise_from_dict(data: dict[str, Any]) -> Noise | None:
    """Rebuilds a shipped noise from its JSON form; None for a family only its author knows."""
    match data.get("family"):
        case "gaussian":
            return GaussianNoise(data["std"])
        case "laplace":
            return LaplaceNoise(data["scale"])
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
