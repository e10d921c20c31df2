"""Several accountants in one ledger: each guarantee by itself, and what they add up to.

Guarantees of one trust and one neighbour relation add up for a person who is protected by several
accountants, whatever the order in which their mechanisms run (docs/proofs.md#several-accountants),
if their caps and plans are fixed: a cap that was chosen after another accountant's releases were
seen makes the sum a fact of one run, not a guarantee.  `composition` adds up all of them: over
every trust, and over relations by way of replace-one.

Which indices are one person is public only if it was declared: accountants with the same
``population`` name are added index by index.  Otherwise the ledger cannot know it, and the sum is
for a person who may hold any one index in each of them.  Under a rule of participation an index is
no person: such an account has one total, which bounds that of every person, and it adds up with
those of others for whoever is in several.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import final

from privlearn.accountants.account_totals import (
    MOST_TERMS,
    Totals,
    cap_of,
    compositions,
    promised,
    spent,
)
from privlearn.accountants.assumption import Assumption
from privlearn.accountants.charged import Tallies
from privlearn.accountants.guarantee import Composite, as_loss
from privlearn.accountants.loss_structure import total
from privlearn.accountants.state import AccountState
from privlearn.errors import AdjacencyError, BudgetError
from privlearn.ledger.entries import OpenEntry
from privlearn.losses import Loss, as_replace_one, compose, parts_of
from privlearn.losses.budgets import Currency
from privlearn.values.adjacency import Adjacency

_MOST_SUMS = 4096  # Combinations of users' totals that are looked at, one sum each

CHOSEN_BEFORE = Assumption(
    kind="declared",
    text="The caps and plans that are added were not chosen in view of what another of these "
    "accountants had released.",
)

Pieces = Tallies[Loss]
"""What stands for each user: losses and how often."""


def check_beside(opened: OpenEntry, others: Iterable[OpenEntry]) -> None:
    """Raises why ``opened`` cannot stand in one ledger with the others."""
    for other in others:
        if other.simulated is not opened.simulated:
            raise BudgetError(
                f"noise = {opened.noise}: the ledger holds accountants with {other.noise}; "
                "simulations and real noise need ledgers of their own"
            )
        shifting = Adjacency.ADD_REMOVE in (opened.adjacency, other.adjacency)
        one = opened.population is not None and opened.population == other.population
        if shifting and one and opened.users != other.users:
            raise AdjacencyError(
                f"population = {opened.population!r}: add-remove shifts indices, so all of its "
                f"accountants are for users {list(other.users)}, not {list(opened.users)}"
            )


@final
@dataclass(frozen=True)
class Sum:
    """What several accountants promise together to one person."""

    states: tuple[AccountState, ...]
    who: str
    parts: list[Composite]
    """One composition for each kind of person, the guarantee being the largest; none if there are
    too many to look at."""


def promised_pieces(state: AccountState) -> Pieces:
    """What stands for each user: the plan's losses, or the cap."""
    if state.visits is not None:
        return _of_everybody(state, promised(state))
    if state.plan is not None:
        return state.charged.committed
    pieces: Pieces = Tallies(state.users)
    pieces.add(state.users, loss_of(cap_of(state), state.opened.adjacency))
    return pieces


def spent_pieces(state: AccountState) -> Pieces:
    """What was spent on each user, ex post."""
    return state.charged.spent if state.visits is None else _of_everybody(state, spent(state))


def _of_everybody(state: AccountState, totals: Totals) -> Pieces:
    """The one bound that an account of persons has on each of them."""
    pieces: Pieces = Tallies(state.users)
    for part in totals.parts:
        if part is not None:
            pieces.add(state.users, loss_of(part, state.opened.adjacency))
    return pieces


def sums(states: Sequence[AccountState], pieces: Callable[[AccountState], Pieces]) -> list[Sum]:
    """The sums over accountants of one trust and neighbour relation, where there are several."""
    found = []
    for group in _grouped(states, lambda opened: (opened.trust, opened.adjacency)):
        if len(group) == 1:
            continue
        units = [
            _together(same, [pieces(state) for state in same])
            for same in _grouped(group, lambda opened: opened.population or opened)
        ]
        found += [unit for unit in units if len(unit.states) > 1]
        if len(units) > 1:
            found.append(_anybody(units))
    return found


