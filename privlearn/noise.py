"""Where noise comes from; it belongs to an accountant, so the ledger always knows."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal, Protocol, final, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from privlearn._json_forms import REAL, TEXT, WHOLE, Form, check_form, named
from privlearn._validate import (
    AtLeastTwo,
    Checked,
    Count,
    Finite,
    Positive,
    assign,
    check_fields,
    count,
    finite,
    positive,
    probability,
)
from privlearn.adjacency import Adjacency
from privlearn.domains import Array, Norm
from privlearn.errors import AdjacencyError, BudgetError, TokenCopyError, TokenError
from privlearn.exact import Exact, exact, float_down, round_up
from privlearn.exact_noise.cap_mass import cap_mass, log_above
from privlearn.exact_noise.caps import CapLaw, CapRows
from privlearn.exact_noise.fast import Floors
from privlearn.exact_noise.pool import NoisePool, Pool, below, bernoulli, uniform
from privlearn.exact_noise.tables import FLOOR_BITS
from privlearn.exact_noise.variates import STEP, Kind, Variates, check_sampler
from privlearn.exact_noise.words import Keystream, SeededWords, Words
from privlearn.losses import (
    GeneralizedGaussian,
    LaplaceLoss,
    Loss,
    PureLoss,
    RandomizedResponse,
    gaussian_loss,
)


def _integers(pool: Pool, kind: Kind, shape: tuple[int, ...], bits: int) -> Floors:
    found = pool.floors(kind, math.prod(shape)).reshape(shape)
    return found if bits == FLOOR_BITS else found >> (FLOOR_BITS - bits)


def _doubles(pool: Pool, kind: Kind, shape: tuple[int, ...]) -> Array:
    """The middles of steps of 2^−40."""
    return np.asarray((pool.floors(kind, math.prod(shape)).reshape(shape) + 0.5) * STEP)


def _uniform(pool: Pool, shape: tuple[int, ...]) -> Array:
    return uniform(pool, math.prod(shape)).reshape(shape)


class Noise(Protocol):
    """Independent noise on every vector, with the loss it gives at a sensitivity."""

    @property
    def norm(self) -> Norm:
        """The norm in which sensitivity counts."""

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """The loss of adding this noise to a vector of that sensitivity."""

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        """Fresh noise in doubles, for arithmetic in doubles."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@runtime_checkable
class ReportNoise(Noise, Protocol):
    """Noise of local reports, which is more than numbers that are added."""

    def rows(self, pool: Pool, n: int) -> Any:
        """What ``n`` reports are made of: has a length, and parts as ``rows[start:stop]``."""


class AdditiveNoise(Noise, Protocol):
    """Noise that is added to numbers, which it makes private by itself."""

    @property
    def independent(self) -> bool:
        """Whether coordinates are, so that noise on two vectors is noise on one longer vector."""

    def variance(self, dim: int) -> float:
        """Of each coordinate of a vector of length ``dim``."""

    def reach(self, dim: int) -> float:
        """Numbers of a vector of length ``dim`` are hardly ever farther from 0; its law has no end.

        Messages are cut there, which is public and costs nothing.
        """


class ExactNoise(AdditiveNoise, Protocol):
    """Additive noise that is drawn as integers: ⌊2^bits·Z⌋, Z of its continuous law at unit 1."""

    @property
    def unit(self) -> float:
        """The noise is this times a standard one."""

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        """⌊2^bits·Z⌋, exactly, int64; bits <= 40."""


