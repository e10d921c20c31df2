"""dpsynth's mechanisms, which run in memory, under an account of ours.

::

    mechanism = TabularConfig(domains=domains).configure(zcdp_rho=0.5)
    mechanism = meter_mechanism(accountant, mechanism)  # the line that is added
    synthetic = mechanism(rng, people).synthetic_data

The price is that of the mechanism's own ``dp_event``, for one person who joins or leaves; a person
who is replaced costs a removal and an addition.  Its noise is NumPy's, in doubles and from the
generator that the caller hands over: who knows the seed, knows the noise.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from privlearn.bridges.installed import installed
from privlearn.bridges.meters import Meters
from privlearn.contract.metering import TrustedCode
from privlearn.errors import AdjacencyError, BudgetError
from privlearn.events.dp_accounting import from_dp_event
from privlearn.losses import Loss, as_replace_one
from privlearn.values.adjacency import Adjacency
from privlearn.values.validate import count, text

KNOWN = ("0.3.0",)
"""The versions whose mechanisms were read."""
LABEL = "dpsynth"
MECHANISMS = frozenset(
    {"AIM", "AIMGDP", "Direct", "DiscreteMechanism", "MST", "SWIFT", "TabularMechanism"}
)
"""Those that run in memory on one table, and whose events cover all that they take from it."""
_UNSPENT = "; nothing was spent"
_INSTALL = (
    "'dpsynth @ git+https://github.com/google/dpsynth@cf8075f319b96c2e009e4ea6bb55378faccbbc80'"
)


def meter_mechanism(
    accountant: Meters,
    mechanism: Any,
    *,
    rows_each: int = 1,
    label: str = LABEL,
    users: range | None = None,
) -> Callable[..., Any]:
    """The mechanism as a function of generator and data, each call of which pays first.

    Args:
        accountant: pays; for add-remove, or for replace-one, which costs more.
        mechanism: as ``configure`` or ``calibrate`` return it.
        rows_each: the most rows of one person, which the mechanism must be configured for, as
            ``max_records_per_user``; nobody enforces it.
        label: of the spends.
        users: whose records the data hold; default, all of the account's.

    Raises:
        PackageError: dpsynth is not installed, or of another version.
        TypeError: no calibrated mechanism.
        AdjacencyError: the account is for zero-out.
        BudgetError: the mechanism is none of `MECHANISMS`, is for other numbers of rows, or its
            event has no price.
    """
    dpsynth = installed("dpsynth", "dpsynth", KNOWN, _INSTALL)
    if not isinstance(mechanism, dpsynth.api.CalibratedMechanism):
        raise TypeError(
            f"mechanism: a {type(mechanism).__name__}: must be a calibrated mechanism, as "
            "configure(zcdp_rho=...) returns it"
        )
    rows, named = count(rows_each=rows_each), text(label=label)
    _check(mechanism, rows)
    price = _price(mechanism, accountant.adjacency)
    kind = type(mechanism).__name__
    code = TrustedCode("dpsynth", dpsynth.__version__, {"mechanism": kind, "rows_each": rows})

    def paid(*given: Any, **options: Any) -> Any:
        with accountant.meter(price, label=named, users=users, code=code) as spend:
            return spend.release(mechanism(*given, **options))

    return paid


def _check(mechanism: Any, rows_each: int) -> None:
    kind = type(mechanism)
    if kind.__module__.partition(".")[0] != "dpsynth" or kind.__name__ not in MECHANISMS:
        raise BudgetError(
            f"dpsynth: {kind.__name__} is not metered: of mechanisms on pipelines or several "
            "tables it is not known that their event covers all that they take from the data "
            "(SWIFT on pipelines, issue 35, does not): use one of "
            f"{', '.join(sorted(MECHANISMS))}{_UNSPENT}"
        )
    configured = mechanism.max_records_per_user
    if configured != rows_each:
        raise BudgetError(
            f"dpsynth: rows_each = {rows_each}, and the mechanism's noise is for "
            f"max_records_per_user={configured}: configure it for as many{_UNSPENT}"
        )


def _price(mechanism: Any, adjacency: Adjacency) -> Loss:
    relation: Literal["add-remove"] = "add-remove"
    if adjacency is Adjacency.ZERO_OUT:
        raise AdjacencyError(
            "dpsynth: its noise is for rows that join or leave, not for ones that become the null "
            "record: open the account with adjacency=Adjacency.REPLACE_ONE"
        )
    try:
        event = mechanism.dp_event
    except AttributeError as error:
        raise BudgetError(
            f"dpsynth: the event of this mechanism is not in the dp-accounting that is installed "
            f"({error}): numerical and open-set columns need a version after 0.6.0{_UNSPENT}"
        ) from None
    events = from_dp_event(event, adjacency=relation)
    if not (events.private and events.positions):
        raise BudgetError(f"dpsynth: the event {event!r:.80} has no price{_UNSPENT}")
    loss = events.loss()
    return as_replace_one(loss).loss if adjacency is Adjacency.REPLACE_ONE else loss
