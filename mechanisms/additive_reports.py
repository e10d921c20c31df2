"""Contributions of single users with noise added on the device: Gaussian and Laplace.

The statistic (xxᵀ, xr) of least squares is one report: for ‖x‖ <= C and |r| <= c the factor
f = (x/C, w·r/c) has ‖f‖² <= 1 + w², and `PSDTrace(1 + w², d + 1)` clips it and reports ffᵀ, which
holds xxᵀ/C², w·xr/(Cc) and w²r²/c².  Two users differ by at most √2·(1 + w²) in ℓ2, attained by
(x, r) and an orthogonal x with the opposite reward where cos = w²; the square of the reward comes
for nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn._validate import positive
from privlearn.adjacency import Adjacency
from privlearn.budgets import Currency
from privlearn.domains import Array, Domain
from privlearn.errors import AdjacencyError
from privlearn.exact import Exact, exact
from privlearn.losses import gaussian_std
from privlearn.mechanisms.report_streams import Draw, EachReport, largest_number
from privlearn.noise import GaussianNoise, LaplaceNoise
from privlearn.tokens import Spend

X = TypeVar("X")


def _check_relation(adjacency: Adjacency) -> None:
    if adjacency is Adjacency.ADD_REMOVE:
        raise AdjacencyError(
            "a local report has no add-remove price: who sends one is seen to take part"
        )


class _Additive(EachReport[X]):
    """Noise on every number of a clipped contribution, drawn for each user alone."""

    __slots__ = ()

    @property
    def size(self) -> int:
        """Numbers in a report."""
        return self.domain.size

    @property
    @abstractmethod
    def limit(self) -> float:
        """Every number lies in [−limit, limit]."""

    def randomized(self, values: Array, draw: Draw) -> Array:
        """Reports about contributions, shape (n, size), row by row."""
        return values + draw(values.shape)

    @property
    def estimate_limit(self) -> float:
        """Every number of an estimate lies in [−estimate_limit, estimate_limit]."""
        return self.limit

    def estimate(self, reports: Array) -> Array:
        """The reports themselves, which are unbiased."""
        return reports

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        """Whether each could be a report, up to ``slack`` in every number."""
        return np.asarray(np.abs(reports).max(axis=1) <= self.limit + slack)


@final
@dataclass(frozen=True, slots=True)
class GaussianReport(_Additive[X]):
    """The clipped contribution of one user plus N(0, noise_std²) on every number of it.

    Args:
        domain: what one user can contribute; `OneOf` prices K reports of which one is real.
        noise_std: in the unit of the data.
        adjacency: must be the accountant's.

    Raises:
        ValueError: a number out of range.  AdjacencyError: add-remove.
    """

    domain: Domain[X]
    noise_std: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise_std", positive(noise_std=self.noise_std))
        _check_relation(self.adjacency)

    @classmethod
    def calibrated(
        cls,
        domain: Domain[X],
        budget: Currency,
        *,
        adjacency: Adjacency = Adjacency.REPLACE_ONE,
    ) -> GaussianReport[X]:
        """The least noise that ``budget`` allows.

        Raises:
            CurrencyError: no Gaussian fits this currency.  ValueError: a budget of zero.
        """
        std = gaussian_std(domain.sensitivity(adjacency, "l2"), budget.gaussian_mass())
        return cls(domain, std, adjacency)

    @property
    def limit(self) -> float:
        """Every number lies in [−limit, limit]: our normals end at 8.6 standard deviations."""
        return largest_number(self.domain) + 12 * self.noise_std

    def spend(self, *, interactive: bool = False) -> Spend:
        """The statement for the ledger."""
        noise = GaussianNoise(self.noise_std)
        return Spend(
            "gaussian-report", self.domain, noise, arithmetic="each", interactive=interactive
        )

    def mean_squared_error(self) -> float:
        """E‖report − contribution‖²."""
        return self.size * self.noise_std**2

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "kind": "gaussian-report",
            "domain": self.domain.to_dict(),
            "noise_std": self.noise_std,
            "adjacency": self.adjacency.value,
        }


@final
@dataclass(frozen=True, slots=True)
class LaplaceReport(_Additive[X]):
    """The clipped contribution of one user plus Laplace noise of one scale on every number of it.

    Args:
        domain: what one user can contribute; ε is its ℓ1 sensitivity over the scale.
        scale: in the unit of the data.
        adjacency: must be the accountant's.

    Raises:
        ValueError: a number out of range.  AdjacencyError: add-remove.
    """

    domain: Domain[X]
    scale: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", positive(scale=self.scale))
        _check_relation(self.adjacency)
        self.loss()

    @classmethod
    def calibrated(
        cls, domain: Domain[X], epsilon: Exact, *, adjacency: Adjacency = Adjacency.REPLACE_ONE
    ) -> LaplaceReport[X]:
        """The least noise at a pure ε.

        Raises:
            ValueError: ε is not > 0.
        """
        cost = exact("epsilon", epsilon)
        reach = domain.sensitivity(adjacency, "l1")
        scale = positive(scale=reach / positive(epsilon=float(cost)))
        while Fraction(reach) / Fraction(scale) > cost:
            scale = float(np.nextafter(scale, np.inf))
        # prices are rounded up to 12 digits
        made = cls(domain, scale, adjacency)
        rounded = made.loss().pure()
        assert rounded is not None
        return made if rounded <= cost else cls(domain, scale * (1 + 2e-11), adjacency)

    @property
    def limit(self) -> float:
        """Every number lies in [−limit, limit]: uniform numbers >= 2⁻⁵³ end at 36.8 scales."""
        return largest_number(self.domain) + 40 * self.scale

    def spend(self, *, interactive: bool = False) -> Spend:
        """The statement for the ledger."""
        noise = LaplaceNoise(self.scale)
        return Spend(
            "laplace-report", self.domain, noise, arithmetic="each", interactive=interactive
        )

    def mean_squared_error(self) -> float:
        """E‖report − contribution‖²."""
        return 2 * self.size * self.scale**2

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "kind": "laplace-report",
            "domain": self.domain.to_dict(),
            "scale": self.scale,
            "adjacency": self.adjacency.value,
        }