def composition(
    states: Sequence[AccountState],
    pieces: Callable[[AccountState], Pieces],
    user: range | None = None,
) -> Sum:
    """What all accountants together may cost one person, whatever their trust and relation.

    Losses of different trust add up, and where relations differ all of them are stated for
    replace-one, a loss for another one at the price of two steps (`as_replace_one`); both are
    proved in docs/proofs.md#several-accountants.  Indices of one population are one person, so that
    accountants for disjoint ranges of it cost their maximum; anybody may stand behind any index of
    the others.

    Args:
        states: the accountants, one or more.
        pieces: what stands for each user of one.
        user: only the person behind this index, in one of the populations that have it.

    Raises:
        AdjacencyError: the losses of an accountant have no proved price under replace-one.
        BudgetError: an accountant has no bound on the loss of a person.
    """
    relation = common_relation(states)
    units = [
        _unit([(state, _converted(state, pieces(state), relation)) for state in same], user)
        for same in _grouped(states, lambda opened: opened.population or opened)
    ]
    if len(units) == 1 and user is None:
        return units[0].anybody
    return _one_of(units, _somebody(states), user)


def sum_of_caps(states: Sequence[AccountState], who: str) -> Sum:
    """A bound on what all of them may cost one person; quick, for very many different totals.

    Raises:
        AdjacencyError: as `composition`.
    """
    relation = common_relation(states)
    caps = [(loss_of(cap_of(state), state.opened.adjacency), state) for state in states]
    total_ = compose([(_priced_under(cap, relation, state), 1) for cap, state in caps])
    return Sum(tuple(states), who, [total_])


def common_relation(states: Sequence[AccountState]) -> Adjacency:
    """The relation that a composition of these is for: their own, or else replace-one."""
    relations = {state.opened.adjacency for state in states}
    return next(iter(relations)) if len(relations) == 1 else Adjacency.REPLACE_ONE


def _converted(state: AccountState, pieces: Pieces, relation: Adjacency) -> Pieces:
    if state.opened.adjacency is relation:
        return pieces
    return pieces.mapped(lambda loss: _priced_under(loss, relation, state))


def _priced_under(loss: Loss, relation: Adjacency, state: AccountState) -> Loss:
    if loss.adjacency is relation:
        return loss
    try:
        return as_replace_one(loss).loss
    except AdjacencyError as error:
        raise AdjacencyError(
            f"accountant {state.number} is for {loss.adjacency.value} and others of the ledger are "
            f"not, and what it may spend cannot be stated for {relation.value}: {error}"
        ) from None


@final
@dataclass(frozen=True)
class _Unit:
    anybody: Sum
    one: list[Composite] | None
    """The total of the user who is asked about; None if none of them has that index."""


def _unit(members: Sequence[tuple[AccountState, Pieces]], user: range | None) -> _Unit:
    states, pieces = [state for state, _ in members], [counted for _, counted in members]
    anybody = _together(states, pieces)
    if user is None or not any(user.start in state.users for state in states):
        return _Unit(anybody, None)
    return _Unit(anybody, [total(_added(states, pieces).of(user.start))])


def _one_of(units: Sequence[_Unit], who: str, user: range | None) -> Sum:
    """For a person who may be anybody in each unit, but for one where it is ``user``."""
    sums_ = [unit.anybody for unit in units]
    if user is None:
        return _anybody(sums_)
    found: dict[Composite, None] = {}
    for place, unit in enumerate(units):
        if unit.one is not None:
            at = Sum(unit.anybody.states, who, unit.one)
            parts = _anybody([*sums_[:place], at, *sums_[place + 1 :]]).parts
            if not parts:
                return Sum(tuple(s for one in sums_ for s in one.states), who, [])
            found |= dict.fromkeys(parts)
    states = tuple(state for one in sums_ for state in one.states)
    whose = f"the person behind user {user.start} of one of {_names(states)}"
    others = ", who may have any row in each of the others" if len(units) > 1 else ""
    return Sum(states, f"{whose}{others}", list(found))


def user_sums(
    states: Sequence[AccountState], pieces: Callable[[AccountState], Pieces], user: range
) -> list[Sum]:
    """The sums for one index, over accountants where it is declared to be one person.

    They are those of one population, trust and neighbour relation that protect this index.
    """
    declared = [s for s in states if s.opened.population is not None and user.start in s.users]

    found = []
    for same in _grouped(declared, lambda o: (o.trust, o.adjacency, o.population)):
        if len(same) > 1:
            who = f"user {user.start} of population {same[0].opened.population!r}, in "
            counted = [pieces(state) for state in same]
            parts = [total(_added(same, counted).of(user.start))]
            found.append(Sum(tuple(same), f"{who}{_names(same)} together", [*parts]))
    return found


