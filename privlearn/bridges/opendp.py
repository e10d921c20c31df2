"""OpenDP's measurements and contexts under an account of ours (extra ``opendp``).

A measurement is paid for before it sees the data::

    count = meter_measurement(accountant, count, d_in=1)  # the line that is added
    count(people)

and so is every query of a context::

    meter_context(accountant, context)  # the line that is added
    context.query().select(dp.len()).release().collect()

The price is what the measurement's own ``map`` says at ``d_in``, whatever its output measure: that
the map is right is OpenDP's word.  Before, `privlearn.bridges.opendp_units` holds ``d_in`` against
the neighbours of the account; `privlearn.bridges.opendp_faults` and
`privlearn.bridges.opendp_frames` refuse what this version is known to price too low.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial
from importlib import import_module
from typing import Any

from privlearn.bridges.installed import installed
from privlearn.bridges.meters import Meters
from privlearn.bridges.opendp_faults import check_constructors
from privlearn.bridges.opendp_frames import check_frames, is_of_frames
from privlearn.bridges.opendp_prices import price_of
from privlearn.bridges.opendp_units import check_units, distance_text
from privlearn.contract.metering import TrustedCode
from privlearn.errors import BudgetError, TokenSpentError
from privlearn.losses import Loss
from privlearn.values.exact import Exact
from privlearn.values.validate import count, text

KNOWN = ("0.16.0",)
"""The versions whose maps, contexts and plans were read."""
LABEL = "opendp"


def meter_measurement(
    accountant: Meters,
    measurement: Any,
    d_in: Any,
    *,
    rows_each: int = 1,
    label: str = LABEL,
    users: range | None = None,
    delta: Exact | None = None,
) -> Callable[[Any], Any]:
    """The measurement as a function of the data, each call of which pays first.

    An interactive one, such as a compositor, pays once for its whole budget.  A frame is computed
    before it is handed over, once, and comes as a `LazyFrame` of the result.

    Args:
        accountant: pays; for add-remove, or for replace-one.
        measurement: OpenDP's `Measurement`, in whatever output measure.
        d_in: by how much neighbours differ in its input metric: with k rows of a person, k for
            add-remove and 2k for replace-one in `SymmetricDistance`.
        rows_each: the most rows of one person, which ``d_in`` must be for.
        label: of the spends.
        users: whose records the data hold; default, all of the account's.
        delta: at which a privacy profile is read; for measurements in `SmoothedMaxDivergence`.

    Raises:
        PackageError: OpenDP is not installed, or of another version.
        TypeError: no measurement.
        AdjacencyError: ``d_in`` is not for the account's neighbours, or the metric has none.
        BudgetError: the map has no price there, or is known to be wrong.
        ValueError: ``rows_each``, ``label`` or ``delta`` is none.
    """
    opendp = _library()
    _check_measurement(opendp, measurement)
    framed = is_of_frames(measurement)
    price, code = _priced(opendp, accountant, measurement, d_in, rows_each, delta, framed)
    run = partial(_drawn, opendp, measurement)
    return partial(_paid, accountant, text(label=label), users, price, code, run)


def meter_context(
    accountant: Meters,
    context: Any,
    *,
    rows_each: int = 1,
    label: str = LABEL,
    users: range | None = None,
) -> None:
    """From now on every query of an OpenDP `Context` pays before it is answered.

    Each is priced by its own map, and the account adds them up as queries that were chosen after
    the answers before; the context's own budget goes on to hold.  A query that opens a context of
    its own pays once, for the whole budget of that one.  What the context refuses after the
    account has paid stays charged.

    Args:
        accountant, rows_each, label, users: as for `meter_measurement`; ``d_in`` is the context's.
        context: that has answered nothing.

    Raises:
        PackageError, AdjacencyError, BudgetError, ValueError: as `meter_measurement`.
        TokenSpentError: the context answered before, or is metered.
        TypeError: no context.
    """
    opendp = _library()
    if not isinstance(context, opendp.context.Context):
        raise TypeError(f"context: a {type(context).__name__}: must be an OpenDP Context")
    kind, d_in = type(context.queryable), context.d_in
    check_units(context.accountant.input_metric, d_in, count(rows_each=rows_each), accountant)
    framed = is_of_frames(context.accountant)  # and no query of it takes anything else
    if framed:
        check_frames(context.accountant, d_in, None)
    odometer = opendp.mod.OdometerQueryable
    answered = bool(context.d_mids_consumed)
    if issubclass(kind, odometer) and not answered:
        answered = _adds_up(context.queryable.privacy_loss(d_in))
    if answered or kind not in (opendp.mod.Queryable, odometer):
        raise TokenSpentError(
            "opendp: the context has answered queries that no account of ours paid for, or is "
            "metered already: meter it before its first query"
        )
    named, answer = text(label=label), context.queryable

    def ask(_: Any, query: Any) -> Any:
        _check_measurement(opendp, query)
        price, code = _priced(opendp, accountant, query, d_in, rows_each, None, framed)
        run = partial(_drawn, opendp, answer)
        return _paid(accountant, named, users, price, code, run, query)

    metered: Any = type(f"Metered{kind.__name__}", (kind,), {"__call__": ask, "invoke": ask})
    context.queryable = metered.__new__(metered)
    vars(context.queryable).update(vars(answer))


@cache
def _library() -> Any:
    opendp = installed("opendp", "opendp", KNOWN, "'privlearn[opendp]'")
    for part in ("context", "mod", "extras.polars"):
        import_module(f"opendp.{part}")
    return opendp


def _check_measurement(opendp: Any, measurement: Any) -> None:
    if isinstance(measurement, opendp.mod.Odometer):
        raise BudgetError(
            "opendp: an Odometer has no bound, so no price: give it one, "
            "make_privacy_filter(odometer, d_in, d_out), or meter the queries of a context"
        )
    if not isinstance(measurement, opendp.mod.Measurement):
        raise TypeError(
            f"measurement: a {type(measurement).__name__}: must be an OpenDP Measurement, such as "
            "query.resolve() of a query"
        )


def _priced(
    opendp: Any,
    accountant: Meters,
    measurement: Any,
    d_in: Any,
    rows_each: int,
    delta: Exact | None,
    framed: bool,
) -> tuple[Loss, TrustedCode]:
    """What one run costs, and what is said of where that comes from."""
    rows = count(rows_each=rows_each)
    metric = check_units(measurement.input_metric, d_in, rows, accountant)
    made = list(_constructors(measurement))
    check_constructors(made)
    if framed:
        check_frames(measurement, d_in, made)
    measure = str(measurement.output_measure.type)
    price = price_of(opendp, measurement, measure, d_in, accountant.adjacency, delta)
    parameters = {
        "metric": metric,
        "d_in": distance_text(d_in),
        "rows_each": rows,
        "measure": measure,
        "made_by": sorted({name for name, _ in made}),
    }
    return price, TrustedCode("opendp", opendp.mod.__version__, parameters)


def _constructors(made: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The functions that OpenDP remembers to have made something, with what they were given."""
    if isinstance(made, list | tuple):
        for part in made:
            yield from _constructors(part)
    form = getattr(made, "__opendp_dict__", {})
    if form.get("__module__") in _MADE:  # a domain may say from what other measurement it is
        given = form["__kwargs__"]
        yield str(form["__function__"]), given
        for part in given.values():
            yield from _constructors(part)


_MADE = ("combinators", "measurements", "transformations")
"""Modules of what measurements are made of."""


def _paid(
    accountant: Meters,
    label: str,
    users: range | None,
    price: Loss,
    code: TrustedCode,
    run: Callable[[Any], Any],
    given: Any,
) -> Any:
    with accountant.meter(price, label=label, users=users, code=code) as spend:
        return spend.release(run(given))


def _drawn(opendp: Any, run: Callable[[Any], Any], given: Any) -> Any:
    """The result; of a frame that computes later, so that it could draw twice, what it computes."""
    value = run(given)
    if isinstance(value, opendp.extras.polars.OnceFrame):
        return value.collect().lazy()
    return value


def _adds_up(spent: Any) -> bool:
    return any(spent) if isinstance(spent, tuple) else bool(spent)
