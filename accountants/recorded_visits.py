"""Whether a spend's gain for all visits of one person follows from what is recorded with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction

from privlearn.contract.spends import Spend
from privlearn.ledger.entries import SpendEntry
from privlearn.losses import Loss, VisitsLoss

Restate = Callable[[SpendEntry], Spend | None]
"""Makes of domain, noise and parameters of a recorded spend what its mechanism would state; None
where that is not known.  It raises where they are not those of its mechanism."""

_SLACK = 1 + Fraction(1, 2**30)  # Of a gain that another version, or machine, rounded up


def restated_visits(entry: SpendEntry, loss: Loss, restate: Restate | None) -> bool | None:
    """Whether the gain was worked out again; None where the loss is not for several visits.

    Raises:
        ValueError: the stated gain, or the visits of the loss, are not what the parameters give.
            Exception: as `Restate`.
    """
    stated = list(_visits_in(loss))
    if not stated:
        return None
    found = None if restate is None or not entry.derived else restate(entry)
    if found is None:
        return False
    if found.visits is None:
        raise ValueError("its parameters state no rule of participation, so its gain is of one row")
    if Fraction(entry.gain) * _SLACK < Fraction(found.gain):
        raise ValueError(f"gain = {entry.gain!r}: a person's visits can move it by {found.gain!r}")
    most, apart = found.visits
    for part in stated:
        if part.most > most or part.apart < apart:
            raise ValueError(
                f"a loss of {part.most} visits {part.apart} slots apart: the gain is for {most}, "
                f"{apart} slots apart"
            )
    return True


def _visits_in(loss: Loss) -> Iterator[VisitsLoss]:
    if isinstance(loss, VisitsLoss):
        yield loss
    for part, _ in loss.inner():
        yield from _visits_in(part)
