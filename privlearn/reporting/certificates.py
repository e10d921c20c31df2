"""A certificate in words: its verdict and guarantees, on a terminal and in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeVar

from privlearn.accountants.assumption import KINDS, Assumption
from privlearn.accountants.certificate import Attestation, Certificate, Guarantee, Leased, Share
from privlearn.accountants.person_assumptions import rule_words
from privlearn.reporting.shown_numbers import counted, fixed, indices, up
from privlearn.reporting.shown_numbers import part as part_of_one
from privlearn.reporting.terminal_page import Page
from privlearn.reporting.visible import markdown, visible

if TYPE_CHECKING:
    from rich.console import Console


S = TypeVar("S", Attestation, Share)


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


def weaknesses(certificate: Certificate) -> list[str]:
    """What weakens this claim, of what is particular to this ledger."""
    lines = [
        f"{_of_accountant(certificate, one)}there is no finite ε at δ = {up(one.delta)}; it needs "
        f"a larger δ{' or fewer rounds' if one.rounds > 1 else ''}"
        for one in certificate.guarantees
        if math.isinf(one.epsilon) and not one.unknown
    ]
    lines += _each_once(
        certificate,
        (
            (one, f"what was spent is unknown: {one.unknown}")
            for one in certificate.spent
            if one.unknown
        ),
    )
    if not certificate.closed:
        odometer = ", and the odometer," if any(s.running for s in certificate.spent) else ""
        lines.append(
            "the ledger is open: more may have been spent, or cut off, after its last entry; the "
            f"guarantee holds for that, too, but what was spent{odometer} counts only up to entry "
            f"{certificate.entries - 1}"
        )
    if certificate.lost:
        lines.append(
            f"{counted(certificate.lost, 'spend')} without a recorded outcome (lost): paid for, "
            "but more may have left than is recorded"
        )
    lines += _each_once(
        certificate,
        (
            (guarantee, assumption.text)
            for guarantee in certificate.guarantees
            for assumption in guarantee.rests_on
            if assumption.weakens
        ),
    )
    if certificate.trusted_code:
        lines.append(f"trusted code, {counted(len(certificate.trusted_code), 'line')}, see below")
    return lines


def _each_once(certificate: Certificate, told: Iterable[tuple[Guarantee, str]]) -> list[str]:
    """Every text once, and whose it is if it is not everybody's."""
    texts: dict[str, dict[int, Guarantee]] = {}
    for guarantee, text in told:
        texts.setdefault(text, {})[guarantee.accountants[0]] = guarantee
    everybody = len(certificate.guarantees)
    return [
        text
        if len(whose) == everybody
        else f"accountant{'s' * (len(whose) > 1)} {' and '.join(map(str, whose))}: {text}"
        for text, whose in texts.items()
    ]


def _of_accountant(certificate: Certificate, guarantee: Guarantee) -> str:
    several = len(certificate.guarantees) > 1
    return f"accountant {guarantee.accountants[0]}: " if several else ""


def guarantee_line(guarantee: Guarantee) -> str:
    """One guarantee in the field's words."""
    kind = {"central": "DP", "joint": "joint DP", "local": "local DP"}[guarantee.trust.value]
    attested = ", attested, not verified" if guarantee.attested else ""
    of = " of a person" if guarantee.rule is not None else ""
    relation = guarantee.relation or guarantee.adjacency.value
    start = f"{kind}{of}, {relation}{attested}: "
    if guarantee.unknown:
        return f"{start}unknown ({visible(guarantee.unknown, 200)})"
    parts = [f"(ε = {fixed(guarantee.epsilon)}, δ = {up(guarantee.delta)})"]
    if guarantee.rho is not None:
        parts.append(f"ρ = {up(guarantee.rho)} zCDP")
    if guarantee.mu is not None:
        parts.append(f"μ = {fixed(guarantee.mu)} GDP")
    parts.append(f"method {guarantee.method}")
    if guarantee.failure:
        parts.append(f"failures of {up(guarantee.failure)} included")
    if guarantee.user is not None:
        parts.append(f"for user {guarantee.user}")
    if guarantee.rounds > 1:
        parts.append(f"for a person with {guarantee.rounds} rounds")
    if guarantee.rule is not None:
        parts.append(f"for every person with all visits ({rule_words(guarantee.rule)})")
    return start + ", ".join(parts)


def together_line(certificate: Certificate) -> str:
    """What several accountants promise together to one person; empty where there are no several."""
    together = certificate.together
    if together is None:
        return ""
    if certificate.not_certified:
        return f"nothing: {visible(certificate.not_certified, 400)}"
    return f"{guarantee_line(together)}, for {together.who}"


def running_line(guarantee: Guarantee) -> str:
    """The odometer of an account in words; empty if it has none."""
    bound = guarantee.running
    if bound is None:
        return ""
    return (
        f"privacy loss so far at most {fixed(bound.epsilon)}, at all times at once, except with "
        f"probability {up(bound.delta)}; up to the last entry, and no bound on what comes later"
    )


