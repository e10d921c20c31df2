"""What follows from the accounts of a ledger: guarantees, sums and shares of what was spent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import final

from privlearn.accountants.account_totals import Totals
from privlearn.accountants.assumption import Assumption, paid, unprotected
from privlearn.accountants.assumptions import assumptions
from privlearn.accountants.audited_accounts import AuditedAccount
from privlearn.accountants.certificate import Guarantee, Leased, Running, Share
from privlearn.accountants.epsilon_delta import RoundedNumber, Work, largest_epsilon
from privlearn.accountants.filters import running_bound
from privlearn.accountants.guarantee import Composite, epsilon_of, mu_of, rho_of, unless_failed
from privlearn.accountants.multiple_accountants import (
    CHOSEN_BEFORE,
    Pieces,
    Sum,
    common_relation,
    composition,
    promised_pieces,
    sum_of_caps,
    sums,
    user_sums,
)
from privlearn.accountants.opening_checks import rule_of
from privlearn.accountants.person_assumptions import relation_words
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.errors import BudgetError
from privlearn.losses import Loss
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import float_down, float_up


@final
@dataclass(frozen=True)
class Asked:
    """What a certificate is to be about.

    Attributes:
        delta: where to state ε; None for the default.
        users: one user; None for the maximum over all of them.
        rounds: rows of one person.
    """

    delta: float | None = None
    users: range | None = None
    rounds: int = 1

    @property
    def user(self) -> int | None:
        """The one user."""
        return None if self.users is None else self.users.start


def stated_guarantee(
    book: AuditedAccount, totals: Totals, asked: Asked, work: Work, *, ex_post: bool = False
) -> Guarantee:
    """What one account promises, or, ``ex_post``, what was spent.

    Raises:
        PrivlearnError, ValueError, ArithmeticError: nothing can be stated of what a file holds.
    """
    state, users, rounds = book.state, asked.users, asked.rounds
    lines = assumptions(state, book.totals, rounds)
    if totals.bounded:
        lines.append(
            paid(
                f"Users with {totals.bounded} different totals, too many to compose one by one, "
                "are counted by the largest sum in the accountant's currency, which is no less "
                "than any of theirs."
            )
        )
    if users is not None:
        lines.append(
            paid(
                f"This is for user {users.start} only: what the plan or the cap allows to touch "
                "this user counts, spent or not."
            )
        )
        lines.append(unprotected("What happened after the arrival depends on the user."))
    unknown = book.unpriced if ex_post else book.unplanned
    found = _stated([state], totals.parts, asked, lines, work, unknown=unknown)
    known = ex_post and rounds == 1 and not unknown
    bound = running_bound(state, users) if known else None
    extra: dict[str, object] = {"user": asked.user}
    if bound is not None:
        extra["running"] = Running(epsilon=bound.epsilon, delta=bound.delta, theorem=bound.theorem)
    return found.model_copy(update=extra)


def _stated(
    states: Sequence[AccountState],
    parts: list[Composite],
    asked: Asked,
    rests_on: list[Assumption],
    work: Work,
    who: str = "",
    unknown: str = "",
    adjacency: Adjacency | None = None,
) -> Guarantee:
    delta, rounds = asked.delta, asked.rounds
    if delta is None:
        promises = {float(s.promise.delta) for s in states if s.promise is not None}
        failing = float(sum(s.failure for s in states))
        delta = max(promises, default=failing + 1e-6 * (1 - failing))
    rho, mu, epsilon = None, None, RoundedNumber(math.inf, 0.0, "unknown")
    if not unknown:
        rho = _times(_largest([rho_of(part) for part in parts]), rounds**2)
        mu = _times(_largest([mu_of(part) for part in parts]), rounds)
        epsilon = largest_epsilon(parts, delta, rounds, work)
    first = states[0].opened
    adjacency = adjacency or first.adjacency
    ranges = {state.opened.users for state in states}
    return Guarantee(
        trust=next(trust for trust in _WEAKEST if any(s.opened.trust is trust for s in states)),
        adjacency=adjacency,
        rho=rho,
        mu=mu,
        epsilon=epsilon.value,
        delta=delta,
        error_bound=epsilon.error_bound,
        method=epsilon.method,
        rests_on=rests_on,
        accountants=tuple(state.number for state in states),
        users=next(iter(ranges)) if len(ranges) == 1 else None,
        who=who,
        attested=any(state.opened.attested for state in states),
        failure=max(
            (float_up(part.failure()) for part in parts if isinstance(part, Loss)), default=0.0
        ),
        rounds=rounds,
        rule=rule_of(first) if len(states) == 1 else None,
        relation=_relation(states, adjacency),
        unknown=unknown,
    )


_WEAKEST = (Trust.JOINT, Trust.CENTRAL, Trust.LOCAL)
"""What several accounts of different trust promise together is what the first of these does: with
a joint one a person's own output is not protected."""


def _relation(states: Sequence[AccountState], adjacency: Adjacency) -> str:
    opened = [state.opened for state in states]
    words = dict.fromkeys(relation_words(adjacency, rule_of(o)) for o in opened)
    return "; ".join(words) if any(rule_of(o) for o in opened) else ""


def _times(value: float | None, factor: int) -> float | None:
    return value if value is None or factor == 1 else float_up(Fraction(value) * factor)


