"""A guarantee in one sentence that needs no symbols, and is true in each case."""

from __future__ import annotations

import math

from privlearn.accountants.certificate import Certificate, Guarantee
from privlearn.accountants.person_assumptions import rule_words
from privlearn.reporting.shown_numbers import counted, rounded_up, up
from privlearn.reporting.visible import visible
from privlearn.values.adjacency import Adjacency, Trust


def certified(certificate: Certificate, guarantee: Guarantee) -> bool:
    """Whether the numbers of a guarantee say anything: no problem, real noise, and a finite ε."""
    sound = not certificate.problems and not certificate.simulation and not guarantee.unknown
    return sound and math.isfinite(guarantee.epsilon)


def attacker(guarantee: Guarantee, *, among: int = 1) -> str:
    """Who guesses, and what they see; ``among`` is the number of the ledger's accountants."""
    of = ""
    if among > 1:  # what the others let out tells more
        *first, last = map(str, guarantee.accountants)
        of = f" under accountants {', '.join(first)} and {last}"
        if not first:
            of = f" under accountant {last} alone"
    match guarantee.trust:
        case Trust.JOINT:
            return (
                f"whoever sees all that was released{of} and what everybody else was served, knows "
                "all other records"
            )
        case Trust.LOCAL:
            return f"whoever collects the messages{of}, and sees each one as it was sent,"
    return f"whoever sees all that was released{of}, knows all other records"


def guessed(guarantee: Guarantee) -> str:
    """What the attacker guesses about the one who is protected."""
    name = "a person" if guarantee.user is None else f"user {guarantee.user}"
    records, several = "record", guarantee.rounds > 1
    if several:
        records = f"{guarantee.rounds} records"
    if len(guarantee.accountants) > 1:
        records = f"{records} in each of them" if several else "records in all of them"
        several = True
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


def sentence(
    certificate: Certificate, guarantee: Guarantee, guess: float, *, among: int = 1
) -> str:
    """The guarantee in one sentence; ``guess`` is the largest chance of guessing right.

    ``among`` is the number of the ledger's accountants, of which a certificate for one user may
    leave some out, in which that person may have another index.
    """
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
            f"Nothing is certified at δ = {up(guarantee.delta)}: there the ledger's losses have no "
            "finite ε."
        )
    who = attacker(guarantee, among=among)
    chance = (
        f"{who} and guesses {guessed(guarantee)} is right in at most "
        f"{rounded_up(100 * guess, 2):g} of 100 cases, where tossing a coin is right in 50."
    )
    if guarantee.attested:
        return f"If the clients do what they attest, which nobody has verified, {chance}"
    return chance[0].upper() + chance[1:]
