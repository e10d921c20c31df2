"""A report for each of K arms, of which one is about the user and the others about nothing.

"Synthetic update" in Han et al. 2021: the receiver does not see which arm was pulled.  The price is
the maximum over arms, not the sum, whatever K is (`mechanisms.one_of_k`, docs/errata).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.contract.protocols import Report
from privlearn.contract.receipts import Receipt
from privlearn.contract.spends import Spend
from privlearn.mechanisms.ball_reports import BallReport
from privlearn.mechanisms.category_reports import CategoryReport
from privlearn.mechanisms.noisy_report import NoisyReport
from privlearn.mechanisms.projected_reports import ProjectedReport
from privlearn.mechanisms.report_streams import EachReport, RowsOfNoise
from privlearn.noise import CapNoise, noise_from_dict
from privlearn.rows.domains import Array, Domain, OneOf, domain_from_dict
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import AtLeastTwo, assign, check_fields

X = TypeVar("X")
Part = BallReport | ProjectedReport | NoisyReport[X]
"""Reports for which the lemma is proved."""


@final
@dataclass(frozen=True, slots=True)
class OneOfKReport(EachReport[tuple[X, NDArray[Any]]]):
    """K reports, a real one at the arm of the user and null ones at all others.

    Rows are pairs (record, arm), arms integers 0..arms−1; a user of no arm, or whose record or arm
    cannot be used, sends K null reports.  Cap reports cost log(M/m), what one of them does;
    Gaussian and Laplace ones what `OneOf` says, for balls also what one of them does.

    Args:
        report: of one arm.
        arms: K >= 2, public.

    Raises:
        ValueError: fewer than two arms.
        TypeError: a report for which the lemma is not proved.
    """

    report: Part[X]
    arms: AtLeastTwo
    domain: OneOf[X] = field(init=False, repr=False, compare=False)
    """Where pairs (record, arm) are clipped."""
    _spends: tuple[Spend, Spend] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_fields(self)
        kinds = (BallReport, ProjectedReport, NoisyReport)
        joint = getattr(getattr(self.report, "noise", None), "independent", True)
        if not isinstance(self.report, kinds) or not joint:
            names = ", ".join(kind.__name__ for kind in kinds)
            raise TypeError(
                f"report = {self.report!r}: the lemma is proved for: {names} (with independent "
                "coordinates of noise)"
            )
        domain = OneOf(cast(Domain[X], self.report.domain), self.arms)
        assign(self, domain=domain)
        assign(self, _spends=(self._stated(interactive=False), self._stated(interactive=True)))
        self.loss()

    def _stated(self, *, interactive: bool) -> Spend:
        one = self.report.spend(interactive=interactive)
        parameters = {**one.parameters, "arms": self.arms}
        return replace(
            one, mechanism=f"one-of-k/{one.mechanism}", domain=self.domain, parameters=parameters
        )

    @property
    def adjacency(self) -> Adjacency:
        return self.report.adjacency

    @property
    def size(self) -> int:
        """Numbers in a report: those of arm 0, then those of arm 1, and so on."""
        return self.arms * self.report.size

    @property
    def limit(self) -> float:
        return self.report.limit

    def noise_of(self, receipt: Receipt) -> RowsOfNoise:
        return self.report.noise_of(receipt)

    def randomized(self, values: NDArray[Any], draw: RowsOfNoise) -> Array:
        parts = values.reshape(-1, self.report.domain.size)
        return self.report.randomized(parts, draw).reshape(len(values), self.size)

    @property
    def estimate_limit(self) -> float:
        return self.report.estimate_limit

    def estimate(self, reports: Array) -> Array:
        """Estimates of all arms, shape (n, domain.size), unbiased."""
        parts = self.report.estimate(reports.reshape(-1, self.report.size))
        return parts.reshape(len(reports), self.domain.size)

    def plausible(self, reports: Array, slack: float) -> NDArray[np.bool_]:
        parts = self.report.plausible(reports.reshape(-1, self.report.size), slack)
        return np.asarray(parts.reshape(len(reports), self.arms).all(axis=1))

    def mean_squared_error(self) -> float:
        """No less than E‖estimate − contribution‖² of all arms together."""
        return self.arms * self.report.mean_squared_error()

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "one-of-k-report", "report": self.report.to_dict(), "arms": self.arms}


def report_from_dict(data: Mapping[str, Any]) -> Report[Any]:
    """Rebuilds a report from its JSON form.

    Raises:
        ValueError: no shipped report, or bad numbers.
    """
    if not isinstance(data, Mapping):
        raise ValueError(f"report = {data!r}: must be a JSON object")
    try:
        return _read(data)
    except KeyError as missing:
        raise ValueError(f"{data.get('kind')}: lacks {missing}") from None
    except (TypeError, AttributeError, OverflowError, ValueError) as wrong:
        raise ValueError(f"{data.get('kind')}: {wrong}") from None


def _read(data: Mapping[str, Any]) -> Report[Any]:
    kind = data["kind"]
    if kind == "one-of-k-report":
        return OneOfKReport(cast(Any, report_from_dict(data["report"])), data["arms"])
    adjacency = Adjacency(data["adjacency"])
    match kind:
        case "ball-report":
            return BallReport(data["dim"], data["radius"], _cap(data), adjacency)
        case "projected-report":
            return ProjectedReport(data["dim"], data["radius"], _cap(data), adjacency)
        case "gaussian-report" | "laplace-report" | "generalized-gaussian-report":
            return NoisyReport.from_dict(_domain(data), data)
        case "category-report":
            return CategoryReport(data["categories"], data["probability"], adjacency)
    raise ValueError(f"kind = {kind!r}: is no shipped report")


def _cap(data: Mapping[str, Any]) -> CapNoise:
    cap = noise_from_dict(data["cap"])
    if not isinstance(cap, CapNoise):
        raise ValueError(f"cap = {data['cap']!r}: must be cap noise")
    return cap


def _domain(data: Mapping[str, Any]) -> Domain[Any]:
    domain = domain_from_dict(data["domain"])
    if domain is None:
        raise ValueError(f"domain = {data['domain']!r}: must be a shipped domain")
    return domain
