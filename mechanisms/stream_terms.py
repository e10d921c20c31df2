"""How a stream of prefix sums is added up in integers: its grid, its rounding, and its gain."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any, final

from privlearn.contract.spends import is_builtin
from privlearn.losses.budgets import Currency
from privlearn.mechanisms.banded_blt import BandedBLT
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz
from privlearn.mechanisms.factorization import NO_ROUNDING, Factorization, Rounding
from privlearn.mechanisms.grids import grid_of
from privlearn.mechanisms.least_noise import gaussian_noise
from privlearn.mechanisms.stream_price import gain_profile, largest_gain, root_up, visits_gain
from privlearn.mechanisms.stream_visits import StreamVisits
from privlearn.noise import Noise
from privlearn.rows.domains import Domain, largest_number
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up
from privlearn.values.grid import Grid

_KEPT = BandedBLT, BufferedToeplitz


@final
@dataclass(frozen=True, slots=True)
class StreamTerms:
    """What is public of a stream, and follows from domain, noise and factorisation."""

    factorization: Factorization
    grid: Grid | None
    """None: the domain or the noise has no integers, and the stream computes in doubles."""
    largest: int
    """Bound on every number of a row of X, in steps."""
    centred: bool
    """Whether rows of X are contributions less the null one."""
    rounding: Rounding
    step: Fraction
    """The norm of one step in every coordinate, against the sensitivity; see `stream_price`."""
    visits: StreamVisits | None = None
    """Of one person, where the gain is that of a person; None: of one row."""

    def gain(self) -> float:
        """Of every row, or of all visits of a person.

        Raises:
            ValueError: as `Factorization.participation_norm`.
        """
        if self.visits is None:
            return largest_gain(self.factorization, self.rounding, self.step)
        return visits_gain(self.factorization, self.visits, self.rounding, self.step)

    def profile(self) -> tuple[tuple[int, float], ...]:
        """Numbers of rows and their gains."""
        return gain_profile(self.factorization, self.rounding, self.step)

    def parameters(self) -> dict[str, Any]:
        """For the ledger: with domain, grid and factorisation, what the gain follows from."""
        known: dict[str, Any] = {
            "factorization": self.factorization.kind,
            **self.factorization.parameters(),
        }
        if self.visits is not None:
            norm = float_up(self.visits.norm(self.factorization))
            known |= {"visits": {**self.visits.to_dict(), "norm": norm}}
        if self.grid is None:
            return known
        rounding = {"column": float(self.rounding.column), "each": float(self.rounding.each)}
        return known | {"largest": str(self.largest), "rounding": rounding}


def stream_terms(
    domain: Domain[Any],
    noise: Noise,
    factorization: Factorization,
    adjacency: Adjacency,
    together: int = 1,
    visits: StreamVisits | None = None,
) -> StreamTerms:
    """The finest grid on which no sum of the stream can reach 2⁶¹ steps, and what follows.

    Where rounding grows with the numbers, rows of X are contributions less the null one: a box far
    from 0 has then none above its width.

    Args:
        domain: of the contributions.
        noise: on each row of C·X.
        factorization: B and C.
        adjacency: the neighbour relation of the price.
        together: the most contributions in one row of X.
        visits: of one person, for a gain of persons.

    Raises:
        ValueError: contributions are too large for the noise, see `Grid.fitting`.
    """
    # ours are alike where they are equal; a learner asks for its stream's terms at every start
    ours = is_builtin(domain) and is_builtin(noise) and type(factorization) in _KEPT
    find: Callable[..., StreamTerms] = _terms_once if ours else _terms
    return find(domain, noise, factorization, adjacency, together, visits)


def _terms(
    domain: Domain[Any],
    noise: Noise,
    factorization: Factorization,
    adjacency: Adjacency,
    together: int,
    visits: StreamVisits | None,
) -> StreamTerms:
    largest = Fraction(largest_number(domain))
    centred = factorization.rounding(1) != NO_ROUNDING
    spread = Fraction(domain.sensitivity(Adjacency.ZERO_OUT, "linf")) if centred else largest
    rows = max(factorization.reach() * together * spread / largest, Fraction(1))
    grid = grid_of(domain, noise, rows)
    if grid is None:
        return StreamTerms(factorization, None, 0, False, NO_ROUNDING, Fraction(0), visits)
    step = Fraction(grid.step)
    steps = together * (int(spread / step) + 1)
    reach = Fraction(domain.sensitivity(adjacency, noise.norm))
    return StreamTerms(
        factorization,
        grid,
        steps,
        centred,
        factorization.rounding(steps),
        root_up(Fraction(domain.size)) * step / reach,
        visits,
    )


_terms_once = lru_cache(maxsize=256)(_terms)


def least_std(
    domain: Domain[Any],
    budget: Currency,
    adjacency: Adjacency,
    gain: Callable[[float], float],
    least: float,
) -> float:
    """The least Gaussian noise, where contributions enter with a norm that hangs on the noise.

    ``least`` is a lower bound on that norm, ``gain`` gives it for a noise.

    Rounding in steps of the noise's grid adds some 1e-8 to the gain, and next to nothing of that
    changes with the noise, so that the second or third try fits.

    Raises:
        CurrencyError: no Gaussian fits this currency.
        ValueError: a budget of zero.
    """
    std = gaussian_noise(domain, budget, adjacency, gain=least).std
    while (needed := gaussian_noise(domain, budget, adjacency, gain=gain(std)).std) > std:
        std = needed
    return std
