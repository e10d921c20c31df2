"""What is promised to, and was spent on, each arrival index."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from privlearn.accountants.account_totals import cap_of
from privlearn.accountants.charged import Tallies
from privlearn.accountants.epsilon_delta import largest_epsilon
from privlearn.accountants.guarantee import Composite, epsilon_of
from privlearn.accountants.loss_structure import total
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError
from privlearn.losses import Loss

_MOST_TIGHT = 32
"""With more compositions than this, quick bounds take the place of the certificate's."""


@final
@dataclass(frozen=True, slots=True)
class ArrivalSpend:
    """The users of one range of arrival indices, for whom all numbers are the same.

    ``promised`` is a guarantee; ``spent`` is ex post.  Both are ε at the ``delta`` asked for.
    """

    users: range
    promised: float
    spent: float
    delta: float


def spend_by_arrival(state: AccountState, delta: float | None = None) -> list[ArrivalSpend]:
    """ε promised and spent, piece by piece, in order of arrival.

    ``delta`` defaults to that of an (ε, δ) promise, else 1e-6.

    Raises:
        ValueError: delta outside (0, 1).
        BudgetError: under a rule of participation an index is a slot, and no person.
    """
    if state.visits is not None:
        raise BudgetError(
            f"by arrival: under {state.visits.rule} an index is a slot, and what a person pays who "
            "stands at it depends on where else; see epsilon() for every person"
        )
    if delta is None:
        delta = 1e-6 if state.promise is None else float(state.promise.delta)
    promised: list[tuple[range, Composite]] = [(state.users, cap_of(state))]
    if state.plan is not None:
        promised = [*composed(state.charged.committed)]
    spent = composed(state.charged.spent)
    distinct = dict.fromkeys(what for _, what in [*promised, *spent])
    tight = len(distinct) <= _MOST_TIGHT
    epsilon = {
        what: largest_epsilon([what], delta).value if tight else epsilon_of(what, delta).value
        for what in distinct
    }
    found: list[ArrivalSpend] = []
    i = j = 0
    at = state.users.start
    while at < state.users.stop:
        stop = min(promised[i][0].stop, spent[j][0].stop)
        found.append(
            ArrivalSpend(range(at, stop), epsilon[promised[i][1]], epsilon[spent[j][1]], delta)
        )
        i, j = i + (promised[i][0].stop == stop), j + (spent[j][0].stop == stop)
        at = stop
    return found


def composed(tallies: Tallies[Loss]) -> list[tuple[range, Composite]]:
    """The composition for each range of users; equal tallies are composed once."""
    known: dict[frozenset[tuple[Loss, int]], Composite] = {}
    found: list[tuple[range, Composite]] = []
    for users, tally in tallies.pieces():
        key = frozenset(tally.items())
        if key not in known:
            known[key] = total(tally)
        found.append((users, known[key]))
    return found
