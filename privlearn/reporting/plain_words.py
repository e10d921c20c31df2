"""A guarantee in one sentence that needs no symbols, and is true in each case."""

from __future__ import annotations

import math

from privlearn.accountants.audit import Certificate, Guarantee
from privlearn.accountants.person_assumptions import rule_words
from privlearn.adjacency import Adjacency, Trust
from privlearn.reporting.shown_numbers import counted, rounded_up
from privlearn.reporting.visible import visible


def certified(certificate: Certificate, guarantee: Guarantee) -> bool:
    """Whether the numbers of a guarantee say anything: no problem, real noise, and a finite ε."""
    sound = not certificate.problems and not certificate.simulation and not guarantee.unknown
    return sound and math.isfinite(guarantee.epsilon)


def attacker(guarantee: Guarantee) -> str:
    """Who guesses, and what they see."""
    match guarantee.trust:
        case Trust.JOINT:
            return (
                "whoever sees all that was released and what everybody else was served, knows all "
                "other records"
            )
        case Trust.LOCAL:
            return "whoever collects the messages, and sees each one as it was sent,"
    return "whoever sees all that was released, knows all other records"


def guessed(guarantee: Guarantee) -> str:
    """What the attacker guesses about the one who is protected."""
    name = "a person" if guarantee.user is None else f"user {guarantee.user}"
    records, several = "record", guarantee.rounds > 1
    if several:
        records = f"{guarantee.rounds} records"
    if guarantee.rule is not None:
        records, several = "records of all visits", True
        name += f" (under the rule: {rule_words(guarantee.rule)})"
    match guarantee.adjacency:
        case Adjacency.ADD_REMOVE:
            return f"whether {name} took part{f' with {records}' if several else ''}"
        case Adjacency.ZERO_OUT:
            were = "were" if several else "was"
            return f"whether the {records} of {name} {were} used or blanked out"
    if several:
        return f"which of two sets of {records} {name} contributed"
    return f"which of two records {name} contributed"


def sentence(certificate: Certificate, guarantee: Guarantee, guess: float) -> str:
    """The guarantee in one sentence; ``guess`` is the largest chance of guessing right."""
    if certificate.problems:
        number = len(certificate.problems)
        return (
            f"Nothing is certified: the audit found {counted(number, 'problem')}, "
            f"and until {'it is' if number == 1 else 'they are'} explained no number of this "
            "ledger can be relied on."
        )
    if certificate.simulation:
        return (
            "Nothing is certified: this is a simulation, whose noise can be computed again, so it "
            "protects nobody."
        )
    if guarantee.unknown:
        return f"Nothing is certified: what was promised is unknown ({visible(guarantee.unknown)})."
    if math.isinf(guarantee.epsilon):
        return (
            f"Nothing is certified at δ = {guarantee.delta:g}: there the ledger's losses have no "
            "finite ε."
        )
    chance = (
        f"{attacker(guarantee)} and guesses {guessed(guarantee)} is right in at most "
        f"{rounded_up(100 * guess, 2):g} of 100 cases, where tossing a coin is right in 50."
    )
    if guarantee.attested:
        return f"If the clients do what they attest, which nobody has verified, {chance}"
    return chance[0].upper() + chance[1:]
