"""What a guarantee of persons rests on, who may come back under a public rule."""

from __future__ import annotations

from privlearn.accountants.assumption import (
    Assumption,
    checked,
    declared,
    paid,
    trusted,
    unprotected,
)
from privlearn.accountants.spend_totals import SpendTotals
from privlearn.accountants.state import AccountState
from privlearn.values.adjacency import Adjacency, Trust
from privlearn.values.participation import Participation


def relation_words(adjacency: Adjacency, rule: Participation | None) -> str:
    """The neighbour relation in a few words."""
    if rule is None:
        return adjacency.value
    if rule.pattern == "public":
        return f"person {adjacency.value}, public pattern"
    if rule.clock == "timetable":
        return "person zero-out, on a timetable"
    return "person zero-out, for every public schedule of slots"


def rule_words(rule: Participation) -> str:
    """The rule in plain words."""
    if rule.pooled:
        batches = "one batch" if rule.most == 1 else f"{rule.most} of the batches"
        return (
            f"in at most {batches} all visits of one person are learned, as one row that is made "
            "of them"
        )
    text = f"of one person at most {_visits(rule.most)} learned"
    if rule.apart > 1:
        text += f", at least {rule.apart} slots from each other"
    if rule.per_batch is not None:
        text += f", at most {rule.per_batch} of them in one batch"
    return text


def _visits(number: int) -> str:
    return "1 visit is" if number == 1 else f"{number} visits are"


def person_assumptions(state: AccountState, totals: SpendTotals) -> list[Assumption]:
    """The assumptions of an account with a rule of participation; none without one."""
    if state.visits is None:
        return []
    rule = state.visits.rule
    return [
        paid(
            f"One person is one unit, with all visits that the rule lets be learned: "
            f"{rule_words(rule)}. Any further visit is served as always, and the row to learn from "
            "is null, in its place."
        ),
        paid(
            "Which visits come may depend on what was released before: what they cost adds up "
            "along every path, and stays under the largest total, which makes that a filter."
        ),
        *_relation(state, rule),
        *_trusted(state, rule),
        checked(
            "The rule stands in `open`, before all else"
            + (", and its batches before the first token; a token is for whole ones" * rule.batched)
            + ". Of every token it was worked out again how many visits of one person its slots "
            "can hold and what so many cost, and of all together the most that any pattern of "
            "visits within the rule adds up to."
        ),
        *_streams(totals),
        unprotected("j persons together have group privacy: j·μ, j²·ρ, j·ε for pure ε."),
    ]


def _relation(state: AccountState, rule: Participation) -> list[Assumption]:
    if rule.pattern == "public":
        change = (
            "are replaced by others"
            if state.opened.adjacency is Adjacency.REPLACE_ONE
            else "become null"
        )
        return [
            paid(
                f"Neighbours, by a public pattern: the records of one person {change}, in all "
                "slots of this person, and the slots are the same in both worlds. What the records "
                "hold is covered."
            ),
            unprotected(
                "When and how often a person comes is public. Whoever returns because the last "
                "offer was good is not covered: the next visit tells that it was.",
                weakens=True,
            ),
            declared(
                "Whether and when a person comes depends neither on this person's records nor on "
                "what only this person was shown.",
                weakens=True,
            ),
        ]
    if rule.clock == "timetable":
        return [
            paid(
                "Neighbours, on a timetable: all slots of one person become empty. What the "
                "records hold is covered, and so is when, how often and why this person comes, "
                "also if that is because the last offer was good. A person in place of another, "
                "with other visits, is two such steps: 2·μ, 4·ρ."
            ),
            declared(
                "A slot is a public stretch of time, whether anybody comes or not; it takes any "
                "number of visits, and none displaces another."
            ),
        ]
    return [
        paid(
            "Neighbours, for every public schedule of slots: all records of one person become "
            "null; the slots stay, and this person is still served and still counted. What the "
            "records hold is covered, whatever the schedule is."
        ),
        unprotected(
            "The schedule of slots is public: each visit moves everybody behind by one index. "
            "Nothing is claimed about what the schedule tells, as of somebody who returns because "
            "the last offer was good; only a rule with clock='timetable' covers that.",
            weakens=True,
        ),
    ]


def _trusted(state: AccountState, rule: Participation) -> list[Assumption]:
    registry = (state.opened.participation or {}).get("registry")
    lines = [
        trusted(
            "Ids are authenticated, one for each person. Where two share an id, what one of them "
            "pays may count twice; whoever has j ids that nobody else uses has group privacy: j·μ, "
            "j²·ρ, j·ε for pure ε.",
            weakens=True,
        ),
        trusted(
            f"Registry {registry} kept the rule: it was not reset, copied, forked, or taken back "
            "to an older state, and visits were counted for good before anybody was served. No "
            "ledger shows what is in it, or whether it is on disk.",
            weakens=True,
        ),
        trusted(
            "Visits beyond the rule were masked by this code, and receipts opened only rows with "
            "the stamp of that registry. A visit uses up its place in the rule when it is served, "
            "whatever its record turns out to be; a row belongs to the batch of the slot that was "
            "served, whenever it is answered."
        ),
    ]
    if rule.pooled:
        lines.append(
            trusted(
                "All visits of one person in a batch were made one row before it was clipped, and "
                "nothing that reads a batch was released before the batch ended."
            )
        )
    if state.opened.trust is Trust.LOCAL and rule.pattern == "private":
        lines.append(
            declared(
                "Devices send a report at every public turn, a null one where there is no visit to "
                "report: the receiver sees each message, and who sends it."
            )
        )
    return lines


def _streams(totals: SpendTotals) -> list[Assumption]:
    lines = []
    if totals.restated:
        lines.append(
            checked(
                "How far all visits of one person can move the sums was worked out again, from the "
                f"recorded factorisation, for: {', '.join(totals.restated)}."
            )
        )
    if totals.as_recorded:
        lines.append(
            trusted(
                "How far all visits of one person can move what is released is as recorded, and "
                f"was not worked out again, for: {', '.join(totals.as_recorded)}.",
                weakens=True,
            )
        )
    if totals.open_prices:
        lines.append(
            trusted(
                "Persons may come in view of what was released. So the stated loss of what stays "
                "open must hold given everything before, and not only on average over it, for: "
                f"{', '.join(totals.open_prices)}.",
                weakens=True,
            )
        )
    return lines
