"""Reports in a cap around a unit vector."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import Any, ClassVar, Literal, final

from privlearn.losses import Loss, PureLoss
from privlearn.noise.exact.cap_mass import cap_mass
from privlearn.noise.exact.cap_rows import CapRows
from privlearn.noise.exact.caps import CapLaw
from privlearn.noise.exact.pool import NoisePool, Pool
from privlearn.noise.reports import GRID, GridProbability, ReportFamily, local_price
from privlearn.rows.domains import Norm
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import Exact, exact, float_down
from privlearn.values.validate import Count, Finite, assign, check_fields, count

_LEAST_MASS = 1e-200  # Of a cap: doubles hold smaller ones with fewer digits, or not at all

_MOST_DIMENSIONS = 2**20
"""Of a cap: its mass takes time in proportion, 50 ms here, and a ledger may state any."""

Surface = Literal["sphere", "gaussian"]


@final
@dataclass(frozen=True, slots=True)
class CapNoise(ReportFamily):
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
        p, step = math.floor(odds / (1 + odds) / GRID) * GRID, GRID
        if not q < p < 1:
            raise ValueError(f"epsilon = {epsilon!r}, threshold = {threshold!r}: no such cap")
        while (made := cls(dim, threshold, p, surface))._epsilon(Adjacency.REPLACE_ONE) > cost:
            p, step = p - step, 2 * step
        return made

    @classmethod
    def half(cls, dim: int, epsilon: Exact) -> CapNoise:
        """The half sphere, Duchi, Jordan & Wainwright 2018.

        Raises:
            ValueError: as `at`.
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
            ValueError: as `at`.
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
                else float(brentq(lambda t: t - mean(t), 0.0, 1 - GRID, xtol=1e-12))
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
        return local_price(p / q, (1 - q) / (1 - p), adjacency)

    def rows(self, pool: Pool, n: int) -> CapRows:
        """What ``n`` reports are made of, exactly (`privlearn.noise.exact`)."""
        numerator = int(self.probability / GRID)
        law = _cap_law(self.dim, self.threshold, numerator, self.surface == "sphere")

        def make(count: int) -> CapRows:
            rows = CapRows.drawn(law, pool, count)
            return rows.about_axis() if count > n else rows

        return pool.rows(law, n, self.dim, make) if isinstance(pool, NoisePool) else make(n)

    def to_dict(self) -> dict[str, Any]:
        return {
            "family": "cap",
            "dim": self.dim,
            "threshold": self.threshold,
            "probability": self.probability,
            "surface": self.surface,
        }


_cap_law = lru_cache(maxsize=64)(CapLaw)


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
