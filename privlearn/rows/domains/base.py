"""What a domain is, and what follows from that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Protocol,
    TypeGuard,
    TypeVar,
    cast,
    runtime_checkable,
)

import numpy as np

from privlearn.rows.domains.norms import Array, Norm
from privlearn.rows.record_forms import Accepted
from privlearn.values.adjacency import Adjacency
from privlearn.values.grid import Grid
from privlearn.values.integer_sets import Integers
from privlearn.values.validate import Checked

X = TypeVar("X")

X_contra = TypeVar("X_contra", contravariant=True)


class Domain(Protocol[X_contra]):
    """A public set of vectors of length ``size`` and how records get into it.

    One with a method ``record_form()``, which gives `Numbers` or a tuple of them, has rows of
    another form refused before a token is spent; without it they are null.
    """

    @property
    def size(self) -> int:
        """Length of a contribution."""

    def clip(self, block: X_contra) -> Array:
        """Contributions, shape (n, size), every row inside the set."""

    def null(self) -> Array:
        """The null contribution, shape (size,)."""

    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Largest change of a sum when one user changes."""

    def decode(self, total: Array) -> Array:
        """Gives a vector of shape (..., size) the shape of the quantity it stands for."""

    def to_dict(self) -> dict[str, Any]:
        """JSON form."""


@runtime_checkable
class IntegerDomain(Domain[X_contra], Protocol[X_contra]):
    """A domain that clips to integers, too: contributions in steps of a public grid.

    Times the step they are no further apart than `sensitivity` says, in every norm; that rests on a
    check of the integers alone.
    """

    def integers(self, block: X_contra, grid: Grid) -> Integers:
        """Contributions in steps, shape (n, size); toward zero, and null where a row is no use."""

    def null_integers(self, grid: Grid) -> Integers:
        """The null contribution in steps, shape (size,)."""

    def integer_bound(self, grid: Grid) -> dict[str, int]:
        """What the check of the integers enforces, in steps; ``largest`` bounds every |entry|.

        Raises:
            ValueError: the grid is too coarse for the set, or too fine for 64-bit integers.
        """


def has_integers(domain: Domain[X]) -> TypeGuard[IntegerDomain[X]]:
    """Whether a domain clips to integers; those of this package do."""
    return isinstance(domain, ShippedDomain | IntegerDomain)  # the second is slow to ask


def accepted_by(domain: Domain[Any]) -> Accepted | None:
    """The form of records that a domain takes; None where it does not state one."""
    states = getattr(domain, "record_form", None)
    return None if states is None else cast("Accepted | None", states())


def largest_number(domain: Domain[Any]) -> float:
    """A bound on every number of a contribution: what null has, and how far from it others are."""
    return largest_of_null(domain) + domain.sensitivity(Adjacency.ZERO_OUT, "linf")


def largest_of_null(domain: Domain[Any]) -> float:
    """Of the sizes of its numbers."""
    if isinstance(domain, ShippedDomain):
        return domain._largest_of_null()
    return float(np.abs(domain.null()).max(initial=0.0))


def encoded(domain: Domain[Any], quantity: Array) -> Array:
    """The vector that `decode` gave this shape, flat; of other domains or shapes, the numbers."""
    if not isinstance(domain, ShippedDomain):
        return np.ravel(quantity)
    known = quantity.shape == domain.decode(np.zeros(domain.size)).shape
    return domain.encode(quantity) if known else np.ravel(quantity)


def fitting_grid(domain: IntegerDomain[Any], scale: float) -> Grid:
    """The finest grid for noise of this scale on which a contribution fits.

    Raises:
        ValueError: no grid fits, see `Grid.fitting` and `IntegerDomain.integer_bound`.
    """
    grid = Grid.fitting(scale, largest_number(domain))
    domain.integer_bound(grid)
    return grid


class ShippedDomain(Checked, ABC):
    """What the domains of this package have besides; by default the null contribution is 0."""

    __slots__ = ()
    kind: ClassVar[str]

    if TYPE_CHECKING:  # a field of some

        @property
        def size(self) -> int: ...

    @abstractmethod
    def sensitivity(self, adjacency: Adjacency, norm: Norm = "l2") -> float:
        """Largest change of a sum when one user changes."""

    @abstractmethod
    def record_form(self) -> Accepted | None:
        """The form of records that `clip` can use, whatever their numbers."""

    def null(self) -> Array:
        return np.zeros(self.size)

    def null_integers(self, grid: Grid) -> Integers:
        return np.zeros(self.size, dtype=np.int64)

    def _largest_of_null(self) -> float:
        """Of the sizes of its numbers, without making them: a ledger may state any length."""
        return 0.0

    def decode(self, total: Array) -> Array:
        return total

    def encode(self, quantity: Array) -> Array:
        """The vector, shape (size,), that `decode` gave this shape: what the noise is added to."""
        return np.reshape(quantity, self.size)

    def diameter(self, norm: Norm = "l2") -> float:
        """Largest distance between two members."""
        return self.sensitivity(Adjacency.REPLACE_ONE, norm)