@final
@dataclass(frozen=True, slots=True)
class GaussianNoise(Checked):
    """N(0, std²) on each coordinate, in the unit of the data."""

    norm: ClassVar[Norm] = "l2"
    independent: ClassVar[bool] = True
    std: Positive

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Gaussian loss of mass (sensitivity/std)², rounded up."""
        return gaussian_loss(sensitivity, self.std, adjacency)

    @property
    def unit(self) -> float:
        """The standard deviation."""
        return self.std

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        return _integers(pool, "normal", shape, bits)

    def variates(self, pool: Pool, n: int) -> Variates:
        """Standard ones, that can be refined."""
        return pool.variates("normal", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return _doubles(pool, "normal", shape) * self.std

    def variance(self, dim: int) -> float:
        return self.std * self.std

    def reach(self, dim: int) -> float:
        """12 standard deviations, passed with probability 4e-33."""
        return 12 * self.std

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gaussian", "std": self.std}


@final
@dataclass(frozen=True, slots=True)
class LaplaceNoise(Checked):
    """Laplace noise of the given scale on each coordinate, in the unit of the data."""

    norm: ClassVar[Norm] = "l1"
    independent: ClassVar[bool] = True
    scale: Positive

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """A Laplace loss of ε = sensitivity/scale, rounded up."""
        epsilon = round_up(Fraction(positive(sensitivity=sensitivity)) / Fraction(self.scale))
        return LaplaceLoss(epsilon, adjacency=adjacency)

    @property
    def unit(self) -> float:
        """The scale."""
        return self.scale

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        return _integers(pool, "laplace", shape, bits)

    def variates(self, pool: Pool, n: int) -> Variates:
        """Standard ones, that can be refined."""
        return pool.variates("laplace", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return _doubles(pool, "laplace", shape) * self.scale

    def variance(self, dim: int) -> float:
        return 2 * self.scale**2

    def reach(self, dim: int) -> float:
        """40 scales, passed with probability 4e-18."""
        return 40 * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "laplace", "scale": self.scale}


class _ForChoices(Checked, ABC):
    """Noise that protects which of several scores is largest, and no score itself."""

    __slots__ = ()
    norm: ClassVar[Norm] = "linf"
    scale: float

    @property
    def unit(self) -> float:
        """The scale."""
        return self.scale

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Refused: the price of a choice depends on what is chosen from.

        Raises:
            BudgetError: always.
        """
        raise BudgetError(
            f"{self.to_dict()['family']} noise protects which of several scores is largest, not "
            "the scores: use ReportNoisyMax, or state own_loss"
        )

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@final
@dataclass(frozen=True, slots=True)
class GumbelNoise(_ForChoices):
    """Gumbel noise, distribution function exp(−e^{−x/scale}), for scores of which one is chosen."""

    scale: Positive

    def variates(self, pool: Pool, n: int) -> Variates:
        return pool.variates("gumbel", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return _doubles(pool, "gumbel", shape) * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "gumbel", "scale": self.scale}


@final
@dataclass(frozen=True, slots=True)
class ExponentialNoise(_ForChoices):
    """Exponential noise of mean ``scale``, for scores of which one is chosen.

    On a number that is released it would be one-sided, and reveal it.
    """

    scale: Positive

    def variates(self, pool: Pool, n: int) -> Variates:
        return pool.variates("exponential", n)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        return _doubles(pool, "exponential", shape) * self.scale

    def to_dict(self) -> dict[str, Any]:
        return {"family": "exponential", "scale": self.scale}


def _at_least_two(**named: float) -> float:
    ((name, value),) = named.items()
    if not 2 <= finite(**named) <= 1000:
        raise ValueError(f"{name} = {value!r}: must lie in [2, 1000]")
    return float(value)


SmoothExponent = Annotated[float, _at_least_two]

_VECTOR_BITS = 34
"""Of vectors in ℓp: doubles decide nearly all floors on this grid; on a finer one, fewer."""


@final
@dataclass(frozen=True, slots=True)
class GeneralizedGaussianNoise(Checked):
    """Vectors (along the last axis) with density ∝ exp(−‖z‖²/(2std²)), ‖·‖ the norm of ℓp, p >= 2.

    Sampling (Han et al. 2022, Lemma 3.1 with its scale corrected: ``docs/errata``).  In polar
    coordinates of ‖·‖ the radius r has density ∝ r^{d−1}·exp(−r²/(2std²)), so r² is Gamma(d/2,
    scale 2std²): std² times the sum of d squared normals.  The direction is independent of it, with
    the law of x/‖x‖ for any x of density f(‖x‖); take ∏exp(−|x_i|^p), where |x_i|^p is Gamma(1/p)
    with a random sign.  For p = 2 it is N(0, std²) on every coordinate, and drawn as such; else
    `privlearn.exact_noise.powers` draws it, exactly; integers p take the least time.

    Args:
        std: σ; the mean of ‖z‖² is d·std², and the std of a coordinate is `coordinate_std`.
        exponent: p in [2, 1000].
    """

    independent: ClassVar[bool] = False
    std: Positive
    exponent: SmoothExponent

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

    @property
    def unit(self) -> float:
        """σ."""
        return self.std

    @property
    def finest(self) -> int:
        """Bits of the finest grid that `privlearn.mechanisms.grids.grid_of` gives it."""
        return FLOOR_BITS if self.exponent == 2 else _VECTOR_BITS

    def integers(self, pool: Pool, shape: tuple[int, ...], bits: int) -> Floors:
        """⌊2^bits·z⌋ of vectors at σ = 1 along the last axis, exactly, int64; bits <= 40."""
        if self.exponent == 2:
            return _integers(pool, "normal", shape, bits)
        from privlearn.exact_noise.powers import power_vectors

        *vectors, dim = shape
        n, p = math.prod(vectors), self.exponent

        def make(count: int) -> Floors:
            return power_vectors(pool, count, dim, p, bits)

        law = "powers", dim, p, bits
        found = pool.vectors(law, n, make) if isinstance(pool, NoisePool) else make(n)
        return found.reshape(shape)

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        found = self.integers(pool, shape, self.finest)
        return np.asarray((found + 0.5) * 2.0**-self.finest) * self.std

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

    def variance(self, dim: int) -> float:
        return self.coordinate_std(dim) ** 2

    def reach(self, dim: int) -> float:
        """The norm is std·‖normals‖₂ for ``dim`` normals, each hardly ever above 12."""
        return 12 * self.std * math.sqrt(dim)

    def to_dict(self) -> dict[str, Any]:
        return {"family": "generalized-gaussian", "std": self.std, "exponent": self.exponent}


