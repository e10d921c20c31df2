"""Contributions of single users with noise added on the device.

The statistic (xxᵀ, xr) of least squares is one report: for ‖x‖ <= C and |r| <= c the factor
f = (x/C, w·r/c) has ‖f‖² <= 1 + w², and `PSDTrace(1 + w², d + 1)` clips it and reports ffᵀ, which
holds xxᵀ/C², w·xr/(Cc) and w²r²/c².  Two users differ by at most √2·(1 + w²) in ℓ2, attained by
(x, r) and an orthogonal x with the opposite reward where cos = w²; the square of the reward comes
for nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Spend
from privlearn.errors import AdjacencyError
from privlearn.mechanisms.grids import grid_of
from privlearn.mechanisms.least_noise import check_noise, family_of
from privlearn.mechanisms.noisy_sum import Noisy
from privlearn.mechanisms.report_streams import EachReport, RowsOfNoise, spends_of
from privlearn.noise import noise_from_dict
from privlearn.rows.domains import Array, Domain, largest_number
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.validate import assign

X = TypeVar("X")


@final
@dataclass(frozen=True, slots=True)
class NoisyReport(Noisy[X], EachReport[X]):
    """The clipped contribution of one user plus noise, drawn for this user only.

    Privacy: as `NoisySum` of one row.  The tails of the noise have no end: `limit` is where
    messages are cut, which is public and costs nothing.

    Args:
        domain, noise, adjacency: see `Noisy`; the domain `OneOf` prices K reports of which one is
            real.

    Raises:
        AdjacencyError: add-remove.
    """

    _grid: Grid | None = field(init=False, repr=False, compare=False)
    _spends: tuple[Spend, Spend] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.adjacency is Adjacency.ADD_REMOVE:
            raise AdjacencyError(
                "a local report has no add-remove price: who sends one is seen to take part"
            )
        check_noise(self.noise)
        grid = grid_of(self.domain, self.noise)
        name = f"{family_of(self.noise)}-report"
        assign(self, _grid=grid, _spends=spends_of(name, self.domain, self.noise, grid=grid))
        self.loss()

    @property
    def limit(self) -> float:
        """Numbers of a report hardly ever lie outside of [−limit, limit], and messages cut them."""
        return largest_number(self.domain) + self.noise.reach(self.size)

    def spend(self, *, interactive: bool = False) -> Spend:
        return self._spends[interactive]

    def noise_of(self, receipt: Receipt) -> RowsOfNoise:
        drawn: Any = receipt.draw if self._grid is None else receipt.draw_integers
        return lambda n: drawn((n, self.size))

    def randomized(self, values: NDArray[Any], draw: RowsOfNoise) -> Array:
        noisy = values + draw(len(values))
        return noisy if self._grid is None else self._grid.values(noisy)

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        return np.asarray(np.abs(reports).max(axis=1) <= self.limit + slack)

    def mean_squared_error(self) -> float:
        """E‖report − contribution‖²."""
        return self.size * self.noise.variance(self.size)

    def to_dict(self) -> dict[str, Any]:
        numbers = self.noise.to_dict()
        kind = f"{numbers.pop('family')}-report"
        return {
            "kind": kind,
            "domain": self.domain.to_dict(),
            **{_KEYS.get(key, key): number for key, number in numbers.items()},
            "adjacency": self.adjacency.value,
        }

    @classmethod
    def from_dict(cls, domain: Domain[X], data: Mapping[str, Any]) -> NoisyReport[X]:
        """Rebuilds a report with shipped noise from its JSON form.

        Raises:
            KeyError: a number is missing.
            ValueError: a bad one.
        """
        numbers = {key: data[_KEYS.get(key, key)] for key in _NUMBERS[data["kind"]]}
        family = str(data["kind"]).removesuffix("-report")
        noise: Any = noise_from_dict({"family": family, **numbers})
        return cls(domain, noise, Adjacency(data["adjacency"]))


_KEYS = {"std": "noise_std"}
"""Where JSON forms of reports call a number otherwise than those of noise."""
_NUMBERS = {
    "gaussian-report": ("std",),
    "laplace-report": ("scale",),
    "generalized-gaussian-report": ("std", "exponent"),
}
