"""Several contributions, of which one is real."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar, Generic, cast, final

import numpy as np
from numpy.typing import NDArray

from privlearn.rows.domains.base import (
    Domain,
    IntegerDomain,
    ShippedDomain,
    X,
    accepted_by,
    largest_of_null,
)
from privlearn.rows.domains.clipping import Number, shaped, whole_below
from privlearn.rows.domains.norms import Array, Norm, exponent_of, power
from privlearn.rows.domains.reading import domain_from_dict, is_shipped, ships
from privlearn.rows.record_forms import Accepted, Numbers
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers
from privlearn.values.json_forms import OBJECT, WHOLE
from privlearn.values.validate import AtLeastTwo, check_fields


@final
@dataclass(frozen=True, slots=True)
class OneOf(ShippedDomain, Generic[X]):
    """``arms`` contributions at once, of which at most one is real and the others are null.

    Takes blocks of pairs (records of ``inner``, arms of shape (n,)).  A contribution is a row of
    length arms·inner.size: the record's at its arm's place, null ones elsewhere.  A record whose
    arm is not one of 0, …, arms − 1, or that `inner` cannot use, is null at every arm.

    Two contributions differ at one place, by at most the diameter D of ``inner``, or at two, at
    each by at most R, the largest distance of a contribution from the null one: in ℓp by
    max(D, 2^{1/p}·R).  Squared in ℓ2 that is max(D², 2R²); it is no more than D where the null
    contribution is the centre of a ball.  Attained by two farthest records on one arm, or by the
    one farthest from null on two arms.  Under zero-out it is R: one place.

    Args:
        inner: a shipped domain.
        arms: K >= 2.

    Raises:
        ValueError: fewer than two arms.
        TypeError: a domain that only its author can rebuild.
    """

    kind: ClassVar[str] = "one-of"
    inner: Domain[X]
    arms: AtLeastTwo

    def __post_init__(self) -> None:
        check_fields(self)
        if isinstance(self.inner, OneOf) or not is_shipped(self.inner):
            raise TypeError(f"inner = {self.inner!r}: must be a shipped domain of one contribution")

    @property
    def size(self) -> int:
        return self.arms * self.inner.size

    def clip(self, block: tuple[X, NDArray[Any]]) -> Array:
        """Rows of length arms·inner.size, in blocks by arm."""
        records, arms = block
        return self._placed(self.inner.clip(records), arms, self.inner.null())

    def record_form(self) -> Accepted | None:
        """A record of the inner domain and one number; None if that one does not state its form."""
        inner = accepted_by(self.inner)
        return None if inner is None else (inner, Numbers())

    def _placed(
        self, contributions: NDArray[Number], arms: object, null: NDArray[Number]
    ) -> NDArray[Number]:
        chosen = shaped(arms, Numbers())
        if len(chosen) != len(contributions):
            raise ValueError(f"arms of shape {chosen.shape}: must be ({len(contributions)},)")
        with np.errstate(invalid="ignore"):
            real, places = whole_below(chosen, self.arms)
        rows = np.empty((len(chosen), self.arms, len(null)), null.dtype)
        rows[:] = null
        rows[real, places] = contributions[real]
        return rows.reshape(len(chosen), self.arms * len(null))

    def null(self) -> Array:
        return np.tile(self.inner.null(), self.arms)

    def _largest_of_null(self) -> float:
        return largest_of_null(self.inner)

    def integers(self, block: tuple[X, NDArray[Any]], grid: Grid) -> Integers:
        """Rows in steps, in blocks by arm: those of the inner domain, at one arm each."""
        inner, (records, arms) = cast(IntegerDomain[X], self.inner), block  # it is a shipped one
        return self._placed(inner.integers(records, grid), arms, inner.null_integers(grid))

    def null_integers(self, grid: Grid) -> Integers:
        return np.tile(cast(IntegerDomain[X], self.inner).null_integers(grid), self.arms)

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """That of the inner domain, at one arm."""
        return cast(IntegerDomain[X], self.inner).integer_bound(grid)

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        p, single = exponent_of(norm), self.inner.sensitivity(adjacency, norm)
        if adjacency is Adjacency.REPLACE_ONE:
            moved = self.inner.sensitivity(Adjacency.ZERO_OUT, norm)
            return max(single, _at_places(2, moved, p))
        if adjacency is Adjacency.ADD_REMOVE and largest_of_null(self.inner):
            return _at_places(self.arms, single, p)  # the null entries come and go too
        return single

    def decode(self, total: Array) -> Array:
        """Sums by arm, shape (..., arms, *shape of one)."""
        apart = np.reshape(total, (*np.shape(total)[:-1], self.arms, self.inner.size))
        return self.inner.decode(apart)

    def encode(self, quantity: Array) -> Array:
        inner = cast("ShippedDomain", self.inner)
        return np.concatenate([inner.encode(arm) for arm in quantity])

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "arms": self.arms, "inner": self.inner.to_dict()}


def _at_places(places: int, one: float, p: float) -> float:
    """The ℓp norm of a vector that has norm ``one`` at each of several places, rounded up."""
    if p == 1:
        return float_up(places * Fraction(one))
    norm = one * power(places, 1 / p)
    if p == 2:
        while Fraction(norm) ** 2 < places * Fraction(one) ** 2:
            norm = math.nextafter(norm, math.inf)
        return norm
    return norm if p == math.inf else norm * (1 + 2.0**-50)


def _read_one_of(data: Mapping[str, Any]) -> Domain[Any]:
    inner = domain_from_dict(data["inner"])
    if inner is None:
        raise ValueError(f"inner = {data['inner']!r}: must be a shipped domain")
    return OneOf(inner, data["arms"])


ships(OneOf, {"inner": OBJECT, "arms": WHOLE}, _read_one_of)
