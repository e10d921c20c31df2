"""Which rows, and which sums of rows, a token may open."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from privlearn.errors import ProvenanceError, UsersError
from privlearn.people import People
from privlearn.rows import PartialSum, Rows
from privlearn.rows.domains import Domain, IntegerDomain
from privlearn.rows.partial_sums import Ranges
from privlearn.rows.partitions.rows import PartitionedRows
from privlearn.rows.sealed import check_forms
from privlearn.rows.stamps import NOBODY, Stamp
from privlearn.values.adjacency import Adjacency, Trust

if TYPE_CHECKING:
    from privlearn.contract.issuing import Issuer
    from privlearn.contract.spends import Spend
    from privlearn.contract.tokens import Token


def check_rows(token: Token[Any], rows: Rows[Any], first: int, domain: Domain[Any]) -> None:
    """Raises unless ``token``, of whose users those from ``first`` on are left, may open ``rows``.

    They are opened through ``domain``.

    Raises:
        TypeError: no rows.
        UsersError: of other users.
        ProvenanceError: not of its billboard.
        DataError: of a form that the domain cannot use.
    """
    if not isinstance(rows, Rows):
        raise TypeError(f"rows: must be Rows (see Rows.seal), not {type(rows).__name__}")
    check_forms(domain, rows)
    users, slots, last = rows.users, Rows._slots_of(rows), token.users.stop
    if users.start < first or users.stop > last:
        raise UsersError(
            f"users {users.start}..{users.stop - 1} cannot be opened by token {token.label!r}: "
            f"{first}..{last - 1} are left, in order, each once"
        )
    issuer = token._issuer
    if token.adjacency is Adjacency.ADD_REMOVE and users != token.users:
        raise UsersError(
            f"under add-remove every index behind a removed user shifts: all of {token.users!r} "
            f"must be opened at once, not {users!r}"
        )
    if issuer.trust is Trust.JOINT:
        _check_board(issuer, Rows._board_of(rows))
    if issuer.people is not None:
        _check_stamp(issuer.people, Rows._stamp_of(rows))
        _check_clock(issuer.people, rows)
        _check_over(token, users == token.users)
    elif slots is not None:
        raise ProvenanceError(
            "slots: rows on a timetable need an accountant with a registry of people, whose rule "
            "has clock='timetable'"
        )


def check_total(token: Token[Any], total: PartialSum, first: int) -> None:
    """As `check_rows`, for a sum of rows."""
    if not isinstance(total, PartialSum):
        raise TypeError(f"total: must be a PartialSum (see merge), not {type(total).__name__}")
    _check_parts(token, total, total.users, first)
    issuer = token._issuer
    if issuer.trust is Trust.JOINT:
        _check_board(issuer, PartialSum._board_of(total))
    if issuer.people is not None:
        _check_stamp(issuer.people, PartialSum._stamp_of(total))
        _check_over(token, total.users == (token.users,))


def check_partitions(token: Token[Any], rows: PartitionedRows[Any], first: int) -> None:
    """As `check_rows`, for rows that lie in several processes."""
    if not isinstance(rows, PartitionedRows):
        raise TypeError(f"rows: must be PartitionedRows, not {type(rows).__name__}")
    _check_parts(token, rows, rows.users, first)
    if token._issuer.trust is Trust.JOINT:
        _check_board(token._issuer, None)
    if token._issuer.people is not None:
        _check_stamp(token._issuer.people, PartitionedRows._stamp_of(rows))


def _check_parts(token: Token[Any], what: object, parts: Ranges, first: int) -> None:
    last = token.users.stop
    if not parts:
        raise UsersError(f"{what!r} is of nobody's rows: token {token.label!r} is not needed")
    if parts[0].start < first or parts[-1].stop > last:
        raise UsersError(
            f"{what!r} cannot be opened by token {token.label!r}: users {first}..{last - 1} are "
            "left, each once"
        )
    if token.adjacency is Adjacency.ADD_REMOVE and parts != (token.users,):
        raise UsersError(
            f"under add-remove all of {token.users!r} must be opened at once, not {what!r}"
        )


def check_timetable(people: People, token: Token[Any], spend: Spend) -> None:
    """On a timetable, raises unless ``spend`` is of a sum in which a null row is zero.

    How many rows there are is sealed, so nobody but the receipt may see the single ones, and
    whoever did not come must be the same as a null row.

    Raises:
        ProvenanceError: of another mechanism.
        UsersError: its slots are not over.
    """
    if people.rule.clock != "timetable":
        return
    if spend.arithmetic != "sum" or spend.grid is None:
        raise ProvenanceError(
            f"{spend.mechanism}: on a timetable rows are added up, in integers, by a mechanism "
            "with arithmetic = 'sum' and a grid, such as NoisySum; how many there are is not public"
        )
    domain = cast("IntegerDomain[Any]", spend.domain)  # it has a grid
    if domain.null().any() or domain.null_integers(spend.grid).any():
        raise ProvenanceError(
            f"{spend.mechanism}: a null row in {spend.domain!r} is not zero, and would tell on a "
            "timetable that somebody came; use a domain with zero as its null contribution"
        )
    if people.passed < token.users.stop:  # the clock may be there because somebody came
        raise UsersError(
            f"users = {token.users!r}: on a timetable a token is spent when its slots are over; "
            f"let time pass, people.skip_to({token.users.stop}), or skip of the billboard"
        )


def _check_over(token: Token[Any], whole: bool) -> None:
    """On a timetable which slots are opened must not follow from who came."""
    people = token._issuer.people
    if people is not None and people.rule.clock == "timetable" and not whole:
        raise UsersError(
            f"on a timetable all slots of token {token.label!r}, {token.users!r}, are opened at "
            "once; join the rows with those of slots that were skipped (Rows.concat)"
        )


def _check_board(issuer: Issuer, board: object | None) -> None:
    served_by = getattr(board, "accountant", None)
    if served_by is None or served_by.issuer is not getattr(issuer, "lender", issuer):
        raise ProvenanceError(
            "a joint guarantee needs rows served by this accountant's billboard; logged rows (and "
            "rows of another billboard) need a CentralAccountant"
        )


def _check_stamp(people: People, stamp: Stamp | None) -> None:
    """Under a rule of participation only what its registry admitted is opened."""
    if stamp is NOBODY:
        return
    if stamp is None or stamp.registry is not people:
        raise ProvenanceError(
            f"under {people.rule} rows must be admitted by the accountant's registry: serve them "
            "with people=ids, or use people.admit(rows, ids), of partitions "
            "rows.admitted(people, ids)"
        )
    if people.rule.pooled and not stamp.pooled:
        raise ProvenanceError(
            "under a pooled rule one row of each person and batch is opened: use rows.pool(combine)"
        )


def _check_clock(people: People, rows: Rows[Any]) -> None:
    """On a timetable a slot takes any number of visits, so that none displaces another."""
    timed = Rows._slots_of(rows) is not None
    if Rows._stamp_of(rows) is not NOBODY and timed is not (people.rule.clock == "timetable"):
        given = "on a timetable" if timed else "one for each slot"
        raise ProvenanceError(
            f"clock = {people.rule.clock!r}: rows {given}; "
            + ("seal them without slots" if timed else "say their slots: Rows.seal(..., slots=)")
        )
