"""Claims as regions of what an event may do: P(E) on one data set, Q(E) on a neighbouring one.

Every guarantee bounds P(E) by a concave function of Q(E), in both orientations.  Its inverse, the
least parameter under which an event with probabilities (p, q) is possible, turns frequencies into a
lower bound on the loss (`Claim.strength`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import ndtri

from privlearn.errors import CheckError
from privlearn.losses import Loss
from privlearn.losses.budgets import ZCDP, ApproxDP, GaussianDP, PureDP, Renyi
from privlearn.rows.domains import Array
from privlearn.values.exact import float_up

ORDERS = np.concatenate([1 + np.geomspace(0.01, 1, 8), np.geomspace(2.5, 256, 12)])
"""Where Rényi curves are asked; fewer orders only make a check more lenient."""


class Claim(ABC):
    """A promise with one number that can be turned up until an observation becomes possible."""

    unit: str
    value: float
    text: str

    @abstractmethod
    def strength(self, p: Array, q: Array) -> Array:
        """Least number under which P(E) = p, Q(E) = q is possible; 0 where p <= q."""


@dataclass(frozen=True)
class ApproxClaim(Claim):
    """(ε, δ)-DP; δ = 0 is pure DP."""

    value: float
    slack: float
    text: str
    unit: str = "epsilon"

    def strength(self, p: Array, q: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            up = np.log(np.maximum(p - self.slack, 0) / q)
            down = np.log(np.maximum(1 - q - self.slack, 0) / (1 - p))
        best = np.maximum(np.maximum(up, down), 0.0)
        return np.asarray(np.nan_to_num(best, nan=0.0, posinf=np.inf))


@dataclass(frozen=True)
class GaussianClaim(Claim):
    """μ-Gaussian DP (Dong, Roth & Su 2022)."""

    value: float
    text: str
    unit: str = "mu"

    def strength(self, p: Array, q: Array) -> Array:
        with np.errstate(invalid="ignore"):
            gap = np.maximum(ndtri(p) - ndtri(q), 0.0)
        return np.asarray(np.nan_to_num(gap, nan=0.0, posinf=np.inf))


@dataclass(frozen=True)
class RenyiClaim(Claim):
    """D_α <= value·curve(α) at every listed order; for zCDP the curve is α."""

    value: float
    text: str
    unit: str
    known: tuple[float, ...]
    curve: tuple[float, ...]
    worst: float = np.inf  # Bound on the privacy loss itself at value 1, where the claim has one

    def strength(self, p: Array, q: Array) -> Array:
        a = np.asarray(self.known)[:, None]
        p, q = np.ravel(p), np.ravel(q)
        best, size = np.zeros(len(p)), (a - 1) * np.asarray(self.curve)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = (np.log(p), np.log1p(-p)), (np.log(q), np.log1p(-q))
            for x, y in (logs, logs[::-1]):
                terms = [np.fmax(a * u - (a - 1) * v, -np.inf) for u, v in zip(x, y, strict=True)]
                ratio = np.logaddexp(*terms) / size
                best = np.fmax(best, np.fmax.reduce(ratio, axis=0))
        if np.isfinite(self.worst):
            pure = ApproxClaim(self.worst, 0.0, "").strength(p, q) / self.worst
            best = np.maximum(best, pure)
        return np.asarray(np.where(p > q, best, 0.0))


@dataclass(frozen=True)
class FailingClaim(Claim):
    """Another claim, apart from an event of probability ``failure`` that nothing is promised in.

    P = (1−δ)P₀ + δA and Q = (1−δ)Q₀ + δB, where P₀, Q₀ satisfy the other claim.
    """

    inner: Claim
    failure: float

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.inner.unit

    @property
    def value(self) -> float:  # type: ignore[override]
        return self.inner.value

    @property
    def text(self) -> str:  # type: ignore[override]
        return f"{self.inner.text} but for a failure of probability {self.failure:g}"

    def strength(self, p: Array, q: Array) -> Array:
        rest = 1 - self.failure
        return self.inner.strength(
            np.clip((p - self.failure) / rest, 0, 1), np.clip(q / rest, 0, 1)
        )


def claim_of(promise: Any) -> Claim:
    """The claim that a loss, a currency or an (ε, δ) promise makes."""
    if isinstance(promise, ApproxDP):
        return ApproxClaim(float(promise.epsilon), float(promise.delta), str(promise))
    if isinstance(promise, PureDP):
        return ApproxClaim(float_up(promise.epsilon), 0.0, str(promise))
    if isinstance(promise, GaussianDP):
        return GaussianClaim(promise.mu, str(promise))
    if isinstance(promise, ZCDP):
        return RenyiClaim(float_up(promise.rho), str(promise), "rho", tuple(ORDERS), tuple(ORDERS))
    if isinstance(promise, Renyi):
        points = {float(a): float_up(e) for a, e in promise.curve.items()}
        return _curve(points, str(promise))
    if isinstance(promise, Loss):
        return _of_loss(promise)
    raise CheckError(f"claim = {promise!r}: must be a loss or a budget")


def _of_loss(loss: Loss) -> Claim:
    failure, apart = float_up(loss.failure()), loss.unless_failed()
    if failure >= 1:
        raise CheckError(f"claim {loss.kind}: it may fail with probability {failure:g}")
    text = f"{loss.kind} loss"
    mass, pure = apart.gaussian(), apart.pure()
    claim: Claim
    if mass is not None:
        claim = GaussianClaim(float_up(mass) ** 0.5, text)
    else:
        points = {float(a): apart.renyi(float(a)) for a in ORDERS}
        finite = {a: d for a, d in points.items() if np.isfinite(d)}
        if not finite and pure is not None:
            claim = ApproxClaim(float_up(pure), 0.0, text)
        else:
            claim = _curve(finite, text, np.inf if pure is None else float_up(pure))
    return FailingClaim(claim, failure) if failure else claim


def _curve(points: dict[float, float], text: str, worst: float = np.inf) -> RenyiClaim:
    if not points or min(points.values()) <= 0:
        raise CheckError(f"claim {text}: no order at which it promises anything that can be tested")
    known = tuple(sorted(points))
    curve = tuple(points[a] for a in known)
    return RenyiClaim(1.0, text, "times the claimed curve", known, curve, worst)