def whose(guarantee: Guarantee) -> str:
    """An accountant and its indices, as a heading."""
    users = guarantee.users
    what = "users" if guarantee.rule is None else "slots"
    whose = "" if users is None else f", {what} {indices(users)}"
    return f"accountant {guarantee.accountants[0]}{whose}"


def price_words(loss: Mapping[str, object]) -> str:
    """The kind of a loss in its JSON form, and its numbers."""
    numbers = [f"{k} {v}" for k, v in loss.items() if k not in ("kind", "adjacency")]
    return f"{loss.get('kind')} {', '.join(numbers)}"


_CLAIM = ("attested mechanism", "by", "users", "messages", "most of one user", "loss of one")
_SHARE = ("mechanism", "label", "spends", "share of the most charged user")
_OF_PERSON = (*_SHARE[:3], "at most, of a person's total")


def _share_heads(guarantee: Guarantee) -> tuple[str, ...]:
    return _SHARE if guarantee.rule is None else _OF_PERSON


def _claim(claim: Attestation) -> tuple[str, ...]:
    numbers = (str(claim.count), str(claim.most_messages))
    return (claim.mechanism, claim.by, indices(claim.users), *numbers, price_words(claim.loss))


def _share(share: Share) -> tuple[str, ...]:
    part = "unknown" if share.share is None else part_of_one(share.share)
    return (share.mechanism, share.label, str(share.spends), part)


def _of(items: Sequence[S], guarantee: Guarantee) -> list[S]:
    return [item for item in items if item.accountant in guarantee.accountants]


def _grouped(assumptions: Sequence[Assumption]) -> list[tuple[str, list[str]]]:
    """Headings and sentences, in the order of `KINDS`."""
    groups = [(KINDS[kind], [a.text for a in assumptions if a.kind == kind]) for kind in KINDS]
    return [(heading, texts) for heading, texts in groups if texts]


def print_certificate(certificate: Certificate, console: Console, *, full: bool = False) -> None:
    """Prints verdict, weaknesses and guarantees, in that order; ``full`` adds every assumption.

    All text of the ledger is indented, so that it cannot be taken for the verdict.
    """
    page = Page(console)
    print_verdict(certificate, page, full=full)
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        page.line(f"\n{whose(guarantee)}" if several else "", style="bold")
        print_guarantee(guarantee, spent, page)
        page.table(
            _share_heads(guarantee),
            [_share(share) for share in _of(certificate.mechanisms, guarantee)],
        )
        print_claims(certificate, guarantee, page)
    print_sums(certificate, page)
    print_record(certificate, page, full=full)


def print_verdict(certificate: Certificate, page: Page, *, full: bool) -> None:
    """Whether it holds, what is wrong, and what weakens it."""
    claimed = certificate.attested and not certificate.problems and not certificate.simulation
    style = "bold green" if certificate.holds else "bold yellow" if claimed else "bold red"
    page.line(verdict(certificate), style=style)
    if together := together_line(certificate):
        page.named("all together", together, style="bold")
    page.items(certificate.problems, style="red")
    if certificate.consequences:
        number = counted(len(certificate.consequences), "further problem")
        where = ":" if full else " (--full)"
        page.items([f"{number} where the record is broken, which may follow from that{where}"])
    if full:
        page.items(certificate.consequences, style="red", most=2000)
    weak = weaknesses(certificate)
    if weak:
        page.line("\nwhat weakens this claim:", style="bold")
        page.items(weak, style="yellow")


def print_guarantee(guarantee: Guarantee, spent: Guarantee, page: Page, sentence: str = "") -> None:
    """What is promised, in plain words, too, and what was spent."""
    page.named("guarantee", guarantee_line(guarantee))
    if sentence:
        page.named("in plain words", sentence)
    page.named("spent, ex post", guarantee_line(spent), style="dim")
    if spent.running is not None:
        page.named("odometer", running_line(spent))


def print_claims(certificate: Certificate, guarantee: Guarantee, page: Page) -> None:
    """What clients attest."""
    claims = _of(certificate.attestations, guarantee)
    page.table(_CLAIM, [_claim(claim) for claim in claims])
    for unseen in dict.fromkeys("; ".join(c.unseen) for c in claims if c.unseen):
        page.items([f"assumed not to be seen by the receiver: {unseen}"])


def print_sums(certificate: Certificate, page: Page, sentences: Sequence[str] = ()) -> None:
    """What several accountants add up to, in plain words, too, and remarks."""
    sums = zip(certificate.sums, certificate.sums_spent, strict=False)
    for (guarantee, spent), words in zip_longest(sums, sentences):
        page.line("")
        page.hanging("sum, ", f"for {guarantee.who}", style="bold")
        print_guarantee(guarantee, spent, page, words or "")
    if certificate.remarks:
        page.line("")
        page.items(certificate.remarks)


