"""What an account states when it is opened: a relation, a rule, a promise that can be kept."""

from __future__ import annotations

import re
from fractions import Fraction

from privlearn.errors import AdjacencyError, BudgetError
from privlearn.ledger.entries import PARTICIPATION, RESUME, OpenEntry
from privlearn.losses.budgets import ApproxDP, Currency, budget_from_dict
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.exact import exact
from privlearn.values.participation import Participation


def rule_of(opened: OpenEntry) -> Participation | None:
    """The rule of participation of an account; None if a person is an index.

    Raises:
        BudgetError: data and declaration of the extension do not fit together, or are of bad form.
    """
    data, declared = opened.participation, opened.features.get(PARTICIPATION)
    if data is None and declared is None:
        return None
    if data is None:
        raise BudgetError(
            f"{PARTICIPATION!r} is declared, and its data are missing: without the rule nothing is "
            "known of what one person may do"
        )
    if declared != "critical":
        raise BudgetError(
            f"{PARTICIPATION!r} is declared as {declared}: must be critical, as who does not know "
            "it would take a slot for a person"
        )
    registry = data.get("registry")
    named = isinstance(registry, str) and re.fullmatch("[0-9a-f]{32}", registry)
    if set(data) != {"rule", "registry"} or not named:
        raise BudgetError(
            f"data of {PARTICIPATION!r}: must be rule and registry, the rule's fields and the "
            "public name of the registry that keeps it"
        )
    return rule_in("rule", data["rule"])


def is_resumable(opened: OpenEntry) -> bool:
    """Whether an account declares `RESUME`.

    Raises:
        BudgetError: as optional.
    """
    declared = opened.features.get(RESUME)
    if declared not in (None, "critical"):
        raise BudgetError(
            f"{RESUME!r} is declared as {declared}: must be critical, as who does not know it "
            "would not see whom a stream that ended early was charged to"
        )
    if opened.heads not in (None, {"heads": "elsewhere"}):
        raise BudgetError(f"data of {RESUME!r}: heads must be 'elsewhere', or not be named")
    return declared is not None


def rule_in(name: str, data: object) -> Participation:
    """A rule of participation from its form, which errors call ``name``.

    Raises:
        BudgetError: no rule.
    """
    if not isinstance(data, dict):
        raise BudgetError(f"{name}: must be a rule of participation, as an object")
    try:
        return Participation.from_dict(data)
    except (TypeError, ValueError) as error:
        raise BudgetError(f"{name}: {error}") from None


def check_relation(opened: OpenEntry) -> None:
    """What trust and neighbour relation, and a rule of participation, can promise together."""
    rule = rule_of(opened)
    if rule is not None:
        _check_rule(opened, rule)
    if opened.attested and opened.trust is not Trust.LOCAL:
        raise BudgetError(f"attested: clients attest local privacy, not {opened.trust.value}")
    if opened.adjacency is not Adjacency.ADD_REMOVE:
        return
    if opened.trust is Trust.JOINT:
        raise AdjacencyError(
            "adjacency = add-remove: removing a user shifts what everybody behind is served, "
            "so a joint guarantee is for replace-one or zero-out"
        )
    if opened.trust is Trust.LOCAL:
        raise AdjacencyError(
            "adjacency = add-remove: who sends a message is seen to take part, so a local "
            "guarantee is for replace-one or zero-out (the device sends, but for the null record)"
        )


def _check_rule(opened: OpenEntry, rule: Participation) -> None:
    private = rule.pattern == "private"
    if opened.adjacency is Adjacency.ADD_REMOVE or (
        private and opened.adjacency is not Adjacency.ZERO_OUT
    ):
        allowed = "zero-out" if private else "replace-one or zero-out"
        raise AdjacencyError(
            f"adjacency = {opened.adjacency.value} with pattern = {rule.pattern!r}: must be "
            f"{allowed}, as a person's slots stay, and become null"
        )
    if opened.trust is Trust.LOCAL and rule.clock == "timetable":
        raise BudgetError(
            "clock = 'timetable': the server sees when a message comes, so a local guarantee does "
            "not cover when somebody comes; use clock = 'arrivals'"
        )
    if opened.attested:
        raise BudgetError("attested: a client states itself how often it sends (most_messages)")
    if opened.population is not None:
        raise BudgetError(
            f"population = {opened.population!r}: under a rule of participation an index is a "
            "slot, and no person; accounts of persons add up without it"
        )
    if opened.odometer is not None:
        raise BudgetError("odometer: it is for one row; none is known for a person who comes back")


def probability(name: str, text: str) -> Fraction:
    """A number in [0, 1) from its text.

    Raises:
        BudgetError: outside.  ValueError: no number.
    """
    if text == "0":
        return Fraction(0)
    number = exact(name, text)
    if not 0 <= number < 1:
        raise BudgetError(f"{name} = {text!r}: must lie in [0, 1)")
    return number


def cap_of(opened: OpenEntry, most_orders: int) -> Currency:
    """The cap of an account, at no more orders than that.

    Raises:
        BudgetError: no currency above zero, or too many orders.
    """
    cap = budget_from_dict(opened.cap)
    if not isinstance(cap, Currency) or cap.is_zero:
        raise BudgetError(f"cap {cap}: must be a currency above zero")
    if len(cap.amounts) > most_orders:
        raise BudgetError(f"cap at {len(cap.amounts)} orders: at most {most_orders} are counted")
    return cap


def promise_of(opened: OpenEntry) -> ApproxDP | None:
    """What an account was opened with before it was turned into a cap; None for a cap.

    Raises:
        BudgetError: no (ε, δ) budget.
    """
    if opened.promise is None:
        return None
    try:
        promise = budget_from_dict(opened.promise)
    except (ValueError, TypeError) as error:
        raise BudgetError(f"promise: {error}") from None
    if not isinstance(promise, ApproxDP):
        raise BudgetError(f"promise {promise}: must be an (ε, δ) budget")
    return promise


def odometer_of(opened: OpenEntry, failure: Fraction) -> Fraction | None:
    """The δ of the odometer of an account, if it has one.

    Raises:
        BudgetError: no probability above zero, or none that is left by ``failure``.
    """
    if opened.odometer is None:
        return None
    odometer = probability("odometer", opened.odometer)
    if not odometer:
        raise BudgetError("odometer = 0: its δ must be above zero")
    if odometer + failure >= 1:
        raise BudgetError("odometer and failure: their δ must add up to less than 1")
    return odometer