def remarks(states: Sequence[AccountState]) -> list[str]:
    """What an auditor has to know about several accountants, in words."""
    kinds = _grouped(states, lambda opened: (opened.trust, opened.adjacency))
    lines = []
    if len(kinds) > 1:
        names = [f"{s[0].opened.trust.value} {s[0].opened.adjacency.value}" for s in kinds]
        lines.append(
            f"Guarantees of different kinds ({', '.join(names)}) are stated each by itself; "
            "somebody protected by several of them has all of these losses, which is the guarantee "
            "of all accountants together."
        )
    for group in kinds:
        units = _grouped(group, lambda opened: opened.population or opened)
        ruled = [state for state in group if state.visits is not None]
        if ruled and len(units) > 1:
            lines.append(
                f"Under a rule of participation an index is no person ({_names(ruled)}), and who "
                f"is in several accounts is sealed: their sum is for {_somebody(group)}."
            )
        elif len(units) > 1:
            lines.append(
                f"Whether an index is one person in {_names(group)} was not declared "
                "(population=...) and cannot be known from the ledger: their sum is for a person "
                "with one row in each."
            )
    return lines


def _somebody(states: Sequence[AccountState]) -> str:
    ruled = [state for state in states if state.visits is not None]
    rest = [state for state in states if state.visits is None]
    told = ["all visits that are learned in " + _each(ruled)] if ruled else []
    told += ["one row in " + _each(rest)] if rest else []
    return "a person with " + " and ".join(told)


def _each(states: Sequence[AccountState]) -> str:
    return _names(states) if len(states) == 1 else f"each of {_names(states)}"


def _together(states: Sequence[AccountState], pieces: Sequence[Pieces]) -> Sum:
    """Index by index: disjoint users cost the maximum, common ones the sum."""
    who = f"each index of population {states[0].opened.population!r}, in {_names(states)} together"
    if len(states) == 1:
        who = _somebody(states)
    added = _added(states, pieces)
    tops = added.tops()
    if len(tops) > 1 and sum(top.terms for top in tops) > MOST_TERMS:
        return Sum(tuple(states), who, [])
    return Sum(tuple(states), who, compositions(added, [top.first for top in tops]))


def _added(states: Sequence[AccountState], pieces: Sequence[Pieces]) -> Pieces:
    added: Pieces = Tallies(
        range(min(s.users.start for s in states), max(s.users.stop for s in states))
    )
    for counted in pieces:
        added.add_all(counted)
    return added


def _anybody(units: Sequence[Sum]) -> Sum:
    states = tuple(state for unit in units for state in unit.states)
    who = _somebody(states)
    number = math.prod(len(unit.parts) for unit in units)
    terms = sum(max(map(_terms, unit.parts), default=0) for unit in units)
    if not 0 < number <= _MOST_SUMS or (number > 1 and number * terms > 4 * MOST_TERMS):
        return Sum(states, who, [])
    kinds = product(*(unit.parts for unit in units))
    adjacency = states[0].opened.adjacency
    totals: dict[Composite, None] = {}
    for kind in kinds:
        losses = [(loss_of(what, adjacency), 1) for what in kind if what is not None]
        totals[compose(losses) if losses else None] = None
    return Sum(states, who, list(totals))


def _terms(what: Composite) -> int:
    return len(parts_of(what)) if isinstance(what, Loss) else 1


def loss_of(what: Loss | Currency, adjacency: Adjacency) -> Loss:
    """A composition or a cap as a loss."""
    return what if isinstance(what, Loss) else as_loss(what, adjacency)


def _grouped(
    states: Sequence[AccountState], key: Callable[[OpenEntry], object]
) -> list[list[AccountState]]:
    groups: dict[int | object, list[AccountState]] = {}
    for state in states:
        name = key(state.opened)
        groups.setdefault(id(name) if isinstance(name, OpenEntry) else name, []).append(state)
    return list(groups.values())


def _names(states: Sequence[AccountState]) -> str:
    several = "s" if len(states) > 1 else ""
    return f"accountant{several} {' and '.join(str(state.number) for state in states)}"