_GRID = 2.0**-52
"""A probability on it is met exactly."""
_LEAST_MASS = 1e-200
"""Of a cap: doubles hold smaller ones with fewer digits, or not at all."""
_MOST_CATEGORIES = 2**20
_MOST_DIMENSIONS = 2**20
"""Of a cap: its mass takes time in proportion, 50 ms here, and a ledger may state any."""
Surface = Literal["sphere", "gaussian"]


def _on_grid(**named: float) -> float:
    return math.floor(probability(**named) / _GRID) * _GRID


GridProbability = Annotated[float, _on_grid]


class _ForReports(ABC):
    """Noise that makes whole reports."""

    __slots__ = ()

    def draw(self, pool: Pool, shape: tuple[int, ...]) -> Array:
        """Refused: such noise is not made of numbers that are drawn by themselves.

        Raises:
            TokenError: always.
        """
        raise TokenError(
            f"{self.to_dict()['family']} noise makes whole reports, and no numbers to be added: "
            "use receipt.draw_rows(n)"
        )

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@final
@dataclass(frozen=True, slots=True)
class CapNoise(_ForReports):
    """Randomness of reports that fall into a cap around a unit vector u more often than not.

    Let Q be the null law: uniform on the unit sphere, or N(0, I).  A report about u has the law Q
    given ⟨z, u⟩ >= threshold with ``probability`` p, and Q given ⟨z, u⟩ < threshold otherwise; a
    null report has the law Q.  With q = Q(⟨z, u⟩ >= threshold) the density against Q is M = p/q in
    the cap and m = (1−p)/(1−q) outside, so that reports of two users differ by a factor of at most
    M/m, whatever u is, and a null one from a real one by at most max(M, 1/m).

    E z = u·μ with μ = κ(M − m), κ = E_Q[⟨z, u⟩; ⟨z, u⟩ >= threshold].  On the sphere that is
    PrivUnit (Bhowmick et al. 2018), with threshold 0 the mechanism of Duchi, Jordan & Wainwright
    (2018); with normals PrivUnitG (Asi, Feldman & Talwar 2022).

    Args:
        dim: of u and z, at most 2²⁰.
        threshold: t in [0, 1) on the sphere, in [0, 9) for normals, where the best one is at most
            6.9 and `BallReport` cuts numbers at 12; 0 if ``dim`` is 1 (sphere).
        probability: p, strictly between q and 1; rounded down to a multiple of 2⁻⁵².
        surface: "sphere" or "gaussian".

    Raises:
        ValueError: a number is out of range, or the cap too small for double precision.
    """

    norm: ClassVar[Norm] = "l2"
    dim: Count
    threshold: Finite
    probability: GridProbability
    surface: Surface = "sphere"
    mass: float = field(init=False, compare=False)
    """q, of the cap under the null law."""
    mean: float = field(init=False, compare=False)
    """μ: a report about u is μ·u on average."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.dim > _MOST_DIMENSIONS:
            raise ValueError(f"dim = {self.dim}: must be at most {_MOST_DIMENSIONS}")
        if self.surface not in ("sphere", "gaussian"):
            raise ValueError(f"surface = {self.surface!r}: must be 'sphere' or 'gaussian'")
        most = 9.0 if self.surface == "gaussian" else 1.0 if self.dim > 1 else 0.0
        if not 0 <= self.threshold < max(most, math.ulp(0.0)):
            raise ValueError(f"threshold = {self.threshold!r}: must be >= 0 and below {most}")
        assign(self, mass=float(self._least_mass()))
        if self.mass < _LEAST_MASS:
            raise ValueError(
                f"threshold = {self.threshold!r}: beyond it the null law in dimension {self.dim} "
                f"has less than {_LEAST_MASS}"
            )
        if not self.mass < self.probability < 1:
            raise ValueError(
                f"probability = {self.probability!r}: must lie between the null law's mass of the "
                f"cap, {self.mass!r}, and 1"
            )
        least, most = self.densities
        moment = _cap_moment(self.dim, self.threshold, self.surface)
        assign(self, mean=moment * (most - least))

    @classmethod
    def at(cls, dim: int, threshold: float, epsilon: Exact, surface: Surface) -> CapNoise:
        """The largest probability at which replacing a record costs at most ``epsilon``.

        Raises:
            ValueError: ε is not in [1e-6, 30], or the cap is too small for double precision.
        """
        cost = exact("epsilon", epsilon)
        if not Fraction(1, 10**6) <= cost <= 30:
            raise ValueError(f"epsilon = {epsilon!r}: must lie in [1e-6, 30] for a local report")
        q = _cap_mass(dim, threshold, surface)
        odds = math.exp(float_down(cost)) * q / (1 - q)
        p, step = math.floor(odds / (1 + odds) / _GRID) * _GRID, _GRID
        if not q < p < 1:
            raise ValueError(f"epsilon = {epsilon!r}, threshold = {threshold!r}: no such cap")
        while (made := cls(dim, threshold, p, surface))._epsilon(Adjacency.REPLACE_ONE) > cost:
            p, step = p - step, 2 * step
        return made

    @classmethod
    def half(cls, dim: int, epsilon: Exact) -> CapNoise:
        """The half sphere, Duchi, Jordan & Wainwright 2018.

        Raises:
            As `at`.
        """
        return cls.at(dim, 0.0, epsilon, "sphere")

    @classmethod
    def optimal(cls, dim: int, epsilon: Exact, surface: Surface = "sphere") -> CapNoise:
        """The cap of least mean squared error at ``epsilon``.

        With c = e^ε − 1 the mean is μ(t) = cκ/(1 + cq), and κ′ = −t·f(t), q′ = −f(t) for the null
        density f of ⟨z, u⟩.  On the sphere the error is 1/μ² (in units of ‖u‖²), least where
        h(t) = t(1 + cq) − cκ = 0, which is t = μ(t); as h′ = 1 + cq > 0 there is one such t.  For
        normals it is dim/μ² + t/μ, minimised over t numerically.

        Raises:
            As `at`.
        """
        from scipy.optimize import brentq, minimize_scalar

        size = count(dim=dim)
        cost = float(exact("epsilon", epsilon))
        if not 1e-6 <= cost <= 30:
            raise ValueError(f"epsilon = {epsilon!r}: must lie in [1e-6, 30] for a local report")
        c = math.expm1(cost)

        def mean(t: float) -> float:
            return c * _cap_moment(size, t, surface) / (1 + c * _cap_mass(size, t, surface))

        if surface == "sphere":
            t = (
                0.0
                if size == 1
                else float(brentq(lambda t: t - mean(t), 0.0, 1 - _GRID, xtol=1e-12))
            )
        else:
            found = minimize_scalar(
                lambda t: size / mean(t) ** 2 + t / mean(t),
                bounds=(0.0, 9.0),
                method="bounded",
                options={"xatol": 1e-9},
            )
            t = float(found.x)
        return cls.at(size, t, epsilon, surface)

    @property
    def densities(self) -> tuple[float, float]:
        """The least and the largest density of a report against the null law, m and M."""
        p, q = self.probability, self.mass
        return (1 - p) / (1 - q), p / q

    @property
    def second_moment(self) -> float:
        """The larger of E‖z‖² of a real and of a null report.

        For normals E⟨z, u⟩² = 1 + tκ(M − m), as ∫ x²φ over x >= t is q + tκ.
        """
        return 1.0 if self.surface == "sphere" else self.dim + self.threshold * self.mean

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """log(M/m), under zero-out log max(M, 1/m), rounded up; the sensitivity does not matter.

        Raises:
            AdjacencyError: add-remove; whoever sends a report is seen to take part.
        """
        return PureLoss(self._epsilon(adjacency), adjacency=adjacency)

    def _least_mass(self) -> Fraction:
        """Not above q; log M and −log m fall in q."""
        return cap_mass(self.dim, self.threshold, self.surface == "sphere")[0]

    def _epsilon(self, adjacency: Adjacency) -> Fraction:
        p, q = Fraction(self.probability), self._least_mass()
        return _local_price(p / q, (1 - q) / (1 - p), adjacency)

    def rows(self, pool: Pool, n: int) -> CapRows:
        """What ``n`` reports are made of, exactly (`exact_noise.caps`)."""
        numerator = int(self.probability / _GRID)
        return _cap_law(self.dim, self.threshold, numerator, self.surface == "sphere").rows(pool, n)

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": "cap",
            "dim": self.dim,
            "threshold": self.threshold,
            "probability": self.probability,
            "surface": self.surface,
        }


_cap_law = lru_cache(maxsize=64)(CapLaw)


def _local_price(most: Fraction, least: Fraction, adjacency: Adjacency) -> Fraction:
    """Of bounds of M and 1/m, the largest densities against the null law and of it."""
    if adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            "a local report has no add-remove price: who sends one is seen to take part"
        )
    replaced = adjacency is Adjacency.REPLACE_ONE
    return round_up(log_above(most * least if replaced else max(most, least)))


def _cap_mass(dim: int, threshold: float, surface: Surface) -> float:
    """Of {⟨z, u⟩ >= threshold}, a threshold >= 0, under the null law; in doubles, for searches."""
    if threshold == 0:
        return 0.5
    if surface == "gaussian":
        return 0.5 * math.erfc(threshold / math.sqrt(2))
    if dim == 2:
        return math.acos(threshold) / math.pi
    from scipy.special import betainc, betaincc

    # ⟨z, u⟩² is Beta(1/2, (d−1)/2); it or what is missing to 1, whichever has all its digits
    if threshold < 0.5:
        return float(betaincc(0.5, (dim - 1) / 2, threshold**2)) / 2
    return float(betainc((dim - 1) / 2, 0.5, (1 - threshold) * (1 + threshold))) / 2


def _cap_moment(dim: int, threshold: float, surface: Surface) -> float:
    """κ: the mean of ⟨z, u⟩, counted where it is >= threshold, under the null law.

    On the sphere ⟨z, u⟩ has density Γ(d/2)/(√πΓ((d−1)/2))·(1−x²)^{(d−3)/2}.
    """
    if surface == "gaussian":
        return math.exp(-(threshold**2) / 2) / math.sqrt(2 * math.pi)
    logs = math.lgamma(dim / 2) - math.lgamma((dim + 1) / 2)
    logs += (dim - 1) / 2 * (math.log1p(-threshold) + math.log1p(threshold))
    return math.exp(logs) / (2 * math.sqrt(math.pi))


@final
@dataclass(frozen=True, slots=True)
class CategoryRows:
    """What reports of answers are made of.

    Args:
        true: which tell the truth.
        others: 0..k−2, a place among the other answers.
        nulls: 0..k−1, the answer of who has none.
    """

    true: NDArray[np.bool_]
    others: NDArray[np.int64]
    nulls: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.true)

    def __getitem__(self, rows: slice) -> CategoryRows:
        return CategoryRows(self.true[rows], self.others[rows], self.nulls[rows])


@final
@dataclass(frozen=True, slots=True)
class CategoryNoise(_ForReports):
    """Randomness of k-ary randomized response: the truth with ``probability``, or any other answer.

    A null report is uniform.  Against it the density is pk at the truth and (1−p)k/(k−1) elsewhere;
    it is the mean of the laws of all answers, so that replacing one by a null one costs no more.
    All of these probabilities are met exactly.

    Args:
        categories: k in 2..2²⁰.
        probability: p in (1/k, 1); rounded down to a multiple of 2⁻⁵².

    Raises:
        ValueError: a number is out of range.
    """

    norm: ClassVar[Norm] = "linf"
    categories: AtLeastTwo
    probability: GridProbability

    def __post_init__(self) -> None:
        check_fields(self)
        if self.categories > _MOST_CATEGORIES:
            raise ValueError(f"categories = {self.categories}: must be at most {_MOST_CATEGORIES}")
        if not 1 / self.categories < self.probability:
            raise ValueError(f"probability = {self.probability!r}: must exceed 1/categories")

    @classmethod
    def at(cls, categories: int, epsilon: Exact) -> CategoryNoise:
        """The largest probability at which replacing a record costs at most ``epsilon``.

        Raises:
            ValueError: ε is not in [1e-6, 30].
        """
        cost, k = exact("epsilon", epsilon), count(categories=categories, at_least=2)
        if not Fraction(1, 10**6) <= cost <= 30:
            raise ValueError(f"epsilon = {epsilon!r}: must lie in [1e-6, 30] for a local report")
        odds = math.exp(float_down(cost)) / (k - 1)
        p, step = math.floor(odds / (1 + odds) / _GRID) * _GRID, _GRID
        while (made := cls(k, p))._epsilon(Adjacency.REPLACE_ONE) > cost:
            p, step = p - step, 2 * step
        return made

    def loss(self, sensitivity: float, adjacency: Adjacency) -> Loss:
        """Randomized response, under zero-out log max(pk, (k−1)/((1−p)k)), rounded up.

        Raises:
            AdjacencyError: add-remove; whoever sends a report is seen to take part.
        """
        epsilon = self._epsilon(adjacency)
        if adjacency is Adjacency.REPLACE_ONE:
            return RandomizedResponse(epsilon, self.categories, adjacency=adjacency)
        return PureLoss(epsilon, adjacency=adjacency)

    def _epsilon(self, adjacency: Adjacency) -> Fraction:
        p, k = Fraction(self.probability), self.categories
        return _local_price(p * k, (k - 1) / ((1 - p) * k), adjacency)

    def rows(self, pool: Pool, n: int) -> CategoryRows:
        """What ``n`` reports are made of; all of it is drawn, whatever a report takes."""
        k = self.categories
        true = bernoulli(pool, int(self.probability / _GRID), n)
        return CategoryRows(true, below(pool, k - 1, n), below(pool, k, n))

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": "category",
            "categories": self.categories,
            "probability": self.probability,
        }


_READERS: dict[str, tuple[Form, Callable[..., Noise]]] = {
    "gaussian": ({"std": REAL}, GaussianNoise),
    "laplace": ({"scale": REAL}, LaplaceNoise),
    "gumbel": ({"scale": REAL}, GumbelNoise),
    "exponential": ({"scale": REAL}, ExponentialNoise),
    "generalized-gaussian": ({"std": REAL, "exponent": REAL}, GeneralizedGaussianNoise),
    "cap": (
        {"dim": WHOLE, "threshold": REAL, "probability": REAL, "surface": TEXT},
        CapNoise,
    ),
    "category": ({"categories": WHOLE, "probability": REAL}, CategoryNoise),
}


def noise_from_dict(data: Mapping[str, Any]) -> Noise | None:
    """Rebuilds a shipped noise from its JSON form; None for a family only its author knows.

    Raises:
        ValueError: a shipped family with bad or missing numbers, of other JSON types, or more.
    """
    family = named("noise", data, "family")
    if family not in _READERS:
        return None
    form, read = _READERS[family]
    try:
        check_form(f"{family} noise", data, {"family": TEXT, **form})
    except KeyError as missing:
        raise ValueError(f"{family} noise lacks {missing}") from None
    return read(*[data[name] for name in form])


@final
class NoiseSource:
    """Where the noise of every spend comes from; it cannot be copied.

    `secure` draws from cryptographic keystreams, a fresh one for each spend.  `simulation` is
    reproducible; ledgers made with it are never certified.  Either way the same code turns words
    into noise (`privlearn.exact_noise`), which is tried against its slow path before first use.

    Raises:
        NoiseSamplerError: the tables are damaged, or this machine's arithmetic is not IEEE 754.
    """

    __slots__ = ("_words", "name", "simulated")

    def __init__(self, words: Words | None, name: str, simulated: bool):
        check_sampler()
        self._words, self.name, self.simulated = words, name, simulated

    @classmethod
    def secure(cls) -> NoiseSource:
        """Noise for real releases, from AES-256 in counter mode."""
        return cls(None, "secure keystream", simulated=False)

    @classmethod
    def simulation(cls, seed: int) -> NoiseSource:
        """Reproducible noise for experiments and tests; protects nobody."""
        words = SeededWords(count(seed=seed, at_least=0))
        return cls(words, f"simulation, seed {seed}", simulated=True)

    def pool(self) -> NoisePool:
        """The noise of one spend, asked for after it; of a simulation, the next of its seed."""
        return NoisePool(Keystream() if self._words is None else self._words)

    def __reduce__(self) -> str:
        raise TokenCopyError("a noise source cannot be copied or pickled")
