"""A certificate in words for whoever knows none of ours, each true in its case."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable

from privlearn.accountants.assumption import AssumptionKind
from privlearn.accountants.certificate import Certificate, Guarantee
from privlearn.accountants.person_assumptions import rule_words
from privlearn.accountants.shown_numbers import counted, fixed, rounded_up, up
from privlearn.values.adjacency import Adjacency, Trust

DETAILS = "privlearn audit LEDGER --full"
"""How everything that a ledger says is seen."""
_OF_KIND: dict[AssumptionKind, str] = {
    "paid": "of what the price covers",
    "checked": "of what was checked",
    "declared": "only declared",
    "trusted": "taken on trust",
    "not protected": "not protected",
}


def first_screen(
    certificate: Certificate, *, guess: float | None = None, spent: str = "", details: str = DETAILS
) -> list[tuple[str, str]]:
    """Names and what stands behind them, first the verdict and its meaning, which have none.

    No text of the ledger is in it.

    Args:
        certificate: what is said.
        guess: the most that a guess about one person is right; by default what the certificate
            itself bounds.
        spent: what was spent and what remains, where more is known than in the certificate.
        details: how to see everything.
    """
    whole, weak = certificate.composition, Counter(kind for kind, _ in _weaknesses(certificate))
    lines = [("", verdict(certificate)), ("", _in_one_sentence(certificate, whole, guess))]
    if whole is not None and not certificate.problems:
        lines.append(("privacy loss", _loss(certificate, whole)))
        lost = f"; {counted(certificate.lost, 'spend')} without a recorded outcome"
        lines.append(("spent", (spent or _spent(certificate)) + lost * bool(certificate.lost)))
        kinds = ", ".join(f"{number} {kind}" for kind, number in weak.items())
        things = counted(weak.total(), "thing")
        lines.append(("weakened by", f"{things}: {kinds}" if weak else "nothing in the ledger"))
        whole_record = "" if certificate.head_at == certificate.entries else "whether it is whole, "
        lines.append(("not checked", f"who wrote the ledger, {whole_record}what the program did"))
        if certificate.head_compared:
            lines.append(("head", compared(certificate)))
    return [*lines, ("all details", details)]


def _in_one_sentence(certificate: Certificate, whole: Guarantee | None, guess: float | None) -> str:
    if certificate.problems or certificate.simulation or whole is None:
        return meaning(certificate)
    if whole.unknown:
        return "The record is consistent, but what it promises a person cannot be known from it."
    likely = largest_chance(whole) if guess is None else guess
    return sentence(certificate, whole, likely, brief=True)


def largest_chance(guarantee: Guarantee) -> float:
    """The most that a guess between two possibilities is right, by (ε, δ), ρ and μ.

    With KL ≤ ρ the total variation is at most √(ρ/2) (Pinsker) and √(1 − e^−ρ)
    (Bretagnolle-Huber); under μ-GDP it is 2Φ(μ/2) − 1.
    """
    growth = math.tanh(guarantee.epsilon / 2)  # (e^ε − 1)/(e^ε + 1), and 2/(e^ε + 1) is the rest
    bounds = [growth + (1 - growth) * guarantee.delta]
    if guarantee.rho is not None and not guarantee.failure:
        bounds += [math.sqrt(guarantee.rho / 2), math.sqrt(-math.expm1(-guarantee.rho))]
    if guarantee.mu is not None and not guarantee.failure:
        bounds.append(math.erf(guarantee.mu / math.sqrt(8)))
    return min(0.5 + min(bounds) / 2, 1.0)


def _loss(certificate: Certificate, whole: Guarantee) -> str:
    if whole.unknown:
        return "unknown"
    stated = f"ε = {fixed(whole.epsilon)} at δ = {up(whole.delta)}"
    if certificate.simulation:
        return f"no bound; with noise that protects it would be at most {stated}"
    if math.isinf(whole.epsilon):
        return f"no finite ε at δ = {up(whole.delta)}"
    accounts = len(whole.accountants) > 1
    who = "one person" if whole.user is None else f"the person behind user {whole.user}"
    what = "one record" if whole.user is None else f"the record of user {whole.user}"
    if accounts or whole.rule is not None:
        what = f"all records of {who}"
    if whole.rounds > 1:
        what = f"{whole.rounds} records of {who}{' in each account' if accounts else ''}"
    doing = {
        Adjacency.ADD_REMOVE: "adding or removing",
        Adjacency.ZERO_OUT: "blanking out",
        Adjacency.REPLACE_ONE: "changing",
    }[whole.adjacency]
    others = " that others see" if whole.trust is Trust.JOINT else ""
    condition = "if so, " if whole.attested else ""
    return (
        f"{condition}at most {stated}: {doing} {what} makes no output{others} more than e^ε times "
        "as likely, plus δ"
    )


def _spent(certificate: Certificate) -> str:
    whole, amount = certificate.composition, "an amount that is not known of all together"
    for one in [*certificate.spent, *certificate.sums_spent]:
        if whole is not None and one.accountants == whole.accountants and not one.unknown:
            amount = f"ε = {fixed(one.epsilon)} at δ = {up(one.delta)}"
    if certificate.closed:
        return f"{amount}; closed: nothing more can be spent"
    return f"{amount} so far; the rest of the privacy loss above may still be spent"


def verdict(certificate: Certificate) -> str:
    """One line that says whether the guarantee holds."""
    if certificate.problems:
        return f"NOT VERIFIED: {counted(len(certificate.problems), 'problem')}"
    if certificate.simulation:
        return "SIMULATION: the record is consistent, but its noise protects nobody"
    state = "closed" if certificate.closed else "open, reported at its plan or cap"
    if all(guarantee.attested for guarantee in certificate.guarantees):
        return f"ATTESTED, NOT VERIFIED: the record of clients' claims is consistent ({state})"
    if certificate.attested:
        return f"VERIFIED from the ledger alone, except what clients attest ({state})"
    if any(guarantee.rule is not None for guarantee in certificate.guarantees):
        return f"VERIFIED from the ledger alone, except what its registry of people kept ({state})"
    return f"VERIFIED from the ledger alone ({state})"


def meaning(certificate: Certificate) -> str:
    """What the verdict means to whoever reads only that."""
    if certificate.problems:
        return (
            "Something in the record is wrong, or does not fit its own rules. Rely on no number of "
            "it until whoever keeps the ledger has explained each problem."
        )
    if certificate.simulation:
        return (
            "This was a test with noise that can be computed again. What it released protects "
            "nobody, whatever the numbers say."
        )
    if any(guarantee.attested for guarantee in certificate.guarantees):
        return (
            "People's own devices say what they did. The sums are right if that is true, which "
            "nobody has verified."
        )
    if any(one.unknown or math.isinf(one.epsilon) for one in certificate.guarantees):
        return (
            "The record is consistent, and yet it states no protection that can be known, see "
            "below."
        )
    return (
        "Every entry was read and its cost worked out again, and the budget was kept. That says "
        "that the numbers are right, not that the protection which they state is strong enough. "
        "They hold as far as what they rest on is true."
    )


def compared(certificate: Certificate) -> str:
    """Which head that was kept elsewhere the ledger was compared with, and what came of it."""
    at, entries = certificate.head_at, certificate.entries
    if not certificate.head_compared:
        return f"compared with {'its head file' if certificate.head_beside else 'none'}"
    if at is None:
        return "the one given stands nowhere"
    if at == entries:
        return "the one given"
    return f"the one given stands after entry {at:,} of {entries:,}, which continue it"


def weaknesses(certificate: Certificate) -> list[str]:
    """What weakens this claim, of what is particular to this ledger."""
    return [text for _, text in _weaknesses(certificate)]


def _weaknesses(certificate: Certificate) -> list[tuple[str, str]]:
    several = len(certificate.guarantees) > 1
    lines = [
        (
            "without a finite ε",
            f"{f'accountant {one.accountants[0]}: ' if several else ''}there is no finite ε at δ = "
            f"{up(one.delta)}; it needs a larger δ{' or fewer rounds' if one.rounds > 1 else ''}",
        )
        for one in certificate.guarantees
        if math.isinf(one.epsilon) and not one.unknown
    ]
    lines += _each_once(
        certificate,
        (
            (one, "spent unknown", f"what was spent is unknown: {one.unknown}")
            for one in certificate.spent
            if one.unknown
        ),
    )
    if not certificate.closed:
        odometer = ", and the odometer," if any(s.running for s in certificate.spent) else ""
        lines.append(
            (
                "open end (more may be spent)",
                "the ledger is open: more may have been spent, or cut off, after its last entry; "
                f"the guarantee holds for that, too, but what was spent{odometer} counts only up "
                f"to entry {certificate.entries - 1}",
            )
        )
    if certificate.lost:
        lines.append(
            (
                "loss of outcomes",
                f"{counted(certificate.lost, 'spend')} without a recorded outcome (lost): paid "
                "for, but more may have left than is recorded",
            )
        )
    lines += _each_once(
        certificate,
        (
            (guarantee, _OF_KIND[assumption.kind], assumption.text)
            for guarantee in certificate.guarantees
            for assumption in guarantee.rests_on
            if assumption.weakens
        ),
    )
    if certificate.trusted_code:
        number = counted(len(certificate.trusted_code), "line")
        lines.append(("of trusted code", f"trusted code, {number}, see below"))
    return lines


def _each_once(
    certificate: Certificate, told: Iterable[tuple[Guarantee, str, str]]
) -> list[tuple[str, str]]:
    texts: dict[str, tuple[str, dict[int, Guarantee]]] = {}
    for guarantee, kind, text in told:
        texts.setdefault(text, (kind, {}))[1][guarantee.accountants[0]] = guarantee
    everybody = len(certificate.guarantees)
    return [
        (
            kind,
            text
            if len(whose) == everybody
            else f"accountant{'s' * (len(whose) > 1)} {' and '.join(map(str, whose))}: {text}",
        )
        for text, (kind, whose) in texts.items()
    ]


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


def guessed(guarantee: Guarantee, *, brief: bool = False) -> str:
    """What the attacker guesses about the one who is protected.

    ``brief`` names neither accountants nor the rule of participation.
    """
    name = "a person" if guarantee.user is None else f"user {guarantee.user}"
    records, several = "record", guarantee.rounds > 1
    if several:
        records = f"{guarantee.rounds} records"
    if len(guarantee.accountants) > 1:
        records = f"{records} in each of them" if several else "records in all of them"
        records = "records" if brief else records
        several = True
    if guarantee.rule is not None:
        records, several = "records of all visits", True
        name += "" if brief else f" (under the rule: {rule_words(guarantee.rule)})"
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
    certificate: Certificate,
    guarantee: Guarantee,
    guess: float,
    *,
    among: int = 1,
    brief: bool = False,
) -> str:
    """The guarantee in one sentence; ``guess`` is the largest chance of guessing right.

    ``among`` is the number of the ledger's accountants, of which a certificate for one user may
    leave some out, in which that person may have another index; ``brief`` is that of `guessed`.
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
        return f"Nothing is certified: what was promised is unknown ({guarantee.unknown})."
    if math.isinf(guarantee.epsilon):
        return (
            f"Nothing is certified at δ = {up(guarantee.delta)}: there the ledger's losses have no "
            "finite ε."
        )
    who = attacker(guarantee, among=among)
    chance = (
        f"{who} and guesses {guessed(guarantee, brief=brief)} is right in at most "
        f"{rounded_up(100 * guess, 2):g} of 100 cases, where tossing a coin is right in 50."
    )
    if guarantee.attested:
        return f"If the clients do what they attest, which nobody has verified, {chance}"
    return chance[0].upper() + chance[1:]
