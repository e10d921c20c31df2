"""SmartNoise SQL's private readers under an account of ours (``pip install smartnoise-sql``).

::

    reader = snsql.from_connection(people, privacy=privacy, metadata=metadata)
    meter_reader(accountant, reader)  # the line that is added
    reader.execute("SELECT region, AVG(age) FROM people.people GROUP BY region")

Every query is priced as the library has rewritten it, and paid; then it reaches the database.
`Privacy(epsilon)` is for one statistic, so a query costs that of each noisy column of its rewritten
form, the count that censors rare groups among them, and the probability that the threshold of that
count lets a group of one person pass.  These are for a person who joins or leaves with at most
``max_ids`` rows, which the library samples; a person who is replaced costs a removal and an
addition.  The library's odometer is not used.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from fractions import Fraction
from threading import Lock
from typing import Any

from privlearn.bridges.installed import installed
from privlearn.bridges.meters import Meters
from privlearn.contract.metering import MeteredBlock, TrustedCode
from privlearn.errors import AdjacencyError, BudgetError, TokenSpentError
from privlearn.losses import ApproxLoss, Loss, PureLoss, as_replace_one, compose
from privlearn.values.adjacency import Adjacency
from privlearn.values.exact import float_up
from privlearn.values.validate import text

KNOWN = ("1.0.10",)
"""The versions whose rewriting and noise were read."""
LABEL = "smartnoise"
_SLACK = Fraction(10**9 + 1, 10**9)
"""More than what floats lose of a tail."""
_UNSPENT = "; nothing was spent"
_REFUSED = {
    "pre_aggregated": (
        None,
        "nothing bounds what a person has in aggregates that were computed elsewhere: let the "
        "reader compute them",
    ),
    "postprocess": (True, "noise of such a result is drawn when it is read: leave it out"),
    "accuracy": (False, "this version of the library does not compute it: leave it out"),
}
"""Options of a query, their usual values, and why others are refused."""


def meter_reader(
    accountant: Meters, reader: Any, *, label: str = LABEL, users: range | None = None
) -> None:
    """From now on every query of a `PrivateReader` pays before it reaches the database.

    Args:
        accountant: pays; for add-remove, or for replace-one, which costs twice as much.
        reader: as ``snsql.from_connection`` returns it, before its first query.
        label: of the spends.
        users: whose rows are in the tables; default, all of the account's.

    Raises:
        PackageError: smartnoise-sql is not installed, or of another version.
        AdjacencyError: the account is for zero-out.
        TokenSpentError: the reader answered before, or is metered.
        TypeError: no reader, or one that computes later.
    """
    snsql = installed("smartnoise-sql", "snsql", KNOWN, "smartnoise-sql==1.0.10")
    if not isinstance(reader, snsql.sql.PrivateReader) or reader.engine == "spark":
        raise TypeError(
            f"reader: a {type(reader).__name__}: must be a PrivateReader whose engine is not "
            "spark, which draws noise again whenever a result is read"
        )
    if accountant.adjacency is Adjacency.ZERO_OUT:
        raise AdjacencyError(
            "smartnoise: its noise is for rows that join or leave, not for ones that become the "
            "null record: open the account with adjacency=Adjacency.REPLACE_ONE"
        )
    if reader.odometer.steps or "_execute_ast" in vars(reader):
        raise TokenSpentError(
            "smartnoise: the reader has answered queries that no account of ours paid for, or is "
            "metered already: meter it before its first query"
        )
    run, reach, named = reader._execute_ast, reader._get_reader, text(label=label)
    lock = Lock()

    def paid(query: Any, *others: Any, **options: Any) -> Any:
        for name, (usual, why) in _REFUSED.items():
            if options.get(name, usual) is not usual:
                raise BudgetError(f"smartnoise: {name}: {why}{_UNSPENT}")
        spends: list[MeteredBlock] = []
        with lock, ExitStack() as stack:

            def reach_paid(inner: Any) -> Any:
                """Called once, with the rewritten query, before the database."""
                _check(reader, query, inner)
                price, code = _priced(reader, query, inner, accountant.adjacency)
                meter = accountant.meter(price, label=named, users=users, code=code)
                spends.append(stack.enter_context(meter))
                return reach(inner)

            reader._get_reader = reach_paid
            try:
                result = run(query, *others, **options)
            finally:
                del reader._get_reader
            (spend,) = spends
            return spend.release(result)

    reader._execute_ast = paid


def _priced(reader: Any, query: Any, inner: Any, adjacency: Adjacency) -> tuple[Loss, TrustedCode]:
    """What a query costs, and what is said of where that comes from.

    Args:
        reader, query: as they were called.
        inner: the query that the database will get, with its mechanisms.

    Raises:
        BudgetError: it has no sound price.
    """
    parts = [
        (_of(symbol, censored=query.censor_dims), 1)
        for symbol in inner._select_symbols
        if symbol.mechanism is not None
    ]
    price = compose(parts)
    if adjacency is Adjacency.REPLACE_ONE:
        price = as_replace_one(price).loss
    parameters = {
        "epsilon": float(reader.privacy.epsilon),
        "delta": float(reader.privacy.delta),
        "statistics": len(parts),
        "max_ids": int(inner.max_ids),
        "row_privacy": bool(query.row_privacy),
    }
    return price, TrustedCode("smartnoise-sql", KNOWN[0], parameters)


def _check(reader: Any, query: Any, inner: Any) -> None:
    """Refuses what the noise does not cover.

    Raises:
        BudgetError: it does not.
    """
    grouped = [symbol for symbol in inner._select_symbols if symbol.is_grouping_column]
    noisy = [symbol for symbol in inner._select_symbols if symbol.mechanism is not None]
    unbounded = any(symbol.mechanism.sensitivity == math.inf for symbol in noisy)
    most = [symbol.mechanism.max_contrib for symbol in noisy]
    for wrong, why in (
        (
            query.use_dpsu,
            "use_dpsu: it chooses groups with an ε of 1 of its own, whatever the Privacy says: "
            "leave it out of the metadata",
        ),
        (
            not (query.sample_max_ids or query.row_privacy),
            "sample_max_ids is off: nothing bounds the rows of a person: leave it on",
        ),
        (
            not query.clamp_columns,
            "clamp_columns is off: a value may lie beyond the bounds that the noise is for: leave "
            "it on",
        ),
        (
            grouped and not query.censor_dims,
            "censor_dims is off: that a group is there tells of the people in it: leave it on, or "
            "leave GROUP BY out",
        ),
        (unbounded, "a column has no bounds: state lower and upper in the metadata"),
        (
            reader._options.max_contrib != inner.max_ids or most != [inner.max_ids] * len(noisy),
            "max_ids of the rewritten query is not what its noise is for (issue 544)",
        ),
        (
            len(noisy) + len(grouped) != len(inner._select_symbols) or not noisy,
            "a column has neither noise nor a group",
        ),
    ):
        if wrong:
            raise BudgetError(f"smartnoise: {why}{_UNSPENT}")


def _of(symbol: Any, *, censored: bool) -> Loss:
    """What one noisy column costs a person who joins or leaves."""
    mechanism = symbol.mechanism
    kind = type(mechanism).__name__
    if kind not in ("Laplace", "Gaussian"):
        raise BudgetError(f"smartnoise: a mechanism {kind} has no price here{_UNSPENT}")
    if not 0 < mechanism.epsilon < math.inf:
        raise BudgetError(f"smartnoise: epsilon = {mechanism.epsilon!r}: is no price{_UNSPENT}")
    epsilon = Fraction(float(mechanism.epsilon))
    failure = Fraction(float(mechanism.delta)) if kind == "Gaussian" else Fraction(0)
    if censored and symbol.is_key_count:
        passes = _passes(kind, mechanism) * _SLACK
        failure += max(passes, Fraction(float(mechanism.delta)))
    if not failure:
        return PureLoss(epsilon, adjacency=Adjacency.ADD_REMOVE)
    return ApproxLoss(epsilon, failure, adjacency=Adjacency.ADD_REMOVE)


def _passes(kind: str, mechanism: Any) -> Fraction:
    """The probability that one of the groups in which a person is alone passes the threshold."""
    above = (mechanism.threshold - 1) / mechanism.scale
    if kind == "Laplace":
        tail = math.exp(-above) / 2 if above > 0 else 1.0
    else:
        tail = math.erfc(above / math.sqrt(2)) / 2
    return int(mechanism.max_contrib) * Fraction(float_up(Fraction(tail)))