def print_record(certificate: Certificate, page: Page, *, full: bool) -> None:
    """Trusted code, every assumption if ``full``, and which record it is."""
    page.line("\ntrusted code:", style="bold")
    page.items(certificate.trusted_code or ["none beyond the library's clipping and sums"])
    if full:
        for guarantee in certificate.guarantees:
            page.line(f"\n{_of_accountant(certificate, guarantee)}it rests on", style="bold")
            for heading, texts in _grouped(guarantee.rests_on):
                page.line(f"{heading}.")
                page.items(texts, most=1000)
    page.line("")
    lost = f", {certificate.lost} lost" if certificate.lost else ""
    spends = counted(certificate.spends, "spend")
    page.named("record", f"{certificate.entries:,} entries, {spends}{lost}")
    for lease in certificate.leases:
        page.named("lease", lease_words(lease))
    if certificate.learners:
        page.named("learner", ", ".join(certificate.learners))
    if certificate.ended_early:
        page.named("ended early", _early(certificate))
    page.named("noise", certificate.noise)
    for name in certificate.features:
        page.named("extension", f"{name}: optional, not known here, left aside")
    page.named("format", str(certificate.format))
    page.named("head", f"{certificate.head} ({compared(certificate)})", style="dim")


def lease_words(lease: Leased) -> str:
    """How many runs of a mechanism were paid for at once."""
    runs = counted(lease.runs, "run")
    which = f"lease of {runs}" if lease.leases == 1 else f"{lease.leases:,} leases of {runs}"
    return (
        f"{which}: {lease.mechanism} under {lease.label!r}; all are charged, how many were used "
        "is not recorded"
    )


def _early(certificate: Certificate) -> str:
    """Of streams that are charged as far as they came."""
    return (
        f"{counted(certificate.ended_early, 'stream')}, charged as far as they came; "
        f"{counted(certificate.freed, 'charge')} of later users taken off"
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


def certificate_markdown(certificate: Certificate) -> str:
    """The certificate as Markdown, with every assumption."""
    lines = ["# Privacy certificate", "", f"**{verdict(certificate)}**", ""]
    if together := together_line(certificate):
        lines += [f"**All accountants together.** {markdown(together)}", ""]
    lines += _listed("Problems:", certificate.problems)
    lines += _listed(
        "Further problems where the record is broken, which may follow from that:",
        certificate.consequences,
    )
    lines += _listed("What weakens this claim:", weaknesses(certificate))
    several = len(certificate.guarantees) > 1
    for guarantee, spent in zip(certificate.guarantees, certificate.spent, strict=True):
        lines += [f"## {whose(guarantee)}", ""] if several else []
        lines += [f"**Guarantee.** {markdown(guarantee_line(guarantee))}", ""]
        lines += [f"Spent, ex post, not a guarantee: {markdown(guarantee_line(spent))}", ""]
        lines += [f"Odometer: {running_line(spent)}.", ""] if spent.running is not None else []
        lines += ["It rests on:", ""]
        for heading, texts in _grouped(guarantee.rests_on):
            lines += _listed(f"{heading}.", texts)
        claims = _of(certificate.attestations, guarantee)
        if claims:
            lines += [_row(_CLAIM), _row(["---"] * len(_CLAIM))]
            lines += [*(_row(map(markdown, _claim(claim))) for claim in claims), ""]
        if several:
            lines += _shares_table(_of(certificate.mechanisms, guarantee), _share_heads(guarantee))
    for guarantee, spent in zip(certificate.sums, certificate.sums_spent, strict=False):
        lines += [f"## Sum, for {markdown(guarantee.who)}", ""]
        lines += [f"**Guarantee.** {markdown(guarantee_line(guarantee))}", ""]
        lines += [f"Spent, ex post, not a guarantee: {markdown(guarantee_line(spent))}", ""]
    lines += _listed("Remarks:", certificate.remarks)
    lines += _listed("Trusted code:", certificate.trusted_code)
    if not several:
        heads = _share_heads(certificate.guarantees[0]) if certificate.guarantees else _SHARE
        lines += _shares_table(certificate.mechanisms, heads)
    for lease in certificate.leases:
        lines += [f"Lease: {markdown(lease_words(lease))}.", ""]
    if certificate.learners:
        lines += [f"Learner: {markdown(', '.join(certificate.learners))}.", ""]
    if certificate.ended_early:
        lines += [f"Ended early: {_early(certificate)}.", ""]
    lines += [f"{certificate.entries:,} entries; head `{markdown(certificate.head)}`", ""]
    return "\n".join(lines)


def _listed(heading: str, texts: Sequence[str]) -> list[str]:
    return [heading, "", *(f"- {markdown(text)}" for text in texts), ""] if texts else []


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shares_table(shares: Sequence[Share], heads: tuple[str, ...]) -> list[str]:
    if not shares:  # only attestations
        return []
    rows = [heads, ("---",) * 4, *(tuple(map(markdown, _share(share))) for share in shares)]
    return [*map(_row, rows), ""]
