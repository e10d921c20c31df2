"""What noise is: of any kind, of reports, additive, and in exact integers."""

from __future__ import annotations

from typing import Any, Protocol

from privlearn.losses import Loss
from privlearn.noise.exact.fast import Floors
from privlearn.noise.exact.pool import Pool
from privlearn.rows.domains import Array, Norm
from privlearn.values.adjacency import Adjacency


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
