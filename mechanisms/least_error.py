"""The factorisation of least error for a horizon and a person's visits: a look-up.

Error is S times the largest, or the rms, standard deviation of a prefix sum at noise of std 1; S is
that of the visits (`StreamVisits.norm`).  Compared are

* the BLT that is fitted to the visits, or where they are many to one visit; its S and errors have
  closed forms, and the fit takes some 10 ms, and
* banded BLTs of the shipped table, whose errors it holds, with bands of apart, 2 apart, 4 apart,
  ... rows: with the first S is at most the root of the number of visits, and wider ones have less
  error and a larger S.  For the mean error of several visits, both with columns of norm 1 and with
  norms that fall.  Bands of less than 16 rows, shorter than the horizon, are not in the table.

Not compared is the BLT with columns of norm 1: for one visit a banded BLT is better wherever there
is a table of it (tests), and for several its S takes a dynamic programme (it can be 4% better where
visits may come much closer to each other than horizon / most).  Nor is the tree, whose error is the
largest by far.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

from privlearn.mechanisms.banded_blt import BandedBLT
from privlearn.mechanisms.banded_parameters import fitted_columns, fitted_errors, fitted_parameters
from privlearn.mechanisms.banded_shapes import Curves, Errors, Objective
from privlearn.mechanisms.buffered_toeplitz import BufferedToeplitz
from privlearn.mechanisms.factorization import Factorization
from privlearn.mechanisms.participation_norms import falling_norm
from privlearn.mechanisms.stream_visits import StreamVisits
from privlearn.mechanisms.toeplitz_fitting import fit_toeplitz
from privlearn.values.participation import Participation

LONGEST = 2**20
"""Rows of the longest banded BLTs that the table knows the error of."""
_COMPUTED = 64  # Rows up to which errors are computed, as the table begins about there
_LEAST_BAND = 16
_MOST_FITTED = 256  # Visits to which a BLT is fitted within the time of a look-up
ONE_VISIT = StreamVisits(1, 1)


@lru_cache(maxsize=256)
def least_error(
    horizon: int, visits: StreamVisits | None = None, objective: Objective = "max"
) -> Factorization:
    """The factorisation at hand whose error, times S of ``visits``, is least.

    Args:
        horizon: rows.
        visits: of one person; None for one.
        objective: the largest error over rows, or the rms of all.

    Raises:
        ValueError: a horizon out of range, or an unknown objective.
    """
    if objective not in ("max", "mean"):
        raise ValueError(f"objective = {objective!r}: must be 'max' or 'mean'")
    found = ONE_VISIT if visits is None else visits
    plain = _plain(horizon, found, objective)
    largest = objective == "max"
    least = plain.max_error_std() if largest else plain.rms_error_std()
    least *= float(found.norm(plain))
    best = None
    for band, curves in _bands(horizon, found, objective):
        errors = _errors(horizon, band, curves)
        error = errors.largest if largest else errors.rms
        scales = fitted_columns(horizon, band, curves)
        error *= float(found.added_up(partial(falling_norm, horizon, band, scales)))
        if error < least:
            least, best = error, (band, curves)
    return plain if best is None else banded(horizon, *best)


def banded(horizon: int, band: int, curves: Curves = "max") -> BandedBLT:
    """The banded BLT of the shipped table."""
    return BandedBLT(horizon, *fitted_parameters(horizon, band, curves))


def _plain(horizon: int, visits: StreamVisits, objective: Objective) -> BufferedToeplitz:
    each = -(-visits.most // visits.together)
    if 1 < each <= _MOST_FITTED:
        return fit_toeplitz(horizon, Participation(each, visits.apart), objective)
    return BufferedToeplitz.fitted(horizon)


def _bands(
    horizon: int, visits: StreamVisits, objective: Objective
) -> Iterator[tuple[int, Curves]]:
    if not 2 <= horizon <= LONGEST:
        return
    several = visits.most > visits.together
    kinds: tuple[Curves, ...] = (objective,)
    if several and objective == "mean":
        kinds = ("mean", "visits")
    band = visits.apart if several else horizon
    while band < horizon:
        if band >= _LEAST_BAND:
            yield from ((band, curves) for curves in kinds)
        band *= 2
    yield horizon, objective


def _errors(horizon: int, band: int, curves: Curves) -> Errors:
    if horizon > _COMPUTED:
        return fitted_errors(horizon, band, curves)
    made = banded(horizon, band, curves)
    return Errors(made.max_error_std(), made.rms_error_std())
