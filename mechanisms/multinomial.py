"""The multinomial logit as an objective."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, cast, final

import numpy as np

from privlearn.mechanisms.choice_model import NO_ITEM, Answer, clip_items, shares
from privlearn.mechanisms.objectives import UNIT, Objective
from privlearn.rows.domains import Array, Norm, Numbers, exponent_of
from privlearn.rows.domains.clipping import shaped
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import Checked, Count


class _Layout(NamedTuple):
    features: Array
    offered: Array
    chosen: Array


@final
@dataclass(frozen=True, slots=True)
class Choices(Checked):
    """What a user was offered and chose: up to K items of the unit ball in R^d, one or none chosen.

    Takes `choice_model.Answer` blocks.  A contribution holds the features (K·d), which places were
    offered (K) and which one was chosen (K; all 0 for no purchase).  A choice that was not on
    offer, or none without an outside option, makes the record null: nothing offered.
    """

    kind: ClassVar[str] = "choices"
    max_items: Count
    dim: Count
    outside: bool = True

    @property
    def size(self) -> int:
        return self.max_items * (self.dim + 2)

    def clip(self, block: Answer) -> Array:
        """Flat records, every offered item scaled into the unit ball."""
        fields = zip(block, self.record_form(), strict=True)
        features, places, choice = (shaped(part, form) for part, form in fields)
        offered = places > 0
        n, k = len(features), self.max_items
        chosen = (np.arange(k) == choice[:, None]) & offered
        answered = chosen.any(axis=1) | (self.outside & (choice == NO_ITEM))
        good = np.isfinite(features).all(axis=(1, 2)) & answered
        seen = np.where((good[:, None] & offered)[..., None], features, 0.0)
        parts = (
            (clip_items(seen) * (1 - 1e-12)).reshape(n, -1),
            good[:, None] & offered,
            good[:, None] & chosen,
        )
        return np.concatenate(parts, axis=1, dtype=np.float64)

    def record_form(self) -> tuple[Numbers, Numbers, Numbers]:
        """Features of all places, which of them were offered, and which one was chosen."""
        return Numbers((self.max_items, self.dim)), Numbers((self.max_items,)), Numbers()

    def null(self) -> Array:
        return np.zeros(self.size)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Of a plain sum of flat records; objective perturbation does not use it."""
        k = self.max_items
        p = exponent_of(norm)
        taxi, flat = k * math.sqrt(self.dim) + k + 1, math.sqrt(2 * k + 1)
        largest = 1.0 if math.isinf(p) else flat if p >= 2 else taxi
        return (2 if adjacency is Adjacency.REPLACE_ONE else 1) * largest

    def decode(self, total: Array) -> Array:
        return total

    def to_dict(self) -> dict[str, Any]:
        return {
            "kind": self.kind,
            "max_items": self.max_items,
            "dim": self.dim,
            "outside": self.outside,
        }