def stated_sums(
    books: Sequence[AuditedAccount],
    pieces: Callable[[AccountState], Pieces],
    asked: Asked,
    notes: list[str],
    work: Work,
    *,
    ex_post: bool = False,
) -> list[Guarantee]:
    """What accounts promise together, or spent; ``notes`` takes why a sum is not known."""
    found, users, rounds = [], asked.users, asked.rounds
    by_number = {book.state.number: book for book in books}
    try:
        states = [book.state for book in books]
        for added in sums(states, pieces) if users is None else user_sums(states, pieces, users):
            if not added.parts:
                notes.append(f"For {added.who}, the sum was not computed: too many totals differ.")
                continue
            its_books = [by_number[state.number] for state in added.states]
            rows = "" if rounds == 1 else f", {rounds} rows instead of each one"
            lines = [paid(f"This is the sum for {added.who}{rows}."), CHOSEN_BEFORE]
            lines += [line for b in its_books for line in assumptions(b.state, b.totals, rounds)]
            reasons = [b.unpriced if ex_post else b.unplanned for b in its_books]
            stated = _stated(
                added.states,
                added.parts,
                asked,
                list(dict.fromkeys(lines)),
                work,
                added.who,
                next(filter(None, reasons), ""),
            )
            found.append(stated.model_copy(update={"user": asked.user}))
    except Exception as error:  # whatever a file holds, an audit ends
        notes.append(f"Guarantees add up, but there is no sum: {error}")
    return found


def stated_composition(
    books: Sequence[AuditedAccount], asked: Asked, work: Work, known: Sequence[Guarantee]
) -> Guarantee | None:
    """What all accounts promise together to one person; None where there are no several.

    ``known`` are the sums that were stated, of which one may be that of all.
    """
    states, users, rounds = [book.state for book in books], asked.users, asked.rounds
    if len(states) < 2:
        return None
    for one in known if users is None else ():
        if len(one.accountants) == len(states):
            return one
    relation, unknown = common_relation(states), ""
    found = Sum(tuple(states), "a person who is in all of them", [None])
    try:
        found = composition(states, promised_pieces, users)
        if not found.parts:
            found = sum_of_caps(states, found.who)
    except Exception as error:  # whatever a file holds, an audit ends
        unknown = str(error)
    reasons = [f"accountant {b.state.number}: {b.unplanned}" for b in books if b.unplanned]
    rows = "" if rounds == 1 else f", {rounds} rows instead of each one"
    lines = [paid(f"This is for {found.who}{rows}."), CHOSEN_BEFORE, *_ways(states, relation)]
    lines += [line for b in books for line in assumptions(b.state, b.totals, rounds)]
    stated = _stated(
        found.states,
        found.parts,
        asked,
        list(dict.fromkeys(lines)),
        work,
        found.who,
        unknown or next(iter(reasons), ""),
        relation,
    )
    return stated.model_copy(update={"user": asked.user})


def _ways(states: Sequence[AccountState], relation: Adjacency) -> list[Assumption]:
    lines = []
    if len({state.opened.trust for state in states}) > 1:
        lines.append(
            paid(
                "Accountants of different trust are added up: it holds against whoever sees all "
                "that is released, all messages of devices and what everybody else is served."
            )
        )
    other = [state.number for state in states if state.opened.adjacency is not relation]
    if other:
        whose = f"accountant{'s' * (len(other) > 1)} {' and '.join(map(str, other))}"
        lines.append(
            paid(
                f"The losses of {whose} are for another neighbour relation, and count for "
                f"{relation.value} at the price of two steps."
            )
        )
    return lines


def broken_promise(state: AccountState) -> list[str]:
    """A cap that does not keep the (ε, δ) it was made from."""
    if state.promise is None:
        return []
    try:
        apart = unless_failed(state.promise, state.failure)
        found = epsilon_of(state.cap, float_down(apart.delta)).value
        if found <= float(state.promise.epsilon) * (1 + 1e-12):
            return []
    except (BudgetError, ValueError, ArithmeticError) as error:  # whatever a file holds
        return [f"the promise {state.promise} is not kept: {error}"]
    return [f"the cap {state.cap} gives ε = {found:.6g}, not the promised {state.promise}"]


def uncovered(totals: SpendTotals) -> list[str]:
    """Releases that ended in a way that may depend on data beyond what was paid for."""
    return [
        f"token {token} ({label}): its mechanism stopped after it had opened rows; whether it does "
        "may depend on them, which is not covered"
        for token, label in totals.uncovered
    ]


def _largest(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known) if len(known) == len(values) else None


def leases_of(book: AuditedAccount) -> list[Leased]:
    """Spends that paid for several runs, by mechanism and label."""
    return [
        Leased(
            accountant=book.state.number, mechanism=mechanism, label=label, leases=leases, runs=runs
        )
        for (mechanism, label), (leases, runs) in book.totals.leases.items()
    ]


def shares_of(book: AuditedAccount) -> list[Share]:
    """Spends by mechanism and label, with their part of the most charged user's spend."""
    totals = book.totals
    parts = dict.fromkeys(totals.spends) | (
        {} if book.unpriced else dict(totals.shares(book.state))
    )
    return [
        Share(
            mechanism=group[0],
            label=group[1],
            accountant=book.state.number,
            spends=totals.spends[group],
            interactive=group in totals.streams,
            share=share,
        )
        for group, share in parts.items()
    ]