@final
@dataclass(frozen=True, slots=True)
class MultinomialLogit(Objective[Answer]):
    """−log of the probability of a choice among up to K items (see `choice_model`).

    With x̄ = Σp_jx_j over the offered items, ∇ℓ = x̄ − x_chosen has norm at most 2 (at most 1 for
    K = 1 with an outside option, where it is (p − y)x), so s = 2L; for d, K >= 2 the value s = 4
    is approached as ‖θ‖ → ∞.  The Hessian is the covariance of x_J, J ~ p, with x_0 = 0 for the
    outside option: its trace is at most max‖x‖² = 1, at most 1/4 for K = 1.  It and all gradients
    lie in the span of the items, or of their differences without an outside option.  The paper's
    bounds are other ones (``docs/errata/hessian.md``).

    Args:
        max_items: K; at least 2 without an outside option.
        dim: d.
        outside: whether choosing nothing is an answer.
    """

    max_items: int
    dim: int
    outside: bool = True

    def __post_init__(self) -> None:
        _ = self.domain
        if self.max_items == 1 and not self.outside:
            raise ValueError("max_items = 1: without an outside option there is nothing to choose")

    @property
    def domain(self) -> Choices:
        return Choices(self.max_items, self.dim, self.outside)

    @property
    def gradient_bound(self) -> float:
        return 1.0 if self.max_items == 1 else 2.0

    @property
    def trace(self) -> float:
        return 0.25 if self.max_items == 1 else 1.0

    @property
    def rank(self) -> int:
        return min(self.dim, self.span)

    @property
    def span(self) -> int:
        return self.max_items if self.outside else self.max_items - 1

    @property
    def depth(self) -> float:
        """At θ = 0 all alternatives are equally likely, and no loss is negative."""
        return math.log(self.max_items + self.outside)

    def _parts(self, records: Array) -> _Layout:
        n, k, d = len(records), self.max_items, self.dim
        return _Layout(
            records[:, : k * d].reshape(n, k, d),
            records[:, k * d : k * (d + 1)],
            records[:, k * (d + 1) :],
        )

    def _utilities(self, features: Array, theta: Array) -> Array:
        if theta.ndim == 1:
            return features @ theta
        return cast(Array, np.einsum("nkd,nd->nk", features, theta))

    def values(self, records: Array, theta: Array) -> Array:
        features, offered, chosen = self._parts(records)
        utility = self._utilities(features, theta)
        floor = 0.0 if self.outside else -np.inf
        masked = np.where(offered > 0, utility, -np.inf)
        top = np.maximum(masked.max(axis=1), floor)
        top = np.where(np.isneginf(top), 0.0, top)
        total = np.exp(masked - top[:, None]).sum(axis=1)
        total = total + np.exp(-top) if self.outside else np.where(total == 0, 1.0, total)
        return cast(Array, top + np.log(total) - (chosen * utility).sum(axis=1))

    def gradients(self, records: Array, theta: Array) -> Array:
        features, offered, chosen = self._parts(records)
        p = shares(self._utilities(features, theta), offered, outside=self.outside)
        return cast(Array, np.einsum("nk,nkd->nd", p - chosen, features))

    def hessians(self, records: Array, theta: Array) -> Array:
        features, offered, _ = self._parts(records)
        p = shares(self._utilities(features, theta), offered, outside=self.outside)
        mean = np.einsum("nk,nkd->nd", p, features)
        second = np.einsum("nk,nkd,nke->nde", p, features, features, optimize=True)
        return cast(Array, second - mean[:, :, None] * mean[:, None, :])

    def hessian_sum(self, records: Array, theta: Array) -> Array:
        features, offered, _ = self._parts(records)
        p = shares(self._utilities(features, theta), offered, outside=self.outside)
        mean = np.einsum("nk,nkd->nd", p, features)
        flat = features.reshape(-1, self.dim)
        total: Array = (flat * p.reshape(-1, 1)).T @ flat - mean.T @ mean
        return total

    def rounding(self, radius: float) -> float:
        # a utility is off by (d+1)u‖θ‖, its difference to the largest by twice that and u·‖θ‖, so
        # each weight by a relative 2(d+2)u‖θ‖ + 4u, a share by twice that and Ku, x̄ by K + d more
        d, k = self.dim, self.max_items
        return 2 * UNIT * (4 * (d + 2) * radius + 4 * k + d + 16)

    def examples(self, rng: np.random.Generator, n: int) -> Array:
        k, d = self.max_items, self.dim
        features = rng.standard_normal((n, k, d)) * rng.choice([0.1, 1, 100], size=(n, k, 1))
        features[: n // 4] = (
            np.sign(features[: n // 4]) * np.eye(d)[rng.integers(d, size=(n // 4, k))]
        )
        offered = (rng.random((n, k)) < 0.8).astype(float)
        choice = np.where(offered.any(axis=1), offered.argmax(axis=1), NO_ITEM)
        choice = np.where(rng.random(n) < 0.3, NO_ITEM, choice)
        return self.domain.clip(Answer(features, offered, choice))

    def to_dict(self) -> dict[str, Any]:
        return {
            "objective": "multinomial-logit",
            "max_items": self.max_items,
            "dim": self.dim,
            "outside": self.outside,
        }
